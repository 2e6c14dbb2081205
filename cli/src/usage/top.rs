//! Implements `vgpu top`: the shares of a namespace, all namespaces, or the GPUs of all nodes.

use std::cmp::Reverse;
use std::process::ExitCode;

use serde_json::{Value, json};
use vgpu_api::usage::{NodeCondition, NodeGpu, VgpuNode, VgpuNodeStatus, VgpuUsage, VgpuUsageStatus};
use vgpu_planner::Time;
use vgpu_quantity::read_bytes;

use super::answer::{UsageError, end, rendered};
use super::figures::{STALE_USAGE, age, age_cell, is_stale, memory, percent, rough, stale, word};
use super::seen::{NO_WRITER, Seen, decoded, refused};
use super::shares::{self, Share};
use crate::cluster::{self, Cluster, Kind, List};
use crate::flags::TopFlags;
use crate::offline::now;
use crate::output::clean;
use crate::table::{Column, UNKNOWN, figure, fold, table, width, words};

const STALE_NODE: &str = "stale: not written for 5 minutes; the node's plugin does not run, or does not reach the API server \
                          (`kubectl vgpu doctor`)";

pub(crate) fn main(flags: &TopFlags) -> ExitCode {
    end("top", run(flags))
}

fn run(flags: &TopFlags) -> Result<String, UsageError> {
    let cluster = Cluster::connect(&flags.cluster, flags.namespace.as_deref())?;
    let width = width();
    if flags.nodes {
        let (raw, nodes) = read(&cluster, cluster::VGPU_NODES, "it is a right in the whole cluster")?;
        return Ok(rendered(
            flags.output,
            || fold(&of_nodes(&nodes, now(), width), width),
            || json!({"items": raw}),
        ));
    }
    if flags.all_namespaces {
        let hint = "-n NAMESPACE needs rights in that namespace alone";
        let (raw, usages) = read(&cluster, cluster::USAGES, hint)?;
        return Ok(rendered(
            flags.output,
            || fold(&of_namespaces(&usages, now(), width), width),
            || json!({"items": raw}),
        ));
    }
    let seen = Seen::read("top", &cluster)?;
    let document = || json!({"items": seen.usage.iter().map(|(raw, _)| raw).collect::<Vec<_>>()});
    let text = || match &seen.usage {
        Some((_, status)) => fold(&of_shares(status, &shares::of(&seen), now(), width), width),
        None => none(&seen.without_usage(cluster.namespace())),
    };
    Ok(rendered(flags.output, text, document))
}

fn read<T: serde::de::DeserializeOwned>(
    cluster: &Cluster,
    kind: Kind,
    hint: &'static str,
) -> Result<(Vec<Value>, Vec<T>), UsageError> {
    let [list] = cluster.read([List::everywhere(kind)]);
    Ok(decoded("top", list.map_err(|error| refused(error, kind, hint))?))
}

fn none(what: &str) -> String {
    format!("{}; pods that wait: `kubectl vgpu explain pod/NAME`\n", clean(what))
}

const OF_SHARES: [Column; 10] = [
    words("CLAIM", 0),
    words("POD", 4),
    words("NODE", 8),
    words("GPU", 9),
    figure("HELD", 0),
    figure("USED", 0),
    figure("PEAK", 5),
    figure("CORES", 6),
    figure("GPU TIME", 2),
    figure("REFUSALS", 3),
];

fn of_shares(status: &VgpuUsageStatus, shares: &[Share], now: Time, width: Option<usize>) -> String {
    let rows: Vec<_> = shares.iter().map(share_row).collect();
    let mut text = match rows.is_empty() {
        true => String::new(),
        false => table(&OF_SHARES, &rows, width),
    };
    text.push_str(&format!(
        "shares: {}; memory: {} held, {} used; cores: {} held, {} of a GPU's time used; waiting pods: {}\n",
        status.shares,
        memory(&status.memory.held),
        memory(&status.memory.used),
        status.cores_held,
        percent(status.gpu_time_percent),
        status.waiting
    ));
    if status.not_listed > 0 {
        text.push_str(&format!(
            "{} shares with less memory are not listed\n",
            status.not_listed
        ));
    }
    if status.without_claim > 0 {
        text.push_str("gone: the claim was deleted, and its node holds the GPU until the processes end\n");
    }
    if let Some(budget) = &status.budget {
        let [hours, used, state] = [&budget.gpu_hours, &budget.used_gpu_hours, &budget.state].map(|words| clean(words));
        text.push_str(&format!("budget: {used} of {hours} GPU hours are used ({state})\n"));
    }
    text.extend(stale(&status.as_of, now).map(|line| line + "\n"));
    text
}

