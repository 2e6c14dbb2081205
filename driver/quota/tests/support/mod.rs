//! An API server with quotas, pods, claims and the rest, whose watches may lag, and replicas that work on it.
#![allow(dead_code, reason = "each test uses a part of it")]

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use vgpu_api::PodRef;
use vgpu_planner::model::Version;
use vgpu_planner::{About, Change as Cluster, Time};
use vgpu_quota::{Change, Notice, Now, Outcome, Quota, QuotaController, Status, Steady, Write};

pub(crate) const TEAM: &str = "team";
pub(crate) const START: Time = Time::from_millis(1_795_309_200_000);

pub(crate) fn seconds(seconds: u64) -> Now {
    Duration::from_secs(seconds)
}

fn key(name: &str) -> String {
    format!("{TEAM}/{name}")
}

/// The ends of the lists of classes and slices.
pub(crate) fn ends(classes: Vec<String>, slices: Vec<String>) -> [Change; 2] {
    let (names, version) = (slices, Version::default());
    [
        Change::Cluster(Cluster::Classes { names: classes }),
        Change::Cluster(Cluster::Slices { names, version }),
    ]
}

/// The end of the list of claims.
pub(crate) fn end_of_claims(keys: Vec<String>) -> Change {
    Change::Cluster(Cluster::Claims {
        claims: Vec::new(),
        same: keys,
        version: Version::default(),
        read: None,
    })
}

/// A watch of one kind: its events in order.
#[derive(Debug, Default, Clone)]
struct Log(Vec<Change>);

#[derive(Debug, Clone)]
pub(crate) struct PodState {
    pub(crate) number: u64,
    pub(crate) uid: String,
    pub(crate) claim: String,
    pub(crate) gated: bool,
    pub(crate) bound: bool,
}

#[derive(Debug, Clone)]
pub(crate) struct ClaimState {
    pub(crate) uid: String,
    pub(crate) memory: u64,
    pub(crate) allocated: bool,
    /// Deleted together with its pod.
    pub(crate) own: bool,
}

#[derive(Debug)]
pub(crate) struct Api {
    pub(crate) now: Now,
    version: u64,
    uids: u64,
    pub(crate) quota: Option<Value>,
    pub(crate) pods: BTreeMap<String, PodState>,
    pub(crate) claims: BTreeMap<String, ClaimState>,
    pods_log: Log,
    claims_log: Log,
    quotas_log: Log,
    pub(crate) extra: Vec<Change>,
    /// Reservations that were ever written, and how often they were written again after they had gone.
    pub(crate) writes: usize,
}

impl Api {
    pub(crate) fn new(spec: Value) -> Self {
        let mut api = Self {
            now: seconds(0),
            version: 100,
            uids: 0,
            quota: None,
            pods: BTreeMap::new(),
            claims: BTreeMap::new(),
            pods_log: Log::default(),
            claims_log: Log::default(),
            quotas_log: Log::default(),
            extra: Vec::new(),
            writes: 0,
        };
        api.set_spec(spec);
        api
    }

    fn uid(&mut self, of: &str) -> String {
        self.uids += 1;
        format!("{of}-{}", self.uids)
    }

    pub(crate) fn wall(&self) -> Time {
        START.after(self.now)
    }

    pub(crate) fn read(value: &Value) -> Quota {
        serde_json::from_value(value.clone()).unwrap()
    }

