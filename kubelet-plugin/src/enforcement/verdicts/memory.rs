//! Compares the memory that the driver says processes have with the limits and the ledgers of their shares. Pure.
//!
//! Shares of one GPU that are in one container are judged together: which of them a process charged is the library's
//! choice. The driver's figure may be more than is charged, for a while and by a little: static variables, lazily loaded
//! code and contexts (docs/charging.md). That is why both margins are there, and why a finding is settled.
//!
//! Where the driver limits cgroups, it also says what it charged to a share's containers, whatever their processes are and
//! whichever mounts they have. That settles what is not known of processes. It is up to a minute old, so it is compared with
//! the limit alone, not with what is charged now, and nobody is killed for it.
//!
//! How it fails:
//! - The driver is silent, or lists processes that the node does not have, and there is no figure of cgroups: nothing is known,
//!   except that a share whose known processes use more than its limit is over it.
//! - A tenant writes what it likes into its ledger: that can hide memory within its own limit, and choose which of its own
//!   processes is called the offender. Limits and neighbours are judged by the driver's figures alone.
//! - A GPU has the system's memory, and its size is configured: a breach that the driver shows counts, but figures without a
//!   breach prove nothing there, so it is not known whether the limit holds.
//! - A process that hides its mounts belongs to no share, and is reported as unexplained, with its pod.

use super::finding::{Finding, Reason};
use crate::dra::share::ShareKey;
use crate::enforcement::processes::{Process, Seen};
use crate::nvml::Memory;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;
use vgpu_abi::ledger::Usage;
use vgpu_abi::ledger::refusal::Refusals;
use vgpu_node::cgroup::Container;

const MIB: u64 = 1 << 20;
/// A share that uses its limit and this much more breaks the limit.
pub(crate) const OVER: u64 = vgpu_abi::limits::TOLERANCE;
/// Using this much more than is charged is a breach, too. The margin is larger than [`OVER`], because within its limit
/// a share takes nothing from others, and a context may take more than was measured.
pub(crate) const UNCHARGED: u64 = 256 * MIB;

/// A share, by the node's records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ShareFacts {
    pub key: ShareKey,
    /// UUID of its GPU.
    pub gpu: String,
    pub limit: u64,
    /// The size of the GPU's memory is configured, so the driver's figures prove no limit.
    pub is_configured: bool,
    pub ledger: Ledger,
    /// When this instance prepared its claim.
    pub prepared: Option<Instant>,
}

/// The content of a share's ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ledger {
    Read {
        charged: u64,
        /// By PID and PID namespace.
        processes: BTreeMap<(u32, u64), u64>,
        refusals: Refusals,
    },
    /// The ledger of another release of the library, whose format is not known.
    Other,
    Damaged,
}

impl From<Usage> for Ledger {
    fn from(usage: Usage) -> Self {
        let processes = usage.processes.into_iter();
        Self::Read {
            charged: usage.charged,
            processes: processes.map(|of| ((of.pid, of.pid_namespace), of.charged)).collect(),
            refusals: usage.refusals,
        }
    }
}

/// The answers of the driver, by the UUIDs of all GPUs.
pub(crate) type Answers = BTreeMap<String, Result<Memory, String>>;

/// The result for one share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub finding: Finding,
    /// Bytes by the driver. None: not known, or not known for this share alone.
    pub used: Option<u64>,
    /// If the share is over its limit: the process with most uncharged memory.
    pub offender: Option<Offender>,
}

/// A process that is beyond what its share allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Offender {
    /// A share that it has.
    pub share: ShareKey,
    pub pid: u32,
    pub started: u64,
    pub name: String,
    /// Its memory by the driver.
    pub bytes: u64,
    pub container: Option<Container>,
}

/// A process that uses a GPU without a share of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unexplained {
    pub gpu: String,
    pub pid: u32,
    pub started: u64,
    pub name: String,
    /// None: the driver does not say.
    pub bytes: Option<u64>,
    pub container: Option<Container>,
}