fn share_row(share: &Share) -> [String; 10] {
    let claim = &share.usage;
    let usage = &claim.usage;
    let gone = if claim.without_claim { " (gone)" } else { "" };
    let pods = match &share.pods[..] {
        [] => UNKNOWN.to_owned(),
        [pod] => pod.clone(),
        [pod, more @ ..] => format!("{pod} +{}", more.len()),
    };
    [
        format!("{}{gone}", claim.claim),
        pods,
        word(&claim.node),
        word(&claim.device),
        memory(&usage.memory),
        memory(&usage.memory_used),
        memory(&usage.memory_peak),
        usage.cores.to_string(),
        percent(usage.gpu_time_percent),
        usage
            .refusals
            .map_or_else(|| UNKNOWN.to_owned(), |refusals| refusals.to_string()),
    ]
}

const OF_NAMESPACES: [Column; 10] = [
    words("NAMESPACE", 0),
    figure("SHARES", 5),
    figure("HELD", 0),
    figure("USED", 0),
    figure("CORES", 6),
    figure("GPU TIME", 2),
    figure("GPU HOURS", 8),
    figure("REFUSALS", 7),
    figure("WAITING", 3),
    words("AS OF", 4),
];

fn of_namespaces(usages: &[VgpuUsage], now: Time, width: Option<usize>) -> String {
    if usages.is_empty() {
        return none(&format!(
            "no namespace has a VgpuUsage: none holds a share of a GPU, or {NO_WRITER}"
        ));
    }
    let name = |usage: &VgpuUsage| usage.metadata.namespace.clone().unwrap_or_default();
    let mut usages: Vec<_> = usages
        .iter()
        .map(|usage| (name(usage), usage.status.clone().unwrap_or_default()))
        .collect();
    usages.sort_by_cached_key(|(name, status)| (Reverse(read_bytes(&status.memory.held)), name.clone()));
    let rows: Vec<_> = usages
        .iter()
        .map(|(name, status)| {
            [
                name.clone(),
                status.shares.to_string(),
                memory(&status.memory.held),
                memory(&status.memory.used),
                status.cores_held.to_string(),
                percent(status.gpu_time_percent),
                status.budget.as_ref().map_or_else(
                    || UNKNOWN.to_owned(),
                    |budget| format!("{}/{}", word(&budget.used_gpu_hours), word(&budget.gpu_hours)),
                ),
                status.refusals.to_string(),
                status.waiting.to_string(),
                age_cell(&status.as_of, now),
            ]
        })
        .collect();
    let is_any_stale = usages.iter().any(|(_, status)| is_stale(age(&status.as_of, now)));
    table(&OF_NAMESPACES, &rows, width) + &note(is_any_stale, STALE_USAGE)
}

const OF_NODES: [Column; 10] = [
    words("NODE", 0),
    words("GPU", 0),
    words("MODEL", 9),
    figure("MEMORY", 6),
    figure("HELD", 0),
    figure("USED", 3),
    figure("FREE", 1),
    figure("CORES", 5),
    figure("SHARES", 7),
    // A fault is to be seen on a narrow terminal, too.
    words("STATE", 2),
];

fn of_nodes(nodes: &[VgpuNode], now: Time, width: Option<usize>) -> String {
    if nodes.is_empty() {
        return "no node has a VgpuNode: no plugin has written one; `kubectl vgpu doctor` looks at them\n".to_owned();
    }
    let mut rows = Vec::new();
    for node in nodes {
        let name = node.metadata.name.clone().unwrap_or_default();
        let status = node.status.clone().unwrap_or_default();
        let state = node_state(&status, now);
        // A node without a GPU has its line, because its state says why.
        let unknown = [NodeGpu::default()];
        let gpus = if status.gpus.is_empty() {
            &unknown[..]
        } else {
            &status.gpus
        };
        rows.extend(gpus.iter().map(|gpu| {
            (
                read_bytes(&gpu.memory_held),
                gpu_row(&name, gpu, &state, status.gpus.is_empty()),
            )
        }));
    }
    rows.sort_by_cached_key(|(held, row)| (Reverse(*held), row[0].clone(), row[1].clone()));
    let rows: Vec<_> = rows.into_iter().map(|(_, row)| row).collect();
    let is_any_stale = nodes
        .iter()
        .any(|node| is_stale(node.status.as_ref().and_then(|status| age(&status.as_of, now))));
    table(&OF_NODES, &rows, width) + &note(is_any_stale, STALE_NODE)
}

