//! The VgpuNode of a node with records on real folders, and an API server in memory.

use super::*;
use crate::api::Cluster;
use crate::dra::node::tests::{Rig, claim};
use crate::dra::node::{Node, SharedNode};
use crate::enforcement::tests::observe_once;
use crate::publish::inventory::tests::{gpu, instance};
use crate::publish::inventory::{Fault, Inventory, Reason, Unavailable};
use crate::ready::Readiness;
use kube::client::Body;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use vgpu_abi::arbitration::{PAGE, SlotPage};
use vgpu_abi::ledger;

const GIB: u64 = 1 << 30;

/// One VgpuNode, or the error that is answered.
#[derive(Clone, Default)]
struct FakeApi(Arc<Mutex<Stored>>);

#[derive(Default)]
struct Stored {
    object: Option<VgpuNode>,
    error: Option<Error>,
    reads: u32,
    writes: u32,
}

impl NodeObjects for FakeApi {
    async fn vgpu_node(&self) -> Result<Option<VgpuNode>, Error> {
        let mut stored = self.0.lock().expect("lock");
        stored.reads += 1;
        match &stored.error {
            // A kind that is missing is no error of a GET.
            Some(Error::NotFound(_)) | None => Ok(stored.object.clone()),
            Some(error) => Err(error.clone()),
        }
    }

    async fn apply_vgpu_node(&self, object: &VgpuNode) -> Result<(), Error> {
        let mut stored = self.0.lock().expect("lock");
        stored.writes += 1;
        if let Some(error) = &stored.error {
            return Err(error.clone());
        }
        stored.object = Some(object.clone());
        Ok(())
    }
}

/// Claims u1 and u2 with 20 GiB each on GPU 0, the first with 25 cores.
struct Scene {
    rig: Rig,
    sources: Sources,
    writer: NodeWriter,
    api: FakeApi,
    start: Instant,
}

impl Scene {
    fn new() -> Self {
        let rig = Rig::new(false);
        let mut node = rig.open();
        let claims = [claim("u1", &[("s1", 20, 25)]), claim("u2", &[("s2", 20, 0)])];
        assert!(node.prepare(&node.locked(), &claims).0.iter().all(Result::is_ok));
        Self::of(rig, node, FakeApi::default())
    }

    fn of(rig: Rig, node: Node, api: FakeApi) -> Self {
        let sources = Sources {
            readiness: Readiness::new(&["gpus"]),
            ..Sources::new(SharedNode::new(node))
        };
        sources.readiness.set("gpus", Ok(()));
        let start = Instant::now();
        Self {
            writer: NodeWriter::new(sources.clone(), node_object(), start),
            sources,
            rig,
            api,
            start,
        }
    }

    /// Another instance on the same folders.
    fn restart(self) -> Self {
        let node = self.rig.open();
        Self::of(self.rig, node, self.api)
    }

    fn turn(&self) {
        observe_once(&mut self.sources.node.lock(), &self.sources.observations);
    }

    /// A round of the reporter in each second of this time, and now and then a turn.
    async fn rounds(&mut self, seconds: std::ops::Range<u64>) {
        self.turn();
        for second in seconds {
            let now = self.start + Duration::from_secs(second);
            self.writer.write(&self.api, now).await;
            if second.is_multiple_of(30) {
                self.turn();
            }
        }
    }

    fn reads(&self) -> u32 {
        self.api.0.lock().expect("lock").reads
    }

    fn writes(&self) -> u32 {
        self.api.0.lock().expect("lock").writes
    }

    fn fail(&self, error: Option<Error>) {
        self.api.0.lock().expect("lock").error = error;
    }

    fn object(&self) -> VgpuNode {
        self.api.0.lock().expect("lock").object.clone().expect("written")
    }

    fn status(&self) -> VgpuNodeStatus {
        self.object().status.expect("a status")
    }

    fn ledger(&self, share: &str, words: &[(usize, u64)]) {
        let uid = share.replace('s', "u");
        let path = self.rig.path(&format!("run/claims/{uid}/{share}/ledger"));
        let mut bytes = std::fs::read(&path).expect("a ledger");
        for (at, value) in words {
            bytes[*at..*at + 8].copy_from_slice(&value.to_le_bytes());
        }
        std::fs::write(&path, bytes).expect("written");
    }
}

