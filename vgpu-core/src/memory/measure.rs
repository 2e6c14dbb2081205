//! Measures and charges the GPU memory that no driver call reports: contexts, code, static variables and what the
//! limits of contexts reserve. Together they are the overhead of this process on a GPU.
//!
//! ```text
//!  first context: charge the reserve ─► driver call ─► measure ─► charge the overhead
//!                                                             └─► does not fit: undo, out of memory
//!
//!  overhead = what NVML reports for this process - what this process is charged for everything else
//! ```
//!
//! Which process is ours: NVML reports PIDs of its own PID namespace, so `getpid` does not identify this process. It is
//! the one that NVML lists after this process's first context and did not list before.
//!
//! When a measurement is valid: the charge for other memory is made before the driver allocates it and ends after the
//! driver has freed it. While another thread is inside such a call, more is charged than allocated. A measurement would
//! then find too little overhead, and too little would stay charged after that call. So a measurement counts only if no
//! thread is inside such a call and no charge changes ([`crate::calls`]):
//!
//! ```text
//!  block new calls ─► wait until none is running ─► read the charges ─► read NVML's list
//!                  ─► still no call running and the same charges? ─► unblock
//! ```
//!
//! Pools are the exception: the driver grows a pool before it is charged. So pools are read and charged again after
//! NVML's list. New calls are blocked only while charges and list are read, not during the driver call that is
//! measured: it may take seconds, or wait for another thread's call itself.
//!
//! Calls that do not end soon: a free or the launch of a graph may wait for the GPU, and a thread may be stopped or may
//! have ended inside a call. A measurement waits neither for such a call nor for the locks that it holds. What the call
//! may have allocated or freed is at most what is charged but is in no table ([`settled_bytes`]). The overhead then
//! lies between two bounds. The upper bound is charged, and the next measurement corrects it.
//!
//! NVML's list may lack this process for a moment. Such a list is ignored and read again. After the last context the
//! overhead is 0; no list is needed for that.
//!
//! Some charged bytes are not in NVML's figure for this process: imported memory of another process that could not be
//! matched to its export, and memory that is charged twice (`Gpu::surplus`). They are not subtracted from the figure.
//!
//! How it fails:
//! - NVML is missing, lists no processes, or several new processes appear at once: nothing is measured. The first
//!   context is charged the share's reserve, until the last context is gone.
//! - Lazy loading: code that the driver loads later than it was asked to is charged at the next measured call.
//! - Between the driver call and the charge, the GPU holds memory that is not charged.
//! - If a call does not end and the upper bound exceeds the limit, the new context or code is undone, although it might
//!   have fitted.
//!
//! [`settled_bytes`]: super::settled_bytes

use super::charge::charge;
use super::driver::{Driver, OUT_OF_MEMORY, SUCCESS};
use super::gpu::Gpu;
use super::overhead::Overhead;
use super::room;
use super::settled_bytes::SettledBytes;
use super::tables::Tables;
use crate::account::Own;
use crate::calls::{Calls, UnderWay};
use crate::os::spin::{Held, Patience};
use crate::os::thread;
use core::ffi::c_int;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// The functions of NVML that a measurement needs.
pub trait Nvml {
    /// Loads the library, if there is one. The caller holds no lock of this crate.
    fn load(&self);
    /// Returns NVML's handle of GPU `gpu`, or None if NVML is missing.
    fn device(&self, gpu: usize) -> Option<usize>;
    /// Returns the processes on a GPU and the bytes that each holds, or None if NVML does not list them.
    fn processes(&self, device: usize) -> Option<Vec<(u32, u64)>>;
}

/// The process whose memory is measured.
#[derive(Debug)]
pub struct Process<'a, D: 'static, N> {
    pub gpus: &'a Vec<Gpu<D>>,
    pub tables: &'a Tables<D>,
    /// Tracks threads inside calls that may change GPU memory.
    pub calls: &'a Calls,
    pub nvml: N,
    /// The PID by which NVML lists this process; 0: not known yet.
    pub pid: &'a AtomicU32,
}

