//! The pod of a probe and its claim's template. They pass Pod Security's `restricted`, and ResourceQuotas that want
//! requests and limits.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use super::super::seen::text;
use crate::flags::ProbeFlags;

/// The label of all that a probe creates.
pub(super) const LABEL: &str = "dra.vgpu/probe=true";
/// The least that a GPU's memory policy allows.
const MEMORY: &str = "64Mi";

pub(super) struct Plan {
    pub(super) namespace: String,
    /// The name of the pod and of its template.
    pub(super) name: String,
    pub(super) class: String,
    pub(super) timeout: Duration,
    image: String,
    pull_secrets: Value,
    node: Option<String>,
}

impl Plan {
    /// `controller`: the Deployment whose image is taken, unless the flags have one.
    pub(super) fn new(flags: &ProbeFlags, namespace: &str, controller: Option<Value>) -> Self {
        let controller = controller.unwrap_or_default();
        let of_controller = "/spec/template/spec";
        let image = text(&controller, &format!("{of_controller}/containers/0/image")).to_owned();
        // Secrets are found in the pod's namespace alone.
        let secrets = controller
            .pointer(&format!("{of_controller}/imagePullSecrets"))
            .filter(|_| text(&controller, "/metadata/namespace") == namespace);
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self {
            namespace: namespace.to_owned(),
            name: format!("vgpu-probe-{:x}-{:x}", since.as_millis(), std::process::id()),
            class: flags.class.clone(),
            timeout: Duration::from_secs(flags.timeout.into()),
            image: flags.image.clone().unwrap_or(image),
            pull_secrets: secrets.cloned().unwrap_or_default(),
            node: flags.node.clone(),
        }
    }

    fn metadata(&self) -> Value {
        let (key, value) = LABEL.split_once('=').unwrap_or_default();
        json!({"name": self.name, "namespace": self.namespace, "labels": {key: value}})
    }

    pub(super) fn template(&self) -> Value {
        let exactly = json!({"deviceClassName": self.class, "capacity": {"requests": {"memory": MEMORY}}});
        json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": self.metadata(),
            "spec": {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}}})
    }

    pub(super) fn pod(&self) -> Value {
        // The label kubernetes.io/hostname may differ from the node's name.
        let affinity = self.node.as_ref().map(|node| {
            let name = json!({"key": "metadata.name", "operator": "In", "values": [node]});
            json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchFields": [name]}]}}})
        });
        let amount = json!({"cpu": "10m", "memory": "32Mi"});
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": self.metadata(), "spec": {
            "restartPolicy": "Never",
            "activeDeadlineSeconds": self.timeout.as_secs(),
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": false,
            "enableServiceLinks": false,
            "imagePullSecrets": self.pull_secrets,
            "nodeSelector": {"kubernetes.io/os": "linux"},
            "affinity": affinity,
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
            "securityContext": {"runAsNonRoot": true, "runAsUser": 65532, "runAsGroup": 65532,
                "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{
                "name": "probe",
                "image": self.image,
                "command": ["/usr/bin/vgpu", "probe-share"],
                // If the image does not know probe-share, its output becomes the message.
                "terminationMessagePolicy": "FallbackToLogsOnError",
                "resources": {"requests": amount, "limits": amount, "claims": [{"name": "gpu"}]},
                "securityContext": {"allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true,
                    "capabilities": {"drop": ["ALL"]}},
            }],
            "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": self.name}],
        }})
    }
}
