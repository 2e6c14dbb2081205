//! Arbitration directories: one for each GPU, with one page for each share. In these pages shares will publish their
//! demand for compute time to each other; the library does not use them yet.
//!
//! Only root can enter their parent folder. Each is a tmpfs that is exactly full: 64 files of one page, so
//! that a tenant can write its own page and cannot grow anything. If a tenant truncates its file and another
//! one takes the page, only those two lose; the next Prepare restores every file to one page. The checkpoint
//! records which share has which slot.

use crate::files;
use crate::tmpfs::{self, Size};
use rustix::fs::{Mode, OFlags};
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use vgpu_abi::arbitration::slot_file_name;

/// The largest number of shares of one GPU.
pub const SLOTS: u8 = 64;
const PAGE: usize = 4096;
const SIZE: Size = Size {
    bytes: SLOTS as u64 * PAGE as u64,
    files: SLOTS as u64,
};

/// The folder with all arbitration directories.
#[derive(Clone, Debug)]
pub struct Arbitration {
    root: PathBuf,
    tmpfs: bool,
}

/// Why an arbitration directory cannot be completed.
#[derive(Debug, thiserror::Error)]
#[error("cannot make arbitration directory {} ready: {source}", path.display())]
pub struct Error {
    path: PathBuf,
    source: io::Error,
}

// === impl Arbitration ===

impl Arbitration {
    #[must_use]
    pub fn new(root: PathBuf, tmpfs: bool) -> Self {
        Self { root, tmpfs }
    }

    /// Returns the arbitration directory of `gpu`.
    #[must_use]
    pub fn gpu_path(&self, gpu: &str) -> PathBuf {
        self.root.join(gpu)
    }

    /// Creates the folder of all arbitration directories, accessible to root only.
    ///
    /// # Errors
    /// The folder cannot be created.
    pub fn ensure_root(&self) -> Result<(), Error> {
        files::private_folder(&self.root).map_err(|source| Error {
            path: self.root.clone(),
            source,
        })
    }

    /// Creates what is missing of a GPU's directory.
    ///
    /// # Errors
    /// The directory cannot be created or mounted.
    pub fn ensure(&self, gpu: &str) -> Result<(), Error> {
        self.ensure_root()?;
        let folder = self.gpu_path(gpu);
        let made = std::fs::create_dir_all(&folder)
            .and_then(|()| {
                if self.tmpfs {
                    tmpfs::ensure(&folder, SIZE)
                } else {
                    Ok(())
                }
            })
            .and_then(|()| fill(&folder));
        made.map_err(|source| Error { path: folder, source })
    }

    /// Clears the page of `slot` for a new share: the demand in it is that of the last owner.
    ///
    /// # Errors
    /// The page cannot be written.
    pub fn clear(&self, gpu: &str, slot: u8) -> Result<(), Error> {
        let path = self.gpu_path(gpu).join(slot_file_name(slot));
        let cleared = open(&path).and_then(|file| file.write_all_at(&[0; PAGE], 0));
        cleared.map_err(|source| Error { path, source })
    }
}

/// Resizes every file to exactly one page. Those that are too long come first: they use pages of the others.
fn fill(folder: &Path) -> io::Result<()> {
    let mut short = Vec::new();
    for slot in 0..SLOTS {
        let path = folder.join(slot_file_name(slot));
        match path.symlink_metadata() {
            Ok(found) if found.len() == PAGE as u64 => {}
            Ok(found) if found.len() > PAGE as u64 => open(&path)?.set_len(PAGE as u64)?,
            _ => short.push(path),
        }
    }
    for path in short {
        let file = match open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => File::create_new(&path)?,
            opened => opened?,
        };
        file.set_permissions(std::fs::Permissions::from_mode(0o666))?;
        let have = usize::try_from(file.metadata()?.len()).unwrap_or(PAGE).min(PAGE);
        file.write_all_at(&[0; PAGE][have..], have as u64)?;
    }
    Ok(())
}

fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(File::from(rustix::fs::open(path, flags, Mode::empty())?))
}

/// Reads one slot, at most one page and a byte.
///
/// # Errors
/// The slot cannot be read.
pub fn read(folder: &Path, slot: u8) -> io::Result<Vec<u8>> {
    files::read_bounded(&folder.join(slot_file_name(slot)), PAGE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(arbitration: &Arbitration) -> PathBuf {
        arbitration.ensure("GPU-1").expect("ready");
        let folder = arbitration.gpu_path("GPU-1");
        assert_eq!(std::fs::read_dir(&folder).expect("listed").count(), usize::from(SLOTS));
        for slot in [0, 63] {
            let found = std::fs::metadata(folder.join(slot_file_name(slot))).expect("there");
            assert_eq!((found.len(), found.permissions().mode() & 0o7777), (PAGE as u64, 0o666));
        }
        open(&folder.join("05"))
            .and_then(|file| file.write_all_at(b"demand", 0))
            .expect("written");
        arbitration.ensure("GPU-1").expect("still ready");
        assert!(read(&folder, 5).expect("read").starts_with(b"demand"));
        arbitration.clear("GPU-1", 5).expect("cleared");
        assert_eq!(read(&folder, 5).expect("read"), [0; PAGE]);
        folder
    }

    #[test]
    fn on_plain_folders() {
        let dir = tempfile::tempdir().expect("a folder");
        check(&Arbitration::new(dir.path().to_path_buf(), false));
    }

    #[test]
    fn on_tmpfs_nothing_grows_and_a_theft_is_repaired() {
        if !tmpfs::tests::can_mount("on_tmpfs_nothing_grows_and_a_theft_is_repaired") {
            return;
        }
        let dir = tempfile::tempdir().expect("a folder");
        let arbitration = Arbitration::new(dir.path().to_path_buf(), true);
        let folder = check(&arbitration);
        let grow = || open(&folder.join("07")).and_then(|file| file.write_all_at(b"x", PAGE as u64));
        assert!(grow().is_err(), "the tmpfs is full");
        open(&folder.join("06"))
            .and_then(|file| file.set_len(0))
            .expect("cut by its tenant");
        grow().expect("taken by another");
        arbitration.ensure("GPU-1").expect("repaired");
        assert!(grow().is_err(), "full again");
        tmpfs::remove(&folder).expect("unmounted");
    }
}
