//! Why a pod on our classes is Pending: a pure function of what is known.
//!
//! It looks at capacity, classes, configs and taints. It does not evaluate CEL selectors, constraints between
//! requests or what else a node must have; where it finds nothing missing it says so, and points to the scheduler.

use std::borrow::Cow;

use vgpu_api::config::{self, ConfigError, Entry, Grant};
use vgpu_api::{class, device_type};

use crate::ask::{Cause, Demand};
use crate::cluster::Cluster;
use crate::model::{Amount, Ask, ClaimState, Class, Key, OpaqueConfig, Pod};
use crate::supply::{Gpu, Supply};

/// An event's note may be a kilobyte long.
const TEXT_MAX: usize = 1024;

/// What to tell a pod's owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    pub kind: Kind,
    pub text: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Something is used up, missing or too small.
    Waiting,
    /// The claim is wrong and will never be prepared.
    Refused,
    /// As far as GPUs go it could run.
    Room,
}

impl Kind {
    /// The event's reason.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Waiting | Self::Room => "VgpuClaimPending",
            Self::Refused => "VgpuClaimRefused",
        }
    }
}

/// One request that a pod waits for.
struct Wanted<'a> {
    /// `claim default/x, request gpu`.
    who: String,
    request: &'a str,
    asks: Cow<'a, [Ask]>,
    configs: &'a [OpaqueConfig],
}

/// Why the pod waits, or `None` if it does not wait for us.
pub fn explain(pod: &Pod, cluster: &Cluster, supply: &Supply) -> Option<Verdict> {
    if !pod.unschedulable {
        return None;
    }
    let wanted = wanted(pod, cluster);
    let mut lines: Vec<(Kind, String)> = wanted.iter().map(|w| judge(w, cluster, supply)).collect();
    let kind = lines.iter().map(|(kind, _)| *kind).min_by_key(|kind| match kind {
        Kind::Refused => 0,
        Kind::Waiting => 1,
        Kind::Room => 2,
    })?;
    if kind == Kind::Room && lines.len() > 1 && !fit_together(&wanted, cluster, supply) {
        let whos = wanted.iter().map(|w| w.who.as_str()).collect::<Vec<_>>().join("; ");
        let text = format!("{whos}: each has room by itself, but no node has room for all of them at once");
        return Some(Verdict {
            kind: Kind::Waiting,
            text: cut(text),
        });
    }
    // What is in order is not worth a word beside what is not.
    lines.retain(|(k, _)| *k == kind || *k != Kind::Room);
    let text = lines.into_iter().map(|(_, line)| line).collect::<Vec<_>>().join("; ");
    Some(Verdict { kind, text: cut(text) })
}

/// The requests on our classes that nothing was allocated for yet.
fn wanted<'a>(pod: &'a Pod, cluster: &'a Cluster) -> Vec<Wanted<'a>> {
    let mut wanted = Vec::new();
    for name in &pod.claims {
        let key = Key {
            namespace: pod.key.namespace.clone(),
            name: name.clone(),
        };
        // A claim that does not exist yet, or not any more, is kube-scheduler's to name.
        let Some(claim) = cluster.claims.get(&key) else {
            continue;
        };
        let ClaimState::Waiting { requests, configs } = &claim.state else {
            continue;
        };
        for request in requests
            .iter()
            .filter(|r| r.alternatives.iter().any(|ask| is_ours(&ask.class, cluster)))
        {
            wanted.push(Wanted {
                who: format!("claim {key}, request {}", request.name),
                request: &request.name,
                asks: Cow::Borrowed(&request.alternatives),
                configs,
            });
        }
    }
    for extended in &pod.extended {
        let Some(class) = class_of_extended(&extended.resource, cluster) else {
            continue;
        };
        let ask = Ask {
            class: class.to_owned(),
            amount: Amount::Exactly(extended.count),
            ..Ask::default()
        };
        wanted.push(Wanted {
            who: format!("container {}, resource {}", extended.container, extended.resource),
            request: "",
            asks: Cow::Owned(vec![ask]),
            configs: &[],
        });
    }
    wanted
}

fn is_ours(class: &str, cluster: &Cluster) -> bool {
    cluster
        .classes
        .get(class)
        .map_or_else(|| class::is_ours(class), |class| class.ours)
}

/// The class of ours that stands behind an extended resource.
fn class_of_extended<'a>(resource: &'a str, cluster: &'a Cluster) -> Option<&'a str> {
    if let Some(class) = resource.strip_prefix("deviceclass.resource.kubernetes.io/") {
        return is_ours(class, cluster).then_some(class);
    }
    let mut named: Vec<&Class> = cluster
        .classes
        .values()
        .filter(|class| class.ours && class.extended_resource.as_deref() == Some(resource))
        .collect();
    named.sort_by(|a, b| a.name.cmp(&b.name));
    named.first().map(|class| class.name.as_str())
}

