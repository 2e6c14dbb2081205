//! A pod within budget replaces the only pod over budget that may be evicted. The cluster has a short
//! `quota.evictAfter`.

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use vgpu_e2e::kube::Kube;
use vgpu_e2e::wait::wait;

use super::namespace::{set_quota, wait_label};
use crate::fleet::wait_for_event;
use crate::manifests::{HOLD, pod, template};
use crate::shared::{self, Installed, LIMIT};

const SPENT: &str = "evict-spent";
const RICH: &str = "evict-rich";

pub(super) fn on_kube_scheduler() -> Result<()> {
    evicted(shared::installed()?)
}

pub(super) fn in_controller_mode() -> Result<()> {
    evicted(shared::controlled()?)
}

/// Pods over budget use all GPUs, two on each. A PodDisruptionBudget protects all but the first, so only that one is
/// evicted.
fn evicted(installed: &Installed) -> Result<()> {
    let least = installed.gpus.iter().map(|gpu| gpu.memory).min().unwrap_or_default();
    let half = format!("{}Mi", (least / 2) >> 20);
    let pods = installed.gpus.len() * 2;
    shared::in_namespace_of(installed, SPENT, |_, spent| {
        shared::in_namespace_of(installed, RICH, |_, rich| {
            set_quota(
                spent,
                &json!({"budget": {"gpuHours": 0, "every": "1d", "whenSpent": "Yield"}}),
            )?;
            wait_label(spent, SPENT, Some("OverBudget"))?;
            let half = template("half", "vgpu", json!({"memory": half}), &[]);
            spent.apply(&half)?;
            let names: Vec<String> = (0..pods).map(|number| format!("low-{number}")).collect();
            for name in &names {
                spent.apply(&pod(name, "client", &HOLD, "half"))?;
                spent.wait_running(name, LIMIT)?;
            }
            let mut kept = names[1..].to_vec();
            kept.sort_unstable();
            for name in &kept {
                spent.run(&["label", "pod", name, "kept=yes"])?;
            }
            let keeper = json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "kept"},
                "spec": {"minAvailable": kept.len(), "selector": {"matchLabels": {"kept": "yes"}}}});
            spent.apply(&keeper.to_string())?;
            wait(LIMIT, "the PodDisruptionBudget to be in force", || {
                let status = spent.get(&["poddisruptionbudget", "kept"])?["status"].clone();
                Ok((status["currentHealthy"] == kept.len()).then_some(()))
            })?;
            set_quota(rich, &json!({"hard": {"shares": 1}}))?;
            rich.apply(&(half + &pod("high", "client", &HOLD, "half")))?;
            rich.wait_running("high", LIMIT * 2)?;
            wait_for_event(rich, "high", "RoomMade", &["pods over budget are evicted from node"])?;
            wait_for_event(
                spent,
                &names[0],
                "EvictedOverBudget",
                &["the GPU hours of its namespace are spent until"],
            )?;
            let left = staying(spent)?;
            ensure!(left == kept, "{left:?} stay, and {kept:?} should");
            Ok(())
        })
    })
}

/// The names of pods that are not being deleted.
fn staying(kube: &Kube<'_>) -> Result<Vec<String>> {
    let pods = kube.get(&["pods"])?;
    let pods = pods["items"].as_array().into_iter().flatten();
    let stays = pods.filter(|pod| pod["metadata"]["deletionTimestamp"] == Value::Null);
    let mut names: Vec<String> = stays
        .filter_map(|pod| Some(pod["metadata"]["name"].as_str()?.to_owned()))
        .collect();
    names.sort_unstable();
    Ok(names)
}
