//! What users, plugins and failing nodes do to a cluster.

use serde_json::{Value, json};
use vgpu_allocator::model::ResourceSlice;
use vgpu_planner::model::{Claim, Consumer, Node, Pod, PodClaim};
use vgpu_planner::names::{CONTROLLER, DRIVER, RELEASED, TAINT_KEY};

use super::api::Api;
use super::random::Random;

pub(crate) const NODES: usize = 3;
const GPUS: usize = 2;
const NAMESPACE: &str = "ns";
const MOST_PODS: usize = 14;

fn read<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).expect("hand-made objects are well formed")
}

pub(crate) fn node(at: usize) -> Node {
    let name = format!("n{at}");
    let zone = if at.is_multiple_of(2) { "even" } else { "odd" };
    read(
        json!({"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, "zone": zone}},
        "status": {"allocatable": {"cpu": "8"}}}),
    )
}

/// Two GPUs of 8 and 100, and a monitor.
pub(crate) fn slice(at: usize, taint: Option<(&str, String)>) -> ResourceSlice {
    let taints = match taint {
        Some((value, added)) => {
            json!([{"key": TAINT_KEY, "value": value, "effect": "NoSchedule", "timeAdded": added}])
        }
        None => json!([]),
    };
    let gpu = |index: usize| {
        json!({"name": format!("gpu-{index}"), "allowMultipleAllocations": true, "attributes": {"type": {"string": "gpu"}},
            "taints": taints, "capacity": {
                "memory": {"value": "8", "requestPolicy": {"default": "8", "validRange": {"min": "1", "step": "1"}}},
                "cores": {"value": "100", "requestPolicy": {"default": "0", "validRange": {"min": "0", "step": "1"}}}}})
    };
    let mut devices: Vec<Value> = (0..GPUS).map(gpu).collect();
    devices.push(json!({"name": "gpu-0-monitor", "attributes": {"type": {"string": "monitor"}}}));
    read(
        json!({"metadata": {"name": format!("n{at}-vgpu")}, "spec": {"driver": DRIVER, "nodeName": format!("n{at}"),
        "pool": {"name": format!("n{at}/vgpu"), "generation": 1, "resourceSliceCount": 1}, "devices": devices}}),
    )
}

fn nics(at: usize) -> ResourceSlice {
    read(
        json!({"metadata": {"name": format!("n{at}-nic")}, "spec": {"driver": "nic.example.com", "nodeName": format!("n{at}"),
        "pool": {"name": format!("n{at}/nic"), "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": "nic-0"}, {"name": "nic-1"}]}}),
    )
}

pub(crate) fn build(api: &mut Api) {
    for (name, expression) in [
        (
            "vgpu",
            "device.driver == 'dra.vgpu' && device.attributes['dra.vgpu'].type == 'gpu'",
        ),
        ("nic", "device.driver == 'nic.example.com'"),
    ] {
        api.set_class(read(
            json!({"metadata": {"name": name}, "spec": {"selectors": [{"cel": {"expression": expression}}]}}),
        ));
    }
    for at in 0..NODES {
        api.set_node(node(at));
        // The last node has no NIC, and is initially allocated by kube-scheduler.
        let taint = (at + 1 < NODES).then(|| (CONTROLLER, api.time().to_string()));
        api.set_slice(slice(at, taint));
        if at + 1 < NODES {
            api.set_slice(nics(at));
        }
    }
}

fn claim(name: &str, owner: Option<&str>, requests: Value, uid: u64) -> Claim {
    let mut metadata = json!({"name": name, "namespace": NAMESPACE, "uid": format!("claim-{uid}")});
    if let Some(owner) = owner {
        metadata["ownerReferences"] = json!([{"kind": "Pod", "uid": owner}]);
    }
    read(json!({"metadata": metadata, "spec": {"devices": {"requests": requests}}}))
}

fn fraction(random: &mut Random) -> Value {
    let mut exactly = json!({"deviceClassName": "vgpu"});
    // One in eight wants a whole GPU.
    if !random.one_in(8) {
        let memory = random.below(6) + 1;
        exactly["capacity"] =
            json!({"requests": {"memory": memory.to_string(), "cores": (random.below(3) * 30).to_string()}});
    }
    json!({"name": "r", "exactly": exactly})
}

fn nic() -> Value {
    json!({"name": "nic", "exactly": {"deviceClassName": "nic"}})
}

fn pod(name: &str, uid: &str, created: i64, cpu: usize, claims: Vec<PodClaim>) -> Pod {
    let mut pod: Pod = read(json!({"metadata": {"name": name, "namespace": NAMESPACE, "uid": uid},
        "spec": {"containers": [{"resources": {"requests": {"cpu": cpu.to_string()}}}]}}));
    pod.claims = claims;
    pod.created = vgpu_planner::Time::from_millis(created);
    pod
}

