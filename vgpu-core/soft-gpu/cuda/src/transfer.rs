//! Copies and fills. They take no modelled time, as copy engines take none of the GPU's compute time. A blocking copy
//! from or to the host returns when all work of the context is done. Asynchronous ones are done when they return.

use crate::array;
use crate::code::{Code, INVALID_VALUE, Res};
use crate::context::here;
use crate::driver::{self, Driver};
use crate::ffi::{In, fill_bytes, move_bytes};
use crate::stream;

/// Copies between any two addresses, of host or device.
pub(crate) fn copy(driver: &Driver, mut to: u64, mut from: u64, mut size: u64) -> Res {
    while size > 0 {
        let (source, count) = driver.memory.contents(from, size, false)?;
        let (target, count) = match source {
            Some(_) => driver.memory.contents(to, count, true)?,
            None => driver.memory.contents(to, count, false)?,
        };
        match (target, source) {
            (Some(target), Some(source)) => move_bytes(target, source, count as usize),
            (Some(target), None) => fill_bytes(target, &[0], count as usize),
            (None, _) => {} // zeros over zeros
        }
        (to, from, size) = (to + count, from + count, size - count);
    }
    Ok(())
}

pub(crate) fn fill(driver: &Driver, mut to: u64, pattern: &[u8], mut size: u64) -> Res {
    if !to.is_multiple_of(pattern.len() as u64) {
        return Err(INVALID_VALUE);
    }
    while size > 0 {
        let (target, count) = driver.memory.fillable(to, size, pattern)?;
        if let Some(target) = target {
            fill_bytes(target, pattern, count as usize);
        }
        (to, size) = (to + count, size - count);
    }
    Ok(())
}

fn fill_rows(to: u64, pitch: u64, pattern: &[u8], width: u64, height: u64) -> Res {
    let driver = driver::get()?;
    let row = width.checked_mul(pattern.len() as u64).ok_or(INVALID_VALUE)?;
    if height > 1 && pitch < row {
        return Err(INVALID_VALUE);
    }
    (0..height).try_for_each(|line| fill(driver, device(driver, to + line * pitch)?, pattern, row))
}

fn fill_row(to: u64, pattern: &[u8], count: u64) -> Res {
    let driver = driver::get()?;
    let size = count.checked_mul(pattern.len() as u64).ok_or(INVALID_VALUE)?;
    if size == 0 {
        Ok(())
    } else {
        fill(driver, device(driver, to)?, pattern, size)
    }
}

/// Checks that an address is device memory: a range of the device, managed memory or registered host memory. Returns
/// it.
fn device(driver: &Driver, address: u64) -> Result<u64, Code> {
    driver.memory.range(address).map(|_| address).ok_or(INVALID_VALUE)
}

fn host(address: u64) -> Result<u64, Code> {
    if address == 0 { Err(INVALID_VALUE) } else { Ok(address) }
}

/// One side of a rectangular copy, as CUDA_MEMCPY2D and CUDA_MEMCPY3D lay it out from `x` on.
#[derive(Clone, Copy, Default)]
struct Side {
    x: u64,
    y: u64,
    z: u64,
    base: u64,
    pitch: u64,
    height: u64,
}

impl Side {
    fn resolve(
        driver: &Driver,
        kind: u32,
        host_at: u64,
        device_at: u64,
        array_at: u64,
        mut side: Self,
    ) -> Result<Self, Code> {
        side.base = match kind {
            1 => host(host_at)?,
            2 => device(driver, device_at)?,
            4 => host(device_at)?,
            3 => {
                let array = array::find(array_at)?;
                (side.pitch, side.height) = (array.pitch, array.height);
                array.address
            }
            _ => return Err(INVALID_VALUE),
        };
        Ok(side)
    }

    fn row(&self, y: u64, z: u64) -> u64 {
        self.base + (self.z + z) * self.pitch * self.height.max(1) + (self.y + y) * self.pitch + self.x
    }
}

fn copy_box(driver: &Driver, from: Side, to: Side, width: u64, height: u64, depth: u64) -> Res {
    for z in 0..depth {
        for y in 0..height {
            copy(driver, to.row(y, z), from.row(y, z), width)?;
        }
    }
    Ok(())
}

