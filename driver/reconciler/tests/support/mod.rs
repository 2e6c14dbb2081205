//! A small API server: it stores templates and pods, and reports events to a reconciler.

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::{ResourceClaimTemplate, ResourceSlice};
use serde_json::{Value, json};
use vgpu_api::PodRef;
use vgpu_dialects::{Dialect, Memory, Record, Request, Settings as Dialects, translate};
use vgpu_reconciler::{
    Change, Key, LABEL, Notice, Outcome, Plan, Reconciler, Settings, Template, TranslatedPod, Write,
};

pub(crate) fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

pub(crate) fn key(name: &str) -> Key {
    Key {
        namespace: "team".to_owned(),
        name: name.to_owned(),
    }
}

/// A pod of HAMi's, as the webhook leaves it.
pub(crate) fn hami(name: &str, limits: Value) -> Pod {
    let pod = json!({
        "metadata": {"name": name, "namespace": "team", "uid": format!("uid-{name}")},
        "spec": {"containers": [{"name": "main", "image": "cuda", "resources": {"limits": limits}}]},
    });
    let pod: Pod = serde_json::from_value(pod).expect("a pod");
    let translation = translate(&pod, &Dialects::default())
        .expect("not refused")
        .expect("translated");
    translation.pod
}

/// Half of a GPU's memory: the template depends on the GPUs.
pub(crate) fn half(name: &str) -> Pod {
    hami(
        name,
        json!({"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "50"}),
    )
}

/// 4 GiB: the template does not depend on the GPUs.
pub(crate) fn fixed(name: &str) -> Pod {
    hami(name, json!({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "4096"}))
}

/// The name of the pod's only template.
pub(crate) fn template_of(pod: &Pod) -> String {
    let claims = pod
        .spec
        .as_ref()
        .expect("a spec")
        .resource_claims
        .as_ref()
        .expect("claims");
    claims[0].resource_claim_template_name.clone().expect("a template")
}

/// A pod whose annotation and spec no webhook wrote.
pub(crate) fn forged(name: &str, requests: &[Request], named: &[String]) -> Pod {
    let record = Record {
        requests: requests
            .iter()
            .map(|request| (request.name(), request.clone()))
            .collect(),
        ..Record::default()
    };
    let claims: Vec<Value> = named
        .iter()
        .enumerate()
        .map(|(at, name)| json!({"name": format!("c{at}"), "resourceClaimTemplateName": name}))
        .collect();
    serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": "team", "uid": format!("uid-{name}"),
            "annotations": {"dra.vgpu/translated": record.text()}},
        "spec": {"containers": [], "resourceClaims": claims},
    }))
    .expect("a pod")
}

pub(crate) fn request(class: &str, mebibytes: u64) -> Request {
    Request {
        class: class.to_owned(),
        ..Request::fraction(1, Memory::Bytes(mebibytes << 20), Dialect::Hami)
    }
}

/// A node's slice with GPUs of these many GiB.
pub(crate) fn slice(node: &str, gibibytes: &[u64]) -> ResourceSlice {
    let devices = gibibytes.iter().enumerate().map(|(at, memory)| {
        json!({"name": format!("gpu-{at}"), "allowMultipleAllocations": true,
            "attributes": {"type": {"string": "gpu"}, "uuid": {"string": format!("GPU-{node}-{at}")},
                "productName": {"string": "NVIDIA H100"}, "index": {"int": at}},
            "capacity": {"memory": {"value": format!("{memory}Gi")}, "cores": {"value": "100"}}})
    });
    let monitor = json!({"name": "gpu-0-monitor", "attributes": {"type": {"string": "monitor"}}});
    // A fixed slot, of which no part can be requested.
    let slot = json!({"name": "slot-0", "attributes": {"type": {"string": "slot"}, "uuid": {"string": "GPU-slot"},
        "index": {"int": 0}}, "capacity": {"memory": {"value": "10Gi"}}});
    let devices: Vec<Value> = devices.chain([monitor, slot]).collect();
    serde_json::from_value(json!({
        "metadata": {"name": format!("{node}-slice")},
        "spec": {"driver": "dra.vgpu", "nodeName": node, "devices": devices,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1}},
    }))
    .expect("a slice")
}

