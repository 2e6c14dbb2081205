//! The state of this process: its shares, its devices, its live allocations. `start` makes it at the first call
//! of any hooked function, and anew in a fork child.

use crate::driver::{Gpu, Tables};
use crate::real::{self, real};
use core::ffi::{c_int, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use vgpu_core::calls::Calls;
use vgpu_core::hami::mirror::Mirror;
use vgpu_core::os::fork;
use vgpu_core::os::spin::{Spin, Word};
use vgpu_core::visible::choose;

/// Either, for good: a process that was refused stays refused.
struct State(Option<Ready>);

/// A process with shares.
#[derive(Debug)]
pub(crate) struct Ready {
    pub(crate) gpus: Vec<Gpu>,
    /// Which threads are in calls that may change what the GPUs hold.
    pub(crate) calls: Calls,
    /// Everything that is charged or keeps a charge.
    pub(crate) tables: Tables,
    pub(crate) nvml: Spin<Vec<NvmlDevice>>,
    /// How often the program has initialised NVML, less how often it has shut it down.
    pub(crate) nvml_users: AtomicU32,
    /// Whether we have initialised it ourselves.
    pub(crate) nvml_own: Spin<bool>,
    /// What NVML calls this process; 0: not known yet.
    pub(crate) nvml_pid: AtomicU32,
    /// Our copies of NVML's export tables, by the address of the original.
    pub(crate) export_tables: Spin<Vec<(usize, Box<[usize]>)>>,
    /// Held by the thread that is in the driver's cuInit.
    pub(crate) initialising: Word,
    /// CUDA_VISIBLE_DEVICES as it was then.
    pub(crate) visible: Spin<Option<String>>,
    /// In the place of HAMi-core: what its monitor reads.
    pub(crate) mirror: Option<Mirror>,
    devices: OnceLock<Devices>,
}

/// The CUDA devices that exist for this process: virtual ordinal -> real device and GPU.
#[derive(Debug)]
pub(crate) struct Devices {
    pub(crate) list: Vec<(c_int, usize)>,
    /// How many there would be without CUDA_VISIBLE_DEVICES.
    pub(crate) shared: usize,
    only: Option<usize>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct NvmlDevice {
    pub(crate) handle: usize,
    pub(crate) gpu: usize,
}

/// The state of this process, if it was made already; the inner None: the process was refused.
#[inline(always)]
pub(crate) fn made() -> Option<Option<&'static Ready>> {
    Some(fork::current::<State>()?.0.as_ref())
}

/// The state of this process, if it was made already and the process was not refused.
pub(crate) fn known() -> Option<&'static Ready> {
    made().flatten()
}

/// Makes the state of this process with `make`, once; None: there is no memory for it, or the process was refused.
pub(crate) fn make(make: impl FnOnce() -> Option<Ready>) -> Option<&'static Ready> {
    // SAFETY: State is the only type that this library keeps there.
    let state = unsafe { fork::start(|| State(make())) }?;
    state.0.as_ref()
}

impl Ready {
    pub(crate) fn new(gpus: Vec<Gpu>, mirror: Option<Mirror>) -> Self {
        Self {
            gpus,
            calls: Calls::default(),
            tables: Tables::default(),
            nvml: Spin::default(),
            nvml_users: AtomicU32::new(0),
            nvml_own: Spin::default(),
            nvml_pid: AtomicU32::new(0),
            export_tables: Spin::default(),
            initialising: Word::new(),
            visible: Spin::default(),
            mirror,
            devices: OnceLock::new(),
        }
    }

    /// Returns true if NVML is initialised by us alone, so that the program must not find it so.
    pub(crate) fn hides_nvml(&self) -> bool {
        self.nvml_users.load(Ordering::Relaxed) == 0 && *self.nvml_own.lock()
    }

    pub(crate) fn knows_devices(&self) -> bool {
        self.devices.get().is_some()
    }

    /// The devices, once the driver is initialised.
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

    /// The GPU of the calling thread's context; None: there is none, and the driver will say so.
    #[inline(always)]
    pub(crate) fn current(&self) -> Option<usize> {
        let devices = self.devices()?;
        if devices.only.is_some() {
            return devices.only;
        }
        let mut device = -1;
        // SAFETY: `device` is to be written.
        let result = unsafe { real!(cuCtxGetDevice(*mut c_int))(&mut device) };
        (result == 0).then_some(())?;
        devices
            .list
            .iter()
            .find(|(real, _)| *real == device)
            .map(|(_, gpu)| *gpu)
    }
}

impl Devices {
    /// `visible`: those that CUDA_VISIBLE_DEVICES shows. None: the driver is not initialised.
    fn enumerate(gpus: &[Gpu], visible: Option<&str>) -> Option<Self> {
        let mut count = 0;
        // SAFETY: `count` is to be written.
        if unsafe { real!(cuDeviceGetCount(*mut c_int))(&mut count) } != 0 {
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
        let get_uuid = if real::has(crate::names::slot::cuDeviceGetUuid) {
            real!(cuDeviceGetUuid(*mut c_void, c_int))
        } else {
            real!(cuDeviceGetUuid_v2(*mut c_void, c_int))
        };
        // SAFETY: device and the 16 bytes of the UUID are to be written.
        let result = unsafe {
            match real!(cuDeviceGet(*mut c_int, c_int))(&mut device, ordinal) {
                0 => get_uuid(uuid.as_mut_ptr().cast(), device),
                error => error,
            }
        };
        (result == 0).then_some(())?;
        let uuid = uuid_text(uuid);
        let gpu = gpus.iter().position(|gpu| gpu.uuid.eq_ignore_ascii_case(&uuid))?;
        Some((device, gpu))
    }

    /// The real device of virtual ordinal `device`.
    pub(crate) fn real(&self, device: c_int) -> Option<c_int> {
        let index = usize::try_from(device).ok()?;
        self.list.get(index).map(|(real, _)| *real)
    }

    /// The GPU of virtual ordinal `device`.
    pub(crate) fn gpu(&self, device: c_int) -> Option<usize> {
        let index = usize::try_from(device).ok()?;
        self.list.get(index).map(|(_, gpu)| *gpu)
    }

    /// The real device that is GPU `gpu`.
    pub(crate) fn of_gpu(&self, gpu: usize) -> Option<c_int> {
        self.list.iter().find(|(_, known)| *known == gpu).map(|(real, _)| *real)
    }

    /// The real devices of a mask of virtual ordinals.
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

    /// The virtual ordinal of a real device.
    pub(crate) fn ordinal(&self, real: c_int) -> Option<c_int> {
        let index = self.list.iter().position(|(known, _)| *known == real)?;
        c_int::try_from(index).ok()
    }
}

fn uuid_text(bytes: [u8; 16]) -> String {
    let mut text = String::from("GPU");
    for (index, byte) in bytes.iter().enumerate() {
        if matches!(index, 0 | 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}
