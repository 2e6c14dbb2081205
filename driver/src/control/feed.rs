//! What the watches bring, for the planner and for the explanations: one watch a kind feeds both.
//!
//! ```text
//!  watch of a kind ─► Fed ─┬─ explained() ─► cluster::Change: every waiting pod, every object
//!                          └─ Feed::take ──► vgpu_planner::Change: one a change, one a whole list
//! ```
//!
//! A list that the planner is told of replaces all that it knows of the kind, so its objects are gathered until it ends;
//! a list that breaks off is begun anew by the watch, and what it had brought is dropped. A watch does not say as of
//! which version it listed; the newest version in the list stands for that. What was newer and is gone is left over, so
//! claims are listed once more and such slices are read ([`Feed::left_over`]).

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource as _;
use vgpu_allocator::model::{self, DeviceClass, DeviceTaintRule};
use vgpu_planner::model::{Claim, Node, Pod, Slice, Version};
use vgpu_planner::{Ask, Change, Last};

use super::objects;
use crate::cluster::{self, Step};
use crate::model::Key;
use crate::wire;

/// One step of a watch.
#[derive(Debug)]
pub enum Fed {
    Pod(Step<objects::Pod>),
    Node(Step<objects::Node>),
    Class(Step<wire::Class>),
    Slice(Step<objects::Slice>),
    Claim(Step<objects::Claim>),
    Rule(Step<wire::Rule>),
}

/// Lists that are under way, and all rules: the planner takes those at once.
#[derive(Debug, Default)]
pub struct Feed {
    pods: Vec<Pod>,
    nodes: Vec<Node>,
    classes: Vec<DeviceClass>,
    slices: Vec<Slice>,
    claims: Vec<Claim>,
    rules: BTreeMap<String, DeviceTaintRule>,
    is_listing_rules: bool,
    /// Names of slices that the watch brought, and has not called gone.
    known: BTreeSet<String>,
    left_over: Vec<Ask>,
}

impl Fed {
    /// For the explanations, which know pods only while they wait.
    pub fn explained(&self) -> Option<cluster::Change> {
        use cluster::Change as To;
        Some(match self {
            Self::Pod(step) => To::Pod(match step.as_ref() {
                Step::Changed(pod) => match waiting(pod) {
                    Some(pod) => Step::Changed(pod),
                    None => Step::Gone(named(pod.meta())),
                },
                Step::Gone(pod) => Step::Gone(named(pod.meta())),
                step => step.with(waiting)?,
            }),
            Self::Node(step) => To::Node(step.as_ref().with(|node| {
                let facts = node.body.as_ref().map(|node| node.facts.clone());
                Some(facts.unwrap_or_else(|| model::Node {
                    metadata: metadata(node.meta()),
                }))
            })?),
            Self::Class(step) => To::Class(step.as_ref().with(|class| Some(class.clone().into()))?),
            Self::Slice(step) => To::Slice(step.as_ref().with(|slice| {
                let facts = slice.body.as_ref().map(|slice| slice.facts.clone());
                Some(facts.unwrap_or_else(|| model::ResourceSlice {
                    metadata: metadata(slice.meta()),
                    ..model::ResourceSlice::default()
                }))
            })?),
            Self::Claim(step) => To::Claim(step.as_ref().with(|claim| {
                let asked = claim.body.as_ref().map(|claim| claim.asked.clone());
                Some(asked.unwrap_or_else(|| model::ResourceClaim {
                    metadata: metadata(claim.meta()),
                    ..model::ResourceClaim::default()
                }))
            })?),
            Self::Rule(step) => To::Rule(step.as_ref().with(|rule| Some(rule.clone().into()))?),
        })
    }
}

fn waiting(pod: &objects::Pod) -> Option<crate::model::Pod> {
    pod.body.as_ref()?.waiting.clone()
}

/// A pod that is not waited for any more: its name alone matters.
fn named(meta: &ObjectMeta) -> crate::model::Pod {
    let metadata = metadata(meta);
    crate::model::Pod {
        key: Key {
            namespace: metadata.namespace,
            name: metadata.name,
        },
        uid: metadata.uid,
        unschedulable: false,
        claims: Vec::new(),
        extended: Vec::new(),
    }
}

fn metadata(meta: &ObjectMeta) -> model::Metadata {
    model::Metadata {
        name: meta.name.clone().unwrap_or_default(),
        namespace: meta.namespace.clone().unwrap_or_default(),
        uid: meta.uid.clone().unwrap_or_default(),
        ..model::Metadata::default()
    }
}

/// `namespace/name`.
fn key(meta: &ObjectMeta) -> String {
    let metadata = metadata(meta);
    format!("{}/{}", metadata.namespace, metadata.name)
}

