//! Finds the step that a probe's pod reached, from its status and its events.

use serde_json::Value;

use super::super::finding::Finding;
use super::super::seen::DRIVER;
use super::super::seen::{list, text};
use super::objects::Plan;

/// The step that failed, with its reason.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Stopped {
    Allocation(String),
    Preparation(String),
    Start(String),
    /// The container ran, and says what is missing in it.
    Limit(String),
}

/// Returns the container's message if everything worked in it.
pub(super) fn of(pod: &Value, events: &[Value]) -> Result<String, Stopped> {
    let state = &pod["status"]["containerStatuses"][0]["state"];
    let said = |words: [&str; 2]| {
        words
            .into_iter()
            .filter(|word| !word.is_empty())
            .collect::<Vec<_>>()
            .join(": ")
    };
    if let Some(ended) = state.get("terminated") {
        let (reason, message) = (text(ended, "/reason"), text(ended, "/message").trim());
        return match (ended["exitCode"].as_i64(), reason) {
            (Some(0), _) => Ok(message.to_owned()),
            // The runtime's message, which includes the hook's.
            (_, "StartError" | "ContainerCannotRun") => Err(Stopped::Start(said([reason, message]))),
            (code, _) if message.is_empty() => {
                let code = code.map_or_else(|| "?".to_owned(), |code| code.to_string());
                Err(Stopped::Limit(format!("{reason}, exit status {code}")))
            }
            _ => Err(Stopped::Limit(message.to_owned())),
        };
    }
    if state.get("running").is_some() {
        return Err(Stopped::Limit("its program runs and does not end".to_owned()));
    }
    let name = text(pod, "/metadata/name");
    let warning = |reasons: &[&str]| last_note(events, name, |event| reasons.contains(&text(event, "/reason")));
    if text(pod, "/spec/nodeName").is_empty() {
        return Err(Stopped::Allocation(why_not_allocated(pod, events, name)));
    }
    let (reason, message) = (text(pod, "/status/reason"), text(pod, "/status/message"));
    // Kubelet refused or evicted it. If it missed its deadline, the events say why it did not start.
    if text(pod, "/status/phase") == "Failed" && !message.is_empty() && reason != "DeadlineExceeded" {
        return Err(Stopped::Start(said([reason, message])));
    }
    let waiting = said([text(state, "/waiting/reason"), text(state, "/waiting/message")]);
    if !matches!(
        text(state, "/waiting/reason"),
        "" | "ContainerCreating" | "PodInitializing"
    ) {
        return Err(Stopped::Start(waiting));
    }
    if let Some(note) = warning(&["FailedPrepareDynamicResources"]) {
        return Err(Stopped::Preparation(note));
    }
    if let Some(note) = warning(&["Failed", "FailedCreatePodSandBox", "FailedMount"]) {
        return Err(Stopped::Start(note));
    }
    Err(Stopped::Preparation(said([
        reason,
        "neither the pod nor its events say why; kubelet's log may",
    ])))
}

/// The note of the pod's last event that `is_wanted` accepts.
fn last_note(events: &[Value], pod: &str, is_wanted: impl Fn(&Value) -> bool) -> Option<String> {
    let of_pod = events.iter().filter(|event| text(event, "/regarding/name") == pod);
    let wanted = of_pod.filter(|event| is_wanted(event));
    let last = wanted.max_by_key(|event| {
        let times =
            ["/series/lastObservedTime", "/deprecatedLastTimestamp", "/eventTime"].map(|path| text(event, path));
        times
            .into_iter()
            .find(|time| !time.is_empty())
            .unwrap_or_default()
            .to_owned()
    })?;
    Some(format!("{}: {}", text(last, "/reason"), text(last, "/note")))
}

fn why_not_allocated(pod: &Value, events: &[Value], name: &str) -> String {
    let is_ours = |event: &Value| text(event, "/reportingController").starts_with(DRIVER);
    let gates = list(pod, "/spec/schedulingGates").iter();
    let gates: Vec<&str> = gates.map(|gate| text(gate, "/name")).collect();
    let conditions = list(pod, "/status/conditions").iter();
    let scheduled = conditions
        .filter(|one| one["type"] == "PodScheduled")
        .map(|one| text(one, "/message"))
        .find(|message| !message.is_empty());
    match (last_note(events, name, is_ours), &gates[..]) {
        (Some(note), _) => note,
        (None, [_, ..]) => format!("it has the scheduling gate {}", gates.join(", ")),
        (None, []) => scheduled.unwrap_or("no scheduler has looked at it").to_owned(),
    }
}

impl Stopped {
    pub(super) fn finding(self, plan: &Plan, pod: &Value) -> Finding {
        let explain = format!(
            "vgpu explain pod/NAME -n {} of a pod that waits says more",
            plan.namespace
        );
        let node = text(pod, "/spec/nodeName");
        let plugin = format!(
            "kubectl get pods -A -l app.kubernetes.io/component=plugin --field-selector spec.nodeName={node}: its log says more"
        );
        let (step, why, breaks, mend) = match self {
            Self::Allocation(why) => (
                "not allocated",
                why,
                "no pod of this namespace gets a share now",
                explain,
            ),
            Self::Preparation(why) => ("not prepared", why, "pods with a claim do not start there", plugin),
            Self::Start(why) => (
                "container not started",
                why,
                "pods with a claim do not start there, or only this image does not: --image names another",
                "kubelet's and the runtime's words are above; docs/using.md explains those of vgpu-cdi-hook".to_owned(),
            ),
            Self::Limit(why) => (
                "ran without its limit",
                why,
                "containers there have no GPU, or one without a limit",
                "switch CDI on in the container runtime (containerd 1.7: enable_cdi = true), and create the pods again"
                    .to_owned(),
            ),
        };
        let place = if node.is_empty() {
            String::new()
        } else {
            format!(" on node {node}")
        };
        found(plan, &place, &format!("{step}: {why}"), breaks, mend)
    }
}