/// How many lists without this process are read before a measurement gives up.
const ATTEMPTS: u32 = 16;
/// How often a measurement starts again because something changed. New calls are unblocked between two attempts.
const LOOKS: u32 = 256;
/// How long a measurement waits for calls of other threads. It waits for the same calls only once.
const PATIENCE: Duration = Duration::from_millis(100);
/// How often a call that does not fit is measured again, because calls of other threads may have ended meanwhile.
const SECOND_THOUGHTS: u32 = 10;
/// How many lists in a row must have the same one new process before it counts as this one.
const AGREED: u32 = 4;

/// How a call may change the overhead.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Change {
    Takes,
    GivesBack,
    Either,
}

/// The result of one measurement.
enum Look {
    /// The lower and the upper bound of the overhead in bytes. Negative if more is charged than allocated.
    Excess(i64, i64),
    /// The PID of this process in NVML's list is not known yet; these are all PIDs in the list.
    Strangers(Vec<u32>),
    /// NVML could not be asked, or its lists did not allow a measurement.
    Blind,
}

/// Measures the overhead of a GPU. It holds the lock of the overhead, so only one thread measures at a time.
pub struct Measurement<'a, D: 'static, N> {
    process: &'a Process<'a, D, N>,
    gpu: &'a Gpu<D>,
    index: usize,
    overhead: Held<'a, Overhead>,
}

impl<'a, D: Driver, N: Nvml> Measurement<'a, D, N> {
    /// Waits for other measurements of `gpu`, which is GPU `index` of the process.
    pub fn of(process: &'a Process<'a, D, N>, gpu: &'a Gpu<D>, index: usize) -> Self {
        Self {
            process,
            gpu,
            index,
            overhead: gpu.overhead.lock(),
        }
    }

    /// Releases the whole overhead, after the last context was destroyed.
    pub fn clear(&mut self) {
        self.overhead.clear(&self.gpu.account);
    }

    /// Runs `call` and charges what it adds to the overhead. `first`: `call` creates the first context on this GPU, and
    /// this reserve is charged before it. Returns the result of `call`, and false if the new overhead exceeds the
    /// limit.
    pub fn around(&mut self, first: Option<u64>, change: Change, call: impl FnOnce() -> c_int) -> (c_int, bool) {
        let ahead = first.unwrap_or(0);
        if ahead > self.overhead.charge.bytes() {
            match charge(self.gpu, ahead - self.overhead.charge.bytes()) {
                Some(charge) => self.overhead.charge.add(charge),
                None => return (OUT_OF_MEMORY, true),
            }
        }
        // A measurement costs a call of NVML, so there is one before `call` only if its result is used. Only at the
        // first context can a new process in the list be this one; later this process is listed already.
        let is_coming = first.is_some() && self.process.pid.load(Ordering::Relaxed) == 0;
        let before = if is_coming || change == Change::GivesBack {
            self.look(None)
        } else {
            Look::Blind
        };
        let result = call();
        if result != SUCCESS && change == Change::Takes {
            let back = self.overhead.measured;
            self.overhead.charge.set(&self.gpu.account, back);
            return (result, true);
        }
        let known = match &before {
            Look::Strangers(pids) => Some(pids.as_slice()),
            _ => None,
        };
        let start = self.overhead.measured;
        let mut fits = self.settle(change, start, &before, known);
        for _ in 0..SECOND_THOUGHTS {
            if fits || self.overhead.in_vain.is_nobody() {
                break;
            }
            self.overhead.in_vain = UnderWay::default();
            fits = self.settle(change, start, &before, known);
        }
        // A call that only frees memory succeeds, whatever else is charged.
        (result, fits || change == Change::GivesBack)
    }

