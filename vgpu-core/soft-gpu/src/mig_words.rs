//! The words of `layout::Mig`: how modes and instances are packed into them, and those with which a state begins.

use std::sync::atomic::Ordering;

use crate::capabilities::Files;
use crate::layout::Mig;
use crate::mig::{GpuInstance, Instance};
use crate::products::Product;
use crate::profile::Profile;

/// Bits of a GPU's mode.
pub(crate) const CURRENT: u32 = 1;
pub(crate) const PENDING: u32 = 2;

/// Marks a word in use.
pub(crate) const PRESENT: u64 = 1 << 63;
const OTHER_UUID: u64 = 1 << 62;
/// A GPU instance without a compute instance that is a device nevertheless.
const BARE: u64 = 1 << 61;

pub(crate) fn bits(word: u64, from: u32, count: u32) -> u32 {
    (word >> from) as u32 & ((1 << count) - 1)
}

pub(crate) fn pack_gpu_instance(parent: usize, shape: usize, start: u32) -> u64 {
    PRESENT | parent as u64 | (shape as u64) << 8 | u64::from(start) << 16
}

pub(crate) fn gpu_instance(product: &'static Product, word: u64) -> Option<GpuInstance> {
    (word & PRESENT != 0).then_some(())?;
    Some(GpuInstance {
        parent: bits(word, 0, 8) as usize,
        product,
        shape: product.shapes.get(bits(word, 8, 8) as usize)?,
        start: bits(word, 16, 8),
    })
}

pub(crate) fn pack(instance: &Instance) -> u64 {
    let flags = if instance.other_uuid { OTHER_UUID } else { 0 } | if instance.compute.is_none() { BARE } else { 0 };
    PRESENT
        | flags
        | instance.slot as u64
        | u64::from(instance.compute.unwrap_or(0)) << 8
        | u64::from(instance.slices) << 12
        | u64::from(instance.first_slice) << 16
        | u64::from(instance.index) << 20
        | u64::from(instance.generation) << 32
}

pub(crate) fn unpack(of: GpuInstance, word: u64) -> Instance {
    Instance {
        of,
        slot: bits(word, 0, 8) as usize,
        index: bits(word, 20, 8),
        compute: (word & BARE == 0).then(|| bits(word, 8, 4)),
        slices: bits(word, 12, 4),
        first_slice: bits(word, 16, 4),
        other_uuid: word & OTHER_UUID != 0,
        generation: bits(word, 32, 24),
    }
}

/// Writes the modes and instances with which a new state begins, and their files.
pub(crate) fn begin(mig: &Mig, files: &Files<'_>, profile: &Profile) -> std::io::Result<()> {
    files.clear()?;
    let mut place = profile.gpus as usize;
    for of in &profile.mig {
        files.add_config()?;
        mig.modes[of.gpu as usize].store(CURRENT | PENDING, Ordering::Relaxed);
    }
    for (slot, of) in profile.instances().into_iter().enumerate() {
        let shape = of
            .product
            .shapes
            .iter()
            .position(|shape| shape == of.shape)
            .unwrap_or(0);
        mig.gpu_instances[slot].store(pack_gpu_instance(of.parent, shape, of.start), Ordering::Relaxed);
        let before = profile
            .instances()
            .iter()
            .take(slot)
            .filter(|one| one.parent == of.parent)
            .count();
        let instance = Instance {
            of,
            slot,
            index: before as u32,
            compute: Some(0),
            slices: of.shape.slices,
            first_slice: 0,
            other_uuid: false,
            generation: 0,
        };
        files.add_gpu_instance(&of)?;
        files.add_compute(&instance)?;
        mig.devices_words[place].store(pack(&instance), Ordering::Relaxed);
        place += 1;
    }
    mig.devices.store(place as u32, Ordering::Relaxed);
    Ok(())
}
