//! Requests to a stand-in API server: their form, and the meaning of each answer.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use kube::Client;
use serde_json::{Value, json};
use tokio::sync::{oneshot, watch};
use vgpu_allocator::Features;
use vgpu_allocator::model::Allocation;
use vgpu_api::config::AllocationPolicy;
use vgpu_planner::model::{Consumer, Version};
use vgpu_planner::{self as planner, Intent, Planner, Read, Seen, Settings, Term, Time, WriteId};

use super::writer::send;
use super::{Done, Placer, reads};
use crate::decode;
use crate::fake_api::{Server, parts, response, status};
use crate::http::Health;
use crate::leader::HeldLease;
use crate::leader::clock::Clock;
use crate::leader::elect::Election;

fn claim(name: &str, version: u64) -> Value {
    json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "spec": {},
        "metadata": {"name": name, "namespace": "ns", "uid": "u", "resourceVersion": version.to_string()}})
}

fn hold() -> Consumer {
    Consumer {
        api_group: "dra.vgpu".into(),
        resource: "holds".into(),
        name: "p".into(),
        uid: "hold-u".into(),
    }
}

fn write(decided: Time, intent: Intent) -> planner::Write {
    planner::Write {
        id: WriteId(1),
        namespace: "ns".into(),
        name: "c".into(),
        uid: "u".into(),
        version: Version(7),
        decided,
        epoch: "mine".into(),
        intent,
    }
}

#[tokio::test]
async fn every_write_lands_on_its_version_alone() {
    let precondition = json!({"uid": "u", "resourceVersion": "7"});
    let gone = json!([{"$patch": "delete", "uid": "hold-u"}]);
    let mark = json!({"metadata": {"uid": "u", "resourceVersion": "7", "annotations": {"dra.vgpu/epoch": "mine#7"},
        "finalizers": ["resource.kubernetes.io/delete-protection"]}});
    let allocation = Allocation::default();
    let given = json!({"allocation": serde_json::to_value(&allocation).unwrap(), "reservedFor": [
        {"apiGroup": "dra.vgpu", "resource": "holds", "name": "p", "uid": "hold-u"}]});
    for (intent, is_status, patch) in [
        (Intent::Mark { epoch: "mine#7".into() }, false, mark),
        (
            Intent::Allocate {
                allocation: Arc::new(allocation),
                hold: hold(),
                policy: AllocationPolicy::Binpack,
            },
            true,
            json!({"metadata": precondition, "status": given}),
        ),
        (
            Intent::Release { hold: hold() },
            true,
            json!({"metadata": precondition, "status": {"reservedFor": gone}}),
        ),
        (
            Intent::Clear { hold: Some(hold()) },
            true,
            json!({"metadata": precondition, "status": {"allocation": null, "reservedFor": gone}}),
        ),
        (
            Intent::Clear { hold: None },
            true,
            json!({"metadata": precondition, "status": {"allocation": null}}),
        ),
    ] {
        let (server, client) = Server::answering([(200, claim("c", 8))]);
        match send(&client, &write(Time::default(), intent)).await {
            planner::Outcome::Done(claim) => assert_eq!(claim.version, Version(8)),
            other => panic!("{other:?}"),
        }
        let [(method, path, body)] = &server.sent()[..] else {
            panic!("one request");
        };
        let path = path.split('?').next().unwrap();
        let base = "/apis/resource.k8s.io/v1/namespaces/ns/resourceclaims/c";
        let expected = if is_status {
            format!("{base}/status")
        } else {
            base.to_owned()
        };
        assert_eq!((method.as_str(), path, body), ("PATCH", expected.as_str(), &patch));
    }
}

#[tokio::test]
async fn an_answer_is_sorted_by_what_it_means_for_the_claim() {
    let write = write(Time::default(), Intent::Clear { hold: None });
    for (code, expected) in [
        (409, planner::Outcome::Conflict),
        (404, planner::Outcome::Conflict),
        (403, planner::Outcome::Refused("no".into())),
        (422, planner::Outcome::Refused("no".into())),
        (401, planner::Outcome::Unknown),
        (429, planner::Outcome::Unknown),
        (500, planner::Outcome::Unknown),
        (504, planner::Outcome::Unknown),
    ] {
        // As often as it may be tried.
        let (_, client) = Server::answering(std::iter::repeat_n(status(code, "no"), 20));
        assert_eq!(send(&client, &write).await, expected, "{code}");
    }
    let (server, client) = Server::answering([]);
    assert_eq!(send(&client, &write).await, planner::Outcome::Unknown, "no answer");
    assert_eq!(server.sent().len(), 1);
}

#[tokio::test]
async fn a_decision_of_another_term_or_an_old_one_is_not_sent() {
    let (server, client) = Server::answering([(200, claim("c", 8))]);
    let clock = Arc::new(Clock::start());
    let now = clock.now();
    let until = now.after(Duration::from_secs(60));
    let outcome = async |epoch: &str, decided| {
        let epoch = epoch.to_owned();
        let lease = HeldLease::new(clock.clone(), watch::channel(Some(Term { epoch, until })).1);
        let metrics = Health::new().metrics.decisions.clone();
        let placer = Placer::new(client.clone(), clock.clone(), lease, Settings::default(), metrics);
        match placer.write(write(decided, Intent::Clear { hold: None })).await {
            Done::Wrote { outcome, .. } => outcome,
            Done::Read(_) => panic!("a read"),
        }
    };
    assert_eq!(outcome("another", now).await, planner::Outcome::Dropped);
    assert_eq!(
        outcome("mine", Time::from_millis(now.millis() - 11_000)).await,
        planner::Outcome::Dropped
    );
    assert!(server.sent().is_empty());
    assert!(matches!(outcome("mine", now).await, planner::Outcome::Done(_)));
}

