//! Reads and writes that fail or have no answer.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use vgpu_allocator::Features;
use vgpu_planner::{About, Change, Intent, Object, Outcome, Planner, Read, Settings, Term, Verdict};

use crate::desk::{Desk, kinds, read, said, share_ids};

#[test]
fn a_new_leader_goes_on_from_the_objects_alone() {
    let mut desk = Desk::new(2);
    desk.fraction("c", 3);
    desk.fraction("d", 3);
    desk.pod("p", &["c"], json!({}));
    desk.settle();
    desk.planner = Planner::new(Settings::default(), Features::default(), share_ids());
    desk.now += 10_000;
    desk.lead("2.b");
    desk.pod("p", &["c"], json!({}));
    let (writes, _) = desk.settle();
    assert_eq!(
        kinds(&writes),
        ["mark"],
        "the one that its predecessor may have decided on"
    );
    assert_eq!(writes[0].name, "d");
    desk.now += 19_000;
    assert!(desk.settle().0.is_empty());
    desk.now += 1_000;
    assert_eq!(
        kinds(&desk.settle().0),
        ["clear", "mark", "allocate"],
        "thirty seconds after the allocation"
    );
}

fn term(desk: &Desk, epoch: &str, seconds: u64) -> Change {
    let until = desk.time().after(Duration::from_secs(seconds));
    let epoch = epoch.to_owned();
    Change::Lease(Some(Term { epoch, until }))
}

#[test]
fn a_lease_that_is_renewed_late_makes_up_for_what_was_passed_over() {
    let mut desk = Desk::new(1);
    desk.fraction("c", 3);
    desk.settle();
    desk.tell(term(&desk, "1.a", 10));
    desk.plan();
    desk.now += 10_000;
    desk.pod("p", &["c"], json!({}));
    assert!(desk.plan().writes.is_empty(), "its time is over");
    desk.tell(term(&desk, "1.a", 10));
    assert_eq!(kinds(&desk.settle().0), ["allocate"]);
}

#[test]
fn what_was_refused_in_an_earlier_term_says_nothing_of_marks_in_this_one() {
    let refused = || Outcome::Refused("admission webhook denied the request".to_owned());
    let mut desk = Desk::new(1);
    desk.fraction("c", 3);
    desk.settle();
    desk.pod("p", &["c"], json!({}));
    let plan = desk.plan();
    assert_eq!(kinds(&plan.writes), ["allocate"]);
    desk.planner.report(plan.writes[0].id, refused(), desk.time());
    desk.plan();
    desk.tell(term(&desk, "2.a", 3_600));
    assert_eq!(desk.plan().reads, [Read::Claims]);
    desk.list();
    let plan = desk.plan();
    assert_eq!(kinds(&plan.writes), ["mark"], "at once, as a new process would");
    desk.now += 31_000;
    assert!(
        desk.plan().reads.is_empty(),
        "nobody knows yet whether it takes the mark"
    );
    desk.planner.report(plan.writes[0].id, refused(), desk.time());
    assert_eq!(desk.plan().reads, [Read::Claims], "now it leads without");
}

#[test]
fn a_hold_that_runs_out_counts_once_however_often_its_end_is_decided() {
    let mut desk = Desk::new(3);
    desk.fraction("c", 3);
    desk.pod("p", &["c"], json!({}));
    desk.settle();
    desk.now += 30_000;
    let mut told = Vec::new();
    for _ in 0..4 {
        let plan = desk.plan();
        assert_eq!(kinds(&plan.writes), ["clear"]);
        told.extend(said(&plan.verdicts));
        desk.planner.report(plan.writes[0].id, Outcome::Dropped, desk.time());
    }
    assert_eq!(told, ["HoldTimeout"]);
    desk.settle();
    assert_eq!(desk.node_of("c").as_deref(), Some("n1"));
    desk.now += 30_000;
    let (_, verdicts) = desk.settle();
    assert_eq!(said(&verdicts), ["HoldTimeout"], "it is another hold");
    assert_eq!(
        desk.node_of("c").as_deref(),
        Some("n0"),
        "avoided for 30 s, not for minutes"
    );
}

