//! Detects when the last descriptor of an open file is closed, in any process.
//!
//! ```text
//!  the driver's descriptor ─┬─ copies, in other processes and in messages     one open file, which has our lock
//!  ours: another open file of the same inode ─► is that lock still held?
//! ```
//!
//! A lock of F_OFD_SETLK belongs to the open file, so it ends exactly when the last of its descriptors is closed. Each
//! watch locks a byte of its own, because all descriptors of a character device may have one inode.
//!
//! How it fails: always as "not closed". The file cannot be opened a second time (a dma-buf), there is no free
//! descriptor, or another process locks the same byte. If the program closes our descriptor or reuses its number, the
//! watch never reports a close again.
#![allow(unsafe_code)] // Calls of libc on the driver's descriptor.

use super::file::{self, Opened};
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU32, Ordering};

#[derive(Debug)]
pub struct LastClose {
    file: Opened,
    byte: usize,
}

impl LastClose {
    /// Watches the open file of `descriptor`, which the program does not have yet.
    #[must_use]
    pub fn new(descriptor: RawFd) -> Option<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let _kept = super::errno::keep();
        // An offset at which the program has no locks of its own.
        let byte = 1 << 62 | (std::process::id() as usize) << 32 | NEXT.fetch_add(1, Ordering::Relaxed) as usize;
        file::share_of(descriptor, byte).ok()?;
        let file = Opened::again(descriptor).ok()?;
        // The watch works only if the other open file sees the lock.
        file::is_locked(&file, byte).ok()?.then_some(Self { file, byte })
    }

    /// Returns true if no process has the descriptor any more.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        let _kept = super::errno::keep();
        let ours = || self.file.check().is_ok();
        ours() && file::is_locked(&self.file, self.byte).is_ok_and(|locked| !locked) && ours()
    }
}

#[cfg(all(test, not(miri)))] // The tests lock files.
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn the_last_of_all_copies_counts() {
        let file = tempfile::tempfile().expect("a file");
        let (one, two) = (LastClose::new(file.as_raw_fd()), LastClose::new(file.as_raw_fd()));
        let [one, two] = [one, two].map(|watch| watch.expect("a watch"));
        let copy = file.try_clone().expect("a copy");
        drop(file);
        assert!(!one.is_closed() && !two.is_closed(), "a copy is left");
        // A child has copies of all descriptors, of ours too.
        let mut child = std::process::Command::new("cat")
            .stdin(std::process::Stdio::piped())
            .stdout(copy)
            .spawn()
            .expect("a child");
        assert!(!one.is_closed(), "the child has one");
        drop(child.stdin.take());
        child.wait().expect("its end");
        // A child of another test has copies until its exec.
        while !(one.is_closed() && two.is_closed()) {
            std::thread::yield_now();
        }
        assert!(one.is_closed(), "and stays so");
    }

    #[test]
    fn what_cannot_be_watched_is_not_closed() {
        assert!(LastClose::new(-1).is_none());
        let (read, write) = std::io::pipe().expect("a pipe");
        assert!(LastClose::new(read.as_raw_fd()).is_none() || LastClose::new(write.as_raw_fd()).is_none());
        // The program closes our descriptor and opens another file there.
        let file = tempfile::tempfile().expect("a file");
        let watch = LastClose::new(file.as_raw_fd()).expect("a watch");
        let other = tempfile::tempfile().expect("a file");
        // SAFETY: two open descriptors.
        let moved = unsafe { libc::dup2(other.as_raw_fd(), watch.file.as_raw_fd()) };
        assert_eq!(moved, watch.file.as_raw_fd());
        drop(file);
        assert!(!watch.is_closed(), "nothing is known any more");
        // SAFETY: the descriptor made above; the watch leaves it alone.
        unsafe { libc::close(moved) };
    }
}
