//! CUmemAllocationProp: the kind of physical memory that a program asks for.

use crate::hooks::devices::locations::Location;
use core::ffi::{c_int, c_void};

/// CUmemAllocationProp.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Properties {
    kind: c_int,
    handle_types: c_int,
    pub(crate) location: Location,
    metadata: *mut c_void,
    /// Compression, RDMA, and two bytes of what it is for.
    flags: [u8; 8],
}

const _: () = assert!(size_of::<Properties>() == 32);

impl Properties {
    /// Returns true if memory of any kind does.
    pub(crate) fn is_plain(&self) -> bool {
        const PINNED: c_int = 1;
        let [compression, _, purpose @ .., _, _, _, _] = self.flags;
        self.kind == PINNED && compression == 0 && purpose == [0; 2]
    }

    pub(crate) fn without_rdma(&mut self) {
        self.flags[1] = 0;
    }
}
