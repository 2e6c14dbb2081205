//! A planner under test: applies changes to it, and performs its plans.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use vgpu_allocator::Features;
use vgpu_planner::model::{Claim, Slice, Version};
use vgpu_planner::{About, Change, Intent, Outcome, Plan, Planner, Read, Settings, Term, Time, Verdict, Write};

pub(crate) const START: i64 = 1_000_000_000;

pub(crate) fn read<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

/// A planner and the cluster that it is told of.
pub(crate) struct Desk {
    pub(crate) planner: Planner,
    pub(crate) now: i64,
    pub(crate) version: u64,
    pub(crate) claims: Vec<Claim>,
    pub(crate) nodes: usize,
    /// A webhook refuses marks on this claim.
    pub(crate) unmarkable: Option<&'static str>,
    /// Slices besides those of the nodes' GPUs, by name.
    pub(crate) published: BTreeMap<String, Value>,
    /// When the planner wants the next call.
    pub(crate) wake: Option<Time>,
    told: HashSet<(About, String)>,
}

pub(crate) fn slice(at: usize) -> Value {
    let added = Time::from_millis(START - 60_000).to_string();
    json!({"metadata": {"name": format!("s{at}")}, "spec": {"driver": "dra.vgpu", "nodeName": format!("n{at}"),
        "pool": {"name": format!("n{at}/vgpu"), "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": "gpu-0", "allowMultipleAllocations": true,
            "taints": [{"key": "dra.vgpu/allocator", "value": "controller", "effect": "NoSchedule", "timeAdded": added}],
            "capacity": {"memory": {"value": "8", "requestPolicy": {"default": "8", "validRange": {"min": "1"}}}}}]}})
}

impl Desk {
    /// Leading, over nodes with one GPU of 8 each, and a class of another driver that only n1 has a device for.
    pub(crate) fn new(nodes: usize) -> Self {
        Self::with(Settings::default(), nodes)
    }

    pub(crate) fn with(settings: Settings, nodes: usize) -> Self {
        let mut desk = Self {
            planner: Planner::new(settings, Features::default(), share_ids()),
            now: START,
            version: 10,
            claims: Vec::new(),
            nodes,
            unmarkable: None,
            published: BTreeMap::new(),
            wake: None,
            told: HashSet::new(),
        };
        desk.lead("1.a");
        desk
    }

    pub(crate) fn time(&self) -> Time {
        Time::from_millis(self.now)
    }

    pub(crate) fn tell(&mut self, change: Change) {
        self.planner.apply(change, Time::from_millis(self.now));
    }

    pub(crate) fn lead(&mut self, epoch: &str) {
        let term = Term {
            epoch: epoch.into(),
            until: self.time().after(Duration::from_secs(3_600)),
        };
        let nic = json!({"metadata": {"name": "nic"}, "spec": {"driver": "nic.example.com", "nodeName": "n1",
            "pool": {"name": "nic", "resourceSliceCount": 1}, "devices": [{"name": "nic-0"}]}});
        let slices: Vec<Slice> = (0..self.nodes).map(slice).chain([nic]).map(read).collect();
        let class = |name: &str, driver: &str, resource: Option<&str>| {
            let selector = json!({"cel": {"expression": format!("device.driver == '{driver}'")}});
            Change::Class(read(
                json!({"metadata": {"name": name}, "spec": {"selectors": [selector], "extendedResourceName": resource}}),
            ))
        };
        self.tell(Change::Lease(Some(term)));
        self.tell(Change::Pods { keys: Vec::new() });
        let nodes: Vec<String> = (0..self.nodes).map(|at| format!("n{at}")).collect();
        for name in &nodes {
            let node = json!({"metadata": {"name": name}, "status": {"allocatable": {"cpu": "8"}}});
            self.tell(Change::Node(read(node)));
        }
        self.tell(Change::Nodes { names: nodes });
        let names = slices.iter().map(|slice| slice.name().to_owned()).collect();
        for slice in slices {
            let read = Some(self.time());
            self.tell(Change::Slice { slice, read });
        }
        let version = Version(self.version);
        self.tell(Change::Slices { names, version });
        self.tell(class("vgpu", "dra.vgpu", Some("example.com/vgpu")));
        self.tell(class("nic", "nic.example.com", None));
        let names = ["vgpu", "nic"].map(str::to_owned).into();
        self.tell(Change::Classes { names });
        self.tell(Change::Rules(Vec::new()));
        self.list();
    }

