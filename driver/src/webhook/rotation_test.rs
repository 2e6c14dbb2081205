//! Rotation with a Secret, a caBundle and leaders that are all in memory: every failure of the module's head, and
//! random ones in any order.

use super::*;

const START: Seconds = 1_800_000_000;
const D: Seconds = DAY as Seconds;

/// The two objects in the API server, with their versions, and the serving replicas.
#[derive(Debug, Clone, Default)]
struct World {
    now: Seconds,
    elapsed: Duration,
    secret: (u64, Stored),
    bundle: (u64, Vec<Authority>),
    issued: usize,
    /// What each replica has loaded from the Secret.
    replicas: Vec<Option<Authority>>,
}

/// A leader's write. The versions that it was decided on may be outdated when it arrives.
#[derive(Debug, Clone)]
struct Late {
    step: Step,
    secret: (u64, Stored),
    bundle: u64,
    now: Seconds,
}

fn authority(number: usize, now: Seconds) -> Authority {
    Authority {
        pem: format!("ca-{number}"),
        from: now - seconds(BACKDATED),
        until: now + seconds(LIFETIME),
    }
}

fn world(replicas: usize) -> World {
    World {
        now: START,
        replicas: vec![None; replicas],
        ..World::default()
    }
}

impl World {
    fn decide(&self, leader: &mut Rotation) -> Late {
        Late {
            step: leader.step(&self.secret.1, &self.bundle.1, self.now, self.elapsed),
            secret: self.secret.clone(),
            bundle: self.bundle.0,
            now: self.now,
        }
    }

    /// Performs a write, if its precondition holds.
    fn write(&mut self, late: Late) {
        let (version, stored) = late.secret;
        match late.step {
            Step::Issue if version == self.secret.0 => {
                self.issued += 1;
                let next = Some(authority(self.issued, late.now));
                self.secret = (version + 1, Stored { next, ..stored });
            }
            Step::Promote if version == self.secret.0 => {
                let current = stored.next;
                self.secret = (version + 1, Stored { current, next: None });
            }
            Step::Trust(wanted) if late.bundle == self.bundle.0 => self.bundle = (late.bundle + 1, wanted),
            _ => {}
        }
    }

    /// A leader's check with its write. Returns the step.
    fn turn(&mut self, leader: &mut Rotation) -> Step {
        let late = self.decide(leader);
        let step = late.step.clone();
        self.write(late);
        step
    }

    /// Turns until there is nothing to do.
    fn settle(&mut self, leader: &mut Rotation) -> Vec<Step> {
        let mut steps = Vec::new();
        let mut waited = 0;
        while waited < 5 {
            match self.turn(leader) {
                Step::Wait => {
                    waited += 1;
                    self.pass(Duration::from_secs(10));
                }
                step => {
                    waited = 0;
                    steps.push(step);
                }
            }
            assert!(steps.len() < 20, "it never ends: {steps:?}");
        }
        steps
    }

    fn pass(&mut self, time: Duration) {
        self.now += seconds(time);
        self.elapsed += time;
    }

    /// A replica sees the Secret. A Secret without a current pair changes nothing.
    fn reload(&mut self, replica: usize) {
        if let Some(current) = &self.secret.1.current {
            self.replicas[replica] = Some(current.clone());
        }
    }

    fn reload_all(&mut self) {
        (0..self.replicas.len()).for_each(|replica| self.reload(replica));
    }

    fn trusts(&self, ca: &Authority) -> bool {
        ca.is_valid(self.now) && self.bundle.1.iter().any(|trusted| trusted.pem == ca.pem)
    }

    /// Checks that every serving replica is trusted.
    fn check(&self) {
        for (number, replica) in self.replicas.iter().enumerate() {
            if let Some(ca) = replica {
                assert!(self.trusts(ca), "replica {number} serves {}: {self:#?}", ca.pem);
            }
        }
    }
}

fn pems(bundle: &[Authority]) -> Vec<&str> {
    bundle.iter().map(|ca| ca.pem.as_str()).collect()
}

