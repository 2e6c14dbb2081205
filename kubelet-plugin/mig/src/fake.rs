//! For tests: a driver and a store that can be killed between any two steps, refuse, lose answers, and carry a call out later.

use crate::driver::{Answer, Call, Code, ComputeInstance, GpuInstance, MigDriver, Mode, Profile, Refused, overlap};
use crate::instances::{Instances, Settings};
use crate::records::Store;
use crate::tables;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::panic::resume_unwind;
use std::rc::Rc;
use vgpu_node::files::{Failed, failed};
use vgpu_node::gpus::Placement;

/// The machine: it outlives the plugin.
#[derive(Clone, Default)]
pub(crate) struct Machine(Rc<RefCell<State>>);

#[derive(Default)]
pub(crate) struct State {
    pub(crate) gpus: BTreeMap<String, Gpu>,
    pub(crate) files: BTreeMap<String, Vec<u8>>,
    pub(crate) boot: u32,
    /// Steps until the plugin is killed.
    pub(crate) lives_for: Option<usize>,
    /// Calls until an answer is lost.
    pub(crate) loses_answer_in: Option<usize>,
    /// Calls until one is given up.
    pub(crate) gives_up_in: Option<usize>,
    /// The plugin is killed then.
    pub(crate) is_killed_then: bool,
    /// The call that was given up. A process with NVML still carries it out, and until then no other one is made.
    pub(crate) pending: Option<(String, Call)>,
    /// The next call of this kind is refused.
    pub(crate) refuses: Option<Refusal>,
    /// Writes until the disk is full.
    pub(crate) writes_left: Option<usize>,
    pub(crate) calls: Vec<Call>,
}

/// Which call is refused, and with what.
type Refusal = (fn(&Call) -> bool, Code);

pub(crate) struct Gpu {
    pub(crate) mode: Mode,
    pub(crate) is_resetless: bool,
    /// A mode is only pending, and the call fails.
    pub(crate) fails_to_activate: bool,
    pub(crate) users: usize,
    pub(crate) profiles: Vec<Profile>,
    pub(crate) instances: Vec<Instance>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Instance {
    pub(crate) profile: u32,
    pub(crate) placement: Placement,
    pub(crate) has_compute: bool,
    /// No claim made it.
    pub(crate) is_administrators: bool,
    pub(crate) is_in_use: bool,
}

/// The payload of the panic that ends a killed plugin.
pub(crate) struct Killed;

pub(crate) type TestInstances = Instances<Machine, Machine>;

// === impl Machine ===

impl Machine {
    pub(crate) fn state(&self) -> std::cell::RefMut<'_, State> {
        self.0.borrow_mut()
    }

    /// A machine with H100s.
    pub(crate) fn with_gpus(modes: &[(&str, bool)]) -> Self {
        let machine = Self::default();
        for (gpu, is_on) in modes {
            let gpu = (*gpu).to_owned();
            machine.state().gpus.insert(gpu, Gpu::new(*is_on));
        }
        machine
    }

    /// A plugin that has just started.
    pub(crate) fn plugin(&self, switches_mode: bool) -> TestInstances {
        let boot = format!("boot-{}", self.state().boot);
        Instances::new(self.clone(), self.clone(), Settings { boot, switches_mode })
    }

    /// A place between two steps, at which the plugin may be killed.
    fn step(&self) {
        let mut state = self.state();
        let Some(left) = state.lives_for else { return };
        match left.checked_sub(1) {
            Some(left) => state.lives_for = Some(left),
            None => {
                state.lives_for = None;
                drop(state);
                resume_unwind(Box::new(Killed));
            }
        }
    }
}

impl MigDriver for Machine {
    fn call(&self, gpu: &str, call: &Call) -> Result<Answer, Refused> {
        self.step();
        let answer = self.state().take(gpu, call);
        let is_killed = self.state().pending.is_some() && self.state().is_killed_then;
        if is_killed {
            resume_unwind(Box::new(Killed));
        }
        self.step();
        answer
    }
}

impl Store for Machine {
    fn write(&self, name: &str, bytes: &[u8], _is_synced: bool) -> Result<(), Failed> {
        self.step();
        if self.state().takes_no_write() {
            return Err(failed("write", name.as_ref())(std::io::ErrorKind::StorageFull.into()));
        }
        self.state().files.insert(name.to_owned(), bytes.to_vec());
        self.step();
        Ok(())
    }

