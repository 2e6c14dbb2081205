//! Findings about the cluster: its version, classes, slices, nodes, and pods that cannot end.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use vgpu_api::advice;

use super::finding::Finding;
use super::seen::{DRIVER, Seen, key, list, text};
use super::{gpus, release, rights, usage};

/// Seconds after its deletionTimestamp by which a pod should have ended.
const ENDS_LATE: i64 = 60;

pub(super) fn of(seen: &Seen) -> Vec<Finding> {
    let mut found = release::of(seen);
    found.extend(rights::of(seen));
    found.extend(version(seen));
    found.extend(gate(seen));
    // Without the chart there are no classes and no plugin: one finding says it, not three.
    let is_installed = !seen.daemon_sets.known().is_some_and(<[Value]>::is_empty);
    found.extend(is_installed.then(|| classes(seen)).flatten());
    found.extend(other_drivers(seen));
    found.extend(nodes(seen, is_installed));
    found.extend(gpus::of(seen));
    found.extend(gpus::mig_managers(seen));
    found.extend(without_cdi(seen));
    found.extend(usage::of(seen));
    found.extend(terminating(seen));
    found
}

fn version(seen: &Seen) -> Option<Finding> {
    let minor = seen.minor.filter(|minor| *minor < 34)?;
    Some(Finding {
        object: "API server".to_owned(),
        value: format!("Kubernetes 1.{minor}"),
        breaks: "it has no Dynamic Resource Allocation in resource.k8s.io/v1".to_owned(),
        mend: "upgrade to Kubernetes 1.36, or to 1.34 with the feature gate DRAConsumableCapacity".to_owned(),
    })
}

/// An API server drops the fields of gates that are off.
fn gate(seen: &Seen) -> Option<Finding> {
    let is_shared = |device: &Value| device["allowMultipleAllocations"] == true;
    let is_gpu = |device: &&Value| text(device, "/attributes/type/string") == "gpu";
    let mut devices = seen.our_slices().flat_map(|slice| {
        let slice_name = text(slice, "/metadata/name");
        list(slice, "/spec/devices")
            .iter()
            .filter(is_gpu)
            .map(move |device| (slice_name, device))
    });
    let (slice, device) = devices.find(|(_, device)| !is_shared(device))?;
    Some(Finding {
        object: format!("ResourceSlice {slice}"),
        value: format!("device {} has no allowMultipleAllocations", text(device, "/name")),
        breaks: "a GPU is given to one claim only, whatever its size".to_owned(),
        mend: "set --feature-gates=DRAConsumableCapacity=true on kube-apiserver, kube-scheduler, \
               kube-controller-manager and every kubelet, then delete the slice: the plugin writes it again"
            .to_owned(),
    })
}

fn classes(seen: &Seen) -> Option<Finding> {
    let classes = seen.classes.known()?;
    let is_ours = |class: &Value| {
        let selectors = list(class, "/spec/selectors").iter();
        selectors
            .map(|selector| text(selector, "/cel/expression"))
            .any(|cel| cel.contains(DRIVER))
    };
    (!classes.iter().any(is_ours)).then(|| Finding {
        object: "DeviceClass".to_owned(),
        value: format!("none of {} selects devices of {DRIVER}", classes.len()),
        breaks: "no claim can ask for a fraction".to_owned(),
        mend: "set the chart's deviceClasses.vgpu.create, and helm upgrade".to_owned(),
    })
}

fn uuids<'v>(slices: impl Iterator<Item = &'v Value>) -> BTreeMap<&'v str, &'v Value> {
    let devices = slices.flat_map(|slice| list(slice, "/spec/devices").iter().map(move |device| (slice, device)));
    devices
        .filter_map(|(slice, device)| {
            let attributes = device["attributes"].as_object()?;
            let (_, uuid) = attributes
                .iter()
                .find(|(name, _)| name.rsplit('/').next() == Some("uuid"))?;
            Some((text(uuid, "/string"), slice))
        })
        .collect()
}

/// GPUs that two drivers allocate.
fn other_drivers(seen: &Seen) -> Vec<Finding> {
    let ours = uuids(seen.our_slices());
    let others = uuids(seen.slices.iter().filter(|slice| text(slice, "/spec/driver") != DRIVER));
    let both = others.iter().filter(|(uuid, _)| ours.contains_key(*uuid));
    both.map(|(uuid, slice)| Finding {
        object: format!("ResourceSlice {}", text(slice, "/metadata/name")),
        value: format!(
            "driver {} offers GPU {uuid} of node {}, which {DRIVER} offers too",
            text(slice, "/spec/driver"),
            text(slice, "/spec/nodeName")
        ),
        breaks: "both give the GPU away without knowing of the other's pods".to_owned(),
        mend: "switch GPUs off in that driver, or leave the node out by the chart's plugin.nodeSelector or affinity"
            .to_owned(),
    })
    .collect()
}

