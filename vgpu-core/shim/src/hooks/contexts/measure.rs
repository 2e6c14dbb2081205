//! Gives `vgpu_core::memory::measure` the state of the process and access to NVML.

use crate::codes::{NVML_INSUFFICIENT_SIZE, NVML_SUCCESS};
use crate::driver::Real;
use crate::hooks::nvml;
use crate::hooks::nvml::list::Process as Listed;
use crate::names::slot;
use crate::process::Ready;
use crate::real::{self, real};
use core::ffi::{c_int, c_uint};
use vgpu_core::memory::driver::{Driver, Streams};
use vgpu_core::memory::expected::Ahead;
use vgpu_core::memory::growth::Found;
use vgpu_core::memory::measure;
use vgpu_core::memory::overhead::Thing;
use vgpu_core::os::coarse_millis;

/// NVML of this process.
pub(crate) struct Nvml(&'static Ready);

pub(crate) type Process = measure::Process<'static, Real, Nvml>;

pub(crate) fn process(ready: &'static Ready) -> Process {
    Process {
        gpus: &ready.gpus,
        tables: &ready.tables,
        calls: &ready.calls,
        nvml: Nvml(ready),
        pid: &ready.nvml_pid,
    }
}

impl measure::Nvml for Nvml {
    fn load(&self) {
        real::need_nvml();
    }

    /// Returns None if NVML was not loaded before our locks were taken.
    fn device(&self, gpu: usize) -> Option<usize> {
        #[cfg(feature = "dissect")]
        if crate::dissect::is_off("measure") {
            return None;
        }
        (real::has_nvml() && nvml::devices::keep_open(self.0)).then_some(())?;
        let mut devices = nvml::devices::list(self.0).into_iter();
        devices.find(|device| device.gpu == gpu).map(|device| device.handle)
    }

    fn processes(&self, device: usize) -> Option<Vec<(u32, u64)>> {
        let newest = slot::nvmlDeviceGetComputeRunningProcesses_v3;
        let list = if real::has(newest) {
            real!(nvmlDeviceGetComputeRunningProcesses_v3)
        } else {
            real!(nvmlDeviceGetComputeRunningProcesses_v2)
        };
        let mut found = vec![Listed::default(); 64];
        loop {
            let mut count = found.len() as c_uint;
            // SAFETY: room for as many as `count` says.
            let result = unsafe { list(device, &mut count, found.as_mut_ptr()) };
            match result {
                NVML_SUCCESS => {
                    let seen = found.iter().take(count as usize);
                    return Some(seen.map(|process| (process.pid, process.used)).collect());
                }
                NVML_INSUFFICIENT_SIZE if found.len() < 1 << 14 => {
                    found.resize(found.len() * 4, Listed::default());
                }
                _ => return None,
            }
        }
    }
}

/// Charges the memory that `call` is expected to take on the GPU of the current context, runs it, and corrects the
/// charge. `ahead` describes what it will create, and is read only if there is a context, as the driver does. `thing`
/// returns what `call` has created. `undo` undoes the call if it took more than fits.
pub(crate) fn taking(
    ready: &'static Ready,
    ahead: impl FnOnce() -> Ahead,
    call: impl FnOnce() -> c_int,
    thing: impl FnOnce() -> Thing,
    undo: impl FnOnce() -> c_int,
) -> c_int {
    match ready.current() {
        Some(gpu) if has_context(ready, gpu) => measure::taking(&process(ready), gpu, ahead(), call, thing, undo),
        _ => call(),
    }
}

/// Returns false if the process has no context on the current GPU, or no GPU is current.
pub(crate) fn may_have_context(ready: &'static Ready) -> bool {
    ready.current().is_some_and(|gpu| has_context(ready, gpu))
}

/// Returns true if the process has a context on this GPU. Without one, the driver takes nothing: a library is loaded
/// with the first context, and all other calls fail. Returns true if the driver does not say.
fn has_context(ready: &'static Ready, gpu: usize) -> bool {
    let is_primary = |(device, of): &(c_int, usize)| *of == gpu && Real.is_primary_active(*device) != Some(false);
    Real.current_context().is_ok_and(|context| context != 0)
        || ready.gpus.get(gpu).is_none_or(|gpu| gpu.contexts.lock().borrow().any())
        || ready
            .devices()
            .is_none_or(|devices| devices.list.iter().any(is_primary))
}

/// Notes a new function or graph, for which the driver may allocate memory later, in a call that does not show this.
pub(crate) fn expect_growth(ready: &Ready) {
    ready.growth.note_new(coarse_millis());
}

/// Measures again if the driver may have taken memory since the last time. Called at slow moments outside of all calls
/// that may change memory.
#[inline(always)]
pub(crate) fn at_slow_moment(ready: &'static Ready) {
    if ready.growth.is_awaited() {
        measure_growth(ready);
    }
}

#[cold]
#[inline(never)]
fn measure_growth(ready: &'static Ready) {
    if !ready.growth.is_due(coarse_millis()) {
        return;
    }
    let all = (0..ready.gpus.len()).map(|gpu| measure::again(&process(ready), gpu));
    // If memory was measured on some GPUs only, the process has no context on the others.
    let found = all.min().unwrap_or(Found::Nothing);
    ready.growth.looked(coarse_millis(), found);
}

/// Runs `call`, which destroys `thing` on the GPU of the current context, and releases the freed memory.
pub(crate) fn giving_back(ready: &'static Ready, thing: Thing, call: impl FnOnce() -> c_int) -> c_int {
    match ready.current() {
        Some(gpu) => measure::giving_back(&process(ready), gpu, thing, call),
        None => call(),
    }
}
