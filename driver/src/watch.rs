//! The watches of all kinds, as one stream of changes.
//!
//! ```text
//!  watcher::Event of a kind ─► List: each object at once; at the end of a list, the names in it ─► Change
//! ```
//!
//! Objects of a list are newer than what is known, so each is passed on at once and no kind is ever held twice in
//! memory. If a list breaks off, the watch starts it again. kube's watcher does not report the version of a list, so
//! the newest version in it is used instead.

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

/// A change, or the error of the watch of a kind, which retries by itself with backoff.
pub(crate) type Watched = Result<Change, (&'static str, watcher::Error)>;

/// Watches what kube-scheduler reads about devices: all slices, classes and claims, because a claim may ask for devices
/// of other drivers beside ours. In scheduler mode only pods that wait are watched, in controller mode all that are not
/// finished.
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

/// A kind whose objects become changes one by one.
pub(crate) trait Watchable: Readable {
    const PLURAL: &'static str;

    fn changed(self) -> Change;

    /// The object was deleted. `None` if the deletion's version is needed and missing.
    fn gone(key: String, version: Option<Version>) -> Option<Change>;

    /// A list is complete: the keys of all its objects, and the newest version in it.
    fn listed(same: Vec<String>, version: Version) -> Change;
}

/// The part of a list that was received so far.
#[derive(Debug, Default)]
pub(crate) struct List {
    keys: Vec<String>,
    newest: Version,
}

impl List {
    /// Converts an event of the watch, if it is a change. An object that cannot be decoded at all is no change: what
    /// was known of it stays.
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

/// All DeviceTaintRules: there are few, and every change has all of them.
#[derive(Debug, Default)]
pub(crate) struct Rules {
    known: BTreeMap<String, DeviceTaintRule>,
    is_listing: bool,
}

impl Rules {
    /// Kubernetes has DeviceTaintRules since 1.37, and they can be switched off. An API server without them answers
    /// 404, which counts as no rules. The watch retries with backoff, and finds them once they are served.
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

/// `namespace/name`, or the name of an object without a namespace.
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
