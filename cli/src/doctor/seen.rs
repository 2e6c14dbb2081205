//! The objects that `vgpu doctor` checks, and those that it may not read.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;

use crate::cluster::{self, Cluster, List, ReadError};

pub(crate) const DRIVER: &str = "dra.vgpu";
/// The label that the chart gives to all of its objects.
const NAME_LABEL: &str = "app.kubernetes.io/name";
const NAME: &str = "dra-driver-vgpu";
pub(super) const OURS: &str = "app.kubernetes.io/name=dra-driver-vgpu";

/// A list of objects. `Unread` differs from an empty list: nothing is known about its objects.
#[derive(Debug, Default)]
pub(crate) enum Objects {
    #[default]
    Unread,
    Read(Vec<Value>),
}

impl Objects {
    pub(super) fn known(&self) -> Option<&[Value]> {
        match self {
            Self::Unread => None,
            Self::Read(objects) => Some(objects),
        }
    }

    /// The objects; none if they may not be read.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Value> + Clone {
        self.known().unwrap_or_default().iter()
    }
}

#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) nodes: Objects,
    pub(crate) pods: Objects,
    pub(crate) classes: Objects,
    pub(crate) slices: Objects,
    pub(crate) namespaces: Objects,
    pub(crate) leases: Objects,
    pub(crate) claims: Objects,
    pub(crate) vgpu_nodes: Objects,
    /// This field and the following ones have objects with the chart's label.
    pub(crate) daemon_sets: Objects,
    pub(crate) deployments: Objects,
    pub(crate) policies: Objects,
    pub(crate) bindings: Objects,
    /// False: objects with the chart's label may be somebody else's.
    pub(crate) knows_releases: bool,
    /// Rights that ServiceAccounts of the chart need and do not have: `namespace/name` and the right.
    pub(super) denied: Vec<(String, String)>,
    /// The API server's minor version.
    pub(super) minor: Option<u32>,
    /// The page `/readyz` of each plugin that is not ready, by `namespace/name` of the pod.
    pub(crate) not_ready: BTreeMap<String, String>,
    /// Seconds since the epoch.
    pub(super) now: i64,
    /// Reading errors, each with the list or page that was therefore not checked.
    pub(crate) unread: Vec<String>,
}

impl Seen {
    pub(super) fn read(cluster: &Cluster) -> Result<Self, ReadError> {
        let all = List::everywhere;
        let ours = |kind| List::labelled(kind, OURS);
        let [
            nodes,
            pods,
            classes,
            slices,
            namespaces,
            leases,
            claims,
            vgpu_nodes,
            daemon_sets,
            deployments,
            policies,
            bindings,
            role_bindings,
        ] = cluster.read([
            all(cluster::NODES),
            all(cluster::PODS),
            all(cluster::CLASSES),
            all(cluster::SLICES),
            all(cluster::NAMESPACES),
            all(cluster::LEASES),
            all(cluster::CLAIMS),
            all(cluster::VGPU_NODES),
            ours(cluster::DAEMON_SETS),
            ours(cluster::DEPLOYMENTS),
            ours(cluster::POLICIES),
            ours(cluster::BINDINGS),
            ours(cluster::ROLE_BINDINGS),
        ]);
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut seen = Self {
            now: cluster
                .clock()
                .unwrap_or_else(|| i64::try_from(since.as_secs()).unwrap_or(i64::MAX)),
            ..Self::default()
        };
        seen.nodes = seen.take(nodes)?;
        seen.pods = seen.take(pods)?;
        seen.classes = seen.take(classes)?;
        seen.slices = seen.take(slices)?;
        seen.namespaces = seen.take(namespaces)?;
        seen.leases = seen.take(leases)?;
        seen.claims = seen.take(claims)?;
        seen.vgpu_nodes = seen.take(vgpu_nodes)?;
        seen.daemon_sets = seen.take(daemon_sets)?;
        seen.deployments = seen.take(deployments)?;
        seen.policies = seen.take(policies)?;
        seen.bindings = seen.take(bindings)?;
        let role_bindings = seen.take(role_bindings)?;
        seen.keep_releases(&role_bindings);
        seen.read_version(cluster);
        seen.read_readiness(cluster);
        Ok(seen)
    }

    fn take(&mut self, answer: Result<Value, ReadError>) -> Result<Objects, ReadError> {
        match answer {
            Ok(mut list) => match list["items"].take() {
                Value::Array(items) => Ok(Objects::Read(items)),
                _ => Ok(Objects::Read(Vec::new())),
            },
            Err(error) if error.is_of_one_list() || matches!(error, ReadError::Refused { .. }) => {
                self.unread.push(error.to_string());
                Ok(Objects::Unread)
            }
            Err(error) => Err(error),
        }
    }

