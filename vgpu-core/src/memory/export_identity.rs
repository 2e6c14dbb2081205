//! Matches an import to its export. [`ledger::objects`](crate::ledger::objects) has the shared charges.
//!
//! - By the 64 bytes of cuIpcGetMemHandle: the driver finds the memory only by these bytes, so they differ for all live
//!   allocations in one PID namespace (a handle names its exporter's PID).
//! - By a descriptor's file, if it is a regular file without a name, as memfd_create creates it. A character device or
//!   an anonymous inode is the same for all memory: such an import is not recognised, and each process is charged.

use crate::ledger::share::pid_namespace;
use crate::ledger::{Key, Kind};
use crate::os::{errno, file};
use core::ffi::c_int;

/// CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR.
pub const DESCRIPTOR: c_int = 1;

/// Returns the key of an IPC handle, or None if our PID namespace is not known.
#[must_use]
pub fn of_handle(words: [u64; 8]) -> Option<Key> {
    let _kept = errno::keep();
    let namespace = pid_namespace();
    (namespace != 0).then(|| Key::new(Kind::Ipc, namespace, words))
}

/// Returns the key of a handle of `kind` by its descriptor, or None if it cannot be recognised.
pub fn of_descriptor(kind: c_int, descriptor: impl FnOnce() -> c_int) -> Option<Key> {
    if kind != DESCRIPTOR {
        return None;
    }
    let _kept = errno::keep();
    let (device, inode) = file::nameless(descriptor())?;
    Some(Key::new(Kind::Descriptor, 0, [device, inode, 0, 0, 0, 0, 0, 0]))
}

#[cfg(all(test, not(miri)))] // The tests ask for namespaces and files.
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn handles_and_nameless_files_are_recognised_and_nothing_else() {
        assert_eq!(of_handle([1; 8]), of_handle([1; 8]));
        assert_ne!(of_handle([1; 8]), of_handle([2; 8]));
        let (one, two) = (
            tempfile::tempfile().expect("a file"),
            tempfile::tempfile().expect("a file"),
        );
        let key = |file: &std::fs::File| of_descriptor(DESCRIPTOR, || file.as_raw_fd());
        assert!(key(&one).is_some());
        assert_eq!(key(&one), key(&one.try_clone().expect("a copy")), "the same file");
        assert_ne!(key(&one), key(&two));
        let device = std::fs::File::open("/dev/null").expect("a device");
        assert_eq!(key(&device), None, "it is everybody's");
        let named = tempfile::NamedTempFile::new().expect("a file");
        assert_eq!(key(named.as_file()), None, "others may open it");
        let other_kind = of_descriptor(DESCRIPTOR + 1, || panic!("it has no descriptor"));
        assert_eq!(other_kind, None);
    }
}
