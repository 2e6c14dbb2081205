//! The translation itself.
//!
//! ```text
//!  pod ─undo─► the pod as its author wrote it ─plan─► Record ─apply─► the translated pod
//! ```
//!
//! A pod may come a second time: the API server calls a webhook again after others, and `kubectl apply` adds the
//! limits of the manifest to the translated pod. So a translation is undone first, by its record, and a pod in which
//! nothing of a dialect is left stays as it is.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod, PodResourceClaim, ResourceClaim};
use vgpu_api::config::Dialect;
use vgpu_quantity::{quoted, shortened};

use crate::pod::{PodView, annotation_at};
use crate::problem::{Problem, Refusal, Warning};
use crate::record::{Asked, CLAIM_PREFIX, LONGEST, Record, TRANSLATED};
use crate::request::Request;
use crate::resources::{Findings, Resources};
use crate::settings::Settings;
use crate::translation::Translation;
use crate::{gpu_manager, hami, kai, koordinator, lost, patch, volcano, volcano_vgpu};

/// The label with which HAMi's users opt a pod out.
const HAMI_WEBHOOK: &str = "hami.io/webhook";
/// Names claims that may stand beside a dialect's resources, because they are not for our GPUs: `nic,fpga`.
pub const OTHER_CLAIMS: &str = "dra.vgpu/other-claims";
/// Kubernetes' own resource for a device of a class.
const CLASS_RESOURCE: &str = "deviceclass.resource.kubernetes.io/";
const DEFAULT_SCHEDULER: &str = "default-scheduler";

/// A dialect in the resources of containers, with those that ask and all that are removed.
type Dialects = [(Dialect, &'static [&'static str], &'static [&'static str]); 5];
const DIALECTS: Dialects = [
    (Dialect::Hami, hami::ASKS, hami::KEYS),
    (Dialect::Koordinator, koordinator::KEYS, koordinator::KEYS),
    (Dialect::Volcano, volcano::KEYS, volcano::KEYS),
    (Dialect::VolcanoVgpu, volcano_vgpu::KEYS, volcano_vgpu::KEYS),
    (Dialect::GpuManager, gpu_manager::KEYS, gpu_manager::KEYS),
];

/// Translates a pod that is being created. `None`: nothing to change, because it asks in no dialect that is read, is
/// translated already, or carries the label `hami.io/webhook: ignore`.
///
/// # Errors
/// Everything because of which the pod cannot run as it asks.
pub fn translate(pod: &Pod, settings: &Settings) -> Result<Option<Translation>, Refusal> {
    if is_ignored(pod) || pod.spec.is_none() {
        return Ok(None);
    }
    // A record that nobody wrote who translates is worth nothing: it is replaced, or the controller reports it.
    let record = Record::of(pod).ok().flatten();
    if !asks(pod, record.as_ref(), settings) {
        return Ok(None);
    }
    fresh(pod, record.as_ref(), settings, true)
}

/// The same for an update. A pod that was not translated when it was created is left alone. One that was stays
/// translated as it was, whatever the settings are now.
///
/// # Errors
/// As [`translate`].
pub fn update(old: &Pod, new: &Pod, settings: &Settings) -> Result<Option<Translation>, Refusal> {
    let Ok(Some(record)) = Record::of(old) else {
        return Ok(None);
    };
    // A record that its author wrote by hand does not say what the pod is. To bring the pod in line with it is a
    // change that the API server refuses, and so the pod's finalizers could not be removed any more.
    let mut same = old.clone();
    apply(&mut same, &record);
    if same.spec != old.spec {
        return Ok(None);
    }
    // With another ask than at first, the new translation goes to the API server, which says what a pod must not
    // change.
    if !is_unchanged(new, &record, settings) {
        return fresh(new, Some(&record), settings, false);
    }
    let mut pod = new.clone();
    apply(&mut pod, &record);
    let annotation = old.metadata.annotations.as_ref().and_then(|all| all.get(TRANSLATED));
    write_annotation(&mut pod, annotation.cloned().unwrap_or_default());
    Ok(translation(new, pod, record, Vec::new()))
}

fn is_ignored(pod: &Pod) -> bool {
    let label = pod.metadata.labels.as_ref().and_then(|labels| labels.get(HAMI_WEBHOOK));
    label.is_some_and(|label| label == "ignore")
}

/// The containers in the order in which they are translated, with their paths.
fn containers(pod: &Pod) -> Vec<(Kind, Resources<'_>)> {
    let Some(spec) = &pod.spec else { return Vec::new() };
    let init = spec
        .init_containers
        .iter()
        .flatten()
        .enumerate()
        .map(|(at, container)| {
            let kind = match container.restart_policy.as_deref() {
                Some("Always") => Kind::Sidecar,
                _ => Kind::Init,
            };
            let path = format!("spec.initContainers[{at}]");
            (kind, Resources { path, container })
        });
    let app = spec.containers.iter().enumerate().map(|(at, container)| {
        let path = format!("spec.containers[{at}]");
        (Kind::App, Resources { path, container })
    });
    init.chain(app).collect()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Ends before the next container starts.
    Init,
    /// An init container that runs beside all others.
    Sidecar,
    App,
}

