//! The whole part on a made-up node: records of a real `Node`, a made-up /proc, samples and API server.

use super::api::{Applied, Pods, Statuses};
use super::conditions::ShareFindings;
use super::notices;
use super::observations::Observations;
use super::processes::tests::{hex, in_pod, process};
use super::processes::{Extent, Processes};
use super::report::claims::Writer;
use super::report::events::Reporter;
use super::report::list_pods;
use super::turn::{Reading, Turns};
use super::verdicts::finding::{Finding, Reason};
use super::verdicts::memory::{self, Offender};
use super::verdicts::mounts::{ClaimUse, Pod, PodContainer};
use super::verdicts::refusals::News;
use super::verdicts::second_wall::ReadBack;
use crate::api::{Claims, Error, Events};
use crate::dra::mount_users::Device;
use crate::dra::node::tests::{Rig, claim, prepare};
use crate::dra::node::{Node, SharedNode};
use crate::dra::share::{ClaimId, ShareKey};
use crate::metrics::Metrics;
use crate::nvml::{GpuDriver as _, GpuSample, Local, Memory, Sample, Used};
use crate::publish::inventory::tests::gpu;
use crate::publish::inventory::{Inventory, Unavailable};
use crate::ready::Readiness;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::resource::v1::{AllocatedDeviceStatus, ResourceClaim};
use serde_json::json;
use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt as _;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use vgpu_abi::ledger::refusal::{self, Cause, Refusal};
use vgpu_node::driver_limit;

const GIB: u64 = 1 << 30;

fn key(uid: &str, share: &str) -> ShareKey {
    (uid.into(), share.into())
}

/// A sample of GPU 0, with the memory of its processes and NVML's measurement of them, and of GPU 1, which is idle.
fn sample(memory: Result<Memory, String>, used: Option<Used>) -> Sample {
    let first = GpuSample {
        memory,
        used,
        ..crate::nvml::sampler::tests::gpu(&gpu(0).uuid)
    };
    Sample {
        list: None,
        gpus: Ok(vec![first, crate::nvml::sampler::tests::gpu(&gpu(1).uuid)]),
    }
}

/// One whole first turn, in which no processes are seen.
pub(crate) fn observe_once(node: &mut Node, observations: &Observations) {
    let mut turns = Turns::default();
    let reading = Reading {
        records: turns.records(node, Extent::All),
        sample: sample(Ok(Memory::new()), None).into(),
        extent: Extent::All,
        processes: Processes::that_sees_nothing("a test"),
        own_pod: None,
        kills: false,
        read_back: ReadBack::NoSuchLimit,
    };
    turns.apply(&reading, observations);
}

/// Claims u1 and u2 with 20 GiB each on GPU 0, whose tmpfs are devices 0:1 and 0:2.
struct Scene {
    rig: Rig,
    node: SharedNode,
    proc: tempfile::TempDir,
    turns: Turns,
    observations: Observations,
    memory: Memory,
    used: Option<Used>,
    kills: bool,
    read_back: ReadBack,
    requires: bool,
    api: FakeApi,
    writer: Writer,
    reporter: Reporter,
}

impl Scene {
    fn new() -> Self {
        let rig = Rig::new(false);
        let mut node = rig.open();
        let claims = [claim("u1", &[("s1", 20, 25)]), claim("u2", &[("s2", 20, 0)])];
        assert!(node.prepare(&node.locked(), &claims).0.iter().all(Result::is_ok));
        Self {
            node: SharedNode::new(node),
            rig,
            proc: tempfile::tempdir().expect("a folder"),
            turns: Turns::default(),
            observations: Observations::default(),
            memory: Memory::new(),
            used: None,
            kills: false,
            read_back: ReadBack::NoSuchLimit,
            requires: false,
            api: FakeApi::default(),
            writer: Writer::default(),
            reporter: Reporter::new(Metrics::default(), node_object()),
        }
    }

    fn process(&self, pid: u32, minors: &[u32], pod: char) {
        process(&self.at(pid), pid, minors, &in_pod(pod, pod));
    }

    fn at(&self, pid: u32) -> std::path::PathBuf {
        self.proc.path().join(pid.to_string())
    }

    /// Turns in which claim u1 requires the driver's limit.
    fn looks_requiring(&mut self, times: u32) {
        self.requires = true;
        self.looks(times);
        self.requires = false;
    }

    /// One whole turn.
    fn look(&mut self, processes: Processes, memory: Result<Memory, String>) {
        let mut records = self.turns.records(&self.node.lock(), Extent::All);
        if self.requires {
            records.requiring.insert(key("u1", "s1"));
        }
        for (mount, minor) in records.mounts.iter_mut().zip(1..) {
            mount.device = Device::Number(rustix::fs::makedev(0, minor));
        }
        let reading = Reading {
            records,
            sample: sample(memory, self.used.clone()).into(),
            extent: Extent::All,
            processes,
            own_pod: None,
            kills: self.kills,
            read_back: self.read_back.clone(),
        };
        self.turns.apply(&reading, &self.observations);
    }

    fn silent_looks(&mut self, times: u32) {
        for _ in 0..times {
            let processes = Processes::in_folder(self.proc.path());
            self.look(processes, Err("the driver hangs".to_owned()));
        }
    }

    fn looks(&mut self, times: u32) {
        for _ in 0..times {
            let processes = Processes::in_folder(self.proc.path());
            self.look(processes, Ok(self.memory.clone()));
        }
    }

    fn state(&self) -> MutexGuard<'_, super::State> {
        self.observations.lock()
    }

    fn found(&self, uid: &str, share: &str) -> ShareFindings {
        self.state().findings[&key(uid, share)].clone()
    }

    async fn write(&mut self, times: u32) {
        for _ in 0..times {
            self.writer.write(&self.node, &self.api, &self.observations).await;
        }
    }

    async fn report(&mut self, times: u32) {
        for _ in 0..times {
            self.reporter.report(&self.node, &self.api, &self.observations).await;
        }
    }

    fn memory_of(&self, uid: &str, share: &str) -> Reason {
        self.found(uid, share).memory.reason
    }
}

