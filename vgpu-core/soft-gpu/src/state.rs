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

/// The GPUs, without being one of their users. NVML needs no more.
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
    /// Serialises the threads of this process. Other processes never wait for it.
    turns: Vec<Mutex<Turn>>,
}

/// The number of processes that share a GPU's time, and when it was counted.
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

/// The picture of one GPU at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Picture {
    pub used: u64,
    pub busy: u32,
    pub users: Vec<User>,
}

/// How long other processes pause for a picture, doubled with each one that fails.
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

    /// Returns true if the folder still has this state, with the requested profile.
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

    /// Returns the UUID as NVML prints it, `GPU-8-4-4-4-12`.
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

    /// Counts a call of a function that is not modelled; `index` is its position in the name list.
    pub fn count_call(&self, nvml: bool, index: usize) {
        if let Some(counter) = self.shared.calls.get(index + if nvml { NVML_CALLS } else { 0 }) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns how often all processes called each function that is not modelled.
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

    /// Returns true if a joining process tests for dead ones, so that their places are used again: always while there
    /// are few processes, otherwise each time that the number of places has doubled. Hundreds of processes that start
    /// at once would otherwise all test each other.
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

    /// Marks the dead among the processes that `concerns` picks. Returns true if there are dead ones to bury.
    fn mark_dead(&self, own: Option<usize>, concerns: impl Fn(&Proc) -> bool) -> bool {
        let mut any = false;
        for (place, proc) in self
            .places()
            .filter(|(place, proc)| Some(*place) != own && concerns(proc))
        {
            let phase = proc.phase.load(Ordering::Acquire);
            match phase & PHASE_MASK {
                LIVE => {
                    // While `_proof` exists, no process can claim the place, so the phase is still that of the dead
                    // one.
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

    /// Releases the units of marked processes. If another process is doing it, waits for that one, but not forever.
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

    /// Returns a consistent picture of a GPU: its users' bytes add up to `used`.
    pub fn look(&self, gpu: usize) -> Picture {
        if self.mark_dead(None, |_| true) {
            self.bury();
        }
        let units = self.snapshot(gpu);
        // A process that died since does not count: its units may already belong to another one in the snapshot.
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
            // Another phase: not the process that was in this place in the snapshot.
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

    /// Returns the phase of each place, and the units of its process at one later instant. A try takes microseconds. If
    /// other processes allocate so fast that no try succeeds, they are asked to pause for a moment. The last resort is
    /// the figure that each process recorded itself.
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
                // A process that joined in between may be in one of the two and not in the other.
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

    /// Returns the bytes in use on a GPU, without their processes. Cheap while only one process uses it.
    fn used(&self, gpu: usize, own: usize) -> u64 {
        if self.mark_dead(Some(own), |proc| proc.gpus[gpu].held.units() > 0) {
            self.bury();
        }
        self.shared.gpus[gpu].total.units() * self.profile.granularity
    }

    /// Joins as a user of the GPUs.
    pub fn join(self, config: &Config) -> Result<Member, Error> {
        let mut state = self;
        for _ in 0..10 {
            let folder = |source| Error::Folder {
                origin: config.origin,
                path: config.dir.clone(),
                source,
            };
            // Before the lock, because the tests of the kernel take most of the time.
            if state.is_filling_up() {
                state.mark_dead(None, |_| true);
            }
            let _lock = Lock::take(&state.dir).map_err(folder)?;
            if Region::open_inode(config) != Some(state.inode) {
                // Another process has replaced the state since: use the new one.
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

    /// Pauses while another process takes a picture, for a bounded time, because that process may die.
    fn stand_still(&self, gpu: usize) {
        let asked = &self.state.shared.gpus[gpu].still_until;
        let until = asked.load(Ordering::Relaxed);
        if until == 0 {
            return;
        }
        crate::clock::sleep_until(until.min(now() + STILL_NS.end));
        let _ = asked.compare_exchange(until, 0, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Allocates units of a GPU. Dead processes are buried before it reports that the GPU is full.
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

    /// Releases units.
    pub fn shrink(&self, gpu: usize, units: u64) {
        let _turn = self.turn(gpu);
        self.stand_still(gpu);
        let state = &self.state;
        let delta = -(units.min(state.held(gpu)(self.place).units()) as i64);
        // A release cannot exceed the capacity.
        let _ = state.shared.gpus[gpu]
            .total
            .change(self.place, delta, 0, state.held(gpu));
    }

    /// Returns the free bytes of a GPU.
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

    /// Queues work on a GPU. Returns when it will be done.
    pub fn launch(&self, gpu: usize, work_ns: u64) -> u64 {
        let mut turn = self.turn(gpu);
        let now = now();
        let state = &self.state;
        // Counting reads the words of every other process, so it is done rarely.
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

    /// Returns when all work that this process queued on a GPU will be done.
    pub fn idle_at(&self, gpu: usize) -> u64 {
        self.state.shared.procs[self.place].gpus[gpu].usage.end()
    }
}
