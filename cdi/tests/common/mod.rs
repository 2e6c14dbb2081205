//! A spec like the ones that the plugin writes.

use vgpu_cdi::{ContainerEdits, Device, DeviceNode, DeviceNumber, Hook, HookName, Kind, Mount, Spec};

pub(crate) fn kind() -> Kind {
    Kind::parse("dra.vgpu/claim").expect("a kind")
}

pub(crate) fn mount(host: &str, container: &str) -> Mount {
    Mount {
        host_path: host.into(),
        container_path: container.into(),
        options: ["ro", "nosuid", "nodev", "rbind", "rprivate"]
            .map(String::from)
            .to_vec(),
        ..Mount::default()
    }
}

fn hook(hook_name: HookName, program: &str, command: &str) -> Hook {
    Hook {
        hook_name,
        path: format!("/var/lib/vgpu/0ab1/{program}"),
        args: [program, command].map(String::from).to_vec(),
        timeout: 10,
    }
}

pub(crate) fn claim() -> Spec {
    let mut spec = Spec::new(kind());
    spec.container_edits = ContainerEdits {
        env: vec!["NVIDIA_VISIBLE_DEVICES=void".into()],
        device_nodes: vec![DeviceNode {
            path: "/dev/nvidiactl".into(),
            file_mode: 0o666,
            ..DeviceNode::default()
        }],
        mounts: vec![mount("/var/lib/vgpu/0ab1/libvgpu.so", "/usr/lib64/libcuda.so.1")],
        hooks: vec![
            hook(HookName::CreateContainer, "vgpu-cdi-hook", "preload"),
            hook(HookName::CreateRuntime, "vgpu-driver-limit", "set"),
        ],
    };
    spec.devices = vec![Device {
        name: "7f0e3a52-1d4c-4a6e-9f57-0d2a3b8c6e11-gpu-0a1b2c3d".into(),
        container_edits: ContainerEdits {
            device_nodes: vec![DeviceNode {
                path: "/dev/nvidia0".into(),
                host_path: Some("/run/driver/dev/nvidia0".into()),
                file_mode: 0o666,
                number: Some(DeviceNumber::Character { major: 195, minor: 0 }),
            }],
            mounts: vec![mount("/run/vgpu/claims/7f0e/s", "/run/vgpu/s")],
            ..ContainerEdits::default()
        },
    }];
    spec
}
