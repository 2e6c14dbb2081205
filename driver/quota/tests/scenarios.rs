//! What users and administrators do by mistake or on purpose, and the results.

use std::time::Duration;

use serde_json::{Value, json};
use vgpu_planner::{Change as Cluster, Time};
use vgpu_quota::{Change, Steady};

mod support;

use support::{Api, Replica, START, TEAM, seconds};

fn hard(gibibytes: u64) -> Value {
    json!({"hard": {"memory": format!("{gibibytes}Gi")}})
}

fn gated(api: &Api) -> Vec<&str> {
    let gated = api.pods.iter().filter(|(_, pod)| pod.gated);
    gated.map(|(name, _)| name.as_str()).collect()
}

fn told(replica: &Replica, words: &str) {
    let said = &replica.notices.lines;
    assert!(said.iter().any(|text| text.contains(words)), "{words}: {said:#?}");
}

#[test]
fn by_age_and_no_overtaking() {
    let mut api = Api::new(hard(80));
    api.pod(1, Err(60), true);
    api.pod(2, Err(40), true);
    api.pod(3, Err(10), true);
    let mut leader = Replica::new(&api);
    leader.settle(&mut api);
    assert_eq!(gated(&api), ["p002", "p003"]);
    told(
        &leader,
        "p002 QuotaExceeded: waits for VgpuQuota vgpu: memory 60Gi of 80Gi used, 40Gi wanted; it starts when shares of the namespace end, or when spec.hard.memory is raised",
    );
    told(&leader, "p003 QuotaExceeded: waits behind pod p002, which is older");
    api.bind("p001");
    leader.settle(&mut api);
    assert_eq!(gated(&api), ["p002", "p003"]);
    api.end("p001");
    leader.settle(&mut api);
    assert_eq!(gated(&api), [""; 0], "at once");
    // Reported once, whatever happens in between.
    let of_second = leader
        .notices
        .lines
        .iter()
        .filter(|text| text.starts_with("p002 "))
        .count();
    assert_eq!(of_second, 1, "{:#?}", leader.notices);
}

#[test]
fn with_backfill_the_younger_goes_first() {
    let mut api = Api::new(json!({"hard": {"memory": "80Gi"}, "backfill": true}));
    for (number, size) in [(1, 60), (2, 40), (3, 10)] {
        api.pod(number, Err(size), true);
    }
    Replica::new(&api).settle(&mut api);
    assert_eq!(gated(&api), ["p002"]);
}

#[test]
fn more_than_the_ceiling_itself_holds_nobody_up() {
    let mut api = Api::new(hard(50));
    api.pod(1, Err(60), true);
    api.pod(2, Err(40), true);
    let mut leader = Replica::new(&api);
    leader.settle(&mut api);
    assert_eq!(gated(&api), ["p001"]);
    told(
        &leader,
        "never fits into VgpuQuota vgpu: memory 60Gi wanted, and the ceiling is 50Gi; ask for less",
    );
}

#[test]
fn pods_that_were_there_count_and_stay_and_lowering_stops_nobody() {
    let mut api = Api::new(hard(80));
    api.pod(1, Err(60), false);
    api.bind("p001");
    api.pod(2, Err(20), true);
    let mut leader = Replica::new(&api);
    leader.settle(&mut api);
    assert_eq!((gated(&api).len(), api.status().used.memory >> 30), (0, 80));
    api.set_spec(hard(10));
    api.pod(3, Err(5), true);
    leader.settle(&mut api);
    assert_eq!(
        (gated(&api), api.pods.len()),
        (vec!["p003"], 3),
        "admitted, and nobody stopped"
    );
    told(
        &leader,
        "p003 QuotaExceeded: waits for VgpuQuota vgpu: memory 80Gi of 10Gi used, 5Gi wanted",
    );
    api.end("p001");
    api.end("p002");
    leader.settle(&mut api);
    assert_eq!(gated(&api), [""; 0]);
}

#[test]
fn a_shared_claim_counts_once() {
    let mut api = Api::new(hard(40));
    api.shared("ours", 40);
    for number in 1..4 {
        api.pod(number, Ok("ours"), true);
    }
    let mut leader = Replica::new(&api);
    leader.settle(&mut api);
    assert_eq!((gated(&api).len(), api.status().reservations.len()), (0, 1));
    // The reservation is free when the last pod is gone.
    for name in ["p001", "p002", "p003"] {
        api.bind(name);
    }
    api.pod(4, Err(40), true);
    for name in ["p001", "p002", "p003"] {
        leader.settle(&mut api);
        assert_eq!(gated(&api), ["p004"]);
        api.end(name);
    }
    leader.settle(&mut api);
    assert_eq!(gated(&api), [""; 0]);
}

