//! Writing and validating a document.

mod common;

use common::{claim, kind, mount};
use serde_json::{Value, json};
use vgpu_cdi::{Problem, Spec};

fn rendered(spec: &Spec) -> Value {
    serde_json::from_slice(&spec.render().expect("a valid spec")).expect("JSON")
}

/// The validation error of the spec `claim()` after this change.
fn refusal(change: impl FnOnce(&mut Spec)) -> String {
    let mut spec = claim();
    change(&mut spec);
    assert_eq!(
        spec.render().map_err(|error| error.to_string()),
        spec.validate().map_err(|e| e.to_string()).map(|()| Vec::new())
    );
    spec.validate().expect_err("an invalid spec").to_string()
}

#[test]
fn a_claim_is_written_as_cdi_has_it() {
    let json = claim().render().expect("a valid spec");
    assert!(json.ends_with(b"}\n"));
    let mount = |host: &str, container: &str| json!({"hostPath": host, "containerPath": container, "options": ["ro", "nosuid", "nodev", "rbind", "rprivate"]});
    assert_eq!(
        rendered(&claim()),
        json!({
            "cdiVersion": "0.5.0",
            "kind": "dra.vgpu/claim",
            "devices": [{"name": "7f0e3a52-1d4c-4a6e-9f57-0d2a3b8c6e11-gpu-0a1b2c3d", "containerEdits": {
                "deviceNodes": [{"path": "/dev/nvidia0", "hostPath": "/run/driver/dev/nvidia0", "fileMode": 0o666,
                    "type": "c", "major": 195, "minor": 0}],
                "mounts": [mount("/run/vgpu/claims/7f0e/s", "/run/vgpu/s")],
            }}],
            "containerEdits": {
                "env": ["NVIDIA_VISIBLE_DEVICES=void"],
                "deviceNodes": [{"path": "/dev/nvidiactl", "fileMode": 0o666}],
                "mounts": [mount("/var/lib/vgpu/0ab1/libvgpu.so", "/usr/lib64/libcuda.so.1")],
                "hooks": [
                    {"hookName": "createContainer", "path": "/var/lib/vgpu/0ab1/vgpu-cdi-hook",
                        "args": ["vgpu-cdi-hook", "preload"], "timeout": 10},
                    {"hookName": "createRuntime", "path": "/var/lib/vgpu/0ab1/vgpu-driver-limit",
                        "args": ["vgpu-driver-limit", "set"], "timeout": 10},
                ],
            },
        })
    );
}

#[test]
fn what_says_nothing_is_left_out() {
    let mut spec = claim();
    spec.container_edits = Default::default();
    let json = rendered(&spec);
    assert_eq!(json.get("containerEdits"), None);
    let edits = json["devices"][0]["containerEdits"].as_object().expect("edits");
    assert_eq!(edits.keys().collect::<Vec<_>>(), ["deviceNodes", "mounts"]);
}

#[test]
fn refusals_name_the_place_the_value_and_what_to_do() {
    let edits =
        |change: fn(&mut vgpu_cdi::ContainerEdits)| refusal(|spec| change(&mut spec.devices[0].container_edits));
    let at = "devices[0].containerEdits";
    assert_eq!(
        refusal(|spec| spec.devices.clear()),
        "devices: holds no device; add one, or remove the file"
    );
    assert_eq!(
        edits(|edits| *edits = Default::default()),
        format!("{at}: changes nothing in a container, which runtimes refuse; add an edit, or leave it out")
    );
    assert_eq!(
        edits(|edits| edits.mounts[0].host_path = "run/vgpu".into()),
        format!(
            "{at}.mounts[0].hostPath: \"run/vgpu\" is not an absolute path without '.', '..' and empty parts; \
             write it from the root"
        )
    );
    assert_eq!(
        edits(|edits| edits.env = vec!["A=1".into(), "A=2".into()]),
        format!("{at}.env[1]: \"A\" occurs twice; the later one would silently replace the earlier, so keep one")
    );
}

/// The error of each bad value starts with the path of that value.
#[test]
fn each_bad_value_is_refused_where_it_stands() {
    type Change = fn(&mut Spec);
    let cases: &[(&str, Change)] = &[
        ("devices[0].name", |s| s.devices[0].name = "a=b".into()),
        ("devices[1]", |s| s.devices.push(s.devices[0].clone())),
        ("containerEdits.env[0]", |s| s.container_edits.env[0] = "NAME".into()),
        ("containerEdits.env[0]", |s| s.container_edits.env[0] = "=x".into()),
        ("containerEdits.env[0]", |s| s.container_edits.env[0] = "A B=x".into()),
        ("containerEdits.env[0]", |s| s.container_edits.env[0] = "A=\0".into()),
        ("containerEdits.deviceNodes[0].path", |s| {
            s.container_edits.device_nodes[0].path = "dev/x".into()
        }),
        ("containerEdits.deviceNodes[0].path", |s| {
            s.container_edits.device_nodes[0].path = "/dev/../x".into()
        }),
        ("containerEdits.deviceNodes[0].path", |s| {
            s.container_edits.device_nodes[0].path = "/dev/x\n".into()
        }),
        ("containerEdits.deviceNodes[0].hostPath", |s| {
            s.container_edits.device_nodes[0].host_path = Some("".into())
        }),
        ("containerEdits.deviceNodes[0].fileMode", |s| {
            s.container_edits.device_nodes[0].file_mode = 0o20666
        }),
        ("containerEdits.deviceNodes[1]", |s| {
            let twice = s.container_edits.device_nodes[0].clone();
            s.container_edits.device_nodes.push(twice);
        }),
        ("containerEdits.mounts[0].containerPath", |s| {
            s.container_edits.mounts[0].container_path = "/".into()
        }),
        ("containerEdits.mounts[0].containerPath", |s| {
            s.container_edits.mounts[0].container_path = "/a//b".into()
        }),
        ("containerEdits.mounts[0].type", |s| {
            s.container_edits.mounts[0].r#type = Some("".into())
        }),
        ("containerEdits.mounts[0].options[0]", |s| {
            s.container_edits.mounts[0].options[0] = "ro,nosuid".into()
        }),
        ("containerEdits.mounts[1]", |s| {
            s.container_edits.mounts.push(mount("/x", "/usr/lib64/libcuda.so.1"))
        }),
        ("containerEdits.hooks[0].path", |s| {
            s.container_edits.hooks[0].path = "vgpu-cdi-hook".into()
        }),
        ("containerEdits.hooks[0].args[1]", |s| {
            s.container_edits.hooks[0].args[1] = "\u{7f}".into()
        }),
    ];
    for (index, (path, change)) in cases.iter().enumerate() {
        let mut spec = claim();
        change(&mut spec);
        let error = spec.validate().expect_err(path);
        assert_eq!(error.path, *path, "case {index}: {error}");
    }
}

#[test]
fn problems_can_be_matched() {
    let mut spec = Spec::new(kind());
    assert_eq!(spec.validate().expect_err("no devices").problem, Problem::NoDevices);
    spec.devices = claim().devices;
    assert_eq!(spec.validate(), Ok(()));
}
