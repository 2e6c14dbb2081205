//! errno, as the program left it: kept wherever we make system calls, so that the usual way of a
//! detour, which makes none, need not touch it.
#![allow(unsafe_code)] // errno is a place that libc hands out.

/// While it lives, errno may change; afterwards it is what it was.
#[must_use]
pub struct Kept(i32);

/// Keeps errno.
pub fn keep() -> Kept {
    // SAFETY: the address of this thread's errno is valid as long as the thread.
    Kept(unsafe { *libc::__errno_location() })
}

impl Drop for Kept {
    fn drop(&mut self) {
        // SAFETY: as in `keep`.
        unsafe { *libc::__errno_location() = self.0 };
    }
}

#[cfg(test)]
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
