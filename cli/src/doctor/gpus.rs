//! Findings about GPUs that the plugin has tainted: faults that keep new claims away.
//!
//! MIG mode is no fault: an administrator switches it on. It is a note. A fault of a GPU in MIG mode taints all of its
//! instances, and is one finding.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use vgpu_api::{advice, device_type};

use super::finding::Finding;
use super::seen::{DRIVER, Seen, key, list, text};

const PREFIX: &str = "dra.vgpu/";
/// This taint says who allocates the GPU; it is not a fault.
const ALLOCATOR: &str = "allocator";
const MIG: &str = "mig";
const SILENT: &str = "silent";
/// Taints of an instance that is gone.
const OF_INSTANCE: [&str; 2] = ["lost", "replaced"];

/// A taint of ours that keeps new claims away.
struct Tainted<'s> {
    slice: &'s Value,
    device: &'s Value,
    /// The taint's key without the prefix.
    kind: &'s str,
    value: &'s str,
    effect: &'s str,
}

impl Tainted<'_> {
    fn node(&self) -> &str {
        text(self.slice, "/spec/nodeName")
    }

    fn uuid(&self) -> &str {
        text(self.device, "/attributes/uuid/string")
    }

    /// The UUID of an instance's GPU; empty for a GPU.
    fn parent(&self) -> &str {
        // A GPU has this attribute too.
        match is_instance(self.device) {
            true => text(self.device, "/attributes/parentUUID/string"),
            false => "",
        }
    }

    fn is_of_instance(&self) -> bool {
        is_instance(self.device) && !is_dynamic(self.device) && OF_INSTANCE.contains(&self.kind)
    }

    /// The UUID of the GPU with the fault.
    fn gpu(&self) -> &str {
        match self.parent() {
            "" => self.uuid(),
            parent => parent,
        }
    }

    fn object(&self) -> String {
        match self.is_of_instance() {
            true => {
                let profile = text(self.device, "/attributes/profile/string");
                format!("Instance {} ({profile}) on node {}", self.uuid(), self.node())
            }
            false => format!("GPU {} on node {}", self.gpu(), self.node()),
        }
    }
}

fn is_instance(device: &Value) -> bool {
    text(device, "/attributes/type/string") == device_type::MIG
}

/// Returns true if claims make the instance, or the device is the undivided GPU beside such ones: it has the taints of its GPU.
fn is_dynamic(device: &Value) -> bool {
    !list(device, "/consumesCounters").is_empty()
}

fn tainted(seen: &Seen) -> impl Iterator<Item = Tainted<'_>> {
    let devices = seen
        .our_slices()
        .flat_map(|slice| list(slice, "/spec/devices").iter().map(move |one| (slice, one)));
    devices.flat_map(|(slice, device)| {
        let taints = list(device, "/taints").iter();
        taints.filter_map(move |taint| {
            let (kind, effect) = (text(taint, "/key").strip_prefix(PREFIX)?, text(taint, "/effect"));
            // The effect None keeps nothing away: it only reports XIDs that programs cause.
            let keeps_away = kind != ALLOCATOR && matches!(effect, "NoSchedule" | "NoExecute");
            keeps_away.then(|| Tainted {
                slice,
                device,
                kind,
                value: text(taint, "/value"),
                effect,
            })
        })
    })
}

/// The claims that have each device, by pool and device.
fn holders(seen: &Seen) -> BTreeMap<(&str, &str), Vec<String>> {
    let mut holders: BTreeMap<_, Vec<String>> = BTreeMap::new();
    for claim in seen.claims.iter() {
        let results = list(claim, "/status/allocation/devices/results").iter();
        for result in results.filter(|one| text(one, "/driver") == DRIVER && one["adminAccess"] != true) {
            let device = (text(result, "/pool"), text(result, "/device"));
            holders.entry(device).or_default().push(key(claim));
        }
    }
    holders
}

pub(super) fn of(seen: &Seen) -> Vec<Finding> {
    let ready = seen.ready_nodes();
    let holders = holders(seen);
    // If the node's plugin is not ready, another finding reports that, and it may be the cause of the silent driver.
    let is_told = |one: &Tainted<'_>| one.kind == SILENT && seen.pods.known().is_some() && !ready.contains(one.node());
    let mut faults: BTreeMap<_, Vec<Tainted<'_>>> = BTreeMap::new();
    for one in tainted(seen).filter(|one| one.kind != MIG && !is_told(one)) {
        let fault = (one.object(), one.kind, one.value, one.effect);
        faults.entry(fault).or_default().push(one);
    }
    let finding = |all: Vec<Tainted<'_>>| {
        // A claim may have several instances of the GPU.
        let holders: BTreeSet<String> = all
            .iter()
            .flat_map(|one| {
                let device = (text(one.slice, "/spec/pool/name"), text(one.device, "/name"));
                holders.get(&device).cloned().unwrap_or_default()
            })
            .collect();
        let one = all.into_iter().next()?;
        let equals = if one.value.is_empty() { "" } else { "=" };
        Some(Finding {
            object: one.object(),
            value: format!(
                "taint {PREFIX}{}{equals}{}:{}: {}",
                one.kind,
                one.value,
                one.effect,
                reason(&one)
            ),
            breaks: breaks(&one, &holders),
            mend: match one.is_of_instance() {
                true => format!("{} (docs/mig.md)", mend_instance(&one)),
                false => format!("{} (docs/health.md)", mend(&one)),
            },
        })
    };
    faults.into_values().filter_map(finding).collect()
}

/// The advice about an instance that was destroyed, or made again in another way, while claims may hold it.
fn mend_instance(one: &Tainted<'_>) -> String {
    let then = match one.kind {
        "replaced" => "the instance in its place is then published",
        _ => "it is then unpublished; if it should be there, make it again: nvidia-smi mig on the node",
    };
    format!("kubectl delete the pods whose claims have it (kubectl vgpu top -n NAMESPACE names them): {then}")
}