#[test]
fn a_breach_is_told_when_it_was_seen_twice_and_over_when_it_was_not_seen_three_times() {
    let mut scene = Scene::new();
    scene.process(10, &[1], 'a');
    scene.process(20, &[2], 'b');
    scene.memory = Memory::from([(10, Some(GIB / 8)), (20, Some(GIB / 8))]);
    scene.looks(1);
    assert_eq!(scene.memory_of("u1", "s1"), Reason::NotSeenYet);
    scene.looks(1);
    for (uid, share) in [("u1", "s1"), ("u2", "s2")] {
        assert_eq!(scene.found(uid, share).memory, Finding::holds(Reason::Library));
        assert_eq!(scene.found(uid, share).injected, Finding::holds(Reason::Mounted));
        assert_eq!(scene.state().used[&key(uid, share)], GIB / 8);
    }
    scene.memory.insert(10, Some(30 * GIB));
    scene.looks(1);
    assert_eq!(
        scene.memory_of("u1", "s1"),
        Reason::Library,
        "a PID may be another one's now"
    );
    scene.looks(1);
    assert_eq!(scene.memory_of("u1", "s1"), Reason::OverLimit);
    assert_eq!(scene.memory_of("u2", "s2"), Reason::Library);
    let breach = scene.state().breaches[&key("u1", "s1")].clone();
    assert_eq!((breach.limit, breach.used), (20 * GIB, Some(30 * GIB)));
    assert_eq!(breach.offender.map(|of| of.pid), Some(10));
    assert_eq!(scene.state().breaches.len(), 1);
    scene.memory.insert(10, Some(GIB));
    scene.looks(1);
    assert_eq!(scene.memory_of("u1", "s1"), Reason::OverLimit);
    // 1 GiB is within the limit, but it is not in the ledger, so it was allocated past libvgpu.so.
    scene.looks(1);
    assert_eq!(scene.memory_of("u1", "s1"), Reason::NotCharged);
    scene.memory.insert(10, Some(0));
    scene.looks(2);
    assert_eq!(scene.memory_of("u1", "s1"), Reason::NotCharged);
    scene.looks(1);
    assert_eq!(scene.memory_of("u1", "s1"), Reason::Library);
    assert!(scene.state().breaches.is_empty());
    // A claim that is unprepared is forgotten.
    {
        let mut node = scene.node.lock();
        let locked = node.locked();
        assert!(node.unprepare(&locked, &["u1"]).remove(0).is_ok());
    }
    scene.looks(1);
    assert_eq!(scene.state().findings.len(), 1);
}

/// What the driver says of the container with this letter, for share s1 of claim u1.
fn read_back(container: char, used: u64, state: driver_limit::State, asked: Instant) -> ReadBack {
    let cgroup = in_pod(container, container);
    let reading = driver_limit::Reading {
        claim: "u1".into(),
        share: "s1".into(),
        gpu: gpu(0).uuid,
        cgroup: cgroup.trim_start_matches("0::").trim_end().to_owned(),
        hard: 20 * GIB + memory::OVER,
        used,
        state,
        reason: "it was max".into(),
        pod: driver_limit::PodLimit::Held,
    };
    ReadBack::Known {
        readings: [reading].into(),
        asked,
    }
}

#[test]
fn a_required_limit_that_two_answers_lack_is_no_enforced_memory() {
    let mut scene = Scene::new();
    scene.process(10, &[1], 'a');
    scene.memory = Memory::from([(10, Some(5))]);
    scene.looks(2);
    let start = Instant::now();
    let at = |seconds| start + Duration::from_secs(seconds);
    let without = |asked| ReadBack::Known {
        readings: Arc::new([]),
        asked,
    };
    scene.read_back = without(at(0));
    scene.looks_requiring(3);
    assert_eq!(
        scene.memory_of("u1", "s1"),
        Reason::Library,
        "it may have started since then"
    );
    scene.read_back = without(at(45));
    scene.looks_requiring(1);
    assert_eq!(
        scene.found("u1", "s1").memory,
        Finding::fails(Reason::DriverLimitMissing)
    );
    assert!(scene.state().breaches.is_empty(), "nobody is over a limit");
    scene.looks(1);
    assert_eq!(scene.memory_of("u1", "s1"), Reason::Library, "a claim that prefers it");
    scene.read_back = read_back('a', GIB, driver_limit::State::Held, at(90));
    scene.looks_requiring(1);
    assert_eq!(scene.memory_of("u1", "s1"), Reason::DriverAndLibrary);
}

#[test]
fn the_driver_stands_behind_the_library_as_long_as_every_container_was_read_back() {
    let mut scene = Scene::new();
    scene.process(10, &[1], 'a');
    scene.memory = Memory::from([(10, Some(5))]);
    scene.looks(2);
    assert_eq!(scene.memory_of("u1", "s1"), Reason::Library);
    assert_eq!(scene.found("u1", "s1").memory_note, None, "the node has no such limits");
    scene.read_back = read_back('a', GIB, driver_limit::State::Held, Instant::now());
    scene.looks(1);
    assert_eq!(scene.memory_of("u1", "s1"), Reason::DriverAndLibrary);
    assert_eq!(scene.memory_of("u2", "s2"), Reason::Library, "it has no container");
    let wall = scene.state().second_walls[&key("u1", "s1")].clone();
    assert_eq!((wall.limit, wall.used), (Some(20 * GIB + memory::OVER), Some(GIB)));
    // A second container that started without it.
    scene.process(11, &[1], 'b');
    let report = scene.rig.path("run/claims/u1/no-driver-limit");
    std::fs::write(&report, "container b: the driver is r580\n").expect("written");
    scene.looks(1);
    assert_eq!(scene.memory_of("u1", "s1"), Reason::Library);
    let note = scene.found("u1", "s1").memory_note.expect("why");
    assert!(note.ends_with("container b: the driver is r580"), "{note}");
    // While nothing is known of processes, the driver's figure of the containers settles it.
    std::fs::remove_file(scene.at(11).join("cgroup")).expect("removed");
    scene.silent_looks(3);
    assert_eq!(scene.memory_of("u1", "s1"), Reason::DriverAndLibrary);
    assert_eq!(scene.state().used[&key("u1", "s1")], GIB);
    scene.read_back = read_back('a', 30 * GIB, driver_limit::State::Held, Instant::now());
    scene.silent_looks(2);
    assert_eq!(scene.memory_of("u1", "s1"), Reason::OverLimit);
    let breach = scene.state().breaches[&key("u1", "s1")].clone();
    assert_eq!((breach.used, breach.offender), (Some(30 * GIB), None));
    scene.read_back = ReadBack::Unknown;
    scene.silent_looks(3);
    assert_eq!(scene.memory_of("u1", "s1"), Reason::DriverSilent);
}

