//! What requests and answers look like at a stand-in API server, and what the watches pass on.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{Request, Response};
use futures::StreamExt as _;
use kube::Client;
use kube::runtime::watcher::Event;
use serde_json::{Value, json};
use vgpu_quota::{Change, Kind, Mark, Notice, Outcome, PodRef, Quota, Subject, Write};

use super::watches::{namespace, pod, quota, watch};
use super::writes::send;
use super::{Object, message};
use crate::follow::{Named, happened};

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
        let body = serde_json::from_slice(&body).unwrap_or_default();
        own.lock().unwrap().push((method, path, body));
        let next = answers.lock().unwrap().pop_front();
        let Some((code, body)) = next else {
            return std::future::pending().await;
        };
        let answer = Response::builder()
            .status(code)
            .header("content-type", "application/json");
        answer.body(Body::from(body.to_string())).unwrap()
    });
    (Client::new(router, "default"), sent)
}

fn status(code: u16) -> (u16, Value) {
    let body = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": "because", "reason": if code == 404 { "NotFound" } else { "Other" }, "code": code});
    (code, body)
}

fn object(version: &str) -> Value {
    json!({"apiVersion": "dra.vgpu/v1alpha1", "kind": "VgpuQuota", "spec": {"hard": {"memory": "80Gi"}},
        "metadata": {"name": "vgpu", "namespace": "team", "uid": "u", "resourceVersion": version, "generation": 1}})
}

fn write() -> Write {
    Write::Status {
        namespace: "team".into(),
        uid: "u".into(),
        version: "7".into(),
        status: Box::default(),
    }
}

fn ungate() -> Write {
    Write::Ungate {
        pod: PodRef {
            namespace: "team".into(),
            name: "p".into(),
            uid: "pod".into(),
        },
        claims: vec![("c".into(), "claim".into())],
        is_over_budget: false,
    }
}

fn claim(uid: &str) -> Value {
    json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": {"name": "c", "uid": uid}})
}

#[tokio::test]
async fn a_status_lands_only_on_the_version_it_was_decided_on() {
    let (client, sent) = server([(200, object("8"))]);
    let outcome = send(&client, &write()).await;
    assert!(
        matches!(&outcome, Outcome::Quota(quota) if quota.version == "8"),
        "{outcome:?}"
    );
    let (method, path, body) = sent.lock().unwrap()[0].clone();
    assert_eq!(method, "PUT");
    let expected = "/apis/dra.vgpu/v1alpha1/namespaces/team/vgpuquotas/vgpu/status?fieldManager=vgpu-controller";
    assert_eq!(path, expected);
    assert_eq!(
        body["metadata"],
        json!({"name": "vgpu", "namespace": "team", "uid": "u", "resourceVersion": "7"})
    );
    assert_eq!(body["spec"], Value::Null);
    for (write, code, outcome) in [
        (write(), 409, Outcome::Again),
        (write(), 404, Outcome::Again),
        (write(), 500, Outcome::Again),
        (write(), 429, Outcome::Again),
        (write(), 403, Outcome::Refused("because".into())),
        (write(), 422, Outcome::Refused("because".into())),
        (
            Write::Read {
                namespace: "team".into(),
            },
            404,
            Outcome::NoQuota,
        ),
    ] {
        let (client, _) = server([status(code)]);
        assert_eq!(send(&client, &write).await, outcome, "{write:?} {code}");
    }
}

