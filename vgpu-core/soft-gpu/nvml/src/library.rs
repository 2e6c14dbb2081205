//! nvmlInit and nvmlShutdown, counted as NVML does, and the state between them.

use std::sync::Mutex;

use soft_gpu::lock;

use soft_gpu::c::{Code, Res};
use soft_gpu::env::Config;
use soft_gpu::faults::Faults;
use soft_gpu::state::State;

use crate::codes::{DRIVER_NOT_LOADED, GPU_IS_LOST, INVALID_ARGUMENT, NOT_FOUND, NOT_SUPPORTED, UNINITIALIZED};

/// Faults that the profile asks for.
pub(crate) static FAULTS: Faults = Faults::none();

struct Library {
    users: u32,
    /// Kept after shutdown, because clients that poll initialise and shut down NVML each time.
    state: Option<&'static State>,
}

static LIBRARY: Mutex<Library> = Mutex::new(Library { users: 0, state: None });

/// Returns the GPUs; an error before nvmlInit and after nvmlShutdown.
pub(crate) fn state() -> Result<&'static State, Code> {
    let library = lock(&LIBRARY);
    library.state.filter(|_| library.users > 0).ok_or(UNINITIALIZED)
}

fn start() -> Res {
    let mut library = lock(&LIBRARY);
    if library.users == 0 {
        let open = || -> Result<&'static State, soft_gpu::error::Error> {
            let config = Config::read()?;
            match library.state.filter(|state| state.is_current(&config)) {
                Some(state) => Ok(state),
                None => State::open(&config).map(|state| &*Box::leak(Box::new(state))),
            }
        };
        let state = open().map_err(|error| {
            eprintln!("soft-gpu: {error}");
            DRIVER_NOT_LOADED
        })?;
        FAULTS.arm(&state.profile().faults);
        library.state = Some(state);
    }
    library.users += 1;
    Ok(())
}

/// The base of device handles. Handles look like pointers, but are never dereferenced.
const HANDLE: u64 = 0x5069_0000_0000;

/// The handle of a GPU, or of an instance by its place.
pub(crate) fn handle(device: usize) -> u64 {
    HANDLE + ((device as u64 + 1) << 4)
}

/// The GPU of a handle, and the state. An instance answers only the functions that ask for it by [`either`].
pub(crate) fn device(handle: u64) -> Result<(&'static State, usize), Code> {
    let (state, device) = either(handle)?;
    match state.instance(device) {
        Some(_) => Err(NOT_SUPPORTED),
        None => Ok((state, device)),
    }
}

/// The GPU or the instance of a handle, and the state.
pub(crate) fn either(handle: u64) -> Result<(&'static State, usize), Code> {
    let state = state()?;
    let device = handle.checked_sub(HANDLE + 16).map(|offset| (offset >> 4) as usize);
    let device = device
        .filter(|device| *device < state.devices())
        .ok_or(INVALID_ARGUMENT)?;
    state.settle();
    let (instance, control) = (state.instance(device), state.control());
    if control.is_lost(instance.map_or(device, |instance| instance.of.parent)) {
        return Err(GPU_IS_LOST);
    }
    // A handle dies with its instance.
    let is_there = match instance {
        Some(instance) => !control.is_gone(instance.of.parent, instance.id()),
        None => device < state.profile().gpus as usize,
    };
    is_there.then_some((state, device)).ok_or(NOT_FOUND)
}

soft_gpu::api! {
    fn nvmlInit_v2() {
        start()
    }

    fn nvmlInit() {
        start()
    }

    fn nvmlInitWithFlags(_flags: u32) {
        start()
    }

    fn nvmlShutdown() {
        let mut library = lock(&LIBRARY);
        library.users = library.users.checked_sub(1).ok_or(UNINITIALIZED)?;
        Ok(())
    }
}

#[unsafe(no_mangle)]
#[allow(unsafe_code, reason = "exported under its C name")]
pub(crate) extern "C" fn nvmlErrorString(code: i32) -> *const u8 {
    let text = match code {
        0 => "Success\0",
        1 => "Uninitialized\0",
        2 => "Invalid Argument\0",
        3 => "Not Supported\0",
        4 => "Insufficient Permissions\0",
        6 => "Not Found\0",
        7 => "Insufficient Size\0",
        8 => "Insufficient External Power\0",
        9 => "Driver Not Loaded\0",
        10 => "Timeout\0",
        12 => "NVML Shared Library Not Found\0",
        13 => "Function Not Found\0",
        15 => "GPU is lost\0",
        16 => "GPU requires reset\0",
        17 => "The operating system has blocked the request\0",
        18 => "RM has detected an NVML/RM version mismatch.\0",
        19 => "In use by another client\0",
        20 => "Insufficient Memory\0",
        21 => "No data\0",
        23 => "Insufficient Resources\0",
        25 => "Argument version mismatch\0",
        _ => "Unknown Error\0",
    };
    text.as_ptr()
}
