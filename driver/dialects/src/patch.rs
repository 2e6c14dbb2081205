//! The change of a translation as a JSON patch.
//!
//! It contains only the fields that a translation changes, and for maps only the changed keys: a pod of a newer
//! Kubernetes may have fields that the types here do not know, and they must be kept.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod};
use serde::Serialize;
use serde_json::{Value, json};

use crate::record::TRANSLATED;

/// Escapes a key for a JSON pointer.
fn part(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

pub(crate) fn patch(before: &Pod, after: &Pod) -> Value {
    let mut patch = Patch(Vec::new());
    let annotation = |pod: &Pod| Some(pod.metadata.annotations.as_ref()?.get(TRANSLATED)?.clone());
    if annotation(before) != annotation(after)
        && let Some(text) = annotation(after)
    {
        match before.metadata.annotations {
            None => patch.push("add", "/metadata/annotations", json!({TRANSLATED: text})),
            Some(_) => patch.push(
                "add",
                &format!("/metadata/annotations/{}", part(TRANSLATED)),
                json!(text),
            ),
        }
    }
    let owners = |pod: &Pod| pod.metadata.managed_fields.clone().unwrap_or_default();
    for (at, (old, new)) in owners(before).into_iter().zip(owners(after)).enumerate() {
        if old.fields_v1 != new.fields_v1 {
            let path = format!("/metadata/managedFields/{at}/fieldsV1");
            patch.push("add", &path, json!(new.fields_v1));
        }
    }
    if let (Some(old), Some(new)) = (&before.spec, &after.spec) {
        if old.scheduler_name != new.scheduler_name {
            patch.push("add", "/spec/schedulerName", json!(new.scheduler_name));
        }
        patch.list("/spec/resourceClaims", &old.resource_claims, &new.resource_claims);
        patch.containers("/spec/containers", &old.containers, &new.containers);
        let none = Vec::new();
        patch.containers(
            "/spec/initContainers",
            old.init_containers.as_ref().unwrap_or(&none),
            new.init_containers.as_ref().unwrap_or(&none),
        );
    }
    Value::Array(patch.0)
}

struct Patch(Vec<Value>);

impl Patch {
    fn push(&mut self, op: &str, path: &str, value: Value) {
        self.0.push(match op {
            "remove" => json!({"op": op, "path": path}),
            _ => json!({"op": op, "path": path, "value": value}),
        });
    }

    fn containers(&mut self, path: &str, before: &[Container], after: &[Container]) {
        for (at, (old, new)) in before.iter().zip(after).enumerate() {
            let (Some(old), Some(new)) = (&old.resources, &new.resources) else {
                if old.resources != new.resources {
                    self.push("add", &format!("{path}/{at}/resources"), json!(new.resources));
                }
                continue;
            };
            let path = format!("{path}/{at}/resources");
            self.removed(&format!("{path}/limits"), &old.limits, &new.limits);
            self.removed(&format!("{path}/requests"), &old.requests, &new.requests);
            self.list(&format!("{path}/claims"), &old.claims, &new.claims);
        }
    }

    /// Removes the keys that a map lost.
    fn removed<T>(&mut self, path: &str, before: &Option<BTreeMap<String, T>>, after: &Option<BTreeMap<String, T>>) {
        let Some(before) = before else { return };
        let stays = |key: &String| after.as_ref().is_some_and(|after| after.contains_key(key));
        for key in before.keys().filter(|key| !stays(key)) {
            self.push("remove", &format!("{path}/{}", part(key)), Value::Null);
        }
    }

    /// Changes a list. Nearly always, items are only appended.
    fn list<T: PartialEq + Serialize>(&mut self, path: &str, before: &Option<Vec<T>>, after: &Option<Vec<T>>) {
        if before == after {
            return;
        }
        match (before, after) {
            (Some(before), Some(after)) if after.starts_with(before) => {
                for item in &after[before.len()..] {
                    self.push("add", &format!("{path}/-"), json!(item));
                }
            }
            (_, Some(after)) => self.push("add", path, json!(after)),
            (_, None) => self.push("remove", path, Value::Null),
        }
    }
}