    fn remove(&self, name: &str) -> Result<(), Failed> {
        self.step();
        self.state().files.remove(name);
        self.step();
        Ok(())
    }

    fn all(&self) -> Result<BTreeMap<String, Result<Vec<u8>, String>>, Failed> {
        let files = self.state().files.clone();
        Ok(files.into_iter().map(|(name, bytes)| (name, Ok(bytes))).collect())
    }
}

// === impl State ===

impl State {
    fn take(&mut self, uuid: &str, call: &Call) -> Result<Answer, Refused> {
        if self.pending.is_none() && self.gives_up_in == Some(0) {
            self.gives_up_in = None;
            self.pending = Some((uuid.to_owned(), call.clone()));
        }
        if self.pending.is_some() {
            return Err(refused(call, Code::NoAnswer));
        }
        self.gives_up_in = self.gives_up_in.and_then(|left| left.checked_sub(1));
        self.calls.push(call.clone());
        if self.refuses.is_some_and(|(is_it, _)| is_it(call)) {
            let code = self.refuses.take().map(|(_, code)| code);
            return Err(refused(call, code.expect("a code")));
        }
        let is_lost = self.loses_answer_in == Some(0);
        self.loses_answer_in = self.loses_answer_in.and_then(|left| left.checked_sub(1));
        let gpu = self.gpus.get_mut(uuid).ok_or_else(|| refused(call, Code::NotFound))?;
        let answer = gpu.answer(call).map_err(|code| refused(call, code));
        match is_lost {
            true => Err(refused(call, Code::NoAnswer)),
            false => answer,
        }
    }

    /// The process with NVML carries out the call that was given up.
    pub(crate) fn end_pending(&mut self) {
        if let Some((uuid, call)) = self.pending.take() {
            // Nobody hears of it.
            let _ = self.gpu(&uuid).answer(&call);
        }
    }

    fn takes_no_write(&mut self) -> bool {
        let is_full = self.writes_left == Some(0);
        self.writes_left = self.writes_left.map(|left| left.saturating_sub(1));
        is_full
    }

    pub(crate) fn gpu(&mut self, uuid: &str) -> &mut Gpu {
        self.gpus.get_mut(uuid).expect("a GPU")
    }

    pub(crate) fn instances(&self) -> Vec<Instance> {
        self.gpus.values().flat_map(|gpu| gpu.instances.clone()).collect()
    }

    pub(crate) fn boot_name(&self) -> String {
        format!("boot-{}", self.boot)
    }
}

fn refused(call: &Call, code: Code) -> Refused {
    Refused::new(&format!("{call:?}"), code, "")
}

// === impl Gpu ===

impl Gpu {
    pub(crate) fn new(is_on: bool) -> Self {
        Self {
            mode: Mode {
                is_on,
                is_on_after_reset: is_on,
            },
            is_resetless: true,
            fails_to_activate: false,
            users: 0,
            profiles: tables::h100(),
            instances: Vec::new(),
        }
    }

    fn answer(&mut self, call: &Call) -> Result<Answer, Code> {
        let is_on = self.mode.is_on;
        Ok(match call {
            Call::Mode => Answer::Mode(self.mode),
            Call::IsResetless => Answer::IsResetless(self.is_resetless),
            Call::Users => Answer::Users(self.users),
            Call::Profiles => Answer::Profiles(self.profiles.clone()),
            Call::SetMode { .. } if self.users > 0 || !self.instances.is_empty() => return Err(Code::InUse),
            Call::SetMode { is_on } if self.fails_to_activate && *is_on => {
                self.mode.is_on_after_reset = true;
                return Err(Code::InUse);
            }
            Call::SetMode { is_on } => {
                self.mode.is_on = *is_on;
                self.mode.is_on_after_reset = *is_on;
                Answer::Done
            }
            Call::Instances => Answer::Instances(self.instances.iter().map(Instance::listed).collect()),
            _ if !is_on => return Err(Code::NotSupported),
            Call::Create { profile, placement } => {
                self.create(*profile, *placement, false)?;
                Answer::Created(id(*placement))
            }
            Call::CreateCompute { .. } | Call::DestroyCompute { .. } | Call::Destroy { .. } => self.change(call)?,
        })
    }