#[tokio::test]
async fn a_limit_that_was_changed_is_counted_once_for_each_answer_and_has_one_event_a_while() {
    let mut scene = Scene::new();
    scene.process(10, &[1], 'a');
    let start = Instant::now();
    let api = scene.api.clone();
    let mut answer = async |seconds, state| {
        scene.read_back = read_back('a', GIB, state, start + Duration::from_secs(seconds));
        scene.looks(2);
        scene.reporter.report(&scene.node, &api, &scene.observations).await;
        (scene.state().set_again, api.events().len())
    };
    assert_eq!(answer(0, driver_limit::State::Held).await, (0, 0));
    assert_eq!(answer(45, driver_limit::State::SetAgain).await, (1, 1));
    assert_eq!(answer(90, driver_limit::State::Held).await, (1, 1));
    assert_eq!(
        answer(135, driver_limit::State::SetAgain).await,
        (2, 1),
        "it is known already"
    );
    assert_eq!(answer(180, driver_limit::State::Failed).await, (2, 2));
    assert_eq!(answer(480, driver_limit::State::Held).await, (2, 2));
    assert!(scene.state().changed_limits.is_empty());
    let events = api.lock().events.clone();
    let reasons: Vec<&str> = events.iter().map(|(_, reason, _)| *reason).collect();
    assert_eq!(reasons, ["DriverLimitSetAgain", "DriverLimitFailed"]);
    assert!(
        events
            .iter()
            .all(|(.., note)| note.contains("it was max") && note.contains("share s1"))
    );
}

#[test]
fn what_is_not_known_for_long_becomes_unknown() {
    let mut scene = Scene::new();
    scene.process(10, &[1], 'a');
    scene.memory = Memory::from([(10, Some(5))]);
    scene.looks(2);
    scene.silent_looks(2);
    assert_eq!(scene.memory_of("u1", "s1"), Reason::Library);
    assert_eq!(scene.state().gpus[&gpu(0).uuid].unexplained, None);
    scene.silent_looks(1);
    assert_eq!(scene.found("u1", "s1").memory, Finding::unknown(Reason::DriverSilent));
    assert_eq!(scene.found("u1", "s1").compute, Finding::unknown(Reason::NotMeasured));
    assert!(scene.state().used.is_empty());
    // Mounts are known without the driver.
    assert_eq!(scene.found("u1", "s1").injected.reason, Reason::Mounted);
    // Without hostPID nothing is known at all.
    let mut blind = Scene::new();
    for _ in 0..3 {
        blind.look(
            Processes::that_sees_nothing("alone"),
            Ok(Memory::from([(1, Some(99 * GIB))])),
        );
    }
    for finding in [
        blind.found("u1", "s1").memory,
        blind.found("u1", "s1").compute,
        blind.found("u1", "s1").injected,
    ] {
        assert_eq!(finding, Finding::unknown(Reason::NoHostPid));
    }
    assert!(blind.state().unexplained.is_empty());
}

#[test]
fn a_share_whose_processes_nvml_measures_has_a_verdict_on_its_time() {
    let mut scene = Scene::new();
    scene.process(10, &[1], 'a');
    scene.process(20, &[2], 'b');
    scene.used = Some(Used::from([(10, 40.0)]));
    scene.looks(2);
    assert_eq!(scene.found("u1", "s1").compute, Finding::holds(Reason::WithinLimit));
    let verdict = scene.state().compute[&key("u1", "s1")];
    assert_eq!(
        (verdict.used, verdict.error_points),
        (Some(40.0), Some(40.0)),
        "its page says that it was charged nothing"
    );
    // A verdict on GPU time covers 10 s already, so it is settled at once.
    scene.used = None;
    scene.looks(2);
    assert_eq!(scene.found("u1", "s1").compute, Finding::holds(Reason::WithinLimit));
    scene.looks(1);
    assert_eq!(scene.found("u1", "s1").compute, Finding::unknown(Reason::NotMeasured));
    assert_eq!(scene.state().compute[&key("u1", "s1")].used, None);
}

#[test]
fn use_without_a_share_is_settled_and_has_its_pod() {
    let mut scene = Scene::new();
    // A process that unmounted its share, and a process that never had any.
    scene.process(10, &[], 'a');
    process(&scene.at(11), 11, &[], "0::/user.slice");
    scene.memory = Memory::from([(10, Some(GIB)), (11, Some(5))]);
    scene.looks(1);
    assert!(scene.state().unexplained.is_empty());
    scene.looks(1);
    let state = scene.state();
    assert_eq!(state.gpus[&gpu(0).uuid].unexplained, Some(GIB + 5));
    assert_eq!(state.gpus[&gpu(1).uuid].unexplained, Some(0));
    let pods: Vec<_> = state
        .unexplained
        .iter()
        .map(|of| (of.pid, of.container.is_some()))
        .collect();
    assert_eq!(pods, [(10, true), (11, false)]);
    assert!(!state.questions.is_empty(), "its pod's name is asked for");
    assert_eq!(state.findings[&key("u1", "s1")].memory.reason, Reason::Library);
}

#[test]
fn on_breach_kill_ends_the_offender_and_no_neighbour() {
    let mut scene = Scene::new();
    let sleeper = || std::process::Command::new("sleep").arg("600").spawn().expect("sleep");
    let (mut offender, mut same, mut neighbour) = (sleeper(), sleeper(), sleeper());
    for (child, minor) in [(&offender, 1), (&same, 1), (&neighbour, 2)] {
        scene.process(child.id(), &[minor], 'a');
    }
    let used = [(&offender, 25 * GIB), (&same, GIB / 8), (&neighbour, 20 * GIB)];
    scene.memory = used.iter().map(|(child, bytes)| (child.id(), Some(*bytes))).collect();
    scene.looks(3);
    let reported = offender.try_wait().expect("a state").is_none();
    scene.kills = true;
    scene.looks(1);
    let ended = offender.wait().expect("ended");
    // Its memory is released.
    scene.memory.remove(&offender.id());
    std::fs::remove_dir_all(scene.at(offender.id())).expect("removed");
    scene.looks(3);
    let lives = [&mut same, &mut neighbour].map(|child| child.try_wait().expect("a state").is_none());
    for child in [&mut same, &mut neighbour] {
        child.kill().and_then(|()| child.wait()).expect("ended");
    }
    assert!(reported, "only reported at first");
    assert_eq!(ended.signal(), Some(9));
    assert_eq!(lives, [true, true]);
    assert_eq!(scene.state().kills, 1);
}