    pub(crate) fn list(&mut self) {
        let (claims, version, read) = (self.claims.clone(), Version(self.version), Some(self.time()));
        self.tell(Change::Claims {
            claims,
            same: Vec::new(),
            version,
            read,
        });
    }

    pub(crate) fn claim(&mut self, name: &str, requests: Value) {
        self.version += 1;
        let claim: Claim = read(
            json!({"metadata": {"name": name, "namespace": "ns", "uid": format!("uid-{name}"),
            "resourceVersion": self.version.to_string()}, "spec": {"devices": {"requests": requests}}}),
        );
        self.claims.push(claim.clone());
        self.tell(Change::Claim(claim));
    }

    pub(crate) fn fraction(&mut self, name: &str, memory: u8) {
        self.claim(name, json!([wants("vgpu", memory)]));
    }

    pub(crate) fn pod(&mut self, name: &str, claims: &[&str], more: Value) {
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

    /// Makes a plan. Lasting verdicts are only kept if they are new, as in the controller's notices.
    pub(crate) fn plan(&mut self) -> Plan {
        let mut plan = self.planner.plan(self.time());
        plan.verdicts
            .retain(|(about, verdict)| !verdict.lasts() || self.told.insert((about.clone(), verdict.to_string())));
        plan
    }

    /// Changes a claim, and reports it as the watch would.
    pub(crate) fn edit(&mut self, name: &str, change: impl FnOnce(&mut Claim)) -> Claim {
        self.version += 1;
        let claim = self
            .claims
            .iter_mut()
            .find(|claim| claim.facts.metadata.name == name)
            .unwrap();
        change(claim);
        claim.version = Version(self.version);
        let claim = claim.clone();
        self.tell(Change::Claim(claim.clone()));
        claim
    }

    pub(crate) fn perform(&mut self, write: &Write) {
        let intent = write.intent.clone();
        if matches!(intent, Intent::Mark { .. }) {
            let known = self.claims.iter().find(|claim| claim.facts.metadata.name == write.name);
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
            Intent::Allocate { allocation, hold, .. } => {
                claim.facts.status.allocation = Some(allocation);
                claim.reserved_for.push(hold);
            }
            Intent::Release { hold } => claim.reserved_for.retain(|entry| *entry != hold),
            Intent::Clear { .. } => {
                claim.facts.status.allocation = None;
                claim.reserved_for.clear();
            }
        });
        self.planner
            .report(write.id, Outcome::Done(Box::new(claim)), Time::from_millis(self.now));
    }

    /// Plans and performs until nothing is left to do. Returns the writes and the verdicts.
    pub(crate) fn settle(&mut self) -> (Vec<Write>, Vec<(About, Verdict)>) {
        let (mut writes, mut verdicts) = (Vec::new(), Vec::new());
        for _ in 0..20 {
            let plan = self.plan();
            for read in &plan.reads {
                match read {
                    Read::Claims => self.list(),
                    Read::Slice(name) => self.answer(name),
                }
            }
            for write in &plan.writes {
                self.perform(write);
            }
            verdicts.extend(plan.verdicts);
            self.wake = plan.wake;
            let is_over = plan.writes.is_empty() && plan.reads.is_empty();
            writes.extend(plan.writes);
            if is_over {
                break;
            }
        }
        (writes, verdicts)
    }

