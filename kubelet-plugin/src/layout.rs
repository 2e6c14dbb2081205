//! What a release of the library expects in a container: where its files are, and which limits file it reads.
//!
//! A claim keeps the release of its first Prepare, and a newer plugin may write its CDI spec and its limits again, as
//! after a reboot. So each installed release has a file beside it that says what it expects:
//!
//! ```text
//! /dev/vgpu        the layout, for people: all releases that have the file have this one
//! vgpu-limits 2    the version of the limits file; releases without this line read version 1
//! ```
//!
//! The first releases have no such file. A plugin that was downgraded may find a later one than it knows, and writes its
//! own latest: the library then names what it misses.

use crate::files;
use std::path::Path;
use vgpu_abi::limits::Version;

/// Name of the file in a release's folder. It is no part of the release's digest.
pub const FILE: &str = "layout";
/// The file has two short lines.
const MAX_SIZE: usize = 4096;

/// What a release expects. The default is what new claims get.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Release {
    pub layout: Layout,
    pub limits: Version,
}

/// A layout of the container's paths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Layout {
    /// Shares below /run/vgpu and libraries below /usr/lib/vgpu, folders that root of a container can rename.
    Run,
    /// All below /dev/vgpu, a read-only tmpfs; the hook verifies it and mounts the list of preloaded libraries.
    #[default]
    Dev,
}

/// The paths of a layout.
#[derive(Clone, Copy, Debug)]
pub struct Paths {
    pub shares: &'static str,
    pub arbitration: &'static str,
    pub preload: &'static str,
    pub driver: &'static str,
    /// The shim beside the backstop, where the layout has it.
    pub shim: Option<&'static str>,
}

// === impl Release ===

impl Release {
    /// Reads what the release in `folder` expects.
    #[must_use]
    pub fn in_folder(folder: &Path) -> Self {
        match files::read_bounded(&folder.join(FILE), MAX_SIZE) {
            Ok(bytes) => Self::parse(&String::from_utf8_lossy(&bytes)),
            Err(_) => Self {
                layout: Layout::Run,
                limits: Version::V1,
            },
        }
    }

    /// The text of the file.
    #[must_use]
    pub fn text(self) -> String {
        format!("{}\n{}\n", self.layout.paths().shares, self.limits.header())
    }

    fn parse(text: &str) -> Self {
        let limits = match text.lines().nth(1) {
            Some(line) => Version::from_header(line).unwrap_or_default(),
            None => Version::V1,
        };
        Self {
            layout: Layout::Dev,
            limits,
        }
    }
}

// === impl Layout ===

impl Layout {
    #[must_use]
    pub fn paths(self) -> Paths {
        use vgpu_abi::paths as dev;
        match self {
            Self::Run => Paths {
                shares: "/run/vgpu",
                arbitration: "/run/vgpu/.arbitration",
                preload: "/usr/lib/vgpu/libvgpu-preload.so",
                driver: "/usr/lib/vgpu/driver",
                shim: None,
            },
            Self::Dev => Paths {
                shares: dev::CONTAINER_DIR,
                arbitration: dev::CONTAINER_ARBITRATION_DIR,
                preload: dev::CONTAINER_PRELOAD,
                driver: dev::CONTAINER_DRIVER_DIR,
                shim: Some("/dev/vgpu/.lib/libcuda.so.1"),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_without_the_file_is_an_old_one() {
        let folder = tempfile::tempdir().expect("a folder");
        let found = |text: Option<&str>| {
            if let Some(text) = text {
                std::fs::write(folder.path().join(FILE), text).expect("written");
            }
            let Release { layout, limits } = Release::in_folder(folder.path());
            (layout, limits)
        };
        assert_eq!(found(None), (Layout::Run, Version::V1));
        assert_eq!(found(Some("/dev/vgpu\n")), (Layout::Dev, Version::V1));
        assert_eq!(found(Some("/dev/vgpu\nvgpu-limits 1\n")), (Layout::Dev, Version::V1));
        assert_eq!(found(Some(&Release::default().text())), (Layout::Dev, Version::V2));
        let latest = (Layout::default(), Version::default());
        assert_eq!(found(Some("/dev/vgpu\nvgpu-limits 9\nmore\n")), latest);
    }

    #[test]
    fn the_shim_lies_beside_the_backstop() {
        let paths = Layout::Dev.paths();
        let own = Path::new(vgpu_abi::paths::CONTAINER_OWN_LIBRARY_DIR);
        assert_eq!(Path::new(paths.preload).parent(), Some(own));
        assert_eq!(
            paths.shim.map(Path::new),
            Some(own.join(vgpu_abi::paths::LIBCUDA).as_path())
        );
    }
}
