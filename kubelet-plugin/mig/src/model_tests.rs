//! Any sequence of claims, kills between any two steps, lost answers, calls that a process with NVML carries out only after the
//! plugin has given them up or was killed, reboots, reloads of the module, and an administrator beside: the instances are those of the prepared claims and the administrator's own.
//!
//! The fake driver panics if an administrator's instance is destroyed or changed, and refuses overlapping places.
//!
//! The administrator never makes exactly an instance that a record of this boot says may be there: nothing tells the two
//! apart (see the failure modes of `instances`).
//!
//! Claims also have a GPU as a whole: then its mode is off, it has no instance, and no claim makes one.

use super::*;
use crate::fake::{Gpu, Instance, Killed, Machine, TestInstances};
use crate::tables;
use proptest::prelude::*;
use proptest::sample::Index;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// The first one is in MIG mode when the machine starts, by the administrator's choice.
const GPUS: [&str; 2] = ["GPU-1", "GPU-2"];
const CLAIMS: usize = 6;

#[derive(Clone, Debug)]
enum Step {
    Prepare {
        claim: usize,
        at: At,
        ends: Ends,
    },
    /// A claim that gets a GPU as a whole.
    PrepareWhole {
        claim: usize,
        gpu: usize,
        ends: Ends,
    },
    Unprepare {
        claim: usize,
        ends: Ends,
    },
    /// A turn of the plugin, or its start.
    Turn {
        ends: Ends,
    },
    Reboot,
    Reload,
    AdministratorMakes(At),
    AdministratorDestroys(Index),
    /// An instance of a claim, which no process uses, or only its compute instance.
    AdministratorDestroysClaims {
        which: Index,
        is_compute_alone: bool,
    },
    /// Makes an instance that overlaps the place of a record, whose instance is destroyed if no process uses it.
    AdministratorTakesPlace {
        record: Index,
        place: Index,
    },
    /// A process begins to use an instance.
    Use(Index),
    EndUse(Index),
}

/// A profile in a place of a GPU.
#[derive(Clone, Debug)]
struct At {
    gpu: usize,
    place: Index,
}

/// How a call of the plugin ends.
#[derive(Clone, Copy, Debug)]
enum Ends {
    Well,
    /// Killed after this many steps, if it has so many.
    Killed(usize),
    /// The answer of this call is lost.
    Unanswered(usize),
    /// This call is given up, and carried out later. Before that, no call is answered.
    GivenUp {
        call: usize,
        is_killed: bool,
    },
    /// The disk is full after this many writes.
    DiskFull(usize),
}

fn steps() -> impl Strategy<Value = Step> {
    let at = || (0..GPUS.len(), any::<Index>()).prop_map(|(gpu, place)| At { gpu, place });
    let ends = || {
        prop_oneof![
            3 => Just(Ends::Well),
            3 => (0..30_usize).prop_map(Ends::Killed),
            1 => (0..10_usize).prop_map(Ends::Unanswered),
            2 => (0..10_usize, any::<bool>()).prop_map(|(call, is_killed)| Ends::GivenUp { call, is_killed }),
            1 => (0..4_usize).prop_map(Ends::DiskFull),
        ]
    };
    let index = any::<Index>;
    prop_oneof![
        8 => (0..CLAIMS, at(), ends()).prop_map(|(claim, at, ends)| Step::Prepare { claim, at, ends }),
        3 => (0..CLAIMS, 0..GPUS.len(), ends()).prop_map(|(claim, gpu, ends)| Step::PrepareWhole { claim, gpu, ends }),
        4 => (0..CLAIMS, ends()).prop_map(|(claim, ends)| Step::Unprepare { claim, ends }),
        3 => ends().prop_map(|ends| Step::Turn { ends }),
        1 => Just(Step::Reboot),
        1 => Just(Step::Reload),
        3 => at().prop_map(Step::AdministratorMakes),
        1 => index().prop_map(Step::AdministratorDestroys),
        1 => (index(), any::<bool>())
            .prop_map(|(which, is_compute_alone)| Step::AdministratorDestroysClaims { which, is_compute_alone }),
        2 => (index(), index()).prop_map(|(record, place)| Step::AdministratorTakesPlace { record, place }),
        2 => index().prop_map(Step::Use),
        2 => index().prop_map(Step::EndUse),
    ]
}

