//! The watches, as one stream of changes.
//!
//! ```text
//!  watcher::Event of a kind ─► List: an object at once; at a list's end, what it named ─► Change
//! ```
//!
//! What a list brings is newer than what is known, so it is handed on object by object and no second copy of a kind is
//! ever held; a list that breaks off is begun anew by the watch. A watch does not say as of which version it listed: the
//! newest version in the list stands for that.

use std::collections::BTreeMap;
use std::future::ready;

use futures::stream::{BoxStream, StreamExt as _, select_all};
use kube::runtime::watcher::Event;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use vgpu_allocator::model::{DeviceClass, DeviceTaintRule};
use vgpu_planner::model::{Claim, Node, Pod, Slice, Version};
use vgpu_planner::{Change, Last, Mode};

use crate::decode::{self, Object, Readable};

const RULES: &str = "devicetaintrules";

/// A change, or why a watch of a kind stumbled; it goes on by itself, with backoff.
pub(crate) type Watched = Result<Change, (&'static str, watcher::Error)>;

/// Watches what kube-scheduler reads of devices: all slices and classes, because a claim may ask for devices of other
/// drivers beside ours, and what their claims hold. Of pods only those that wait, or where the controller decides, all
/// that are not over.
pub(crate) fn watch(client: &Client, mode: Mode) -> BoxStream<'static, Watched> {
    let pods = watcher::Config::default().fields(match mode {
        Mode::Scheduler => "spec.nodeName=,status.phase=Pending",
        Mode::Controller { .. } => "status.phase!=Succeeded,status.phase!=Failed",
    });
    select_all([
        follow(Api::<decode::Pod>::all(client.clone()), pods),
        follow(Api::<decode::Node>::all(client.clone()), watcher::Config::default()),
        follow(Api::<decode::Class>::all(client.clone()), watcher::Config::default()),
        follow(Api::<decode::Slice>::all(client.clone()), watcher::Config::default()),
        follow(Api::<decode::Claim>::all(client.clone()), watcher::Config::default()),
        follow_rules(Api::all(client.clone())),
    ])
    .boxed()
}

fn follow<K, T: Watchable>(api: Api<Object<K, T>>, config: watcher::Config) -> BoxStream<'static, Watched>
where
    Object<K, T>: Resource + Clone + DeserializeOwned + std::fmt::Debug + Send + 'static,
{
    let mut list = List::default();
    watcher(api, config)
        .default_backoff()
        .filter_map(move |event| {
            ready(match event {
                Ok(event) => list.change(event).map(Ok),
                Err(error) => Some(Err((T::PLURAL, error))),
            })
        })
        .boxed()
}

fn follow_rules(api: Api<decode::Rule>) -> BoxStream<'static, Watched> {
    let mut rules = Rules::default();
    watcher(api, watcher::Config::default())
        .default_backoff()
        .filter_map(move |event| ready(rules.change(event).transpose()))
        .boxed()
}

/// A kind whose objects come one by one.
pub(crate) trait Watchable: Readable {
    const PLURAL: &'static str;

    fn changed(self) -> Change;

    /// `None` if it cannot be told of which version that is.
    fn gone(key: String, version: Option<Version>) -> Option<Change>;

    /// A list has ended: what it named, and the newest version in it.
    fn listed(same: Vec<String>, version: Version) -> Change;
}

/// A list of a kind that is under way.
#[derive(Debug, Default)]
pub(crate) struct List {
    keys: Vec<String>,
    newest: Version,
}

impl List {
    /// What follows from a step of the watch, if anything yet. What cannot be read at all stays as it was known.
    pub(crate) fn change<K, T: Watchable>(&mut self, event: Event<Object<K, T>>) -> Option<Change>
    where
        Object<K, T>: Resource,
    {
        match event {
            Event::Init => {
                *self = Self::default();
                None
            }
            Event::InitApply(object) => {
                self.keys.push(key(&object));
                self.newest = self.newest.max(version(&object).unwrap_or_default());
                object.body.map(T::changed)
            }
            Event::InitDone => {
                let list = std::mem::take(self);
                Some(T::listed(list.keys, list.newest))
            }
            Event::Apply(object) => object.body.map(T::changed),
            Event::Delete(object) => T::gone(key(&object), version(&object)),
        }
    }
}

