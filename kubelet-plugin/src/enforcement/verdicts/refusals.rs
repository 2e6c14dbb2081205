//! Programs of a share that ran out of memory: the library refused memory at the share's limit, or the driver although
//! the share had room. Decides which refusals are new, and what is reported about them. Pure.
//!
//! How it fails:
//! - A tenant writes what it likes into its ledger: it can invent refusals of its own share, and hide them. It gets one event in
//!   [`EVENT_EVERY`] at most, counters that fall are ignored, sizes are only shown, and a name is looked up only among
//!   processes that have the share.
//! - The plugin restarts: refusals younger than that are reported, perhaps once more; older ones only show in the
//!   condition.
//! - A refusal whose record is being written, or was left half written by a kill: the one before it is described.
//! - Many refusals at once, as of a program that tries smaller and smaller sizes: one event, which describes the last one and
//!   says how many there were.
//! - The library of another release wrote the ledger: nothing is known.

use super::finding::{Finding, Reason};
use super::memory::{Ledger, ShareFacts};
use crate::dra::share::ShareKey;
use crate::enforcement::processes::Process;
use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime};
use vgpu_abi::ledger::refusal::{Cause, Refusal, Refusals};

/// A share gets at most one event in this time.
pub(crate) const EVENT_EVERY: Duration = Duration::from_secs(300);
const MIB: u64 = 1 << 20;

/// The previous findings about all shares.
#[derive(Debug, Default)]
pub(crate) struct History(BTreeMap<ShareKey, Known>);

#[derive(Debug)]
struct Known {
    /// When this instance prepared the share: a later share of the same name has a new ledger.
    prepared: Option<Instant>,
    by_limit: u64,
    by_driver: u64,
    /// The number of refusals that events have covered.
    reported: u64,
    last_event: Option<Instant>,
}

/// The content of an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct News {
    pub gpu: String,
    pub limit: u64,
    /// Refusals since the ledger was made, and since the event before.
    pub count: u64,
    pub since: u64,
    /// None: its record is damaged.
    pub last: Option<Refusal>,
    /// The processes with most memory at that time.
    pub users: Vec<User>,
}

/// A process of the share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct User {
    /// Its PID in the container of the refusal; None: it runs in another container.
    pub pid: Option<u32>,
    /// Empty: not known.
    pub name: String,
    pub mib: u32,
}

// === impl History ===

impl History {
    /// Returns what the condition of a share says, and the event that is due.
    pub(crate) fn apply<'a>(
        &mut self,
        share: &ShareFacts,
        processes: impl Iterator<Item = &'a Process> + Clone,
        now: Instant,
        today: SystemTime,
    ) -> (Finding, Option<News>) {
        let refusals = match &share.ledger {
            Ledger::Read { refusals, .. } => refusals,
            Ledger::Other => return (Finding::unknown(Reason::OtherRelease), None),
            Ledger::Damaged => return (Finding::unknown(Reason::LedgerDamaged), None),
        };
        let new = || Known::new(share.prepared, refusals, today);
        let known = self.0.entry(share.key.clone()).or_insert_with(new);
        if known.prepared != share.prepared {
            *known = new();
        }
        known.by_limit = known.by_limit.max(refusals.by_limit);
        known.by_driver = known.by_driver.max(refusals.by_driver);
        let news = known.is_due(now).then(|| {
            let count = known.count();
            let since = count - known.reported;
            (known.reported, known.last_event) = (count, Some(now));
            News {
                gpu: share.gpu.clone(),
                limit: share.limit,
                count,
                since,
                last: refusals.last,
                users: refusals
                    .last
                    .map_or_else(Vec::new, |last| users(share, &last, processes)),
            }
        });
        (known.finding(), news)
    }

    /// Forgets the shares that are gone.
    pub(crate) fn keep(&mut self, shares: &[ShareFacts]) {
        self.0.retain(|key, _| shares.iter().any(|share| share.key == *key));
    }
}

// === impl Known ===