fn has_gpu(node: &Value) -> bool {
    let labels = &node["metadata"]["labels"];
    let names = [
        "nvidia.com/gpu.present",
        "feature.node.kubernetes.io/pci-10de.present",
        "dra.vgpu/gpu",
    ];
    names.into_iter().any(|name| labels[name] == "true")
}

/// A resource of NVIDIA's device plugin on the node, and its number: GPUs, or instances of a profile.
fn device_plugin(node: &Value) -> Option<(&str, &str)> {
    let resources = node["status"]["allocatable"].as_object()?;
    let resources = resources
        .iter()
        .filter(|(name, _)| *name == "nvidia.com/gpu" || name.starts_with("nvidia.com/mig-"));
    let mut resources = resources.map(|(name, number)| (name.as_str(), number.as_str().unwrap_or_default()));
    resources.find(|(_, number)| !matches!(*number, "" | "0"))
}

/// Returns the major and minor version, such as (1, 7) for `containerd://1.7.35`.
fn containerd(node: &Value) -> Option<(u32, u32)> {
    let version = text(node, "/status/nodeInfo/containerRuntimeVersion").strip_prefix("containerd://")?;
    let mut parts = version.trim_start_matches('v').split('.').map(str::parse);
    Some((parts.next()?.ok()?, parts.next()?.ok()?))
}

fn nodes(seen: &Seen, is_installed: bool) -> Vec<Finding> {
    let with_plugin: BTreeSet<&str> = seen.plugin_pods().map(|pod| text(pod, "/spec/nodeName")).collect();
    let ready = seen.ready_nodes();
    let offering: BTreeSet<&str> = seen.our_slices().map(|slice| text(slice, "/spec/nodeName")).collect();
    let others = uuids(seen.slices.iter().filter(|slice| text(slice, "/spec/driver") != DRIVER)).into_iter();
    let gpus = others.filter(|(uuid, _)| uuid.starts_with("GPU-") || uuid.starts_with("MIG-"));
    let of_others: BTreeSet<&str> = gpus.map(|(_, slice)| text(slice, "/spec/nodeName")).collect();
    let mut found = Vec::new();
    for node in seen.nodes.iter() {
        let name = text(node, "/metadata/name");
        let object = format!("Node {name}");
        let counted = device_plugin(node);
        let is_counted = counted.is_some();
        // Nodes that are left to another driver, as the advice about a GPU of two drivers says.
        let is_left_out = !with_plugin.is_empty() && (is_counted || of_others.contains(name));
        let is_known = seen.pods.known().is_some() && seen.slices.known().is_some();
        if is_known && is_installed && has_gpu(node) && !with_plugin.contains(name) && !is_left_out {
            found.push(Finding {
                object: object.clone(),
                value: "has a GPU by its labels, and no pod of the plugin".to_owned(),
                breaks: "its GPUs are not offered, and pods with a claim stay Terminating there".to_owned(),
                mend: "let the chart's plugin.nodeSelector, affinity and tolerations reach it: \
                       kubectl get daemonset -A -l app.kubernetes.io/name=dra-driver-vgpu"
                    .to_owned(),
            });
        }
        if is_known && has_gpu(node) && ready.contains(name) && !offering.contains(name) {
            found.push(Finding {
                object: object.clone(),
                value: "has a GPU by its labels; the plugin is ready there and offers none".to_owned(),
                breaks: "its GPUs are not offered: the plugin found no NVIDIA driver, and in /sys no GPU for containers, or \
                         the node's label nvidia.com/gpu.deploy.client or nvidia.com/mig.config.state pauses the driver"
                    .to_owned(),
                mend: format!(
                    "{}; the plugin's log and its VgpuNode say what was found. If the node has no GPU, take its label off, or \
                     try software GPUs: --set softGpu.gpus=2 (docs/software-gpu.md)",
                    advice::DRIVER_ROOT
                ),
            });
        }
        if let Some((resource, number)) = counted.filter(|_| offering.contains(name)) {
            found.push(Finding {
                object,
                value: format!("allocatable {resource}: {number}, beside slices of {DRIVER}"),
                breaks: "a device plugin gives the same GPUs away without knowing of the shares".to_owned(),
                mend: "switch the device plugin off there: kubectl label node NODE nvidia.com/gpu.deploy.device-plugin=false"
                    .replace("NODE", name),
            });
        }
    }
    found
}

