//! What contexts, code, static variables and the limits of contexts take: measured, for no call tells.
//!
//! ```text
//!  the driver's call
//!  what NVML says of this process - what is charged for all else ─► charged, or undone and out of memory
//! ```
//!
//! NVML names processes by PIDs of its own namespace, so this process is recognised by its coming: it is
//! the one that NVML lists after the process's first context and did not list before.
//!
//! What is charged for all else is reserved before the driver takes it and given back after (pools are
//! asked again, and charged, after each look), so a call that another thread is in makes the overhead look
//! smaller, never larger, if no charge changed while NVML was asked. Where there is no such moment, nothing
//! is measured: where other threads allocate without a pause, what a call took may not be charged, and what
//! one gave back may stay charged, until the next call that is measured. The difference of a look before
//! the call and one after is no measure: the first may be too small.
//!
//! A list that lacks this process tells nothing, and is asked for again; after the last context nothing
//! is left, and no list is needed to know that.
//!
//! How it fails: NVML is missing, does not list processes, or several came at once: nothing is measured,
//! and the first context is charged the share's reserve until the last is gone. Code that the driver
//! loads later than it was asked to (lazy loading) is charged at the next call that is measured.
//! Between the driver's call and the charge, the GPU holds what is not charged yet.

use crate::detour::{NVML_SUCCESS, OUT_OF_MEMORY, SUCCESS};
use crate::hooks::level::Level;
use crate::hooks::nvml_info::Process;
use crate::hooks::{graphs, memory, nvml_devices, pools};
use crate::names::slot;
use crate::real::{self, real};
use crate::state::{Gpu, Ready};
use core::ffi::{c_int, c_uint};
use std::sync::atomic::Ordering;

/// How often NVML is asked for a list that has this process in it, at a moment without changes.
const ATTEMPTS: u32 = 16;
/// How many lists in a row must show the same new process before it is taken for this one.
const AGREED: u32 = 4;

/// What one GPU's contexts and code are charged.
#[derive(Debug, Default)]
pub(crate) struct Overhead {
    level: Level,
    measured: u64,
    /// Something was given back, and how much was not seen.
    fell: bool,
}

/// What a call may do to the overhead.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    Takes,
    GivesBack,
    Either,
}

/// One look at what NVML says.
enum Look {
    /// Bytes that are not charged for anything else; below 0 where more is charged than the GPU holds.
    Excess(i64),
    /// We do not know yet which process is ours: those that there are.
    Strangers(Vec<u32>),
    Blind,
}

impl Overhead {
    /// Calls `call`, measured. `first`: it makes the first context on this GPU, for which so much
    /// is charged before; answers its result, and whether what it took is charged.
    pub(crate) fn around(
        &mut self,
        ready: &'static Ready,
        gpu: &Gpu,
        first: Option<u64>,
        change: Change,
        call: impl FnOnce() -> c_int,
    ) -> (c_int, bool) {
        let ahead = first.unwrap_or(0);
        if ahead > self.level.bytes() {
            match memory::charge(gpu, ahead - self.level.bytes()) {
                Some(charge) => self.level.add(charge),
                None => return (OUT_OF_MEMORY, true),
            }
        }
        // Asked for only where it counts: each look is a call of NVML. Who is new beside a first context may be
        // this process; later it has long been listed, and who is new is another.
        let is_coming = first.is_some() && ready.nvml_pid.load(Ordering::Relaxed) == 0;
        let before = if is_coming || change == Change::GivesBack {
            self.look(ready, gpu, None)
        } else {
            Look::Blind
        };
        let result = call();
        if result != SUCCESS && change == Change::Takes {
            let back = self.measured;
            self.level.set(gpu, back);
            return (result, true);
        }
        let known = match &before {
            Look::Strangers(pids) => Some(pids.as_slice()),
            _ => None,
        };
        let after = self.look(ready, gpu, known);
        let Look::Excess(after) = after else {
            // Not seen: what was charged ahead stays, and what went is still charged.
            self.measured = self.level.bytes();
            self.fell |= change != Change::Takes;
            return (result, true);
        };
        let all = after.max(0) as u64;
        let change = if core::mem::take(&mut self.fell) {
            Change::Either
        } else {
            change
        };
        self.measured = match (change, &before) {
            (Change::Takes, _) => self.measured.max(all),
            // Both may be too small.
            (Change::GivesBack, Look::Excess(before)) => {
                let fallen = self.measured.saturating_add_signed((after - before).min(0));
                self.measured.min(all.max(fallen))
            }
            (Change::GivesBack, _) => self.measured.min(all),
            (Change::Either, _) => all,
        };
        let target = self.measured;
        let fits = self.level.set(gpu, target);
        if !fits {
            memory::make_room(gpu);
        }
        (result, fits || self.level.set(gpu, target))
    }