/// The result of one comparison.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Verdicts {
    pub shares: BTreeMap<ShareKey, Verdict>,
    pub unexplained: Vec<Unexplained>,
    /// GPUs whose users are all known.
    pub known: BTreeSet<String>,
}

/// Compares once. `seen`: what /proc says of the processes in `answers`. `own_pod`: UID of the plugin's pod, whose use of
/// GPUs is to measure contexts. `by_cgroup`: bytes that the driver has charged to the containers of a share, where that is
/// known of the share alone.
#[must_use]
pub(crate) fn verdicts(
    shares: &[ShareFacts],
    answers: &Answers,
    seen: Result<&Seen, Reason>,
    own_pod: Option<&str>,
    by_cgroup: &BTreeMap<ShareKey, u64>,
) -> Verdicts {
    let mut found = Verdicts::default();
    let gpus: BTreeSet<&String> = shares.iter().map(|share| &share.gpu).chain(answers.keys()).collect();
    for gpu in gpus {
        let of_gpu: Vec<&ShareFacts> = shares.iter().filter(|share| share.gpu == *gpu).collect();
        let unseen = |reason| {
            let groups = of_gpu.iter().map(|share| Group::of(share));
            groups.map(|group| (group, Some(reason))).collect()
        };
        let groups = match (answers.get(gpu), &seen) {
            (None | Some(Err(_)), _) => unseen(Reason::DriverSilent),
            (Some(Ok(_)), Err(reason)) => unseen(*reason),
            (Some(Ok(memory)), Ok(seen)) => groups_of_gpu(gpu, &of_gpu, memory, seen, own_pod, &mut found),
        };
        for (group, unknown) in groups {
            group.publish(unknown, by_cgroup, &mut found.shares);
        }
    }
    found
}

/// Groups the shares of a GPU by their processes; with each group, why the use of its shares is not known.
fn groups_of_gpu<'a>(
    gpu: &str,
    shares: &[&'a ShareFacts],
    memory: &Memory,
    seen: &'a Seen,
    own_pod: Option<&str>,
    found: &mut Verdicts,
) -> Vec<(Group<'a>, Option<Reason>)> {
    let mut all_known = true;
    let mut groups: Vec<Group<'a>> = shares.iter().map(|share| Group::of(share)).collect();
    for (pid, bytes) in memory {
        let Some(process) = seen.processes.get(pid) else {
            all_known = false;
            continue;
        };
        let is_user = |group: &Group<'_>| group.shares.iter().any(|share| process.shares.contains(&share.key));
        let (users, others): (Vec<_>, Vec<_>) = groups.into_iter().partition(is_user);
        groups = others;
        if users.is_empty() {
            let is_own = process
                .container
                .as_ref()
                .is_some_and(|of| Some(of.pod.as_str()) == own_pod);
            if !is_own && *bytes != Some(0) {
                found.unexplained.push(Unexplained {
                    gpu: gpu.to_owned(),
                    pid: *pid,
                    started: process.started,
                    name: process.name.clone(),
                    bytes: *bytes,
                    container: process.container.clone(),
                });
            }
            continue;
        }
        let mut joined = users.into_iter().fold(Group::default(), Group::join);
        joined.processes.push((*pid, *bytes, process));
        groups.push(joined);
    }
    if all_known {
        found.known.insert(gpu.to_owned());
    }
    let unknown = (!all_known).then_some(Reason::ProcessesUnknown);
    groups.into_iter().map(|group| (group, unknown)).collect()
}

/// Shares that are judged together, and their processes.
#[derive(Default)]
struct Group<'a> {
    shares: Vec<&'a ShareFacts>,
    processes: Vec<(u32, Option<u64>, &'a Process)>,
}

// === impl Group ===

impl<'a> Group<'a> {
    fn of(share: &'a ShareFacts) -> Self {
        Self {
            shares: vec![share],
            processes: Vec::new(),
        }
    }

    fn join(mut self, other: Self) -> Self {
        self.shares.extend(other.shares);
        self.processes.extend(other.processes);
        self
    }

