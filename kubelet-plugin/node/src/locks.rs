//! Locks on bytes of a ledger (fcntl(2), F_OFD_*): a process that uses a share's GPU locks its lane, and the kernel frees that
//! lock when the process ends.

use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use std::fs::File;
use std::io;

/// An exclusive lock on `length` bytes from `start` on; 0: up to the end of the file.
#[must_use]
pub fn exclusive(start: u64, length: u64) -> libc::flock {
    let offset = |value| libc::off_t::try_from(value).unwrap_or(libc::off_t::MAX);
    libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: offset(start),
        l_len: offset(length),
        l_pid: 0,
    }
}

/// Returns true if any of these bytes is locked.
///
/// # Errors
/// The kernel cannot read the locks of the file.
pub fn is_locked(file: &File, start: u64, length: u64) -> io::Result<bool> {
    let mut lock = exclusive(start, length);
    // The kernel writes the conflicting lock, or F_UNLCK if there is none.
    fcntl(file, FcntlArg::F_OFD_GETLK(&mut lock))?;
    Ok(i32::from(lock.l_type) != libc::F_UNLCK)
}
