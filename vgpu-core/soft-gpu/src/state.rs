//! The GPUs of one state folder, as a process uses them: join, allocate, read the usage. `work` handles GPU time.
//!
//! The picture that `look` returns is the sum of the memory of living processes, so its parts always add up. Dead
//! processes are detected before each picture and before an allocation fails. A dead process is first marked, and not
//! included from then on. Then it is buried: its units are released, under the folder's lock. An interrupted burial is
//! resumed.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crate::lock;

use crate::account::{Full, Held, MAX_PROCS};
use crate::capabilities::node_name;
use crate::clock;
use crate::control::Control;
use crate::env::{Config, user};
use crate::error::Error;
use crate::layout::{DEAD, FREE, LIVE, Mig, NVML_CALLS, PHASE_MASK, Proc, Shared};
use crate::liveness::{Holders, LOCK_WAIT, Lock, Pulse, pulse, take};
use crate::mig::{Instance, MOST_COMPUTE};
use crate::profile::{Clock, MAX_DEVICES, Pci, Profile};
use crate::region::{Region, mix};
use crate::timeline::schedule::Pace;
use crate::timeline::usage::WINDOW_NS;
use crate::timeline::words::{MAX_QUEUES, Owner, Words, owner};
use crate::timeline::{self, usage};
use crate::virtual_time::VirtualTime;

/// Access to the GPUs without being one of their users. NVML needs no more.
pub struct State {
    shared: &'static Shared,
    profile: Profile,
    dir: PathBuf,
    inode: u64,
    /// The folder that is this process's cgroup, in a tree of plain folders.
    cgroup: Option<PathBuf>,
    /// The folder with the capability nodes of instances that this process may use. None: it may use all.
    caps: Option<PathBuf>,
}

/// A process that uses the GPUs.
pub struct Member {
    pub(crate) state: State,
    pub(crate) place: usize,
    /// For each place, the word of the instance that was there when the process joined.
    pub(crate) words_at_start: Vec<u64>,
    /// One lock per GPU, which serialises the threads of this process. Other processes never wait for it.
    turns: Vec<Mutex<()>>,
    /// The same for its journal.
    pub(crate) journal: Mutex<()>,
    /// With `late_events`: for each queue, the latest end that was reported to this process. A reported end is never
    /// taken back.
    pub(crate) told: Vec<AtomicU64>,
}

/// The journal of the process that has the folder's lock.
const BURIAL: usize = MAX_PROCS;

/// One process in a picture of one GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    pub place: usize,
    /// None: the reader's PID namespace cannot see it.
    pub pid: Option<u32>,
    pub bytes: u64,
    /// The bytes that NVML lists for it, by the profile.
    pub listed: u64,
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

