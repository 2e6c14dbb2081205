//! What C hands over. Values of these types come only from C callers, whose side of the contract (cuda.h) is that
//! a pointer is null or valid for what the function says. All dereferencing of such pointers is here.

#![allow(unsafe_code)] // Reading and writing through callers' pointers.

use std::ffi::{CStr, c_char};

use crate::code::{Code, INVALID_VALUE, Res};

/// A place for a result.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct Out<T>(*mut T);

/// A value, or the first of several, to read.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct In<T>(*const T);

/// A C string.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct Text(*const c_char);

impl<T: Copy> Out<T> {
    /// For a result that nobody asked for.
    pub(crate) fn none() -> Self {
        Self(std::ptr::null_mut())
    }

    pub(crate) fn given(self) -> bool {
        !self.0.is_null()
    }

    pub(crate) fn set(self, value: T) -> Res {
        if self.0.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: not null, so valid (see the module); unaligned because C clients pack as they like.
        unsafe { self.0.write_unaligned(value) };
        Ok(())
    }

    /// For results that a caller may not want.
    pub(crate) fn offer(self, value: T) {
        let _ = self.set(value);
    }

    pub(crate) fn get(self) -> Result<T, Code> {
        In(self.0.cast_const()).get()
    }

    /// Writes all of `values`; the caller promised room for as many.
    pub(crate) fn fill(self, values: &[T]) -> Res {
        if self.0.is_null() && !values.is_empty() {
            return Err(INVALID_VALUE);
        }
        for (index, value) in values.iter().enumerate() {
            // SAFETY: the caller promised room for `values.len()` elements.
            unsafe { self.0.add(index).write_unaligned(*value) };
        }
        Ok(())
    }
}

impl Out<u64> {
    /// The same place where the caller keeps an int.
    pub(crate) fn narrow(self) -> Out<i32> {
        Out(self.0.cast())
    }
}

impl Out<u8> {
    /// Writes text and its NUL, cut at `room`.
    pub(crate) fn text(self, text: &str, room: i32) -> Res {
        let room = usize::try_from(room)
            .ok()
            .filter(|room| *room > 0)
            .ok_or(INVALID_VALUE)?;
        let mut bytes = text.as_bytes()[..text.len().min(room - 1)].to_vec();
        bytes.push(0);
        self.fill(&bytes)
    }
}

impl<T: Copy> In<T> {
    pub(crate) fn get(self) -> Result<T, Code> {
        self.at(0)
    }

    /// Element `index` of several; the caller promised more than `index`.
    pub(crate) fn at(self, index: usize) -> Result<T, Code> {
        if self.0.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: not null, so valid for what the function says it reads.
        Ok(unsafe { self.0.add(index).read_unaligned() })
    }
}

impl Text {
    /// The first bytes, for what may be text or not.
    pub(crate) fn bytes(self) -> In<[u8; 4]> {
        In(self.0.cast())
    }

    pub(crate) fn get(self) -> Result<String, Code> {
        if self.0.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: not null, so a NUL-terminated string.
        Ok(unsafe { CStr::from_ptr(self.0) }.to_string_lossy().into_owned())
    }
}

/// Copies between host addresses, overlapping or not.
pub(crate) fn move_bytes(to: u64, from: u64, count: usize) {
    // SAFETY: both ranges were named valid by the caller, or lie within our own backing.
    unsafe { std::ptr::copy(from as *const u8, to as *mut u8, count) }
}

/// Fills host memory with a pattern of 1, 2 or 4 bytes.
pub(crate) fn fill_bytes(to: u64, pattern: &[u8], count: usize) {
    // SAFETY: the range was named valid by the caller, or lies within our own backing.
    let place = unsafe { std::slice::from_raw_parts_mut(to as *mut u8, count) };
    match pattern {
        [byte] => place.fill(*byte),
        _ => place
            .chunks_mut(pattern.len())
            .for_each(|chunk| chunk.copy_from_slice(&pattern[..chunk.len()])),
    }
}

/// Zeroed memory that costs nothing until it is touched. Its address, or None.
pub(crate) fn map_host(size: u64) -> Option<u64> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let size = usize::try_from(size).ok()?.max(1);
    // SAFETY: a fresh anonymous mapping at an address of the kernel's choice.
    let address = unsafe { libc::mmap(std::ptr::null_mut(), size, access, flags, -1, 0) };
    (address != libc::MAP_FAILED).then_some(address as u64)
}

/// Ends what `map_host` made.
pub(crate) fn unmap_host(address: u64, size: u64) {
    // SAFETY: exactly a range that map_host returned, given up by its one owner.
    unsafe { libc::munmap(address as *mut libc::c_void, (size as usize).max(1)) };
}

/// A byte that reads 0 in forked children (MADV_WIPEONFORK), 1 here.
pub(crate) struct ForkMark(*const u8);

// SAFETY: the page is written once, before the mark exists, and only read afterwards.
unsafe impl Send for ForkMark {}
// SAFETY: as above.
unsafe impl Sync for ForkMark {}

impl ForkMark {
    pub(crate) fn new() -> Option<Self> {
        let page = map_host(4096)? as *mut u8;
        // SAFETY: the page was just made and is never unmapped.
        unsafe {
            if libc::madvise(page.cast(), 4096, libc::MADV_WIPEONFORK) != 0 {
                return None;
            }
            page.write(1);
        }
        Some(Self(page))
    }

    pub(crate) fn forked(&self) -> bool {
        // SAFETY: the page is never unmapped; volatile, because fork changes it behind the compiler's back.
        unsafe { self.0.read_volatile() == 0 }
    }
}
