//! The one sequence of events that needs the fence: a leader is stopped between its last check and its write; another
//! one takes over, and allocates the devices that the first had chosen to another pod.

use super::api::{Api, Sabotage};
use super::random::Random;
use super::replica::Replica;
use super::users;
use super::world::World;

/// Fails if any device was allocated twice. `restless`: the user of the first claim changes it before each mark is
/// applied.
pub(crate) fn fight(sabotage: Option<Sabotage>, restless: bool) -> Result<(), String> {
    let World { mut api, replicas, .. } = World::new(sabotage);
    let [mut first, mut second] = replicas;
    let random = &mut Random::new(1);
    // One node with two GPUs of 8, and pods that want 5 each: two fit.
    api.remove_node("n1");
    api.remove_node("n2");
    users::pod_that_wants(&mut api, "early", 5);
    for _ in 0..20 {
        first.turn_in_order(&mut api, None);
        if first.holds_an_allocation() {
            break;
        }
    }
    assert!(first.holds_an_allocation(), "the first leader allocates");
    first.send(&api, random);
    api.now += 16_000;
    // The claim stays, and the second leader could allocate it if any pod wanted it.
    api.remove_pod("ns/early");
    let changed = restless.then_some("ns/early");
    settle(&mut second, &mut api, changed);
    users::pod_that_wants(&mut api, "late", 5);
    users::pod_that_wants(&mut api, "later", 5);
    settle(&mut second, &mut api, changed);
    let given = api.claims.values().filter(|claim| claim.allocation().is_some());
    assert_eq!(given.count(), 2, "the second leader allocates");
    first.land(&mut api, random);
    first.hear(&api, random);
    match api.checker.wrong.take() {
        Some(wrong) => Err(wrong),
        None => Ok(()),
    }
}

fn settle(replica: &mut Replica, api: &mut Api, changed: Option<&str>) {
    let random = &mut Random::new(2);
    for _ in 0..20 {
        replica.turn_in_order(api, changed);
        while replica.has_writes() {
            replica.send(api, random);
            replica.land(api, random);
            replica.hear(api, random);
        }
    }
}
