//! The GPUs of one state folder, as a process uses them: join, allocate, launch, look.
//!
//! The picture that `look` returns is the sum of the memory of living processes, so its parts always add up. Dead
//! processes are detected before each picture and before an allocation fails. A dead process is first marked, and from
//! then on not counted. Then it is buried: its units go back to the total, under the folder's lock. An interrupted
//! burial is resumed.

use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use crate::account::{Full, Held, MAX_PROCS};
use crate::env::Config;
use crate::error::Error;
use crate::layout::{DEAD, FREE, LIVE, NVML_CALLS, PHASE_MASK, Proc, Shared};
use crate::liveness::{Holders, Lock, PATIENCE, Pulse, pulse, take};
use crate::profile::{Pci, Profile};
use crate::region::Region;
use crate::timeline::WINDOW_NS;

/// The GPUs, without a place among their users: all that NVML needs.
pub struct State {
    shared: &'static Shared,
    profile: Profile,
    dir: PathBuf,
    inode: u64,
}

/// A process that uses the GPUs.
pub struct Member {
    state: State,
    place: usize,
    /// Serialises this process's threads; nobody else ever waits for it.
    turns: Vec<Mutex<Turn>>,
}

/// How many processes share a GPU's time, and when that was counted.
#[derive(Default)]
struct Turn {
    counted_at: u64,
    sharers: u32,
}

/// One process in a picture of one GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    pub place: usize,
    /// None: the reader's PID namespace cannot see it.
    pub pid: Option<u32>,
    pub bytes: u64,
    pub contexts: u32,
    /// Percent of the GPU's time in the last window.
    pub busy: u32,
}

/// One GPU at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Picture {
    pub used: u64,
    pub busy: u32,
    pub users: Vec<User>,
}

/// How long others stand still for a picture, doubled with each one that fails.
const STILL_NS: std::ops::Range<u64> = 100_000..20_000_000;

pub fn now() -> u64 {
    crate::clock::monotonic_ns()
}

impl State {
    pub fn open(config: &Config) -> Result<Self, Error> {
        let Region { shared, profile, inode } = Region::open(config)?;
        Ok(Self {
            shared,
            profile,
            dir: config.dir.clone(),
            inode,
        })
    }

    /// Whether this is still the state that the folder holds, and the profile that is asked for.
    pub fn is_current(&self, config: &Config) -> bool {
        let same_profile = config
            .profile
            .as_ref()
            .is_none_or(|(_, profile)| *profile == self.profile);
        config.dir == self.dir && same_profile && Region::open_inode(config) == Some(self.inode)
    }

    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    pub fn uuid(&self, gpu: usize) -> [u8; 16] {
        self.shared.gpus[gpu].uuid
    }

    /// `GPU-8-4-4-4-12` as NVML prints it.
    pub fn uuid_text(&self, gpu: usize) -> String {
        let hex: String = self.uuid(gpu).iter().map(|byte| format!("{byte:02x}")).collect();
        format!(
            "GPU-{}-{}-{}-{}-{}",
            &hex[..8],
            &hex[8..12],
            &hex[12..16],
            &hex[16..20],
            &hex[20..]
        )
    }

    pub fn pci(&self, gpu: usize) -> Pci {
        self.profile.pci[gpu]
    }

    pub fn gpu_at(&self, pci: Pci) -> Option<usize> {
        self.profile.pci.iter().position(|one| *one == pci)
    }

    /// Notes a call of a function that is not modelled; `index` is its place in the name list.
    pub fn count_call(&self, nvml: bool, index: usize) {
        if let Some(counter) = self.shared.calls.get(index + if nvml { NVML_CALLS } else { 0 }) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// How often each function that is not modelled was called, by all processes.
    pub fn calls(&self, nvml: bool) -> Vec<u32> {
        let from = if nvml { NVML_CALLS } else { 0 };
        self.shared.calls[from..from + NVML_CALLS]
            .iter()
            .map(|c| c.load(Ordering::Relaxed))
            .collect()
    }

    fn places(&self) -> impl Iterator<Item = (usize, &'static Proc)> {
        let shared = self.shared;
        let count = (shared.high_water.load(Ordering::Acquire) as usize).min(MAX_PROCS);
        shared.procs[..count].iter().enumerate()
    }

    /// Whether who joins looks for the dead, so that their places are used again: always while there are few
    /// processes, else each time that twice as many places are taken. Hundreds that start at once would all ask
    /// about each other.
    fn is_filling_up(&self) -> bool {
        const FEW: usize = 16;
        let is_free = |(_, proc): (usize, &Proc)| proc.phase.load(Ordering::Acquire) & PHASE_MASK == FREE;
        let count = self.places().count();
        count < FEW || count.is_power_of_two() && !self.places().any(is_free)
    }

    fn held(&self, gpu: usize) -> impl Fn(usize) -> &'static Held + use<> {
        let shared = self.shared;
        move |place| &shared.procs[place % MAX_PROCS].gpus[gpu].held
    }

