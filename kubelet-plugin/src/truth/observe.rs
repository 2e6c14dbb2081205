//! Compares every 4 s what the driver says with limits, ledgers and mounts, and keeps what is settled.
//!
//! How it fails: a driver that hangs is not asked again before it has answered; meanwhile memory is not known, and mounts
//! are. A reading of /proc that takes long makes the next one later, so that it takes no more than a fiftieth of a core, but
//! no later than after 10 s: a machine under load must not hide a breach.
//! After a restart nothing is known until it was seen again.

use super::cgroup::Container;
use super::conditions::{Findings, ShareFindings};
use super::finding::{Finding, Reason};
use super::gpu_processes::GpuProcesses;
use super::injected::{self, Claim, Lacking, Pod};
use super::kill::kill;
use super::memory::{Answers, Judged, Ledger, Offender, ShareFacts, Unexplained, judge};
use super::processes::{Proc, Seen};
use super::settle::Settled;
use crate::compute::{Comparison, Verdict};
use crate::mount_users::ShareMount;
use crate::node::{LedgerReading, Node, SharedNode};
use crate::share::{Role, ShareKey, ShareKeys};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use vgpu_abi::arbitration::entry_flags;

pub(super) const EVERY: Duration = Duration::from_secs(4);
/// A reading may take one part in so many of the time.
const PART: u32 = 50;
/// The longest time between two readings.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// How often in a row something is found before it counts.
const BREACHES: u32 = 2;
const FINE: u32 = 3;
const SILENCES: u32 = 3;

/// What is known now, shared by those who observe, tell and export.
#[derive(Clone, Debug, Default)]
pub struct Truth(Arc<Mutex<State>>);

/// What is known.
#[derive(Debug, Default)]
pub struct State {
    pub findings: Findings,
    /// Bytes of each share by the driver, as far as that is known.
    pub used: BTreeMap<ShareKey, u64>,
    pub breaches: BTreeMap<ShareKey, Breach>,
    pub lacking: BTreeMap<ShareKey, Lacking>,
    /// Processes without a share, that were seen twice.
    pub unexplained: Vec<Unexplained>,
    /// By UUID.
    pub gpus: BTreeMap<String, GpuUse>,
    /// Processes that were killed and have no event yet.
    pub killed: Vec<(ShareKey, Offender)>,
    /// How many were killed since the start.
    pub kills: u64,
    /// This node's pods; None before they were listed.
    pub pods: Option<Vec<Pod>>,
    /// Containers about which the pods were listed: how often, and when that was last wanted.
    pub asked: BTreeMap<Container, (u32, Instant)>,
    /// Containers about which the pods should be listed.
    pub questions: BTreeSet<Container>,
}

/// A share that broke its limit of memory, as of the last comparison.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Breach {
    pub reason: Reason,
    pub limit: u64,
    pub used: Option<u64>,
    pub offender: Option<Offender>,
}

/// A GPU's use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GpuUse {
    /// Bytes of processes without a share; None if it is not known who uses the GPU.
    pub unexplained: Option<u64>,
    /// Bytes of all processes; None if one of them is not known.
    pub used: Option<u64>,
}

// === impl Truth ===

impl Truth {
    /// Everything is known of this share.
    #[cfg(test)]
    pub(crate) fn know_all(&self, key: &ShareKey) {
        let holds = Finding::holds(Reason::WithinLimit);
        let all = ShareFindings {
            memory: holds,
            compute: holds,
            injected: holds,
        };
        let mut state = self.lock();
        state.findings.insert(key.clone(), all);
        state.used.insert(key.clone(), 1);
        let known = GpuUse {
            unexplained: Some(0),
            used: Some(1),
        };
        state.gpus.insert("GPU-1".into(), known);
    }

