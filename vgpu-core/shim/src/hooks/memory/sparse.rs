//! Physical memory in sparse arrays: a tile keeps the memory that is mapped into it, as a mapping at an address does
//! ([`vmm`](super::super::physical::vmm)).
//!
//! ```text
//!  cuMemMapArrayAsync ─► compute the end of the part in the memory ─► charge up to there, if another process made it
//!                     ─► driver ─► each tile keeps its Backing until it is mapped again or the array is destroyed
//! ```
//!
//! The call gives a part of an array in elements, not in bytes. The bytes follow from the array's tiles, each of which
//! needs [`TILE`]. An array whose memory is mapped as a whole reports its size.
//!
//! How it fails: if the driver reports neither, the part is charged one tile.

use crate::codes::{OUT_OF_MEMORY, SUCCESS};
use crate::driver::Real;
use crate::hooks::physical::bindings::of_handle;
use crate::process::Ready;
use crate::real::real;
use core::ffi::{c_int, c_uint};
use vgpu_core::memory::arrays;

/// The bytes of a tile, whatever its elements are.
const TILE: u64 = 64 << 10;

/// CUarrayMapInfo.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ArrayMap {
    resource_kind: c_int,
    array: usize,
    part_kind: c_int,
    part: [u64; 4],
    operation: c_int,
    handle_kind: c_int,
    handle: u64,
    offset: u64,
    devices: c_uint,
    flags: c_uint,
    reserved: [c_uint; 2],
}
const _: () = assert!(size_of::<ArrayMap>() == 96);

/// CUDA_ARRAY_SPARSE_PROPERTIES.
#[repr(C)]
#[derive(Default)]
struct Tiles {
    extent: [c_uint; 3],
    tail_level: c_uint,
    tail_bytes: u64,
    flags: c_uint,
    reserved: [c_uint; 4],
}
const _: () = assert!(size_of::<Tiles>() == 48);

/// CUDA_ARRAY_MEMORY_REQUIREMENTS.
#[repr(C)]
#[derive(Default)]
struct Needs {
    bytes: usize,
    alignment: usize,
    reserved: [c_uint; 4],
}
const _: () = assert!(size_of::<Needs>() == 32);

impl ArrayMap {
    const MAP: c_int = 1;

    fn maps(&self) -> bool {
        self.operation == Self::MAP
    }

    fn tile(&self) -> arrays::Tile {
        let [a, b, c, d] = self.part;
        [self.part_kind as u64, a, b, c, d]
    }

    /// Returns the end of the part, as an offset in the memory.
    fn end(&self) -> u64 {
        const TAIL: c_int = 1;
        let bytes = if self.part_kind == TAIL {
            self.part[2]
        } else {
            let counted = self.tiles().map(|tiles| self.bytes_in(tiles.extent));
            counted.or_else(|| self.whole()).unwrap_or(TILE)
        };
        self.offset.saturating_add(bytes)
    }

    /// Bytes of a part of a level: whole tiles.
    fn bytes_in(&self, tile: [c_uint; 3]) -> u64 {
        // Words of 32 bits: level, layer, three offsets, three extents.
        let [_, _, z_and_width, height_and_depth] = self.part;
        let extents = [
            z_and_width >> 32,
            height_and_depth & 0xffff_ffff,
            height_and_depth >> 32,
        ];
        let counts = extents
            .into_iter()
            .zip(tile)
            .map(|(extent, tile)| extent.max(1).div_ceil(u64::from(tile.max(1))));
        counts.fold(TILE, u64::saturating_mul)
    }

    fn is_mipmapped(&self) -> bool {
        self.resource_kind == 1
    }

    fn tiles(&self) -> Option<Tiles> {
        let mut tiles = Tiles::default();
        let ask = if self.is_mipmapped() {
            real!(cuMipmappedArrayGetSparseProperties(*mut Tiles, usize))
        } else {
            real!(cuArrayGetSparseProperties(*mut Tiles, usize))
        };
        // SAFETY: to be written; the driver validates the array.
        (unsafe { ask(&mut tiles, self.array) } == SUCCESS).then_some(tiles)
    }

    /// Returns the bytes of the whole array on the device of its context.
    fn whole(&self) -> Option<u64> {
        let (mut needs, device) = (Needs::default(), Real.current_device().ok()?);
        let ask = if self.is_mipmapped() {
            real!(cuMipmappedArrayGetMemoryRequirements(*mut Needs, usize, c_int))
        } else {
            real!(cuArrayGetMemoryRequirements(*mut Needs, usize, c_int))
        };
        // SAFETY: to be written; the driver validates the array.
        (unsafe { ask(&mut needs, self.array, device) } == SUCCESS).then_some(needs.bytes as u64)
    }
}

pub(crate) unsafe fn map_array(
    ready: &'static Ready,
    list: *mut ArrayMap,
    count: c_uint,
    next: impl FnOnce(*mut ArrayMap) -> c_int,
) -> c_int {
    if list.is_null() {
        return next(list);
    }
    // SAFETY: the caller's list.
    let mut own = unsafe { core::slice::from_raw_parts(list, count as usize) }.to_vec();
    let backings: Vec<_> = own
        .iter()
        .map(|one| of_handle(ready, one.handle).filter(|_| one.maps()))
        .collect();
    for (one, backing) in own.iter().zip(&backings) {
        let imported = backing.as_ref().filter(|backing| backing.is_imported());
        if imported.is_some_and(|backing| !backing.reach(one.end())) {
            return OUT_OF_MEMORY;
        }
    }
    if let Some(devices) = ready.devices() {
        for one in &mut own {
            one.devices = devices.real_mask(one.devices);
        }
    }
    let result = next(own.as_mut_ptr());
    if result == SUCCESS {
        for (one, backing) in own.iter().zip(backings) {
            ready.tables.arrays.map(one.array, one.tile(), backing);
        }
    }
    result
}
