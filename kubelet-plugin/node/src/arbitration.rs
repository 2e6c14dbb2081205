//! Arbitration directories: one for each GPU, with one page for each share, in which shares publish their demand for compute
//! time to each other, and the node's page, which says what each share is entitled to (`vgpu_abi::arbitration`).
//!
//! ```text
//! <root>/<GPU>/00 .. 63     one page each: a share writes the page of its own slot
//!              node         0644, one page: root's or the user's, readable for all shares
//! ```
//!
//! On a node of a cluster only root can enter the parent folder, and each directory is a tmpfs that is exactly full: 65 files
//! of one page, so that a tenant can write its own page and cannot grow anything. No list of slots is kept here: the claims'
//! records, and the limits files of local shares, say which share has which slot.
//!
//! The node page is written with `pwrite` and not through a mapping: that needs no unsafe code, and its sequence
//! counter only needs three calls in order.
//!
//! Failure modes:
//! - A tenant truncates its file or punches a hole into it, and another one takes the free page, perhaps beyond the end of
//!   its file, where the length does not show it: only these two lose; the next Prepare restores every file to one page. Two
//!   tenants that do so in a loop can fail a Prepare after [`TRIES`] attempts; its error names the files that take more.
//! - A crash between the checkpoint and the node page, or within it: the next start writes the page again. Until then
//!   the odd sequence marks the page as unreadable, and each share keeps to its own bucket.

use crate::files;
use crate::tmpfs::{self, Size};
use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use vgpu_abi::arbitration::{self as abi, Counted, Entry, PAGE, slot_file_name};
use vgpu_abi::paths::NODE_PAGE;

/// The largest number of shares of one GPU.
pub const SLOTS: u8 = abi::SLOTS as u8;
const FILES: u64 = SLOTS as u64 + 1;
/// How often `work` is tried while tenants take pages of other files.
const TRIES: u32 = 16;
const NODE_MODE: u32 = 0o644;

/// Room for all files of a directory, and no more: a tenant cannot make one longer.
fn size() -> Size {
    Size::of_files((0..FILES).map(|_| PAGE as u64))
}

/// The folder with all arbitration directories.
#[derive(Clone, Debug)]
pub struct Arbitration {
    root: PathBuf,
    sharing: Sharing,
}

