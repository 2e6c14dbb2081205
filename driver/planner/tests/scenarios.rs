//! What a planner does, step by step, in the cases that people meet.

use std::time::Duration;

use serde_json::{Value, json};
use vgpu_allocator::Features;
use vgpu_planner::model::{Claim, Version};
use vgpu_planner::{About, Ask, Change, Intent, Outcome, Plan, Planner, Settings, Term, Time, Verdict, Write};

const START: i64 = 1_000_000_000;

fn read<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

/// A planner and the cluster that it is told of.
struct Desk {
    planner: Planner,
    now: i64,
    version: u64,
    claims: Vec<Claim>,
    nodes: usize,
    /// A webhook refuses marks on this claim.
    unmarkable: Option<&'static str>,
}

fn slice(at: usize) -> Value {
    let added = Time::from_millis(START - 60_000).to_string();
    json!({"metadata": {"name": format!("s{at}")}, "spec": {"driver": "dra.vgpu", "nodeName": format!("n{at}"),
        "pool": {"name": format!("n{at}/vgpu"), "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": "gpu-0", "allowMultipleAllocations": true,
            "taints": [{"key": "dra.vgpu/allocator", "value": "controller", "effect": "NoSchedule", "timeAdded": added}],
            "capacity": {"memory": {"value": "8", "requestPolicy": {"default": "8", "validRange": {"min": "1"}}}}}]}})
}

impl Desk {
    /// Leading, over nodes with one GPU of 8 each, and a class of another driver that only n1 has a device for.
    fn new(nodes: usize) -> Self {
        let mut desk = Self {
            planner: Planner::new(Settings::default(), Features::default(), share_ids()),
            now: START,
            version: 10,
            claims: Vec::new(),
            nodes,
            unmarkable: None,
        };
        desk.lead("1.a");
        desk
    }

    fn time(&self) -> Time {
        Time::from_millis(self.now)
    }

    fn tell(&mut self, change: Change) {
        self.planner.apply(change, Time::from_millis(self.now));
    }

    fn lead(&mut self, epoch: &str) {
        let term = Term {
            epoch: epoch.into(),
            until: self.time().after(Duration::from_secs(3_600)),
        };
        let mut slices: Vec<_> = (0..self.nodes).map(|at| read(slice(at))).collect();
        slices.push(read(
            json!({"metadata": {"name": "nic"}, "spec": {"driver": "nic.example.com", "nodeName": "n1",
            "pool": {"name": "nic", "resourceSliceCount": 1}, "devices": [{"name": "nic-0"}]}}),
        ));
        let class = |name: &str, driver: &str, resource: Option<&str>| {
            let selector = json!({"cel": {"expression": format!("device.driver == '{driver}'")}});
            read(
                json!({"metadata": {"name": name}, "spec": {"selectors": [selector], "extendedResourceName": resource}}),
            )
        };
        let classes = vec![
            class("vgpu", "dra.vgpu", Some("example.com/vgpu")),
            class("nic", "nic.example.com", None),
        ];
        let node =
            |at: usize| read(json!({"metadata": {"name": format!("n{at}")}, "status": {"allocatable": {"cpu": "8"}}}));
        self.tell(Change::Lease(Some(term)));
        self.tell(Change::Pods(Vec::new()));
        self.tell(Change::Nodes((0..self.nodes).map(node).collect()));
        let read_at = Some(self.time());
        let version = Version(self.version);
        self.tell(Change::Slices {
            slices,
            version,
            read: read_at,
        });
        self.tell(Change::Classes(classes));
        self.tell(Change::Rules(Vec::new()));
        self.list();
    }

    fn list(&mut self) {
        let (claims, version, asked) = (self.claims.clone(), Version(self.version), Some(self.time()));
        self.tell(Change::Claims { claims, version, asked });
    }

    fn claim(&mut self, name: &str, requests: Value) {
        self.version += 1;
        let claim: Claim = read(
            json!({"metadata": {"name": name, "namespace": "ns", "uid": format!("uid-{name}"),
            "resourceVersion": self.version.to_string()}, "spec": {"devices": {"requests": requests}}}),
        );
        self.claims.push(claim.clone());
        self.tell(Change::Claim(claim));
    }

