//! Findings about the chart's own objects: is it installed, do its programs run, and in the same version.

use serde_json::Value;
use vgpu_api::advice;

use super::finding::Finding;
use super::seen::{Seen, is_ready, is_running, key, list, number, text};
use super::usage;

/// A leader renews its Lease every few seconds.
const LEASE_IS_OLD: i64 = 60;

pub(super) fn of(seen: &Seen) -> Vec<Finding> {
    let Some(daemon_sets) = seen.daemon_sets.known() else {
        return Vec::new();
    };
    if daemon_sets.is_empty() {
        return vec![Finding {
            object: "DaemonSet".to_owned(),
            value: format!("no namespace has one with the label {}", super::seen::OURS),
            breaks: "no node has the driver, so nothing is offered and nothing is prepared".to_owned(),
            mend: "helm install dra-driver-vgpu deploy/helm/dra-driver-vgpu -n dra-driver-vgpu --create-namespace \
                   --set images.registry=REGISTRY,images.tag=TAG (docs/install.md)"
                .to_owned(),
        }];
    }
    let mut found = Vec::new();
    for daemon_set in daemon_sets {
        found.extend(refused_pods(daemon_set, seen));
        found.extend(no_node(daemon_set, seen));
    }
    for deployment in seen.deployments.iter() {
        found.extend(rollout(deployment, seen));
        found.extend(lease(deployment, seen));
        found.extend(versions(deployment, daemon_sets));
    }
    for pod in seen.plugin_pods() {
        found.extend(plugin_pod(pod, seen));
    }
    found.extend(policies(seen));
    found
}

/// Pod Security refuses the plugin's privileged pods without an event on any pod.
fn refused_pods(daemon_set: &Value, seen: &Seen) -> Option<Finding> {
    let namespace = text(daemon_set, "/metadata/namespace");
    let mut named = seen
        .namespaces
        .iter()
        .filter(|one| text(one, "/metadata/name") == namespace);
    let level = text(named.next()?, "/metadata/labels/pod-security.kubernetes.io~1enforce");
    let (wanted, is) = (
        number(daemon_set, "/status/desiredNumberScheduled"),
        number(daemon_set, "/status/currentNumberScheduled"),
    );
    matches!(level, "baseline" | "restricted").then(|| Finding {
        object: format!("Namespace {namespace}"),
        value: format!("label pod-security.kubernetes.io/enforce={level}; {is} of {wanted} pods of the plugin exist"),
        breaks: "the plugin's pods are privileged, so they are refused and no node offers a GPU".to_owned(),
        mend: format!("kubectl label namespace {namespace} pod-security.kubernetes.io/enforce=privileged --overwrite"),
    })
}

/// By default the plugin runs only on nodes that are labelled as having a GPU.
fn no_node(daemon_set: &Value, seen: &Seen) -> Option<Finding> {
    // Without it the status is not written yet.
    let is_known = number(daemon_set, "/status/observedGeneration") > 0;
    let wanted = number(daemon_set, "/status/desiredNumberScheduled");
    let namespace = text(daemon_set, "/metadata/namespace");
    (is_known && wanted == 0).then(|| Finding {
        object: format!("DaemonSet {}", key(daemon_set)),
        value: format!(
            "none of {} nodes matches its nodeSelector and affinity",
            seen.nodes.known().map_or_else(|| "the".to_owned(), |nodes| nodes.len().to_string())
        ),
        breaks: "no node has the driver, so nothing is offered and nothing is prepared".to_owned(),
        mend: format!(
            "kubectl label node NODE dra.vgpu/gpu=true for each node with an NVIDIA GPU; or, for every Linux node: helm -n \
             {namespace} upgrade RELEASE CHART --reset-then-reuse-values --set plugin.allNodes=true"
        ),
    })
}

/// Why a pod does not run, such as `ErrImagePull of IMAGE`.
fn stopped(pod: &Value) -> Option<String> {
    let mut statuses = list(pod, "/status/containerStatuses").iter();
    statuses.find_map(|status| match text(status, "/state/waiting/reason") {
        "" => None,
        why if why.contains("Image") => Some(format!("{why} of {}", text(status, "/image"))),
        why => Some(why.to_owned()),
    })
}

/// Returns the remedy for a pod that does not run.
fn mend_stopped(pod: &Value, why: &str) -> String {
    let (namespace, name) = (text(pod, "/metadata/namespace"), text(pod, "/metadata/name"));
    let image = match why.contains("Image") {
        true => {
            "; the chart's images.registry, images.tag and images.pullPolicy say what is pulled (docs/install.md, Images)"
        }
        false => "",
    };
    format!("kubectl -n {namespace} describe pod {name}{image}")
}

