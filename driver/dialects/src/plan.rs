//! Records what the containers of a pod ask for: reads each container, checks its other fields, and gives each request
//! a claim.

use std::collections::{BTreeMap, BTreeSet};

use vgpu_api::config::Dialect;
use vgpu_quantity::{quoted, shortened};

use crate::keys::{DIALECTS, Kind, asks_by_resource, containers, is_removed, kai_annotations};
use crate::pod::{PodView, annotation_at};
use crate::problem::Problem;
use crate::record::{Asked, CLAIM_PREFIX, LONGEST, Record, TRANSLATED};
use crate::request::Request;
use crate::resources::Resources;
use crate::{gpu_manager, hami, kai, koordinator, unsupported, volcano, volcano_vgpu};

/// Names the claims in a pod of a dialect that are not for our GPUs, which avoids a warning: `nic,fpga`.
pub const OTHER_CLAIMS: &str = "dra.vgpu/other-claims";
/// The limit of containers with GPU requests in a pod. It bounds the webhook's work, and the annotation with the original
/// requests would hardly have room for more.
const ASKING_MAX: usize = 256;
/// Kubernetes' own resource for a device of a class.
const CLASS_RESOURCE: &str = "deviceclass.resource.kubernetes.io/";

/// What one container asks for, before claims have names.
struct Ask {
    kind: Kind,
    path: String,
    asked: Asked,
    request: Option<Request>,
}

/// Reads what every container asks, and gives each request a claim.
pub(crate) fn plan(view: &mut PodView<'_>, create: bool) -> Record {
    let asks = read(view);
    if asks.is_empty() {
        return Record::default();
    }
    let mut dialects: Vec<Dialect> = asks.iter().map(|ask| ask.asked.dialect).collect();
    dialects.sort_unstable();
    dialects.dedup();
    unsupported::warn_of_metadata(&dialects, view);
    check_spec(view, create);
    let mut record = Record {
        scheduler_name: scheduler(view),
        ..Record::default()
    };
    name_claims(asks, &mut record, view);
    warn_of_quotas(&record, view);
    if record.text().len() > LONGEST {
        let advice =
            format!("would have more than {LONGEST} bytes; ask for the same in more containers, or name fewer GPUs");
        view.findings.refuse(problem(annotation_at(TRANSLATED), advice));
    }
    record
}

fn read(view: &mut PodView<'_>) -> Vec<Ask> {
    let pod = view.pod;
    let mut kai = read_kai(view);
    let others: BTreeSet<&str> = view
        .annotation(OTHER_CLAIMS)
        .unwrap_or_default()
        .split(',')
        .map(str::trim)
        .collect();
    let mut asks = Vec::new();
    let mut asking = 0;
    for (kind, container) in containers(pod, view.settings) {
        let name = container.container.name.as_str();
        let kai = kai.take_if(|(of, ..)| *of == name);
        let found = dialects_of(&container, kai.is_some(), view);
        asking += usize::from(!found.is_empty());
        if asking > ASKING_MAX {
            // Inserted at the front, because the end of the list of problems may be cut off.
            let advice = format!("more than {ASKING_MAX} containers ask for GPUs; divide them among several pods");
            view.findings.problems.insert(0, problem("spec", advice));
            break;
        }
        let dialect = match found[..] {
            [] => continue,
            [dialect] => dialect,
            [first, second, ..] => {
                let advice = format!(
                    "container {} asks in two dialects, {first} and {second}; keep one of them",
                    quoted(name)
                );
                view.findings
                    .refuse(problem(format!("{}.resources", container.path), advice));
                continue;
            }
        };
        check_container(&container, &others, view);
        unsupported::warn_of_resources(dialect, &container, view);
        let (request, annotations) = match kai {
            Some((_, request, annotations)) => (Some(request), annotations),
            None => (read_resources(dialect, &container, view), BTreeMap::new()),
        };
        asks.push(Ask {
            kind,
            request,
            asked: Asked {
                name: name.to_owned(),
                dialect,
                limits: container.entries(true, |name| is_removed(dialect, name)),
                requests: container.entries(false, |name| is_removed(dialect, name)),
                annotations,
                claim: None,
                template: None,
            },
            path: container.path,
        });
    }
    asks
}