/// Creates a pod with a claim that outlives it.
pub(crate) fn pod_that_wants(api: &mut Api, name: &str, memory: u8) {
    let ask = json!({"deviceClassName": "vgpu", "capacity": {"requests": {"memory": memory.to_string()}}});
    api.create_claim(claim(name, None, json!([{"name": "r", "exactly": ask}]), api.version));
    api.set_pod(pod(name, name, api.now, 0, vec![PodClaim::Named(name.to_owned())]));
}

/// Performs one random action.
pub(crate) fn act(api: &mut Api, random: &mut Random) {
    match random.below(20) {
        0..7 => create_pod(api, random),
        7 => create_gang(api, random),
        8 => shared_claim(api, random),
        9..12 => end_pod(api, random),
        12 => delete_claim(api, random),
        13 if random.one_in(2) => node_trouble(api, random),
        13..16 => change_mode(api, random),
        16 => forge(api, random),
        17 => hostile_claim(api, random),
        18 => recreate_pod(api, random),
        _ => load(api, random),
    }
}

fn create_pod(api: &mut Api, random: &mut Random) {
    if api.pods.len() >= MOST_PODS {
        return;
    }
    let id = api.version * 100 + random.below(100) as u64;
    let (name, uid) = (format!("p{id}"), format!("pod-{id}"));
    if random.one_in(2) {
        // A claim of its own that its user made, and maybe one of another driver.
        let own = format!("c{id}");
        api.create_claim(claim(&own, None, json!([fraction(random)]), id));
        let mut claims = vec![PodClaim::Named(own)];
        if random.one_in(4) {
            let other = format!("x{id}");
            api.create_claim(claim(&other, None, json!([nic()]), id + 1_000_000));
            claims.push(PodClaim::Named(other));
        }
        let mut created = pod(&name, &uid, api.now, random.below(4), claims);
        created.priority = random.below(4) as i32;
        return api.set_pod(created);
    }
    let made = format!("{name}-made");
    api.create_claim(claim(&made, Some(&uid), json!([fraction(random)]), id));
    let mut created = pod(&name, &uid, api.now, random.below(4), vec![PodClaim::Made(made)]);
    created.priority = random.below(4) as i32;
    if random.one_in(5) {
        created.node_selector.insert("zone".into(), "even".into());
    }
    api.set_pod(created);
}

fn create_gang(api: &mut Api, random: &mut Random) {
    if api.pods.len() + 2 > MOST_PODS {
        return;
    }
    let id = api.version * 100 + random.below(100) as u64;
    let present = 1 + random.below(2);
    for at in 0..present {
        let (name, uid) = (format!("g{id}-{at}"), format!("pod-g{id}-{at}"));
        let made = format!("{name}-made");
        api.create_claim(claim(&made, Some(&uid), json!([fraction(random)]), id * 2 + at as u64));
        let mut member = pod(&name, &uid, api.now, 1, vec![PodClaim::Made(made)]);
        member.gang = Some((format!("g{id}"), "2".into()));
        api.set_pod(member);
    }
}

/// Two pods that share one claim.
fn shared_claim(api: &mut Api, random: &mut Random) {
    if api.pods.len() + 2 > MOST_PODS {
        return;
    }
    let id = api.version * 100 + random.below(100) as u64;
    let shared = format!("shared{id}");
    api.create_claim(claim(&shared, None, json!([fraction(random)]), id));
    for at in 0..2 {
        let claims = vec![PodClaim::Named(shared.clone())];
        api.set_pod(pod(
            &format!("s{id}-{at}"),
            &format!("pod-s{id}-{at}"),
            api.now,
            random.below(5),
            claims,
        ));
    }
}

fn some_pod(api: &Api, random: &mut Random) -> Option<Pod> {
    let keys: Vec<&String> = api.pods.keys().collect();
    random.pick(&keys).map(|key| api.pods[*key].clone())
}

fn end_pod(api: &mut Api, random: &mut Random) {
    let Some(mut pod) = some_pod(api, random) else {
        return;
    };
    match pod.node.is_some() && random.one_in(2) {
        true => pod.is_finished = true,
        false => pod.is_deleted = true,
    }
    api.set_pod(pod);
}

/// A StatefulSet's pod: the same name, another uid.
fn recreate_pod(api: &mut Api, random: &mut Random) {
    let Some(mut pod) = some_pod(api, random) else {
        return;
    };
    if pod.claims.iter().any(|claim| matches!(claim, PodClaim::Made(_))) {
        return;
    }
    api.remove_pod(&pod.key());
    pod.uid = format!("{}-again{}", pod.uid, api.version);
    pod.node = None;
    pod.is_deleted = false;
    pod.is_finished = false;
    api.set_pod(pod);
}