/// The API server.
#[derive(Debug, Default)]
pub(crate) struct Api {
    pub(crate) pods: BTreeMap<String, Pod>,
    pub(crate) templates: BTreeMap<Key, ResourceClaimTemplate>,
    pub(crate) slices: BTreeMap<String, ResourceSlice>,
    pub(crate) namespaces: Vec<String>,
    /// Templates whose writes are refused from now on, by name.
    pub(crate) refuses: BTreeMap<String, String>,
    /// What an admission webhook does to each template that is created.
    pub(crate) mutate: Option<fn(&mut ResourceClaimTemplate)>,
    versions: u64,
    /// How many templates were created and deleted by a reconciler.
    pub(crate) created: usize,
    pub(crate) deleted: usize,
    /// Events that the watches will show.
    pub(crate) events: VecDeque<Change>,
}

impl Api {
    pub(crate) fn with_gpus(gibibytes: &[u64]) -> Self {
        let mut api = Self {
            namespaces: vec!["team".to_owned()],
            ..Self::default()
        };
        api.set_slice(slice("n1", gibibytes));
        api.events.clear();
        api
    }

    pub(crate) fn set_slice(&mut self, slice: ResourceSlice) {
        self.events.push_back(Change::Slice(Box::new(slice.clone())));
        self.slices.insert(slice.metadata.name.clone().expect("a name"), slice);
    }

    pub(crate) fn remove_slice(&mut self, node: &str) {
        let name = format!("{node}-slice");
        self.slices.remove(&name);
        self.events.push_back(Change::SliceGone { name });
    }

    pub(crate) fn set_pod(&mut self, pod: Pod) {
        let key = format!("team/{}", pod.metadata.name.clone().expect("a name"));
        self.events.push_back(shown(&key, &pod));
        self.pods.insert(key, pod);
    }

    pub(crate) fn remove_pod(&mut self, name: &str) {
        let key = format!("team/{name}");
        self.pods.remove(&key);
        self.events.push_back(Change::PodGone { key });
    }

    pub(crate) fn put(&mut self, mut template: ResourceClaimTemplate) -> Result<Template, Outcome> {
        let meta = &mut template.metadata;
        let key = key(meta.name.as_deref().expect("a name"));
        if let Some(why) = self.refuses.get(&key.name) {
            return Err(Outcome::Refused(why.clone()));
        }
        if self.templates.contains_key(&key) {
            return Err(Outcome::Exists);
        }
        self.versions += 1;
        meta.namespace = Some("team".to_owned());
        meta.uid = Some(format!("template-{}", self.versions));
        meta.resource_version = Some(self.versions.to_string());
        if let Some(mutate) = self.mutate {
            mutate(&mut template);
        }
        self.templates.insert(key, template.clone());
        Ok(self.show(&template))
    }

    fn show(&mut self, template: &ResourceClaimTemplate) -> Template {
        let Some((key, template)) = Template::of(&template.metadata) else {
            return Template::default();
        };
        self.events.push_back(Change::Template {
            key,
            template: template.clone(),
        });
        template
    }

    /// Returns false if the template does not exist in that version.
    pub(crate) fn delete(&mut self, key: &Key, uid: Option<&str>) -> bool {
        let Some(template) = self.templates.get(key) else {
            return false;
        };
        let own = template.metadata.uid.clone().unwrap_or_default();
        if uid.is_some_and(|uid| uid != own) {
            return false;
        }
        if template.metadata.finalizers.is_some() {
            let template = self.templates.get_mut(key).expect("it");
            let time = serde_json::from_value(json!("2026-11-23T00:00:00Z")).expect("a time");
            template.metadata.deletion_timestamp = Some(time);
            let template = template.clone();
            self.show(&template);
            return true;
        }
        let is_ours = template
            .metadata
            .labels
            .as_ref()
            .is_some_and(|labels| labels.contains_key(LABEL));
        self.templates.remove(key);
        if is_ours {
            self.events.push_back(Change::TemplateGone {
                key: key.clone(),
                uid: own,
            });
        }
        true
    }