    fn fraction(&mut self, name: &str, memory: u8) {
        self.claim(name, json!([wants("vgpu", memory)]));
    }

    fn pod(&mut self, name: &str, claims: &[&str], more: Value) {
        let claims: Vec<Value> = claims
            .iter()
            .map(|claim| json!({"name": claim, "resourceClaimName": claim}))
            .collect();
        let mut pod = json!({"metadata": {"name": name, "namespace": "ns", "uid": format!("uid-{name}")},
            "spec": {"resourceClaims": claims}});
        for (key, value) in more.as_object().unwrap() {
            pod.pointer_mut(&format!("/{key}"))
                .unwrap()
                .as_object_mut()
                .unwrap()
                .extend(value.as_object().unwrap().clone());
        }
        self.tell(Change::Pod(read(pod)));
    }

    fn plan(&mut self) -> Plan {
        self.planner.plan(self.time())
    }

    /// A change to a claim, as the watch brings it.
    fn edit(&mut self, name: &str, change: impl FnOnce(&mut Claim)) -> Claim {
        self.version += 1;
        let claim = self
            .claims
            .iter_mut()
            .find(|claim| claim.asked.metadata.name == name)
            .unwrap();
        change(claim);
        claim.version = Version(self.version);
        let claim = claim.clone();
        self.tell(Change::Claim(claim.clone()));
        claim
    }

    fn perform(&mut self, write: &Write) {
        let intent = write.intent.clone();
        if matches!(intent, Intent::Mark { .. }) {
            let known = self.claims.iter().find(|claim| claim.asked.metadata.name == write.name);
            let known = known.expect("it is written to");
            let no_finalizers = known.is_deleted && !known.is_protected;
            if no_finalizers || self.unmarkable == Some(write.name.as_str()) {
                let refused = Outcome::Refused("admission webhook denied the request".to_owned());
                return self.planner.report(write.id, refused, self.time());
            }
        }
        let claim = self.edit(&write.name, |claim| match intent {
            Intent::Mark { epoch } => {
                claim.epoch = Some(epoch);
                claim.is_protected = true;
            }
            Intent::Allocate { allocation, hold } => {
                claim.asked.status.allocation = Some(*allocation);
                claim.reserved_for.push(hold);
            }
            Intent::Release { hold } => claim.reserved_for.retain(|entry| *entry != hold),
            Intent::Clear { .. } => {
                claim.asked.status.allocation = None;
                claim.reserved_for.clear();
            }
        });
        self.planner
            .report(write.id, Outcome::Done(Box::new(claim)), Time::from_millis(self.now));
    }

    /// Plans and performs until nothing is left to do; what was said and written.
    fn settle(&mut self) -> (Vec<Write>, Vec<(About, Verdict)>) {
        let (mut writes, mut verdicts) = (Vec::new(), Vec::new());
        for _ in 0..20 {
            let plan = self.plan();
            for ask in &plan.asks {
                match ask {
                    Ask::Claims => self.list(),
                    Ask::Slice(name) => {
                        let slice = read(slice(name[1..].parse().unwrap()));
                        let read = Some(self.time());
                        self.tell(Change::Slice { slice, read });
                    }
                }
            }
            for write in &plan.writes {
                self.perform(write);
            }
            verdicts.extend(plan.verdicts);
            let is_over = plan.writes.is_empty() && plan.asks.is_empty();
            writes.extend(plan.writes);
            if is_over {
                break;
            }
        }
        (writes, verdicts)
    }

    fn node_of(&self, name: &str) -> Option<String> {
        let claim = self.claims.iter().find(|claim| claim.asked.metadata.name == name)?;
        let selector = claim.allocation()?.node_selector.as_ref()?;
        Some(selector.node_selector_terms[0].match_fields[0].values[0].clone())
    }
}

fn share_ids() -> Box<dyn FnMut() -> String + Send> {
    let mut count = 0;
    Box::new(move || {
        count += 1;
        format!("share-{count}")
    })
}

fn wants(class: &str, memory: u8) -> Value {
    json!({"name": format!("r-{class}"), "exactly": {"deviceClassName": class,
        "capacity": (class == "vgpu").then(|| json!({"requests": {"memory": memory}}))}})
}