fn some_claim(api: &Api, random: &mut Random) -> Option<String> {
    let keys: Vec<&String> = api.claims.keys().collect();
    random.pick(&keys).map(|key| (*key).clone())
}

fn delete_claim(api: &mut Api, random: &mut Random) {
    if let Some(key) = some_claim(api, random) {
        api.delete_claim(&key);
    }
}

fn node_trouble(api: &mut Api, random: &mut Random) {
    let at = random.below(NODES);
    match api.nodes.contains_key(&format!("n{at}")) {
        true if api.nodes.len() > 1 => api.remove_node(&format!("n{at}")),
        true => {}
        false if random.one_in(4) => api.set_node(node(at)),
        false => {}
    }
}

/// Simulates the plugin: adds the taint at once; to remove it, changes it to `released`, and removes it when that is 30
/// s old.
pub(crate) fn change_mode(api: &mut Api, random: &mut Random) {
    let there: Vec<usize> = (0..NODES)
        .filter(|at| api.nodes.contains_key(&format!("n{at}")))
        .collect();
    let Some(at) = random.pick(&there).copied() else {
        return;
    };
    let now = api.time().to_string();
    let next = match taint_of(api, at) {
        None => Some((CONTROLLER, now)),
        Some((value, since)) if value == RELEASED => {
            if may_untaint(api, since) {
                None
            } else {
                return;
            }
        }
        Some(_) => Some((RELEASED, now)),
    };
    api.set_slice(slice(at, next));
}

/// After these 30 s no earlier decision may still be in flight: writes that no takeover fences off end with their
/// process or connection. `docs/controller.md` explains the requirements.
fn may_untaint(api: &Api, released: i64) -> bool {
    api.now - released >= 30_000 && api.oldest_flying.is_none_or(|decided| decided > released)
}

/// Completes changes of mode that are in progress.
pub(crate) fn finish_modes(api: &mut Api) {
    for at in 0..NODES {
        if let Some((value, since)) = taint_of(api, at)
            && value == RELEASED
            && may_untaint(api, since)
        {
            api.set_slice(slice(at, None));
        }
    }
}

pub(crate) fn taint_of(api: &Api, at: usize) -> Option<(String, i64)> {
    let slice = &api.slices[&format!("n{at}-vgpu")];
    let taint = slice.spec.devices[0].taints.first()?;
    let since = taint.time_added.as_deref().and_then(vgpu_planner::Time::parse)?;
    Some((taint.value.clone(), since.millis()))
}

/// Makes changes to metadata that anybody who may edit claims can make, and to the status as a third party might leave
/// it.
fn forge(api: &mut Api, random: &mut Random) {
    let Some(key) = some_claim(api, random) else {
        return;
    };
    let epoch = match random.below(3) {
        0 => None,
        1 => Some(format!("{}.a#{}", api.lease.transitions, api.version)),
        _ => Some("nonsense".into()),
    };
    let junk = random.one_in(4);
    let _ = api.update(&key, None, |claim| {
        claim.epoch = epoch;
        if junk && claim.allocation().is_some() && !claim.is_deleted {
            claim.reserved_for.push(Consumer {
                resource: "pods".into(),
                name: "nobody".into(),
                uid: "no-such-pod".into(),
                ..Consumer::default()
            });
        }
    });
}

fn hostile_claim(api: &mut Api, random: &mut Random) {
    if api.pods.len() >= MOST_PODS {
        return;
    }
    let id = api.version * 100 + random.below(100) as u64;
    let requests = match random.below(4) {
        0 => json!([fraction(random), nic()]),
        1 => {
            json!([{"name": "r", "exactly": {"deviceClassName": "vgpu", "capacity": {"requests": {"memory": "1e30"}}}}])
        }
        2 => json!([{"name": "r", "exactly": {"deviceClassName": "nowhere"}}]),
        _ => json!([{"name": "r", "exactly": {"deviceClassName": "vgpu", "allocationMode": "All",
                "selectors": [{"cel": {"expression": "device.attributes['dra.vgpu'].nothing == 1"}}]}}]),
    };
    let name = format!("h{id}");
    api.create_claim(claim(&name, None, requests, id));
    let claims = vec![PodClaim::Named(name)];
    api.set_pod(pod(&format!("hp{id}"), &format!("pod-h{id}"), api.now, 0, claims));
}

/// A pod that only takes CPU.
fn load(api: &mut Api, random: &mut Random) {
    if api.pods.len() < MOST_PODS {
        let id = api.version * 100 + random.below(100) as u64;
        api.set_pod(pod(
            &format!("l{id}"),
            &format!("pod-l{id}"),
            api.now,
            2 + random.below(5),
            Vec::new(),
        ));
        api.version += 1;
    }
}
