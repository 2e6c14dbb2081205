//! Which events are due, and their texts. Pure: observations in, notices out.

use super::event_log::{Note, Notice, On, pod_reference};
use super::observations::{Breach, State};
use super::verdicts::finding::Reason;
use super::verdicts::memory::{Offender, Unexplained};
use super::verdicts::mounts::Pod;
use super::verdicts::refusals::News;
use super::verdicts::second_wall::Changed;
use crate::dra::checkpoint::Entry;
use crate::dra::node::NotStarted;
use crate::dra::share::{ClaimId, Share, ShareKey};
use crate::publish::inventory::{Inventory, Unavailable};
use k8s_openapi::api::core::v1::ObjectReference;
use std::collections::BTreeMap;
use vgpu_abi::ledger::refusal::Cause;

pub(super) const MEMORY_BROKEN: &str = "MemoryLimitBroken";
pub(super) const COMPUTE_BROKEN: &str = "ComputeLimitBroken";
pub(super) const LEDGER_DAMAGED: &str = "LedgerDamaged";
pub(super) const MOUNTS_MISSING: &str = "MountsMissing";
pub(super) const LIMIT_SET_AGAIN: &str = "DriverLimitSetAgain";
pub(super) const LIMIT_FAILED: &str = "DriverLimitFailed";
pub(super) const UNEXPLAINED: &str = "UnexplainedUse";
pub(super) const NO_GLIBC: &str = "NoGlibc";
pub(super) const NOT_STARTED: &str = "ContainerNotStarted";
pub(super) const UNPREPARE_FAILED: &str = "UnprepareFailed";
pub(super) const GPU_UNHEALTHY: &str = "GpuUnhealthy";
pub(super) const PLUGIN_NOT_READY: &str = "PluginNotReady";
const MIB: u64 = 1 << 20;

/// The node's claims by UID.
pub(super) type Entries = BTreeMap<String, Entry>;

fn on_pods(reason: &'static str, id: ClaimId, note: Note) -> Notice {
    Notice {
        reason,
        subject: id.uid.clone(),
        on: On::PodsOf(id),
        note,
    }
}

/// The claim with this UID, if its name is known.
pub(super) fn named(entries: &Entries, uid: &str) -> Option<ClaimId> {
    let entry = entries.get(uid).filter(|entry| !entry.name.is_empty())?;
    Some(entry.id(uid))
}

/// Shares that use more GPU memory than their limits allow.
pub(super) fn memory_broken(state: &State, entries: &Entries) -> Vec<Notice> {
    let notice = |((uid, share), breach): (&ShareKey, &Breach)| {
        let id = named(entries, uid)?;
        let (share, breach, claim) = (share.clone(), breach.clone(), id.name.clone());
        let note = move |pods: &str| breach.note(&share, &claim, pods);
        Some(on_pods(MEMORY_BROKEN, id, Box::new(note)))
    };
    state.breaches.iter().filter_map(notice).collect()
}

/// Shares that use more GPU time than their limits allow.
pub(super) fn compute_broken(state: &State, entries: &Entries) -> Vec<Notice> {
    let broken = state
        .compute
        .iter()
        .filter(|(_, verdict)| verdict.enforced == Some(false));
    let notice = |(uid, share): &ShareKey| {
        let id = named(entries, uid)?;
        let own = entries[uid].all().find(|own| own.name == *share)?;
        let limit = format!("share {share} with {} cores of ResourceClaim {}", own.cores, id.name);
        let note = move |pods: &str| {
            format!(
                "{limit} used more GPU time than its limit allows, by NVML's figures of the last seconds: a program in one of \
                 its pods ({pods}) runs kernels of many seconds, or avoids libvgpu.so. The other shares of the GPU take no \
                 notice of its turns until it keeps to its limit; find the program with nvidia-smi pmon on the node, and \
                 change it or delete its pod"
            )
        };
        Some(on_pods(COMPUTE_BROKEN, id, Box::new(note)))
    };
    broken.filter_map(|(key, _)| notice(key)).collect()
}

