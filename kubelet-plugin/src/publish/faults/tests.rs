//! When faults begin and end, by hand and for random readings, failures and restarts.

use super::open_faults::{IGNORED_FOR, Kept, RECOVERED_AFTER};
use super::*;
use crate::nvml::{Asked, Reading};
use crate::publish::inventory::{Fault, Reason};
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

const EVERY: Duration = crate::nvml::sampler::EVERY;
const GPU: &str = "GPU-0";

/// A reading without faults, from a driver that answers every question.
fn well() -> Reading {
    Reading {
        uuid: GPU.into(),
        xids: Vec::new(),
        events: Asked::Is(()),
        uncorrected: Asked::Is(0),
        remap_pending: Asked::Is(false),
        remap_failed: Asked::Is(false),
        action: Asked::Is(0),
    }
}

fn with_xid(xid: u64) -> Reading {
    Reading {
        xids: vec![xid],
        ..well()
    }
}

/// An old driver: it knows nothing but XIDs.
fn old(xids: &[u64]) -> Reading {
    Reading {
        xids: xids.to_vec(),
        events: Asked::Is(()),
        ..Reading::unsupported(GPU)
    }
}

/// One GPU, with a reading in each sample.
struct Rig {
    open_faults: OpenFaults,
    now: Instant,
}

impl Rig {
    fn new() -> Self {
        let ignored = BTreeSet::from(IGNORED_XIDS);
        Self {
            open_faults: OpenFaults::new(ignored),
            now: Instant::now(),
        }
    }

    fn restart(&mut self) {
        let kept = serde_json::to_vec(&self.open_faults.kept()).expect("written");
        let kept: Kept = serde_json::from_slice(&kept).expect("read");
        let ignored = BTreeSet::from(IGNORED_XIDS);
        self.open_faults = OpenFaults::new(ignored);
        self.open_faults.add(&kept);
    }

    fn read(&mut self, reading: Reading) -> Vec<String> {
        self.now += EVERY;
        self.open_faults.apply(Ok(&[reading]), self.now);
        self.shown()
    }

    /// `key=value:effect` of each taint.
    fn shown(&self) -> Vec<String> {
        let faults = self.faults();
        let shown = faults
            .iter()
            .map(|fault| format!("{}={}:{}", fault.reason.name(), fault.value, fault.effect()));
        shown.collect()
    }

    fn faults(&self) -> Vec<Fault> {
        self.open_faults.faults().remove(GPU).unwrap_or_default()
    }

    /// Reads the same until nothing is shown. Returns how long that took.
    fn until_well(&mut self, reading: &Reading) -> Option<Duration> {
        let start = self.now;
        while self.now < start + IGNORED_FOR + 2 * EVERY {
            if self.read(reading.clone()).is_empty() {
                return Some(self.now - start);
            }
        }
        None
    }
}

const BOUND: Duration = Duration::from_secs(RECOVERED_AFTER.as_secs() + 2 * EVERY.as_secs());
const _: () = assert!(
    BOUND.as_secs() + 10 < 60,
    "a GPU that is well again has no taint after a minute"
);

#[test]
fn an_xid_counts_until_the_driver_has_asked_for_nothing_for_a_while() {
    let mut rig = Rig::new();
    assert!(rig.read(well()).is_empty());
    assert_eq!(rig.read(with_xid(79)), ["xid=79:NoSchedule"]);
    assert_eq!(rig.read(well()), ["xid=79:NoSchedule"]);
    assert_eq!(rig.read(with_xid(48)), ["xid=79:NoSchedule"], "its taint keeps its age");
    assert_eq!(rig.read(with_xid(13)), ["xid=79:NoSchedule"]);
    assert!(rig.until_well(&well()).is_some_and(|time| time <= BOUND));
    // While the driver asks for something, the fault lasts.
    rig.read(with_xid(79));
    let asking = Reading {
        action: Asked::Is(1),
        ..well()
    };
    assert_eq!(rig.until_well(&asking), None);
    assert_eq!(rig.shown(), ["xid=79:NoSchedule", "recovery=reset:NoSchedule"]);
    assert!(rig.until_well(&well()).is_some_and(|time| time <= BOUND));
}