#[test]
fn resource_quotas_of_earlier_systems_are_ceilings_too() {
    let mut api = Api::new(hard(80));
    let quota =
        json!({"metadata": {"name": "q", "namespace": TEAM}, "spec": {"hard": {"limits.nvidia.com/gpumem": "30720"}}});
    api.extra
        .push(Change::ResourceQuota(serde_json::from_value(quota).unwrap()));
    api.pod(1, Err(20), true);
    api.pod(2, Err(20), true);
    let mut leader = Replica::new(&api);
    leader.settle(&mut api);
    assert_eq!(gated(&api), ["p002"]);
    told(
        &leader,
        "memory 20Gi of 30Gi used, 20Gi wanted; it starts when shares of the namespace end, or when ResourceQuota q limits.nvidia.com/gpumem is raised",
    );
    let status = api.status_value();
    assert_eq!(status["hard"], json!({"memory": "30Gi"}));
    assert_eq!(
        status["limitedBy"],
        json!({"memory": "ResourceQuota q limits.nvidia.com/gpumem"})
    );
    assert_eq!(status["used"]["memory"], "20Gi");
}

#[test]
fn a_quota_that_is_refused_opens_no_gate() {
    let mut api = Api::new(json!({"hard": {"gpumem": 1}}));
    api.pod(1, Err(1), true);
    let mut leader = Replica::new(&api);
    leader.settle(&mut api);
    assert_eq!(gated(&api), ["p001"]);
    told(
        &leader,
        "vgpu QuotaRefused: spec.hard.gpumem: unknown variant `gpumem`, expected one of `memory`, `cores`, `gpus`, `shares`, `computeSlices`; no gate",
    );
    told(
        &leader,
        "p001 QuotaRefused: waits for VgpuQuota vgpu, which is refused; correct it: spec.hard",
    );
    api.set_spec(hard(80));
    leader.settle(&mut api);
    assert_eq!(gated(&api), [""; 0]);
}

#[test]
fn a_gate_that_somebody_else_takes_off_is_told_and_counts() {
    let mut api = Api::new(hard(50));
    api.pod(1, Err(40), true);
    api.pod(2, Err(40), true);
    let mut leader = Replica::new(&api);
    leader.settle(&mut api);
    let second = &api.pods["p002"];
    let at = vgpu_api::PodRef {
        namespace: TEAM.into(),
        name: "p002".into(),
        uid: second.uid.clone(),
    };
    api.ungate(&at, &[]);
    leader.settle(&mut api);
    told(
        &leader,
        "p002 QuotaBypassed: somebody else took the scheduling gate dra.vgpu/quota off",
    );
    // Another change of the pod is not reported again.
    api.ungate(&at, &[]);
    leader.settle(&mut api);
    let of_second = leader
        .notices
        .lines
        .iter()
        .filter(|text| text.starts_with("p002 QuotaBypassed"));
    assert_eq!(of_second.count(), 1, "{:#?}", leader.notices);
    assert_eq!(api.status().used.memory >> 30, 80);
}

#[test]
fn a_status_that_a_user_wrote_is_put_right() {
    let mut api = Api::new(hard(50));
    api.pod(1, Err(40), true);
    let mut leader = Replica::new(&api);
    leader.settle(&mut api);
    for forged in [
        json!({}),
        json!({"reservations": {"nobody": "memory=50Gi,cores=0,gpus=1,shares=1"}}),
        json!(7),
    ] {
        api.set_status(forged);
        api.pod(2, Err(40), true);
        leader.settle(&mut api);
        assert_eq!(gated(&api), ["p002"]);
        api.now += seconds(31);
        leader.settle(&mut api);
        assert_eq!(api.status().used.memory >> 30, 40, "{}", api.status_value());
    }
}

#[test]
fn a_claim_deleted_between_reservation_and_gate_gives_its_reservation_back() {
    let mut api = Api::new(hard(50));
    api.shared("ours", 40);
    api.pod(1, Ok("ours"), true);
    let mut leader = Replica::new(&api);
    // One write: the reservation. The gate is still on the pod.
    assert_eq!(leader.turn(&mut api, 1, 1), 1);
    assert_eq!(api.status().reservations.len(), 1);
    api.delete_claim("ours");
    leader.settle(&mut api);
    assert_eq!((gated(&api), api.status().reservations.len()), (vec!["p001"], 0));
    api.now += seconds(11);
    leader.settle(&mut api);
    told(&leader, "p001 QuotaWaitsForClaim: ResourceClaim ours is not there");
    api.shared("ours", 50);
    leader.settle(&mut api);
    assert_eq!((gated(&api).len(), api.status().used.memory >> 30), (0, 50));
}

