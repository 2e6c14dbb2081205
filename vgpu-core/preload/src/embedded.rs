//! Loads a shim that is appended to this very file, for systems that mount only one library: HAMi mounts one library
//! into a container and names it in /etc/ld.so.preload.
//!
//! ```text
//!  libvgpu-hami.so = this library, the shim, the shim's length, "vgpushim"
//!                                   └─► a file in memory ─► dlopen, once, at the first use
//! ```
//!
//! The shim and the trailer are after everything that the ELF headers describe, so the loader sees only this library. A
//! process that never uses a driver reads none of it.
//!
//! How it fails: without /proc, without memfd_create (Linux before 3.17), or if memory may not be executed, no shim is
//! found, as if the file had none. The name that the loader keeps ("/proc/self//fd/5", a spelling that no other library
//! uses) works only in the namespace of the call: dlmopen into another one finds nothing there and fails.
#![allow(unsafe_code)] // A path from bytes.

use core::ptr;

use crate::{
    machine::{SYS_CLOSE, SYS_LSEEK, SYS_MEMFD_CREATE, SYS_OPENAT, SYS_PREAD, SYS_SENDFILE, call},
    name::Text,
    system_call::AT_FDCWD,
};

const O_CLOEXEC: usize = 0o2_000_000;
const MFD_CLOEXEC: usize = 1;
const SEEK_END: usize = 2;

const MARK: u64 = u64::from_le_bytes(*b"vgpushim");
/// The shim's length and the mark.
const TRAILER: usize = 16;
/// An upper bound of the shim's length.
const LARGEST: u64 = 64 << 20;

/// Calls `open` with a path of the shim that is appended to the file `own`.
pub(crate) fn with<T>(own: Text, open: impl FnOnce(Text) -> Option<T>) -> Option<T> {
    let file = descriptor(call(
        SYS_OPENAT,
        [AT_FDCWD, own.pointer().expose_provenance(), O_CLOEXEC, 0],
    ))?;
    let copied = copy(file);
    close(file);
    let memory = copied?;
    let mut path = *b"/proc/self//fd/\0\0\0\0\0\0\0\0\0\0\0";
    write_number(&mut path[15..], memory);
    // SAFETY: ends with a zero, because a descriptor has at most ten digits.
    let opened = unsafe { Text::new(path.as_ptr()) }.and_then(open);
    close(memory);
    opened
}

/// Copies the shim at the end of `file` into a file in memory and returns its descriptor.
fn copy(file: usize) -> Option<usize> {
    let size = u64::try_from(call(SYS_LSEEK, [file, 0, SEEK_END, 0])).ok()?;
    let end = size.checked_sub(TRAILER as u64)?;
    let mut trailer = [0_u64; 2];
    let at = ptr::from_mut(&mut trailer).expose_provenance();
    if call(SYS_PREAD, [file, at, TRAILER, usize::try_from(end).ok()?]) != TRAILER as isize {
        return None;
    }
    let [length, mark] = trailer;
    if mark != MARK || length > LARGEST {
        return None;
    }
    let mut from = end.checked_sub(length)?;
    let name = c"libvgpu.so".as_ptr().expose_provenance();
    let memory = descriptor(call(SYS_MEMFD_CREATE, [name, MFD_CLOEXEC, 0, 0]))?;
    while from < end {
        // The kernel advances `from`.
        let place = ptr::from_mut(&mut from).expose_provenance();
        if call(SYS_SENDFILE, [memory, file, place, usize::try_from(end - from).ok()?]) <= 0 {
            close(memory);
            return None;
        }
    }
    Some(memory)
}

fn descriptor(answer: isize) -> Option<usize> {
    usize::try_from(answer).ok()
}

fn close(descriptor: usize) {
    call(SYS_CLOSE, [descriptor, 0, 0, 0]);
}

/// Writes `number` in decimal. `into` must be long enough.
fn write_number(into: &mut [u8], number: usize) {
    let (mut digits, mut left) = (1, number);
    while left >= 10 {
        left /= 10;
        digits += 1;
    }
    let mut left = number;
    for byte in into.iter_mut().take(digits).rev() {
        *byte = b'0' + (left % 10) as u8;
        left /= 10;
    }
}
