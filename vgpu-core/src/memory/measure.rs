//! Measures and charges the GPU memory that no driver call reports: contexts, code, static variables and what the
//! limits of contexts reserve. Together they are the overhead of this process on a GPU.
//!
//! ```text
//!  charge what it will take ─► driver call ─► measure ─► charge what it took
//!   └─► does not fit: out of memory,         ├─► does not fit: undo, out of memory
//!       the driver is not asked              └─► not measured: what was charged ahead stays
//!
//!  overhead = what NVML reports for this process - what this process is charged for everything else
//! ```
//!
//! An unknown size does not allow anything: what a call is expected to take is charged before the call ([`expected`]).
//! If NVML does not show this process afterwards, that charge stays until the context, code or limit is gone.
//!
//! Which process is ours: NVML reports PIDs of its own PID namespace, so `getpid` does not identify this process. When
//! it creates its first context, it allocates some memory for a moment and checks which listed process grew
//! ([`beacon`]).
//!
//! When a measurement is valid: the charge for other memory is made before the driver allocates it and ends after the
//! driver has freed it. While another thread is inside such a call, more is charged than allocated. A measurement would
//! then find too little overhead, and too little would stay charged after that call. So a measurement is valid only if
//! no thread is inside such a call and no charge changes ([`crate::calls`]):
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
//! Some charged bytes are not in NVML's figure for this process: managed memory, imported memory of another process that
//! could not be matched to its export, and memory that is charged twice (`Gpu::surplus`). They are not subtracted from the
//! figure.
//!
//! A call inside a measured one: the driver may call back into the program (a profiler, an injected library), and the
//! program may load code or create a context. This is charged ahead, and corrected by the next measurement, which may
//! be that of the outer call.
//!
//! How it fails:
//! - NVML is missing, lists no processes, or does not list this process: nothing is measured. The charges ahead of
//!   contexts, limits and code stay; they may be more or less than these take. The next context is another chance to
//!   find this process.
//! - Another process is mistaken for this one. It is forgotten as soon as its figure cannot be ours.
//! - Lazy loading: code that the driver loads later than the program asked for is charged at the next measured call, or
//!   when [`again`] is called ([`growth`](super::growth)).
//! - If a call takes more than was charged ahead, the difference is not charged between the driver call and the
//!   measurement. This can happen with code of unknown size, or a context larger than any before on this GPU.
//! - If a call does not end and the upper bound exceeds the limit, the new context or code is undone, although it might
//!   have fitted.
//!
//! [`beacon`]: super::beacon
//! [`expected`]: super::expected
//! [`settled_bytes`]: super::settled_bytes

use super::beacon::{self, Beacon, Search};
use super::charge::charge_now;
use super::driver::{Driver, OUT_OF_MEMORY, SUCCESS};
use super::expected::{self, Ahead};
use super::first_contexts::FirstContexts;
use super::gpu::Gpu;
use super::granule::{GRANULE, granules};
use super::growth::Found;
use super::overhead::{Overhead, Reserved, Thing};
use super::settled_bytes::SettledBytes;
use super::tables::Tables;
use super::{refusal, room};
use crate::account::Own;
use crate::calls::{Calls, UnderWay};
use crate::log;
use crate::os::spin::{Entered, Patience};
use crate::os::{errno, monotonic_ns, thread};
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

/// How much effort a measurement makes.
#[derive(Clone, Copy)]
struct Effort {
    /// How many lists without this process are read before it gives up.
    lists: u32,
    /// How often the measurement is repeated because something changed meanwhile. New calls are unblocked between two
    /// attempts.
    looks: u32,
    /// How long the measurement waits for calls of other threads. It waits for the same calls only once.
    patience: Duration,
}

/// For a call whose result depends on the measurement.
const FULL: Effort = Effort {
    lists: 16,
    looks: 256,
    patience: Duration::from_millis(100),
};
/// For a measurement that can be made at another time: it waits for nobody.
const LEAST: Effort = Effort {
    lists: 1,
    looks: 4,
    patience: Duration::ZERO,
};
/// How often a call whose result does not fit is measured again: calls of other threads may have ended meanwhile.
const SECOND_THOUGHTS: u32 = 10;
/// The number of code files whose measured size is remembered.
const CODES: usize = if cfg!(test) { 8 } else { 4096 };

/// How a call may change the overhead.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Change {
    Takes,
    GivesBack,
    Either,
}

/// The result of one measurement.
enum Look {
    /// The lower and the upper bound of the overhead in bytes. Negative if more is charged than allocated.
    Excess(i64, i64),
    /// NVML could not be asked, its lists did not allow a measurement, or this process is not known there.
    Blind,
}

/// Measures the overhead of a GPU. It holds the lock of the overhead, so only one thread measures at a time.
pub struct Measurement<'a, D: 'static, N> {
    process: &'a Process<'a, D, N>,
    gpu: &'a Gpu<D>,
    index: usize,
    /// Is not borrowed during a call of the driver, which may call the program back.
    overhead: Entered<'a, Overhead>,
    /// The measurement would be made inside another call of this thread, from a callback of the driver. Its result
    /// would be wrong, because that call has charged memory that it has not allocated yet.
    is_nested: bool,
    effort: Effort,
    /// The context that is being created is a green one.
    pub is_green: bool,
    /// The expected overhead before the last [`Measurement::take`].
    before: u64,
}

