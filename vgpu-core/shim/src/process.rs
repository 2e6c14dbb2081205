//! The state of this process: its shares, its devices, its live allocations. `start` creates it at the first call of
//! any function, and again in a fork child.

use crate::codes::{NOT_INITIALIZED, SUCCESS};
use crate::driver::{Gpu, Real, Tables};
use crate::real::{self, real};
use crate::time_share::TimeShare;
use core::ffi::{c_int, c_uint, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use vgpu_core::arbiter::Arbiter;
use vgpu_core::calls::Calls;
use vgpu_core::hami::mirror::Mirror;
use vgpu_core::log;
use vgpu_core::memory::growth::Growth;
use vgpu_core::os::fork;
use vgpu_core::os::spin::{Reentrant, Spin};
use vgpu_core::visible::choose;

/// An index for an unknown GPU.
pub(crate) const UNKNOWN_GPU: usize = usize::MAX;
/// The driver's errors for a thread without a usable context: not initialised, deinitialised, no context, context
/// destroyed.
const NO_CONTEXT: [c_int; 4] = [3, 4, 201, 709];

/// The state. It never changes: a refused process stays refused. `Recorded` is a separate variant, so that recording
/// costs nothing when it is off: hooks check only for `Plain`.
enum State {
    Plain(Ready),
    /// Calls go into the ring of the log.
    Recorded(Ready),
    Refused,
}

/// A process with shares.
#[derive(Debug)]
pub(crate) struct Ready {
    pub(crate) gpus: Vec<Gpu>,
    /// This process's part of each GPU's time; None: not limited there.
    pub(crate) times: Vec<Option<TimeShare>>,
    /// Tracks threads inside calls that may change GPU memory.
    pub(crate) calls: Calls,
    /// Everything that has a charge or keeps one.
    pub(crate) tables: Tables,
    pub(crate) nvml: Spin<Vec<NvmlDevice>>,
    /// The program's calls to initialise NVML minus its calls to shut it down.
    pub(crate) nvml_users: AtomicU32,
    /// True if this library has initialised NVML for itself.
    pub(crate) nvml_own: Spin<bool>,
    /// Decides when memory that no call reports is measured again.
    pub(crate) growth: Growth,
    /// The PID by which NVML lists this process; 0: not known yet.
    pub(crate) nvml_pid: AtomicU32,
    /// Our copies of NVML's export tables, by the address of the original.
    pub(crate) export_tables: Spin<Vec<(usize, Box<[usize]>)>>,
    /// Held by the thread that is in the driver's cuInit.
    pub(crate) initialising: Reentrant<()>,
    /// The value of CUDA_VISIBLE_DEVICES during cuInit.
    pub(crate) visible: Spin<Option<String>>,
    /// In a HAMi container: the writer of the file that HAMi's monitor reads.
    pub(crate) mirror: Option<Mirror>,
    devices: OnceLock<Devices>,
}

/// The CUDA devices of this process: virtual ordinal -> real device and GPU.
#[derive(Debug)]
pub(crate) struct Devices {
    pub(crate) list: Vec<(c_int, usize)>,
    /// Number of devices without CUDA_VISIBLE_DEVICES.
    pub(crate) shared: usize,
    only: Option<usize>,
}

/// A handle of NVML, and the GPU whose figures it shows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NvmlDevice {
    pub(crate) handle: usize,
    pub(crate) gpu: usize,
    /// The ids of the GPU instance and the compute instance; [`NO_INSTANCE`] for a GPU that is not in MIG mode.
    pub(crate) ids: [c_uint; 2],
    /// The GPU of an instance. It is no device of this process, but NVML gives its handle to whoever has the instance's.
    pub(crate) is_parent: bool,
}

/// NVML's ids of no instance.
pub(crate) const NO_INSTANCE: [c_uint; 2] = [c_uint::MAX; 2];

/// Returns the state of this process, if it exists already, was not refused and does not record its calls.
#[inline(always)]
pub(crate) fn plain() -> Option<&'static Ready> {
    match fork::current::<State>()? {
        State::Plain(ready) => Some(ready),
        State::Recorded(_) | State::Refused => None,
    }
}

/// Returns the state of this process, if it exists already. The inner None: the process was refused.
pub(crate) fn made() -> Option<Option<&'static Ready>> {
    Some(fork::current::<State>()?.ready())
}

/// Returns true if the calls of this process go into the ring of the log.
pub(crate) fn is_recorded() -> bool {
    matches!(fork::current::<State>(), Some(State::Recorded(_)))
}