/// CUDA_MEMCPY2D_v2 is sixteen words.
fn copy_2d(description: In<[u64; 16]>) -> Res {
    let driver = driver::get()?;
    let w = description.get()?;
    let side = |x, y, pitch| Side {
        x,
        y,
        pitch,
        ..Side::default()
    };
    let from = Side::resolve(driver, w[2] as u32, w[3], w[4], w[5], side(w[0], w[1], w[6]))?;
    let to = Side::resolve(driver, w[9] as u32, w[10], w[11], w[12], side(w[7], w[8], w[13]))?;
    copy_box(driver, from, to, w[14], w[15], 1)
}

/// CUDA_MEMCPY3D_v2 is twenty-five words. So is CUDA_MEMCPY3D_PEER, which has contexts in place of reserved words.
fn copy_3d(description: In<[u64; 25]>) -> Res {
    let driver = driver::get()?;
    let w = description.get()?;
    let side = |at: usize| Side {
        x: w[at],
        y: w[at + 1],
        z: w[at + 2],
        pitch: w[at + 9],
        height: w[at + 10],
        ..Side::default()
    };
    let end = |at: usize| Side::resolve(driver, w[at + 4] as u32, w[at + 5], w[at + 6], w[at + 7], side(at));
    copy_box(driver, end(0)?, end(11)?, w[22], w[23], w[24])
}

fn one_way(to: u64, from: u64, size: u64, good: impl Fn(&Driver) -> Res) -> Res {
    let driver = driver::get()?;
    if size == 0 {
        return Ok(());
    }
    good(driver)?;
    copy(driver, to, from, size)
}

fn to_device(to: u64, from: u64, size: u64) -> Res {
    one_way(to, from, size, |driver| device(driver, to).and(host(from)).map(|_| ()))
}

fn to_host(to: u64, from: u64, size: u64) -> Res {
    one_way(to, from, size, |driver| host(to).and(device(driver, from)).map(|_| ()))
}

fn between(to: u64, from: u64, size: u64) -> Res {
    one_way(to, from, size, |driver| {
        device(driver, to).and(device(driver, from)).map(|_| ())
    })
}

fn unified(to: u64, from: u64, size: u64) -> Res {
    one_way(to, from, size, |_| host(to).and(host(from)).map(|_| ()))
}

/// Waits for all other work as a copy in the default stream does.
fn after_all(copied: Res) -> Res {
    copied?;
    if let Ok((driver, context)) = here() {
        stream::synchronize(driver, context);
    }
    Ok(())
}

fn on(stream: u64) -> Res {
    stream::gpu_of(driver::get()?, stream).map(|_| ())
}