    fn store(&mut self, mut quota: Value) -> Value {
        self.version += 1;
        quota["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.quotas_log.0.push(Change::Quota(Box::new(Self::read(&quota))));
        self.quota = Some(quota.clone());
        quota
    }

    pub(crate) fn set_spec(&mut self, spec: Value) {
        let mut quota = match &self.quota {
            Some(quota) => quota.clone(),
            None => {
                let uid = self.uid("quota");
                json!({"metadata": {"name": "vgpu", "namespace": TEAM, "uid": uid, "generation": 0,
                    "creationTimestamp": self.wall().text()}})
            }
        };
        quota["spec"] = spec;
        let generation = quota["metadata"]["generation"].as_i64().unwrap() + 1;
        quota["metadata"]["generation"] = json!(generation);
        self.store(quota);
    }

    pub(crate) fn delete_quota(&mut self) {
        if let Some(quota) = self.quota.take() {
            let uid = quota["metadata"]["uid"].as_str().unwrap().to_owned();
            self.quotas_log.0.push(Change::QuotaGone {
                namespace: TEAM.into(),
                uid,
            });
        }
    }

    pub(crate) fn status(&self) -> Status {
        self.quota
            .as_ref()
            .map(|quota| Self::read(quota).status)
            .unwrap_or_default()
    }

    pub(crate) fn status_value(&self) -> Value {
        self.quota
            .as_ref()
            .map(|quota| quota["status"].clone())
            .unwrap_or_default()
    }

    pub(crate) fn set_status(&mut self, status: Value) {
        let mut quota = self.quota.clone().unwrap();
        quota["status"] = status;
        self.store(quota);
    }

    fn claim_value(&self, name: &str) -> Value {
        let claim = &self.claims[name];
        let mut value = json!({"metadata": {"name": name, "namespace": TEAM, "uid": claim.uid},
            "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "vgpu",
                "capacity": {"requests": {"memory": format!("{}Gi", claim.memory)}}}}]}}});
        if claim.allocated {
            let result = json!({"driver": "dra.vgpu", "pool": "n/vgpu", "device": "gpu-0", "shareID": claim.uid,
                "consumedCapacity": {"memory": format!("{}Gi", claim.memory), "cores": "0", "shares": "1"}});
            value["status"] = json!({"allocation": {"devices": {"results": [result]},
                "allocationTimestamp": self.wall().text()}});
        }
        value
    }

    fn tell_claim(&mut self, name: &str) {
        let claim = serde_json::from_value(self.claim_value(name)).unwrap();
        self.claims_log.0.push(Change::Cluster(Cluster::Claim(claim)));
    }

    fn tell_pod(&mut self, name: &str) {
        let pod = &self.pods[name];
        let gates = if pod.gated {
            json!([{"name": "dra.vgpu/quota"}])
        } else {
            json!([])
        };
        let node = if pod.bound { "n" } else { "" };
        let created = Time::from_millis(START.millis() + i64::try_from(pod.number).unwrap() * 1000).text();
        let value = json!({"metadata": {"name": name, "namespace": TEAM, "uid": pod.uid, "creationTimestamp": created},
            "spec": {"schedulingGates": gates, "nodeName": node,
                "resourceClaims": [{"name": "gpu", "resourceClaimName": pod.claim}]}});
        self.pods_log
            .0
            .push(Change::Cluster(Cluster::Pod(serde_json::from_value(value).unwrap())));
    }

    /// A claim that outlives its pods.
    pub(crate) fn shared(&mut self, name: &str, memory: u64) {
        let uid = self.uid("claim");
        self.claims.insert(
            name.into(),
            ClaimState {
                uid,
                memory,
                allocated: false,
                own: false,
            },
        );
        self.tell_claim(name);
    }

    /// A pod with its own claim, or with an existing one.
    pub(crate) fn pod(&mut self, number: u64, claim: Result<&str, u64>, gated: bool) {
        let name = format!("p{number:03}");
        if self.pods.contains_key(&name) {
            return;
        }
        let claim = match claim {
            Ok(shared) => shared.to_owned(),
            Err(memory) => {
                let uid = self.uid("claim");
                let claim = format!("{name}-gpu");
                self.claims.insert(
                    claim.clone(),
                    ClaimState {
                        uid,
                        memory,
                        allocated: false,
                        own: true,
                    },
                );
                self.tell_claim(&claim);
                claim
            }
        };
        let uid = self.uid("pod");
        self.pods.insert(
            name.clone(),
            PodState {
                number,
                uid,
                claim,
                gated,
                bound: false,
            },
        );
        self.tell_pod(&name);
    }

    /// kube-scheduler: allocates the claim of a pod without a gate, and binds it.
    pub(crate) fn bind(&mut self, name: &str) {
        let Some(pod) = self.pods.get_mut(name).filter(|pod| !pod.gated && !pod.bound) else {
            return;
        };
        let claim = pod.claim.clone();
        let Some(known) = self.claims.get_mut(&claim) else {
            return;
        };
        pod.bound = true;
        if !known.allocated {
            known.allocated = true;
            self.tell_claim(&claim);
        }
        self.tell_pod(name);
    }

    /// Ends a pod. If it was the last one, its claim is freed, or deleted if it is its own.
    pub(crate) fn end(&mut self, name: &str) {
        let Some(pod) = self.pods.remove(name) else { return };
        self.pods_log
            .0
            .push(Change::Cluster(Cluster::PodGone { key: key(name) }));
        if self.pods.values().any(|other| other.claim == pod.claim && other.bound) {
            return;
        }
        let Some(claim) = self.claims.get_mut(&pod.claim) else {
            return;
        };
        if claim.own {
            self.delete_claim(&pod.claim);
        } else if claim.allocated {
            claim.allocated = false;
            self.tell_claim(&pod.claim);
        }
    }

    pub(crate) fn delete_claim(&mut self, name: &str) {
        if self.claims.remove(name).is_some() {
            let (key, version) = (key(name), Version::default());
            self.claims_log
                .0
                .push(Change::Cluster(Cluster::ClaimGone { key, version }));
        }
    }

    pub(crate) fn ungate(&mut self, pod: &PodRef, claims: &[(String, String)]) -> Outcome {
        let is_same = |(name, uid): &(String, String)| self.claims.get(name).is_some_and(|claim| claim.uid == *uid);
        if !claims.iter().all(is_same) {
            return Outcome::Again;
        }
        if let Some(known) = self.pods.get_mut(&pod.name).filter(|known| known.uid == pod.uid) {
            known.gated = false;
            self.tell_pod(&pod.name);
        }
        Outcome::Ungated
    }

    pub(crate) fn send(&mut self, write: &Write) -> Outcome {
        match write {
            Write::Ungate { pod, claims, .. } => self.ungate(pod, claims),
            Write::Evict { .. } => panic!("nobody is over budget with pods of low priority here"),
            Write::Label { .. } | Write::Stamp { .. } => unreachable!("no namespace is listed"),
            Write::Read { .. } => match &self.quota {
                Some(quota) => Outcome::Quota(Box::new(Self::read(quota))),
                None => Outcome::NoQuota,
            },
            Write::Status {
                uid, version, status, ..
            } => {
                let Some(quota) = self
                    .quota
                    .clone()
                    .filter(|quota| quota["metadata"]["uid"] == uid.as_str())
                else {
                    return Outcome::Again;
                };
                if quota["metadata"]["resourceVersion"] != version.as_str() {
                    return Outcome::Again;
                }
                let mut quota = quota;
                let status = serde_json::to_value(status).unwrap();
                self.writes += 1;
                if quota["status"] == status {
                    // Like the API server: a write without a change makes no new version.
                    return Outcome::Quota(Box::new(Self::read(&quota)));
                }
                quota["status"] = status;
                Outcome::Quota(Box::new(Self::read(&self.store(quota))))
            }
        }
    }

    /// GiB that run, or may begin to at any moment.
    pub(crate) fn running(&self) -> u64 {
        let may_run = |name: &str, claim: &ClaimState| {
            claim.allocated || self.pods.values().any(|pod| pod.claim == name && !pod.gated)
        };
        self.claims
            .iter()
            .filter(|(name, claim)| may_run(name, claim))
            .map(|(_, claim)| claim.memory)
            .sum()
    }
}

