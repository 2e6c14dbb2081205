//! Findings about GPUs that the plugin has tainted: faults that keep new claims away.
//!
//! MIG mode is no fault: an administrator switches it on. It is a note.

use std::collections::BTreeMap;

use serde_json::Value;
use vgpu_api::advice;

use super::finding::Finding;
use super::seen::{DRIVER, Seen, key, list, text};

const PREFIX: &str = "dra.vgpu/";
/// This taint says who allocates the GPU; it is not a fault.
const ALLOCATOR: &str = "allocator";
const MIG: &str = "mig";
const SILENT: &str = "silent";

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

    fn object(&self) -> String {
        format!("GPU {} on node {}", self.uuid(), self.node())
    }
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
    let faults = tainted(seen).filter(|one| one.kind != MIG && !is_told(one));
    let finding = |one: Tainted<'_>| {
        let device = (text(one.slice, "/spec/pool/name"), text(one.device, "/name"));
        let equals = if one.value.is_empty() { "" } else { "=" };
        Finding {
            object: one.object(),
            value: format!(
                "taint {PREFIX}{}{equals}{}:{}: {}",
                one.kind,
                one.value,
                one.effect,
                reason(&one)
            ),
            breaks: breaks(&one, holders.get(&device).map_or(&[], Vec::as_slice)),
            mend: format!("{} (docs/health.md)", mend(&one)),
        }
    };
    faults.map(finding).collect()
}

fn breaks(one: &Tainted<'_>, holders: &[String]) -> String {
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
    let (node, uuid) = (one.node(), one.uuid());
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
        "lost" => format!("{drain}, and reboot it; dmesg there may say why the GPU went"),
        SILENT => format!("look at nvidia-smi and dmesg on the node; if nvidia-smi hangs: {drain}, and reboot it"),
        _ => format!("use the vgpu of the plugin's release: kubectl logs of the plugin on node {node} says more"),
    }
}

/// Returns a line for each GPU that takes no claims although it has no fault: those in MIG mode.
pub(super) fn notes(seen: &Seen) -> Vec<String> {
    let mig = tainted(seen).filter(|one| one.kind == MIG);
    mig.map(|one| {
        format!(
            "{} is in MIG mode (taint {PREFIX}{MIG}), so no new claim gets it; nvidia-smi -i {} -mig 0 there ends that",
            one.object(),
            one.uuid()
        )
    })
    .collect()
}
