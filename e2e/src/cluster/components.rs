//! The programs of a cluster's members: their command lines and configuration files.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::config::{API_ADDRESS, Config, Member, Node, SERVICES, State};
use super::containerd::{SOCKET, containerd_toml};

use crate::patience;

/// A program that init runs, and restarts when it ends.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Component {
    pub(super) name: String,
    pub(super) command: Vec<String>,
}

/// A node becomes unreachable after its kubelet was silent for this time. Kubernetes' default of 50 s would slow down
/// every test in which a node dies.
const LEASE: Duration = Duration::from_secs(20);

/// The feature gates that every component gets. Kubernetes 1.34 and 1.35 need one for shares; from 1.36 on it is enabled by
/// default.
fn feature_gates(config: &Config) -> Vec<String> {
    let mut gates = gates_for_shares(&config.toolchain.kubernetes);
    gates.extend(config.feature_gates.iter().cloned());
    gates
}

fn gates_for_shares(kubernetes: &str) -> Vec<String> {
    match kubernetes.split('.').nth(1).and_then(|minor| minor.parse::<u32>().ok()) {
        Some(34 | 35) => vec!["DRAConsumableCapacity".to_owned()],
        _ => Vec::new(),
    }
}

/// Control-plane components that start first, at the same time.
pub(super) fn first(config: &Config, state: &State) -> Result<Vec<Component>> {
    Ok(vec![etcd(config, state)?, apiserver(config, state)?])
}

/// Control-plane components that start once kube-apiserver answers.
pub(super) fn second(config: &Config, state: &State) -> Result<Vec<Component>> {
    Ok(vec![controller_manager(config, state)?, scheduler(config, state)?])
}