    /// All objects, as the lists of a new watch show them.
    pub(crate) fn list(&self) -> Vec<Change> {
        let pods = self.pods.iter().map(|(key, pod)| shown(key, pod));
        let templates = || {
            self.templates
                .values()
                .filter_map(|template| Template::of(&template.metadata))
        };
        let namespaces = self
            .namespaces
            .iter()
            .map(|name| Change::Namespace { name: name.clone() });
        pods.chain([Change::Pods {
            keys: self.pods.keys().cloned().collect(),
        }])
        .chain(templates().map(|(key, template)| Change::Template { key, template }))
        .chain([Change::Templates {
            keys: templates().map(|(key, _)| key).collect(),
        }])
        .chain(self.slices.values().cloned().map(Box::new).map(Change::Slice))
        .chain([Change::Slices {
            names: self.slices.keys().cloned().collect(),
        }])
        .chain(namespaces)
        .chain([Change::Namespaces {
            names: self.namespaces.clone(),
        }])
        .collect()
    }

    /// Performs a write as the API server would.
    pub(crate) fn perform(&mut self, write: &Write) -> Outcome {
        match write {
            Write::Create { template, .. } => match self.put((**template).clone()) {
                Ok(template) => {
                    self.created += 1;
                    Outcome::Created(template)
                }
                Err(outcome) => outcome,
            },
            Write::Delete { key, uid, .. } => match self.delete(key, Some(uid)) {
                true => {
                    self.deleted += 1;
                    Outcome::Deleted
                }
                false => Outcome::Again,
            },
            Write::GiveBack(_) => Outcome::Again,
        }
    }
}

pub(crate) fn shown(key: &str, pod: &Pod) -> Change {
    Change::Pod {
        key: key.to_owned(),
        pod: TranslatedPod::of(pod),
    }
}

/// A reconciler with its watches.
pub(crate) struct Replica {
    pub(crate) reconciler: Reconciler,
    pub(crate) now: Duration,
    pub(crate) told: Vec<(PodRef, Notice)>,
}

impl Replica {
    pub(crate) fn leading(api: &Api) -> Self {
        Self::of(api, Settings::default(), true)
    }

    pub(crate) fn of(api: &Api, settings: Settings, leads: bool) -> Self {
        let mut replica = Self {
            reconciler: Reconciler::new(settings),
            now: Duration::ZERO,
            told: Vec::new(),
        };
        for change in api.list() {
            replica.reconciler.apply(change, replica.now);
        }
        replica.reconciler.apply(Change::Leads(leads), replica.now);
        replica
    }

    /// Makes a plan and removes its notices. The first notice about each state is stored, as in the controller.
    pub(crate) fn plan(&mut self) -> Plan {
        let mut plan = self.reconciler.plan(self.now);
        for (pod, notice) in plan.notices.drain(..) {
            let is_same = |(known, said): &(PodRef, Notice)| {
                *known == pod && (said.reason(), said.topic()) == (notice.reason(), notice.topic())
            };
            if !self.told.iter().any(is_same) {
                self.told.push((pod, notice));
            }
        }
        plan
    }

    /// Plans, performs and reports outcomes, until nothing is left to do now. Returns the writes.
    pub(crate) fn settle(&mut self, api: &mut Api) -> Vec<Write> {
        let mut written = Vec::new();
        for _ in 0..100 {
            while let Some(change) = api.events.pop_front() {
                self.reconciler.apply(change, self.now);
            }
            let plan = self.plan();
            if plan.writes.is_empty() && api.events.is_empty() {
                return written;
            }
            for write in plan.writes {
                let outcome = api.perform(&write);
                self.reconciler.report(&write.task(), outcome, self.now);
                written.push(write);
            }
        }
        panic!("it does not come to rest: {written:#?}");
    }

    pub(crate) fn wait(&mut self, api: &mut Api, time: Duration) -> Vec<Write> {
        self.now += time;
        self.settle(api)
    }

    pub(crate) fn told(&self) -> Vec<(&str, &str)> {
        self.told
            .iter()
            .map(|(pod, notice)| (pod.name.as_str(), notice.reason()))
            .collect()
    }
}
