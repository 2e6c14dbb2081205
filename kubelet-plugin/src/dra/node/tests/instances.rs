//! Claims that make instances, on a driver that remembers them and the software GPU's capability nodes.

use super::*;
use crate::config::MigDynamic;
use crate::publish::inventory::dynamic::tests::h100;
use crate::publish::inventory::{DynamicGpu, Gpu, Unavailable};
use std::sync::{Arc, Mutex, MutexGuard};
use vgpu_mig::candidates::Place;
use vgpu_mig::driver::{ComputeInstance, GpuInstance, overlap};
use vgpu_mig::{Answer, Call, Code, MigDriver, Pool, Refused};
use vgpu_node::gpus::Placement;

const LAST_HALF: &str = "mig-of-3f8a1c20-3g-40gb-4";
const FIRST_HALF: &str = "mig-of-3f8a1c20-3g-40gb-0";

/// The machine: it outlives the plugin.
#[derive(Clone, Default)]
pub(crate) struct Machine(Arc<Mutex<State>>);

#[derive(Default)]
pub(crate) struct State {
    pub(crate) instances: Vec<GpuInstance>,
    /// Ids of instances that a process uses.
    pub(crate) in_use: Vec<u32>,
    /// The answer to each create.
    pub(crate) refuses: Option<Code>,
    /// A create is carried out, and its answer is `refuses`.
    pub(crate) makes_all_the_same: bool,
    /// How many calls came.
    pub(crate) calls: usize,
    /// No call is answered, for this reason.
    pub(crate) silence: Option<String>,
    /// By when each call was to be answered.
    deadlines: Vec<Instant>,
    /// MIG mode is off.
    is_whole: bool,
    /// UUIDs of GPUs whose mode needs a reset.
    pub(crate) fixed: Vec<String>,
    /// Processes that use the GPU as a whole.
    pub(crate) users: usize,
    /// The answer to each change of the mode.
    pub(crate) refuses_mode: Option<Code>,
    boot: u32,
}

impl Machine {
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no panic")
    }

    pub(crate) fn boot(&self) -> String {
        format!("boot-{}", self.state().boot)
    }

    pub(crate) fn reboot(&self) {
        let mut state = self.state();
        (state.instances, state.boot) = (Vec::new(), state.boot + 1);
    }

    /// An administrator switches MIG mode.
    pub(crate) fn switch(&self, is_on: bool) {
        self.state().is_whole = !is_on;
    }

    pub(crate) fn is_on(&self) -> bool {
        !self.state().is_whole
    }

    /// First slices.
    pub(crate) fn starts(&self) -> Vec<u32> {
        let state = self.state();
        state
            .instances
            .iter()
            .map(|instance| instance.placement.start)
            .collect()
    }

    /// An administrator makes a 3g.40gb.
    pub(crate) fn make_half(&self, start: u32) {
        let placement = Placement { start, size: 4 };
        let mut state = self.state();
        let id = state.create(9, placement).expect("room");
        state.compute(id);
    }
}

impl State {
    fn create(&mut self, profile: u32, placement: Placement) -> Result<u32, Code> {
        if self.instances.iter().any(|other| overlap(other.placement, placement)) {
            return Err(Code::InsufficientResources);
        }
        // As the driver numbers places.
        let id = 8 / placement.size - 1 + placement.start / placement.size;
        let compute = Vec::new();
        self.instances.push(GpuInstance {
            id,
            profile,
            placement,
            compute,
        });
        Ok(id)
    }

    fn compute(&mut self, id: u32) -> ComputeInstance {
        let made = ComputeInstance {
            id: 0,
            uuid: Some(format!("MIG-{id}")),
        };
        let instance = self.instances.iter_mut().find(|instance| instance.id == id);
        instance.expect("an instance").compute.push(made.clone());
        made
    }

    fn answer(&mut self, call: &Call) -> Result<Answer, Code> {
        match call {
            Call::Mode => Ok(Answer::Mode(vgpu_mig::driver::Mode {
                is_on: !self.is_whole,
                is_on_after_reset: !self.is_whole,
            })),
            Call::Users => Ok(Answer::Users(self.users)),
            Call::SetMode { is_on } => match self.refuses_mode {
                Some(code) => Err(code),
                None if self.instances.is_empty() => {
                    self.is_whole = !is_on;
                    Ok(Answer::Done)
                }
                None => Err(Code::InUse),
            },
            Call::Create { .. } if self.is_whole => Err(Code::NotSupported),
            Call::Profiles => Ok(Answer::Profiles(h100())),
            Call::Instances => Ok(Answer::Instances(self.instances.clone())),
            Call::Create { profile, placement } => match self.refuses {
                Some(code) if self.makes_all_the_same => {
                    self.create(*profile, *placement)?;
                    Err(code)
                }
                Some(code) => Err(code),
                None => self.create(*profile, *placement).map(Answer::Created),
            },
            Call::CreateCompute { gpu_instance } => Ok(Answer::CreatedCompute(self.compute(*gpu_instance))),
            Call::DestroyCompute { gpu_instance, .. } | Call::Destroy { gpu_instance }
                if self.in_use.contains(gpu_instance) =>
            {
                Err(Code::InUse)
            }
            Call::DestroyCompute { gpu_instance, .. } => {
                let instance = self.instances.iter_mut().find(|one| one.id == *gpu_instance);
                instance.ok_or(Code::NotFound)?.compute.clear();
                Ok(Answer::Done)
            }
            Call::Destroy { gpu_instance } => {
                self.instances.retain(|one| one.id != *gpu_instance);
                Ok(Answer::Done)
            }
            _ => Err(Code::NotSupported),
        }
    }
}

