//! Reads code that a program passes to the driver, to estimate its memory ([`vgpu_core::memory::code_file`]).
//!
//! Memory is read directly, by the thread that makes the call, and only where the driver will read it in the same call.
//! So a wild pointer is a fault in the caller, as it would be in the driver. A system call that returns an error instead
//! (process_vm_readv) is no alternative: a seccomp filter may kill a program for a call that it does not expect.
//!
//! How it fails: a file that cannot be read is treated as unknown code. If a driver rejected a bad image before reading
//! the tables that the image names, it would return an error where this code faults.
#![allow(unsafe_code)] // The caller's memory.

use core::ffi::{CStr, c_char, c_void};
use std::os::unix::fs::FileExt;
use vgpu_core::memory::code_file::{self, Bytes};
use vgpu_core::memory::expected::Code;
use vgpu_core::os::errno;

/// The memory of this process.
struct Memory;

impl Bytes for Memory {
    fn read(&self, at: u64, into: &mut [u8]) -> usize {
        let from = core::ptr::with_exposed_provenance::<u8>(at as usize);
        // SAFETY: the caller hands the driver a pointer to code, which `code_file` reads no further than the driver.
        unsafe { core::ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) };
        into.len()
    }

    /// Reads byte by byte: memory behind the text's NUL may not be mapped.
    fn text(&self, at: u64, into: &mut [u8]) -> usize {
        let from = core::ptr::with_exposed_provenance::<u8>(at as usize);
        for (index, to) in into.iter_mut().enumerate() {
            // SAFETY: as above; no byte before this one ended the text.
            *to = unsafe { from.add(index).read() };
            if *to == 0 {
                return index;
            }
        }
        into.len()
    }
}

struct File(std::fs::File);

impl Bytes for File {
    fn read(&self, at: u64, into: &mut [u8]) -> usize {
        let mut read = 0;
        while let Some(rest) = into.get_mut(read..).filter(|rest| !rest.is_empty()) {
            match self.0.read_at(rest, at.saturating_add(read as u64)) {
                Ok(more) if more > 0 => read += more,
                _ => break,
            }
        }
        read
    }
}

/// Describes the code at `image`, which the driver is about to read.
pub(crate) fn in_memory(image: *const c_void) -> Code {
    if image.is_null() {
        return Code::default();
    }
    code_file::of(&Memory, image.expose_provenance() as u64)
}

/// Describes the code in the file named `path`, a C string.
pub(crate) fn in_file(path: *const c_void) -> Code {
    let _kept = errno::keep();
    let unknown = Code::default();
    if path.is_null() {
        return unknown;
    }
    // SAFETY: the driver is given the same C string.
    let path = unsafe { CStr::from_ptr(path.cast::<c_char>()) };
    let Some(file) = path.to_str().ok().and_then(open) else {
        return unknown;
    };
    code_file::of(&File(file), 0)
}

/// Opens a regular file only: opening a FIFO could wait without end.
fn open(path: &str) -> Option<std::fs::File> {
    let is_file = std::fs::metadata(path).is_ok_and(|found| found.is_file());
    is_file.then(|| std::fs::File::open(path).ok()).flatten()
}