    /// Measures after a call and charges the result. `start` is the overhead before the call. Returns false if the
    /// result exceeds the limit.
    fn settle(&mut self, change: Change, start: u64, before: &Look, known: Option<&[u32]>) -> bool {
        let Look::Excess(least, most) = self.look(known) else {
            // No measurement: the reserve stays charged, and so does memory that the call may have freed.
            self.overhead.measured = self.overhead.charge.bytes();
            self.overhead.may_fall |= change != Change::Takes;
            return true;
        };
        let all = most.max(0) as u64;
        self.overhead.measured = match (change, before) {
            _ if self.overhead.may_fall => all,
            (Change::Takes, _) => start.max(all),
            (Change::GivesBack, Look::Excess(least_before, _)) => {
                let fallen = start.saturating_add_signed((most - least_before).min(0));
                start.min(all.max(fallen))
            }
            (Change::GivesBack, _) => start.min(all),
            (Change::Either, _) => all,
        };
        self.overhead.may_fall = most > least;
        let target = self.overhead.measured;
        let fits = self.overhead.charge.set(&self.gpu.account, target);
        if !fits {
            room::make_room(self.gpu);
        }
        fits || self.overhead.charge.set(&self.gpu.account, target)
    }

    /// Measures the overhead. `known`: the PIDs in NVML's list before the call, if they are needed to find this
    /// process.
    fn look(&mut self, known: Option<&[u32]>) -> Look {
        let (mut stranger, mut agreed, mut lists) = (0, 0, 0);
        let mut patience = Patience::new(PATIENCE);
        // Before calls are blocked, because opening NVML takes milliseconds.
        let Some(device) = self.process.nvml.device(self.index) else {
            return Look::Blind;
        };
        let calls = self.process.calls;
        for _ in 0..LOOKS {
            let _stopped = calls.stop();
            let (charged, others, is_fresh) = self.stillness(&mut patience);
            let surplus = self.gpu.surplus.load(Ordering::Relaxed);
            let all_else = charged
                .bytes()
                .saturating_sub(self.overhead.charge.bytes())
                .saturating_sub(surplus);
            let settled = (!others.is_nobody() || !is_fresh).then(|| self.settled_bytes());
            let at_stake = settled.map_or(0, |settled| all_else.saturating_sub(settled.bytes));
            let Some(list) = self.process.nvml.processes(device) else {
                return Look::Blind;
            };
            // A pool is charged after it grew: growth while NVML was asked changes the charges here.
            let is_fresh = room::refresh_with(self.gpu, &mut patience);
            let is_still = self.process.calls.under_way() == others
                && self.gpu.account.own() == charged
                && match settled {
                    Some(settled) => self.settled_bytes() == settled,
                    None => is_fresh,
                };
            if self.process.pid.load(Ordering::Relaxed) == 0 {
                let pids = list.iter().map(|(pid, _)| *pid);
                let Some(known) = known else {
                    return Look::Strangers(pids.collect());
                };
                let came: Vec<u32> = pids.filter(|pid| !known.contains(pid)).collect();
                let own = match came.as_slice() {
                    several if several.contains(&std::process::id()) => std::process::id(),
                    // A PID of another namespace. It is ours if it stays the only new one.
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
                self.process.pid.store(own, Ordering::Relaxed);
            }
            let own = self.process.pid.load(Ordering::Relaxed);
            match list.iter().find(|(pid, _)| *pid == own) {
                Some((_, held)) if is_still => {
                    let least = *held as i64 - all_else as i64;
                    return Look::Excess(least, least.saturating_add_unsigned(at_stake));
                }
                Some(_) => {}
                // A list may lack a process for a moment, so this does not mean that it holds no memory.
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

    fn settled_bytes(&self) -> SettledBytes {
        SettledBytes::of(self.process.tables, self.gpu, self.index)
    }

    /// Waits until no other thread is inside a call, or until it has waited long enough. Returns the charges of this
    /// process, the calls that are still running, and false if the charges of pools and graphs could not be updated.
    fn stillness(&mut self, patience: &mut Patience) -> (Own, UnderWay, bool) {
        loop {
            let is_fresh = room::refresh_with(self.gpu, patience);
            // The charges first. A call is marked as running before it charges, so a charge that is seen here belongs
            // to a call that is seen below or has ended.
            let charged = self.gpu.account.own();
            let others = self.process.calls.under_way();
            if others.is_nobody() || others == self.overhead.in_vain || !patience.nap() {
                self.overhead.in_vain = others;
                return (charged, others, is_fresh);
            }
        }
    }
}

/// Runs `call` and charges what it adds to the overhead of GPU `index`. If that does not fit, runs `undo` and returns
/// out of memory.
pub fn measured<D: Driver, N: Nvml>(
    process: &Process<'_, D, N>,
    index: usize,
    change: Change,
    call: impl FnOnce() -> c_int,
    undo: impl FnOnce(),
) -> c_int {
    let Some(gpu) = process.gpus.get(index) else {
        return call();
    };
    let _outside = process.calls.outside(thread());
    process.nvml.load();
    let mut measurement = Measurement::of(process, gpu, index);
    let (result, fits) = measurement.around(None, change, call);
    if fits {
        return result;
    }
    measurement.around(None, Change::GivesBack, || {
        undo();
        SUCCESS
    });
    OUT_OF_MEMORY
}

#[cfg(test)]
mod tests {
    use super::super::fake::{MIB, Scene};
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "maps a file")]
    fn code_is_charged_what_it_takes_and_undone_where_that_does_not_fit() {
        let scene = Scene::new(16 * MIB);
        let process = scene.process();
        let load = |bytes| {
            let (take, undo) = (|| scene.takes(bytes), || scene.gives_back(bytes));
            measured(&process, 0, Change::Takes, take, undo)
        };
        process.pid.store(std::process::id(), Ordering::Relaxed);
        assert_eq!(load(6 * MIB), SUCCESS);
        assert_eq!(load(8 * MIB), SUCCESS);
        assert_eq!(scene.charged(), 14 * MIB);
        assert_eq!(load(4 * MIB), OUT_OF_MEMORY);
        assert_eq!((scene.charged(), scene.held()), (14 * MIB, 14 * MIB));
        let unload = measured(&process, 0, Change::GivesBack, || scene.drops(8 * MIB), || {});
        assert_eq!((unload, scene.charged()), (SUCCESS, 6 * MIB));
        let refused = measured(&process, 0, Change::Takes, || 42, || panic!("nothing was made"));
        assert_eq!((refused, scene.charged()), (42, 6 * MIB));
    }

    #[test]
    #[cfg_attr(miri, ignore = "maps a file")]
    fn memory_that_is_charged_for_something_else_is_no_overhead() {
        let scene = Scene::new(32 * MIB);
        let process = scene.process();
        process.pid.store(std::process::id(), Ordering::Relaxed);
        let charge = scene.gpu().account.reserve(10 * MIB).expect("room");
        scene.takes(10 * MIB);
        let load = measured(&process, 0, Change::Takes, || scene.takes(6 * MIB), || {});
        assert_eq!((load, scene.charged()), (SUCCESS, 16 * MIB));
        scene.gpu().account.release(charge);
        assert_eq!(scene.gpu().overhead.lock().measured, 6 * MIB);
    }

    #[test]
    #[cfg_attr(miri, ignore = "maps a file")]
    fn this_process_is_the_one_that_nvml_lists_after_its_first_context() {
        let scene = Scene::new(32 * MIB);
        let process = scene.process();
        scene.name_as(4711);
        let mut measurement = Measurement::of(&process, scene.gpu(), 0);
        let (result, fits) = measurement.around(Some(Scene::RESERVE), Change::Takes, || scene.takes(10 * MIB));
        assert_eq!(
            (result, fits, process.pid.load(Ordering::Relaxed)),
            (SUCCESS, true, 4711)
        );
        assert_eq!(scene.charged(), 10 * MIB);
    }
}
