//! MIG modes and instances while programs run: NVML makes and ends them, for all processes of the state folder.
//!
//! ```text
//!  nvmlDeviceCreateGpuInstance... ──► State::create_gpu_instance ──► layout::Mig   a word a GPU instance, a word a device
//!  control: reload, reset         ──► State::settle                  (changes under the folder's lock, read without)
//!                                            └──► capabilities::Files
//! ```
//!
//! Failure modes:
//! - Killed between a file and its word: a file without an instance is overwritten by the next instance there; the word is
//!   written last when an instance is made, and first when it is ended.
//! - A process makes a context while its instance is ended: it takes the folder's lock too ([`Member::enter`]), so either
//!   the end is refused, or the context.
//! - A program still has memory in an instance that a reload ended: the place is not used again until it is gone.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::capabilities::{Files, may_configure};
use crate::control::{Act, Control};
use crate::layout::{LIVE, PHASE_MASK, Proc};
use crate::liveness::Lock;
use crate::mig::{GpuInstance, Instance, MOST_COMPUTE};
use crate::mig_words::{CURRENT, PENDING, PRESENT, bits, gpu_instance, pack, pack_gpu_instance, unpack};
use crate::products::{Product, Shape};
use crate::profile::MAX_DEVICES;
use crate::state::{Member, State};

/// Why a mode or an instance stays as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    NotSupported,
    NoPermission,
    Invalid,
    NotFound,
    ResetRequired,
    InUse,
    InsufficientResources,
    System,
    /// By a line of the file `control`, with NVML's code.
    Injected(i32),
}

// === impl State: reading ===

impl State {
    fn product(&self) -> &'static Product {
        self.profile().mig_product
    }

    /// Returns the GPU instance in a slot.
    pub fn gpu_instance(&self, slot: usize) -> Option<GpuInstance> {
        let word = self.mig().gpu_instances.get(slot)?.load(Ordering::Acquire);
        gpu_instance(self.product(), word)
    }

    /// Returns the GPU instances of a GPU, with or without a compute instance, and their slots.
    pub fn gpu_instances(&self, gpu: usize) -> Vec<(usize, GpuInstance)> {
        let slots = 0..self.mig().gpu_instances.len();
        slots
            .filter_map(|slot| Some((slot, self.gpu_instance(slot)?)))
            .filter(|(_, one)| one.parent == gpu)
            .collect()
    }

    /// Returns the instance in a place; None: a GPU or nothing is there.
    pub fn instance(&self, device: usize) -> Option<Instance> {
        let word = self.device_word(device);
        (word & PRESENT != 0).then_some(())?;
        Some(unpack(self.gpu_instance(bits(word, 0, 8) as usize)?, word))
    }

    /// The places of all instances, and the instances.
    pub fn all_instances(&self) -> impl Iterator<Item = (usize, Instance)> {
        let places = self.profile().gpus as usize..self.devices();
        places.filter_map(|place| Some((place, self.instance(place)?)))
    }

    /// The places of the compute instances of a GPU instance.
    pub fn compute_instances(&self, slot: usize) -> Vec<(usize, Instance)> {
        let all = self.all_instances();
        all.filter(|(_, one)| one.slot == slot && one.compute.is_some())
            .collect()
    }

    /// The mode of a GPU, and the one that it has after its next reset.
    pub fn mig_modes(&self, gpu: usize) -> [bool; 2] {
        let word = self.mig().modes[gpu].load(Ordering::Acquire);
        [word & CURRENT != 0, word & PENDING != 0]
    }

    /// Returns true if a GPU can have MIG mode.
    pub fn can_divide(&self, gpu: usize) -> bool {
        !self.product().shapes.is_empty() && !self.profile().is_unified(gpu)
    }

    /// Returns how many more instances of a profile a GPU has room for.
    pub fn remaining(&self, gpu: usize, shape: &'static Shape) -> u32 {
        let mut others = self.shapes(gpu);
        for start in shape.starts {
            if self.product().conflict(&others, shape, *start).is_none() {
                others.push((shape, *start));
            }
        }
        (others.len() - self.shapes(gpu).len()) as u32
    }

    fn shapes(&self, gpu: usize) -> Vec<(&'static Shape, u32)> {
        let all = self.gpu_instances(gpu).into_iter();
        all.map(|(_, one)| (one.shape, one.start)).collect()
    }

    /// The first of `slices` free compute slices of a GPU instance.
    pub fn free_slices(&self, slot: usize, slices: u32) -> Option<u32> {
        let most = self.gpu_instance(slot)?.shape.slices;
        let others = self.compute_instances(slot);
        let is_free = |first: &u32| {
            let taken = |(_, one): &(usize, Instance)| {
                one.first_slice < first + slices && *first < one.first_slice + one.slices
            };
            first + slices <= most && !others.iter().any(taken)
        };
        (0..most).find(is_free)
    }

    fn files<'a>(&'a self, control: &Control) -> Files<'a> {
        Files {
            dir: self.dir(),
            with_nodes: !control.nodes_are_manual,
        }
    }

    /// Returns true if this process may make and end instances: its state is its own or it is root, or it has the capability
    /// node for that.
    pub fn may_configure(&self) -> bool {
        self.caps().map_or_else(|| self.is_own(), may_configure)
    }

    /// Returns true if a living process has a context or memory in a place. Needs the folder's lock.
    fn has_users(&self, device: usize) -> bool {
        let uses = |proc: &Proc| {
            let entry = &proc.gpus[device];
            entry.contexts.load(Ordering::SeqCst) > 0 || entry.held.units() > 0
        };
        if self.mark_dead(None, |_, proc| uses(proc)) {
            self.bury_locked();
        }
        let is_live = |proc: &Proc| proc.phase.load(Ordering::Acquire) & PHASE_MASK == LIVE;
        self.places().any(|(_, proc)| is_live(proc) && uses(proc))
    }
}