#[test]
fn a_crash_between_reservation_and_gate_is_finished_by_the_next() {
    let mut api = Api::new(hard(50));
    api.pod(1, Err(40), true);
    let mut first = Replica::new(&api);
    assert_eq!(first.turn(&mut api, 1, 0), 1);
    drop(first);
    let (written, reserved) = (api.writes, api.status().reservations);
    Replica::new(&api).settle(&mut api);
    assert_eq!(
        (gated(&api).len(), api.writes, api.status().reservations),
        (0, written + 1, reserved),
        "the next leader writes its epoch, and reserves nothing again"
    );
}

#[test]
fn a_gate_needs_a_write_of_the_status_only_for_a_new_claim_or_a_new_leader() {
    let mut api = Api::new(hard(80));
    api.shared("ours", 10);
    let writes_for = |number: u64, leader: &mut Replica, api: &mut Api| {
        api.pod(number, Ok("ours"), true);
        let before = api.writes;
        leader.settle(api);
        assert_eq!(gated(api), [""; 0]);
        api.bind(&format!("p{number:03}"));
        api.writes - before
    };
    let mut first = Replica::new(&api);
    assert_eq!(writes_for(1, &mut first, &mut api), 1, "the reservation");
    assert_eq!(writes_for(2, &mut first, &mut api), 0, "the claim is in use");
    let mut next = Replica::new(&api);
    assert_eq!(writes_for(3, &mut next, &mut api), 1, "its epoch");
    assert_eq!(writes_for(4, &mut next, &mut api), 0, "the claim is in use");
}

#[test]
fn what_nobody_uses_is_released_though_the_leader_writes_all_the_time() {
    let mut api = Api::new(budget("100", "Hold"));
    api.shared("ours", 10);
    api.pod(1, Err(20), true);
    api.pod(2, Ok("ours"), true);
    let mut leader = Replica::new(&api);
    leader.settle(&mut api);
    api.bind("p001");
    // It was never bound, so the claim is not freed.
    api.end("p002");
    leader.settle(&mut api);
    assert_eq!(api.status().reservations.len(), 2);
    for _ in 0..7 {
        api.now += seconds(5);
        leader.turn(&mut api, 9, 9);
        leader.catch_up(&api);
    }
    assert_eq!(api.status().reservations.len(), 1);
}

#[test]
fn two_leaders_at_once_do_not_overwrite_each_other_without_end() {
    let mut api = Api::new(hard(80));
    api.shared("ours", 10);
    api.pod(1, Ok("ours"), true);
    Replica::new(&api).settle(&mut api);
    // It was never bound, so the claim is not freed.
    api.end("p001");
    let mut leaders = [Replica::new(&api), Replica::new(&api)];
    let before = api.writes;
    for _ in 0..400 {
        for leader in &mut leaders {
            leader.catch_up(&api);
            leader.turn(&mut api, 9, 9);
        }
        api.now += Duration::from_millis(100);
    }
    assert_eq!(api.status().reservations.len(), 0);
    assert_eq!(api.writes - before, 2, "an epoch, and 30 s later the release");
}

#[test]
fn without_a_quota_gates_open() {
    let mut api = Api::new(hard(10));
    api.pod(1, Err(40), true);
    let mut leader = Replica::new(&api);
    leader.settle(&mut api);
    assert_eq!(gated(&api), ["p001"]);
    api.delete_quota();
    leader.settle(&mut api);
    assert_eq!(gated(&api), [""; 0]);
    // The same if the CRD is deleted: the watch lists no quotas.
    let mut api = Api::new(hard(10));
    api.pod(1, Err(40), true);
    let mut leader = Replica::new(&api);
    leader.settle(&mut api);
    leader.controller.apply(Change::Quotas { uids: vec![] }, api.now);
    let plan = leader.controller.plan(api.now);
    assert_eq!(plan.writes.len(), 1, "{plan:?}");
}

#[test]
fn a_namespace_that_is_deleted_while_pods_wait_leaves_nothing_to_do() {
    let mut api = Api::new(hard(10));
    api.pod(1, Err(40), true);
    let mut leader = Replica::new(&api);
    leader.settle(&mut api);
    api.end("p001");
    api.delete_quota();
    leader.settle(&mut api);
    assert_eq!(leader.controller.reserved(TEAM), None);
    api.now += seconds(100);
    assert_eq!(leader.turn(&mut api, 9, 9), 0);
}

fn budget(hours: &str, when: &str) -> Value {
    json!({"budget": {"gpuHours": hours, "every": "24h", "whenSpent": when}})
}