    /// Carries out a call that names an instance.
    fn change(&mut self, call: &Call) -> Result<Answer, Code> {
        Ok(match call {
            Call::CreateCompute { gpu_instance } => {
                let instance = self.instance(*gpu_instance)?;
                assert!(
                    !instance.is_administrators,
                    "a compute instance in an administrator's instance"
                );
                if instance.has_compute {
                    return Err(Code::InsufficientResources);
                }
                instance.has_compute = true;
                Answer::CreatedCompute(compute(*gpu_instance))
            }
            Call::DestroyCompute { gpu_instance, .. } => {
                let instance = self.instance(*gpu_instance)?;
                assert!(
                    !instance.is_administrators,
                    "an administrator's compute instance is destroyed"
                );
                if !instance.has_compute {
                    return Err(Code::NotFound);
                }
                if instance.is_in_use {
                    return Err(Code::InUse);
                }
                instance.has_compute = false;
                Answer::Done
            }
            Call::Destroy { gpu_instance } => {
                let instance = self.instance(*gpu_instance)?;
                assert!(!instance.is_administrators, "an administrator's instance is destroyed");
                if instance.has_compute || instance.is_in_use {
                    return Err(Code::InUse);
                }
                self.instances
                    .retain(|instance| id(instance.placement) != *gpu_instance);
                Answer::Done
            }
            _ => unreachable!("it names no instance"),
        })
    }

    fn instance(&mut self, gpu_instance: u32) -> Result<&mut Instance, Code> {
        let mut all = self.instances.iter_mut();
        all.find(|instance| id(instance.placement) == gpu_instance)
            .ok_or(Code::NotFound)
    }

    /// Why an instance cannot be created.
    pub(crate) fn refusal(&self, profile: u32, placement: Placement) -> Option<Code> {
        if !self.mode.is_on {
            return Some(Code::NotSupported);
        }
        let by_id = |id: u32| self.profiles.iter().find(|known| known.id == id);
        let Some(wanted) = by_id(profile).filter(|known| known.placements.contains(&placement)) else {
            return Some(Code::Other(2));
        };
        let ofas = |profile: &Profile| profile.engines.ofas;
        let others = self.instances.iter().filter_map(|other| by_id(other.profile)).map(ofas);
        let is_taken = self.instances.iter().any(|other| overlap(other.placement, placement));
        let is_full = is_taken || others.sum::<u32>() + ofas(wanted) > 1;
        match (self.users > 0, is_full) {
            (true, _) => Some(Code::InUse),
            (false, true) => Some(Code::InsufficientResources),
            (false, false) => None,
        }
    }

    pub(crate) fn create(&mut self, profile: u32, placement: Placement, is_administrators: bool) -> Result<(), Code> {
        if let Some(code) = self.refusal(profile, placement) {
            return Err(code);
        }
        self.instances.push(Instance {
            profile,
            placement,
            has_compute: is_administrators,
            is_administrators,
            is_in_use: false,
        });
        Ok(())
    }

    /// Profiles and first slices of the claims' instances, and those of the administrator's.
    pub(crate) fn places(&self, is_administrators: bool) -> BTreeSet<(u32, u32)> {
        let of = self
            .instances
            .iter()
            .filter(|one| one.is_administrators == is_administrators);
        of.map(|one| (one.profile, one.placement.start)).collect()
    }
}

// === impl Instance ===

impl Instance {
    fn listed(&self) -> GpuInstance {
        let id = id(self.placement);
        GpuInstance {
            id,
            profile: self.profile,
            placement: self.placement,
            compute: self.has_compute.then(|| compute(id)).into_iter().collect(),
        }
    }
}

/// The driver's id of a place: 0 for all eight slices, 1 and 2 for the halves, and so on.
pub(crate) fn id(placement: Placement) -> u32 {
    8 / placement.size - 1 + placement.start / placement.size
}

/// Its UUID comes back with the place, whoever makes the instance.
fn compute(gpu_instance: u32) -> ComputeInstance {
    ComputeInstance {
        id: 0,
        uuid: Some(format!("MIG-{gpu_instance}")),
    }
}