/// One process: its controller, and how far its watches are.
#[derive(Debug)]
pub(crate) struct Replica {
    pub(crate) controller: QuotaController,
    seen: [usize; 3],
    pub(crate) notices: Told,
}

/// Notices as lines. A lasting state is only kept the first time, as in the controller's notices.
#[derive(Debug, Default)]
pub(crate) struct Told {
    pub(crate) lines: Vec<String>,
    states: HashSet<(About, String)>,
}

impl Told {
    pub(crate) fn add(&mut self, notices: Vec<(About, Notice)>) {
        for (subject, notice) in notices {
            let is_new = notice
                .topic()
                .is_none_or(|topic| self.states.insert((subject.clone(), topic)));
            if is_new {
                self.lines
                    .push(format!("{} {}: {notice}", subject.name, notice.reason()));
            }
        }
    }
}

fn class() -> Change {
    let class = json!({"metadata": {"name": "vgpu"},
        "spec": {"selectors": [{"cel": {"expression": "device.driver == \"dra.vgpu\""}}]}});
    Change::Cluster(Cluster::Class(serde_json::from_value(class).unwrap()))
}

fn slice() -> Change {
    let slice = json!({"metadata": {"name": "s"}, "spec": {"driver": "dra.vgpu", "nodeName": "n",
        "pool": {"name": "n/vgpu", "resourceSliceCount": 1}, "devices": [{"name": "gpu-0", "allowMultipleAllocations": true,
            "attributes": {"type": {"string": "gpu"}}, "capacity": {"memory": {"value": "80Gi"}}}]}});
    Change::Cluster(Cluster::Slice {
        slice: serde_json::from_value(slice).unwrap(),
        read: None,
    })
}

