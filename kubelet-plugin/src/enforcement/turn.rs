//! One turn for each sample: compares what the driver says with limits, ledgers, pages and mounts.
//!
//! ```text
//!  node's records ────┐
//!  sample, read_back ─┼─► compute, each turn ──► ignored shares ─► node page
//!  map of processes ──┘   memory and mounts, every 4 s ─► settled ─► observations ─► kill
//! ```
//!
//! How it fails: while the driver hangs, memory and time are unknown, but mounts are known. If a reading of /proc takes
//! long, the next whole one is delayed, so that readings use at most a fiftieth of a core. The delay is at most 10 s: a
//! machine under load must not hide a breach. After a restart nothing is known until it was seen again, and no share is
//! ignored.

use super::compute::{Compute, Placed};
use super::conditions::ShareFindings;
use super::kill::kill;
use super::observations::{Breach, GpuUse, Observations, State};
use super::processes::{Extent, Processes, Seen};
use super::read_back::{Question, Reader};
use super::usage;
use super::verdicts::finding::{Finding, Reason};
use super::verdicts::memory::{self, Answers, Ledger, ShareFacts, Unexplained};
use super::verdicts::mounts::{self, Claim, Mounts};
use super::verdicts::refusals;
use super::verdicts::second_wall::{self, Changed, ReadBack, SecondWall};
use super::verdicts::settled::Settled;
use crate::dra::mount_users::ShareMount;
use crate::dra::node::{LedgerReading, Node, SharedNode};
use crate::dra::share::ShareKey;
use crate::nvml::{Sample, sampler};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use vgpu_api::config::MemoryEnforcement;
use vgpu_node::cgroup::Container;
use vgpu_node::gpus::MemorySource;

/// From one whole reading of /proc to the next.
const WHOLE_EVERY: Duration = Duration::from_secs(4);
/// The longest time between two whole readings.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// Whole readings may take one part in this many of the time.
const PART: u32 = 50;
/// How long a limit of the driver that was changed once is reported as changed.
const CHANGES_LAST: Duration = Duration::from_secs(300);
/// How many times in a row something must be found before it replaces the known finding ([`times`]).
const BREACHES: u32 = 2;
const FINE: u32 = 3;
const SILENCES: u32 = 3;

/// The content of the node's records, as of one moment.
#[derive(Debug, Default)]
pub(super) struct Records {
    pub(super) mounts: Vec<ShareMount>,
    placed: Placed,
    gpus: Vec<String>,
    /// This field and the following ones are only read in a whole turn.
    shares: Vec<ShareFacts>,
    claims: Vec<Claim>,
    damaged: BTreeMap<ShareKey, String>,
    usage: BTreeMap<ShareKey, usage::Reading>,
    /// Shares of a whole GPU, which the driver need not limit.
    whole: BTreeSet<ShareKey>,
    /// Shares whose claim requires the driver's own limit.
    pub(super) requiring: BTreeSet<ShareKey>,
    /// Why a container started without the driver's own limit, by claim.
    started_without: BTreeMap<String, String>,
}

/// The inputs of [`run`].
pub struct Observer {
    pub node: SharedNode,
    pub processes: Processes,
    pub observations: Observations,
    pub own_pod: Option<String>,
    /// Kill processes of shares over their limit.
    pub kills: bool,
    /// Which of the driver's own limits hold. None: nobody can ask.
    pub driver_limits: Option<Question>,
}

