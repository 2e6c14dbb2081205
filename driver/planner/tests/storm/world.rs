//! The simulated cluster: performs a script of random events, and then calms down.

use vgpu_allocator::model::{Allocation, ResourceClaim};
use vgpu_planner::model::{Claim, Pod, PodClaim};
use vgpu_planner::names::{CONTROLLER, HOLD_GROUP};
use vgpu_quantity::Quantity;

use super::api::{Api, KINDS, Sabotage};
use super::cluster::{Scheduler, manage, reap};
use super::random::Random;
use super::replica::Replica;
use super::users;

/// The longest delay with which kube-scheduler sees slices, and with which it writes its decisions.
const SCHEDULER_LAG: i64 = 12_000;
const CALM_ROUNDS: usize = 600;

pub(crate) struct World {
    pub(crate) api: Api,
    pub(crate) replicas: [Replica; 2],
    scheduler: Scheduler,
}

/// Performs one run. Returns the first violation, or the number of allocations.
pub(crate) fn run(script: &[u64], sabotage: Option<Sabotage>) -> Result<u64, String> {
    let mut world = World::new(sabotage);
    // Half of the clusters are small, so that many pods compete for each device.
    if script.first().is_some_and(|word| word.is_multiple_of(2)) {
        world.api.remove_node("n1");
        world.api.remove_node("n2");
    }
    for word in script {
        world.step(&mut Random::new(*word));
        if let Some(wrong) = world.api.checker.wrong.take() {
            return Err(wrong);
        }
    }
    if sabotage.is_none() {
        world.calm()?;
    }
    match world.api.checker.wrong.take() {
        Some(wrong) => Err(wrong),
        None => Ok(world.api.checker.allocations),
    }
}

impl World {
    pub(crate) fn new(sabotage: Option<Sabotage>) -> Self {
        let mut api = Api {
            now: 1_000_000_000,
            version: 1,
            sabotage,
            ..Api::default()
        };
        users::build(&mut api);
        let mut replicas = [Replica::new("a", 0, sabotage), Replica::new("b", 400, sabotage)];
        for replica in &mut replicas {
            for kind in 0..KINDS {
                replica.list(&api, kind);
            }
        }
        // Devices that exist at the beginning have settled.
        api.now += 60_000;
        Self {
            api,
            replicas,
            scheduler: Scheduler::new(),
        }
    }

    fn step(&mut self, random: &mut Random) {
        self.pass(random);
        let Self {
            api,
            replicas,
            scheduler,
        } = self;
        let which = random.below(2);
        // If nobody can take over, a stopped leader is not fenced off.
        let may_stop = api.now >= replicas[1 - which].paused_until;
        let replica = &mut replicas[which];
        match random.below(48) {
            0..4 => users::act(api, random),
            4..8 => scheduler.schedule(api, random),
            8..10 => scheduler.bind(api, random),
            10 => scheduler.write(api),
            11 => match random.one_in(4) {
                true => scheduler.restart(),
                false => scheduler.look(api),
            },
            12..14 => {
                let keys: Vec<String> = api.claims.keys().cloned().collect();
                if let Some(key) = random.pick(&keys) {
                    manage(api, key);
                }
            }
            14 => reap(api, random),
            // Writes in flight are applied whatever happens to their sender.
            15..18 => replica.land(api, random),
            _ if api.now < replica.paused_until => {}
            18 => {
                if may_stop && random.one_in(2) {
                    replica.stop(api, random);
                }
            }
            19 => {
                if random.one_in(4) {
                    replica.crash(api);
                }
            }
            20 => replica.lose(random),
            21 => {
                let kind = random.below(KINDS);
                replica.list(api, kind);
            }
            22..25 => replica.lease(api),
            25..28 => {
                let kind = random.below(KINDS);
                replica.watch(api, kind, 1 + random.below(4));
            }
            28..30 => replica.answer(api, random),
            30..32 => {
                replica.plan(api);
            }
            32..35 => replica.send(api, random),
            35..37 => replica.hear(api, random),
            _ => replica.turn(api, random, may_stop),
        }
    }

    /// Lets time pass, and does what is due by then.
    fn pass(&mut self, random: &mut Random) {
        let api = &mut self.api;
        api.now += match random.below(60) {
            0 => random.below(20_000) as i64,
            _ => random.below(150) as i64,
        };
        api.oldest_flying = self.replicas.iter().filter_map(Replica::oldest_flying).min();
        if self
            .scheduler
            .pending_since()
            .is_some_and(|at| api.now - at > SCHEDULER_LAG)
        {
            self.scheduler.forget();
        }
        if self.scheduler.is_behind(api) {
            let since = *self.scheduler.behind_since.get_or_insert(api.now);
            if api.now - since > SCHEDULER_LAG / 2 {
                self.scheduler.look(api);
            }
        }
    }

    /// No more faults or new actions: everything that was begun must end.
    fn calm(&mut self) -> Result<(), String> {
        let mut random = Random::new(7);
        for replica in &mut self.replicas {
            replica.resume();
        }
        for at in 0..users::NODES {
            self.api.set_node(users::node(at));
        }
        let mut quiet = 0;
        for _ in 0..CALM_ROUNDS {
            self.api.now += 2_000;
            let before = self.api.version;
            let pods = self.api.log[0].len();
            self.calm_round(&mut random);
            if let Some(wrong) = self.api.checker.wrong.take() {
                return Err(wrong);
            }
            let changed = self.api.version != before || self.api.log[0].len() != pods || self.scheduler.has_work();
            quiet = if changed { 0 } else { quiet + 1 };
            // Longer than a hold, and than a device takes to change hands.
            if quiet > 50 {
                break;
            }
        }
        self.judge()
    }

