//! Which pods get their annotations, once, and what is missing where they get none yet.

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::ResourceClaim;
use serde_json::{Value, json};
use vgpu_api::PodRef;
use vgpu_dialects::{Settings as Dialects, translate};
use vgpu_reconciler::{Change, Gpus, LEGACY_VIEW, NotYet, Outcome, Settings, Write, claim_names, legacy_patch};

mod support;

use support::{Api, Replica, fixed, seconds, shown, slice};

/// A translated pod, as it is once kube-scheduler has bound it.
fn bound(mut pod: Pod, at: &str) -> Pod {
    let spec = pod.spec.as_mut().unwrap();
    spec.node_name = Some("n1".to_owned());
    let statuses: Vec<Value> = spec
        .resource_claims
        .iter()
        .flatten()
        .map(|claim| json!({"name": claim.name, "resourceClaimName": format!("p-{}", claim.name)}))
        .collect();
    let status = json!({"phase": "Pending", "resourceClaimStatuses": statuses, "conditions": [
        {"type": "PodScheduled", "status": "True", "lastTransitionTime": at}]});
    pod.status = Some(serde_json::from_value(status).unwrap());
    pod
}

/// The claim of a pod, allocated and reserved.
fn claim(pod: &Pod, device: &str, memory: &str, cores: &str) -> ResourceClaim {
    let name = claim_names(pod).next().unwrap();
    serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": "team", "uid": "c"},
        "spec": {},
        "status": {"reservedFor": [{"resource": "pods", "name": "p", "uid": pod.metadata.uid}],
            "allocation": {"devices": {"results": [
                {"request": "nic", "driver": "nic.example.com", "pool": "n1", "device": "nic-0"},
                {"request": "gpu", "driver": "dra.vgpu", "pool": "n1", "device": device, "shareID": "s",
                    "consumedCapacity": {"memory": memory, "cores": cores, "shares": "1"}}]}}},
    }))
    .unwrap()
}

fn gpus() -> Gpus {
    let mut gpus = Gpus::default();
    gpus.set(&slice("n1", &[80, 80]), seconds(0));
    gpus
}

const AT: &str = "2026-11-23T00:00:00Z";

#[test]
fn a_bound_pod_gets_what_its_dialect_promises() {
    let pod = bound(fixed("a"), AT);
    let patch = legacy_patch(&pod, &[claim(&pod, "gpu-1", "4Gi", "30")], &gpus());
    assert_eq!(
        patch,
        Ok(Some(json!({"metadata": {
            "uid": "uid-a",
            "labels": {"hami.io/vgpu-node": "n1"},
            "annotations": {
                LEGACY_VIEW: "uid-a",
                "hami.io/bind-phase": "success",
                "hami.io/bind-time": "1795392000",
                "hami.io/vgpu-devices-allocated": "GPU-n1-1,NVIDIA,4096,30:;",
                "hami.io/vgpu-node": "n1",
                "hami.io/vgpu-time": "1795392000",
            },
        }})))
    );
}

/// From Kubernetes 1.38 on a result may have the names with our domain.
#[test]
fn amounts_are_found_under_both_names() {
    let pod = bound(fixed("a"), AT);
    let mut allocated = claim(&pod, "gpu-1", "4Gi", "30");
    let short = legacy_patch(&pod, std::slice::from_ref(&allocated), &gpus());
    let devices = allocated
        .status
        .as_mut()
        .and_then(|status| status.allocation.as_mut()?.devices.as_mut());
    for result in devices.unwrap().results.iter_mut().flatten() {
        let consumed = result.consumed_capacity.take().into_iter().flatten();
        result.consumed_capacity = Some(
            consumed
                .map(|(name, amount)| (format!("dra.vgpu/{name}"), amount))
                .collect(),
        );
    }
    assert_eq!(legacy_patch(&pod, &[allocated], &gpus()), short);
}