// === impl State: changing ===

impl State {
    /// Asks whether this process may change a GPU, and waits as long as `control` says. Returns the lines of the file.
    fn ask(&self, gpu: usize, act: Act) -> Result<Control, Refused> {
        if !self.may_configure() {
            return Err(Refused::NoPermission);
        }
        self.settle();
        let control = self.control();
        std::thread::sleep(control.slow(gpu));
        control
            .refused(gpu, act)
            .map_or(Ok(control), |code| Err(Refused::Injected(code)))
    }

    fn locked<T>(&self, change: impl FnOnce() -> Result<T, Refused>) -> Result<T, Refused> {
        let _lock = Lock::take(self.dir()).map_err(|_| Refused::System)?;
        change()
    }

    /// Sets the mode of a GPU. Ok(Err): the mode is pending, for this reason.
    ///
    /// # Errors
    /// The mode stays as it is.
    pub fn set_mig_mode(&self, gpu: usize, on: bool) -> Result<Result<(), Refused>, Refused> {
        if !self.can_divide(gpu) {
            return Err(Refused::NotSupported);
        }
        let control = self.ask(gpu, Act::Mode)?;
        let (word, is_at_once) = (
            &self.mig().modes[gpu],
            self.product().resetless || control.resets_itself(gpu),
        );
        self.locked(|| {
            let is_same = self.mig_modes(gpu)[0] == on;
            // assumed: a mode is not switched off under instances
            let has_instances = !self.gpu_instances(gpu).is_empty();
            let is_busy =
                !is_same && (has_instances || self.has_users(gpu) && (control.early_busy || !self.product().resetless));
            let (now, next) = (if on { CURRENT } else { 0 }, if on { PENDING } else { 0 });
            if !is_same && self.product().resetless && is_busy {
                return Err(Refused::InUse);
            }
            if on {
                self.files(&control).add_config().map_err(|_| Refused::System)?;
            }
            if is_same || is_at_once && !is_busy {
                word.store(now | next, Ordering::Release);
                return Ok(Ok(()));
            }
            word.store(word.load(Ordering::Relaxed) & CURRENT | next, Ordering::Release);
            Ok(Err(if is_busy {
                Refused::InUse
            } else {
                Refused::ResetRequired
            }))
        })
    }

