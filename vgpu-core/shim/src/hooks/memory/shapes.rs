//! Computes the bytes of an array's elements from its descriptor.

use core::ffi::c_uint;

/// CUDA_ARRAY_DESCRIPTOR.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Flat {
    width: usize,
    height: usize,
    format: c_uint,
    channels: c_uint,
}

/// CUDA_ARRAY_DESCRIPTOR_v1.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct FlatV1 {
    width: c_uint,
    height: c_uint,
    format: c_uint,
    channels: c_uint,
}

/// CUDA_ARRAY3D_DESCRIPTOR.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct Solid {
    width: usize,
    height: usize,
    depth: usize,
    format: c_uint,
    channels: c_uint,
    flags: c_uint,
}

/// CUDA_ARRAY3D_DESCRIPTOR_v1.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct SolidV1 {
    width: c_uint,
    height: c_uint,
    depth: c_uint,
    format: c_uint,
    channels: c_uint,
    flags: c_uint,
}
const _: () = assert!(size_of::<Flat>() == 24 && size_of::<Solid>() == 40);
const _: () = assert!(size_of::<FlatV1>() == 16 && size_of::<SolidV1>() == 24);

const LAYERED: c_uint = 0x01;
const CUBEMAP: c_uint = 0x04;
const SPARSE: c_uint = 0x40;
const DEFERRED_MAPPING: c_uint = 0x80;

/// Size of a format's elements.
enum Texel {
    /// Bytes of a channel.
    Channel(u64),
    /// Bytes of a block of 4 x 4 elements, for any number of channels.
    Block(u64),
    /// The most bytes that an element of a picture takes with all its planes.
    Picture(u64),
}

/// Returns the size for a format; for an unknown one the largest.
fn texel(format: c_uint) -> Texel {
    match format {
        0x01 | 0x08 | 0xc0..=0xc2 | 0xc6..=0xc8 => Texel::Channel(1),
        0x02 | 0x09 | 0x10 | 0xc3..=0xc5 | 0xc9..=0xcb => Texel::Channel(2),
        0x03 | 0x0a | 0x20 => Texel::Channel(4),
        0x91 | 0x92 | 0x97 | 0x98 => Texel::Block(8),
        0x93..=0x96 | 0x99..=0x9e => Texel::Block(16),
        // Three channels of 10 bits and one of 2 bits.
        0x50 => Texel::Picture(4),
        0x51..=0x53 | 0x55 | 0x57 | 0x59 | 0x5b | 0x5d | 0xa2 | 0xb0 | 0xb2 | 0xb4 => Texel::Picture(3),
        0x54 | 0x56 | 0x58 | 0x5a | 0x5c | 0x5e | 0x9f..=0xa1 | 0xa3 | 0xa4 | 0xb3 | 0xb5 => Texel::Picture(6),
        0xa5 | 0xa8 | 0xa9 => Texel::Picture(4),
        _ => Texel::Channel(8),
    }
}

impl Solid {
    /// Returns the bytes with `levels` mipmap levels, each half the size of the one before. 0: the memory is mapped
    /// later. None: the size overflows.
    pub(crate) fn bytes(&self, levels: c_uint) -> Option<u64> {
        if self.flags & (SPARSE | DEFERRED_MAPPING) != 0 {
            return Some(0);
        }
        let mut sum = 0_u64;
        let mut side = [self.width, self.height, self.depth].map(|side| side.max(1) as u64);
        // The numbers of layers and of cube faces stay the same.
        let layered = self.flags & (LAYERED | CUBEMAP) != 0;
        for _ in 0..levels.clamp(1, 32) {
            sum = sum.checked_add(self.level(side)?)?;
            let depth = if layered { side[2] } else { (side[2] / 2).max(1) };
            side = [(side[0] / 2).max(1), (side[1] / 2).max(1), depth];
        }
        Some(sum)
    }

    fn level(&self, [width, height, depth]: [u64; 3]) -> Option<u64> {
        let (row, rows) = match texel(self.format) {
            Texel::Channel(bytes) => (width.checked_mul(bytes * u64::from(self.channels.max(1)))?, height),
            Texel::Block(bytes) => (width.div_ceil(4).checked_mul(bytes)?, height.div_ceil(4)),
            Texel::Picture(bytes) => (width.checked_mul(bytes)?, height),
        };
        row.checked_mul(rows)?.checked_mul(depth)
    }
}

impl From<Flat> for Solid {
    fn from(flat: Flat) -> Self {
        Self {
            width: flat.width,
            height: flat.height,
            format: flat.format,
            channels: flat.channels,
            ..Self::default()
        }
    }
}

impl From<FlatV1> for Solid {
    fn from(flat: FlatV1) -> Self {
        Flat {
            width: flat.width as usize,
            height: flat.height as usize,
            format: flat.format,
            channels: flat.channels,
        }
        .into()
    }
}

impl From<SolidV1> for Solid {
    fn from(solid: SolidV1) -> Self {
        Self {
            width: solid.width as usize,
            height: solid.height as usize,
            depth: solid.depth as usize,
            format: solid.format,
            channels: solid.channels,
            flags: solid.flags,
        }
    }
}
