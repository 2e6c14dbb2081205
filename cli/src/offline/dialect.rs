//! Resources and annotations by which objects written for other systems ask for a GPU.

use std::collections::BTreeSet;

use serde_json::Value;
use vgpu_dialects::{Dialect, Settings, asks_by_annotation, asks_by_resource};
use vgpu_planner::Obstacle;

/// Returns the names in the limits, requests and annotations of an object that ask for a GPU, wherever its pods are.
pub(super) fn asking<'v>(object: &'v Value, settings: &Settings) -> BTreeSet<&'v str> {
    match object {
        Value::Object(map) => map
            .iter()
            .flat_map(|(key, value)| match key.as_str() {
                "limits" | "requests" => named(value, settings, asks_by_resource),
                "annotations" => named(value, settings, asks_by_annotation),
                _ => asking(value, settings),
            })
            .collect(),
        Value::Array(items) => items.iter().flat_map(|item| asking(item, settings)).collect(),
        _ => BTreeSet::new(),
    }
}

fn named<'v>(map: &'v Value, settings: &Settings, asks_by: fn(Dialect, &str) -> bool) -> BTreeSet<&'v str> {
    let asks = |name: &&str| {
        let known = settings.resource_names.known(name);
        let mut dialects = settings.dialects.iter();
        dialects.any(|dialect| asks_by(*dialect, name) || asks_by(*dialect, known))
    };
    let names = map.as_object().into_iter().flat_map(|map| map.keys());
    names.map(String::as_str).filter(asks).collect()
}

/// For `vgpu explain`: the reason why a pod gets nothing here if it has no claims but asks by another system's names.
pub(super) fn asks(pod: &Value) -> Option<Obstacle> {
    let has_claims = pod["spec"]["resourceClaims"]
        .as_array()
        .is_some_and(|claims| !claims.is_empty());
    let found: Vec<&str> = asking(pod, &Settings::default()).into_iter().collect();
    if has_claims || found.is_empty() || pod["status"]["extendedResourceClaimStatus"].is_object() {
        return None;
    }
    Some(Obstacle::Untranslated {
        names: found.into_iter().map(str::to_owned).collect(),
        namespace: pod["metadata"]["namespace"].as_str().unwrap_or("default").to_owned(),
    })
}
