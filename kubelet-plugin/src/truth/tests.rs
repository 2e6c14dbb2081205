//! The whole part on a made-up node: records of a real `Node`, a made-up /proc, NVML and API server.

use super::api::{Applied, Pods, Statuses};
use super::conditions::ShareFindings;
use super::finding::{Finding, Reason};
use super::gpu_processes::Memory;
use super::injected::{ClaimUse, Pod, PodContainer};
use super::memory::{Answers, Offender};
use super::observe::{Reading, Settling, Truth, records};
use super::processes::Proc;
use super::processes::tests::{hex, in_pod, process};
use super::tell::{Notices, Writer, list_pods};
use crate::api::{Claims, Error, Events};
use crate::compute::Verdict;
use crate::inventory::tests::gpu;
use crate::mount_users::Device;
use crate::node::SharedNode;
use crate::node::tests::{Rig, claim};
use crate::share::{ClaimId, ShareKey};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::resource::v1::{AllocatedDeviceStatus, ResourceClaim};
use serde_json::json;
use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt as _;
use std::sync::{Arc, Mutex};
use std::time::Duration;

const GIB: u64 = 1 << 30;

fn key(uid: &str, share: &str) -> ShareKey {
    (uid.into(), share.into())
}

/// Claims u1 and u2 with 20 GiB each on GPU 0, whose tmpfs are devices 0:1 and 0:2.
struct Scene {
    rig: Rig,
    node: SharedNode,
    proc: tempfile::TempDir,
    settling: Settling,
    truth: Truth,
    memory: Memory,
    kills: bool,
}

impl Scene {
    fn new() -> Self {
        let rig = Rig::new(false);
        let mut node = rig.open();
        let claims = [claim("u1", &[("s1", 20, 25)]), claim("u2", &[("s2", 20, 0)])];
        assert!(node.prepare(&node.locked(), &claims).iter().all(Result::is_ok));
        Self {
            node: SharedNode::new(node),
            rig,
            proc: tempfile::tempdir().expect("a folder"),
            settling: Settling::default(),
            truth: Truth::default(),
            memory: Memory::new(),
            kills: false,
        }
    }

    fn process(&self, pid: u32, minors: &[u32], pod: char) {
        process(&self.at(pid), pid, minors, &in_pod(pod, pod));
    }

    fn at(&self, pid: u32) -> std::path::PathBuf {
        self.proc.path().join(pid.to_string())
    }

    /// One comparison, with what NVML says of GPU 0, and the verdict on u1's time.
    fn look(&mut self, answer: Result<Memory, String>, verdict: Option<bool>) {
        let proc = Proc::in_folder(self.proc.path());
        self.look_by(proc, answer, verdict);
    }

    fn look_by(&mut self, proc: Proc, answer: Result<Memory, String>, verdict: Option<bool>) {
        let mut found = records(&self.node.lock());
        for (mount, minor) in found.mounts.iter_mut().zip(1..) {
            mount.device = Device::Number(rustix::fs::makedev(0, minor));
        }
        let verdict = Verdict {
            enforced: verdict,
            ..Verdict::default()
        };
        let reading = Reading {
            records: found,
            answers: Answers::from([(gpu(0).uuid, answer), (gpu(1).uuid, Ok(Memory::new()))]),
            verdicts: BTreeMap::from([(key("u1", "s1"), verdict)]),
            proc,
            own_pod: None,
            kills: self.kills,
        };
        self.settling.apply(&reading, &self.truth);
    }

    fn looks(&mut self, times: u32) {
        for _ in 0..times {
            self.look(Ok(self.memory.clone()), Some(true));
        }
    }

