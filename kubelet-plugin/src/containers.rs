//! Asks kubelet's PodResources service which containers have which share, for metrics that users join with pod metrics.
//! Asks only while claims are prepared.
//!
//! How it fails: if the socket is missing or kubelet does not answer within 5 s, this is logged once, and metrics lack
//! the names of containers.

use crate::api::with_causes;
use crate::dra::node::{Node, SharedNode};
use crate::dra::share::ShareKey;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Endpoint;
use tonic_prost::ProstCodec;
use vgpu_api::DRIVER_NAME;
use vgpu_proto::pod_resources::{LIST, ListPodResourcesRequest, ListPodResourcesResponse};

const EVERY: Duration = Duration::from_secs(10);
const ANSWERS_WITHIN: Duration = Duration::from_secs(5);
/// Limit of an answer in bytes. A node has at most some hundred pods with some KiB each.
const LARGEST: usize = 16 << 20;
/// Maximum number of containers of a share in metrics. Limited because a claim may have 256 pods, with a series each.
pub const MOST: usize = 8;

/// A container: the name of its pod, and its own name.
pub type ContainerName = (String, String);

/// The containers of each share, as of the last answer.
#[derive(Clone, Debug, Default)]
pub struct Containers(Arc<Mutex<BTreeMap<ShareKey, BTreeSet<ContainerName>>>>);

// === impl Containers ===

impl Containers {
    /// The containers, by share.
    #[must_use]
    pub fn known(&self) -> BTreeMap<ShareKey, BTreeSet<ContainerName>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn set(&self, containers: BTreeMap<ShareKey, BTreeSet<ContainerName>>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = containers;
    }
}

/// Asks until the plugin ends.
pub async fn run(node: SharedNode, socket: std::path::PathBuf, containers: Containers) {
    let mut failed = String::new();
    loop {
        let is_needed = node
            .read(|node| !node.claims().claims.is_empty())
            .await
            .unwrap_or(false);
        if is_needed {
            match ask(&socket).await {
                Ok(answer) => {
                    let known = node.read(move |node| shares(node, &answer)).await.unwrap_or_default();
                    containers.set(known);
                    failed.clear();
                }
                Err(error) => {
                    if failed != error {
                        tracing::warn!(
                            "metrics do not name the containers of shares: kubelet's {}: {error}",
                            socket.display()
                        );
                    }
                    failed = error;
                    containers.set(BTreeMap::new());
                }
            }
        }
        tokio::time::sleep(EVERY).await;
    }
}

async fn ask(socket: &Path) -> Result<ListPodResourcesResponse, String> {
    let asked = async {
        let endpoint =
            Endpoint::from_shared(format!("unix://{}", socket.display())).map_err(|error| error.to_string())?;
        let channel = endpoint.connect().await.map_err(|error| with_causes(&error))?;
        let mut client = Grpc::new(channel).max_decoding_message_size(LARGEST);
        client.ready().await.map_err(|error| with_causes(&error))?;
        let codec = ProstCodec::<ListPodResourcesRequest, ListPodResourcesResponse>::default();
        let request = tonic::Request::new(ListPodResourcesRequest {});
        let answer = client.unary(request, PathAndQuery::from_static(LIST), codec).await;
        answer
            .map(tonic::Response::into_inner)
            .map_err(|status| status.to_string())
    };
    let answer = tokio::time::timeout(ANSWERS_WITHIN, asked).await;
    answer.unwrap_or_else(|_| Err(format!("no answer within {} s", ANSWERS_WITHIN.as_secs())))
}

