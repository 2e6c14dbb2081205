//! The DRA service over a real Unix socket with the generated client, and an API server in memory.

use super::*;
use crate::api::{Error as ApiError, Events};
use crate::dra::clean_up::{CleanUp, MONITORS_EVERY};
use crate::dra::health::{Health, Report};
use crate::dra::library::tests::release;
use crate::dra::mount_users::{Keeper, MountUsers, ShareMount};
use crate::dra::node::tests::{Rig, claim, id, take};
use crate::dra::node::{LOCKED_WITHIN, LockFile};
use crate::dra::registration::{self, Registrar, Socket};
use crate::dra::share::{ShareKey, ShareKeys};
use crate::dra::stale::STALE_AFTER;
use crate::enforcement::report::events::Reporter;
use crate::enforcement::tests::observe_once;
use crate::enforcement::{ComputeVerdict, Observations, Pod, Pods};
use crate::publish::inventory::tests::gpu;
use crate::publish::inventory::{Inventory, Unavailable};
use crate::ready::Readiness;
use crate::run::{serve_dra, serve_registration};
use k8s_openapi::api::core::v1::ObjectReference;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};
use tokio::sync::{Notify, watch};
use tonic::transport::{Channel, Endpoint};
use vgpu_proto::health;
use vgpu_proto::registration::registration_client::RegistrationClient;
use vgpu_proto::registration::{InfoRequest, RegistrationStatus};

#[path = "queue_tests.rs"]
mod queue_tests;
#[path = "tenant_tests.rs"]
mod tenant;
#[path = "unclaimed_tests.rs"]
mod unclaimed;
#[path = "waiting_tests.rs"]
mod waiting;

type ClaimsByName = BTreeMap<(String, String), ResourceClaim>;

/// An API server's claims and events in memory.
#[derive(Clone, Default)]
struct Memory {
    claims: Arc<Mutex<ClaimsByName>>,
    events: Arc<Mutex<Vec<(ObjectReference, String)>>>,
    down: Arc<Mutex<bool>>,
    /// Names of the claims that were read.
    asked: Arc<Mutex<Vec<String>>>,
    /// If set, a GET waits for it.
    slow: Arc<Mutex<Option<Arc<Notify>>>>,
    pods: Arc<Mutex<Vec<Pod>>>,
    /// The pods cannot be listed.
    no_pods: Arc<Mutex<bool>>,
}

impl Memory {
    fn put(&self, (id, claim): (ClaimId, ResourceClaim)) {
        self.claims.lock().expect("lock").insert((id.namespace, id.name), claim);
    }

    fn drop_claim(&self, uid: &str) {
        let id = id(uid);
        self.claims.lock().expect("lock").remove(&(id.namespace, id.name));
    }
}

impl Claims for Memory {
    async fn get(&self, namespace: &str, name: &str) -> Result<Option<ResourceClaim>, ApiError> {
        self.asked.lock().expect("lock").push(name.to_owned());
        let found = self
            .claims
            .lock()
            .expect("lock")
            .get(&(namespace.to_owned(), name.to_owned()))
            .cloned();
        let slow = self.slow.lock().expect("lock").clone();
        if let Some(slow) = slow {
            slow.notified().await;
        }
        if *self.down.lock().expect("lock") {
            return Err(ApiError::Other("connection refused".into()));
        }
        Ok(found)
    }
}

impl Pods for Memory {
    async fn pods(&self) -> Result<Vec<Pod>, ApiError> {
        if *self.down.lock().expect("lock") || *self.no_pods.lock().expect("lock") {
            return Err(ApiError::Other("connection refused".into()));
        }
        Ok(self.pods.lock().expect("lock").clone())
    }
}

impl Events for Memory {
    async fn warn(&self, regarding: ObjectReference, reason: &'static str, note: String) -> Result<(), ApiError> {
        self.events
            .lock()
            .expect("lock")
            .push((regarding, format!("{reason}: {note}")));
        Ok(())
    }
}

/// A serving plugin and clients of it.
struct Served {
    rig: Rig,
    api: Memory,
    node: SharedNode,
    channel: Channel,
    reports: watch::Sender<Report>,
    _socket: Socket,
}

impl Served {
    async fn new() -> Self {
        let rig = Rig::new(false);
        let api = Memory::default();
        let node = SharedNode::new(rig.open());
        let path = rig.path("dra.sock");
        let (listener, socket) = Socket::bind(&path).expect("bound");
        let (reports, reported) = watch::channel(Report::default());
        let driver = Arc::new(service(&node, &api));
        tokio::spawn(serve_dra(
            listener,
            driver,
            Health::new(reported),
            std::future::pending(),
        ));
        let channel = connect(&path).await;
        Self {
            rig,
            api,
            node,
            channel,
            reports,
            _socket: socket,
        }
    }

    fn reporter(&self) -> Reporter {
        Reporter::new(Metrics::default(), node_object())
    }

    /// Observes the node, and creates the events that are due.
    async fn report(&self, reporter: &mut Reporter) {
        let observations = Observations::default();
        observe_once(&mut self.node.lock(), &observations);
        reporter.report(&self.node, &self.api, &observations).await;
        reporter.report_node(&self.node, &self.api).await;
    }

