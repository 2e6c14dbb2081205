//! How this process accesses the pages of one GPU's shares.
//!
//! ```text
//!  <shares>/.arbitration/<GPU>/ node    read: what each slot is entitled to
//!                               07      read and written: the own slot
//!                               00..63  copied at each look: the other shares' state
//! ```
//!
//! How it fails: a tenant can truncate its own page at any moment. So other shares' pages are only copied (`os::peek`),
//! and a page that cannot be copied is left out. If a share truncates its own page, its own processes get SIGBUS, as
//! with its ledger. If copying is denied, the share cannot see the others: its processes together are limited to its
//! `cores`, by its own page. If the pages are missing or damaged, or in a time namespace with another clock, each
//! process by itself is limited to the `cores`.
#![allow(unsafe_code)] // Mapped files are seen as pages.

use std::fmt;
use std::fs;
use std::io;
use std::mem::offset_of;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use vgpu_abi::arbitration::{Entry, NodePage, PAGE, SLOTS, SlotPage, entry_flags, slot_file_name};
use vgpu_abi::paths::NODE_PAGE;

use crate::compute::turn::Pages;
use crate::compute::{MS, Ns};
use crate::os::peek::{self, Piece};
use crate::os::pinned::Mapping;
use crate::os::{file, fork, mount};

/// The part of a page that is copied: everything that decides about turns.
const HEAD: usize = offset_of!(SlotPage, bucket);
/// The remedy in messages about the node's files that are missing or damaged.
const PREPARE: &str = "delete the pod so that it is prepared again, or end all its `vgpu run`";
/// Name of the page for processes that cannot see other shares. It is beside their ledger.
const ALONE: &str = "time";
/// How long after a failure another share's page is opened again.
const RETRY: Ns = 1000 * MS;

/// The pages of one GPU.
#[derive(Debug)]
pub(super) struct OpenPages {
    own: usize,
    page: Own,
    node: Node,
    others: Vec<Other>,
    seats: Seats,
    folder: PathBuf,
}

/// The contents of the node's page when it was last read.
#[derive(Clone, Copy, Debug, Default)]
struct Seats {
    sequence: Option<u32>,
    /// One bit for each other share that takes turns.
    others: u64,
    /// Slots from this index on are free.
    end: usize,
}

#[derive(Debug)]
enum Own {
    Mapped(Mapping),
    Private(Box<SlotPage>),
}

#[derive(Debug)]
enum Node {
    Mapped(Mapping),
    Private(Box<NodePage>),
}

/// Another share's page: its mapping, and the last copy of it.
#[derive(Debug, Default)]
struct Other {
    mapping: Option<Mapping>,
    tried: Ns,
    copy: SlotPage,
    is_copied: bool,
}

/// Why the pages cannot be used.
#[derive(Debug)]
pub enum PagesError {
    Open(String, io::Error),
    Size(String, u64),
    Clock,
    Copy,
    NoSlot,
}

impl OpenPages {
    /// Opens the pages of a GPU in `folder`. `slot` is this share's own.
    ///
    /// # Errors
    /// They cannot be used.
    pub(super) fn open(folder: &Path, slot: u8) -> Result<Self, PagesError> {
        let mut pages = Self::open_own(folder, slot)?;
        let mut copied = [0; HEAD];
        let piece = Piece {
            from: std::ptr::from_ref(pages.own()).cast(),
            to: &mut copied,
        };
        if peek::copy(&mut [piece]) != 1 {
            return Err(PagesError::Copy);
        }
        pages.others = (0..SLOTS).map(|_| Other::default()).collect();
        Ok(pages)
    }

    fn open_own(folder: &Path, slot: u8) -> Result<Self, PagesError> {
        if is_other_clock() {
            return Err(PagesError::Clock);
        }
        let own = map(folder, &slot_file_name(slot), Access::Write)?;
        let node = map(folder, NODE_PAGE, Access::Read)?;
        Ok(Self {
            own: usize::from(slot),
            page: Own::Mapped(own),
            node: Node::Mapped(node),
            others: Vec::new(),
            seats: Seats::default(),
            folder: folder.to_owned(),
        })
    }