impl MigDriver for Machine {
    fn call(&self, gpu: &str, call: &Call) -> Result<Answer, Refused> {
        let mut state = self.state();
        state.calls += 1;
        let refused = |code, reason: &str| Refused::new(&format!("{call:?}"), code, reason);
        let answer = match (state.silence.clone(), call) {
            (Some(reason), _) => return Err(refused(Code::NoAnswer, &reason)),
            (None, Call::IsResetless) => Ok(Answer::IsResetless(!state.fixed.iter().any(|uuid| uuid == gpu))),
            (None, _) => state.answer(call),
        };
        answer.map_err(|code| refused(code, ""))
    }

    fn call_by(&self, gpu: &str, call: &Call, deadline: Instant) -> Result<Answer, Refused> {
        self.state().deadlines.push(deadline);
        self.call(gpu, call)
    }
}

/// A claim with these devices whole.
pub(crate) fn of(uid: &str, devices: &[&str]) -> (ClaimId, ResourceClaim) {
    let result = |device: &&str| json!({"request": "gpu", "driver": "dra.vgpu", "pool": "n1/vgpu-mig-3f8a1c20", "device": device});
    with_results(uid, devices.iter().map(result).collect())
}

/// A claim with a share of an instance.
fn share_of(uid: &str, device: &str, gib: u64) -> (ClaimId, ResourceClaim) {
    let result = json!({"request": "gpu", "driver": "dra.vgpu", "pool": "n1/vgpu-mig-3f8a1c20", "device": device, "shareID": uid,
        "consumedCapacity": {"memory": format!("{gib}Gi"), "cores": "10", "shares": "1", "multiprocessors": "0"}});
    with_results(uid, vec![result])
}

fn with_results(uid: &str, results: Vec<serde_json::Value>) -> (ClaimId, ResourceClaim) {
    let claim = json!({"metadata": {"name": format!("claim-{uid}"), "namespace": "d", "uid": uid}, "spec": {},
        "status": {"allocation": {"devices": {"results": results}}}});
    (id(uid), serde_json::from_value(claim).expect("a claim"))
}

impl Node {
    /// Makes what a Prepare that crashes leaves: the instance without the claim's record.
    pub(crate) fn make_for_test(&mut self, (id, claim): &(ClaimId, ResourceClaim)) -> Result<(), String> {
        self.make_instances(id, claim).map_err(|error| error.to_string())
    }

    pub(crate) fn prepare_for_test(&mut self, claim: (ClaimId, ResourceClaim)) -> Result<(), String> {
        let prepared = prepare(self, claim);
        prepared.map(drop).map_err(|error| error.to_string())
    }
}

/// A plugin that has just started on a node where claims switch MIG modes, before the first list of its GPUs.
pub(crate) fn start_switching(rig: &Rig, machine: &Machine) -> Node {
    let mut node = open(rig);
    node.config.mig_dynamic = MigDynamic::Modes;
    node.make_instances_with(Arc::new(machine.clone()), machine.boot());
    node
}

/// Surveys GPU 0, and gives the node what is published of it.
fn scan(node: &mut Node) -> Survey {
    scan_with_problems(node).0
}

/// The same, with the problems of the node.
fn scan_with_problems(node: &mut Node) -> (Survey, Vec<String>) {
    let locked = node.locked();
    let uuid = gpu(0).uuid;
    let surveys = node.survey(&locked, std::slice::from_ref(&uuid), &[]);
    let mut surveys = surveys.expect("read");
    let survey = surveys.of.remove(&uuid);
    let survey = survey.expect("it was asked for").expect("the driver answers");
    publish(node, &survey, BTreeMap::new());
    (survey, surveys.problems)
}

/// Gives the node what is published of GPU 0.
fn publish(node: &mut Node, survey: &Survey, unavailable: BTreeMap<String, Unavailable>) {
    let uuid = gpu(0).uuid;
    let administrators = survey.administrators.iter().map(|one| Place {
        profile: one.profile,
        placement: one.placement,
    });
    let administrators: Vec<Place> = administrators.collect();
    let mut pool = Pool::new(&uuid, &survey.profiles, &administrators, &survey.held).expect("a pool");
    if node.config.mig_dynamic == MigDynamic::Modes {
        pool = pool.with_undivided(&uuid);
    }
    // This release takes several instances.
    let driver_version = "570.86.10".to_owned();
    let with_instances = Gpu {
        driver_version,
        ..gpu(0)
    };
    let dynamic = DynamicGpu {
        gpu: with_instances,
        pool,
        undivided_unavailable: None,
    };
    node.set_inventory(Ok(Inventory::new(vec![gpu(1)]).with_dynamic(vec![dynamic], unavailable)));
}