/// Returns the state of this process, if it exists already and the process was not refused.
pub(crate) fn known() -> Option<&'static Ready> {
    made().flatten()
}

/// Creates the state of this process with `make`, once. Returns None if there is no memory for it, or the process is
/// refused.
pub(crate) fn make(make: impl FnOnce() -> Option<Ready>) -> Option<&'static Ready> {
    // SAFETY: State is the only type that this library stores there.
    let state = unsafe {
        fork::start(|| match make() {
            Some(ready) if log::is_recording() => State::Recorded(ready),
            Some(ready) => State::Plain(ready),
            None => State::Refused,
        })
    }?;
    state.ready()
}

impl State {
    fn ready(&self) -> Option<&Ready> {
        match self {
            Self::Plain(ready) | Self::Recorded(ready) => Some(ready),
            Self::Refused => None,
        }
    }
}

impl Ready {
    pub(crate) fn new(gpus: Vec<Gpu>, times: Vec<Option<TimeShare>>, mirror: Option<Mirror>) -> Self {
        Self {
            gpus,
            times,
            calls: Calls::default(),
            tables: Tables::default(),
            nvml: Spin::default(),
            nvml_users: AtomicU32::new(0),
            nvml_own: Spin::default(),
            growth: Growth::default(),
            nvml_pid: AtomicU32::new(0),
            export_tables: Spin::default(),
            initialising: Reentrant::default(),
            visible: Spin::default(),
            mirror,
            devices: OnceLock::new(),
        }
    }

    #[inline(always)]
    pub(crate) fn arbiter(&self, gpu: usize) -> Option<&Arbiter> {
        self.times.get(gpu)?.as_ref()?.arbiter()
    }

    /// Returns true if the time of this process is limited on any GPU.
    pub(crate) fn limits_time(&self) -> bool {
        self.times.iter().any(Option::is_some)
    }

    /// Returns true if launches and waits go through hooks: to be limited, or to be recorded.
    pub(crate) fn hooks_launches(&self) -> bool {
        self.limits_time() || log::is_recording()
    }

    /// Returns the charge of the shares, over all GPUs.
    pub(crate) fn charged(&self) -> u64 {
        let gpus = self.gpus.iter();
        gpus.fold(0, |sum, gpu| sum.saturating_add(gpu.account.charged()))
    }

    /// Returns true if only this library has initialised NVML. The program must then find it uninitialised.
    pub(crate) fn hides_nvml(&self) -> bool {
        self.nvml_users.load(Ordering::Relaxed) == 0 && *self.nvml_own.lock()
    }

    /// Releases exported memory whose last descriptor was closed.
    pub(crate) fn collect_exported(&self) {
        for gpu in &self.gpus {
            gpu.exported.collect();
        }
    }

    pub(crate) fn knows_devices(&self) -> bool {
        self.devices.get().is_some()
    }

    /// Returns the devices, or None if the driver is not initialised yet.
    #[inline(always)]
    pub(crate) fn devices(&self) -> Option<&Devices> {
        match self.devices.get() {
            Some(devices) => Some(devices),
            None => self.find_devices(),
        }
    }

    #[cold]
    fn find_devices(&self) -> Option<&Devices> {
        let devices = Devices::enumerate(&self.gpus, self.visible.lock().as_deref())?;
        Some(self.devices.get_or_init(|| devices))
    }

    /// Returns the devices. If the driver does not list them, returns its error for calls that need the devices.
    pub(crate) fn known_devices(&self) -> Result<&Devices, c_int> {
        self.devices().ok_or_else(|| self.device_error())
    }

    /// Returns the driver's reason for listing no devices.
    #[cold]
    pub(crate) fn device_error(&self) -> c_int {
        let mut count = 0;
        // SAFETY: `count` may be written.
        match unsafe { real!(cuDeviceGetCount)(&mut count) } {
            // Another thread has initialised the driver meanwhile. The program did not wait for cuInit, so the error is
            // correct.
            SUCCESS => NOT_INITIALIZED,
            error => error,
        }
    }

    /// Returns the program's GPU if the driver is initialised and the program has only one.
    #[inline(always)]
    pub(crate) fn only_gpu(&self) -> Option<usize> {
        self.devices()?.only
    }

    #[inline(always)]
    pub(crate) fn has_several_gpus(&self) -> bool {
        self.devices().is_some_and(|devices| devices.only.is_none())
    }