#[test]
fn an_xid_that_does_not_count_is_told_once_for_a_while_also_by_an_old_driver() {
    for (first, again) in [(with_xid(13), well()), (old(&[13]), old(&[]))] {
        let mut rig = Rig::new();
        assert_eq!(rig.read(first), ["xid=13:None"]);
        assert_eq!(
            rig.read(with_xid(31)),
            ["xid=13:None"],
            "a crash after a crash writes nothing"
        );
        let time = rig.until_well(&again).expect("it ends");
        assert!(time >= IGNORED_FOR, "{time:?}");
        rig.read(with_xid(13));
        assert_eq!(
            rig.read(with_xid(62)),
            ["xid=62:NoSchedule"],
            "one that blocks takes its place"
        );
    }
}

#[test]
fn an_old_driver_never_says_that_an_xid_is_over() {
    let mut rig = Rig::new();
    assert_eq!(rig.read(old(&[31, 79])), ["xid=79:NoSchedule"]);
    assert_eq!(rig.until_well(&old(&[])), None);
    rig.restart();
    assert_eq!(rig.shown(), ["xid=79:NoSchedule"]);
}

#[test]
fn memory_errors_count_when_they_are_more_than_before() {
    let counted = |count| Reading {
        uncorrected: Asked::Is(count),
        ..well()
    };
    let mut rig = Rig::new();
    assert_eq!(rig.read(counted(2)), ["ecc=2:NoSchedule"], "nobody knows since when");
    assert!(rig.until_well(&counted(2)).is_some_and(|time| time <= BOUND));
    rig.restart();
    assert!(rig.read(counted(2)).is_empty(), "known ones");
    assert_eq!(rig.read(counted(3)), ["ecc=3:NoSchedule"]);
    assert!(rig.until_well(&well()).is_some_and(|time| time <= BOUND), "a reset");
    assert_eq!(rig.read(counted(1)), ["ecc=1:NoSchedule"]);
    // Only a reset ends the fault where the driver cannot say what it asks for.
    let unasked = |count| Reading {
        action: Asked::NotSupported,
        ..counted(count)
    };
    assert_eq!(rig.until_well(&unasked(1)), None);
    assert!(rig.until_well(&unasked(0)).is_some_and(|time| time <= BOUND));
}

#[test]
fn rows_that_are_to_be_remapped_are_told_and_those_that_cannot_be_count() {
    let (pending, failed) = (
        Reading {
            remap_pending: Asked::Is(true),
            ..well()
        },
        Reading {
            remap_failed: Asked::Is(true),
            ..well()
        },
    );
    let mut rig = Rig::new();
    assert_eq!(rig.read(pending.clone()), ["remap=pending:None"]);
    assert_eq!(rig.read(failed), ["remap=failed:NoSchedule"]);
    assert_eq!(rig.read(pending), ["remap=failed:NoSchedule"], "not less at once");
    assert!(rig.until_well(&well()).is_some_and(|time| time <= BOUND));
}

#[test]
fn what_the_driver_asks_for_is_the_value() {
    let asking = |action| Reading {
        action: Asked::Is(action),
        ..well()
    };
    let mut rig = Rig::new();
    assert_eq!(rig.read(asking(1)), ["recovery=reset:NoSchedule"]);
    assert_eq!(rig.read(asking(2)), ["recovery=reboot:NoSchedule"]);
    assert_eq!(
        rig.read(asking(u64::MAX)),
        ["recovery=action-18446744073709551615:NoSchedule"]
    );
    assert!(rig.until_well(&well()).is_some_and(|time| time <= BOUND));
}

#[test]
fn a_time_without_readings_begins_the_wait_anew() {
    let mut rig = Rig::new();
    rig.read(with_xid(79));
    rig.read(well());
    rig.now += Duration::from_secs(3600);
    assert_eq!(rig.read(well()), ["xid=79:NoSchedule"]);
    // A GPU that is not among the readings does not become well, and neither does one whose XIDs nobody waits for.
    rig.now += EVERY;
    rig.open_faults.apply(Ok(&[]), rig.now);
    let deaf = Reading {
        events: Asked::Failed("not yet".into()),
        ..well()
    };
    assert_eq!(rig.until_well(&deaf), None);
    assert!(rig.until_well(&well()).is_some_and(|time| time <= BOUND));
}

