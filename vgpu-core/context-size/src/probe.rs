//! Measures in this process: creates a context and asks NVML how the GPU's memory has changed.
//!
//! ```text
//!  what NVML lists for this process          = own
//!  what the GPU has less while it exists     = own + unowned   (a few contexts more, which have to agree)
//! ```
#![allow(unsafe_code)] // Seven functions of the CUDA driver API, called by their documented signatures.

use crate::ContextSize;
use core::ffi::{c_int, c_uint, c_void};
use libloading::Library;
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};
use std::path::Path;
use std::time::Duration;

/// How often NVML's list is read before this process is regarded as not listed.
const LOOKS: u32 = 20;
const BETWEEN: Duration = Duration::from_millis(5);
/// How many lists in a row must contain the same single new process.
const AGREED: u32 = 4;
/// How often a list is requested if it grows each time.
const LISTS: u32 = 64;
/// How often the used memory of the GPU is compared if no list shows this process.
const ROUNDS: usize = 5;
/// How many of the rounds have to agree, and within how many bytes. Other programs change the used memory too, and a
/// wrong figure would be kept permanently.
const AGREE: usize = 3;
const TOLERANCE: u64 = 2 << 20;
/// No context takes more. A higher figure includes another program's memory.
const MOST: u64 = 2 << 30;

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
    Nvml(#[from] NvmlError),
    #[error("CUDA has no device {0}")]
    NoDevice(String),
    #[error(
        "NVML does not list this process, and over {ROUNDS} contexts the used memory of the GPU grew by {} MiB, of \
         which no {AGREE} figures agree: other programs use the GPU", mebibytes(.0)
    )]
    Unsteady(Vec<i64>),
    #[error("NVML shows {} MiB for a context, which no context takes: another program uses the GPU", .0 >> 20)]
    TooMuch(u64),
}

/// The driver API.
struct Cuda {
    library: Library,
    path: String,
}

/// Returns the memory of a context on the GPU with this UUID, as NVML prints it.
///
/// # Errors
/// A library is missing or fails, or NVML shows nothing of a context.
pub fn measure(libcuda: &Path, libnvidia_ml: &Path, uuid: &str) -> Result<ContextSize, Error> {
    // NVML first, so that the driver stays loaded between the two readings.
    let nvml = Nvml::builder().lib_path(libnvidia_ml.as_os_str()).init()?;
    let gpu = nvml.device_by_uuid(uuid)?;
    let cuda = Cuda::open(libcuda)?;
    cuda.init()?;
    let device = cuda.device(uuid)?;
    let before = pids(&gpu)?;
    cuda.retain(device)?;
    let own = own_bytes(&gpu, &before)?;
    cuda.release(device)?;
    let all = by_used_memory(&gpu, &cuda, device);
    Ok(match own {
        Some(own) => ContextSize {
            own: plausible(own)?,
            // `all` is an error if other programs use the GPU meanwhile: then only the memory that NVML lists is
            // charged.
            unowned: all.and_then(plausible).map_or(0, |all| all.saturating_sub(own)),
        },
        // This figure includes the unowned memory.
        None => ContextSize {
            own: plausible(all?)?,
            unowned: 0,
        },
    })
}

fn processes(gpu: &Device<'_>) -> Result<Vec<(u32, Option<u64>)>, Error> {
    let listed = whole_list(|| gpu.running_compute_processes())?.into_iter();
    let figures = listed.map(|process| match process.used_gpu_memory {
        UsedGpuMemory::Used(bytes) => (process.pid, Some(bytes)),
        UsedGpuMemory::Unavailable => (process.pid, None),
    });
    Ok(figures.collect())
}

/// Returns a list of processes that `ask` gets from NVML. nvml-wrapper asks for the length first and leaves room for
/// five more. If more processes start between the two calls, it has to ask again.
///
/// # Errors
/// NVML's error, or the list grew [`LISTS`] times.
pub fn whole_list<T>(mut ask: impl FnMut() -> Result<Vec<T>, NvmlError>) -> Result<Vec<T>, NvmlError> {
    for _ in 1..LISTS {
        match ask() {
            Err(NvmlError::InsufficientSize(_)) => {}
            answer => return answer,
        }
    }
    ask()
}

fn pids(gpu: &Device<'_>) -> Result<Vec<u32>, Error> {
    Ok(processes(gpu)?.into_iter().map(|(pid, _)| pid).collect())
}

/// Returns the bytes that NVML lists for this process. If NVML uses PIDs of another namespace, only this process was
/// not listed `before`.
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

/// Returns by how much a context increases the GPU's used memory, if most of the rounds agree.
fn by_used_memory(gpu: &Device<'_>, cuda: &Cuda, device: c_int) -> Result<u64, Error> {
    let mut growths = Vec::new();
    for _ in 0..ROUNDS {
        let before = gpu.memory_info()?.used;
        cuda.retain(device)?;
        let after = gpu.memory_info()?.used;
        cuda.release(device)?;
        growths.push(after as i64 - before as i64);
        if let Some(bytes) = agreed(&growths).filter(|_| growths.len() >= AGREE) {
            return Ok(bytes);
        }
    }
    Err(Error::Unsteady(growths))
}

/// Returns the median of the rounds that agree best. A growth of 0 is accepted only if all rounds show it: NVML may not
/// show contexts at all.
fn agreed(growths: &[i64]) -> Option<u64> {
    if !growths.is_empty() && growths.iter().all(|growth| *growth == 0) {
        return Some(0);
    }
    let mut grown: Vec<u64> = growths
        .iter()
        .filter_map(|growth| u64::try_from(*growth).ok().filter(|bytes| *bytes > 0))
        .collect();
    grown.sort_unstable();
    let spread = |group: &&[u64]| group[AGREE - 1] - group[0];
    let closest = grown.windows(AGREE).min_by_key(spread)?;
    (spread(&closest) <= TOLERANCE).then_some(closest[AGREE / 2])
}

