//! The process state for a container of HAMi (`vgpu_core::hami`): the part that needs the driver's libraries.
//!
//! No limits file names the driver here, so it is searched for where the loader would find it, skipping this file and
//! its copies. The GPUs come from NVML, because limits are by UUID and the driver API cannot be called before the
//! program's own cuInit.
//!
//! How it fails, each with one line on stderr: no driver library, no NVML beside it (containers get it with the driver
//! capability `utility`), variables that cannot be parsed, no place for the ledger.

use crate::names::slot;
use crate::process::{self, Ready};
use crate::real::{self, real};

use core::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use vgpu_abi::arch;
use vgpu_abi::paths::{LIBCUDA, LIBNVIDIA_ML};
use vgpu_core::account::{Account, Watch};
use vgpu_core::grants::GpuGrants;
use vgpu_core::hami::assign::{Device, assign};
use vgpu_core::hami::mirror::{Mirror, Processes};
use vgpu_core::hami::variables::Settings;
use vgpu_core::hami::{place, region};
use vgpu_core::os::stderr;

/// Folders with drivers, in the order of the loader: Debian's, Red Hat's, and those of container platforms.
const FOLDERS: [&str; 10] = [
    concat!("/usr/lib/", arch!(triplet)),
    "/usr/lib64",
    concat!("/lib/", arch!(triplet)),
    "/lib64",
    "/usr/lib",
    "/lib",
    "/usr/local/nvidia/lib64",
    "/usr/local/nvidia/lib",
    "/usr/local/cuda/compat",
    "/usr/lib/wsl/lib",
];
/// From this level of LIBCUDA_LOG_LEVEL on, the limits are printed.
const INFO: u8 = 3;

/// The shares, and the writer of HAMi's region file if there is one.
pub(crate) type Shares = (Vec<GpuGrants>, Option<Mirror>);

/// Returns the shares that HAMi's variables define, or None if there are no such variables.
pub(crate) fn shares() -> Result<Option<Shares>, String> {
    let settings = Settings::read(|name| Some(real::variable(name)?.to_string_lossy().into_owned()))
        .map_err(|error| error.to_string())?;
    let Some(settings) = settings else {
        return Ok(None);
    };
    real::take_names();
    let (libcuda, libnvidia_ml) = (driver(LIBCUDA)?, driver(LIBNVIDIA_ML)?);
    real::open(&libcuda, &libnvidia_ml)?;
    let devices =
        devices().ok_or("NVML shows no GPU in this container: check the driver and its capability `utility`")?;
    let limits = assign(&settings, &devices, &libcuda, &libnvidia_ml).map_err(|error| error.to_string())?;
    let bases = place::BASES.map(Path::new);
    let grants = place::prepare(settings.cache.as_deref(), place::container(), limits, &bases)
        .map_err(|error| error.to_string())?;
    let limits = || grants.iter().flat_map(|gpu| &gpu.shares).map(|share| &share.limits);
    if settings.log_level >= INFO {
        for share in limits() {
            stderr::say(&format!(
                "by HAMi's variables: {} with {} bytes, {} % of its time",
                share.gpu, share.memory, share.cores
            ));
        }
    }
    let shown = limits().map(|share| region::Device {
        uuid: share.gpu.clone(),
        limit: share.memory,
        sm_limit: if share.cores == 0 { 100 } else { u64::from(share.cores) },
    });
    let mirror = settings.cache.as_deref().map(|path| Mirror::new(path, shown.collect()));
    Ok(Some((grants, mirror)))
}

/// Returns the account with a watch that mirrors its changes.
pub(crate) fn watched(account: Account) -> Account {
    account.watched(Watch(Box::new(|_| changed())))
}

/// Mirrors the charges, if a write is due.
#[cold]
fn changed() {
    if let Some((ready, mirror)) = process::known().and_then(|ready| Some((ready, ready.mirror.as_ref()?))) {
        mirror.refresh(ready.charged(), || processes(ready));
    }
}

/// Mirrors the charges now.
#[cold]
pub(crate) fn show(ready: &Ready) {
    if let Some(mirror) = &ready.mirror {
        mirror.write(ready.charged(), || processes(ready));
    }
}

fn processes(ready: &Ready) -> Processes {
    let mut found: Processes = BTreeMap::new();
    for (place, gpu) in ready.gpus.iter().enumerate() {
        // A process that holds nothing is left out: it does not change the monitor's sums, and may be dead.
        for (namespace, pid, held) in gpu.account.holders().filter(|(_, _, held)| *held > 0) {
            let used = found
                .entry((namespace, pid))
                .or_insert_with(|| vec![0; ready.gpus.len()]);
            if let Some(used) = used.get_mut(place) {
                *used = held.saturating_add(*used);
            }
        }
    }
    found
}

