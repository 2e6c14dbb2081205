//! Changes of [`vgpu_planner::State`]: pods, nodes, classes, slices, claims and taint rules.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::resource::v1 as resource;
use vgpu_api::DRIVER_NAME;
use vgpu_planner::model::Version;
use vgpu_planner::{self as planner, Last};

use super::seen::{Changes, Names, Raw, Seen};

fn keys(listed: &[Names]) -> Vec<String> {
    listed.iter().map(Names::key).collect()
}

fn newest(listed: &[Names]) -> Version {
    listed
        .iter()
        .filter_map(|names| names.version)
        .max()
        .unwrap_or_default()
}

pub(super) fn pod(seen: &Seen<Raw<core::Pod>>) -> Option<planner::Change> {
    Some(match seen {
        Seen::Set(pod) => planner::Change::Pod(pod.facts()?),
        Seen::Gone(names) => planner::Change::PodGone { key: names.key() },
        Seen::Listed(listed) => planner::Change::Pods { keys: keys(listed) },
    })
}

pub(super) fn node(seen: &Seen<Raw<core::Node>>) -> Option<planner::Change> {
    Some(match seen {
        Seen::Set(node) => planner::Change::Node(node.facts()?),
        Seen::Gone(names) => planner::Change::NodeGone { name: names.key() },
        Seen::Listed(listed) => planner::Change::Nodes { names: keys(listed) },
    })
}

pub(super) fn class(seen: &Seen<Raw<resource::DeviceClass>>) -> Option<planner::Change> {
    Some(match seen {
        Seen::Set(class) => planner::Change::Class(class.facts()?),
        Seen::Gone(names) => planner::Change::ClassGone { name: names.key() },
        Seen::Listed(listed) => planner::Change::Classes { names: keys(listed) },
    })
}

pub(super) fn slice(seen: &Seen<Raw<resource::ResourceSlice>>) -> Option<planner::Change> {
    Some(match seen {
        Seen::Set(slice) => planner::Change::Slice {
            slice: slice.facts()?,
            read: None,
        },
        Seen::Gone(names) => planner::Change::SliceGone {
            name: names.key(),
            last: Last::Version(names.version?),
        },
        Seen::Listed(listed) => planner::Change::Slices {
            names: keys(listed),
            version: newest(listed),
        },
    })
}

/// Returns false for a slice of another driver. A slice's driver never changes.
pub(super) fn may_be_ours(change: Option<&planner::Change>) -> bool {
    match change {
        Some(planner::Change::Slice { slice, .. }) => slice.facts.spec.driver == DRIVER_NAME,
        _ => true,
    }
}

pub(super) fn claim(seen: &Seen<Raw<resource::ResourceClaim>>) -> Option<planner::Change> {
    Some(match seen {
        Seen::Set(claim) => planner::Change::Claim(claim.facts()?),
        Seen::Gone(names) => planner::Change::ClaimGone {
            key: names.key(),
            version: names.version?,
        },
        Seen::Listed(listed) => planner::Change::Claims {
            claims: Vec::new(),
            same: keys(listed),
            version: newest(listed),
            read: None,
        },
    })
}

/// DeviceTaintRules: there are few, and every change has all of them.
pub(super) fn rules() -> impl FnMut(Seen<Raw<resource::DeviceTaintRule>>) -> Changes + Send {
    let mut known = BTreeMap::new();
    let mut is_listed = false;
    move |seen| {
        match seen {
            Seen::Set(rule) => known.extend(rule.facts().map(|facts| (Names::of(&rule).name, facts))),
            Seen::Gone(names) => drop(known.remove(&names.name)),
            Seen::Listed(listed) => {
                let before = known.len();
                known.retain(|name, _| listed.iter().any(|names| names.name == *name));
                // If the API server does not serve the kind, this event comes every few seconds.
                if std::mem::replace(&mut is_listed, true) && known.len() == before {
                    return Changes::default();
                }
            }
        }
        let rules = is_listed.then(|| planner::Change::Rules(known.values().cloned().collect()));
        Changes::of_state(rules, false)
    }
}

