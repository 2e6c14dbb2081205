//! Requests to a stand-in API server, and its answers.

use std::sync::Arc;

use k8s_openapi::api::resource::v1::{ResourceClaimTemplate, ResourceSlice};
use serde_json::{Value, json};
use tokio::sync::watch;
use vgpu_api::PodRef;
use vgpu_planner::Term;
use vgpu_reconciler::{self as reconciler, Gpus, Key, Notice, Now, Outcome, Settings};

use super::writes::send;
use super::{HeldLease, Translator, reported};
use crate::fake_api::{Server, status};
use crate::leader::clock::Clock;
use vgpu_planner::explain::MessageKind;

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

fn create() -> reconciler::Write {
    let template: ResourceClaimTemplate = serde_json::from_value(template(json!({}))).unwrap();
    reconciler::Write::Create {
        key: key(),
        template: Box::new(template),
    }
}

fn delete() -> reconciler::Write {
    reconciler::Write::Delete {
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

/// What becomes of the write if this is the answer.
async fn outcome(write: reconciler::Write, answer: (u16, Value)) -> Outcome {
    send(&Server::answering([answer]).1, &write, &Gpus::default()).await
}

#[tokio::test]
async fn a_deletion_is_of_one_version_and_answers_mean_what_they_say() {
    let (server, client) = Server::answering([(200, template(json!({})))]);
    assert_eq!(send(&client, &delete(), &Gpus::default()).await, Outcome::Deleted);
    let (method, path, body) = server.sent()[0].clone();
    assert_eq!(method, "DELETE");
    let expected = "/apis/resource.k8s.io/v1/namespaces/team/resourceclaimtemplates/vgpu-translated-1?";
    assert_eq!(path, expected);
    assert_eq!(body["preconditions"], json!({"uid": "t", "resourceVersion": "7"}));

    let give_back = || reconciler::Write::GiveBack(at());
    for (write, answer, expected) in [
        (create(), status(409, "it exists"), Outcome::Exists),
        (create(), status(403, "quota"), Outcome::Refused("quota".into())),
        (create(), status(429, "later"), Outcome::Again),
        (create(), status(500, "oh"), Outcome::Again),
        (delete(), status(409, "another version"), Outcome::Again),
        (delete(), status(404, "not there"), Outcome::Again),
        (delete(), status(403, "no"), Outcome::Refused("no".into())),
        (give_back(), status(404, "not there"), Outcome::Again),
    ] {
        let said = format!("{write:?} {answer:?}");
        assert_eq!(outcome(write, answer).await, expected, "{said}");
    }
    let ours = json!({"dra.vgpu/translated": "true"});
    let created = outcome(create(), (201, template(ours))).await;
    assert!(
        matches!(&created, Outcome::Created(template) if template.uid == "t" && template.hash == "abc"),
        "{created:?}"
    );
    let unlabelled = outcome(create(), (201, template(json!({})))).await;
    assert!(matches!(unlabelled, Outcome::Refused(_)), "{unlabelled:?}");
}

/// A pod of KAI's with half a GPU, bound, and its claim.
pub(crate) fn bound() -> (Value, Value, Gpus) {
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
    let give_back = async |answers: Vec<(u16, Value)>| {
        let (server, client) = Server::answering(answers);
        let outcome = send(&client, &reconciler::Write::GiveBack(at()), &gpus).await;
        (server, outcome)
    };
    let (server, outcome) = give_back(vec![(200, pod.clone()), (200, claim), (200, pod.clone())]).await;
    assert_eq!(outcome, Outcome::LegacyView);
    let lines: Vec<String> = (0..server.sent().len()).map(|at| server.line(at)).collect();
    let expected = [
        "GET /api/v1/namespaces/team/pods/p",
        "GET /apis/resource.k8s.io/v1/namespaces/team/resourceclaims/p-claim",
        "PATCH /api/v1/namespaces/team/pods/p",
    ];
    assert_eq!(lines, expected);
    assert_eq!(
        server.body(2),
        json!({"metadata": {"uid": "u", "annotations": {"dra.vgpu/legacy-view": "u", "received-resource-type": "Fraction"}}})
    );
    // Another pod by that name.
    let mut other = pod.clone();
    other["metadata"]["uid"] = json!("another");
    let (server, outcome) = give_back(vec![(200, other)]).await;
    assert_eq!((outcome, server.sent().len()), (Outcome::Again, 1));
    // Nothing is written for a pod that has its annotations.
    let mut done = pod;
    done["metadata"]["annotations"]["dra.vgpu/legacy-view"] = json!("u");
    let (server, outcome) = give_back(vec![(200, done)]).await;
    assert_eq!((outcome, server.sent().len()), (Outcome::LegacyView, 1));
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
    let (server, client) = Server::answering([status(403, "no"), status(403, "no")]);
    let lease = HeldLease::new(clock.clone(), receiver);
    let translator = Translator::new(client, clock.clone(), lease, Settings::default());
    assert!(matches!(translator.write(delete()).await, (_, Outcome::Refused(_))));
    terms.send_replace(term(clock.now()));
    assert!(matches!(translator.write(delete()).await, (_, Outcome::Dropped)));
    assert_eq!(server.sent().len(), 1);
}

#[test]
fn a_notice_becomes_an_event_on_its_pod() {
    let template = "vgpu-translated-1".to_owned();
    let reported = reported(at(), &Notice::NoGpu { template });
    let (topic, message) = (reported.topic, reported.message);
    assert_eq!((topic.about.key().as_str(), topic.about.uid.as_str()), ("team/p", "u"));
    assert_eq!(message.kind, MessageKind::Decided("VgpuClaimPending"));
    let words = "template vgpu-translated-1 waits: ";
    assert!(message.text.starts_with(words), "{}", message.text);
}