/// Returns node, claim and whether the claim's containers have its mounts, by its condition `Injected`; claims without
/// that condition are left out.
fn injected(seen: &Seen) -> Vec<(&str, String, bool)> {
    let pools: BTreeMap<&str, &str> = seen
        .our_slices()
        .map(|slice| (text(slice, "/spec/pool/name"), text(slice, "/spec/nodeName")))
        .collect();
    let of_claim = |claim: &'_ Value| -> Vec<(&str, String, bool)> {
        let devices = list(claim, "/status/devices").iter();
        let ours = devices.filter(|device| device["driver"] == DRIVER);
        let known = ours.filter_map(|device| {
            let mut conditions = list(device, "/conditions").iter();
            let injected = conditions.find(|one| one["type"] == "Injected" && one["status"] != "Unknown")?;
            let node = pools.get(text(device, "/pool"))?;
            Some((*node, key(claim), injected["status"] == "True"))
        });
        known.collect()
    };
    seen.claims.iter().flat_map(of_claim).collect()
}

/// Nodes whose runtime has no CDI: by its version, or because containers with a claim lack their mounts.
fn without_cdi(seen: &Seen) -> Vec<Finding> {
    let with_plugin: BTreeSet<&str> = seen.plugin_pods().map(|pod| text(pod, "/spec/nodeName")).collect();
    let mut bare: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (node, claim, _) in injected(seen).into_iter().filter(|(.., has)| !has) {
        bare.entry(node).or_default().push(claim);
    }
    let of_node = |node: &Value| {
        let name = text(node, "/metadata/name");
        let is_old = containerd(node).is_some_and(|version| version < (1, 7)) && with_plugin.contains(name);
        let claims = bare.get(name).map_or(&[][..], Vec::as_slice);
        let seen_there = match claims {
            [] if !is_old => return None,
            [] => String::new(),
            [one, ..] => format!(
                "; {} claims have containers without their mounts, such as {one}",
                claims.len()
            ),
        };
        Some(Finding {
            object: format!("Node {name}"),
            value: format!("{}{seen_there}", text(node, "/status/nodeInfo/containerRuntimeVersion")),
            breaks: "without CDI, containers with a claim start without their GPU and its limit, or not at all".to_owned(),
            mend: "upgrade to containerd 2; with containerd 1.7 set enable_cdi = true in the section of the cri plugin of \
                   /etc/containerd/config.toml, systemctl restart containerd, and create the pods again"
                .to_owned(),
        })
    };
    seen.nodes.iter().filter_map(of_node).collect()
}

/// Nodes with containerd 1.7, which has CDI off by default, and where nothing shows that it is on.
pub(super) fn unknown_cdi(seen: &Seen) -> Option<String> {
    let known: BTreeSet<&str> = injected(seen).into_iter().map(|(node, ..)| node).collect();
    let ready = seen.ready_nodes();
    let names = seen.nodes.iter().filter(|node| containerd(node) == Some((1, 7)));
    let names = names.map(|node| text(node, "/metadata/name"));
    let names: Vec<&str> = names
        .filter(|name| ready.contains(name) && !known.contains(name))
        .collect();
    (!names.is_empty()).then(|| {
        format!(
            "CDI in containerd 1.7, where it is off by default, of {} nodes: vgpu doctor --probe --node {}",
            names.len(),
            names[0]
        )
    })
}

/// Pods that cannot end because no plugin unprepares their claims.
fn terminating(seen: &Seen) -> Vec<Finding> {
    let ready = seen.ready_nodes();
    let is_late = |pod: &&Value| {
        let deleted = text(pod, "/metadata/deletionTimestamp").parse::<jiff::Timestamp>();
        // The deletionTimestamp already includes the grace period.
        deleted.is_ok_and(|time| seen.now - time.as_second() > ENDS_LATE)
    };
    let with_claims = |pod: &&Value| !list(pod, "/spec/resourceClaims").is_empty();
    let mut by_node: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for pod in seen.pods.iter().filter(with_claims).filter(is_late) {
        let node = text(pod, "/spec/nodeName");
        if !node.is_empty() && !ready.contains(node) {
            by_node.entry(node).or_default().push(key(pod));
        }
    }
    let finding = |(node, pods): (&str, Vec<String>)| Finding {
        object: format!("Node {node}"),
        value: format!("{} pods with claims stay Terminating, such as {}", pods.len(), pods[0]),
        breaks: "their shares stay held: no plugin that is ready there can unprepare their claims".to_owned(),
        mend: format!(
            "get the plugin to run there (kubectl get pods -A -l app.kubernetes.io/component=plugin \
             --field-selector spec.nodeName={node}); the pods end by themselves then"
        ),
    };
    by_node.into_iter().map(finding).collect()
}