    /// Opens only the share's own page, where the others cannot be copied: the share is limited to its `cores`. Also returns its
    /// entry of the node's page.
    ///
    /// # Errors
    /// They cannot be used.
    pub(super) fn without_others(folder: &Path, slot: u8, fallback: Entry) -> Result<(Self, Entry), PagesError> {
        let mut pages = Self::open_own(folder, slot)?;
        let mut entry = pages.node().entry(pages.own).unwrap_or(fallback);
        entry.flags |= entry_flags::GUARANTEED;
        let mut entries = [Entry::default(); SLOTS];
        if let Some(place) = entries.get_mut(pages.own) {
            *place = entry;
        }
        let node = Box::new(NodePage::default());
        node.write(&entries);
        pages.node = Node::Private(node);
        Ok((pages, entry))
    }

    /// Creates a page that no other share sees, with `entry` as its entitlement. Processes that can write to `folder`
    /// share it; otherwise it is for this process alone.
    pub(super) fn private(folder: Option<&Path>, entry: Entry) -> Self {
        let node = Box::new(NodePage::default());
        let mut entries = [Entry::default(); SLOTS];
        entries[0] = entry;
        node.write(&entries);
        Self {
            own: 0,
            page: folder
                .and_then(|folder| map_alone(folder).ok())
                .map_or_else(|| Own::Private(Box::default()), Own::Mapped),
            node: Node::Private(node),
            others: Vec::new(),
            seats: Seats::default(),
            folder: PathBuf::new(),
        }
    }

    pub(super) fn own(&self) -> &SlotPage {
        match &self.page {
            // SAFETY: a page that is mapped for reading and writing as long as `self` lives, all of it atomic words, for
            // which every value is valid.
            Own::Mapped(mapping) => unsafe { mapping.start().cast::<SlotPage>().as_ref() },
            Own::Private(page) => page,
        }
    }

    fn node(&self) -> &NodePage {
        match &self.node {
            // SAFETY: as for the own page; its loads alone are used.
            Node::Mapped(mapping) => unsafe { mapping.start().cast::<NodePage>().as_ref() },
            Node::Private(page) => page,
        }
    }

    /// Copies the other shares' pages.
    pub(super) fn look(&mut self, now: Ns) {
        if self.others.is_empty() {
            return;
        }
        self.take_seats();
        for (slot, other) in self.others.iter_mut().enumerate().take(self.seats.end) {
            let takes_part = self.seats.others & 1 << slot != 0;
            other.is_copied = takes_part && other.is_open(&self.folder, slot, now);
        }
        let mut wanted: Vec<&mut Other> = self.others.iter_mut().filter(|other| other.is_copied).collect();
        let mut done = 0;
        while done < wanted.len() {
            let mut pieces: Vec<Piece<'_>> = wanted[done..].iter_mut().filter_map(|other| other.piece()).collect();
            done += peek::copy(&mut pieces);
            // The copy stopped at this page, so it is truncated. It is left out.
            if let Some(cut) = wanted.get_mut(done) {
                cut.is_copied = false;
                done += 1;
            }
        }
    }

    /// Calls `use_them` with all pages. Those of other shares are the last copies.
    pub(super) fn with<T>(&self, use_them: impl FnOnce(&Pages<'_>) -> T) -> T {
        let mut slots = [None; SLOTS];
        for (slot, other) in slots.iter_mut().zip(&self.others).take(self.seats.end) {
            *slot = other.is_copied.then_some(&other.copy);
        }
        slots[self.own] = Some(self.own());
        use_them(&Pages {
            node: self.node(),
            slots: &slots[..self.seats.end.max(self.own + 1)],
            own: self.own,
        })
    }

    /// Returns the word that another share changes when it gives up the GPU, and its value in the last copy.
    pub(super) fn wake_word(&self, slot: usize) -> Option<(*const AtomicU32, u32)> {
        let other = self.others.get(slot)?;
        let page = other.mapping.as_ref()?.start().cast::<SlotPage>();
        // SAFETY: a field of a mapped page; it is not read here.
        let word = unsafe { &raw const (*page.as_ptr()).wake };
        Some((word, other.copy.wake.load(Relaxed)))
    }

    /// Reads the node's page if it has changed. While it is being written, the former values stay valid.
    fn take_seats(&mut self) {
        const NOT: u32 = entry_flags::IGNORED | entry_flags::UNLIMITED;
        let sequence = self.node().sequence.load(Acquire);
        if self.seats.sequence == Some(sequence) {
            return;
        }
        let mut seats = Seats::default();
        for slot in 0..SLOTS {
            let Some(entry) = self.node().entry(slot) else { return };
            if entry.weight == 0 {
                continue;
            }
            seats.end = slot + 1;
            if slot != self.own && entry.flags & NOT == 0 {
                seats.others |= 1 << slot;
            }
        }
        if self.node().sequence.load(Acquire) == sequence {
            seats.sequence = Some(sequence);
            self.seats = seats;
        }
    }
}

impl Other {
    /// Returns true if the page is mapped. Maps it if necessary; a failed attempt is repeated later.
    fn is_open(&mut self, folder: &Path, slot: usize, now: Ns) -> bool {
        if self.mapping.is_none() && (self.tried == 0 || now.saturating_sub(self.tried) > RETRY) {
            self.tried = now;
            let name = u8::try_from(slot).map(slot_file_name).unwrap_or_default();
            self.mapping = map(folder, &name, Access::Read).ok();
        }
        self.mapping.is_some()
    }