/// A cluster with one pair in use.
fn running() -> (World, Rotation) {
    let (mut world, mut leader) = (world(2), Rotation::default());
    world.settle(&mut leader);
    world.reload_all();
    world.check();
    (world, leader)
}

#[test]
fn the_first_pair_is_trusted_before_it_is_in_use() {
    let (mut world, mut leader) = (world(1), Rotation::default());
    assert_eq!(world.turn(&mut leader), Step::Issue);
    world.reload_all();
    assert_eq!(world.replicas, [None], "nothing is in use yet");
    assert_eq!(world.turn(&mut leader), Step::Trust(vec![authority(1, START)]));
    assert_eq!(world.turn(&mut leader), Step::Promote, "there is nobody to wait for");
    assert_eq!(world.turn(&mut leader), Step::Wait);
    world.reload_all();
    world.check();
}

#[test]
fn a_pair_is_replaced_before_it_runs_out_and_both_are_valid_together() {
    let (mut world, mut leader) = running();
    world.pass(RENEW - Duration::from_secs(100));
    assert_eq!(world.turn(&mut leader), Step::Wait);
    world.pass(Duration::from_secs(100));
    assert_eq!(world.turn(&mut leader), Step::Issue);
    assert!(matches!(world.turn(&mut leader), Step::Trust(_)));
    assert_eq!(pems(&world.bundle.1), ["ca-1", "ca-2"]);
    assert_eq!(
        world.turn(&mut leader),
        Step::Wait,
        "other API servers may not see it yet"
    );
    world.pass(SETTLE);
    assert_eq!(world.turn(&mut leader), Step::Promote);
    world.reload(0);
    world.check(); // one replica with the new certificate, one with the old
    assert_eq!(world.settle(&mut leader), []);
    world.check();
    world.reload_all();
    world.pass(KEEP);
    assert_eq!(world.settle(&mut leader).len(), 1, "the old authority goes");
    assert_eq!(pems(&world.bundle.1), ["ca-2"]);
    world.check();
}

#[test]
fn a_leader_that_ends_after_any_write_is_continued_by_another() {
    for steps in 0..4 {
        let (mut world, mut leader) = running();
        world.pass(RENEW);
        for _ in 0..steps {
            world.turn(&mut leader);
            world.pass(SETTLE);
            world.reload(0);
            world.check();
        }
        let mut other = Rotation::default();
        world.settle(&mut other);
        world.reload_all();
        world.check();
        assert_eq!(world.issued, 2, "after {steps} steps");
        assert_eq!(world.replicas[1].as_ref().map(|ca| ca.pem.as_str()), Some("ca-2"));
    }
}

#[test]
fn of_two_leaders_one_issues() {
    let (mut world, mut first) = running();
    world.pass(RENEW);
    let mut second = Rotation::default();
    let (one, two) = (world.decide(&mut first), world.decide(&mut second));
    assert_eq!((&one.step, &two.step), (&Step::Issue, &Step::Issue));
    world.write(one);
    world.write(two);
    assert_eq!(world.issued, 1 + 1);
    assert_eq!(world.secret.1.next.as_ref().map(|ca| ca.pem.as_str()), Some("ca-2"));
}

/// The lagging leader read the Secret before the other one stored the next pair, and the caBundle after the other one
/// trusted it.
#[test]
fn a_leader_that_lags_does_not_remove_the_newest_authority() {
    let (mut world, mut leader) = running();
    let before = world.secret.1.clone();
    // It has seen the old pair in use for long, so it waits for nobody.
    let mut lagging = Rotation::default();
    assert_eq!(world.turn(&mut lagging), Step::Wait);
    world.pass(Duration::from_secs(1_000));
    world.now = START + seconds(RENEW);
    world.turn(&mut leader);
    world.turn(&mut leader);
    assert_eq!(pems(&world.bundle.1), ["ca-1", "ca-2"]);
    // A second earlier the pair in use was not old yet, so it has nothing to issue.
    let step = lagging.step(&before, &world.bundle.1, world.now - 1, world.elapsed);
    assert_eq!(step, Step::Wait);
    assert_eq!(world.turn(&mut leader), Step::Wait, "the first look at what it wrote");
    world.pass(SETTLE);
    assert_eq!(world.turn(&mut leader), Step::Promote);
    world.reload_all();
    world.check();
}