    /// Locks what is known, for a moment.
    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the node's records say, as of one moment.
#[derive(Clone, Debug, Default)]
pub(super) struct Records {
    shares: Vec<ShareFacts>,
    pub(super) mounts: Vec<ShareMount>,
    claims: Vec<Claim>,
    gpus: Vec<String>,
    /// Shares whose time is limited.
    limited: ShareKeys,
}

/// Reads the node's records.
pub(super) fn records(node: &Node) -> Records {
    let mut records = Records {
        gpus: node.gpus(),
        ..Records::default()
    };
    let mut buffer = Vec::new();
    for (uid, entry) in &node.claims().claims {
        let shares = entry.shares.iter().map(|held| &held.share);
        let limited: Vec<_> = shares.filter(|share| share.role == Role::Share).collect();
        for share in &limited {
            let ledger = match node.ledger(uid, entry, share, &mut buffer) {
                LedgerReading::Read(usage) => usage.into(),
                LedgerReading::OtherFormat => Ledger::Other,
                LedgerReading::Damaged(_) => Ledger::Damaged,
            };
            records.shares.push(ShareFacts {
                key: (uid.clone(), share.name.clone()),
                gpu: share.gpu.clone(),
                limit: share.memory,
                ledger,
            });
        }
        records.mounts.extend(node.share_mounts(uid));
        if !limited.is_empty() {
            records.claims.push(Claim {
                namespace: entry.namespace.clone(),
                name: entry.name.clone(),
                shares: limited
                    .iter()
                    .map(|share| ((uid.clone(), share.name.clone()), share.base_request().to_owned()))
                    .collect(),
                pods: entry.pods.iter().map(|pod| pod.uid.clone()).collect(),
            });
        }
    }
    let placed = node.placed().into_iter();
    let limited = placed.filter(|placed| placed.entry.flags & entry_flags::UNLIMITED == 0);
    records.limited = limited.map(|placed| placed.key).collect();
    records
}

/// What observing needs.
pub struct Observer<G> {
    pub node: SharedNode,
    pub gpus: G,
    pub proc: Proc,
    pub comparison: Comparison,
    pub truth: Truth,
    pub own_pod: Option<String>,
    /// Kill processes of shares over their limit.
    pub kills: bool,
}

/// Observes for ever.
pub async fn run<G: GpuProcesses>(observer: Observer<G>) {
    let gpus = Arc::new(observer.gpus);
    let mut settling = Settling::default();
    let mut asking: Option<tokio::task::JoinHandle<Answers>> = None;
    let mut pause = EVERY;
    loop {
        tokio::time::sleep(pause).await;
        let started = Instant::now();
        let records = observer.node.read(|node| records(node)).await.unwrap_or_default();
        let asked = asking.get_or_insert_with(|| {
            let (gpus, uuids) = (gpus.clone(), records.gpus.clone());
            tokio::task::spawn_blocking(move || uuids.into_iter().map(|gpu| (gpu.clone(), gpus.of(&gpu))).collect())
        });
        let answers = match tokio::time::timeout(EVERY / 2, asked).await {
            // One that panicked has not answered either.
            Ok(answers) => {
                asking = None;
                answers.unwrap_or_default()
            }
            Err(_) => Answers::new(),
        };
        let reading = Reading {
            records,
            answers,
            verdicts: observer.comparison.verdicts(),
            proc: observer.proc.clone(),
            own_pod: observer.own_pod.clone(),
            kills: observer.kills,
        };
        let truth = observer.truth.clone();
        let work = tokio::task::spawn_blocking(move || {
            settling.apply(&reading, &truth);
            settling
        });
        settling = work.await.unwrap_or_default();
        pause = pause_after(started.elapsed());
    }
}

/// How long to wait after a reading that took so long. The driver alone may take half of `EVERY`, without work of ours.
fn pause_after(took: Duration) -> Duration {
    let pause = took.saturating_sub(EVERY / 2).saturating_mul(PART);
    pause.clamp(EVERY, LONGEST_PAUSE)
}

/// What one comparison compares.
pub(super) struct Reading {
    pub records: Records,
    pub answers: Answers,
    pub verdicts: BTreeMap<ShareKey, Verdict>,
    pub proc: Proc,
    pub own_pod: Option<String>,
    pub kills: bool,
}

/// What is settled, and what may become so.
#[derive(Debug, Default)]
pub(super) struct Settling {
    shares: BTreeMap<ShareKey, ShareSettling>,
    /// GPU, PID and start of processes without a share, of the last comparison.
    unexplained: BTreeSet<(String, u32, u64)>,
}

#[derive(Debug)]
struct ShareSettling {
    memory: Settled<Finding>,
    compute: Settled<Finding>,
    injected: Settled<Finding>,
}

impl Default for ShareSettling {
    fn default() -> Self {
        let unseen = || Settled::new(Finding::unknown(Reason::NotSeenYet));
        Self {
            memory: unseen(),
            compute: unseen(),
            injected: unseen(),
        }
    }
}

// === impl Settling ===

impl Settling {
    pub(super) fn apply(&mut self, reading: &Reading, truth: &Truth) {
        let pids = reading
            .answers
            .values()
            .filter_map(|answer| answer.as_ref().ok())
            .flat_map(|memory| memory.keys());
        let asked: BTreeSet<u32> = pids.copied().collect();
        let read = reading.proc.read(&reading.records.mounts, &asked);
        if let Err(why) = &read {
            tracing::debug!("who uses the GPUs is not known: {why}");
        }
        let seen = read.as_ref().map_err(|_| match reading.proc.blind() {
            Some(_) => Reason::NoHostPid,
            None => Reason::ProcessesUnknown,
        });
        let judged = judge(
            &reading.records.shares,
            &reading.answers,
            seen,
            reading.own_pod.as_deref(),
        );
        let mut state = truth.lock();
        let nobody = BTreeMap::new();
        let containers = seen.map_or(&nobody, |seen| &seen.containers);
        let mounts = injected::mounts(
            &reading.records.claims,
            containers,
            state.pods.as_deref().unwrap_or_default(),
        );
        let is_blind = seen.err().map(Finding::unknown);
        self.shares.retain(|key, _| judged.shares.contains_key(key));
        for (key, judgement) in &judged.shares {
            let settling = self.shares.entry(key.clone()).or_default();
            settling
                .memory
                .apply(judgement.finding, times(settling.memory.value(), &judgement.finding));
            let compute = compute(reading, key);
            settling.compute.apply(compute, times_of_verdicts(&compute));
            let injected = is_blind.or_else(|| mounts.shares.get(key).copied());
            if let Some(injected) = injected.filter(|new| {
                !(settling.injected.value().reason == Reason::Mounted && new.reason == Reason::NotSeenYet)
            }) {
                settling
                    .injected
                    .apply(injected, times(settling.injected.value(), &injected));
            }
        }
        self.publish(reading, &judged, &mut state);
        state.lacking = mounts.lacking;
        let missing = |key: &ShareKey| {
            self.shares
                .get(key)
                .is_some_and(|of| of.injected.value().reason == Reason::MountsMissing)
        };
        state.lacking.retain(|key, _| missing(key));
        if let Ok(seen) = seen {
            ask(&mut state, &reading.records.claims, seen);
        }
        drop(state);
        if reading.kills {
            self.kill(reading, &judged, truth);
        }
    }

