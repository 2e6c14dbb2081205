//! What the watches pass on, and what requests and answers look like at a stand-in API server.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{Request, Response};
use futures::StreamExt as _;
use k8s_openapi::api::resource::v1::{ResourceClaimTemplate, ResourceSlice};
use kube::Client;
use kube::runtime::watcher::Event;
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use vgpu_planner::Term;
use vgpu_reconciler::{Change, Gpus, Key, Notice, Now, Outcome, PodRef, Settings, Write};

use super::watches::pod;
use super::writes::send;
use super::{HeldLease, Reconcile, message};
use crate::control::clock::Clock;
use crate::follow::{Named, happened};
use crate::http::Health;
use crate::pending::MessageKind;

/// Method, path with query, body.
type Sent = (String, String, Value);

/// An API server that gives these answers in turn, and what it was sent.
fn server(answers: impl IntoIterator<Item = (u16, Value)>) -> (Client, Arc<Mutex<Vec<Sent>>>) {
    let sent: Arc<Mutex<Vec<Sent>>> = Arc::default();
    let answers: Arc<Mutex<VecDeque<(u16, Value)>>> = Arc::new(Mutex::new(answers.into_iter().collect()));
    let own = sent.clone();
    let router = Router::new().fallback(async move |request: Request<Body>| {
        let method = request.method().to_string();
        let path = request.uri().path_and_query().unwrap().to_string();
        let body = to_bytes(request.into_body(), usize::MAX).await.unwrap();
        own.lock()
            .unwrap()
            .push((method, path, serde_json::from_slice(&body).unwrap_or_default()));
        let next = answers.lock().unwrap().pop_front();
        let Some((code, body)) = next else {
            return std::future::pending().await;
        };
        Response::builder()
            .status(code)
            .header("content-type", "application/json")
            .body(Body::from(body.to_string()))
            .unwrap()
    });
    (Client::new(router, "default"), sent)
}

fn status(code: u16, message: &str) -> (u16, Value) {
    let body = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": "Other", "code": code});
    (code, body)
}

fn key() -> Key {
    Key {
        namespace: "team".into(),
        name: "vgpu-translated-1".into(),
    }
}

fn template(labels: Value) -> Value {
    json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "spec": {"spec": {}},
        "metadata": {"namespace": "team", "name": "vgpu-translated-1", "uid": "t", "resourceVersion": "7",
            "labels": labels, "annotations": {"dra.vgpu/spec-hash": "abc"}}})
}

fn create() -> Write {
    let template: ResourceClaimTemplate = serde_json::from_value(template(json!({}))).unwrap();
    Write::Create {
        key: key(),
        template: Box::new(template),
    }
}

fn delete() -> Write {
    Write::Delete {
        key: key(),
        uid: "t".into(),
        version: "7".into(),
    }
}

fn at() -> PodRef {
    PodRef {
        namespace: "team".into(),
        name: "p".into(),
        uid: "u".into(),
    }
}