/// How long other processes pause for a picture, doubled after each failed attempt.
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
            cgroup: config.cgroup.clone(),
            caps: config.caps.clone(),
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

    /// The faults of this moment.
    pub fn control(&self) -> Control {
        Control::read(&self.dir)
    }

    /// The number of places of GPUs and instances that were ever in use.
    pub fn devices(&self) -> usize {
        (self.shared.mig.devices.load(Ordering::Acquire) as usize).min(MAX_DEVICES)
    }

    pub(crate) fn mig(&self) -> &'static Mig {
        &self.shared.mig
    }

    /// The word of the instance in a place; 0: there is none.
    pub(crate) fn device_word(&self, device: usize) -> u64 {
        let word = self.shared.mig.devices_words.get(device);
        word.map_or(0, |word| word.load(Ordering::SeqCst))
    }

    pub(crate) fn caps(&self) -> Option<&Path> {
        self.caps.as_deref()
    }

    /// Returns true if this process is root or its user made the state.
    pub(crate) fn is_own(&self) -> bool {
        let user = user();
        let owner = std::fs::metadata(self.dir.join("gpus")).map(|meta| meta.uid());
        user == 0 || owner.is_ok_and(|owner| owner == user)
    }

    /// Returns the places of the instances of a GPU that exist and that this process may use.
    pub fn instances_of(&self, gpu: usize) -> Vec<usize> {
        self.settle();
        let control = self.control();
        let is_there = |one: &Instance| one.of.parent == gpu && !control.is_gone(gpu, one.id()) && self.may_use(one);
        let found = self.all_instances().filter(|(_, one)| is_there(one));
        found.map(|(place, _)| place).collect()
    }

    /// Returns true if both capability nodes of an instance are there for this process.
    fn may_use(&self, instance: &Instance) -> bool {
        let has = |folder: &PathBuf| {
            instance
                .minors()
                .iter()
                .all(|minor| folder.join(node_name(*minor)).exists())
        };
        self.caps.as_ref().is_none_or(has)
    }

    /// Returns the GPUs that this process may open. The capability nodes of instances stand for the nodes of GPUs too: with
    /// some, it may open the GPUs of these instances alone.
    pub fn gpus(&self) -> Vec<usize> {
        let all = 0..self.profile.gpus as usize;
        let own = self.all_instances().filter(|(_, one)| self.may_use(one));
        let own: Vec<usize> = own.map(|(_, one)| one.of.parent).collect();
        match &self.caps {
            Some(_) if own.is_empty() => all.collect(),
            Some(_) => all.filter(|gpu| own.contains(gpu)).collect(),
            None => all.collect(),
        }
    }

    /// Returns true if a GPU is in MIG mode.
    pub fn has_mig(&self, gpu: usize) -> bool {
        self.mig_modes(gpu)[0] || self.control().has_mig(gpu)
    }

    /// The memory that clients can allocate on a GPU or in an instance; nothing in one that is gone.
    pub fn memory_of(&self, device: usize) -> u64 {
        if device < self.profile.gpus as usize {
            return self.profile.memory;
        }
        self.instance(device).map_or(0, |instance| instance.of.shape.memory())
    }

    /// The multiprocessors of a GPU or an instance.
    pub fn sms_of(&self, device: usize) -> u32 {
        self.instance(device)
            .map_or(self.profile.sms, |instance| instance.sms())
    }

    /// The name of a GPU or an instance, as the driver prints it.
    pub fn name_of(&self, device: usize) -> String {
        match self.instance(device) {
            Some(instance) => format!(
                "{} MIG {}",
                self.profile.name_of(instance.of.parent),
                instance.profile()
            ),
            None => self.profile.name_of(device).to_owned(),
        }
    }

    /// The UUID of an instance depends on its GPU and its ids alone, so it comes back with the next instance there.
    pub fn uuid(&self, device: usize) -> [u8; 16] {
        let Some(instance) = self.instance(device) else {
            return self.shared.gpus[device].uuid;
        };
        let of_parent = self.shared.gpus[instance.of.parent].uuid;
        let compute = instance.compute.unwrap_or(MOST_COMPUTE);
        let other = if instance.other_uuid {
            instance.generation + 1
        } else {
            0
        };
        let place = u64::from(2 * (instance.id() + 16 * compute)) | u64::from(other) << 32;
        let half = |salt| mix(&of_parent, place + salt).to_be_bytes();
        let mut uuid = [0; 16];
        uuid[..8].copy_from_slice(&half(0));
        uuid[8..].copy_from_slice(&half(1));
        uuid[6] = uuid[6] & 0x0f | 0x50; // a version 5, variant 1 UUID by form
        uuid[8] = uuid[8] & 0x3f | 0x80;
        uuid
    }

    /// Returns the UUID as NVML prints it, `GPU-8-4-4-4-12`, or `MIG-` for an instance.
    pub fn uuid_text(&self, device: usize) -> String {
        let hex: String = self.uuid(device).iter().map(|byte| format!("{byte:02x}")).collect();
        format!(
            "{}-{}-{}-{}-{}-{}",
            if self.instance(device).is_some() { "MIG" } else { "GPU" },
            &hex[..8],
            &hex[8..12],
            &hex[12..16],
            &hex[16..20],
            &hex[20..]
        )
    }

    /// The address of a GPU, or of the GPU of an instance.
    pub fn pci(&self, device: usize) -> Pci {
        self.profile.pci[self.instance(device).map_or(device, |instance| instance.of.parent)]
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

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(crate) fn cgroup(&self) -> Option<&Path> {
        self.cgroup.as_deref()
    }

    pub(crate) fn proc(&self, place: usize) -> &'static Proc {
        &self.shared.procs[place]
    }

    pub(crate) fn places(&self) -> impl Iterator<Item = (usize, &'static Proc)> {
        let shared = self.shared;
        let count = (shared.high_water.load(Ordering::Acquire) as usize).min(MAX_PROCS);
        shared.procs[..count].iter().enumerate()
    }

    /// Returns true if a joining process should test for dead processes, so that their slots are reused: always while
    /// there are few processes, otherwise each time that the number of slots has doubled. Otherwise hundreds of
    /// processes that start at once would all test each other.
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

    /// Tests the processes for which `concerns` returns true, and marks the dead ones. Returns true if there are dead
    /// ones to bury.
    pub(crate) fn mark_dead(&self, own: Option<usize>, concerns: impl Fn(usize, &Proc) -> bool) -> bool {
        let mut any = false;
        for (place, proc) in self
            .places()
            .filter(|(place, proc)| Some(*place) != own && concerns(*place, proc))
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

    /// Releases the units of marked processes. If another process is doing so, waits for it, but not forever.
    pub(crate) fn bury(&self) {
        let is_dead = |(_, proc): (usize, &Proc)| proc.phase.load(Ordering::Acquire) & PHASE_MASK == DEAD;
        if let Ok(Some(_lock)) = Lock::take_while(&self.dir, || self.places().any(is_dead)) {
            self.bury_locked();
        }
    }

    pub(crate) fn bury_locked(&self) {
        for (place, proc) in self.places() {
            let phase = proc.phase.load(Ordering::Acquire);
            if phase & PHASE_MASK != DEAD {
                continue;
            }
            for (gpu, entry) in proc.gpus.iter().enumerate().take(self.devices()) {
                let total = &self.shared.gpus[gpu].total;
                let units = total.settle(place, &entry.held) as i64;
                if units > 0 {
                    let _ = total.change(place, -units, 0, self.held(gpu));
                }
                entry.held.clear();
                entry.contexts.store(0, Ordering::Relaxed);
                entry.listed_beside.store(0, Ordering::Relaxed);
                entry.charged.store(0, Ordering::Relaxed);
            }
            self.end_work(place);
            self.shared.virtual_time.clear(place);
            let next = (phase & !PHASE_MASK) + (PHASE_MASK + 1);
            proc.phase.store(next | FREE, Ordering::Release);
        }
    }

    /// Removes a dead process's work from the GPUs. Needs the folder's lock.
    fn end_work(&self, place: usize) {
        let words = self.words();
        let is_its = |(_, word): &(usize, &AtomicU64)| {
            owner::of(word.load(Ordering::Acquire)).is_some_and(|owner: Owner| owner.place == place)
        };
        let queues: Vec<usize> = words
            .owners
            .iter()
            .enumerate()
            .filter(is_its)
            .map(|(queue, _)| queue)
            .collect();
        if !queues.is_empty() {
            timeline::advance(words, self.pace(), BURIAL, self.now());
        }
        for queue in queues {
            timeline::close(words, BURIAL, queue);
        }
    }

    /// Returns true to one of the processes that call it, and then to none for `pause` ns. That process tests whether
    /// others have died.
    pub(crate) fn may_watch(&self, pause: u64) -> bool {
        let (word, now) = (&self.shared.watched_at, now());
        let last = word.load(Ordering::Relaxed);
        now.saturating_sub(last) >= pause
            && word
                .compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
    }

    pub(crate) fn words(&self) -> Words<'static> {
        self.shared.timeline.words(self.devices())
    }

    pub(crate) fn pace(&self) -> Pace {
        Pace {
            slice: self.profile.slice_ns,
            switch: self.profile.switch_time_ns,
            late_events: self.profile.late_events,
        }
    }

    /// The time on the GPUs' clock.
    pub fn now(&self) -> u64 {
        match self.profile.clock {
            Clock::Real => now(),
            Clock::Virtual => self.shared.virtual_time.now(),
        }
    }

    /// None: the GPUs use the real clock.
    pub(crate) fn virtual_time(&self) -> Option<&'static VirtualTime> {
        (self.profile.clock == Clock::Virtual).then_some(&self.shared.virtual_time)
    }

    /// Lets virtual time jump if all threads wait, and wakes them.
    pub(crate) fn jump(&self, time: &VirtualTime) {
        if time.jump(self.shared.high_water.load(Ordering::Acquire) as usize) {
            clock::wake(&time.jumps);
        }
    }

    /// Returns a consistent picture of a GPU: its users' bytes add up to `used`.
    pub fn look(&self, gpu: usize) -> Picture {
        if self.mark_dead(None, |_, _| true) {
            self.bury();
        }
        let units = self.snapshot(gpu);
        // A process that has died since the snapshot is left out: its units may already belong to another one there.
        self.mark_dead(None, |_, _| true);
        let mut picture = Picture {
            used: 0,
            busy: 0,
            users: Vec::new(),
        };
        let mut holders = Holders::read();
        for ((place, proc), (phase, units)) in self.places().zip(units) {
            let entry = &proc.gpus[gpu];
            let contexts = entry.contexts.load(Ordering::Relaxed);
            if phase & PHASE_MASK != LIVE || (units == 0 && contexts == 0) {
                continue;
            }
            let pid = holders.pid(&self.dir, place, proc.pid.load(Ordering::Relaxed));
            // If the phase differs, this is not the process that was in this slot at the snapshot.
            let is_gone = || pid.is_none() && matches!(pulse(&self.dir, place), Pulse::Dead(_));
            if proc.phase.load(Ordering::Acquire) != phase || is_gone() {
                continue;
            }
            let bytes = units * self.profile.granularity;
            let listed = units.saturating_add_signed(entry.listed_beside.load(Ordering::Relaxed));
            picture.used += bytes;
            picture.users.push(User {
                place,
                pid,
                bytes,
                listed: listed * self.profile.granularity,
                contexts,
                busy: 0,
            });
        }
        let places: Vec<(usize, usize)> = picture.users.iter().map(|user| (user.place, gpu)).collect();
        let busy = timeline::busy_in_window(self.words(), self.pace(), &places, self.now());
        picture.busy = percent(busy.iter().sum());
        for (user, busy) in picture.users.iter_mut().zip(busy) {
            user.busy = percent(busy);
        }
        picture
    }

    /// Returns the phase of each slot, and its process's units, all read at one later moment. An attempt takes
    /// microseconds. If other processes allocate so fast that no attempt succeeds, they are asked to pause for a
    /// moment. The last resort is the figure that each process recorded itself.
    fn snapshot(&self, gpu: usize) -> Vec<(u64, u64)> {
        let phases = || -> Vec<u64> {
            let places = self.places();
            places.map(|(_, proc)| proc.phase.load(Ordering::Acquire)).collect()
        };
        let entry = &self.shared.gpus[gpu];
        let (until, mut still) = (Instant::now() + LOCK_WAIT, 0);
        while Instant::now() < until {
            for _ in 0..64 {
                let before = phases();
                let units = entry.total.snapshot(before.len(), self.held(gpu));
                // If a phase changed between the two reads, a process that joined may be in only one of them.
                if let Some(units) = units.filter(|_| phases() == before) {
                    entry.still_until.store(0, Ordering::Relaxed);
                    return before.into_iter().zip(units).collect();
                }
            }
            still = (2 * still).clamp(STILL_NS.start, STILL_NS.end);
            entry.still_until.store(now() + still, Ordering::Relaxed);
        }
        eprintln!(
            "soft-gpu: {}: no one picture of GPU {gpu} in {LOCK_WAIT:?}",
            self.dir.display()
        );
        let own = self.places().map(|(_, proc)| proc.gpus[gpu].held.units());
        phases().into_iter().zip(own).collect()
    }

    /// Returns the bytes in use on a GPU, without a list of processes. Cheap while only one process uses the GPU.
    fn used(&self, gpu: usize, own: usize) -> u64 {
        if self.mark_dead(Some(own), |_, proc| proc.gpus[gpu].held.units() > 0) {
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
            // Done before the lock is taken, because the tests take most of the time.
            if state.is_filling_up() {
                state.mark_dead(None, |_, _| true);
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
                usage::join(state.words(), place, state.now());
                proc.phase.store(phase | LIVE, Ordering::Release);
                let words_at_start = (0..state.devices()).map(|device| state.device_word(device)).collect();
                let turns = (0..MAX_DEVICES).map(|_| Mutex::default()).collect();
                let queues = if state.profile.late_events { MAX_QUEUES } else { 0 };
                drop(_lock);
                return Ok(Member {
                    state,
                    place,
                    words_at_start,
                    turns,
                    journal: Mutex::default(),
                    told: (0..queues).map(|_| AtomicU64::new(0)).collect(),
                });
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

    fn turn(&self, gpu: usize) -> std::sync::MutexGuard<'_, ()> {
        lock(&self.turns[gpu])
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

    /// Allocates units of a GPU, unless the GPU is full or a cgroup is at its limit. Dead processes are buried before it
    /// reports that.
    pub fn grow(&self, gpu: usize, units: u64) -> Result<(), Full> {
        self.charge_cgroups(gpu, units)?;
        self.take(gpu, units)
            .inspect_err(|Full| self.uncharge_cgroups(gpu, units))
    }

    /// Allocates units of managed memory, which is charged to no cgroup.
    pub fn grow_managed(&self, gpu: usize, units: u64) -> Result<(), Full> {
        self.take(gpu, units)?;
        self.managed(gpu, units as i64);
        Ok(())
    }

    fn take(&self, gpu: usize, units: u64) -> Result<(), Full> {
        let Ok(delta) = i64::try_from(units) else {
            return Err(Full);
        };
        let (state, capacity) = (&self.state, self.state.memory_of(gpu) / self.state.profile.granularity);
        if units > capacity {
            return Err(Full);
        }
        let _turn = self.turn(gpu);
        self.stand_still(gpu);
        let total = &state.shared.gpus[gpu].total;
        let change = || total.change(self.place, delta, capacity, state.held(gpu));
        change().or_else(|Full| {
            if !state.mark_dead(Some(self.place), |_, _| true) {
                return Err(Full);
            }
            state.bury();
            change()
        })
    }

    /// Releases units.
    pub fn shrink(&self, gpu: usize, units: u64) {
        self.give(gpu, units);
        self.uncharge_cgroups(gpu, units);
    }

    /// Releases units of managed memory.
    pub fn shrink_managed(&self, gpu: usize, units: u64) {
        self.managed(gpu, -(units as i64));
        self.give(gpu, units);
    }

    fn give(&self, gpu: usize, units: u64) {
        let _turn = self.turn(gpu);
        self.stand_still(gpu);
        let state = &self.state;
        let delta = -(units.min(state.held(gpu)(self.place).units()) as i64);
        // The result is ignored: a release cannot exceed the capacity.
        let _ = state.shared.gpus[gpu]
            .total
            .change(self.place, delta, 0, state.held(gpu));
    }

    /// Makes NVML list this many units more (or fewer) for this process than it holds.
    pub fn list_beside(&self, gpu: usize, units: i64) {
        let counter = &self.state.shared.procs[self.place].gpus[gpu].listed_beside;
        counter.fetch_add(units, Ordering::Relaxed);
    }

    /// Adjusts NVML's figure for managed memory, whose units are allocated before or released after this call.
    fn managed(&self, gpu: usize, change: i64) {
        if !self.state.profile.nvml_managed {
            self.list_beside(gpu, -change);
        }
    }

    /// Adjusts NVML's figure for another process's memory that this process has imported or closed.
    pub fn imported(&self, gpu: usize, change: i64) {
        if self.state.profile.nvml_imports {
            self.list_beside(gpu, change);
        }
    }

    /// Returns the free bytes of a GPU.
    pub fn free(&self, gpu: usize) -> u64 {
        self.state
            .memory_of(gpu)
            .saturating_sub(self.state.used(gpu, self.place))
    }

    pub fn contexts(&self, gpu: usize, change: i32) {
        let counter = &self.state.shared.procs[self.place].gpus[gpu].contexts;
        let _ = counter.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_add_signed(change));
    }
}
