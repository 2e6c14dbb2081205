//! The page's GPUs and shares: from a node's VgpuNode, or else from its slices and the claims allocated there.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use vgpu_api::capacity;
use vgpu_quantity::read_bytes;

use super::page::{Gpu, Node, Share};
use crate::doctor::{DRIVER, key, list, text};

pub(super) fn of(kinds: &BTreeMap<&'static str, Vec<Value>>) -> Vec<Node> {
    let objects = |plural: &str| kinds.get(plural).map_or(&[][..], Vec::as_slice);
    let mut nodes: BTreeMap<String, Node> = BTreeMap::new();
    let with_own: BTreeSet<&str> = objects("vgpunodes")
        .iter()
        .map(|node| text(node, "/metadata/name"))
        .collect();
    let mut shares = by_device(objects("resourceclaims"));
    for slice in objects("resourceslices")
        .iter()
        .filter(|slice| text(slice, "/spec/driver") == DRIVER && !with_own.contains(text(slice, "/spec/nodeName")))
    {
        let name = text(slice, "/spec/nodeName").to_owned();
        let node = nodes.entry(name.clone()).or_insert_with(|| Node {
            name,
            note: "by slices and claims: what is used is not known".to_owned(),
            gpus: Vec::new(),
        });
        node.gpus.extend(of_slice(slice, &mut shares));
    }
    for vgpu_node in objects("vgpunodes") {
        let node = of_vgpu_node(vgpu_node);
        nodes.insert(node.name.clone(), node);
    }
    nodes.into_values().collect()
}

/// `None` if there is no such quantity.
fn bytes(object: &Value, path: &str) -> Option<u64> {
    read_bytes(object.pointer(path)?.as_str()?)
}

fn of_vgpu_node(object: &Value) -> Node {
    let conditions = list(object, "/status/conditions").iter();
    let mut unready = conditions.filter(|one| one["type"] == "Ready" && one["status"] != "True");
    let ready = unready.next().map_or_else(String::new, |one| {
        format!("; not ready: {}: {}", text(one, "/reason"), text(one, "/message"))
    });
    let gpus = list(object, "/status/gpus").iter().map(|gpu| {
        let device = text(gpu, "/device");
        let shares = list(object, "/status/shares").iter();
        let share = |share: &Value| Share {
            label: format!("{}/{}", text(share, "/namespace"), text(share, "/claim")),
            held: bytes(share, "/memory").unwrap_or_default(),
            used: bytes(share, "/memoryUsed"),
            without_claim: share["withoutClaim"] == true,
        };
        Gpu {
            name: device.to_owned(),
            model: text(gpu, "/model").to_owned(),
            memory: bytes(gpu, "/memory").unwrap_or_default(),
            used: bytes(gpu, "/memoryUsed"),
            problem: text(gpu, "/problem").to_owned(),
            shares: shares.filter(|one| text(one, "/device") == device).map(share).collect(),
        }
    });
    Node {
        name: text(object, "/metadata/name").to_owned(),
        note: format!("as of {}{ready}", text(object, "/status/asOf")),
        gpus: gpus.collect(),
    }
}

fn of_slice<'v>(slice: &'v Value, shares: &mut BTreeMap<(&'v str, &'v str), Vec<Share>>) -> Vec<Gpu> {
    let pool = text(slice, "/spec/pool/name");
    let is_gpu = |device: &&Value| text(device, "/attributes/type/string") == "gpu";
    let gpu = |device: &'v Value| {
        let name = text(device, "/name");
        let taints = list(device, "/taints").iter().map(|taint| text(taint, "/key"));
        Gpu {
            name: name.to_owned(),
            model: text(device, "/attributes/productName/string").to_owned(),
            memory: bytes(device, "/capacity/memory/value").unwrap_or_default(),
            used: None,
            problem: taints.collect::<Vec<_>>().join(", "),
            shares: shares.remove(&(pool, name)).unwrap_or_default(),
        }
    };
    list(slice, "/spec/devices").iter().filter(is_gpu).map(gpu).collect()
}

/// The shares by pool and device.
fn by_device(claims: &[Value]) -> BTreeMap<(&str, &str), Vec<Share>> {
    let mut shares: BTreeMap<_, Vec<Share>> = BTreeMap::new();
    for claim in claims {
        let results = list(claim, "/status/allocation/devices/results").iter();
        for result in results.filter(|one| text(one, "/driver") == DRIVER && one["adminAccess"] != true) {
            let device = (text(result, "/pool"), text(result, "/device"));
            let consumed = &result["consumedCapacity"];
            let held = capacity::find(capacity::MEMORY, |name| read_bytes(consumed[name].as_str()?));
            shares.entry(device).or_default().push(Share {
                label: key(claim),
                held: held.ok().flatten().unwrap_or_default(),
                used: None,
                without_claim: false,
            });
        }
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn bars_come_from_the_vgpu_node_and_without_one_from_slices_and_claims() {
        let device = json!({"name": "gpu-0", "attributes": {"type": {"string": "gpu"}}, "capacity": {"memory": {"value": "80Gi"}},
            "taints": [{"key": "dra.vgpu/lost"}]});
        let monitor = json!({"name": "gpu-0-monitor", "attributes": {"type": {"string": "monitor"}}});
        let slice = json!({"spec": {"driver": DRIVER, "nodeName": "n1", "pool": {"name": "n1/vgpu"}, "devices": [device, monitor]}});
        let result = json!({"driver": DRIVER, "pool": "n1/vgpu", "device": "gpu-0", "consumedCapacity": {"dra.vgpu/memory": "20Gi"}});
        let claim = json!({"metadata": {"name": "c", "namespace": "team"},
            "status": {"allocation": {"devices": {"results": [result, {"driver": DRIVER, "pool": "n2/vgpu", "device": "gpu-0"}]}}}});
        let mut kinds = BTreeMap::from([("resourceslices", vec![slice]), ("resourceclaims", vec![claim])]);
        let nodes = of(&kinds);
        let gpu = &nodes[0].gpus[0];
        assert_eq!(
            (nodes.len(), nodes[0].gpus.len(), gpu.memory, gpu.used),
            (1, 1, 80 << 30, None)
        );
        assert_eq!((gpu.problem.as_str(), gpu.shares.len()), ("dra.vgpu/lost", 1));
        assert_eq!((gpu.shares[0].label.as_str(), gpu.shares[0].held), ("team/c", 20 << 30));

        let status = json!({"asOf": "2026-01-02T00:00:00Z", "gpus": [{"device": "gpu-0", "memory": "80Gi", "memoryUsed": "1Gi"}],
            "shares": [{"device": "gpu-0", "namespace": "team", "claim": "c", "memory": "20Gi", "withoutClaim": true},
                {"device": "gpu-1", "claim": "another"}]});
        kinds.insert("vgpunodes", vec![json!({"metadata": {"name": "n1"}, "status": status})]);
        let nodes = of(&kinds);
        let gpu = &nodes[0].gpus[0];
        assert_eq!((nodes.len(), gpu.used, gpu.shares.len()), (1, Some(1 << 30), 1));
        assert!(gpu.shares[0].without_claim && gpu.shares[0].used.is_none());
    }
}