/// Who uses the directories.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// Containers, which get the files by bind mounts: other users of the machine cannot enter the root. `tmpfs`: each
    /// directory is a mount that cannot grow.
    Containers { tmpfs: bool },
    /// Local programs, which open the files by their paths.
    Programs { slot_mode: u32 },
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
    pub fn new(root: PathBuf, sharing: Sharing) -> Self {
        Self { root, sharing }
    }

    /// Returns the arbitration directory of `gpu`.
    #[must_use]
    pub fn gpu_path(&self, gpu: &str) -> PathBuf {
        self.root.join(gpu)
    }

    /// Creates the folder of all arbitration directories.
    ///
    /// # Errors
    /// The folder cannot be created.
    pub fn ensure_root(&self) -> Result<(), Error> {
        let made = match self.sharing {
            Sharing::Containers { .. } => files::private_folder(&self.root),
            Sharing::Programs { .. } => open_folder(&self.root),
        };
        made.map_err(|source| Error {
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
        let made = match self.sharing {
            Sharing::Containers { tmpfs: true } => {
                std::fs::create_dir_all(&folder).and_then(|()| tmpfs::ensure(&folder, size()))
            }
            Sharing::Containers { tmpfs: false } => std::fs::create_dir_all(&folder),
            Sharing::Programs { .. } => open_folder(&folder),
        };
        let made = made.and_then(|()| self.despite_thieves(&folder, || self.fill(&folder)));
        made.map_err(|source| Error { path: folder, source })
    }

    /// Clears the page of `slot` for a new share: it still contains the demand of the last owner.
    ///
    /// # Errors
    /// The page cannot be written.
    pub fn clear(&self, gpu: &str, slot: u8) -> Result<(), Error> {
        let folder = self.gpu_path(gpu);
        let path = folder.join(slot_file_name(slot));
        let clear = || {
            let file = open(&path)?;
            // The last owner may have exchanged its page for one beyond the end of the file.
            file.set_len(PAGE as u64)?;
            file.write_all_at(&[0; PAGE], 0)
        };
        let cleared = self.despite_thieves(&folder, clear);
        cleared.map_err(|source| Error { path, source })
    }

    /// Writes the node page of a GPU whose directory is complete. There must be only one caller.
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

    /// Reads the node page of a GPU; None if it is missing, or half-written.
    #[must_use]
    pub fn node_page(&self, gpu: &str) -> Option<[Entry; abi::SLOTS]> {
        let bytes = files::read_bounded(&self.gpu_path(gpu).join(NODE_PAGE), PAGE).ok()?;
        let mut page = [Entry::default(); abi::SLOTS];
        for (slot, entry) in page.iter_mut().enumerate() {
            *entry = abi::entry(&bytes, slot)?;
        }
        Some(page)
    }

    /// Reads the charges of the share with this slot; None if its tenant has truncated the page.
    ///
    /// # Errors
    /// The slot cannot be read.
    pub fn counted(&self, gpu: &str, slot: u8) -> io::Result<Option<Counted>> {
        let path = self.gpu_path(gpu).join(slot_file_name(slot));
        Ok(abi::counters(&files::read_bounded(&path, PAGE)?))
    }

    /// Runs `work`. If it fails because files have more than their page, restores the files and tries again.
    fn despite_thieves(&self, folder: &Path, work: impl Fn() -> io::Result<()>) -> io::Result<()> {
        let is_full = |error: &io::Error| error.kind() == io::ErrorKind::StorageFull;
        let mut done = work();
        for _ in 1..TRIES {
            match &done {
                Err(error) if is_full(error) => done = self.fill(folder).and_then(|()| work()),
                _ => return done,
            }
        }
        done.map_err(|error| match takers(folder) {
            Ok(takers) if is_full(&error) && !takers.is_empty() => {
                let takers = takers.join(", ");
                let text =
                    format!("{error}: programs of other shares write more than a page into {takers}, again and again");
                io::Error::new(error.kind(), text)
            }
            _ => error,
        })
    }

    /// Resizes every file to exactly one page. Larger files come first: they use pages of the others.
    fn fill(&self, folder: &Path) -> io::Result<()> {
        let directory = directory(folder)?;
        let slot_mode = match self.sharing {
            Sharing::Containers { .. } => 0o666,
            Sharing::Programs { slot_mode } => slot_mode,
        };
        let slots = (0..SLOTS).map(|slot| (slot_file_name(slot), slot_mode));
        let mut short = Vec::new();
        // The node's page first: a tenant cannot take it back.
        for (name, mode) in [(NODE_PAGE.to_owned(), NODE_MODE)].into_iter().chain(slots) {
            let found = found(&directory, &name);
            if let Some(found) = found.filter(|found| found.has_more() || found.is_short()) {
                let length = u64::try_from(found.length).unwrap_or_default().min(PAGE as u64);
                // This frees pages beyond the end of the file, even if the length stays the same.
                open(&folder.join(&name))?.set_len(length)?;
            }
            if found.is_none_or(Found::is_short) {
                short.push((folder.join(name), mode));
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
}

/// Creates a folder that programs of all users can enter: a program of root may become another user.
fn open_folder(path: &Path) -> io::Result<()> {
    std::fs::create_dir_all(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755))
}

/// The files that have more than a page.
fn takers(folder: &Path) -> io::Result<Vec<String>> {
    let directory = directory(folder)?;
    let names = (0..SLOTS).map(slot_file_name);
    Ok(names
        .filter(|name| found(&directory, name).is_some_and(Found::has_more))
        .collect())
}

fn directory(folder: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::open(folder, flags, Mode::empty())?)
}

/// Sizes of a file, in bytes.
#[derive(Clone, Copy)]
struct Found {
    length: i64,
    /// Allocated bytes, including pages beyond the end of the file.
    allocated: i64,
}

/// None: there is no regular file of this name.
fn found(directory: &OwnedFd, name: &str) -> Option<Found> {
    let found = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
    let is_file = FileType::from_raw_mode(found.st_mode).is_file();
    is_file.then_some(Found {
        length: found.st_size,
        allocated: found.st_blocks.saturating_mul(512),
    })
}

// === impl Found ===

impl Found {
    fn has_more(self) -> bool {
        let most = tmpfs::page_size().max(PAGE as u64);
        self.length > PAGE as i64 || u64::try_from(self.allocated).is_ok_and(|allocated| allocated > most)
    }

    fn is_short(self) -> bool {
        self.length < PAGE as i64
    }
}

fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(File::from(rustix::fs::open(path, flags, Mode::empty())?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::FallocateFlags;

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
        check(&Arbitration::new(
            dir.path().to_path_buf(),
            Sharing::Containers { tmpfs: false },
        ));
    }

    #[test]
    fn a_writer_that_was_killed_within_the_page_is_followed_by_one_that_ends_it() {
        let dir = tempfile::tempdir().expect("a folder");
        let arbitration = Arbitration::new(dir.path().to_path_buf(), Sharing::Containers { tmpfs: false });
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
        let arbitration = Arbitration::new(dir.path().to_path_buf(), Sharing::Containers { tmpfs: false });
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
        let arbitration = Arbitration::new(dir.path().to_path_buf(), Sharing::Containers { tmpfs: true });
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

    /// Frees the page of a file whose length stays.
    fn punch(folder: &Path, name: &str) {
        let file = open(&folder.join(name)).expect("open");
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&file, flags, 0, PAGE as u64).expect("punched");
    }

    /// Takes a page beyond the end of a file, whose length stays.
    fn hide(folder: &Path, name: &str) -> io::Result<()> {
        let file = open(&folder.join(name))?;
        let (page, flags) = (PAGE as u64, FallocateFlags::KEEP_SIZE);
        Ok(rustix::fs::fallocate(&file, flags, page, page)?)
    }

    #[test]
    fn a_page_of_an_ended_share_that_a_tenant_took_is_taken_back_for_the_next_share() {
        if !tmpfs::tests::can_mount("a_page_of_an_ended_share_that_a_tenant_took_is_taken_back_for_the_next_share") {
            return;
        }
        let dir = tempfile::tempdir().expect("a folder");
        let arbitration = Arbitration::new(dir.path().to_path_buf(), Sharing::Containers { tmpfs: true });
        let folder = check(&arbitration);
        type Theft = fn(&Path);
        let thefts: [(&str, Theft); 4] = [
            ("a longer file", |folder| {
                punch(folder, "05");
                write(folder, "07", PAGE).expect("taken");
            }),
            ("a page that the length does not show", |folder| {
                punch(folder, "05");
                hide(folder, "07").expect("taken");
            }),
            ("by the share itself before it ended", |folder| {
                punch(folder, "05");
                hide(folder, "05").expect("taken");
            }),
            ("with a length of nothing", |folder| {
                for name in ["05", "07"] {
                    open(&folder.join(name)).and_then(|file| file.set_len(0)).expect("cut");
                }
                hide(folder, "07").expect("taken");
                write(folder, "08", PAGE).expect("taken");
            }),
        ];
        for (how, steal) in thefts {
            for ensures in [true, false] {
                steal(&folder);
                if ensures {
                    arbitration.ensure("GPU-1").expect(how);
                }
                arbitration.clear("GPU-1", 5).expect(how);
                assert_eq!(read(&folder, "05"), [0; PAGE], "{how}");
                arbitration.ensure("GPU-1").expect(how);
                assert!(
                    hide(&folder, "07").is_err() && write(&folder, "07", PAGE).is_err(),
                    "{how}: full"
                );
            }
        }
        tmpfs::remove(&folder).expect("unmounted");
    }

    #[test]
    fn who_takes_pages_again_and_again_is_named() {
        let dir = tempfile::tempdir().expect("a folder");
        let arbitration = Arbitration::new(dir.path().to_path_buf(), Sharing::Containers { tmpfs: false });
        arbitration.ensure("GPU-1").expect("ready");
        let folder = arbitration.gpu_path("GPU-1");
        let error = arbitration.despite_thieves(&folder, || {
            write(&folder, "07", PAGE)?;
            Err(io::ErrorKind::StorageFull.into())
        });
        let error = error.expect_err("in a loop").to_string();
        assert!(error.contains("into 07,") && !error.contains("05"), "{error}");
    }

    #[test]
    fn a_page_of_the_node_page_that_a_tenant_took_is_taken_back() {
        if !tmpfs::tests::can_mount("a_page_of_the_node_page_that_a_tenant_took_is_taken_back") {
            return;
        }
        let dir = tempfile::tempdir().expect("a folder");
        let arbitration = Arbitration::new(dir.path().to_path_buf(), Sharing::Containers { tmpfs: true });
        arbitration.ensure("GPU-1").expect("ready");
        let folder = arbitration.gpu_path("GPU-1");
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