impl<'a, D: Driver, N: Nvml> Measurement<'a, D, N> {
    /// Waits for other measurements of `gpu`, which is GPU `index` of the process.
    pub fn of(process: &'a Process<'a, D, N>, gpu: &'a Gpu<D>, index: usize) -> Self {
        let overhead = gpu.overhead.lock();
        Self {
            process,
            gpu,
            index,
            is_nested: overhead.is_nested() || process.calls.is_within(thread()),
            overhead,
            effort: FULL,
            is_green: false,
            before: 0,
        }
    }

    /// Releases the whole overhead, after the last context was destroyed.
    pub fn clear(&mut self) {
        self.overhead.borrow_mut().clear(&self.gpu.account);
    }

    /// Calls `undo` for the thing that did not fit, and releases its charge.
    pub fn undo(&mut self, undo: impl FnOnce() -> c_int) {
        let before = self.before;
        let took = self.overhead.borrow().expected().saturating_sub(before);
        refusal::by_limit(self.gpu, took);
        let mut result = SUCCESS;
        let call = || {
            result = undo();
            result
        };
        self.give_back(None, call, || true);
        // Not measured, or the list is late. `undo` has succeeded, so the overhead is what it was before.
        let mut overhead = self.overhead.borrow_mut();
        if result == SUCCESS && overhead.may_fall && overhead.expected() > before {
            overhead.set_measured(before);
            overhead.charge.set(&self.gpu.account, before);
        }
    }

    /// Charges what `call` is expected to take, runs it, and corrects the charge by a measurement. `is_first`: `call`
    /// creates the first context on this GPU. `thing` returns what `call` has created. Returns the result of `call`,
    /// and false if the new overhead exceeds the limit. If the charge ahead does not fit, `call` is not run.
    pub fn take(
        &mut self,
        ahead: Ahead,
        is_first: bool,
        call: impl FnOnce() -> c_int,
        thing: impl FnOnce() -> Thing,
    ) -> (c_int, bool) {
        if self.is_nested {
            return (self.take_nested(ahead, call, thing), true);
        }
        let start = self.overhead.borrow().expected();
        self.before = start;
        let Some((bytes, reserved)) = self.charge_ahead(ahead, start) else {
            return (OUT_OF_MEMORY, true);
        };
        // A measurement costs a call of NVML. One before `call` is made only if it is needed: for code not seen before,
        // whose size is remembered. Otherwise that size would include other code that was loaded since the last
        // measurement.
        let is_new = matches!(ahead, Ahead::Code(code) if code.fingerprint != 0 && !self.overhead.borrow().code_took.contains_key(&code.fingerprint));
        let before = if is_new { self.look() } else { Look::Blind };
        let result = call();
        if result != SUCCESS {
            if result == OUT_OF_MEMORY {
                refusal::by_driver(self.gpu, bytes);
            }
            // Restores the charge from before the call, plus what nested calls have added.
            self.charge_expected();
            return (result, true);
        }
        let thing = thing();
        let change = match ahead {
            Ahead::Limit(_) => Change::Either,
            _ => Change::Takes,
        };
        let is_exact = !self.overhead.borrow().may_fall;
        let after = match thing {
            Thing::Context(context) if !self.is_seen() => self.first_look(context),
            _ => self.look(),
        };
        let Some(mut fits) = self.settle(change, start, &before, &after) else {
            self.overhead.borrow_mut().keep(thing, reserved);
            let fits = self.charge_expected();
            return (SUCCESS, fits || bytes == 0);
        };
        for _ in 0..SECOND_THOUGHTS {
            if fits || self.overhead.borrow().in_vain.is_nobody() {
                break;
            }
            self.overhead.borrow_mut().in_vain = UnderWay::default();
            let after = self.look();
            fits = self.settle(change, start, &before, &after) == Some(true);
        }
        if is_exact && !self.overhead.borrow().may_fall {
            match before {
                Look::Excess(least, most) if least == most => self.learn(ahead, most.max(0).unsigned_abs()),
                // Before its first context, the process held nothing.
                _ if is_first => self.learn(ahead, start),
                _ => {}
            }
        }
        (SUCCESS, fits)
    }

    /// Runs `call`, which only frees memory, and releases what it freed. `thing`: what `call` ends, if
    /// [`Measurement::take`] created it. `is_gone` returns false if it did not end after all.
    pub fn give_back(
        &mut self,
        thing: Option<Thing>,
        call: impl FnOnce() -> c_int,
        is_gone: impl FnOnce() -> bool,
    ) -> c_int {
        if self.is_nested {
            let result = call();
            if result == SUCCESS {
                self.forget(thing.filter(|_| is_gone()));
                // If nested, the charge includes what the outer call has charged ahead.
                if !self.overhead.is_nested() {
                    self.charge_expected();
                }
            }
            return result;
        }
        let start = self.overhead.borrow().expected();
        let before = self.look();
        let result = call();
        let after = self.look();
        if self.settle(Change::GivesBack, start, &before, &after).is_none() {
            self.forget(thing.filter(|_| result == SUCCESS && is_gone()));
            self.charge_expected();
        }
        result
    }