/// GPU, profile and place.
type Wanted = (usize, u32, Placement);

struct Scene {
    machine: Machine,
    /// Claims that the plugin has reported as prepared.
    prepared: BTreeMap<usize, Wanted>,
    /// The same of claims that have a GPU as a whole.
    whole: BTreeMap<usize, usize>,
    /// Something is unfinished: a start follows before the next call.
    is_down: bool,
    /// The disk became full between a record and a refusal, which may lose the record of an instance that had vanished.
    may_have_forgotten: bool,
    /// True for each GPU whose mode the administrator switched on.
    modes: [bool; 2],
}

impl Scene {
    fn new() -> Self {
        Self {
            machine: Machine::with_gpus(&[(GPUS[0], true), (GPUS[1], false)]),
            prepared: BTreeMap::new(),
            whole: BTreeMap::new(),
            is_down: false,
            may_have_forgotten: false,
            modes: [true, false],
        }
    }

    /// Returns None if the plugin was killed.
    fn call<T>(&mut self, ends: Ends, call: impl FnOnce(&TestInstances) -> T) -> Option<T> {
        let plugin = self.machine.plugin(true);
        match ends {
            Ends::Well => {}
            Ends::Killed(steps) => self.machine.state().lives_for = Some(steps),
            Ends::Unanswered(calls) => self.machine.state().loses_answer_in = Some(calls),
            Ends::GivenUp { call, is_killed } => {
                let mut state = self.machine.state();
                (state.gives_up_in, state.is_killed_then) = (Some(call), is_killed);
            }
            Ends::DiskFull(writes) => {
                self.machine.state().writes_left = Some(writes);
                self.may_have_forgotten |= writes > 0;
            }
        }
        self.is_down |= matches!(ends, Ends::Unanswered(_) | Ends::GivenUp { .. } | Ends::DiskFull(_));
        let result = catch_unwind(AssertUnwindSafe(|| call(&plugin)));
        self.machine.state().lives_for = None;
        self.machine.state().loses_answer_in = None;
        self.machine.state().gives_up_in = None;
        self.machine.state().is_killed_then = false;
        self.machine.state().writes_left = None;
        match result {
            Ok(answer) => Some(answer),
            Err(payload) if payload.is::<Killed>() => {
                self.is_down = true;
                None
            }
            Err(payload) => resume_unwind(payload),
        }
    }

    fn turn(&mut self, ends: Ends) {
        let prepared: BTreeSet<String> = self.prepared.keys().map(|claim| uid(*claim)).collect();
        let held: Vec<&str> = self.whole.values().map(|gpu| GPUS[*gpu]).collect();
        let known = Known {
            is_prepared: &|uid| prepared.contains(uid),
            is_gpu_held: &|gpu| held.contains(&gpu),
        };
        let done = self.call(ends, |plugin| plugin.recover(known).expect("listed"));
        let is_pending = self.machine.state().pending.is_some();
        if done.is_some() && matches!(ends, Ends::Well) && !is_pending {
            self.is_down = false;
            self.check();
        }
    }

    fn start(&mut self) {
        if self.machine.state().pending.is_some() {
            // Nothing is decided before it has ended.
            let before = self.machine.state().instances();
            self.turn(Ends::Well);
            assert_eq!(self.machine.state().instances(), before);
            self.machine.state().end_pending();
        }
        if self.is_down {
            self.turn(Ends::Well);
        }
    }