/// Returns the path of the real library `name`.
fn driver(name: &str) -> Result<PathBuf, String> {
    let own = own_file();
    let path = real::variable("LD_LIBRARY_PATH")
        .and_then(|value| value.into_string().ok())
        .unwrap_or_default();
    let folders = path
        .split([':', ';'])
        .filter(|folder| folder.starts_with('/'))
        .chain(FOLDERS);
    let mut candidates = folders.map(|folder| Path::new(folder).join(name));
    let is_driver = |path: &PathBuf| match std::fs::metadata(path) {
        Ok(found) => found.is_file() && Some((found.dev(), found.ino())) != own && !is_shim(path, found.len()),
        Err(_) => false,
    };
    candidates.find(is_driver).ok_or_else(|| {
        format!(
            "HAMi's variables are set, and {name} is in none of the loader's folders: the container needs NVIDIA's driver with the capabilities `compute,utility`"
        )
    })
}

/// Returns true if a library is like this one, perhaps of another release: it has the names of both APIs, unlike any
/// driver's library. It is read instead of loaded: a failed look-up ends a program in a dlmopen namespace before glibc 2.34.
fn is_shim(path: &Path, size: u64) -> bool {
    const MARKS: [&[u8]; 3] = [b"\0cuInit\0", b"\0cudbgGetAPIVersion\0", b"\0nvmlInit_v2\0"];
    /// NVIDIA's libcuda is always larger than the shim.
    const LARGEST: u64 = 8 << 20;
    if size > LARGEST {
        return false;
    }
    let bytes = std::fs::read(path).unwrap_or_default();
    let has = |mark: &[u8]| bytes.windows(mark.len()).any(|window| window == mark);
    MARKS.into_iter().all(has)
}

/// Returns device and inode of the file that this code is in.
fn own_file() -> Option<(u64, u64)> {
    // SAFETY: an all-zero Dl_info is a value of its type.
    let mut info: libc::Dl_info = unsafe { core::mem::zeroed() };
    let here = own_file as *const () as *const c_void;
    // SAFETY: `info` is to be written.
    if unsafe { libc::dladdr(here, &mut info) } == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the loader's name of an object lasts as long as the object.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    let found = std::fs::metadata(name.to_str().ok()?).ok()?;
    Some((found.dev(), found.ino()))
}

/// Returns the GPUs that NVML lists, in its order. A GPU that NVML cannot describe is lost: its entry is None. Returns
/// None if NVML does not work here, or all GPUs are lost.
fn devices() -> Option<Vec<Option<Device>>> {
    // SAFETY: takes nothing.
    if unsafe { real!(nvmlInit_v2())() } != 0 {
        return None;
    }
    let mut count: c_uint = 0;
    // SAFETY: `count` is to be written.
    let counted = unsafe { real!(nvmlDeviceGetCount_v2(*mut c_uint))(&mut count) } == 0;
    let found = counted.then(|| (0..count).map(device).collect::<Vec<_>>());
    // SAFETY: takes nothing; ends what began above, and no more.
    unsafe { real!(nvmlShutdown())() };
    found.filter(|found| found.iter().any(Option::is_some))
}

fn device(index: c_uint) -> Option<Device> {
    let (mut handle, mut uuid) = (0_usize, [0 as c_char; 96]);
    // SAFETY: handle and text may be written, the text within its length.
    let result: c_int = unsafe {
        match real!(nvmlDeviceGetHandleByIndex_v2(c_uint, *mut usize))(index, &mut handle) {
            0 => real!(nvmlDeviceGetUUID(usize, *mut c_char, c_uint))(handle, uuid.as_mut_ptr(), 95),
            error => error,
        }
    };
    (result == 0).then_some(())?;
    // SAFETY: the last byte is zero.
    let uuid = unsafe { CStr::from_ptr(uuid.as_ptr()) }.to_str().ok()?.to_owned();
    Some(Device {
        uuid,
        memory: memory(handle)?,
    })
}

/// Returns the memory that programs can allocate. Version 2 of the call also reports what the driver reserves for
/// itself.
fn memory(handle: usize) -> Option<u64> {
    const VERSION_2: u64 = (2 << 24) | 40;
    if real::has(slot::nvmlDeviceGetMemoryInfo_v2) {
        // Version and padding, total, reserved, free, used.
        let mut info = [VERSION_2, 0, 0, 0, 0];
        // SAFETY: 40 bytes, as the version says.
        if unsafe { real!(nvmlDeviceGetMemoryInfo_v2(usize, *mut u64))(handle, info.as_mut_ptr()) } == 0 {
            return Some(info[1].saturating_sub(info[2]));
        }
    }
    let mut info: [c_ulonglong; 3] = [0; 3];
    // SAFETY: total, free and used.
    let result = unsafe { real!(nvmlDeviceGetMemoryInfo(usize, *mut c_ulonglong))(handle, info.as_mut_ptr()) };
    (result == 0).then_some(info[0])
}
