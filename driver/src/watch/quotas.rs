//! Changes for quotas ([`vgpu_quota`]): quotas and defaults themselves, ResourceQuotas and namespaces. The objects that
//! quotas count come with the changes of the state.

use k8s_openapi::api::core::v1 as core;
use kube::Resource;
use kube::core::PartialObjectMeta;
use serde::de::DeserializeOwned;
use vgpu_api::quota::{VgpuQuota, VgpuQuotaDefault};
use vgpu_quota::{self as quotas, NamespaceLabels};

use super::seen::{Names, Raw, Seen};

fn decode<K: Resource<DynamicType = ()>, T: DeserializeOwned>(object: &Raw<K>) -> Option<T> {
    object.decode("it cannot be read, so quotas go by what was known of it")
}

fn uids(listed: &[Names]) -> Vec<String> {
    listed.iter().map(|names| names.uid.clone()).collect()
}

fn names(listed: &[Names]) -> Vec<String> {
    listed.iter().map(|names| names.name.clone()).collect()
}

pub(super) fn quota(seen: &Seen<Raw<VgpuQuota>>) -> Option<quotas::Change> {
    Some(match seen {
        Seen::Set(quota) => quotas::Change::Quota(Box::new(decode(quota)?)),
        Seen::Gone(Names { namespace, uid, .. }) => quotas::Change::QuotaGone {
            namespace: namespace.clone(),
            uid: uid.clone(),
        },
        Seen::Listed(listed) => quotas::Change::Quotas { uids: uids(listed) },
    })
}

pub(super) fn default(seen: &Seen<Raw<VgpuQuotaDefault>>) -> Option<quotas::Change> {
    Some(match seen {
        Seen::Set(default) => quotas::Change::Default(decode(default)?),
        Seen::Gone(Names { name, .. }) => quotas::Change::DefaultGone { name: name.clone() },
        Seen::Listed(listed) => quotas::Change::Defaults { names: names(listed) },
    })
}

pub(super) fn namespace(seen: &Seen<PartialObjectMeta<core::Namespace>>) -> quotas::Change {
    match seen {
        Seen::Set(namespace) => quotas::Change::Namespace(NamespaceLabels::of(&namespace.metadata)),
        Seen::Gone(Names { name, uid, .. }) => quotas::Change::NamespaceGone {
            name: name.clone(),
            uid: uid.clone(),
        },
        Seen::Listed(listed) => quotas::Change::Namespaces { uids: uids(listed) },
    }
}

pub(super) fn resource_quota(seen: &Seen<Raw<core::ResourceQuota>>) -> Option<quotas::Change> {
    Some(match seen {
        Seen::Set(quota) => quotas::Change::ResourceQuota(decode(quota)?),
        Seen::Gone(Names { namespace, name, .. }) => quotas::Change::ResourceQuotaGone {
            namespace: namespace.clone(),
            name: name.clone(),
        },
        Seen::Listed(listed) => quotas::Change::ResourceQuotas {
            names: listed
                .iter()
                .map(|names| (names.namespace.clone(), names.name.clone()))
                .collect(),
        },
    })
}

#[cfg(test)]
mod tests {
    use kube::runtime::watcher::Event;
    use serde_json::{Value, json};

    use super::super::seen::List;
    use super::*;

    #[test]
    fn objects_become_changes() {
        let object = |version: &str, hard: Value| {
            let object = json!({"metadata": {"name": "vgpu", "namespace": "team", "uid": "u", "resourceVersion": version,
                "generation": 1}, "spec": {"hard": hard}});
            serde_json::from_value(object).unwrap()
        };
        let good = || json!({"memory": "80Gi"});
        let mut list = List::default();
        let mut next = |event| list.seen(event).and_then(|seen| quota(&seen));
        assert!(next(Event::Init).is_none());
        assert!(
            matches!(next(Event::InitApply(object("1", good()))), Some(quotas::Change::Quota(quota)) if quota.spec.is_ok())
        );
        assert!(matches!(next(Event::InitDone), Some(quotas::Change::Quotas { uids }) if uids == ["u"]));
        assert!(
            matches!(next(Event::Apply(object("2", json!("none")))), Some(quotas::Change::Quota(quota)) if quota.spec.is_err())
        );
        assert!(
            matches!(next(Event::Delete(object("3", good()))), Some(quotas::Change::QuotaGone { uid, .. }) if uid == "u")
        );
        let team = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team", "uid": "n",
            "labels": {"a": "b"}, "deletionTimestamp": "2026-11-24T00:00:00Z"}});
        let change = namespace(&Seen::Set(serde_json::from_value(team).unwrap()));
        assert!(matches!(change, quotas::Change::Namespace(team) if team.is_deleted && team.labels["a"] == "b"));
    }
}