    fn take(&mut self, step: &Step) {
        if !matches!(step, Step::Prepare { .. } | Step::Unprepare { .. } | Step::Turn { .. }) {
            self.machine.state().end_pending();
        }
        match step {
            Step::Prepare { claim, at, ends } => self.prepare(*claim, at.wanted(), *ends),
            Step::PrepareWhole { claim, gpu, ends } => self.prepare_whole(*claim, *gpu, *ends),
            Step::Unprepare { claim, ends } => self.unprepare(*claim, *ends),
            Step::Turn { ends } => self.turn(*ends),
            Step::Reboot => {
                self.prepared.clear();
                self.whole.clear();
                self.machine.state().boot += 1;
                self.lose_instances([true, false]);
            }
            Step::Reload => self.lose_instances([false, false]),
            Step::AdministratorMakes(at) => self.administrator_makes(at.wanted()),
            Step::AdministratorDestroys(which) => self.remove(which, false, |one| one.is_administrators),
            Step::AdministratorDestroysClaims {
                which,
                is_compute_alone,
            } => {
                self.remove(which, *is_compute_alone, |one| !one.is_administrators && !one.is_in_use);
            }
            Step::AdministratorTakesPlace { record, place } => self.administrator_takes(record, place),
            Step::Use(which) => self.set_use(which, true),
            Step::EndUse(which) => self.set_use(which, false),
        }
    }

    fn prepare(&mut self, claim: usize, wanted: Wanted, ends: Ends) {
        self.start();
        let is_another = self.prepared.get(&claim).is_some_and(|known| *known != wanted);
        if is_another || self.whole.contains_key(&claim) {
            self.unprepare(claim, Ends::Well);
        }
        let (gpu, profile, placement) = wanted;
        // It may be an administrator's: made after the claim's had been seen to be gone.
        let is_there = self.instance(wanted).is_some_and(|one| !one.is_administrators);
        let is_shared = is_there && self.prepared.values().any(|other| *other == wanted);
        let is_held = self.is_held(gpu);
        let must_succeed = is_shared || self.has_room(wanted) && !is_held;
        let is_leftover = !is_shared && self.instance(wanted).is_some_and(|one| one.is_in_use);
        let uid = uid(claim);
        let asked = Asked {
            claim: &uid,
            gpu: GPUS[gpu],
            profile,
            profile_name: "p",
            placement,
            whole: None,
        };
        let answer = self.call(ends, |plugin| plugin.prepare(&asked, is_held));
        let is_certain = matches!(ends, Ends::Well) || matches!(ends, Ends::Killed(_)) && answer.is_some();
        match answer {
            Some(Ok(_)) => {
                let made = self.instance(wanted).expect("it is there");
                assert!(made.has_compute && !made.is_administrators);
                assert!(!is_leftover, "another claim's process uses it");
                assert!(!is_held, "a claim has the GPU as a whole");
                self.prepared.insert(claim, wanted);
            }
            Some(Err(error)) => assert!(!is_certain || !must_succeed, "{error}"),
            None => {}
        }
    }

    fn prepare_whole(&mut self, claim: usize, gpu: usize, ends: Ends) {
        self.start();
        if self.prepared.contains_key(&claim) || self.whole.contains_key(&claim) {
            self.unprepare(claim, Ends::Well);
        }
        let is_divided = self.prepared.values().any(|(of, _, _)| *of == gpu);
        let (is_off, is_free) = {
            let mut state = self.machine.state();
            let gpu = state.gpu(GPUS[gpu]);
            let is_free = gpu.instances.iter().all(|one| !one.is_administrators && !one.is_in_use);
            (!gpu.mode.is_on, is_free)
        };
        let must_succeed = !is_divided && (is_off || is_free && !self.modes[gpu]);
        match self.call(ends, |plugin| plugin.whole(GPUS[gpu])) {
            Some(Ok(())) => {
                assert!(!is_divided, "claims have instances");
                let mut state = self.machine.state();
                let found = state.gpu(GPUS[gpu]);
                assert!(!found.mode.is_on && found.instances.is_empty(), "it is not whole");
                drop(state);
                self.whole.insert(claim, gpu);
            }
            Some(Err(error)) => assert!(!matches!(ends, Ends::Well) || !must_succeed, "{error}"),
            None => {}
        }
    }

    fn is_held(&self, gpu: usize) -> bool {
        self.whole.values().any(|of| *of == gpu)
    }

