//! A lock that proves that this process lives, and a mapping that a fork child does not inherit.
//!
//! The lock is an open-file-description lock whose description is kept open by a mapping only. The descriptor is
//! closed, so closefrom() cannot lose the lock; the mapping is not inherited (DONTFORK), so no child keeps it; the
//! kernel drops it when the last thread of the address space is gone, however the process died, after its last store.
//! It needs no PID, so it works across PID namespaces.
//!
//! The lock's page lies below everything that a driver maps. At exit the kernel unmaps upwards and runs the delayed
//! releases of files last in, first out, so low mappings are released late: the driver has freed the memory before the
//! ledger's lane looks dead. An address hint is not enough: if that page is in use, the kernel chooses any other. So
//! each lock asks for a free page of a range that is reserved for locks.
//!
//! How it fails: a raw clone between open and close inherits the descriptor, and the lane looks alive until that child
//! exits or execs; the bytes stay charged meanwhile, so no limit is exceeded. With a reaper's lock, nobody can reap
//! meanwhile, with the same effect. If the range is refused (a seccomp filter, mmap_min_addr), a lock may have any
//! address: a dead process's bytes may then be released microseconds before its driver releases the memory. The same
//! happens to a lane's or a reaper's lock if its part of the range is full, which takes some thirty shares in one
//! process. With pages of 64 KiB the locks of lanes and reapers have 48 places, for some twelve shares, because a program
//! that is linked to a fixed address comes after them; holds have a range of their own, above the heap of such a program
//! unless that grows to gigabytes. A program may want any number of holds on exported objects: they have their own part of the range, and a
//! hold that finds it full is refused, because its memory can be charged twice instead.
#![allow(unsafe_code)] // mmap, madvise and munmap of mappings of our own.

use super::{file, fork, page_size};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};

/// First address of the range for locks: above every usual mmap_min_addr.
const LOW: usize = 0x10_0000;
/// Where programs begin that are linked to fixed addresses, and after them their heap.
const PROGRAMS: usize = 0x40_0000;
/// First address of the range for shared locks, if pages are too large for all of them below [`PROGRAMS`]: below the
/// addresses that drivers are seen to use.
const HIGH: usize = 0xe000_0000;
/// Maximum number of shared locks in one process.
pub const MOST_SHARED: usize = 400;
/// Pages for exclusive locks, a few per share, and after them pages for shared locks.
const MOST_OWN: usize = 112;
static OWN: Places = Places::new(own);
static SHARED: Places = Places::new(shared);

/// A part of the range for locks.
#[derive(Debug)]
struct Places {
    /// The first address and the number of places, by the size of a page.
    range: fn(usize) -> (usize, usize),
    /// The page that the next lock tries first.
    next: AtomicUsize,
}

/// A shared mapping of a part of a file.
#[derive(Debug)]
pub struct Mapping {
    at: NonNull<libc::c_void>,
    size: usize,
}

/// A held lock. Dropping it releases it.
#[derive(Debug)]
pub struct PinnedLock {
    _mapping: Mapping,
}

// SAFETY: a mapping belongs to the process, not to a thread; what lies in it is reached through
// shared references to atomics only.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `size` bytes from `offset` on, whole pages, for reading and writing.
    ///
    /// # Errors
    /// Errors of mmap(2) and madvise(2).
    pub fn new(file: &OwnedFd, offset: usize, size: usize) -> io::Result<Self> {
        Self::place(file, offset, size, libc::PROT_READ | libc::PROT_WRITE, None)
    }

    /// Maps the first `size` bytes, whole pages, for reading.
    ///
    /// # Errors
    /// Errors of mmap(2) and madvise(2).
    pub fn read_only(file: &OwnedFd, size: usize) -> io::Result<Self> {
        Self::place(file, 0, size, libc::PROT_READ, None)
    }

    /// Maps a page at any address, only to keep the file open.
    fn page(file: &OwnedFd) -> io::Result<Self> {
        Self::place(file, 0, page_size(), libc::PROT_NONE, None)
    }

    fn place(
        file: &OwnedFd,
        offset: usize,
        size: usize,
        rights: libc::c_int,
        wanted: Option<usize>,
    ) -> io::Result<Self> {
        let offset = libc::off_t::try_from(offset).map_err(|_| io::ErrorKind::InvalidInput)?;
        let exactly = wanted.map_or(0, |_| libc::MAP_FIXED_NOREPLACE);
        let wanted = std::ptr::without_provenance_mut(wanted.unwrap_or(0));
        // SAFETY: without MAP_FIXED nothing that exists is replaced; `file` is open.
        let at = unsafe {
            libc::mmap(
                wanted,
                size,
                rights,
                libc::MAP_SHARED | exactly,
                file.as_raw_fd(),
                offset,
            )
        };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let at = NonNull::new(at).ok_or(io::ErrorKind::Other)?;
        let mapping = Self { at, size };
        // SAFETY: the range is the mapping just made.
        if unsafe { libc::madvise(at.as_ptr(), size, libc::MADV_DONTFORK) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(mapping)
    }

    /// Returns the address of the first byte.
    #[must_use]
    pub fn start(&self) -> NonNull<libc::c_void> {
        self.at
    }
}