/// Returns true if anything of a dialect is in the pod that its record does not have.
fn asks(pod: &Pod, record: Option<&Record>, settings: &Settings) -> bool {
    let read = settings.dialects.iter();
    let keys: Vec<&str> = read.flat_map(|dialect| asking_resources(*dialect)).copied().collect();
    if containers(pod).iter().any(|(_, container)| container.asks_for(&keys)) {
        return true;
    }
    let kai = kai_annotations(pod, settings);
    let recorded = record.and_then(|record| record.containers.iter().find(|asked| asked.dialect == Dialect::Kai));
    !kai.is_empty() && recorded.is_none_or(|asked| asked.annotations != kai)
}

/// KAI's annotations, if the pod asks in them.
fn kai_annotations(pod: &Pod, settings: &Settings) -> BTreeMap<String, String> {
    let annotations = || pod.metadata.annotations.iter().flatten();
    if !settings.reads(Dialect::Kai) || !annotations().any(|(key, _)| kai::ASKS.contains(&key.as_str())) {
        return BTreeMap::new();
    }
    annotations()
        .filter(|(key, _)| kai::ANNOTATIONS.contains(&key.as_str()))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect()
}

/// Returns true if a pod asks for what its record has, or for less: what is translated has no limits any more.
fn is_unchanged(pod: &Pod, record: &Record, settings: &Settings) -> bool {
    let same = |(_, container): &(Kind, Resources<'_>)| {
        DIALECTS.iter().all(|(dialect, asks, keys)| {
            !settings.reads(*dialect) && !record.containers.iter().any(|asked| asked.dialect == *dialect)
                || !container.asks_for(asks)
                || record.containers.iter().any(|asked| {
                    asked.name == container.container.name
                        && asked.dialect == *dialect
                        && same_amounts(&asked.limits, &container.entries(keys, true))
                        && same_amounts(&asked.requests, &container.entries(keys, false))
                })
        })
    };
    containers(pod).iter().all(same)
}

/// Compares numbers, not texts: `3000M` comes as `3G` the second time. Requests follow from limits.
fn same_amounts(recorded: &BTreeMap<String, String>, written: &BTreeMap<String, String>) -> bool {
    let same = |(key, value): (&String, &String)| {
        recorded.get(key).is_some_and(|old| {
            old == value || vgpu_quantity::whole(old).is_ok_and(|old| vgpu_quantity::whole(value) == Ok(old))
        })
    };
    written.is_empty() || recorded.len() == written.len() && written.iter().all(same)
}

/// The pod without its record's translation. Containers that have no resources of their dialect any more get them
/// back.
fn undo(pod: &Pod, record: &Record) -> Pod {
    let mut pod = pod.clone();
    let ours: Vec<&str> = record.claims().iter().map(|(claim, _)| *claim).collect();
    let Some(spec) = &mut pod.spec else { return pod };
    if let Some(claims) = &mut spec.resource_claims {
        claims.retain(|claim| !ours.contains(&claim.name.as_str()));
        if claims.is_empty() {
            spec.resource_claims = None;
        }
    }
    for container in spec.init_containers.iter_mut().flatten().chain(&mut spec.containers) {
        let Some(asked) = record.containers.iter().find(|asked| asked.name == container.name) else {
            continue;
        };
        let keys = removed_keys(asked.dialect);
        let resources = container.resources.get_or_insert_default();
        if let Some(claims) = &mut resources.claims {
            claims.retain(|claim| !ours.contains(&claim.name.as_str()));
            if claims.is_empty() {
                resources.claims = None;
            }
        }
        let has = |map: &Option<BTreeMap<String, _>>| {
            map.as_ref()
                .is_some_and(|map| map.keys().any(|key: &String| keys.contains(&key.as_str())))
        };
        if has(&resources.limits) || has(&resources.requests) {
            continue;
        }
        for (map, asked) in [
            (&mut resources.limits, &asked.limits),
            (&mut resources.requests, &asked.requests),
        ] {
            // Only keys of the dialect: whatever somebody wrote into the annotation.
            let asked = asked.iter().filter(|(key, _)| keys.contains(&key.as_str()));
            for (key, value) in asked {
                let quantity = k8s_openapi::apimachinery::pkg::api::resource::Quantity(value.clone());
                map.get_or_insert_default().insert(key.clone(), quantity);
            }
        }
    }
    if let (Some(original), Some(DEFAULT_SCHEDULER)) = (&record.scheduler_name, spec.scheduler_name.as_deref()) {
        spec.scheduler_name = Some(original.clone());
    }
    pod
}

