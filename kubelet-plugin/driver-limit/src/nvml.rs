//! NVML of the driver root, loaded by its path: the functions that limit a cgroup, which it has since r615.

#![allow(unsafe_code)] // Calls through dlsym.

use std::{
    ffi::{CString, c_char, c_int, c_uint, c_void},
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW, Symbol};
use vgpu_hook::text::one_line;

use crate::{
    apply::{Driver, Found},
    code::Code,
};

#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("{path}: cannot be loaded: {reason}; the plugin renews the path when the driver is replaced, so start the pod again", path = .path.display())]
    Load { path: PathBuf, reason: String },
    #[error("{path}: has no {name}; the driver is older than r615: update it, or do not require the driver's limit", path = .path.display())]
    TooOld { path: PathBuf, name: &'static str },
    #[error("{path}: nvmlInit: {code}; check the driver with nvidia-smi on the node", path = .path.display())]
    Init { path: PathBuf, code: Code },
}

type Handle = *mut c_void;

/// How often a list of processes is asked for while it grows, and by how many elements the room for it is larger than the last
/// answer.
const ATTEMPTS: usize = 5;
const MORE: c_uint = 8;

/// nvmlSetMemoryLimits_v1_t. It has no version. The name space is the path of the cgroup's folder.
#[repr(C)]
struct SetLimits {
    name_space: *const c_char,
    soft: u64,
    hard: u64,
}

/// nvmlGetMemoryLimits_v1_t.
#[repr(C)]
struct GetLimits {
    name_space: *const c_char,
    soft: u64,
    hard: u64,
    used: u64,
}

/// nvmlMemory_t.
#[derive(Default)]
#[repr(C)]
struct Memory {
    total: u64,
    free: u64,
    used: u64,
}

const _: () = {
    assert!(size_of::<SetLimits>() == 24);
    assert!(size_of::<GetLimits>() == 32);
    assert!(size_of::<Memory>() == 24);
};

/// NVML, initialised until this value is dropped.
pub(crate) struct Nvml {
    shutdown: Symbol<unsafe extern "C" fn() -> c_int>,
    by_uuid: Symbol<unsafe extern "C" fn(*const c_char, *mut Handle) -> c_int>,
    mig_mode: Symbol<unsafe extern "C" fn(Handle, *mut c_uint, *mut c_uint) -> c_int>,
    memory: Symbol<unsafe extern "C" fn(Handle, *mut Memory) -> c_int>,
    set: Symbol<unsafe extern "C" fn(Handle, *const SetLimits) -> c_int>,
    get: Symbol<unsafe extern "C" fn(Handle, *mut GetLimits) -> c_int>,
    processes: [List; 2],
    /// Last, because the functions are in it.
    _library: Library,
}

impl Nvml {
    /// Loads the library and initialises it. `soft_gpu`: the state of a software GPU.
    pub(crate) fn load(path: &Path, soft_gpu: Option<&Path>) -> Result<Self, Error> {
        if let Some(state) = soft_gpu {
            // SAFETY: this program has one thread, and nothing has read the environment in another one.
            unsafe { std::env::set_var("SOFT_GPU_STATE", state) };
        }
        // SAFETY: the path is the driver's NVML, whose constructors run in many programs; it is the node's own file.
        let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) };
        let library = library.map_err(|error| Error::Load {
            path: path.to_path_buf(),
            reason: one_line(&error.to_string(), 200),
        })?;
        let too_old = |name: &'static str| Error::TooOld {
            path: path.to_path_buf(),
            name,
        };
        macro_rules! function {
            ($name:literal) => {
                // SAFETY: NVML's header declares the function with the type of the field that it becomes.
                unsafe { library.get(concat!($name, "\0").as_bytes()) }.map_err(|_| too_old($name))?
            };
        }
        let init: Symbol<unsafe extern "C" fn() -> c_int> = function!("nvmlInit_v2");
        let nvml = Self {
            shutdown: function!("nvmlShutdown"),
            by_uuid: function!("nvmlDeviceGetHandleByUUID"),
            mig_mode: function!("nvmlDeviceGetMigMode"),
            memory: function!("nvmlDeviceGetMemoryInfo"),
            set: function!("nvmlDeviceSetMemoryLimits_v1"),
            get: function!("nvmlDeviceGetMemoryLimits_v1"),
            processes: [
                List::newest(&library, "Compute").ok_or_else(|| too_old("nvmlDeviceGetComputeRunningProcesses"))?,
                List::newest(&library, "Graphics").ok_or_else(|| too_old("nvmlDeviceGetGraphicsRunningProcesses"))?,
            ],
            _library: library,
        };
        // SAFETY: the function takes nothing.
        match unsafe { init() } {
            0 => Ok(nvml),
            code => {
                // It was not initialised, so it is not shut down.
                let _ = std::mem::ManuallyDrop::new(nvml);
                Err(Error::Init {
                    path: path.to_path_buf(),
                    code: Code(code),
                })
            }
        }
    }

    fn device(&self, gpu: &str) -> Result<Handle, Code> {
        let uuid = CString::new(gpu).map_err(|_| Code::INVALID_ARGUMENT)?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: both pointers are valid for the call.
        done(unsafe { (self.by_uuid)(uuid.as_ptr(), &raw mut handle) })?;
        Ok(handle)
    }
}