    fn unprepare(&mut self, claim: usize, ends: Ends) {
        self.start();
        self.prepared.remove(&claim);
        self.whole.remove(&claim);
        self.call(ends, |plugin| plugin.unprepare(&uid(claim)).expect("listed"));
    }

    fn administrator_makes(&mut self, wanted: Wanted) {
        let (gpu, profile, place) = wanted;
        if !self.may_be_a_claims(wanted) {
            // The place may be taken, or the mode off.
            let _ = self.machine.state().gpu(GPUS[gpu]).create(profile, place, true);
        }
    }

    fn administrator_takes(&mut self, record: &Index, place: &Index) {
        let records = Records::read(&self.machine).expect("listed").instances;
        if records.is_empty() {
            return;
        }
        let record = record.get(&records.into_values().collect::<Vec<_>>()).clone();
        let is_its = |one: &Instance| (one.profile, one.placement) == (record.profile, record.placement);
        let is_free = |one: &Instance| !one.is_administrators && !one.is_in_use && is_its(one);
        self.machine
            .state()
            .gpu(&record.gpu)
            .instances
            .retain(|one| !is_free(one));
        let overlapping: Vec<(u32, Placement)> = places()
            .into_iter()
            .filter(|(_, place)| overlap(*place, record.placement))
            .collect();
        let (profile, placement) = *place.get(&overlapping);
        let gpu = GPUS.iter().position(|gpu| *gpu == record.gpu).expect("a GPU");
        self.administrator_makes((gpu, profile, placement));
    }

    fn lose_instances(&mut self, modes: [bool; 2]) {
        self.modes = modes;
        for (gpu, is_on) in GPUS.iter().zip(modes) {
            *self.machine.state().gpu(gpu) = Gpu::new(is_on);
        }
        self.is_down = true;
    }

    fn instance(&self, (gpu, profile, placement): Wanted) -> Option<Instance> {
        let mut state = self.machine.state();
        let mut all = state.gpu(GPUS[gpu]).instances.iter();
        all.find(|one| (one.profile, one.placement) == (profile, placement))
            .cloned()
    }

    /// Returns true if the driver would create it once the mode is on.
    fn has_room(&self, (gpu, profile, placement): Wanted) -> bool {
        let mut state = self.machine.state();
        let gpu = state.gpu(GPUS[gpu]);
        let mode = gpu.mode;
        gpu.mode.is_on = true;
        let has_room = gpu.refusal(profile, placement).is_none();
        gpu.mode = mode;
        has_room
    }

    fn may_be_a_claims(&self, (gpu, profile, placement): Wanted) -> bool {
        let boot = self.machine.state().boot_name();
        let records = Records::read(&self.machine).expect("listed");
        let mut all = records.of_gpu(GPUS[gpu]);
        all.any(|record| {
            record.boot == boot
                && record.stage != Stage::Absent
                && (record.profile, record.placement) == (profile, placement)
        })
    }

    fn remove(&mut self, which: &Index, is_compute_alone: bool, is_one: impl Fn(&Instance) -> bool) {
        let mut state = self.machine.state();
        let all: Vec<(String, usize)> = state
            .gpus
            .iter()
            .flat_map(|(gpu, of)| of.instances.iter().enumerate().map(move |(at, one)| (gpu, at, one)))
            .filter(|(_, _, one)| is_one(one))
            .map(|(gpu, at, _)| (gpu.clone(), at))
            .collect();
        if !all.is_empty() {
            let (gpu, at) = which.get(&all);
            match is_compute_alone {
                true => state.gpu(gpu).instances[*at].has_compute = false,
                false => drop(state.gpu(gpu).instances.remove(*at)),
            }
        }
    }

    fn set_use(&mut self, which: &Index, is_in_use: bool) {
        let mut state = self.machine.state();
        let mut all: Vec<&mut Instance> = state.gpus.values_mut().flat_map(|gpu| &mut gpu.instances).collect();
        if !all.is_empty() {
            let at = which.index(all.len());
            // No program runs in an instance without a compute instance.
            all[at].is_in_use = is_in_use && all[at].has_compute;
        }
    }