fn kinds(writes: &[Write]) -> Vec<&'static str> {
    let kind = |write: &Write| match write.intent {
        Intent::Mark { .. } => "mark",
        Intent::Allocate { .. } => "allocate",
        Intent::Release { .. } => "release",
        Intent::Clear { .. } => "clear",
    };
    writes.iter().map(kind).collect()
}

fn said(verdicts: &[(About, Verdict)]) -> Vec<&'static str> {
    verdicts.iter().map(|(_, verdict)| verdict.reason()).collect()
}

#[test]
fn a_claim_is_marked_allocated_held_and_released() {
    let mut desk = Desk::new(2);
    desk.fraction("c", 3);
    assert_eq!(kinds(&desk.settle().0), ["mark"], "before there is a pod");
    desk.pod("p", &["c"], json!({}));
    let (writes, _) = desk.settle();
    let [
        Write {
            intent: Intent::Allocate { allocation, hold },
            ..
        },
    ] = &writes[..]
    else {
        panic!("{writes:?}");
    };
    assert_eq!((hold.api_group.as_str(), hold.resource.as_str()), ("dra.vgpu", "holds"));
    assert_eq!((hold.name.as_str(), hold.uid.as_str()), ("p", "hold-uid-c"));
    let text = serde_json::to_value(allocation).unwrap();
    let result = &text["devices"]["results"][0];
    assert_eq!(
        (&result["shareID"], &result["consumedCapacity"]["memory"]),
        (&json!("share-1"), &json!("3"))
    );
    assert_eq!(text["allocationTimestamp"], json!(desk.time().to_string()));
    let field = json!([{"key": "metadata.name", "operator": "In", "values": ["n0"]}]);
    assert_eq!(
        text["nodeSelector"],
        json!({"nodeSelectorTerms": [{"matchFields": field}]})
    );
    // kube-scheduler reserves, then binds.
    let entry = read(json!({"resource": "pods", "name": "p", "uid": "uid-p"}));
    desk.edit("c", |claim| claim.reserved_for.push(entry));
    assert!(desk.settle().0.is_empty());
    desk.now += 29_000;
    assert!(desk.settle().0.is_empty(), "it is being bound");
    desk.pod("p", &["c"], json!({"spec": {"nodeName": "n0"}}));
    assert_eq!(kinds(&desk.settle().0), ["release"]);
    assert!(desk.settle().0.is_empty(), "kube-controller-manager does the rest");
}

#[test]
fn a_pod_that_does_not_come_is_tried_elsewhere_first() {
    let mut desk = Desk::new(2);
    desk.fraction("c", 3);
    desk.pod("p", &["c"], json!({}));
    desk.settle();
    assert_eq!(desk.node_of("c").as_deref(), Some("n0"));
    for expected in ["n1", "n0"] {
        desk.now += 30_000;
        let (writes, verdicts) = desk.settle();
        assert_eq!(kinds(&writes), ["clear", "allocate"]);
        assert_eq!(said(&verdicts), ["HoldTimeout"]);
        assert_eq!(desk.node_of("c").as_deref(), Some(expected));
    }
    let mut alone = Desk::new(1);
    alone.fraction("c", 3);
    alone.pod("p", &["c"], json!({}));
    alone.settle();
    alone.now += 30_000;
    assert_eq!(
        kinds(&alone.settle().0),
        ["clear", "allocate"],
        "rather there than nowhere"
    );
}

