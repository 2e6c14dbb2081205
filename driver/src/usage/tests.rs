//! Requests to a stand-in API server, its answers, and how terms begin and end.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::watch;
use vgpu_api::usage::VgpuUsageStatus;
use vgpu_planner::Term;
use vgpu_planner::model::Version;

use super::plan::{Outcome, Write};
use super::share::Node;
use super::sum::digest;
use super::writes::send;
use super::{Change, HeldLease, Usages};
use crate::fake_api::{Server, status};
use crate::http::Health;
use crate::leader::Leader;
use crate::leader::clock::Clock;
use crate::watch::Changes;

fn object(namespace: &str, status: &Value) -> Value {
    json!({"apiVersion": "dra.vgpu/v1alpha1", "kind": "VgpuUsage", "spec": {}, "status": status,
        "metadata": {"name": "vgpu", "namespace": namespace, "resourceVersion": "1", "uid": "u"}})
}

fn set() -> Write {
    let status = VgpuUsageStatus {
        shares: 2,
        ..VgpuUsageStatus::default()
    };
    Write::Set {
        namespace: "team".into(),
        status: Box::new(status),
    }
}

fn delete() -> Write {
    Write::Delete {
        namespace: "team".into(),
    }
}

#[tokio::test]
async fn one_request_creates_or_replaces_an_object() {
    let (server, client) = Server::answering([(200, object("team", &json!({})))]);
    assert_eq!(send(&client, &set()).await, Outcome::Done);
    let (method, path, body) = server.sent()[0].clone();
    assert_eq!(method, "PATCH");
    let expected = "/apis/dra.vgpu/v1alpha1/namespaces/team/vgpuusages/vgpu?&force=true&fieldManager=vgpu-controller";
    assert_eq!(path, expected);
    assert_eq!(body["kind"], "VgpuUsage");
    assert_eq!(body["status"]["shares"], 2);
}

#[tokio::test]
async fn answers_mean_what_they_say() {
    let terminating = status(403, "namespace team is being terminated");
    for (write, answer, expected) in [
        (set(), status(404, "no namespace, or no kind"), Outcome::Failed),
        (set(), terminating, Outcome::Failed),
        (set(), status(500, "oh"), Outcome::Failed),
        (delete(), status(404, "it is gone"), Outcome::Done),
        (delete(), status(500, "oh"), Outcome::Failed),
        (Write::List, status(404, "no kind"), Outcome::Failed),
    ] {
        let (_, client) = Server::answering([answer.clone()]);
        assert_eq!(send(&client, &write).await, expected, "{write:?} {answer:?}");
    }
}

#[tokio::test]
async fn a_list_comes_in_parts_and_an_object_that_cannot_be_read_is_in_it() {
    let good = json!({"asOf": "2026-11-28T00:00:00Z", "shares": 2, "memory": {"held": "20Gi", "used": "0"}});
    let list = |items: Value, token: Value| {
        let list = json!({"apiVersion": "dra.vgpu/v1alpha1", "kind": "VgpuUsageList", "items": items,
            "metadata": {"resourceVersion": "9", "continue": token}});
        (200, list)
    };
    let mut foreign = object("foreign", &good);
    foreign["metadata"]["name"] = json!("mine");
    let (server, client) = Server::answering([
        list(json!([object("a", &good), foreign]), json!("next")),
        list(json!([object("b", &json!({"shares": 5_000_000_000_u64}))]), json!("")),
    ]);
    let later: VgpuUsageStatus = serde_json::from_value(good).unwrap();
    let later = VgpuUsageStatus {
        as_of: "2026-11-29T00:00:00Z".into(),
        ..later
    };
    let expected = vec![("a".to_owned(), digest(&later)), ("b".to_owned(), 0)];
    assert_eq!(send(&client, &Write::List).await, Outcome::Listed(expected));
    let paths: Vec<String> = server.sent().into_iter().map(|(_, path, _)| path).collect();
    assert!(paths[0].ends_with("vgpuusages?&limit=20"), "{paths:?}");
    assert!(paths[1].contains("continue=next"), "{paths:?}");
}

