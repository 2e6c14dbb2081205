//! Removes from `metadata.managedFields` the fields that a translation removes from a pod.
//!
//! The API server records the owners of fields before it calls the webhook. So the applier of a manifest would own limits and
//! a scheduler's name that the translated pod no longer has. A second applier of the same manifest would then get a conflict,
//! before any webhook is called. The API server accepts a webhook's managedFields if it can decode them.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod};
use serde_json::{Map, Value};

/// Takes from all owners the fields that `before` has and `after`, its translation, lacks.
pub(crate) fn release(before: &Pod, after: &mut Pod) {
    let paths = taken_away(before, after);
    let entries = after.metadata.managed_fields.iter_mut().flatten();
    for fields in entries.filter_map(|entry| entry.fields_v1.as_mut()) {
        if let Value::Object(fields) = &mut fields.0 {
            for path in &paths {
                remove(fields, path);
            }
        }
    }
}

/// Paths in managedFields of the fields that the translation removed.
fn taken_away(before: &Pod, after: &Pod) -> Vec<Vec<String>> {
    let (Some(old), Some(new)) = (&before.spec, &after.spec) else {
        return Vec::new();
    };
    let mut paths = Vec::new();
    if old.scheduler_name != new.scheduler_name {
        paths.push(vec!["f:spec".to_owned(), "f:schedulerName".to_owned()]);
    }
    let none = Vec::new();
    let inits = [&old.init_containers, &new.init_containers].map(|list| list.as_ref().unwrap_or(&none));
    of_containers("f:initContainers", inits[0], inits[1], &mut paths);
    of_containers("f:containers", &old.containers, &new.containers, &mut paths);
    paths
}

fn of_containers(list: &str, before: &[Container], after: &[Container], paths: &mut Vec<Vec<String>>) {
    for (old, new) in before.iter().zip(after) {
        let Some(had) = &old.resources else { continue };
        let has = new.resources.as_ref();
        for (map, had, has) in [
            ("f:limits", &had.limits, has.and_then(|has| has.limits.as_ref())),
            ("f:requests", &had.requests, has.and_then(|has| has.requests.as_ref())),
        ] {
            let Some(had) = had else { continue };
            let gone = had.keys().filter(|key| !has.is_some_and(|has| has.contains_key(*key)));
            let mut gone: Vec<String> = gone.map(|key| format!("f:{key}")).collect();
            // The path of the map itself, because an empty map is not stored.
            if !gone.is_empty() && has.is_none_or(BTreeMap::is_empty) {
                gone.push(".".to_owned());
            }
            // The key of a list's item, as the API server writes it.
            let item = format!("k:{}", serde_json::json!({"name": old.name}));
            for key in gone {
                let path = ["f:spec", list, &item, "f:resources", map, &key];
                paths.push(path.map(str::to_owned).to_vec());
            }
        }
    }
}

/// Removes a field, and each parent that becomes empty: an empty object says that its owner has the whole field.
fn remove(fields: &mut Map<String, Value>, path: &[String]) {
    let Some((first, rest)) = path.split_first() else {
        return;
    };
    let is_empty = match (fields.get_mut(first), rest) {
        (Some(_), []) => true,
        (Some(Value::Object(inner)), rest) if !inner.is_empty() => {
            remove(inner, rest);
            inner.is_empty()
        }
        _ => false,
    };
    if is_empty {
        fields.remove(first);
    }
}
