//! cuGetProcAddress: finds a function by its base name, the newest version that the caller supports, and its default
//! stream.

use crate::code::{INVALID_VALUE, NOT_FOUND, Res};
use crate::ffi::{Out, Text};

/// One line of names/procaddress.txt.
pub(crate) struct Lookup {
    pub(crate) base: &'static str,
    pub(crate) version: u32,
    /// The variant whose default stream is the thread's own.
    pub(crate) stream: bool,
    pub(crate) address: unsafe extern "C" fn(),
}

/// Flags: 0 default, 1 legacy default stream, 2 per-thread default stream.
const PER_THREAD: u64 = 2;

/// CUdriverProcAddressQueryResult.
const SYMBOL_NOT_FOUND: u32 = 1;
const VERSION_NOT_SUFFICIENT: u32 = 2;

/// The newest line of `base` that `version` allows; a base without stream variants has but its default ones.
fn find(table: &'static [Lookup], base: &str, version: u32, stream: bool) -> Result<&'static Lookup, u32> {
    let lines = || table.iter().filter(|line| line.base == base);
    let streams = stream && lines().any(|line| line.stream);
    let newest = |line: &&Lookup| line.version;
    let suits = lines()
        .filter(|line| line.stream == streams && line.version <= version)
        .max_by_key(newest);
    suits.ok_or(if lines().next().is_some() {
        VERSION_NOT_SUFFICIENT
    } else {
        SYMBOL_NOT_FOUND
    })
}

fn answer(name: Text, out: Out<u64>, version: i32, flags: u64, status: Out<u32>) -> Res {
    if !out.given() || flags > PER_THREAD {
        return Err(INVALID_VALUE);
    }
    let version = u32::try_from(version).map_err(|_| INVALID_VALUE)?;
    match find(crate::stubs::LOOKUPS, &name.get()?, version, flags == PER_THREAD) {
        Ok(line) => {
            status.offer(0);
            out.set(line.address as usize as u64)
        }
        Err(reason) => {
            status.offer(reason);
            out.set(0)?;
            Err(NOT_FOUND)
        }
    }
}

soft_gpu::api! {
    fn cuGetProcAddress(name: Text, out: Out<u64>, version: i32, flags: u64) {
        answer(name, out, version, flags, Out::none())
    }

    fn cuGetProcAddress_v2(name: Text, out: Out<u64>, version: i32, flags: u64, status: Out<u32>) {
        answer(name, out, version, flags, status)
    }
}
