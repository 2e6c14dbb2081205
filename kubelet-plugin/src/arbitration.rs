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
//! - A tenant truncates its file or punches a hole into it, and another one takes the page, also beyond the end of its
//!   file, where its length does not show it: only those two lose; the next Prepare restores every file to one page. Two
//!   that do so in a loop can fail a Prepare after [`TRIES`] attempts, and its error names the files that take more.
//! - A plugin before the node page mounted 64 pages: the mount grows by one, and a tenant may take that page first. It is
//!   then restored in the same way.
//! - A crash between the checkpoint and the node page, or within it: the next start writes the page again. Until then an
//!   odd sequence says that nobody knows, and each share keeps to its own bucket.

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
            .and_then(|()| despite_thieves(&folder, || fill(&folder)));
        made.map_err(|source| Error { path: folder, source })
    }

    /// Clears the page of `slot` for a new share: the demand in it is that of the last owner.
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
        let cleared = despite_thieves(&folder, clear);
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

/// Does `work`, which needs that each file has no more than its page. While tenants take more, it is taken from them again.
fn despite_thieves(folder: &Path, work: impl Fn() -> io::Result<()>) -> io::Result<()> {
    let is_full = |error: &io::Error| error.kind() == io::ErrorKind::StorageFull;
    let mut done = work();
    for _ in 1..TRIES {
        match &done {
            Err(error) if is_full(error) => done = fill(folder).and_then(|()| work()),
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
    /// Also with pages beyond the end of the file.
    held: i64,
}

/// None: there is no regular file of this name.
fn found(directory: &OwnedFd, name: &str) -> Option<Found> {
    let found = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
    let is_file = FileType::from_raw_mode(found.st_mode).is_file();
    is_file.then_some(Found {
        length: found.st_size,
        held: found.st_blocks.saturating_mul(512),
    })
}

// === impl Found ===

impl Found {
    fn has_more(self) -> bool {
        self.length > PAGE as i64 || self.held > PAGE as i64
    }

    fn is_short(self) -> bool {
        self.length < PAGE as i64
    }
}

/// Resizes every file to exactly one page. Those that have more come first: they use pages of the others.
fn fill(folder: &Path) -> io::Result<()> {
    let directory = directory(folder)?;
    let slots = (0..SLOTS).map(|slot| (slot_file_name(slot), SLOT_MODE));
    let mut short = Vec::new();
    // The node's page first: a tenant cannot take it back.
    for (name, mode) in [(NODE_PAGE.to_owned(), NODE_MODE)].into_iter().chain(slots) {
        let found = found(&directory, &name);
        if let Some(found) = found.filter(|found| found.has_more() || found.is_short()) {
            let length = u64::try_from(found.length).unwrap_or_default().min(PAGE as u64);
            // Pages beyond the end go, even if the length stays.
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

fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(File::from(rustix::fs::open(path, flags, Mode::empty())?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::FallocateFlags;
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
        let arbitration = Arbitration::new(dir.path().to_path_buf(), true);
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
        let arbitration = Arbitration::new(dir.path().to_path_buf(), false);
        arbitration.ensure("GPU-1").expect("ready");
        let folder = arbitration.gpu_path("GPU-1");
        let error = despite_thieves(&folder, || {
            write(&folder, "07", PAGE)?;
            Err(io::ErrorKind::StorageFull.into())
        });
        let error = error.expect_err("in a loop").to_string();
        assert!(error.contains("into 07,") && !error.contains("05"), "{error}");
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