fn page(names: &[&str], version: &str, next: &str) -> (u16, Value) {
    let items: Vec<Value> = names.iter().map(|name| claim(name, 3)).collect();
    let body = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimList",
        "metadata": {"resourceVersion": version, "continue": next}, "items": items});
    (200, body)
}

#[tokio::test]
async fn a_list_is_of_one_version() {
    let clock = Clock::start();
    let (server, client) = Server::answering([page(&["a", "b"], "9", "next"), page(&["c"], "9", "")]);
    let begun = clock.now();
    let known: decode::Claim = serde_json::from_value(claim("b", 3)).unwrap();
    let mut planner = Planner::new(Settings::default(), Features::default(), Box::new(String::new));
    planner.apply(planner::Change::Claim(known.body.unwrap()), clock.now());
    let listed = reads::read(&client, &clock, &Read::Claims, &planner.state().seen()).await;
    let Ok(planner::Change::Claims {
        claims,
        same,
        version,
        read,
    }) = listed
    else {
        panic!("no list");
    };
    assert_eq!(same, ["ns/b"], "not kept twice");
    assert_eq!((claims.len(), version), (2, Version(9)));
    assert!(read.is_some_and(|read| read >= begun));
    let paths: Vec<String> = server.sent().into_iter().map(|(_, path, _)| path).collect();
    assert!(paths.iter().all(|path| !path.contains("resourceVersion=")), "{paths:?}");
    assert!(paths[1].contains("continue=next"), "{paths:?}");
    let (_, client) = Server::answering([page(&["a"], "9", "next"), page(&["c"], "10", "")]);
    let error = reads::read(&client, &clock, &Read::Claims, &Seen::default())
        .await
        .unwrap_err();
    assert!(error.to_string().contains("9 and 10"), "{error}");
}

#[tokio::test]
async fn a_slice_that_is_not_there_is_gone() {
    let clock = Clock::start();
    let ask = Read::Slice("s".into());
    let (_, client) = Server::answering([status(404, "no")]);
    let gone = reads::read(&client, &clock, &ask, &Seen::default()).await;
    assert!(matches!(gone, Ok(planner::Change::SliceGone { name, .. }) if name == "s"));
    let slice = json!({"metadata": {"name": "s", "resourceVersion": "4"}, "spec": {"driver": "dra.vgpu"}});
    let (_, client) = Server::answering([(200, slice)]);
    let read = reads::read(&client, &clock, &ask, &Seen::default()).await;
    assert!(matches!(read, Ok(planner::Change::Slice { .. })));
}

/// One Lease, with versions.
fn lease_server() -> Client {
    let kept: Arc<Mutex<Option<Value>>> = Arc::default();
    let version = Arc::new(Mutex::new(0));
    let router = Router::new().fallback(async move |request: Request<Body>| {
        let (method, _, mut body) = parts(request).await;
        let mut kept = kept.lock().unwrap();
        let known = kept.as_ref().map(|lease| lease["metadata"]["resourceVersion"].clone());
        match (method.as_str(), known) {
            ("GET", None) => return response(404, &status(404, "no").1),
            ("GET", Some(_)) => {}
            ("POST", None) => body["metadata"]["resourceVersion"] = Value::Null,
            ("PUT", Some(known)) if body["metadata"]["resourceVersion"] == known => {}
            _ => return response(409, &status(409, "no").1),
        }
        if method != "GET" {
            let mut version = version.lock().unwrap();
            *version += 1;
            body["metadata"]["resourceVersion"] = json!(version.to_string());
            *kept = Some(body);
        }
        response(200, kept.as_ref().unwrap())
    });
    Client::new(router, "default")
}

#[tokio::test]
async fn one_leads_and_the_other_follows_when_it_ends() {
    let client = lease_server();
    let clock = Arc::new(Clock::start());
    let begin = |instance: &str| {
        let (election, term) = Election::new(&client, "ns", "name", instance, clock.clone());
        let (stop, stopped) = oneshot::channel::<()>();
        let task = tokio::spawn(election.run(async { drop(stopped.await) }));
        (term, stop, task)
    };
    let (mut first, stop, task) = begin("first");
    let led = first.wait_for(Option::is_some).await.unwrap().clone().unwrap();
    let (mut second, stop_second, second_task) = begin("second");
    let waited = tokio::time::timeout(Duration::from_secs(3), second.wait_for(Option::is_some));
    assert!(waited.await.is_err(), "two lead");
    assert_eq!(
        first.borrow().as_ref().map(|term| &term.epoch),
        Some(&led.epoch),
        "it is renewed"
    );
    drop(stop);
    task.await.unwrap();
    assert!(first.borrow().is_none());
    let follows = second.wait_for(Option::is_some).await.unwrap().clone().unwrap();
    assert_ne!(follows.epoch, led.epoch);
    drop(stop_second);
    second_task.await.unwrap();
}