/// Claims with a damaged ledger. The damage lasts until the claim gets a new ledger, and it gets one when no pod uses
/// it any more. So deleting only the pod that caused the damage is not enough.
pub(super) fn ledgers_damaged(state: &State, entries: &Entries) -> Vec<Notice> {
    let notice = |((uid, share), damage): (&ShareKey, &String)| {
        let id = named(entries, uid)?;
        let what = format!(
            "the ledger of ResourceClaim {} is damaged (share {share}: {damage})",
            id.name
        );
        let note = move |pods: &str| {
            format!(
                "{what}: its programs can allocate no more GPU memory. All pods that use the claim have this ledger, so to \
                 delete the one that damaged it is not enough. Whoever may delete all of them deletes them ({pods}); when the \
                 last one is gone, new pods get a new ledger"
            )
        };
        Some(on_pods(LEDGER_DAMAGED, id, Box::new(note)))
    };
    state.damaged.iter().filter_map(notice).collect()
}

/// Claims that could not be unprepared. kubelet only logs that, and the pod stays Terminating.
pub(super) fn not_unprepared(failed: Vec<(ClaimId, String)>) -> Vec<Notice> {
    let notice = |(id, error): (ClaimId, String)| {
        let text = format!(
            "the node cannot unprepare ResourceClaim {}, so this pod stays Terminating: {error}; repair that on the node, kubelet \
             retries",
            id.name
        );
        on_pods(UNPREPARE_FAILED, id, Box::new(move |_| text.clone()))
    };
    failed.into_iter().map(notice).collect()
}

/// Returns notices for claims with a GPU that new claims do not get (it has a fault, or the driver does not list it),
/// and the subjects of GPUs whose state is unknown because the driver does not answer.
pub(super) fn gpus_unhealthy(inventory: &Inventory, entries: &Entries) -> (Vec<Notice>, Vec<String>) {
    let mut unsure = Vec::new();
    let mut of_share = |uid: &String, share: &Share| {
        let id = named(entries, uid)?;
        let subject = format!("{uid} {}", share.gpu);
        if matches!(inventory.unavailable(&share.gpu), Some(Unavailable::Silent(_))) {
            unsure.push(subject);
            return None;
        }
        let troubles = inventory.troubles(&share.gpu);
        let text = format!(
            "{}. It is {} of this node, which ResourceClaim {} has; new claims do not get it. The pod goes on, but its calls \
             of CUDA may fail: delete it, and where its claim is from a template, the next one gets another GPU",
            troubles.join("; "),
            share.device,
            id.name
        );
        let notice = Notice {
            subject,
            ..on_pods(GPU_UNHEALTHY, id, Box::new(move |_| text.clone()))
        };
        (!troubles.is_empty()).then_some(notice)
    };
    // Monitors are left out: new claims do get a monitor of such a GPU.
    let shares = entries
        .iter()
        .flat_map(|(uid, entry)| entry.limited().map(move |share| (uid, share)));
    let due = shares.filter_map(|(uid, share)| of_share(uid, share)).collect();
    (due, unsure)
}

/// A claim with a container whose programs do not load libvgpu-preload.so, by the hook's report.
pub(super) fn no_glibc(id: ClaimId) -> Notice {
    let text = format!(
        "a container of this pod, or of one that shares ResourceClaim {} with it, has an image without glibc: no CUDA program \
         runs in it as it is; use an image with glibc 2.17 or newer (Debian, Ubuntu, Red Hat)",
        id.name
    );
    on_pods(NO_GLIBC, id, Box::new(move |_| text.clone()))
}

/// A container that a hook did not let start: one notice for each pod of its claim.
pub(super) fn not_started(failed: NotStarted) -> impl Iterator<Item = Notice> {
    let NotStarted { claim, pods, why } = failed;
    let text = format!(
        "a container of this pod, or of one that shares ResourceClaim {} with it, did not start: {why}",
        claim.name
    );
    pods.into_iter().map(move |pod| {
        let text = text.clone();
        Notice {
            reason: NOT_STARTED,
            subject: format!("{} {}", claim.uid, pod.uid),
            on: On::Object(pod_reference(&claim.namespace, &pod.name, &pod.uid)),
            note: Box::new(move |_| text.clone()),
        }
    })
}

