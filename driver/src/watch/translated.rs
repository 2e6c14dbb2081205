//! Changes for the reconciler of translated pods ([`vgpu_reconciler`]): these pods, their templates, our slices, and the
//! namespaces that opted in.

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::resource::v1 as resource;
use kube::core::PartialObjectMeta;
use vgpu_dialects::TRANSLATED;
use vgpu_planner::model::Meta;
use vgpu_reconciler::{self as reconciler, Key, Template, TranslatedPod};

use super::seen::{Names, Raw, Seen};

/// The label of a namespace whose pods are translated.
const LABEL: &str = "dra.vgpu/translate";
/// The selector of these namespaces.
pub(super) const OPTED_IN: &str = "dra.vgpu/translate=true";

/// Most pods are not translated, and are not decoded beyond their metadata.
pub(super) fn pod(seen: &Seen<Raw<core::Pod>>) -> Option<reconciler::Change> {
    #[derive(serde::Deserialize)]
    struct Bare {
        metadata: Meta,
    }
    const FOLLOWS: &str = "it cannot be read, so it gets no template and no annotations";
    Some(match seen {
        Seen::Set(pod) => reconciler::Change::Pod {
            key: Names::of(pod).key(),
            pod: match pod
                .metadata::<Bare>(FOLLOWS)?
                .metadata
                .annotations
                .contains_key(TRANSLATED)
            {
                true => TranslatedPod::of(&pod.decode(FOLLOWS)?),
                false => None,
            },
        },
        Seen::Gone(names) => reconciler::Change::PodGone { key: names.key() },
        Seen::Listed(listed) => reconciler::Change::Pods {
            keys: listed.iter().map(Names::key).collect(),
        },
    })
}

pub(super) fn template(seen: &Seen<PartialObjectMeta<resource::ResourceClaimTemplate>>) -> Option<reconciler::Change> {
    let key = |names: &Names| Key {
        namespace: names.namespace.clone(),
        name: names.name.clone(),
    };
    Some(match seen {
        Seen::Set(object) => {
            let (key, template) = Template::of(&object.metadata)?;
            reconciler::Change::Template { key, template }
        }
        Seen::Gone(names) => reconciler::Change::TemplateGone {
            key: key(names),
            uid: names.uid.clone(),
        },
        Seen::Listed(listed) => reconciler::Change::Templates {
            keys: listed.iter().map(key).collect(),
        },
    })
}

pub(super) fn slice(seen: &Seen<Raw<resource::ResourceSlice>>) -> Option<reconciler::Change> {
    Some(match seen {
        Seen::Set(slice) => reconciler::Change::Slice(Box::new(
            slice.decode("it cannot be read, so translated pods go by what was known of it")?,
        )),
        Seen::Gone(Names { name, .. }) => reconciler::Change::SliceGone { name: name.clone() },
        Seen::Listed(listed) => reconciler::Change::Slices {
            names: listed.iter().map(|names| names.name.clone()).collect(),
        },
    })
}

/// With quotas all namespaces are watched, so those that did not opt in are left out here.
pub(super) fn namespace(seen: &Seen<PartialObjectMeta<core::Namespace>>) -> reconciler::Change {
    match seen {
        Seen::Set(namespace) => {
            let meta = &namespace.metadata;
            let name = meta.name.clone().unwrap_or_default();
            let label = meta.labels.as_ref().and_then(|labels| labels.get(LABEL));
            // No pod is created in a namespace that is being deleted.
            match label.is_some_and(|value| value == "true") && meta.deletion_timestamp.is_none() {
                true => reconciler::Change::Namespace { name },
                false => reconciler::Change::NamespaceGone { name },
            }
        }
        Seen::Gone(Names { name, .. }) => reconciler::Change::NamespaceGone { name: name.clone() },
        Seen::Listed(listed) => reconciler::Change::Namespaces {
            names: listed.iter().map(|names| names.name.clone()).collect(),
        },
    }
}

#[cfg(test)]
mod tests {
    use kube::runtime::watcher::Event;
    use serde_json::json;

    use super::super::seen::List;
    use super::*;
    use crate::translation::tests::bound;

    #[test]
    fn of_a_pod_that_is_not_translated_only_its_name_is_passed_on() {
        let (translated, ..) = bound();
        let mut plain = translated.clone();
        plain["metadata"]["annotations"] = json!({"gpu-fraction": "0.5"});
        let mut odd = translated.clone();
        odd["spec"]["containers"] = json!("none");
        let mut list = List::default();
        let mut next = |event| list.seen(event).and_then(|seen| pod(&seen));
        let read = |pod: &serde_json::Value| serde_json::from_value(pod.clone()).unwrap();
        assert!(next(Event::Init).is_none());
        assert!(
            matches!(next(Event::InitApply(read(&translated))), Some(reconciler::Change::Pod { key, pod: Some(pod) })
            if key == "team/p" && pod.is_bound && pod.needs.len() == 1)
        );
        assert!(matches!(
            next(Event::InitApply(read(&plain))),
            Some(reconciler::Change::Pod { pod: None, .. })
        ));
        assert!(next(Event::InitApply(read(&odd))).is_none(), "it stays as it was known");
        assert!(
            matches!(next(Event::InitDone), Some(reconciler::Change::Pods { keys }) if keys == ["team/p", "team/p", "team/p"])
        );
        assert!(
            matches!(next(Event::Delete(read(&plain))), Some(reconciler::Change::PodGone { key }) if key == "team/p")
        );
    }

    #[test]
    fn a_namespace_counts_while_it_opts_in_and_is_not_deleted() {
        let seen = |labels, deleted: Option<&str>| {
            let team = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team", "labels": labels,
                "deletionTimestamp": deleted}});
            namespace(&Seen::Set(serde_json::from_value(team).unwrap()))
        };
        let opted_in = || json!({"dra.vgpu/translate": "true"});
        assert!(matches!(seen(opted_in(), None), reconciler::Change::Namespace { name } if name == "team"));
        for change in [
            seen(opted_in(), Some("2026-11-24T00:00:00Z")),
            seen(json!({"dra.vgpu/translate": "false"}), None),
            seen(json!({}), None),
        ] {
            assert!(matches!(change, reconciler::Change::NamespaceGone { .. }));
        }
    }
}