    fn publish(&mut self, reading: &Reading, judged: &Judged, state: &mut State) {
        state.findings = self
            .shares
            .iter()
            .map(|(key, of)| (key.clone(), of.findings()))
            .collect();
        let used = judged
            .shares
            .iter()
            .filter_map(|(key, of)| Some((key.clone(), of.used?)));
        state.used = used.collect();
        let broken = |key: &&ShareFacts| {
            self.shares
                .get(&key.key)
                .is_some_and(|of| of.memory.value().status == Some(false))
        };
        let breaches = reading.records.shares.iter().filter(broken).map(|share| {
            let judgement = judged.shares.get(&share.key);
            let breach = Breach {
                reason: self.shares[&share.key].memory.value().reason,
                limit: share.limit,
                used: judgement.and_then(|of| of.used),
                offender: judgement.and_then(|of| of.offender.clone()),
            };
            (share.key.clone(), breach)
        });
        state.breaches = breaches.collect();
        let name = |of: &Unexplained| (of.gpu.clone(), of.pid, of.started);
        let twice = judged
            .unexplained
            .iter()
            .filter(|of| self.unexplained.contains(&name(of)));
        state.unexplained = twice.cloned().collect();
        self.unexplained = judged.unexplained.iter().map(name).collect();
        let gpu = |uuid: &String| {
            let own = judged.unexplained.iter().filter(|of| of.gpu == *uuid);
            let bytes = own.filter_map(|of| of.bytes).fold(0, u64::saturating_add);
            let unexplained = judged.known.contains(uuid).then_some(bytes);
            let answer = reading.answers.get(uuid).and_then(|answer| answer.as_ref().ok());
            let used = answer.and_then(|memory| memory.values().copied().sum::<Option<u64>>());
            (uuid.clone(), GpuUse { unexplained, used })
        };
        state.gpus = reading.records.gpus.iter().map(gpu).collect();
    }