#[cfg(test)]
mod tests {
    use kube::runtime::watcher::Event;

    use super::super::seen::List;
    use super::*;

    fn claim_of(text: &str) -> Event<Raw<resource::ResourceClaim>> {
        Event::Apply(serde_json::from_str(text).unwrap())
    }

    fn named(name: &str, version: u64) -> String {
        format!(
            r#"{{"metadata":{{"name":"{name}","namespace":"ns","uid":"u","resourceVersion":"{version}"}},"spec":{{}}}}"#
        )
    }

    fn in_list(event: Event<Raw<resource::ResourceClaim>>) -> Event<Raw<resource::ResourceClaim>> {
        match event {
            Event::Apply(object) => Event::InitApply(object),
            other => other,
        }
    }

    #[test]
    fn objects_of_a_list_come_at_once_and_its_end_names_them() {
        let mut list = List::default();
        let mut next = |event| list.seen(event).and_then(|seen| claim(&seen));
        assert!(next(Event::Init).is_none());
        assert!(matches!(
            next(in_list(claim_of(&named("broken-off", 30)))),
            Some(planner::Change::Claim(_))
        ));
        assert!(next(Event::Init).is_none());
        for (name, version) in [("a", 9), ("b", 7)] {
            let change = next(in_list(claim_of(&named(name, version))));
            assert!(matches!(change, Some(planner::Change::Claim(claim)) if claim.version == Version(version)));
        }
        let unreadable = r#"{"metadata":{"name":"c","namespace":"ns","resourceVersion":"x"}}"#;
        assert!(next(in_list(claim_of(unreadable))).is_none());
        let Some(planner::Change::Claims {
            claims,
            same,
            version,
            read,
        }) = next(Event::InitDone)
        else {
            panic!("no list");
        };
        assert_eq!(
            same,
            ["ns/a", "ns/b", "ns/c"],
            "an object that cannot be read stays as it was known"
        );
        assert_eq!((claims.len(), version, read), (0, Version(9), None));
        assert!(matches!(
            next(claim_of(&named("a", 10))),
            Some(planner::Change::Claim(_))
        ));
        let Event::Apply(deleted) = claim_of(&named("a", 11)) else {
            unreachable!()
        };
        let Some(planner::Change::ClaimGone { key, version }) = next(Event::Delete(deleted)) else {
            panic!("it is not gone");
        };
        assert_eq!((key.as_str(), version), ("ns/a", Version(11)));
    }

    #[test]
    fn rules_come_all_at_once() {
        let rule = |name: &str| -> Raw<resource::DeviceTaintRule> {
            serde_json::from_str(&format!(r#"{{"metadata":{{"name":"{name}"}},"spec":{{}}}}"#)).unwrap()
        };
        let (mut list, mut rules) = (List::default(), rules());
        let mut next = |event| match list.seen(event).map(&mut rules)?.state {
            Some(planner::Change::Rules(rules)) => {
                Some(rules.into_iter().map(|rule| rule.metadata.name).collect::<Vec<_>>())
            }
            _ => None,
        };
        assert_eq!(next(Event::Init), None);
        assert_eq!(next(Event::InitApply(rule("a"))), None);
        assert_eq!(next(Event::InitDone), Some(vec!["a".to_owned()]));
        let both = Some(vec!["a".to_owned(), "b".to_owned()]);
        assert_eq!(next(Event::Apply(rule("b"))), both);
        assert_eq!(next(Event::Delete(rule("a"))), Some(vec!["b".to_owned()]));
        // A list without the rule: the API server no longer serves rules, or the deletion was missed.
        assert_eq!(next(Event::Init), None);
        assert_eq!(next(Event::InitDone), Some(Vec::new()));
        assert_eq!(next(Event::InitDone), None, "nothing has changed");
    }
}
