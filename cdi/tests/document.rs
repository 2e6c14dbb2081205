//! Reading, writing and validating a document.

mod common;

use common::{claim, kind, mount};
use serde_json::{Value, json};
use vgpu_cdi::{IntelRdt, Kind, NetDevice, Problem, ReadError, Spec, Version};

fn rendered(spec: &Spec) -> Value {
    serde_json::from_slice(&spec.render().expect("a valid spec")).expect("JSON")
}

fn version(change: impl FnOnce(&mut Spec)) -> String {
    let mut spec = claim();
    change(&mut spec);
    rendered(&spec)["cdiVersion"].as_str().expect("a string").to_owned()
}

/// The error of `claim()` with a change.
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
fn a_claim_needs_0_5_0_and_survives_a_round_trip() {
    let json = claim().render().expect("a valid spec");
    assert_eq!(
        serde_json::from_slice::<Value>(&json).expect("JSON")["cdiVersion"],
        "0.5.0"
    );
    assert_eq!(Spec::parse(&json).expect("our own document"), claim());
    assert!(json.ends_with(b"}\n"));
}

#[test]
fn the_version_is_the_lowest_that_can_say_it() {
    let letters = |spec: &mut Spec| {
        spec.devices[0].name = "gpu".into();
        spec.devices[0].container_edits.device_nodes.clear();
    };
    assert_eq!(version(letters), "0.3.0");
    let typed = |spec: &mut Spec| {
        letters(spec);
        spec.container_edits.mounts[0].r#type = Some("bind".into());
    };
    assert_eq!(version(typed), "0.4.0");
    assert_eq!(version(|_| ()), "0.5.0");
    assert_eq!(
        version(|spec| drop(spec.annotations.insert("a".into(), "b".into()))),
        "0.6.0"
    );
    assert_eq!(
        version(|spec| drop(spec.devices[0].annotations.insert("a".into(), "b".into()))),
        "0.6.0"
    );
    assert_eq!(
        version(|spec| spec.kind = Kind::parse("dra.vgpu/claim.v2").expect("a kind")),
        "0.6.0"
    );
    assert_eq!(version(|spec| spec.container_edits.additional_gids = vec![44]), "0.7.0");
    let rdt = |rdt: IntelRdt| move |spec: &mut Spec| spec.devices[0].container_edits.intel_rdt = Some(rdt);
    assert_eq!(
        version(rdt(IntelRdt {
            clos_id: Some("c".into()),
            ..IntelRdt::default()
        })),
        "0.7.0"
    );
    assert_eq!(
        version(rdt(IntelRdt {
            enable_cmt: Some(true),
            ..IntelRdt::default()
        })),
        "0.7.0"
    );
    assert_eq!(
        version(rdt(IntelRdt {
            enable_monitoring: Some(false),
            ..IntelRdt::default()
        })),
        "1.1.0"
    );
    let net = vec![NetDevice {
        host_interface_name: "eth0".into(),
        name: "net1".into(),
    }];
    assert_eq!(version(|spec| spec.container_edits.net_devices = net), "1.1.0");
}

#[test]
fn file_modes_are_always_written() {
    let json = rendered(&claim());
    assert_eq!(json["containerEdits"]["deviceNodes"][0]["fileMode"], 0o666);
    assert_eq!(
        json["devices"][0]["containerEdits"]["deviceNodes"][0]["fileMode"],
        0o666
    );
    let without = json!({"cdiVersion": "0.5.0", "kind": "a/b", "devices": [
        {"name": "d", "containerEdits": {"deviceNodes": [{"path": "/dev/x"}]}}]});
    let error = Spec::parse(without.to_string().as_bytes()).expect_err("no fileMode");
    assert!(error.to_string().contains("fileMode"), "{error}");
}

#[test]
fn what_says_nothing_is_left_out() {
    let mut spec = claim();
    spec.container_edits = Default::default();
    let json = rendered(&spec);
    assert_eq!(json.get("containerEdits"), None);
    assert_eq!(json.get("annotations"), None);
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
    assert_eq!(
        refusal(|spec| drop(spec.annotations.insert("DRA.vgpu/x".into(), "y".into()))),
        "annotations[\"DRA.vgpu/x\"]: \"DRA.vgpu/x\" is not an annotation key; write [lower-case.domain/]name, the \
         name at most 63 characters"
    );
}