#[tokio::test]
async fn a_gate_goes_only_for_the_claims_that_were_reserved() {
    let pod = json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": {"name": "p"}});
    let (client, sent) = server([(200, claim("claim")), (200, pod.clone())]);
    assert_eq!(send(&client, &ungate()).await, Outcome::Ungated);
    let (method, path, body) = sent.lock().unwrap()[1].clone();
    assert_eq!(
        (method.as_str(), path.split('?').next().unwrap()),
        ("PATCH", "/api/v1/namespaces/team/pods/p")
    );
    let gone = json!({"metadata": {"uid": "pod"}, "spec": {"schedulingGates": [{"$patch": "delete", "name": "dra.vgpu/quota"}]}});
    assert_eq!(body, gone);
    let mut over_budget = ungate();
    if let Write::Ungate { is_over_budget, .. } = &mut over_budget {
        *is_over_budget = true;
    }
    let (client, sent) = server([(200, claim("claim")), (200, pod.clone())]);
    assert_eq!(send(&client, &over_budget).await, Outcome::Ungated);
    let recorded = sent.lock().unwrap()[1].2["metadata"]["annotations"].clone();
    assert_eq!(recorded, json!({"dra.vgpu/opened-over-budget": "true"}));
    // Another claim by that name, and none.
    for answer in [(200, claim("another")), status(404)] {
        let (client, sent) = server([answer, (200, pod.clone())]);
        assert_eq!(send(&client, &ungate()).await, Outcome::Again);
        assert_eq!(sent.lock().unwrap().len(), 1, "no patch");
    }
    for (code, outcome) in [
        (404, Outcome::Ungated),
        (409, Outcome::Again),
        (422, Outcome::Refused("because".into())),
    ] {
        let (client, _) = server([(200, claim("claim")), status(code)]);
        assert_eq!(send(&client, &ungate()).await, outcome, "{code}");
    }
}

fn evict() -> Write {
    let pod = |namespace: &str, name: &str| PodRef {
        namespace: namespace.into(),
        name: name.into(),
        uid: format!("uid-{name}"),
    };
    Write::Evict {
        waiting: pod("rich", "w"),
        victims: vec![pod("team", "a"), pod("team", "b")],
    }
}

fn labels(mark: Option<Mark>) -> Write {
    let (namespace, uid) = ("team".into(), "ns".into());
    Write::Label { namespace, uid, mark }
}

fn stamp(over: Option<(String, String)>) -> Write {
    Write::Stamp {
        namespace: "team".into(),
        default: "teams".into(),
        spec: json!({"hard": {"memory": "80Gi"}}),
        over,
    }
}

#[tokio::test]
async fn evictions_are_asked_by_dry_runs_and_name_the_pod_by_its_uid() {
    let waits = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "w", "uid": "uid-w"}, "spec": {"containers": []}});
    let done = || {
        (
            201,
            json!({"kind": "Status", "apiVersion": "v1", "status": "Success", "code": 201}),
        )
    };
    let names = |pods: &[PodRef]| pods.iter().map(|pod| pod.name.clone()).collect::<Vec<_>>();
    let refused = |kept: &[(PodRef, String)]| {
        kept.iter()
            .map(|(pod, why)| format!("{}: {why}", pod.name))
            .collect::<Vec<_>>()
    };
    let (client, sent) = server([(200, waits.clone()), done(), done(), done(), done()]);
    let Outcome::Evicted { gone, kept } = send(&client, &evict()).await else {
        panic!()
    };
    assert_eq!((names(&gone), kept.len()), (vec!["a".to_owned(), "b".to_owned()], 0));
    let sent = sent.lock().unwrap().clone();
    let paths: Vec<&str> = sent
        .iter()
        .map(|(_, path, _)| path.split('?').next().unwrap())
        .collect();
    let (a, b) = (
        "/api/v1/namespaces/team/pods/a/eviction",
        "/api/v1/namespaces/team/pods/b/eviction",
    );
    assert_eq!(paths, ["/api/v1/namespaces/rich/pods/w", a, b, a, b]);
    let dry: Vec<bool> = sent.iter().map(|(_, path, _)| path.contains("dryRun=All")).collect();
    assert_eq!(dry, [false, true, true, false, false]);
    assert_eq!(sent[3].2["deleteOptions"]["preconditions"]["uid"], "uid-a");
    // Refused in the dry run: nobody goes.
    let (client, sent) = server([(200, waits.clone()), done(), status(429)]);
    let Outcome::Evicted { gone, kept } = send(&client, &evict()).await else {
        panic!()
    };
    assert_eq!(
        (names(&gone), refused(&kept)),
        (vec![], vec!["b: pod b of namespace team: because".to_owned()])
    );
    assert_eq!(sent.lock().unwrap().len(), 3);
    // Refused after it: who went is named; who is gone by itself is not.
    let (client, _) = server([(200, waits.clone()), done(), done(), status(404), status(500)]);
    let Outcome::Evicted { gone, kept } = send(&client, &evict()).await else {
        panic!()
    };
    assert_eq!((names(&gone), kept.len()), (vec![], 1));
    // It is not known how far it came.
    let (client, _) = server([(200, waits.clone()), done(), done(), done(), status(503)]);
    assert_eq!(send(&client, &evict()).await, Outcome::Again);
    // The pod was bound meanwhile, is another's, or gone.
    let mut bound = waits.clone();
    bound["spec"]["nodeName"] = json!("n");
    let mut another = waits;
    another["metadata"]["uid"] = json!("other");
    for answer in [(200, bound), (200, another), status(404)] {
        let (client, sent) = server([answer]);
        assert_eq!(
            send(&client, &evict()).await,
            Outcome::Evicted {
                gone: vec![],
                kept: vec![]
            }
        );
        assert_eq!(sent.lock().unwrap().len(), 1);
    }
}