/// Writes the files named in the command lines of a node's components.
pub(super) fn write_node_files(config: &Config, state: &State, node: Node) -> Result<()> {
    let own = state.member(Member::Node(node));
    let gates = feature_gates(config).into_iter().map(|gate| (gate, true.into()));
    let gates: serde_json::Map<_, _> = gates.collect();
    let kubelet = json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": node.address(),
        "healthzBindAddress": "127.0.0.1",
        "authentication": {
            "anonymous": {"enabled": false},
            "webhook": {"enabled": true},
            "x509": {"clientCAFile": state.pki("ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "featureGates": gates,
        "nodeLeaseDurationSeconds": patience::stretched(LEASE).as_secs(),
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": super::cgroup::kubelet_root(&config.name, &node.name()),
        "failCgroupV1": false,
        "failSwapOn": false,
        "oomScoreAdj": 0,
        "makeIPTablesUtilChains": false,
        "resolvConf": "",
        "containerRuntimeEndpoint": format!("unix://{SOCKET}"),
        "volumePluginDir": "/var/lib/kubelet/volume-plugins",
        // A nearly full disk is no reason to evict the demo's pods.
        "evictionHard": {"nodefs.available": "200Mi", "imagefs.available": "200Mi", "memory.available": "100Mi"},
        "imageGCHighThresholdPercent": 100,
    });
    let network = json!({
        "cniVersion": "1.0.0",
        "name": "ptp",
        "plugins": [{"type": "ptp",
            "ipam": {"type": "host-local", "subnet": node.pods(), "routes": [{"dst": "0.0.0.0/0"}]}}],
    });
    fs::create_dir_all(own.etc("cni")).context("cannot create the configuration's folder")?;
    write(&own.etc("kubelet.json"), &kubelet.to_string())?;
    write(&own.etc("cni/10-ptp.conflist"), &network.to_string())?;
    write(&own.etc("containerd.toml"), &containerd_toml(config, &own))
}

fn write(file: &Path, text: &str) -> Result<()> {
    fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}

fn component(config: &Config, program: &str, flags: Vec<String>) -> Result<Component> {
    let path = config.toolchain.program(program)?;
    let mut command = vec![path.to_string_lossy().into_owned()];
    command.extend(flags);
    Ok(Component {
        name: program.to_owned(),
        command,
    })
}

fn with_gates(config: &Config, mut flags: Vec<String>) -> Vec<String> {
    let gates = feature_gates(config).into_iter();
    flags.extend(gates.map(|gate| format!("--feature-gates={gate}=true")));
    flags
}

fn etcd(config: &Config, state: &State) -> Result<Component> {
    let (client, peer) = ("http://127.0.0.1:2379", "http://127.0.0.1:2380");
    component(
        config,
        "etcd",
        vec![
            format!("--data-dir={}", state.0.join("etcd").display()),
            format!("--listen-client-urls={client}"),
            format!("--advertise-client-urls={client}"),
            format!("--listen-peer-urls={peer}"),
            format!("--initial-advertise-peer-urls={peer}"),
            format!("--initial-cluster=default={peer}"),
            "--unsafe-no-fsync".to_owned(), // the data dies with the cluster
            "--log-level=warn".to_owned(),
        ],
    )
}

fn apiserver(config: &Config, state: &State) -> Result<Component> {
    let pki = |file: &str| state.pki(file).display().to_string();
    let flags = vec![
        "--etcd-servers=http://127.0.0.1:2379".to_owned(),
        format!("--bind-address={API_ADDRESS}"),
        format!("--advertise-address={API_ADDRESS}"),
        "--secure-port=443".to_owned(),
        "--endpoint-reconciler-type=none".to_owned(),
        "--allow-privileged=true".to_owned(),
        "--authorization-mode=Node,RBAC".to_owned(),
        "--enable-admission-plugins=NodeRestriction".to_owned(),
        // There is no kube-proxy, so a webhook's Service is resolved to the addresses of its pods.
        "--enable-aggregator-routing=true".to_owned(),
        format!("--client-ca-file={}", pki("ca.crt")),
        format!("--tls-cert-file={}", pki("apiserver.crt")),
        format!("--tls-private-key-file={}", pki("apiserver.key")),
        format!("--kubelet-client-certificate={}", pki("admin.crt")),
        format!("--kubelet-client-key={}", pki("admin.key")),
        "--kubelet-preferred-address-types=InternalIP".to_owned(),
        format!("--service-account-key-file={}", pki("service-accounts.pub")),
        format!("--service-account-signing-key-file={}", pki("service-accounts.key")),
        "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
        format!("--service-cluster-ip-range={SERVICES}"),
    ];
    component(config, "kube-apiserver", with_gates(config, flags))
}

fn scheduler(config: &Config, state: &State) -> Result<Component> {
    let flags = vec![
        format!("--kubeconfig={}", state.component_kubeconfig("scheduler").display()),
        "--leader-elect=false".to_owned(),
        "--bind-address=127.0.0.1".to_owned(),
    ];
    component(config, "kube-scheduler", with_gates(config, flags))
}

fn controller_manager(config: &Config, state: &State) -> Result<Component> {
    let flags = vec![
        format!(
            "--kubeconfig={}",
            state.component_kubeconfig("controller-manager").display()
        ),
        "--leader-elect=false".to_owned(),
        "--bind-address=127.0.0.1".to_owned(),
        "--use-service-account-credentials".to_owned(),
        format!(
            "--service-account-private-key-file={}",
            state.pki("service-accounts.key").display()
        ),
        format!("--root-ca-file={}", state.pki("ca.crt").display()),
        format!("--flex-volume-plugin-dir={}", state.0.join("volume-plugins").display()),
        format!("--node-monitor-grace-period={}s", patience::stretched(LEASE).as_secs()),
    ];
    component(config, "kube-controller-manager", with_gates(config, flags))
}

pub(super) fn containerd(config: &Config, state: &State, node: Node) -> Result<Component> {
    let file = state.member(Member::Node(node)).etc("containerd.toml");
    component(config, "containerd", vec![format!("--config={}", file.display())])
}

pub(super) fn kubelet(config: &Config, state: &State, node: Node) -> Result<Component> {
    let flags = vec![
        format!(
            "--config={}",
            state.member(Member::Node(node)).etc("kubelet.json").display()
        ),
        format!("--kubeconfig={}", state.component_kubeconfig(&node.name()).display()),
        format!("--hostname-override={}", node.name()),
        format!("--node-ip={}", node.address()),
        "--v=2".to_owned(),
    ];
    component(config, "kubelet", flags)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_without_consumable_capacity_by_default_get_the_gate() {
        assert_eq!(gates_for_shares("1.34.4"), ["DRAConsumableCapacity"]);
        assert_eq!(gates_for_shares("1.35.4"), ["DRAConsumableCapacity"]);
        assert!(gates_for_shares("1.36.3").is_empty() && gates_for_shares("1.37.1").is_empty());
    }
}
