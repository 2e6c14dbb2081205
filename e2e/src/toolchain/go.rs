//! The Go toolchain of this machine.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::shell;

/// The Go version that the pinned modules need. An older Go from 1.21 on downloads it, unless GOTOOLCHAIN forbids
/// that.
const NEEDED: (u32, u32, u32) = (1, 26, 6);

/// `go`, without the caller's workspace file.
pub(super) fn command() -> Command {
    let mut command = shell::command("go", [] as [&str; 0]);
    command.env("GOWORK", "off");
    command
}

/// The version that will build (possibly one that Go downloads), or an error of one line.
pub(super) fn check() -> Result<String> {
    let installed = shell::output(command().env("GOTOOLCHAIN", "local").args(["env", "GOVERSION"]))
        .context("Go is missing: install Go >= 1.21 from the Go project or your distribution")?;
    let toolchain = shell::output(command().args(["env", "GOTOOLCHAIN"]))?;
    choose(installed.trim(), toolchain.trim())
}

fn choose(installed: &str, toolchain: &str) -> Result<String> {
    let version =
        parse(installed).with_context(|| format!("go env GOVERSION says {installed:?}, which is no version"))?;
    if version >= NEEDED {
        return Ok(installed.to_owned());
    }
    let fetches = toolchain == "auto" || toolchain.ends_with("+auto") || toolchain.ends_with("+path");
    if version >= (1, 21, 0) && fetches {
        return Ok(format!("{installed}, fetching what go.mod names"));
    }
    let (major, minor, patch) = NEEDED;
    bail!(
        "Go {installed} with GOTOOLCHAIN={toolchain} is too old: install Go >= {major}.{minor}.{patch}, \
         or Go >= 1.21 with GOTOOLCHAIN=auto"
    )
}

fn parse(version: &str) -> Option<(u32, u32, u32)> {
    let word = version.strip_prefix("go")?.split([' ', '-']).next()?;
    let mut numbers = word
        .split('.')
        .map(|part| part.split(|c: char| !c.is_ascii_digit()).next().unwrap_or("").parse());
    Some((
        numbers.next()?.ok()?,
        numbers.next()?.ok()?,
        numbers.next().and_then(Result::ok).unwrap_or(0),
    ))
}

/// The parts of what `go mod download -json` prints.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Download {
    go_mod: PathBuf,
    dir: PathBuf,
}

/// Downloads a module, `name@v1.2.3` or in the version of the go.mod in `folder`.
fn download(folder: &Path, module: &str) -> Result<Download> {
    let said = shell::output(command().current_dir(folder).args(["mod", "download", "-json", module]))?;
    serde_json::from_str(&said).context("go mod download -json gave no JSON")
}

/// The go.mod with which the module itself was released.
pub(super) fn upstream_gomod(folder: &Path, module: &str, version: &str) -> Result<String> {
    let file = download(folder, &format!("{module}@v{version}"))?.go_mod;
    fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))
}

/// The folder of a module's files, in the version of the go.mod in `folder`.
pub(super) fn files_of(folder: &Path, module: &str) -> Result<PathBuf> {
    download(folder, module).map(|found| found.dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_go_or_one_that_fetches_is_taken() {
        assert_eq!(choose("go1.26.6", "local").unwrap(), "go1.26.6");
        assert_eq!(choose("go1.27rc1", "local").unwrap(), "go1.27rc1");
        assert!(choose("go1.21.0", "auto").is_ok());
        assert!(choose("go1.22.1", "go1.22.1+auto").is_ok());
    }

    #[test]
    fn an_old_go_gets_one_line_that_says_what_to_do() {
        for (installed, toolchain) in [("go1.19.8", "auto"), ("go1.26.5", "local")] {
            let error = choose(installed, toolchain).unwrap_err().to_string();
            assert!(
                error.starts_with(&format!("Go {installed} with GOTOOLCHAIN={toolchain} is too old")),
                "{error}"
            );
            assert!(
                error.contains("install Go >= 1.26.6") && !error.contains('\n'),
                "{error}"
            );
        }
    }
}
