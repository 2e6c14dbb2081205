//! How an import is matched to the export it came from; `vgpu_core::ledger::objects` has the shared charges.
//!
//! - The 64 bytes of cuIpcGetMemHandle: the driver finds the memory by them alone, so no two live allocations
//!   have the same ones, in one PID namespace (a handle names its maker's process).
//! - A descriptor whose file has no name and is nobody else's: a regular file of no folder, as memfd_create
//!   makes them. A character device, or an anonymous inode, is the same for everybody's memory: not
//!   recognised, and charged to each who has it.

use core::ffi::c_int;
use vgpu_core::ledger::share::pid_namespace;
use vgpu_core::ledger::{Key, Kind};
use vgpu_core::os::errno;

/// CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR.
const DESCRIPTOR: c_int = 1;

/// That of an IPC handle; None: our PID namespace is not known.
pub(crate) fn of_handle(words: [u64; 8]) -> Option<Key> {
    let _kept = errno::keep();
    let namespace = pid_namespace();
    (namespace != 0).then(|| Key::new(Kind::Ipc, namespace, words))
}

/// That of a handle of `kind` by its descriptor.
pub(crate) fn of_descriptor(kind: c_int, descriptor: impl FnOnce() -> c_int) -> Option<Key> {
    if kind != DESCRIPTOR {
        return None;
    }
    let _kept = errno::keep();
    let (device, inode) = vgpu_core::os::file::nameless(descriptor())?;
    Some(Key::new(Kind::Descriptor, 0, [device, inode, 0, 0, 0, 0, 0, 0]))
}