/// The resources by which a container asks in a dialect: what a webhook has to look for in limits and requests.
#[must_use]
pub fn asking_resources(dialect: Dialect) -> &'static [&'static str] {
    let found = DIALECTS.iter().find(|(of, ..)| *of == dialect);
    found.map_or(&[], |(_, asks, _)| asks)
}

/// The annotations by which a pod asks in a dialect. Only KAI has some.
#[must_use]
pub fn asking_annotations(dialect: Dialect) -> &'static [&'static str] {
    match dialect {
        Dialect::Kai => kai::ASKS,
        _ => &[],
    }
}

/// Returns true for a resource of a dialect, which no translated pod has any more.
#[must_use]
pub fn is_resource(name: &str) -> bool {
    DIALECTS.iter().any(|(.., keys)| keys.contains(&name))
}

fn removed_keys(dialect: Dialect) -> &'static [&'static str] {
    let found = DIALECTS.iter().find(|(of, ..)| *of == dialect);
    found.map_or(&[], |(.., keys)| keys)
}

fn write_annotation(pod: &mut Pod, text: String) {
    let annotations = pod.metadata.annotations.get_or_insert_default();
    annotations.insert(TRANSLATED.to_owned(), text);
}

/// Writes a record's translation into a pod's spec. What is there already stays in its place.
fn apply(pod: &mut Pod, record: &Record) {
    let Some(spec) = &mut pod.spec else { return };
    if record.scheduler_name.is_some() && spec.scheduler_name == record.scheduler_name {
        spec.scheduler_name = Some(DEFAULT_SCHEDULER.to_owned());
    }
    for (claim, template) in record.claims() {
        let known = |known: &PodResourceClaim| {
            known.name == claim && known.resource_claim_template_name.as_deref() == Some(template)
        };
        let claims = spec.resource_claims.get_or_insert_default();
        if !claims.iter().any(known) {
            claims.push(PodResourceClaim {
                name: claim.to_owned(),
                resource_claim_template_name: Some(template.to_owned()),
                ..PodResourceClaim::default()
            });
        }
    }
    for container in spec.init_containers.iter_mut().flatten().chain(&mut spec.containers) {
        if let Some(asked) = record.containers.iter().find(|asked| asked.name == container.name) {
            take(container, asked);
        }
    }
}

/// Takes the dialect's resources from a container and gives it its claim.
fn take(container: &mut Container, asked: &Asked) {
    let keys = removed_keys(asked.dialect);
    if let Some(resources) = &mut container.resources {
        for map in [&mut resources.limits, &mut resources.requests].into_iter().flatten() {
            map.retain(|key, _| !keys.contains(&key.as_str()));
        }
    }
    if let Some(claim) = &asked.claim {
        let claims = container
            .resources
            .get_or_insert_default()
            .claims
            .get_or_insert_default();
        if !claims.iter().any(|known| known.name == *claim) {
            claims.push(ResourceClaim {
                name: claim.clone(),
                request: None,
            });
        }
    }
}

/// `None` if nothing changes.
fn translation(before: &Pod, after: Pod, record: Record, warnings: Vec<Warning>) -> Option<Translation> {
    let patch = patch::patch(before, &after);
    if patch.as_array().is_none_or(Vec::is_empty) {
        return None;
    }
    Some(Translation {
        pod: after,
        patch,
        templates: record.templates(),
        warnings,
    })
}

/// Translates what the author wrote.
fn fresh(
    pod: &Pod,
    record: Option<&Record>,
    settings: &Settings,
    create: bool,
) -> Result<Option<Translation>, Refusal> {
    let written = match record {
        Some(record) => undo(pod, record),
        None => pod.clone(),
    };
    let mut view = PodView::new(&written, settings);
    let record = plan(&mut view, create);
    let Findings { problems, warnings } = view.findings;
    if let Some(refusal) = Refusal::of(problems) {
        return Err(refusal);
    }
    if record.containers.is_empty() {
        return Ok(None);
    }
    let mut translated = written;
    apply(&mut translated, &record);
    write_annotation(&mut translated, record.text());
    Ok(translation(pod, translated, record, warnings))
}

/// One container's ask, before claims have names.
struct Ask {
    kind: Kind,
    path: String,
    asked: Asked,
    request: Option<Request>,
}

/// Reads what every container asks, and gives each request a claim.
fn plan(view: &mut PodView<'_>, create: bool) -> Record {
    let asks = read(view);
    if asks.is_empty() {
        return Record::default();
    }
    let mut dialects: Vec<Dialect> = asks.iter().map(|ask| ask.asked.dialect).collect();
    dialects.sort_unstable();
    dialects.dedup();
    lost::warn_of_metadata(&dialects, view);
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
        view.findings.refuse(Problem {
            field: annotation_at(TRANSLATED),
            value: None,
            advice,
        });
    }
    record
}