#[tokio::test]
async fn nothing_is_sent_once_the_term_is_over() {
    let clock = Arc::new(Clock::start());
    let term = |epoch: &str| {
        Some(Term {
            epoch: epoch.into(),
            until: clock.now().after(Duration::from_secs(60)),
        })
    };
    let (terms, receiver) = watch::channel(term("e"));
    let (server, client) = Server::answering([(200, object("team", &json!({})))]);
    let lease = HeldLease::new(clock.clone(), receiver);
    let health = Arc::new(Health::new());
    let usages = Usages::new(client, clock.clone(), lease, health.clone());
    assert_eq!(usages.write("e".into(), set()).await.outcome, Outcome::Done);
    terms.send_replace(term("another"));
    assert_eq!(usages.write("e".into(), set()).await.outcome, Outcome::Failed);
    assert_eq!(server.sent().len(), 1);
    let text = health.metrics.text();
    let counted = r#"usage_writes_total{intent="set",outcome="dropped"} 1"#;
    assert!(text.contains(counted), "{text}");
}

/// The ends of the lists of the state's kinds, without objects.
fn empty_cluster() -> [vgpu_planner::Change; 6] {
    let version = Version::default();
    [
        vgpu_planner::Change::Pods { keys: Vec::new() },
        vgpu_planner::Change::Nodes { names: Vec::new() },
        vgpu_planner::Change::Classes { names: Vec::new() },
        vgpu_planner::Change::Rules(Vec::new()),
        vgpu_planner::Change::Slices {
            names: Vec::new(),
            version,
        },
        vgpu_planner::Change::Claims {
            claims: Vec::new(),
            same: Vec::new(),
            version,
            read: None,
        },
    ]
}

#[tokio::test]
async fn a_leader_in_scheduler_mode_lists_the_objects_and_writes_what_nodes_report() {
    let clock = Arc::new(Clock::start());
    let (terms, receiver) = watch::channel(None);
    let list = json!({"apiVersion": "dra.vgpu/v1alpha1", "kind": "VgpuUsageList", "items": [], "metadata": {}});
    let (server, client) = Server::answering([(200, list), (200, object("team", &json!({})))]);
    let lease = HeldLease::new(clock.clone(), receiver);
    let usages = Usages::new(client, clock.clone(), lease.clone(), Arc::new(Health::new()));
    let mut leader = Leader::new(Some(lease), None, None, None, Some(usages));
    assert!(leader.interest().usage);
    let share = json!({"namespace": "team", "claim": "c", "device": "gpu-0", "memory": "1Gi"});
    let node = Node::read(&serde_json::from_value(json!({"shares": [share]})).unwrap());
    let name = "n".to_owned();
    for change in [
        Change::Node {
            name: name.clone(),
            node,
        },
        Change::Nodes { names: vec![name] },
    ] {
        leader.apply(Changes {
            usage: Some(change),
            ..Changes::default()
        });
    }
    for change in empty_cluster() {
        leader.tell_usages();
        leader.apply(Changes::of_state(Some(change), false));
    }
    // Without the lease nothing is sent.
    leader.tell_usages();
    leader.turn().await.unwrap();
    assert_eq!(server.sent().len(), 0);
    terms.send_replace(Some(Term {
        epoch: "e".into(),
        until: clock.now().after(Duration::from_secs(60)),
    }));
    while server.sent().len() < 2 {
        leader.turn().await.unwrap();
        leader.tell_usages();
    }
    let kind = "/apis/dra.vgpu/v1alpha1";
    assert_eq!(server.line(0), format!("GET {kind}/vgpuusages"));
    assert_eq!(server.line(1), format!("PATCH {kind}/namespaces/team/vgpuusages/vgpu"));
    let memory = &server.body(1)["status"]["memory"];
    assert_eq!(*memory, json!({"held": "1Gi"}), "what it uses is not known");
}