fn node_object() -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".into()),
        kind: Some("Node".into()),
        name: Some("n1".into()),
        uid: Some("n-uid".into()),
        ..ObjectReference::default()
    }
}

#[tokio::test]
async fn the_object_has_what_is_held_and_used_and_belongs_to_the_node() {
    let mut scene = Scene::new();
    scene.ledger("s1", &[(ledger::PEAK_AT, 3 * GIB), (ledger::refusal::BY_LIMIT_AT, 7)]);
    scene.rounds(0..2).await;
    let object = scene.object();
    let owners = serde_json::to_value(&object.metadata.owner_references).expect("json");
    assert_eq!(
        owners,
        json!([{"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "n-uid"}])
    );
    let status = scene.status();
    assert_eq!((status.gpu_count, status.share_count), (Some(2), 2));
    assert_eq!((&*status.memory.held, &*status.memory.used), ("40Gi", "0"));
    assert_eq!(
        (&*status.largest_free, &*status.model),
        ("80Gi", "NVIDIA H100 80GB HBM3")
    );
    assert_eq!(status.without_claim, None, "not known yet");
    let [first, second] = &status.gpus[..] else {
        panic!("{:?}", status.gpus)
    };
    assert_eq!((&*first.memory_held, &*first.largest_free), ("40Gi", "40Gi"));
    assert_eq!(
        (first.cores_held, first.shares, first.memory_used.as_deref()),
        (25, 2, Some("0"))
    );
    assert_eq!((second.shares, &*second.largest_free), (0, "80Gi"));
    let share = &status.shares[0];
    assert_eq!((&*share.namespace, &*share.claim), ("d", "claim-u1"));
    assert_eq!(
        (&*share.uid, &*share.share, &*share.device),
        ("u1", "s1", "gpu-3f8a1c20")
    );
    let usage = &share.usage;
    assert_eq!(
        (&*usage.memory, &*usage.memory_used, &*usage.memory_peak),
        ("20Gi", "0", "3Gi")
    );
    assert_eq!((usage.cores, usage.processes, usage.refusals), (25, Some(0), Some(7)));
    assert_eq!(
        (usage.gpu_time_percent, usage.gpu_time_mean_percent),
        (None, None),
        "no minute has passed"
    );
    assert!(usage.since.ends_with('Z') && status.as_of >= usage.since, "{usage:?}");
    let kinds: Vec<&str> = status.conditions.iter().map(|of| of.kind.as_str()).collect();
    assert_eq!(kinds, ["Ready", "DriverFound", "HostMemoryReserved", "LimitsEnforced"]);
    // The driver lists no process although the share has memory: what the GPU's processes use is not known.
    scene.ledger("s1", &[(ledger::CHARGED_AT, GIB)]);
    scene.rounds(60..62).await;
    let status = scene.status();
    assert_eq!(&*status.shares[0].usage.memory_used, "1Gi");
    let used: Vec<_> = status.gpus.iter().map(|gpu| gpu.memory_used.as_deref()).collect();
    assert_eq!(used, [None, Some("0")]);
    // A figure that is not known is absent, not 0.
    scene.ledger("s1", &[(0, u64::MAX)]);
    scene.rounds(62..182).await;
    let json = serde_json::to_value(&scene.status().shares[0]).expect("json");
    for field in ["memoryUsed", "memoryPeak", "processes", "refusals", "withoutClaim"] {
        assert_eq!(json[field], Value::Null, "{json}");
    }
}

/// Nobody can have a share of it, so it does not count for the node, and is not full either.
#[tokio::test]
async fn a_free_instance_is_free_as_a_whole() {
    let mut scene = Scene::new();
    let free = instance(1, "MIG-aaaabbbb-1111-5222-8333-444455556666");
    let inventory = Inventory::new(vec![gpu(0), free.clone()]);
    scene.sources.node.set_inventory(Ok(inventory));
    scene.rounds(0..60).await;
    let status = scene.status();
    let of_device: BTreeMap<&str, &str> = status.gpus.iter().map(|gpu| (&*gpu.uuid, &*gpu.largest_free)).collect();
    assert_eq!(of_device[&*free.uuid], "40448Mi");
    assert_eq!((of_device[&*gpu(0).uuid], &*status.largest_free), ("40Gi", "40Gi"));
    scene.sources.node.set_inventory(Ok(Inventory::new(vec![free])));
    scene.rounds(60..120).await;
    assert_eq!(scene.status().largest_free, "0", "no share fits on the node");
}

#[tokio::test]
async fn a_gpu_that_takes_no_share_has_no_largest_one_and_says_why() {
    let mut scene = Scene::new();
    let lost = [(gpu(1).uuid, Unavailable::Lost(String::new()))];
    let fault = |blocks| Fault {
        reason: Reason::Xid,
        value: "79".into(),
        blocks,
    };
    let mut found = Vec::new();
    for (round, blocks) in [(0, false), (1, true)] {
        let inventory = Inventory::with_unavailable(vec![gpu(0), gpu(1)], lost.clone().into());
        let faults = [(gpu(0).uuid, vec![fault(blocks)])].into();
        scene.sources.node.set_inventory(Ok(inventory.with_faults(&faults)));
        scene.rounds(round * 60..round * 60 + 60).await;
        let of = |gpu: &vgpu_api::usage::NodeGpu| (gpu.problem.clone(), gpu.largest_free.clone());
        found.push((
            scene.status().gpus.iter().map(of).collect::<Vec<_>>(),
            scene.status().largest_free,
        ));
    }
    let lost = (Some("lost".to_owned()), "0".to_owned());
    assert_eq!(found[0], (vec![(None, "40Gi".into()), lost.clone()], "40Gi".into()));
    assert_eq!(found[1], (vec![(Some("xid".into()), "0".into()), lost], "0".into()));
    scene.sources.node.set_inventory(Err("NVML hangs".into()));
    scene.rounds(120..180).await;
    let status = scene.status();
    assert_eq!(
        (status.gpu_count, status.largest_free.as_str()),
        (None, ""),
        "not known"
    );
    assert_eq!(status.memory.held, "40Gi");
}

#[tokio::test]
async fn it_is_written_once_a_minute_and_first_when_everything_was_read_and_is_ready() {
    let mut scene = Scene::new();
    scene.sources.readiness.set("gpus", Err("waiting".into()));
    scene.writer.write(&scene.api, scene.start).await;
    assert_eq!(scene.reads(), 1);
    assert_eq!(scene.writes(), 0, "no turn yet");
    scene.rounds(1..20).await;
    assert_eq!(scene.writes(), 0, "a part is not ready yet");
    scene.sources.readiness.set("gpus", Ok(()));
    scene.rounds(20..21).await;
    assert_eq!(scene.writes(), 1);
    // The second one comes at this node's second of the minute.
    scene.rounds(21..82).await;
    let before = scene.writes();
    assert!((2..=3).contains(&before), "{before}");
    scene.rounds(82..682).await;
    assert_eq!(scene.writes() - before, 10);
    // A part that fails for longer is reported.
    let mut scene = Scene::new();
    scene.sources.readiness.set("gpus", Err("NVML hangs".into()));
    scene.rounds(0..31).await;
    let ready = scene.status().conditions[0].clone();
    assert_eq!((&*ready.status, &*ready.reason), ("False", "GpusFail"));
}

#[tokio::test]
async fn a_node_without_a_driver_has_no_object_unless_it_had_one() {
    let mut scene = Scene::new();
    scene.sources.readiness.idle("gpus", "no libcuda".into());
    scene.rounds(0..120).await;
    assert_eq!(scene.writes(), 0);
    scene.sources.readiness.set("gpus", Ok(()));
    scene.rounds(120..122).await;
    assert_eq!(scene.writes(), 1);
    let mut scene = scene.restart();
    scene.sources.readiness.idle("gpus", "no libcuda".into());
    scene.rounds(0..1).await;
    scene.rounds(1..2).await;
    assert_eq!(scene.status().conditions[1].reason, "NoDriver");
}

#[test]
fn a_thousand_nodes_are_spread_over_the_minute() {
    let mut seconds = BTreeMap::<u64, u32>::new();
    for number in 0..1000 {
        *seconds.entry(phase(&format!("node-{number}")).as_secs()).or_default() += 1;
    }
    assert_eq!(seconds.len(), 60, "every second of the minute");
    // 17 on average; hashes are not even.
    assert!(seconds.values().all(|count| *count < 40), "{seconds:?}");
}

#[tokio::test]
async fn an_api_server_that_fails_is_asked_less_and_less_and_logged_once_for_each_kind() {
    for error in [
        Error::NotFound("the server could not find the requested resource".into()),
        Error::Other("forbidden (403)".into()),
        Error::Invalid("status.gpus (422)".into()),
    ] {
        let mut scene = Scene::new();
        scene.rounds(0..2).await;
        scene.fail(Some(error.clone()));
        scene.rounds(2..62).await;
        let logged = scene.writer.logged;
        assert_eq!((scene.writes(), logged), (2, Some(discriminant(&error))));
        // 1, 2, 4, 5 and 5 minutes later.
        scene.rounds(62..62 + 60 * 17).await;
        assert_eq!((scene.writes(), scene.writer.logged), (7, logged), "{error}");
        scene.fail(None);
        scene.rounds(1082..1382).await;
        assert_eq!((scene.writes(), scene.writer.logged), (8, None));
        scene.rounds(1382..1502).await;
        assert!(scene.writes() >= 9, "each minute again");
    }
}

#[tokio::test]
async fn nothing_is_written_before_the_object_could_be_read() {
    let mut scene = Scene::new();
    scene.fail(Some(Error::Other("down".into())));
    scene.rounds(0..60).await;
    assert_eq!(scene.writes(), 0);
    scene.fail(None);
    scene.rounds(60..240).await;
    assert!(scene.writes() > 0);
}

#[tokio::test]
async fn a_restart_keeps_times_peaks_and_means_and_whose_claim_is_gone() {
    let mut scene = Scene::new();
    scene.rounds(0..2).await;
    let mut former = scene.object();
    let status = former.status.as_mut().expect("a status");
    let ago = |minutes: u64| super::super::node_status::time(SystemTime::now() - Duration::from_secs(60 * minutes));
    status.as_of = ago(1);
    status.conditions[0].last_transition_time = "2020-01-01T00:00:00Z".into();
    let usage = &mut status.shares[0].usage;
    (usage.since, usage.memory_mean) = (ago(4), "5Gi".into());
    usage.gpu_time_peak_percent = Some(90);
    status.shares[1].without_claim = true;
    status.shares[1].usage.since = "never".into();
    scene.api.0.lock().expect("lock").object = Some(former.clone());
    // The page still has all of its GPU time: one minute of four. More than the machine's uptime would be read as damage.
    let at = std::mem::offset_of!(SlotPage, counters);
    let mut page = vec![0; PAGE];
    page[at..at + 8].copy_from_slice(&(60 * 1_000_000_000_u64).to_le_bytes());
    let slot = scene.rig.path("run/gpus").join(&gpu(0).uuid).join("00");
    std::fs::write(slot, page).expect("written");
    let mut scene = scene.restart();
    scene.rounds(0..1).await;
    scene.rounds(1..2).await;
    let status = scene.status();
    let [first, second] = &status.shares[..] else {
        panic!("{:?}", status.shares)
    };
    assert_eq!(status.conditions[0].last_transition_time, "2020-01-01T00:00:00Z");
    let before = former.status.expect("a status");
    assert_eq!(first.usage.since, before.shares[0].usage.since);
    assert!(
        // The machine may be busy.
        ["5Gi", "5119Mi", "5118Mi", "5117Mi"].contains(&&*first.usage.memory_mean),
        "{:?}",
        first.usage
    );
    assert_eq!(
        (first.usage.gpu_time_peak_percent, first.usage.gpu_time_mean_percent),
        (Some(90), Some(25))
    );
    assert_eq!(
        (&*second.usage.since, &*second.usage.memory_mean),
        ("", ""),
        "not known"
    );
    assert!(second.without_claim && !first.without_claim);
    assert_eq!(
        scene.sources.node.take_suspects(),
        ["u2".to_owned()].into(),
        "asked about next"
    );
    // From now on this instance knows which shares have no claim.
    scene.sources.node.lock().set_unclaimed(Some(ShareKeys::new()));
    scene.rounds(2..182).await;
    assert!(!scene.status().shares[1].without_claim);
    assert_eq!(scene.status().without_claim, Some(0));
    // Somebody deletes the object: the next write has all figures again.
    scene.api.0.lock().expect("lock").object = None;
    scene.rounds(182..243).await;
    assert_eq!(scene.status().shares[0].usage.gpu_time_peak_percent, Some(90));
}

#[tokio::test]
async fn shares_without_a_claim_are_not_forgotten_while_the_object_cannot_be_read_or_written() {
    for error in [Error::Other("down".into()), Error::NotFound("not yet".into())] {
        let mut scene = Scene::new();
        scene.rounds(0..2).await;
        let mut former = scene.object();
        former.status.as_mut().expect("a status").shares[1].without_claim = true;
        scene.api.0.lock().expect("lock").object = Some(former);
        let mut scene = scene.restart();
        scene.fail(Some(error.clone()));
        scene.rounds(0..200).await;
        scene.fail(None);
        let mut second = 200;
        while !scene.writer.has_written {
            scene.rounds(second..second + 1).await;
            second += 1;
        }
        assert!(
            scene.status().shares[1].without_claim,
            "{error}, written after {second} s"
        );
        scene.rounds(second..second + 182).await;
        assert!(!scene.status().shares[1].without_claim, "{error}");
    }
}

#[tokio::test]
async fn an_object_that_says_nonsense_is_replaced() {
    let mut scene = Scene::new();
    let nonsense = json!({"apiVersion": "dra.vgpu/v1alpha1", "kind": "VgpuNode", "metadata": {"name": "n1"}, "spec": {},
        "status": {"asOf": "yesterday", "shares": [{"uid": "u1", "share": "s1", "since": "9", "memoryMean": "-5Gi",
            "gpuTimePeakPercent": 4_000_000_000_u32}], "conditions": [{"type": "Ready"}]}});
    scene.api.0.lock().expect("lock").object = Some(serde_json::from_value(nonsense).expect("an object"));
    scene.rounds(0..2).await;
    let status = scene.status();
    assert_eq!((status.share_count, &*status.conditions[0].status), (2, "True"));
    assert_eq!(status.shares[0].usage.gpu_time_peak_percent, None);
}

/// One request, which creates the object or replaces what the plugin wrote.
#[tokio::test]
async fn the_object_is_applied_in_one_request() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = seen.clone();
    let answer = move |request: http::Request<Body>| {
        let log = log.clone();
        async move {
            let (head, body) = request.into_parts();
            let bytes = body.collect_bytes().await.expect("a body");
            log.lock().expect("lock").push((head, bytes.to_vec()));
            let text = r#"{"apiVersion":"dra.vgpu/v1alpha1","kind":"VgpuNode","metadata":{"name":"n1"},"spec":{}}"#;
            http::Response::builder().body(Body::from(text.as_bytes().to_vec()))
        }
    };
    let cluster = Cluster::new(kube::Client::new(tower::service_fn(answer), "d"), "n1".into());
    let mut scene = Scene::new();
    scene.turn();
    scene.writer.write(&cluster, scene.start).await;
    scene.turn();
    scene.writer.write(&cluster, scene.start).await;
    let seen = seen.lock().expect("lock");
    let requests: Vec<_> = seen
        .iter()
        .map(|(head, _)| format!("{} {}", head.method, head.uri))
        .collect();
    let path = "/apis/dra.vgpu/v1alpha1/vgpunodes/n1";
    assert_eq!(
        requests,
        [
            format!("GET {path}"),
            format!("PATCH {path}?&force=true&fieldManager=dra.vgpu%2Fkubelet-plugin")
        ]
    );
    let sent: Value = serde_json::from_slice(&seen[1].1).expect("json");
    assert_eq!(
        (&sent["apiVersion"], &sent["kind"]),
        (&"dra.vgpu/v1alpha1".into(), &"VgpuNode".into())
    );
    assert_eq!(sent["status"]["shareCount"], 2);
}