#[tokio::test]
async fn a_deletion_is_of_one_version_and_answers_mean_what_they_say() {
    let (client, sent) = server([(200, template(json!({})))]);
    assert_eq!(send(&client, &delete(), &Gpus::default()).await, Outcome::Deleted);
    let (method, path, body) = sent.lock().unwrap()[0].clone();
    assert_eq!(method, "DELETE");
    assert_eq!(
        path,
        "/apis/resource.k8s.io/v1/namespaces/team/resourceclaimtemplates/vgpu-translated-1?"
    );
    assert_eq!(body["preconditions"], json!({"uid": "t", "resourceVersion": "7"}));

    let ours = json!({"dra.vgpu/translated": "true"});
    for (write, answer, expected) in [
        (create(), status(409, "it exists"), Outcome::Exists),
        (create(), status(403, "quota"), Outcome::Refused("quota".into())),
        (create(), status(429, "later"), Outcome::Again),
        (create(), status(500, "oh"), Outcome::Again),
        (delete(), status(409, "another version"), Outcome::Again),
        (delete(), status(404, "not there"), Outcome::Again),
        (delete(), status(403, "no"), Outcome::Refused("no".into())),
        (Write::GiveBack(at()), status(404, "not there"), Outcome::Again),
    ] {
        let (client, _) = server([answer.clone()]);
        assert_eq!(
            send(&client, &write, &Gpus::default()).await,
            expected,
            "{write:?} {answer:?}"
        );
    }
    let (client, _) = server([(201, template(ours))]);
    let created = send(&client, &create(), &Gpus::default()).await;
    assert!(
        matches!(&created, Outcome::Created(template) if template.uid == "t" && template.hash == "abc"),
        "{created:?}"
    );
    let (client, _) = server([(201, template(json!({})))]);
    let unlabelled = send(&client, &create(), &Gpus::default()).await;
    assert!(matches!(unlabelled, Outcome::Refused(_)), "{unlabelled:?}");
}

/// A pod of KAI's with half a GPU, bound, and its claim.
fn bound() -> (Value, Value, Gpus) {
    let written = json!({"metadata": {"name": "p", "namespace": "team", "uid": "u", "annotations": {"gpu-fraction": "0.5"}},
        "spec": {"containers": [{"name": "main", "image": "cuda"}]}});
    let translated = vgpu_dialects::translate(&serde_json::from_value(written).unwrap(), &Default::default());
    let mut pod = serde_json::to_value(translated.unwrap().unwrap().pod).unwrap();
    pod["apiVersion"] = json!("v1");
    pod["kind"] = json!("Pod");
    pod["spec"]["nodeName"] = json!("n1");
    let claim = pod["spec"]["resourceClaims"][0]["name"].clone();
    pod["status"] = json!({"resourceClaimStatuses": [{"name": claim, "resourceClaimName": "p-claim"}],
        "conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-11-23T00:00:00Z"}]});
    let result = json!({"request": "gpu/mib-81920", "driver": "dra.vgpu", "pool": "n1", "device": "gpu-0", "shareID": "s",
        "consumedCapacity": {"memory": "40Gi", "cores": "0", "shares": "1"}});
    let claim = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": {"name": "p-claim", "namespace": "team", "uid": "c"}, "spec": {},
        "status": {"reservedFor": [{"resource": "pods", "name": "p", "uid": "u"}],
            "allocation": {"devices": {"results": [result]}}}});
    let slice = json!({"metadata": {"name": "s"}, "spec": {"driver": "dra.vgpu", "nodeName": "n1",
        "pool": {"name": "n1", "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": "gpu-0", "capacity": {"memory": {"value": "80Gi"}},
            "attributes": {"type": {"string": "gpu"}, "uuid": {"string": "GPU-1"}, "index": {"int": 0}}}]}});
    let slice: ResourceSlice = serde_json::from_value(slice).unwrap();
    let mut gpus = Gpus::default();
    gpus.set(&slice, Now::ZERO);
    (pod, claim, gpus)
}

