//! Checks a ledger when it is opened; the reasons for refusing one.
#![allow(unsafe_code)] // pread at an offset of an OwnedFd, which std has for File alone.

use crate::os::file::{self, MORE_FILES, no_descriptor};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::{fmt, io};
use vgpu_abi::ledger::{self as format, Damage, LANES};

/// Why a share cannot be opened.
#[derive(Debug)]
pub enum OpenError {
    File(PathBuf, io::Error),
    Damage(PathBuf, Damage),
    Lane(PathBuf),
    /// The ledger is not on the file system of its share.
    Elsewhere(PathBuf),
    Processor,
}

pub(super) enum Problem {
    Io(io::Error),
    Damage(Damage),
}

/// Checks a ledger's first and last line.
pub(super) fn check(file: &OwnedFd, start: usize, share_checksum: u32) -> Result<(), Problem> {
    let size = file::size(file).map_err(Problem::Io)?;
    // The file has one ledger or two.
    if size != format::SIZE as u64 && size != format::MAX_SIZE as u64 || size < (start + format::SIZE) as u64 {
        return Err(Problem::Damage(Damage::Size(
            usize::try_from(size).unwrap_or(usize::MAX),
        )));
    }
    let (mut first, mut last) = ([0; format::LINE], [0; format::LINE]);
    read_at(file, &mut first, start).map_err(Problem::Io)?;
    read_at(file, &mut last, start + format::SIZE - format::LINE).map_err(Problem::Io)?;
    format::check_ends(&first, &last).map_err(Problem::Damage)?;
    if first[format::SHARE_AT..format::SHARE_AT + 4] != share_checksum.to_le_bytes() {
        return Err(Problem::Damage(Damage::Share));
    }
    Ok(())
}

fn read_at(file: &OwnedFd, bytes: &mut [u8], at: usize) -> io::Result<()> {
    let at = libc::off_t::try_from(at).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: pointer and length are the slice's, which pread fills.
    let count = unsafe { libc::pread(file.as_raw_fd(), bytes.as_mut_ptr().cast(), bytes.len(), at) };
    if count == isize::try_from(bytes.len()).unwrap_or(isize::MAX) {
        return Ok(());
    }
    Err(if count < 0 {
        io::Error::last_os_error()
    } else {
        io::ErrorKind::UnexpectedEof.into()
    })
}

// === impl OpenError ===

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path, error) => write!(f, "{}: {error}; {}", path.display(), remedy(error)),
            Self::Damage(path, damage) => write!(f, "{}: {damage}; {PREPARE}", path.display()),
            Self::Lane(path) => write!(
                f,
                "{}: every lane is taken: at most {} processes use a share at once; end one of them first",
                path.display(),
                LANES - 1
            ),
            Self::Elsewhere(path) => write!(
                f,
                "{}: not the ledger that the node made, but a file on another file system; {PREPARE}",
                path.display()
            ),
            Self::Processor => write!(
                f,
                "this processor lacks cmpxchg16b, which the ledger of a share needs; use a node with a newer one"
            ),
        }
    }
}

/// The remedy if the share itself is at fault.
const PREPARE: &str = "delete the pod so that it is prepared again";

/// Returns the remedy for an error of the ledger's file. For most of them the pod is not at fault.
fn remedy(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        _ if no_descriptor(error) => MORE_FILES,
        Some(libc::ENOMEM) => "give the program more memory or address space (ulimit -v)",
        Some(libc::EROFS) => "its file system is mounted read-only here: the program has to be able to write to it",
        Some(libc::EPERM) => "a security profile (seccomp, AppArmor) has to allow the call",
        // The error has no number, so it is our own: a lock succeeded without effect.
        None => "the security profile (seccomp) has to let the call reach the kernel",
        _ => PREPARE,
    }
}

impl std::error::Error for OpenError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_error_says_what_to_do_about_it() {
        let file = |error| OpenError::File("/l".into(), error).to_string();
        let errno = |errno| file(io::Error::from_raw_os_error(errno));
        for (said, remedy) in [
            (errno(libc::EMFILE), "ulimit -n"),
            (errno(libc::ENOMEM), "ulimit -v"),
            (errno(libc::EROFS), "read-only"),
            (errno(libc::EPERM), "seccomp"),
            (file(file::no_effect()), "let the call reach the kernel"),
            (OpenError::Lane("/l".into()).to_string(), "end one of them"),
            (OpenError::Processor.to_string(), "newer one"),
        ] {
            assert!(said.contains(remedy) && !said.contains("delete the pod"), "{said}");
        }
        assert!(errno(libc::ENOENT).contains("/l: ") && errno(libc::ENOENT).contains("delete the pod"));
        assert!(OpenError::Elsewhere("/l".into()).to_string().contains("delete the pod"));
    }
}