/// The containers of the node's shares. A kubelet before 1.37 does not name shares, but devices.
fn shares(node: &Node, answer: &ListPodResourcesResponse) -> BTreeMap<ShareKey, BTreeSet<ContainerName>> {
    let mut found: BTreeMap<ShareKey, BTreeSet<ContainerName>> = BTreeMap::new();
    for (uid, entry) in &node.claims().claims {
        for pod in answer
            .pod_resources
            .iter()
            .filter(|pod| pod.namespace == entry.namespace)
        {
            for container in &pod.containers {
                let claims = container.dynamic_resources.iter();
                let own = claims.filter(|of| of.claim_namespace == entry.namespace && of.claim_name == entry.name);
                let devices = own
                    .flat_map(|of| &of.claim_resources)
                    .filter(|of| of.driver_name == DRIVER_NAME);
                for device in devices {
                    let has = |share: &&crate::dra::share::Share| {
                        share.device == device.device_name
                            && (device.share_id.is_none() || device.share_id == share.share_id)
                    };
                    for share in entry.all().filter(has) {
                        let containers = found.entry((uid.clone(), share.name.clone())).or_default();
                        containers.insert((pod.name.clone(), container.name.clone()));
                    }
                }
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dra::node::tests::{Rig, claim};
    use vgpu_proto::pod_resources::{ClaimResource, ContainerResources, DynamicResource, PodResources};

    fn container(name: &str, claim: &str, share: Option<&str>) -> ContainerResources {
        let device = |driver: &str| ClaimResource {
            driver_name: driver.into(),
            pool_name: "n1/vgpu".into(),
            device_name: "gpu-3f8a1c20".into(),
            share_id: share.map(str::to_owned),
        };
        ContainerResources {
            name: name.into(),
            dynamic_resources: vec![DynamicResource {
                claim_name: claim.into(),
                claim_namespace: "d".into(),
                claim_resources: vec![device(DRIVER_NAME), device("nic.example")],
            }],
        }
    }

    fn pod(namespace: &str, name: &str, containers: Vec<ContainerResources>) -> PodResources {
        PodResources {
            name: name.into(),
            namespace: namespace.into(),
            containers,
        }
    }

    fn found(node: &Node, pods: Vec<PodResources>) -> Vec<String> {
        let answer = ListPodResourcesResponse { pod_resources: pods };
        let found = shares(node, &answer).into_iter();
        let line = |((uid, share), containers): (ShareKey, BTreeSet<ContainerName>)| {
            let names: Vec<String> = containers
                .into_iter()
                .map(|(pod, container)| format!("{pod}/{container}"))
                .collect();
            format!("{uid} {share}: {}", names.join(" "))
        };
        found.map(line).collect()
    }

    #[test]
    fn containers_of_shares_by_name_and_by_device() {
        let rig = Rig::new(false);
        let mut node = rig.open();
        let claims = [
            claim("u1", &[("s1", 10, 0), ("s2", 10, 0)]),
            claim("u2", &[("s3", 10, 0)]),
        ];
        assert!(node.prepare(&node.locked(), &claims).0.iter().all(Result::is_ok));
        let pods = vec![
            pod(
                "d",
                "p",
                vec![
                    container("a", "claim-u1", Some("s1")),
                    container("b", "claim-u1", Some("s1")),
                ],
            ),
            pod("d", "q", vec![container("a", "claim-u2", None)]),
            pod("e", "r", vec![container("a", "claim-u2", None)]),
            pod("d", "x", vec![container("a", "other", None)]),
        ];
        assert_eq!(found(&node, pods), ["u1 s1: p/a p/b", "u2 s3: q/a"]);
        let old = vec![pod("d", "p", vec![container("a", "claim-u1", None)])];
        assert_eq!(found(&node, old), ["u1 s1: p/a", "u1 s2: p/a"]);
    }

    #[tokio::test]
    async fn a_kubelet_that_is_not_there_or_says_nothing_is_an_error_that_names_why() {
        let dir = tempfile::tempdir().expect("a folder");
        let socket = dir.path().join("kubelet.sock");
        let error = ask(&socket).await.expect_err("no socket");
        assert!(error.contains("No such file"), "{error}");
        let _silent = std::os::unix::net::UnixListener::bind(&socket).expect("a socket");
        tokio::time::pause();
        let error = ask(&socket).await.expect_err("no answer");
        assert!(error.contains("within 5 s"), "{error}");
    }
}
