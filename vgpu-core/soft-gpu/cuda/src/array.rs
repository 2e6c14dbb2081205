//! CUDA arrays: device memory with a shape, stored row by row, each array in granules of its own. A mipmapped array has
//! its levels one after the other, and each level can be used as an array. Sparse arrays only have the memory that is
//! mapped.

use std::collections::HashMap;
use std::sync::Mutex;

use soft_gpu::lock;

use crate::code::{Code, INVALID_HANDLE, INVALID_VALUE, NOT_SUPPORTED, OUT_OF_MEMORY, Res};
use crate::context::{Context, here};
use crate::driver::{self, Driver};
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

/// The descriptors of the first API, 32 bits wide.
type OldPlane = [u32; 4];
type OldSolid = [u32; 6];

#[derive(Clone, Copy)]
pub(crate) struct Array {
    pub(crate) address: u64,
    pub(crate) pitch: u64,
    pub(crate) height: u64,
    shape: Solid,
    context: &'static Context,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// An array with memory of its own.
    Whole,
    Mipmapped,
    /// A level of another array, or memory that was allocated elsewhere.
    Part,
}

const LAYERED: u32 = 0x01;
const CUBEMAP: u32 = 0x04;
/// Flags of arrays whose memory is mapped later.
const LATER: u32 = 0x40 | 0x80;

static ARRAYS: Mutex<Option<HashMap<u64, Array>>> = Mutex::new(None);

fn with<T>(act: impl FnOnce(&mut HashMap<u64, Array>) -> T) -> T {
    act(lock(&ARRAYS).get_or_insert_default())
}

pub(crate) fn find(handle: u64) -> Result<Array, Code> {
    with(|arrays| arrays.get(&handle).copied()).ok_or(INVALID_HANDLE)
}

/// Bytes of a channel, by CUarray_format.
fn element(format: u32) -> Option<u64> {
    match format {
        0x01 | 0x08 | 0xc0 | 0xc1 | 0xc2 | 0xc6 | 0xc7 | 0xc8 => Some(1),
        0x02 | 0x09 | 0x10 | 0xc3 | 0xc4 | 0xc5 | 0xc9 | 0xca | 0xcb => Some(2),
        0x03 | 0x0a | 0x20 => Some(4),
        _ => None,
    }
}

/// Bytes of a 4 x 4 block of a compressed format.
fn block(format: u32) -> Option<u64> {
    match format {
        0x91 | 0x92 | 0x97 | 0x98 => Some(8),
        0x93..=0x9e => Some(16),
        _ => None,
    }
}

impl Solid {
    /// Bytes of a row, and rows of a slice.
    fn rows(&self) -> Result<(u64, u64), Code> {
        let height = self.height.max(1);
        match (element(self.format), block(self.format)) {
            (Some(element), _) => {
                let row = self.width.checked_mul(element * u64::from(self.channels));
                Ok((row.ok_or(OUT_OF_MEMORY)?, height))
            }
            (None, Some(block)) => {
                let row = self.width.div_ceil(4).checked_mul(block);
                Ok((row.ok_or(OUT_OF_MEMORY)?, height.div_ceil(4)))
            }
            (None, None) => Err(INVALID_VALUE),
        }
    }

    fn bytes(&self) -> Result<u64, Code> {
        let (row, rows) = self.rows()?;
        let slices = rows.checked_mul(self.depth.max(1)).ok_or(OUT_OF_MEMORY)?;
        row.checked_mul(slices).ok_or(OUT_OF_MEMORY)
    }

    /// Elements in a tile of a sparse array: 64 KiB of them, as square as possible.
    fn tile(&self) -> Result<[u32; 3], Code> {
        let bytes = element(self.format).ok_or(NOT_SUPPORTED)? * u64::from(self.channels);
        let elements = (64 << 10) / bytes.next_power_of_two();
        let solid = self.depth > 0 && self.flags & LAYERED == 0;
        let sides = if solid { 3 } else { 2 };
        let side = |index: u32| match index {
            index if index < sides => 1 << ((elements.ilog2() + sides - 1 - index) / sides),
            _ => 1,
        };
        Ok([side(0), side(1), side(2)])
    }

    fn half(&self) -> Self {
        let less = |side: u64| if side == 0 { 0 } else { (side / 2).max(1) };
        // The number of layers and faces does not change.
        let keeps = self.flags & (LAYERED | CUBEMAP) != 0;
        Self {
            width: less(self.width),
            height: less(self.height),
            depth: if keeps { self.depth } else { less(self.depth) },
            ..*self
        }
    }
}

/// CUDA_ARRAY_SPARSE_PROPERTIES: the extent of a tile, and no mipmap tail.
type Sparse = [u32; 12];

fn sparse(handle: u64) -> Result<Sparse, Code> {
    const SPARSE: u32 = 0x40;
    let shape = find(handle)?.shape;
    if shape.flags & SPARSE == 0 {
        return Err(INVALID_VALUE);
    }
    let [width, height, depth] = shape.tile()?;
    Ok([width, height, depth, u32::MAX, 0, 0, 0, 0, 0, 0, 0, 0])
}

fn add(driver: &Driver, context: &'static Context, kind: Kind, address: u64, shape: Solid) -> Result<u64, Code> {
    let (pitch, height) = shape.rows()?;
    let handle = driver.handle();
    let array = Array {
        address,
        pitch,
        height,
        shape,
        context,
        kind,
    };
    with(|arrays| arrays.insert(handle, array));
    Ok(handle)
}

