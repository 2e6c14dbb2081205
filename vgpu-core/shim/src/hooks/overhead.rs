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
//! smaller than it is, and once that call has ended too little would be charged. So a look counts while no
//! thread is in such a call and no charge changes ([`vgpu_core::calls`]); others wait with their next call
//! meanwhile, but not while the driver does what is measured, which may take seconds, or wait for them.
//!
//! ```text
//!  stop ─► those under way end ─► charged? ─► NVML's list ─► still nobody under way, charged as before ─► go on
//! ```
//!
//! A call that does not end soon (a free or the launch of a graph waits for the GPU; its thread is not running, or
//! ended in it) is not waited for, nor are the locks that it holds: what it may have taken or given back is what is
//! charged and lies in no table ([`at_rest`]). The overhead then lies between two bounds, the greater is charged, and
//! the next look corrects it.
//!
//! A list that lacks this process tells nothing, and is asked for again; after the last context nothing
//! is left, and no list is needed to know that.
//!
//! How it fails: NVML is missing, does not list processes, or several came at once: nothing is measured,
//! and the first context is charged the share's reserve until the last is gone. Code that the driver
//! loads later than it was asked to (lazy loading) is charged at the next call that is measured.
//! Between the driver's call and the charge, the GPU holds what is not charged yet. Where a call that does not
//! end keeps the greater bound from fitting, what was made is undone although it might have fitted.
//!
//! Memory of another process that is charged here too, for it could not be recognised, is not in the list's
//! figure of this one, nor is what is charged twice; so it is not taken from that.
//!
//! [`at_rest`]: super::at_rest

use crate::codes::{NVML_SUCCESS, OUT_OF_MEMORY, SUCCESS};
use crate::hooks::at_rest::AtRest;
use crate::hooks::level::{self, Level};
use crate::hooks::nvml_info::Process;
use crate::hooks::{memory, nvml_devices};
use crate::names::slot;
use crate::process::{Gpu, Ready};
use crate::real::{self, real};
use core::ffi::{c_int, c_uint};
use std::sync::atomic::Ordering;
use std::time::Duration;
use vgpu_core::account::Own;
use vgpu_core::calls::UnderWay;
use vgpu_core::os::spin::Patience;
use vgpu_core::os::thread;

/// How often NVML is asked for a list that has this process in it.
const ATTEMPTS: u32 = 16;
/// How often a look begins anew because something changed: calls that were stopped too long go on meanwhile.
const LOOKS: u32 = 256;
/// How long others' calls are waited for; for the same ones only once.
const PATIENCE: Duration = Duration::from_millis(100);
/// How many looks more before something is refused that may fit once others' calls have ended.
const SECOND_THOUGHTS: u32 = 10;
/// How many lists in a row must show the same new process before it is taken for this one.
const AGREED: u32 = 4;