/// All rules: few, and the index takes them at once.
#[derive(Debug, Default)]
pub(crate) struct Rules {
    known: BTreeMap<String, DeviceTaintRule>,
    is_listing: bool,
}

impl Rules {
    /// DeviceTaintRules are of Kubernetes 1.37, and can be switched off there: an API server without them has none. The
    /// watch asks again with its backoff, and finds them when they come.
    pub(crate) fn change(
        &mut self,
        event: Result<Event<decode::Rule>, watcher::Error>,
    ) -> Result<Option<Change>, (&'static str, watcher::Error)> {
        match event {
            Ok(Event::Init) => {
                self.known.clear();
                self.is_listing = true;
            }
            Ok(Event::InitApply(rule) | Event::Apply(rule)) => {
                let name = key(&rule);
                self.known.extend(rule.body.map(|rule| (name, rule)));
            }
            Ok(Event::InitDone) => self.is_listing = false,
            Ok(Event::Delete(rule)) => {
                self.known.remove(&key(&rule));
            }
            Err(watcher::Error::InitialListFailed(kube::Error::Api(status))) if status.code == 404 => {
                *self = Self::default();
            }
            Err(error) => return Err((RULES, error)),
        }
        let all = || Change::Rules(self.known.values().cloned().collect());
        Ok((!self.is_listing).then(all))
    }
}

/// `namespace/name`, or the name of what has no namespace.
fn key(object: &impl Resource) -> String {
    let meta = object.meta();
    let name = meta.name.as_deref().unwrap_or_default();
    match meta.namespace.as_deref().unwrap_or_default() {
        "" => name.to_owned(),
        namespace => format!("{namespace}/{name}"),
    }
}

fn version(object: &impl Resource) -> Option<Version> {
    object.meta().resource_version.as_deref()?.parse().ok()
}

impl Watchable for Pod {
    const PLURAL: &'static str = "pods";

    fn changed(self) -> Change {
        Change::Pod(self)
    }

    fn gone(key: String, _: Option<Version>) -> Option<Change> {
        Some(Change::PodGone { key })
    }

    fn listed(same: Vec<String>, _: Version) -> Change {
        let pods = Vec::new();
        Change::Pods { pods, same }
    }
}

impl Watchable for Node {
    const PLURAL: &'static str = "nodes";

    fn changed(self) -> Change {
        Change::Node(self)
    }

    fn gone(name: String, _: Option<Version>) -> Option<Change> {
        Some(Change::NodeGone { name })
    }

    fn listed(same: Vec<String>, _: Version) -> Change {
        let nodes = Vec::new();
        Change::Nodes { nodes, same }
    }
}

impl Watchable for DeviceClass {
    const PLURAL: &'static str = "deviceclasses";

    fn changed(self) -> Change {
        Change::Class(self)
    }

    fn gone(name: String, _: Option<Version>) -> Option<Change> {
        Some(Change::ClassGone { name })
    }

    fn listed(same: Vec<String>, _: Version) -> Change {
        let classes = Vec::new();
        Change::Classes { classes, same }
    }
}

impl Watchable for Slice {
    const PLURAL: &'static str = "resourceslices";

    fn changed(self) -> Change {
        Change::Slice {
            slice: self,
            read: None,
        }
    }

    fn gone(name: String, version: Option<Version>) -> Option<Change> {
        let last = Last::Version(version?);
        Some(Change::SliceGone { name, last })
    }

    fn listed(same: Vec<String>, version: Version) -> Change {
        Change::Slices {
            slices: Vec::new(),
            same,
            version,
            read: None,
        }
    }
}