    fn found(&self, uid: &str, share: &str) -> ShareFindings {
        self.truth.lock().findings[&key(uid, share)]
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
        assert_eq!(scene.found(uid, share).memory, Finding::holds(Reason::WithinLimit));
        assert_eq!(scene.found(uid, share).injected, Finding::holds(Reason::Mounted));
        assert_eq!(scene.truth.lock().used[&key(uid, share)], GIB / 8);
    }
    scene.memory.insert(10, Some(30 * GIB));
    scene.looks(1);
    assert_eq!(
        scene.memory_of("u1", "s1"),
        Reason::WithinLimit,
        "a PID may be another one's now"
    );
    scene.looks(1);
    assert_eq!(scene.memory_of("u1", "s1"), Reason::OverLimit);
    assert_eq!(scene.memory_of("u2", "s2"), Reason::WithinLimit);
    let breach = scene.truth.lock().breaches[&key("u1", "s1")].clone();
    assert_eq!((breach.limit, breach.used), (20 * GIB, Some(30 * GIB)));
    assert_eq!(breach.offender.map(|of| of.pid), Some(10));
    assert_eq!(scene.truth.lock().breaches.len(), 1);
    scene.memory.insert(10, Some(GIB));
    scene.looks(1);
    assert_eq!(scene.memory_of("u1", "s1"), Reason::OverLimit);
    // Not charged to its ledger: within the limit, and past libvgpu.so.
    scene.looks(1);
    assert_eq!(scene.memory_of("u1", "s1"), Reason::NotCharged);
    scene.memory.insert(10, Some(0));
    scene.looks(2);
    assert_eq!(scene.memory_of("u1", "s1"), Reason::NotCharged);
    scene.looks(1);
    assert_eq!(scene.memory_of("u1", "s1"), Reason::WithinLimit);
    assert!(scene.truth.lock().breaches.is_empty());
    // Unprepared, it is forgotten.
    {
        let mut node = scene.node.lock();
        let locked = node.locked();
        assert!(node.unprepare(&locked, &["u1"]).remove(0).is_ok());
    }
    scene.looks(1);
    assert_eq!(scene.truth.lock().findings.len(), 1);
}

#[test]
fn what_is_not_known_for_long_becomes_unknown() {
    let mut scene = Scene::new();
    scene.process(10, &[1], 'a');
    scene.memory = Memory::from([(10, Some(5))]);
    scene.looks(2);
    let silent = || Err("the driver hangs".to_owned());
    scene.look(silent(), None);
    scene.look(silent(), None);
    assert_eq!(scene.memory_of("u1", "s1"), Reason::WithinLimit);
    assert_eq!(scene.truth.lock().gpus[&gpu(0).uuid].unexplained, None);
    scene.look(silent(), None);
    assert_eq!(scene.found("u1", "s1").memory, Finding::unknown(Reason::DriverSilent));
    assert_eq!(scene.found("u1", "s1").compute, Finding::unknown(Reason::NotMeasured));
    assert!(scene.truth.lock().used.is_empty());
    // Mounts are known without the driver.
    assert_eq!(scene.found("u1", "s1").injected.reason, Reason::Mounted);
    // Without hostPID nothing is known at all.
    let mut blind = Scene::new();
    for _ in 0..3 {
        blind.look_by(
            Proc::that_sees_nothing("alone"),
            Ok(Memory::from([(1, Some(99 * GIB))])),
            None,
        );
    }
    for finding in [
        blind.found("u1", "s1").memory,
        blind.found("u1", "s1").compute,
        blind.found("u1", "s1").injected,
    ] {
        assert_eq!(finding, Finding::unknown(Reason::NoHostPid));
    }
    assert!(blind.truth.lock().unexplained.is_empty());
}

#[test]
fn compute_says_what_the_comparison_found() {
    let mut scene = Scene::new();
    scene.look(Ok(Memory::new()), Some(false));
    assert_eq!(scene.found("u1", "s1").compute, Finding::fails(Reason::OverLimit));
    scene.look(Ok(Memory::new()), Some(true));
    assert_eq!(scene.found("u1", "s1").compute, Finding::holds(Reason::WithinLimit));
    assert_eq!(scene.found("u2", "s2").compute, Finding::unknown(Reason::NotSeenYet));
}