/// A pod with these containers, each of which uses claim u1.
fn user_of_u1(uid: String, containers: &[char]) -> Pod {
    let container = |name: &char| PodContainer {
        name: name.to_string(),
        id: hex(*name, 64),
        claims: vec![ClaimUse {
            claim: "claim-u1".into(),
            request: None,
        }],
    };
    Pod {
        uid,
        namespace: "d".into(),
        name: "p".into(),
        containers: containers.iter().map(container).collect(),
        ..Pod::default()
    }
}

#[test]
fn a_container_without_its_mounts_is_found_when_the_api_server_names_it() {
    let mut scene = Scene::new();
    scene.process(10, &[], 'a');
    scene.looks(1);
    let container = scene.state().asked.keys().next().cloned().expect("asked about");
    assert!(!std::mem::take(&mut scene.state().questions).is_empty());
    scene.looks(1);
    assert!(scene.state().questions.is_empty(), "not at once again");
    scene.state().pods = Some(vec![user_of_u1(container.pod, &['a'])]);
    scene.looks(2);
    assert_eq!(scene.found("u1", "s1").injected, Finding::fails(Reason::MountsMissing));
    assert_eq!(scene.state().lacking[&key("u1", "s1")].container, "a");
    assert_eq!(scene.found("u2", "s2").injected, Finding::unknown(Reason::NotSeenYet));
}

/// The state after containerd was restarted without CDI, and then one of the pod's two containers was restarted.
#[test]
fn a_second_container_without_its_mounts_is_found_beside_one_that_has_them() {
    let mut scene = Scene::new();
    let uid = format!("{0}-{1}-{1}-{1}-{2}", hex('a', 8), hex('a', 4), hex('a', 12));
    {
        let (id, mut reserved) = claim("u1", &[("s1", 20, 25)]);
        let pods = json!([{"resource": "pods", "name": "p", "uid": uid}]);
        reserved.status.as_mut().expect("a status").reserved_for = serde_json::from_value(pods).expect("pods");
        let mut node = scene.node.lock();
        let locked = node.locked();
        assert!(node.prepare(&locked, &[(id, reserved)]).0[0].is_ok());
    }
    scene.process(10, &[1], 'a');
    scene.process(20, &[2], 'b');
    scene.looks(2);
    assert!(scene.state().questions.is_empty(), "each has its mounts");
    process(&scene.at(11), 11, &[], &in_pod('a', 'c'));
    scene.looks(1);
    assert!(
        !std::mem::take(&mut scene.state().questions).is_empty(),
        "a container of the claim's pod has no share"
    );
    scene.state().pods = Some(vec![user_of_u1(uid, &['a', 'c'])]);
    scene.looks(3);
    assert_eq!(scene.found("u1", "s1").injected, Finding::fails(Reason::MountsMissing));
    assert_eq!(scene.state().lacking[&key("u1", "s1")].container, "c");
    assert!(scene.state().questions.is_empty(), "what it is is known");
    assert_eq!(scene.found("u2", "s2").injected, Finding::holds(Reason::Mounted));
}

/// A node that reads a ledger which a tenant damaged, cut, grew or replaced by a link.
#[test]
fn a_tenant_that_breaks_its_ledger_changes_nothing_for_its_neighbour() {
    let mut scene = Scene::new();
    scene.process(10, &[1], 'a');
    scene.process(20, &[2], 'b');
    scene.memory = Memory::from([(10, Some(GIB)), (20, Some(GIB / 8))]);
    let ledger = scene.rig.path("run/claims/u1/s1/ledger");
    let (whole, neighbours) = (
        std::fs::read(&ledger).expect("a ledger"),
        scene.rig.path("run/claims/u2/s2/ledger"),
    );
    for damage in 0..5 {
        std::fs::remove_file(&ledger).expect("removed");
        let bytes = match damage {
            0 => Vec::new(),
            1 => whole[..100].to_vec(),
            2 => [&whole[..], &[0; 4096]].concat(),
            3 => vec![0xff; whole.len()],
            _ => {
                std::os::unix::fs::symlink(&neighbours, &ledger).expect("a link");
                Vec::new()
            }
        };
        if damage < 4 {
            std::fs::write(&ledger, bytes).expect("written");
        }
        scene.looks(3);
        assert_ne!(scene.memory_of("u1", "s1"), Reason::Library, "damage {damage}");
        assert_eq!(scene.memory_of("u2", "s2"), Reason::Library, "damage {damage}");
    }
}

/// An API server in memory.
#[derive(Clone, Default)]
struct FakeApi(Arc<Mutex<FakeState>>);

#[derive(Default)]
struct FakeState {
    devices: BTreeMap<String, Vec<AllocatedDeviceStatus>>,
    reads: u32,
    writes: u32,
    claim_reads: u32,
    /// Events that were sent, also those that failed.
    event_tries: u32,
    fails: bool,
    drops: bool,
    gone: bool,
    /// Fails after this number of writes.
    fails_after: Option<u32>,
    /// Refuses to write this claim.
    refuses: Option<&'static str>,
    /// Answers a write to this claim as if the allocation was gone.
    deallocated: Option<&'static str>,
    pods: Vec<Pod>,
    events: Vec<(String, &'static str, String)>,
}

impl Statuses for FakeApi {
    async fn devices(&self, id: &ClaimId) -> Result<Option<Vec<AllocatedDeviceStatus>>, Error> {
        let mut state = self.lock();
        state.reads += 1;
        if state.fails {
            return Err(Error::Other("down".into()));
        }
        Ok((!state.gone).then(|| state.devices.get(&id.uid).cloned().unwrap_or_default()))
    }

