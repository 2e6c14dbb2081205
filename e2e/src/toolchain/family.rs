//! The families of programs: modules, packages and build flags.

use std::path::PathBuf;

use anyhow::{Result, bail};

use super::versions::{Versions, is_containerd_1};
use crate::shell;

/// Programs that are built from one go.mod.
#[derive(Debug)]
pub struct Family {
    /// Its folder under `tools/`.
    pub name: &'static str,
    packages: &'static [&'static str],
    tags: &'static str,
    /// A program whose package name differs from its usual name.
    pub rename: Option<(&'static str, &'static str)>,
    /// The build time on two cores with an empty cache.
    pub estimate: &'static str,
}

/// The name of Kubernetes' family.
pub(super) const KUBERNETES: &str = "kubernetes";

/// In build order: short ones first, so that mistakes show early.
pub const FAMILIES: [Family; 6] = [
    Family {
        name: "cni",
        packages: &[
            "github.com/containernetworking/plugins/plugins/main/ptp",
            "github.com/containernetworking/plugins/plugins/main/loopback",
            "github.com/containernetworking/plugins/plugins/ipam/host-local",
        ],
        tags: "",
        rename: None,
        estimate: "10 s when nothing is cached",
    },
    Family {
        name: "runc",
        packages: &["github.com/opencontainers/runc"],
        tags: "seccomp", // without it every sandbox fails: "seccomp: config provided but seccomp not supported"
        rename: None,
        estimate: "15 s when nothing is cached",
    },
    Family {
        name: "etcd",
        packages: &["go.etcd.io/etcd/server/v3"],
        tags: "",
        rename: Some(("server", "etcd")),
        estimate: "30 s when nothing is cached",
    },
    Family {
        name: "containerd",
        packages: &[
            "github.com/containerd/containerd/v2/cmd/containerd",
            "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2",
            "github.com/containerd/containerd/v2/cmd/ctr",
        ],
        tags: "no_btrfs no_devmapper no_zfs no_aufs",
        rename: None,
        estimate: "90 s when nothing is cached",
    },
    Family {
        name: "helm",
        packages: &["helm.sh/helm/v3/cmd/helm"],
        tags: "",
        rename: None,
        estimate: "90 s when nothing is cached",
    },
    Family {
        name: KUBERNETES,
        packages: &[
            "k8s.io/kubernetes/cmd/kube-apiserver",
            "k8s.io/kubernetes/cmd/kube-scheduler",
            "k8s.io/kubernetes/cmd/kube-controller-manager",
            "k8s.io/kubernetes/cmd/kubelet",
            "k8s.io/kubernetes/cmd/kubectl",
        ],
        tags: "",
        rename: None,
        estimate: "8 minutes when nothing is cached",
    },
];

/// The tools that a release needs besides Helm. No cluster needs them, so only `vgpu-e2e tools --release` builds them.
pub const RELEASE: [Family; 4] = [
    Family {
        name: "krew",
        packages: &["sigs.k8s.io/krew/cmd/validate-krew-manifest"],
        tags: "",
        rename: None,
        estimate: "15 s when nothing is cached",
    },
    Family {
        name: "oras",
        packages: &["oras.land/oras/cmd/oras"],
        tags: "",
        rename: None,
        estimate: "20 s when nothing is cached",
    },
    Family {
        name: "registry",
        packages: &["github.com/distribution/distribution/v3/cmd/registry"],
        tags: "",
        rename: None,
        estimate: "140 s when nothing is cached",
    },
    Family {
        name: "cosign",
        packages: &["github.com/sigstore/cosign/v3/cmd/cosign"],
        tags: "",
        rename: None,
        estimate: "200 s when nothing is cached",
    },
];

/// Programs that people run beside this driver, for the tests that try them together: each with the module that has its
/// chart or its kinds. They take minutes to build, so only the tests that need them have them built.
pub(super) const BESIDE: [(Family, &str); 3] = [
    (
        Family {
            name: "kueue",
            packages: &["sigs.k8s.io/kueue/cmd/kueue"],
            tags: STATIC,
            rename: None,
            estimate: "200 s when nothing is cached",
        },
        "sigs.k8s.io/kueue",
    ),
    (
        Family {
            name: "karpenter",
            packages: &["dra.vgpu/e2e/tools/karpenter"], // its sources are beside its go.mod
            tags: STATIC,
            rename: None,
            estimate: "100 s when nothing is cached",
        },
        "sigs.k8s.io/karpenter",
    ),
    (
        Family {
            name: "kwok",
            packages: &["sigs.k8s.io/kwok/cmd/kwok"],
            tags: STATIC,
            rename: None,
            estimate: "130 s when nothing is cached",
        },
        "sigs.k8s.io/kwok",
    ),
];

/// Programs in images of their own have no libc beside them.
const STATIC: &str = "netgo osusergo";

