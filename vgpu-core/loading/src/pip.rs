//! Clients from PyPI, in the versions that are named, with all that they need named too.

use crate::{cache, run};
use std::path::PathBuf;
use std::process::Command;

/// A folder for PYTHONPATH with these packages. Each client has its own, so that one which cannot be had
/// hides no other.
///
/// # Errors
/// They cannot be had for this machine's Python.
pub fn folder(client: &str, packages: &[&str]) -> Result<PathBuf, String> {
    let version = run(Command::new("python3").args(["-c", "import sys; print(*sys.version_info[:2], sep='.')"]))?;
    let version = version.trim();
    cache::folder(
        &format!("client-{client}"),
        &format!("{version} {packages:?}"),
        |folder| {
            let mut pip = Command::new("python3");
            pip.args([
                "-m",
                "pip",
                "install",
                "--quiet",
                "--disable-pip-version-check",
                "--root-user-action",
                "ignore",
            ]);
            pip.args(["--no-deps", "--only-binary", ":all:", "--no-compile", "--target"])
                .arg(folder)
                .args(packages);
            run(&mut pip).map(|_| ())
        },
    )
}