/// An instance that is not shared has no consumed capacity.
#[test]
fn an_instance_has_all_of_its_memory_and_cores() {
    let mut instances = slice("n1", &[80, 39]);
    let devices = instances.spec.devices.as_mut().unwrap();
    let attributes = devices[1].attributes.as_mut().unwrap();
    attributes.insert("type".into(), serde_json::from_value(json!({"string": "mig"})).unwrap());
    attributes.insert(
        "parentUUID".into(),
        serde_json::from_value(json!({"string": "GPU-p"})).unwrap(),
    );
    let mut gpus = Gpus::default();
    gpus.set(&instances, seconds(0));
    let pod = bound(support::hami("a", json!({"nvidia.com/mig-3g.40gb": "1"})), AT);
    let mut allocated = claim(&pod, "gpu-1", "1Gi", "0");
    let status = allocated.status.as_mut().unwrap();
    let devices = status.allocation.as_mut().unwrap().devices.as_mut().unwrap();
    for result in devices.results.iter_mut().flatten() {
        result.consumed_capacity = None;
        result.share_id = None;
    }
    let patch = legacy_patch(&pod, &[allocated], &gpus).unwrap().unwrap();
    assert_eq!(
        patch["metadata"]["annotations"]["hami.io/vgpu-devices-allocated"],
        "GPU-n1-1,NVIDIA,39936,100:;"
    );
}