fn breaks(one: &Tainted<'_>, holders: &BTreeSet<String>) -> String {
    let Some(first) = holders.first() else {
        return "no new claim gets it".to_owned();
    };
    let follows = match one.kind {
        SILENT => "the driver's figures are not compared with the limits",
        _ => "programs may fail",
    };
    format!(
        "no new claim gets it; of {} claims that have it, such as {first}, {follows}",
        holders.len()
    )
}

/// Explains the taint in a sentence.
fn reason(one: &Tainted<'_>) -> String {
    advice::fault(&format!("{PREFIX}{}", one.kind), one.value)
        .unwrap_or_else(|| "it is not known to this vgpu".to_owned())
}

fn mend(one: &Tainted<'_>) -> String {
    let (node, uuid) = (one.node(), one.gpu());
    // kubectl drain stops at pods without a controller, and names them.
    let drain = format!("kubectl drain {node} --ignore-daemonsets --delete-emptydir-data");
    // A GPU is not reset while a program has it open, and the plugin stays on a drained node.
    let reset = format!(
        "kubectl label node {node} nvidia.com/gpu.deploy.client=paused-for-gpu-reset --overwrite, \
         nvidia-smi --gpu-reset -i {uuid} on the node, and the label back to true"
    );
    match one.kind {
        "xid" => format!(
            "dmesg on the node has the XID's line. The taint ends by itself if the driver asks for no recovery; if it stays: \
             {drain}, then {reset}; or a reboot. If programs cause this XID: the chart's plugin.ignoredXids"
        ),
        "ecc" => format!("{drain}, then {reset}; or a reboot"),
        "remap" => {
            format!("{drain}, and have the GPU replaced; nvidia-smi -q -d ROW_REMAPPER -i {uuid} shows the rows")
        }
        "recovery" => match one.value {
            "reset" | "drain-and-reset" => format!("{drain}, then {reset}"),
            other => format!("{drain}, then there what the driver asks for: {other}"),
        },
        "overlap" if is_dynamic(one.device) => format!(
            "end the processes of the instances whose claims are gone, and the plugin destroys these: nvidia-smi on node {node} names \
             them, but for those of DCGM"
        ),
        "overlap" => {
            "kubectl delete the pods that have the GPU or its instances (kubectl vgpu top -n NAMESPACE names them)"
                .to_owned()
        }
        "lost" if is_dynamic(one.device) => format!(
            "nvidia-smi -L on node {node}: if it lists the GPU, its MIG mode was switched off: nvidia-smi -i {uuid} -mig 1; else \
             {drain}, and reboot it"
        ),
        "lost" => format!("{drain}, and reboot it; dmesg there may say why the GPU went"),
        SILENT => format!("look at nvidia-smi and dmesg on the node; if nvidia-smi hangs: {drain}, and reboot it"),
        _ => format!("use the vgpu of the plugin's release: kubectl logs of the plugin on node {node} says more"),
    }
}

/// Returns a line for each GPU that takes no claims although it has no fault: those in MIG mode.
pub(super) fn notes(seen: &Seen) -> Vec<String> {
    let mig = tainted(seen).filter(|one| one.kind == MIG);
    let lines: BTreeSet<String> = mig.map(|one| {
        format!(
            "{} is in MIG mode (taint {PREFIX}{MIG}), so no new claim gets it whole, nor a share of it; its instances are devices of \
             class vgpu-mig, once no claim has the GPU; nvidia-smi -i {} -mig 0 there ends that (docs/mig.md)",
            one.object(),
            one.gpu()
        )
    })
    .collect();
    lines.into_iter().collect()
}

/// The label by which GPU Operator's MIG manager says what it did on a node.
const MIG_MANAGER: &str = "nvidia.com/mig.config.state";
/// The label by which claims make instances on a node, or do not.
const MIG_DYNAMIC: &str = "dra.vgpu/mig-dynamic";

/// Nodes with instances of ours, or where claims are to make them, where GPU Operator's MIG manager may make them anew.
pub(super) fn mig_managers(seen: &Seen) -> Vec<Finding> {
    let instances = |node: &str| {
        let slices = seen.our_slices().filter(|slice| text(slice, "/spec/nodeName") == node);
        let devices = slices.flat_map(|slice| list(slice, "/spec/devices"));
        devices.filter(|device| is_instance(device)).count()
    };
    let finding = |node: &Value| {
        let (name, labels) = (text(node, "/metadata/name"), &node["metadata"]["labels"]);
        let state = labels[MIG_MANAGER].as_str()?;
        let is_off = labels["nvidia.com/gpu.deploy.mig-manager"] == "false";
        let beside = match (instances(name), labels[MIG_DYNAMIC].as_str()) {
            (0, None | Some("off")) => return None,
            (0, Some(value)) => format!("claims make instances there by its label {MIG_DYNAMIC}={value}"),
            (count, _) => format!("{count} instances of GPUs are devices of {DRIVER}"),
        };
        (!is_off).then(|| Finding {
            object: format!("Node {name}"),
            value: format!("{MIG_MANAGER}={state}, and {beside}"),
            breaks: "GPU Operator's MIG manager destroys instances and makes others when it starts or the label nvidia.com/mig.config \
                     changes, also those that claims have"
                .to_owned(),
            mend: format!(
                "drain the node before that label changes; where claims make instances: kubectl label node {name} \
                 nvidia.com/gpu.deploy.mig-manager=false --overwrite (docs/mig.md)"
            ),
        })
    };
    seen.nodes.iter().filter_map(finding).collect()
}