impl Feed {
    /// What the planner is to be told, if anything yet.
    pub fn take(&mut self, fed: Fed) -> Option<Change> {
        match fed {
            Fed::Pod(step) => gather(
                &mut self.pods,
                step,
                |pod| pod.body.map(|pod| pod.planned),
                Change::Pod,
                Change::Pods,
                |pod| Some(Change::PodGone { key: key(pod.meta()) }),
            ),
            Fed::Node(step) => gather(
                &mut self.nodes,
                step,
                |node| node.body,
                Change::Node,
                Change::Nodes,
                |node| {
                    Some(Change::NodeGone {
                        name: metadata(node.meta()).name,
                    })
                },
            ),
            Fed::Class(step) => gather(
                &mut self.classes,
                step,
                |class| Some(class.into()),
                Change::Class,
                Change::Classes,
                |class| {
                    Some(Change::ClassGone {
                        name: metadata(class.meta()).name,
                    })
                },
            ),
            Fed::Slice(step) => {
                self.keep_books(&step);
                gather(
                    &mut self.slices,
                    step,
                    |slice| slice.body,
                    |slice| Change::Slice { slice, read: None },
                    |slices| Change::Slices {
                        version: slices.iter().map(|slice| slice.version).max().unwrap_or_default(),
                        slices,
                        read: None,
                    },
                    |slice| {
                        Some(Change::SliceGone {
                            name: metadata(slice.meta()).name,
                            last: Last::Version(version(slice.meta())?),
                        })
                    },
                )
            }
            Fed::Claim(step) => gather(
                &mut self.claims,
                step,
                |claim| claim.body,
                Change::Claim,
                |claims| Change::Claims {
                    version: claims.iter().map(|claim| claim.version).max().unwrap_or_default(),
                    claims,
                    same: Vec::new(),
                    asked: None,
                },
                |claim| {
                    Some(Change::ClaimGone {
                        key: key(claim.meta()),
                        version: version(claim.meta())?,
                    })
                },
            ),
            Fed::Rule(step) => self.rule(step),
        }
    }

    /// What is to be read because the last list may not have told of its end; once.
    pub fn left_over(&mut self) -> Vec<Ask> {
        std::mem::take(&mut self.left_over)
    }

    fn keep_books(&mut self, step: &Step<objects::Slice>) {
        match step {
            Step::Begin | Step::Listed(_) => {}
            Step::Changed(slice) => {
                self.known.insert(metadata(slice.meta()).name);
            }
            Step::Gone(slice) => {
                self.known.remove(&metadata(slice.meta()).name);
            }
            Step::End | Step::None => {
                let listed: BTreeSet<String> = self.slices.iter().map(|slice| slice.name().to_owned()).collect();
                let gone = std::mem::take(&mut self.known);
                self.left_over.extend(gone.difference(&listed).cloned().map(Ask::Slice));
                self.known = listed;
            }
        }
    }

    fn rule(&mut self, step: Step<wire::Rule>) -> Option<Change> {
        match step {
            Step::Begin => {
                self.rules.clear();
                self.is_listing_rules = true;
            }
            Step::Listed(rule) | Step::Changed(rule) => {
                let rule = DeviceTaintRule::from(rule);
                self.rules.insert(rule.metadata.name.clone(), rule);
            }
            Step::Gone(rule) => {
                self.rules.remove(&metadata(rule.meta()).name);
            }
            Step::End => self.is_listing_rules = false,
            Step::None => {
                self.rules.clear();
                self.is_listing_rules = false;
            }
        }
        (!self.is_listing_rules).then(|| Change::Rules(self.rules.values().cloned().collect()))
    }
}

fn version(meta: &ObjectMeta) -> Option<Version> {
    meta.resource_version.as_deref()?.parse().ok()
}