#[tokio::test]
async fn the_label_is_all_that_is_written_of_a_namespace() {
    let meta = json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": {"name": "team"}});
    for (mark, value) in [(Some(Mark::OverBudget), json!("OverBudget")), (None, Value::Null)] {
        let (client, sent) = server([(200, meta.clone())]);
        assert_eq!(send(&client, &labels(mark)).await, Outcome::Labelled);
        let (method, path, body) = sent.lock().unwrap()[0].clone();
        assert_eq!(
            (method.as_str(), path.split('?').next().unwrap()),
            ("PATCH", "/api/v1/namespaces/team")
        );
        assert_eq!(
            body,
            json!({"metadata": {"uid": "ns", "labels": {"dra.vgpu/quota": value}}})
        );
    }
    for (code, outcome) in [
        (404, Outcome::Labelled),
        (409, Outcome::Again),
        (403, Outcome::Refused("because".into())),
    ] {
        let (client, _) = server([status(code)]);
        assert_eq!(send(&client, &labels(None)).await, outcome, "{code}");
    }
}

#[tokio::test]
async fn a_stamp_is_created_or_lands_on_its_version() {
    let quotas = "/apis/dra.vgpu/v1alpha1/namespaces/team/vgpuquotas";
    let (client, sent) = server([(201, object("8"))]);
    let outcome = send(&client, &stamp(None)).await;
    assert!(
        matches!(&outcome, Outcome::Quota(quota) if quota.version == "8"),
        "{outcome:?}"
    );
    let (method, path, body) = sent.lock().unwrap()[0].clone();
    assert_eq!((method.as_str(), path.split('?').next().unwrap()), ("POST", quotas));
    assert_eq!(body["metadata"]["labels"], json!({"dra.vgpu/default": "teams"}));
    // What is read back is as it was stamped.
    let mut made = object("8");
    made["metadata"]["labels"] = body["metadata"]["labels"].clone();
    made["metadata"]["annotations"] = body["metadata"]["annotations"].clone();
    assert!(serde_json::from_value::<Quota>(made).unwrap().stamped.is_some());
    let (client, sent) = server([(200, object("9"))]);
    send(&client, &stamp(Some(("u".into(), "8".into())))).await;
    let (method, path, body) = sent.lock().unwrap()[0].clone();
    let expected = format!("{quotas}/vgpu");
    assert_eq!(
        (method.as_str(), path.split('?').next().unwrap()),
        ("PATCH", &*expected)
    );
    let written: Vec<&str> = body
        .as_array()
        .unwrap()
        .iter()
        .map(|op| op["path"].as_str().unwrap())
        .collect();
    assert_eq!(
        written,
        [
            "/metadata/uid",
            "/metadata/resourceVersion",
            "/metadata/labels/dra.vgpu~1default",
            "/metadata/annotations/dra.vgpu~1default-spec",
            "/spec"
        ]
    );
    // An administrator was faster; the kind or the namespace is gone; a policy says no.
    for (code, outcome) in [
        (409, Outcome::Again),
        (404, Outcome::Again),
        (403, Outcome::Refused("because".into())),
    ] {
        let (client, _) = server([status(code)]);
        assert_eq!(send(&client, &stamp(None)).await, outcome, "{code}");
    }
}

