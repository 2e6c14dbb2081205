//! Physical memory by handle beyond the share's device memory: a handle of host memory, charged to the second ledger of
//! the share (if there is one: [`managed`](super::managed)).
//!
//! ```text
//!  cuMemCreate ─► device ledger ─ full ─► host ledger ─► cuMemCreate on the NUMA node beside the GPU
//!                                                         └─► mapping and access work as for device memory
//! ```
//!
//! The driver reports for each GPU if it can access such memory by the same calls. If it cannot, or the driver is too
//! old to report it, the call returns out of memory. The driver reports the host as the location of the handle; the
//! program gets the device for which it created the handle.
//!
//! Memory that must be device memory stays on the device: compressed memory, and tiles of sparse arrays. Programs often
//! ask for RDMA and never use it, so that property is ignored.
//!
//! The memory can be created as exportable, as frameworks do without exporting it. The export itself is refused
//! ([`exports`](super::super::sharing::exports)).
//!
//! How it fails: if the granularity of host memory is larger than the device's, which the program has already asked
//! for, the call returns out of memory before anything is allocated.

use crate::codes::{OUT_OF_MEMORY, SUCCESS};
use crate::driver::{Backing, Real};
use crate::hooks::devices::locations::Location;
use crate::hooks::physical::properties::Properties;
use crate::process::Ready;
use crate::real::real;
use core::ffi::{c_int, c_ulonglong};
use std::sync::Arc;
use vgpu_core::memory::deferred_free;
use vgpu_core::memory::granule::granules;
use vgpu_core::memory::refusal;

/// CU_MEM_LOCATION_TYPE_HOST_NUMA.
const HOST_NUMA: c_int = 3;
/// CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, and the attribute that says whether memory of handles may be on the host.
const NUMA_ID: c_int = 134;
const NUMA_HANDLES: c_int = 141;

/// Creates `bytes` of host memory; `asked` has the real device.
///
/// # Safety
/// `handle` may be written.
#[cold]
pub(crate) unsafe fn instead(
    ready: &'static Ready,
    gpu: usize,
    handle: *mut u64,
    bytes: usize,
    asked: &Properties,
    flags: c_ulonglong,
) -> c_int {
    let owner = ready.gpus.get(gpu).filter(|owner| owner.account.has_host());
    let (Some(owner), Some(whole), Some(own)) = (owner, granules(bytes as u64), on_host(asked, bytes)) else {
        return OUT_OF_MEMORY;
    };
    let Some(charge) = deferred_free::reserve(&ready.gpus, &ready.tables.live, owner, whole) else {
        return OUT_OF_MEMORY;
    };
    let backing = Arc::new(Backing::new(&ready.gpus, gpu, Some(charge)));
    let create = real!(cuMemCreate);
    // SAFETY: as promised; the backing gives its charge back where it is not kept.
    unsafe {
        if create(handle, bytes, &own, flags) != SUCCESS {
            return OUT_OF_MEMORY;
        }
        ready.tables.vmm_handles.insert(*handle, (backing, 1));
    }
    refusal::forget();
    SUCCESS
}

/// Returns the same properties on the host; None: there is no such memory, or it is not suitable.
fn on_host(asked: &Properties, bytes: usize) -> Option<Properties> {
    let device = asked.location.device().filter(|_| asked.is_plain())?;
    Real.device_attribute(NUMA_HANDLES, device)
        .ok()
        .filter(|supported| *supported == 1)?;
    let mut own = *asked;
    own.location = Location {
        kind: HOST_NUMA,
        // The driver returns -1 on a machine without NUMA nodes; its only node is then 0.
        id: Real.device_attribute(NUMA_ID, device).ok()?.max(0),
    };
    own.without_rdma();
    let (here, there) = (asked.granularity().ok()?, own.granularity().ok()?);
    (0 < there && there <= here && bytes.is_multiple_of(there)).then_some(own)
}
