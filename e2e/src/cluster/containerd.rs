//! containerd's configuration file: version 3 for containerd 2, version 2 with the same content for containerd 1.7.

use std::path::Path;

use super::config::{Config, MemberState, PAUSE_IMAGE};
use crate::toolchain::is_containerd_1;

pub(super) const SOCKET: &str = "/run/containerd/containerd.sock";

/// The file's text.
pub(super) fn containerd_toml(config: &Config, own: &MemberState) -> String {
    let toolchain = &config.toolchain;
    let text = text(&toolchain.containerd, &toolchain.cni, &toolchain.runc, &own.etc("cni"));
    if config.cdi {
        text
    } else {
        text.replace("enable_cdi = true", "enable_cdi = false")
    }
}

/// containerd detects AppArmor by itself and loads its profile ([`super::host`] unloads it).
fn text(containerd: &str, cni: &Path, runc: &Path, conf: &Path) -> String {
    // Version 2 has one section for images and runtime, and a single folder of CNI plugins instead of a list.
    let (version, cri, image, plugins) = if is_containerd_1(containerd) {
        let cri = r#"plugins."io.containerd.grpc.v1.cri""#;
        let image = format!("[{cri}]\nsandbox_image = {PAUSE_IMAGE:?}");
        (2, cri, image, format!("bin_dir = {cni:?}"))
    } else {
        let cri = r#"plugins."io.containerd.cri.v1.runtime""#;
        let pinned = r#"[plugins."io.containerd.cri.v1.images".pinned_images]"#;
        let image = format!("{pinned}\nsandbox = {PAUSE_IMAGE:?}\n[{cri}]");
        (3, cri, image, format!("bin_dirs = [{cni:?}]"))
    };
    format!(
        r#"version = {version}
root = "/var/lib/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.nri.v1.nri", "io.containerd.tracing.processor.v1.otlp"]
[grpc]
address = "{SOCKET}"
{image}
restrict_oom_score_adj = true
enable_cdi = true
cdi_spec_dirs = ["/etc/cdi", "/var/run/cdi"]
[{cri}.cni]
{plugins}
conf_dir = {conf:?}
[{cri}.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[{cri}.containerd.runtimes.runc.options]
BinaryName = {runc:?}
"#
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(version: &str) -> String {
        text(version, Path::new("/t/cni"), Path::new("/t/runc"), Path::new("/s/cni"))
    }

    /// The lines of one section.
    fn section<'a>(text: &'a str, name: &str) -> Vec<&'a str> {
        let lines = text.lines().skip_while(|line| *line != format!("[{name}]")).skip(1);
        lines.take_while(|line| !line.starts_with('[')).collect()
    }

    #[test]
    fn containerd_2_is_given_version_3() {
        let text = of("2.4.2");
        assert!(text.starts_with("version = 3\n"), "{text}");
        let sandbox = section(&text, r#"plugins."io.containerd.cri.v1.images".pinned_images"#);
        assert_eq!(sandbox, [r#"sandbox = "docker.io/dra-driver-vgpu/pause:dev""#]);
        let runtime = section(&text, r#"plugins."io.containerd.cri.v1.runtime""#);
        assert!(runtime.contains(&"enable_cdi = true"), "{text}");
        let cni = section(&text, r#"plugins."io.containerd.cri.v1.runtime".cni"#);
        assert_eq!(cni, [r#"bin_dirs = ["/t/cni"]"#, r#"conf_dir = "/s/cni""#]);
    }

    #[test]
    fn containerd_1_is_given_version_2_with_cdi_switched_on() {
        let text = of("1.7.35");
        assert!(text.starts_with("version = 2\n") && !text.contains("cri.v1"), "{text}");
        let cri = section(&text, r#"plugins."io.containerd.grpc.v1.cri""#);
        for line in [
            r#"sandbox_image = "docker.io/dra-driver-vgpu/pause:dev""#,
            "restrict_oom_score_adj = true",
            "enable_cdi = true",
            r#"cdi_spec_dirs = ["/etc/cdi", "/var/run/cdi"]"#,
        ] {
            assert!(cri.contains(&line), "{line} in {text}");
        }
        let cni = section(&text, r#"plugins."io.containerd.grpc.v1.cri".cni"#);
        assert_eq!(cni, [r#"bin_dir = "/t/cni""#, r#"conf_dir = "/s/cni""#]);
        let runc = section(
            &text,
            r#"plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options"#,
        );
        assert_eq!(runc, [r#"BinaryName = "/t/runc""#]);
    }

    /// Only the sections' names, the sandbox image and the CNI folder differ.
    #[test]
    fn both_versions_say_the_same() {
        let settings = |version: &str| -> Vec<String> {
            let text = of(version);
            let own = |line: &&str| {
                !["[", "version", "sandbox", "bin_dir"]
                    .iter()
                    .any(|start| line.starts_with(start))
            };
            text.lines().filter(own).map(str::to_owned).collect()
        };
        assert_eq!(settings("1.7.35"), settings("2.4.2"));
    }
}