fn plausible(bytes: u64) -> Result<u64, Error> {
    match bytes {
        0..=MOST => Ok(bytes),
        _ => Err(Error::TooMuch(bytes)),
    }
}

fn mebibytes(growths: &[i64]) -> String {
    let figures: Vec<_> = growths.iter().map(|bytes| (bytes >> 20).to_string()).collect();
    figures.join(", ")
}

impl Cuda {
    fn open(path: &Path) -> Result<Self, Error> {
        let name = path.display().to_string();
        // SAFETY: every CUDA program runs the constructors of the driver's library.
        match unsafe { Library::new(path) } {
            Ok(library) => Ok(Self { library, path: name }),
            Err(source) => Err(Error::Library { library: name, source }),
        }
    }

    fn function<F: Copy>(&self, name: &'static str) -> Result<F, Error> {
        // SAFETY: each caller gives the documented signature of the function, and the library stays open.
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
        // SAFETY: the argument is a number.
        self.check("cuInit", unsafe { call(0) })
    }

    fn device(&self, uuid: &str) -> Result<c_int, Error> {
        let count_of: unsafe extern "C" fn(*mut c_int) -> c_int = self.function("cuDeviceGetCount")?;
        // For an instance of a GPU in MIG mode, the first version has the UUID of the GPU. Drivers before 11.4 lack the second.
        let newest = self.function("cuDeviceGetUuid_v2");
        let uuid_of: unsafe extern "C" fn(*mut c_void, c_int) -> c_int =
            newest.or_else(|_| self.function("cuDeviceGetUuid"))?;
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

/// Returns true if NVML's text is the UUID with these bytes.
fn is_same(text: &str, bytes: [u8; 16]) -> bool {
    let digits = text.split_once('-').map_or(text, |(_, digits)| digits);
    let digits = digits.bytes().filter(|byte| *byte != b'-');
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    digits.map(|digit| digit.to_ascii_lowercase()).eq(hex.bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: i64 = 1 << 20;

    #[test]
    fn a_figure_is_what_three_of_five_rounds_agree_to() {
        let of = |figures: [i64; ROUNDS]| agreed(&figures.map(|mebibytes| mebibytes * MIB)).map(|bytes| bytes >> 20);
        assert_eq!(of([518, 518, 9000, 518, -400]), Some(518));
        assert_eq!(of([519, 517, 518, 520, 600]), Some(518));
        assert_eq!(of([0, 518, 518, 518, 0]), Some(518), "two rounds were not seen");
        assert_eq!(of([9000, 9000, 518, 518, 518]), Some(518));
        assert_eq!(of([518, 518, 700, 800, 900]), None, "two are too few");
        assert_eq!(of([518, 520, 521, 700, 900]), None, "3 MiB apart");
        assert_eq!(of([518, 519, 520, 700, 900]), Some(519), "2 MiB apart");
    }

    #[test]
    fn nothing_is_a_figure_only_if_all_rounds_show_nothing() {
        assert_eq!(agreed(&[0; ROUNDS]), Some(0), "an idle GPU whose contexts take nothing");
        assert_eq!(agreed(&[0, 0, 0, 7, -7]), None, "nobody knows");
        assert_eq!(agreed(&[0, 0, 0, 518 * MIB, 518 * MIB]), None);
        assert_eq!(agreed(&[-5; ROUNDS]), None);
        assert_eq!(agreed(&[]), None);
        let said = Error::Unsteady(vec![0, 518 * MIB, -MIB, 7 * MIB, 0]).to_string();
        assert!(said.contains("grew by 0, 518, -1, 7, 0 MiB"), "{said}");
        assert!(said.contains("other programs"), "{said}");
    }

    #[test]
    fn a_list_that_grows_is_asked_for_again() {
        let grown = || Err(NvmlError::InsufficientSize(None));
        let mut answers = [grown(), grown(), Ok(vec![1, 2])].into_iter();
        assert_eq!(whole_list(|| answers.next().expect("an answer")).ok(), Some(vec![1, 2]));
        let mut asked = 0;
        let always = whole_list::<u32>(|| {
            asked += 1;
            grown()
        });
        assert!(matches!(always, Err(NvmlError::InsufficientSize(_))), "it ends");
        assert_eq!(asked, LISTS);
        let other = whole_list::<u32>(|| Err(NvmlError::GpuLost));
        assert!(matches!(other, Err(NvmlError::GpuLost)));
    }

    #[test]
    fn more_than_any_context_takes_is_no_figure() {
        assert_eq!(plausible(2 << 30).ok(), Some(2 << 30));
        let said = plausible((2 << 30) + 1).unwrap_err().to_string();
        assert!(said.starts_with("NVML shows 2048 MiB"), "{said}");
    }

    #[test]
    fn a_gpu_is_found_by_its_uuid() {
        let bytes: [u8; 16] = std::array::from_fn(|index| index as u8 + 0xa0);
        assert!(is_same("GPU-A0A1A2A3-a4a5-a6a7-a8a9-aaabacadaeaf", bytes));
        assert!(is_same("MIG-a0a1a2a3-a4a5-a6a7-a8a9-aaabacadaeaf", bytes));
        assert!(!is_same("GPU-00a1a2a3-a4a5-a6a7-a8a9-aaabacadaeaf", bytes));
    }
}