#[test]
fn use_without_a_share_is_settled_and_has_its_pod() {
    let mut scene = Scene::new();
    // One that unmounted its share, and one that never had any.
    scene.process(10, &[], 'a');
    process(&scene.at(11), 11, &[], "0::/user.slice");
    scene.memory = Memory::from([(10, Some(GIB)), (11, Some(5))]);
    scene.looks(1);
    assert!(scene.truth.lock().unexplained.is_empty());
    scene.looks(1);
    let state = scene.truth.lock();
    assert_eq!(state.gpus[&gpu(0).uuid].unexplained, Some(GIB + 5));
    assert_eq!(state.gpus[&gpu(1).uuid].unexplained, Some(0));
    let pods: Vec<_> = state
        .unexplained
        .iter()
        .map(|of| (of.pid, of.container.is_some()))
        .collect();
    assert_eq!(pods, [(10, true), (11, false)]);
    assert!(!state.questions.is_empty(), "its pod's name is asked for");
    assert_eq!(state.findings[&key("u1", "s1")].memory.reason, Reason::WithinLimit);
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
    // Its memory goes with it.
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
    assert_eq!(scene.truth.lock().kills, 1);
}

#[test]
fn a_container_without_its_mounts_is_found_when_the_api_server_names_it() {
    let mut scene = Scene::new();
    scene.process(10, &[], 'a');
    scene.looks(1);
    let container = scene.truth.lock().asked.keys().next().cloned().expect("asked about");
    assert!(!std::mem::take(&mut scene.truth.lock().questions).is_empty());
    scene.looks(1);
    assert!(scene.truth.lock().questions.is_empty(), "not at once again");
    let pod = Pod {
        uid: container.pod,
        namespace: "d".into(),
        name: "p".into(),
        containers: vec![PodContainer {
            name: "main".into(),
            id: hex('a', 64),
            claims: vec![ClaimUse {
                claim: "claim-u1".into(),
                request: None,
            }],
        }],
        ..Pod::default()
    };
    scene.truth.lock().pods = Some(vec![pod]);
    scene.looks(2);
    assert_eq!(scene.found("u1", "s1").injected, Finding::fails(Reason::MountsMissing));
    assert_eq!(scene.truth.lock().lacking[&key("u1", "s1")].container, "main");
    assert_eq!(scene.found("u2", "s2").injected, Finding::unknown(Reason::NotSeenYet));
}

/// As after containerd was started again without CDI, and one of two containers too.
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
        assert!(node.prepare(&locked, &[(id, reserved)])[0].is_ok());
    }
    scene.process(10, &[1], 'a');
    scene.process(20, &[2], 'b');
    scene.looks(2);
    assert!(scene.truth.lock().questions.is_empty(), "each has its mounts");
    process(&scene.at(11), 11, &[], &in_pod('a', 'c'));
    scene.looks(1);
    assert!(
        !std::mem::take(&mut scene.truth.lock().questions).is_empty(),
        "a container of the claim's pod has no share"
    );
    let container = |name: char| PodContainer {
        name: name.to_string(),
        id: hex(name, 64),
        claims: vec![ClaimUse {
            claim: "claim-u1".into(),
            request: None,
        }],
    };
    scene.truth.lock().pods = Some(vec![Pod {
        uid,
        namespace: "d".into(),
        name: "p".into(),
        containers: ['a', 'c'].map(container).to_vec(),
        ..Pod::default()
    }]);
    scene.looks(3);
    assert_eq!(scene.found("u1", "s1").injected, Finding::fails(Reason::MountsMissing));
    assert_eq!(scene.truth.lock().lacking[&key("u1", "s1")].container, "c");
    assert!(scene.truth.lock().questions.is_empty(), "what it is is known");
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
        assert_ne!(scene.memory_of("u1", "s1"), Reason::WithinLimit, "damage {damage}");
        assert_eq!(scene.memory_of("u2", "s2"), Reason::WithinLimit, "damage {damage}");
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
    fails: bool,
    drops: bool,
    gone: bool,
    /// Fails once so many were written.
    fails_after: Option<u32>,
    /// Refuses to write this claim.
    refuses: Option<&'static str>,
    /// Says of this claim at a write that it does not have that allocation.
    deallocated: Option<&'static str>,
    pods: Vec<Pod>,
    events: Vec<(String, &'static str, String)>,
}