/// Each has an epoch of its own.
static TERMS: AtomicUsize = AtomicUsize::new(0);

impl Replica {
    /// A new term: it lists the current state of everything.
    pub(crate) fn new(api: &Api) -> Self {
        Self::with_clock(api, Steady::new(api.now, api.wall()))
    }

    pub(crate) fn with_clock(api: &Api, clock: Steady) -> Self {
        let mut controller = QuotaController::new(format!("term-{}", TERMS.fetch_add(1, Ordering::Relaxed)), clock);
        let now = api.now;
        controller.apply(class(), now);
        controller.apply(slice(), now);
        let classes = vec!["vgpu".to_owned()];
        for end in ends(classes, vec!["s".to_owned()]) {
            controller.apply(end, now);
        }
        for change in &api.extra {
            controller.apply(change.clone(), now);
        }
        controller.apply(
            Change::ResourceQuotas {
                names: vec![(TEAM.into(), "q".into())],
            },
            now,
        );
        // Labels and defaults: `tests/namespace_labels.rs`.
        controller.apply(Change::Namespaces { uids: Vec::new() }, now);
        controller.apply(Change::Defaults { names: Vec::new() }, now);
        let uid = |quota: &Value| quota["metadata"]["uid"].as_str().unwrap().to_owned();
        if let Some(quota) = &api.quota {
            controller.apply(Change::Quota(Box::new(Api::read(quota))), now);
        }
        controller.apply(
            Change::Quotas {
                uids: api.quota.iter().map(uid).collect(),
            },
            now,
        );
        let mut replica = Self {
            controller,
            seen: [0; 3],
            notices: Told::default(),
        };
        // The last event of each object has the same state as a list.
        replica.catch_up(api);
        let keys = |names: Vec<&String>| names.into_iter().map(|name| key(name)).collect();
        let claims = keys(api.claims.keys().collect());
        replica.controller.apply(end_of_claims(claims), now);
        let keys = keys(api.pods.keys().collect());
        replica.controller.apply(Change::Cluster(Cluster::Pods { keys }), now);
        replica
    }

    /// Each watch shows at most this many more events.
    pub(crate) fn see(&mut self, api: &Api, most: [usize; 3]) {
        for (i, log) in [&api.pods_log, &api.claims_log, &api.quotas_log]
            .into_iter()
            .enumerate()
        {
            let until = (self.seen[i] + most[i]).min(log.0.len());
            for change in &log.0[self.seen[i]..until] {
                self.controller.apply(change.clone(), api.now);
            }
            self.seen[i] = until;
        }
    }

    pub(crate) fn catch_up(&mut self, api: &Api) {
        self.see(api, [usize::MAX >> 1; 3]);
    }

    /// Makes a plan. `sent` of its writes are sent, and the replica gets `heard` of the answers.
    pub(crate) fn turn(&mut self, api: &mut Api, sent: usize, heard: usize) -> usize {
        let plan = self.controller.plan(api.now);
        self.notices.add(plan.notices);
        let writes = plan.writes.len();
        for (i, write) in plan.writes.iter().enumerate() {
            let outcome = match i < sent {
                true => api.send(write),
                false => Outcome::Again,
            };
            let outcome = if i < heard { outcome } else { Outcome::Again };
            self.controller.report(&write.task(), outcome, api.now);
        }
        writes
    }

    /// Plans until nothing is left to do.
    pub(crate) fn settle(&mut self, api: &mut Api) {
        for _ in 0..500 {
            self.catch_up(api);
            if self.turn(api, usize::MAX, usize::MAX) == 0 {
                api.now += Duration::from_millis(300);
                self.catch_up(api);
                if self.turn(api, usize::MAX, usize::MAX) == 0 {
                    return;
                }
            }
        }
        panic!("it does not settle");
    }
}