#[test]
fn what_nobody_can_use_any_more_is_cleared() {
    type Happens = fn(&mut Desk);
    let reasons: [(&str, Happens); 3] = [
        ("PodGone", |desk| desk.tell(Change::PodGone { key: "ns/p".into() })),
        ("NodeGone", |desk| desk.tell(Change::NodeGone { name: "n0".into() })),
        ("ClaimDeleted", |desk| {
            desk.edit("c", |claim| claim.is_deleted = true);
        }),
    ];
    for (reason, happens) in reasons {
        let mut desk = Desk::new(1);
        desk.fraction("c", 3);
        desk.pod("p", &["c"], json!({}));
        desk.settle();
        happens(&mut desk);
        let (writes, verdicts) = desk.settle();
        assert_eq!(kinds(&writes)[0], "clear", "{reason}");
        assert_eq!(said(&verdicts)[0], reason);
        assert_eq!(desk.node_of("c"), None, "{reason}");
    }
}

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
fn a_gang_gets_all_or_nothing() {
    let gang = |size: &str| json!({"metadata": {"annotations": {"dra.vgpu/gang": "g", "dra.vgpu/gang-size": size}}});
    let mut desk = Desk::new(2);
    for name in ["a", "b", "c"] {
        desk.fraction(name, 8);
    }
    desk.pod("a", &["a"], gang("2"));
    let (writes, verdicts) = desk.settle();
    assert_eq!((kinds(&writes), said(&verdicts)), (vec!["mark"; 3], vec!["GangWaits"]));
    desk.pod("b", &["b"], gang("2"));
    assert_eq!(kinds(&desk.settle().0), ["allocate", "allocate"]);
    desk.now += 30_000;
    desk.tell(Change::NodeGone { name: "n1".into() });
    let (writes, verdicts) = desk.settle();
    assert_eq!(kinds(&writes), ["clear", "clear"], "one node is too small for both");
    assert!(said(&verdicts).contains(&"GangWaits"));
    desk.pod("c", &["c"], gang("3"));
    assert!(said(&desk.settle().1).contains(&"GangSize"));
}

#[test]
fn another_drivers_claim_decides_on_the_node() {
    let mut desk = Desk::new(2);
    desk.fraction("c", 3);
    desk.claim("net", json!([wants("nic", 0)]));
    desk.pod("p", &["c", "net"], json!({}));
    let (writes, _) = desk.settle();
    assert_eq!(
        kinds(&writes),
        ["mark", "allocate"],
        "kube-scheduler's claim is left alone"
    );
    assert_eq!(desk.node_of("c").as_deref(), Some("n1"), "the only node with a NIC");
}

#[test]
fn what_can_never_be_says_why() {
    let mut desk = Desk::new(1);
    desk.claim("mixed", json!([wants("vgpu", 1), wants("nic", 0)]));
    let mut open = wants("vgpu", 1);
    open["exactly"]["tolerations"] = json!([{"operator": "Exists"}]);
    desk.claim("open", json!([open]));
    desk.fraction("large", 9);
    desk.fraction("here", 1);
    for claim in ["mixed", "open", "large"] {
        desk.pod(claim, &[claim], json!({}));
    }
    desk.pod("here", &["here"], json!({"spec": {"nodeName": "n0"}}));
    let containers = json!([{"resources": {"requests": {"example.com/vgpu": "1"}}}]);
    desk.pod("old", &[], json!({"spec": {"containers": containers}}));
    let (_, verdicts) = desk.settle();
    let mut reasons = said(&verdicts);
    reasons.sort_unstable();
    reasons.dedup();
    assert_eq!(
        reasons,
        [
            "ClaimMixesDrivers",
            "ClaimTolerations",
            "ExtendedResource",
            "NoNodeFits",
            "PlacedByHand"
        ]
    );
}

#[test]
fn a_third_partys_allocation_counts_and_is_named() {
    let mut desk = Desk::new(1);
    desk.fraction("theirs", 6);
    desk.fraction("c", 3);
    let allocation = json!({"devices": {"results": [{"request": "r-vgpu", "driver": "dra.vgpu", "pool": "n0/vgpu",
        "device": "gpu-0", "shareID": "x", "consumedCapacity": {"memory": "6"}}]}});
    desk.edit("theirs", |claim| claim.asked.status.allocation = Some(read(allocation)));
    desk.pod("p", &["c"], json!({}));
    let (writes, verdicts) = desk.settle();
    assert_eq!(kinds(&writes), ["mark"]);
    let mut reasons = said(&verdicts);
    reasons.sort_unstable();
    reasons.dedup();
    assert_eq!(reasons, ["AllocatedByOthers", "NoNodeFits"]);
}

#[test]
fn a_second_pod_of_a_claim_is_told_that_it_does_not_move() {
    let mut desk = Desk::new(2);
    desk.fraction("c", 3);
    let cpu = |amount: &str| json!({"spec": {"containers": [{"resources": {"requests": {"cpu": amount}}}]}});
    desk.pod("p", &["c"], cpu("6"));
    desk.settle();
    desk.pod("q", &["c"], cpu("4"));
    let (writes, verdicts) = desk.settle();
    assert!(writes.is_empty());
    assert_eq!(said(&verdicts), ["AllocatedElsewhere"]);
}