#[test]
fn without_the_secret_replicas_serve_on_and_the_next_pair_is_trusted_beside_theirs() {
    for damaged in [false, true] {
        let (mut world, mut leader) = running();
        world.pass(Duration::from_secs(1_000));
        // A damaged Secret has another version, a deleted one has none: neither can be read.
        world.secret = (if damaged { 9 } else { 0 }, Stored::default());
        world.check();
        assert_eq!(world.turn(&mut leader), Step::Issue);
        world.reload_all();
        assert!(matches!(world.turn(&mut leader), Step::Trust(_)));
        assert_eq!(pems(&world.bundle.1), ["ca-2", "ca-1"]);
        world.check();
        assert_eq!(world.turn(&mut leader), Step::Wait);
        world.pass(SETTLE);
        assert_eq!(world.turn(&mut leader), Step::Promote);
        world.reload(0);
        world.check();
    }
}

/// An administrator who suspects that a key was stolen deletes the Secret: a day later its authority is no longer
/// trusted.
#[test]
fn a_day_after_the_secret_was_deleted_its_authority_is_not_trusted() {
    let (mut world, mut leader) = running();
    world.pass(Duration::from_secs(1_000));
    world.secret = (0, Stored::default());
    world.settle(&mut leader);
    assert_eq!(pems(&world.bundle.1), ["ca-2", "ca-1"]);
    world.reload_all();
    world.pass(KEEP);
    world.settle(&mut leader);
    assert_eq!(pems(&world.bundle.1), ["ca-2"]);
    world.check();
}

#[test]
fn an_old_secret_from_a_backup_is_trusted_again_while_it_is_valid() {
    let (mut world, mut leader) = running();
    let backup = world.secret.1.clone();
    world.pass(RENEW);
    world.settle(&mut leader);
    world.reload_all();
    world.pass(KEEP);
    world.settle(&mut leader);
    assert_eq!(pems(&world.bundle.1), ["ca-2"]);
    world.secret = (world.secret.0 + 1, backup);
    world.reload(0);
    // The first write repairs trust in the current pair, and removes nothing that the other replica needs.
    assert!(matches!(world.turn(&mut leader), Step::Trust(_)));
    world.check();
    world.settle(&mut leader);
    world.check();
    world.reload_all();
    world.check();
}

#[test]
fn a_young_secret_from_a_backup_takes_nothing_from_replicas_that_lag() {
    let (mut world, mut leader) = running();
    let first = world.secret.1.clone();
    world.secret = (world.secret.0 + 1, Stored::default());
    world.settle(&mut leader);
    world.reload_all();
    world.pass(KEEP * 2);
    world.settle(&mut leader);
    assert_eq!(pems(&world.bundle.1), ["ca-2"]);
    world.secret = (world.secret.0 + 1, first);
    world.reload(0);
    world.turn(&mut leader);
    world.turn(&mut leader);
    world.check();
    world.reload(1);
    world.settle(&mut leader);
    assert_eq!(pems(&world.bundle.1), ["ca-1"]);
    world.check();
}

#[test]
fn an_emptied_ca_bundle_is_written_again() {
    let (mut world, mut leader) = running();
    world.bundle = (7, Vec::new());
    assert!(matches!(world.turn(&mut leader), Step::Trust(_)));
    assert_eq!(pems(&world.bundle.1), ["ca-1"]);
    world.check();
}

