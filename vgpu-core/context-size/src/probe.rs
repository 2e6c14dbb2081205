//! Measures, in this process: creates a context and asks NVML what became of the GPU's memory.
#![allow(unsafe_code)] // Seven functions of the CUDA driver API, called by their documented signatures.

use core::ffi::{c_int, c_uint, c_void};
use libloading::Library;
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::{Device, Nvml};
use std::path::Path;
use std::time::Duration;

/// How often NVML is asked for this process before its list counts as one without it.
const LOOKS: u32 = 20;
const BETWEEN: Duration = Duration::from_millis(5);
/// How many lists in a row must have the same one new process.
const AGREED: u32 = 4;
/// How often the used memory of the GPU is compared, where no list shows this process.
const ROUNDS: usize = 5;

/// Why there is no figure.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{function} of {library} answers {code}")]
    Call {
        library: String,
        function: &'static str,
        code: c_int,
    },
    #[error("{library}: {source}")]
    Library { library: String, source: libloading::Error },
    #[error("NVML: {0}")]
    Nvml(#[from] nvml_wrapper::error::NvmlError),
    #[error("CUDA has no device {0}")]
    NoDevice(String),
    #[error("NVML does not list this process, and the used memory of GPU {0} does not grow with a context")]
    Unseen(String),
}

/// The driver API.
struct Cuda {
    library: Library,
    path: String,
}

/// Returns the bytes that a context takes on the GPU with this UUID, as NVML prints it.
///
/// # Errors
/// A library is missing or fails, or NVML shows nothing of a context.
pub fn measure(libcuda: &Path, libnvidia_ml: &Path, uuid: &str) -> Result<u64, Error> {
    // NVML first: the driver then stays loaded between the two looks.
    let nvml = Nvml::builder().lib_path(libnvidia_ml.as_os_str()).init()?;
    let gpu = nvml.device_by_uuid(uuid)?;
    let cuda = Cuda::open(libcuda)?;
    cuda.init()?;
    let device = cuda.device(uuid)?;
    let before = pids(&gpu)?;
    cuda.retain(device)?;
    let own = own_bytes(&gpu, &before)?;
    cuda.release(device)?;
    match own {
        Some(bytes) => Ok(bytes),
        None => by_used_memory(&gpu, &cuda, device)?.ok_or_else(|| Error::Unseen(uuid.to_owned())),
    }
}

fn processes(gpu: &Device<'_>) -> Result<Vec<(u32, Option<u64>)>, Error> {
    let listed = gpu.running_compute_processes()?.into_iter();
    let figures = listed.map(|process| match process.used_gpu_memory {
        UsedGpuMemory::Used(bytes) => (process.pid, Some(bytes)),
        UsedGpuMemory::Unavailable => (process.pid, None),
    });
    Ok(figures.collect())
}

fn pids(gpu: &Device<'_>) -> Result<Vec<u32>, Error> {
    Ok(processes(gpu)?.into_iter().map(|(pid, _)| pid).collect())
}

/// What NVML shows of this process: by its PID or, where NVML has PIDs of another namespace, as the only process that
/// was not listed `before`.
fn own_bytes(gpu: &Device<'_>, before: &[u32]) -> Result<Option<u64>, Error> {
    let (mut last, mut agreed) = (None, 0);
    for _ in 0..LOOKS {
        let mut new = processes(gpu)?;
        new.retain(|(pid, _)| !before.contains(pid));
        if let Some((_, bytes)) = new.iter().find(|(pid, _)| *pid == std::process::id()) {
            return Ok(*bytes);
        }
        agreed = match new.as_slice() {
            [one] if last == Some(*one) => agreed + 1,
            _ => 1,
        };
        last = match new.as_slice() {
            [one] => Some(*one),
            _ => None,
        };
        if let (Some((_, bytes)), AGREED..) = (last, agreed) {
            return Ok(bytes);
        }
        std::thread::sleep(BETWEEN);
    }
    Ok(None)
}

/// The median growth of the GPU's used memory over some contexts. None: it shrank or stayed, but not in all rounds.
fn by_used_memory(gpu: &Device<'_>, cuda: &Cuda, device: c_int) -> Result<Option<u64>, Error> {
    let mut growths = Vec::new();
    for _ in 0..ROUNDS {
        let before = gpu.memory_info()?.used;
        cuda.retain(device)?;
        let after = gpu.memory_info()?.used;
        cuda.release(device)?;
        growths.push(after as i64 - before as i64);
    }
    Ok(median(growths))
}