/// The container that KAI's annotations name, its request, and the annotations.
fn read_kai<'a>(view: &mut PodView<'a>) -> Option<(&'a str, Request, BTreeMap<String, String>)> {
    let (pod, settings) = (view.pod, view.settings);
    let annotations = kai_annotations(pod, settings);
    if annotations.is_empty() {
        return None;
    }
    let resources = containers(pod, settings).into_iter();
    let resources: Vec<Resources<'_>> = resources.map(|(_, container)| container).collect();
    let first = pod.spec.as_ref().and_then(|spec| spec.containers.first());
    let first = first.map_or("", |container| container.name.as_str());
    let (name, request) = kai::read(&resources, first, view)?;
    Some((name, request, annotations))
}

/// The dialects that a container uses.
fn dialects_of(container: &Resources<'_>, by_kai: bool, view: &PodView<'_>) -> Vec<Dialect> {
    let reads = |dialect: Dialect| view.settings.reads(dialect);
    let asking = DIALECTS.iter().map(|(dialect, ..)| *dialect);
    let asking =
        asking.filter(|dialect| reads(*dialect) && container.asks_where(|name| asks_by_resource(*dialect, name)));
    asking.chain(by_kai.then_some(Dialect::Kai)).collect()
}

fn problem(field: impl Into<String>, advice: String) -> Problem {
    Problem {
        field: field.into(),
        value: None,
        advice,
    }
}

fn read_resources(dialect: Dialect, container: &Resources<'_>, view: &mut PodView<'_>) -> Option<Request> {
    match dialect {
        Dialect::Hami => hami::read(container, view),
        Dialect::Koordinator => koordinator::read(container, view),
        Dialect::Volcano => volcano::read(container, view),
        Dialect::VolcanoVgpu => volcano_vgpu::read(container, view),
        Dialect::GpuManager => gpu_manager::read(container, view),
        Dialect::Kai => None, // its annotations are the pod's
    }
}

/// Checks the container's other fields.
fn check_container(container: &Resources<'_>, others: &BTreeSet<&str>, view: &mut PodView<'_>) {
    let security = container.container.security_context.as_ref();
    if security.and_then(|security| security.privileged) == Some(true) {
        view.findings.refuse(Problem::invalid(
            format!("{}.securityContext.privileged", container.path),
            "true",
            "no limit holds in a privileged container, which sees every GPU of the node; remove it, or the GPU resources",
        ));
    }
    for (first, second) in container.doubles() {
        view.findings.refuse(Problem::invalid(
            container.place(second),
            container.value(second),
            format!("asks for the same as {first}; remove one of them"),
        ));
    }
    let resources = container.container.resources.as_ref();
    let claims = resources.and_then(|resources| resources.claims.as_ref());
    // Only the claim's name is known here; its devices may be another driver's.
    let mut unnamed = claims.into_iter().flatten().enumerate();
    if let Some((at, claim)) = unnamed.find(|(_, claim)| !others.contains(claim.name.as_str())) {
        let text = format!(
            "{} stays; if it is for GPUs of this driver too, the container has those beside the ones for which its \
             resources ask. The annotation {OTHER_CLAIMS}, with the names of claims for other devices, says that it is not",
            quoted(&claim.name)
        );
        let field = format!("{}.resources.claims[{at}].name", container.path);
        view.findings.warn(field, text);
    }
    for key in container.keys() {
        if let Some(class) = key.strip_prefix(CLASS_RESOURCE)
            && view.settings.is_our_class(class)
        {
            let advice = "asks for a GPU beside a dialect's resources; remove one of them";
            view.findings
                .refuse(Problem::invalid(container.place(key), container.value(key), advice));
        }
    }
}