/// Runs a turn for each sample. Of the samples that arrive during a turn, only the newest gets one.
pub async fn run(observer: Observer, mut samples: sampler::Receiver) {
    let (mut turns, mut whole_due, mut had_claims) = (Turns::default(), Instant::now(), true);
    let mut reader = Reader::new(observer.driver_limits.clone());
    while let Some(sample) = samples.newest().await {
        let started = Instant::now();
        let extent = match started >= whole_due {
            true => Extent::All,
            false => Extent::Asked,
        };
        let read = observer.node.read(move |node| {
            let records = turns.records(node, extent);
            (turns, records, !node.claims().claims.is_empty())
        });
        let (read_turns, records, has_claims) = read.await.unwrap_or_default();
        turns = read_turns;
        // Once more after the last claim, to forget its shares.
        let is_idle = !std::mem::replace(&mut had_claims, has_claims) && !has_claims;
        if is_idle && extent == Extent::Asked {
            continue;
        }
        let reading = Reading {
            records,
            sample,
            read_back: reader.turn(started, has_claims).await,
            extent,
            processes: observer.processes.clone(),
            own_pod: observer.own_pod.clone(),
            kills: observer.kills,
        };
        let observations = observer.observations.clone();
        let work = tokio::task::spawn_blocking(move || {
            turns.apply(&reading, &observations);
            turns
        });
        turns = work.await.unwrap_or_default();
        ignore_broken(&observer.node, &turns.compute).await;
        if extent == Extent::All {
            whole_due = started + pause_after(started.elapsed()) - sampler::EVERY / 2;
        }
    }
}

/// Tells the library which shares broke their limit of time, if that changed.
async fn ignore_broken(node: &SharedNode, compute: &Compute) {
    let broken = compute.broken();
    let asked = broken.clone();
    if node.read(move |node| node.ignored() != asked).await.unwrap_or(false) {
        let set = node.turn(move |node, locked| node.set_ignored(locked, &broken));
        if let Err(error) = set.await.and_then(|set| set) {
            tracing::warn!(%error, "the other shares of a GPU do not know yet which share to ignore; retrying");
        }
    }
}

/// Returns the time from the start of a whole reading to that of the next one.
fn pause_after(took: Duration) -> Duration {
    took.saturating_mul(PART).clamp(WHOLE_EVERY, LONGEST_PAUSE)
}

/// The inputs of one turn.
pub(super) struct Reading {
    pub records: Records,
    pub sample: Arc<Sample>,
    /// What is known of the driver's own limits.
    pub read_back: ReadBack,
    /// Memory and mounts are compared if all processes are read.
    pub extent: Extent,
    pub processes: Processes,
    pub own_pod: Option<String>,
    pub kills: bool,
}

/// Knowledge from former turns.
#[derive(Debug, Default)]
pub(super) struct Turns {
    compute: Compute,
    shares: BTreeMap<ShareKey, ShareSettling>,
    refusals: refusals::History,
    /// GPU, PID and start of processes without a share, of the last turn.
    unexplained: BTreeSet<(String, u32, u64)>,
    /// When the driver was asked about its limits, for the last answer of which changes were counted.
    counted: Option<Instant>,
    /// The limits that were changed, and when that was found last.
    changed: BTreeMap<ShareKey, (Instant, Changed)>,
}

#[derive(Debug)]
struct ShareSettling {
    memory: Settled<Finding>,
    compute: Settled<Finding>,
    injected: Settled<Finding>,
    /// Not settled, because counters of refusals only grow.
    granted: Finding,
    /// The first answer of the driver by which a required limit was missing, if it is.
    missing: Option<Missing>,
}

/// A container that started since the driver was asked has its limit by the next answer.
#[derive(Clone, Copy, Debug)]
struct Missing {
    first_asked: Instant,
    /// True once a later answer said so too.
    is_settled: bool,
}

impl Default for ShareSettling {
    fn default() -> Self {
        let unseen = || Settled::new(Finding::unknown(Reason::NotSeenYet));
        Self {
            memory: unseen(),
            compute: unseen(),
            injected: unseen(),
            granted: Finding::unknown(Reason::NotSeenYet),
            missing: None,
        }
    }
}

// === impl Turns ===

impl Turns {
    /// Reads the node's records.
    pub(super) fn records(&mut self, node: &Node, extent: Extent) -> Records {
        let mut records = Records {
            mounts: node.all_mounts(),
            placed: self.compute.read(node),
            gpus: node.gpus(),
            ..Records::default()
        };
        if extent == Extent::All {
            records.read_claims(node);
        }
        records
    }