    /// Forgets `thing`, which is gone after an unmeasured call that may have freed memory.
    fn forget(&mut self, thing: Option<Thing>) {
        let mut overhead = self.overhead.borrow_mut();
        overhead.may_fall = true;
        thing.into_iter().for_each(|thing| overhead.forget(thing));
    }

    /// Charges the expected overhead. Returns false if that much is not free.
    fn charge_expected(&mut self) -> bool {
        let mut overhead = self.overhead.borrow_mut();
        let expected = overhead.expected();
        overhead.charge.set(&self.gpu.account, expected)
    }

    /// Charges ahead only. The next measurement corrects the charge: that of the outer call, if the outer call is
    /// measured.
    fn take_nested(&mut self, ahead: Ahead, call: impl FnOnce() -> c_int, thing: impl FnOnce() -> Thing) -> c_int {
        // Starts from the charge, not from the expected overhead: the charge includes what the outer call has charged
        // ahead.
        let start = self.overhead.borrow().charge.bytes();
        let Some((_, reserved)) = self.charge_ahead(ahead, start) else {
            return OUT_OF_MEMORY;
        };
        let result = call();
        if result == SUCCESS {
            let thing = thing();
            self.overhead.borrow_mut().keep(thing, reserved);
        } else {
            self.overhead.borrow_mut().charge.set(&self.gpu.account, start);
        }
        result
    }

    /// Charges what a call is expected to take, in addition to `start` bytes. Returns the result of
    /// [`Measurement::bytes_of`], or None if it does not fit.
    fn charge_ahead(&mut self, ahead: Ahead, start: u64) -> Option<(u64, Reserved)> {
        let mut first_contexts = FirstContexts::awaited();
        loop {
            // Computed each time, because the size of a context may have become known.
            let (bytes, reserved) = self.bytes_of(ahead);
            if bytes == 0 || self.reserve(start.saturating_add(bytes)) {
                return Some((bytes, reserved));
            }
            if !self.is_nested && first_contexts.wait(self.gpu) {
                continue;
            }
            match ahead {
                // Code that will be measured only needs room for the size declared in its file.
                Ahead::Code(code)
                    if self.is_seen() && !self.overhead.borrow().code_took.contains_key(&code.fingerprint) =>
                {
                    let declared = granules(code.bytes)?;
                    let mut lesser = (1..=bytes.saturating_sub(declared) / GRANULE).map(|less| bytes - less * GRANULE);
                    let fits = lesser.any(|less| self.reserve(start.saturating_add(less)));
                    if !fits {
                        refusal::by_limit(self.gpu, declared);
                    }
                    return fits.then_some((bytes, reserved));
                }
                _ => {
                    refusal::by_limit(self.gpu, bytes);
                    return None;
                }
            }
        }
    }

    /// Returns true if NVML has listed this process.
    fn is_seen(&self) -> bool {
        self.process.pid.load(Ordering::Relaxed) != 0
    }

    /// Returns what to charge ahead of a call, and which part of it the created thing keeps if it cannot be measured.
    fn bytes_of(&self, ahead: Ahead) -> (u64, Reserved) {
        let account = &self.gpu.account;
        let (bytes, base) = match ahead {
            Ahead::Context => {
                let took = self.overhead.borrow().context_took.max(account.context_took());
                let limit = account.device_limit();
                let bytes = expected::context(self.gpu.context_reserve, took, limit);
                (bytes.saturating_add(self.process.tables.libraries.charge()), 0)
            }
            Ahead::Limit(limit) => {
                let (from, reserved) = self.overhead.borrow().base(limit.thing(), limit.now);
                (expected::growth(&limit, from).saturating_sub(reserved), from)
            }
            Ahead::Code(code) => {
                let overhead = self.overhead.borrow();
                let took = overhead.code_took.get(&code.fingerprint).copied();
                let bytes = expected::code(&code, took, overhead.known_code());
                if took.is_none() && code.is_known {
                    let reserved = Reserved {
                        bytes: code.bytes,
                        base: 0,
                        is_known: true,
                    };
                    return (bytes, reserved);
                }
                (bytes, 0)
            }
        };
        let reserved = Reserved {
            bytes,
            base,
            is_known: false,
        };
        (bytes, reserved)
    }

    /// Raises the charge of the overhead to at least `bytes`. Returns false if they are not free.
    fn reserve(&mut self, bytes: u64) -> bool {
        let charged = self.overhead.borrow().charge.bytes();
        if bytes <= charged {
            return true;
        }
        let more = charge_now(self.gpu, bytes - charged);
        let fits = more.is_some();
        more.into_iter()
            .for_each(|more| self.overhead.borrow_mut().charge.add(more));
        fits
    }