/// The driver is known not to answer.
fn silent() -> BTreeMap<String, Unavailable> {
    BTreeMap::from([(gpu(0).uuid, Unavailable::Silent("NVML hangs".into()))])
}

/// A plugin that has just started, on this machine.
fn start(rig: &Rig, machine: &Machine) -> Node {
    let mut node = open(rig);
    node.make_instances_with(Arc::new(machine.clone()), machine.boot());
    scan(&mut node);
    node
}

/// A node with the capability nodes of the halves of GPU 0.
fn open(rig: &Rig) -> Node {
    for (place, minor) in [("gi1", 21), ("gi1/ci0", 22), ("gi2", 31), ("gi2/ci0", 32)] {
        let of_kernel = rig.path(&format!("soft/proc/driver/nvidia/capabilities/gpu0/mig/{place}"));
        std::fs::create_dir_all(&of_kernel).expect("a folder");
        std::fs::write(of_kernel.join("access"), format!("DeviceFileMinor: {minor}\n")).expect("written");
    }
    rig.open()
}

/// Files of records.
fn records(rig: &Rig) -> usize {
    std::fs::read_dir(rig.path("store/mig")).map_or(0, Iterator::count)
}

#[test]
fn a_claim_makes_its_instance_and_its_end_destroys_it_also_after_a_restart() {
    let (rig, machine) = (Rig::new(false), Machine::default());
    let mut node = start(&rig, &machine);
    let prepared = prepare(&mut node, of("u1", &[LAST_HALF])).expect("prepared");
    assert_eq!(
        (prepared[0].device.as_str(), prepared[0].pool.as_str()),
        (LAST_HALF, "n1/vgpu-mig-3f8a1c20")
    );
    assert_eq!((machine.starts(), records(&rig)), (vec![4], 1));
    let limits = std::fs::read_to_string(rig.path(&format!("run/claims/u1/{LAST_HALF}/limits"))).expect("limits");
    assert!(
        limits.contains("gpu MIG-2\n") && limits.contains(&format!("memory {}\n", 40_448_u64 << 20)),
        "{limits}"
    );
    drop(node);
    let mut node = start(&rig, &machine);
    assert_eq!(machine.starts(), [4], "its claim is prepared");
    assert!(
        node.inventory().and_then(|inventory| inventory.gpu("MIG-2")).is_some(),
        "as soon as its GPU is listed"
    );
    prepare(&mut node, of("u1", &[LAST_HALF])).expect("prepared before");
    assert!(node.claims().in_use().iter().all(|one| one.is_dynamic));
    unprepare(&mut node, "u1").expect("unprepared");
    assert_eq!((machine.starts(), records(&rig), rig.leftovers().len()), (vec![], 0, 0));
}

#[test]
fn shares_have_one_instance_until_the_last_one_ends() {
    let (rig, machine) = (Rig::new(false), Machine::default());
    let mut node = start(&rig, &machine);
    for (uid, gib) in [("u1", 10), ("u2", 20)] {
        prepare(&mut node, share_of(uid, LAST_HALF, gib)).expect("prepared");
    }
    let full = prepare(&mut node, share_of("u3", LAST_HALF, 10))
        .expect_err("full")
        .to_string();
    assert!(full.contains(LAST_HALF) && full.contains("memory"), "{full}");
    assert_eq!(machine.starts(), [4]);
    unprepare(&mut node, "u1").expect("unprepared");
    scan(&mut node);
    assert_eq!(machine.starts(), [4], "one has it");
    unprepare(&mut node, "u2").expect("unprepared");
    assert_eq!((machine.starts(), records(&rig)), (vec![], 0));
}