impl Drop for Nvml {
    fn drop(&mut self) {
        // SAFETY: NVML was initialised, and nothing uses it any more.
        unsafe { (self.shutdown)() };
    }
}

impl Driver for Nvml {
    fn is_mig(&self, gpu: &str) -> Result<bool, Code> {
        let (mut now, mut next) = (0, 0);
        // SAFETY: the handle is NVML's, the pointers are valid for the call.
        match done(unsafe { (self.mig_mode)(self.device(gpu)?, &raw mut now, &raw mut next) }) {
            // A GPU without MIG.
            Err(Code::NOT_SUPPORTED) => Ok(false),
            done => done.map(|()| now != 0),
        }
    }

    fn total(&self, gpu: &str) -> Result<u64, Code> {
        let mut memory = Memory::default();
        // SAFETY: as above.
        done(unsafe { (self.memory)(self.device(gpu)?, &raw mut memory) })?;
        Ok(memory.total)
    }

    fn set(&self, gpu: &str, cgroup: &Path, hard: u64) -> Result<(), Code> {
        let name_space = name(cgroup)?;
        let limits = SetLimits {
            name_space: name_space.as_ptr(),
            soft: 0,
            hard,
        };
        // SAFETY: as above; the path lives until the call is over.
        done(unsafe { (self.set)(self.device(gpu)?, &raw const limits) })
    }

    fn get(&self, gpu: &str, cgroup: &Path) -> Result<Found, Code> {
        let name_space = name(cgroup)?;
        // Values that no driver answers, in case it leaves a field out.
        let mut limits = GetLimits {
            name_space: name_space.as_ptr(),
            soft: u64::MAX,
            hard: 0,
            used: 0,
        };
        // SAFETY: as above.
        done(unsafe { (self.get)(self.device(gpu)?, &raw mut limits) })?;
        Ok(Found {
            soft: limits.soft,
            hard: limits.hard,
            used: limits.used,
        })
    }

    fn processes(&self, gpu: &str) -> Result<Vec<u32>, Code> {
        let device = self.device(gpu)?;
        let mut pids = Vec::new();
        for list in &self.processes {
            match list.read(device) {
                Ok(found) => pids.extend(found),
                // A driver without graphics.
                Err(Code::NOT_SUPPORTED) => (),
                Err(code) => return Err(code),
            }
        }
        Ok(pids)
    }
}

/// A function that lists a GPU's processes.
struct List {
    ask: Symbol<unsafe extern "C" fn(Handle, *mut c_uint, *mut c_void) -> c_int>,
    /// Bytes of an element. The first 4 are the PID.
    size: usize,
}

impl List {
    /// Returns the newest version that the library has. Versions 2 and 3 have longer elements than the first one.
    fn newest(library: &Library, kind: &str) -> Option<Self> {
        [("_v3", 24), ("_v2", 24), ("", 16)]
            .into_iter()
            .find_map(|(version, size)| {
                let name = format!("nvmlDeviceGet{kind}RunningProcesses{version}\0");
                // SAFETY: NVML's header declares the functions with this type, but for the elements' type.
                let ask = unsafe { library.get(name.as_bytes()) }.ok()?;
                Some(Self { ask, size })
            })
    }

    /// Returns the PIDs. Processes that start meanwhile may be missing.
    fn read(&self, device: Handle) -> Result<Vec<u32>, Code> {
        let mut room: c_uint = 0;
        for _ in 0..ATTEMPTS {
            let mut count = room;
            // Of u64, which has the elements' alignment.
            let mut elements = vec![0_u64; room as usize * self.size / 8];
            // SAFETY: there is room for `count` elements of this size.
            let code = unsafe { (self.ask)(device, &raw mut count, elements.as_mut_ptr().cast()) };
            match done(code) {
                Err(Code::INSUFFICIENT_SIZE) => room = count.saturating_add(MORE),
                Err(code) => return Err(code),
                Ok(()) => {
                    let firsts = elements.chunks_exact(self.size / 8).take(count as usize);
                    // The PID is the lower half on this little-endian machine.
                    return Ok(firsts.map(|element| element[0] as u32).collect());
                }
            }
        }
        Err(Code::INSUFFICIENT_SIZE)
    }
}

fn done(code: c_int) -> Result<(), Code> {
    match code {
        0 => Ok(()),
        code => Err(Code(code)),
    }
}

fn name(cgroup: &Path) -> Result<CString, Code> {
    CString::new(cgroup.as_os_str().as_bytes()).map_err(|_| Code::INVALID_ARGUMENT)
}