fn gpu_row(node: &str, gpu: &NodeGpu, state: &[String], is_none: bool) -> [String; 10] {
    let count = |value: u32| match is_none {
        true => UNKNOWN.to_owned(),
        false => value.to_string(),
    };
    let states: Vec<&str> = gpu.problem.iter().chain(state).map(String::as_str).collect();
    [
        node.to_owned(),
        word(&gpu.device),
        word(&gpu.model),
        memory(&gpu.memory),
        memory(&gpu.memory_held),
        memory(gpu.memory_used.as_deref().unwrap_or_default()),
        memory(&gpu.largest_free),
        count(gpu.cores_held),
        count(gpu.shares),
        if states.is_empty() {
            "ok".to_owned()
        } else {
            states.join(", ")
        },
    ]
}

/// What is wrong with a node's plugin and its figures.
fn node_state(status: &VgpuNodeStatus, now: Time) -> Vec<String> {
    let is_bad = |condition: &&NodeCondition| condition.kind == "Ready" && condition.status != "True";
    let ready = status.conditions.iter().find(is_bad);
    let mut state: Vec<String> = ready
        .map(|ready| format!("not ready: {}", ready.reason))
        .into_iter()
        .collect();
    let age = age(&status.as_of, now);
    if is_stale(age) {
        state.push(format!("stale {}", age.map_or_else(|| UNKNOWN.to_owned(), rough)));
    }
    state
}

