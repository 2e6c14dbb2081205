//! Implements `vgpu translate`: pods of other systems of GPU sharing as pods with claims, and what is lost.
//!
//! ```text
//! files ─► documents ─► each pod, or a workload's pod template ─► vgpu_dialects ─► templates and objects on stdout
//!              │                                                       └─► what is lost, as sentences on stderr
//!              └─ ResourceSlices: the GPUs by which percent become bytes
//! ```
//!
//! Writes only to stdout and stderr, and reads only the named files. Objects are changed by the same JSON patch as in
//! the cluster, so that fields which this program does not know stay. Exit status 0: everything was translated, or
//! asks for nothing; 1: a pod is refused; 2: an error in the flags or in the input. A pod with a value of the wrong type, as a number where Kubernetes wants a text, is refused
//! like one that asks for what cannot be: the other objects of the input are printed.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use serde_json::{Map, Value, json};
use serde_path_to_error::{Path, Segment};
use vgpu_api::config::UnknownDialect;
use vgpu_dialects::{Dialect, Gpu, Inventory, Pod, Refusal, Request, ResourceNamesError, Settings};

use super::{OfflineError, documents, print, yaml};
use crate::exit;
use crate::flags::{ListFormat, TranslateFlags};

/// Lists in lists, as deep as for the other commands.
const MOST_LISTS: usize = 8;

#[derive(Debug, thiserror::Error)]
enum TranslateError {
    #[error("--dialects: {0}")]
    Dialect(#[from] UnknownDialect),
    #[error("--resource-names: {0}")]
    ResourceNames(#[from] ResourceNamesError),
    #[error("{file}: a document is not an object with apiVersion and kind")]
    NoObject { file: String },
    #[error("{file}: lists lie in lists more than {MOST_LISTS} deep")]
    TooDeep { file: String },
    #[error(transparent)]
    Offline(#[from] OfflineError),
}

impl From<documents::DocumentError> for TranslateError {
    fn from(error: documents::DocumentError) -> Self {
        Self::Offline(error.into())
    }
}

pub(crate) fn main(flags: &TranslateFlags) -> ExitCode {
    match run(flags) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(exit::REFUSED),
        Err(TranslateError::Offline(error)) if error.is_closed_pipe() => ExitCode::SUCCESS,
        Err(error) => {
            say(&error.to_string());
            ExitCode::from(exit::USAGE)
        }
    }
}

/// Errors are ignored: the reader of stderr may have closed it.
fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "vgpu translate: {line}");
}

/// Returns true if no pod is refused.
fn run(flags: &TranslateFlags) -> Result<bool, TranslateError> {
    let settings = settings(flags)?;
    let mut documents = Vec::new();
    for file in &flags.files {
        for document in documents::read(file)? {
            flatten(document, file, 0, &mut documents)?;
        }
    }
    let inventory = inventory(documents.iter().map(|(_, document)| document));
    let mut templates: BTreeMap<(String, String), Request> = BTreeMap::new();
    let mut objects = Vec::new();
    let mut all_translated = true;
    for (file, document) in documents.into_iter().filter(|(_, document)| !is_inventory(document)) {
        warn_of_kind(&document, &settings);
        match translated(&document, &settings) {
            Outcome::Unchanged => objects.push(document),
            Outcome::Unreadable(why) => {
                all_translated = false;
                say(&format!("{}: {}: {why}", file.display(), name_of(&document)));
            }
            Outcome::Refused(refusal) => {
                all_translated = false;
                say(&format!("{}: {refusal}", name_of(&document)));
            }
            Outcome::Translated { object, requests } => {
                let namespace = document["metadata"]["namespace"].as_str().unwrap_or_default();
                for (name, request) in requests {
                    templates.insert((namespace.to_owned(), name), request);
                }
                objects.push(object);
            }
        }
    }
    let mut all: Vec<Value> = Vec::new();
    for ((namespace, name), request) in templates {
        match vgpu_dialects::template(&request, &inventory) {
            Some(spec) => all.push(template_object(&namespace, &name, json!(spec))),
            None => say(&format!(
                "ResourceClaimTemplate {name}: depends on the memory of the GPUs, and no GPU that it allows is in the \
                 input; add the output of `kubectl get resourceslices -o yaml` by -f"
            )),
        }
    }
    all.extend(objects);
    print(&match flags.output {
        ListFormat::Json => format!("{:#}\n", json!({"apiVersion": "v1", "kind": "List", "items": all})),
        ListFormat::Yaml => {
            let texts: Result<Vec<String>, OfflineError> = all.iter().map(yaml).collect();
            texts?.join("---\n")
        }
    })?;
    Ok(all_translated)
}

