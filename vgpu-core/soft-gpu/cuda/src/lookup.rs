//! cuGetProcAddress: finds a function by its base name, the newest version that the caller supports, and its default
//! stream.

use crate::code::{Code, INVALID_VALUE, NOT_FOUND};
use crate::ffi::{Out, Text};

/// One line of names/procaddress.txt.
pub(crate) struct Lookup {
    pub(crate) base: &'static str,
    pub(crate) version: u32,
    /// The variant whose default stream is the thread's own.
    pub(crate) stream: bool,
    pub(crate) address: unsafe extern "C" fn(),
}

/// Flags: 0 default, 1 legacy default stream, 2 per-thread default stream. A real driver takes both at once.
const PER_THREAD: u64 = 2;
const FLAGS: u64 = 3;

/// CUdriverProcAddressQueryResult.
const SYMBOL_NOT_FOUND: u32 = 1;
const VERSION_NOT_SUFFICIENT: u32 = 2;

/// The newest line of `base` that `version` allows; a base without stream variants has only its default ones.
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

/// The function, or why there is none. A real driver ends in a fault where pointers are null.
fn look_up(name: Text, out: Out<u64>, version: i32, flags: u64) -> Result<Result<u64, u32>, Code> {
    if !out.given() || flags > FLAGS {
        return Err(INVALID_VALUE);
    }
    // A negative version is newer than all.
    let found = find(
        crate::stubs::LOOKUPS,
        &name.get()?,
        version.cast_unsigned(),
        flags & PER_THREAD != 0,
    );
    Ok(found.map(|line| line.address as usize as u64))
}

soft_gpu::api! {
    fn cuGetProcAddress(name: Text, out: Out<u64>, version: i32, flags: u64) {
        match look_up(name, out, version, flags)? {
            Ok(address) => out.set(address),
            Err(_) => Err(NOT_FOUND),
        }
    }

    fn cuGetProcAddress_v2(name: Text, out: Out<u64>, version: i32, flags: u64, status: Out<u32>) {
        // A missing function is not an error of this call: `status` reports it.
        let found = look_up(name, out, version, flags)?;
        status.offer(found.err().unwrap_or(0));
        out.set(found.unwrap_or(0))
    }
}
