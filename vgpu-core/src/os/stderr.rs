//! Writes a line for the user to stderr, without the locks of std's streams, and to an open log.
#![allow(unsafe_code)] // One call of libc, and the address of a function.

use std::sync::atomic::{AtomicPtr, Ordering};

/// A `fn(&str)` that gets each line as well; null: there is none.
static ALSO: AtomicPtr<()> = AtomicPtr::new(std::ptr::null_mut());

/// Passes each later line to `log` as well. `log` must not call [`say`].
pub fn also(log: fn(&str)) {
    ALSO.store(log as *mut (), Ordering::Release);
}

/// Writes `vgpu: <line>` by one write. If stderr is closed or full, the line is lost.
pub fn say(line: &str) {
    let _kept = super::errno::keep();
    let text = format!("vgpu: {line}\n");
    // SAFETY: pointer and length are the string's.
    unsafe { libc::write(libc::STDERR_FILENO, text.as_ptr().cast(), text.len()) };
    let also = ALSO.load(Ordering::Acquire);
    if !also.is_null() {
        // SAFETY: `also` stored a function of this very type.
        let also = unsafe { std::mem::transmute::<*mut (), fn(&str)>(also) };
        also(line);
    }
}