    /// Kills one offender of each share that is over its limit, and was in the comparisons before. If that was not all,
    /// the next comparison finds the next one.
    fn kill(&self, reading: &Reading, judged: &Judged, truth: &Truth) {
        // Shares that are judged together have one offender.
        let mut done = BTreeSet::new();
        for (key, judgement) in &judged.shares {
            let settled = self.shares.get(key).map(|of| of.memory.value().reason);
            let Some(offender) = judgement
                .offender
                .as_ref()
                .filter(|_| settled == Some(Reason::OverLimit))
            else {
                continue;
            };
            if !done.insert(offender.pid) {
                continue;
            }
            match kill(&reading.proc, &reading.records.mounts, offender) {
                Ok(()) => {
                    tracing::warn!(
                        pid = offender.pid,
                        name = offender.name,
                        share = key.1,
                        "killed a process that broke its share's limit"
                    );
                    let mut state = truth.lock();
                    state.kills += 1;
                    state.killed.push((key.clone(), offender.clone()));
                }
                Err(why) => tracing::warn!(
                    pid = offender.pid,
                    "a process that breaks its share's limit is not killed: {why}"
                ),
            }
        }
    }
}

// === impl ShareSettling ===

impl ShareSettling {
    fn findings(&self) -> ShareFindings {
        ShareFindings {
            memory: *self.memory.value(),
            compute: *self.compute.value(),
            injected: *self.injected.value(),
        }
    }
}

/// How often a finding is made before it replaces another one.
fn times(known: &Finding, found: &Finding) -> u32 {
    match (known.status, found.status) {
        (_, Some(false)) => BREACHES,
        (Some(false), Some(true)) => FINE,
        (_, Some(true)) => BREACHES,
        (_, None) => SILENCES,
    }
}

/// Verdicts on GPU time are of 10 s already.
fn times_of_verdicts(found: &Finding) -> u32 {
    if found.status.is_some() { 1 } else { SILENCES }
}

fn compute(reading: &Reading, key: &ShareKey) -> Finding {
    if !reading.records.limited.contains(key) {
        return Finding::fails(Reason::Unlimited);
    }
    if reading.proc.blind().is_some() {
        return Finding::unknown(Reason::NoHostPid);
    }
    match reading.verdicts.get(key).and_then(|verdict| verdict.enforced) {
        None => Finding::unknown(Reason::NotMeasured),
        Some(true) => Finding::holds(Reason::WithinLimit),
        Some(false) => Finding::fails(Reason::OverLimit),
    }
}

/// Notes the containers for which the pods should be listed: those that may lack a share, and those of unexplained use.
fn ask(state: &mut State, claims: &[Claim], seen: &Seen) {
    let there: BTreeSet<&Container> = seen
        .containers
        .keys()
        .chain(state.unexplained.iter().filter_map(|of| of.container.as_ref()))
        .collect();
    let gone: Vec<Container> = state
        .asked
        .keys()
        .filter(|container| !there.contains(container))
        .cloned()
        .collect();
    for container in gone {
        state.asked.remove(&container);
    }
    let pods = state.pods.as_deref().unwrap_or_default();
    let is_named = |container: &Container| {
        let of_pod = pods.iter().filter(|pod| pod.uid == container.pod);
        let mut containers = of_pod.flat_map(|pod| &pod.containers);
        containers.any(|named| Some(&named.id) == container.id.as_ref())
    };
    let asked = |container: &Container| match state.asked.get(container) {
        None => Some(0),
        Some((times, last)) => (last.elapsed() >= wait(*times)).then_some(*times),
    };
    // Once the API server has named a container, the claims that it uses are known, and they cannot change.
    let mut questions = injected::questions(claims, &seen.containers, |container| {
        asked(container).filter(|_| !is_named(container))
    });
    let has_name = |container: &Container| pods.iter().any(|pod| pod.uid == container.pod);
    let users = state.unexplained.iter().filter_map(|of| of.container.as_ref());
    let nameless = users.filter(|container| !has_name(container) && asked(container).is_some());
    questions.extend(nameless.cloned());
    let now = Instant::now();
    for container in &questions {
        // They count once the API server has answered.
        state.asked.entry(container.clone()).or_insert((0, now)).1 = now;
    }
    state.questions.extend(questions);
}

/// A container that the API server does not name is asked about again later and later: it may be a sandbox.
fn wait(times: u32) -> Duration {
    Duration::from_secs(5 << times.min(7))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_reading_delays_the_next_one_by_ten_seconds_at_most() {
        let pauses = [0, 2_000, 2_100, 2_150, 2_500, 60_000].map(|ms| pause_after(Duration::from_millis(ms)));
        let expected = [4_000, 4_000, 5_000, 7_500, 10_000, 10_000].map(Duration::from_millis);
        assert_eq!(pauses, expected);
    }
}