impl Family {
    /// The module and its chosen version, if the version can be chosen.
    pub(super) fn chosen<'a>(&self, versions: &'a Versions) -> Option<(&'static str, &'a str)> {
        match self.name {
            KUBERNETES => Some(("k8s.io/kubernetes", &versions.kubernetes)),
            "containerd" if is_containerd_1(&versions.containerd) => {
                Some(("github.com/containerd/containerd", &versions.containerd))
            }
            "containerd" => Some(("github.com/containerd/containerd/v2", &versions.containerd)),
            _ => None,
        }
    }

    /// The names of its programs, if none is renamed.
    pub(super) fn programs(&self) -> impl Iterator<Item = &'static str> {
        let packages = self.packages.iter();
        packages.map(|package| package.rsplit('/').next().unwrap_or(package))
    }

    /// The packages to build; those of containerd 1.x are in a module without `/v2`.
    pub(super) fn packages(&self, versions: &Versions) -> Vec<String> {
        let old = self.name == "containerd" && is_containerd_1(&versions.containerd);
        let of_version = |package: &&str| match old {
            true => package.replacen("/v2/", "/", 1),
            false => (*package).to_owned(),
        };
        self.packages.iter().map(of_version).collect()
    }

    /// The flags of `go build`. Kubernetes reads its version from variables that the linker sets.
    #[must_use]
    pub fn flags(&self, kubernetes: &str) -> Vec<String> {
        let mut linker = String::from("-s -w");
        if self.tags == STATIC {
            linker.push_str(" -extldflags=-static"); // for those with C, such as kwok
        }
        if self.name == KUBERNETES {
            let minor = kubernetes.split('.').nth(1).unwrap_or_default();
            for package in ["k8s.io/component-base/version", "k8s.io/client-go/pkg/version"] {
                for (variable, value) in [
                    ("gitVersion", format!("v{kubernetes}")),
                    ("gitMajor", "1".to_owned()),
                    ("gitMinor", minor.to_owned()),
                ] {
                    linker.push_str(&format!(" -X {package}.{variable}={value}"));
                }
            }
        }
        let mut flags = vec![
            "-trimpath".to_owned(),
            "-buildvcs=false".to_owned(),
            format!("-ldflags={linker}"),
        ];
        if !self.tags.is_empty() {
            flags.push(format!("-tags={}", self.tags));
        }
        flags
    }
}

/// Returns true if runc can be built with seccomp.
#[must_use]
pub(super) fn seccomp_available() -> bool {
    shell::run(&mut shell::command("pkg-config", ["--exists", "libseccomp"])).is_ok()
}

/// The distribution's runc, at least 1.1: older versions do not support options that containerd 2 uses.
pub(super) fn distribution_runc() -> Result<PathBuf> {
    for folder in ["/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin"] {
        let path = PathBuf::from(folder).join("runc");
        if !path.is_file() {
            continue;
        }
        let said = shell::output(&mut shell::command(&path, ["--version"]))?;
        if runc_is_new_enough(&said) {
            return Ok(path);
        }
    }
    bail!("runc cannot be built and no runc >= 1.1 is installed: install libseccomp-dev and pkg-config, or runc")
}

fn runc_is_new_enough(said: &str) -> bool {
    let version = said
        .lines()
        .find_map(|line| line.strip_prefix("runc version "))
        .unwrap_or_default();
    let mut numbers = version
        .split(['.', '-', '+'])
        .map(|part| part.parse::<u32>().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= (1, 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kubernetes_is_told_its_version() {
        let kubernetes = FAMILIES.iter().find(|family| family.name == "kubernetes").unwrap();
        let flags = kubernetes.flags("1.36.3").join(" ");
        assert!(
            flags.contains("-X k8s.io/component-base/version.gitVersion=v1.36.3"),
            "{flags}"
        );
        assert!(
            flags.contains("-X k8s.io/component-base/version.gitMinor=36"),
            "{flags}"
        );
    }

    #[test]
    fn containerd_1_is_built_from_its_own_module() {
        let containerd = FAMILIES.iter().find(|family| family.name == "containerd").unwrap();
        for (version, prefix) in [
            ("1.7.35", "github.com/containerd/containerd"),
            ("2.4.2", "github.com/containerd/containerd/v2"),
        ] {
            let versions = Versions {
                kubernetes: "1.37.1".to_owned(),
                containerd: version.to_owned(),
            };
            assert_eq!(containerd.chosen(&versions), Some((prefix, version)));
            let wanted = ["containerd", "containerd-shim-runc-v2", "ctr"].map(|name| format!("{prefix}/cmd/{name}"));
            assert_eq!(containerd.packages(&versions), wanted);
        }
    }

    #[test]
    fn an_old_runc_is_not_taken() {
        assert!(runc_is_new_enough("runc version 1.1.5+ds1\nspec: 1.0.2\n"));
        assert!(runc_is_new_enough("runc version 1.5.2"));
        assert!(!runc_is_new_enough("runc version 1.0.3"));
        assert!(!runc_is_new_enough("something else"));
    }
}
