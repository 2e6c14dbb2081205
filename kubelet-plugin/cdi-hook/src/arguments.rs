//! The command line. The CDI spec writes it; people see it in an error or with --help.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

use vgpu_abi::paths::CONTAINER_PRELOAD;

use crate::shares;

/// The option that may be repeated.
pub(crate) const FILE: &str = "--file";

pub(crate) const HELP: &str = "\
vgpu-cdi-hook: prepares a container for its share of a GPU (an OCI createContainer hook)

usage: vgpu-cdi-hook preload [--library PATH] [--file NAME]... [--report FOLDER] [--alone VERSION] [--refused WHY] < STATE
       vgpu-cdi-hook --help | --version
  preload         verifies the mounts at /dev/vgpu and makes it read-only, then mounts a read-only list over the
                  container's /etc/ld.so.preload: the image's own entries and the library. Fails with one line if the
                  limit would not be enforced; the container must not start then
  --library PATH  the library's path in the container (default: /dev/vgpu/.lib/libvgpu-preload.so)
  --file NAME     a file below /dev/vgpu that the CDI spec mounts, such as .driver/libcuda.so.1; any other mount in
                  .lib and .driver is refused, unless another hook of this program in the container's configuration
                  names it
  --report FOLDER gets a file with one line if no loader of the image reads the list (no-glibc), or if this fails
                  (not-started.vgpu-cdi-hook)
                  (absolute, on the node); without it, or if it cannot be written, the line goes to stderr
  --alone VERSION the claim has an instance of a GPU, and a driver of this version gives a program nothing beside it: fails
                  if the container has another device
  --refused WHY   fails with this reason: the claim's devices are not what they were
  STATE           the container's state, as the runtime passes it to hooks
