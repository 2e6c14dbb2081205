//! One line for the user, on stderr, without the locks of std's streams.
#![allow(unsafe_code)] // One call of libc.

/// Writes `vgpu: <line>` as one piece. A closed or full stderr loses it.
pub fn say(line: &str) {
    let _kept = super::errno::keep();
    let line = format!("vgpu: {line}\n");
    // SAFETY: pointer and length are the string's.
    unsafe { libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), line.len()) };
}
