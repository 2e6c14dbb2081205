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
//! asks for nothing; 1: a pod is refused, or has a value that cannot be read; 2: an error in the flags, or a document
//! that is no object. The other objects of the input are printed in each case but that of the flags.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::process::ExitCode;

use serde_json::{Map, Value, json};
use vgpu_api::config::UnknownDialect;
use vgpu_dialects::{Gpu, Inventory, Pod, Request, ResourceNamesError, ResourceSlice, Settings};

use super::dialect::asking;
use super::documents::{Documents, FileError, Object};
use super::workload::{group_of, pod_path};
use super::{OfflineError, print, status, yaml};
use crate::exit;
use crate::flags::{ListFormat, TranslateFlags};

#[derive(Debug, thiserror::Error)]
enum TranslateError {
    #[error("--dialects: {0}")]
    Dialect(#[from] UnknownDialect),
    #[error("--resource-names: {0}")]
    ResourceNames(#[from] ResourceNamesError),
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Offline(#[from] OfflineError),
}

pub(crate) fn main(flags: &TranslateFlags) -> ExitCode {
    match run(flags) {
        Ok(code) => code,
        Err(error) => {
            say(&error.to_string());
            ExitCode::from(exit::USAGE)
        }
    }
}

fn say(line: &str) {
    super::say("translate", line);
}

fn run(flags: &TranslateFlags) -> Result<ExitCode, TranslateError> {
    let settings = settings(flags)?;
    let documents = Documents::read(&flags.files)?;
    documents.failed.iter().for_each(|line| say(line));
    let (slices, objects): (Vec<&Object>, Vec<&Object>) = documents.objects.iter().partition(|object| is_slice(object));
    let mut translated = Translated::default();
    let inventory = translated.inventory(&slices);
    for object in objects {
        warn_of_kind(object, &settings);
        translated.add(object, &settings);
    }
    let mut all = translated.templates(&inventory);
    all.append(&mut translated.objects);
    print(&match flags.output {
        ListFormat::Json => format!("{:#}\n", json!({"apiVersion": "v1", "kind": "List", "items": all})),
        ListFormat::Yaml => {
            let texts: Result<Vec<String>, OfflineError> = all.iter().map(yaml).collect();
            texts?.join("---\n")
        }
    })?;
    Ok(status(&documents.failed, !translated.is_any_refused))
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

/// The objects to print, and the requests of their pods.
#[derive(Default)]
struct Translated {
    objects: Vec<Value>,
    /// By namespace and name.
    requests: BTreeMap<(String, String), Request>,
    is_any_refused: bool,
}

impl Translated {
    fn add(&mut self, object: &Object, settings: &Settings) {
        let path = pod_path(&object.value).filter(|path| object.value.pointer(path).is_some());
        let Some(path) = path else {
            return self.objects.push(object.value.clone());
        };
        let pod: Pod = match object.decode(path) {
            Ok(pod) => pod,
            Err(error) => return self.refuse(&object.blame(error)),
        };
        let name = object.name();
        for warning in vgpu_dialects::unread(&pod, settings) {
            say(&format!("{name}: {warning}"));
        }
        let translation = match vgpu_dialects::translate(&pod, settings) {
            Ok(None) => return self.objects.push(object.value.clone()),
            Err(refusal) => return self.refuse(&format!("{name}: {refusal}")),
            Ok(Some(translation)) => translation,
        };
        for warning in &translation.warnings {
            say(&format!("{name}: {warning}"));
        }
        let mut value = object.value.clone();
        for step in translation.patch.as_array().into_iter().flatten() {
            apply(&mut value, path, step);
        }
        self.objects.push(value);
        let namespace = object.value["metadata"]["namespace"].as_str().unwrap_or_default();
        let requests = translation.templates.into_iter();
        self.requests
            .extend(requests.map(|named| ((namespace.to_owned(), named.name), named.request)));
    }

    fn refuse(&mut self, line: &str) {
        say(line);
        self.is_any_refused = true;
    }

    /// The GPUs in ResourceSlices of our driver.
    fn inventory(&mut self, slices: &[&Object]) -> Inventory {
        let mut inventory = Inventory::default();
        for object in slices {
            match object.decode::<ResourceSlice>("") {
                Ok(slice) if slice.spec.driver == vgpu_api::DRIVER_NAME => {
                    let devices = slice.spec.devices.iter().flatten();
                    inventory.gpus.extend(devices.filter_map(Gpu::of_device));
                }
                Ok(_) => {}
                Err(error) => self.refuse(&object.blame(error)),
            }
        }
        inventory
    }

    /// The templates of the pods that were translated.
    fn templates(&self, inventory: &Inventory) -> Vec<Value> {
        let template = |((namespace, name), request): (&(String, String), &Request)| {
            let spec = vgpu_dialects::template(request, inventory);
            if spec.is_none() {
                say(&format!(
                    "ResourceClaimTemplate {name}: depends on the memory of the GPUs, and no GPU that it allows is in \
                     the input; add the output of `kubectl get resourceslices -o yaml` by -f"
                ));
            }
            Some(template_object(namespace, name, json!(spec?)))
        };
        self.requests.iter().filter_map(template).collect()
    }
}

/// Applies one step of a translation's patch below `path`: it adds to objects and to the ends of lists, and removes
/// keys of objects. Missing objects on the path are created.
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

fn is_slice(object: &Object) -> bool {
    group_of(&object.value) == "resource.k8s.io" && object.value["kind"] == "ResourceSlice"
}

/// Says what is lost with objects that are not pods.
fn warn_of_kind(object: &Object, settings: &Settings) {
    let name = object.name();
    let object = &object.value;
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
        _ if pod_path(object).is_none() && !asking(object, settings).is_empty() => say(&format!(
            "{name}: is printed as it is, for its kind is not known here: in the cluster its pods are translated when they are created"
        )),
        _ => {}
    }
}