    /// Adds the verdict on each of its shares.
    fn publish(
        &self,
        unknown: Option<Reason>,
        by_cgroup: &BTreeMap<ShareKey, u64>,
        found: &mut BTreeMap<ShareKey, Verdict>,
    ) {
        let alone = match self.shares.as_slice() {
            [share] => Some(share),
            _ => None,
        };
        let verdict = self.verdict(unknown, alone.and_then(|share| by_cgroup.get(&share.key)).copied());
        for share in &self.shares {
            let used = verdict.used.filter(|_| alone.is_some());
            let verdict = Verdict {
                used,
                ..verdict.clone()
            };
            found.insert(share.key.clone(), verdict);
        }
    }

    /// `unknown`: why not all of its processes are known. `by_cgroup`: what the driver charged to its containers.
    fn verdict(&self, unknown: Option<Reason>, by_cgroup: Option<u64>) -> Verdict {
        let used = sum(self.processes.iter().filter_map(|(_, bytes, _)| *bytes));
        let most = sum(self.shares.iter().map(|share| share.limit)).saturating_add(OVER);
        let has_silent = self.processes.iter().any(|(_, bytes, _)| bytes.is_none());
        let unknown = unknown.or(has_silent.then_some(Reason::MemoryUnknown));
        let charged = self.charged();
        // The driver lists no processes although memory is charged, as in a container: the use is unknown.
        let is_hidden = self.processes.is_empty() && matches!(charged, Ok(Some(charged)) if charged > 0);
        let is_over_by_cgroup = by_cgroup.is_some_and(|bytes| bytes > most);
        let finding = if used > most || is_over_by_cgroup {
            Finding::fails(Reason::OverLimit)
        } else {
            let unknown = unknown.or(is_hidden.then_some(Reason::ProcessesUnknown));
            match (unknown, by_cgroup, charged) {
                (Some(reason), None, _) | (None, _, Err(reason)) => Finding::unknown(reason),
                (None, _, Ok(Some(charged))) if used > charged.saturating_add(UNCHARGED) => {
                    Finding::fails(Reason::NotCharged)
                }
                (Some(_), Some(_), _) | (None, _, Ok(_)) => Finding::holds(Reason::Library),
            }
        };
        let finding = match finding.status {
            Some(false) => finding,
            _ if self.shares.iter().any(|share| share.is_configured) => Finding::unknown(Reason::LedgerOnly),
            _ => finding,
        };
        let by_processes = (unknown.is_none() && !(is_hidden && by_cgroup.is_some())).then_some(used);
        Verdict {
            finding,
            used: by_cgroup.filter(|_| is_over_by_cgroup).or(by_processes).or(by_cgroup),
            offender: self.offender().filter(|_| used > most),
        }
    }

    /// The sum of the charges in the ledgers. None: a ledger is of another release.
    fn charged(&self) -> Result<Option<u64>, Reason> {
        let mut all = Some(0_u64);
        for share in &self.shares {
            match &share.ledger {
                Ledger::Read { charged, .. } => all = all.map(|all| all.saturating_add(*charged)),
                Ledger::Other => all = None,
                Ledger::Damaged => return Err(Reason::LedgerDamaged),
            }
        }
        Ok(all)
    }

    fn offender(&self) -> Option<Offender> {
        let charged = |process: &Process| {
            let of = |share: &&ShareFacts| match &share.ledger {
                Ledger::Read { processes, .. } => processes.get(&process.inner?).copied(),
                _ => None,
            };
            sum(self.shares.iter().filter_map(of))
        };
        let excess = |bytes: u64, process: &Process| bytes.saturating_sub(charged(process));
        let known = self
            .processes
            .iter()
            .filter_map(|(pid, bytes, process)| Some((*pid, (*bytes)?, *process)));
        let most = known.max_by_key(|(pid, bytes, process)| (excess(*bytes, process), *bytes, *pid));
        let (pid, bytes, process) = most?;
        let share = self.shares.iter().find(|share| process.shares.contains(&share.key))?;
        Some(Offender {
            share: share.key.clone(),
            pid,
            started: process.started,
            name: process.name.clone(),
            bytes,
            container: process.container.clone(),
        })
    }
}