fn rollout(deployment: &Value, seen: &Seen) -> Option<Finding> {
    let (wanted, ready) = (
        deployment
            .pointer("/spec/replicas")
            .and_then(Value::as_i64)
            .unwrap_or(1),
        number(deployment, "/status/readyReplicas"),
    );
    let namespace = text(deployment, "/metadata/namespace");
    let pods = seen.pods_of("controller");
    // The newest one: an older pod may be of the release before.
    let newest = pods
        .filter(|pod| text(pod, "/metadata/namespace") == namespace && !is_ready(pod))
        .max_by_key(|&pod| text(pod, "/metadata/creationTimestamp"));
    let stopped = newest.and_then(|pod| Some((pod, stopped(pod)?)));
    let said = list(deployment, "/status/conditions")
        .iter()
        .find(|condition| condition["status"] == "False")
        .map(|condition| text(condition, "/message").to_owned());
    let why = stopped.as_ref().map(|(_, why)| why.clone()).or(said);
    (ready < wanted).then(|| Finding {
        object: format!("Deployment {}", key(deployment)),
        value: format!(
            "{ready} of {wanted} replicas are ready{}",
            why.map_or_else(String::new, |why| format!(": {why}"))
        ),
        breaks:
            "pods get no reason why they wait; in controller mode nothing is allocated, with quotas no gate is taken \
                 off, and with translation pods may be refused"
                .to_owned(),
        mend: match &stopped {
            Some((pod, why)) => mend_stopped(pod, why),
            None => format!(
                "kubectl -n {namespace} describe deployment {}",
                text(deployment, "/metadata/name")
            ),
        },
    })
}

/// The value of a flag of the first container; empty for one without a value.
pub(super) fn flag<'v>(workload: &'v Value, name: &str) -> Option<&'v str> {
    let args = list(workload, "/spec/template/spec/containers/0/args").iter();
    let mut values = args.filter_map(|arg| match arg.as_str()?.strip_prefix(name)? {
        "" => Some(""),
        value => value.strip_prefix('='),
    });
    values.next()
}

/// Without a ready replica there is no leader, which is part of the finding about the rollout.
fn lease(deployment: &Value, seen: &Seen) -> Option<Finding> {
    if number(deployment, "/status/readyReplicas") == 0 {
        return None;
    }
    let (namespace, name) = (
        flag(deployment, "--lease-namespace")?,
        flag(deployment, "--lease-name")?,
    );
    let leases = seen.leases.known()?;
    let lease = leases.iter().find(|lease| key(lease) == format!("{namespace}/{name}"));
    let holder = lease.map_or("", |lease| text(lease, "/spec/holderIdentity"));
    let renewed = lease.and_then(|lease| text(lease, "/spec/renewTime").parse::<jiff::Timestamp>().ok());
    let age = renewed.map(|time| seen.now - time.as_second());
    let value = match (lease, holder, age) {
        (None, ..) => "does not exist".to_owned(),
        (_, "", _) => "has no holder".to_owned(),
        (_, holder, Some(age)) if age > LEASE_IS_OLD => format!("held by {holder}, who renewed it {age} s ago"),
        _ => return None,
    };
    Some(Finding {
        object: format!("Lease {namespace}/{name}"),
        value,
        breaks:
            "vgpu-controller has no leader: nothing is allocated in controller mode, no scheduling gate is taken off, \
                 and translated pods get no templates"
                .to_owned(),
        mend: format!(
            "kubectl -n {} logs deployment/{} --all-pods --tail=20",
            text(deployment, "/metadata/namespace"),
            text(deployment, "/metadata/name")
        ),
    })
}

/// The image's tag. `None` for an image that is named only by its digest: different images have different digests.
fn tag(workload: &Value) -> Option<&str> {
    let image = text(workload, "/spec/template/spec/containers/0/image");
    // A registry may contain a port, so only the last part is searched for a colon.
    let name = image.rsplit('/').next().unwrap_or_default();
    match name.split_once('@') {
        Some((name, _)) => name.split_once(':').map(|(_, tag)| tag),
        None => Some(name.split_once(':').map_or("latest", |(_, tag)| tag)),
    }
}

fn versions(deployment: &Value, daemon_sets: &[Value]) -> Option<Finding> {
    let namespace = text(deployment, "/metadata/namespace");
    let mut beside = daemon_sets
        .iter()
        .filter(|one| text(one, "/metadata/namespace") == namespace);
    let daemon_set = beside.next()?;
    let (plugin, controller) = (tag(daemon_set)?, tag(deployment)?);
    (plugin != controller).then(|| Finding {
        object: format!("Deployment {}", key(deployment)),
        value: format!(
            "its image is {controller}, and that of DaemonSet {} is {plugin}",
            key(daemon_set)
        ),
        breaks: "versions are tested only together; the older one may not know what the newer one writes".to_owned(),
        mend: format!("helm -n {namespace} upgrade RELEASE CHART with one images.tag"),
    })
}

/// The parts of the plugin (docs/operate.md).
const PARTS: [&str; 5] = ["library", "gpus", "claims", "slices", "registration"];