    /// Answers the planner's read of a slice.
    pub(crate) fn answer(&mut self, name: &str) {
        let published = self.published.get(name).cloned();
        let slice = read(published.unwrap_or_else(|| slice(name[1..].parse().unwrap())));
        let read = Some(self.time());
        self.tell(Change::Slice { slice, read });
    }

    /// Publishes a slice of whole GPUs on a node through the watch. The attribute `own` identifies the GPUs.
    pub(crate) fn publish(&mut self, name: &str, node: usize, owns: impl IntoIterator<Item = i64>) {
        let added = Time::from_millis(START - 60_000).to_string();
        let gpu = |(at, own): (usize, i64)| {
            json!({"name": format!("gpu-{at}"), "attributes": {"own": {"int": own}},
                "taints": [{"key": "dra.vgpu/allocator", "value": "controller", "effect": "NoSchedule", "timeAdded": added}]})
        };
        let devices: Vec<Value> = owns.into_iter().enumerate().map(gpu).collect();
        let slice = json!({"metadata": {"name": name}, "spec": {"driver": "dra.vgpu", "nodeName": format!("n{node}"),
            "pool": {"name": name, "generation": 1, "resourceSliceCount": 1}, "devices": devices}});
        self.published.insert(name.to_owned(), slice.clone());
        let slice = read(slice);
        self.tell(Change::Slice { slice, read: None });
        self.list();
    }

    /// A claim for `gpus` GPUs, where the two requests in `same` must get GPUs with the same `own`.
    pub(crate) fn pair(&mut self, name: &str, gpus: usize, same: [usize; 2]) {
        let request = |at: usize| json!({"name": format!("r{at}"), "exactly": {"deviceClassName": "vgpu"}});
        self.claim(name, Value::Array((0..gpus).map(request).collect()));
        let same = same.map(|at| format!("r{at}"));
        let constraint = json!([{"requests": same, "matchAttribute": "dra.vgpu/own"}]);
        self.edit(name, |claim| {
            Arc::make_mut(&mut claim.facts.spec).devices.constraints = read(constraint)
        });
    }

    /// Lets time pass until all of these are allocated. Returns the verdicts in the meantime.
    pub(crate) fn wait_for(&mut self, names: &[&str], most: i64) -> Vec<(About, Verdict)> {
        let begin = self.now;
        let mut said = Vec::new();
        while names.iter().any(|name| self.node_of(name).is_none()) {
            assert!(self.now - begin < most, "{names:?} are waited for in vain: {said:?}");
            said.extend(self.settle().1);
            let wake = self.wake.expect("it is tried again").millis();
            self.now = self.now.max(wake);
        }
        said
    }

    pub(crate) fn node_of(&self, name: &str) -> Option<String> {
        let claim = self.claims.iter().find(|claim| claim.facts.metadata.name == name)?;
        let selector = claim.allocation()?.node_selector.as_ref()?;
        Some(selector.node_selector_terms[0].match_fields[0].values[0].clone())
    }
}

pub(crate) fn share_ids() -> Box<dyn FnMut() -> String + Send> {
    let mut count = 0;
    Box::new(move || {
        count += 1;
        format!("share-{count}")
    })
}

pub(crate) fn wants(class: &str, memory: u8) -> Value {
    json!({"name": format!("r-{class}"), "exactly": {"deviceClassName": class,
        "capacity": (class == "vgpu").then(|| json!({"requests": {"memory": memory}}))}})
}

pub(crate) fn kinds(writes: &[Write]) -> Vec<&'static str> {
    let kind = |write: &Write| match write.intent {
        Intent::Mark { .. } => "mark",
        Intent::Allocate { .. } => "allocate",
        Intent::Release { .. } => "release",
        Intent::Clear { .. } => "clear",
    };
    writes.iter().map(kind).collect()
}

pub(crate) fn said(verdicts: &[(About, Verdict)]) -> Vec<&'static str> {
    verdicts.iter().map(|(_, verdict)| verdict.reason()).collect()
}
