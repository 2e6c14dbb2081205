//! One pass of controller mode against a stand-in API server, as a scrape of /metrics shows it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use kube::Client;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use vgpu_api::config::AllocationPolicy;
use vgpu_planner::model::Version;
use vgpu_planner::{self as planner, Settings, Term, Time};

use super::Placer;
use crate::decode;
use crate::fake_api::{parts, response};
use crate::http::{self, Health};
use crate::leader::clock::Clock;
use crate::leader::{HeldLease, Leader};
use crate::watch::Changes;

const GI: i64 = 1 << 30;

/// One GPU of 80Gi that is the controller's since 1970.
fn slice() -> Value {
    json!({"metadata": {"name": "s", "resourceVersion": "1"}, "spec": {"driver": "dra.vgpu", "nodeName": "n",
        "pool": {"name": "n", "generation": 1, "resourceSliceCount": 1}, "devices": [{"name": "gpu-0",
            "allowMultipleAllocations": true,
            "taints": [{"key": "dra.vgpu/allocator", "value": "controller", "effect": "NoSchedule",
                "timeAdded": "1970-01-01T00:00:00Z"}],
            "capacity": {"memory": {"value": "80Gi", "requestPolicy": {"default": "80Gi", "validRange": {"min": "64Mi"}}},
                "cores": {"value": "100", "requestPolicy": {"default": "0", "validRange": {"min": "0", "max": "100"}}}}}]}})
}

/// A claim for 60Gi and all cores: one fits.
fn claim(name: &str) -> Value {
    json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "ns", "uid": name, "resourceVersion": "2"},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "vgpu",
            "capacity": {"requests": {"memory": "60Gi", "cores": "100"}}}}]}}})
}

fn pod(name: &str, created: Time) -> Value {
    json!({"metadata": {"name": name, "namespace": "ns", "uid": name, "creationTimestamp": created.to_string()},
        "spec": {"containers": [], "resourceClaims": [{"name": "gpu", "resourceClaimName": name}]},
        "status": {"phase": "Pending"}})
}

/// Lists and patches claims, and has the one slice.
fn api_server() -> Client {
    let claims = BTreeMap::from(["a", "b"].map(|name| (name.to_owned(), claim(name))));
    let state = Arc::new(Mutex::new((claims, 2)));
    let router = Router::new().fallback(async move |request: Request<Body>| {
        let (method, path, patch) = parts(request).await;
        let path = path.split('?').next().unwrap_or_default();
        let (claims, version) = &mut *state.lock().unwrap();
        let answer = match (method.as_str(), path.trim_end_matches("/status").rsplit('/').next()) {
            ("GET", Some("resourceclaims")) => json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimList",
                "metadata": {"resourceVersion": version.to_string()}, "items": claims.values().collect::<Vec<_>>()}),
            ("GET", Some("s")) => slice(),
            ("PATCH", Some(name)) => {
                let claim = claims.get_mut(name).unwrap();
                *version += 1;
                for field in ["annotations", "finalizers"] {
                    if let Some(value) = patch["metadata"].get(field) {
                        claim["metadata"][field] = value.clone();
                    }
                }
                claim["metadata"]["resourceVersion"] = version.to_string().into();
                if let Some(status) = patch.get("status") {
                    claim["status"] = status.clone();
                }
                claim.clone()
            }
            other => panic!("{other:?} is not asked for"),
        };
        response(200, &answer)
    });
    Client::new(router, "default")
}

fn read<T: serde::de::DeserializeOwned>(object: &Value) -> T {
    serde_json::from_str(&object.to_string()).unwrap()
}

/// Passes in the whole list of a kind.
fn listed(leader: &mut Leader, change: planner::Change) {
    leader.apply(Changes {
        state: Some(change),
        ..Changes::default()
    });
}

async fn scrape(address: std::net::SocketAddr) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    stream.write_all(request).await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    text
}