    /// Remembers the measured size of something, even if it did not fit: this size will be charged ahead of the next
    /// one of its kind. `before`: the overhead before it.
    fn learn(&mut self, ahead: Ahead, before: u64) {
        let took = self.overhead.borrow().measured.saturating_sub(before);
        match ahead {
            Ahead::Context if expected::plausible(self.gpu.context_reserve, Some(took)).is_none() => {}
            // The size includes libraries that waited for a context, so it is not remembered.
            Ahead::Context if self.process.tables.libraries.charge() > 0 => {}
            Ahead::Context => {
                let mut overhead = self.overhead.borrow_mut();
                overhead.context_took = overhead.context_took.max(Some(took));
                self.gpu.account.note_context_took(took);
            }
            Ahead::Code(code) if code.fingerprint != 0 => {
                let known = &mut self.overhead.borrow_mut().code_took;
                if known.len() >= CODES && !known.contains_key(&code.fingerprint) {
                    // Removes any entry but the new one, which is the most likely to be loaded again.
                    known.pop_first();
                }
                known.insert(code.fingerprint, took);
            }
            Ahead::Code(_) | Ahead::Limit(_) => {}
        }
    }

    /// Charges what was measured `after` a call. `start` is the overhead before the call. Returns false if the result exceeds
    /// the limit, and None if nothing could be measured: then nothing is changed.
    fn settle(&mut self, change: Change, start: u64, before: &Look, after: &Look) -> Option<bool> {
        let Look::Excess(least, most) = *after else {
            return None;
        };
        let all = most.max(0) as u64;
        let measured = match (change, before) {
            _ if self.overhead.borrow().may_fall => all,
            (Change::Takes, _) => start.max(all),
            (Change::GivesBack, Look::Excess(least_before, _)) => {
                let fallen = start.saturating_add_signed((most - least_before).min(0));
                start.min(all.max(fallen))
            }
            (Change::GivesBack, _) => start.min(all),
            (Change::Either, _) => all,
        };
        let set = || self.overhead.borrow_mut().charge.set(&self.gpu.account, measured);
        {
            let mut overhead = self.overhead.borrow_mut();
            overhead.set_measured(measured);
            overhead.may_fall = most > least;
        }
        let fits = set();
        if !fits {
            room::make_room(self.gpu);
        }
        Some(fits || set())
    }

    /// Finds this process in NVML's list, in its new `context`, and measures the overhead.
    fn first_look(&mut self, context: usize) -> Look {
        let mut log = log::Measuring::begin(&self.gpu.uuid, self.overhead.borrow().charge.bytes());
        let Some(device) = self.process.nvml.device(self.index) else {
            return Look::Blind;
        };
        log.found_gpu();
        let context = match self.is_green {
            true => self.gpu.driver.context_behind(context).unwrap_or(0),
            false => context,
        };
        if context == 0 {
            return Look::Blind;
        }
        let _turn = self.gpu.account.turn(beacon::TURN);
        for _ in 0..beacon::TRIES {
            let mut beacon = Beacon::default();
            let found = self.with_beacon(device, context, &mut beacon, &mut log);
            beacon.end(self.gpu);
            match found {
                Some(Look::Blind) if self.is_seen() => {
                    drop(log);
                    return self.look();
                }
                Some(look) => return look,
                None => {}
            }
        }
        Look::Blind
    }

    /// Searches NVML's lists while it allocates `beacon`. Returns None if a try with other sizes may succeed.
    fn with_beacon(
        &mut self,
        device: usize,
        context: usize,
        beacon: &mut Beacon,
        log: &mut log::Measuring<'_>,
    ) -> Option<Look> {
        let (process, gpu) = (self.process, self.gpu);
        let _stopped = process.calls.stop(thread());
        let mut patience = Patience::new(self.effort.patience);
        let Some(list) = process.nvml.processes(device) else {
            return Some(Look::Blind);
        };
        log.listed(&list, 0, 0);
        let mut search = Search::new(list, std::process::id());
        let random = monotonic_ns() ^ u64::from(std::process::id()).rotate_left(7);
        for bytes in beacon::sizes(random, gpu.account.free(u64::MAX)) {
            if !beacon.charge(gpu, bytes) {
                if search.has_own_pid() {
                    process.pid.store(std::process::id(), Ordering::Relaxed);
                    log::pid_learned(std::process::id());
                }
                return Some(Look::Blind);
            }
            let (charged, others, is_fresh) = self.stillness(&mut patience);
            let list = beacon
                .allocate(gpu, context, bytes)
                .and_then(|()| process.nvml.processes(device));
            let Some(list) = list else {
                return Some(Look::Blind);
            };
            let is_still = process.calls.under_way() == others && gpu.account.own() == charged;
            let all_else = self.all_else(&charged).saturating_sub(beacon.bytes());
            log.listed(&list, 0, all_else);
            if let Some((pid, held)) = search.narrow(&list, beacon.bytes()) {
                process.pid.store(pid, Ordering::Relaxed);
                log::pid_learned(pid);
                let held = held - beacon.bytes();
                log.finds(&[(pid, held)], pid);
                let excess = held as i64 - all_else as i64;
                if !is_still || !is_fresh || !others.is_nobody() || excess < 0 {
                    return Some(Look::Blind);
                }
                log.excess(excess, excess);
                return Some(Look::Excess(excess, excess));
            }
            if !search.is_open() {
                return None;
            }
        }
        None
    }

