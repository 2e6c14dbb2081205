//! Keeps errno and cancellation as they were around system calls of ours. Done wherever we make system calls, so
//! that the fast path of a detour, which makes none, need not touch either.
//!
//! A cancelled thread ends at its next cancellation point, of which open() and write() are two. A call of the driver
//! API is none, so a thread must not end in ours, with a lane busy and half a reap done; and the unwinding of a
//! cancelled thread cannot pass Rust code without aborting the process.
#![allow(unsafe_code)] // errno is a place that libc hands out; cancellation is libc's too.

use core::ffi::c_int;

const PTHREAD_CANCEL_DISABLE: c_int = 1;

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

/// While it lives, errno may change and the thread is not cancelled; afterwards both are as they were.
#[must_use]
pub struct Kept {
    errno: c_int,
    cancellation: c_int,
}

/// Keeps errno, and holds cancellation back.
pub fn keep() -> Kept {
    let mut cancellation = 0;
    if !cfg!(miri) {
        // SAFETY: a known state in; the old one is to be written.
        unsafe { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &mut cancellation) };
    }
    Kept {
        // SAFETY: the address of this thread's errno is valid as long as the thread.
        errno: unsafe { *libc::__errno_location() },
        cancellation,
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        if !cfg!(miri) {
            // SAFETY: the state that was found; the old one may be null.
            unsafe { pthread_setcancelstate(self.cancellation, std::ptr::null_mut()) };
        }
        // SAFETY: as in `keep`.
        unsafe { *libc::__errno_location() = self.errno };
    }
}

#[cfg(test)]
mod tests {
    #[test]
    #[cfg_attr(miri, ignore = "asks the kernel")]
    fn errno_is_what_it_was() {
        let errno = || std::io::Error::last_os_error().raw_os_error();
        let kept = super::keep();
        let before = errno();
        assert!(std::fs::metadata("/nowhere/at/all").is_err());
        assert_eq!(errno(), Some(libc::ENOENT));
        drop(kept);
        assert_eq!(errno(), before);
    }
}
