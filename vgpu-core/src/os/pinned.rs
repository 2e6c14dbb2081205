//! A lock that says "this process lives", and a mapping that a fork child does not get.
//!
//! The lock is an open-file-description lock whose description is kept by a mapping alone: the
//! descriptor is closed, so closefrom() cannot lose it; the mapping is not inherited (DONTFORK), so
//! no child keeps it; the kernel drops it when the last thread of the address space is gone, at
//! any kind of death, after the last store. It needs no PID and so works across PID namespaces.
//!
//! The mapping asks for a low address. At exit the kernel unmaps upwards and runs the delayed
//! releases of files last in, first out, so what lies low is released late: a driver's own hold on
//! the memory (mapped high) is gone before the ledger's lane looks dead.
//!
//! How it fails: a raw clone between open and close inherits the descriptor, and keeps the lane
//! looking alive until it exits or execs; the bytes stay charged meanwhile, so no limit is broken.
#![allow(unsafe_code)] // mmap, madvise and munmap of mappings of our own.

use super::{file, fork};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::ptr::NonNull;

const PAGE: usize = 4096;
/// Far below where the kernel places mappings of its own choice.
const LOW: usize = 0x1000_0000_0000;

/// A shared mapping of the start of a file.
#[derive(Debug)]
pub struct Mapping {
    at: NonNull<libc::c_void>,
    size: usize,
}

/// A held lock; dropping it lets it go.
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
    /// Maps `size` bytes, for reading and writing where `access`, else only to hold the file.
    ///
    /// # Errors
    /// Those of mmap(2) and madvise(2).
    pub fn new(file: &OwnedFd, size: usize, access: bool) -> io::Result<Self> {
        let rights = if access {
            libc::PROT_READ | libc::PROT_WRITE
        } else {
            libc::PROT_NONE
        };
        let hint = std::ptr::without_provenance_mut(LOW);
        // SAFETY: without MAP_FIXED nothing that exists is replaced; `file` is open.
        let at = unsafe { libc::mmap(hint, size, rights, libc::MAP_SHARED, file.as_raw_fd(), 0) };
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

    /// Its first byte.
    #[must_use]
    pub fn start(&self) -> NonNull<libc::c_void> {
        self.at
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is this mapping, and whoever borrowed from it borrowed `self`.
        unsafe { libc::munmap(self.at.as_ptr(), self.size) };
    }
}

impl PinnedLock {
    /// Takes the lock on the byte of `path` at `offset`; None: another holds it.
    ///
    /// # Errors
    /// Those of the system calls.
    pub fn take(path: &Path, offset: usize) -> io::Result<Option<Self>> {
        let _no_fork = fork::guard();
        let file = file::open(path)?;
        if !file::try_lock(&file, offset)? {
            return Ok(None);
        }
        let mapping = Mapping::new(&file, PAGE, false)?;
        Ok(Some(Self { _mapping: mapping }))
    }
}