/// What one GPU's contexts and code are charged.
#[derive(Debug, Default)]
pub(crate) struct Overhead {
    level: Level,
    measured: u64,
    /// It may be less than what is charged: something was given back unseen, or a call did not end.
    may_fall: bool,
    /// Calls of others that were waited for in vain.
    in_vain: UnderWay,
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
    /// Bytes that are not charged for anything else, at least and at most; below 0 where more is charged than
    /// the GPU holds.
    Excess(i64, i64),
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
        let start = self.measured;
        let mut fits = self.settle(ready, gpu, change, start, &before, known);
        for _ in 0..SECOND_THOUGHTS {
            if fits || self.in_vain.is_nobody() {
                break;
            }
            self.in_vain = UnderWay::default();
            fits = self.settle(ready, gpu, change, start, &before, known);
        }
        // What went is not refused for what else is there.
        (result, fits || change == Change::GivesBack)
    }

    /// Charges what is there after a call, `start` before; false: that is not free.
    fn settle(
        &mut self,
        ready: &'static Ready,
        gpu: &Gpu,
        change: Change,
        start: u64,
        before: &Look,
        known: Option<&[u32]>,
    ) -> bool {
        let Look::Excess(least, most) = self.look(ready, gpu, known) else {
            // Not seen: what was charged ahead stays, and what went is still charged.
            self.measured = self.level.bytes();
            self.may_fall |= change != Change::Takes;
            return true;
        };
        let all = most.max(0) as u64;
        self.measured = match (change, before) {
            _ if self.may_fall => all,
            (Change::Takes, _) => start.max(all),
            (Change::GivesBack, Look::Excess(least_before, _)) => {
                let fallen = start.saturating_add_signed((most - least_before).min(0));
                start.min(all.max(fallen))
            }
            (Change::GivesBack, _) => start.min(all),
            (Change::Either, _) => all,
        };
        self.may_fall = most > least;
        let target = self.measured;
        let fits = self.level.set(gpu, target);
        if !fits {
            memory::make_room(gpu);
        }
        fits || self.level.set(gpu, target)
    }

    /// After the last context went; nothing is left of it.
    pub(crate) fn clear(&mut self, gpu: &Gpu) {
        *self = Self {
            level: core::mem::take(&mut self.level),
            ..Self::default()
        };
        self.level.set(gpu, 0);
    }

    fn look(&mut self, ready: &'static Ready, gpu: &Gpu, known: Option<&[u32]>) -> Look {
        let (mut stranger, mut agreed, mut lists) = (0, 0, 0);
        let mut patience = Patience::new(PATIENCE);
        // Before others are stopped: to open NVML takes milliseconds.
        let Some(device) = device(ready, gpu) else {
            return Look::Blind;
        };
        for _ in 0..LOOKS {
            let _stopped = ready.calls.stop();
            let (charged, others, is_fresh) = self.stillness(ready, gpu, &mut patience);
            let surplus = gpu.surplus.load(Ordering::Relaxed);
            let all_else = charged
                .bytes()
                .saturating_sub(self.level.bytes())
                .saturating_sub(surplus);
            let at_rest = (!others.is_nobody() || !is_fresh).then(|| AtRest::of(ready, gpu));
            let at_stake = at_rest.map_or(0, |at_rest| all_else.saturating_sub(at_rest.bytes));
            let Some(list) = processes(device) else {
                return Look::Blind;
            };
            // A pool is charged after it grew: who was at it while NVML was asked shows now.
            let is_fresh = level::refresh_with(gpu, &mut patience);
            let is_still = ready.calls.under_way() == others
                && gpu.account.own() == charged
                && match at_rest {
                    Some(at_rest) => AtRest::of(ready, gpu) == at_rest,
                    None => is_fresh,
                };
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
                        lists += 1;
                        if lists == ATTEMPTS {
                            break;
                        }
                        continue;
                    }
                };
                ready.nvml_pid.store(own, Ordering::Relaxed);
            }
            let own = ready.nvml_pid.load(Ordering::Relaxed);
            match list.iter().find(|(pid, _)| *pid == own) {
                Some((_, held)) if is_still => {
                    let least = *held as i64 - all_else as i64;
                    return Look::Excess(least, least.saturating_add_unsigned(at_stake));
                }
                Some(_) => {}
                // A list may miss a process for a moment: that it is not there says nothing.
                None => {
                    lists += 1;
                    if lists == ATTEMPTS {
                        break;
                    }
                }
            }
        }
        Look::Blind
    }

    /// What this process is charged when no other thread is in a call, or who still is; and whether that is what
    /// pools and graphs reserve.
    fn stillness(&mut self, ready: &Ready, gpu: &Gpu, patience: &mut Patience) -> (Own, UnderWay, bool) {
        loop {
            let is_fresh = level::refresh_with(gpu, patience);
            // In this order: a call that began before it charged is under way then.
            let charged = gpu.account.own();
            let others = ready.calls.under_way();
            if others.is_nobody() || others == self.in_vain || !patience.nap() {
                self.in_vain = others;
                return (charged, others, is_fresh);
            }
        }
    }
}

/// NVML's handle of a GPU, if NVML was there before our locks were taken.
fn device(ready: &'static Ready, gpu: &Gpu) -> Option<usize> {
    (real::has_nvml() && nvml_devices::keep_open(ready)).then_some(())?;
    let index = ready.gpus.iter().position(|one| core::ptr::eq(one, gpu))?;
    let devices = nvml_devices::list(ready).into_iter();
    devices
        .filter(|device| device.gpu == index)
        .map(|device| device.handle)
        .next()
}

/// The processes on a GPU and what they hold, as NVML has them.
fn processes(device: usize) -> Option<Vec<(u32, u64)>> {
    let newest = slot::nvmlDeviceGetComputeRunningProcesses_v3;
    let list = if real::has(newest) {
        real!(nvmlDeviceGetComputeRunningProcesses_v3(usize, *mut c_uint, *mut Process))
    } else {
        real!(nvmlDeviceGetComputeRunningProcesses_v2(usize, *mut c_uint, *mut Process))
    };
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
            crate::codes::NVML_INSUFFICIENT_SIZE if found.len() < 1 << 14 => {
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
    let _outside = ready.calls.outside(thread());
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