impl Watchable for Claim {
    const PLURAL: &'static str = "resourceclaims";

    fn changed(self) -> Change {
        Change::Claim(self)
    }

    fn gone(key: String, version: Option<Version>) -> Option<Change> {
        Some(Change::ClaimGone { key, version: version? })
    }

    fn listed(same: Vec<String>, version: Version) -> Change {
        Change::Claims {
            claims: Vec::new(),
            same,
            version,
            read: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::resource::v1::ResourceClaim as Kind;

    use super::*;

    fn claim(name: &str, version: u64) -> decode::Claim {
        let text = format!(
            r#"{{"metadata":{{"name":"{name}","namespace":"ns","uid":"u","resourceVersion":"{version}"}},"spec":{{}}}}"#
        );
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn objects_of_a_list_come_at_once_and_its_end_names_them() {
        let mut list = List::default();
        assert!(list.change::<Kind, Claim>(Event::Init).is_none());
        let change = list.change(Event::InitApply(claim("broken-off", 30)));
        assert!(matches!(change, Some(Change::Claim(_))));
        assert!(list.change::<Kind, Claim>(Event::Init).is_none());
        for (name, version) in [("a", 9), ("b", 7)] {
            let change = list.change(Event::InitApply(claim(name, version)));
            assert!(matches!(change, Some(Change::Claim(claim)) if claim.version == Version(version)));
        }
        let unreadable = r#"{"metadata":{"name":"c","namespace":"ns","resourceVersion":"x"}}"#;
        let unreadable: decode::Claim = serde_json::from_str(unreadable).unwrap();
        assert!(list.change(Event::InitApply(unreadable)).is_none());
        let Some(Change::Claims {
            claims,
            same,
            version,
            read,
        }) = list.change::<Kind, Claim>(Event::InitDone)
        else {
            panic!("no list");
        };
        assert_eq!(
            same,
            ["ns/a", "ns/b", "ns/c"],
            "what cannot be read stays as it was known"
        );
        assert_eq!((claims.len(), version, read), (0, Version(9), None));
        let change = list.change(Event::Apply(claim("a", 10)));
        assert!(matches!(change, Some(Change::Claim(_))));
        let Some(Change::ClaimGone { key, version }) = list.change(Event::Delete(claim("a", 11))) else {
            panic!("it is not gone");
        };
        assert_eq!((key.as_str(), version), ("ns/a", Version(11)));
    }

    fn names(change: Option<Change>) -> Option<Vec<String>> {
        match change {
            Some(Change::Rules(rules)) => Some(rules.into_iter().map(|rule| rule.metadata.name).collect()),
            _ => None,
        }
    }

    #[test]
    fn rules_come_all_at_once() {
        let rule = |name: &str| -> decode::Rule {
            serde_json::from_str(&format!(r#"{{"metadata":{{"name":"{name}"}},"spec":{{}}}}"#)).unwrap()
        };
        let mut rules = Rules::default();
        let mut next = |event| names(rules.change(Ok(event)).unwrap());
        assert_eq!(next(Event::Init), None);
        assert_eq!(next(Event::InitApply(rule("a"))), None);
        assert_eq!(next(Event::InitDone), Some(vec!["a".to_owned()]));
        let both = Some(vec!["a".to_owned(), "b".to_owned()]);
        assert_eq!(next(Event::Apply(rule("b"))), both);
        assert_eq!(next(Event::Delete(rule("a"))), Some(vec!["b".to_owned()]));
    }

    #[test]
    fn rules_that_are_not_served_are_none_and_other_failures_stay() {
        let failed = |code: u16| {
            let status = kube::core::Status::failure("no", "reason").with_code(code).boxed();
            Rules::default().change(Err(watcher::Error::InitialListFailed(kube::Error::Api(status))))
        };
        assert_eq!(names(failed(404).unwrap()), Some(Vec::new()));
        for code in [401, 403, 500] {
            assert!(failed(code).is_err(), "{code}");
        }
    }
}