#[test]
fn a_whole_gpu_has_all_cores() {
    let written = json!({"metadata": {"name": "a", "namespace": "team", "uid": "uid-a"}, "spec": {"containers": [
        {"name": "main", "image": "cuda", "resources": {"limits": {"koordinator.sh/gpu": "100"}}}]}});
    let pod = translate(&serde_json::from_value(written).unwrap(), &Dialects::default())
        .unwrap()
        .unwrap()
        .pod;
    let pod = bound(pod, AT);
    let patch = legacy_patch(&pod, &[claim(&pod, "gpu-0", "80Gi", "0")], &gpus())
        .unwrap()
        .unwrap();
    let allocated = &patch["metadata"]["annotations"]["scheduling.koordinator.sh/device-allocated"];
    assert!(
        allocated
            .as_str()
            .unwrap()
            .contains(r#""koordinator.sh/gpu-core":"100""#),
        "{allocated}"
    );
    assert_eq!(patch["metadata"]["labels"], Value::Null);
}

#[test]
fn a_node_whose_name_no_label_can_hold_is_in_the_annotation_alone() {
    let mut pod = bound(fixed("a"), AT);
    let node = "n".repeat(64);
    pod.spec.as_mut().unwrap().node_name = Some(node.clone());
    let patch = legacy_patch(&pod, &[claim(&pod, "gpu-1", "4Gi", "0")], &gpus())
        .unwrap()
        .unwrap();
    assert_eq!(patch["metadata"]["annotations"]["hami.io/vgpu-node"], json!(node));
    assert_eq!(patch["metadata"]["labels"], Value::Null);
}

#[test]
fn the_same_is_written_once_and_a_copy_of_the_manifest_gets_its_own() {
    let mut pod = bound(fixed("a"), AT);
    let claims = [claim(&pod, "gpu-1", "4Gi", "0")];
    let first = legacy_patch(&pod, &claims, &gpus()).unwrap().unwrap();
    assert_eq!(
        legacy_patch(&pod, &claims, &gpus()).unwrap().unwrap(),
        first,
        "whoever leads"
    );
    let written: std::collections::BTreeMap<String, String> =
        serde_json::from_value(first["metadata"]["annotations"].clone()).unwrap();
    pod.metadata.annotations.as_mut().unwrap().extend(written);
    assert_eq!(legacy_patch(&pod, &claims, &gpus()), Ok(None));
    pod.metadata.uid = Some("uid-of-the-copy".to_owned());
    let mut claims = claims;
    let status = claims[0].status.as_mut().unwrap();
    status.reserved_for.as_mut().unwrap()[0].uid = "uid-of-the-copy".to_owned();
    assert!(matches!(legacy_patch(&pod, &claims, &gpus()), Ok(Some(_))));
}

#[test]
fn what_is_missing_is_named() {
    let pod = bound(fixed("a"), AT);
    let whole = claim(&pod, "gpu-1", "4Gi", "0");
    let why = |pod: &Pod, claims: &[ResourceClaim]| legacy_patch(pod, claims, &gpus()).unwrap_err();
    assert_eq!(why(&fixed("a"), std::slice::from_ref(&whole)), NotYet::NotBound);
    let mut unnamed = pod.clone();
    unnamed.status.as_mut().unwrap().resource_claim_statuses = None;
    assert!(matches!(
        why(&unnamed, std::slice::from_ref(&whole)),
        NotYet::NoClaim(_)
    ));
    let mut not_scheduled = pod.clone();
    not_scheduled.status.as_mut().unwrap().conditions = None;
    assert_eq!(why(&not_scheduled, std::slice::from_ref(&whole)), NotYet::NotBound);
    let mut unallocated = whole.clone();
    unallocated.status.as_mut().unwrap().allocation = None;
    let mut of_another = whole.clone();
    of_another.status.as_mut().unwrap().reserved_for.as_mut().unwrap()[0].uid = "another".into();
    for claims in [vec![], vec![unallocated], vec![of_another]] {
        assert!(matches!(why(&pod, &claims), NotYet::NotAllocated(_)), "{claims:?}");
    }
    let unknown = claim(&pod, "gpu-7", "4Gi", "0");
    let device = NotYet::NoDevice {
        pool: "n1".into(),
        device: "gpu-7".into(),
    };
    assert_eq!(why(&pod, &[unknown]), device);
    let negative = claim(&pod, "gpu-1", "-4Gi", "0");
    assert!(matches!(why(&pod, &[negative]), NotYet::NoAmount { key: "memory", .. }));
}

fn at(name: &str) -> PodRef {
    PodRef {
        namespace: "team".into(),
        name: name.into(),
        uid: format!("uid-{name}"),
    }
}

/// The pods that get their annotations in a plan now.
fn gives(replica: &mut Replica) -> Vec<PodRef> {
    let writes = replica.plan().writes.into_iter();
    writes
        .filter_map(|write| match write {
            Write::GiveBack(pod) => Some(pod),
            _ => None,
        })
        .collect()
}

#[test]
fn the_leader_gives_back_to_each_bound_pod_once() {
    let api = Api::with_gpus(&[80]);
    let mut leader = Replica::leading(&api);
    let set = |leader: &mut Replica, pod: &Pod| {
        let name = pod.metadata.name.clone().unwrap();
        leader.reconciler.apply(shown(&format!("team/{name}"), pod), leader.now);
        gives(leader)
    };
    assert_eq!(set(&mut leader, &fixed("a")), [], "it is not bound");
    let pod = bound(fixed("a"), AT);
    assert_eq!(set(&mut leader, &pod), [at("a")]);
    assert_eq!(set(&mut leader, &pod), [], "it is under way");
    let task = Write::GiveBack(at("a")).task();
    // Its claim's device is not known yet: tried again after a pause.
    leader.reconciler.report(&task, Outcome::Again, leader.now);
    assert_eq!(gives(&mut leader), []);
    leader.now += seconds(1);
    assert_eq!(gives(&mut leader), [at("a")]);
    leader.reconciler.report(&task, Outcome::LegacyView, leader.now);
    leader.now += seconds(3_600);
    assert_eq!(gives(&mut leader), []);
    // The pod changes otherwise, before the watch shows the annotation.
    let mut labelled = pod.clone();
    labelled.metadata.labels = Some([("app".to_owned(), "x".to_owned())].into());
    assert_eq!(set(&mut leader, &labelled), []);
    let mut done = pod.clone();
    done.metadata
        .annotations
        .as_mut()
        .unwrap()
        .insert(LEGACY_VIEW.to_owned(), "uid-a".to_owned());
    assert_eq!(set(&mut leader, &done), []);

    // Another pod with the same name, to which the annotation does not apply.
    let mut next = done;
    next.metadata.uid = Some("uid-second".to_owned());
    let second = PodRef {
        uid: "uid-second".into(),
        ..at("a")
    };
    assert_eq!(set(&mut leader, &next), [second]);
}

#[test]
fn who_does_not_lead_or_is_over_or_did_not_opt_in_gets_nothing() {
    let mut api = Api::with_gpus(&[80]);
    api.set_pod(bound(fixed("a"), AT));
    let mut over = bound(fixed("b"), AT);
    over.metadata.deletion_timestamp = Some(serde_json::from_value(json!(AT)).unwrap());
    api.set_pod(over);
    let mut standby = Replica::of(&api, Settings::default(), false);
    assert_eq!(gives(&mut standby), []);
    standby.reconciler.apply(Change::Leads(true), standby.now);
    assert_eq!(gives(&mut standby), [at("a")]);
    api.namespaces.clear();
    let mut elsewhere = Replica::leading(&api);
    assert_eq!(gives(&mut elsewhere), []);
}
