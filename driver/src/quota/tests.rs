//! Requests to a stand-in API server, its answers, and how terms begin and end.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::watch;
use vgpu_api::PodRef;
use vgpu_planner::Term;
use vgpu_quota::{BudgetState, Outcome, Quota, Write};

use super::writes::send;
use super::{Decider as _, HeldLease, Quotas};
use crate::fake_api::{self, Server};
use crate::http::Health;
use crate::leader::clock::Clock;

fn status(code: u16) -> (u16, Value) {
    fake_api::status(code, "because")
}

fn refused() -> Outcome {
    Outcome::Refused("because".into())
}

/// What becomes of the write if these are the answers.
async fn outcome(write: &Write, answers: impl IntoIterator<Item = (u16, Value)>) -> Outcome {
    send(&Server::answering(answers).1, write).await
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
    let (server, client) = Server::answering([(200, object("8"))]);
    let outcome = send(&client, &write()).await;
    assert!(
        matches!(&outcome, Outcome::Quota(quota) if quota.version == "8"),
        "{outcome:?}"
    );
    let (method, path, body) = server.sent()[0].clone();
    assert_eq!(method, "PUT");
    let expected = "/apis/dra.vgpu/v1alpha1/namespaces/team/vgpuquotas/vgpu/status?fieldManager=vgpu-controller";
    assert_eq!(path, expected);
    let metadata = json!({"name": "vgpu", "namespace": "team", "uid": "u", "resourceVersion": "7"});
    assert_eq!((&body["metadata"], &body["spec"]), (&metadata, &Value::Null));
    for code in [409, 404, 500, 429] {
        assert_eq!(self::outcome(&write(), [status(code)]).await, Outcome::Again, "{code}");
    }
    for code in [403, 422] {
        assert_eq!(self::outcome(&write(), [status(code)]).await, refused(), "{code}");
    }
    let namespace = "team".into();
    let read = self::outcome(&Write::Read { namespace }, [status(404)]).await;
    assert_eq!(read, Outcome::NoQuota);
}