fn note(is_stale: bool, words: &str) -> String {
    if is_stale { format!("{words}\n") } else { String::new() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vgpu_api::usage::{BudgetUse, ClaimUse, HeldAndUsed};

    fn now_is() -> Time {
        Time::parse("2026-01-01T01:00:00Z").unwrap()
    }

    fn share(claim: &str, held: &str) -> Share {
        let mut usage = ClaimUse {
            claim: claim.to_owned(),
            node: "node-1".to_owned(),
            device: "gpu-0".to_owned(),
            ..ClaimUse::default()
        };
        usage.usage.memory = held.to_owned();
        usage.usage.memory_used = "9728Mi".to_owned();
        usage.usage.cores = 25;
        usage.usage.refusals = Some(2);
        Share {
            usage,
            pods: vec!["train-0".to_owned(), "train-1".to_owned()],
            ..Share::default()
        }
    }

    fn status() -> VgpuUsageStatus {
        VgpuUsageStatus {
            as_of: "2026-01-01T00:59:30Z".to_owned(),
            shares: 1,
            memory: HeldAndUsed {
                held: "20Gi".to_owned(),
                used: "9728Mi".to_owned(),
            },
            cores_held: 25,
            gpu_time_percent: Some(0),
            waiting: 2,
            ..VgpuUsageStatus::default()
        }
    }

    #[test]
    fn a_share_has_its_line_and_the_namespace_its_sum() {
        let wanted = "\
CLAIM     POD         NODE    GPU    HELD   USED  PEAK  CORES  GPU TIME  REFUSALS
gpu-of-a  train-0 +1  node-1  gpu-0  20Gi  9.5Gi     -     25         -         2
shares: 1; memory: 20Gi held, 9.5Gi used; cores: 25 held, 0% of a GPU's time used; waiting pods: 2
";
        assert_eq!(
            of_shares(&status(), &[share("gpu-of-a", "20Gi")], now_is(), None),
            wanted
        );
    }

    #[test]
    fn a_namespace_that_only_waits_has_no_empty_table() {
        let text = of_shares(&status(), &[], now_is(), None);
        assert!(text.starts_with("shares: 1; ") && text.lines().count() == 1, "{text}");
    }

    #[test]
    fn forty_columns_have_what_matters_most() {
        let text = of_shares(&status(), &[share("gpu-of-a", "20Gi")], now_is(), Some(40));
        assert!(
            text.starts_with("CLAIM     HELD   USED  GPU TIME\ngpu-of-a  20Gi  9.5Gi         -\n"),
            "{text}"
        );
        assert!(
            text.contains("too narrow for POD, NODE, GPU, PEAK, CORES, REFUSALS"),
            "{text}"
        );
    }

    #[test]
    fn what_the_figures_leave_out_is_said() {
        let mut old = status();
        old.as_of = "2025-12-31T22:00:00Z".to_owned();
        (old.not_listed, old.without_claim) = (7, 1);
        old.budget = Some(BudgetUse {
            gpu_hours: "100".to_owned(),
            used_gpu_hours: "12.5".to_owned(),
            state: "InBudget".to_owned(),
        });
        let mut gone = share("a", "1Gi");
        gone.usage.without_claim = true;
        let text = of_shares(&old, &[gone], now_is(), None);
        for words in [
            "\na (gone) ",
            "7 shares with less memory are not listed\n",
            "budget: 12.5 of 100 GPU hours are used (InBudget)\n",
            "figures of 3h ago, stale: not written for 5 minutes",
        ] {
            assert!(text.contains(words), "{words:?} in {text}");
        }
    }

    #[test]
    fn without_any_usage_it_is_not_known_that_nothing_is_held() {
        let text = of_namespaces(&[], now_is(), None);
        assert!(
            text.starts_with("no namespace has a VgpuUsage: ") && text.contains("usage.enabled"),
            "{text}"
        );
    }

    #[test]
    fn namespaces_and_gpus_are_sorted_by_the_memory_that_is_held() {
        let usage = |name: &str, held: &str| {
            let mut usage = VgpuUsage::new("vgpu", vgpu_api::usage::VgpuUsageSpec::default());
            usage.metadata.namespace = Some(name.to_owned());
            let mut of = status();
            of.memory.held = held.to_owned();
            usage.status = Some(of);
            usage
        };
        let mut unread = usage("c", "");
        unread.status = None;
        let text = of_namespaces(&[usage("b", "1Gi"), unread, usage("a", "20Gi")], now_is(), None);
        let first: Vec<&str> = text.lines().map(|line| line.split(' ').next().unwrap()).collect();
        assert_eq!(first, ["NAMESPACE", "a", "b", "c", "stale:"], "{text}");
    }

    #[test]
    fn a_gpu_says_why_no_new_share_is_placed_on_it() {
        let mut node = VgpuNode::new("n1", vgpu_api::usage::VgpuNodeSpec::default());
        let gpu = |device: &str, held: &str, problem: Option<&str>| NodeGpu {
            device: device.to_owned(),
            memory: "80Gi".to_owned(),
            memory_held: held.to_owned(),
            largest_free: "10Gi".to_owned(),
            problem: problem.map(str::to_owned),
            ..NodeGpu::default()
        };
        let not_ready = NodeCondition {
            kind: "Ready".to_owned(),
            status: "False".to_owned(),
            reason: "NvmlFailed".to_owned(),
            ..NodeCondition::default()
        };
        let mut status = VgpuNodeStatus {
            as_of: "2026-01-01T00:59:30Z".to_owned(),
            gpus: vec![gpu("gpu-0", "1Gi", None), gpu("gpu-1", "70Gi", Some("Unhealthy"))],
            ..VgpuNodeStatus::default()
        };
        node.status = Some(status.clone());
        let text = of_nodes(&[node.clone()], now_is(), None);
        let lines: Vec<&str> = text.lines().collect();
        assert!(
            lines[1].starts_with("n1    gpu-1") && lines[1].ends_with("  Unhealthy"),
            "{text}"
        );
        assert!(lines[2].ends_with("  ok") && lines.len() == 3, "{text}");
        let narrow = of_nodes(&[node.clone()], now_is(), Some(34));
        assert!(narrow.starts_with("NODE  GPU    HELD  FREE  STATE\n"), "{narrow}");

        status.as_of = "2026-01-01T00:00:00Z".to_owned();
        status.conditions = vec![not_ready];
        status.gpus.clear();
        node.status = Some(status);
        let text = of_nodes(&[node], now_is(), None);
        assert!(text.contains("not ready: NvmlFailed, stale 60m\n"), "{text}");
        assert!(!text.contains(" 0 "), "{text}");
    }
}
