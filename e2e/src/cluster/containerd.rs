//! containerd's configuration file.

use super::components::CONTAINERD_SOCKET;
use super::config::{Config, MemberState, PAUSE_IMAGE};

/// containerd itself sees whether the machine has AppArmor, and then loads its profile ([`super::host`] unloads it).
pub(super) fn containerd_toml(config: &Config, own: &MemberState) -> String {
    format!(
        r#"version = 3
root = "/var/lib/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.nri.v1.nri", "io.containerd.tracing.processor.v1.otlp"]
[grpc]
address = "{CONTAINERD_SOCKET}"
[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "{PAUSE_IMAGE}"
[plugins."io.containerd.cri.v1.runtime"]
restrict_oom_score_adj = true
enable_cdi = true
[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = [{cni:?}]
conf_dir = {conf:?}
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
BinaryName = {runc:?}
"#,
        cni = config.toolchain.cni,
        conf = own.etc("cni"),
        runc = config.toolchain.runc,
    )
}
