//! Reads code that a program hands to the driver, to tell what it will take ([`vgpu_core::memory::code_file`]).
//!
//! How it fails: the pointer may lead anywhere, and only the driver knows how far it will read. So memory is read by the
//! kernel, which answers with an error where nothing is mapped. Where a filter denies that, and where a file cannot be
//! read, the code counts as unknown.

use core::ffi::{CStr, c_char, c_void};
use std::os::unix::fs::FileExt;
use vgpu_core::memory::code_file::{self, Bytes};
use vgpu_core::memory::expected::Code;
use vgpu_core::os::errno;

/// The memory of this process.
struct Memory;

impl Bytes for Memory {
    fn read(&self, at: u64, into: &mut [u8]) -> usize {
        let local = libc::iovec {
            iov_base: into.as_mut_ptr().cast(),
            iov_len: into.len(),
        };
        let remote = libc::iovec {
            iov_base: at as *mut c_void,
            iov_len: into.len(),
        };
        // SAFETY: getpid always succeeds.
        let own = unsafe { libc::getpid() };
        // SAFETY: `into` is to be written; the kernel checks the other range.
        let read = unsafe { libc::process_vm_readv(own, &local, 1, &remote, 1, 0) };
        usize::try_from(read).unwrap_or(0)
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

/// Describes the code at `image`.
pub(crate) fn in_memory(image: *const c_void) -> Code {
    let _kept = errno::keep();
    code_file::of(&Memory, image as u64)
}

/// Describes the code in the file named `path`, a C string.
pub(crate) fn in_file(path: *const c_void) -> Code {
    let _kept = errno::keep();
    let unknown = Code { mark: 0, bytes: 0 };
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

/// A regular file: opening a FIFO could wait without end.
fn open(path: &str) -> Option<std::fs::File> {
    let is_file = std::fs::metadata(path).is_ok_and(|found| found.is_file());
    is_file.then(|| std::fs::File::open(path).ok()).flatten()
}
