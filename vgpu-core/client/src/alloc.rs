//! Allocations of every kind on the first GPU, each by one call that returns the handle or pointer, or the driver's error.

use crate::library::call;
use std::ffi::{c_int, c_void};

pub(crate) type Made<T> = Result<T, c_int>;

fn made<T>(result: c_int, value: T) -> Made<T> {
    if result == 0 { Ok(value) } else { Err(result) }
}

pub(crate) fn plain(cuda: *mut c_void, bytes: usize) -> Made<u64> {
    let mut pointer = 0;
    made(
        call!(cuda, "cuMemAlloc_v2" (*mut u64, usize) (&mut pointer, bytes)),
        pointer,
    )
}

pub(crate) fn managed(cuda: *mut c_void, bytes: usize) -> Made<u64> {
    let mut pointer = 0;
    made(
        call!(cuda, "cuMemAllocManaged" (*mut u64, usize, u32) (&mut pointer, bytes, 1)),
        pointer,
    )
}

/// Allocates rows of 1000 bytes. Returns the pointer and the pitch.
pub(crate) fn pitched(cuda: *mut c_void, bytes: usize) -> Made<(u64, usize)> {
    let (mut pointer, mut pitch) = (0, 0);
    let result = call!(cuda, "cuMemAllocPitch_v2" (*mut u64, *mut usize, usize, usize, u32)
        (&mut pointer, &mut pitch, 1000, bytes / 1024, 4));
    made(result, (pointer, pitch))
}

pub(crate) fn ordered(cuda: *mut c_void, bytes: usize, stream: usize) -> Made<u64> {
    let mut pointer = 0;
    made(
        call!(cuda, "cuMemAllocAsync" (*mut u64, usize, usize) (&mut pointer, bytes, stream)),
        pointer,
    )
}

pub(crate) fn physical(cuda: *mut c_void, bytes: usize) -> Made<u64> {
    // CUmemAllocationProp: pinned, no export, device 0.
    created(cuda, bytes, [1, 0, 1, 0, 0, 0, 0, 0])
}

pub(crate) fn from_pool(cuda: *mut c_void, bytes: usize, pool: usize) -> Made<u64> {
    let mut pointer = 0;
    let result = call!(cuda, "cuMemAllocFromPoolAsync" (*mut u64, usize, usize, usize) (&mut pointer, bytes, pool, 0));
    made(result, pointer)
}

/// Creates physical memory of the host: CU_MEM_LOCATION_TYPE_HOST_NUMA, node 0.
pub(crate) fn of_host(cuda: *mut c_void, bytes: usize) -> Made<u64> {
    created(cuda, bytes, [1, 0, 3, 0, 0, 0, 0, 0])
}

fn created(cuda: *mut c_void, bytes: usize, properties: [u32; 8]) -> Made<u64> {
    let mut handle = 0;
    let result =
        call!(cuda, "cuMemCreate" (*mut u64, usize, *const u32, u64) (&mut handle, bytes, properties.as_ptr(), 0));
    made(result, handle)
}

pub(crate) fn array(cuda: *mut c_void, bytes: usize) -> Made<usize> {
    // CUDA_ARRAY_DESCRIPTOR: rows of 32 KiB, with four floats for each element.
    let (descriptor, mut array) = ([2048, bytes as u64 >> 15, 4 << 32 | 0x20], 0);
    made(
        call!(cuda, "cuArrayCreate_v2" (*mut usize, *const u64) (&mut array, descriptor.as_ptr())),
        array,
    )
}

/// Reserves addresses, and maps physical memory there. The mapping alone keeps the memory from then on.
pub(crate) fn mapped(cuda: *mut c_void, bytes: usize) -> Made<u64> {
    let (handle, mut address) = (physical(cuda, bytes)?, 0);
    let results = [
        call!(cuda, "cuMemAddressReserve" (*mut u64, usize, usize, u64, u64) (&mut address, bytes, 0, 0, 0)),
        call!(
            cuda,
            "cuMemMap"(u64, usize, usize, u64, u64)(address, bytes, 0, handle, 0)
        ),
        call!(cuda, "cuMemRelease"(u64)(handle)),
    ];
    assert_eq!(results, [0; 3], "a mapping");
    Ok(address)
}

/// Ends a mapping of [`mapped`].
pub(crate) fn unmap(cuda: *mut c_void, address: u64, bytes: usize) {
    assert_eq!(call!(cuda, "cuMemUnmap"(u64, usize)(address, bytes)), 0);
    assert_eq!(call!(cuda, "cuMemAddressFree"(u64, usize)(address, bytes)), 0);
}

pub(crate) fn context(cuda: *mut c_void, device: c_int) -> Made<usize> {
    let mut context = 0;
    made(
        call!(cuda, "cuCtxCreate_v2" (*mut usize, u32, c_int) (&mut context, 0, device)),
        context,
    )
}