#[test]
fn a_slice_that_cannot_be_read_is_named() {
    let mut desk = Desk::new(1);
    desk.fraction("c", 3);
    desk.settle();
    desk.now += 10_000;
    desk.pod("p", &["c"], json!({}));
    let begin = desk.now;
    let mut told = Vec::new();
    while desk.now - begin < 60_000 {
        let plan = desk.plan();
        assert!(
            plan.reads.iter().all(|read| *read == Read::Slice("s0".into())),
            "{:?}",
            plan.reads
        );
        let after = desk.now - begin;
        told.extend(plan.verdicts.into_iter().map(|(_, verdict)| (after, verdict)));
        desk.now = plan.wake.expect("it is asked for again").millis();
    }
    let unread = Verdict::SliceUnread { slice: "s0".into() };
    assert_eq!(told, [(30_000, unread)]);
    // Nobody needs the read, and then another pod does, whose waiting time starts at zero.
    desk.tell(Change::PodGone { key: "ns/p".into() });
    desk.plan();
    desk.now += 60_000;
    desk.pod("p", &["c"], json!({}));
    let plan = desk.plan();
    assert_eq!((plan.reads.len(), plan.verdicts.len()), (1, 0));
    assert_eq!(kinds(&desk.settle().0), Vec::<&str>::new(), "the answer is awaited");
    desk.answer("s0");
    assert_eq!(kinds(&desk.settle().0), ["allocate"]);
}

#[test]
fn what_a_pod_was_told_is_not_told_again_after_slices_were_read() {
    for is_gang in [false, true] {
        let mut desk = Desk::new(1);
        // The GPU has room for one pod of the gang, so the verdict is about the other one.
        let memory = if is_gang { 5 } else { 6 };
        desk.fraction("theirs", memory);
        let theirs = json!({"devices": {"results": [{"request": "r-vgpu", "driver": "dra.vgpu", "pool": "n0/vgpu",
            "device": "gpu-0", "shareID": "x", "consumedCapacity": {"memory": memory.to_string()}}]}});
        let hold = |desk: &mut Desk, holds: bool| {
            let allocation = holds.then(|| Arc::new(read(theirs.clone())));
            desk.edit("theirs", |claim| claim.facts.status.allocation = allocation);
        };
        hold(&mut desk, true);
        for name in ["a", "b"] {
            let gang = json!({"metadata": {"annotations": {"dra.vgpu/gang": "g", "dra.vgpu/gang-size": "2"}}});
            desk.fraction(name, 3);
            desk.pod(name, &[name], if is_gang { gang } else { json!({}) });
        }
        let of_pods = |verdicts: &[(About, Verdict)]| {
            let of_pods = verdicts.iter().filter(|(about, _)| about.object == Object::Pod);
            of_pods.map(|(_, verdict)| verdict.reason()).collect::<Vec<_>>()
        };
        let expected = if is_gang {
            ["GangWaits"].as_slice()
        } else {
            &["NoNodeFits"; 2]
        };
        assert_eq!(of_pods(&desk.settle().1), expected);
        for _ in 0..3 {
            desk.now += 6_000;
            hold(&mut desk, false);
            let plan = desk.plan();
            assert_eq!(plan.reads, [Read::Slice("s0".into())], "there is a place");
            hold(&mut desk, true);
            desk.answer("s0");
            let plan = desk.plan();
            assert!(
                plan.reads.is_empty() && plan.writes.is_empty(),
                "and there is none: {plan:?}"
            );
            assert_eq!(of_pods(&plan.verdicts), Vec::<&str>::new());
        }
    }
}

#[test]
fn a_write_without_an_answer_keeps_its_devices() {
    let mut desk = Desk::new(1);
    desk.fraction("c", 5);
    desk.fraction("d", 5);
    desk.settle();
    desk.pod("p", &["c"], json!({}));
    let plan = desk.plan();
    assert_eq!(kinds(&plan.writes), ["allocate"]);
    desk.planner.report(plan.writes[0].id, Outcome::Unknown, desk.time());
    desk.pod("q", &["d"], json!({}));
    assert!(desk.plan().writes.is_empty(), "it may have landed");
    desk.now += 1_000;
    let settles = desk.plan();
    assert_eq!(kinds(&settles.writes), ["mark"], "now it has landed or never will");
    desk.tell(Change::PodGone { key: "ns/p".into() });
    desk.perform(&settles.writes[0]);
    assert_eq!(kinds(&desk.settle().0), ["allocate"]);
    assert_eq!(desk.node_of("d").as_deref(), Some("n0"));
}