    /// Returns the part of these charges that is in NVML's figure but is not overhead.
    fn all_else(&self, charged: &Own) -> u64 {
        charged
            .bytes()
            .saturating_sub(self.overhead.borrow().charge.bytes())
            .saturating_sub(self.gpu.surplus.load(Ordering::Relaxed))
    }

    /// Measures the overhead.
    fn look(&mut self) -> Look {
        let mut log = log::Measuring::begin(&self.gpu.uuid, self.overhead.borrow().charge.bytes());
        if !self.is_seen() {
            log.unknown();
            return Look::Blind;
        }
        let mut lists = 0;
        let mut patience = Patience::new(self.effort.patience);
        // Before calls are blocked, because opening NVML takes milliseconds.
        let Some(device) = self.process.nvml.device(self.index) else {
            return Look::Blind;
        };
        log.found_gpu();
        let calls = self.process.calls;
        for _ in 0..self.effort.looks {
            let _stopped = calls.stop(thread());
            let (charged, others, is_fresh) = self.stillness(&mut patience);
            let all_else = self.all_else(&charged);
            let settled = (!others.is_nobody() || !is_fresh).then(|| self.settled_bytes());
            let at_stake = settled.map_or(0, |settled| all_else.saturating_sub(settled.bytes));
            let Some(list) = self.process.nvml.processes(device) else {
                return Look::Blind;
            };
            log.listed(&list, self.process.pid.load(Ordering::Relaxed), all_else);
            // A pool is charged after it has grown, so its growth while NVML was asked shows as a changed charge here.
            let is_fresh = room::refresh_with(self.gpu, &mut patience);
            let is_still = self.process.calls.under_way() == others
                && self.gpu.account.own() == charged
                && match settled {
                    Some(settled) => self.settled_bytes() == settled,
                    None => is_fresh,
                };
            let own = self.process.pid.load(Ordering::Relaxed);
            match list.iter().find(|(pid, _)| *pid == own) {
                Some((_, held)) if is_still => {
                    let least = *held as i64 - all_else as i64;
                    let most = least.saturating_add_unsigned(at_stake);
                    if most >= 0 {
                        log.excess(least, most);
                        return Look::Excess(least, most);
                    }
                    // The figure is less than what is certainly allocated: the list is late, or the figure is another
                    // process's.
                    lists += 1;
                    if lists >= self.effort.lists {
                        self.forget_pid(own);
                        break;
                    }
                }
                Some(_) => {}
                // A list may lack a process for a moment, so this does not mean that it holds no memory.
                None => {
                    lists += 1;
                    if lists >= self.effort.lists {
                        break;
                    }
                }
            }
        }
        Look::Blind
    }

    /// Forgets `pid`, whose figure cannot be this process's.
    fn forget_pid(&self, pid: u32) {
        if pid != std::process::id() {
            self.process.pid.store(0, Ordering::Relaxed);
            log::pid_forgotten(pid);
        }
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
            if others.is_nobody() || others == self.overhead.borrow().in_vain || !patience.nap() {
                self.overhead.borrow_mut().in_vain = others;
                return (charged, others, is_fresh);
            }
        }
    }
}

/// Measures the overhead of GPU `index` again, unless that would make a thread wait. Charges its growth as far as it
/// fits: the driver has taken this memory already. The caller must have no charge for memory that it has not allocated
/// yet.
pub fn again<D: Driver, N: Nvml>(process: &Process<'_, D, N>, index: usize) -> Found {
    let _kept = errno::keep();
    let (Some(gpu), true) = (process.gpus.get(index), process.pid.load(Ordering::Relaxed) != 0) else {
        return Found::Nothing;
    };
    let _outside = process.calls.outside(thread());
    if process.calls.is_within(thread()) {
        return Found::Nothing;
    }
    let Some(overhead) = gpu.overhead.try_lock() else {
        return Found::Nothing;
    };
    let (start, in_vain) = (overhead.borrow().expected(), overhead.borrow().in_vain);
    let mut measurement = Measurement {
        process,
        gpu,
        index,
        overhead,
        is_nested: false,
        effort: LEAST,
        is_green: false,
        before: start,
    };
    let looked = measurement.look();
    let mut overhead = measurement.overhead.borrow_mut();
    // Restored, because another measurement may still wait for these calls.
    overhead.in_vain = in_vain;
    match looked {
        Look::Excess(least, most) if least == most => {
            let all = most.unsigned_abs();
            overhead.set_measured(all);
            overhead.may_fall = false;
            if !overhead.charge.set(&gpu.account, all) {
                let free = gpu.account.free(u64::MAX);
                let fits = overhead.charge.bytes() + free / GRANULE * GRANULE;
                overhead.charge.set(&gpu.account, fits.min(all));
            }
            if all == start { Found::AsBefore } else { Found::Changed }
        }
        _ => Found::Nothing,
    }
}