/// Checks fields that a pod with claims must not have.
fn check_spec(view: &mut PodView<'_>, create: bool) {
    let spec = view.pod.spec.as_ref();
    let node = spec.and_then(|spec| spec.node_name.as_deref()).unwrap_or_default();
    if create && !node.is_empty() {
        view.findings.refuse(Problem::invalid(
            "spec.nodeName",
            node,
            "no scheduler sees such a pod, so it gets no GPU; remove it, and choose the node by nodeSelector or affinity",
        ));
    }
}

/// The scheduler named by the pod, if kube-scheduler replaces it.
fn scheduler(view: &mut PodView<'_>) -> Option<String> {
    let name = view.other_scheduler()?;
    if !view.keeps_scheduler() {
        return Some(name.to_owned());
    }
    let text = format!(
        "{} stays; it must allocate ResourceClaims. To give the pod to kube-scheduler, add it to translate.schedulers",
        quoted(name)
    );
    view.findings.warn("spec.schedulerName", text);
    None
}

/// Gives each request a claim. Init containers run one after the other and before the app containers, so that they
/// can use one claim; everything else runs at once.
fn name_claims(asks: Vec<Ask>, record: &mut Record, view: &mut PodView<'_>) {
    let taken: BTreeSet<&str> = view
        .pod
        .spec
        .iter()
        .flat_map(|spec| spec.resource_claims.iter().flatten())
        .map(|claim| claim.name.as_str())
        .collect();
    let mut names = (0..).map(|number| format!("{CLAIM_PREFIX}{number}"));
    let mut free = || names.find(|name| !taken.contains(name.as_str()));
    // The claims of app containers first, for init containers to use.
    let mut app: Vec<(&Request, String)> = Vec::new();
    let mut claims: Vec<Option<String>> = vec![None; asks.len()];
    for (at, ask) in asks.iter().enumerate().filter(|(_, ask)| ask.kind != Kind::Init) {
        if let Some(request) = &ask.request {
            claims[at] = free();
            if let (Kind::App, Some(claim)) = (ask.kind, &claims[at]) {
                app.push((request, claim.clone()));
            }
        }
    }
    let mut init: Vec<(&Request, String)> = Vec::new();
    for (at, ask) in asks.iter().enumerate().filter(|(_, ask)| ask.kind == Kind::Init) {
        let Some(request) = &ask.request else { continue };
        let known = app.iter().chain(&init).find(|(other, _)| *other == request);
        claims[at] = match known {
            Some((_, claim)) => Some(claim.clone()),
            None => {
                let claim = free();
                init.extend(claim.clone().map(|claim| (request, claim)));
                view.findings.warn(
                    format!("{}.resources", ask.path),
                    "no app container asks for the same, so these GPUs stay allocated as long as the pod, beside those of the app containers; \
                     ask for the same in both to use one share",
                );
                claim
            }
        };
    }
    drop((app, init));
    for (ask, claim) in asks.into_iter().zip(claims) {
        let mut asked = ask.asked;
        if let (Some(request), Some(claim)) = (ask.request, claim) {
            let name = request.name();
            asked.template = Some(name.clone());
            asked.claim = Some(claim);
            record.requests.insert(name, request);
        }
        record.containers.push(asked);
    }
}

/// ResourceQuotas count what a pod asks for after admission.
fn warn_of_quotas(record: &Record, view: &mut PodView<'_>) {
    let mut keys: Vec<&str> = record
        .containers
        .iter()
        .flat_map(|asked| asked.limits.keys())
        .map(String::as_str)
        .collect();
    keys.sort_unstable();
    keys.dedup();
    if let Some(first) = keys.first() {
        let text = format!(
            "ResourceQuotas for {} count 0 for this pod; use requests of <class>.deviceclass.resource.k8s.io/devices",
            shortened(first)
        );
        view.findings.warn("spec", text);
    }
}