fn settings(flags: &TranslateFlags) -> Result<Settings, TranslateError> {
    let mut settings = Settings {
        schedulers: flags.schedulers.iter().cloned().collect(),
        high_priority_class: flags.high_priority_class.clone(),
        limit_vcuda_cores: flags.limit_vcuda_cores,
        resource_names: vgpu_dialects::resource_names(&flags.resource_names)?,
        ..Settings::default()
    };
    if !flags.dialects.is_empty() {
        let parsed: Result<_, UnknownDialect> = flags.dialects.iter().map(|name| name.parse()).collect();
        settings.dialects = parsed?;
    }
    Ok(settings)
}

/// The objects of a document, in order.
fn flatten(
    mut document: Value,
    file: &PathBuf,
    depth: usize,
    into: &mut Vec<(PathBuf, Value)>,
) -> Result<(), TranslateError> {
    if document.is_null() {
        return Ok(()); // an empty document between two `---`
    }
    let file_name = || file.display().to_string();
    let Some(kind) = document.get("kind").and_then(Value::as_str) else {
        return Err(TranslateError::NoObject { file: file_name() });
    };
    if depth >= MOST_LISTS {
        return Err(TranslateError::TooDeep { file: file_name() });
    }
    if kind.ends_with("List") {
        if let Some(Value::Array(items)) = document.get_mut("items").map(Value::take) {
            for item in items {
                flatten(item, file, depth + 1, into)?;
            }
        }
        return Ok(());
    }
    into.push((file.clone(), document));
    Ok(())
}

/// `Deployment team/train`.
fn name_of(object: &Value) -> String {
    let kind = object["kind"].as_str().unwrap_or_default();
    let of = |field: &str| object["metadata"][field].as_str().unwrap_or_default();
    match (of("namespace"), of("name")) {
        ("", "") => format!("{kind} {}", of("generateName")),
        ("", name) => format!("{kind} {name}"),
        (namespace, name) => format!("{kind} {namespace}/{name}"),
    }
}

fn group_of(object: &Value) -> &str {
    let version = object["apiVersion"].as_str().unwrap_or_default();
    version.split_once('/').map_or("", |(group, _)| group)
}

/// Where the pod is in an object. `None` for an object without one.
fn pod_path(object: &Value) -> Option<&'static str> {
    Some(match (group_of(object), object["kind"].as_str()?) {
        ("", "Pod") => "",
        ("", "ReplicationController") => "/spec/template",
        ("apps", "Deployment" | "ReplicaSet" | "StatefulSet" | "DaemonSet") => "/spec/template",
        ("batch", "Job") => "/spec/template",
        ("batch", "CronJob") => "/spec/jobTemplate/spec/template",
        _ => return None,
    })
}

enum Outcome {
    Unchanged,
    Refused(Refusal),
    /// The field, its value and what to write instead.
    Unreadable(String),
    Translated {
        object: Value,
        requests: Vec<(String, Request)>,
    },
}