    pub(super) fn apply(&mut self, reading: &Reading, observations: &Observations) {
        let (records, sample) = (&reading.records, &*reading.sample);
        let of_memory = sample.gpus().filter_map(|(_, gpu)| gpu.memory.as_ref().ok());
        let of_time = sample.gpus().filter_map(|(_, gpu)| gpu.used.as_ref());
        let pids = of_memory
            .flat_map(BTreeMap::keys)
            .chain(of_time.flat_map(BTreeMap::keys));
        let read = reading
            .processes
            .read(&records.mounts, &pids.copied().collect(), reading.extent);
        if let Err(why) = &read {
            tracing::debug!("who uses the GPUs is not known: {why}");
        }
        let verdicts = self.compute.apply(&records.placed, sample, read.as_ref().ok());
        {
            let mut state = observations.lock();
            state.compute = verdicts;
            let now = SystemTime::now();
            let active = records.placed.active().map(|key| (key.clone(), now));
            state.last_active.extend(active);
            for gpu in &records.gpus {
                let busy = sample.gpu(gpu).and_then(|of| of.busy);
                state.gpus.entry(gpu.clone()).or_default().busy = busy;
            }
        }
        if reading.extent == Extent::All {
            let seen = read.as_ref().map_err(|_| match reading.processes.blind() {
                Some(_) => Reason::NoHostPid,
                None => Reason::ProcessesUnknown,
            });
            self.compare(reading, seen, observations);
        }
    }

    /// Compares memory and mounts, and publishes settled findings.
    fn compare(&mut self, reading: &Reading, seen: Result<&Seen, Reason>, observations: &Observations) {
        let records = &reading.records;
        let own = reading
            .sample
            .gpus()
            .filter(|(uuid, _)| records.gpus.iter().any(|gpu| gpu == uuid));
        let answers: Answers = own.map(|(uuid, gpu)| (uuid.to_owned(), gpu.memory.clone())).collect();
        let walls = second_walls(reading, seen.ok());
        let by_cgroup = walls.iter().filter_map(|(key, of)| Some((key.clone(), of.used?)));
        let own_pod = reading.own_pod.as_deref();
        let found = memory::verdicts(&records.shares, &answers, seen, own_pod, &by_cgroup.collect());
        let mut state = observations.lock();
        let nobody = BTreeMap::new();
        let containers = seen.map_or(&nobody, |seen| &seen.containers);
        let mounts = mounts::mounts(&records.claims, containers, state.pods.as_deref().unwrap_or_default());
        self.settle(reading, &found, seen.err(), &mounts, &state);
        self.publish_refusals(&records.shares, seen.ok(), &mut state);
        self.publish_changed(&reading.read_back, &mut state);
        self.settle_missing(&reading.read_back, &records.requiring, &walls);
        state.second_walls = walls;
        self.publish(records, &answers, &found, &mut state);
        state.lacking = mounts.lacking;
        let is_missing = |key: &ShareKey| {
            let injected = self.shares.get(key).map(|of| of.injected.value().reason);
            injected == Some(Reason::MountsMissing)
        };
        state.lacking.retain(|key, _| is_missing(key));
        if let Ok(seen) = seen {
            ask(&mut state, &records.claims, seen);
        }
        drop(state);
        if reading.kills {
            self.kill(reading, &found, observations);
        }
    }

