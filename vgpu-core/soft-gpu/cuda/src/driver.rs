//! The driver's state in this process: its membership, its visible devices, its tables.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock};

use soft_gpu::lock;

use soft_gpu::env::Config;
use soft_gpu::profile::MAX_DEVICES;
use soft_gpu::state::{Member, State};

use crate::code::{Code, INVALID_DEVICE, NO_DEVICE, NOT_INITIALIZED, Res, SYSTEM_NOT_READY};
use crate::context::Context;
use crate::ffi::ForkMark;
use crate::memory::Memory;
use crate::visible;

pub(crate) struct Driver {
    member: Member,
    /// CUDA ordinal to GPU or instance, as CUDA_VISIBLE_DEVICES says.
    pub(crate) gpus: Vec<usize>,
    mark: Option<ForkMark>,
    pub(crate) primaries: Vec<Primary>,
    pub(crate) memory: Memory,
    next_handle: AtomicU64,
}

/// A GPU's primary context, once it was retained.
#[derive(Default)]
pub(crate) struct Primary(Mutex<PrimaryState>);

#[derive(Default)]
pub(crate) struct PrimaryState {
    pub(crate) retained: u32,
    pub(crate) flags: u32,
    pub(crate) context: Option<&'static Context>,
}

impl Primary {
    pub(crate) fn lock(&self) -> MutexGuard<'_, PrimaryState> {
        lock(&self.0)
    }
}

static DRIVER: OnceLock<Driver> = OnceLock::new();
static STARTING: Mutex<()> = Mutex::new(());

/// The driver, if cuInit succeeded in this process. A child of fork has to call it again.
#[inline]
pub(crate) fn get() -> Result<&'static Driver, Code> {
    let driver = DRIVER.get().ok_or(NOT_INITIALIZED)?;
    if driver.mark.as_ref().is_some_and(ForkMark::forked) {
        return Err(NOT_INITIALIZED);
    }
    Ok(driver)
}

/// The driver, and the GPU behind a CUDA ordinal.
pub(crate) fn device(ordinal: i32) -> Result<(&'static Driver, usize), Code> {
    let driver = get()?;
    Ok((driver, driver.gpu(ordinal)?))
}

/// cuInit. It may be tried again after a failure, for example once a folder was repaired.
pub(crate) fn start() -> Res {
    let _one = lock(&STARTING);
    if DRIVER.get().is_none() {
        let member = join().map_err(|error| {
            eprintln!("soft-gpu: {error}");
            SYSTEM_NOT_READY
        })?;
        let profile = member.state().profile().clone();
        let gpus = visible::list(member.state(), std::env::var("CUDA_VISIBLE_DEVICES").ok().as_deref());
        crate::call::FAULTS.arm(&profile.faults);
        let driver = Driver {
            gpus,
            mark: ForkMark::new(),
            primaries: (0..MAX_DEVICES).map(|_| Primary::default()).collect(),
            memory: Memory::new(profile.granularity),
            next_handle: AtomicU64::new(1),
            member,
        };
        let _ = DRIVER.set(driver);
    }
    if get()?.gpus.is_empty() { Err(NO_DEVICE) } else { Ok(()) }
}

fn join() -> Result<Member, soft_gpu::error::Error> {
    let config = Config::read()?;
    State::open(&config)?.join(&config)
}

impl Driver {
    pub(crate) fn member(&self) -> &Member {
        &self.member
    }

    pub(crate) fn state(&self) -> &State {
        self.member.state()
    }

    /// The GPU behind a CUDA ordinal.
    pub(crate) fn gpu(&self, device: i32) -> Result<usize, Code> {
        usize::try_from(device)
            .ok()
            .and_then(|at| self.gpus.get(at).copied())
            .ok_or(INVALID_DEVICE)
    }

    pub(crate) fn ordinal(&self, gpu: usize) -> i32 {
        self.gpus.iter().position(|one| *one == gpu).map_or(-1, |at| at as i32)
    }

    /// A number for a new object: never null, never an address.
    pub(crate) fn handle(&self) -> u64 {
        0x5067_0000_0000 | self.next_handle.fetch_add(1, Ordering::Relaxed) << 4
    }
}

soft_gpu::api! {
    fn cuDriverGetVersion(version: crate::ffi::Out<i32>) {
        // Works before cuInit. Without a state, the default profile decides.
        let pair = match get() {
            Ok(driver) => driver.state().profile().cuda_version,
            Err(_) => Config::read().and_then(|config| State::open(&config))
                .map_or(soft_gpu::profile::Profile::default().cuda_version, |state| state.profile().cuda_version),
        };
        version.set((pair.0 * 1000 + pair.1 * 10) as i32)
    }
}

/// cuInit. Not declared by `api!`, because a fault for its call can be looked up only after it has run.
#[unsafe(no_mangle)]
#[allow(unsafe_code, reason = "exported under its C name")]
pub(crate) extern "C" fn cuInit(flags: u32) -> i32 {
    let result = if flags == 0 {
        start()
    } else {
        Err(crate::code::INVALID_VALUE)
    };
    if result.is_ok() {
        crate::injection::load();
    }
    crate::call::call("cuInit", || result)
}