impl Known {
    fn new(prepared: Option<Instant>, refusals: &Refusals, today: SystemTime) -> Self {
        let is_recent = |last: Refusal| {
            let at = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(last.unix));
            at.and_then(|at| today.duration_since(at).ok())
                .is_some_and(|age| age < EVENT_EVERY)
        };
        Self {
            prepared,
            by_limit: refusals.by_limit,
            by_driver: refusals.by_driver,
            // What is older was reported by a former instance, or is of no use now.
            reported: if refusals.last.is_some_and(is_recent) {
                0
            } else {
                refusals.count()
            },
            last_event: None,
        }
    }

    fn count(&self) -> u64 {
        self.by_limit.saturating_add(self.by_driver)
    }

    fn is_due(&self, now: Instant) -> bool {
        let is_silent = self
            .last_event
            .is_none_or(|last| now.saturating_duration_since(last) >= EVENT_EVERY);
        self.count() > self.reported && is_silent
    }

    fn finding(&self) -> Finding {
        match (self.by_driver, self.by_limit) {
            (0, 0) => Finding::holds(Reason::NothingRefused),
            (0, _) => Finding::fails(Reason::MemoryRefused),
            // This is rarer, and the tenant cannot prevent it.
            _ => Finding::fails(Reason::GpuFull),
        }
    }
}

/// The users that a refusal names, with the names of those that still run. The ledger can name any PID of any namespace, so
/// only processes that have the share are looked at.
fn users<'a>(share: &ShareFacts, last: &Refusal, processes: impl Iterator<Item = &'a Process> + Clone) -> Vec<User> {
    let own = processes.filter(|process| process.shares.contains(&share.key));
    let user = |user: &vgpu_abi::ledger::refusal::User| {
        let inner = Some((user.pid, last.pid_namespace));
        let running = own.clone().find(|process| process.inner == inner);
        let name = match running {
            Some(process) => process.name.clone(),
            None if user.pid == last.pid => last.name(),
            None => String::new(),
        };
        User {
            pid: (user.pid != 0).then_some(user.pid),
            name: if user.pid == 0 { String::new() } else { name },
            mib: user.mib,
        }
    };
    last.users.iter().filter(|user| user.mib > 0).map(user).collect()
}

// === impl News ===

impl News {
    /// The text of the event. `pods`: the names of the claim's pods.
    pub(crate) fn note(&self, share: &str, claim: &str, pods: &str) -> String {
        let place = format!("share {share} of ResourceClaim {claim}");
        let Some(last) = &self.last else {
            return format!(
                "programs of {place} ran out of memory {} times; the ledger does not say which. They may have gone on ({pods})",
                self.count
            );
        };
        let asked = last.asked.map_or_else(
            || "memory, the call does not say how much".to_owned(),
            |bytes| format!("{} MiB", bytes.div_ceil(MIB)),
        );
        let charged = last.charged.min(self.limit);
        let what = match last.cause {
            Cause::Limit => format!(
                "asked for {asked} and was refused, because {place} has a limit of {} MiB of which {} MiB were in use{}",
                self.limit / MIB,
                charged / MIB,
                self.in_use(last)
            ),
            Cause::Driver => format!(
                "asked for {asked} and the NVIDIA driver refused, although {place} had {} of its {} MiB left",
                (self.limit - charged) / MIB,
                self.limit / MIB
            ),
        };
        let free = last.gpu_free.map_or_else(String::new, |bytes| {
            format!("; the GPU itself had {} MiB free", bytes / MIB)
        });
        let remedy = match last.cause {
            Cause::Limit => {
                "Many programs then free memory and go on. If one failed: use less memory in it, end other programs of the claim, \
                 or ask for more memory in a new claim"
                    .to_owned()
            }
            Cause::Driver => format!(
                "A program may have gone on. If the GPU {} is full, something uses it without a share: look for the event \
                 UnexplainedUse, or ask the administrator. Else the memory is in pieces, or a pool has its largest size",
                self.gpu
            ),
        };
        format!(
            "process {} {what}{free}. That was refusal {} of this share, {} of them since the event before. {remedy} (pods {pods})",
            named(&last.name(), Some(last.pid)),
            self.count,
            self.since
        )
    }

    fn in_use(&self, last: &Refusal) -> String {
        let user = |user: &User| format!("{} MiB by {}", user.mib, named(&user.name, user.pid));
        let users: Vec<String> = self.users.iter().map(user).collect();
        let users = match users.as_slice() {
            [] => String::new(),
            users => format!(" ({})", users.join(", ")),
        };
        match last.overhead.map(|bytes| bytes / MIB) {
            None | Some(0) => users,
            Some(mib) => format!("{users}; contexts and code of this process take {mib} MiB"),
        }
    }
}