#[test]
fn a_prepare_that_fails_leaves_no_instance_and_says_what_to_do() {
    let (rig, machine) = (Rig::new(false), Machine::default());
    let mut node = start(&rig, &machine);
    machine.state().refuses = Some(Code::InUse);
    let said = prepare(&mut node, of("u1", &[LAST_HALF]))
        .expect_err("refused")
        .to_string();
    for part in ["3g.40gb", "4..8", &gpu(0).uuid, "IN_USE", "end what uses the GPU"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    machine.state().refuses = None;
    // The second one fails after the first one was made.
    machine.make_half(0);
    let said = prepare(&mut node, of("u1", &[LAST_HALF, FIRST_HALF]))
        .expect_err("taken")
        .to_string();
    assert!(said.contains("GPU instance 1, which no claim made"), "{said}");
    assert_eq!((machine.starts(), records(&rig)), (vec![0], 0));
    // The instance is there, and its nodes are not.
    std::fs::remove_dir_all(rig.path("soft/proc")).expect("removed");
    let said = prepare(&mut node, of("u1", &[LAST_HALF]))
        .expect_err("no nodes")
        .to_string();
    assert!(said.contains("gi2/access"), "{said}");
    assert_eq!(
        (machine.starts(), records(&rig), rig.leftovers().len()),
        (vec![0], 0, 0)
    );
}

#[test]
fn an_instance_that_is_in_use_is_reported_and_destroyed_when_it_is_free() {
    let (rig, machine) = (Rig::new(false), Machine::default());
    let mut node = start(&rig, &machine);
    prepare(&mut node, of("u1", &[LAST_HALF])).expect("prepared");
    machine.state().in_use = vec![2];
    unprepare(&mut node, "u1").expect("the claim is unprepared");
    let (_, problems) = scan_with_problems(&mut node);
    assert!(
        problems.len() == 1 && problems[0].contains("while a process uses it"),
        "{problems:?}"
    );
    let said = prepare(&mut node, of("u2", &[LAST_HALF]))
        .expect_err("another tenant's process")
        .to_string();
    assert!(said.contains("while a process uses it"), "{said}");
    prepare(&mut node, of("u3", &[FIRST_HALF])).expect("another place");
    assert_eq!(scan(&mut node).leftovers, [Placement { start: 4, size: 4 }]);
    unprepare(&mut node, "u3").expect("unprepared");
    machine.state().in_use.clear();
    let (survey, problems) = scan_with_problems(&mut node);
    assert_eq!((problems, survey.leftovers), (vec![], vec![]));
    assert_eq!((machine.starts(), records(&rig)), (vec![], 0));
}

#[test]
fn an_administrators_instance_stays_and_its_place_is_not_offered() {
    let (rig, machine) = (Rig::new(false), Machine::default());
    machine.make_half(4);
    let mut node = start(&rig, &machine);
    let survey = scan(&mut node);
    assert_eq!((survey.administrators.len(), survey.held.len()), (1, 0));
    let said = prepare(&mut node, of("u1", &[LAST_HALF]))
        .expect_err("not offered")
        .to_string();
    assert!(said.contains(LAST_HALF) && said.contains("does not exist"), "{said}");
    prepare(&mut node, of("u2", &[FIRST_HALF])).expect("beside it");
    let survey = scan(&mut node);
    assert_eq!(
        (survey.administrators.len(), survey.held.len()),
        (1, 1),
        "a claim's is no administrator's"
    );
    unprepare(&mut node, "u2").expect("unprepared");
    drop(node);
    start(&rig, &machine);
    assert_eq!(machine.starts(), [4]);
}

#[test]
fn a_start_destroys_what_no_claim_has_and_a_reboot_leaves_nothing() {
    let (rig, machine) = (Rig::new(false), Machine::default());
    let mut node = start(&rig, &machine);
    prepare(&mut node, of("u1", &[LAST_HALF])).expect("prepared");
    drop(node);
    // The claim's record is damaged: nothing is certain of it.
    std::fs::write(rig.record("u1"), "{").expect("written");
    let mut node = start(&rig, &machine);
    assert_eq!(machine.starts(), [4]);
    unprepare(&mut node, "u1").expect("unprepared");
    prepare(&mut node, of("u2", &[FIRST_HALF])).expect("prepared");
    drop(node);
    // As a crash before the claim's record leaves it.
    rig.reboot();
    start(&rig, &machine);
    assert_eq!((machine.starts(), records(&rig)), (vec![], 0));
    let mut node = start(&rig, &machine);
    prepare(&mut node, of("u3", &[FIRST_HALF])).expect("prepared");
    drop(node);
    rig.reboot();
    machine.reboot();
    // Somebody's in the place of the former one.
    machine.make_half(0);
    let mut node = start(&rig, &machine);
    assert_eq!((machine.starts(), records(&rig)), (vec![0], 0));
    prepare(&mut node, of("u3", &[LAST_HALF])).expect("prepared");
}

#[test]
fn a_claim_that_was_allocated_again_has_its_new_instance_alone() {
    let (rig, machine) = (Rig::new(false), Machine::default());
    let mut node = start(&rig, &machine);
    prepare(&mut node, of("u1", &[LAST_HALF])).expect("prepared");
    // The same memory slices, as another profile.
    prepare(&mut node, of("u1", &[FIRST_HALF])).expect("prepared");
    assert_eq!((machine.starts(), records(&rig)), (vec![0], 1));
    prepare(&mut node, of("u1", &["mig-of-3f8a1c20-4g-40gb-0"])).expect("prepared");
    assert_eq!((machine.starts(), records(&rig)), (vec![0], 1));
    assert_eq!(machine.state().instances[0].profile, 5);
    std::fs::write(rig.path("living"), "mig-of-3f8a1c20-4g-40gb-0").expect("written");
    let said = prepare(&mut node, of("u1", &[LAST_HALF]))
        .expect_err("a container has it")
        .to_string();
    assert!(said.contains("still has its share"), "{said}");
    assert_eq!(machine.starts(), [0]);
}

/// As after a time in which claims made no instances on this node: the record is of a claim that has ended meanwhile.
#[test]
fn an_instance_that_another_claim_has_is_not_destroyed() {
    let (rig, machine) = (Rig::new(false), Machine::default());
    let mut node = start(&rig, &machine);
    scan(&mut node);
    prepare(&mut node, of("u1", &[LAST_HALF])).expect("prepared");
    let made = node
        .inventory()
        .and_then(|inventory| inventory.gpu("MIG-2").cloned())
        .expect("made");
    // The flag is off: the instance is one as any other.
    let mut node = rig.open();
    let named = |node: &Node| node.inventory().expect("listed").by_index()[0].0.to_owned();
    node.set_inventory(Ok(Inventory::new(vec![made])));
    unprepare(&mut node, "u1").expect("unprepared");
    let device = named(&node);
    prepare(&mut node, of("u2", &[&device])).expect("the instance is free");
    // The flag is on again.
    let mut node = start(&rig, &machine);
    scan(&mut node);
    assert_eq!(machine.starts(), [4], "claim u2 has it");
    unprepare(&mut node, "u2").expect("unprepared");
    scan(&mut node);
    assert_eq!(machine.starts(), [0; 0], "nobody has it");
}

#[test]
fn nothing_is_made_for_a_claim_that_is_not_valid() {
    let (rig, machine) = (Rig::new(false), Machine::default());
    let mut node = start(&rig, &machine);
    scan(&mut node);
    let before = machine.state().calls;
    let refused = prepare(&mut node, share_of("u1", LAST_HALF, 400))
        .expect_err("more than it has")
        .to_string();
    assert!(refused.contains("400Gi"), "{refused}");
    let (id, mut claim) = of("u2", &[LAST_HALF]);
    let devices = claim
        .status
        .as_mut()
        .and_then(|status| status.allocation.as_mut()?.devices.as_mut());
    let require = json!([{"source": "FromClaim", "opaque": {"driver": "dra.vgpu", "parameters": {
        "apiVersion": vgpu_api::CONFIG_API_VERSION, "kind": vgpu_api::CONFIG_KIND, "memoryEnforcement": "Require"}}}]);
    devices.expect("devices").config = serde_json::from_value(require).expect("a config");
    prepare(&mut node, (id, claim)).expect_err("an instance has no limit of the driver");
    let asked = machine.state().calls - before;
    assert!(
        machine.starts().is_empty() && asked <= 2,
        "{asked} calls for two claims that are not valid"
    );
}

/// A timeout does not say whether the instance was made.
#[test]
fn a_create_that_ends_unclear_is_the_claims_and_goes_with_it() {
    let (rig, machine) = (Rig::new(false), Machine::default());
    let mut node = start(&rig, &machine);
    scan(&mut node);
    (machine.state().refuses, machine.state().makes_all_the_same) = (Some(Code::Other(10)), true);
    prepare(&mut node, of("u1", &[LAST_HALF])).expect_err("a timeout");
    machine.state().refuses = None;
    assert!(scan(&mut node).administrators.is_empty(), "it is nobody else's");
    scan(&mut node);
    assert_eq!(machine.starts(), [0; 0], "the claim was not prepared");
}

/// Each question may take a minute, and other claims wait.
#[test]
fn a_silent_driver_is_asked_once_in_a_turn() {
    let (rig, machine) = (Rig::new(false), Machine::default());
    let mut node = start(&rig, &machine);
    scan(&mut node);
    prepare(&mut node, of("u1", &[LAST_HALF])).expect("prepared");
    prepare(&mut node, of("u2", &[FIRST_HALF])).expect("prepared");
    let before = machine.state().calls;
    machine.state().silence = Some("NVML hangs".into());
    let locked = node.locked();
    let answers = node.unprepare(&locked, &["u1", "u2"]);
    assert!(
        answers.iter().all(Result::is_ok),
        "the claims end all the same: {answers:?}"
    );
    assert_eq!(machine.state().calls - before, 1);
    machine.state().silence = None;
    scan(&mut node);
    assert_eq!(machine.starts(), [0; 0]);
}

pub(crate) const UNDIVIDED: &str = "gpu-3f8a1c20-undivided";

/// A plugin that has just started where claims switch MIG modes.
fn switching(rig: &Rig, machine: &Machine) -> Node {
    let mut node = start_switching(rig, machine);
    scan(&mut node);
    node
}

/// A claim with this share of the undivided GPU.
pub(crate) fn part(uid: &str, gib: u64) -> (ClaimId, ResourceClaim) {
    part_of(UNDIVIDED, "n1/vgpu-mig-3f8a1c20", uid, gib)
}

fn part_of(device: &str, pool: &str, uid: &str, gib: u64) -> (ClaimId, ResourceClaim) {
    let result = json!({"request": "gpu", "driver": "dra.vgpu", "pool": pool, "device": device, "shareID": uid,
        "consumedCapacity": {"memory": format!("{gib}Gi"), "cores": "10", "shares": "1"}});
    with_results(uid, vec![result])
}

fn refused(node: &mut Node, claim: (ClaimId, ResourceClaim)) -> String {
    prepare(node, claim).expect_err("refused").to_string()
}

#[test]
fn claims_have_the_whole_gpu_shares_of_it_and_its_instances_in_turn() {
    let (rig, machine) = (Rig::new(false), Machine::default());
    machine.switch(false);
    let mut node = switching(&rig, &machine);
    let prepared = prepare(&mut node, part("u1", 80)).expect("the whole GPU");
    assert_eq!(
        (prepared[0].device.as_str(), prepared[0].pool.as_str()),
        (UNDIVIDED, "n1/vgpu-mig-3f8a1c20")
    );
    let limits = std::fs::read_to_string(rig.path("run/claims/u1/u1/limits")).expect("limits");
    assert!(limits.contains(&format!("gpu {}\n", gpu(0).uuid)), "{limits}");
    assert!(node.claims().in_use().iter().all(|one| one.is_dynamic));
    // Two claims for one GPU: the second one waits, and nothing is switched.
    let said = refused(&mut node, of("u2", &[LAST_HALF]));
    assert!(
        said.contains("while claims hold the GPU as a whole or shares of it"),
        "{said}"
    );
    assert!(!machine.is_on() && records(&rig) == 0);
    unprepare(&mut node, "u1").expect("unprepared");
    for uid in ["u1", "u2"] {
        prepare(&mut node, part(uid, 30)).expect("a share");
    }
    let said = refused(&mut node, part("u3", 30));
    assert!(said.contains(UNDIVIDED) && said.contains("memory"), "{said}");
    for uid in ["u1", "u2"] {
        unprepare(&mut node, uid).expect("unprepared");
    }
    prepare(&mut node, of("u1", &[LAST_HALF])).expect("an instance");
    assert_eq!((machine.is_on(), machine.starts()), (true, vec![4]));
    let said = refused(&mut node, part("u2", 10));
    assert!(said.contains("claims u1 have 3g.40gb at memory slices 4..8"), "{said}");
    prepare(&mut node, of("u2", &[FIRST_HALF])).expect("beside it");
    for uid in ["u1", "u2"] {
        assert!(machine.is_on());
        unprepare(&mut node, uid).expect("unprepared");
    }
    assert_eq!((machine.is_on(), records(&rig), rig.leftovers().len()), (false, 0, 0));
    prepare(&mut node, part("u3", 80)).expect("the whole GPU");
}

#[test]
fn a_mode_that_cannot_be_switched_is_refused_with_the_reason_and_leaves_nothing() {
    let (rig, machine) = (Rig::new(false), Machine::default());
    machine.switch(false);
    let mut node = switching(&rig, &machine);
    machine.state().users = 2;
    let said = refused(&mut node, of("u1", &[LAST_HALF]));
    assert!(
        said.contains("while 2 processes use the GPU") && said.contains("fuser"),
        "{said}"
    );
    machine.state().users = 0;
    for (code, remedy) in [(Code::InUse, "DCGM"), (Code::ResetRequired, "nvidia-smi -r")] {
        machine.state().refuses_mode = Some(code);
        let said = refused(&mut node, of("u1", &[LAST_HALF]));
        assert!(said.contains("switch MIG mode on") && said.contains(remedy), "{said}");
        assert_eq!((machine.is_on(), records(&rig), rig.leftovers().len()), (false, 0, 0));
    }
    machine.state().refuses_mode = None;
    // The mode is on, and the place is not to be had.
    machine.state().refuses = Some(Code::InUse);
    refused(&mut node, of("u1", &[LAST_HALF]));
    assert_eq!((machine.is_on(), records(&rig)), (false, 0));
    machine.state().refuses = None;
    // A record that is damaged may be of a claim with the GPU.
    prepare(&mut node, part("u1", 30)).expect("a share");
    std::fs::write(rig.record("u1"), "{").expect("written");
    std::fs::remove_dir_all(rig.path("run/claims/u1/u1")).expect("removed");
    let said = refused(&mut node, of("u2", &[LAST_HALF]));
    assert!(said.contains("or may hold them") && !machine.is_on(), "{said}");
}

#[test]
fn an_instance_in_use_keeps_the_whole_gpu_from_claims_until_its_process_ends() {
    let (rig, machine) = (Rig::new(false), Machine::default());
    machine.switch(false);
    let mut node = switching(&rig, &machine);
    prepare(&mut node, of("u1", &[LAST_HALF])).expect("an instance");
    machine.state().in_use = vec![2];
    unprepare(&mut node, "u1").expect("the claim is unprepared");
    let said = refused(&mut node, part("u2", 10));
    assert!(said.contains("while a process uses it") && machine.is_on(), "{said}");
    machine.state().in_use.clear();
    prepare(&mut node, part("u2", 10)).expect("what was left is destroyed first");
    assert_eq!((machine.is_on(), machine.starts(), records(&rig)), (false, vec![], 0));
}

#[test]
fn a_reload_of_the_module_switches_the_mode_on_again_for_claims_with_instances_and_not_for_others() {
    let (rig, machine) = (Rig::new(false), Machine::default());
    machine.switch(false);
    let mut node = switching(&rig, &machine);
    prepare(&mut node, of("u1", &[LAST_HALF])).expect("an instance");
    let reload = || {
        machine.state().instances.clear();
        machine.switch(false);
    };
    reload();
    assert_eq!(scan_with_problems(&mut node).1, [""; 0]);
    assert_eq!((machine.is_on(), machine.starts()), (true, vec![4]));
    machine.state().users = 1;
    reload();
    let (_, problems) = scan_with_problems(&mut node);
    assert!(problems[0].contains("while 1 processes use the GPU"), "{problems:?}");
    assert!(refused(&mut node, part("u2", 10)).contains("claims u1 have"));
    machine.state().users = 0;
    scan(&mut node);
    unprepare(&mut node, "u1").expect("unprepared");
    prepare(&mut node, part("u2", 10)).expect("a share");
    reload();
    scan(&mut node);
    assert!(!machine.is_on());
}

#[test]
fn after_a_restart_and_after_a_change_of_the_value_claims_are_what_they_were() {
    let (rig, machine) = (Rig::new(false), Machine::default());
    machine.switch(false);
    let mut node = switching(&rig, &machine);
    prepare(&mut node, part("u1", 30)).expect("a share");
    drop(node);
    let mut node = start_switching(&rig, &machine);
    node.set_inventory(Err("the plugin has just started".into()));
    let said = refused(&mut node, part("u1", 30));
    assert!(
        said.contains("not known yet") && said.contains("kubelet retries"),
        "{said}"
    );
    scan(&mut node);
    let before = machine.state().calls;
    let prepared = prepare(&mut node, part("u1", 30)).expect("prepared before");
    assert_eq!(
        (prepared[0].pool.as_str(), machine.state().calls),
        ("n1/vgpu-mig-3f8a1c20", before)
    );
    // Claims do not divide it any more: it is in the pool of GPUs, and the claim still has its share.
    let mut node = rig.open();
    prepare(&mut node, part("u1", 30)).expect("prepared before");
    let ordinary = |uid: &str, gib| part_of("gpu-3f8a1c20", "n1/vgpu", uid, gib);
    let said = refused(&mut node, ordinary("u2", 60));
    assert!(said.contains("memory"), "{said}");
    prepare(&mut node, ordinary("u2", 30)).expect("beside it");
    unprepare(&mut node, "u1").expect("unprepared");
    // And the way back.
    let mut node = switching(&rig, &machine);
    let prepared = prepare(&mut node, ordinary("u2", 30)).expect("prepared before");
    assert_eq!(prepared[0].pool, "n1/vgpu");
    assert!(refused(&mut node, of("u3", &[LAST_HALF])).contains("while claims hold the GPU"));
    assert!(!machine.is_on());
}

/// A claim is allocated again: the whole GPU before, an instance now, and back.
#[test]
fn a_claim_that_was_allocated_the_other_form_has_it_alone() {
    let (rig, machine) = (Rig::new(false), Machine::default());
    machine.switch(false);
    let mut node = switching(&rig, &machine);
    prepare(&mut node, part("u1", 80)).expect("the whole GPU");
    prepare(&mut node, of("u1", &[LAST_HALF])).expect("an instance");
    assert_eq!(machine.starts(), [4]);
    prepare(&mut node, part("u1", 80)).expect("the whole GPU");
    assert_eq!((machine.is_on(), machine.starts(), records(&rig)), (false, vec![], 0));
    // A forged claim with both.
    unprepare(&mut node, "u1").expect("unprepared");
    let mut both = of("u1", &[LAST_HALF]);
    let (_, other) = part("u1", 10);
    let results = |claim: &mut ResourceClaim| {
        let status = claim.status.as_mut().expect("a status");
        let devices = status.allocation.as_mut().and_then(|of| of.devices.as_mut());
        devices.and_then(|of| of.results.take()).expect("results")
    };
    let (mut first, mut second) = (results(&mut other.clone()), results(&mut both.1.clone()));
    first.append(&mut second);
    let devices = both
        .1
        .status
        .as_mut()
        .and_then(|of| of.allocation.as_mut()?.devices.as_mut());
    devices.expect("devices").results = Some(first);
    refused(&mut node, both);
    assert_eq!((machine.is_on(), records(&rig)), (false, 0));
}

/// Other claims of the node wait behind each question.
#[test]
fn a_driver_that_is_known_to_be_silent_is_not_asked_before_it_has_listed_its_gpus() {
    let (rig, machine) = (Rig::new(false), Machine::default());
    let mut node = start(&rig, &machine);
    let survey = scan(&mut node);
    prepare(&mut node, of("u1", &[LAST_HALF])).expect("prepared");
    publish(&mut node, &survey, silent());
    let before = machine.state().calls;
    let said = prepare(&mut node, of("u2", &[FIRST_HALF]))
        .expect_err("silent")
        .to_string();
    assert!(said.contains(FIRST_HALF) && said.contains("NVML hangs"), "{said}");
    unprepare(&mut node, "u1").expect("the claim is unprepared");
    assert_eq!(machine.state().calls, before);
    assert_eq!((machine.starts(), records(&rig)), (vec![4], 1));
    scan(&mut node);
    assert_eq!((machine.starts(), records(&rig)), (vec![], 0));
}

#[test]
fn all_calls_of_a_turn_have_one_deadline() {
    let (rig, machine) = (Rig::new(false), Machine::default());
    let mut node = start(&rig, &machine);
    let deadlines = |node: &mut Node, uid, device| {
        machine.state().deadlines.clear();
        prepare(node, of(uid, &[device])).expect("prepared");
        let mut deadlines = machine.state().deadlines.clone();
        assert!(deadlines.len() > 2, "{deadlines:?}");
        deadlines.dedup();
        deadlines
    };
    let first = deadlines(&mut node, "u1", LAST_HALF);
    let second = deadlines(&mut node, "u2", FIRST_HALF);
    assert_eq!((first.len(), second.len(), first < second), (1, 1, true));
}

/// As kubelet does after it has restarted.
#[test]
fn a_claim_that_is_prepared_gets_its_former_answer_from_a_driver_that_is_silent() {
    let (rig, machine) = (Rig::new(false), Machine::default());
    let mut node = start(&rig, &machine);
    let survey = scan(&mut node);
    let answer = prepare(&mut node, of("u1", &[LAST_HALF])).expect("prepared");
    let unsurveyed = || {
        let dynamic = DynamicGpu {
            gpu: gpu(0),
            ..DynamicGpu::default()
        };
        Inventory::new(vec![gpu(1)]).with_dynamic(vec![dynamic], silent())
    };
    // It hangs just now; it is known to hang; and nothing is known since the plugin has started.
    let states: [&dyn Fn(&mut Node); 3] = [
        &|node| publish(node, &survey, BTreeMap::new()),
        &|node| publish(node, &survey, silent()),
        &|node| node.set_inventory(Ok(unsurveyed())),
    ];
    for known in states {
        machine.state().silence = Some("NVML hangs".into());
        known(&mut node);
        let again = prepare(&mut node, of("u1", &[LAST_HALF]));
        assert_eq!(again.map_err(|error| error.to_string()), Ok(answer.clone()));
        let said = prepare(&mut node, of("u2", &[FIRST_HALF]))
            .expect_err("a new claim")
            .to_string();
        assert!(said.contains("NVML hangs"), "{said}");
        drop(node);
        machine.state().silence = None;
        node = start(&rig, &machine);
    }
    assert_eq!(machine.starts(), [4]);
    unprepare(&mut node, "u1").expect("unprepared");
    assert_eq!((machine.starts(), records(&rig)), (vec![], 0));
}

/// A switch of the mode, or an instance, that takes longer than a turn waits.
#[test]
fn what_a_slow_driver_does_for_a_claim_is_completed_for_its_next_try_and_undone_after_a_while() {
    let (rig, machine) = (Rig::new(false), Machine::default());
    let mut node = start(&rig, &machine);
    for (uid, is_tried_again) in [("u1", true), ("u2", false)] {
        machine.state().refuses = Some(Code::NoAnswer);
        prepare(&mut node, of(uid, &[LAST_HALF])).expect_err("no answer");
        machine.state().refuses = None;
        machine.make_half(4);
        scan(&mut node);
        assert_eq!((machine.starts(), records(&rig)), (vec![4], 1), "not undone");
        if is_tried_again {
            prepare(&mut node, of(uid, &[LAST_HALF])).expect("prepared");
            unprepare(&mut node, uid).expect("unprepared");
        } else {
            node.maker.as_mut().expect("a maker").unanswered.clear();
            scan(&mut node);
        }
        assert_eq!((machine.starts(), records(&rig)), (vec![], 0));
    }
}

/// The turn's time is over, or the plugin was killed: a process with NVML still makes the instance.
#[test]
fn a_create_that_is_under_way_is_decided_by_the_first_list_that_comes_after_it() {
    let (rig, machine) = (Rig::new(false), Machine::default());
    let mut node = start(&rig, &machine);
    machine.state().refuses = Some(Code::NoAnswer);
    prepare(&mut node, of("u1", &[LAST_HALF])).expect_err("no answer");
    machine.state().refuses = None;
    // The next plugin is told nothing as long as that process lives.
    drop(node);
    machine.state().silence = Some("a process with NVML has not ended a call".into());
    let mut node = rig.open();
    node.make_instances_with(Arc::new(machine.clone()), machine.boot());
    let locked = node.locked();
    let uuid = gpu(0).uuid;
    let found = node
        .survey(&locked, std::slice::from_ref(&uuid), &[])
        .expect("read")
        .of
        .remove(&uuid);
    let unsurveyed = found.expect("it was asked for").expect_err("nothing is known");
    assert_eq!((unsurveyed.held.len(), records(&rig)), (1, 1));
    assert!(unsurveyed.why.starts_with("a process with NVML"), "{}", unsurveyed.why);
    drop(locked);
    machine.make_half(4);
    machine.state().silence = None;
    assert!(scan(&mut node).administrators.is_empty(), "the claim's");
    assert_eq!((machine.starts(), records(&rig)), (vec![], 0));
}
