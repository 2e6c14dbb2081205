//! The state machine compared with a simple model, over any sequence of calls, restarts, reboots and losses of files, by
//! two instances.
//!
//! The model: which claim holds how much of GPU 0. A Prepare succeeds if the amounts fit beside the others; if the claim
//! has other results than before, its former ones are ended first. Nothing but Unprepare and a reboot ends a claim.

use super::*;
use proptest::prelude::*;

/// Memory in GiB and cores of each variant of a claim.
const VARIANTS: [(u64, u32); 4] = [(10, 10), (30, 0), (50, 60), (80, 100)];
const CLAIMS: usize = 5;

#[derive(Clone, Copy, Debug)]
enum Step {
    Prepare {
        instance: usize,
        claim: usize,
        variant: usize,
    },
    Unprepare {
        instance: usize,
        claim: usize,
    },
    /// The renewal of CDI files, which runs every 10 s.
    Renew {
        instance: usize,
    },
    Restart {
        instance: usize,
    },
    Upgrade {
        instance: usize,
        release: usize,
    },
    Reboot,
    Lose(Loss),
}

#[derive(Clone, Copy, Debug)]
enum Loss {
    /// The record of a claim.
    Record {
        claim: usize,
    },
    /// The record is overwritten, with zeroes or with other bytes.
    Damage {
        claim: usize,
        zeroes: bool,
    },
    Cdi {
        claim: usize,
    },
    Limits {
        claim: usize,
    },
}

fn steps() -> impl Strategy<Value = Step> {
    let instance = || 0..2_usize;
    let claim = || 0..CLAIMS;
    let loss = prop_oneof![
        claim().prop_map(|claim| Loss::Record { claim }),
        (claim(), any::<bool>()).prop_map(|(claim, zeroes)| Loss::Damage { claim, zeroes }),
        claim().prop_map(|claim| Loss::Cdi { claim }),
        claim().prop_map(|claim| Loss::Limits { claim }),
    ];
    prop_oneof![
        6 => (instance(), claim(), 0..VARIANTS.len())
            .prop_map(|(instance, claim, variant)| Step::Prepare { instance, claim, variant }),
        3 => (instance(), claim()).prop_map(|(instance, claim)| Step::Unprepare { instance, claim }),
        1 => instance().prop_map(|instance| Step::Renew { instance }),
        1 => instance().prop_map(|instance| Step::Restart { instance }),
        1 => (instance(), 0..2_usize).prop_map(|(instance, release)| Step::Upgrade { instance, release }),
        1 => Just(Step::Reboot),
        3 => loss.prop_map(Step::Lose),
    ]
}

/// Which variant each claim holds.
type Model = BTreeMap<usize, usize>;

fn prepare_in(model: &mut Model, claim: usize, variant: usize) -> bool {
    if model.get(&claim) == Some(&variant) {
        return true;
    }
    model.remove(&claim);
    let memory = |of: &usize| VARIANTS[*of].0;
    let cores = |of: &usize| VARIANTS[*of].1;
    let fits = model.values().map(memory).sum::<u64>() + memory(&variant) <= 80
        && model.values().map(cores).sum::<u32>() + cores(&variant) <= 100;
    if fits {
        model.insert(claim, variant);
    }
    fits
}

fn uid(claim: usize) -> String {
    format!("u{claim}")
}

fn share(claim: usize, variant: usize) -> String {
    format!("s{claim}-{variant}")
}

struct Scene {
    rig: Rig,
    instances: [Option<Node>; 2],
    model: Model,
    /// Claims that have lost a file which may not have been written again. The tests never remove two at a time of a
    /// claim's record, CDI file and limits files.
    lost: BTreeSet<usize>,
}

impl Scene {
    fn new() -> Self {
        let rig = Rig::new(false);
        let instances = [Some(rig.open()), Some(rig.open())];
        Self {
            rig,
            instances,
            model: Model::new(),
            lost: BTreeSet::new(),
        }
    }

    fn instance(&mut self, number: usize) -> &mut Node {
        self.instances[number].as_mut().expect("it runs")
    }

    fn restart(&mut self, number: usize) {
        self.instances[number] = None;
        self.instances[number] = Some(self.rig.open());
    }