    async fn apply(&self, id: &ClaimId, devices: &[AllocatedDeviceStatus]) -> Result<Applied, Error> {
        let mut state = self.lock();
        state.writes += 1;
        if state.fails || state.fails_after.is_some_and(|most| state.writes > most) {
            return Err(Error::Other("down".into()));
        }
        if state.drops {
            return Ok(Applied::Dropped);
        }
        if state.refuses == Some(id.uid.as_str()) {
            return Err(Error::Conflict("try again".into()));
        }
        if state.deallocated == Some(id.uid.as_str()) {
            return Ok(Applied::Gone);
        }
        // Convert to JSON and back, as a real API server does.
        let text = serde_json::to_string(devices).expect("JSON");
        state
            .devices
            .insert(id.uid.clone(), serde_json::from_str(&text).expect("devices"));
        Ok(Applied::Kept)
    }
}

impl Pods for FakeApi {
    async fn pods(&self) -> Result<Vec<Pod>, Error> {
        Ok(self.lock().pods.clone())
    }
}

impl Claims for FakeApi {
    async fn get(&self, namespace: &str, name: &str) -> Result<Option<ResourceClaim>, Error> {
        self.lock().claim_reads += 1;
        let uid = name.strip_prefix("claim-").unwrap_or_default();
        let claim = json!({"metadata": {"name": name, "namespace": namespace, "uid": uid}, "spec": {},
            "status": {"reservedFor": [{"resource": "pods", "name": format!("pod-{uid}"), "uid": format!("p-{uid}")}]}});
        Ok(serde_json::from_value(claim).ok())
    }
}

impl Events for FakeApi {
    async fn warn(&self, regarding: ObjectReference, reason: &'static str, note: String) -> Result<(), Error> {
        let mut state = self.lock();
        state.event_tries += 1;
        if state.fails {
            return Err(Error::Other("down".into()));
        }
        state.events.push((regarding.name.unwrap_or_default(), reason, note));
        Ok(())
    }
}

impl FakeApi {
    fn lock(&self) -> MutexGuard<'_, FakeState> {
        self.0.lock().expect("lock")
    }

    fn counts(&self) -> (u32, u32) {
        let state = self.lock();
        (state.reads, state.writes)
    }

    fn condition(&self, uid: &str, kind: &str) -> Option<String> {
        let state = self.lock();
        let conditions = state.devices.get(uid)?.first()?.conditions.clone()?;
        let one = conditions.into_iter().find(|one| one.type_ == kind)?;
        Some(format!("{} {}", one.status, one.reason))
    }

    fn events(&self) -> Vec<(String, &'static str)> {
        let state = self.lock();
        state
            .events
            .iter()
            .map(|(name, reason, _)| (name.clone(), *reason))
            .collect()
    }
}

