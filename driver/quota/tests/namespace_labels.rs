//! Labels of namespaces, and quotas from defaults: what the leader writes, and how each trouble ends.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};
use vgpu_planner::{Change as Cluster, Time};
use vgpu_quota::{Change, Now, Outcome, Quota, QuotaController, Steady, Write};

mod support;

use support::{Told, end_of_claims, ends};

/// An API server with namespaces, quotas, defaults and gated pods without claims, and the replica that leads.
struct World {
    now: Now,
    version: u64,
    /// Labels.
    namespaces: BTreeMap<String, BTreeMap<String, String>>,
    quotas: BTreeMap<String, Value>,
    defaults: BTreeMap<String, Value>,
    gated: BTreeMap<String, String>,
    /// The API server's message if it refuses to write quotas from defaults.
    refuses: Option<&'static str>,
    controller: QuotaController,
    notices: Told,
}

fn read<T: serde::de::DeserializeOwned>(value: &Value) -> T {
    serde_json::from_value(value.clone()).unwrap()
}

impl World {
    fn new() -> Self {
        let now = Duration::from_secs(0);
        Self {
            now,
            version: 1,
            namespaces: BTreeMap::new(),
            quotas: BTreeMap::new(),
            defaults: BTreeMap::new(),
            gated: BTreeMap::new(),
            refuses: None,
            controller: QuotaController::new("first", Steady::new(now, Time::from_millis(1_795_309_200_000))),
            notices: Told::default(),
        }
    }

    fn namespace(&mut self, name: &str, labels: &[(&str, &str)]) {
        let labels = labels
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        self.namespaces.insert(name.to_owned(), labels.collect());
        self.tell_namespace(name);
    }

    fn namespace_value(&self, name: &str) -> Value {
        json!({"metadata": {"name": name, "uid": format!("ns-{name}"), "labels": self.namespaces[name]}})
    }

    fn tell_namespace(&mut self, name: &str) {
        let change = Change::Namespace(read(&self.namespace_value(name)));
        self.controller.apply(change, self.now);
    }

