//! The programs of the cluster: their command lines and configuration files.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::config::{API_ADDRESS, Config, NODE, NODE_ADDRESS, PODS, SERVICES, State};
use super::containerd::containerd_toml;

/// One program that init runs, and starts again when it ends.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Component {
    pub(super) name: String,
    pub(super) command: Vec<String>,
}

pub(super) const CONTAINERD_SOCKET: &str = "/run/containerd/containerd.sock";

/// Fractions need this gate on every component of these versions; from 1.36 on it is on.
fn feature_gates(kubernetes: &str) -> Vec<(&'static str, bool)> {
    match kubernetes.split('.').nth(1).and_then(|minor| minor.parse::<u32>().ok()) {
        Some(34 | 35) => vec![("DRAConsumableCapacity", true)],
        _ => Vec::new(),
    }
}

/// Started at once: they need nothing of each other to begin with.
pub(super) fn first(config: &Config, state: &State) -> Result<Vec<Component>> {
    Ok(vec![
        etcd(config, state)?,
        apiserver(config, state)?,
        containerd(config, state)?,
    ])
}

/// Started when kube-apiserver answers.
pub(super) fn second(config: &Config, state: &State) -> Result<Vec<Component>> {
    Ok(vec![
        kubelet(config, state)?,
        controller_manager(config, state)?,
        scheduler(config, state)?,
    ])
}

/// Writes the files that the command lines name.
pub(super) fn write_files(config: &Config, state: &State) -> Result<()> {
    let gates: serde_json::Map<_, _> = feature_gates(&config.toolchain.kubernetes)
        .into_iter()
        .map(|(gate, on)| (gate.to_owned(), on.into()))
        .collect();
    let kubelet = json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": NODE_ADDRESS,
        "healthzBindAddress": "127.0.0.1",
        "authentication": {
            "anonymous": {"enabled": false},
            "webhook": {"enabled": true},
            "x509": {"clientCAFile": state.pki("ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "featureGates": gates,
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": format!("/{}", super::cgroup::name(&config.name)),
        "failCgroupV1": false,
        "failSwapOn": false,
        "oomScoreAdj": 0,
        "makeIPTablesUtilChains": false,
        "resolvConf": "",
        "containerRuntimeEndpoint": format!("unix://{CONTAINERD_SOCKET}"),
        "volumePluginDir": "/var/lib/kubelet/volume-plugins",
        // A machine whose disk is nearly full is no reason to evict the pods that a person came to see.
        "evictionHard": {"nodefs.available": "200Mi", "imagefs.available": "200Mi", "memory.available": "100Mi"},
        "imageGCHighThresholdPercent": 100,
    });
    let network = json!({
        "cniVersion": "1.0.0",
        "name": "ptp",
        "plugins": [{"type": "ptp", "ipam": {"type": "host-local", "subnet": PODS, "routes": [{"dst": "0.0.0.0/0"}]}}],
    });
    fs::create_dir_all(state.etc("cni")).context("cannot create the configuration's folder")?;
    write(&state.etc("kubelet.json"), &kubelet.to_string())?;
    write(&state.etc("cni/10-ptp.conflist"), &network.to_string())?;
    write(&state.etc("containerd.toml"), &containerd_toml(config, state))
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
    flags.extend(
        feature_gates(&config.toolchain.kubernetes)
            .iter()
            .map(|(gate, on)| format!("--feature-gates={gate}={on}")),
    );
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
        "--flex-volume-plugin-dir=/var/lib/kubelet/volume-plugins".to_owned(),
    ];
    component(config, "kube-controller-manager", with_gates(config, flags))
}

fn containerd(config: &Config, state: &State) -> Result<Component> {
    component(
        config,
        "containerd",
        vec![format!("--config={}", state.etc("containerd.toml").display())],
    )
}

fn kubelet(config: &Config, state: &State) -> Result<Component> {
    let flags = vec![
        format!("--config={}", state.etc("kubelet.json").display()),
        format!("--kubeconfig={}", state.component_kubeconfig("kubelet").display()),
        format!("--hostname-override={NODE}"),
        format!("--node-ip={NODE_ADDRESS}"),
        "--v=2".to_owned(),
    ];
    component(config, "kubelet", flags)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_without_consumable_capacity_by_default_get_the_gate() {
        assert_eq!(feature_gates("1.34.4"), [("DRAConsumableCapacity", true)]);
        assert_eq!(feature_gates("1.35.4"), [("DRAConsumableCapacity", true)]);
        assert!(feature_gates("1.36.3").is_empty() && feature_gates("1.37.1").is_empty());
    }
}
