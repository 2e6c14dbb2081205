//! The go.mod by which Kubernetes builds outside of its own repository.
//!
//! Kubernetes' go.mod requires its staging modules (k8s.io/api and so on) at v0.0.0 and replaces them by folders, which
//! do not come along with a released module. Each is released on its own as well, with the same minor and patch:
//! v0.37.1 for Kubernetes v1.37.1.

use std::collections::BTreeSet;
use std::fmt::Write;

use anyhow::{Context, Result, bail};

/// Whether the go.mod requires the module at just this version.
pub(super) fn requires(text: &str, module: &str, version: &str) -> bool {
    let wanted = [module, &format!("v{version}")].map(str::to_owned);
    text.lines().any(|line| {
        let line = line.trim();
        let line = line.strip_prefix("require ").unwrap_or(line);
        line.split_whitespace().take(2).eq(wanted.iter().map(String::as_str))
    })
}

/// Our go.mod for that version, before `go mod tidy`.
pub(super) fn kubernetes(upstream: &str, version: &str, packages: &[&str]) -> Result<String> {
    let rest = version
        .strip_prefix("1.")
        .with_context(|| format!("Kubernetes {version} is not 1.x"))?;
    let staging: BTreeSet<&str> = upstream
        .lines()
        .filter_map(|line| {
            let mut words = line.trim().trim_start_matches("require ").split_whitespace();
            let (module, at) = (words.next()?, words.next()?);
            (module.starts_with("k8s.io/") && at == "v0.0.0").then_some(module)
        })
        .collect();
    if staging.is_empty() {
        bail!(
            "the go.mod of Kubernetes {version} requires nothing at v0.0.0: it is built in another way than expected"
        );
    }
    let directive = |name: &str| upstream.lines().find(|line| line.starts_with(name)).map(str::trim);
    let go = directive("go ").with_context(|| format!("the go.mod of Kubernetes {version} has no go line"))?;
    let mut text = format!("module dra.vgpu/e2e/tools/kubernetes\n\n{go}\n\n");
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
    let _ = writeln!(text, "\nrequire k8s.io/kubernetes v{version}\n");
    for module in staging {
        let _ = writeln!(text, "replace {module} => {module} v0.{rest}");
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const UPSTREAM: &str = "module k8s.io/kubernetes\n\ngo 1.24.0\n\ngodebug default=go1.24\n\nrequire (\n\
        \tk8s.io/api v0.0.0\n\tk8s.io/kubelet v0.0.0\n\tk8s.io/klog/v2 v2.130.1\n)\n\nreplace (\n\tk8s.io/api => ./staging/src/k8s.io/api\n)\n";

    #[test]
    fn staging_modules_are_replaced_by_their_own_releases() {
        let text = kubernetes(UPSTREAM, "1.34.4", &["k8s.io/kubernetes/cmd/kubelet"]).unwrap();
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
    fn the_committed_one_is_of_the_version_that_is_named() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
        let text = std::fs::read_to_string(folder.join("tools/kubernetes/go.mod")).unwrap();
        let versions = std::fs::read_to_string(folder.join("versions")).unwrap();
        let version = versions
            .lines()
            .find_map(|line| line.strip_prefix("kubernetes="))
            .unwrap();
        assert!(
            requires(&text, "k8s.io/kubernetes", version),
            "run `vgpu-e2e tools` and commit what it resolves"
        );
    }

    #[test]
    fn a_module_of_another_shape_is_refused() {
        assert!(kubernetes("module k8s.io/kubernetes\n\ngo 1.30\n", "1.99.0", &[]).is_err());
    }
}
