//! Controller mode and a pod's other constraints: CPU, labels, taints, other pods, other drivers' devices; and a node
//! that fills up under a hold.

use anyhow::{Result, bail, ensure};
use serde_json::json;
use vgpu_e2e::wait::wait;

use crate::fleet::{
    Fleet, TAKEOVER, claim_of, create, delete, many, name_of, node_of_claim, node_of_pod, on_fleet, wait_bound,
    wait_for_event,
};
use crate::manifests::template;
use crate::processes::Stopped;
use crate::shared::Test;

pub(crate) const TESTS: &[Test] = &[
    ("controller_considers_a_pods_other_constraints", needs_elsewhere),
    ("held_claim_of_a_node_that_fills_up_moves_on_or_waits", node_fills_up),
    ("controller_looks_for_a_node_with_another_drivers_devices", other_driver),
];

/// Three pods, each of which fits on only one node, by a different rule.
fn needs_elsewhere() -> Result<()> {
    let seen = on_fleet("elsewhere", 3, |_, kube, fleet| {
        let nodes: Vec<String> = fleet.nodes().collect();
        let [first, second, third] = nodes.as_slice() else {
            bail!("three nodes")
        };
        let is_on = |pod: &str, wanted: &str| -> Result<()> {
            wait_bound(kube, &[pod])?;
            let node = node_of_pod(kube, pod)?;
            ensure!(node == *wanted, "{pod} is on {node} instead of {wanted}");
            Ok(())
        };
        kube.run(&["label", "node", second, "disk=fast"])?;
        let mut selected = fleet.pod("selected", "1");
        selected["spec"]["nodeSelector"]["disk"] = json!("fast");
        create(kube, &many(vec![fleet.filler("full", first), selected]))?;
        is_on("selected", second)?;
        // This pod may not run beside `selected`, nor on the node whose CPU is full.
        let mut apart = fleet.pod("apart", "1");
        apart["spec"]["affinity"] = json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
            {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"role": "selected"}}}]}});
        kube.run(&["label", "pod", "selected", "role=selected"])?;
        create(kube, &apart.to_string())?;
        is_on("apart", third)?;
        // Two of the three nodes have a taint that it does not tolerate.
        let mut intolerant = fleet.pod("intolerant", "1");
        intolerant["spec"]["tolerations"] = json!([{"key": "node.kubernetes.io/not-ready", "operator": "Exists"},
            {"key": "node.kubernetes.io/unreachable", "operator": "Exists"}]);
        for node in [first, third] {
            kube.run(&["taint", "node", node, "example.com/mine=yes:NoSchedule"])?;
        }
        create(kube, &intolerant.to_string())?;
        is_on("intolerant", second)
    })?;
    // Check this too, because a controller that only tries node after node would also get the pods bound in the end.
    seen.each_once(3)
}

/// Devices are held for two pods. Before kube-scheduler can bind them, their nodes run out of CPU. One pod may move to
/// another node, and does; the other may not, gets an event, and is bound when there is room again.
fn node_fills_up() -> Result<()> {
    let seen = on_fleet("fills-up", 3, |installed, kube, fleet| {
        let nodes: Vec<String> = fleet.nodes().collect();
        let [first, second, third] = nodes.as_slice() else {
            bail!("three nodes")
        };
        kube.run(&["label", "node", first, second, "part=two"])?;
        kube.run(&["label", "node", third, "part=one"])?;
        let pod = |name: &str, part: &str| {
            let mut pod = fleet.pod(name, "1");
            pod["spec"]["nodeSelector"]["part"] = json!(part);
            pod
        };
        let scheduler = installed.cluster.pid_of("kube-scheduler")?;
        let asleep = Stopped::stop(&installed.cluster, scheduler.to_string())?;
        create(kube, &many(vec![pod("moves", "two"), pod("stays", "one")]))?;
        let held = |pod: &str| {
            wait(TAKEOVER, &format!("a device to be held for {pod}"), || {
                let claim = claim_of(kube, pod)?;
                let node = node_of_claim(&claim).map(str::to_owned);
                Ok(node.zip(Some(name_of(&claim)?.to_owned())))
            })
        };
        let (full, moves) = held("moves")?;
        let (_, stays) = held("stays")?;
        create(
            kube,
            &many(vec![fleet.filler("fills-two", &full), fleet.filler("fills-one", third)]),
        )?;
        // A restarted scheduler knows all pods before it binds any; a resumed one might bind before it hears of them.
        installed.cluster.restart("kube-scheduler", true)?;
        drop(asleep);
        wait_for_event(kube, &moves, "HoldTimeout", &["moves", &full])?;
        wait_bound(kube, &["moves"])?;
        let node = node_of_pod(kube, "moves")?;
        ensure!(
            node != full && node != *third,
            "moves is on {node}, and {full} was full"
        );
        wait_for_event(kube, &stays, "HoldTimeout", &["stays", third])?;
        wait_for_event(kube, "stays", "NoNodeFits", &["1 not enough cpu"])?;
        let claim = claim_of(kube, "stays")?;
        ensure!(
            claim["status"]["allocation"].is_null(),
            "no node has room for it, and it is held one: {claim}"
        );
        delete(kube, ["fills-one"])?;
        wait_bound(kube, &["stays"])
    });
    seen.map(drop)
}

