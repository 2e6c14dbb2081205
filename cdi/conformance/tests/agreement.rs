//! CDI's own library accepts every spec that vgpu-cdi writes. So a runtime that is built on that library, or on the Go
//! library that it follows, never refuses a spec of ours.
//!
//! The specs are one like the plugin's, with every field set, and copies of it with one change each.
//! `cdi/tests/document.rs` has the values that vgpu-cdi refuses.
#![forbid(unsafe_code)]

use container_device_interface::{
    schema,
    spec::{parse_spec, read_spec},
    version::minimum_required_version,
};
use vgpu_cdi::{ContainerEdits, Device, DeviceNode, DeviceNumber, Hook, HookName, Kind, Mount, Spec, VERSION};

fn edits() -> ContainerEdits {
    ContainerEdits {
        env: vec!["NVIDIA_VISIBLE_DEVICES=void".into()],
        device_nodes: vec![DeviceNode {
            path: "/dev/nvidia0".into(),
            host_path: Some("/run/driver/dev/nvidia0".into()),
            file_mode: 0o666,
            number: Some(DeviceNumber::Character { major: 195, minor: 0 }),
        }],
        mounts: vec![Mount {
            host_path: "/run/vgpu/claims/7f0e/s".into(),
            container_path: "/dev/vgpu/s".into(),
            r#type: Some("bind".into()),
            options: ["ro", "nosuid", "nodev", "bind", "rprivate"].map(String::from).to_vec(),
        }],
        hooks: vec![Hook {
            hook_name: HookName::CreateContainer,
            path: "/var/lib/vgpu/0ab1/vgpu-cdi-hook".into(),
            args: ["vgpu-cdi-hook", "preload"].map(String::from).to_vec(),
            timeout: 10,
        }],
    }
}

fn base() -> Spec {
    let mut spec = Spec::new(Kind::parse("dra.vgpu/claim").expect("a kind"));
    spec.container_edits = edits();
    spec.devices = vec![Device {
        name: "7f0e-gpu-0a1b2c3d".into(),
        container_edits: edits(),
    }];
    spec
}

type Change = Box<dyn Fn(&mut Spec)>;

/// Changes to valid values for every field: of the spec's edits and of the device's edits.
fn changes() -> Vec<Change> {
    let mut all: Vec<Change> = Vec::new();
    for kind in ["a/b", "Vendor.com/gpu", "a-b_c.d/e"] {
        all.push(Box::new(move |spec| spec.kind = Kind::parse(kind).expect("a kind")));
    }
    for name in ["a", "0", "a:b", "GPU.0_1"] {
        all.push(Box::new(move |spec| spec.devices[0].name = name.into()));
    }
    all.push(Box::new(|spec| {
        spec.devices.push(Device {
            name: "other".into(),
            container_edits: edits(),
        })
    }));
    let of_edits: [fn(&mut ContainerEdits); 16] = [
        |edits| edits.env.clear(),
        |edits| edits.env = vec!["A=".into(), "B=b=c".into(), "C=\t\n".into()],
        |edits| edits.device_nodes.clear(),
        |edits| edits.device_nodes[0].host_path = None,
        |edits| edits.device_nodes[0].host_path = Some("/".into()),
        |edits| edits.device_nodes[0].file_mode = 0,
        |edits| edits.device_nodes[0].file_mode = 0o7777,
        |edits| edits.mounts.clear(),
        |edits| edits.mounts[0].r#type = None,
        |edits| edits.mounts[0].options.clear(),
        |edits| {
            edits.mounts.push(Mount {
                host_path: "vgpu".into(),
                container_path: "/dev/vgpu".into(),
                r#type: Some("tmpfs".into()),
                options: vec!["size=64k".into()],
            })
        },
        |edits| edits.hooks.clear(),
        |edits| edits.hooks[0].args = vec!["a b".into()],
        |edits| edits.hooks[0].args.clear(),
        |edits| edits.hooks[0].timeout = 1,
        |edits| edits.hooks[0].hook_name = HookName::CreateRuntime,
    ];
    for change in of_edits {
        all.push(Box::new(move |spec| change(&mut spec.container_edits)));
        all.push(Box::new(move |spec| change(&mut spec.devices[0].container_edits)));
    }
    all
}

/// Writes the spec to a file, which the other library reads.
fn compare(spec: &Spec) {
    let json = spec.render().expect("a valid spec");
    let text = String::from_utf8_lossy(&json);
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("dra.vgpu-claim_x.json");
    std::fs::write(&file, &json).expect("write");
    schema::validate_builtin(&json).unwrap_or_else(|error| panic!("{error:#}: {text}"));
    let theirs = parse_spec(&file).unwrap_or_else(|error| panic!("{error:#}: {text}"));
    read_spec(&file, 0).unwrap_or_else(|error| panic!("{error:#}: {text}"));
    let needed = minimum_required_version(&theirs).expect("a version").to_string();
    assert!(*needed <= *VERSION, "{needed} is needed: {text}");
}

#[test]
fn every_spec_that_we_write_is_accepted() {
    compare(&base());
    for change in changes() {
        let mut spec = base();
        change(&mut spec);
        compare(&spec);
    }
}