/// Charges what `call` will take on GPU `index`, runs it, and corrects the charge by a measurement. `thing`: what
/// `call` has created. If that does not fit, runs `undo` and returns out of memory.
pub fn taking<D: Driver, N: Nvml>(
    process: &Process<'_, D, N>,
    index: usize,
    ahead: Ahead,
    call: impl FnOnce() -> c_int,
    thing: impl FnOnce() -> Thing,
    undo: impl FnOnce() -> c_int,
) -> c_int {
    let _kept = errno::keep();
    let Some(gpu) = process.gpus.get(index) else {
        return OUT_OF_MEMORY;
    };
    let _outside = process.calls.outside(thread());
    process.nvml.load();
    let mut measurement = Measurement::of(process, gpu, index);
    let (result, fits) = measurement.take(ahead, false, call, thing);
    if fits {
        return result;
    }
    measurement.undo(undo);
    OUT_OF_MEMORY
}

/// Runs `call`, which ends `thing` on GPU `index`, and releases what it freed.
pub fn giving_back<D: Driver, N: Nvml>(
    process: &Process<'_, D, N>,
    index: usize,
    thing: Thing,
    call: impl FnOnce() -> c_int,
) -> c_int {
    let _kept = errno::keep();
    let Some(gpu) = process.gpus.get(index) else {
        return call();
    };
    let _outside = process.calls.outside(thread());
    process.nvml.load();
    Measurement::of(process, gpu, index).give_back(Some(thing), call, || true)
}

#[cfg(all(test, not(miri)))] // The tests map files.
mod tests {
    use super::super::expected::{Code, Limit};
    use super::super::fake::{Fake, MIB, Mode, Scene};
    use super::super::known_code::UNKNOWN_CODE;
    use super::*;

    const OTHER: Thing = Thing::Code(1, 0);

    fn code(fingerprint: u64, bytes: u64) -> Ahead {
        Ahead::Code(Code {
            fingerprint,
            bytes,
            is_known: false,
        })
    }

    fn heap(now: u64, value: u64) -> Ahead {
        Ahead::Limit(Limit {
            context: 100,
            number: 2,
            now,
            value,
            threads: 0,
        })
    }

