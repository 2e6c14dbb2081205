//! libcuda and libnvidia-ml as any program uses them: opened by name, functions looked up by name.
//!
//! Unsafe: the libraries are C. The types of functions are those of CUDA's driver API and NVML's documentation.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::fmt;

/// A call that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Error {
    Open(String),
    Missing(&'static str),
    Cuda(&'static str, c_int),
    Nvml(&'static str, c_int),
}

pub(crate) const OUT_OF_MEMORY: c_int = 2;

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open(reason) => write!(f, "{reason}"),
            Self::Missing(name) => write!(f, "the library has no {name}"),
            Self::Cuda(name, code) => write!(f, "{name}: {}", cuda_name(*code)),
            Self::Nvml(name, code) => write!(f, "{name}: NVML error {code}"),
        }
    }
}

pub(crate) fn cuda_name(code: c_int) -> String {
    let name = match code {
        0 => "CUDA_SUCCESS",
        1 => "CUDA_ERROR_INVALID_VALUE",
        OUT_OF_MEMORY => "CUDA_ERROR_OUT_OF_MEMORY",
        3 => "CUDA_ERROR_NOT_INITIALIZED",
        100 => "CUDA_ERROR_NO_DEVICE",
        800 => "CUDA_ERROR_NOT_PERMITTED",
        999 => "CUDA_ERROR_UNKNOWN",
        _ => return format!("CUDA error {code}"),
    };
    format!("{name} ({code})")
}

/// A library that stays open until the program ends.
pub(crate) struct Library(*mut c_void);

impl Library {
    fn open(name: &CStr) -> Result<Self, Error> {
        // SAFETY: the name is a C string; the initialisers of the library are those that every program runs.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if !handle.is_null() {
            return Ok(Self(handle));
        }
        // SAFETY: dlopen has just failed, so dlerror gives a message that lives until the next dl call of this thread.
        let message = unsafe { libc::dlerror() };
        if message.is_null() {
            return Err(Error::Open("dlopen failed without a message".to_owned()));
        }
        // SAFETY: not null, and a C string by dlerror's contract.
        Err(Error::Open(
            unsafe { CStr::from_ptr(message) }.to_string_lossy().into_owned(),
        ))
    }

    /// # Safety
    /// `F` is the type of the C function of that name: a pointer-sized `extern "C" fn`.
    pub(crate) unsafe fn function<F: Copy>(&self, name: &'static CStr) -> Result<F, Error> {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
        // SAFETY: the handle is open and the name is a C string.
        let symbol = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        if symbol.is_null() {
            return Err(Error::Missing(name.to_str().unwrap_or("function")));
        }
        // SAFETY: `F` is a function pointer by this function's contract, and has the size of a pointer by the
        // assertion.
        Ok(unsafe { std::mem::transmute_copy(&symbol) })
    }
}

/// Calls a function of a library and turns its status into a `Result`.
macro_rules! call {
    ($library:expr, $error:path, $name:literal, ($($type:ty),*), ($($value:expr),*)) => {{
        const NAME: &CStr = match CStr::from_bytes_with_nul(concat!($name, "\0").as_bytes()) {
            Ok(name) => name,
            Err(_) => panic!("a name without a zero"),
        };
        // SAFETY: the type is that of the documented function; pointers are to live variables of the right type.
        let code = unsafe {
            let function: unsafe extern "C" fn($($type),*) -> c_int = $library.function(NAME)?;
            function($($value),*)
        };
        if code == 0 { Ok(()) } else { Err($error($name, code)) }
    }};
}

/// CUDA with the primary context of the first device.
pub(crate) struct Cuda {
    pub(crate) library: Library,
    device: c_int,
}

pub(crate) use call;

impl Cuda {
    pub(crate) fn start() -> Result<Self, Error> {
        let library = Library::open(c"libcuda.so.1")?;
        call!(library, Error::Cuda, "cuInit", (c_uint), (0))?;
        let mut device = 0;
        call!(
            library,
            Error::Cuda,
            "cuDeviceGet",
            (*mut c_int, c_int),
            (&mut device, 0)
        )?;
        let mut context: *mut c_void = std::ptr::null_mut();
        call!(
            library,
            Error::Cuda,
            "cuDevicePrimaryCtxRetain",
            (*mut *mut c_void, c_int),
            (&mut context, device)
        )?;
        call!(library, Error::Cuda, "cuCtxSetCurrent", (*mut c_void), (context))?;
        Ok(Self { library, device })
    }

