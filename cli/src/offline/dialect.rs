//! Pods that ask for a GPU by the resources of another system, for `vgpu explain`.

use std::collections::BTreeSet;

use vgpu_allocator::offline::{Objects, Subject};
use vgpu_dialects::{Dialect, asking_annotations, asking_resources};

/// Why nothing here serves the pod, if it has no claims and asks by another system's resources or annotations.
pub(super) fn asks(objects: &Objects, subject: &Subject) -> Option<String> {
    let key = subject.pod()?;
    let pod = objects.pod(&key)?;
    let has_claims = pod["spec"]["resourceClaims"]
        .as_array()
        .is_some_and(|claims| !claims.is_empty());
    if has_claims || pod["status"]["extendedResourceClaimStatus"].is_object() {
        return None;
    }
    let of_all = |keys: fn(Dialect) -> &'static [&'static str]| Dialect::ALL.into_iter().flat_map(keys).copied();
    let (resources, annotations): (BTreeSet<&str>, BTreeSet<&str>) =
        (of_all(asking_resources).collect(), of_all(asking_annotations).collect());
    let containers = ["containers", "initContainers"].into_iter();
    let containers = containers.flat_map(|field| pod["spec"][field].as_array().into_iter().flatten());
    let amounts = containers.flat_map(|container| {
        let fields = ["limits", "requests"].into_iter();
        fields.flat_map(|field| container["resources"][field].as_object().into_iter().flatten())
    });
    let asked = amounts
        .map(|(name, _)| name.as_str())
        .filter(|name| resources.contains(name));
    let noted = pod["metadata"]["annotations"].as_object().into_iter().flatten();
    let noted = noted
        .map(|(name, _)| name.as_str())
        .filter(|name| annotations.contains(name));
    let found: BTreeSet<&str> = asked.chain(noted).collect();
    if found.is_empty() {
        return None;
    }
    let names: Vec<&str> = found.into_iter().collect();
    let namespace = pod["metadata"]["namespace"].as_str().unwrap_or("default");
    Some(format!(
        "it asks by {} and has no claim, so dra.vgpu gives it nothing: pods of namespace {namespace} are translated only if \
         the chart's translate.dialects has that dialect and the namespace the label (kubectl label namespace {namespace} \
         dra.vgpu/translate=true); then create the pod again. Or ask by a claim of class vgpu",
        names.join(", ")
    ))
}