#[test]
fn objects_become_changes_and_what_cannot_be_read_keeps_what_was_known() {
    let mut listed: Vec<Named<_>> = Vec::new();
    let mut next = |event| happened(event, &mut listed).and_then(quota);
    let read = |value: Value| serde_json::from_value(value).unwrap();
    assert!(next(Event::Init).is_none());
    assert!(matches!(next(Event::InitApply(read(object("1")))), Some(Change::Quota(quota)) if quota.spec.is_ok()));
    assert!(matches!(next(Event::InitDone), Some(Change::Quotas { uids }) if uids == ["u"]));
    let mut odd = object("2");
    odd["spec"]["hard"] = json!("none");
    assert!(matches!(next(Event::Apply(read(odd))), Some(Change::Quota(quota)) if quota.spec.is_err()));
    assert!(matches!(next(Event::Delete(read(object("3")))), Some(Change::QuotaGone { uid, .. }) if uid == "u"));
    let mut listed: Vec<Named<_>> = Vec::new();
    let mut next = |event| happened(event, &mut listed).and_then(pod);
    let unreadable = json!({"metadata": {"name": "p", "uid": "u"}, "spec": {"schedulingGates": "none"}});
    assert!(next(Event::Apply(serde_json::from_value(unreadable).unwrap())).is_none());
    let mut listed: Vec<Named<_>> = Vec::new();
    let mut next = |event| happened(event, &mut listed).and_then(namespace);
    let team = json!({"metadata": {"name": "team", "uid": "n", "labels": {"a": "b"}, "deletionTimestamp": "2026-11-24T00:00:00Z"}});
    let change = next(Event::Apply(serde_json::from_value(team).unwrap()));
    assert!(matches!(change, Some(Change::Namespace(team)) if team.is_deleted && team.labels["a"] == "b"));
}

#[tokio::test]
async fn without_their_crds_there_are_no_quotas_and_no_defaults() {
    let router =
        Router::new().fallback(
            async |request: Request<Body>| match request.uri().path().contains("vgpuquota") {
                true => Response::builder()
                    .status(404)
                    .body(Body::from(status(404).1.to_string()))
                    .unwrap(),
                false => std::future::pending().await,
            },
        );
    let mut changes = watch(&Client::new(router, "default"));
    let mut none = [false; 2];
    while none != [true; 2] {
        match changes.next().await {
            Some(Ok(Change::Quotas { uids })) if uids.is_empty() => none[0] = true,
            Some(Ok(Change::Defaults { names })) if names.is_empty() => none[1] = true,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_notice_becomes_an_event_on_its_object() {
    let quota: Quota = serde_json::from_value(object("1")).unwrap();
    let subject = Subject {
        kind: Kind::Quota,
        namespace: quota.namespace,
        name: quota.name,
        uid: quota.uid,
    };
    let (topic, message) = message(subject, &Notice::BadSpec("spec.hard.memory: bad".into()));
    assert_eq!(
        (topic.about.object, topic.decided),
        (Object::Quota, Some("QuotaRefused"))
    );
    assert!(
        message.text.starts_with("spec.hard.memory: bad; no gate"),
        "{}",
        message.text
    );
}