fn translated(object: &Value, settings: &Settings) -> Outcome {
    let Some((path, pod)) = pod_path(object).and_then(|path| Some((path, object.pointer(path)?))) else {
        return Outcome::Unchanged;
    };
    let pod = match read(path, pod) {
        Ok(pod) => pod,
        Err(why) => return Outcome::Unreadable(why),
    };
    for warning in vgpu_dialects::unread(&pod, settings) {
        say(&format!("{}: {warning}", name_of(object)));
    }
    let translation = match vgpu_dialects::translate(&pod, settings) {
        Ok(None) => return Outcome::Unchanged,
        Err(refusal) => return Outcome::Refused(refusal),
        Ok(Some(translation)) => translation,
    };
    for warning in &translation.warnings {
        say(&format!("{}: {warning}", name_of(object)));
    }
    let mut object = object.clone();
    for step in translation.patch.as_array().into_iter().flatten() {
        apply(&mut object, path, step);
    }
    let requests = translation.templates.into_iter();
    Outcome::Translated {
        object,
        requests: requests.map(|named| (named.name, named.request)).collect(),
    }
}

/// Reads a pod, or a workload's pod template. A number for an amount becomes a text, as in the API server.
/// `path` is where it is in its object.
fn read(path: &str, pod: &Value) -> Result<Pod, String> {
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": pod["metadata"], "spec": pod["spec"]});
    if pod["metadata"].is_null() {
        pod["metadata"] = json!({});
    }
    for kind in ["containers", "initContainers"] {
        let containers = pod["spec"].get_mut(kind).and_then(Value::as_array_mut);
        for container in containers.into_iter().flatten() {
            for amounts in ["limits", "requests"] {
                let pointer = format!("/resources/{amounts}");
                let amounts = container.pointer_mut(&pointer).and_then(Value::as_object_mut);
                for amount in amounts
                    .into_iter()
                    .flat_map(Map::values_mut)
                    .filter(|amount| amount.is_number())
                {
                    *amount = Value::String(amount.to_string());
                }
            }
        }
    }
    serde_path_to_error::deserialize(&pod)
        .map_err(|error| unreadable(path, &pod, error.path(), &error.inner().to_string()))
}

/// Names the field as the user's file has it, and says what to write in place of a number without quotes.
fn unreadable(path: &str, pod: &Value, of_pod: &Path, why: &str) -> String {
    let mut field: String = path.trim_start_matches('/').replace('/', ".");
    let mut value = pod;
    for segment in of_pod.iter() {
        match segment {
            Segment::Seq { index } => {
                field.push_str(&format!("[{index}]"));
                value = &value[*index];
            }
            Segment::Map { key } | Segment::Enum { variant: key } => {
                match key.contains(['.', '/']) {
                    true => field.push_str(&format!("[{key}]")),
                    false if field.is_empty() => field.push_str(key),
                    false => field.push_str(&format!(".{key}")),
                }
                value = &value[key.as_str()];
            }
            Segment::Unknown => {}
        }
    }
    if field.is_empty() {
        return format!("is not a pod that can be read: {why}");
    }
    let is_text_wanted = why.ends_with("expected a string");
    match value {
        Value::Number(_) | Value::Bool(_) if is_text_wanted => {
            format!("{field}: {value} is not a text; write it in quotes: \"{value}\"")
        }
        _ => format!("{field}: {}", vgpu_quantity::shortened(why)),
    }
}

/// Applies one step of a translation's patch below `path`: it adds to objects and to the ends of lists, and removes
/// keys of objects. An object on the way that is not there is made.
fn apply(object: &mut Value, path: &str, step: &Value) {
    let pointer = format!("{path}{}", step["path"].as_str().unwrap_or_default());
    let mut parts: Vec<String> = pointer
        .split('/')
        .skip(1)
        .map(|part| part.replace("~1", "/").replace("~0", "~"))
        .collect();
    let Some(last) = parts.pop() else { return };
    let mut at = object;
    for part in parts {
        if at.is_null() {
            *at = json!({});
        }
        at = match at {
            Value::Array(items) => match part.parse().ok().and_then(|index: usize| items.get_mut(index)) {
                Some(item) => item,
                None => return,
            },
            Value::Object(map) => map.entry(part).or_insert(Value::Null),
            _ => return,
        };
    }
    if at.is_null() {
        *at = json!({});
    }
    match at {
        Value::Array(items) => items.push(step["value"].clone()),
        Value::Object(map) if step["op"] == "remove" => drop(map.remove(&last)),
        Value::Object(map) => drop(map.insert(last, step["value"].clone())),
        _ => {}
    }
}