    pub(crate) fn devices(&self) -> Result<c_int, Error> {
        let mut count = 0;
        call!(
            self.library,
            Error::Cuda,
            "cuDeviceGetCount",
            (*mut c_int),
            (&mut count)
        )?;
        Ok(count)
    }

    pub(crate) fn name(&self) -> Result<String, Error> {
        let mut name = [0u8; 128];
        let room = c_int::try_from(name.len() - 1).unwrap_or(0);
        call!(
            self.library,
            Error::Cuda,
            "cuDeviceGetName",
            (*mut c_char, c_int, c_int),
            (name.as_mut_ptr().cast(), room, self.device)
        )?;
        Ok(text(&name))
    }

    pub(crate) fn total(&self) -> Result<u64, Error> {
        let mut bytes = 0usize;
        call!(
            self.library,
            Error::Cuda,
            "cuDeviceTotalMem_v2",
            (*mut usize, c_int),
            (&mut bytes, self.device)
        )?;
        Ok(bytes as u64)
    }

    /// Free and total bytes.
    pub(crate) fn info(&self) -> Result<(u64, u64), Error> {
        let (mut free, mut total) = (0usize, 0usize);
        call!(
            self.library,
            Error::Cuda,
            "cuMemGetInfo_v2",
            (*mut usize, *mut usize),
            (&mut free, &mut total)
        )?;
        Ok((free as u64, total as u64))
    }

    pub(crate) fn allocate(&self, bytes: u64) -> Result<u64, Error> {
        let mut address = 0u64;
        let size = usize::try_from(bytes).map_err(|_| Error::Cuda("cuMemAlloc_v2", 1))?;
        call!(
            self.library,
            Error::Cuda,
            "cuMemAlloc_v2",
            (*mut u64, usize),
            (&mut address, size)
        )?;
        Ok(address)
    }

    pub(crate) fn synchronize(&self) -> Result<(), Error> {
        call!(self.library, Error::Cuda, "cuCtxSynchronize", (), ())
    }

    pub(crate) fn free(&self, address: u64) -> Result<(), Error> {
        call!(self.library, Error::Cuda, "cuMemFree_v2", (u64), (address))
    }
}

/// NVML's `nvmlMemory_t`.
#[repr(C)]
#[derive(Default)]
struct Memory {
    total: u64,
    free: u64,
    used: u64,
}

/// Reads the number of devices from NVML, and the UUID and total memory of the first.
pub(crate) fn nvml() -> Result<(c_uint, String, u64), Error> {
    let library = Library::open(c"libnvidia-ml.so.1")?;
    call!(library, Error::Nvml, "nvmlInit_v2", (), ())?;
    let mut count: c_uint = 0;
    call!(
        library,
        Error::Nvml,
        "nvmlDeviceGetCount_v2",
        (*mut c_uint),
        (&mut count)
    )?;
    let mut device: *mut c_void = std::ptr::null_mut();
    call!(
        library,
        Error::Nvml,
        "nvmlDeviceGetHandleByIndex_v2",
        (c_uint, *mut *mut c_void),
        (0, &mut device)
    )?;
    let mut uuid = [0u8; 96];
    let room = c_uint::try_from(uuid.len() - 1).unwrap_or(0);
    call!(
        library,
        Error::Nvml,
        "nvmlDeviceGetUUID",
        (*mut c_void, *mut c_char, c_uint),
        (device, uuid.as_mut_ptr().cast(), room)
    )?;
    let mut memory = Memory::default();
    call!(
        library,
        Error::Nvml,
        "nvmlDeviceGetMemoryInfo",
        (*mut c_void, *mut Memory),
        (device, &mut memory)
    )?;
    Ok((count, text(&uuid), memory.total))
}

fn text(bytes: &[u8]) -> String {
    CStr::from_bytes_until_nul(bytes)
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}