#[tokio::test]
async fn a_gate_goes_only_for_the_claims_that_were_reserved() {
    let pod = json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": {"name": "p"}});
    let (server, client) = Server::answering([(200, claim("claim")), (200, pod.clone())]);
    assert_eq!(send(&client, &ungate()).await, Outcome::Ungated);
    assert_eq!(server.line(1), "PATCH /api/v1/namespaces/team/pods/p");
    let gone = json!({"metadata": {"uid": "pod"}, "spec": {"schedulingGates": [{"$patch": "delete", "name": "dra.vgpu/quota"}]}});
    assert_eq!(server.body(1), gone);
    let mut over_budget = ungate();
    if let Write::Ungate { is_over_budget, .. } = &mut over_budget {
        *is_over_budget = true;
    }
    let (server, client) = Server::answering([(200, claim("claim")), (200, pod.clone())]);
    assert_eq!(send(&client, &over_budget).await, Outcome::Ungated);
    let recorded = &server.body(1)["metadata"]["annotations"];
    assert_eq!(*recorded, json!({"dra.vgpu/opened-over-budget": "true"}));
    // Another claim by that name, and none.
    for answer in [(200, claim("another")), status(404)] {
        let (server, client) = Server::answering([answer, (200, pod.clone())]);
        assert_eq!(send(&client, &ungate()).await, Outcome::Again);
        assert_eq!(server.sent().len(), 1, "no patch");
    }
    for (code, expected) in [(404, Outcome::Ungated), (409, Outcome::Again), (422, refused())] {
        let outcome = outcome(&ungate(), [(200, claim("claim")), status(code)]).await;
        assert_eq!(outcome, expected, "{code}");
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

fn labels(state: Option<BudgetState>) -> Write {
    let (namespace, uid) = ("team".into(), "ns".into());
    Write::Label { namespace, uid, state }
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
        let success = json!({"kind": "Status", "apiVersion": "v1", "status": "Success", "code": 201});
        (201, success)
    };
    // Who went, and who stayed for what reason.
    let told = |outcome: Outcome| -> (Vec<String>, Vec<String>) {
        let Outcome::Evicted { gone, kept } = outcome else {
            panic!("{outcome:?}")
        };
        let kept = kept.into_iter().map(|(pod, why)| format!("{}: {why}", pod.name));
        (gone.into_iter().map(|pod| pod.name).collect(), kept.collect())
    };
    let (server, client) = Server::answering([(200, waits.clone()), done(), done(), done(), done()]);
    let both = (vec!["a".to_owned(), "b".to_owned()], vec![]);
    assert_eq!(told(send(&client, &evict()).await), both);
    let [a, b] = ["a", "b"].map(|pod| format!("POST /api/v1/namespaces/team/pods/{pod}/eviction"));
    let lines: Vec<String> = (0..5).map(|at| server.line(at)).collect();
    assert_eq!(lines, ["GET /api/v1/namespaces/rich/pods/w", &a, &b, &a, &b]);
    let sent = server.sent();
    let dry: Vec<bool> = sent.iter().map(|(_, path, _)| path.contains("dryRun=All")).collect();
    assert_eq!(dry, [false, true, true, false, false]);
    assert_eq!(server.body(3)["deleteOptions"]["preconditions"]["uid"], "uid-a");
    // Refused in the dry run: nobody is evicted.
    let (server, client) = Server::answering([(200, waits.clone()), done(), status(429)]);
    let none = (vec![], vec!["b: pod b of namespace team: because".to_owned()]);
    assert_eq!(told(send(&client, &evict()).await), none);
    assert_eq!(server.sent().len(), 3);
    // Refused after the dry runs: evicted pods are named; a pod that ended by itself is not.
    let answers = [(200, waits.clone()), done(), done(), status(404), status(500)];
    let (gone, kept) = told(outcome(&evict(), answers).await);
    assert_eq!((gone, kept.len()), (vec![], 1));
    // It is not known which evictions were performed.
    let answers = [(200, waits.clone()), done(), done(), done(), status(503)];
    assert_eq!(outcome(&evict(), answers).await, Outcome::Again);
    // Meanwhile the pod was bound, replaced by another one, or deleted.
    let mut bound = waits.clone();
    bound["spec"]["nodeName"] = json!("n");
    let mut another = waits;
    another["metadata"]["uid"] = json!("other");
    for answer in [(200, bound), (200, another), status(404)] {
        let (server, client) = Server::answering([answer]);
        assert_eq!(told(send(&client, &evict()).await), (vec![], vec![]));
        assert_eq!(server.sent().len(), 1);
    }
}

#[tokio::test]
async fn the_label_is_all_that_is_written_of_a_namespace() {
    let meta = json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": {"name": "team"}});
    for (state, value) in [
        (Some(BudgetState::OverBudget), json!("OverBudget")),
        (None, Value::Null),
    ] {
        let (server, client) = Server::answering([(200, meta.clone())]);
        assert_eq!(send(&client, &labels(state)).await, Outcome::Labelled);
        assert_eq!(server.line(0), "PATCH /api/v1/namespaces/team");
        let written = json!({"metadata": {"uid": "ns", "labels": {"dra.vgpu/quota": value}}});
        assert_eq!(server.body(0), written);
    }
    for (code, expected) in [(404, Outcome::Labelled), (409, Outcome::Again), (403, refused())] {
        assert_eq!(outcome(&labels(None), [status(code)]).await, expected, "{code}");
    }
}

#[tokio::test]
async fn a_stamp_is_created_or_lands_on_its_version() {
    let (server, client) = Server::answering([(201, object("8"))]);
    let made = send(&client, &stamp(None)).await;
    assert!(
        matches!(&made, Outcome::Quota(quota) if quota.version == "8"),
        "{made:?}"
    );
    assert_eq!(
        server.line(0),
        "POST /apis/dra.vgpu/v1alpha1/namespaces/team/vgpuquotas"
    );
    let body = server.body(0);
    assert_eq!(body["metadata"]["labels"], json!({"dra.vgpu/default": "teams"}));
    // The answer is recognised as stamped.
    let mut made = object("8");
    made["metadata"]["labels"] = body["metadata"]["labels"].clone();
    made["metadata"]["annotations"] = body["metadata"]["annotations"].clone();
    assert!(serde_json::from_value::<Quota>(made).unwrap().stamped.is_some());
    let (server, client) = Server::answering([(200, object("9"))]);
    send(&client, &stamp(Some(("u".into(), "8".into())))).await;
    let quota = "PATCH /apis/dra.vgpu/v1alpha1/namespaces/team/vgpuquotas/vgpu";
    assert_eq!(server.line(0), quota);
    let body = server.body(0);
    let written = body.as_array().unwrap().iter().map(|op| op["path"].as_str().unwrap());
    let fields = "/metadata/uid /metadata/resourceVersion /metadata/labels/dra.vgpu~1default \
                  /metadata/annotations/dra.vgpu~1default-spec /spec";
    assert_eq!(written.collect::<Vec<_>>().join(" "), fields);
    // An administrator was faster; the kind or the namespace is gone; a policy says no.
    for (code, expected) in [(409, Outcome::Again), (404, Outcome::Again), (403, refused())] {
        assert_eq!(outcome(&stamp(None), [status(code)]).await, expected, "{code}");
    }
}

#[tokio::test]
async fn a_term_begins_without_what_was_known_and_sends_nothing_of_another() {
    let clock = Arc::new(Clock::start());
    let until = clock.now().after(Duration::from_secs(60));
    let term = |epoch: &str| Term {
        epoch: epoch.into(),
        until,
    };
    let (terms, receiver) = watch::channel(Some(term("first")));
    let (server, client) = Server::answering([(200, object("8"))]);
    let lease = HeldLease::new(clock.clone(), receiver);
    let mut quotas = Quotas::new(
        client,
        clock,
        lease,
        Duration::from_secs(60),
        false,
        Arc::new(Health::new()),
    );
    quotas.lead(Some(&term("first")));
    assert_eq!(quotas.epoch(), Some("first"));
    let (sent, late) = (
        quotas.write("first".into(), write()),
        quotas.write("first".into(), write()),
    );
    assert!(matches!(sent.await.outcome, Outcome::Quota(_)));
    terms.send_replace(Some(term("second")));
    assert_eq!(late.await.outcome, Outcome::Dropped);
    assert_eq!(server.sent().len(), 1);
    quotas.lead(Some(&term("second")));
    assert_eq!(quotas.epoch(), Some("second"));
    quotas.lead(None);
    assert!(!quotas.is_leading());
}