#[test]
fn claims_without_an_answer_do_not_stop_others() {
    let mut desk = Desk::new(2);
    // No two GPUs share a value.
    desk.publish("hard", 0, 0..16);
    for at in 0..30 {
        let name = format!("a{at}");
        desk.pair(&name, 9, [7, 8]);
        desk.pod(&name, &[&name], json!({}));
    }
    desk.fraction("c", 3);
    desk.pod("last", &["c"], json!({}));
    let (_, verdicts) = desk.settle();
    assert!(desk.node_of("c").is_some());
    let unanswered = said(&verdicts);
    assert_eq!(
        unanswered.iter().filter(|reason| **reason == "NoAnswerInTime").count(),
        30,
        "{unanswered:?}"
    );
    // They are tried again one at a time, each after its pause; there are no new verdicts.
    for _ in 0..4 {
        let plan = desk.plan();
        let wake = plan.wake.expect("they are tried again").millis();
        assert!(wake > desk.now && plan.verdicts.is_empty(), "{:?}", plan.verdicts);
        desk.now = wake;
    }
}

#[test]
fn a_pod_that_is_reserved_for_and_never_bound_is_kube_schedulers() {
    let mut desk = Desk::new(2);
    desk.fraction("c", 3);
    desk.pod("p", &["c"], json!({}));
    desk.settle();
    let entry = read(json!({"resource": "pods", "name": "p", "uid": "uid-p"}));
    desk.edit("c", |claim| claim.reserved_for.push(entry));
    let plan = desk.plan();
    let wake = plan.wake.expect("it ends");
    assert!(wake.millis() <= desk.now + 30_000);
    desk.now += 30_000;
    let (writes, verdicts) = desk.settle();
    assert_eq!(
        (kinds(&writes), said(&verdicts)),
        (vec!["release"], vec!["HoldTimeout"])
    );
    assert_eq!(
        desk.node_of("c").as_deref(),
        Some("n0"),
        "it may be bound at any moment"
    );
    desk.now += 10_000;
    assert!(desk.settle().0.is_empty());
    // The pod cannot be bound: kube-scheduler removes the allocation.
    desk.edit("c", |claim| {
        claim.facts.status.allocation = None;
        claim.reserved_for.clear();
    });
    assert_eq!(kinds(&desk.settle().0), ["allocate"]);
    assert_eq!(desk.node_of("c").as_deref(), Some("n1"), "elsewhere first");
}

#[test]
fn a_claim_that_takes_no_mark_stops_no_new_leader() {
    // A claim that is being deleted takes no finalizer; nobody can allocate it either.
    let mut desk = Desk::new(1);
    desk.fraction("c", 3);
    desk.settle();
    desk.edit("c", |claim| {
        claim.is_deleted = true;
        claim.is_protected = false;
    });
    desk.planner = Planner::new(Settings::default(), Features::default(), share_ids());
    desk.lead("2.b");
    assert!(desk.settle().0.is_empty() && desk.planner.is_leading());

    let mut desk = Desk::new(1);
    desk.unmarkable = Some("c");
    desk.fraction("c", 3);
    desk.fraction("d", 3);
    desk.pod("d", &["d"], json!({}));
    desk.planner = Planner::new(Settings::default(), Features::default(), share_ids());
    desk.lead("2.b");
    desk.pod("d", &["d"], json!({}));
    let begin = desk.now;
    let mut said_so = false;
    while !desk.planner.is_leading() {
        assert!(desk.now - begin <= 31_000, "it waits for ever");
        said_so |= said(&desk.settle().1).contains(&"WriteRefused");
        desk.now += 500;
    }
    assert!(desk.now - begin >= 30_000, "what was decided before has time to land");
    for _ in 0..200 {
        desk.now += 500;
        let (_, verdicts) = desk.settle();
        said_so |= said(&verdicts).contains(&"WriteRefused");
    }
    assert!(said_so && desk.node_of("d").is_some());
    desk.unmarkable = None;
    desk.now += 60_000;
    desk.pod("c", &["c"], json!({}));
    desk.settle();
    assert!(desk.node_of("c").is_some());
}

#[test]
fn a_conflict_without_a_newer_version_is_a_refusal() {
    let mut desk = Desk::new(1);
    desk.fraction("c", 3);
    for pause in [1_000, 2_000, 4_000] {
        let plan = desk.plan();
        assert_eq!(kinds(&plan.writes), ["mark"], "after {pause}");
        desk.planner.report(plan.writes[0].id, Outcome::Conflict, desk.time());
        assert!(desk.plan().writes.is_empty(), "a watch may bring the newer version");
        desk.now += 5_000;
        let plan = desk.plan();
        assert_eq!(plan.reads, [Read::Claims]);
        desk.list();
        let plan = desk.plan();
        assert!(plan.writes.is_empty(), "not at once");
        desk.now += pause;
    }
    let (writes, _) = desk.settle();
    assert_eq!(kinds(&writes), ["mark"]);
    desk.pod("p", &["c"], json!({}));
    assert_eq!(kinds(&desk.settle().0), ["allocate"]);
}