fn median(mut growths: Vec<i64>) -> Option<u64> {
    growths.sort_unstable();
    let median = growths.get(growths.len() / 2).copied()?;
    let is_still = growths.iter().all(|growth| *growth == 0);
    u64::try_from(median).ok().filter(|bytes| *bytes > 0 || is_still)
}

impl Cuda {
    fn open(path: &Path) -> Result<Self, Error> {
        let name = path.display().to_string();
        // SAFETY: the driver's library, whose constructors every CUDA program runs.
        match unsafe { Library::new(path) } {
            Ok(library) => Ok(Self { library, path: name }),
            Err(source) => Err(Error::Library { library: name, source }),
        }
    }

    fn function<F: Copy>(&self, name: &'static str) -> Result<F, Error> {
        // SAFETY: each caller gives the function's documented signature, and the library stays open.
        match unsafe { self.library.get::<F>(name.as_bytes()) } {
            Ok(found) => Ok(*found),
            Err(source) => Err(Error::Library {
                library: self.path.clone(),
                source,
            }),
        }
    }

    fn check(&self, function: &'static str, code: c_int) -> Result<(), Error> {
        match code {
            0 => Ok(()),
            code => Err(Error::Call {
                library: self.path.clone(),
                function,
                code,
            }),
        }
    }

    fn init(&self) -> Result<(), Error> {
        let call: unsafe extern "C" fn(c_uint) -> c_int = self.function("cuInit")?;
        // SAFETY: a number in.
        self.check("cuInit", unsafe { call(0) })
    }

    fn device(&self, uuid: &str) -> Result<c_int, Error> {
        let count_of: unsafe extern "C" fn(*mut c_int) -> c_int = self.function("cuDeviceGetCount")?;
        let uuid_of: unsafe extern "C" fn(*mut c_void, c_int) -> c_int = self.function("cuDeviceGetUuid")?;
        let get: unsafe extern "C" fn(*mut c_int, c_int) -> c_int = self.function("cuDeviceGet")?;
        let mut count = 0;
        // SAFETY: `count` is to be written.
        self.check("cuDeviceGetCount", unsafe { count_of(&mut count) })?;
        for ordinal in 0..count {
            let (mut device, mut bytes) = (0, [0_u8; 16]);
            // SAFETY: `device` is to be written.
            self.check("cuDeviceGet", unsafe { get(&mut device, ordinal) })?;
            // SAFETY: 16 bytes are to be written.
            self.check("cuDeviceGetUuid", unsafe { uuid_of(bytes.as_mut_ptr().cast(), device) })?;
            if is_same(uuid, bytes) {
                return Ok(device);
            }
        }
        Err(Error::NoDevice(uuid.to_owned()))
    }

    fn retain(&self, device: c_int) -> Result<(), Error> {
        let call: unsafe extern "C" fn(*mut *mut c_void, c_int) -> c_int = self.function("cuDevicePrimaryCtxRetain")?;
        let mut context = std::ptr::null_mut();
        // SAFETY: `context` is to be written.
        self.check("cuDevicePrimaryCtxRetain", unsafe { call(&mut context, device) })
    }

    fn release(&self, device: c_int) -> Result<(), Error> {
        let call: unsafe extern "C" fn(c_int) -> c_int = self.function("cuDevicePrimaryCtxRelease_v2")?;
        // SAFETY: a device of the driver's, whose context was retained.
        self.check("cuDevicePrimaryCtxRelease_v2", unsafe { call(device) })
    }
}

/// Returns true if NVML's text names these bytes.
fn is_same(text: &str, bytes: [u8; 16]) -> bool {
    let digits = text.trim_start_matches("GPU-").bytes().filter(|byte| *byte != b'-');
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    digits.map(|digit| digit.to_ascii_lowercase()).eq(hex.bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_programs_move_the_median_little_and_nothing_is_not_a_size() {
        assert_eq!(median(vec![518, 518, 9000, 518, -400]), Some(518));
        assert_eq!(
            median(vec![0; ROUNDS]),
            Some(0),
            "an idle GPU whose contexts take nothing"
        );
        assert_eq!(median(vec![0, 0, 0, 7, -7]), None, "nobody knows");
        assert_eq!(median(vec![-5; ROUNDS]), None);
        assert_eq!(median(Vec::new()), None);
    }

    #[test]
    fn a_gpu_is_found_by_its_uuid() {
        let bytes: [u8; 16] = std::array::from_fn(|index| index as u8 + 0xa0);
        assert!(is_same("GPU-A0A1A2A3-a4a5-a6a7-a8a9-aaabacadaeaf", bytes));
        assert!(!is_same("GPU-00a1a2a3-a4a5-a6a7-a8a9-aaabacadaeaf", bytes));
    }
}
