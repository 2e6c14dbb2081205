//! Controller mode: explanations use the planner's state, so they explain what it decides by.

use std::time::Duration;

use serde_json::{Value, json};
use vgpu_allocator::Features;
use vgpu_planner::explain::{Answers, Message, MessageKind, message};
use vgpu_planner::model::{Claim, Pod, Slice, Version};
use vgpu_planner::{Change, Intent, Outcome, Planner, Read, Settings, Term, Time};

use crate::world::{claims_of, exactly, fraction, gpu};

/// A planner and the objects that it knows, a minute after 1970.
struct Both {
    planner: Planner,
    answers: Answers,
    claim: Claim,
    slice: Slice,
}

const NOW: Time = Time::from_millis(60_000);

fn parse<T: serde::de::DeserializeOwned>(value: &Value) -> T {
    serde_json::from_value(value.clone()).unwrap()
}

impl Both {
    /// A node with one GPU for each taint, and a claim for `devices`.
    fn new(taints: &[Value], devices: Value) -> Self {
        let mut both = Self {
            planner: Planner::new(Settings::default(), Features::default(), Box::new(String::new)),
            answers: Answers::default(),
            claim: Claim::default(),
            slice: Slice::default(),
        };
        let node = json!({"metadata": {"name": "node1"}});
        let class = json!({"metadata": {"name": "vgpu"}, "spec": {"selectors": [{"cel": {"expression":
            "device.driver == \"dra.vgpu\" && device.attributes[\"dra.vgpu\"].type == \"gpu\""}}]}});
        let gpus = taints.iter().enumerate().map(|(at, taint)| {
            let mut gpu = gpu(&format!("gpu-{at}"));
            gpu["taints"] = json!([taint]);
            gpu
        });
        let slice = json!({"metadata": {"name": "s", "resourceVersion": "1"}, "spec": {"driver": "dra.vgpu",
            "nodeName": "node1", "devices": gpus.collect::<Vec<_>>(),
            "pool": {"name": "node1/vgpu", "generation": 1, "resourceSliceCount": 1}}});
        let claim = json!({"metadata": {"name": "train", "namespace": "default", "uid": "u", "resourceVersion": "1"},
            "spec": {"devices": devices}});
        both.claim = parse(&claim);
        both.slice = parse(&slice);
        let waiting: Pod = parse(&pod());
        let names = |name: &str| vec![name.to_owned()];
        for change in [
            Change::Node(parse(&node)),
            Change::Nodes { names: names("node1") },
            Change::Class(parse(&class)),
            Change::Classes { names: names("vgpu") },
            Change::Slice {
                slice: both.slice.clone(),
                read: None,
            },
            Change::Slices {
                names: names("s"),
                version: Version(1),
            },
            Change::Rules(Vec::new()),
            Change::Pods {
                keys: vec![waiting.key()],
            },
            Change::Pod(waiting),
        ] {
            both.planner.apply(change, NOW);
        }
        both.list(NOW);
        both
    }

    /// Sends a list of all claims, as if it had been requested.
    fn list(&mut self, now: Time) {
        let change = Change::Claims {
            claims: vec![self.claim.clone()],
            same: Vec::new(),
            version: Version(1),
            read: Some(now),
        };
        self.planner.apply(change, now);
    }

    /// Leads until an allocation is sent, whose outcome is not known yet.
    fn allocate(&mut self) {
        let term = Term {
            epoch: "e".into(),
            until: NOW.after(Duration::from_secs(60)),
        };
        self.planner.apply(Change::Lease(Some(term)), NOW);
        for _ in 0..20 {
            let plan = self.planner.plan(NOW);
            for read in plan.reads {
                match read {
                    Read::Claims => self.list(NOW),
                    Read::Slice(_) => {
                        let (slice, read) = (self.slice.clone(), Some(NOW));
                        self.planner.apply(Change::Slice { slice, read }, NOW);
                    }
                }
            }
            for write in plan.writes {
                match write.intent {
                    Intent::Mark { epoch } => {
                        self.claim.version.0 += 1;
                        self.claim.epoch = Some(epoch);
                        self.claim.is_protected = true;
                        let done = Outcome::Done(Box::new(self.claim.clone()));
                        self.planner.report(write.id, done, NOW);
                    }
                    Intent::Allocate { .. } => return,
                    other => panic!("{other:?}"),
                }
            }
        }
        panic!("nothing is allocated");
    }

    fn why(&mut self) -> Option<Message> {
        let pod: Pod = parse(&pod());
        self.planner.apply(Change::Pod(pod.clone()), NOW);
        self.answers.update_queue(self.planner.state());
        assert!(self.answers.work(self.planner.state_mut(), &mut || true));
        message(&pod, self.planner.state(), &self.answers)
    }

    fn text(&mut self) -> String {
        self.why().expect("it waits for us").text
    }
}

fn pod() -> Value {
    json!({"metadata": {"name": "train", "namespace": "default", "uid": "1"}, "spec": claims_of(&["train"]),
        "status": {"phase": "Pending",
            "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]}})
}

fn taint(value: &str, added: i64) -> Value {
    json!({"key": "dra.vgpu/allocator", "value": value, "effect": "NoSchedule",
        "timeAdded": Time::from_millis(added).to_string()})
}

#[test]
fn what_the_controller_may_allocate_is_there_to_be_had() {
    let mut both = Both::new(&[taint("controller", 30_000)], fraction());
    let verdict = both.why().unwrap();
    assert_eq!(verdict.kind, MessageKind::Room, "{}", verdict.text);
    let mut both = Both::new(
        &[taint("controller", 30_000)],
        exactly("vgpu", json!({"memory": "100Gi"})),
    );
    let text = both.text();
    assert!(text.contains("memory: 100Gi wanted, 80Gi of 80Gi free"), "{text}");
}

#[test]
fn what_nobody_may_allocate_yet_stands_in_the_way_by_its_name() {
    let taints = [taint("controller", 31_000), taint("released", 0)];
    let mut both = Both::new(&taints, fraction());
    let text = both.text();
    for words in [
        "its taint dra.vgpu/allocator=controller is not yet 30 s old, or all claims have not been listed since it was; \
         nobody allocates it before (node1 gpu-0)",
        "it is on its way back to kube-scheduler, and nobody allocates it before that taint is gone (node1 gpu-1)",
    ] {
        assert!(text.contains(words), "{text}");
    }
    // A sufficiently recent list gives the first GPU to the controller, and the answer changes.
    both.list(Time::from_millis(61_000));
    assert_eq!(both.why().unwrap().kind, MessageKind::Room);
}

#[test]
fn who_was_given_something_is_told_nothing_while_it_is_written() {
    let mut both = Both::new(&[taint("controller", 0)], exactly("vgpu", json!({"memory": "60Gi"})));
    assert!(both.why().is_some());
    both.allocate();
    assert_eq!(both.why(), None);
}

#[test]
fn a_claim_that_nobody_may_allocate_is_told_why() {
    let mut devices = fraction();
    devices["requests"][0]["exactly"]["tolerations"] = json!([{"operator": "Exists"}]);
    let text = Both::new(&[taint("controller", 0)], devices).text();
    assert!(
        text.contains("claim default/train tolerates the taint dra.vgpu/allocator"),
        "{text}"
    );
}