#[tokio::test]
async fn annotations_are_written_to_the_pod_that_was_read_and_to_no_other() {
    let (pod, claim, gpus) = bound();
    let (client, sent) = server([(200, pod.clone()), (200, claim), (200, pod.clone())]);
    assert_eq!(send(&client, &Write::GiveBack(at()), &gpus).await, Outcome::GivenBack);
    let sent = sent.lock().unwrap().clone();
    let (methods, paths): (Vec<&str>, Vec<&str>) = sent
        .iter()
        .map(|(method, path, _)| (method.as_str(), path.split('?').next().unwrap()))
        .unzip();
    assert_eq!(methods, ["GET", "GET", "PATCH"]);
    assert_eq!(paths[0], "/api/v1/namespaces/team/pods/p");
    assert_eq!(
        paths[1],
        "/apis/resource.k8s.io/v1/namespaces/team/resourceclaims/p-claim"
    );
    assert_eq!(
        sent[2].2,
        json!({"metadata": {"uid": "u", "annotations": {"dra.vgpu/given-back": "u", "received-resource-type": "Fraction"}}})
    );
    // Another pod by that name.
    let mut other = pod.clone();
    other["metadata"]["uid"] = json!("another");
    let (client, sent) = server([(200, other)]);
    assert_eq!(send(&client, &Write::GiveBack(at()), &gpus).await, Outcome::Again);
    assert_eq!(sent.lock().unwrap().len(), 1);
    // One that has them: nothing is written.
    let mut done = pod;
    done["metadata"]["annotations"]["dra.vgpu/given-back"] = json!("u");
    let (client, sent) = server([(200, done)]);
    assert_eq!(send(&client, &Write::GiveBack(at()), &gpus).await, Outcome::GivenBack);
    assert_eq!(sent.lock().unwrap().len(), 1);
}

#[test]
fn of_a_pod_that_is_not_translated_only_its_name_is_passed_on() {
    let (translated, ..) = bound();
    let mut plain = translated.clone();
    plain["metadata"]["annotations"] = json!({"gpu-fraction": "0.5"});
    let mut odd = translated.clone();
    odd["spec"]["containers"] = json!("none");
    let mut listed: Vec<Named<_>> = Vec::new();
    let mut next = |event| happened(event, &mut listed).and_then(pod);
    let read = |pod: &Value| serde_json::from_value(pod.clone()).unwrap();
    assert!(next(Event::Init).is_none());
    assert!(
        matches!(next(Event::InitApply(read(&translated))), Some(Change::Pod { key, pod: Some(pod) })
        if key == "team/p" && pod.is_bound && pod.needs.len() == 1)
    );
    assert!(matches!(
        next(Event::InitApply(read(&plain))),
        Some(Change::Pod { pod: None, .. })
    ));
    assert!(
        next(Event::InitApply(read(&odd))).is_none(),
        "what was known of it stays"
    );
    assert!(matches!(next(Event::InitDone), Some(Change::Pods { keys }) if keys == ["team/p", "team/p", "team/p"]));
    assert!(matches!(next(Event::Delete(read(&plain))), Some(Change::PodGone { key }) if key == "team/p"));
}

#[tokio::test]
async fn nothing_is_sent_once_the_lease_has_run_out() {
    let clock = Arc::new(Clock::start());
    let term = |until| {
        Some(Term {
            epoch: "e".into(),
            until,
        })
    };
    let (terms, receiver) = watch::channel(term(clock.now().after(Now::from_secs(60))));
    let (client, sent) = server([status(403, "no"), status(403, "no")]);
    let lease = HeldLease::new(clock.clone(), receiver);
    let (tell, _told) = mpsc::unbounded_channel();
    let mut reconcile = Reconcile::new(client, Settings::default(), lease, tell, Arc::new(Health::new()));
    reconcile.write(delete());
    assert!(matches!(
        reconcile.under_way.next().await,
        Some((_, Outcome::Refused(_)))
    ));
    terms.send_replace(term(clock.now()));
    reconcile.write(delete());
    assert!(matches!(reconcile.under_way.next().await, Some((_, Outcome::Dropped))));
    assert_eq!(sent.lock().unwrap().len(), 1);
}

#[test]
fn a_notice_becomes_an_event_on_its_pod() {
    let template = "vgpu-translated-1".to_owned();
    let (topic, message) = message(at(), &Notice::NoGpu { template });
    assert_eq!((topic.about.key().as_str(), topic.about.uid.as_str()), ("team/p", "u"));
    assert_eq!(message.kind, MessageKind::Decided("VgpuClaimPending"));
    assert!(
        message.text.starts_with("template vgpu-translated-1 waits: "),
        "{}",
        message.text
    );
}