fn read(view: &mut PodView<'_>) -> Vec<Ask> {
    let pod = view.pod;
    let all = containers(pod);
    let resources: Vec<Resources<'_>> = containers(pod).into_iter().map(|(_, container)| container).collect();
    let mut kai = match kai_annotations(pod, view.settings) {
        none if none.is_empty() => None,
        annotations => {
            let first = pod.spec.as_ref().and_then(|spec| spec.containers.first());
            let first = first.map_or("", |container| container.name.as_str());
            kai::read(&resources, first, view).map(|(name, request)| (name, request, annotations))
        }
    };
    let mut asks = Vec::new();
    for (kind, container) in all {
        let name = container.container.name.as_str();
        let mut found: Vec<Dialect> = DIALECTS
            .iter()
            .filter(|(dialect, asks, _)| view.settings.reads(*dialect) && container.asks_for(asks))
            .map(|(dialect, ..)| *dialect)
            .collect();
        let kai = kai.take_if(|(of, ..)| *of == name);
        if kai.is_some() {
            found.push(Dialect::Kai);
        }
        let [dialect] = found[..] else {
            if let [first, second, ..] = found[..] {
                view.findings.refuse(Problem {
                    field: format!("{}.resources", container.path),
                    value: None,
                    advice: format!(
                        "container {} asks in two dialects, {first} and {second}; keep one of them",
                        quoted(name)
                    ),
                });
            }
            continue;
        };
        check_container(&container, view);
        lost::warn_of_resources(dialect, &container, view);
        let keys = removed_keys(dialect);
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
                limits: container.entries(keys, true),
                requests: container.entries(keys, false),
                annotations,
                claim: None,
                template: None,
            },
            path: container.path,
        });
    }
    asks
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

/// What stands in a container beside its ask.
fn check_container(container: &Resources<'_>, view: &mut PodView<'_>) {
    let security = container.container.security_context.as_ref();
    if security.and_then(|security| security.privileged) == Some(true) {
        view.findings.refuse(Problem::invalid(
            format!("{}.securityContext.privileged", container.path),
            "true",
            "no limit holds in a privileged container, which sees every GPU of the node; remove it, or the GPU resources",
        ));
    }
    let others = view.annotation(OTHER_CLAIMS).unwrap_or_default();
    let is_other = |name: &str| others.split(',').any(|other| other.trim() == name);
    let resources = container.container.resources.as_ref();
    let claims = resources.and_then(|resources| resources.claims.as_ref());
    for (at, claim) in claims.into_iter().flatten().enumerate() {
        if !is_other(&claim.name) {
            let advice = format!(
                "a container has GPUs by a claim or by a dialect's resources, not by both; remove one of them. \
                 If the claim is not for GPUs of this driver, name it in the annotation {OTHER_CLAIMS}"
            );
            let field = format!("{}.resources.claims[{at}].name", container.path);
            view.findings.refuse(Problem::invalid(field, &claim.name, advice));
        }
    }
    for key in container.keys() {
        if let Some(class) = key.strip_prefix(CLASS_RESOURCE)
            && view.settings.is_our_class(class)
        {
            let advice = "asks for a GPU beside a dialect's resources; remove one of them";
            view.findings
                .refuse(Problem::invalid(container.at(key), container.written(key), advice));
        }
    }
}

/// What a pod with claims must not have.
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

/// The scheduler that kube-scheduler replaces.
fn scheduler(view: &mut PodView<'_>) -> Option<String> {
    let spec = view.pod.spec.as_ref()?;
    let name = spec.scheduler_name.as_deref().filter(|name| !name.is_empty())?;
    if view.settings.schedulers.contains(name) && name != DEFAULT_SCHEDULER {
        return Some(name.to_owned());
    }
    if name != DEFAULT_SCHEDULER {
        let text = format!(
            "{} stays; it must allocate ResourceClaims. To give the pod to kube-scheduler, add it to translate.schedulers",
            quoted(name)
        );
        view.findings.warn("spec.schedulerName", text);
    }
    None
}

/// Gives each request a claim. Init containers run one after the other and before the app containers, so that they
/// can use one claim; everything else runs at once.
fn name_claims(asks: Vec<Ask>, record: &mut Record, view: &mut PodView<'_>) {
    let taken: Vec<&str> = view
        .pod
        .spec
        .iter()
        .flat_map(|spec| spec.resource_claims.iter().flatten())
        .map(|claim| claim.name.as_str())
        .collect();
    let mut names = (0..).map(|number| format!("{CLAIM_PREFIX}{number}"));
    let mut free = || names.find(|name| !taken.contains(&name.as_str()));
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