    /// Marks the dead among the processes that `concerns` picks; true if there are any dead to bury.
    fn mark_dead(&self, own: Option<usize>, concerns: impl Fn(&Proc) -> bool) -> bool {
        let mut any = false;
        for (place, proc) in self
            .places()
            .filter(|(place, proc)| Some(*place) != own && concerns(proc))
        {
            let phase = proc.phase.load(Ordering::Acquire);
            match phase & PHASE_MASK {
                LIVE => {
                    // While `_proof` lives, nobody can take the place, so the phase is still the dead one's.
                    if let Pulse::Dead(_proof) = pulse(&self.dir, place) {
                        let dead = phase & !PHASE_MASK | DEAD;
                        let _ = proc
                            .phase
                            .compare_exchange(phase, dead, Ordering::AcqRel, Ordering::Relaxed);
                        any = true;
                    }
                }
                DEAD => any = true,
                _ => {}
            }
        }
        any
    }

    /// Gives back what the marked dead held. If another does it just now, waits for him, but not for ever.
    fn bury(&self) {
        let is_dead = |(_, proc): (usize, &Proc)| proc.phase.load(Ordering::Acquire) & PHASE_MASK == DEAD;
        if let Ok(Some(_lock)) = Lock::take_while(&self.dir, || self.places().any(is_dead)) {
            self.bury_locked();
        }
    }

    fn bury_locked(&self) {
        for (place, proc) in self.places() {
            let phase = proc.phase.load(Ordering::Acquire);
            if phase & PHASE_MASK != DEAD {
                continue;
            }
            for (gpu, entry) in proc.gpus.iter().enumerate().take(self.profile.gpus as usize) {
                let total = &self.shared.gpus[gpu].total;
                let units = total.settle(place, &entry.held) as i64;
                if units > 0 {
                    let _ = total.change(place, -units, 0, self.held(gpu));
                }
                entry.held.clear();
                entry.contexts.store(0, Ordering::Relaxed);
                entry.usage.clear();
            }
            let next = (phase & !PHASE_MASK) + (PHASE_MASK + 1);
            proc.phase.store(next | FREE, Ordering::Release);
        }
    }

    /// One consistent look at a GPU: its users' bytes add up to `used`.
    pub fn look(&self, gpu: usize) -> Picture {
        if self.mark_dead(None, |_| true) {
            self.bury();
        }
        let units = self.snapshot(gpu);
        // Who died since may have left room to somebody who is in the snapshot too; it counts no more.
        self.mark_dead(None, |_| true);
        let now = now();
        let mut picture = Picture {
            used: 0,
            busy: 0,
            users: Vec::new(),
        };
        let (mut served, mut holders) = (0, Holders::read());
        for ((place, proc), (phase, units)) in self.places().zip(units) {
            let entry = &proc.gpus[gpu];
            let contexts = entry.contexts.load(Ordering::Relaxed);
            if phase & PHASE_MASK != LIVE || (units == 0 && contexts == 0) {
                continue;
            }
            let pid = holders.pid(&self.dir, place, proc.pid.load(Ordering::Relaxed));
            // Another phase: not the process that the snapshot saw in this place.
            let is_gone = || pid.is_none() && matches!(pulse(&self.dir, place), Pulse::Dead(_));
            if proc.phase.load(Ordering::Acquire) != phase || is_gone() {
                continue;
            }
            let (bytes, window) = (units * self.profile.granularity, entry.usage.in_window(now));
            served += window;
            picture.used += bytes;
            picture.users.push(User {
                place,
                pid,
                bytes,
                contexts,
                busy: percent(window),
            });
        }
        picture.busy = percent(served);
        picture
    }

    /// The phase of each place, and what its process held at one later instant. A try takes microseconds; where
    /// neighbours allocate so fast that none succeeds, they are asked to stand still for a moment. The last
    /// resort is what each says of itself.
    fn snapshot(&self, gpu: usize) -> Vec<(u64, u64)> {
        let phases = || -> Vec<u64> {
            let places = self.places();
            places.map(|(_, proc)| proc.phase.load(Ordering::Acquire)).collect()
        };
        let entry = &self.shared.gpus[gpu];
        let (until, mut still) = (Instant::now() + PATIENCE, 0);
        while Instant::now() < until {
            for _ in 0..64 {
                let before = phases();
                let units = entry.total.snapshot(before.len(), self.held(gpu));
                // Who joined in between may be in the one and not in the other.
                if let Some(units) = units.filter(|_| phases() == before) {
                    entry.still_until.store(0, Ordering::Relaxed);
                    return before.into_iter().zip(units).collect();
                }
            }
            still = (2 * still).clamp(STILL_NS.start, STILL_NS.end);
            entry.still_until.store(now() + still, Ordering::Relaxed);
        }
        eprintln!(
            "soft-gpu: {}: no one picture of GPU {gpu} in {PATIENCE:?}",
            self.dir.display()
        );
        let own = self.places().map(|(_, proc)| proc.gpus[gpu].held.units());
        phases().into_iter().zip(own).collect()
    }