#[test]
fn a_clock_that_is_set_back_stops_nothing_and_vouches_for_nothing() {
    let mut desk = Desk::new(1);
    desk.fraction("c", 3);
    desk.fraction("d", 3);
    desk.pod("p", &["c"], json!({}));
    desk.settle();
    desk.now -= 20_000;
    assert!(desk.plan().writes.is_empty(), "by a lease that nobody can judge");
    assert!(!desk.planner.is_leading());
    let term = Term {
        epoch: "1.a".into(),
        until: desk.time().after(Duration::from_secs(3_600)),
    };
    desk.tell(Change::Lease(Some(term)));
    assert_eq!(desk.plan().reads, [Read::Claims]);
    desk.list();
    desk.pod("q", &["d"], json!({}));
    let plan = desk.plan();
    assert!(plan.writes.is_empty(), "the slice was read nobody knows when");
    assert_eq!(plan.reads, [Read::Slice("s0".into())]);
    desk.now += 5_000;
    assert_eq!(kinds(&desk.settle().0), ["allocate"]);
    desk.now += 25_000;
    assert_eq!(
        kinds(&desk.settle().0)[0],
        "clear",
        "thirty seconds after the clock was set"
    );
}

#[test]
fn whoever_changes_a_claim_all_the_time_stops_no_new_leader() {
    let mut desk = Desk::new(1);
    desk.fraction("c", 3);
    desk.fraction("d", 3);
    desk.settle();
    desk.planner = Planner::new(Settings::default(), Features::default(), share_ids());
    desk.lead("2.b");
    for round in 0.. {
        assert!(round < 10, "it waits for ever");
        let plan = desk.plan();
        if plan.reads.contains(&Read::Claims) {
            desk.list();
        }
        // Its user is always faster: the mark meets a newer version, which the watch reports.
        for write in &plan.writes {
            if write.name == "c" {
                desk.edit("c", |_| {});
                desk.planner.report(write.id, Outcome::Conflict, desk.time());
            } else {
                desk.perform(write);
            }
        }
        if desk.planner.is_leading() {
            break;
        }
        desk.now += 1_000;
    }
    desk.pod("d", &["d"], json!({}));
    desk.settle();
    assert!(desk.node_of("d").is_some());
}

#[test]
fn allocations_that_are_refused_are_tried_ever_more_rarely() {
    let mut desk = Desk::new(1);
    desk.fraction("c", 3);
    desk.pod("p", &["c"], json!({}));
    let mut refused = Vec::new();
    while refused.len() < 10 {
        let plan = desk.plan();
        for write in &plan.writes {
            if matches!(write.intent, Intent::Allocate { .. }) {
                refused.push(desk.now);
                let why = Outcome::Refused("admission webhook denied the request".to_owned());
                desk.planner.report(write.id, why, desk.time());
            } else {
                desk.perform(write);
            }
        }
        plan.reads.iter().for_each(|read| match read {
            Read::Claims => desk.list(),
            Read::Slice(name) => desk.answer(name),
        });
        if plan.writes.is_empty() && plan.reads.is_empty() {
            desk.now = plan.wake.expect("it is tried again").millis().max(desk.now + 1);
        }
    }
    let pauses: Vec<i64> = refused.windows(2).map(|pair| pair[1] - pair[0]).collect();
    let grows = |pair: &[i64]| pair[1] >= (2 * pair[0]).min(60_000);
    assert!(pauses.windows(2).all(grows), "{pauses:?}");
    desk.now += 60_000;
    desk.settle();
    assert!(desk.node_of("c").is_some());
}

#[test]
fn a_hold_that_somebody_else_adds_keeps_nothing_allocated() {
    for first in [false, true] {
        let mut desk = Desk::new(1);
        desk.fraction("c", 3);
        desk.pod("p", &["c"], json!({}));
        desk.settle();
        let forged = read(json!({"apiGroup": "dra.vgpu", "resource": "holds", "name": "q", "uid": "forged"}));
        desk.edit("c", |claim| {
            let at = if first { 0 } else { 1 };
            claim.reserved_for.insert(at, forged);
        });
        desk.settle();
        let claim = &desk.claims[0];
        let holds: Vec<&str> = claim.reserved_for.iter().map(|entry| entry.uid.as_str()).collect();
        assert_eq!(holds, ["hold-uid-c"], "the pod's place is kept");
        desk.now += 30_000;
        assert_eq!(kinds(&desk.settle().0)[0], "clear", "{first}");
    }
}