/// Height 0 is a one-dimensional array, depth 0 a two-dimensional one.
fn create(out: Out<u64>, shape: Solid, kind: Kind, bytes: u64) -> Res {
    let (driver, context) = here()?;
    if !out.given() || shape.width == 0 || ![1, 2, 4].contains(&shape.channels) {
        return Err(INVALID_VALUE);
    }
    let cube = shape.flags & CUBEMAP != 0;
    if cube && (shape.width != shape.height || !shape.depth.is_multiple_of(6)) {
        return Err(INVALID_VALUE);
    }
    let address = if shape.flags & LATER != 0 {
        0
    } else {
        let granules = driver.memory.units(bytes) * driver.state().profile().granularity;
        driver.memory.allocate(driver, context, granules)?
    };
    out.set(add(driver, context, kind, address, shape)?)
}

fn destroy(handle: u64, kind: Kind) -> Res {
    let driver = driver::get()?;
    let array = with(|arrays| {
        let found = arrays
            .get(&handle)
            .filter(|array| array.kind == kind || array.kind == Kind::Part);
        found.copied().inspect(|_| {
            arrays.remove(&handle);
        })
    });
    let array = array.ok_or(INVALID_HANDLE)?;
    driver.memory.vmm.unmap_array(driver, handle);
    if array.kind == Kind::Part {
        return driver.memory.externals.let_go(driver, handle);
    }
    if array.address == 0 {
        return Ok(());
    }
    driver.memory.free(driver, array.address)
}

/// Removes the arrays of a context that is being destroyed. Their memory is freed with the context.
pub(crate) fn forget(driver: &Driver, dying: &'static Context) {
    let gone: Vec<u64> = with(|arrays| {
        let own = arrays.iter().filter(|(_, array)| std::ptr::eq(array.context, dying));
        own.map(|(handle, _)| *handle).collect()
    });
    for handle in gone {
        with(|arrays| arrays.remove(&handle));
        driver.memory.vmm.unmap_array(driver, handle);
        let _ = driver.memory.externals.let_go(driver, handle);
    }
}

/// Creates an array in memory that was allocated elsewhere.
pub(crate) fn foreign(address: u64, shape: Solid) -> Result<u64, Code> {
    let (driver, context) = here()?;
    add(driver, context, Kind::Part, address, shape)
}

fn levels(shape: Solid, count: u32) -> Result<u64, Code> {
    let (mut level, mut sum) = (shape, 0_u64);
    for _ in 0..count.clamp(1, 32) {
        sum = sum.checked_add(level.bytes()?).ok_or(OUT_OF_MEMORY)?;
        level = level.half();
    }
    Ok(sum)
}

fn wide(old: OldSolid) -> Solid {
    let [width, height, depth, format, channels, flags] = old;
    Solid {
        width: u64::from(width),
        height: u64::from(height),
        depth: u64::from(depth),
        format,
        channels,
        flags,
    }
}

soft_gpu::api! {
    fn cuArrayCreate_v2(out: Out<u64>, description: In<Plane>) {
        let Plane { width, height, format, channels } = description.get()?;
        let shape = Solid { width, height, depth: 0, format, channels, flags: 0 };
        create(out, shape, Kind::Whole, shape.bytes()?)
    }

    fn cuArrayCreate(out: Out<u64>, description: In<OldPlane>) {
        let [width, height, format, channels] = description.get()?;
        let shape = wide([width, height, 0, format, channels, 0]);
        create(out, shape, Kind::Whole, shape.bytes()?)
    }

    fn cuArray3DCreate_v2(out: Out<u64>, description: In<Solid>) {
        let shape = description.get()?;
        create(out, shape, Kind::Whole, shape.bytes()?)
    }

    fn cuArray3DCreate(out: Out<u64>, description: In<OldSolid>) {
        let shape = wide(description.get()?);
        create(out, shape, Kind::Whole, shape.bytes()?)
    }

    fn cuArrayDestroy(handle: u64) {
        destroy(handle, Kind::Whole)
    }

    fn cuMipmappedArrayCreate(out: Out<u64>, description: In<Solid>, count: u32) {
        let shape = description.get()?;
        create(out, shape, Kind::Mipmapped, levels(shape, count)?)
    }

    fn cuMipmappedArrayGetLevel(out: Out<u64>, handle: u64, level: u32) {
        let whole = find(handle)?;
        let (mut shape, mut start) = (whole.shape, whole.address);
        for _ in 0..level.min(32) {
            start += shape.bytes()?;
            shape = shape.half();
        }
        out.set(add(driver::get()?, whole.context, Kind::Part, start, shape)?)
    }

    fn cuMipmappedArrayDestroy(handle: u64) {
        destroy(handle, Kind::Mipmapped)
    }

    fn cuMemMapArrayAsync(list: In<[u64; 12]>, count: u32, stream: u64) {
        const MAP: u64 = 1;
        let driver = driver::get()?;
        crate::stream::gpu_of(driver, stream)?;
        for index in 0..count as usize {
            // Words of an entry: resource kind, resource, kind and position of the part (5 words), operation, memory.
            let one = list.at(index)?;
            let (array, part, operation, memory) = (one[1], [one[2], one[3], one[4], one[5], one[6]], one[7], one[8]);
            if find(array)?.shape.flags & LATER == 0 {
                return Err(NOT_SUPPORTED);
            }
            let memory = (operation as u32 == MAP as u32).then_some(memory);
            driver.memory.vmm.map_array(driver, array, part, memory)?;
        }
        Ok(())
    }

    fn cuArrayGetSparseProperties(out: Out<Sparse>, handle: u64) {
        out.set(sparse(handle)?)
    }

    fn cuArrayGetDescriptor_v2(out: Out<Plane>, handle: u64) {
        let Solid { width, height, format, channels, .. } = find(handle)?.shape;
        out.set(Plane { width, height, format, channels })
    }

    fn cuArray3DGetDescriptor_v2(out: Out<Solid>, handle: u64) {
        out.set(find(handle)?.shape)
    }
}