soft_gpu::api! {
    fn cuMemcpy(to: u64, from: u64, size: u64) { after_all(unified(to, from, size)) }
    fn cuMemcpyAsync(to: u64, from: u64, size: u64, stream: u64) { on(stream)?; unified(to, from, size) }
    fn cuMemcpyPeer(to: u64, _to_context: u64, from: u64, _from_context: u64, size: u64) { between(to, from, size) }
    fn cuMemcpyPeerAsync(to: u64, _to_context: u64, from: u64, _from_context: u64, size: u64, stream: u64) {
        on(stream)?;
        between(to, from, size)
    }
    fn cuMemcpyHtoD_v2(to: u64, from: u64, size: u64) { after_all(to_device(to, from, size)) }
    fn cuMemcpyHtoDAsync_v2(to: u64, from: u64, size: u64, stream: u64) { on(stream)?; to_device(to, from, size) }
    fn cuMemcpyDtoH_v2(to: u64, from: u64, size: u64) { after_all(to_host(to, from, size)) }
    fn cuMemcpyDtoHAsync_v2(to: u64, from: u64, size: u64, stream: u64) { on(stream)?; to_host(to, from, size) }
    fn cuMemcpyDtoD_v2(to: u64, from: u64, size: u64) { between(to, from, size) }
    fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, size: u64, stream: u64) { on(stream)?; between(to, from, size) }
    fn cuMemcpyHtoA_v2(array: u64, offset: u64, from: u64, size: u64) {
        after_all(to_device(array::find(array)?.address + offset, from, size))
    }
    fn cuMemcpyAtoH_v2(to: u64, array: u64, offset: u64, size: u64) {
        after_all(to_host(to, array::find(array)?.address + offset, size))
    }
    fn cuMemcpyDtoA_v2(array: u64, offset: u64, from: u64, size: u64) {
        between(array::find(array)?.address + offset, from, size)
    }
    fn cuMemcpyAtoD_v2(to: u64, array: u64, offset: u64, size: u64) {
        between(to, array::find(array)?.address + offset, size)
    }
    fn cuMemcpyAtoA_v2(to: u64, to_offset: u64, from: u64, from_offset: u64, size: u64) {
        between(array::find(to)?.address + to_offset, array::find(from)?.address + from_offset, size)
    }
    fn cuMemcpyHtoAAsync_v2(array: u64, offset: u64, from: u64, size: u64, stream: u64) {
        on(stream)?;
        to_device(array::find(array)?.address + offset, from, size)
    }
    fn cuMemcpyAtoHAsync_v2(to: u64, array: u64, offset: u64, size: u64, stream: u64) {
        on(stream)?;
        to_host(to, array::find(array)?.address + offset, size)
    }
    fn cuMemcpy2D_v2(description: In<[u64; 16]>) { after_all(copy_2d(description)) }
    fn cuMemcpy2DUnaligned_v2(description: In<[u64; 16]>) { after_all(copy_2d(description)) }
    fn cuMemcpy2DAsync_v2(description: In<[u64; 16]>, stream: u64) { on(stream)?; copy_2d(description) }
    fn cuMemcpy3D_v2(description: In<[u64; 25]>) { after_all(copy_3d(description)) }
    fn cuMemcpy3DAsync_v2(description: In<[u64; 25]>, stream: u64) { on(stream)?; copy_3d(description) }
    fn cuMemcpy3DPeer(description: In<[u64; 25]>) { copy_3d(description) }
    fn cuMemcpy3DPeerAsync(description: In<[u64; 25]>, stream: u64) { on(stream)?; copy_3d(description) }

    fn cuMemsetD8_v2(to: u64, value: u8, count: u64) { fill_row(to, &[value], count) }
    fn cuMemsetD16_v2(to: u64, value: u16, count: u64) { fill_row(to, &value.to_ne_bytes(), count) }
    fn cuMemsetD32_v2(to: u64, value: u32, count: u64) { fill_row(to, &value.to_ne_bytes(), count) }
    fn cuMemsetD8Async(to: u64, value: u8, count: u64, stream: u64) { on(stream)?; fill_row(to, &[value], count) }
    fn cuMemsetD16Async(to: u64, value: u16, count: u64, stream: u64) {
        on(stream)?;
        fill_row(to, &value.to_ne_bytes(), count)
    }
    fn cuMemsetD32Async(to: u64, value: u32, count: u64, stream: u64) {
        on(stream)?;
        fill_row(to, &value.to_ne_bytes(), count)
    }
    fn cuMemsetD2D8_v2(to: u64, pitch: u64, value: u8, width: u64, height: u64) {
        fill_rows(to, pitch, &[value], width, height)
    }
    fn cuMemsetD2D16_v2(to: u64, pitch: u64, value: u16, width: u64, height: u64) {
        fill_rows(to, pitch, &value.to_ne_bytes(), width, height)
    }
    fn cuMemsetD2D32_v2(to: u64, pitch: u64, value: u32, width: u64, height: u64) {
        fill_rows(to, pitch, &value.to_ne_bytes(), width, height)
    }
    fn cuMemsetD2D8Async(to: u64, pitch: u64, value: u8, width: u64, height: u64, stream: u64) {
        on(stream)?;
        fill_rows(to, pitch, &[value], width, height)
    }
    fn cuMemsetD2D16Async(to: u64, pitch: u64, value: u16, width: u64, height: u64, stream: u64) {
        on(stream)?;
        fill_rows(to, pitch, &value.to_ne_bytes(), width, height)
    }
    fn cuMemsetD2D32Async(to: u64, pitch: u64, value: u32, width: u64, height: u64, stream: u64) {
        on(stream)?;
        fill_rows(to, pitch, &value.to_ne_bytes(), width, height)
    }
}
