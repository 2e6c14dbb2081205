//! Reads what a bundle contains from the cluster. The number of objects of each kind is limited, and so are the lines and the
//! bytes of each log.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::names::Names;
use crate::cluster::{self, Cluster, Kind, List, ReadError};
use crate::doctor::{Answer, DRIVER, is_labelled, key, list, text};

/// The most objects of a kind. There may be 20,000 pods.
const MOST: u32 = 2000;
/// Limits of the logs: pods of the chart, lines and bytes of each. A byte limit cuts off the newest bytes, which are
/// the last ones, so few lines are asked for.
const PODS: usize = 40;
const LOG: &str = "tailLines=300&limitBytes=61440";
/// Reasons of events about claims that other components create.
const OTHERS: [&str; 3] = [
    "FailedPrepareDynamicResources",
    "FailedScheduling",
    "DeviceTaintManagerEviction",
];

pub(super) struct Collected {
    /// The objects, by the plural of their kind.
    pub(super) kinds: BTreeMap<&'static str, Vec<Value>>,
    pub(super) names: Names,
    /// Doctor's answer.
    pub(super) doctor: String,
    /// Logs and pages, by the name of their file.
    pub(super) texts: BTreeMap<String, String>,
    /// One line for each list: read, cut off, or not read.
    pub(super) notes: Vec<String>,
}

impl Collected {
    pub(super) fn read(cluster: &Cluster, keeps_names: bool) -> Result<Self, ReadError> {
        let answer = Answer::read(cluster)?;
        let seen = &answer.seen;
        // The namespaces that have a DaemonSet of a release. The chart's label alone shows nothing: anybody can set it.
        let releases = seen.daemon_sets.iter().filter(|_| seen.knows_releases);
        let own: BTreeSet<&str> = releases.map(|one| text(one, "/metadata/namespace")).collect();
        let nodes = seen.nodes.iter().chain(seen.vgpu_nodes.iter());
        let nodes = nodes.map(|node| text(node, "/metadata/name"));
        let mut collected = Self {
            kinds: BTreeMap::new(),
            names: match keeps_names {
                true => Names::kept(),
                false => Names::new(&own, nodes),
            },
            doctor: answer.text(),
            texts: seen
                .not_ready
                .iter()
                .filter(|(pod, _)| {
                    pod.split_once('/')
                        .is_some_and(|(namespace, _)| own.contains(namespace))
                })
                .map(|(pod, page)| (file("readiness", pod, ""), page.clone()))
                .collect(),
            notes: seen.unread.iter().map(|line| format!("not read: {line}")).collect(),
        };
        let is_own = |object: &Value| own.contains(text(object, "/metadata/namespace"));
        let is_ours = |pod: &Value| is_own(pod) && is_labelled(pod);
        let has_claims = |pod: &Value| !list(pod, "/spec/resourceClaims").is_empty() || is_ours(pod);
        let all = |_: &Value| true;
        collected.names.learn("namespaces", seen.namespaces.iter());
        collected.add(cluster::NODES, seen.nodes.iter(), all);
        collected.add(cluster::CLASSES, seen.classes.iter(), all);
        collected.add(cluster::SLICES, seen.slices.iter(), all);
        collected.add(cluster::CLAIMS, seen.claims.iter(), all);
        collected.add(cluster::PODS, seen.pods.iter(), has_claims);
        collected.add(cluster::LEASES, seen.leases.iter(), is_own);
        collected.add(cluster::VGPU_NODES, seen.vgpu_nodes.iter(), all);
        collected.add(cluster::DAEMON_SETS, seen.daemon_sets.iter(), is_own);
        collected.add(cluster::DEPLOYMENTS, seen.deployments.iter(), is_own);
        collected.add(cluster::POLICIES, seen.policies.iter(), all);
        collected.add(cluster::BINDINGS, seen.bindings.iter(), all);
        collected.read_more(cluster)?;
        let pods: Vec<&Value> = seen.pods.iter().filter(|pod| is_ours(pod)).collect();
        collected.read_logs(cluster, &pods);
        Ok(collected)
    }

    /// The kinds that doctor does not read.
    fn read_more(&mut self, cluster: &Cluster) -> Result<(), ReadError> {
        let kinds = [
            cluster::TEMPLATES,
            cluster::QUOTAS,
            cluster::USAGES,
            cluster::TAINT_RULES,
            cluster::EVENTS,
        ];
        let answers = cluster.read(kinds.map(|kind| List::everywhere(kind).at_most(MOST)));
        let concerns = |event: &Value| {
            text(event, "/reportingController").starts_with(DRIVER) || OTHERS.contains(&text(event, "/reason"))
        };
        for (kind, answer) in kinds.into_iter().zip(answers) {
            let objects = match answer {
                Ok(objects) => objects,
                Err(error) if error.is_of_one_list() || matches!(error, ReadError::Refused { .. }) => {
                    self.notes.push(format!("not read: {error}"));
                    continue;
                }
                Err(error) => return Err(error),
            };
            if !text(&objects, "/metadata/continue").is_empty() {
                self.notes
                    .push(format!("{}: cut off, the cluster has more than {MOST}", kind.plural));
            }
            let is_kept = |object: &Value| kind != cluster::EVENTS || concerns(object);
            let kept = list(&objects, "/items").iter().filter(|object| is_kept(object));
            self.add(kind, kept, |_| true);
        }
        Ok(())
    }

    fn add<'v>(
        &mut self,
        kind: Kind,
        objects: impl Iterator<Item = &'v Value> + Clone,
        is_kept: impl Fn(&Value) -> bool,
    ) {
        // Texts may name objects that are left out.
        self.names.learn(kind.plural, objects.clone());
        let mut kept: Vec<Value> = objects.filter(|object| is_kept(object)).cloned().collect();
        let (all, most) = (kept.len(), usize::try_from(MOST).unwrap_or(usize::MAX));
        kept.truncate(most);
        let cut = if all > most {
            format!("; cut off, there are {all}")
        } else {
            String::new()
        };
        self.notes.push(format!("{}: {} objects{cut}", kind.plural, kept.len()));
        self.kinds.insert(kind.plural, kept);
    }

    /// The last lines of the chart's pods, and of containers that ended before.
    fn read_logs(&mut self, cluster: &Cluster, pods: &[&Value]) {
        if pods.len() > PODS {
            self.notes.push(format!("logs: of {PODS} of {} pods", pods.len()));
        }
        let mut wanted = Vec::new();
        for pod in pods.iter().take(PODS) {
            let (namespace, name) = (text(pod, "/metadata/namespace"), text(pod, "/metadata/name"));
            let path = format!("/api/v1/namespaces/{namespace}/pods/{name}/log?{LOG}");
            if list(pod, "/status/containerStatuses")
                .iter()
                .any(|one| one["restartCount"] != 0)
            {
                wanted.push((file("logs", &key(pod), ".previous"), format!("{path}&previous=true")));
            }
            wanted.push((file("logs", &key(pod), ""), path));
        }
        let (names, paths): (Vec<String>, Vec<String>) = wanted.into_iter().unzip();
        for (name, page) in names.into_iter().zip(cluster.pages(&paths)) {
            match page {
                Ok((200, log)) => drop(self.texts.insert(name, log)),
                Ok((code, said)) => self.notes.push(format!("not read: {name}: {code}: {}", said.trim())),
                Err(error) => self.notes.push(format!("not read: {name}: {error}")),
            }
        }
    }
}

/// `pod`: `namespace/name`.
fn file(folder: &str, pod: &str, more: &str) -> String {
    format!("{folder}/{}{more}.txt", pod.replace('/', "-"))
}
