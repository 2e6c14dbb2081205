//! Findings about VgpuNodes: what each node's plugin last reported about itself, and when.

use std::collections::BTreeSet;

use serde_json::Value;

use super::finding::Finding;
use super::seen::{Seen, is_ready, list, text};

/// The plugin writes its VgpuNode at least once a minute.
const IS_OLD: i64 = 300;

/// Reason and message of a plugin that says it is not ready.
pub(super) fn not_ready<'s>(seen: &'s Seen, node: &str) -> Option<(&'s str, &'s str)> {
    let mut named = seen.vgpu_nodes.iter().filter(|one| text(one, "/metadata/name") == node);
    said_not_ready(named.next()?)
}

fn said_not_ready(vgpu_node: &Value) -> Option<(&str, &str)> {
    let conditions = list(vgpu_node, "/status/conditions").iter();
    let mut ready = conditions.filter(|condition| condition["type"] == "Ready" && condition["status"] == "False");
    let condition = ready.next()?;
    Some((text(condition, "/reason"), text(condition, "/message")))
}

/// Reason and message, if a plugin found a driver and has remarks on its GPUs. GPUs in MIG mode are not among them.
fn remarks(vgpu_node: &Value) -> Option<(&str, &str)> {
    let conditions = list(vgpu_node, "/status/conditions").iter();
    let mut found = conditions.filter(|of| of["type"] == "DriverFound" && of["status"] == "True");
    let found = found.next()?;
    let (reason, message) = (text(found, "/reason"), text(found, "/message"));
    matches!(reason, "GpusLeftOut" | "SettingNotApplied" | "LinksContradict").then_some((reason, message))
}

/// For nodes whose plugin is ready: its own condition and the age of its figures. A plugin that is not ready, also beside
/// one that is, is a finding about its pod.
pub(super) fn of(seen: &Seen) -> Vec<Finding> {
    let ready = seen.ready_nodes();
    let not_ready = seen.plugin_pods().filter(|pod| !is_ready(pod));
    let not_ready: BTreeSet<&str> = not_ready.map(|pod| text(pod, "/spec/nodeName")).collect();
    let name_of = |node| text(node, "/metadata/name");
    let nodes: Option<BTreeSet<&str>> = seen.nodes.known().map(|nodes| nodes.iter().map(name_of).collect());
    let of_node = |one: &Value| {
        let name = text(one, "/metadata/name");
        if nodes.as_ref().is_some_and(|nodes| !nodes.contains(name)) {
            return Some(finding(
                name,
                "the cluster has no such node".to_owned(),
                "sums of GPUs and shares count a node that is gone",
                format!("kubectl delete vgpunode {name}"),
            ));
        }
        let log = format!("{}; its log says more: kubectl logs -n NAMESPACE POD", plugin_on(name));
        if let Some((reason, message)) =
            said_not_ready(one).filter(|_| ready.contains(name) && !not_ready.contains(name))
        {
            let breaks = "no new claims are prepared there, or their limits are not watched";
            return Some(finding(name, format!("is not ready: {reason}: {message}"), breaks, log));
        }
        if let Some((reason, message)) = remarks(one).filter(|_| ready.contains(name)) {
            let breaks = match reason {
                "GpusLeftOut" => "these GPUs are not offered",
                "SettingNotApplied" => "the node works with another setting than the one that was asked for",
                _ => {
                    "claims that match by nvlinkClique do not get these GPUs; the policy nvlink takes them for GPUs without NVLink"
                }
            };
            let mend = format!("the message says what to set or look at; {log}");
            return Some(finding(name, format!("{reason}: {message}"), breaks, mend));
        }
        let written = text(one, "/status/asOf").parse::<jiff::Timestamp>().ok()?;
        let age = seen.now - written.as_second();
        (age > IS_OLD && ready.contains(name)).then(|| {
            let breaks =
                "top, quotas and the namespaces' VgpuUsage show what was; its plugin does not reach the API server";
            finding(name, format!("was written {age} s ago"), breaks, log)
        })
    };
    seen.vgpu_nodes.iter().filter_map(of_node).collect()
}

fn plugin_on(node: &str) -> String {
    format!("kubectl get pods -A -l app.kubernetes.io/component=plugin --field-selector spec.nodeName={node}")
}

fn finding(node: &str, value: String, breaks: &str, mend: String) -> Finding {
    Finding {
        object: format!("VgpuNode {node}"),
        value,
        breaks: breaks.to_owned(),
        mend,
    }
}