fn named(name: &str, pid: Option<u32>) -> String {
    match (name, pid) {
        (_, None) => "another container".to_owned(),
        ("", Some(pid)) => format!("PID {pid}"),
        (name, Some(pid)) => format!("{name} (PID {pid})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vgpu_abi::ledger;

    const GIB: u64 = 1 << 30;
    const TODAY: u64 = 1_800_000_000;

    fn refusal(cause: Cause) -> Refusal {
        Refusal {
            number: 3,
            unix: TODAY - 10,
            cause,
            pid: 5,
            pid_namespace: 9,
            asked: Some(2 * GIB),
            charged: 3 * GIB,
            overhead: Some(500 * MIB),
            gpu_free: Some(30 * GIB),
            raw_name: *b"train.py\0\0\0\0\0\0\0\0",
            users: [
                ledger::refusal::User::new(5, 2 * GIB),
                ledger::refusal::User::new(6, GIB / 2),
                ledger::refusal::User::new(0, GIB / 4),
                ledger::refusal::User::default(),
            ],
        }
    }

    fn share(by_limit: u64, by_driver: u64, last: Option<Refusal>) -> ShareFacts {
        let refusals = Refusals {
            by_limit,
            by_driver,
            largest: 0,
            last,
        };
        ShareFacts {
            key: ("u".into(), "s".into()),
            gpu: "GPU-1".into(),
            limit: 4 * GIB,
            is_configured: false,
            ledger: Ledger::Read {
                charged: 0,
                processes: BTreeMap::new(),
                refusals,
            },
            prepared: None,
        }
    }

    fn today() -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(TODAY)
    }

    /// The reason of the condition, and what an event covers.
    fn apply(history: &mut History, share: &ShareFacts, now: Instant) -> (Reason, Option<u64>) {
        let (finding, news) = history.apply(share, [].iter(), now, today());
        (finding.reason, news.map(|news| news.since))
    }

    #[test]
    fn a_share_has_an_event_in_five_minutes_at_most() {
        let (mut history, start) = (History::default(), Instant::now());
        let last = Some(refusal(Cause::Limit));
        assert_eq!(
            apply(&mut history, &share(0, 0, None), start),
            (Reason::NothingRefused, None)
        );
        let refused = |news| (Reason::MemoryRefused, news);
        assert_eq!(apply(&mut history, &share(1, 0, last), start), refused(Some(1)));
        let soon = start + EVENT_EVERY - Duration::from_secs(1);
        assert_eq!(apply(&mut history, &share(1000, 0, last), soon), refused(None));
        let later = start + EVENT_EVERY;
        assert_eq!(
            apply(&mut history, &share(1000, 0, last), later),
            refused(Some(999)),
            "one for all"
        );
        assert_eq!(
            apply(&mut history, &share(1000, 0, last), later + 2 * EVENT_EVERY),
            refused(None),
            "no news"
        );
        history.keep(&[]);
        assert!(history.0.is_empty());
    }

    #[test]
    fn the_condition_tells_the_limit_and_a_full_gpu_apart_and_does_not_go_back() {
        let (mut history, now) = (History::default(), Instant::now());
        let mut reason = |share: &ShareFacts| apply(&mut history, share, now).0;
        assert_eq!(reason(&share(0, 0, None)), Reason::NothingRefused);
        assert_eq!(reason(&share(2, 0, None)), Reason::MemoryRefused);
        assert_eq!(reason(&share(2, 1, None)), Reason::GpuFull);
        // A tenant that writes back and forth causes no writes to the API server.
        for (by_limit, by_driver) in [(0, 0), (9, 0), (0, 9)] {
            assert_eq!(reason(&share(by_limit, by_driver, None)), Reason::GpuFull);
        }
        let again = ShareFacts {
            prepared: Some(now),
            ..share(0, 0, None)
        };
        assert_eq!(
            reason(&again),
            Reason::NothingRefused,
            "prepared again, with a new ledger"
        );
        for (ledger, expected) in [
            (Ledger::Other, Reason::OtherRelease),
            (Ledger::Damaged, Reason::LedgerDamaged),
        ] {
            let unknown = ShareFacts {
                ledger,
                ..share(0, 0, None)
            };
            assert_eq!(reason(&unknown), expected);
        }
    }

    #[test]
    fn after_a_restart_only_what_is_recent_is_reported() {
        let at = |unix: u64| {
            Some(Refusal {
                unix,
                ..refusal(Cause::Limit)
            })
        };
        let age = EVENT_EVERY.as_secs();
        for (last, expected) in [
            (at(TODAY), Some(7)),
            (at(TODAY - age + 1), Some(7)),
            (at(TODAY - age), None),
            (at(0), None),
            // Lies.
            (at(TODAY + 1), None),
            (at(u64::MAX), None),
            (None, None),
        ] {
            let found = apply(&mut History::default(), &share(7, 0, last), Instant::now());
            assert_eq!(found, (Reason::MemoryRefused, expected), "{last:?}");
        }
    }

    fn news(share: &ShareFacts, processes: &[Process]) -> News {
        let mut history = History::default();
        let (_, news) = history.apply(share, processes.iter(), Instant::now(), today());
        news.expect("news")
    }

    #[test]
    fn the_event_says_what_was_asked_who_has_the_memory_and_that_programs_may_go_on() {
        let process = Process {
            shares: [("u".to_owned(), "s".to_owned())].into(),
            inner: Some((6, 9)),
            name: "jupyter".into(),
            ..Process::default()
        };
        let note = news(&share(3, 0, Some(refusal(Cause::Limit))), &[process]).note("s", "c", "p1, p2");
        for part in [
            "process train.py (PID 5) asked for 2048 MiB and was refused",
            "share s of ResourceClaim c has a limit of 4096 MiB of which 3072 MiB were in use",
            "(2048 MiB by train.py (PID 5), 512 MiB by jupyter (PID 6), 256 MiB by another container)",
            "contexts and code of this process take 500 MiB",
            "the GPU itself had 30720 MiB free",
            "refusal 3",
            "go on",
            "(pods p1, p2)",
        ] {
            assert!(note.contains(part), "{part}: {note}");
        }
        let note = news(&share(0, 1, Some(refusal(Cause::Driver))), &[]).note("s", "c", "p1");
        assert!(
            note.contains(
                "the NVIDIA driver refused, although share s of ResourceClaim c had 1024 of its 4096 MiB left"
            ),
            "{note}"
        );
        assert!(note.contains("UnexplainedUse") && !note.contains("because"), "{note}");
    }

    /// The ledger names a PID of a neighbour's namespace, and everything else that it can.
    #[test]
    fn a_forged_ledger_names_no_neighbour_and_fits_into_an_event() {
        let neighbour = Process {
            shares: [("other".to_owned(), "s".to_owned())].into(),
            inner: Some((6, 9)),
            name: "secret".into(),
            ..Process::default()
        };
        let largest = ledger::refusal::User {
            pid: u32::MAX,
            mib: u32::MAX,
        };
        let forged = Refusal {
            number: u64::MAX,
            asked: Some(u64::MAX - 1),
            charged: u64::MAX,
            overhead: Some(u64::MAX - 1),
            gpu_free: Some(u64::MAX - 1),
            pid: u32::MAX,
            raw_name: *b"\x1b[31m\n\r\t\xff%s{}\"'<",
            users: [ledger::refusal::User::new(6, GIB), largest, largest, largest],
            ..refusal(Cause::Limit)
        };
        for cause in [Cause::Limit, Cause::Driver] {
            let last = Refusal { cause, ..forged };
            let news = news(&share(u64::MAX, u64::MAX, Some(last)), std::slice::from_ref(&neighbour));
            let note = news.note("s", "c", "pod");
            assert!(
                !note.contains("secret") && !note.chars().any(char::is_control),
                "{note}"
            );
            assert!(
                note.len() < 1000 && note.ends_with("(pods pod)"),
                "{} {note}",
                note.len()
            );
        }
        let torn = news(&share(5, 0, Some(refusal(Cause::Limit))), &[]);
        let torn = News { last: None, ..torn };
        assert!(torn.note("s", "c", "pod").contains("5 times"));
    }
}
