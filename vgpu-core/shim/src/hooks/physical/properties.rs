//! CUmemAllocationProp: the kind of physical memory that a program asks for.

use crate::driver::ask;
use crate::hooks::devices::locations::{Located, Location};
use crate::real::real;
use core::ffi::{c_int, c_void};
use vgpu_core::memory::driver::Answer;

/// CUmemAllocationProp.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Properties {
    kind: c_int,
    handle_types: c_int,
    pub(crate) location: Location,
    metadata: *mut c_void,
    /// Compression, RDMA, and two bytes for the intended use.
    flags: [u8; 8],
}

const _: () = assert!(size_of::<Properties>() == 32);

impl Located for Properties {
    fn location(&mut self) -> &mut Location {
        &mut self.location
    }
}

impl Properties {
    /// Returns true if any kind of memory is suitable.
    pub(crate) fn is_plain(&self) -> bool {
        const PINNED: c_int = 1;
        let [compression, _, purpose @ .., _, _, _, _] = self.flags;
        self.kind == PINNED && compression == 0 && purpose == [0; 2]
    }

    /// Returns the smallest unit of such memory.
    pub(crate) fn granularity(&self) -> Answer<usize> {
        const MINIMUM: c_int = 0;
        ask!(|bytes: usize| real!(cuMemGetAllocationGranularity)(&mut bytes, self, MINIMUM))
    }

    pub(crate) fn without_rdma(&mut self) {
        self.flags[1] = 0;
    }
}