#[tokio::test]
#[allow(clippy::await_holding_lock, reason = "a turn that works meanwhile is what it shows")]
async fn claims_are_written_on_change_alone_also_by_the_next_instance() {
    let mut scene = Scene::new();
    let api = scene.api.clone();
    scene.write(1).await;
    assert_eq!(api.counts(), (2, 2));
    assert_eq!(api.condition("u1", "Prepared").as_deref(), Some("True Prepared"));
    assert_eq!(
        api.condition("u1", "MemoryEnforced").as_deref(),
        Some("Unknown NotSeenYet")
    );
    scene.write(3).await;
    assert_eq!(api.counts(), (2, 2), "nothing changed");
    {
        // Where nothing can have changed, the node is not even read.
        let _turn = scene.node.lock();
        let write = scene.writer.write(&scene.node, &api, &scene.observations);
        let report = scene.reporter.report(&scene.node, &api, &scene.observations);
        let both = async { tokio::join!(write, report) };
        let done = tokio::time::timeout(Duration::from_secs(30), both).await;
        assert!(done.is_ok(), "it waits for a turn");
    }
    scene.process(10, &[1], 'a');
    scene.memory = Memory::from([(10, Some(30 * GIB))]);
    scene.used = Some(Used::new());
    scene.looks(2);
    scene.write(1).await;
    assert_eq!(
        api.condition("u1", "MemoryEnforced").as_deref(),
        Some("False OverLimit")
    );
    assert_eq!(
        api.condition("u1", "ComputeEnforced").as_deref(),
        Some("True WithinLimit")
    );
    assert_eq!(api.counts(), (2, 4));
    // A restart: what is on the server is read, and written if it differs.
    scene.writer = Writer::default();
    scene.write(1).await;
    assert_eq!(api.counts(), (4, 4));
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_is_down_is_asked_later_and_later() {
    let mut scene = Scene::new();
    let api = scene.api.clone();
    api.lock().fails = true;
    scene.write(5).await;
    assert_eq!(api.counts(), (2, 0), "each claim is paused after its first failure");
    api.lock().fails = false;
    scene.writer.wake();
    scene.write(1).await;
    assert_eq!(api.counts(), (4, 2));
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_is_refused_is_tried_again_and_keeps_no_other_one_waiting() {
    let mut scene = Scene::new();
    let api = scene.api.clone();
    api.lock().refuses = Some("u1");
    scene.write(3).await;
    assert_eq!(api.condition("u2", "Prepared").as_deref(), Some("True Prepared"));
    assert_eq!(api.counts(), (2, 2), "once, until its pause ends");
    api.lock().refuses = None;
    scene.writer.wake();
    scene.write(1).await;
    assert_eq!(api.condition("u1", "Prepared").as_deref(), Some("True Prepared"));
    assert_eq!(api.counts(), (3, 3), "and read again");
}

#[tokio::test(start_paused = true)]
async fn findings_that_return_are_written_if_others_were_written_of_a_part() {
    let mut scene = Scene::new();
    let more = scene.node.turn(|node, locked| {
        let more = ["u3", "u4", "u5"].map(|uid| claim(uid, &[(uid, 1, 0)]));
        assert!(node.prepare(locked, &more).0.iter().all(Result::is_ok));
    });
    more.await.expect("a turn");
    let api = scene.api.clone();
    scene.write(1).await;
    for (uid, share) in [("u1", "s1"), ("u2", "s2"), ("u3", "u3"), ("u4", "u4"), ("u5", "u5")] {
        scene.observations.know_all(&key(uid, share));
    }
    api.lock().fails_after = Some(6);
    scene.write(1).await;
    let memory = || api.condition("u1", "MemoryEnforced");
    assert_eq!(
        (api.counts().1, memory().as_deref()),
        (9, Some("True DriverAndLibrary"))
    );
    scene.state().findings.clear();
    api.lock().fails_after = None;
    scene.writer.wake();
    scene.write(1).await;
    assert_eq!(memory().as_deref(), Some("Unknown NotSeenYet"));
}

#[tokio::test]
async fn a_claim_that_was_deallocated_is_written_again_once_it_has_other_shares() {
    let mut scene = Scene::new();
    let api = scene.api.clone();
    api.lock().deallocated = Some("u1");
    scene.write(3).await;
    assert_eq!((api.counts(), api.condition("u1", "Prepared")), ((2, 2), None));
    api.lock().deallocated = None;
    let again = scene.node.turn(|node, locked| {
        assert!(node.unprepare(locked, &["u1"]).remove(0).is_ok());
        let again = claim("u1", &[("s3", 20, 25)]);
        assert!(node.prepare(locked, &[again]).0.remove(0).is_ok());
    });
    again.await.expect("a turn");
    scene.write(1).await;
    assert_eq!(api.condition("u1", "Prepared").as_deref(), Some("True Prepared"));
}

#[tokio::test]
async fn a_cluster_that_keeps_no_status_and_claims_that_are_gone_are_written_no_more() {
    let mut scene = Scene::new();
    let api = scene.api.clone();
    api.lock().drops = true;
    scene.write(1).await;
    scene.looks(3);
    scene.write(1).await;
    assert_eq!(api.counts(), (1, 1));
    let mut scene = Scene::new();
    let api = scene.api.clone();
    api.lock().gone = true;
    scene.write(3).await;
    assert_eq!(api.counts(), (2, 0), "each was asked for once");
}

#[tokio::test]
async fn each_event_is_created_once() {
    let mut scene = Scene::new();
    scene.process(10, &[1], 'a');
    scene.process(11, &[], 'b');
    process(&scene.at(12), 12, &[], "0::/user.slice");
    scene.memory = Memory::from([(10, Some(30 * GIB)), (11, Some(GIB)), (12, Some(5))]);
    scene.looks(2);
    let api = scene.api.clone();
    scene.report(1).await;
    let first = [
        ("pod-u1".to_owned(), "MemoryLimitBroken"),
        ("n1".to_owned(), "UnexplainedUse"),
    ];
    assert_eq!(api.events(), first, "the pod of process 11 is not known yet");
    let pod = scene
        .observations
        .lock()
        .unexplained
        .iter()
        .find_map(|of| Some(of.container.clone()?.pod))
        .expect("a pod");
    api.lock().pods = vec![Pod {
        uid: pod,
        namespace: "d".into(),
        name: "stray".into(),
        containers: Vec::new(),
        ..Pod::default()
    }];
    list_pods(&api, &scene.observations).await;
    scene.report(3).await;
    assert_eq!(api.events()[2..], [("stray".to_owned(), "UnexplainedUse")]);
    let notes: Vec<String> = api.lock().events.iter().map(|(.., note)| note.clone()).collect();
    assert!(
        notes[0].contains("20480 MiB") && notes[0].contains("30720 MiB") && notes[0].contains("process 10"),
        "{}",
        notes[0]
    );
    assert!(notes[2].contains("1024 MiB of GPU GPU-3f8a1c20"), "{}", notes[2]);
    assert!(notes.iter().all(|note| note.len() < 1000 && !note.contains("  ")));
    // The breach ends and returns: it is reported again.
    scene.memory.remove(&10);
    scene.looks(3);
    scene.report(1).await;
    scene.memory.insert(10, Some(30 * GIB));
    scene.looks(2);
    scene.report(1).await;
    assert_eq!(
        api.events().last().map(|(_, reason)| *reason),
        Some("MemoryLimitBroken")
    );
    assert_eq!(api.events().len(), 4);
}

#[tokio::test]
async fn a_breach_that_lasts_reads_its_claim_once_in_a_while() {
    let mut scene = Scene::new();
    scene.process(10, &[1], 'a');
    scene.memory = Memory::from([(10, Some(30 * GIB))]);
    scene.looks(2);
    scene.report(5).await;
    let state = scene.api.lock();
    assert_eq!((state.events.len(), state.claim_reads), (1, 1));
}

#[tokio::test]
async fn the_pods_of_a_gpu_that_is_lost_have_one_event_until_it_is_back() {
    let mut scene = Scene::new();
    let is = |why| Inventory::with_unavailable(vec![gpu(0)], [(gpu(0).uuid, why)].into());
    let lost = || is(Unavailable::Lost(String::new()));
    for (inventory, events) in [
        (Ok(lost()), 2),
        (Ok(lost()), 2),
        (Err("NVML hangs".to_owned()), 2),
        (Ok(lost()), 2),
        (Ok(is(Unavailable::Silent(String::new()))), 2),
        (Ok(lost()), 2),
        (Ok(Inventory::new(vec![gpu(0)])), 2),
        (Ok(is(Unavailable::Silent(String::new()))), 2),
        (Ok(lost()), 4),
    ] {
        scene.node.set_inventory(inventory);
        scene.reporter.report_node(&scene.node, &scene.api).await;
        assert_eq!(scene.api.events().len(), events);
    }
    let state = scene.api.lock();
    let (_, reason, note) = &state.events[0];
    assert_eq!(*reason, "GpuUnhealthy");
    for words in [gpu(0).uuid.as_str(), "ResourceClaim", "the next one gets another GPU"] {
        assert!(note.contains(words), "{note}");
    }
    assert!(
        state
            .events
            .iter()
            .all(|(_, _, note)| note.len() < 1024 && !note.contains("  "))
    );
}

/// New claims do get a monitor of such a GPU.
#[tokio::test]
async fn a_pod_that_monitors_a_gpu_that_is_lost_has_no_event() {
    let mut scene = Scene::new();
    let (id, mut monitor) = claim("u3", &[("s3", 20, 0)]);
    let devices = monitor
        .status
        .as_mut()
        .and_then(|status| status.allocation.as_mut()?.devices.as_mut());
    let result = &mut devices.expect("devices").results.as_mut().expect("results")[0];
    (result.device, result.admin_access) = ("gpu-3f8a1c20-monitor".into(), Some(true));
    prepare(&mut scene.node.lock(), (id, monitor)).expect("prepared");
    let lost = [(gpu(0).uuid, Unavailable::Lost(String::new()))].into();
    scene
        .node
        .set_inventory(Ok(Inventory::with_unavailable(vec![gpu(0)], lost)));
    scene.reporter.report_node(&scene.node, &scene.api).await;
    let told = scene.api.events();
    assert_eq!(told.len(), 2, "{told:?}");
}

#[tokio::test]
async fn a_part_that_does_not_work_for_a_while_has_one_event_on_the_node() {
    let mut scene = Scene::new();
    let readiness = Readiness::new(&["gpus", "slices", "claims"]);
    let begin = std::time::Instant::now();
    let set = |state: Result<(), String>| {
        readiness.set("gpus", state);
    };
    readiness.idle("claims", "nothing".into());
    for (after, change, events) in [
        (0, None, 0),
        (10, Some("set the chart's driverRoot"), 0),
        (39, Some("set the chart's driverRoot"), 0),
        (41, Some("set the chart's driverRoot"), 1),
        // A new reason creates no new event.
        (100, Some("another reason"), 1),
        (110, None, 1),
        (120, Some("again"), 1),
        (149, Some("again"), 1),
        (151, Some("again"), 2),
    ] {
        set(change.map_or(Ok(()), |why: &str| Err(why.to_owned())));
        let now = begin + Duration::from_secs(after);
        scene.reporter.report_readiness(&readiness, &scene.api, now).await;
        assert_eq!(scene.api.events().len(), events, "after {after} s");
    }
    let state = scene.api.lock();
    let (object, reason, note) = &state.events[0];
    assert_eq!((object.as_str(), *reason), ("n1", "PluginNotReady"));
    assert_eq!(
        note,
        "the plugin on this node is not ready: gpus: set the chart's driverRoot"
    );
}

fn node_object() -> ObjectReference {
    ObjectReference {
        name: Some("n1".into()),
        ..ObjectReference::default()
    }
}

#[tokio::test]
async fn the_processes_of_a_pod_without_a_share_have_one_event() {
    let mut scene = Scene::new();
    let api = scene.api.clone();
    for pid in 10..13 {
        process(&scene.at(pid), pid, &[], "0::/user.slice");
        scene.memory.insert(pid, Some(u64::from(pid) * GIB));
    }
    scene.looks(2);
    scene.report(1).await;
    let expected = [("n1".to_owned(), "UnexplainedUse")];
    assert_eq!(api.events(), expected);
    let note = api.lock().events[0].2.clone();
    assert!(
        note.contains("3 processes in no pod") && note.contains("process 12") && note.contains("33792 MiB"),
        "{note}"
    );
    // One ends, and another one takes its place.
    for pid in 20..23 {
        scene.memory.remove(&(pid - 10));
        process(&scene.at(pid), pid, &[], "0::/user.slice");
        scene.memory.insert(pid, Some(GIB));
        scene.looks(2);
        scene.report(1).await;
    }
    assert_eq!(api.events(), expected, "no new one for each process");
    scene.memory.clear();
    scene.looks(2);
    scene.report(1).await;
    scene.memory.insert(22, Some(GIB));
    scene.looks(2);
    scene.report(1).await;
    assert_eq!(api.events().len(), 2, "it had ended");
}

#[tokio::test]
async fn a_kill_is_told_also_if_the_api_server_is_down_at_first() {
    let mut scene = Scene::new();
    let api = scene.api.clone();
    api.lock().fails = true;
    let killed = |pid| Offender {
        share: key("u1", "s1"),
        pid,
        started: 1,
        name: "train".into(),
        bytes: 30 * GIB,
        container: None,
    };
    for pid in 10..15 {
        scene.state().killed.push((key("u1", "s1"), killed(pid)));
    }
    scene.state().killed.push((key("gone", "s1"), killed(20)));
    scene.report(1).await;
    assert_eq!(api.lock().event_tries, 3, "a round ends with its third failure");
    api.lock().fails = false;
    scene.report(3).await;
    let each = [(); 5].map(|()| ("pod-u1".to_owned(), "KilledOverLimit"));
    assert_eq!(api.events(), each, "each once");
    assert!(api.lock().events[1].2.contains("process 11"));
}

/// Writes a refusal into a share's ledger, as libvgpu.so does.
fn refuse(scene: &Scene, (uid, share): (&str, &str), count: u64, cause: Cause) {
    let path = scene.rig.path(&format!("run/claims/{uid}/{share}/ledger"));
    let mut bytes = std::fs::read(&path).expect("a ledger");
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .expect("after 1970");
    let refusal = Refusal {
        number: count,
        unix: now.as_secs(),
        cause,
        pid: 5,
        pid_namespace: 77,
        asked: Some(30 * GIB),
        charged: 12 * GIB,
        overhead: None,
        gpu_free: Some(40 * GIB),
        raw_name: *b"train.py\0\0\0\0\0\0\0\0",
        users: [
            refusal::User::new(5, 12 * GIB),
            refusal::User::default(),
            refusal::User::default(),
            refusal::User::default(),
        ],
    };
    let slot = refusal::SLOTS_AT + (count as usize % refusal::SLOTS) * vgpu_abi::ledger::LINE;
    let words = refusal.words().into_iter().flat_map(u64::to_le_bytes);
    bytes.splice(slot..slot + vgpu_abi::ledger::LINE, words);
    let counter = if cause == Cause::Limit {
        refusal::BY_LIMIT_AT
    } else {
        refusal::BY_DRIVER_AT
    };
    bytes[counter..counter + 8].copy_from_slice(&count.to_le_bytes());
    std::fs::write(&path, bytes).expect("written");
}

#[tokio::test]
async fn refused_memory_is_a_condition_of_its_claim_and_one_event_on_its_pod() {
    let mut scene = Scene::new();
    let api = scene.api.clone();
    scene.process(10, &[1], 'a');
    scene.memory = Memory::from([(10, Some(GIB / 8))]);
    scene.looks(2);
    scene.write(1).await;
    scene.report(1).await;
    let granted = |uid| api.condition(uid, "MemoryGranted");
    assert_eq!(granted("u1").as_deref(), Some("True NothingRefused"));
    assert!(api.events().is_empty());
    refuse(&scene, ("u1", "s1"), 3, Cause::Limit);
    api.lock().fails = true;
    scene.looks(1);
    scene.report(2).await;
    // A program that goes on trying.
    refuse(&scene, ("u1", "s1"), 4000, Cause::Limit);
    scene.looks(2);
    api.lock().fails = false;
    scene.writer.wake();
    scene.write(1).await;
    scene.report(3).await;
    assert_eq!(granted("u1").as_deref(), Some("False MemoryRefused"));
    assert_eq!(granted("u2").as_deref(), Some("True NothingRefused"), "its neighbour");
    assert_eq!(api.events(), [("pod-u1".to_owned(), "MemoryRefused")]);
    let note = api.lock().events[0].2.clone();
    for part in [
        "asked for 30720 MiB",
        "limit of 20480 MiB",
        "12288 MiB by py)th (on?[31m (PID 5)",
        "(pods pod-u1)",
    ] {
        assert!(note.contains(part), "{part}: {note}");
    }
    assert!(note.len() < 1000 && !note.contains("  "), "{note}");
    // The next instance does not know that this was reported, and reports recent refusals once more.
    scene.turns = Turns::default();
    refuse(&scene, ("u2", "s2"), 1, Cause::Driver);
    scene.looks(2);
    scene.write(1).await;
    scene.report(2).await;
    let expected = [
        ("pod-u1", "MemoryRefused"),
        ("pod-u1", "MemoryRefused"),
        ("pod-u2", "GpuFull"),
    ];
    let expected = expected.map(|(pod, reason)| (pod.to_owned(), reason));
    assert_eq!(api.events(), expected);
    assert_eq!(granted("u2").as_deref(), Some("False GpuFull"));
}

#[tokio::test]
async fn a_refusal_of_a_claim_without_a_name_waits_until_it_has_one() {
    let scene = Scene::new();
    let known = scene
        .node
        .read(|node| node.claims().claims.clone())
        .await
        .expect("read");
    let mut unnamed = known.clone();
    unnamed.get_mut("u1").expect("it is prepared").name.clear();
    let news = News {
        gpu: "GPU-1".into(),
        limit: GIB,
        count: 1,
        since: 1,
        last: None,
        users: Vec::new(),
    };
    let share = ("u1".to_owned(), "s1".to_owned());
    let mut found = vec![(share, news)];
    assert!(notices::refusals(&mut found, &unnamed).is_empty());
    assert_eq!(found.len(), 1, "it waits");
    assert_eq!(notices::refusals(&mut found.clone(), &known).len(), 1);
    assert!(notices::refusals(&mut found, &Default::default()).is_empty());
    assert!(found.is_empty(), "the claim is gone");
}

const STATE: &str = "SOFT_GPU_STATE";
const ON_THIS_KERNEL: &str = "enforcement::tests::real_processes_in_real_mount_namespaces_on_a_driver";

/// Ends with the test, whatever becomes of it.
struct Client(std::process::Child);

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A tmpfs for each share, a mount namespace as a container has it, and the software GPU's driver, which `make dist` builds.
#[test]
fn real_processes_in_real_mount_namespaces_on_a_driver() {
    if !crate::tmpfs::tests::can_mount("real_processes_in_real_mount_namespaces_on_a_driver") {
        return;
    }
    if std::env::var_os(STATE).is_none() {
        // The driver finds its state by a variable of the process.
        let state = tempfile::tempdir().expect("a folder");
        let mut child = std::process::Command::new(std::env::current_exe().expect("this program"));
        let status = child
            .args(["--exact", ON_THIS_KERNEL])
            .env(STATE, state.path())
            .status();
        assert!(status.expect("a child").success());
        return;
    }
    let own = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../dist");
    let driver = std::env::var_os("VGPU_DIST")
        .map_or(own, std::path::PathBuf::from)
        .join("soft-gpu");
    vgpu_built_from::assert_fresh(&driver.join("libcuda.so.1"));
    vgpu_built_from::assert_fresh(&driver.join("libnvidia-ml.so.1"));
    let nvml = Local::new(driver.clone(), vgpu_node::gpus::MemorySizes::default());
    let list = nvml.sample(true).list.expect("asked for").expect("GPUs");
    let soft = &list.gpus[0].uuid;

    let rig = Rig::new(true);
    let mut node = rig.open();
    let claims = [claim("u1", &[("s1", 20, 25)]), claim("u2", &[("s2", 20, 0)])];
    assert!(node.prepare(&node.locked(), &claims).0.iter().all(Result::is_ok));
    let proc = tempfile::tempdir().expect("a folder");
    let inside = rig.path("inside");
    std::fs::create_dir(&inside).expect("a folder");
    // Each client allocates this many GiB and keeps running. With a share, it has that share's tmpfs, as in a
    // container.
    let client = |share: Option<&str>, gib: u64| {
        let program = vgpu_built_from::program("gpu-client");
        let mount = share.map_or_else(
            || "true".to_owned(),
            |share| format!("mount --bind {} {}", rig.path(share).display(), inside.display()),
        );
        let script = format!("{mount} && exec {} init alloc:{} wait", program.display(), gib * GIB);
        let child = std::process::Command::new("unshare")
            .args(["--mount", "--propagation", "private", "sh", "-c", &script])
            .env("LD_LIBRARY_PATH", &driver)
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::null())
            .spawn()
            .expect("unshare");
        let pid = child.id().to_string();
        std::os::unix::fs::symlink(format!("/proc/{pid}"), proc.path().join(pid)).expect("a link");
        Client(child)
    };
    let mut offender = client(Some("run/claims/u1/s1"), 30);
    let mut neighbour = client(Some("run/claims/u2/s2"), 0);
    let mut stray = client(None, 3);
    let start = std::time::Instant::now();
    let all = [&offender, &neighbour, &stray].map(|client| client.0.id());
    let listed = || nvml.sample(false).memory(soft).expect("an answer");
    // `wait` comes after the memory is taken.
    while listed().values().flatten().sum::<u64>() < 33 * GIB || listed().len() < 3 {
        assert!(start.elapsed() < std::time::Duration::from_secs(60), "{:?}", listed());
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    let (mut turns, observations) = (Turns::default(), Observations::default());
    let mut look = |kills: bool| {
        let reading = Reading {
            records: turns.records(&node, Extent::All),
            sample: sample(Ok(listed()), None).into(),
            extent: Extent::All,
            processes: Processes::in_folder(proc.path()),
            own_pod: None,
            kills,
            read_back: ReadBack::NoSuchLimit,
        };
        turns.apply(&reading, &observations);
    };
    look(false);
    look(false);
    let reasons = || {
        let state = observations.lock();
        [key("u1", "s1"), key("u2", "s2")].map(|key| state.findings[&key].memory.reason)
    };
    let found = reasons();
    let offending = observations
        .lock()
        .breaches
        .get(&key("u1", "s1"))
        .and_then(|breach| breach.offender.clone());
    let unexplained: Vec<_> = observations
        .lock()
        .unexplained
        .iter()
        .map(|of| (of.pid, of.bytes))
        .collect();
    look(true);
    let ended = offender.0.wait().expect("ended");
    std::fs::remove_file(proc.path().join(all[0].to_string())).expect("removed");
    for _ in 0..3 {
        look(true);
    }
    let lives = [&mut neighbour, &mut stray].map(|client| client.0.try_wait().expect("a state").is_none());
    assert_eq!(found, [Reason::OverLimit, Reason::Library]);
    assert_eq!(offending.map(|of| of.pid), Some(all[0]));
    assert_eq!(unexplained, [(all[2], Some(3 * GIB))]);
    assert_eq!((ended.signal(), lives), (Some(9), [true, true]));
    assert_eq!(reasons(), [Reason::Library, Reason::Library]);
    assert_eq!(observations.lock().kills, 1);
}
