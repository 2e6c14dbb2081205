//! Implements `vgpu fit`: how many pods of a workload would have devices now.

use std::process::ExitCode;

use serde_json::{Value, json};
use vgpu_allocator::model::ClaimSpec;
use vgpu_allocator::offline::Options;
use vgpu_api::decode::decode;
use vgpu_planner::explain::{Fit, fit};

use super::documents::{Documents, Object};
use super::seen::Seen;
use super::workload::{Templates, pod_path, workload};
use super::{OfflineError, features, now, objects, print, say, status, yaml};
use crate::cluster::{Cluster, ReadError};
use crate::exit;
use crate::flags::{AnswerFormat, FitFlags};

pub(crate) fn main(flags: &FitFlags) -> ExitCode {
    match run(flags) {
        Ok(code) => code,
        Err(error) => {
            say("fit", error);
            ExitCode::from(exit::USAGE)
        }
    }
}

fn run(flags: &FitFlags) -> Result<ExitCode, OfflineError> {
    let documents = Documents::read(&flags.files)?;
    let has_nodes = documents.objects.iter().any(|object| object.value["kind"] == "Node");
    let (mut known, namespace) = match has_nodes {
        true => (
            Documents::default(),
            flags.look.namespace.clone().unwrap_or_else(|| "default".to_owned()),
        ),
        // Errors in the files are reported even if the user lacks rights in the cluster.
        false => of_cluster(flags).inspect_err(|_| mistakes(&documents).iter().for_each(|line| say("fit", line)))?,
    };
    let mut failed = documents.failed.clone();
    let workloads: Vec<Object> = documents
        .objects
        .iter()
        .filter(|object| is_workload(object))
        .cloned()
        .collect();
    // The files' objects come last, so they replace the cluster's objects of the same name.
    known
        .objects
        .extend(documents.objects.into_iter().filter(|object| !is_workload(object)));
    let templates = Templates::of(known.objects.iter().filter(|object| is_template(object)), &namespace);
    known.objects.retain(|object| !is_template(object));
    let (objects, unread) = objects(known);
    failed.extend(unread);
    let options = Options {
        node: flags.look.node.clone(),
        features: features(&flags.look.feature_gates)?,
        ..Options::default()
    };
    let (mut answers, mut all_fit) = (Vec::new(), true);
    for object in &workloads {
        let name = object.name();
        match workload(object, &templates, &namespace) {
            Ok(workload) => {
                let found = fit(&objects, &workload, &options, now())?;
                all_fit &= found.fits == found.pods;
                answers.push((name, found));
            }
            Err(why) => failed.push(format!("{}: {name}: {why}", object.place.origin)),
        }
    }
    if workloads.is_empty() {
        failed.push("no Pod, Deployment, StatefulSet, ReplicaSet, Job or CronJob is in the files".to_owned());
    }
    failed.iter().for_each(|line| say("fit", line));
    print(&match flags.look.output {
        AnswerFormat::Text => answers.iter().map(text).collect(),
        AnswerFormat::Json => format!("{:#}\n", document(&answers)),
        AnswerFormat::Yaml => yaml(&document(&answers))?,
    })?;
    Ok(status(&failed, all_fit))
}

/// The cluster's objects, and the context's namespace.
fn of_cluster(flags: &FitFlags) -> Result<(Documents, String), OfflineError> {
    let cluster = Cluster::connect(&flags.look.cluster, flags.look.namespace.as_deref())?;
    let mut documents = Documents::default();
    let seen = Seen::read(&cluster, Some(cluster.namespace()), &[])?;
    if !seen.missing.is_empty() {
        return Err(ReadError::all(seen.missing).into());
    }
    seen.lists.into_iter().for_each(|list| documents.add_list(list));
    Ok((documents, cluster.namespace().to_owned()))
}

/// The documents, and the templates in them, that cannot be read.
fn mistakes(documents: &Documents) -> Vec<String> {
    let templates = documents.objects.iter().filter(|object| is_template(object));
    let of = |object: &Object| {
        let error = decode::<ClaimSpec>(&object.value["spec"]["spec"]).err()?;
        Some(format!("{}: {}: spec.spec.{error}", object.place.origin, object.name()))
    };
    documents
        .failed
        .iter()
        .cloned()
        .chain(templates.filter_map(of))
        .collect()
}

fn is_template(object: &Object) -> bool {
    object.value["kind"] == "ResourceClaimTemplate"
}

/// Returns true for a pod or an object with a pod template: it is to be fitted, and is not part of the cluster.
fn is_workload(object: &Object) -> bool {
    pod_path(&object.value).is_some()
}

fn text((name, found): &(String, Fit)) -> String {
    let nodes: Vec<String> = found
        .nodes
        .iter()
        .map(|(node, pods)| format!("{pods} on {node}"))
        .collect();
    let nodes = match nodes.is_empty() {
        true => String::new(),
        false => format!(": {}", nodes.join(", ")),
    };
    let why: String = found
        .summary
        .iter()
        .map(|line| format!("  the next one: {line}\n"))
        .collect();
    format!("{name}: {} of {} pods fit now{nodes}\n{why}", found.fits, found.pods)
}

fn document(answers: &[(String, Fit)]) -> Value {
    let workloads = answers.iter().map(|(name, found)| json!({"name": name, "fit": found}));
    json!({"workloads": workloads.collect::<Vec<_>>()})
}