    fn settle(
        &mut self,
        reading: &Reading,
        found: &memory::Verdicts,
        blind: Option<Reason>,
        mounts: &Mounts,
        state: &State,
    ) {
        self.shares.retain(|key, _| found.shares.contains_key(key));
        for (key, verdict) in &found.shares {
            let settling = self.shares.entry(key.clone()).or_default();
            let known = settling.memory.value();
            settling.memory.apply(verdict.finding, times(known, &verdict.finding));
            let compute = compute(reading, state, key);
            // A verdict on GPU time covers 10 s already.
            let count = if compute.status.is_some() { 1 } else { SILENCES };
            settling.compute.apply(compute, count);
            let blind = blind.map(Finding::unknown);
            let injected = blind.or_else(|| mounts.shares.get(key).copied());
            let known = *settling.injected.value();
            let is_news = |new: &Finding| !(known.reason == Reason::Mounted && new.reason == Reason::NotSeenYet);
            if let Some(injected) = injected.filter(is_news) {
                settling.injected.apply(injected, times(&known, &injected));
            }
        }
    }

    /// Settles which shares lack the driver's limit that they require. Without an answer, what was known stays.
    fn settle_missing(
        &mut self,
        read_back: &ReadBack,
        requiring: &BTreeSet<ShareKey>,
        walls: &BTreeMap<ShareKey, SecondWall>,
    ) {
        let ReadBack::Known { asked, .. } = read_back else {
            return;
        };
        for (key, settling) in &mut self.shares {
            let is_missing = requiring.contains(key) && walls.get(key).is_some_and(|wall| wall.is_missing);
            let first = settling.missing.map_or(*asked, |missing| missing.first_asked);
            settling.missing = is_missing.then_some(Missing {
                first_asked: first,
                is_settled: *asked > first,
            });
        }
    }

    fn publish_refusals(&mut self, shares: &[ShareFacts], seen: Option<&Seen>, state: &mut State) {
        self.refusals.keep(shares);
        let (now, today) = (Instant::now(), SystemTime::now());
        let processes = seen.into_iter().flat_map(|seen| seen.processes.values());
        for share in shares {
            let (granted, news) = self.refusals.apply(share, processes.clone(), now, today);
            self.shares.entry(share.key.clone()).or_default().granted = granted;
            state.refused.extend(news.map(|news| (share.key.clone(), news)));
        }
    }

    /// Publishes which of the driver's limits were changed, and counts each change once.
    fn publish_changed(&mut self, read_back: &ReadBack, state: &mut State) {
        match read_back {
            ReadBack::NoSuchLimit => self.changed.clear(),
            // The events on the pods stay until the driver answers again.
            ReadBack::Unknown => {}
            ReadBack::Known { readings, asked } => {
                if self.counted.replace(*asked) != Some(*asked) {
                    state.set_again += second_wall::set_again(readings);
                }
                let changed = second_wall::changed(readings).into_iter();
                self.changed.extend(changed.map(|(key, of)| (key, (*asked, of))));
                // Somebody who changes a limit again and again causes no event each time.
                self.changed
                    .retain(|_, (found, _)| asked.saturating_duration_since(*found) < CHANGES_LAST);
            }
        }
        let changed = self.changed.iter();
        state.changed_limits = changed.map(|(key, (_, of))| (key.clone(), of.clone())).collect();
    }

