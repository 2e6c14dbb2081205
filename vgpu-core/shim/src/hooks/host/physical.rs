//! Physical memory by handle beyond the share's device memory: a handle of host memory, charged to the second ledger of
//! the share ([`managed`](super::managed) tells when there is one).
//!
//! ```text
//!  cuMemCreate ─► device ledger ─ full ─► host ledger ─► cuMemCreate on the NUMA node beside the GPU
//!                                                         └─► mapping and access work as for device memory
//! ```
//!
//! The driver reports for each GPU if it can access such memory by the same calls. If it cannot, or the driver is too
//! old to report it, the call returns out of memory. The driver reports the host as the location of the handle; the
//! program is told the device for which it created the handle.
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
use crate::driver::Backing;
use crate::hooks::devices::locations::Location;
use crate::hooks::physical::properties::Properties;
use crate::process::Ready;
use crate::real::real;
use core::ffi::{c_int, c_ulonglong};
use std::sync::Arc;
use vgpu_core::memory::deferred_free;
use vgpu_core::memory::granule::granules;

/// CU_MEM_LOCATION_TYPE_HOST_NUMA.
const HOST_NUMA: c_int = 3;
/// CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, and whether that location goes with handles.
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
    let create = real!(cuMemCreate(*mut u64, usize, *const Properties, c_ulonglong));
    // SAFETY: as promised; the backing gives its charge back where it is not kept.
    unsafe {
        if create(handle, bytes, &own, flags) != SUCCESS {
            return OUT_OF_MEMORY;
        }
        ready.tables.vmm_handles.insert(*handle, (backing, 1));
    }
    SUCCESS
}

/// The same properties on the host; None: there is no such memory, or it would not do.
fn on_host(asked: &Properties, bytes: usize) -> Option<Properties> {
    let device = asked.location.device().filter(|_| asked.is_plain())?;
    attribute(NUMA_HANDLES, device).filter(|supported| *supported == 1)?;
    let mut own = *asked;
    own.location = Location {
        kind: HOST_NUMA,
        // -1 where there are no NUMA nodes, of which 0 is then the only one.
        id: attribute(NUMA_ID, device)?.max(0),
    };
    own.without_rdma();
    let (here, there) = (granularity(asked)?, granularity(&own)?);
    (there <= here && bytes.is_multiple_of(there)).then_some(own)
}

fn attribute(attribute: c_int, device: c_int) -> Option<c_int> {
    let mut value = 0;
    let ask = real!(cuDeviceGetAttribute(*mut c_int, c_int, c_int));
    // SAFETY: to be written.
    (unsafe { ask(&mut value, attribute, device) } == SUCCESS).then_some(value)
}

/// The least that memory of this kind is mapped in.
fn granularity(properties: &Properties) -> Option<usize> {
    const MINIMUM: c_int = 0;
    let mut bytes = 0;
    let ask = real!(cuMemGetAllocationGranularity(*mut usize, *const Properties, c_int));
    // SAFETY: to be written.
    let result = unsafe { ask(&mut bytes, properties, MINIMUM) };
    (result == SUCCESS && bytes > 0).then_some(bytes)
}
