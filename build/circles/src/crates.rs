//! The crates of a workspace: every library, program, test, benchmark, example and build script.

use anyhow::{Context, ensure};
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A crate: its root file, and its name in reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    pub name: String,
    pub root: PathBuf,
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    targets: Vec<MetadataTarget>,
}

#[derive(Deserialize)]
struct MetadataTarget {
    kind: Vec<String>,
    src_path: PathBuf,
}

/// Returns the crates of the workspace of `manifest`. A library has the name of its package; the others are called
/// `package/kind`, because tests of one package share modules.
///
/// # Errors
/// `cargo metadata` fails.
pub fn of_workspace(manifest: &Path) -> anyhow::Result<Vec<Target>> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--no-deps", "--format-version", "1", "--manifest-path"])
        .arg(manifest)
        .output()
        .context("cargo metadata")?;
    ensure!(
        output.status.success(),
        "cargo metadata of {}: {}",
        manifest.display(),
        String::from_utf8_lossy(&output.stderr)
    );
    let metadata: Metadata = serde_json::from_slice(&output.stdout).context("cargo metadata's answer")?;
    let mut targets = Vec::new();
    for package in metadata.packages {
        for target in package.targets {
            let kind = target.kind.first().map_or("lib", String::as_str);
            let is_library = matches!(kind, "lib" | "rlib" | "cdylib" | "dylib" | "staticlib" | "proc-macro");
            let name = if is_library {
                package.name.clone()
            } else {
                format!("{}/{kind}", package.name)
            };
            targets.push(Target {
                name,
                root: target.src_path,
            });
        }
    }
    Ok(targets)
}
