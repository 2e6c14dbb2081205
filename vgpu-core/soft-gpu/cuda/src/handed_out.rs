//! Descriptors that were handed out, and whether any process still has one.
//!
//! A descriptor and its copies, in whatever process or message they are, are one open file. A lock of flock(2) belongs to
//! the open file and ends with its last descriptor. So the exporter locks the file that it hands out, and keeps a
//! second open file of the same, by which it tries the lock.
//!
//! How it fails: without /proc or a free descriptor there is no watch, and if the program closes our descriptor or puts
//! another file there, the watch never reports a close: the memory stays until the process ends.

#![allow(unsafe_code)] // flock and fstat on a descriptor of the program's.

use std::fs::{File, OpenOptions};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

#[derive(Debug)]
pub(crate) struct Watch {
    file: File,
    inode: (u64, u64),
}

impl Watch {
    /// Watches the open file of `descriptor`, which nobody else has yet.
    pub(crate) fn new(descriptor: i32) -> Option<Self> {
        // SAFETY: flock takes no pointers.
        if unsafe { libc::flock(descriptor, libc::LOCK_SH | libc::LOCK_NB) } != 0 {
            return None;
        }
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(format!("/proc/self/fd/{descriptor}"))
            .ok()?;
        let inode = inode(&file)?;
        Some(Self { file, inode })
    }

    /// Returns true if no process has the descriptor any more.
    pub(crate) fn is_closed(&self) -> bool {
        let ours = || inode(&self.file) == Some(self.inode);
        // SAFETY: as above.
        ours() && unsafe { libc::flock(self.file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0 && ours()
    }
}

fn inode(file: &File) -> Option<(u64, u64)> {
    file.metadata().ok().map(|found| (found.dev(), found.ino()))
}

/// Duplicates a descriptor, so that an importer keeps the memory.
pub(crate) fn keep(descriptor: i32) -> Option<OwnedFd> {
    // SAFETY: the program's descriptor, which it passed for this call.
    unsafe { BorrowedFd::borrow_raw(descriptor) }.try_clone_to_owned().ok()
}
