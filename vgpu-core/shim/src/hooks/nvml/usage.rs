//! GPU utilisation as NVML's functions return it: that of the share's own processes, as far as NVML can distinguish
//! them.
//!
//! ```text
//!  no process of the share is on the GPU ─► 0
//!  NVML's PIDs are of our namespace ─► the sum of the last samples of our processes, at most 100
//!  otherwise ─► the GPU's own figure
//! ```
//!
//! NVML names processes by PIDs of the node. In another PID namespace these PIDs mean nothing: the same number may be a
//! neighbour's process. They are treated as ours only if NVML lists every process that the share has on the GPU.
//! Otherwise NVML tells nothing about the share, and the GPU's figure is returned until the library measures time
//! itself.
//!
//! Figures are percent of the GPU, not of the share's `cores`: a share whose policy is Balanced may be busier than its
//! cores, and a percentage of them would exceed 100.

use crate::codes::{NVML_INVALID_ARGUMENT, NVML_NOT_FOUND, NVML_SUCCESS};
use crate::hooks::nvml::info::{gpu, own_pids, running};
use crate::hooks::nvml::list::{Process, keep};
use crate::names::slot;
use crate::process::Ready;
use crate::real::{self, real};
use core::ffi::{c_int, c_uint, c_ulonglong};
use std::time::{SystemTime, UNIX_EPOCH};

/// nvmlUtilization_t.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct Rates {
    gpu: c_uint,
    memory: c_uint,
}

/// nvmlProcessUtilizationSample_t.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct Sample {
    pid: c_uint,
    time: c_ulonglong,
    /// Multiprocessors, memory, encoder, decoder.
    rates: [c_uint; 4],
}
const _: () = assert!(size_of::<Sample>() == 32);

/// The maximum number of processes that are read.
const ROOM: usize = 1024;
/// How old a sample may be, in microseconds: NVML takes one at least once a second.
const AGE: u64 = 1_000_000;

pub(crate) unsafe fn rates(
    ready: &'static Ready,
    device: usize,
    rates: *mut Rates,
    next: impl FnOnce() -> c_int,
) -> c_int {
    let result = next();
    if let (NVML_SUCCESS, Some(own)) = (result, own(ready, device)) {
        // SAFETY: NVML has written there, so it is not null.
        unsafe { rates.write(own) };
    }
    result
}

/// Returns the utilisation of the share's own processes, or None if NVML cannot distinguish them.
fn own(ready: &'static Ready, device: usize) -> Option<Rates> {
    let own = running(ready, device)?;
    if own.is_empty() {
        return Some(Rates::default());
    }
    if !are_listed(&own, device) {
        return None;
    }
    let mut newest: Vec<Sample> = Vec::new();
    for sample in samples(device)? {
        match newest.iter_mut().find(|known| known.pid == sample.pid) {
            Some(known) if known.time < sample.time => *known = sample,
            Some(_) => {}
            None if own.iter().any(|(pid, _)| *pid == sample.pid) => newest.push(sample),
            None => {}
        }
    }
    let sum = |which: usize| {
        newest
            .iter()
            .fold(0, |sum: u32, s| sum.saturating_add(s.rates[which]))
            .min(100)
    };
    Some(Rates {
        gpu: sum(0),
        memory: sum(1),
    })
}

/// Returns true if NVML lists all of `own`, so that its PIDs are ours.
fn are_listed(own: &[(u32, u64)], device: usize) -> bool {
    let (mut count, mut list) = (ROOM as c_uint, vec![Process::default(); ROOM]);
    let ask = real!(nvmlDeviceGetComputeRunningProcesses_v3);
    // SAFETY: room for as many as `count` says.
    let result = unsafe { ask(device, &mut count, list.as_mut_ptr()) };
    let seen = list.get(..count as usize).unwrap_or_default();
    result == NVML_SUCCESS
        && own
            .iter()
            .all(|(pid, _)| seen.iter().any(|process| process.pid == *pid))
}

/// Returns NVML's samples of the last second; None: NVML has no samples for this GPU.
fn samples(device: usize) -> Option<Vec<Sample>> {
    if !real::has(slot::nvmlDeviceGetProcessUtilization) {
        return None;
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?.as_micros();
    let since = u64::try_from(now).ok()?.saturating_sub(AGE);
    let (mut count, mut list) = (ROOM as c_uint, vec![Sample::default(); ROOM]);
    let ask = real!(nvmlDeviceGetProcessUtilization);
    // SAFETY: room for as many as `count` says.
    match unsafe { ask(device, list.as_mut_ptr(), &mut count, since) } {
        NVML_SUCCESS => {
            list.truncate(count as usize);
            Some(list)
        }
        NVML_NOT_FOUND => Some(Vec::new()),
        _ => None,
    }
}

pub(crate) unsafe fn of_processes(
    ready: &'static Ready,
    device: usize,
    samples: *mut Sample,
    count: *mut c_uint,
    next: impl FnOnce() -> c_int,
) -> c_int {
    if gpu(ready, device).is_some() && count.is_null() {
        return NVML_INVALID_ARGUMENT;
    }
    let result = next();
    if result == NVML_SUCCESS {
        let listed = running(ready, device).is_some_and(|own| are_listed(&own, device));
        let is_own = own_pids(ready, device);
        // SAFETY: NVML has written both.
        unsafe { keep(count, samples, |sample| listed && is_own(sample.pid)) };
        // SAFETY: not null, see above, and written.
        if unsafe { *count } == 0 && !samples.is_null() {
            // NVML's result if there is no sample.
            return NVML_NOT_FOUND;
        }
    }
    result
}
