//! Preserves errno and the cancellation state around our system calls. This is done where system calls are made, so
//! that the fast path of a detour, which makes no system calls, touches neither.
//!
//! A cancelled thread ends at its next cancellation point, such as open() or write(). A call of the driver API is no
//! cancellation point, so a thread must not end in our code, with a busy lane or half a reap. Also, the unwinding of a
//! cancelled thread aborts the process when it reaches Rust code.
#![allow(unsafe_code)] // errno is a place that libc hands out; cancellation is libc's too.

use core::ffi::c_int;

const PTHREAD_CANCEL_DISABLE: c_int = 1;

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

/// Restores errno and the cancellation state when it is dropped. Until then the thread is not cancelled.
#[must_use]
pub struct Kept {
    errno: c_int,
    cancellation: c_int,
}

/// Saves errno and disables cancellation.
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

#[cfg(all(test, not(miri)))] // The tests ask the kernel.
mod tests {
    #[test]
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