    fn store(&mut self, namespace: &str, mut quota: Value) -> Quota {
        self.version += 1;
        quota["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.quotas.insert(namespace.to_owned(), quota.clone());
        self.controller.apply(Change::Quota(Box::new(read(&quota))), self.now);
        read(&quota)
    }

    /// An administrator writes the quota's spec.
    fn quota(&mut self, namespace: &str, spec: Value) {
        let created = json!({"metadata": {"name": "vgpu", "namespace": namespace, "uid": format!("q-{namespace}"),
            "generation": 1, "creationTimestamp": "2026-11-22T01:00:00Z"}});
        let mut quota = self.quotas.get(namespace).cloned().unwrap_or(created);
        quota["spec"] = spec;
        self.store(namespace, quota);
    }

    fn delete_quota(&mut self, namespace: &str) {
        let quota: Quota = read(&self.quotas.remove(namespace).unwrap());
        let (namespace, uid) = (quota.namespace, quota.uid);
        self.controller.apply(Change::QuotaGone { namespace, uid }, self.now);
    }

    fn default(&mut self, name: &str, selector: Value, quota: Value) {
        let default = json!({"metadata": {"name": name, "uid": format!("d-{name}")},
            "spec": {"namespaceSelector": selector, "quota": quota}});
        self.defaults.insert(name.to_owned(), default.clone());
        self.controller.apply(Change::Default(read(&default)), self.now);
    }

    fn delete_default(&mut self, name: &str) {
        self.defaults.remove(name);
        self.controller
            .apply(Change::DefaultGone { name: name.to_owned() }, self.now);
    }

    /// Adds a waiting pod that would be ungated at once, because it has no claim.
    fn waits(&mut self, namespace: &str) {
        self.gated.insert(format!("of-{namespace}"), namespace.to_owned());
        self.tell_pods();
    }

    fn tell_pods(&mut self) {
        for (name, namespace) in &self.gated {
            let pod = json!({"metadata": {"name": name, "namespace": namespace, "uid": name,
                "creationTimestamp": "2026-11-22T01:00:00Z"}, "spec": {"schedulingGates": [{"name": "dra.vgpu/quota"}]}});
            self.controller
                .apply(Change::Cluster(Cluster::Pod(read(&pod))), self.now);
        }
    }

    /// The end of each list.
    fn list(&mut self) {
        let uids = |of: Vec<&str>| of.into_iter().map(str::to_owned).collect::<Vec<_>>();
        for name in self.namespaces.keys().cloned().collect::<Vec<_>>() {
            self.tell_namespace(&name);
        }
        for quota in self.quotas.values() {
            self.controller.apply(Change::Quota(Box::new(read(quota))), self.now);
        }
        for default in self.defaults.values() {
            self.controller.apply(Change::Default(read(default)), self.now);
        }
        self.tell_pods();
        let quotas = self
            .quotas
            .values()
            .map(|quota| quota["metadata"]["uid"].as_str().unwrap());
        let lists = [
            Change::Namespaces {
                uids: self.namespaces.keys().map(|name| format!("ns-{name}")).collect(),
            },
            Change::Quotas {
                uids: uids(quotas.collect()),
            },
            Change::Defaults {
                names: self.defaults.keys().cloned().collect(),
            },
            Change::Cluster(Cluster::Pods {
                keys: self
                    .gated
                    .iter()
                    .map(|(name, namespace)| format!("{namespace}/{name}"))
                    .collect(),
            }),
            end_of_claims(Vec::new()),
            Change::ResourceQuotas { names: Vec::new() },
        ];
        for list in lists.into_iter().chain(ends(Vec::new(), Vec::new())) {
            self.controller.apply(list, self.now);
        }
    }

    /// The leader crashes, and another one lists everything.
    fn crash(&mut self) {
        self.controller = QuotaController::new(format!("term-{}", self.version), *self.controller.clock());
        self.list();
    }

    fn send(&mut self, write: &Write) -> Outcome {
        match write {
            Write::Evict { .. } => panic!("nobody waits for a GPU here"),
            Write::Label {
                namespace, uid, state, ..
            } => {
                assert_eq!(*uid, format!("ns-{namespace}"));
                let Some(labels) = self.namespaces.get_mut(namespace) else {
                    return Outcome::Labelled;
                };
                match state {
                    Some(state) => labels.insert("dra.vgpu/quota".to_owned(), state.text().to_owned()),
                    None => labels.remove("dra.vgpu/quota"),
                };
                self.tell_namespace(namespace);
                Outcome::Labelled
            }
            Write::Stamp {
                namespace,
                default,
                spec,
                over,
            } => {
                if let Some(why) = self.refuses {
                    return Outcome::Refused(why.to_owned());
                }
                let known = self.quotas.get(namespace).map(read::<Quota>);
                if known.map(|quota| (quota.uid, quota.version)) != *over {
                    return Outcome::Again;
                }
                let quota = json!({"metadata": {"name": "vgpu", "namespace": namespace, "uid": format!("q-{namespace}"),
                    "generation": 1, "creationTimestamp": "2026-11-22T01:00:00Z",
                    "labels": {"dra.vgpu/default": default}, "annotations": {"dra.vgpu/default-spec": spec.to_string()}},
                    "spec": spec});
                Outcome::Quota(Box::new(self.store(namespace, quota)))
            }
            Write::Status { namespace, status, .. } => {
                let mut quota = self.quotas[namespace].clone();
                quota["status"] = serde_json::to_value(status).unwrap();
                Outcome::Quota(Box::new(self.store(namespace, quota)))
            }
            Write::Read { namespace } => match self.quotas.get(namespace) {
                Some(quota) => Outcome::Quota(Box::new(read(quota))),
                None => Outcome::NoQuota,
            },
            Write::Ungate { pod, .. } => {
                self.gated.remove(&pod.name);
                Outcome::Ungated
            }
        }
    }

    /// Makes one plan, of which at most this many writes succeed.
    fn turn(&mut self, most: usize) -> Vec<Write> {
        let plan = self.controller.plan(self.now);
        self.notices.add(plan.notices);
        for (i, write) in plan.writes.iter().enumerate() {
            let outcome = if i < most { self.send(write) } else { Outcome::Again };
            self.controller.report(&write.task(), outcome, self.now);
        }
        plan.writes
    }

    /// Plans until nothing is left to do for a minute.
    fn settle(&mut self) {
        let mut quiet = 0;
        for _ in 0..1000 {
            let writes = self.turn(usize::MAX);
            let is_quiet = writes.is_empty() || self.refuses.is_some();
            quiet = if is_quiet { quiet + 1 } else { 0 };
            if quiet == 60 {
                return;
            }
            self.now += Duration::from_secs(1);
        }
        panic!("it does not settle");
    }

    fn label(&self, namespace: &str) -> Option<&str> {
        self.namespaces[namespace].get("dra.vgpu/quota").map(String::as_str)
    }

    fn shares(&self, namespace: &str) -> Option<i64> {
        self.quotas.get(namespace)?["spec"]["hard"]["shares"].as_i64()
    }
}

fn shares(number: u64) -> Value {
    json!({"hard": {"shares": number}})
}

#[test]
fn the_label_says_what_the_quota_is_at() {
    let mut world = World::new();
    for name in ["plain", "yield", "hold", "refused", "none"] {
        world.namespace(name, &[]);
    }
    world.quota("plain", shares(1));
    world.quota("yield", json!({"budget": {"gpuHours": 0, "every": "1d"}}));
    world.quota(
        "hold",
        json!({"budget": {"gpuHours": 0, "every": "1d", "whenSpent": "Hold"}}),
    );
    world.quota("refused", json!({"hrad": {}}));
    world.turn(usize::MAX);
    assert_eq!(
        world.label("plain"),
        None,
        "nothing is decided before everything is listed"
    );
    world.list();
    world.settle();
    let labels = ["plain", "yield", "hold", "refused", "none"].map(|name| world.label(name));
    assert_eq!(
        labels,
        [Some("InBudget"), Some("OverBudget"), Some("Held"), Some("Held"), None]
    );
    world.quota("yield", json!({"budget": {"gpuHours": 1, "every": "1d"}}));
    world.delete_quota("plain");
    world.settle();
    assert_eq!((world.label("yield"), world.label("plain")), (Some("InBudget"), None));
}

#[test]
fn a_label_that_somebody_removed_or_changed_comes_back() {
    let mut world = World::new();
    world.namespace("team", &[]);
    world.quota("team", shares(1));
    world.list();
    world.settle();
    for labels in [
        &[][..],
        &[("dra.vgpu/quota", "OverBudget")],
        &[("dra.vgpu/quota", "nonsense")],
    ] {
        world.namespace("team", labels);
        world.settle();
        assert_eq!(world.label("team"), Some("InBudget"));
    }
    // A namespace without a quota that is made with the label, or kept it while nobody led.
    world.namespace("other", &[("dra.vgpu/quota", "InBudget")]);
    world.waits("other");
    world.settle();
    assert_eq!(world.label("other"), None);
    assert!(world.gated.is_empty(), "its gate opens");
    // The CRD is deleted, and all quotas with it.
    world.waits("team");
    world.quotas.clear();
    world.controller.apply(Change::Quotas { uids: Vec::new() }, world.now);
    world.settle();
    assert_eq!((world.label("team"), world.gated.len()), (None, 0));
}

#[test]
fn a_crash_between_label_and_status_loses_neither() {
    // Label and status are the two writes of a new quota: none, the first or both land before the crash.
    for landed in 0..3 {
        let mut world = World::new();
        world.namespace("team", &[]);
        world.quota("team", shares(1));
        world.list();
        assert_eq!(world.turn(landed).len(), 2);
        world.crash();
        world.settle();
        assert_eq!(world.label("team"), Some("InBudget"));
        assert_eq!(world.quotas["team"]["status"]["observedGeneration"], 1, "{landed}");
    }
}

#[test]
fn a_default_makes_quotas_where_there_is_none() {
    let mut world = World::new();
    world.namespace("own", &[("team", "a")]);
    world.quota("own", shares(7));
    world.namespace("empty", &[("team", "a")]);
    world.namespace("other", &[]);
    world.default("teams", json!({"matchLabels": {"team": "a"}}), shares(1));
    world.list();
    world.settle();
    let all = |world: &World| ["own", "empty", "other"].map(|name| world.shares(name));
    assert_eq!(all(&world), [Some(7), Some(1), None]);
    assert_eq!(world.quotas["empty"]["metadata"]["labels"]["dra.vgpu/default"], "teams");
    assert_eq!(world.label("empty"), Some("InBudget"));
    // A namespace that is made later, and one that comes to match.
    world.namespace("late", &[("team", "a")]);
    world.namespace("other", &[("team", "a")]);
    world.settle();
    assert_eq!((world.shares("late"), world.shares("other")), (Some(1), Some(1)));
    // The default changes: unchanged quotas from it follow, an administrator's quota does not.
    world.quota("late", shares(9));
    world.default("teams", json!({"matchLabels": {"team": "a"}}), shares(2));
    world.settle();
    assert_eq!(all(&world), [Some(7), Some(2), Some(2)]);
    assert_eq!(world.shares("late"), Some(9));
    // The default no longer matches, or is deleted: no namespace loses a ceiling.
    world.namespace("other", &[("dra.vgpu/quota", "InBudget")]);
    world.delete_default("teams");
    world.settle();
    world.crash();
    world.settle();
    assert_eq!(all(&world), [Some(7), Some(2), Some(2)]);
    // Another default is created.
    world.default("all", json!({}), shares(3));
    world.settle();
    assert_eq!(all(&world), [Some(7), Some(3), Some(3)]);
    assert_eq!(world.shares("late"), Some(9));
}

#[test]
fn of_two_defaults_the_first_by_name_applies() {
    let mut world = World::new();
    world.namespace("team", &[]);
    world.default("b", json!({}), shares(2));
    world.default("a", json!({}), shares(1));
    world.list();
    world.settle();
    assert_eq!(world.shares("team"), Some(1));
    let told = "b QuotaDefaultConflict: namespace team matches VgpuQuotaDefault a too, which is the first by name";
    let count = world.notices.lines.iter().filter(|said| said.starts_with(told)).count();
    assert_eq!(count, 1, "{:?}", world.notices);
    world.delete_default("a");
    world.settle();
    assert_eq!(world.shares("team"), Some(2));
}

#[test]
fn a_default_that_is_refused_makes_nothing() {
    let mut world = World::new();
    world.namespace("team", &[]);
    world.default("bad", json!({}), json!({"hard": {"memory": "80GB"}}));
    world.list();
    world.settle();
    assert_eq!((world.shares("team"), world.label("team")), (None, None));
    let told = &world.notices.lines[0];
    assert!(
        told.starts_with("bad QuotaRefused: spec.quota.hard.memory: \"80GB\""),
        "{told}"
    );
}

#[test]
fn gates_wait_for_the_quota_of_a_default() {
    let mut world = World::new();
    world.namespace("team", &[]);
    world.default("all", json!({}), shares(0));
    world.list();
    world.settle();
    // The quota is created again when it is deleted. Until then no gate opens, even if the API server refuses the
    // creation.
    world.refuses = Some("because");
    world.delete_quota("team");
    world.waits("team");
    world.settle();
    assert_eq!(world.gated.len(), 1);
    let told = world.notices.lines.last().unwrap();
    assert!(
        told.starts_with("all QuotaWriteRefused: namespace team: the API server refuses its VgpuQuota vgpu"),
        "{told}"
    );
    world.refuses = None;
    world.settle();
    assert_eq!(world.shares("team"), Some(0));
    assert!(world.gated.is_empty(), "it has no claim, so it fits");
}

/// Crashes after any number of writes, in any order of troubles, end the same.
#[test]
fn no_crash_leaves_a_label_or_a_stamp_out() {
    for landed in 0..8 {
        for crash_every in 1..4 {
            let mut world = World::new();
            for name in ["a", "b", "c"] {
                world.namespace(name, &[]);
            }
            world.quota("b", shares(5));
            world.default("all", json!({}), shares(1));
            world.list();
            let mut left = landed;
            for turn in 0..12 {
                let sent = world.turn(left).len();
                left = left.saturating_sub(sent);
                world.now += Duration::from_secs(1);
                if turn % crash_every == 0 {
                    world.crash();
                }
            }
            world.crash();
            world.settle();
            let end = ["a", "b", "c"].map(|name| (world.shares(name), world.label(name)));
            let label = Some("InBudget");
            assert_eq!(
                end,
                [(Some(1), label), (Some(5), label), (Some(1), label)],
                "{landed} {crash_every}"
            );
        }
    }
}