    /// After the last context went; nothing is left of it.
    pub(crate) fn clear(&mut self, gpu: &Gpu) {
        *self = Self {
            level: core::mem::take(&mut self.level),
            ..Self::default()
        };
        self.level.set(gpu, 0);
    }

    fn look(&self, ready: &'static Ready, gpu: &Gpu, known: Option<&[u32]>) -> Look {
        let (mut stranger, mut agreed) = (0, 0);
        refresh(gpu);
        for _ in 0..ATTEMPTS {
            let charged = gpu.account.own();
            let Some(list) = processes(ready, gpu) else {
                return Look::Blind;
            };
            // A pool is charged after it grew: who was at it while NVML was asked shows now.
            refresh(gpu);
            let is_still = gpu.account.own() == charged;
            if ready.nvml_pid.load(Ordering::Relaxed) == 0 {
                let pids = list.iter().map(|(pid, _)| *pid);
                let Some(known) = known else {
                    return Look::Strangers(pids.collect());
                };
                let came: Vec<u32> = pids.filter(|pid| !known.contains(pid)).collect();
                let own = match came.as_slice() {
                    several if several.contains(&std::process::id()) => std::process::id(),
                    // Another namespace's name for this process, if it stays the only one.
                    [one] => {
                        agreed = if *one == stranger { agreed + 1 } else { 1 };
                        stranger = *one;
                        if agreed < AGREED {
                            continue;
                        }
                        stranger
                    }
                    _ => {
                        agreed = 0;
                        continue;
                    }
                };
                ready.nvml_pid.store(own, Ordering::Relaxed);
            }
            let own = ready.nvml_pid.load(Ordering::Relaxed);
            // A list may miss a process for a moment: that it is not there says nothing.
            if let (true, Some((_, held))) = (is_still, list.iter().find(|(pid, _)| *pid == own)) {
                let others = charged.bytes().saturating_sub(self.level.bytes());
                return Look::Excess(*held as i64 - others as i64);
            }
        }
        Look::Blind
    }
}

fn refresh(gpu: &Gpu) {
    pools::refresh(gpu);
    graphs::refresh(gpu);
}

/// The processes on a GPU and what they hold, as NVML has them.
fn processes(ready: &'static Ready, gpu: &Gpu) -> Option<Vec<(u32, u64)>> {
    let newest = slot::nvmlDeviceGetComputeRunningProcesses_v3;
    let list = if real::has(newest) {
        real!(nvmlDeviceGetComputeRunningProcesses_v3(usize, *mut c_uint, *mut Process))
    } else {
        real!(nvmlDeviceGetComputeRunningProcesses_v2(usize, *mut c_uint, *mut Process))
    };
    nvml_devices::keep_open(ready).then_some(())?;
    let index = ready.gpus.iter().position(|one| core::ptr::eq(one, gpu))?;
    let device = nvml_devices::list(ready)
        .into_iter()
        .find(|device| device.gpu == index)?
        .handle;
    let mut found = vec![Process::default(); 64];
    loop {
        let mut count = found.len() as c_uint;
        // SAFETY: room for as many as `count` says.
        let result = unsafe { list(device, &mut count, found.as_mut_ptr()) };
        match result {
            NVML_SUCCESS => {
                let seen = found.iter().take(count as usize);
                return Some(seen.map(|process| (process.pid, process.used)).collect());
            }
            crate::detour::NVML_INSUFFICIENT_SIZE if found.len() < 1 << 14 => {
                found.resize(found.len() * 4, Process::default());
            }
            _ => return None,
        }
    }
}

/// Calls `call` with what it takes on the GPU of the current context charged; `undo` takes it back.
pub(crate) fn measured(
    ready: &'static Ready,
    change: Change,
    call: impl FnOnce() -> c_int,
    undo: impl FnOnce(),
) -> c_int {
    let Some(gpu) = ready.current().and_then(|gpu| ready.gpus.get(gpu)) else {
        return call();
    };
    real::need_nvml();
    let mut overhead = gpu.overhead.lock();
    let (result, fits) = overhead.around(ready, gpu, None, change, call);
    if fits {
        return result;
    }
    overhead.around(ready, gpu, None, Change::GivesBack, || {
        undo();
        SUCCESS
    });
    OUT_OF_MEMORY
}