    /// A process that NVML lists by its own PID.
    fn listed(scene: &Scene) -> Process<'_, Fake, &Scene> {
        let process = scene.process();
        process.pid.store(std::process::id(), Ordering::Relaxed);
        process
    }

    /// Creates the first context, which takes `bytes`. Returns the result, true if it fits, and the PID that was found.
    fn first_context(scene: &Scene, bytes: u64) -> (c_int, bool, u32) {
        let process = scene.process();
        let mut measurement = Measurement::of(&process, scene.gpu(), 0);
        let (result, fits) = measurement.take(Ahead::Context, true, || scene.takes(bytes), || Thing::Context(1));
        (result, fits, process.pid.load(Ordering::Relaxed))
    }

    #[test]
    fn code_is_charged_what_it_takes_and_undone_where_that_does_not_fit() {
        let scene = Scene::new(24 * MIB);
        let process = scene.process();
        let load = |fingerprint, bytes| {
            let (take, undo) = (|| scene.takes(bytes), || scene.drops(bytes));
            taking(&process, 0, code(fingerprint, 0), take, || OTHER, undo)
        };
        process.pid.store(std::process::id(), Ordering::Relaxed);
        assert_eq!(load(1, 6 * MIB), SUCCESS);
        assert_eq!(load(2, 8 * MIB), SUCCESS);
        assert_eq!(scene.charged(), 14 * MIB);
        assert_eq!(load(3, 14 * MIB), OUT_OF_MEMORY);
        assert_eq!((scene.charged(), scene.held()), (14 * MIB, 14 * MIB));
        let asked = scene.calls_of_driver();
        assert_eq!(load(3, 14 * MIB), OUT_OF_MEMORY, "what it took before is known");
        assert_eq!(scene.calls_of_driver(), asked);
        let unload = giving_back(&process, 0, OTHER, || scene.drops(8 * MIB));
        assert_eq!((unload, scene.charged()), (SUCCESS, 6 * MIB));
        let refused = taking(&process, 0, code(4, 0), || 42, || OTHER, || panic!("nothing was made"));
        assert_eq!((refused, scene.charged()), (42, 6 * MIB));
    }

    /// Inside a call, the driver calls back into the program, which loads code there.
    #[test]
    fn a_call_within_a_measured_one_is_charged_ahead_and_measured_with_it() {
        let inner = Thing::Code(7, 0);
        for (mode, outer_result) in [
            (Mode::Own, SUCCESS),
            (Mode::Own, 42),
            (Mode::Missing, SUCCESS),
            (Mode::Missing, 42),
        ] {
            let scene = Scene::new(64 * MIB);
            scene.show(mode);
            let process = listed(&scene);
            let never = || panic!("it fits");
            // NVML lists no process that holds nothing.
            let stays = || Thing::Code(9, 0);
            assert_eq!(
                taking(&process, 0, code(9, 0), || scene.takes(2 * MIB), stays, never),
                SUCCESS
            );
            let before = scene.charged();
            let outer = || {
                let load = taking(&process, 0, code(2, 0), || scene.takes(4 * MIB), || inner, never);
                assert_eq!(load, SUCCESS);
                let refused = taking(&process, 0, code(3, 0), || 43, || OTHER, never);
                assert_eq!(refused, 43);
                assert_eq!(scene.charged(), before + 2 * UNKNOWN_CODE, "{mode:?}: both, ahead");
                match outer_result {
                    SUCCESS => scene.takes(6 * MIB),
                    error => error,
                }
            };
            assert_eq!(taking(&process, 0, code(1, 0), outer, || OTHER, never), outer_result);
            let charged = match (mode, outer_result) {
                (Mode::Own, SUCCESS) => scene.held(),
                (_, SUCCESS) => before + 2 * UNKNOWN_CODE,
                _ => before + UNKNOWN_CODE,
            };
            assert_eq!(scene.charged(), charged, "{mode:?} {outer_result}");
            let unload = || {
                let within = giving_back(&process, 0, inner, || scene.drops(4 * MIB));
                assert_eq!(within, SUCCESS);
                scene.drops(scene.held() - 2 * MIB)
            };
            assert_eq!(giving_back(&process, 0, OTHER, unload), SUCCESS);
            assert_eq!(scene.charged(), before, "{mode:?} {outer_result}");
        }
    }

    #[test]
    fn the_newest_code_is_remembered_also_where_no_more_can_be() {
        let scene = Scene::new(64 * MIB);
        let process = listed(&scene);
        // NVML lists no process that holds nothing.
        let stays = || Thing::Code(2, 0);
        taking(&process, 0, code(0, 0), || scene.takes(2 * MIB), stays, || SUCCESS);
        for fingerprint in (1..=2 * CODES as u64).rev() {
            let take = || scene.takes(2 * MIB);
            let load = taking(&process, 0, code(fingerprint, 0), take, || OTHER, || panic!("it fits"));
            assert_eq!(load, SUCCESS);
            assert_eq!(giving_back(&process, 0, OTHER, || scene.drops(2 * MIB)), SUCCESS);
            let overhead = scene.gpu().overhead.lock();
            let overhead = overhead.borrow();
            assert_eq!(overhead.code_took.get(&fingerprint), Some(&(2 * MIB)));
            assert!(overhead.code_took.len() <= CODES);
        }
    }

    /// A file that states its whole size is charged this size, and [`UNKNOWN_CODE`] once for all files, not for each.
    #[test]
    fn unseen_code_is_charged_what_its_file_tells() {
        let scene = Scene::new(64 * MIB);
        scene.show(Mode::Missing);
        let process = scene.process();
        for handle in 1..=100 {
            let known = Ahead::Code(Code {
                fingerprint: handle,
                bytes: 20_000,
                is_known: true,
            });
            let thing = || Thing::Code(handle as usize, 0);
            assert_eq!(taking(&process, 0, known, || SUCCESS, thing, || SUCCESS), SUCCESS);
        }
        assert_eq!(scene.charged(), UNKNOWN_CODE + 2 * MIB);
        for handle in 1..=100 {
            giving_back(&process, 0, Thing::Code(handle, 0), || SUCCESS);
        }
        assert_eq!(scene.charged(), 0);
    }

    #[test]
    fn memory_that_is_charged_for_something_else_is_no_overhead() {
        let scene = Scene::new(32 * MIB);
        let process = listed(&scene);
        let charge = scene.gpu().account.reserve(10 * MIB).expect("room");
        scene.takes(10 * MIB);
        let load = taking(&process, 0, code(1, 0), || scene.takes(6 * MIB), || OTHER, || SUCCESS);
        assert_eq!((load, scene.charged()), (SUCCESS, 16 * MIB));
        scene.gpu().account.release(charge);
        assert_eq!(scene.gpu().overhead.lock().borrow().measured, 6 * MIB);
    }

    #[test]
    fn this_process_is_the_one_that_nvml_lists_after_its_first_context() {
        let scene = Scene::new(32 * MIB);
        scene.name_as(4711);
        assert_eq!(first_context(&scene, 10 * MIB), (SUCCESS, true, 4711));
        assert_eq!(scene.charged(), 10 * MIB);
    }

    /// NVML uses PIDs of another namespace, and lists another new process. This process is found by what it allocates.
    #[test]
    fn this_process_is_found_among_others_that_come_at_the_same_time() {
        let scene = Scene::new(32 * MIB);
        scene.show(Mode::Crowd);
        assert_eq!(first_context(&scene, 10 * MIB), (SUCCESS, true, 0x40_0001));
        assert_eq!(scene.charged(), 10 * MIB, "nothing for what it allocated meanwhile");
    }

    /// NVML uses PIDs of another namespace, and the share has no room for a beacon. The process stays unknown, so the
    /// charge ahead stays.
    #[test]
    fn in_a_full_share_this_process_stays_unknown() {
        let scene = Scene::new(Scene::RESERVE);
        scene.name_as(4711);
        assert_eq!(first_context(&scene, Scene::RESERVE), (SUCCESS, true, 0));
        assert_eq!(scene.charged(), Scene::RESERVE);
    }

    /// A neighbour is charged too much for its context until it is measured. Another neighbour was measured meanwhile,
    /// so the size of a context is known before there is room.
    #[test]
    fn a_context_waits_for_those_of_other_processes_to_be_measured() {
        let mut scene = Scene::new(32 * MIB);
        scene.gpu_mut().context_reserve = None;
        let neighbour = scene.neighbour();
        let ahead = neighbour.reserve(32 * MIB).expect("room");
        let process = scene.process();
        let begin = || {
            let mut measurement = Measurement::of(&process, scene.gpu(), 0);
            measurement.take(Ahead::Context, true, || scene.takes(MIB), || Thing::Context(1))
        };
        std::thread::scope(|scope| {
            let context = scope.spawn(begin);
            neighbour.note_context_took(MIB);
            std::thread::sleep(Duration::from_millis(200));
            assert!(!context.is_finished(), "it waits");
            neighbour.release(ahead, 31 * MIB);
            assert_eq!(context.join().expect("no panic"), (SUCCESS, true));
        });
    }

    #[test]
    fn a_context_does_not_wait_for_room_that_nobody_will_give_back() {
        let scene = Scene::new(32 * MIB);
        let process = scene.process();
        let mut measurement = Measurement::of(&process, scene.gpu(), 0);
        let neighbour = scene.neighbour();
        let charge = neighbour.reserve(32 * MIB).expect("room");
        assert!(scene.gpu().account.is_another_starting());
        neighbour.note_context();
        assert!(!scene.gpu().account.is_another_starting(), "it is measured");
        let never = || panic!("there is no room");
        let (result, _) = measurement.take(Ahead::Context, true, never, || Thing::Context(1));
        assert_eq!(result, OUT_OF_MEMORY);
        neighbour.release(charge, 32 * MIB);
        let held = scene.gpu().account.reserve(MIB).expect("room");
        assert!(
            !scene.gpu().account.is_another_starting(),
            "this process is not another"
        );
        scene.gpu().account.release(held);
    }

    #[test]
    fn a_limit_is_charged_before_the_driver_is_asked_in_every_mode_of_nvml() {
        for mode in [Mode::Own, Mode::Missing, Mode::Others, Mode::Crowd] {
            let scene = Scene::new(64 * MIB);
            scene.show(mode);
            let process = listed(&scene);
            let set = |now, value: u64, grown: u64| {
                let take = || {
                    let charged = scene.charged();
                    let result = scene.takes(grown);
                    assert!(
                        charged >= scene.held(),
                        "{mode:?}: {charged} charged, {} held",
                        scene.held()
                    );
                    result
                };
                taking(
                    &process,
                    0,
                    heap(now, value),
                    take,
                    || Thing::Limit(100, 2),
                    || panic!("undone"),
                )
            };
            assert_eq!(set(8 * MIB, 40 * MIB, 32 * MIB), SUCCESS);
            assert_eq!(scene.charged(), 32 * MIB, "{mode:?}");
            let calls = scene.calls_of_driver();
            assert_eq!(set(40 * MIB, 59 << 30, 0), OUT_OF_MEMORY);
            assert_eq!(scene.calls_of_driver(), calls, "{mode:?}: not asked");
            // The driver may keep memory when a limit is lowered; setting the same value again takes no more.
            for _ in 0..4 {
                assert_eq!(set(40 * MIB, 8 * MIB, 0), SUCCESS);
                assert_eq!(set(8 * MIB, 40 * MIB, 0), SUCCESS);
            }
            assert_eq!(scene.charged(), 32 * MIB, "{mode:?}");
        }
    }

    /// NVML's list once lacks this process: the charge ahead stays, and the next measurement corrects it.
    #[test]
    fn a_call_that_could_not_be_measured_is_neither_approved_nor_charged_for_ever() {
        let scene = Scene::new(32 * MIB);
        let process = listed(&scene);
        scene.show(Mode::Others);
        let load = |fingerprint, bytes| {
            taking(
                &process,
                0,
                code(fingerprint, 0),
                || scene.takes(bytes),
                || Thing::Code(fingerprint as usize, 0),
                || scene.drops(bytes),
            )
        };
        assert_eq!(load(1, 2 * MIB), SUCCESS);
        assert_eq!(scene.charged(), UNKNOWN_CODE);
        assert_eq!(load(2, 2 * MIB), SUCCESS);
        assert_eq!(load(3, 2 * MIB), SUCCESS);
        assert_eq!(load(4, 2 * MIB), SUCCESS);
        assert_eq!(load(5, 2 * MIB), OUT_OF_MEMORY, "unknown is refused");
        scene.show(Mode::Own);
        let unload = giving_back(&process, 0, OTHER, || scene.drops(2 * MIB));
        assert_eq!((unload, scene.charged()), (SUCCESS, 6 * MIB));
    }

    /// If a figure cannot be this process's, neither the figure nor the PID by which it was found is used.
    #[test]
    fn a_figure_below_what_is_allocated_is_another_processs() {
        let scene = Scene::new(64 * MIB);
        let process = scene.process();
        scene.name_as(4711);
        process.pid.store(4711, Ordering::Relaxed);
        let charge = scene.gpu().account.reserve(20 * MIB).expect("room");
        scene.takes(2 * MIB);
        let load = taking(&process, 0, code(1, 0), || scene.takes(2 * MIB), || OTHER, || SUCCESS);
        assert_eq!((load, scene.charged()), (SUCCESS, 20 * MIB + UNKNOWN_CODE));
        assert_eq!(process.pid.load(Ordering::Relaxed), 0);
        scene.gpu().account.release(charge);
    }
}