    /// A start and its first renewal write what is missing. A start alone cannot write a CDI file if the record was rebuilt,
    /// because only NVML describes the GPU.
    fn complete(&mut self) {
        self.restart(0);
        let node = self.instance(0);
        let renewed = node.renew_cdi_files(&node.locked());
        assert!(renewed.is_ok_and(|failed| failed.is_empty()));
        self.lost.clear();
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Prepare {
                instance,
                claim,
                variant,
            } => {
                let (memory, cores) = VARIANTS[variant];
                let asked = super::claim(&uid(claim), &[(&share(claim, variant), memory, cores)]);
                let answer = prepare(self.instance(instance), asked);
                let fits = prepare_in(&mut self.model, claim, variant);
                assert_eq!(answer.is_ok(), fits, "{answer:?}");
            }
            Step::Unprepare { instance, claim } => {
                unprepare(self.instance(instance), &uid(claim)).expect("unprepared");
                self.model.remove(&claim);
            }
            Step::Renew { instance } => {
                let node = self.instance(instance);
                let renewed = node.renew_cdi_files(&node.locked());
                assert!(renewed.is_ok_and(|failed| failed.is_empty()));
            }
            Step::Restart { instance } => self.restart(instance),
            Step::Upgrade {
                instance,
                release: text,
            } => {
                release(&self.rig.path("image"), ["one", "two"][text]);
                self.restart(instance);
                let node = self.instance(instance);
                node.remove_unused_releases(&node.locked());
            }
            Step::Reboot => {
                self.instances = [None, None];
                self.rig.reboot();
                self.model.clear();
                self.instances = [Some(self.rig.open()), Some(self.rig.open())];
                self.lost.clear();
            }
            Step::Lose(loss) => self.lose(loss),
        }
    }

    fn lose(&mut self, loss: Loss) {
        let (claim, path) = match loss {
            Loss::Record { claim } | Loss::Damage { claim, .. } => (claim, self.rig.record(&uid(claim))),
            Loss::Cdi { claim } => (claim, self.rig.path(&format!("cdi/dra.vgpu-claim_u{claim}.json"))),
            Loss::Limits { claim } => match self.model.get(&claim) {
                Some(variant) => {
                    let limits = format!("run/claims/u{claim}/{}/limits", share(claim, *variant));
                    (claim, self.rig.path(&limits))
                }
                None => return,
            },
        };
        if !self.lost.insert(claim) {
            self.complete();
            self.lost.insert(claim);
        }
        match loss {
            Loss::Damage { zeroes, .. } => {
                if let Ok(whole) = std::fs::read(&path) {
                    let damaged = if zeroes {
                        vec![0; whole.len()]
                    } else {
                        whole[..whole.len() / 2].to_vec()
                    };
                    std::fs::write(&path, damaged).expect("written");
                }
            }
            // It may be gone already.
            _ => drop(std::fs::remove_file(path)),
        }
    }

    /// Checks that the records agree with the model, whatever an instance has in memory. A lost record is rebuilt first.
    fn check(&self) {
        let held: Vec<(usize, usize)> = self.model.clone().into_iter().collect();
        let mut reader = self.rig.open();
        drop(reader.take_damages());
        let files = self.rig.checkpoint().claims;
        let found: Vec<String> = files.values().map(|entry| entry.shares[0].share.name.clone()).collect();
        let expected: Vec<String> = held.iter().map(|(claim, variant)| share(*claim, *variant)).collect();
        assert_eq!(found, expected);
        let mut slots: Vec<_> = files.values().map(|entry| entry.shares[0].slot).collect();
        slots.sort();
        slots.dedup();
        assert_eq!(slots.len(), held.len(), "each has a slot of its own");
        for entry in files.values() {
            assert!(
                self.rig.path("store").join(&entry.library).join("libvgpu.so").exists(),
                "its release"
            );
        }
    }

    /// A start and its first renewal leave everything of each claim, and nothing else.
    fn end(mut self) {
        self.instances = [None, None];
        let mut node = self.rig.open();
        // A rebuilt record does not describe the GPU, because only NVML does. So a start alone cannot write the claim's
        // files.
        let renewed = node.renew_cdi_files(&node.locked());
        assert!(renewed.is_ok_and(|failed| failed.is_empty()));
        let held: Vec<String> = self.model.keys().map(|claim| uid(*claim)).collect();
        assert_eq!(node.claims().claims.keys().cloned().collect::<Vec<_>>(), held);
        for (claim, variant) in &self.model {
            for path in [
                format!("cdi/dra.vgpu-claim_u{claim}.json"),
                format!("run/claims/u{claim}/{}/limits", share(*claim, *variant)),
                format!("run/claims/u{claim}/{}/ledger", share(*claim, *variant)),
                format!("run/claims/u{claim}/entry.json"),
            ] {
                assert!(self.rig.path(&path).exists(), "{path}");
            }
        }
        for claim in 0..CLAIMS {
            unprepare(&mut node, &uid(claim)).expect("unprepared");
        }
        assert_eq!(self.rig.leftovers(), [""; 0]);
    }
}

/// Set for a longer run: the number of sequences.
const CASES: &str = "VGPU_MODEL_CASES";

fn cases() -> u32 {
    std::env::var(CASES).map_or(60, |cases| cases.parse().expect("a number"))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_sequence_of_calls_and_losses_ends_as_the_model_says(steps in prop::collection::vec(steps(), 1..40)) {
        let mut scene = Scene::new();
        for step in steps {
            scene.take(step);
            scene.check();
        }
        scene.end();
    }
}

/// Regression test of a case that was found by chance: what is lost before and after a start must not be two at a time.
#[test]
fn a_record_a_cdi_file_and_the_record_again_are_written_again() {
    let mut scene = Scene::new();
    let prepare = Step::Prepare {
        instance: 0,
        claim: 0,
        variant: 0,
    };
    let losses = [
        Loss::Record { claim: 0 },
        Loss::Cdi { claim: 0 },
        Loss::Record { claim: 0 },
    ];
    for step in [prepare].into_iter().chain(losses.map(Step::Lose)) {
        scene.take(step);
        scene.check();
    }
    scene.end();
}

/// Regression test of a case that was found by chance: the limits file is lost after the record was rebuilt.
#[test]
fn limits_that_are_lost_after_the_record_are_written_again() {
    let mut scene = Scene::new();
    let prepare = Step::Prepare {
        instance: 0,
        claim: 2,
        variant: 0,
    };
    let losses = [Loss::Record { claim: 2 }, Loss::Limits { claim: 2 }];
    for step in [prepare].into_iter().chain(losses.map(Step::Lose)) {
        scene.take(step);
        scene.check();
    }
    scene.end();
}
