//! NVML of the driver root, loaded by its path: the functions that limit a cgroup, which it has since r615.

#![allow(unsafe_code)] // Calls through dlsym.

use std::{
    ffi::{CString, c_char, c_int, c_uint, c_void},
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW, Symbol};

use crate::{
    apply::{Driver, Found},
    code::Code,
};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{path}: cannot be loaded: {reason}; the plugin renews the path when the driver is replaced, so start the pod again", path = .path.display())]
    Load { path: PathBuf, reason: String },
    #[error("{path}: has no {name}; the driver is older than r615: update it, or do not require the driver's limit", path = .path.display())]
    TooOld { path: PathBuf, name: &'static str },
    #[error("{path}: nvmlInit: {code}; check the driver with nvidia-smi on the node", path = .path.display())]
    Init { path: PathBuf, code: Code },
}

type Handle = *mut c_void;

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
            reason: one_line(&error.to_string()),
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
        })
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

fn one_line(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .take(200)
        .collect()
}
