//! Creates the events of what was observed, and of what the node knows of itself.
//!
//! How it fails: events that are reported only once wait for the API server, at most the last hundred. Events about
//! lasting problems are created again by `event_log`.

use super::super::event_log::{EventLog, Notice};
use super::super::notices::{self, Entries};
use super::super::observations::Observations;
use super::super::verdicts::refusals::EVENT_EVERY;
use crate::api::{Claims, Events};
use crate::dra::node::{Node, SharedNode};
use crate::dra::share::ClaimId;
use crate::metrics::Metrics;
use crate::ready::{Readiness, State as Part, WAITING};
use k8s_openapi::api::core::v1::ObjectReference;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

/// How many events wait for an API server that is down. Beyond that, the oldest are dropped and are only in the log.
const MOST_WAITING: usize = 100;
/// How long a part of the plugin must fail before an event says so: most parts need some seconds after a start.
const NOT_READY_FOR: Duration = Duration::from_secs(30);

/// Creates events.
pub(crate) struct Reporter {
    log: EventLog,
    /// Events that are reported once, and are not on all objects yet.
    waiting: VecDeque<Notice>,
    /// When the pods of a claim were last told that a hook let a container not start, by the claim's UID and the hook. kubelet
    /// starts the container again and again.
    not_started: BTreeMap<(String, String), Instant>,
    metrics: Metrics,
    /// The parts of the plugin that do not work, and since when.
    failing: BTreeMap<&'static str, Instant>,
    /// The Node.
    node_object: ObjectReference,
}

// === impl Reporter ===

impl Reporter {
    pub(crate) fn new(metrics: Metrics, node_object: ObjectReference) -> Self {
        Self {
            log: EventLog::default(),
            waiting: VecDeque::new(),
            not_started: BTreeMap::new(),
            metrics,
            failing: BTreeMap::new(),
            node_object,
        }
    }

    /// Creates the events of the plugin's parts that have not worked for a while.
    pub(crate) async fn report_readiness<A: Claims + Events>(&mut self, readiness: &Readiness, api: &A, now: Instant) {
        self.log.begin_round();
        let reason = |(part, state)| match state {
            // A part that only waits for another part is not reported.
            Part::Fails(why) if why != WAITING => Some((part, why)),
            _ => None,
        };
        let parts: BTreeMap<&'static str, String> = readiness.states().into_iter().filter_map(reason).collect();
        self.failing.retain(|part, _| parts.contains_key(part));
        let mut lasting = Vec::new();
        for (part, why) in parts {
            let since = *self.failing.entry(part).or_insert(now);
            if now.saturating_duration_since(since) >= NOT_READY_FOR {
                lasting.push((part, why));
            }
        }
        let due = notices::not_ready(&lasting, &self.node_object);
        self.log.report(api, notices::PLUGIN_NOT_READY, &due).await;
    }

    /// Creates the events of what was observed.
    pub(crate) async fn report<A: Claims + Events>(&mut self, node: &SharedNode, api: &A, observations: &Observations) {
        self.log.begin_round();
        let is_quiet = {
            let state = observations.lock();
            let holds = state.compute.values().all(|verdict| verdict.enforced != Some(false));
            holds
                && state.breaches.is_empty()
                && state.damaged.is_empty()
                && state.changed_limits.is_empty()
                && state.killed.is_empty()
                && state.refused.is_empty()
        };
        let entries = match is_quiet {
            true => Entries::new(),
            false => node.read(|node| node.claims().claims.clone()).await.unwrap_or_default(),
        };
        let due = {
            let mut state = observations.lock();
            for (share, offender) in std::mem::take(&mut state.killed) {
                // A claim that is gone has no pods.
                let id = entries.get(&share.0).map(|entry| entry.id(&share.0));
                let notice = id.map(|id| notices::killed(&share, &offender, id));
                self.waiting.extend(notice);
            }
            self.waiting.extend(notices::refusals(&mut state.refused, &entries));
            // While the state of a claim is unknown, its pods keep the event, and it is not created a second time.
            let verdicts = state.compute.iter();
            let unsure = verdicts.filter(|(_, verdict)| verdict.enforced != Some(true));
            let unsure: Vec<String> = unsure.map(|((uid, _), _)| uid.clone()).collect();
            self.log
                .keep(notices::COMPUTE_BROKEN, |uid| unsure.iter().any(|known| known == uid));
            let each = [
                (notices::MEMORY_BROKEN, notices::memory_broken(&state, &entries)),
                (notices::LEDGER_DAMAGED, notices::ledgers_damaged(&state, &entries)),
                (notices::MOUNTS_MISSING, notices::mounts_missing(&state)),
                (
                    notices::LIMIT_SET_AGAIN,
                    notices::limits_changed(&state, &entries, true),
                ),
                (notices::LIMIT_FAILED, notices::limits_changed(&state, &entries, false)),
                (notices::UNEXPLAINED, notices::unexplained(&state, &self.node_object)),
            ];
            (each, notices::compute_broken(&state, &entries))
        };
        for (reason, notices) in &due.0 {
            self.log.report(api, reason, notices).await;
        }
        for notice in &due.1 {
            self.log.warn_of_lasting(api, notice).await;
        }
        self.report_waiting(api).await;
    }