    fn publish(&mut self, records: &Records, answers: &Answers, found: &memory::Verdicts, state: &mut State) {
        state.findings = self
            .shares
            .iter()
            .map(|(key, of)| (key.clone(), of.findings(state.second_walls.get(key))))
            .collect();
        let used = found
            .shares
            .iter()
            .filter_map(|(key, of)| Some((key.clone(), of.used?)));
        state.used = used.collect();
        state.usage.apply(&records.usage, Instant::now(), SystemTime::now());
        let broken = |key: &&ShareFacts| {
            self.shares
                .get(&key.key)
                .is_some_and(|of| of.memory.value().status == Some(false))
        };
        let breaches = records.shares.iter().filter(broken).map(|share| {
            let verdict = found.shares.get(&share.key);
            let breach = Breach {
                reason: self.shares[&share.key].memory.value().reason,
                limit: share.limit,
                used: verdict.and_then(|of| of.used),
                offender: verdict.and_then(|of| of.offender.clone()),
            };
            (share.key.clone(), breach)
        });
        state.breaches = breaches.collect();
        state.damaged.clone_from(&records.damaged);
        let name = |of: &Unexplained| (of.gpu.clone(), of.pid, of.started);
        let twice = found
            .unexplained
            .iter()
            .filter(|of| self.unexplained.contains(&name(of)));
        state.unexplained = twice.cloned().collect();
        self.unexplained = found.unexplained.iter().map(name).collect();
        let gpu = |uuid: &String| {
            let own = found.unexplained.iter().filter(|of| of.gpu == *uuid);
            let bytes = own.filter_map(|of| of.bytes).fold(0, u64::saturating_add);
            let unexplained = found.known.contains(uuid).then_some(bytes);
            let answer = answers.get(uuid).and_then(|answer| answer.as_ref().ok());
            // If the driver lists no process although a share has memory, it hides the processes.
            let charged = |share: &ShareFacts| matches!(share.ledger, Ledger::Read { charged, .. } if charged > 0);
            let has_charges = records.shares.iter().any(|share| share.gpu == *uuid && charged(share));
            let listed = answer.filter(|memory| !memory.is_empty() || !has_charges);
            let used = listed.and_then(|memory| memory.values().copied().sum::<Option<u64>>());
            let busy = state.gpus.get(uuid).and_then(|gpu| gpu.busy);
            let gpu = GpuUse {
                unexplained,
                used,
                busy,
            };
            (uuid.clone(), gpu)
        };
        let gpus = records.gpus.iter().map(gpu).collect();
        state.gpus = gpus;
        let is_there = |key: &ShareKey| records.shares.iter().any(|share| share.key == *key);
        state.last_active.retain(|key, _| is_there(key));
    }