    /// Removes objects with the chart's labels in namespaces where no ServiceAccount has the plugin's role, because
    /// anybody can set these labels on their own objects. Only the plugin's role is checked: the chart's other bindings
    /// may name accounts of tenants, who may read classes.
    pub(super) fn keep_releases(&mut self, role_bindings: &Objects) {
        let Some(bindings) = role_bindings.known() else {
            return;
        };
        self.knows_releases = true;
        // The role and the account have the same name.
        let is_plugins = |role: &str, account: &Value| role.ends_with("-plugin") && account["name"] == role;
        let accounts = bindings.iter().flat_map(|binding| {
            let role = text(binding, "/roleRef/name");
            let subjects = list(binding, "/subjects").iter();
            subjects.filter(move |subject| subject["kind"] == "ServiceAccount" && is_plugins(role, subject))
        });
        let namespaces: BTreeSet<&str> = accounts.map(|account| text(account, "/namespace")).collect();
        let is_kept = |object: &Value| !is_labelled(object) || namespaces.contains(text(object, "/metadata/namespace"));
        for objects in [&mut self.daemon_sets, &mut self.deployments, &mut self.pods] {
            if let Objects::Read(objects) = objects {
                objects.retain(is_kept);
            }
        }
    }

    fn read_version(&mut self, cluster: &Cluster) {
        match cluster.pages(&["/version".to_owned()]).pop() {
            Some(Ok((200, page))) => {
                let version: Value = serde_json::from_str(&page).unwrap_or_default();
                // Some clouds write `34+`.
                let minor = version["minor"].as_str().unwrap_or_default();
                self.minor = minor.trim_end_matches('+').parse().ok();
            }
            Some(Err(error)) => self.unread.push(error.to_string()),
            _ => {}
        }
    }

    /// Asks plugins that are not ready why, through the API server.
    fn read_readiness(&mut self, cluster: &Cluster) {
        let not_ready = self.plugin_pods().filter(|pod| is_running(pod) && !is_ready(pod));
        let (pods, paths): (Vec<String>, Vec<String>) = not_ready
            .map(|pod| {
                let (namespace, name) = (text(pod, "/metadata/namespace"), text(pod, "/metadata/name"));
                let path = format!("/api/v1/namespaces/{namespace}/pods/{name}:{}/proxy/readyz", port(pod));
                (key(pod), path)
            })
            .unzip();
        for (pod, page) in pods.into_iter().zip(cluster.pages(&paths)) {
            match page {
                // A plugin that is not ready answers 503; so does the API server if it cannot reach the pod, but with
                // JSON.
                Ok((200 | 503, said)) if !said.starts_with('{') => drop(self.not_ready.insert(pod, said)),
                Ok(_) => drop(
                    self.not_ready
                        .insert(pod, "answer: the pod does not answer\n".to_owned()),
                ),
                Err(error) => self.unread.push(error.to_string()),
            }
        }
    }

    pub(super) fn our_slices(&self) -> impl Iterator<Item = &Value> {
        let slices = self.slices.iter();
        slices.filter(|slice| text(slice, "/spec/driver") == DRIVER)
    }

    /// The pods of the plugin.
    pub(super) fn plugin_pods(&self) -> impl Iterator<Item = &Value> {
        self.pods_of("plugin")
    }

    /// The pods of a component of the chart.
    pub(super) fn pods_of(&self, component: &'static str) -> impl Iterator<Item = &Value> {
        let is_of_it = move |pod: &&Value| pod["metadata"]["labels"]["app.kubernetes.io/component"] == component;
        self.pods.iter().filter(|pod| is_labelled(pod)).filter(is_of_it)
    }

    /// The nodes on which a plugin is ready.
    pub(super) fn ready_nodes(&self) -> BTreeSet<&str> {
        let ready = self.plugin_pods().filter(|pod| is_ready(pod));
        ready.map(|pod| text(pod, "/spec/nodeName")).collect()
    }

    /// Returns true if enough is known to say whether the driver is installed and works on the nodes.
    pub(super) fn knows_enough(&self) -> bool {
        let needed = [&self.daemon_sets, &self.pods, &self.nodes, &self.slices];
        needed.into_iter().all(|objects| objects.known().is_some())
    }
}

pub(crate) fn is_labelled(object: &Value) -> bool {
    object["metadata"]["labels"][NAME_LABEL] == NAME
}

pub(crate) fn text<'v>(object: &'v Value, pointer: &str) -> &'v str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

pub(super) fn number(object: &Value, pointer: &str) -> i64 {
    object.pointer(pointer).and_then(Value::as_i64).unwrap_or_default()
}

pub(crate) fn list<'v>(object: &'v Value, pointer: &str) -> &'v [Value] {
    object
        .pointer(pointer)
        .and_then(Value::as_array)
        .map_or(&[], Vec::as_slice)
}

/// `namespace/name`.
pub(crate) fn key(object: &Value) -> String {
    format!(
        "{}/{}",
        text(object, "/metadata/namespace"),
        text(object, "/metadata/name")
    )
}

pub(super) fn is_running(pod: &Value) -> bool {
    text(pod, "/status/phase") == "Running"
}

pub(super) fn is_ready(pod: &Value) -> bool {
    list(pod, "/status/conditions")
        .iter()
        .any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}

/// The port of the plugin's pages.
fn port(pod: &Value) -> i64 {
    let ports = list(pod, "/spec/containers").iter().flat_map(|of| list(of, "/ports"));
    let mut named = ports.filter(|port| port["name"] == "http");
    named.next().map_or(9440, |port| number(port, "/containerPort"))
}
