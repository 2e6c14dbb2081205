//! Where a release of the library finds its files in a container.
//!
//! A claim keeps the release of its first Prepare, and a newer plugin may write its CDI spec again. So each installed
//! release says in a file beside it which layout it expects; those of the first releases have no such file.

use std::path::Path;

/// Name of the file in a release's folder. It is no part of the release's digest.
pub const FILE: &str = "layout";

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

// === impl Layout ===

impl Layout {
    /// Reads the layout of the release in `folder`. A plugin that was downgraded may find a later one than it knows, and
    /// writes its own latest: the library then names what it misses.
    #[must_use]
    pub fn of_release(folder: &Path) -> Self {
        match folder.join(FILE).exists() {
            true => Self::Dev,
            false => Self::Run,
        }
    }

    /// The text of the file, for people.
    #[must_use]
    pub fn text(self) -> String {
        format!("{}\n", self.paths().shares)
    }

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
        assert_eq!(Layout::of_release(folder.path()), Layout::Run);
        std::fs::write(folder.path().join(FILE), Layout::Dev.text()).expect("written");
        assert_eq!(Layout::of_release(folder.path()), Layout::Dev);
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
