//! Programs that this repository has in Go, because what they are compared with is in Go, built once into the cache.

use crate::{folder, run};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Why there is no program.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// This machine cannot build it: no Go, no network. Reason enough to skip.
    #[error("{0}")]
    Unavailable(String),
    /// It does not build.
    #[error("{0}")]
    Failed(String),
}

impl From<String> for Error {
    fn from(said: String) -> Self {
        Self::Failed(said)
    }
}

/// The program of the module in a folder, which has its name.
///
/// # Errors
/// It cannot be built.
pub fn program(source: &Path) -> Result<PathBuf, Error> {
    let name = source.file_name().map(|name| name.to_string_lossy().into_owned());
    let name = name.ok_or_else(|| format!("{}: not a folder with a name", source.display()))?;
    let version = run(go(source).args(["env", "GOVERSION"]))
        .map_err(|said| Error::Unavailable(format!("Go is missing: install Go >= 1.26 ({})", last_line(&said))))?;
    let key = format!("{version}{}", all_of(source)?);
    let done = folder(&name, &key, |folder| {
        eprintln!("building {}: a minute or two when nothing is cached", source.display());
        // What e2e's tools are built with, so that Go's own cache has most of it.
        let built = run(go(source)
            .args(["build", "-mod=readonly", "-trimpath", "-buildvcs=false", "-o"])
            .arg(folder.join(&name))
            .arg("."));
        match built {
            Ok(_) => Ok(()),
            Err(said) if is_unavailable(&said) => {
                let why = last_line(&said);
                Err(Error::Unavailable(format!("{name} cannot be built: {why}")))
            }
            Err(said) => Err(Error::Failed(said)),
        }
    })?;
    Ok(done.join(name))
}

/// `go` in a module, undisturbed by a workspace file of the caller.
fn go(source: &Path) -> Command {
    let mut go = Command::new("go");
    go.current_dir(source).env("GOWORK", "off");
    go
}

/// Everything in the folder that decides the result: go.sum stands for the modules.
fn all_of(source: &Path) -> Result<String, String> {
    let failed = |path: &Path, error: std::io::Error| format!("{}: {error}", path.display());
    let mut files = Vec::new();
    for entry in fs::read_dir(source).map_err(|error| failed(source, error))? {
        let path = entry.map_err(|error| failed(source, error))?.path();
        let extension = path.extension().and_then(|extension| extension.to_str());
        if matches!(extension, Some("go" | "mod" | "sum")) {
            files.push(path);
        }
    }
    files.sort();
    let mut all = String::new();
    for path in files {
        all.push_str(&path.file_name().unwrap_or_default().to_string_lossy());
        all.push('\0');
        all.push_str(&fs::read_to_string(&path).map_err(|error| failed(&path, error))?);
        all.push('\0');
    }
    Ok(all)
}

/// What Go says when it got no answer or is too old, rather than that the program is wrong.
fn is_unavailable(said: &str) -> bool {
    const SIGNS: [&str; 8] = [
        "requires go >=",
        "toolchain not available",
        "dial tcp",
        "no such host",
        "i/o timeout",
        "TLS handshake timeout",
        "connection refused",
        "module lookup disabled by GOPROXY=off",
    ];
    SIGNS.iter().any(|sign| said.contains(sign))
}

fn last_line(said: &str) -> &str {
    said.trim().lines().last().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::{all_of, is_unavailable};

    #[test]
    fn no_answer_is_told_from_a_program_that_is_wrong() {
        for said in [
            "go: errors parsing go.mod: requires go >= 1.26.0 (running go 1.25.1; GOTOOLCHAIN=local)",
            "main.go:9:2: k8s.io/api@v0.37.1: Get \"https://proxy/k8s.io\": dial tcp: lookup proxy: no such host",
        ] {
            assert!(is_unavailable(said), "{said}");
        }
        assert!(!is_unavailable("./main.go:9:2: undefined: x"));
        assert!(!is_unavailable("verifying k8s.io/api@v0.37.1: checksum mismatch"));
    }

    #[test]
    fn every_source_decides_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        write("main.go", "package main");
        write("go.sum", "");
        let first = all_of(folder.path()).unwrap();
        write("README", "x");
        assert_eq!(first, all_of(folder.path()).unwrap());
        write("go.sum", "x");
        let second = all_of(folder.path()).unwrap();
        write("another.go", "");
        assert!(first != second && second != all_of(folder.path()).unwrap());
    }
}