impl Places {
    const fn new(range: fn(usize) -> (usize, usize)) -> Self {
        Self {
            range,
            next: AtomicUsize::new(0),
        }
    }

    /// Maps a page in this range, only to keep the file open. Returns None if the range is full.
    fn map(&self, file: &OwnedFd) -> io::Result<Option<Mapping>> {
        let page = page_size();
        let (first, count) = (self.range)(page);
        for _ in 0..count {
            let at = first + self.next.fetch_add(1, Ordering::Relaxed) % count * page;
            match Mapping::place(file, 0, page, libc::PROT_NONE, Some(at)) {
                // A kernel before 4.17 treats the address as a hint.
                Ok(mapping) if mapping.at.as_ptr().addr() == at => return Ok(Some(mapping)),
                Ok(_) => {}
                Err(error) if error.raw_os_error() == Some(libc::EEXIST) => {}
                // The range is refused.
                Err(_) => return Mapping::page(file).map(Some),
            }
        }
        Ok(None)
    }
}

/// Exclusive locks are below programs that are linked to fixed addresses, as many as fit.
const fn own(page: usize) -> (usize, usize) {
    let fit = (PROGRAMS - LOW) / page;
    (LOW, if fit < MOST_OWN { fit } else { MOST_OWN })
}

/// Shared locks are there too if all fit.
const fn shared(page: usize) -> (usize, usize) {
    let after_own = LOW + MOST_OWN * page;
    let fit = after_own + MOST_SHARED * page <= PROGRAMS;
    (if fit { after_own } else { HIGH }, MOST_SHARED)
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is this mapping, and whoever borrowed from it borrowed `self`.
        unsafe { libc::munmap(self.at.as_ptr(), self.size) };
    }
}

impl PinnedLock {
    /// Takes the exclusive lock on the byte at `offset`. Returns None if another process holds a lock there.
    ///
    /// # Errors
    /// Errors of the system calls, another file with the same path, and a lock that has no effect.
    pub fn take(known: &file::Known, offset: usize) -> io::Result<Option<Self>> {
        Self::by(file::try_lock, known, offset, |file| match OWN.map(file)? {
            Some(mapping) => Ok(mapping),
            None => Mapping::page(file),
        })
    }

    /// Takes a shared lock. Returns None if another process holds the exclusive lock.
    ///
    /// # Errors
    /// As for [`PinnedLock::take`], and more than [`MOST_SHARED`] locks.
    pub fn share(known: &file::Known, offset: usize) -> io::Result<Option<Self>> {
        Self::by(file::try_share, known, offset, |file| {
            SHARED.map(file)?.ok_or_else(|| io::ErrorKind::StorageFull.into())
        })
    }

    fn by(
        lock: fn(&OwnedFd, usize) -> io::Result<bool>,
        known: &file::Known,
        offset: usize,
        map: impl FnOnce(&OwnedFd) -> io::Result<Mapping>,
    ) -> io::Result<Option<Self>> {
        let no_fork = fork::guard();
        let file = known.open(&no_fork)?;
        if !lock(&file, offset)? {
            return Ok(None);
        }
        let mapping = map(&file)?;
        file.close()?;
        // Verify by another open file that the lock has an effect.
        let other = known.open(&no_fork)?;
        let is_locked = file::is_locked(&other, offset);
        other.close()?;
        match is_locked? {
            true => Ok(Some(Self { _mapping: mapping })),
            false => Err(file::no_effect()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_lock_is_where_a_program_with_a_fixed_address_begins() {
        for page in [4 << 10, 16 << 10, 64 << 10] {
            for (first, count) in [own(page), shared(page)] {
                let end = first + count * page;
                assert!(
                    end <= PROGRAMS || (first == HIGH && end < 1 << 32),
                    "{first:#x} to {end:#x}"
                );
                assert!(first >= LOW && first % page == 0 && count >= 48, "{first:#x}: {count}");
            }
            let (own, shared) = (own(page), shared(page));
            assert!(own.0 + own.1 * page <= shared.0, "{page}: they do not overlap");
            assert_eq!(shared.1, MOST_SHARED);
        }
        assert_eq!((own(4096), shared(4096)), ((LOW, 112), (LOW + 112 * 4096, 400)));
    }
}
