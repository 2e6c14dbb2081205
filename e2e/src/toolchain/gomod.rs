//! Generates the go.mod for building programs of another module: Kubernetes and containerd in a chosen version.
//!
//! Kubernetes' go.mod requires its staging modules (k8s.io/api and so on) at v0.0.0 and replaces them by folders,
//! which are not part of a released module. Each staging module is also released separately, with the same minor and
//! patch: v0.37.1 for Kubernetes v1.37.1.

use std::collections::BTreeSet;
use std::fmt::Write;

use anyhow::{Context, Result, ensure};

/// Returns true if the go.mod requires the module at exactly this version.
pub(super) fn requires(text: &str, module: &str, version: &str) -> bool {
    let wanted = [module, &format!("v{version}")].map(str::to_owned);
    text.lines().any(|line| {
        let line = line.trim();
        let line = line.strip_prefix("require ").unwrap_or(line);
        line.split_whitespace().take(2).eq(wanted.iter().map(String::as_str))
    })
}

/// Returns our go.mod for this version, before `go mod tidy`. `name` is the name of the family.
pub(super) fn of_version(
    upstream: &str,
    name: &str,
    module: &str,
    version: &str,
    packages: &[String],
) -> Result<String> {
    let directive = |start: &str| upstream.lines().find(|line| line.starts_with(start)).map(str::trim);
    let go = directive("go ").with_context(|| format!("the go.mod of {module} {version} has no go line"))?;
    let mut text = format!("module dra.vgpu/e2e/tools/{name}\n\n{go}\n\n");
    if let Some(godebug) = directive("godebug default=") {
        let _ = writeln!(text, "{godebug}\n");
    } else if let Some(default) = upstream
        .lines()
        .map(str::trim)
        .find(|line| line.starts_with("default=go"))
    {
        let _ = writeln!(text, "godebug {default}\n");
    }
    for package in packages {
        let _ = writeln!(text, "tool {package}");
    }
    let _ = writeln!(text, "\nrequire {module} v{version}\n");
    if module == "k8s.io/kubernetes" {
        text.push_str(&staging(upstream, version)?);
    }
    Ok(text)
}

/// The staging modules of Kubernetes, each at its own release.
fn staging(upstream: &str, version: &str) -> Result<String> {
    let rest = version
        .strip_prefix("1.")
        .with_context(|| format!("Kubernetes {version} is not 1.x"))?;
    let modules: BTreeSet<&str> = upstream
        .lines()
        .filter_map(|line| {
            let mut words = line.trim().trim_start_matches("require ").split_whitespace();
            let (module, at) = (words.next()?, words.next()?);
            (module.starts_with("k8s.io/") && at == "v0.0.0").then_some(module)
        })
        .collect();
    ensure!(
        !modules.is_empty(),
        "the go.mod of Kubernetes {version} requires nothing at v0.0.0: it is built in another way than expected"
    );
    Ok(modules
        .iter()
        .map(|module| format!("replace {module} => {module} v0.{rest}\n"))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const UPSTREAM: &str = "module k8s.io/kubernetes\n\ngo 1.24.0\n\ngodebug default=go1.24\n\nrequire (\n\
        \tk8s.io/api v0.0.0\n\tk8s.io/kubelet v0.0.0\n\tk8s.io/klog/v2 v2.130.1\n)\n\nreplace (\n\tk8s.io/api => ./staging/src/k8s.io/api\n)\n";

    #[test]
    fn staging_modules_are_replaced_by_their_own_releases() {
        let packages = ["k8s.io/kubernetes/cmd/kubelet".to_owned()];
        let text = of_version(UPSTREAM, "kubernetes", "k8s.io/kubernetes", "1.34.4", &packages).unwrap();
        assert!(text.contains("replace k8s.io/api => k8s.io/api v0.34.4\n"), "{text}");
        assert!(
            text.contains("replace k8s.io/kubelet => k8s.io/kubelet v0.34.4\n"),
            "{text}"
        );
        assert!(!text.contains("klog"), "{text}");
        assert!(
            text.contains("go 1.24.0\n") && text.contains("godebug default=go1.24\n"),
            "{text}"
        );
        assert!(text.contains("tool k8s.io/kubernetes/cmd/kubelet\n"), "{text}");
        assert!(requires(&text, "k8s.io/kubernetes", "1.34.4") && !requires(&text, "k8s.io/kubernetes", "1.34.44"));
    }

    #[test]
    fn the_committed_ones_are_of_the_versions_that_are_named() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
        let versions = std::fs::read_to_string(folder.join("versions")).unwrap();
        for (name, module) in [
            ("kubernetes", "k8s.io/kubernetes"),
            ("containerd", "github.com/containerd/containerd/v2"),
        ] {
            let text = std::fs::read_to_string(folder.join("tools").join(name).join("go.mod")).unwrap();
            let version = versions
                .lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix('='))
                .unwrap();
            assert!(
                requires(&text, module, version),
                "{name}: run `vgpu-e2e tools` and commit what it resolves"
            );
        }
    }

    #[test]
    fn a_module_of_another_shape_is_refused() {
        let upstream = "module k8s.io/kubernetes\n\ngo 1.30\n";
        assert!(of_version(upstream, "kubernetes", "k8s.io/kubernetes", "1.99.0", &[]).is_err());
        assert!(of_version("module x\n", "containerd", "x", "1.7.35", &[]).is_err());
    }

    #[test]
    fn containerd_needs_no_replacements() {
        let upstream = "module github.com/containerd/containerd\n\ngo 1.25.0\n\nrequire dario.cat/mergo v1.0.0\n";
        let packages = ["github.com/containerd/containerd/cmd/ctr".to_owned()];
        let module = "github.com/containerd/containerd";
        assert_eq!(
            of_version(upstream, "containerd", module, "1.7.35", &packages).unwrap(),
            "module dra.vgpu/e2e/tools/containerd\n\ngo 1.25.0\n\ntool github.com/containerd/containerd/cmd/ctr\n\n\
             require github.com/containerd/containerd v1.7.35\n\n"
        );
    }
}