/// Of node n0: 16 GPUs of which no two have the same `own`.
fn hard_slice() -> Value {
    let added = Time::from_millis(START - 60_000).to_string();
    let gpu = |at: usize| {
        json!({"name": format!("gpu-{at}"), "attributes": {"own": {"int": at}},
            "taints": [{"key": "dra.vgpu/allocator", "value": "controller", "effect": "NoSchedule", "timeAdded": added}]})
    };
    json!({"metadata": {"name": "hard"}, "spec": {"driver": "dra.vgpu", "nodeName": "n0",
        "pool": {"name": "hard", "generation": 1, "resourceSliceCount": 1},
        "devices": (0..16).map(gpu).collect::<Vec<_>>()}})
}

#[test]
fn claims_without_an_answer_do_not_stop_others() {
    let mut desk = Desk::new(2);
    desk.tell(Change::Slice {
        slice: read(hard_slice()),
        read: None,
    });
    desk.list();
    for at in 0..30 {
        let name = format!("a{at}");
        let request = |at: usize| json!({"name": format!("r{at}"), "exactly": {"deviceClassName": "vgpu"}});
        desk.claim(&name, Value::Array((0..9).map(request).collect()));
        let constraint = json!([{"requests": ["r7", "r8"], "matchAttribute": "dra.vgpu/own"}]);
        desk.edit(&name, |claim| {
            claim.asked.spec.devices.constraints = read(constraint);
        });
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
    // Asked again one at a time, each after its pause; nothing new is said.
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
    // It cannot be: kube-scheduler takes the allocation away.
    desk.edit("c", |claim| {
        claim.asked.status.allocation = None;
        claim.reserved_for.clear();
    });
    assert_eq!(kinds(&desk.settle().0), ["allocate"]);
    assert_eq!(desk.node_of("c").as_deref(), Some("n1"), "elsewhere first");
}

#[test]
fn a_claim_that_takes_no_mark_stops_no_new_leader() {
    // One that is being deleted takes no finalizer; nobody can allocate it either.
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
        assert_eq!(plan.asks, [Ask::Claims]);
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
fn a_pod_with_gates_waits_and_its_gang_with_it() {
    let gated = |gang: bool, gates: usize| {
        let gates: Vec<Value> = (0..gates).map(|_| json!({"name": "quota"})).collect();
        let annotations = match gang {
            true => json!({"dra.vgpu/gang": "g", "dra.vgpu/gang-size": "2"}),
            false => json!({}),
        };
        json!({"metadata": {"annotations": annotations}, "spec": {"schedulingGates": gates}})
    };
    let mut desk = Desk::new(2);
    for name in ["a", "b", "alone"] {
        desk.fraction(name, 3);
    }
    desk.pod("alone", &["alone"], gated(false, 1));
    desk.pod("a", &["a"], gated(true, 0));
    desk.pod("b", &["b"], gated(true, 1));
    let (writes, verdicts) = desk.settle();
    assert_eq!(kinds(&writes), ["mark"; 3]);
    let [(_, verdict)] = &verdicts[..] else {
        panic!("{verdicts:?}");
    };
    assert_eq!(
        verdict.to_string(),
        "gang g has 1 of 2 pods, and 1 more with spec.schedulingGates"
    );
    desk.pod("alone", &["alone"], gated(false, 0));
    assert_eq!(kinds(&desk.settle().0), ["allocate"]);
    desk.pod("b", &["b"], gated(true, 0));
    assert_eq!(kinds(&desk.settle().0), ["allocate"; 2]);
}

/// A member of gang g, of so many, that can go to these nodes alone.
fn member(size: usize, nodes: &[usize]) -> Value {
    let term =
        |at: &usize| json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": [format!("n{at}")]}]});
    let terms = json!({"nodeSelectorTerms": nodes.iter().map(term).collect::<Vec<_>>()});
    json!({"metadata": {"annotations": {"dra.vgpu/gang": "g", "dra.vgpu/gang-size": size.to_string()}},
        "spec": {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}}})
}

/// Whether each can have a node of its own, by trying everything.
fn can_be_matched(wanted: &[Vec<usize>], taken: &mut Vec<usize>) -> bool {
    let Some(nodes) = wanted.get(taken.len()) else {
        return true;
    };
    nodes.iter().any(|node| {
        if taken.contains(node) {
            return false;
        }
        taken.push(*node);
        let fits = can_be_matched(wanted, taken);
        taken.pop();
        fits
    })
}

#[test]
fn a_gang_of_four_on_four_nodes_gets_places_whenever_there_are() {
    let (mut fitted, mut greedy) = (0, 0);
    for seed in 0..120_u64 {
        // Each member can go to two nodes or one.
        let bits = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let node = |at: u32| (bits >> (16 + 2 * at) & 3) as usize;
        let wanted: Vec<Vec<usize>> = (0..4).map(|at| vec![node(2 * at), node(2 * at + 1)]).collect();
        let mut desk = Desk::new(4);
        for (at, nodes) in wanted.iter().enumerate() {
            let name = format!("m{at}");
            desk.fraction(&name, 8);
            desk.pod(&name, &[&name], member(4, nodes));
        }
        let (writes, verdicts) = desk.settle();
        let allocated = kinds(&writes).iter().filter(|kind| **kind == "allocate").count();
        let expected = can_be_matched(&wanted, &mut Vec::new());
        assert_eq!(allocated, if expected { 4 } else { 0 }, "{wanted:?}");
        assert_eq!(said(&verdicts).is_empty(), expected, "{wanted:?}");
        fitted += usize::from(expected);
        let mut taken = Vec::new();
        for nodes in &wanted {
            let mut nodes = nodes.clone();
            nodes.sort_unstable();
            taken.extend(nodes.into_iter().find(|node| !taken.contains(node)));
        }
        greedy += usize::from(taken.len() == 4);
    }
    assert!(
        fitted < 120 && greedy + 10 < fitted,
        "{fitted} fit, {greedy} one by one: it tests little"
    );
}

#[test]
fn a_gang_reads_all_its_slices_at_once() {
    let mut desk = Desk::new(6);
    desk.now += 10_000;
    for at in 0..6 {
        let name = format!("m{at}");
        desk.fraction(&name, 8);
        desk.pod(&name, &[&name], member(6, &[0, 1, 2, 3, 4, 5]));
    }
    let marks = desk.plan();
    for write in &marks.writes {
        desk.perform(write);
    }
    let asks = desk.plan().asks;
    assert_eq!(asks.len(), 6, "{asks:?}");
    for ask in asks {
        let Ask::Slice(name) = ask else { panic!("a list") };
        let slice = read(slice(name[1..].parse().unwrap()));
        let read = Some(desk.time());
        desk.tell(Change::Slice { slice, read });
    }
    assert_eq!(kinds(&desk.plan().writes), ["allocate"; 6]);
}

#[test]
fn a_gang_that_does_not_fit_is_not_searched_for_all_the_time() {
    let mut desk = Desk::new(3);
    for at in 0..8 {
        let name = format!("m{at}");
        desk.fraction(&name, 8);
        desk.pod(&name, &[&name], member(8, &[0, 1, 2][at % 2..]));
    }
    let (writes, verdicts) = desk.settle();
    assert_eq!((kinds(&writes), said(&verdicts)), (vec!["mark"; 8], vec!["GangWaits"]));
    let wake = desk.plan().wake.expect("it is searched for again");
    assert!(wake.millis() > desk.now + 100, "{wake:?}");
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
    assert_eq!(desk.plan().asks, [Ask::Claims]);
    desk.list();
    desk.pod("q", &["d"], json!({}));
    let plan = desk.plan();
    assert!(plan.writes.is_empty(), "the slice was read nobody knows when");
    assert_eq!(plan.asks, [Ask::Slice("s0".into())]);
    desk.now += 5_000;
    assert_eq!(kinds(&desk.settle().0), ["allocate"]);
    desk.now += 25_000;
    assert_eq!(
        kinds(&desk.settle().0)[0],
        "clear",
        "thirty seconds after the clock was set"
    );
}
