//! The answer about a ResourceClaimTemplate: whether a claim of it is well formed and would fit, and which pods use it.

use serde_json::{Value, json};
use vgpu_allocator::offline::Options;
use vgpu_planner::explain::{Explainer, Explanation, Lines, Requested, Subject};

use super::super::{OfflineError, now};
use super::answer::{namespace_of, not_known};
use super::asked::{AskedError, nearest};
use super::known::Known;
use super::told::{Told, shortened};

/// The most pods to name.
const NAMES: usize = 3;

/// Explains a template with a claim as the template would make it.
pub(super) fn of(known: &mut Known, name: &str, options: &Options, most: usize) -> Result<Told, OfflineError> {
    let template = find(known, name)?;
    let namespace = namespace_of(&template).to_owned();
    // No claim has such a name, so it is not one of the cluster's.
    let claim = format!("made from {name}");
    let made = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": {"name": claim, "namespace": namespace}, "spec": template["spec"]["spec"]});
    let mut explanation = match known.objects.add(made, "the template") {
        Ok(()) => explain(known, &claim, &namespace, options)?,
        Err(why) => malformed(&why.to_string()),
    };
    explanation.subject = format!("template {namespace}/{name}");
    explanation.kind = "template";
    (explanation.namespace, explanation.name) = (namespace, name.to_owned());
    let users = users(known, name);
    let Lines { answer, details } = explanation.lines();
    let mut lines: Vec<String> = explanation.requested.iter().map(request).collect();
    lines.insert(0, used_by(&explanation.subject, &users));
    lines.extend(
        answer
            .into_iter()
            .filter(|_| known.knows_devices() || !explanation.obstacles.is_empty()),
    );
    let ends: Vec<String> = not_known(&known.unknown).into_iter().collect();
    // Cannot fail: it has only texts, lists and numbers.
    let mut document = serde_json::to_value(&explanation).unwrap_or_default();
    document["pods"] = json!(users);
    document["unknown"] = json!(known.unknown);
    Ok(Told {
        lines: shortened(lines, details, ends, most),
        document,
        is_yes: explanation.fits(),
    })
}

fn find(known: &Known, name: &str) -> Result<Value, OfflineError> {
    let templates = known.others("ResourceClaimTemplate").map(|object| &object.value);
    let here: Vec<&Value> = templates
        .filter(|template| known.is_here(namespace_of(template)))
        .collect();
    let found = here.iter().find(|template| template["metadata"]["name"] == name);
    found.map(|template| (*template).clone()).ok_or_else(|| {
        let names = here.iter().filter_map(|template| template["metadata"]["name"].as_str());
        let error = AskedError::NotFound {
            kind: "template".to_owned(),
            name: name.to_owned(),
            namespace: known.one_namespace().to_owned(),
            meant: nearest(name, names),
            hint: known.hint(),
        };
        error.into()
    })
}

fn explain(known: &Known, claim: &str, namespace: &str, options: &Options) -> Result<Explanation, OfflineError> {
    let subject = Subject::parse(&format!("claim/{claim}"), namespace)?;
    let mut explainer = Explainer::new(&known.objects, options, now());
    Ok(match known.knows_devices() {
        true => explainer.explain(&subject)?,
        false => explainer.outline(&subject)?,
    })
}

fn malformed(why: &str) -> Explanation {
    let mut explanation = Explanation::default();
    explanation.add("ClaimMistake", format!("spec.{why}"));
    explanation
}

/// The pods that name the template.
fn users(known: &Known, name: &str) -> Vec<String> {
    let names = |pod: &&Value| {
        let entries = pod["spec"]["resourceClaims"].as_array();
        let names = |entries: &Vec<Value>| entries.iter().any(|entry| entry["resourceClaimTemplateName"] == name);
        known.is_here(namespace_of(pod)) && entries.is_some_and(names)
    };
    let pods = known.objects.pods().filter(names);
    pods.filter_map(|pod| pod["metadata"]["name"].as_str())
        .map(str::to_owned)
        .collect()
}

fn used_by(subject: &str, users: &[String]) -> String {
    let named = users[..users.len().min(NAMES)].join(", ");
    match users.len().saturating_sub(NAMES) {
        0 if users.is_empty() => format!("{subject} is used by no pod"),
        0 => format!("{subject} is used by {named}"),
        more => format!("{subject} is used by {named} and {more} more pods"),
    }
}

fn request(asked: &Requested) -> String {
    let count = asked.count.map_or_else(|| "all".to_owned(), |count| count.to_string());
    let amount = |name: &str, amount: &Option<String>| amount.as_ref().map(|amount| format!(", {name} {amount}"));
    let [memory, cores] = [("memory", &asked.memory), ("cores", &asked.cores)]
        .map(|(name, known)| amount(name, known).unwrap_or_default());
    format!(
        "  request {}: {count} of class {}{memory}{cores}",
        asked.request, asked.class
    )
}