    /// Kills one offender of each share that is over its limit, and was in the turns before. If that was not all, the next
    /// turn finds the next offender.
    fn kill(&self, reading: &Reading, found: &memory::Verdicts, observations: &Observations) {
        // Shares that are judged together have one offender.
        let mut done = BTreeSet::new();
        for (key, verdict) in &found.shares {
            let settled = self.shares.get(key).map(|of| of.memory.value().reason);
            let Some(offender) = verdict.offender.as_ref().filter(|_| settled == Some(Reason::OverLimit)) else {
                continue;
            };
            if !done.insert(offender.pid) {
                continue;
            }
            match kill(&reading.processes, &reading.records.mounts, offender) {
                Ok(()) => {
                    tracing::warn!(
                        pid = offender.pid,
                        name = offender.name,
                        share = key.1,
                        "killed a process that broke its share's limit"
                    );
                    let mut state = observations.lock();
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

// === impl Records ===

impl Records {
    fn read_claims(&mut self, node: &Node) {
        let mut buffer = Vec::new();
        for (uid, entry) in &node.claims().claims {
            let limited: Vec<_> = entry.limited().collect();
            for share in &limited {
                let key = (uid.clone(), share.name.clone());
                let mut used = usage::Reading {
                    charged: self.placed.charged(&key),
                    prepared: node.prepared_at(uid),
                    ..usage::Reading::default()
                };
                let ledger = match node.ledger(uid, entry, share, &mut buffer) {
                    LedgerReading::Read(ledger) => {
                        used.read(&ledger, share.memory, node.living(uid, share, &buffer));
                        ledger.into()
                    }
                    LedgerReading::OtherFormat => Ledger::Other,
                    LedgerReading::Damaged(damage) => {
                        self.damaged.insert(key.clone(), damage.to_string());
                        Ledger::Damaged
                    }
                };
                self.usage.insert(key.clone(), used);
                let gpu = node.claims().gpus.get(&share.gpu);
                let is_configured = gpu.is_some_and(|gpu| gpu.memory_source == MemorySource::Configured);
                if gpu.is_some_and(|gpu| !share.is_part_of(gpu)) {
                    self.whole.insert(key.clone());
                }
                if share.memory_enforcement == MemoryEnforcement::Require {
                    self.requiring.insert(key.clone());
                }
                self.shares.push(ShareFacts {
                    key,
                    gpu: share.gpu.clone(),
                    limit: share.memory,
                    is_configured,
                    ledger,
                    prepared: node.prepared_at(uid),
                });
            }
            if let Some(why) = node.dirs().no_driver_limit(uid) {
                self.started_without.insert(uid.clone(), why);
            }
            if !limited.is_empty() {
                let shares = limited.iter();
                let named = shares.map(|share| ((uid.clone(), share.name.clone()), share.base_request().to_owned()));
                self.claims.push(Claim {
                    namespace: entry.namespace.clone(),
                    name: entry.name.clone(),
                    shares: named.collect(),
                    pods: entry.pods.iter().map(|pod| pod.uid.clone()).collect(),
                });
            }
        }
    }
}

// === impl ShareSettling ===

impl ShareSettling {
    fn findings(&self, wall: Option<&SecondWall>) -> ShareFindings {
        let mut memory = *self.memory.value();
        // This needs no second turn: the driver's answer is the proof.
        if memory.reason == Reason::Library && wall.is_some_and(|wall| wall.holds) {
            memory.reason = Reason::DriverAndLibrary;
        }
        let has_no_breach = memory.status == Some(true) || memory.reason == Reason::LedgerOnly;
        if has_no_breach && self.missing.is_some_and(|missing| missing.is_settled) {
            memory = Finding::fails(Reason::DriverLimitMissing);
        }
        ShareFindings {
            memory,
            memory_note: wall.and_then(|wall| wall.note.clone()),
            compute: *self.compute.value(),
            injected: *self.injected.value(),
            granted: self.granted,
        }
    }
}

/// The driver's own limit of each share of a part of a GPU.
fn second_walls(reading: &Reading, seen: Option<&Seen>) -> BTreeMap<ShareKey, SecondWall> {
    let records = &reading.records;
    let parts = records
        .shares
        .iter()
        .filter(|share| !records.whole.contains(&share.key));
    second_wall::second_walls(
        parts,
        &reading.read_back,
        seen.map(|seen| &seen.containers),
        |cgroup| reading.processes.container_of(cgroup),
        &records.started_without,
    )
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

fn compute(reading: &Reading, state: &State, key: &ShareKey) -> Finding {
    if !reading.records.placed.is_limited(key) {
        return Finding::fails(Reason::Unlimited);
    }
    if reading.processes.blind().is_some() {
        return Finding::unknown(Reason::NoHostPid);
    }
    match state.compute.get(key).and_then(|verdict| verdict.enforced) {
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
    let mut questions = mounts::questions(claims, &seen.containers, |container| {
        asked(container).filter(|_| !is_named(container))
    });
    let has_name = |container: &Container| pods.iter().any(|pod| pod.uid == container.pod);
    let users = state.unexplained.iter().filter_map(|of| of.container.as_ref());
    let nameless = users.filter(|container| !has_name(container) && asked(container).is_some());
    questions.extend(nameless.cloned());
    let now = Instant::now();
    for container in &questions {
        // Counted once the API server has answered.
        state.asked.entry(container.clone()).or_insert((0, now)).1 = now;
    }
    state.questions.extend(questions);
}

/// The pause before the next question about a container that the API server does not name. It grows, because the
/// container may be a sandbox, which is never named.
fn wait(times: u32) -> Duration {
    Duration::from_secs(5 << times.min(7))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_reading_delays_the_next_one_by_ten_seconds_at_most() {
        let pauses = [0, 80, 100, 150, 500, 60_000].map(|ms| pause_after(Duration::from_millis(ms)));
        let expected = [4_000, 4_000, 5_000, 7_500, 10_000, 10_000].map(Duration::from_millis);
        assert_eq!(pauses, expected);
    }
}
