//! Wraps the handler of every exported function: finds the state of this process, refuses the call if the process has
//! no share, marks the thread as inside a call, and stops panics from unwinding into C. errno is kept where the core
//! makes system calls (`vgpu_core::os::errno`).

use crate::codes::{NOT_PERMITTED, NVML_NO_PERMISSION, NVML_UNINITIALIZED, OUT_OF_MEMORY, UNKNOWN};
use crate::names::slot;
use crate::out_of_memory;
use crate::process::{self, Ready};
use crate::real;
use crate::record::{self, Entry};
use core::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use vgpu_core::os::{errno, stderr, thread};

/// The classes of the driver API's hooks, as the tables write them ([`crate::table`]).
#[allow(non_camel_case_types)] // The words of the tables.
#[derive(Clone, Copy)]
pub(crate) enum Class {
    charged,
    released,
    limited,
    virtualised,
}

impl Class {
    /// Returns true if calls of this class may change GPU memory or its charges, so that `vgpu_core::calls` has to track
    /// them.
    const fn may_change_memory(self) -> bool {
        match self {
            Self::charged | Self::released | Self::limited => true,
            Self::virtualised => false,
        }
    }

    /// Returns true if calls of this class may allocate GPU memory, so that a result of out of memory is recorded as a
    /// refusal.
    const fn may_allocate(self) -> bool {
        matches!(self, Self::charged | Self::limited)
    }
}

/// Runs a hook of the driver API. `handle` gets the state of the process and the address of the real function.
#[inline(always)]
pub(crate) fn cuda(
    class: Class,
    slot: usize,
    again: impl FnOnce() -> c_int,
    handle: impl FnOnce(&'static Ready, *const ()) -> c_int,
) -> c_int {
    /// Functions that only report sizes. They are called often and must stay cheap, so they are not tracked.
    const REPORTS: [usize; 4] = [
        slot::cuMemGetInfo,
        slot::cuMemGetInfo_v2,
        slot::cuDeviceTotalMem,
        slot::cuDeviceTotalMem_v2,
    ];
    run(slot, NOT_PERMITTED, again, |ready, address| {
        // A call that may allocate is charged to a GPU. If the driver does not list GPUs, its error is returned.
        if matches!(class, Class::charged) && ready.devices().is_none() {
            return ready.device_error();
        }
        let call = (class.may_change_memory() && !REPORTS.contains(&slot)).then(|| ready.calls.begin(thread()));
        let result = handle(ready, address);
        drop(call);
        if class.may_allocate() && result == OUT_OF_MEMORY {
            out_of_memory::record(ready);
        }
        result
    })
}

/// Runs a hook of a launch or a wait: it changes no GPU memory, and may take long.
#[inline(always)]
pub(crate) fn time(
    slot: usize,
    again: impl FnOnce() -> c_int,
    handle: impl FnOnce(&'static Ready, *const ()) -> c_int,
) -> c_int {
    run(slot, NOT_PERMITTED, again, handle)
}

/// Runs a hook of NVML. It changes no GPU memory, so its class does not matter here.
#[inline(always)]
pub(crate) fn nvml(
    slot: usize,
    again: impl FnOnce() -> c_int,
    handle: impl FnOnce(&'static Ready, *const ()) -> c_int,
) -> c_int {
    const INIT: [usize; 3] = [slot::nvmlInit, slot::nvmlInit_v2, slot::nvmlInitWithFlags];
    run(slot, NVML_NO_PERMISSION, again, |ready, address| {
        // NVML opens files, which is a cancellation point: a cancelled thread would end there.
        let _kept = errno::keep();
        if ready.hides_nvml() && !INIT.contains(&slot) {
            return NVML_UNINITIALIZED;
        }
        handle(ready, address)
    })
}

/// Runs a hook. `again` calls the exported function again. To record a call, this function calls it between the start
/// and the end of the ring's entry, so that no handler is compiled twice.
#[inline(always)]
fn run(
    slot: usize,
    refused: c_int,
    again: impl FnOnce() -> c_int,
    handle: impl FnOnce(&'static Ready, *const ()) -> c_int,
) -> c_int {
    guarded(|| {
        let ready = match process::plain() {
            Some(ready) => ready,
            None => {
                let _kept = errno::keep();
                match record::enter(slot) {
                    Entry::Handle(ready) => ready,
                    Entry::Refused => return refused,
                    Entry::Record(call) => return call.end(again()),
                }
            }
        };
        handle(ready, real::address(slot))
    })
    .unwrap_or(UNKNOWN)
}

/// Runs `body`. Returns None if it panicked, after a line on stderr.
#[inline(always)]
pub(crate) fn guarded<T>(body: impl FnOnce() -> T) -> Option<T> {
    let outcome = catch_unwind(AssertUnwindSafe(body));
    if outcome.is_err() {
        stderr::say("a call failed inside libvgpu.so; this is a bug, please report the lines above");
    }
    outcome.ok()
}
