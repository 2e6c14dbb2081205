//! Controller mode when others misbehave: a leader that stands still, a third party that writes status, nodes that
//! disappear, an API server that dies. Allocations are added up at every version (`checker.rs`).

use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use serde_json::{Value, json};
use vgpu_e2e::cluster::Cluster;
use vgpu_e2e::kube::Kube;
use vgpu_e2e::wait::wait;
use vgpu_e2e::{install, patience};

use crate::checker::{self, Checker};
use crate::controller::leader;
use crate::fleet::{
    Fleet, ROOM, TAKEOVER, bound, claim_of, create, name_of, node_of_claim, on_fleet, on_watched_fleet, wait_bound,
    wait_for_event,
};
use crate::processes::{SecondServer, Stopped, controller_in};
use crate::shared::{self, LIMIT, Test};

pub(crate) const TESTS: &[Test] = &[
    ("stopped_leader_allocates_nothing_twice", stands_still),
    ("wiped_allocation_is_made_again", wiped),
    ("allocation_by_a_third_party_is_respected_and_named", third_party),
    ("held_claim_of_a_deleted_node_moves_on", node_goes),
    ("controller_continues_after_the_api_server_died", api_server_dies),
];

/// Creates these pods, and stops the leader while it decides and writes. Returns after all pods are created.
fn stopped_in_a_burst<'a>(cluster: &'a Cluster, kube: &Kube<'_>, pods: &str, pid: String) -> Result<Stopped<'a>> {
    std::thread::scope(|scope| {
        let mut creating = Some(scope.spawn(|| create(kube, pods)));
        // The leader is deciding and writing once a second pod is bound.
        let begun = Instant::now();
        while bound(kube)?.len() < 2 {
            if let Some(created) = creating.take_if(|creating| creating.is_finished()) {
                joined(created)?;
            }
            ensure!(
                begun.elapsed() < patience::stretched(TAKEOVER),
                "no pod of the burst is bound"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
        let asleep = Stopped::stop(cluster, pid)?;
        creating.map_or(Ok(()), joined)?;
        Ok::<_, anyhow::Error>(asleep)
    })
}

/// The leader is stopped in the middle of a burst, another one takes over, and the first one is continued.
///
/// Checks that nothing is allocated twice, that no write of the old term succeeds once the other has the lease, and
/// that the old leader stands by after it wakes. This test cannot force a write to be in flight when the leader is
/// stopped, and each claim has a newer version when it wakes. `driver/planner/tests/storm` (the duel) checks in a model
/// that such a write fails at any moment.
fn stands_still() -> Result<()> {
    const NODES: usize = 6;
    let (mut epoch, mut followed) = (String::new(), None);
    let seen = on_fleet("stands-still", NODES, |installed, kube, fleet| {
        let project = Kube::new(&installed.cluster, install::NAME);
        create(kube, &fleet.pods(["first"]))?;
        wait_bound(kube, &["first"])?;
        let first = wait(LIMIT, "a leader", || leader(&project))?;
        let pid = controller_in(installed, &first)?;
        epoch = checker::epoch(&claim_of(kube, "first")?);
        // With `first`, one pod fewer than fit; `last` is created below.
        let names: Vec<String> = (2..NODES * ROOM).map(|number| format!("p{number:02}")).collect();
        let all: Vec<&str> = names.iter().map(String::as_str).collect();
        let pods = fleet.pods(all.iter().copied());
        let asleep = stopped_in_a_burst(&installed.cluster, kube, &pods, pid)?;
        let done = bound(kube)?.len();
        ensure!(done <= all.len(), "all was bound before the leader stood still");
        wait(TAKEOVER, "the other to lead", || {
            let now = leader(&project)?;
            Ok(now.is_some_and(|now| now != first).then_some(()))
        })?;
        followed = Some(Instant::now());
        wait_bound(kube, &all)?;
        asleep.wake()?;
        let path = format!("/api/v1/namespaces/{}/pods/{first}:9441/proxy/metrics", install::NAME);
        let metrics = wait(LIMIT, "the one that stood still to stand by", || {
            let metrics = project.raw(&path)?;
            let stands_by = metrics.lines().any(|line| line == "vgpu_controller_leading 0");
            Ok(stands_by.then_some(metrics))
        })?;
        let late = |line: &&str| {
            ["conflict", "dropped", "unknown"]
                .iter()
                .any(|word| line.contains(word))
        };
        let writes = metrics
            .lines()
            .filter(|line| line.starts_with("vgpu_controller_writes_total"));
        println!(
            "{done} of {} were bound when the leader was stopped; of its writes: {:?}",
            all.len() + 1,
            writes.filter(late).collect::<Vec<_>>()
        );
        create(kube, &fleet.pods(["last"]))?;
        wait_bound(kube, &["last"])
    })?;
    let of_first: Vec<_> = seen.given.iter().filter(|given| given.epoch == epoch).collect();
    let late = of_first
        .iter()
        .find(|given| followed.is_none_or(|followed| given.at > followed));
    ensure!(
        !of_first.is_empty(),
        "nothing was given in the first leader's term {epoch}"
    );
    ensure!(
        late.is_none(),
        "given in a term after another had followed it: {late:?}"
    );
    Ok(())
}

fn joined(created: ScopedJoinHandle<'_, Result<()>>) -> Result<()> {
    created.join().map_err(|_| anyhow!("a thread panicked"))?
}

fn patch_status(kube: &Kube<'_>, claim: &str, status: &Value) -> Result<()> {
    let patch = json!({"status": status}).to_string();
    kube.run(&[
        "patch",
        "resourceclaim",
        claim,
        "--subresource=status",
        "--type=merge",
        "-p",
        &patch,
    ])
    .map(drop)
}

/// Creates a pod that cannot be bound yet, and waits until a device is held for its claim. Returns the claim.
fn held(kube: &Kube<'_>, fleet: &Fleet<'_>, name: &str) -> Result<Value> {
    create(kube, &fleet.stuck(name).to_string())?;
    held_anew(kube, name, |_| true)
}

/// The pod's claim, once it is allocated as wanted.
fn held_anew(kube: &Kube<'_>, pod: &str, is_wanted: impl Fn(&Value) -> bool) -> Result<Value> {
    wait(TAKEOVER, &format!("the claim of {pod} to be allocated"), || {
        let claim = claim_of(kube, pod)?;
        let is_allocated = !claim["status"]["allocation"].is_null();
        Ok((is_allocated && is_wanted(&claim)).then_some(claim))
    })
}

/// A third party removes both the allocation and the hold.
fn wiped() -> Result<()> {
    let seen = on_fleet("wiped", 1, |_, kube, fleet| {
        let claim = held(kube, fleet, "waits")?;
        let time = |claim: &Value| claim["status"]["allocation"]["allocationTimestamp"].clone();
        // Timestamps have a resolution of a second.
        std::thread::sleep(Duration::from_millis(1_100));
        let nothing = json!({"allocation": null, "reservedFor": null});
        patch_status(kube, name_of(&claim)?, &nothing)?;
        held_anew(kube, "waits", |now| time(now) != time(&claim)).map(drop)
    });
    seen.map(drop)
}

/// An allocation of our device by somebody else is respected, and its claim gets an event.
fn third_party() -> Result<()> {
    let seen = on_fleet("third-party", 1, |_, kube, fleet| {
        let node = fleet.nodes().next().context("no node")?;
        let claim = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "theirs"},
            "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "vgpu",
                "capacity": {"requests": {"memory": "70Gi", "cores": "10"}}}}]}}});
        kube.apply(&claim.to_string())?;
        let share = "11111111-1111-4111-8111-111111111111";
        let result = json!({"request": "gpu", "driver": "dra.vgpu", "pool": vgpu_e2e::hand_made::pool(&node),
            "device": "gpu-0", "shareID": share, "consumedCapacity": {"memory": "70Gi", "cores": "10"}});
        patch_status(
            kube,
            "theirs",
            &json!({"allocation": {"devices": {"results": [result]}}}),
        )?;
        wait_for_event(kube, "theirs", "AllocatedByOthers", &[])?;
        // Four fit on the other GPU, and none beside the third party's claim.
        let all = ["a", "b", "c", "d", "e"];
        create(kube, &fleet.pods(all))?;
        wait(TAKEOVER, "four pods to be bound", || match bound(kube)?.len() {
            4 => Ok(Some(())),
            other => Err(anyhow!("{other} are bound")),
        })?;
        let claims = kube.get(&["resourceclaims"])?;
        for claim in claims["items"].as_array().into_iter().flatten() {
            let device = &claim["status"]["allocation"]["devices"]["results"][0]["device"];
            ensure!(
                *device != "gpu-0" || claim["metadata"]["name"] == "theirs",
                "given out beside a third party's: {claim}"
            );
        }
        patch_status(kube, "theirs", &json!({"allocation": null}))?;
        wait_bound(kube, &all)?;
        kube.run(&["delete", "resourceclaim", "theirs"]).map(drop)
    });
    seen.map(drop)
}

