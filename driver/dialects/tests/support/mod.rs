//! Pods in YAML, and what a translation made of them.
#![allow(dead_code)] // each test file uses some of it

pub(crate) mod invariants;

use k8s_openapi::api::core::v1::{Container, Pod};
use serde_json::{Value, json};
use vgpu_dialects::{Record, Refusal, Request, Settings, Translation};

/// Rows of a text, with their cells separated by `|`.
pub(crate) fn rows<const N: usize>(text: &str) -> impl Iterator<Item = [&str; N]> {
    let lines = text.lines().filter(|line| !line.is_empty());
    lines.map(|line| {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        cells.try_into().unwrap_or_else(|_| panic!("not {N} cells: {line}"))
    })
}

/// The object made from `KEY=VALUE` words, with strings as values.
pub(crate) fn amounts(text: &str) -> Value {
    let pairs = text.split_whitespace();
    pairs
        .map(|pair| pair.split_once('=').unwrap_or_else(|| panic!("no value: {pair}")))
        .map(|(key, value)| (key.to_owned(), json!(value)))
        .collect()
}

/// A pod with one container, `main`, that has these limits.
pub(crate) fn limits(limits: Value) -> Pod {
    pod(json!({}), limits)
}

/// Like [`limits`], with metadata.
pub(crate) fn pod(metadata: Value, limits: Value) -> Pod {
    let mut metadata = metadata;
    metadata["name"] = json!("p");
    read(json!({
        "metadata": metadata,
        "spec": {"containers": [{"name": "main", "image": "i", "resources": {"limits": limits}}]},
    }))
}

pub(crate) fn annotated(key: &str, value: &str, limits: Value) -> Pod {
    pod(json!({"annotations": {key: value}}), limits)
}

pub(crate) fn read(mut value: Value) -> Pod {
    texts(&mut value);
    serde_json::from_value(value).unwrap()
}

/// Quantities may be numbers in a manifest; the API server makes texts of them.
pub(crate) fn texts(value: &mut Value) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                let amounts = matches!(key.as_str(), "limits" | "requests");
                if let (true, Value::Object(amounts)) = (amounts, &mut *value) {
                    for amount in amounts.values_mut().filter(|amount| amount.is_number()) {
                        *amount = json!(amount.to_string());
                    }
                }
                texts(value);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(texts),
        _ => {}
    }
}

pub(crate) fn translated(pod: &Pod) -> Translation {
    with(pod, &Settings::default())
}

pub(crate) fn with(pod: &Pod, settings: &Settings) -> Translation {
    match vgpu_dialects::translate(pod, settings) {
        Ok(Some(translation)) => translation,
        other => panic!("not translated: {other:?}"),
    }
}

pub(crate) fn refused(pod: &Pod) -> Refusal {
    match vgpu_dialects::translate(pod, &Settings::default()) {
        Err(refusal) => refusal,
        other => panic!("not refused: {other:?}"),
    }
}

/// The request of container `main`.
pub(crate) fn request(translation: &Translation) -> Request {
    request_of(translation, "main").expect("container main has a request")
}

pub(crate) fn request_of(translation: &Translation, container: &str) -> Option<Request> {
    let record = Record::of(&translation.pod).unwrap().unwrap();
    record.request(container).cloned()
}

pub(crate) fn warnings(translation: &Translation) -> String {
    let warnings: Vec<String> = translation.warnings.iter().map(ToString::to_string).collect();
    warnings.join("\n")
}

pub(crate) fn container<'a>(pod: &'a Pod, name: &str) -> &'a Container {
    let spec = pod.spec.as_ref().unwrap();
    let mut all = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    all.find(|container| container.name == name).unwrap()
}

/// The names of a container's claims.
pub(crate) fn claims(pod: &Pod, name: &str) -> Vec<String> {
    let resources = container(pod, name).resources.clone().unwrap_or_default();
    resources
        .claims
        .unwrap_or_default()
        .into_iter()
        .map(|claim| claim.name)
        .collect()
}

/// Applies a JSON patch, of which translations use add and remove.
pub(crate) fn patched(before: &Pod, patch: &Value) -> Pod {
    let mut value = serde_json::to_value(before).unwrap();
    for step in patch.as_array().unwrap() {
        let path = step["path"].as_str().unwrap();
        let (parent, last) = path.rsplit_once('/').unwrap();
        let last = last.replace("~1", "/").replace("~0", "~");
        let parent = value
            .pointer_mut(parent)
            .unwrap_or_else(|| panic!("{path} has no parent"));
        match (step["op"].as_str().unwrap(), parent) {
            ("add", Value::Object(map)) => drop(map.insert(last, step["value"].clone())),
            ("add", Value::Array(items)) if last == "-" => items.push(step["value"].clone()),
            ("remove", Value::Object(map)) => drop(map.remove(&last).expect(path)),
            (op, _) => panic!("{op} {path}"),
        }
    }
    serde_json::from_value(value).unwrap()
}