const OTHER: &str = "other.example";

/// A device of another driver on that node.
fn other_slice(fleet: &Fleet<'_>, node: &str) -> serde_json::Value {
    json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice",
        "metadata": {"name": format!("{node}-other"), "labels": fleet.label()},
        "spec": {"driver": OTHER, "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1}, "devices": [{"name": "only"}]}})
}

/// A pod needs a GPU of ours and a device of another driver, which kube-scheduler allocates; only one node has both. A
/// claim that requests both cannot be allocated by either.
fn other_driver() -> Result<()> {
    let seen = on_fleet("other-driver-beside", 3, |_, kube, fleet| {
        let nodes: Vec<String> = fleet.nodes().collect();
        let [first, _, third] = nodes.as_slice() else {
            bail!("three nodes")
        };
        let class = json!({"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass",
            "metadata": {"name": OTHER, "labels": fleet.label()},
            "spec": {"selectors": [{"cel": {"expression": format!("device.driver == '{OTHER}'")}}]}});
        let mixed = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate",
            "metadata": {"name": "mixed"}, "spec": {"spec": {"devices": {"requests": [
                {"name": "gpu", "exactly": {"deviceClassName": "vgpu", "capacity": {"requests": {"memory": "1Gi"}}}},
                {"name": "other", "exactly": {"deviceClassName": OTHER}}]}}}});
        create(kube, &many(vec![class, other_slice(fleet, third), mixed]))?;
        kube.apply(&template("other", OTHER, json!(null), &[]))?;
        // Packing alone would put the pod on the first node.
        let mut packed = fleet.pod("packed", "1");
        packed["spec"]["nodeSelector"]["kubernetes.io/hostname"] = json!(first);
        create(kube, &packed.to_string())?;
        wait_bound(kube, &["packed"])?;
        let both = |name: &str| {
            let mut pod = fleet.pod(name, "1");
            let claims = &mut pod["spec"]["resourceClaims"];
            *claims = json!([claims[0], {"name": "other", "resourceClaimTemplateName": "other"}]);
            pod
        };
        create(kube, &both("both").to_string())?;
        wait_bound(kube, &["both"])?;
        let node = node_of_pod(kube, "both")?;
        ensure!(node == *third, "both is on {node} instead of {third}");
        // The other driver has no second device, but our driver has a free GPU.
        let mut mixed = fleet.pod("mixed", "1");
        mixed["spec"]["resourceClaims"][0]["resourceClaimTemplateName"] = json!("mixed");
        create(kube, &many(vec![both("too-many"), mixed, fleet.pod("alone", "1")]))?;
        wait_for_event(kube, "mixed", "ClaimMixesDrivers", &["vgpu", OTHER, "split"])?;
        wait_for_event(kube, "too-many", "NoNodeFits", &[])?;
        wait_bound(kube, &["alone"])?;
        let ours = |pod: &str| -> Result<bool> {
            let claims = kube.get(&["resourceclaims"])?;
            let mut claims = claims["items"].as_array().cloned().unwrap_or_default().into_iter();
            Ok(claims.any(|claim| {
                claim["metadata"]["ownerReferences"][0]["name"] == pod && !claim["status"]["allocation"].is_null()
            }))
        };
        for pod in ["mixed", "too-many"] {
            ensure!(!ours(pod)?, "a claim of {pod} is allocated, and the pod can go nowhere");
        }
        delete(kube, ["both"])?;
        wait_bound(kube, &["too-many"])?;
        let node = node_of_pod(kube, "too-many")?;
        ensure!(node == *third, "too-many is on {node} instead of {third}");
        Ok(())
    })?;
    // packed, both, alone, too-many.
    seen.each_once(4)
}