    /// Returns the piece of memory to copy.
    fn piece(&mut self) -> Option<Piece<'_>> {
        let from = self.mapping.as_ref()?.start().as_ptr().cast_const().cast();
        let to: *mut SlotPage = &mut self.copy;
        // SAFETY: the first bytes of a page that is borrowed for writing; every value is valid for its words.
        let to = unsafe { std::slice::from_raw_parts_mut(to.cast::<u8>(), HEAD) };
        Some(Piece { from, to })
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Access {
    Read,
    Write,
}

fn map(folder: &Path, name: &str, access: Access) -> Result<Mapping, PagesError> {
    let path = folder.join(name);
    let failed = |error| PagesError::Open(path.display().to_string(), error);
    let no_fork = fork::guard();
    let opened = mount::open_folder(folder).map_err(failed)?;
    let rights = if access == Access::Write {
        libc::O_RDWR
    } else {
        libc::O_RDONLY
    };
    let file = mount::open_in(&opened, Path::new(name), rights).map_err(failed)?;
    let size = file::size(&file).map_err(failed)?;
    if size != PAGE as u64 {
        return Err(PagesError::Size(path.display().to_string(), size));
    }
    let mapping = match access {
        Access::Write => Mapping::new(&file, 0, PAGE),
        Access::Read => Mapping::read_only(&file, PAGE),
    };
    drop(no_fork);
    mapping.map_err(failed)
}

/// Maps the page of processes that cannot see other shares; creates it if it is missing.
fn map_alone(folder: &Path) -> io::Result<Mapping> {
    let no_fork = fork::guard();
    let file = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o666)
        .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC)
        .open(folder.join(ALONE))?;
    // The first process sets the size of the file; a later one does so if the file was truncated.
    if file.metadata()?.len() < PAGE as u64 {
        file.set_len(PAGE as u64)?;
    }
    let mapping = Mapping::new(&file.into(), 0, PAGE);
    drop(no_fork);
    mapping
}

/// Returns true if this process is in a time namespace whose CLOCK_MONOTONIC differs.
fn is_other_clock() -> bool {
    // Kernels without time namespaces do not have this file.
    let offsets = std::fs::read_to_string("/proc/self/timens_offsets").unwrap_or_default();
    offsets.lines().any(|line| {
        let mut words = line.split_whitespace();
        words.next() == Some("monotonic") && words.any(|offset| offset != "0")
    })
}

// === impl PagesError ===

impl fmt::Display for PagesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open(path, error) => write!(f, "{path}: {error}; {PREPARE}"),
            Self::Size(path, size) => write!(f, "{path}: {size} bytes instead of {PAGE}; {PREPARE}"),
            Self::Clock => write!(
                f,
                "this process is in a time namespace with another clock: start it without `unshare --time`"
            ),
            Self::Copy => write!(
                f,
                "process_vm_readv is denied here: allow it in the seccomp profile, as RuntimeDefault does"
            ),
            Self::NoSlot => write!(f, "its limits file names no slot; {PREPARE}"),
        }
    }
}

