//! Pointers of CUDA's callers, and the raw memory behind device contents.

#![allow(unsafe_code)] // mmap, madvise, and copies between raw addresses.

/// The code for a null pointer: CUDA_ERROR_INVALID_VALUE.
pub(crate) type Out<T> = soft_gpu::c::Out<T, 1>;
pub(crate) type In<T> = soft_gpu::c::In<T, 1>;
pub(crate) type Text = soft_gpu::c::Text<1>;

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

/// Unmaps memory of `map_host`.
pub(crate) fn unmap_host(address: u64, size: u64) {
    // SAFETY: exactly a range that map_host returned, given up by its one owner.
    unsafe { libc::munmap(address as *mut libc::c_void, (size as usize).max(1)) };
}

/// Returns a descriptor that can be passed to other processes, and that contains `words`.
pub(crate) fn note(words: [u64; 4]) -> Option<i32> {
    // SAFETY: a C string; the descriptor is the caller's from then on. glibc 2.17 has no function for it.
    let descriptor = unsafe { libc::syscall(libc::SYS_memfd_create, c"soft-gpu".as_ptr(), libc::MFD_CLOEXEC) } as i32;
    let size = std::mem::size_of_val(&words);
    // SAFETY: as many bytes as `words` has.
    let written = unsafe { libc::pwrite(descriptor, words.as_ptr().cast(), size, 0) };
    (descriptor >= 0 && written == size as isize).then_some(descriptor)
}

/// Reads the words that `note` wrote into a descriptor.
pub(crate) fn read_note(descriptor: i32) -> Option<[u64; 4]> {
    let mut words = [0_u64; 4];
    let size = std::mem::size_of_val(&words);
    // SAFETY: room for as many bytes as are asked for.
    let read = unsafe { libc::pread(descriptor, words.as_mut_ptr().cast(), size, 0) };
    (read == size as isize).then_some(words)
}

/// A byte that reads 1 in this process and 0 in forked children (MADV_WIPEONFORK).
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