/// Every problem, with its place.
#[test]
fn each_bad_value_is_refused_where_it_stands() {
    type Change = fn(&mut Spec);
    let cases: &[(&str, Change)] = &[
        ("devices[0].name", |s| s.devices[0].name = "a=b".into()),
        ("devices[1]", |s| s.devices.push(s.devices[0].clone())),
        ("annotations", |s| {
            drop(s.annotations.insert("a".into(), "x".repeat(256 << 10)))
        }),
        ("annotations[\"a\"]", |s| {
            drop(s.annotations.insert("a".into(), "\u{2028}".into()))
        }),
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
        ("containerEdits.deviceNodes[0].permissions", |s| {
            s.container_edits.device_nodes[0].permissions = Some("rwx".into())
        }),
        ("containerEdits.deviceNodes[0].permissions", |s| {
            s.container_edits.device_nodes[0].permissions = Some("rr".into())
        }),
        ("containerEdits.deviceNodes[0]", |s| {
            s.container_edits.device_nodes[0].major = Some(1)
        }),
        ("devices[0].containerEdits.deviceNodes[0]", |s| {
            s.devices[0].container_edits.device_nodes[0].minor = Some(-1)
        }),
        ("devices[0].containerEdits.deviceNodes[0]", |s| {
            s.devices[0].container_edits.device_nodes[0].r#type = None
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
        ("containerEdits.hooks[0].env[0]", |s| {
            s.container_edits.hooks[0].env = vec!["".into()]
        }),
        ("containerEdits.hooks[0].timeout", |s| {
            s.container_edits.hooks[0].timeout = Some(0)
        }),
        ("containerEdits.additionalGids[1]", |s| {
            s.container_edits.additional_gids = vec![4, 0]
        }),
        ("containerEdits.additionalGids[1]", |s| {
            s.container_edits.additional_gids = vec![4, 4]
        }),
        ("containerEdits.intelRdt", |s| {
            s.container_edits.intel_rdt = Some(IntelRdt::default())
        }),
        ("containerEdits.intelRdt.closID", |s| {
            s.container_edits.intel_rdt = Some(IntelRdt {
                clos_id: Some("..".into()),
                ..IntelRdt::default()
            })
        }),
        ("containerEdits.intelRdt.l3CacheSchema", |s| {
            s.container_edits.intel_rdt = Some(IntelRdt {
                l3_cache_schema: Some("".into()),
                ..IntelRdt::default()
            })
        }),
        ("containerEdits.intelRdt", |s| {
            let both = IntelRdt {
                enable_cmt: Some(true),
                enable_monitoring: Some(true),
                ..IntelRdt::default()
            };
            s.container_edits.intel_rdt = Some(both)
        }),
        ("containerEdits.netDevices[0].name", |s| {
            s.container_edits.net_devices = vec![NetDevice {
                host_interface_name: "eth0".into(),
                name: "a/b".into(),
            }]
        }),
        ("containerEdits.netDevices[1]", |s| {
            s.container_edits.net_devices = ["a", "b"]
                .map(|host| NetDevice {
                    host_interface_name: host.into(),
                    name: "net1".into(),
                })
                .to_vec()
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
fn reading_is_strict() {
    let good = rendered(&claim());
    let device = "/devices/0";
    let cases: &[(&str, &str, Value)] = &[
        ("", "version", json!("0.5.0")),
        ("", "Kind", json!("a/b")),
        ("", "containeredits", json!({})),
        ("", "annotations", Value::Null),
        ("", "cdiVersion", json!("v0.5.0")),
        ("", "cdiVersion", json!("0.2.0")),
        ("", "cdiVersion", json!("2.0.0")),
        ("", "kind", json!("dra.vgpu")),
        (device, "Name", json!("x")),
        (device, "containerEdits", Value::Null),
        ("/devices/0/containerEdits", "additionalGIDs", json!([1])),
        ("/devices/0/containerEdits", "env", Value::Null),
        ("/devices/0/containerEdits/deviceNodes/0", "hostpath", json!("/dev/x")),
        ("/devices/0/containerEdits/deviceNodes/0", "fileMode", json!("0666")),
        ("/devices/0/containerEdits/deviceNodes/0", "type", json!("")),
        ("/devices/0/containerEdits/deviceNodes/0", "uid", json!(-1)),
        ("/devices/0/containerEdits/mounts/0", "type", Value::Null),
        ("/containerEdits/hooks/0", "hookName", json!("CreateContainer")),
        ("/containerEdits/hooks/0", "timeout", json!(-1)),
        ("/containerEdits", "intelRdt", json!({"closId": "x"})),
        // Spellings that serde's derived code accepts for an empty object and for an enum's name.
        ("", "containerEdits", json!([])),
        ("", "devices", json!([["d", {}, []]])),
        ("/containerEdits", "mounts", json!([["/a", "/b"]])),
        ("/containerEdits", "intelRdt", json!(["x"])),
        ("/containerEdits/hooks/0", "hookName", json!({"createContainer": null})),
        ("/devices/0/containerEdits/deviceNodes/0", "type", json!({"c": null})),
    ];
    for (object, field, value) in cases {
        let mut bad = good.clone();
        let object_value = bad.pointer_mut(object).and_then(Value::as_object_mut).expect(object);
        object_value.insert((*field).into(), value.clone());
        let error = Spec::parse(bad.to_string().as_bytes());
        assert!(error.is_err(), "{object}.{field} = {value}");
    }
    assert!(matches!(
        Spec::parse(br#"["0.5.0", "a/b", {}, [], {}]"#),
        Err(ReadError::Syntax(_))
    ));
    let text = good.to_string();
    let twice = text.replacen("{", "{\"annotations\":{\"a\":\"1\",\"a\":\"2\"},", 1);
    assert!(matches!(Spec::parse(twice.as_bytes()), Err(ReadError::Syntax(_))));
    assert!(matches!(Spec::parse(&text.as_bytes()[..40]), Err(ReadError::Syntax(_))));
}

#[test]
fn a_declared_version_that_cannot_say_it_is_refused() {
    let mut low = rendered(&claim());
    low["cdiVersion"] = json!("0.4.0");
    match Spec::parse(low.to_string().as_bytes()) {
        Err(ReadError::VersionTooLow {
            declared: Version::V0_4_0,
            required: Version::V0_5_0,
        }) => (),
        other => panic!("{other:?}"),
    }
    let mut high = rendered(&claim());
    high["cdiVersion"] = json!("1.1.0");
    assert_eq!(
        Spec::parse(high.to_string().as_bytes()).expect("a higher version is no harm"),
        claim()
    );
    high["containerEdits"]["intelRdt"] = json!({"enableMBM": true});
    assert!(matches!(
        Spec::parse(high.to_string().as_bytes()),
        Err(ReadError::VersionTooHigh(Version::V1_1_0))
    ));
}

#[test]
fn problems_can_be_matched() {
    let mut spec = Spec::new(kind());
    assert_eq!(spec.validate().expect_err("no devices").problem, Problem::NoDevices);
    spec.devices = claim().devices;
    assert_eq!(spec.validate(), Ok(()));
}