impl Statuses for FakeApi {
    async fn devices(&self, id: &ClaimId) -> Result<Option<Vec<AllocatedDeviceStatus>>, Error> {
        let mut state = self.0.lock().expect("lock");
        state.reads += 1;
        if state.fails {
            return Err(Error::Other("down".into()));
        }
        Ok((!state.gone).then(|| state.devices.get(&id.uid).cloned().unwrap_or_default()))
    }

    async fn apply(&self, id: &ClaimId, devices: &[AllocatedDeviceStatus]) -> Result<Applied, Error> {
        let mut state = self.0.lock().expect("lock");
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
        // As a real one, which keeps JSON.
        let text = serde_json::to_string(devices).expect("JSON");
        state
            .devices
            .insert(id.uid.clone(), serde_json::from_str(&text).expect("devices"));
        Ok(Applied::Kept)
    }
}

impl Pods for FakeApi {
    async fn pods(&self) -> Result<Vec<Pod>, Error> {
        Ok(self.0.lock().expect("lock").pods.clone())
    }
}

impl Claims for FakeApi {
    async fn get(&self, namespace: &str, name: &str) -> Result<Option<ResourceClaim>, Error> {
        let uid = name.strip_prefix("claim-").unwrap_or_default();
        let claim = json!({"metadata": {"name": name, "namespace": namespace, "uid": uid}, "spec": {},
            "status": {"reservedFor": [{"resource": "pods", "name": format!("pod-{uid}"), "uid": format!("p-{uid}")}]}});
        Ok(serde_json::from_value(claim).ok())
    }
}

impl Events for FakeApi {
    async fn warn(&self, regarding: ObjectReference, reason: &'static str, note: String) -> Result<(), Error> {
        let mut state = self.0.lock().expect("lock");
        if state.fails {
            return Err(Error::Other("down".into()));
        }
        state.events.push((regarding.name.unwrap_or_default(), reason, note));
        Ok(())
    }
}

impl FakeApi {
    fn counts(&self) -> (u32, u32) {
        let state = self.0.lock().expect("lock");
        (state.reads, state.writes)
    }

    fn condition(&self, uid: &str, kind: &str) -> Option<String> {
        let state = self.0.lock().expect("lock");
        let conditions = state.devices.get(uid)?.first()?.conditions.clone()?;
        let one = conditions.into_iter().find(|one| one.type_ == kind)?;
        Some(format!("{} {}", one.status, one.reason))
    }

