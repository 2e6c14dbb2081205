//! One pass of controller mode against a stand-in API server, as a scrape of /metrics shows it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{Request, Response};
use kube::Client;
use kube::runtime::watcher::Event;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use vgpu_api::config::AllocationPolicy;
use vgpu_planner::{Change, Settings, Term, Time};

use super::Control;
use super::clock::Clock;
use crate::decode::{self, Object};
use crate::http::{self, Health};
use crate::watch::{List, Watchable};

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
        let (method, path) = (request.method().to_string(), request.uri().path().to_owned());
        let body = to_bytes(request.into_body(), usize::MAX).await.unwrap();
        let (claims, version) = &mut *state.lock().unwrap();
        let answer = match (method.as_str(), path.trim_end_matches("/status").rsplit('/').next()) {
            ("GET", Some("resourceclaims")) => json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimList",
                "metadata": {"resourceVersion": version.to_string()}, "items": claims.values().collect::<Vec<_>>()}),
            ("GET", Some("s")) => slice(),
            ("PATCH", Some(name)) => {
                let patch: Value = serde_json::from_slice(&body).unwrap();
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
        let response = Response::builder().header("content-type", "application/json");
        response.body(Body::from(answer.to_string())).unwrap()
    });
    Client::new(router, "default")
}

fn read<T: serde::de::DeserializeOwned>(text: &str) -> T {
    serde_json::from_str(text).unwrap()
}

/// A list of a kind, as its watch brings it.
fn listed<K, T: Watchable>(control: &mut Control, read: fn(&str) -> Object<K, T>, objects: &[Value])
where
    Object<K, T>: kube::Resource,
{
    let mut list = List::default();
    let applied = objects.iter().map(|object| Event::InitApply(read(&object.to_string())));
    for event in [Event::Init].into_iter().chain(applied).chain([Event::InitDone]) {
        if let Some(change) = list.change(event) {
            control.apply(change);
        }
    }
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
    let mut control = Control::new(api_server(), clock.clone(), term, settings, decisions);
    let class = json!({"metadata": {"name": "vgpu"}, "spec": {"selectors": [{"cel": {"expression":
        "device.driver == 'dra.vgpu'"}}]}});
    let created = Time::from_millis(clock.now().millis() - 7_200_000);
    listed(
        &mut control,
        read::<decode::Pod>,
        &[pod("a", created), pod("b", created)],
    );
    let node = json!({"metadata": {"name": "n"}, "status": {"allocatable": {"pods": "110"}}});
    listed(&mut control, read::<decode::Node>, &[node]);
    listed(&mut control, read::<decode::Class>, &[class]);
    listed(&mut control, read::<decode::Slice>, &[slice()]);
    listed(&mut control, read::<decode::Claim>, &[claim("a"), claim("b")]);
    control.apply(Change::Rules(Vec::new()));
    control.observe();
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
            let next = control.next().await;
            control.perform(next).unwrap();
            control.observe();
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
