//! Arbitration directories: one for each GPU, with one page for each share, in which shares publish their demand for
//! compute time to each other, and a page of the node's with what each of them is entitled to (`vgpu_abi::arbitration`).
//!
//! ```text
//! <gpus>/<GPU>/00 .. 63     0666, one page each: a container may write the one of its own slot
//!              node         0644, one page: root's, readable in all containers
//! ```
//!
//! Only root can enter their parent folder. Each is a tmpfs that is exactly full: 65 files of one page, so
//! that a tenant can write its own page and cannot grow anything. The checkpoint records which share has which slot.
//!
//! The node page is written with `pwrite` and not through a mapping: that needs no unsafe code, and the order of three
//! calls is all that its sequence counter asks for.
//!
//! Failure modes:
//! - A tenant truncates its file and another one takes the page: only those two lose; the next Prepare restores every
//!   file to one page. Two that do so in a loop can fail a Prepare after [`TRIES`] attempts, and its error names the file.
//! - A plugin before the node page mounted 64 pages: the mount grows by one, and a tenant may take that page first. It is
//!   then restored in the same way.
//! - A crash between the checkpoint and the node page, or within it: the next start writes the page again. Until then an
//!   odd sequence says that nobody knows, and each share keeps to its own bucket.

use crate::files;
use crate::tmpfs::{self, Size};
use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use std::cmp::Ordering;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use vgpu_abi::arbitration::{self as abi, Counted, Entry, PAGE, slot_file_name};
use vgpu_abi::paths::NODE_PAGE;

/// The largest number of shares of one GPU.
pub const SLOTS: u8 = abi::SLOTS as u8;
const FILES: u64 = SLOTS as u64 + 1;
const SIZE: Size = Size {
    bytes: FILES * PAGE as u64,
    files: FILES,
};
/// How often the files are restored while a tenant takes their pages.
const TRIES: u32 = 16;
const SLOT_MODE: u32 = 0o666;
const NODE_MODE: u32 = 0o644;

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

    /// The GPUs that have a directory.
    ///
    /// # Errors
    /// The folder of all directories cannot be listed.
    pub fn gpus(&self) -> Result<Vec<String>, Error> {
        files::folders(&self.root).map_err(|source| Error {
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
            .and_then(|()| fill_despite_thieves(&folder));
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

    /// Writes the node page of a GPU whose directory is complete. One caller at a time.
    ///
    /// # Errors
    /// The page cannot be written.
    pub fn write_node_page(&self, gpu: &str, entries: &[Entry; abi::SLOTS]) -> Result<(), Error> {
        let path = self.gpu_path(gpu).join(NODE_PAGE);
        let write = || {
            let file = open(&path)?;
            let mut sequence = [0; 4];
            file.read_exact_at(&mut sequence, 0)?;
            let writes = abi::node_page_writes(sequence, entries);
            writes.iter().try_for_each(|(at, bytes)| file.write_all_at(bytes, *at))
        };
        write().map_err(|source| Error { path, source })
    }

    /// Reads what the share with this slot was charged; None if its tenant cut the page.
    ///
    /// # Errors
    /// The slot cannot be read.
    pub fn counted(&self, gpu: &str, slot: u8) -> io::Result<Option<Counted>> {
        let path = self.gpu_path(gpu).join(slot_file_name(slot));
        Ok(abi::counters(&files::read_bounded(&path, PAGE)?))
    }
}

/// Restores the files, also while tenants take the pages that this frees.
fn fill_despite_thieves(folder: &Path) -> io::Result<()> {
    let mut filled = fill(folder);
    for _ in 1..TRIES {
        match &filled {
            Err(error) if error.kind() == io::ErrorKind::StorageFull => filled = fill(folder),
            _ => break,
        }
    }
    filled
}

/// Resizes every file to exactly one page. Those that are too long come first: they use pages of the others.
fn fill(folder: &Path) -> io::Result<()> {
    let directory = rustix::fs::open(
        folder,
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    let slots = (0..SLOTS).map(|slot| (slot_file_name(slot), SLOT_MODE));
    let mut short = Vec::new();
    // The node's page first: a tenant cannot take it back.
    for (name, mode) in [(NODE_PAGE.to_owned(), NODE_MODE)].into_iter().chain(slots) {
        let length = match rustix::fs::statat(&directory, &*name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) if FileType::from_raw_mode(found.st_mode).is_file() => found.st_size,
            _ => 0,
        };
        match length.cmp(&(PAGE as i64)) {
            Ordering::Equal => {}
            Ordering::Greater => open(&folder.join(name))?.set_len(PAGE as u64)?,
            Ordering::Less => short.push((folder.join(name), mode)),
        }
    }
    for (path, mode) in short {
        let file = match open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => File::create_new(&path)?,
            opened => opened?,
        };
        file.set_permissions(std::fs::Permissions::from_mode(mode))?;
        let have = usize::try_from(file.metadata()?.len()).unwrap_or(PAGE).min(PAGE);
        let written = file.write_all_at(&[0; PAGE][have..], have as u64);
        written.map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))?;
    }
    Ok(())
}

fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(File::from(rustix::fs::open(path, flags, Mode::empty())?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::mount::{MountFlags, mount};

    fn read(folder: &Path, name: &str) -> Vec<u8> {
        files::read_bounded(&folder.join(name), PAGE).expect("read")
    }

    fn write(folder: &Path, name: &str, at: usize) -> io::Result<()> {
        open(&folder.join(name)).and_then(|file| file.write_all_at(b"y", at as u64))
    }

    fn entries(weight: u32) -> [Entry; abi::SLOTS] {
        [Entry {
            weight,
            flags: 1,
            generation: 2,
        }; abi::SLOTS]
    }

    fn check(arbitration: &Arbitration) -> PathBuf {
        arbitration.ensure("GPU-1").expect("ready");
        assert_eq!(arbitration.gpus().expect("listed"), ["GPU-1"]);
        let folder = arbitration.gpu_path("GPU-1");
        assert_eq!(std::fs::read_dir(&folder).expect("listed").count() as u64, FILES);
        for (name, mode) in [("00", 0o666), ("63", 0o666), ("node", 0o644)] {
            let found = std::fs::metadata(folder.join(name)).expect("there");
            assert_eq!((found.len(), found.permissions().mode() & 0o7777), (PAGE as u64, mode));
        }
        write(&folder, "05", 0).expect("written");
        for weight in [30, 70] {
            arbitration.write_node_page("GPU-1", &entries(weight)).expect("written");
            arbitration.ensure("GPU-1").expect("still ready");
            let found = abi::entry(&read(&folder, "node"), 63).expect("a page between two writes");
            assert_eq!(found, entries(weight)[63]);
        }
        assert!(read(&folder, "05").starts_with(b"y"));
        arbitration.clear("GPU-1", 5).expect("cleared");
        assert_eq!(read(&folder, "05"), [0; PAGE]);
        folder
    }

    #[test]
    fn on_plain_folders() {
        let dir = tempfile::tempdir().expect("a folder");
        check(&Arbitration::new(dir.path().to_path_buf(), false));
    }

    #[test]
    fn a_writer_that_was_killed_within_the_page_is_followed_by_one_that_ends_it() {
        let dir = tempfile::tempdir().expect("a folder");
        let arbitration = Arbitration::new(dir.path().to_path_buf(), false);
        arbitration.ensure("GPU-1").expect("ready");
        let folder = arbitration.gpu_path("GPU-1");
        write(&folder, "node", 0)
            .and_then(|()| write(&folder, "node", 100))
            .expect("half a page");
        assert_eq!(abi::entry(&read(&folder, "node"), 0), None, "its first byte is odd");
        arbitration.write_node_page("GPU-1", &entries(9)).expect("written");
        assert_eq!(abi::entry(&read(&folder, "node"), 0), Some(entries(9)[0]));
    }

    #[test]
    fn a_slot_that_its_tenant_cut_says_nothing() {
        let dir = tempfile::tempdir().expect("a folder");
        let arbitration = Arbitration::new(dir.path().to_path_buf(), false);
        assert!(arbitration.counted("GPU-1", 3).is_err(), "no page");
        arbitration.ensure("GPU-1").expect("ready");
        assert_eq!(arbitration.counted("GPU-1", 3).expect("read"), Some(Counted::default()));
        let file = open(&arbitration.gpu_path("GPU-1").join("03")).expect("open");
        file.set_len(1).expect("cut");
        assert_eq!(arbitration.counted("GPU-1", 3).expect("read"), None);
    }

    #[test]
    fn on_tmpfs_nothing_grows_and_a_theft_is_repaired() {
        if !tmpfs::tests::can_mount("on_tmpfs_nothing_grows_and_a_theft_is_repaired") {
            return;
        }
        let dir = tempfile::tempdir().expect("a folder");
        let arbitration = Arbitration::new(dir.path().to_path_buf(), true);
        let folder = check(&arbitration);
        let grow = || write(&folder, "07", PAGE);
        assert!(grow().is_err(), "the tmpfs is full");
        open(&folder.join("06"))
            .and_then(|file| file.set_len(0))
            .expect("cut by its tenant");
        grow().expect("taken by another");
        arbitration.ensure("GPU-1").expect("repaired");
        assert!(grow().is_err(), "full again");
        tmpfs::remove(&folder).expect("unmounted");
    }

    #[test]
    fn a_mount_of_a_plugin_without_the_node_page_grows_by_it_and_no_tenant_keeps_that_page() {
        if !tmpfs::tests::can_mount("a_mount_of_a_plugin_without_the_node_page_grows_by_it") {
            return;
        }
        let dir = tempfile::tempdir().expect("a folder");
        let arbitration = Arbitration::new(dir.path().to_path_buf(), true);
        let folder = arbitration.gpu_path("GPU-1");
        std::fs::create_dir(&folder).expect("a folder");
        let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        let options = c"size=262144,nr_inodes=65,mode=0755";
        mount("vgpu", &folder, "tmpfs", flags, options).expect("as it was mounted");
        for slot in 0..SLOTS {
            std::fs::write(folder.join(slot_file_name(slot)), [7; PAGE]).expect("a page");
        }
        assert!(std::fs::write(folder.join(NODE_PAGE), "").is_err(), "full");
        arbitration.ensure("GPU-1").expect("grown");
        assert_eq!(read(&folder, "63"), [7; PAGE], "in use by a pod");
        assert_eq!(read(&folder, NODE_PAGE), [0; PAGE]);
        assert!(write(&folder, "07", PAGE).is_err() && std::fs::write(folder.join("more"), "").is_err());
        // A tenant that was faster than the plugin.
        std::fs::remove_file(folder.join(NODE_PAGE)).expect("removed");
        write(&folder, "07", PAGE).expect("taken");
        arbitration.ensure("GPU-1").expect("taken back");
        assert_eq!(
            (read(&folder, NODE_PAGE), read(&folder, "07").len()),
            (vec![0; PAGE], PAGE)
        );
        tmpfs::remove(&folder).expect("unmounted");
    }
}