    /// Bytes in use on a GPU, without names: cheap while one process alone uses it.
    fn used(&self, gpu: usize, own: usize) -> u64 {
        if self.mark_dead(Some(own), |proc| proc.gpus[gpu].held.units() > 0) {
            self.bury();
        }
        self.shared.gpus[gpu].total.units() * self.profile.granularity
    }

    /// Becomes a user of the GPUs.
    pub fn join(self, config: &Config) -> Result<Member, Error> {
        let mut state = self;
        for _ in 0..10 {
            let folder = |source| Error::Folder {
                origin: config.origin,
                path: config.dir.clone(),
                source,
            };
            // Asked before, because the kernel's answers take most of the time.
            if state.is_filling_up() {
                state.mark_dead(None, |_| true);
            }
            let _lock = Lock::take(&state.dir).map_err(folder)?;
            if Region::open_inode(config) != Some(state.inode) {
                // Another process put a new state in place since: use that one.
                drop(_lock);
                state = Self::open(config)?;
                continue;
            }
            state.bury_locked();
            for (place, proc) in state.shared.procs.iter().enumerate() {
                let phase = proc.phase.load(Ordering::Acquire);
                if phase & PHASE_MASK != FREE || !take(&state.dir, place).map_err(folder)? {
                    continue;
                }
                state.shared.high_water.fetch_max(place as u32 + 1, Ordering::AcqRel);
                proc.pid.store(std::process::id(), Ordering::Relaxed);
                proc.phase.store(phase | LIVE, Ordering::Release);
                let turns = (0..state.profile.gpus).map(|_| Mutex::default()).collect();
                drop(_lock);
                return Ok(Member { state, place, turns });
            }
            return Err(Error::Crowded {
                path: config.dir.clone(),
            });
        }
        Err(Error::Damaged {
            origin: config.origin,
            path: config.dir.clone(),
        })
    }
}

fn percent(window: u64) -> u32 {
    (window * 100 / WINDOW_NS).min(100) as u32
}

impl Member {
    pub fn state(&self) -> &State {
        &self.state
    }

    fn turn(&self, gpu: usize) -> std::sync::MutexGuard<'_, Turn> {
        self.turns[gpu].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stands still while somebody takes a picture: for a bounded time, so who asks for it may die.
    fn stand_still(&self, gpu: usize) {
        let asked = &self.state.shared.gpus[gpu].still_until;
        let until = asked.load(Ordering::Relaxed);
        if until == 0 {
            return;
        }
        crate::clock::sleep_until(until.min(now() + STILL_NS.end));
        let _ = asked.compare_exchange(until, 0, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Takes units of a GPU. Dead neighbours are buried before this says that it is full.
    pub fn grow(&self, gpu: usize, units: u64) -> Result<(), Full> {
        let Ok(delta) = i64::try_from(units) else {
            return Err(Full);
        };
        let (state, capacity) = (&self.state, self.state.profile.memory / self.state.profile.granularity);
        if units > capacity {
            return Err(Full);
        }
        let _turn = self.turn(gpu);
        self.stand_still(gpu);
        let total = &state.shared.gpus[gpu].total;
        let change = || total.change(self.place, delta, capacity, state.held(gpu));
        change().or_else(|Full| {
            if !state.mark_dead(Some(self.place), |_| true) {
                return Err(Full);
            }
            state.bury();
            change()
        })
    }

    /// Gives units back.
    pub fn shrink(&self, gpu: usize, units: u64) {
        let _turn = self.turn(gpu);
        self.stand_still(gpu);
        let state = &self.state;
        let delta = -(units.min(state.held(gpu)(self.place).units()) as i64);
        // Taking away cannot exceed a capacity.
        let _ = state.shared.gpus[gpu]
            .total
            .change(self.place, delta, 0, state.held(gpu));
    }

    /// Bytes of a GPU that nobody holds.
    pub fn free(&self, gpu: usize) -> u64 {
        self.state
            .profile
            .memory
            .saturating_sub(self.state.used(gpu, self.place))
    }

    pub fn contexts(&self, gpu: usize, change: i32) {
        let counter = &self.state.shared.procs[self.place].gpus[gpu].contexts;
        let _ = counter.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_add_signed(change));
    }

    /// Queues work on a GPU; when it will be done.
    pub fn launch(&self, gpu: usize, work_ns: u64) -> u64 {
        let mut turn = self.turn(gpu);
        let now = now();
        let state = &self.state;
        // Counting costs a look at each neighbour, so it is done once in a while only.
        if now.saturating_sub(turn.counted_at) > 1_000_000 {
            let busy = |(place, proc): &(usize, &Proc)| {
                *place != self.place
                    && proc.phase.load(Ordering::Relaxed) & PHASE_MASK == LIVE
                    && proc.gpus[gpu].usage.busy(now)
            };
            *turn = Turn {
                counted_at: now,
                sharers: 1 + state.places().filter(busy).count() as u32,
            };
        }
        state.shared.procs[self.place].gpus[gpu]
            .usage
            .launch(now, work_ns, turn.sharers)
    }

    /// When all that this process queued on a GPU will be done.
    pub fn idle_at(&self, gpu: usize) -> u64 {
        self.state.shared.procs[self.place].gpus[gpu].usage.end()
    }
}
