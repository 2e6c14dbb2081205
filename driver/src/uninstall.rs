//! Implements `vgpu-controller check-uninstall`, which a Job of the chart runs before `helm uninstall` deletes anything.
//!
//! ```text
//!  list of claims ─┐
//!  list of pods ───┴─► InUse (pure) ─► nothing: exit 0 │ text: exit 1, and helm stops
//! ```
//!
//! Without the plugin kubelet cannot end a pod with a claim; without the controller nobody releases its holds on
//! claims, or removes the scheduling gates of quotas. If a list cannot be read, the uninstall is refused, too.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::time::Duration;

use anyhow::Context as _;
use kube::api::ListParams;
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use vgpu_api::DRIVER_NAME;
use vgpu_planner::model;
use vgpu_planner::names::{HOLD_GROUP, QUOTA_GATE};

use crate::decode;
use crate::flags::CheckUninstallFlags;

const PAGE: u32 = 500;
/// Timeout of one page of a list.
const TIMEOUT: Duration = Duration::from_secs(15);
/// Lines of each list in the text.
const MOST: usize = 20;

/// What an uninstall would leave behind; each list is sorted.
#[derive(Debug, Default, PartialEq, Eq)]
struct InUse {
    /// Pods with claims of our driver: `namespace/pod (claim X, node Y)`.
    pods: BTreeSet<String>,
    /// Claims that vgpu-controller holds: `namespace/claim`.
    holds: BTreeSet<String>,
    /// Pods with the gate of quotas: `namespace/pod`.
    gated: BTreeSet<String>,
}

/// Returns the reasons against an uninstall, if there are any.
pub async fn check_uninstall(flags: &CheckUninstallFlags) -> anyhow::Result<Option<String>> {
    let in_use = read().await.with_context(|| {
        format!(
            "which pods have claims is not known, so nothing is uninstalled (without this check: helm uninstall {} -n {} \
             --no-hooks)",
            flags.release, flags.namespace
        )
    })?;
    Ok(in_use.text(flags))
}

async fn read() -> anyhow::Result<InUse> {
    let client = Client::try_default().await.context("no way to the API server")?;
    let mut in_use = InUse::default();
    let everything = ListParams::default();
    each::<decode::Claim>(&client, everything, |claim| {
        claim.body.iter().for_each(|claim| in_use.claim(claim))
    })
    .await?;
    // A pod with a gate is always Pending.
    let pending = ListParams::default().fields("status.phase=Pending");
    each::<decode::Pod>(&client, pending, |pod| pod.body.iter().for_each(|pod| in_use.pod(pod))).await?;
    Ok(in_use)
}

/// Lists a kind page by page.
async fn each<K>(client: &Client, mut parameters: ListParams, mut seen: impl FnMut(K)) -> anyhow::Result<()>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned,
{
    let what = K::plural(&());
    let api: Api<K> = Api::all(client.clone());
    parameters = parameters.limit(PAGE);
    loop {
        let page = tokio::time::timeout(TIMEOUT, api.list(&parameters)).await;
        let page = page.with_context(|| format!("the list of {what}: no answer within {TIMEOUT:?}"))?;
        let page = page.with_context(|| format!("the list of {what}"))?;
        page.items.into_iter().for_each(&mut seen);
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => parameters = parameters.continue_token(&token),
            None => return Ok(()),
        }
    }
}

impl InUse {
    fn claim(&mut self, claim: &model::Claim) {
        let Some(allocation) = claim.allocation() else {
            return;
        };
        let results = &allocation.devices.results;
        let Some(device) = results.iter().find(|device| device.driver == DRIVER_NAME) else {
            return;
        };
        let named = allocation
            .node_selector
            .iter()
            .flat_map(|selector| &selector.node_selector_terms);
        let mut names = named
            .flat_map(|term| &term.match_fields)
            .flat_map(|field| &field.values);
        // The pool's name begins with the node's.
        let of_pool = device.pool.split('/').next().unwrap_or_default();
        let node = names.next().map_or(of_pool, String::as_str);
        let (namespace, name) = (&claim.facts.metadata.namespace, &claim.facts.metadata.name);
        for consumer in &claim.reserved_for {
            match (consumer.api_group.as_str(), consumer.resource.as_str()) {
                (HOLD_GROUP, _) => self.holds.insert(format!("{namespace}/{name}")),
                ("", "pods") => self
                    .pods
                    .insert(format!("{namespace}/{} (claim {name}, node {node})", consumer.name)),
                (_, resource) => self.pods.insert(format!(
                    "{namespace}/{resource}/{} (claim {name}, node {node})",
                    consumer.name
                )),
            };
        }
    }

    fn pod(&mut self, pod: &model::Pod) {
        if pod.unusual().gates.iter().any(|gate| gate == QUOTA_GATE) {
            self.gated.insert(format!("{}/{}", pod.namespace, pod.name));
        }
    }

