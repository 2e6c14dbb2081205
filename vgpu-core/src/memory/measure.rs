//! The memory that contexts, code, static variables and the limits of contexts take: measured, because no call
//! returns it.
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
//! charged and lies in no table ([`settled_bytes`]). The overhead then lies between two bounds, the greater is
//! charged, and the next look corrects it.
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

/// NVML, as far as memory is measured with it.
pub trait Nvml {
    /// Loads the library, if there is one. No lock of ours is held.
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
    /// Which threads are in calls that may change what the GPUs hold.
    pub calls: &'a Calls,
    pub nvml: N,
    /// What NVML calls this process; 0: not known yet.
    pub pid: &'a AtomicU32,
}

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

/// What a call may do to the overhead.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Change {
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

/// The right to measure the overhead of a GPU, which one thread at a time has.
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

    /// After the last context went; nothing is left of it.
    pub fn clear(&mut self) {
        self.overhead.clear(&self.gpu.account);
    }

    /// Calls `call`, measured. `first`: it makes the first context on this GPU, for which so much is charged before.
    /// Returns the result of the call, and false if what it took does not fit.
    pub fn around(&mut self, first: Option<u64>, change: Change, call: impl FnOnce() -> c_int) -> (c_int, bool) {
        let ahead = first.unwrap_or(0);
        if ahead > self.overhead.charge.bytes() {
            match charge(self.gpu, ahead - self.overhead.charge.bytes()) {
                Some(charge) => self.overhead.charge.add(charge),
                None => return (OUT_OF_MEMORY, true),
            }
        }
        // Asked for only where it counts: each look is a call of NVML. Who is new beside a first context may be
        // this process; later it has long been listed, and who is new is another.
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
        // What went is not refused for what else is there.
        (result, fits || change == Change::GivesBack)
    }

    /// Charges what is there after a call; `start`: what was there before. Returns false if that does not fit.
    fn settle(&mut self, change: Change, start: u64, before: &Look, known: Option<&[u32]>) -> bool {
        let Look::Excess(least, most) = self.look(known) else {
            // Not seen: what was charged ahead stays, and what went is still charged.
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

    fn look(&mut self, known: Option<&[u32]>) -> Look {
        let (mut stranger, mut agreed, mut lists) = (0, 0, 0);
        let mut patience = Patience::new(PATIENCE);
        // Before others are stopped: to open NVML takes milliseconds.
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
            // A pool is charged after it grew: who was at it while NVML was asked shows now.
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
                self.process.pid.store(own, Ordering::Relaxed);
            }
            let own = self.process.pid.load(Ordering::Relaxed);
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

    fn settled_bytes(&self) -> SettledBytes {
        SettledBytes::of(self.process.tables, self.gpu, self.index)
    }

    /// What this process is charged when no other thread is in a call, or who still is; and whether that is what
    /// pools and graphs reserve.
    fn stillness(&mut self, patience: &mut Patience) -> (Own, UnderWay, bool) {
        loop {
            let is_fresh = room::refresh_with(self.gpu, patience);
            // In this order: a call that began before it charged is under way then.
            let charged = self.gpu.account.own();
            let others = self.process.calls.under_way();
            if others.is_nobody() || others == self.overhead.in_vain || !patience.nap() {
                self.overhead.in_vain = others;
                return (charged, others, is_fresh);
            }
        }
    }
}

/// Calls `call` with what it takes on GPU `index` charged. Where that does not fit, `undo` takes it back.
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