    /// Makes a GPU instance; None: at the first place where there is room. Returns its slot.
    ///
    /// # Errors
    /// There is no room, or the GPU takes none.
    pub fn create_gpu_instance(&self, gpu: usize, shape: &'static Shape, start: Option<u32>) -> Result<usize, Refused> {
        let modes = self.mig_modes(gpu);
        if !modes[0] {
            return Err(Refused::NotSupported);
        }
        let control = self.ask(gpu, Act::Create)?;
        if modes[1] != modes[0] {
            return Err(Refused::ResetRequired); // assumed
        }
        if start.is_some_and(|start| !shape.starts.contains(&start)) {
            return Err(Refused::Invalid);
        }
        let made = self.locked(|| {
            let others = self.shapes(gpu);
            // Use of the whole GPU is noticed at the first instance.
            if others.is_empty() && self.has_users(gpu) {
                return Err(Refused::InUse);
            }
            let fits = |start: &u32| self.product().conflict(&others, shape, *start).is_none();
            let wanted = start.map_or_else(|| shape.starts.to_vec(), |start| vec![start]);
            let start = wanted.into_iter().find(fits).ok_or(Refused::InsufficientResources)?;
            let slots = &self.mig().gpu_instances;
            let slot = slots.iter().position(|word| word.load(Ordering::Relaxed) == 0);
            let slot = slot.ok_or(Refused::InsufficientResources)?;
            let of = GpuInstance {
                parent: gpu,
                product: self.product(),
                shape,
                start,
            };
            self.files(&control)
                .add_gpu_instance(&of)
                .map_err(|_| Refused::System)?;
            let number = self.product().shapes.iter().position(|one| one == shape).unwrap_or(0);
            slots[slot].store(pack_gpu_instance(gpu, number, start), Ordering::Release);
            if control.bare_instances {
                self.place(slot, None, shape.slices, 0, &control)?;
            }
            Ok(slot)
        });
        std::thread::sleep(control.late(gpu));
        made
    }

    /// Puts a device into a free place. Needs the folder's lock.
    fn place(
        &self,
        slot: usize,
        compute: Option<u32>,
        slices: u32,
        first_slice: u32,
        control: &Control,
    ) -> Result<usize, Refused> {
        let of = self.gpu_instance(slot).ok_or(Refused::NotFound)?;
        let words = &self.mig().devices_words;
        let bare = self
            .all_instances()
            .find(|(_, one)| one.slot == slot && one.compute.is_none());
        let is_free = |place: &usize| words[*place].load(Ordering::Relaxed) == 0 && !self.has_users(*place);
        let free = || (self.profile().gpus as usize..MAX_DEVICES).find(is_free);
        let place = bare
            .map(|(place, _)| place)
            .or_else(free)
            .ok_or(Refused::InsufficientResources)?;
        let others = self
            .all_instances()
            .filter(|(at, one)| one.of.parent == of.parent && *at != place);
        let taken: Vec<u32> = others.map(|(_, one)| one.index).collect();
        let index = (0..self.product().most()).find(|index| !taken.contains(index));
        let instance = Instance {
            of,
            slot,
            index: index.ok_or(Refused::InsufficientResources)?,
            compute,
            slices,
            first_slice,
            other_uuid: control.new_uuids,
            generation: self.mig().made.fetch_add(1, Ordering::Relaxed) & 0xff_ffff,
        };
        if compute.is_some() {
            self.files(control)
                .add_compute(&instance)
                .map_err(|_| Refused::System)?;
        }
        words[place].store(pack(&instance), Ordering::Release);
        self.mig().devices.fetch_max(place as u32 + 1, Ordering::AcqRel);
        Ok(place)
    }

    /// Makes a compute instance with so many compute slices. Returns its place.
    ///
    /// # Errors
    /// The GPU instance has no room for it, or is gone.
    pub fn create_compute_instance(&self, slot: usize, slices: u32) -> Result<usize, Refused> {
        let gpu = self.gpu_instance(slot).ok_or(Refused::NotFound)?.parent;
        let control = self.ask(gpu, Act::Compute)?;
        let made = self.locked(|| {
            let first = self.free_slices(slot, slices).ok_or(Refused::InsufficientResources)?;
            let taken: Vec<Option<u32>> = self
                .compute_instances(slot)
                .iter()
                .map(|(_, one)| one.compute)
                .collect();
            let id = (0..MOST_COMPUTE).find(|id| !taken.contains(&Some(*id)));
            self.place(slot, id, slices, first, &control)
        });
        std::thread::sleep(control.late(gpu));
        made
    }