#[tokio::test]
async fn what_is_decided_is_seen_by_a_scrape() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let health = Arc::new(Health::new());
    let server = tokio::spawn(http::serve(listener, health.clone()));

    let clock = Arc::new(Clock::start());
    let (lead, term) = watch::channel(None);
    let settings = Settings {
        policy: AllocationPolicy::Spread,
        ..Settings::default()
    };
    let decisions = health.metrics.decisions.clone();
    let lease = HeldLease::new(clock.clone(), term);
    let placer = Placer::new(api_server(), clock.clone(), lease.clone(), settings, decisions);
    let mut leader = Leader::new(Some(lease), Some(placer), None, None, None);
    let class = json!({"metadata": {"name": "vgpu"}, "spec": {"selectors": [{"cel": {"expression":
        "device.driver == 'dra.vgpu'"}}]}});
    let created = Time::from_millis(clock.now().millis() - 7_200_000);
    let pods = [pod("a", created), pod("b", created)].map(|pod| read::<decode::Pod>(&pod).body.unwrap());
    let keys = pods.iter().map(planner::model::Pod::key).collect();
    let node = json!({"metadata": {"name": "n"}, "status": {"allocatable": {"pods": "110"}}});
    let claims = [claim("a"), claim("b")].map(|claim| read::<decode::Claim>(&claim).body.unwrap());
    let names = |name: &str| vec![name.to_owned()];
    let version = Version(2);
    let objects = [
        planner::Change::Node(read::<decode::Node>(&node).body.unwrap()),
        planner::Change::Class(read::<decode::Class>(&class).body.unwrap()),
        planner::Change::Slice {
            slice: read::<decode::Slice>(&slice()).body.unwrap(),
            read: None,
        },
    ];
    let ends = [
        planner::Change::Pods { keys },
        planner::Change::Nodes { names: names("n") },
        planner::Change::Classes { names: names("vgpu") },
        planner::Change::Slices {
            names: names("s"),
            version,
        },
        planner::Change::Claims {
            claims: claims.into(),
            same: Vec::new(),
            version,
            read: None,
        },
        planner::Change::Rules(Vec::new()),
    ];
    let pods = pods.map(planner::Change::Pod);
    for change in objects.into_iter().chain(pods).chain(ends) {
        listed(&mut leader, change);
    }
    leader.observe();
    let before = scrape(address).await;
    for line in ["vgpu_controller_queue_pods 0", "vgpu_controller_leading 0"] {
        assert!(before.lines().any(|is| is == line), "{line}: {before}");
    }

    let until = clock.now().after(Duration::from_secs(600));
    let epoch = "e".to_owned();
    lead.send(Some(Term { epoch, until })).unwrap();
    let wanted = [
        "vgpu_controller_leading 1".to_owned(),
        "vgpu_controller_allocations_total{policy=\"spread\"} 1".to_owned(),
        "vgpu_controller_writes_total{intent=\"allocate\",outcome=\"done\"} 1".to_owned(),
        "vgpu_controller_queue_pods 1".to_owned(),
        "vgpu_controller_queue_claims 1".to_owned(),
        "vgpu_controller_free_memory_bytes{gpus=\"unused\"} 0".to_owned(),
        format!("vgpu_controller_free_memory_bytes{{gpus=\"used\"}} {}", 20 * GI),
        "vgpu_controller_fragmentation_ratio 1.0".to_owned(),
        format!("vgpu_controller_stranded_memory_bytes {}", 20 * GI),
        "vgpu_controller_stranded_cores 0".to_owned(),
    ];
    let missing = |text: &str| -> Vec<String> {
        let is_missing = |line: &&String| !text.lines().any(|is| is == line.as_str());
        wanted.iter().filter(is_missing).cloned().collect()
    };
    let shown = tokio::time::timeout(Duration::from_secs(60), async {
        loop {
            leader.turn().await.unwrap();
            leader.observe();
            let text = scrape(address).await;
            if missing(&text).is_empty() {
                return text;
            }
        }
    });
    let Ok(text) = shown.await else {
        panic!("missing: {:?}", missing(&scrape(address).await));
    };
    let oldest = text
        .lines()
        .find_map(|line| line.strip_prefix("vgpu_controller_queue_oldest_seconds "));
    let oldest: f64 = oldest.unwrap().parse().unwrap();
    // The time of creation is in whole seconds, and the test takes a minute at most.
    assert!((7_200.0..7_300.0).contains(&oldest), "{oldest}");
    server.abort();
}
