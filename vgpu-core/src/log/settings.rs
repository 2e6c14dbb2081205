//! Parses VGPU_LOG and VGPU_REPORT.
//!
//! How it fails: an unknown level is refused, so that a typing mistake does not become part of a file's name.

use std::ffi::{CString, OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

/// How much is written. Each level includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Failures and refusals.
    Error,
    /// Also what was found and measured at start-up and later.
    Info,
    /// Also each wait.
    Debug,
}

/// The values of VGPU_LOG and VGPU_REPORT; None or empty: not set.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    pub log: Option<OsString>,
    pub report: Option<OsString>,
}

impl Level {
    const ALL: [(&'static str, Self); 3] = [("error", Self::Error), ("info", Self::Info), ("debug", Self::Debug)];

    #[must_use]
    pub fn name(self) -> &'static str {
        Self::ALL[self as usize].0
    }
}

impl Settings {
    /// Returns the log's path and level, or None without a log. The path is absolute: each line opens the file, and the
    /// program may change its directory.
    ///
    /// # Errors
    /// A line that says what is wrong.
    pub(super) fn log(&self) -> Result<Option<(CString, Level)>, String> {
        let Some(value) = self.log.as_deref().filter(|value| !value.is_empty()) else {
            return Ok(None);
        };
        let refused = |reason: &str| format!("VGPU_LOG={}: {reason}; the program runs without a log", value.display());
        let (path, level) = split(value).map_err(|reason| refused(&reason))?;
        let path = std::path::absolute(path).map_err(|error| refused(&error.to_string()))?;
        let path = CString::new(path.into_os_string().into_vec()).map_err(|error| refused(&error.to_string()))?;
        Ok(Some((path, level)))
    }

    pub(super) fn report(&self) -> Option<&Path> {
        self.report.as_deref().filter(|value| !value.is_empty()).map(Path::new)
    }
}

/// Splits `FILE[:level]`.
fn split(value: &OsStr) -> Result<(&Path, Level), String> {
    let bytes = value.as_bytes();
    let Some(colon) = bytes.iter().rposition(|byte| *byte == b':') else {
        return Ok((Path::new(value), Level::Info));
    };
    let (path, word) = (&bytes[..colon], &bytes[colon + 1..]);
    let found = Level::ALL.iter().find(|(name, _)| name.as_bytes() == word);
    match found {
        Some((_, level)) => Ok((Path::new(OsStr::from_bytes(path)), *level)),
        // The colon is part of a folder's name.
        None if word.contains(&b'/') => Ok((Path::new(value), Level::Info)),
        None => Err(format!(
            "level {:?} is none of error, info and debug; behind a file name with a colon write a level",
            String::from_utf8_lossy(word)
        )),
    }
}

#[cfg(all(test, not(miri)))] // The tests ask for the current folder.
mod tests {
    use super::*;

    #[test]
    fn a_value_is_a_file_and_perhaps_a_level() {
        let of = |value: &str| split(OsStr::new(value)).map(|(path, level)| (path.to_owned(), level));
        assert_eq!(of("/tmp/a"), Ok(("/tmp/a".into(), Level::Info)));
        assert_eq!(of("/tmp/a:debug"), Ok(("/tmp/a".into(), Level::Debug)));
        assert_eq!(of("/tmp/a:b:error"), Ok(("/tmp/a:b".into(), Level::Error)));
        assert_eq!(of("/t:x/a"), Ok(("/t:x/a".into(), Level::Info)));
        assert!(of("/tmp/a:verbose").is_err_and(|reason| reason.contains("\"verbose\"")));
        assert!(of("/tmp/a:").is_err());
        let none = Settings {
            log: Some("".into()),
            report: Some("".into()),
        };
        assert_eq!((none.log(), none.report()), (Ok(None), None));
        let relative = Settings {
            log: Some("a:error".into()),
            ..Settings::default()
        };
        let (path, level) = relative.log().expect("a path").expect("a log");
        assert!(path.to_bytes().starts_with(b"/") && level == Level::Error);
    }
}
