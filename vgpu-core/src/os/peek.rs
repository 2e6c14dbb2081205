//! Copies memory of this process that may not exist: a page of another share, whose tenant can truncate the file at any
//! moment. A plain read would end in SIGBUS; the kernel's copy just stops.
//!
//! How it fails: if a seccomp filter denies process_vm_readv, every copy fails, and the caller knows nothing about the
//! other shares.
#![allow(unsafe_code)] // One system call.

use std::ffi::c_void;

/// A piece of memory and the place of its copy.
#[derive(Debug)]
pub struct Piece<'a> {
    pub from: *const u8,
    pub to: &'a mut [u8],
}

/// Maximum number of pieces per system call.
const MOST: usize = 64;

/// Copies the pieces in order. Returns how many were copied completely; the next one could not be read.
#[must_use]
pub fn copy(pieces: &mut [Piece<'_>]) -> usize {
    let count = pieces.len().min(MOST);
    let none = libc::iovec {
        iov_base: std::ptr::null_mut(),
        iov_len: 0,
    };
    let (mut local, mut remote) = ([none; MOST], [none; MOST]);
    for (index, piece) in pieces.iter_mut().enumerate().take(count) {
        local[index] = libc::iovec {
            iov_base: piece.to.as_mut_ptr().cast(),
            iov_len: piece.to.len(),
        };
        remote[index] = libc::iovec {
            iov_base: piece.from.cast_mut().cast::<c_void>(),
            iov_len: piece.to.len(),
        };
    }
    // SAFETY: `local` names memory that is borrowed for writing; the kernel reads what `remote` names, or stops.
    let copied = unsafe {
        libc::process_vm_readv(
            libc::getpid(),
            local.as_ptr(),
            count as libc::c_ulong,
            remote.as_ptr(),
            count as libc::c_ulong,
            0,
        )
    };
    let mut left = usize::try_from(copied).unwrap_or(0);
    let mut whole = 0;
    for piece in &pieces[..count] {
        if left < piece.to.len() {
            break;
        }
        left -= piece.to.len();
        whole += 1;
    }
    whole
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn pieces_before_the_one_that_is_not_there_are_copied() {
        let (first, third) = ([1_u8; 8], [3_u8; 8]);
        let (mut a, mut b, mut c) = ([0_u8; 8], [0_u8; 8], [0_u8; 8]);
        let nowhere = std::ptr::without_provenance(64);
        let copied = {
            let (a, b, c) = (&mut a[..], &mut b[..], &mut c[..]);
            let pieces = [(first.as_ptr(), a), (nowhere, b), (third.as_ptr(), c)];
            copy(&mut pieces.map(|(from, to)| Piece { from, to }))
        };
        assert_eq!((copied, a, b, c), (1, [1; 8], [0; 8], [0; 8]));
        let from = third.as_ptr();
        assert_eq!(copy(&mut [Piece { from, to: &mut c }]), 1);
        assert_eq!(c, [3; 8]);
        assert_eq!(copy(&mut []), 0);
    }
}