/// Parts of the plugin that have not worked for a while, each with the reason that /readyz has.
pub(super) fn not_ready(parts: &[(&'static str, String)], node: &ObjectReference) -> Vec<Notice> {
    let notice = |(part, why): &(&'static str, String)| {
        let text = format!("the plugin on this node is not ready: {part}: {why}");
        Notice {
            reason: PLUGIN_NOT_READY,
            // The reason is not part of the subject: it may contain a number that changes.
            subject: (*part).to_owned(),
            on: On::Object(node.clone()),
            note: Box::new(move |_| text.clone()),
        }
    };
    parts.iter().map(notice).collect()
}

/// A file of the node's state that was found damaged.
pub(super) fn checkpoint_damaged(damage: String, node: &ObjectReference) -> Notice {
    Notice {
        reason: "CheckpointDamaged",
        subject: damage.clone(),
        on: On::Object(node.clone()),
        note: Box::new(move |_| damage.clone()),
    }
}

/// A process that was killed.
pub(super) fn killed((_, share): &ShareKey, offender: &Offender, id: ClaimId) -> Notice {
    let text = format!(
        "process {} ({}) on the node had {} MiB of GPU memory, more than share {share} of ResourceClaim {} allows, and was \
         killed, as plugin.onBreach: kill says",
        offender.pid,
        offender.name,
        offender.bytes / MIB,
        id.name
    );
    Notice {
        subject: format!("{} {}", offender.pid, offender.started),
        ..on_pods("KilledOverLimit", id, Box::new(move |_| text.clone()))
    }
}

/// Removes from `found` what can be reported now, and returns the notices. A rebuilt record has no name yet, so its
/// news wait. News of a claim that is gone are dropped.
pub(super) fn refusals(found: &mut Vec<(ShareKey, News)>, entries: &Entries) -> Vec<Notice> {
    let mut notices = Vec::new();
    for (share, news) in std::mem::take(found) {
        match named(entries, &share.0) {
            Some(id) => notices.push(refused(&share, news, id)),
            None if entries.contains_key(&share.0) => found.push((share, news)),
            None => {}
        }
    }
    notices
}

/// Memory that was refused to programs of a share: by its limit, or by the driver.
fn refused((uid, share): &ShareKey, news: News, id: ClaimId) -> Notice {
    let reason = match news.last.map(|last| last.cause) {
        Some(Cause::Driver) => "GpuFull",
        _ => "MemoryRefused",
    };
    let (subject, share, claim) = (format!("{uid} {share} {}", news.count), share.clone(), id.name.clone());
    Notice {
        subject,
        ..on_pods(reason, id, Box::new(move |pods| news.note(&share, &claim, pods)))
    }
}

/// Limits of the driver that somebody changed: those that were set again, or those that cannot be set.
pub(super) fn limits_changed(state: &State, entries: &Entries, are_set_again: bool) -> Vec<Notice> {
    let changed = state.changed_limits.iter();
    let due = changed.filter(|(_, of)| of.is_set_again == are_set_again);
    let notice = |((uid, share), of): (&ShareKey, &Changed)| {
        let id = named(entries, uid)?;
        let what = format!(
            "of container cgroup {} for share {share} of ResourceClaim {}",
            of.cgroup, id.name
        );
        let text = match are_set_again {
            true => format!(
                "the driver's GPU memory limit {what} was changed, and set again: {}. libvgpu.so held its own limit meanwhile. \
                 Find out who on the node writes limits of cgroups: only root can",
                of.reason
            ),
            false => format!(
                "the driver's GPU memory limit {what} does not hold and cannot be set: {}. libvgpu.so holds its own limit, but a \
                 program that goes around it is only noticed. Repair that on the node, or delete the pod",
                of.reason
            ),
        };
        let reason = if are_set_again { LIMIT_SET_AGAIN } else { LIMIT_FAILED };
        Some(Notice {
            subject: format!("{uid} {share}"),
            ..on_pods(reason, id, Box::new(move |_| text.clone()))
        })
    };
    due.filter_map(notice).collect()
}

/// Containers that run without the mounts of a share of theirs.
pub(super) fn mounts_missing(state: &State) -> Vec<Notice> {
    let each = state.lacking.iter();
    each.map(|((uid, share), of)| {
        let text = format!(
            "container {} uses a claim: {}",
            of.container,
            Reason::MountsMissing.message()
        );
        Notice {
            reason: MOUNTS_MISSING,
            subject: format!("{uid} {share} {} {}", of.pod_uid, of.container),
            on: On::Object(pod_reference(&of.namespace, &of.pod, &of.pod_uid)),
            note: Box::new(move |_| text.clone()),
        }
    })
    .collect()
}

/// Pods, or the node, whose processes use a GPU without a share of it. One notice for all processes of a pod on a GPU:
/// processes come and go as often as a tenant likes.
pub(super) fn unexplained(state: &State, node: &ObjectReference) -> Vec<Notice> {
    let mut places: BTreeMap<(&str, Option<&str>), Vec<&Unexplained>> = BTreeMap::new();
    for of in &state.unexplained {
        let pod = of.container.as_ref().map(|container| container.pod.as_str());
        places.entry((&of.gpu, pod)).or_default().push(of);
    }
    let notice = |((gpu, uid), processes): ((&str, Option<&str>), Vec<&Unexplained>)| {
        let object = match (uid, &state.pods) {
            (None, _) => node.clone(),
            (Some(uid), Some(pods)) => {
                let reference = |pod: &Pod| pod_reference(&pod.namespace, &pod.name, &pod.uid);
                pods.iter()
                    .find(|pod| pod.uid == uid)
                    .map_or_else(|| node.clone(), reference)
            }
            // The pods have to be listed first.
            (Some(_), None) => return None,
        };
        let text = unexplained_text(gpu, uid, &processes);
        Some(Notice {
            reason: UNEXPLAINED,
            subject: format!("{gpu} {}", uid.unwrap_or_default()),
            on: On::Object(object),
            note: Box::new(move |_| text.clone()),
        })
    };
    places.into_iter().filter_map(notice).collect()
}

fn unexplained_text(gpu: &str, pod: Option<&str>, processes: &[&Unexplained]) -> String {
    let known = processes.iter().filter_map(|of| of.bytes).fold(0, u64::saturating_add);
    let memory = match known {
        0 => "memory".to_owned(),
        bytes => format!("{} MiB", bytes / MIB),
    };
    let place = match pod {
        Some(pod) => format!("in pod {pod}"),
        None => "in no pod".to_owned(),
    };
    let largest = processes.iter().max_by_key(|of| of.bytes);
    let largest = largest.map_or_else(String::new, |of| format!("process {} ({})", of.pid, of.name));
    let who = match processes.len() {
        0 | 1 => format!("{largest} {place} uses"),
        count => format!("{count} processes {place}, most of all {largest}, use"),
    };
    format!(
        "{who} {memory} of GPU {gpu} without a share of it: claims may find less memory than they were given. Give the pod a \
         claim, or end the process"
    )
}

// === impl Breach ===

impl Breach {
    fn note(&self, share: &str, claim: &str, pods: &str) -> String {
        let used = self
            .used
            .map_or_else(|| "more".to_owned(), |used| format!("{} MiB", used / MIB));
        let what = match self.reason {
            Reason::NotCharged => "of which libvgpu.so did not charge a part: a program goes around it",
            _ => "more than its limit: a program goes around libvgpu.so",
        };
        let process = self.offender.as_ref().map_or_else(String::new, |of| {
            format!("; most of it has process {} ({}) on the node", of.pid, of.name)
        });
        format!(
            "by the driver's figures share {share} of ResourceClaim {claim} with a limit of {} MiB uses {used}, {what}{process}. The \
             pods of the claim ({pods}) take memory that others were given; change the program or delete its pod",
            self.limit / MIB
        )
    }
}