fn template_object(namespace: &str, name: &str, spec: Value) -> Value {
    let mut metadata = json!({ "name": name });
    if !namespace.is_empty() {
        metadata["namespace"] = json!(namespace);
    }
    let mut object = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": metadata});
    object["spec"] = spec;
    object
}

fn is_inventory(object: &Value) -> bool {
    group_of(object) == "resource.k8s.io" && object["kind"] == "ResourceSlice"
}

/// The GPUs in ResourceSlices of our driver.
fn inventory<'a>(documents: impl Iterator<Item = &'a Value>) -> Inventory {
    let slices =
        documents.filter(|document| is_inventory(document) && document["spec"]["driver"] == vgpu_api::DRIVER_NAME);
    let devices = slices.flat_map(|slice| slice["spec"]["devices"].as_array().into_iter().flatten());
    let gpu = |device: &Value| {
        let text = |name: &str| device["attributes"][name]["string"].as_str();
        let memory = device["capacity"][vgpu_api::capacity::MEMORY]["value"].as_str()?;
        (text(vgpu_api::device_type::ATTRIBUTE)? == vgpu_api::device_type::GPU).then_some(())?;
        Some(Gpu {
            uuid: text("uuid").unwrap_or_default().to_owned(),
            model: text("productName").unwrap_or_default().to_owned(),
            memory: vgpu_quantity::whole(memory)
                .ok()
                .and_then(|bytes| u64::try_from(bytes).ok())?,
        })
    };
    Inventory {
        gpus: devices.filter_map(gpu).collect(),
    }
}

/// Returns true if something in an object asks in a dialect: limits or requests, or annotations of a pod template.
fn asks(object: &Value, settings: &Settings) -> bool {
    let has = |map: &Value, keys: fn(Dialect) -> &'static [&'static str]| {
        let mut all = settings.dialects.iter().flat_map(|dialect| keys(*dialect));
        all.any(|key| {
            map.get(key).is_some()
                || settings
                    .resource_names
                    .chosen(&[*key])
                    .any(|key| map.get(key).is_some())
        })
    };
    match object {
        Value::Object(map) => map.iter().any(|(key, value)| match key.as_str() {
            "limits" | "requests" if has(value, vgpu_dialects::asking_resources) => true,
            "annotations" => has(value, vgpu_dialects::asking_annotations),
            _ => asks(value, settings),
        }),
        Value::Array(items) => items.iter().any(|item| asks(item, settings)),
        _ => false,
    }
}

/// Says what is lost with objects that are not pods.
fn warn_of_kind(object: &Value, settings: &Settings) {
    let name = name_of(object);
    match (group_of(object), object["kind"].as_str().unwrap_or_default()) {
        ("", "ResourceQuota") => {
            let hard = object["spec"]["hard"].as_object();
            for key in hard.into_iter().flat_map(Map::keys) {
                let resource = key
                    .split_once('.')
                    .filter(|(verb, _)| matches!(*verb, "limits" | "requests"));
                if resource
                    .is_some_and(|(_, resource)| vgpu_dialects::is_resource(settings.resource_names.known(resource)))
                {
                    say(&format!(
                        "{name}: spec.hard[{key}]: is lost: it counts 0 for translated pods; \
                         use requests of <class>.deviceclass.resource.k8s.io/devices"
                    ));
                }
            }
        }
        ("scheduling.volcano.sh" | "scheduling.run.ai" | "kai.scheduler", _) => {
            say(&format!(
                "{name}: is lost: kube-scheduler has no queues and gangs of Volcano or KAI; use Kueue"
            ));
        }
        ("batch.volcano.sh" | "flow.volcano.sh", _) => say(&format!(
            "{name}: is printed as it is: in the cluster its pods are translated when they are created, but not as a gang; use Kueue"
        )),
        _ if pod_path(object).is_none() && asks(object, settings) => say(&format!(
            "{name}: is printed as it is, for its kind is not known here: in the cluster its pods are translated when they are created"
        )),
        _ => {}
    }
}