/// What cannot be read at all stays as it was known.
fn gather<K, T>(
    list: &mut Vec<T>,
    step: Step<K>,
    read: impl FnOnce(K) -> Option<T>,
    one: impl FnOnce(T) -> Change,
    all: impl FnOnce(Vec<T>) -> Change,
    gone: impl FnOnce(K) -> Option<Change>,
) -> Option<Change> {
    match step {
        Step::Begin => list.clear(),
        Step::Listed(object) => list.extend(read(object)),
        Step::End => return Some(all(std::mem::take(list))),
        Step::Changed(object) => return read(object).map(one),
        Step::Gone(object) => return gone(object),
        Step::None => return Some(all(Vec::new())),
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(name: &str, version: u64) -> objects::Claim {
        let text = format!(
            r#"{{"metadata":{{"name":"{name}","namespace":"ns","uid":"u","resourceVersion":"{version}"}},"spec":{{}}}}"#
        );
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn a_list_is_told_when_it_is_whole() {
        let mut feed = Feed::default();
        assert!(feed.take(Fed::Claim(Step::Begin)).is_none());
        assert!(feed.take(Fed::Claim(Step::Listed(claim("broken-off", 3)))).is_none());
        assert!(feed.take(Fed::Claim(Step::Begin)).is_none());
        assert!(feed.take(Fed::Claim(Step::Listed(claim("a", 9)))).is_none());
        assert!(feed.take(Fed::Claim(Step::Listed(claim("b", 7)))).is_none());
        let Some(Change::Claims {
            claims, version, asked, ..
        }) = feed.take(Fed::Claim(Step::End))
        else {
            panic!("no list");
        };
        assert_eq!((claims.len(), version, asked), (2, Version(9), None));
        assert!(matches!(
            feed.take(Fed::Claim(Step::Changed(claim("a", 10)))),
            Some(Change::Claim(_))
        ));
        let Some(Change::ClaimGone { key, version }) = feed.take(Fed::Claim(Step::Gone(claim("a", 11)))) else {
            panic!("it is not gone");
        };
        assert_eq!((key.as_str(), version), ("ns/a", Version(11)));
    }

    #[test]
    fn a_slice_that_a_list_does_not_bring_is_read() {
        let slice = |name: &str| -> objects::Slice {
            let text = format!(r#"{{"metadata":{{"name":"{name}","resourceVersion":"5"}},"spec":{{}}}}"#);
            serde_json::from_str(&text).unwrap()
        };
        let mut feed = Feed::default();
        for step in [
            Step::Begin,
            Step::Listed(slice("a")),
            Step::Listed(slice("b")),
            Step::End,
        ] {
            feed.take(Fed::Slice(step));
        }
        feed.take(Fed::Slice(Step::Changed(slice("c"))));
        feed.take(Fed::Slice(Step::Gone(slice("b"))));
        assert!(feed.left_over().is_empty());
        for step in [Step::Begin, Step::Listed(slice("a"))] {
            feed.take(Fed::Slice(step));
        }
        let list = feed.take(Fed::Slice(Step::End));
        assert!(matches!(
            list,
            Some(Change::Slices {
                version: Version(5),
                ..
            })
        ));
        assert_eq!(feed.left_over(), [Ask::Slice("c".into())]);
        assert!(feed.left_over().is_empty());
    }

    #[test]
    fn rules_come_all_at_once() {
        let rule = |name: &str| -> wire::Rule {
            serde_json::from_str(&format!(r#"{{"metadata":{{"name":"{name}"}},"spec":{{}}}}"#)).unwrap()
        };
        let mut feed = Feed::default();
        let names = |change: Option<Change>| match change {
            Some(Change::Rules(rules)) => Some(rules.into_iter().map(|rule| rule.metadata.name).collect::<Vec<_>>()),
            _ => None,
        };
        assert_eq!(names(feed.take(Fed::Rule(Step::Begin))), None);
        assert_eq!(names(feed.take(Fed::Rule(Step::Listed(rule("a"))))), None);
        assert_eq!(names(feed.take(Fed::Rule(Step::End))), Some(vec!["a".to_owned()]));
        assert_eq!(
            names(feed.take(Fed::Rule(Step::Changed(rule("b"))))),
            Some(vec!["a".to_owned(), "b".to_owned()])
        );
        assert_eq!(
            names(feed.take(Fed::Rule(Step::Gone(rule("a"))))),
            Some(vec!["b".to_owned()])
        );
        assert_eq!(names(feed.take(Fed::Rule(Step::None))), Some(Vec::new()));
    }

    #[test]
    fn only_pods_that_wait_are_explained() {
        let pod = |node: &str| -> objects::Pod {
            let text = format!(
                r#"{{"metadata":{{"name":"p","namespace":"ns","uid":"u"}},"spec":{{"containers":[]{node}}},"status":{{"phase":"Pending"}}}}"#
            );
            serde_json::from_str(&text).unwrap()
        };
        let bound = || pod(r#","nodeName":"n""#);
        assert!(matches!(
            Fed::Pod(Step::Changed(pod(""))).explained(),
            Some(cluster::Change::Pod(Step::Changed(_)))
        ));
        assert!(matches!(
            Fed::Pod(Step::Changed(bound())).explained(),
            Some(cluster::Change::Pod(Step::Gone(_)))
        ));
        assert!(Fed::Pod(Step::Listed(bound())).explained().is_none());
    }
}