    /// After a turn: the claims' instances are there unless something has their place, and no other is but what processes
    /// use.
    fn check(&self) {
        for (number, gpu) in GPUS.iter().enumerate() {
            let of_gpu = self.prepared.values().filter(|(of, _, _)| *of == number);
            let wanted: BTreeSet<(u32, u32)> = of_gpu.map(|(_, profile, place)| (*profile, place.start)).collect();
            let instances = self.machine.state().gpu(gpu).instances.clone();
            for one in instances.iter().filter(|one| !one.is_administrators) {
                let is_wanted = wanted.contains(&(one.profile, one.placement.start));
                assert!(is_wanted || one.is_in_use, "{one:?} is nobody's");
                assert!(one.has_compute || !is_wanted, "{one:?} is not complete");
            }
            let is_empty = instances.is_empty()
                && Records::read(&self.machine)
                    .expect("listed")
                    .of_gpu(gpu)
                    .next()
                    .is_none();
            let is_on = self.machine.state().gpu(gpu).mode.is_on;
            assert!(!is_empty || is_on == self.modes[number], "mode of {gpu}");
        }
        for wanted in self.prepared.values() {
            let found = self.instance(*wanted).filter(|one| !one.is_administrators);
            let is_possible = self.has_room(*wanted) && !self.may_have_forgotten && !self.is_held(wanted.0);
            assert!(found.is_some() || !is_possible, "{wanted:?} is missing");
        }
    }

    fn end(mut self) {
        self.start();
        self.turn(Ends::Well);
        for gpu in self.machine.state().gpus.values_mut() {
            for instance in &mut gpu.instances {
                instance.is_in_use = false;
            }
        }
        let administrators = |machine: &Machine| GPUS.map(|gpu| machine.state().gpu(gpu).places(true));
        let before = administrators(&self.machine);
        self.turn(Ends::Well);
        let expected: BTreeSet<(usize, u32, u32)> = self
            .prepared
            .values()
            .filter(|wanted| self.instance(**wanted).is_some())
            .map(|(gpu, profile, place)| (*gpu, *profile, place.start))
            .collect();
        let found: BTreeSet<(usize, u32, u32)> = (0..GPUS.len())
            .flat_map(|gpu| {
                let places = self.machine.state().gpu(GPUS[gpu]).places(false);
                places.into_iter().map(move |(profile, start)| (gpu, profile, start))
            })
            .collect();
        assert!(found.is_subset(&expected), "{found:?} are more than {expected:?}");
        for claim in 0..CLAIMS {
            self.unprepare(claim, Ends::Well);
        }
        for gpu in GPUS {
            assert!(self.machine.state().gpu(gpu).places(false).is_empty());
        }
        assert_eq!(administrators(&self.machine), before);
        // The mode of a GPU with an administrator's instance stays on.
        let left: Vec<String> = self.machine.state().files.keys().cloned().collect();
        assert!(left.iter().all(|name| name.ends_with(".mode.json")), "{left:?}");
    }
}

impl At {
    fn wanted(&self) -> Wanted {
        let (profile, placement) = *self.place.get(&places());
        (self.gpu, profile, placement)
    }
}

fn places() -> Vec<(u32, Placement)> {
    let profiles = tables::h100();
    let of = |profile: &crate::driver::Profile| {
        let id = profile.id;
        profile.placements.clone().into_iter().map(move |place| (id, place))
    };
    profiles.iter().flat_map(of).collect()
}

fn uid(claim: usize) -> String {
    format!("u{claim}")
}

/// Set for a longer run: the number of sequences.
const CASES: &str = "VGPU_MODEL_CASES";

fn cases() -> u32 {
    std::env::var(CASES).map_or(250, |cases| cases.parse().expect("a number"))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn instances_are_the_claims_and_the_administrators(steps in prop::collection::vec(steps(), 1..40)) {
        let mut scene = Scene::new();
        for step in &steps {
            scene.take(step);
        }
        scene.end();
    }
}