#[test]
fn a_clock_that_jumps_ahead_and_back_leaves_a_valid_pair_each_time() {
    let (mut world, mut leader) = running();
    for jump in [3_650 * D, -3_650 * D, 30 * D, -30 * D, D / 2, -D / 2] {
        world.now += jump;
        world.settle(&mut leader);
        world.reload_all();
        world.check();
    }
    let at_most = 2 + MOST_OTHERS;
    assert!(world.bundle.1.len() <= at_most, "{:?}", pems(&world.bundle.1));
}

#[test]
fn clocks_of_api_servers_that_differ_by_hours_change_nothing() {
    let (mut world, mut leader) = running();
    for hours in [-20, 20, -1, 1] {
        world.now += hours * 3_600;
        assert_eq!(world.turn(&mut leader), Step::Wait, "{hours} hours");
        world.check();
        world.now -= hours * 3_600;
    }
}

#[test]
fn a_cluster_that_was_switched_off_for_a_year_comes_back() {
    let (mut world, mut leader) = running();
    world.pass(Duration::from_secs(365 * DAY));
    let steps: Vec<Step> = (0..3).map(|_| world.turn(&mut leader)).collect();
    assert!(
        matches!(steps[..], [Step::Issue, Step::Trust(_), Step::Promote]),
        "{steps:?}"
    );
    world.reload_all();
    world.check();
}

#[test]
fn a_secret_that_is_deleted_again_and_again_does_not_grow_the_ca_bundle() {
    let (mut world, mut leader) = running();
    for _ in 0..30 {
        world.secret = (0, Stored::default());
        world.settle(&mut leader);
        world.reload_all();
        world.check();
    }
    assert!(world.bundle.1.len() <= 2 + MOST_OTHERS, "{:?}", pems(&world.bundle.1));
}

/// A small generator (xorshift): the same failures each time.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

/// Two leaders whose writes arrive late or never, and a starting replica, which decides only while the Secret has no
/// current pair; replicas that reload late; a Secret that is deleted. Every replica that loaded a certificate in the
/// last hours is trusted.
#[test]
fn in_any_order_of_failures_every_replica_is_trusted() {
    const STARTS: usize = 2;
    let mut rotations = 0;
    for seed in 1..400 {
        let mut random = Random(0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(seed));
        let (mut world, first) = running();
        let mut leaders = [first, Rotation::default(), Rotation::default()];
        let mut late: Vec<Late> = Vec::new();
        // Each leader's last read of the Secret; it reads the caBundle later.
        let mut read = [(); 3].map(|()| world.secret.clone());
        for _ in 0..600 {
            match random.below(12) {
                0..=1 => read[random.below(3) as usize] = world.secret.clone(),
                2..=3 => {
                    let who = random.below(3) as usize;
                    let secret = read[who].clone();
                    if who == STARTS && secret.1.current.is_some() {
                        continue;
                    }
                    let step = leaders[who].step(&secret.1, &world.bundle.1, world.now, world.elapsed);
                    let (bundle, now) = (world.bundle.0, world.now);
                    late.push(Late {
                        step,
                        secret,
                        bundle,
                        now,
                    });
                }
                4..=6 if !late.is_empty() => {
                    let at = random.below(late.len() as u64) as usize;
                    world.write(late.swap_remove(at));
                }
                7 => leaders[random.below(3) as usize] = Rotation::default(),
                8 => {
                    let replica = random.below(2) as usize;
                    world.reload(replica);
                }
                9 if random.below(40) == 0 => world.secret = (world.secret.0 + 1, Stored::default()),
                10 => world.pass(Duration::from_secs(random.below(40))),
                11 => {
                    // A long time in which nothing fails: writes arrive or are dropped, everybody reloads.
                    late.clear();
                    world.settle(&mut leaders[0]);
                    world.reload_all();
                    world.pass(Duration::from_secs(random.below(3 * DAY)));
                    world.settle(&mut leaders[0]);
                    world.reload_all();
                    read = [(); 3].map(|()| world.secret.clone());
                }
                _ => {}
            }
            world.check();
        }
        rotations += world.issued;
    }
    assert!(rotations > 1_000, "{rotations} pairs in all: the test tests nothing");
}