/// How to repair a part of the plugin that is not ready (docs/operate.md lists the parts).
fn mend_part(part: &str) -> String {
    let mend = match part {
        "library" => {
            "see that the chart's plugin.libraryStore can be written on the node and is not mounted noexec: \
             df /var/lib/vgpu; findmnt -T /var/lib/vgpu"
        }
        "gpus" => {
            return format!(
                "run nvidia-smi on the node; if the driver is below another folder, {}",
                advice::DRIVER_ROOT
            );
        }
        "claims" => "kubectl auth can-i get resourceclaims --as=system:serviceaccount:NAMESPACE:RELEASE-plugin",
        "slices" => "the plugin's log has the API server's words: kubectl -n NAMESPACE logs POD",
        "registration" => return format!("{}; kubelet's log says more", advice::KUBELET_ROOT),
        "answer" => {
            "if a NetworkPolicy shuts the API server out, name it in the chart's networkPolicy.from; the plugin's log says \
             more: kubectl -n NAMESPACE logs POD"
        }
        _ => "the plugin's log says more: kubectl -n NAMESPACE logs POD",
    };
    mend.to_owned()
}

/// The first part in a VgpuNode's message that fails and does not only wait for another one; empty if there is none.
fn failing_part(message: &str) -> &str {
    let parts = message.split("; ").filter_map(|part| part.split_once(": "));
    let mut failing = parts.filter(|(part, state)| PARTS.contains(part) && !state.starts_with("waiting"));
    failing.next().map_or("", |(part, _)| part)
}

fn plugin_pod(pod: &Value, seen: &Seen) -> Vec<Finding> {
    let (name, node) = (key(pod), text(pod, "/spec/nodeName"));
    let breaks = "no new claims are prepared there, and pods with a claim may stay Terminating";
    if is_ready(pod) || !pod["metadata"]["deletionTimestamp"].is_null() {
        return Vec::new();
    }
    if !is_running(pod) {
        let why = stopped(pod).unwrap_or_else(|| text(pod, "/status/phase").to_owned());
        return vec![Finding {
            object: format!("Pod {name} on node {node}"),
            value: format!("does not run: {why}"),
            breaks: breaks.to_owned(),
            mend: mend_stopped(pod, &why),
        }];
    }
    let said = seen.not_ready.get(&name).map_or("", String::as_str);
    // If the pod's page cannot be read, the plugin's VgpuNode may say why it is not ready.
    let condition = usage::not_ready(seen, node);
    let written = condition.map(|(reason, message)| format!(": {reason}: {message}"));
    let is_unheard = |line: &&str| written.is_some() && line.starts_with("answer: ");
    let parts = said
        .lines()
        .filter(|line| !is_unheard(line))
        .filter_map(|line| line.split_once(": "));
    let failing = parts.filter(|(_, state)| !state.starts_with("ok"));
    let mend = |part: &str| {
        mend_part(part)
            .replace("NAMESPACE", text(pod, "/metadata/namespace"))
            .replace("POD", text(pod, "/metadata/name"))
    };
    let mut found: Vec<Finding> = failing
        .map(|(part, why)| Finding {
            object: format!("Pod {name} on node {node}"),
            value: format!("is not ready: {part}: {}", why),
            breaks: breaks.to_owned(),
            mend: mend(part),
        })
        .collect();
    if found.is_empty() {
        found.push(Finding {
            object: format!("Pod {name} on node {node}"),
            value: format!("is not ready{}", written.unwrap_or_default()),
            breaks: breaks.to_owned(),
            mend: mend(condition.map_or("", |(_, message)| failing_part(message))),
        });
    }
    found
}

fn policies(seen: &Seen) -> Vec<Finding> {
    let (Some(policies), Some(bindings)) = (seen.policies.known(), seen.bindings.known()) else {
        return Vec::new();
    };
    if policies.is_empty() {
        return vec![Finding {
            object: "ValidatingAdmissionPolicy".to_owned(),
            value: format!("none has the label {}", super::seen::OURS),
            breaks: "mistakes in claims are found only at Prepare, and finalizers of claims in use can be taken off"
                .to_owned(),
            mend: "set the chart's admission.claims and admission.held".to_owned(),
        }];
    }
    let is_bound = |policy: &&Value| {
        let name = text(policy, "/metadata/name");
        bindings.iter().any(|binding| text(binding, "/spec/policyName") == name)
    };
    let unbound = policies.iter().filter(|policy| !is_bound(policy));
    unbound
        .map(|policy| Finding {
            object: format!("ValidatingAdmissionPolicy {}", text(policy, "/metadata/name")),
            value: "no ValidatingAdmissionPolicyBinding names it".to_owned(),
            breaks: "the API server does not ask it".to_owned(),
            mend: "helm upgrade writes the binding again".to_owned(),
        })
        .collect()
}
