//! CUDA arrays: device memory with a shape, stored row by row.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use crate::code::{Code, INVALID_HANDLE, INVALID_VALUE, OUT_OF_MEMORY, Res};
use crate::context::here;
use crate::driver;
use crate::ffi::{In, Out};

/// CUDA_ARRAY_DESCRIPTOR_v2.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Plane {
    width: u64,
    height: u64,
    format: u32,
    channels: u32,
}

/// CUDA_ARRAY3D_DESCRIPTOR_v2.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Solid {
    width: u64,
    height: u64,
    depth: u64,
    format: u32,
    channels: u32,
    flags: u32,
}

#[derive(Clone, Copy)]
pub(crate) struct Array {
    pub(crate) address: u64,
    pub(crate) pitch: u64,
    pub(crate) height: u64,
    shape: Solid,
}

static ARRAYS: Mutex<Option<HashMap<u64, Array>>> = Mutex::new(None);

fn with<T>(act: impl FnOnce(&mut HashMap<u64, Array>) -> T) -> T {
    act(ARRAYS
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .get_or_insert_default())
}

pub(crate) fn find(handle: u64) -> Result<Array, Code> {
    with(|arrays| arrays.get(&handle).copied()).ok_or(INVALID_HANDLE)
}

/// Bytes of a channel, by CUarray_format.
fn element(format: u32) -> Option<u64> {
    match format {
        0x01 | 0x08 => Some(1),
        0x02 | 0x09 | 0x10 => Some(2),
        0x03 | 0x0a | 0x20 => Some(4),
        _ => None,
    }
}

/// Height 0 is a one-dimensional array, depth 0 a two-dimensional one.
fn create(out: Out<u64>, shape: Solid) -> Res {
    let (driver, context) = here()?;
    let element = element(shape.format).ok_or(INVALID_VALUE)?;
    if !out.given() || shape.width == 0 || ![1, 2, 4].contains(&shape.channels) {
        return Err(INVALID_VALUE);
    }
    let pitch = shape
        .width
        .checked_mul(element * u64::from(shape.channels))
        .ok_or(OUT_OF_MEMORY)?;
    let rows = shape
        .height
        .max(1)
        .checked_mul(shape.depth.max(1))
        .ok_or(OUT_OF_MEMORY)?;
    let size = pitch.checked_mul(rows).ok_or(OUT_OF_MEMORY)?;
    let address = driver.memory.allocate(driver, context, size)?;
    let handle = driver.handle();
    with(|arrays| {
        arrays.insert(
            handle,
            Array {
                address,
                pitch,
                height: shape.height.max(1),
                shape,
            },
        )
    });
    out.set(handle)
}

soft_gpu::api! {
    fn cuArrayCreate_v2(out: Out<u64>, description: In<Plane>) {
        let Plane { width, height, format, channels } = description.get()?;
        create(out, Solid { width, height, depth: 0, format, channels, flags: 0 })
    }

    fn cuArray3DCreate_v2(out: Out<u64>, description: In<Solid>) {
        create(out, description.get()?)
    }

    fn cuArrayDestroy(handle: u64) {
        let driver = driver::get()?;
        let array = with(|arrays| arrays.remove(&handle)).ok_or(INVALID_HANDLE)?;
        driver.memory.free(driver, array.address)
    }

    fn cuArrayGetDescriptor_v2(out: Out<Plane>, handle: u64) {
        let Solid { width, height, format, channels, .. } = find(handle)?.shape;
        out.set(Plane { width, height, format, channels })
    }

    fn cuArray3DGetDescriptor_v2(out: Out<Solid>, handle: u64) {
        out.set(find(handle)?.shape)
    }
}