    async fn report_waiting<A: Claims + Events>(&mut self, api: &A) {
        let excess = self.waiting.len().saturating_sub(MOST_WAITING);
        self.waiting.drain(..excess);
        for notice in std::mem::take(&mut self.waiting) {
            match self.log.warn(api, &notice).await {
                true => self.log.keep(notice.reason, |subject| subject != notice.subject),
                false => self.waiting.push_back(notice),
            }
        }
    }

    /// Creates the events of what the node knows of itself: claims that cannot be unprepared or whose GPU has a fault, files
    /// that were damaged, and what the hook reports of containers.
    pub(crate) async fn report_node<A: Claims + Events>(&mut self, node: &SharedNode, api: &A) {
        self.log.begin_round();
        let read = node.read(|node| {
            let claims: BTreeSet<String> = node.claims().claims.keys().cloned().collect();
            // While GPUs are not known, their events stay as they are.
            let unhealthy = node
                .inventory()
                .map(|inventory| notices::gpus_unhealthy(inventory, &node.claims().claims));
            (
                claims,
                node.not_unprepared(),
                unhealthy,
                node.take_damages(),
                node.take_not_started(),
                without_glibc(node),
            )
        });
        let (claims, failed, unhealthy, damages, not_started, reported) = read.await.unwrap_or_default();
        if let Some((due, unsure)) = unhealthy {
            // While a GPU's driver does not answer, the pods keep the event, and it is not created a second time.
            let lasts =
                |of: &str| unsure.iter().any(|known| known == of) || due.iter().any(|notice| notice.subject == of);
            self.log.keep(notices::GPU_UNHEALTHY, lasts);
            for notice in &due {
                self.log.warn_of_lasting(api, notice).await;
            }
        }
        let failed = notices::not_unprepared(failed);
        self.log.report(api, notices::UNPREPARE_FAILED, &failed).await;
        for damage in damages {
            self.metrics.damaged();
            self.waiting
                .push_back(notices::checkpoint_damaged(damage, &self.node_object));
        }
        let now = Instant::now();
        self.not_started
            .retain(|_, last| now.saturating_duration_since(*last) < EVENT_EVERY);
        for failed in not_started {
            let hook = failed.why.split(':').next().unwrap_or_default().to_owned();
            if let Entry::Vacant(entry) = self.not_started.entry((failed.claim.uid.clone(), hook)) {
                entry.insert(now);
                self.waiting.extend(notices::not_started(failed));
            }
        }
        self.report_waiting(api).await;
        self.log.keep(notices::NO_GLIBC, |uid| claims.contains(uid));
        for id in reported {
            let uid = id.uid.clone();
            if self.log.warn(api, &notices::no_glibc(id)).await {
                // The hook may report a later pod.
                let dropped = node.read(move |node| node.dirs().drop_no_glibc(&uid)).await;
                if let Ok(Err(error)) = dropped {
                    tracing::warn!(%error, "the hook's report of a container without glibc stays");
                }
            }
        }
    }
}

/// Claims with a report of the hook that is not on all of their pods yet. A claim that was rebuilt from limits files has no
/// name to look up until `clean_up` has found it.
fn without_glibc(node: &Node) -> Vec<ClaimId> {
    let claims = node.claims().claims.iter().filter(|(_, entry)| !entry.name.is_empty());
    let reported = claims.filter(|(uid, _)| node.dirs().take_no_glibc(uid));
    reported.map(|(uid, entry)| entry.id(uid)).collect()
}