    fn client(&self) -> v1::dra_plugin_client::DraPluginClient<Channel> {
        v1::dra_plugin_client::DraPluginClient::new(self.channel.clone())
    }

    /// Puts a claim into the API server, and prepares it.
    async fn prepare_new(&self, claim: (ClaimId, ResourceClaim)) {
        let uid = claim.0.uid.clone();
        self.api.put(claim);
        assert_eq!(self.prepare(&[&uid]).await[&uid].error, "");
    }

    async fn prepare(&self, uids: &[&str]) -> BTreeMap<String, v1::NodePrepareResourceResponse> {
        let claims = uids.iter().map(|uid| wire(uid)).collect();
        let request = v1::NodePrepareResourcesRequest { claims };
        self.client()
            .node_prepare_resources(request)
            .await
            .expect("an answer")
            .into_inner()
            .claims
    }

    async fn unprepare(&self, uids: &[&str]) -> BTreeMap<String, v1::NodeUnprepareResourceResponse> {
        let claims = uids.iter().map(|uid| wire(uid)).collect();
        let request = v1::NodeUnprepareResourcesRequest { claims };
        self.client()
            .node_unprepare_resources(request)
            .await
            .expect("an answer")
            .into_inner()
            .claims
    }
}

/// Returns the same claim on GPU 1 instead of GPU 0.
fn on_gpu_1(claim: &ResourceClaim) -> ResourceClaim {
    let text = serde_json::to_string(claim).expect("JSON");
    serde_json::from_str(&text.replace("gpu-3f8a1c20", "gpu-3f8a1c21")).expect("a claim")
}

/// Returns a service that sees no processes.
fn service(node: &SharedNode, api: &Memory) -> Service<Memory, Containers> {
    service_beside(node, api, Containers::with(&[]))
}

fn service_beside(node: &SharedNode, api: &Memory, containers: Containers) -> Service<Memory, Containers> {
    let stopped = watch::channel(false).1;
    Service::new(node.clone(), api.clone(), containers, Metrics::default(), stopped)
}

async fn connect(path: &std::path::Path) -> Channel {
    let endpoint = Endpoint::from_shared(format!("unix://{}", path.display())).expect("an endpoint");
    endpoint.connect().await.expect("connected")
}

fn wire(uid: &str) -> v1::Claim {
    let ClaimId { namespace, name, uid } = id(uid);
    v1::Claim { namespace, uid, name }
}

#[tokio::test]
async fn a_hundred_claims_in_one_call_each_for_itself() {
    let served = Served::new().await;
    let uids: Vec<String> = (0..100).map(|n| format!("u{n}")).collect();
    for (n, uid) in uids.iter().enumerate() {
        let share = format!("s{n}");
        let (id, mut claim) = claim(uid, &[(share.as_str(), 1, 0)]);
        if n % 2 == 1 {
            claim = on_gpu_1(&claim);
        }
        // One in ten does not exist.
        if n % 10 != 9 {
            served.api.put((id, claim));
        }
    }
    let uids: Vec<&str> = uids.iter().map(String::as_str).collect();
    let first = served.prepare(&uids).await;
    assert_eq!(first.len(), 100);
    for (n, uid) in uids.iter().enumerate() {
        let answer = &first[*uid];
        if n % 10 == 9 {
            assert!(
                answer.error.contains("does not exist") && answer.error.contains(uid),
                "{}",
                answer.error
            );
            continue;
        }
        assert_eq!(answer.error, "");
        let device = &answer.devices[0];
        assert_eq!(device.request_names, ["gpu"]);
        assert_eq!(device.pool_name, "n1/vgpu");
        assert_eq!(device.cdi_device_ids, [format!("dra.vgpu/claim={uid}-s{n}")]);
        assert_eq!(device.share_id.as_deref(), Some(format!("s{n}").as_str()));
    }
    assert_eq!(served.prepare(&uids).await, first, "idempotent");
    let gone = served.unprepare(&uids).await;
    assert!(gone.len() == 100 && gone.values().all(|answer| answer.error.is_empty()));
    assert_eq!(served.rig.leftovers(), [""; 0]);
}

#[tokio::test]
async fn v1beta1_answers_the_same_without_share_ids() {
    let served = Served::new().await;
    served.api.put(claim("u1", &[("s1", 20, 25)]));
    let mut client = v1beta1::dra_plugin_client::DraPluginClient::new(served.channel.clone());
    let v1::Claim { namespace, uid, name } = wire("u1");
    let claims = vec![v1beta1::Claim { namespace, uid, name }];
    let request = v1beta1::NodePrepareResourcesRequest { claims: claims.clone() };
    let answer = client
        .node_prepare_resources(request)
        .await
        .expect("an answer")
        .into_inner();
    assert_eq!(answer.claims["u1"].devices[0].cdi_device_ids, ["dra.vgpu/claim=u1-s1"]);
    let request = v1beta1::NodeUnprepareResourcesRequest { claims };
    let answer = client
        .node_unprepare_resources(request)
        .await
        .expect("an answer")
        .into_inner();
    assert_eq!(answer.claims["u1"].error, "");
}