    /// The refusal: what is in use, and what to do. `None` if nothing is.
    fn text(&self, flags: &CheckUninstallFlags) -> Option<String> {
        let CheckUninstallFlags {
            release,
            namespace,
            revision,
        } = flags;
        let mut text = format!("helm release {namespace}/{release} is not uninstalled:\n");
        let mut todo = Vec::new();
        if !self.holds.is_empty() {
            listed(
                &mut text,
                &self.holds,
                "claims are held by vgpu-controller, which alone can release them",
            );
            todo.push(format!(
                "helm rollback {release} {revision} -n {namespace}, then set allocator=to-scheduler by helm upgrade, and \
                 wait until no claim has an entry of dra.vgpu in status.reservedFor"
            ));
        }
        if !self.gated.is_empty() {
            let words = format!("pods have the scheduling gate {QUOTA_GATE}, which only vgpu-controller takes off");
            listed(&mut text, &self.gated, &words);
            todo.push("kubectl delete vgpuquotadefaults --all; kubectl delete vgpuquotas -A --all".to_owned());
        }
        if !self.pods.is_empty() {
            let words = format!("pods have claims of driver {DRIVER_NAME}; kubelet cannot end them without its plugin");
            listed(&mut text, &self.pods, &words);
            todo.push("delete these pods, with the Deployments, StatefulSets and Jobs that create them".to_owned());
        }
        if todo.is_empty() {
            return None;
        }
        todo.push(format!("helm uninstall {release} -n {namespace}"));
        text.push_str("What to do:\n");
        for (at, step) in (1..).zip(todo) {
            let _ = writeln!(text, "  {at}. {step}");
        }
        let _ = write!(
            text,
            "To keep the driver: helm rollback {release} {revision} -n {namespace} (until then helm calls the release \
             uninstalling, and upgrades nothing)\n\
             To uninstall in spite of it: helm uninstall {release} -n {namespace} --no-hooks"
        );
        Some(text)
    }
}

/// Writes the number and kind of the names, then the first of them.
fn listed(text: &mut String, names: &BTreeSet<String>, what: &str) {
    let _ = writeln!(text, "{} {what}:", names.len());
    for name in names.iter().take(MOST) {
        let _ = writeln!(text, "  {name}");
    }
    if names.len() > MOST {
        let _ = writeln!(text, "  and {} more", names.len() - MOST);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn flags() -> CheckUninstallFlags {
        CheckUninstallFlags {
            release: "x".to_owned(),
            namespace: "n".to_owned(),
            revision: 3,
        }
    }

    fn claim(name: &str, driver: &str, reserved_for: &serde_json::Value) -> model::Claim {
        let claim = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
            "metadata": {"name": name, "namespace": "team", "uid": name, "resourceVersion": "1"},
            "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "vgpu"}}]}},
            "status": {"reservedFor": reserved_for, "allocation": {
                "devices": {"results": [{"request": "gpu", "driver": driver, "pool": "gpu-1/vgpu", "device": "gpu-0"}]},
                "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [
                    {"key": "metadata.name", "operator": "In", "values": ["gpu-1"]}]}]}}}});
        let claim: decode::Claim = serde_json::from_value(claim).expect("a claim");
        claim.body.expect("readable")
    }

    fn pod_entry(name: &str) -> serde_json::Value {
        json!([{"resource": "pods", "name": name, "uid": name}])
    }

    #[test]
    fn claims_of_others_and_claims_that_nobody_uses_are_no_reason() {
        let mut in_use = InUse::default();
        in_use.claim(&claim("theirs", "gpu.nvidia.com", &pod_entry("p")));
        in_use.claim(&claim("unused", DRIVER_NAME, &json!([])));
        assert_eq!(in_use, InUse::default());
        assert_eq!(in_use.text(&flags()), None);
    }

    #[test]
    fn pods_are_named_with_claim_and_node_and_what_to_do() {
        let mut in_use = InUse::default();
        in_use.claim(&claim("train-gpu", DRIVER_NAME, &pod_entry("train")));
        let text = in_use.text(&flags()).expect("refused");
        assert_eq!(
            text,
            "helm release n/x is not uninstalled:\n\
             1 pods have claims of driver dra.vgpu; kubelet cannot end them without its plugin:\n  \
             team/train (claim train-gpu, node gpu-1)\n\
             What to do:\n  \
             1. delete these pods, with the Deployments, StatefulSets and Jobs that create them\n  \
             2. helm uninstall x -n n\n\
             To keep the driver: helm rollback x 3 -n n (until then helm calls the release uninstalling, and upgrades nothing)\n\
             To uninstall in spite of it: helm uninstall x -n n --no-hooks"
        );
    }

    #[test]
    fn at_most_twenty_pods_are_listed() {
        let mut in_use = InUse::default();
        for at in 0..23 {
            in_use.claim(&claim(&format!("c{at}"), DRIVER_NAME, &pod_entry(&format!("p{at:02}"))));
        }
        let text = in_use.text(&flags()).expect("refused");
        assert!(
            text.contains("23 pods have claims") && text.contains("  and 3 more\n"),
            "{text}"
        );
        assert_eq!(text.matches("team/p").count(), MOST);
    }

    #[test]
    fn holds_and_gates_are_reasons_with_steps_of_their_own() {
        let mut in_use = InUse::default();
        let hold = json!([{"apiGroup": HOLD_GROUP, "resource": "holds", "name": "p", "uid": "u"}]);
        in_use.claim(&claim("held", DRIVER_NAME, &hold));
        let pod = |gate: &str| -> decode::Pod {
            let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "waits", "namespace": "team",
                "uid": "u", "resourceVersion": "1", "creationTimestamp": "2026-01-01T00:00:00Z"},
                "spec": {"schedulingGates": [{"name": gate}], "containers": []}, "status": {"phase": "Pending"}});
            serde_json::from_value(pod).expect("a pod")
        };
        in_use.pod(&pod("example.com/other").body.expect("readable"));
        assert!(in_use.gated.is_empty());
        in_use.pod(&pod(QUOTA_GATE).body.expect("readable"));
        let text = in_use.text(&flags()).expect("refused");
        for words in [
            "1 claims are held by vgpu-controller, which alone can release them:\n  team/held\n",
            "1 pods have the scheduling gate dra.vgpu/quota, which only vgpu-controller takes off:\n  team/waits\n",
            "  1. helm rollback x 3 -n n, then set allocator=to-scheduler",
            "  2. kubectl delete vgpuquotadefaults --all",
            "  3. helm uninstall x -n n\n",
        ] {
            assert!(text.contains(words), "{words}: {text}");
        }
    }
}