    fn events(&self) -> Vec<(String, &'static str)> {
        let state = self.0.lock().expect("lock");
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
    let (api, mut writer) = (FakeApi::default(), Writer::default());
    writer.write(&scene.node, &api, &scene.truth).await;
    assert_eq!(api.counts(), (2, 2));
    assert_eq!(api.condition("u1", "Prepared").as_deref(), Some("True Prepared"));
    assert_eq!(
        api.condition("u1", "MemoryEnforced").as_deref(),
        Some("Unknown NotSeenYet")
    );
    for _ in 0..3 {
        writer.write(&scene.node, &api, &scene.truth).await;
    }
    assert_eq!(api.counts(), (2, 2), "nothing changed");
    {
        // Where nothing can have changed, the node is not even read.
        let _turn = scene.node.lock();
        let write = writer.write(&scene.node, &api, &scene.truth);
        let warned = async {
            let (api, object) = (FakeApi::default(), ObjectReference::default());
            Notices::default().warn(&scene.node, &api, &scene.truth, &object).await;
        };
        let both = async { tokio::join!(write, warned) };
        let done = tokio::time::timeout(Duration::from_secs(30), both).await;
        assert!(done.is_ok(), "it waits for a turn");
    }
    scene.process(10, &[1], 'a');
    scene.memory = Memory::from([(10, Some(30 * GIB))]);
    scene.looks(2);
    writer.write(&scene.node, &api, &scene.truth).await;
    assert_eq!(
        api.condition("u1", "MemoryEnforced").as_deref(),
        Some("False OverLimit")
    );
    assert_eq!(
        api.condition("u1", "ComputeEnforced").as_deref(),
        Some("True WithinLimit")
    );
    assert_eq!(api.counts(), (2, 4));
    // A restart: what is on the server is read, and written if it is another thing now.
    let mut next = Writer::default();
    next.write(&scene.node, &api, &scene.truth).await;
    assert_eq!(api.counts(), (4, 4));
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_is_down_is_asked_later_and_later() {
    let scene = Scene::new();
    let (api, mut writer) = (FakeApi::default(), Writer::default());
    api.0.lock().expect("lock").fails = true;
    for _ in 0..5 {
        writer.write(&scene.node, &api, &scene.truth).await;
    }
    assert_eq!(api.counts(), (2, 0), "each claim is paused after its first failure");
    api.0.lock().expect("lock").fails = false;
    writer.wake();
    writer.write(&scene.node, &api, &scene.truth).await;
    assert_eq!(api.counts(), (4, 2));
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_is_refused_is_tried_again_and_keeps_no_other_one_waiting() {
    let scene = Scene::new();
    let (api, mut writer) = (FakeApi::default(), Writer::default());
    api.0.lock().expect("lock").refuses = Some("u1");
    for _ in 0..3 {
        writer.write(&scene.node, &api, &scene.truth).await;
    }
    assert_eq!(api.condition("u2", "Prepared").as_deref(), Some("True Prepared"));
    assert_eq!(api.counts(), (2, 2), "once, until its pause ends");
    api.0.lock().expect("lock").refuses = None;
    writer.wake();
    writer.write(&scene.node, &api, &scene.truth).await;
    assert_eq!(api.condition("u1", "Prepared").as_deref(), Some("True Prepared"));
    assert_eq!(api.counts(), (3, 3), "and read again");
}

#[tokio::test(start_paused = true)]
async fn findings_that_return_are_written_if_others_were_written_of_a_part() {
    let scene = Scene::new();
    let more = scene.node.turn(|node, locked| {
        let more = ["u3", "u4", "u5"].map(|uid| claim(uid, &[(uid, 1, 0)]));
        assert!(node.prepare(locked, &more).iter().all(Result::is_ok));
    });
    more.await.expect("a turn");
    let (api, mut writer) = (FakeApi::default(), Writer::default());
    writer.write(&scene.node, &api, &scene.truth).await;
    for (uid, share) in [("u1", "s1"), ("u2", "s2"), ("u3", "u3"), ("u4", "u4"), ("u5", "u5")] {
        scene.truth.know_all(&key(uid, share));
    }
    api.0.lock().expect("lock").fails_after = Some(6);
    writer.write(&scene.node, &api, &scene.truth).await;
    let memory = || api.condition("u1", "MemoryEnforced");
    assert_eq!((api.counts().1, memory().as_deref()), (9, Some("True WithinLimit")));
    scene.truth.lock().findings.clear();
    api.0.lock().expect("lock").fails_after = None;
    writer.wake();
    writer.write(&scene.node, &api, &scene.truth).await;
    assert_eq!(memory().as_deref(), Some("Unknown NotSeenYet"));
}

#[tokio::test]
async fn a_claim_that_was_deallocated_is_written_again_once_it_has_other_shares() {
    let scene = Scene::new();
    let (api, mut writer) = (FakeApi::default(), Writer::default());
    api.0.lock().expect("lock").deallocated = Some("u1");
    for _ in 0..3 {
        writer.write(&scene.node, &api, &scene.truth).await;
    }
    assert_eq!((api.counts(), api.condition("u1", "Prepared")), ((2, 2), None));
    api.0.lock().expect("lock").deallocated = None;
    let again = scene.node.turn(|node, locked| {
        assert!(node.unprepare(locked, &["u1"]).remove(0).is_ok());
        let again = claim("u1", &[("s3", 20, 25)]);
        assert!(node.prepare(locked, &[again]).remove(0).is_ok());
    });
    again.await.expect("a turn");
    writer.write(&scene.node, &api, &scene.truth).await;
    assert_eq!(api.condition("u1", "Prepared").as_deref(), Some("True Prepared"));
}

#[tokio::test]
async fn a_cluster_that_keeps_no_status_and_claims_that_are_gone_are_written_no_more() {
    let mut scene = Scene::new();
    let (api, mut writer) = (FakeApi::default(), Writer::default());
    api.0.lock().expect("lock").drops = true;
    writer.write(&scene.node, &api, &scene.truth).await;
    scene.looks(3);
    writer.write(&scene.node, &api, &scene.truth).await;
    assert_eq!(api.counts(), (1, 1));
    let (api, mut writer) = (FakeApi::default(), Writer::default());
    api.0.lock().expect("lock").gone = true;
    for _ in 0..3 {
        writer.write(&scene.node, &api, &scene.truth).await;
    }
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
    let api = FakeApi::default();
    let node_object = node_object();
    let mut notices = Notices::default();
    notices.warn(&scene.node, &api, &scene.truth, &node_object).await;
    let first = [
        ("pod-u1".to_owned(), "MemoryLimitBroken"),
        ("n1".to_owned(), "UnexplainedUse"),
    ];
    assert_eq!(api.events(), first, "the pod of process 11 is not known yet");
    let pod = scene
        .truth
        .lock()
        .unexplained
        .iter()
        .find_map(|of| Some(of.container.clone()?.pod))
        .expect("a pod");
    api.0.lock().expect("lock").pods = vec![Pod {
        uid: pod,
        namespace: "d".into(),
        name: "stray".into(),
        containers: Vec::new(),
        ..Pod::default()
    }];
    list_pods(&api, &scene.truth).await;
    for _ in 0..3 {
        notices.warn(&scene.node, &api, &scene.truth, &node_object).await;
    }
    assert_eq!(api.events()[2..], [("stray".to_owned(), "UnexplainedUse")]);
    let notes: Vec<String> = api
        .0
        .lock()
        .expect("lock")
        .events
        .iter()
        .map(|(.., note)| note.clone())
        .collect();
    assert!(
        notes[0].contains("20480 MiB") && notes[0].contains("30720 MiB") && notes[0].contains("process 10"),
        "{}",
        notes[0]
    );
    assert!(notes[2].contains("1024 MiB of GPU GPU-3f8a1c20"), "{}", notes[2]);
    assert!(notes.iter().all(|note| note.len() < 1000 && !note.contains("  ")));
    // It ends, and comes back: told again.
    scene.memory.remove(&10);
    scene.looks(3);
    notices.warn(&scene.node, &api, &scene.truth, &node_object).await;
    scene.memory.insert(10, Some(30 * GIB));
    scene.looks(2);
    notices.warn(&scene.node, &api, &scene.truth, &node_object).await;
    assert_eq!(
        api.events().last().map(|(_, reason)| *reason),
        Some("MemoryLimitBroken")
    );
    assert_eq!(api.events().len(), 4);
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
    let (api, mut notices) = (FakeApi::default(), Notices::default());
    for pid in 10..13 {
        process(&scene.at(pid), pid, &[], "0::/user.slice");
        scene.memory.insert(pid, Some(u64::from(pid) * GIB));
    }
    scene.looks(2);
    notices.warn(&scene.node, &api, &scene.truth, &node_object()).await;
    let expected = [("n1".to_owned(), "UnexplainedUse")];
    assert_eq!(api.events(), expected);
    let note = api.0.lock().expect("lock").events[0].2.clone();
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
        notices.warn(&scene.node, &api, &scene.truth, &node_object()).await;
    }
    assert_eq!(api.events(), expected, "no new one for each process");
    scene.memory.clear();
    scene.looks(2);
    notices.warn(&scene.node, &api, &scene.truth, &node_object()).await;
    scene.memory.insert(22, Some(GIB));
    scene.looks(2);
    notices.warn(&scene.node, &api, &scene.truth, &node_object()).await;
    assert_eq!(api.events().len(), 2, "it had ended");
}

#[tokio::test]
async fn a_kill_is_told_also_if_the_api_server_is_down_at_first() {
    let scene = Scene::new();
    let (api, mut notices) = (FakeApi::default(), Notices::default());
    api.0.lock().expect("lock").fails = true;
    let killed = |pid| Offender {
        share: key("u1", "s1"),
        pid,
        started: 1,
        name: "train".into(),
        bytes: 30 * GIB,
        container: None,
    };
    for pid in [10, 11] {
        scene.truth.lock().killed.push((key("u1", "s1"), killed(pid)));
    }
    scene.truth.lock().killed.push((key("gone", "s1"), killed(12)));
    notices.warn(&scene.node, &api, &scene.truth, &node_object()).await;
    api.0.lock().expect("lock").fails = false;
    for _ in 0..3 {
        notices.warn(&scene.node, &api, &scene.truth, &node_object()).await;
    }
    let both = [10, 11].map(|_| ("pod-u1".to_owned(), "KilledOverLimit"));
    assert_eq!(api.events(), both, "each once");
    assert!(api.0.lock().expect("lock").events[1].2.contains("process 11"));
}

const STATE: &str = "SOFT_GPU_STATE";
const ON_THIS_KERNEL: &str = "truth::tests::real_processes_in_real_mount_namespaces_on_a_driver";

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
    let soft = crate::inventory::nvml::NvmlGpus::new(driver.clone());
    let soft = crate::inventory::Gpus::list(&soft).expect("GPUs").gpus.remove(0).uuid;
    let nvml = super::NvmlProcesses::new(driver.clone());

    let rig = Rig::new(true);
    let mut node = rig.open();
    let claims = [claim("u1", &[("s1", 20, 25)]), claim("u2", &[("s2", 20, 0)])];
    assert!(node.prepare(&node.locked(), &claims).iter().all(Result::is_ok));
    let proc = tempfile::tempdir().expect("a folder");
    let inside = rig.path("inside");
    std::fs::create_dir(&inside).expect("a folder");
    // Each takes so many GiB and stays. With a share, it has that share's tmpfs as a container has it.
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
    let listed = || crate::truth::GpuProcesses::of(&nvml, &soft).expect("an answer");
    // `wait` comes after the memory is taken.
    while listed().values().flatten().sum::<u64>() < 33 * GIB || listed().len() < 3 {
        assert!(start.elapsed() < std::time::Duration::from_secs(60), "{:?}", listed());
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    let (mut settling, truth) = (Settling::default(), Truth::default());
    let mut look = |kills: bool| {
        let reading = Reading {
            records: records(&node),
            answers: Answers::from([(gpu(0).uuid, Ok(listed()))]),
            verdicts: BTreeMap::new(),
            proc: Proc::in_folder(proc.path()),
            own_pod: None,
            kills,
        };
        settling.apply(&reading, &truth);
    };
    look(false);
    look(false);
    let reasons = |truth: &Truth| {
        let state = truth.lock();
        [key("u1", "s1"), key("u2", "s2")].map(|key| state.findings[&key].memory.reason)
    };
    let found = reasons(&truth);
    let offending = truth
        .lock()
        .breaches
        .get(&key("u1", "s1"))
        .and_then(|breach| breach.offender.clone());
    let unexplained: Vec<_> = truth.lock().unexplained.iter().map(|of| (of.pid, of.bytes)).collect();
    look(true);
    let ended = offender.0.wait().expect("ended");
    std::fs::remove_file(proc.path().join(all[0].to_string())).expect("removed");
    for _ in 0..3 {
        look(true);
    }
    let lives = [&mut neighbour, &mut stray].map(|client| client.0.try_wait().expect("a state").is_none());
    assert_eq!(found, [Reason::OverLimit, Reason::WithinLimit]);
    assert_eq!(offending.map(|of| of.pid), Some(all[0]));
    assert_eq!(unexplained, [(all[2], Some(3 * GIB))]);
    assert_eq!((ended.signal(), lives), (Some(9), [true, true]));
    assert_eq!(reasons(&truth), [Reason::WithinLimit, Reason::WithinLimit]);
    assert_eq!(truth.lock().kills, 1);
}