    /// Ends the compute instance in a place.
    ///
    /// # Errors
    /// A process uses it.
    pub fn destroy_compute_instance(&self, place: usize) -> Result<(), Refused> {
        let instance = self.instance(place).ok_or(Refused::NotFound)?;
        let control = self.ask(instance.of.parent, Act::Destroy)?;
        let ended = self.locked(|| {
            if self.instance(place) != Some(instance) {
                return Err(Refused::NotFound);
            }
            if self.has_users(place) || control.is_held(instance.of.parent, instance.id()) {
                return Err(Refused::InUse);
            }
            self.mig().devices_words[place].store(0, Ordering::SeqCst);
            self.files(&control).remove_compute(&instance);
            Ok(())
        });
        std::thread::sleep(control.late(instance.of.parent));
        ended
    }

    /// Ends the GPU instance in a slot.
    ///
    /// # Errors
    /// It has a compute instance.
    pub fn destroy_gpu_instance(&self, slot: usize) -> Result<(), Refused> {
        let of = self.gpu_instance(slot).ok_or(Refused::NotFound)?;
        let control = self.ask(of.parent, Act::Destroy)?;
        let ended = self.locked(|| {
            if self.gpu_instance(slot) != Some(of) {
                return Err(Refused::NotFound);
            }
            if !self.compute_instances(slot).is_empty() || control.is_held(of.parent, of.id()) {
                return Err(Refused::InUse);
            }
            self.end(slot, &of, &control);
            Ok(())
        });
        std::thread::sleep(control.late(of.parent));
        ended
    }

    /// Ends a GPU instance and its devices, whoever uses them. Needs the folder's lock.
    fn end(&self, slot: usize, of: &GpuInstance, control: &Control) {
        for (place, instance) in self.all_instances().filter(|(_, one)| one.slot == slot) {
            self.mig().devices_words[place].store(0, Ordering::SeqCst);
            self.files(control).remove_compute(&instance);
        }
        self.mig().gpu_instances[slot].store(0, Ordering::SeqCst);
        self.files(control).remove_gpu_instance(of);
    }

    /// Does what the lines `reload` and `reset` of the file `control` say, once for each number.
    pub fn settle(&self) {
        let (control, mig) = (self.control(), self.mig());
        let is_new =
            |asked: Option<u64>, done: &AtomicU64| asked.is_some_and(|number| number != done.load(Ordering::Acquire));
        let gpus = 0..self.profile().gpus as usize;
        let asks =
            |gpu: &usize| is_new(control.reload, &mig.reload) || is_new(control.reset_of(*gpu), &mig.resets[*gpu]);
        if !gpus.clone().any(|gpu| asks(&gpu)) {
            return;
        }
        let _ = self.locked(|| {
            let is_reload = is_new(control.reload, &mig.reload);
            for gpu in gpus.filter(asks).collect::<Vec<usize>>() {
                for (slot, of) in self.gpu_instances(gpu) {
                    self.end(slot, &of, &control);
                }
                self.restart(&mig.modes[gpu], is_reload);
                mig.resets[gpu].store(control.reset_of(gpu).unwrap_or(0), Ordering::Release);
            }
            mig.reload.store(control.reload.unwrap_or(0), Ordering::Release);
            Ok(())
        });
    }

    /// The mode after a reset or a reload: a pending one holds, and a reload ends one that is not in the InfoROM.
    fn restart(&self, mode: &AtomicU32, is_reload: bool) {
        let is_on = mode.load(Ordering::Relaxed) & PENDING != 0 && !(is_reload && self.product().resetless);
        mode.store(if is_on { CURRENT | PENDING } else { 0 }, Ordering::Release);
    }
}

// === impl Member ===

impl Member {
    /// Counts a context in a place. None: the instance that this process found there at its start is gone.
    pub fn enter(&self, device: usize) -> Option<()> {
        let word = self.words_at_start.get(device).copied().unwrap_or(0);
        if device < self.state.profile().gpus as usize {
            self.contexts(device, 1);
            return Some(());
        }
        let _lock = Lock::take(self.state.dir()).ok()?;
        (word != 0 && self.state.device_word(device) == word).then(|| self.contexts(device, 1))
    }
}