/// One request: the cause of each alternative, or that one of them has room.
fn judge(wanted: &Wanted<'_>, cluster: &Cluster, supply: &Supply) -> (Kind, String) {
    let mut worst = Kind::Refused;
    let mut lines = Vec::new();
    for ask in wanted.asks.iter().filter(|ask| is_ours(&ask.class, cluster)) {
        let (kind, line) = judge_ask(wanted, ask, cluster, supply);
        let line = if ask.name.is_empty() {
            format!("{}: {line}", wanted.who)
        } else {
            format!("{}/{}: {line}", wanted.who, ask.name)
        };
        match kind {
            Kind::Room => return (Kind::Room, line),
            Kind::Waiting => worst = Kind::Waiting,
            Kind::Refused => {}
        }
        lines.push(line);
    }
    (worst, lines.join("; "))
}

fn judge_ask(wanted: &Wanted<'_>, ask: &Ask, cluster: &Cluster, supply: &Supply) -> (Kind, String) {
    let Some(class) = cluster.classes.get(ask.class.as_str()) else {
        let line = format!(
            "DeviceClass {} does not exist; install dra-driver-vgpu's chart, or name another class",
            ask.class
        );
        return (Kind::Waiting, line);
    };
    let demand = match Demand::new(ask, &class.device_type) {
        Ok(demand) => demand,
        Err(error) => return (Kind::Refused, refused(&error)),
    };
    let request = if ask.name.is_empty() {
        wanted.request.to_owned()
    } else {
        format!("{}/{}", wanted.request, ask.name)
    };
    if let Err(error) = check_config(&demand, class, wanted.configs, &request, supply) {
        return (Kind::Refused, refused(&error));
    }
    let cause = demand.judge(supply);
    let kind = if matches!(cause, Cause::Fits { .. }) {
        Kind::Room
    } else {
        Kind::Waiting
    };
    let mut line = format!("asked for {demand}; {cause}");
    if ask.selectors {
        line.push_str(" (its own selectors are not looked at here)");
    }
    (kind, line)
}

fn refused(error: &dyn std::error::Error) -> String {
    format!("{error} (a claim cannot be changed: create it anew)")
}

/// What Prepare would say to the configs of the class and of the claim.
fn check_config(
    demand: &Demand<'_>,
    class: &Class,
    configs: &[OpaqueConfig],
    request: &str,
    supply: &Supply,
) -> Result<(), ConfigError> {
    let parse = |configs: &[OpaqueConfig], prefix: &str| {
        configs
            .iter()
            .filter(|config| request.is_empty() || Entry::applies(&config.requests, request))
            .map(|config| Entry::parse(format!("{prefix}{}", config.at), &config.parameters))
            .collect::<Result<Vec<_>, _>>()
    };
    let effective = config::merge(
        &parse(&class.configs, &format!("DeviceClass {} ", class.name))?,
        &parse(configs, "")?,
    )?;
    let largest = supply
        .gpus
        .iter()
        .filter(|gpu| gpu.device_type == demand.device_type)
        .max_by_key(|gpu| gpu.total.memory);
    // Without a GPU there is nothing to hold the config against, and the missing GPU is said instead.
    let Some(largest) = largest.filter(|gpu| gpu.device_type == device_type::GPU) else {
        return Ok(());
    };
    let need = demand.need(largest);
    effective.check(&Grant {
        memory: u64::try_from(need.memory).unwrap_or(0),
        device_memory: u64::try_from(largest.total.memory).unwrap_or(0),
        cores: u32::try_from(need.cores).unwrap_or(u32::MAX),
    })
}

/// Whether one node has room for the first fitting alternative of every request, one after the other.
fn fit_together(wanted: &[Wanted<'_>], cluster: &Cluster, supply: &Supply) -> bool {
    let mut nodes: Vec<&str> = supply.gpus.iter().map(|gpu| gpu.node.as_str()).collect();
    nodes.dedup();
    nodes.iter().any(|node| {
        let mut gpus: Vec<Gpu> = supply.gpus.iter().filter(|gpu| gpu.node == *node).cloned().collect();
        wanted
            .iter()
            .all(|w| w.asks.iter().any(|ask| reserve(ask, cluster, &mut gpus)))
    })
}

fn reserve(ask: &Ask, cluster: &Cluster, gpus: &mut [Gpu]) -> bool {
    let Some(class) = cluster.classes.get(ask.class.as_str()) else {
        return false;
    };
    let Ok(demand) = Demand::new(ask, &class.device_type) else {
        return false;
    };
    let of_type: Vec<usize> = (0..gpus.len())
        .filter(|i| gpus[*i].device_type == class.device_type)
        .collect();
    let candidates: Vec<&Gpu> = of_type.iter().map(|i| &gpus[*i]).collect();
    let Some(chosen) = demand.choose(&candidates) else {
        return false;
    };
    for position in chosen {
        let gpu = &mut gpus[of_type[position]];
        if !ask.admin {
            let need = demand.need(gpu);
            gpu.reserve(&need);
        }
    }
    true
}

fn cut(mut text: String) -> String {
    if text.len() > TEXT_MAX {
        let limit = TEXT_MAX - "...".len();
        let end = (0..=limit).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        text.truncate(end);
        text.push_str("...");
    }
    text
}