/// The node of a held but unused claim is deleted: the claim moves to another node.
fn node_goes() -> Result<()> {
    let seen = on_fleet("node-goes", 2, |_, kube, fleet| {
        let claim = held(kube, fleet, "waits")?;
        let node = node_of_claim(&claim).context("a claim without a device")?;
        kube.run(&["delete", "node", node])?;
        held_anew(kube, "waits", |now| {
            node_of_claim(now).is_some_and(|other| other != node)
        })?;
        // A hold that expires also moves on.
        wait_for_event(kube, name_of(&claim)?, "NodeGone", &[node])
    });
    seen.map(drop)
}

/// The API server is killed in the middle of a burst. The checker watches through another API server, so its watch is
/// not interrupted.
fn api_server_dies() -> Result<()> {
    let installed = shared::controlled()?;
    let second = SecondServer::start(&installed.cluster)?;
    let watch = |_: &Kube<'_>| Checker::begin_by(|path| second.raw(path));
    let seen = on_watched_fleet("api-dies", 2, watch, |installed, kube, fleet| {
        let names: Vec<String> = (0..12).map(|number| format!("p{number:02}")).collect();
        let all: Vec<&str> = names.iter().map(String::as_str).collect();
        let (before, after) = all.split_at(6);
        create(kube, &fleet.pods(before.iter().copied()))?;
        installed.cluster.restart("kube-apiserver", true)?;
        wait(TAKEOVER, "the API server to answer", || kube.raw("/readyz").map(Some))?;
        create(kube, &fleet.pods(after.iter().copied()))?;
        wait_bound(kube, &all)
    })?;
    ensure!(
        seen.given.len() >= 12,
        "12 claims, and the watch brought {} of {} versions that give something",
        seen.given.len(),
        seen.versions
    );
    Ok(())
}