";

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Command {
    Help,
    Version,
    Preload(Preload),
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Preload {
    pub(crate) library: String,
    /// Files below /dev/vgpu that the CDI spec mounts.
    pub(crate) files: Vec<String>,
    pub(crate) report: Option<PathBuf>,
    /// The driver's version, if it gives a program of this container one device alone.
    pub(crate) alone: Option<String>,
    /// Why the container must not start.
    pub(crate) refused: Option<String>,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("no command; the only one is `preload` (see --help)")]
    NoCommand,
    #[error("{0:?} is not a command; the only one is `preload` (see --help)")]
    UnknownCommand(OsString),
    #[error("{0:?} is not an option of preload; use --library, --file, --report, --alone or --refused")]
    UnknownOption(OsString),
    #[error("{0} is given twice; give it once")]
    Repeated(&'static str),
    #[error("{0} has no value; write it as the next argument")]
    NoValue(&'static str),
    #[error("--library {0:?} is not an absolute path without white space, ':' and '#', which ld.so would split")]
    Library(OsString),
    #[error("--file {0:?} is not one name after `.lib/` or `.driver/`")]
    File(OsString),
    #[error("--report {0:?} is not an absolute path; name the claim's directory on the node")]
    Report(PathBuf),
}

impl Command {
    pub(crate) fn parse(mut arguments: impl Iterator<Item = OsString>) -> Result<Self, Error> {
        let command = arguments.next().ok_or(Error::NoCommand)?;
        match command.to_str() {
            Some("-h" | "--help" | "help") => return Ok(Self::Help),
            Some("-V" | "--version") => return Ok(Self::Version),
            Some("preload") => (),
            _ => return Err(Error::UnknownCommand(command)),
        }
        let (mut library, mut report, mut files) = (None, None, Vec::new());
        let (mut alone, mut refused) = (None, None);
        while let Some(option) = arguments.next() {
            let (name, value) = match option.to_str() {
                Some("-h" | "--help") => return Ok(Self::Help),
                Some("--library") => ("--library", &mut library),
                Some("--report") => ("--report", &mut report),
                Some("--alone") => ("--alone", &mut alone),
                Some("--refused") => ("--refused", &mut refused),
                Some(FILE) => {
                    let file = arguments.next().ok_or(Error::NoValue(FILE))?;
                    files.push(file.into_string().map_err(Error::File)?);
                    continue;
                }
                _ => return Err(Error::UnknownOption(option)),
            };
            let given = arguments.next().ok_or(Error::NoValue(name))?;
            if value.replace(given).is_some() {
                return Err(Error::Repeated(name));
            }
        }
        let library = library.unwrap_or_else(|| CONTAINER_PRELOAD.into());
        let library = library.into_string().map_err(Error::Library)?;
        if !is_entry(&library) {
            return Err(Error::Library(library.into()));
        }
        if let Some(bad) = files.iter().find(|file| !shares::is_file(file)) {
            return Err(Error::File(bad.into()));
        }
        let report = report.map(PathBuf::from);
        if let Some(path) = report.as_ref().filter(|path| !path.is_absolute()) {
            return Err(Error::Report(path.clone()));
        }
        let words = |text: OsString| text.to_string_lossy().into_owned();
        Ok(Self::Preload(Preload {
            library,
            files,
            report,
            alone: alone.map(words),
            refused: refused.map(words),
        }))
    }
}

/// Returns true if ld.so parses `library` as a single entry, and as a path.
fn is_entry(library: &str) -> bool {
    Path::new(library).is_absolute()
        && !library.contains(|c: char| c.is_whitespace() || c.is_control() || matches!(c, ':' | '#' | '$'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(arguments: &[&str]) -> Result<Command, Error> {
        Command::parse(arguments.iter().map(OsString::from))
    }

    #[test]
    fn a_full_command_line() {
        let preload = Preload {
            library: "/a/b.so".into(),
            files: vec![".lib/a".into(), ".driver/b.so".into()],
            report: Some("/r".into()),
            alone: Some("560.35".into()),
            refused: Some("it was replaced".into()),
        };
        assert_eq!(
            parse(&[
                "preload",
                "--library",
                "/a/b.so",
                "--file",
                ".lib/a",
                "--report",
                "/r",
                "--alone",
                "560.35",
                "--refused",
                "it was replaced",
                "--file",
                ".driver/b.so"
            ]),
            Ok(Command::Preload(preload))
        );
        let default = Preload {
            library: CONTAINER_PRELOAD.into(),
            files: Vec::new(),
            report: None,
            alone: None,
            refused: None,
        };
        assert_eq!(parse(&["preload"]), Ok(Command::Preload(default)));
        assert_eq!(parse(&["preload", "--help"]), Ok(Command::Help));
        assert_eq!(parse(&["--version"]), Ok(Command::Version));
        assert!(HELP.contains(CONTAINER_PRELOAD));
    }

    #[test]
    fn nonsense_is_named() {
        assert_eq!(parse(&[]), Err(Error::NoCommand));
        assert_eq!(parse(&["preloads"]), Err(Error::UnknownCommand("preloads".into())));
        assert_eq!(
            parse(&["preload", "--lib", "/a"]),
            Err(Error::UnknownOption("--lib".into()))
        );
        assert_eq!(parse(&["preload", "--library"]), Err(Error::NoValue("--library")));
        assert_eq!(
            parse(&["preload", "--report", "/a", "--report", "/b"]),
            Err(Error::Repeated("--report"))
        );
        assert_eq!(parse(&["preload", "--report", "a"]), Err(Error::Report("a".into())));
        assert_eq!(parse(&["preload", "--file"]), Err(Error::NoValue("--file")));
        for bad in [
            "",
            "a",
            ".lib",
            ".lib/",
            ".lib/..",
            ".lib/a/b",
            "/dev/vgpu/.lib/a",
            "s1/ledger",
        ] {
            assert_eq!(parse(&["preload", "--file", bad]), Err(Error::File(bad.into())));
        }
        for bad in ["", "a.so", "/a b.so", "/a:b.so", "/a#b.so", "/a\n.so", "/$LIB/a.so"] {
            assert_eq!(parse(&["preload", "--library", bad]), Err(Error::Library(bad.into())));
        }
    }
}