    fn calm_round(&mut self, random: &mut Random) {
        let api = &mut self.api;
        users::finish_modes(api);
        for _ in 0..2 {
            for replica in &mut self.replicas {
                replica.lease(api);
                for kind in 0..KINDS {
                    replica.watch(api, kind, usize::MAX);
                }
                replica.answer_all(api);
                replica.plan(api);
                while replica.has_writes() {
                    replica.send(api, random);
                    replica.land(api, random);
                    replica.hear(api, random);
                }
            }
            self.scheduler.look(api);
            for _ in 0..6 {
                self.scheduler.schedule(api, random);
                self.scheduler.write(api);
                self.scheduler.bind(api, random);
            }
            let keys: Vec<String> = api.claims.keys().cloned().collect();
            for key in keys {
                manage(api, &key);
            }
            reap(api, random);
        }
    }

    fn judge(&self) -> Result<(), String> {
        let api = &self.api;
        for (key, claim) in &api.claims {
            // Allocations by kube-scheduler whose pod never came stay, as they would without a controller.
            let is_ours = |allocation: &&Allocation| !allocation.devices.results[0].tolerations.is_empty();
            let Some(allocation) = claim.allocation().filter(is_ours) else {
                continue;
            };
            let lives = api.pods.values().any(|pod| {
                !pod.is_finished
                    && pod.claim_keys().any(|used| used == *key)
                    && (pod.node.is_some() || pod.is_waiting())
            });
            if !lives {
                return Err(format!(
                    "claim {key} holds {allocation:?} for nobody: {:?}",
                    claim.reserved_for
                ));
            }
            let held = claim.reserved_for.iter().any(|entry| entry.api_group == HOLD_GROUP);
            let bound = api
                .pods
                .values()
                .any(|pod| pod.node.is_some() && !pod.is_finished && pod.claim_keys().any(|used| used == *key));
            if held && bound {
                return Err(format!(
                    "claim {key} is in use and still held: {:?}",
                    claim.reserved_for
                ));
            }
        }
        match api.pods.values().find(|pod| self.could_run(pod)) {
            Some(pod) => Err(format!("pod {} waits, and would fit: {:?}", pod.key(), pod.claims)),
            None => Ok(()),
        }
    }

    /// Returns true for a waiting pod with one claim for one fraction that fits on some node. Other pods are covered by
    /// the tests of each part.
    fn could_run(&self, pod: &Pod) -> bool {
        let api = &self.api;
        let [PodClaim::Named(name) | PodClaim::Made(name)] = &pod.claims[..] else {
            return false;
        };
        let Some(claim) = api.claims.get(&format!("{}/{name}", pod.namespace)) else {
            return false;
        };
        if !pod.is_waiting() || pod.gang.is_some() || claim.is_deleted || claim.allocation().is_some() {
            return false;
        }
        let Some(wants) = amounts(&claim.facts) else {
            return false;
        };
        (0..users::NODES).any(|at| {
            let node = users::node(at);
            let is_ours = users::taint_of(api, at).is_some_and(|(value, _)| value == CONTROLLER);
            let selected = pod
                .node_selector
                .iter()
                .all(|(key, value)| node.label(key) == Some(value));
            let mut cpu = pod.requests.clone();
            for other in api.pods.values().filter(|other| !other.is_finished) {
                let seat = self.seat(other);
                if seat.is_some_and(|seat| seat == node.name()) {
                    cpu.add(&other.requests);
                }
            }
            let has_cpu = cpu
                .0
                .iter()
                .all(|(name, used)| node.allocatable.0.get(name).is_some_and(|has| used <= has));
            is_ours && selected && has_cpu && (0..2).any(|gpu| self.has_free(at, gpu, &wants))
        })
    }

    fn seat<'a>(&'a self, pod: &'a Pod) -> Option<&'a str> {
        let claims = pod.claim_keys().filter_map(|key| self.api.claims.get(&key));
        let mut pinned = claims.filter_map(Claim::allocation).filter_map(|allocation| {
            let selector = allocation.node_selector.as_ref()?;
            selector
                .node_selector_terms
                .first()?
                .match_fields
                .first()?
                .values
                .first()
        });
        pod.node.as_deref().or_else(|| pinned.next().map(String::as_str))
    }

    fn has_free(&self, at: usize, gpu: usize, wants: &[(String, Quantity)]) -> bool {
        let (pool, device) = (format!("n{at}/vgpu"), format!("gpu-{gpu}"));
        let slice = &self.api.slices[&format!("n{at}-vgpu")];
        wants.iter().all(|(name, wanted)| {
            let mut free = slice.spec.devices[gpu].capacity[name].value.clone();
            let allocations = self.api.claims.values().filter_map(Claim::allocation);
            for result in allocations.flat_map(|allocation| &allocation.devices.results) {
                if (&result.pool, &result.device) == (&pool, &device) {
                    free.subtract(&result.consumed_capacity[name]);
                }
            }
            *wanted <= free
        })
    }
}

/// The amounts that a claim requests; `None` if they are invalid.
fn amounts(claim: &ResourceClaim) -> Option<Vec<(String, Quantity)>> {
    let [request] = &claim.spec.devices.requests[..] else {
        return None;
    };
    let ask = request
        .exactly
        .as_ref()
        .filter(|ask| ask.class == "vgpu" && ask.selectors.is_empty())?;
    let asked = ask.capacity.as_ref().map(|capacity| &capacity.requests);
    let of = |name: &str, default: &str| {
        let found = asked.and_then(|asked| asked.get(name)).cloned();
        (
            name.to_owned(),
            found.unwrap_or_else(|| default.parse().expect("a number")),
        )
    };
    Some(vec![of("memory", "8"), of("cores", "0")])
}