#[tokio::test]
async fn a_claim_that_was_created_again_is_refused() {
    let served = Served::new().await;
    let (mut id, claim) = claim("new", &[("s1", 20, 25)]);
    id.name = "claim-old".into();
    served.api.put((id, claim));
    let error = &served.prepare(&["old"]).await["old"].error;
    for part in ["d/claim-old", "uid old", "metadata.uid new", "delete the pod"] {
        assert!(error.contains(part), "{error}");
    }
}

#[tokio::test]
async fn unprepare_needs_no_api_server_and_no_entry() {
    let served = Served::new().await;
    served.prepare_new(claim("u1", &[("s1", 20, 25)])).await;
    *served.api.down.lock().expect("lock") = true;
    assert!(served.prepare(&["u1"]).await["u1"].error.contains("connection refused"));
    let gone = served.unprepare(&["u1", "never"]).await;
    assert_eq!((gone["u1"].error.as_str(), gone["never"].error.as_str()), ("", ""));
    assert!(served.unprepare(&["../x"]).await["../x"].error.contains("uid"));
}

#[tokio::test]
async fn a_prepare_that_its_unprepare_overtook_is_refused() {
    let served = Served::new().await;
    served.api.put(claim("u1", &[("s1", 20, 25)]));
    let gate = Arc::new(Notify::new());
    *served.api.slow.lock().expect("lock") = Some(gate.clone());
    let mut client = served.client();
    let late = tokio::spawn(async move {
        let request = v1::NodePrepareResourcesRequest {
            claims: vec![wire("u1")],
        };
        client
            .node_prepare_resources(request)
            .await
            .expect("an answer")
            .into_inner()
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(served.unprepare(&["u1"]).await["u1"].error, "");
    *served.api.slow.lock().expect("lock") = None;
    gate.notify_one();
    let answer = late.await.expect("finished");
    assert!(
        answer.claims["u1"].error.contains("was unprepared"),
        "{}",
        answer.claims["u1"].error
    );
    assert!(served.node.lock().claims().claims.is_empty());
    assert_eq!(served.prepare(&["u1"]).await["u1"].error, "", "the next one works");
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_another_instance_keeps_is_given_up_and_stops_nothing_else() {
    let rig = Rig::new(false);
    let api = Memory::default();
    api.put(claim("u1", &[("s1", 20, 25)]));
    let node = SharedNode::new(rig.open());
    let driver = Arc::new(service(&node, &api));
    let other = LockFile::open(&rig.config().lock).expect("opened");
    let taken = take(&other);
    let unprepares: Vec<_> = (0..20)
        .map(|n| {
            let (driver, id) = (driver.clone(), id(&format!("u{n}")));
            tokio::spawn(async move { driver.unprepare(vec![id]).await })
        })
        .collect();
    let prepare = {
        let driver = driver.clone();
        tokio::spawn(async move { driver.prepare(vec![id("u1")]).await })
    };
    tokio::time::sleep(LOCKED_WITHIN / 2).await;
    assert!(!prepare.is_finished() && !unprepares.iter().any(|call| call.is_finished()));
    crate::metrics::page(&Metrics::default().registry(crate::metrics::Sources::new(node.clone())));
    // All calls that wait give up at the same time, not one after the other.
    let patience = LOCKED_WITHIN / 2 + Duration::from_secs(1);
    let all = tokio::time::timeout(patience, async {
        let mut errors = vec![prepare.await.expect("no panic")["u1"].clone().expect_err("the lock")];
        for call in unprepares {
            let answers = call.await.expect("no panic").into_values();
            errors.extend(answers.map(|answer| answer.expect_err("the lock")));
        }
        errors
    });
    for error in all.await.expect("given up") {
        for part in [
            "ResourceClaim d/claim-u",
            "dra.vgpu/lock",
            "another instance",
            "kubelet retries",
        ] {
            assert!(error.contains(part), "{error}");
        }
    }
    assert_eq!(node.lock().not_unprepared().len(), 20, "their pods are told");
    drop(taken);
    assert!(driver.prepare(vec![id("u1")]).await["u1"].is_ok());
    assert_eq!(driver.unprepare(vec![id("u1")]).await["u1"], Ok(()));
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_hangs_is_told_before_kubelet_gives_up() {
    let rig = Rig::new(false);
    let api = Memory::default();
    *api.slow.lock().expect("lock") = Some(Arc::default());
    let driver = service(&SharedNode::new(rig.open()), &api);
    // More claims than are read at a time; all have one deadline.
    let ids: Vec<_> = (0..20).map(|n| id(&format!("u{n}"))).collect();
    let started = tokio::time::Instant::now();
    let answers = driver.prepare(ids).await;
    assert!(started.elapsed() < Duration::from_secs(30), "{:?}", started.elapsed());
    assert_eq!(answers.len(), 20);
    for answer in answers.values() {
        let error = answer.as_ref().expect_err("not read");
        assert!(
            error.starts_with("ResourceClaim d/claim-u") && error.contains("did not answer GET"),
            "{error}"
        );
    }
}

#[tokio::test]
async fn pods_without_glibc_are_told_once() {
    let served = Served::new().await;
    let (id, mut claim) = claim("u1", &[("s1", 20, 25)]);
    let holder = serde_json::json!([{"resource": "pods", "name": "p", "uid": "pod-uid"},
        {"resource": "holds", "apiGroup": "dra.vgpu", "name": "h", "uid": "x"}]);
    claim.status.as_mut().expect("a status").reserved_for = serde_json::from_value(holder).expect("holders");
    served.api.put((id.clone(), claim.clone()));
    served.prepare(&["u1"]).await;
    let report = || std::fs::write(served.rig.path("run/claims/u1/no-glibc"), "").expect("reported");
    let mut reporter = served.reporter();
    report();
    for _ in 0..2 {
        served.report(&mut reporter).await;
    }
    assert_eq!(served.api.events.lock().expect("lock").len(), 1);
    // A second pod uses the claim, and the hook reports its container too.
    let holders = serde_json::json!([{"resource": "pods", "name": "p", "uid": "pod-uid"},
        {"resource": "pods", "name": "p2", "uid": "pod-uid-2"}]);
    claim.status.as_mut().expect("a status").reserved_for = serde_json::from_value(holders).expect("holders");
    served.api.put((id, claim));
    report();
    for _ in 0..2 {
        served.report(&mut reporter).await;
    }
    {
        let events = served.api.events.lock().expect("lock");
        assert_eq!(events.len(), 2);
        assert_eq!(events[1].0.uid.as_deref(), Some("pod-uid-2"));
    }
    // The claim is deleted while a report is left: there are no pods to warn, so it is not read again.
    served.api.drop_claim("u1");
    report();
    served.report(&mut reporter).await;
    assert!(!served.rig.path("run/claims/u1/no-glibc").exists());
    assert!(!served.rig.path("run/claims/u1/no-glibc.taken").exists());
    let events = served.api.events.lock().expect("lock");
    assert_eq!(events.len(), 2);
    let (regarding, text) = &events[0];
    assert_eq!(
        (regarding.kind.as_deref(), regarding.uid.as_deref()),
        (Some("Pod"), Some("pod-uid"))
    );
    assert!(text.starts_with("NoGlibc: ") && text.contains("claim-u1"), "{text}");
}

#[tokio::test]
async fn pods_whose_container_did_not_start_are_told_what_each_hook_says_and_not_at_each_start() {
    let served = Served::new().await;
    served.api.put(held_by(claim("u1", &[("s1", 20, 25)]), &["p1", "p2"]));
    served.prepare(&["u1"]).await;
    let mut reporter = served.reporter();
    let hook = |hook: &str, container: &str| {
        let line = format!("{hook}: container {container}: /kubepods/{container}: no\n");
        let file = format!("run/claims/u1/not-started.{hook}");
        std::fs::write(served.rig.path(&file), line).expect("reported");
    };
    for container in ["c1", "c2"] {
        hook("vgpu-driver-limit", container);
        for _ in 0..2 {
            served.report(&mut reporter).await;
        }
    }
    // The pod never restarts: kubelet unprepares its claim before the reporter looks.
    hook("vgpu-cdi-hook", "c3");
    served.unprepare(&["u1"]).await;
    served.api.drop_claim("u1");
    for _ in 0..2 {
        served.report(&mut reporter).await;
    }
    let events = served.api.events.lock().expect("lock");
    let texts: BTreeSet<&str> = events.iter().map(|(_, text)| text.as_str()).collect();
    let expected = |hook: &str, container: &str| {
        format!(
            "ContainerNotStarted: a container of this pod, or of one that shares ResourceClaim claim-u1 with it, did not start: \
             {hook}: container {container}: /kubepods/{container}: no"
        )
    };
    let expected = [expected("vgpu-cdi-hook", "c3"), expected("vgpu-driver-limit", "c1")];
    assert_eq!(texts.into_iter().collect::<Vec<_>>(), expected);
    assert_eq!(events.len(), 4, "two pods");
}

/// Gives a claim these pods, as the resource claim controller does.
fn held_by((id, mut claim): (ClaimId, ResourceClaim), pods: &[&str]) -> (ClaimId, ResourceClaim) {
    let pods: Vec<_> = pods
        .iter()
        .map(|pod| serde_json::json!({"resource": "pods", "name": pod, "uid": format!("{pod}-uid")}))
        .collect();
    claim.status.as_mut().expect("a status").reserved_for = serde_json::from_value(pods.into()).expect("pods");
    (id, claim)
}

#[tokio::test]
async fn a_failed_unprepare_is_told_once_until_it_fails_again() {
    let served = Served::new().await;
    for uid in ["u1", "u2"] {
        served
            .api
            .put(held_by(claim(uid, &[(uid, 20, 25)]), &[&format!("pod-{uid}")]));
    }
    served.prepare(&["u1", "u2"]).await;
    // As on a read-only or broken folder of CDI files: the file cannot be removed.
    let files = std::fs::read_dir(served.rig.path("cdi")).expect("CDI files");
    let file = files
        .map(|entry| entry.expect("an entry").path())
        .find(|path| path.to_string_lossy().contains("u1"))
        .expect("a CDI file");
    let mut reporter = served.reporter();
    for round in 1..=2 {
        if file.is_file() {
            std::fs::remove_file(&file).expect("removed");
        }
        std::fs::create_dir(&file).expect("in the way");
        let answers = served.unprepare(&["u1", "u2"]).await;
        assert_ne!(answers["u1"].error, "");
        for _ in 0..2 {
            served.report(&mut reporter).await;
        }
        let events = served.api.events.lock().expect("lock").clone();
        assert_eq!(events.len(), round, "{events:?}");
        let (regarding, text) = events.last().expect("an event");
        assert_eq!(regarding.uid.as_deref(), Some("pod-u1-uid"));
        assert!(
            text.starts_with("UnprepareFailed: ") && text.contains("claim-u1"),
            "{text}"
        );
        assert!(text.contains(&file.display().to_string()), "{text}");
        // Repaired: kubelet's retry succeeds, and a later failure is a new one.
        std::fs::remove_dir(&file).expect("removed");
        assert_eq!(served.unprepare(&["u1"]).await["u1"].error, "");
        served.report(&mut reporter).await;
        served.prepare(&["u1"]).await;
    }
}

#[tokio::test]
async fn every_pod_of_a_claim_is_told_who_can_mend_its_ledger() {
    let served = Served::new().await;
    served.api.put(held_by(claim("u1", &[("s1", 20, 25)]), &["one", "two"]));
    served.api.put(held_by(claim("u2", &[("s2", 20, 25)]), &["three"]));
    served.prepare(&["u1", "u2"]).await;
    let mut reporter = served.reporter();
    served.report(&mut reporter).await;
    assert_eq!(served.api.events.lock().expect("lock").len(), 0);
    std::fs::write(served.rig.path("run/claims/u1/s1/ledger"), "damage").expect("damaged");
    for _ in 0..2 {
        served.report(&mut reporter).await;
    }
    let events = served.api.events.lock().expect("lock").clone();
    let pods: Vec<_> = events
        .iter()
        .map(|(pod, _)| pod.uid.as_deref().unwrap_or_default())
        .collect();
    assert_eq!(pods, ["one-uid", "two-uid"]);
    for (_, text) in &events {
        for words in [
            "LedgerDamaged: ",
            "claim-u1",
            "share s1",
            "to delete the one that damaged it is not enough",
            "(one, two)",
        ] {
            assert!(text.contains(words), "{words}: {text}");
        }
    }
    // The next release does not know what the ledger of an older library has to look like.
    release(&served.rig.path("image"), "two");
    let next = Served {
        node: SharedNode::new(served.rig.open()),
        ..served
    };
    next.report(&mut next.reporter()).await;
    let served = next;
    assert_eq!(served.api.events.lock().expect("lock").len(), 2);
}

#[tokio::test]
async fn the_pods_of_a_share_that_breaks_its_gpu_time_are_told_once_each_time() {
    let served = Served::new().await;
    served.api.put(held_by(claim("u1", &[("s1", 20, 25)]), &["one", "two"]));
    served.api.put(held_by(claim("u2", &[("s2", 20, 25)]), &["three"]));
    served.prepare(&["u1", "u2"]).await;
    let (observations, mut reporter) = (Observations::default(), served.reporter());
    let (holds, breaks, unknown) = (Some(true), Some(false), None);
    // The verdict on the share of u1, and how many events there are then.
    for (enforced, expected) in [
        (holds, 0),
        (breaks, 2),
        (breaks, 2),
        (unknown, 2),
        (breaks, 2),
        (holds, 2),
        (breaks, 4),
    ] {
        let verdict = |enforced| ComputeVerdict {
            enforced,
            ..ComputeVerdict::default()
        };
        let key = |uid: &str, share: &str| (uid.to_owned(), share.to_owned());
        observations.lock().compute = BTreeMap::from([
            (key("u1", "s1"), verdict(enforced)),
            (key("u2", "s2"), verdict(holds)),
            (key("gone", "s"), verdict(breaks)),
        ]);
        reporter.report(&served.node, &served.api, &observations).await;
        let events = served.api.events.lock().expect("lock").clone();
        assert_eq!(events.len(), expected, "{enforced:?}: {events:?}");
    }
    let events = served.api.events.lock().expect("lock").clone();
    let pods: Vec<_> = events
        .iter()
        .map(|(pod, _)| pod.uid.as_deref().unwrap_or_default())
        .collect();
    assert_eq!(pods, ["one-uid", "two-uid", "one-uid", "two-uid"]);
    for words in [
        "ComputeLimitBroken: share s1 with 25 cores",
        "claim-u1",
        "(one, two)",
        "nvidia-smi pmon",
    ] {
        assert!(events[0].1.contains(words), "{words}: {}", events[0].1);
    }
}

/// The node's object, for events.
fn node_object() -> ObjectReference {
    ObjectReference {
        kind: Some("Node".into()),
        name: Some("n1".into()),
        ..ObjectReference::default()
    }
}

/// The containers that the node has, according to the test.
#[derive(Clone)]
struct Containers(Arc<Mutex<Result<ShareKeys, String>>>);

impl Containers {
    fn with(uids: &[&str]) -> Self {
        Self(Arc::new(Mutex::new(Self::of(uids))))
    }

    /// Makes one container for each of these claims, each with a share of the claim's name.
    fn of(uids: &[&str]) -> Result<ShareKeys, String> {
        Ok(uids.iter().map(|uid| ((*uid).into(), (*uid).into())).collect())
    }

    fn set(&self, living: Result<ShareKeys, String>) {
        *self.0.lock().expect("lock") = living;
    }
}

impl MountUsers for Containers {
    fn living(&self, shares: &[ShareMount]) -> Result<ShareKeys, String> {
        let mut living = self.0.lock().expect("lock").clone()?;
        living.retain(|key| shares.iter().any(|share| share.key == *key));
        Ok(living)
    }

    /// Process 4711 of a pod has them all.
    fn keepers(&self, shares: &[ShareMount]) -> Result<BTreeMap<ShareKey, Keeper>, String> {
        let keeper = Keeper {
            pid: 4711,
            name: "python".into(),
            pod: Some("old-uid".into()),
        };
        let living = self.living(shares)?;
        Ok(living.into_iter().map(|share| (share, keeper.clone())).collect())
    }
}

#[tokio::test]
async fn a_claim_that_ended_without_unprepare_frees_its_share_once_its_container_is_gone() {
    let served = Served::new().await;
    let containers = Containers::with(&["u1"]);
    let (mut clean_up, start) = (CleanUp::new(containers.clone(), node_object()), Instant::now());
    let mut round = async |after: Duration| {
        clean_up
            .run(&served.node, &served.api, &Metrics::default(), start + after)
            .await;
        let asked = std::mem::take(&mut *served.api.asked.lock().expect("lock"));
        let node = served.node.lock();
        (asked, node.claims().claims.keys().cloned().collect::<Vec<_>>())
    };
    for uid in ["u1", "u2"] {
        served.prepare_new(claim(uid, &[(uid, 20, 25)])).await;
    }
    served.api.asked.lock().expect("lock").clear();
    served.api.drop_claim("u1");
    let names = |uids: &[&str]| uids.iter().map(|uid| format!("claim-{uid}")).collect::<Vec<_>>();
    let both = vec!["u1".to_owned(), "u2".into()];
    // Its container lives, so it stays.
    for after in [Duration::ZERO, 10 * STALE_AFTER] {
        assert_eq!(round(after).await, (names(&["u2", "u1"]), both.clone()));
    }
    // It is unknown which containers live.
    containers.set(Err("cannot be read".into()));
    assert_eq!(round(20 * STALE_AFTER).await, (Vec::new(), both.clone()));
    containers.set(Containers::of(&["u2"]));
    assert_eq!(
        round(30 * STALE_AFTER).await,
        (names(&["u1", "u2"]), both.clone()),
        "gone, and for how long?"
    );
    // A container that starts meanwhile restarts the wait.
    containers.set(Containers::of(&["u1", "u2"]));
    assert_eq!(round(31 * STALE_AFTER).await.1, both);
    containers.set(Containers::of(&["u2"]));
    assert_eq!(round(32 * STALE_AFTER).await.1, both);
    assert_eq!(round(33 * STALE_AFTER).await.1, ["u2"]);
    // The claim exists, but the scheduler allocated it on another node after kubelet lost its state.
    let (id, mut moved) = claim("u2", &[("u2", 20, 25)]);
    let status = moved.status.as_mut().and_then(|status| status.allocation.as_mut());
    let devices = status.and_then(|allocation| allocation.devices.as_mut());
    for result in devices.and_then(|devices| devices.results.as_mut()).expect("results") {
        result.pool = "n2/vgpu".into();
    }
    served.api.put((id, moved));
    containers.set(Containers::of(&[]));
    assert_eq!(round(40 * STALE_AFTER).await.1, ["u2"]);
    assert_eq!(round(41 * STALE_AFTER).await.1, [""; 0]);
}

#[tokio::test]
async fn claims_of_monitors_are_asked_about_rarely_and_go_when_they_are_gone() {
    let served = Served::new().await;
    let (id, monitor) = claim("u1", &[]);
    let mut monitor = serde_json::to_value(monitor).expect("JSON");
    monitor["status"]["allocation"]["devices"]["results"] = serde_json::json!([{"request": "gpu", "driver": "dra.vgpu",
        "pool": "n1/vgpu-monitor", "device": "gpu-3f8a1c20-monitor", "adminAccess": true}]);
    served.api.put((id, serde_json::from_value(monitor).expect("a claim")));
    assert_eq!(served.prepare(&["u1"]).await["u1"].error, "");
    let (mut clean_up, start) = (CleanUp::new(Containers::with(&[]), node_object()), Instant::now());
    let mut rounds = async |count: u32| {
        served.api.asked.lock().expect("lock").clear();
        for round in 0..count {
            let now = start + round * STALE_AFTER;
            clean_up.run(&served.node, &served.api, &Metrics::default(), now).await;
        }
        served.api.asked.lock().expect("lock").len()
    };
    assert_eq!(rounds(2 * MONITORS_EVERY).await, 2);
    served.api.drop_claim("u1");
    assert_eq!(rounds(MONITORS_EVERY).await, 2, "once more, to see that it stays gone");
    assert!(served.node.lock().claims().claims.is_empty());
}

#[tokio::test]
async fn a_claim_that_was_rebuilt_from_limits_files_gets_its_name_or_goes_if_no_pod_uses_it() {
    let served = Served::new().await;
    for uid in ["u1", "u2"] {
        served.prepare_new(claim(uid, &[(uid, 20, 25)])).await;
        std::fs::write(served.rig.record(uid), "garbage").expect("damaged");
    }
    let node = SharedNode::new(served.rig.open());
    let names = || -> Vec<(String, String)> {
        let node = node.lock();
        let all = node.claims().claims.iter();
        all.map(|(uid, entry)| (uid.clone(), entry.name.clone())).collect()
    };
    let both = |first: &str| vec![("u1".to_owned(), first.to_owned()), ("u2".into(), String::new())];
    assert_eq!(names(), both(""));
    // u2 still exists, and a pod names it, but it is not allocated any more.
    let (mut id, mut elsewhere) = claim("u2", &[("u2", 20, 25)]);
    id.name = "elsewhere".into();
    elsewhere.status = None;
    served.api.put((id, elsewhere));
    *served.api.pods.lock().expect("lock") = vec![Pod {
        namespace: "d".into(),
        claims: Some(vec!["claim-u1".into(), "not-made-yet".into(), "elsewhere".into()]),
        ..Pod::default()
    }];
    let containers = Containers::with(&["u2"]);
    let (mut clean_up, start) = (CleanUp::new(containers.clone(), node_object()), Instant::now());
    let mut round = async |after: u32| {
        let now = start + after * STALE_AFTER;
        clean_up.run(&node, &served.api, &Metrics::default(), now).await;
    };
    *served.api.down.lock().expect("lock") = true;
    for after in 0..3 {
        round(after).await;
    }
    assert_eq!(names(), both(""), "nothing is known");
    *served.api.down.lock().expect("lock") = false;
    for after in 3..6 {
        round(after).await;
    }
    assert_eq!(names(), both("claim-u1"), "a container has u2's share");
    containers.set(Containers::of(&[]));
    // By now the claims are read less often, and two rounds must find the claim gone.
    for after in 6..11 {
        round(after).await;
        assert_eq!(names(), both("claim-u1"), "after {after}");
    }
    round(11).await;
    assert_eq!(names(), both("claim-u1")[..1]);
    let again = served.rig.open();
    let kept = &again.claims().claims["u1"];
    let share = &kept.shares[0].share;
    assert_eq!(
        (kept.name.as_str(), share.request.as_str(), share.device.as_str()),
        ("claim-u1", "gpu", "gpu-3f8a1c20"),
        "without a device, its status would be emptied"
    );
}

/// A container that starts between the last scan of the processes and the Unprepare.
#[tokio::test]
async fn a_container_that_starts_at_the_last_moment_keeps_its_share() {
    #[derive(Clone)]
    struct Late(Arc<Mutex<u32>>);
    impl MountUsers for Late {
        fn living(&self, _: &[ShareMount]) -> Result<ShareKeys, String> {
            let mut looks = self.0.lock().expect("lock");
            *looks += 1;
            Containers::of(if *looks < 3 { &[] } else { &["u1"] })
        }

        fn keepers(&self, _: &[ShareMount]) -> Result<BTreeMap<ShareKey, Keeper>, String> {
            Err("nobody asks".into())
        }
    }
    let served = Served::new().await;
    served.prepare_new(claim("u1", &[("u1", 20, 25)])).await;
    served.api.drop_claim("u1");
    let (mut clean_up, start) = (CleanUp::new(Late(Arc::default()), node_object()), Instant::now());
    for after in [Duration::ZERO, STALE_AFTER] {
        let now = start + after;
        clean_up.run(&served.node, &served.api, &Metrics::default(), now).await;
    }
    assert!(served.node.lock().claims().claims.contains_key("u1"));
}

#[tokio::test]
async fn metrics_tell_what_shares_hold_and_which_ledgers_are_damaged() {
    let served = Served::new().await;
    for uid in ["u1", "u2"] {
        served.prepare_new(claim(uid, &[(uid, 20, 25)])).await;
    }
    let path = |uid: &str| served.rig.path(&format!("run/claims/{uid}/{uid}/ledger"));
    let mut ledger = std::fs::read(path("u1")).expect("a ledger");
    ledger[vgpu_abi::ledger::CHARGED_AT..][..8].copy_from_slice(&4096u64.to_le_bytes());
    std::fs::write(path("u1"), ledger).expect("charged");
    std::fs::write(path("u2"), vec![0xff; 1 << 20]).expect("damaged");
    let registry = Metrics::default().registry(crate::metrics::Sources::new(served.node.clone()));
    let text = crate::metrics::page(&registry);
    let labels = |uid: &str| {
        format!(
            "{{node=\"n1\",namespace=\"d\",claim=\"claim-{uid}\",share=\"{uid}\",gpu=\"{}\",dra_claim_name=\"claim-{uid}\",\
             dra_claim_namespace=\"d\",dra_device_name=\"gpu-3f8a1c20\",dra_pool_name=\"n1/vgpu\"}}",
            crate::dra::share::tests::GPU
        )
    };
    for line in [
        format!("vgpu_share_memory_limit_bytes{} 21474836480", labels("u1")),
        format!("vgpu_share_memory_used_bytes{} 4096", labels("u1")),
        format!("vgpu_share_ledger_damaged{} 0", labels("u1")),
        format!("vgpu_share_ledger_damaged{} 1", labels("u2")),
        "vgpu_prepare_seconds_count{node=\"n1\"} 0".into(),
        "vgpu_checkpoint_damaged_total{node=\"n1\"} 0".into(),
    ] {
        assert!(text.lines().any(|found| found == line), "{line} not in\n{text}");
    }
    assert!(!text.contains(&format!("vgpu_share_memory_used_bytes{}", labels("u2"))));
}

#[tokio::test]
async fn health_is_sent_at_once_and_on_change_in_both_versions() {
    let served = Served::new().await;
    let report = |why: Option<Unavailable>, seen| {
        let unavailable = why.map(|why| (gpu(0).uuid, why)).into_iter().collect();
        let inventory = Inventory::with_unavailable(vec![gpu(0)], unavailable);
        Report::new(
            vgpu_api::Pools::of("n1"),
            &inventory,
            UNIX_EPOCH + Duration::from_secs(seen),
        )
    };
    served.reports.send_replace(report(None, 7));
    let mut client = health::v1::dra_resource_health_client::DraResourceHealthClient::new(served.channel.clone());
    let request = health::v1::NodeWatchResourcesRequest {};
    let mut stream = client
        .node_watch_resources(request)
        .await
        .expect("a stream")
        .into_inner();
    let first = stream.message().await.expect("a message").expect("not the end");
    assert_eq!(first.devices.len(), 2);
    let seen = |message: &health::v1::NodeWatchResourcesResponse| -> Vec<_> {
        message.devices.iter().map(|device| device.last_updated_time).collect()
    };
    assert_eq!(
        seen(&first),
        [7, 7],
        "when the driver was asked, not when the report was sent"
    );
    assert!(
        first
            .devices
            .iter()
            .all(|d| d.health == i32::from(health::v1::HealthStatus::Healthy))
    );
    served
        .reports
        .send_replace(report(Some(Unavailable::Lost(String::new())), 9));
    let second = stream.message().await.expect("a message").expect("not the end");
    assert!(
        second
            .devices
            .iter()
            .all(|d| d.health == i32::from(health::v1::HealthStatus::Unhealthy))
    );
    assert!(second.devices[0].message.contains("not in the driver's list"));
    assert_eq!(seen(&second), [9, 9]);
    let mut old = health::v1alpha1::dra_resource_health_client::DraResourceHealthClient::new(served.channel.clone());
    let request = health::v1alpha1::NodeWatchResourcesRequest {};
    let mut stream = old.node_watch_resources(request).await.expect("a stream").into_inner();
    assert_eq!(
        stream
            .message()
            .await
            .expect("a message")
            .expect("not the end")
            .devices
            .len(),
        2
    );
}

#[tokio::test]
async fn registration_says_who_and_hears_the_verdict() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("reg.sock");
    let (listener, _socket) = Socket::bind(&path).expect("bound");
    let readiness = Readiness::new(&[registration::PART]);
    let registrar = Registrar::new("/x/dra.sock".into(), readiness.clone());
    let reached = registrar.reached.subscribe();
    tokio::spawn(serve_registration(listener, registrar, std::future::pending()));
    let mut client = RegistrationClient::new(connect(&path).await);
    let info = client.get_info(InfoRequest {}).await.expect("an answer").into_inner();
    assert_eq!((info.r#type.as_str(), info.name.as_str()), ("DRAPlugin", "dra.vgpu"));
    assert_eq!(info.endpoint, "/x/dra.sock");
    assert_eq!(info.supported_versions[..2], ["v1.DRAPlugin", "v1beta1.DRAPlugin"]);
    assert_eq!(
        info.supported_versions[2..],
        ["v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth"]
    );
    for (plugin_registered, error) in [(false, "too old"), (true, "")] {
        let status = RegistrationStatus {
            plugin_registered,
            error: error.into(),
        };
        client.notify_registration_status(status).await.expect("heard");
        assert_eq!(
            (readiness.status().0, *reached.borrow()),
            (plugin_registered, plugin_registered)
        );
        assert!(readiness.status().1.contains(error));
    }
}