    /// Returns the GPU of the calling thread's context. None: there is no context, and the driver will return an error.
    /// [`UNKNOWN_GPU`]: there may be a context, but the driver does not say on which GPU; nothing can be charged there.
    #[inline(always)]
    pub(crate) fn current(&self) -> Option<usize> {
        let devices = self.devices()?;
        if devices.only.is_some() {
            return devices.only;
        }
        match Real.current_device() {
            Ok(device) => {
                let known = devices.list.iter().find(|(real, _)| *real == device);
                Some(known.map_or(UNKNOWN_GPU, |(_, gpu)| *gpu))
            }
            Err(error) if NO_CONTEXT.contains(&error) => None,
            Err(_) => Some(UNKNOWN_GPU),
        }
    }
}

impl Devices {
    /// Lists the devices. `visible`: the value of CUDA_VISIBLE_DEVICES. Returns None if the driver is not initialised.
    fn enumerate(gpus: &[Gpu], visible: Option<&str>) -> Option<Self> {
        let mut count = 0;
        // SAFETY: `count` may be written.
        if unsafe { real!(cuDeviceGetCount)(&mut count) } != 0 {
            return None;
        }
        let all: Vec<_> = (0..count).filter_map(|ordinal| Self::of(gpus, ordinal)).collect();
        let uuids: Vec<&str> = all.iter().map(|(_, gpu)| gpus[*gpu].uuid.as_str()).collect();
        let shared = all.len();
        let list: Vec<_> = match visible {
            Some(value) => choose(&uuids, value).into_iter().map(|place| all[place]).collect(),
            None => all,
        };
        let only = match list.as_slice() {
            [(_, gpu)] => Some(*gpu),
            _ => None,
        };
        Some(Self { list, shared, only })
    }

    fn of(gpus: &[Gpu], ordinal: c_int) -> Option<(c_int, usize)> {
        let (mut device, mut uuid) = (0, [0_u8; 16]);
        // For an instance of a GPU in MIG mode, the first version has the UUID of the GPU. Drivers before 11.4 lack the second.
        let get_uuid = if real::has(crate::names::slot::cuDeviceGetUuid_v2) {
            real!(cuDeviceGetUuid_v2(*mut c_void, c_int))
        } else {
            real!(cuDeviceGetUuid(*mut c_void, c_int))
        };
        // SAFETY: device and the 16 bytes of the UUID may be written.
        let result = unsafe {
            match real!(cuDeviceGet)(&mut device, ordinal) {
                0 => get_uuid(uuid.as_mut_ptr().cast(), device),
                error => error,
            }
        };
        (result == 0).then_some(())?;
        let uuid = uuid_text(uuid);
        let is_it = |gpu: &Gpu| {
            gpu.uuid
                .split_once('-')
                .is_some_and(|(_, digits)| digits.eq_ignore_ascii_case(&uuid))
        };
        Some((device, gpus.iter().position(is_it)?))
    }

    /// Returns the real device of virtual ordinal `device`.
    pub(crate) fn real(&self, device: c_int) -> Option<c_int> {
        let index = usize::try_from(device).ok()?;
        self.list.get(index).map(|(real, _)| *real)
    }

    /// Returns the GPU of virtual ordinal `device`.
    pub(crate) fn gpu(&self, device: c_int) -> Option<usize> {
        let index = usize::try_from(device).ok()?;
        self.list.get(index).map(|(_, gpu)| *gpu)
    }

    /// Returns the real device of GPU `gpu`.
    pub(crate) fn of_gpu(&self, gpu: usize) -> Option<c_int> {
        self.list.iter().find(|(_, known)| *known == gpu).map(|(real, _)| *real)
    }

    /// Returns the mask of real devices for a mask of virtual ordinals.
    pub(crate) fn real_mask(&self, mask: u32) -> u32 {
        let bits = self
            .list
            .iter()
            .enumerate()
            .filter(|(ordinal, _)| *ordinal < 32 && mask & (1 << ordinal) != 0);
        bits.fold(0, |sum, (_, (real, _))| {
            sum | 1_u32.checked_shl(*real as u32).unwrap_or(0)
        })
    }

    /// Returns the virtual ordinal of a real device.
    pub(crate) fn ordinal(&self, real: c_int) -> Option<c_int> {
        let index = self.list.iter().position(|(known, _)| *known == real)?;
        c_int::try_from(index).ok()
    }
}

/// A UUID without the prefix, `GPU-` or `MIG-`, which CUDA does not say.
fn uuid_text(bytes: [u8; 16]) -> String {
    let mut text = String::new();
    for (index, byte) in bytes.iter().enumerate() {
        if matches!(index, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}
