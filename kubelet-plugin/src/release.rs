//! The version of the limits file that a release of the library reads.
//!
//! A claim keeps the release of its first Prepare, and a newer plugin may write its limits again, as after a reboot. So
//! each installed release has a file beside it that says what it expects, in the words of the limits file's first line:
//!
//! ```text
//! vgpu-limits 3
//! ```
//!
//! A release without the file reads version 1. A plugin that was downgraded may find a later version than it knows, and
//! writes its own latest: the library then names what it misses.

use crate::files;
use std::path::Path;
use vgpu_abi::limits::Version;

/// Name of the file in a release's folder. It is no part of the release's digest.
pub const FILE: &str = "release";
/// The file has one short line.
const MAX_SIZE: usize = 4096;

/// The expectations of a release. The default is that of new claims.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Release {
    pub limits: Version,
}

// === impl Release ===

impl Release {
    /// Reads what the release in `folder` expects.
    #[must_use]
    pub fn in_folder(folder: &Path) -> Self {
        let limits = match files::read_bounded(&folder.join(FILE), MAX_SIZE) {
            Ok(bytes) => {
                let text = String::from_utf8_lossy(&bytes);
                let line = text.lines().next().unwrap_or_default();
                Version::from_header(line).unwrap_or_default()
            }
            Err(_) => Version::V1,
        };
        Self { limits }
    }

    /// The text of the file.
    #[must_use]
    pub fn text(self) -> String {
        format!("{}\n", self.limits.header())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_without_the_file_reads_the_first_version() {
        let folder = tempfile::tempdir().expect("a folder");
        let found = |text: Option<&str>| {
            if let Some(text) = text {
                std::fs::write(folder.path().join(FILE), text).expect("written");
            }
            Release::in_folder(folder.path()).limits
        };
        assert_eq!(found(None), Version::V1);
        assert_eq!(found(Some("vgpu-limits 1\n")), Version::V1);
        assert_eq!(found(Some("vgpu-limits 2\n")), Version::V2);
        assert_eq!(found(Some(&Release::default().text())), Version::V3);
        assert_eq!(found(Some("vgpu-limits 9\nmore\n")), Version::default());
    }
}