#[test]
fn a_budget_of_no_hours_holds_all_until_it_is_raised() {
    let mut api = Api::new(budget("0", "Hold"));
    api.pod(1, Err(80), true);
    let mut leader = Replica::new(&api);
    leader.settle(&mut api);
    assert_eq!(gated(&api), ["p001"]);
    told(
        &leader,
        "p001 BudgetSpent: waits for VgpuQuota vgpu: 0 of 0 GPU hours used, and spec.budget.whenSpent is Hold; it starts after the reset at 2026-11-23T01",
    );
    assert_eq!(api.status_value()["budget"]["state"], "Spent");
    api.set_spec(budget("1", "Hold"));
    leader.settle(&mut api);
    assert_eq!(gated(&api), [""; 0]);
    assert_eq!(api.status_value()["budget"]["state"], "InBudget");
}

#[test]
fn hours_that_are_spent_stop_nobody_and_the_reset_opens_gates() {
    let mut api = Api::new(budget("1", "Hold"));
    api.pod(1, Err(80), true);
    let mut leader = Replica::new(&api);
    leader.settle(&mut api);
    api.bind("p001");
    leader.settle(&mut api);
    let writes = api.writes;
    for _ in 0..370 {
        api.now += seconds(10);
        leader.turn(&mut api, 9, 9);
        leader.catch_up(&api);
    }
    let sums = api.writes - writes;
    assert!((360..=372).contains(&sums), "one write in 10 s: {sums}");
    assert_eq!(api.status_value()["budget"]["state"], "Spent");
    assert_eq!(api.status_value()["budget"]["usedGpuHours"], "1.02");
    told(
        &leader,
        "vgpu BudgetSpent: 1 GPU hours are spent; new pods wait until 2026-11-23T01",
    );
    api.pod(2, Err(1), true);
    leader.settle(&mut api);
    assert_eq!((gated(&api), api.pods.len()), (vec!["p002"], 2), "the first goes on");
    api.end("p001");
    leader.settle(&mut api);
    assert_eq!(gated(&api), ["p002"]);
    api.now += seconds(24 * 3600);
    leader.settle(&mut api);
    assert_eq!(gated(&api), [""; 0]);
}

#[test]
fn who_yields_starts_when_nobody_in_budget_waits() {
    let mut api = Api::new(budget("0", "Yield"));
    api.pod(1, Err(20), true);
    // Another namespace, without a quota: a pod that waits for the whole GPU.
    let claim = json!({"metadata": {"name": "c", "namespace": "rich", "uid": "rich-c"}, "spec": {"devices": {"requests": [
        {"name": "gpu", "exactly": {"deviceClassName": "vgpu"}}]}}});
    let pod = |node: &str| {
        json!({"metadata": {"name": "p", "namespace": "rich", "uid": "rich-p"}, "spec": {"nodeName": node,
            "resourceClaims": [{"name": "gpu", "resourceClaimName": "c"}]}})
    };
    let change = |pod: Value| Change::Cluster(Cluster::Pod(serde_json::from_value(pod).unwrap()));
    let mut leader = Replica::new(&api);
    leader.controller.apply(
        Change::Cluster(Cluster::Claim(serde_json::from_value(claim).unwrap())),
        api.now,
    );
    leader.controller.apply(change(pod("")), api.now);
    leader.settle(&mut api);
    assert_eq!(gated(&api), ["p001"]);
    told(
        &leader,
        "p001 BudgetSpent: waits for VgpuQuota vgpu: 0 of 0 GPU hours used, so pods in budget go first",
    );
    leader.controller.apply(change(pod("n")), api.now);
    // The search for waiting pods is not repeated earlier.
    api.now += seconds(1);
    leader.settle(&mut api);
    assert_eq!(gated(&api), [""; 0]);
}

#[test]
fn a_clock_that_jumps_is_told_and_not_charged() {
    let mut api = Api::new(budget("10", "Hold"));
    api.pod(1, Err(80), true);
    let mut leader = Replica::with_clock(&api, Steady::new(api.now, START));
    leader.settle(&mut api);
    api.bind("p001");
    leader.settle(&mut api);
    let begun = api.now;
    api.now += seconds(20);
    leader
        .controller
        .check_clock(api.now, Time::from_millis(START.millis() + 5 * 3_600_000));
    leader.settle(&mut api);
    api.now += seconds(20);
    leader.settle(&mut api);
    let used = api.status().budget.unwrap().used.0 / 1_000_000_000;
    let real = u128::from((api.now - begun).as_secs());
    assert!(used <= real && used + 11 >= real, "{used} s charged for {real} s");
    told(&leader, "vgpu ClockJumped: the clock of vgpu-controller jumped by ");
}