fn sum(bytes: impl Iterator<Item = u64>) -> u64 {
    bytes.fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn key(uid: &str) -> ShareKey {
        (uid.into(), "s".into())
    }

    fn share(uid: &str, limit: u64, charged: &[(u32, u64)]) -> ShareFacts {
        ShareFacts {
            key: key(uid),
            gpu: "GPU-1".into(),
            limit,
            is_configured: false,
            ledger: Ledger::Read {
                charged: charged.iter().map(|(_, bytes)| bytes).sum(),
                processes: charged.iter().map(|(pid, bytes)| ((*pid, 9), *bytes)).collect(),
                refusals: Refusals::default(),
            },
            prepared: None,
        }
    }

    fn process(shares: &[&str], inner: u32) -> Process {
        Process {
            shares: shares.iter().map(|uid| key(uid)).collect(),
            inner: Some((inner, 9)),
            started: 1,
            ..Process::default()
        }
    }

    fn seen(processes: &[(u32, Process)]) -> Seen {
        Seen {
            processes: processes.iter().cloned().collect(),
            ..Seen::default()
        }
    }

    fn answer(memory: &[(u32, Option<u64>)]) -> Answers {
        Answers::from([("GPU-1".to_owned(), Ok(memory.iter().copied().collect()))])
    }

    /// Without figures of cgroups.
    fn compare(
        shares: &[ShareFacts],
        answers: &Answers,
        seen: Result<&Seen, Reason>,
        own_pod: Option<&str>,
    ) -> Verdicts {
        verdicts(shares, answers, seen, own_pod, &BTreeMap::new())
    }

    fn finding(found: &Verdicts, uid: &str) -> (Option<bool>, Reason) {
        let finding = found.shares[&key(uid)].finding;
        (finding.status, finding.reason)
    }

    #[test]
    fn a_share_is_within_its_limit_or_not() {
        for (limit, charged, used, expected) in [
            (GIB, 0, 0, (Some(true), Reason::Library)),
            (GIB, GIB, GIB, (Some(true), Reason::Library)),
            (GIB, GIB, GIB + OVER, (Some(true), Reason::Library)),
            (GIB, GIB, GIB + OVER + 1, (Some(false), Reason::OverLimit)),
            (GIB, 0, u64::MAX, (Some(false), Reason::OverLimit)),
            (GIB, 0, UNCHARGED, (Some(true), Reason::Library)),
            (GIB, 0, UNCHARGED + 1, (Some(false), Reason::NotCharged)),
            // Memory that is charged and not there harms nobody but the share itself.
            (GIB, GIB, 0, (Some(true), Reason::Library)),
            (u64::MAX, u64::MAX, u64::MAX, (Some(true), Reason::Library)),
        ] {
            let shares = [share("a", limit, &[(5, charged)])];
            let seen = seen(&[(50, process(&["a"], 5))]);
            let found = compare(&shares, &answer(&[(50, Some(used))]), Ok(&seen), None);
            assert_eq!(finding(&found, "a"), expected, "{used}");
            assert_eq!(found.shares[&key("a")].used, Some(used));
            let offender = found.shares[&key("a")].offender.as_ref().map(|offender| offender.pid);
            assert_eq!(offender, (expected.1 == Reason::OverLimit).then_some(50));
        }
    }

    #[test]
    fn a_limit_on_a_configured_size_is_never_said_to_hold() {
        let of = |used: Option<u64>, seen: Result<&Seen, Reason>, by_cgroup: Option<u64>| {
            let configured = ShareFacts {
                is_configured: true,
                ..share("a", GIB, &[(5, GIB)])
            };
            let by_cgroup = by_cgroup.map(|bytes| (key("a"), bytes)).into_iter().collect();
            let found = verdicts(&[configured], &answer(&[(50, used)]), seen, None, &by_cgroup);
            finding(&found, "a")
        };
        let seen = seen(&[(50, process(&["a"], 5))]);
        let unknown = (None, Reason::LedgerOnly);
        assert_eq!(of(Some(GIB), Ok(&seen), None), unknown);
        assert_eq!(of(None, Ok(&seen), None), unknown);
        assert_eq!(of(None, Ok(&seen), Some(GIB)), unknown, "by the driver's limit");
        assert_eq!(
            of(Some(GIB), Err(Reason::NoHostPid), None),
            unknown,
            "no flag would help"
        );
        assert_eq!(of(Some(2 * GIB), Ok(&seen), None), (Some(false), Reason::OverLimit));
    }

    #[test]
    fn the_offender_is_whoever_has_what_nobody_charged_and_never_a_neighbour() {
        let shares = [share("a", GIB, &[(1, GIB)]), share("b", 8 * GIB, &[(1, 7 * GIB)])];
        let seen = seen(&[
            (10, process(&["a"], 1)),
            (11, process(&["a"], 2)),
            (20, process(&["b"], 1)),
        ]);
        let answers = answer(&[(10, Some(GIB)), (11, Some(GIB / 2)), (20, Some(7 * GIB))]);
        let found = compare(&shares, &answers, Ok(&seen), None);
        assert_eq!(finding(&found, "a"), (Some(false), Reason::OverLimit));
        assert_eq!(finding(&found, "b"), (Some(true), Reason::Library));
        assert_eq!(found.shares[&key("a")].offender.as_ref().map(|o| o.pid), Some(11));
    }

    #[test]
    fn shares_of_one_container_are_judged_together() {
        let shares = [
            share("a", GIB, &[(1, GIB)]),
            share("b", GIB, &[(1, GIB)]),
            share("c", GIB, &[]),
        ];
        let seen = seen(&[(10, process(&["a", "b"], 1)), (11, process(&["b"], 2))]);
        let two = compare(&shares, &answer(&[(10, Some(2 * GIB)), (11, Some(0))]), Ok(&seen), None);
        assert_eq!(finding(&two, "a"), (Some(true), Reason::Library));
        assert_eq!(two.shares[&key("a")].used, None, "not for this one alone");
        assert_eq!(two.shares[&key("c")].used, Some(0));
        let more = compare(
            &shares,
            &answer(&[(10, Some(2 * GIB)), (11, Some(GIB))]),
            Ok(&seen),
            None,
        );
        for uid in ["a", "b"] {
            assert_eq!(finding(&more, uid), (Some(false), Reason::OverLimit));
        }
        assert_eq!(more.shares[&key("a")].offender.as_ref().map(|o| o.pid), Some(11));
        assert_eq!(finding(&more, "c"), (Some(true), Reason::Library));
    }

    #[test]
    fn what_is_not_known_is_not_said() {
        let shares = [share("a", GIB, &[])];
        let own = seen(&[(10, process(&["a"], 1))]);
        let silent = Answers::from([("GPU-1".to_owned(), Err("hangs".to_owned()))]);
        for (answers, seen, expected) in [
            (silent, Ok(&own), Reason::DriverSilent),
            (Answers::new(), Ok(&own), Reason::DriverSilent),
            (answer(&[]), Err(Reason::NoHostPid), Reason::NoHostPid),
            (
                answer(&[(10, Some(0)), (99, Some(1))]),
                Ok(&own),
                Reason::ProcessesUnknown,
            ),
            (answer(&[(10, None)]), Ok(&own), Reason::MemoryUnknown),
        ] {
            let found = compare(&shares, &answers, seen, None);
            assert_eq!(finding(&found, "a"), (None, expected));
            assert_eq!(found.shares[&key("a")].used, None);
            assert!(found.unexplained.is_empty());
        }
        // A share over its limit is reported even if the use of another process is unknown.
        let found = compare(&shares, &answer(&[(10, Some(9 * GIB)), (99, None)]), Ok(&own), None);
        assert_eq!(finding(&found, "a"), (Some(false), Reason::OverLimit));
        assert!(found.known.is_empty());
    }

    /// The processes may be hidden, or they may have ended and the next allocation releases their charges.
    #[test]
    fn charges_without_a_process_that_the_driver_lists_are_no_proof() {
        let found = compare(&[share("a", GIB, &[(1, 5)])], &answer(&[]), Ok(&Seen::default()), None);
        assert_eq!(finding(&found, "a"), (None, Reason::ProcessesUnknown));
        let found = compare(&[share("a", GIB, &[])], &answer(&[]), Ok(&Seen::default()), None);
        assert_eq!(finding(&found, "a"), (Some(true), Reason::Library));
    }

    #[test]
    fn what_the_driver_charged_to_the_containers_settles_what_is_not_known_of_processes() {
        let own = seen(&[(10, process(&["a"], 1))]);
        let silent = Answers::from([("GPU-1".to_owned(), Err("hangs".to_owned()))]);
        let charged = [(1, 5)];
        for (answers, charges) in [
            (silent, &charged[..]),
            (answer(&[(10, Some(0)), (99, Some(1))]), &charged),
            (answer(&[(10, None)]), &charged),
            // The driver lists no process although memory is charged.
            (answer(&[]), &charged),
        ] {
            for (bytes, expected) in [
                (0, (Some(true), Reason::Library)),
                (GIB + OVER, (Some(true), Reason::Library)),
                (GIB + OVER + 1, (Some(false), Reason::OverLimit)),
            ] {
                let by_cgroup = BTreeMap::from([(key("a"), bytes)]);
                let found = verdicts(&[share("a", GIB, charges)], &answers, Ok(&own), None, &by_cgroup);
                assert_eq!(finding(&found, "a"), expected, "{answers:?}");
                assert_eq!(found.shares[&key("a")].used, Some(bytes), "{answers:?}");
                assert_eq!(found.shares[&key("a")].offender, None, "an old figure kills nobody");
            }
        }
    }

    #[test]
    fn processes_that_hide_their_share_are_in_the_containers_figure() {
        let own = seen(&[(10, process(&["a"], 1)), (11, process(&[], 2))]);
        let answers = answer(&[(10, Some(GIB)), (11, Some(GIB))]);
        let by_cgroup = |bytes| BTreeMap::from([(key("a"), bytes)]);
        let compare = |bytes| {
            verdicts(
                &[share("a", GIB, &[(1, GIB)])],
                &answers,
                Ok(&own),
                None,
                &by_cgroup(bytes),
            )
        };
        let over = compare(2 * GIB);
        assert_eq!(finding(&over, "a"), (Some(false), Reason::OverLimit));
        assert_eq!(
            over.shares[&key("a")].used,
            Some(2 * GIB),
            "what is over the limit is said"
        );
        assert_eq!(over.unexplained.len(), 1);
        // Nothing is over the limit: the processes' figure is newer.
        let within = compare(GIB / 2);
        assert_eq!(finding(&within, "a"), (Some(true), Reason::Library));
        assert_eq!(within.shares[&key("a")].used, Some(GIB));
        // What was charged since then is not compared with an old figure.
        let found = verdicts(
            &[share("a", GIB, &[])],
            &answer(&[(10, Some(0))]),
            Ok(&own),
            None,
            &by_cgroup(GIB),
        );
        assert_eq!(finding(&found, "a"), (Some(true), Reason::Library));
        // Processes that have just ended: nothing is charged, so nothing is hidden.
        let found = verdicts(&[share("a", GIB, &[])], &answer(&[]), Ok(&own), None, &by_cgroup(GIB));
        assert_eq!(found.shares[&key("a")].used, Some(0));
        // Shares of one container have no figure of their own.
        let both = seen(&[(10, process(&["a", "b"], 1))]);
        let shares = [share("a", GIB, &[]), share("b", GIB, &[])];
        let found = verdicts(&shares, &answer(&[(10, None)]), Ok(&both), None, &by_cgroup(9 * GIB));
        assert_eq!(finding(&found, "a"), (None, Reason::MemoryUnknown));
    }

    #[test]
    fn ledgers_that_cannot_be_compared() {
        let with = |ledger| ShareFacts {
            ledger,
            ..share("a", GIB, &[])
        };
        let seen = seen(&[(10, process(&["a"], 1))]);
        let one = |ledger, used| {
            let found = compare(&[with(ledger)], &answer(&[(10, Some(used))]), Ok(&seen), None);
            finding(&found, "a")
        };
        assert_eq!(one(Ledger::Damaged, 5), (None, Reason::LedgerDamaged));
        assert_eq!(one(Ledger::Other, GIB), (Some(true), Reason::Library));
        assert_eq!(one(Ledger::Damaged, 9 * GIB), (Some(false), Reason::OverLimit));
    }

    #[test]
    fn use_without_a_share_is_reported_with_its_pod() {
        let container = |pod: &str| {
            Some(Container {
                pod: pod.into(),
                id: None,
            })
        };
        let in_pod = |pod: &str| Process {
            container: container(pod),
            ..process(&[], 1)
        };
        // Its share is one of another GPU.
        let elsewhere = ShareFacts {
            gpu: "GPU-2".into(),
            ..share("b", GIB, &[])
        };
        let shares = [share("a", GIB, &[]), elsewhere];
        let seen = seen(&[
            (10, process(&["a"], 1)),
            (11, in_pod("pod-1")),
            (12, process(&["b"], 1)),
            (13, in_pod("plugin")),
            (14, process(&[], 1)),
        ]);
        let answers = answer(&[(10, Some(5)), (11, Some(GIB)), (12, None), (13, Some(7)), (14, Some(0))]);
        let found = compare(&shares, &answers, Ok(&seen), Some("plugin"));
        let unexplained: Vec<_> = found
            .unexplained
            .iter()
            .map(|one| (one.pid, one.bytes, one.container.clone()))
            .collect();
        assert_eq!(unexplained, [(11, Some(GIB), container("pod-1")), (12, None, None)]);
        assert_eq!(finding(&found, "a"), (Some(true), Reason::Library), "not its fault");
        assert_eq!(found.known, BTreeSet::from(["GPU-1".to_owned()]));
    }

    /// Whatever a tenant's processes and ledger say, nothing else is said of a neighbour.
    #[test]
    fn a_neighbour_is_judged_the_same_beside_any_tenant() {
        use proptest::prelude::*;
        let bytes = || prop_oneof![Just(0), Just(u64::MAX), 0..20 * GIB];
        let charges = prop::collection::vec((0..5_u32, bytes()), 0..5);
        let processes = prop::collection::vec((prop::option::of(bytes()), any::<bool>(), 0..5_u32), 0..20);
        proptest!(|(charges in charges, processes in processes, damaged in any::<bool>(), used in bytes())| {
            let neighbour = share("n", GIB, &[(1, GIB)]);
            let mut all = vec![(5, process(&["n"], 1))];
            let mut memory = vec![(5, Some(used))];
            let alone = compare(std::slice::from_ref(&neighbour), &answer(&memory), Ok(&seen(&all)), None);
            let charged = charges.iter().fold(0_u64, |sum, (_, bytes)| sum.saturating_add(*bytes));
            let ledger = Ledger::Read { charged, processes: charges.iter().map(|(pid, bytes)| ((*pid, 9), *bytes)).collect(), refusals: Refusals::default() };
            let tenant = ShareFacts {
                ledger: if damaged { Ledger::Damaged } else { ledger },
                ..share("t", GIB, &[])
            };
            for (at, (bytes, has_mount, inner)) in processes.into_iter().enumerate() {
                let pid = 100 + u32::try_from(at).expect("few");
                all.push((pid, process(if has_mount { &["t"] } else { &[] }, inner)));
                memory.push((pid, bytes));
            }
            let beside = compare(&[neighbour, tenant], &answer(&memory), Ok(&seen(&all)), None);
            prop_assert_eq!(&beside.shares[&key("n")], &alone.shares[&key("n")]);
            let offender = beside.shares[&key("t")].offender.as_ref();
            prop_assert!(offender.is_none_or(|offender| offender.pid >= 100));
        });
    }
}