fn found(plan: &Plan, place: &str, value: &str, breaks: &str, mend: String) -> Finding {
    Finding {
        object: format!("Probe {}/{}{place}", plan.namespace, plan.name),
        value: value.to_owned(),
        breaks: breaks.to_owned(),
        mend,
    }
}

/// The API server refused to create the objects.
pub(super) fn refused(plan: &Plan, why: &str) -> Finding {
    let mend = "the text names what refuses it; -n chooses another namespace, --class another class".to_owned();
    found(
        plan,
        "",
        &format!("refused: {why}"),
        "such pods cannot be created here",
        mend,
    )
}

pub(super) fn deleted(plan: &Plan) -> Finding {
    let mend = "run it again, or in another namespace by -n".to_owned();
    found(
        plan,
        "",
        "somebody else deleted the pod",
        "nothing is known of shares",
        mend,
    )
}

pub(super) fn stays(plan: &Plan) -> Finding {
    let mend = format!(
        "kubectl -n {} describe pod {}: the event UnprepareFailed says why",
        plan.namespace, plan.name
    );
    let breaks = "its share stays held, and so will those of other pods there";
    found(plan, "", "ran, and stays Terminating: not unprepared", breaks, mend)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(spec: Value, status: Value) -> Value {
        json!({"metadata": {"name": "p"}, "spec": spec, "status": status})
    }

    fn on_node(state: Value) -> Value {
        pod(
            json!({"nodeName": "n1"}),
            json!({"containerStatuses": [{"state": state}]}),
        )
    }

    fn event(reason: &str, note: &str, time: &str) -> Value {
        json!({"regarding": {"name": "p"}, "reason": reason, "note": note, "deprecatedLastTimestamp": time,
            "reportingController": "dra.vgpu/controller"})
    }

    #[test]
    fn each_step_is_told_from_the_others() {
        let prepare = [
            event(
                "FailedPrepareDynamicResources",
                "the new reason",
                "2026-01-02T00:00:02Z",
            ),
            event("FailedPrepareDynamicResources", "an old one", "2026-01-02T00:00:01Z"),
            json!({"regarding": {"name": "other"}, "reason": "FailedPrepareDynamicResources", "note": "of another pod",
                "deprecatedLastTimestamp": "2026-01-02T00:00:03Z"}),
        ];
        let pending = [event("VgpuClaimPending", "64Mi of 0 free", "")];
        let gated = json!({"schedulingGates": [{"name": "dra.vgpu/quota"}]});
        let unschedulable =
            json!({"conditions": [{"type": "PodScheduled", "status": "False", "message": "0/1 nodes"}]});
        let creating = json!({"waiting": {"reason": "ContainerCreating"}});
        for (pod, events, words) in [
            (
                pod(json!({}), json!({})),
                &pending[..],
                "Allocation(\"VgpuClaimPending: 64Mi of 0 free\")",
            ),
            (
                pod(gated, json!({})),
                &[],
                "Allocation(\"it has the scheduling gate dra.vgpu/quota\")",
            ),
            (pod(json!({}), unschedulable), &[], "Allocation(\"0/1 nodes\")"),
            (
                on_node(creating.clone()),
                &prepare,
                "Preparation(\"FailedPrepareDynamicResources: the new reason\")",
            ),
            (on_node(creating), &[], "Preparation(\"neither"),
            (
                pod(
                    json!({"nodeName": "n1"}),
                    json!({"phase": "Failed", "reason": "OutOfcpu", "message": "Node didn't have enough cpu"}),
                ),
                &[],
                "Start(\"OutOfcpu: Node didn't have enough cpu\")",
            ),
            (
                on_node(json!({"waiting": {"reason": "ErrImagePull", "message": "no such image"}})),
                &[],
                "Start(\"ErrImagePull: no such image\")",
            ),
            (
                on_node(
                    json!({"terminated": {"exitCode": 128, "reason": "StartError", "message": "vgpu-cdi-hook: /etc"}}),
                ),
                &[],
                "Start(\"StartError: vgpu-cdi-hook: /etc\")",
            ),
            (
                on_node(
                    json!({"terminated": {"exitCode": 1, "reason": "Error", "message": "limits file not mounted\n"}}),
                ),
                &[],
                "Limit(\"limits file not mounted\")",
            ),
            (
                on_node(json!({"terminated": {"exitCode": 137, "reason": "OOMKilled"}})),
                &[],
                "Limit(\"OOMKilled, exit status 137\")",
            ),
        ] {
            let stopped = of(&pod, events).expect_err(words);
            assert!(format!("{stopped:?}").starts_with(words), "{stopped:?}, not {words}");
        }
        let well = on_node(json!({"terminated": {"exitCode": 0, "message": "64Mi of GPU-1"}}));
        assert_eq!(of(&well, &prepare), Ok("64Mi of GPU-1".to_owned()));
    }
}