impl std::error::Error for PagesError {}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use std::fs::OpenOptions;
    use std::io::Write as _;

    fn folder() -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("a folder");
        for slot in 0..64 {
            fs::write(folder.path().join(slot_file_name(slot)), [0; PAGE]).expect("written");
        }
        let node = NodePage::default();
        let mut entries = [Entry::default(); SLOTS];
        for slot in [3, 4, 7] {
            entries[slot].weight = 30_000;
        }
        entries[7].flags = entry_flags::UNLIMITED;
        node.write(&entries);
        let at: *const NodePage = &node;
        // SAFETY: the bytes of a page of plain words.
        let bytes = unsafe { std::slice::from_raw_parts(at.cast::<u8>(), size_of::<NodePage>()) };
        let mut page = bytes.to_vec();
        page.resize(PAGE, 0);
        fs::write(folder.path().join(NODE_PAGE), page).expect("written");
        folder
    }

    fn seen(pages: &OpenPages) -> Vec<usize> {
        pages.with(|pages| {
            (0..pages.slots.len())
                .filter(|slot| pages.slots[*slot].is_some())
                .collect()
        })
    }

    #[test]
    fn what_others_write_is_seen_at_the_next_look() {
        let folder = folder();
        let mut own = OpenPages::open(folder.path(), 3).expect("pages");
        let mut other = OpenPages::open(folder.path(), 4).expect("pages");
        own.look(1);
        assert_eq!(seen(&own), [3, 4], "7 is unlimited, all others are free");
        other.own().turn.until.store(99, Relaxed);
        let until = |pages: &OpenPages| pages.with(|pages| pages.slots[4].expect("seen").turn.until.load(Relaxed));
        assert_eq!(until(&own), 0);
        own.look(2);
        assert_eq!(until(&own), 99);
        other.look(2);
        assert!(own.wake_word(4).is_some() && own.wake_word(5).is_none());
    }

    #[test]
    fn a_page_that_is_cut_takes_no_part_and_ends_nobody() {
        let folder = folder();
        let mut own = OpenPages::open(folder.path(), 3).expect("pages");
        own.look(1);
        let cut = OpenOptions::new()
            .write(true)
            .open(folder.path().join(slot_file_name(4)))
            .expect("opened");
        cut.set_len(0).expect("cut");
        own.look(2);
        assert_eq!(seen(&own), [3]);
        let (word, expected) = own.wake_word(4).expect("mapped");
        let slept = crate::os::futex::wait(word, expected, std::time::Duration::from_secs(60));
        assert_eq!(slept, crate::os::futex::Woken::Impossible);
        cut.set_len(PAGE as u64).expect("as long as before");
        own.look(3);
        assert_eq!(seen(&own), [3, 4]);
    }

    #[test]
    fn pages_that_are_missing_or_damaged_are_named() {
        let folder = folder();
        fs::remove_file(folder.path().join(NODE_PAGE)).expect("removed");
        let missing = OpenPages::open(folder.path(), 3).expect_err("no node page").to_string();
        assert!(missing.contains("/node: "), "{missing}");
        let mut own = OpenOptions::new()
            .append(true)
            .open(folder.path().join(slot_file_name(3)))
            .expect("opened");
        own.write_all(b"x").expect("written");
        let long = OpenPages::open(folder.path(), 3).expect_err("too long").to_string();
        assert!(long.contains("/03: 4097 bytes instead of 4096"), "{long}");
    }

    #[test]
    fn a_page_without_others_knows_its_own_share_alone() {
        let entry = Entry {
            weight: 5000,
            flags: entry_flags::GUARANTEED,
            generation: 0,
        };
        let folder = tempfile::tempdir().expect("a folder");
        let mut pages = OpenPages::private(Some(folder.path()), entry);
        pages.look(1);
        assert_eq!(seen(&pages), [0]);
        assert_eq!(pages.with(|pages| pages.entry()), Some(entry));
        pages.own().turn.until.store(5, Relaxed);
        let second = OpenPages::private(Some(folder.path()), entry);
        assert_eq!(second.own().turn.until.load(Relaxed), 5, "one account");
        let nowhere = OpenPages::private(Some(Path::new("/proc/nowhere")), entry);
        assert_eq!(nowhere.own().turn.until.load(Relaxed), 0);
    }

    #[test]
    fn this_process_has_the_clock_of_all() {
        assert!(!is_other_clock());
    }
}