#[test]
fn another_configuration_ignores_other_xids() {
    let mut rig = Rig::new();
    rig.read(with_xid(79));
    let kept = rig.open_faults.kept();
    let mut tolerant = OpenFaults::new(BTreeSet::from([79]));
    tolerant.add(&kept);
    let faults = tolerant.faults();
    assert!(!faults[GPU][0].blocks);
    let mut strict = OpenFaults::new(BTreeSet::new());
    strict.add(&tolerant.kept());
    assert!(strict.faults()[GPU][0].blocks);
}

/// What happens to one GPU.
#[derive(Clone, Debug)]
enum Step {
    Read(Reading),
    Fail,
    Restart,
    Wait(u16),
}

fn asked<T: std::fmt::Debug + Clone + 'static>(value: impl Strategy<Value = T> + 'static) -> BoxedStrategy<Asked<T>> {
    prop_oneof![
        6 => value.prop_map(Asked::Is),
        1 => Just(Asked::NotSupported),
        1 => Just(Asked::Failed("no".to_owned())),
    ]
    .boxed()
}

fn reading() -> impl Strategy<Value = Reading> {
    let xids =
        prop_oneof![4 => Just(Vec::new()), 1 => prop::collection::vec(prop_oneof![Just(13), Just(79), Just(31)], 1..3)];
    let flag = || prop_oneof![4 => Just(false), 1 => Just(true)];
    (
        xids,
        asked(Just(())),
        asked(0_u64..3),
        asked(flag()),
        asked(flag()),
        asked(prop_oneof![4 => Just(0_u64), 1 => 1_u64..9]),
    )
        .prop_map(
            |(xids, events, uncorrected, remap_pending, remap_failed, action)| Reading {
                uuid: GPU.into(),
                xids,
                events,
                uncorrected,
                remap_pending,
                remap_failed,
                action,
            },
        )
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => reading().prop_map(Step::Read),
        4 => Just(Step::Read(well())),
        1 => Just(Step::Fail),
        1 => Just(Step::Restart),
        1 => (0_u16..400).prop_map(Step::Wait),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn nothing_but_whole_readings_ends_a_fault_and_they_end_every_one(steps in prop::collection::vec(step(), 1..60)) {
        let mut rig = Rig::new();
        for step in steps {
            let before = rig.faults();
            let mut is_whole = false;
            match step {
                Step::Read(reading) => {
                    is_whole = reading.is_whole();
                    let begins = reading.xids.iter().any(|xid| !IGNORED_XIDS.contains(xid));
                    let asks = matches!(reading.action, Asked::Is(1..));
                    let failed = reading.remap_failed == Asked::Is(true);
                    rig.read(reading);
                    let blocks = |reason| rig.faults().iter().any(|fault| fault.reason == reason && fault.blocks);
                    prop_assert!(!begins || blocks(Reason::Xid));
                    prop_assert!(!asks || blocks(Reason::Recovery));
                    prop_assert!(!failed || blocks(Reason::Remap));
                }
                Step::Fail => {
                    rig.now += EVERY;
                    rig.open_faults.apply(Err("hangs"), rig.now);
                }
                Step::Restart => {
                    rig.restart();
                    prop_assert_eq!(&rig.faults(), &before);
                }
                Step::Wait(seconds) => rig.now += Duration::from_secs(seconds.into()),
            }
            for fault in before {
                let now = rig.faults().into_iter().find(|other| other.reason == fault.reason);
                prop_assert!(now.is_some() || is_whole, "{fault:?} ended by a question that failed");
                prop_assert!(now.is_none_or(|now| now.blocks || !fault.blocks), "{fault:?} blocks no more");
            }
            prop_assert!(rig.faults().len() <= 4);
        }
        // The last count of errors stays, so no new errors are found.
        let count = rig.open_faults.kept().0.get(GPU).and_then(|gpu| gpu.uncorrected).unwrap_or(0);
        let well = Reading { uncorrected: Asked::Is(count), ..well() };
        let start = rig.now;
        while rig.now < start + BOUND {
            rig.read(well.clone());
        }
        prop_assert!(rig.faults().iter().all(|fault| !fault.blocks), "{:?}", rig.faults());
        prop_assert!(rig.until_well(&well).is_some());
    }
}
