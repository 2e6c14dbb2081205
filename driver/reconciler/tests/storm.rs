//! Random users, crashes, second leaders, deletions by hand and GPUs that come and go: in the end every running pod has
//! its template, no other template of ours is left after an hour, and nobody else's template was touched.

use std::collections::BTreeSet;

use proptest::prelude::*;
use serde_json::json;
use vgpu_reconciler::{Change, KEEP, Key, LABEL, Settings};

mod support;

use support::{Api, Replica, fixed, half, hami, key, seconds, slice, template_of};

#[derive(Debug, Clone)]
enum Step {
    /// Creates a pod; the second number selects its request.
    Pod(u8, u8),
    NoPod(u8),
    /// Somebody deletes a template.
    ByHand(u8),
    /// A node's GPUs, in GiB.
    Node(u8, Vec<u64>),
    NoNode(u8),
    /// The watches of one replica show all events, and it plans. The first `sent` of its writes are sent, and it gets
    /// their outcomes. The others are dropped, or with `crash` lost together with the process.
    Turn {
        replica: bool,
        sent: usize,
        crash: bool,
    },
    /// The other replica leads, and the first one does not know it yet if `late`.
    Lead {
        replica: bool,
        late: bool,
    },
    Wait(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let gpus = prop::collection::vec(prop::sample::select(vec![16u64, 24, 40, 80]), 0..3);
    let step = prop_oneof![
        4 => (0u8..6, 0u8..3).prop_map(|(pod, ask)| Step::Pod(pod, ask)),
        2 => (0u8..6).prop_map(Step::NoPod),
        2 => (0u8..3).prop_map(Step::ByHand),
        2 => (0u8..3, gpus).prop_map(|(node, gpus)| Step::Node(node, gpus)),
        1 => (0u8..3).prop_map(Step::NoNode),
        8 => (any::<bool>(), 0usize..4, prop::bool::weighted(0.2))
            .prop_map(|(replica, sent, crash)| Step::Turn { replica, sent, crash }),
        1 => (any::<bool>(), any::<bool>()).prop_map(|(replica, late)| Step::Lead { replica, late }),
        2 => prop::sample::select(vec![1, 60, 700, 4_000]).prop_map(Step::Wait),
    ];
    prop::collection::vec(step, 0..60)
}

fn pod(name: u8, ask: u8) -> k8s_openapi::api::core::v1::Pod {
    let name = format!("p{name}");
    match ask {
        0 => half(&name),
        1 => fixed(&name),
        _ => hami(
            &name,
            json!({"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "30"}),
        ),
    }
}

/// Two replicas, each with its own watches.
struct World {
    api: Api,
    replicas: [Replica; 2],
}

impl World {
    fn new() -> Self {
        let mut api = Api::with_gpus(&[80]);
        let theirs = json!({"metadata": {"name": "theirs"}, "spec": {"spec": {}}});
        api.put(serde_json::from_value(theirs).unwrap()).unwrap();
        let replicas = [true, false].map(|leads| Replica::of(&api, Settings::default(), leads));
        Self { api, replicas }
    }

    /// Shows both replicas everything that happened.
    fn show(&mut self) {
        while let Some(change) = self.api.events.pop_front() {
            for replica in &mut self.replicas {
                replica.reconciler.apply(change.clone(), replica.now);
            }
        }
    }

    fn step(&mut self, step: Step) {
        let asks = |ask| template_of(&pod(0, ask));
        match step {
            Step::Pod(name, ask) => self.api.set_pod(pod(name, ask)),
            Step::NoPod(name) => self.api.remove_pod(&format!("p{name}")),
            Step::ByHand(ask) => {
                self.api.delete(&key(&asks(ask)), None);
            }
            Step::Node(node, gpus) => self.api.set_slice(slice(&format!("n{node}"), &gpus)),
            Step::NoNode(node) => self.api.remove_slice(&format!("n{node}")),
            Step::Turn { replica, sent, crash } => {
                self.show();
                let at = usize::from(replica);
                let plan = self.replicas[at].plan();
                for (number, write) in plan.writes.into_iter().enumerate() {
                    // A write that is not sent was dropped with the lease, or is lost with the process.
                    let outcome = match number < sent {
                        true => self.api.perform(&write),
                        false => vgpu_reconciler::Outcome::Dropped,
                    };
                    let replica = &mut self.replicas[at];
                    replica.reconciler.report(&write.task(), outcome, replica.now);
                }
                if crash {
                    let now = self.replicas[at].now;
                    let mut fresh = Replica::of(&self.api, Settings::default(), at == 0);
                    fresh.now = now;
                    self.replicas[at] = fresh;
                    self.api.events.clear();
                    let other = &mut self.replicas[1 - at];
                    for change in self.api.list() {
                        other.reconciler.apply(change, other.now);
                    }
                }
            }
            Step::Lead { replica, late } => {
                let (one, other) = (usize::from(replica), usize::from(!replica));
                for (at, leads) in [(one, true), (other, late)] {
                    let replica = &mut self.replicas[at];
                    replica.reconciler.apply(Change::Leads(leads), replica.now);
                }
            }
            Step::Wait(time) => self
                .replicas
                .iter_mut()
                .for_each(|replica| replica.now += seconds(time)),
        }
    }

    /// One replica leads alone; all events are shown and all writes performed.
    fn rest(&mut self, time: u64) {
        self.show();
        for (replica, leads) in self.replicas.iter_mut().zip([true, false]) {
            replica.reconciler.apply(Change::Leads(leads), replica.now);
        }
        let [leader, _] = &mut self.replicas;
        leader.wait(&mut self.api, seconds(time));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn once_it_is_quiet_templates_are_those_that_pods_need(steps in steps()) {
        let mut world = World::new();
        let theirs = world.api.templates[&key("theirs")].clone();
        for step in steps {
            world.step(step);
        }
        // A GPU, so that templates for parts can be made.
        world.step(Step::Node(9, vec![80]));
        // Longer than the longest pause. Twice, because some work depends on the results of the first time.
        world.rest(400);
        world.rest(400);
        let needed: BTreeSet<Key> = world.api.pods.values().map(|pod| key(&template_of(pod))).collect();
        for key in &needed {
            prop_assert!(world.api.templates.contains_key(key), "{key:?} is missing");
        }
        prop_assert_eq!(&world.api.templates[&key("theirs")], &theirs);

        // Missing GPUs are forgotten, and so are templates that nobody needs.
        world.rest(KEEP.as_secs());
        world.rest(1);
        let is_ours = |key: &&Key| {
            let labels = world.api.templates[*key].metadata.labels.as_ref();
            labels.is_some_and(|labels| labels.contains_key(LABEL))
        };
        let left: BTreeSet<Key> = world.api.templates.keys().filter(is_ours).cloned().collect();
        prop_assert_eq!(&left, &needed);
        // A new replica would make the same templates from these objects.
        let (created, deleted) = (world.api.created, world.api.deleted);
        let mut fresh = Replica::leading(&world.api);
        fresh.settle(&mut world.api);
        prop_assert_eq!((world.api.created, world.api.deleted), (created, deleted));
    }
}
