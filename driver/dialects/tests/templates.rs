//! Templates: alternatives for parts of a GPU, selectors, and the config.

mod support;

use std::collections::BTreeMap;

use k8s_openapi::api::resource::v1::DeviceRequest;
use proptest::prelude::*;
use serde_json::{Value, json};
use support::{annotated, limits, request, translated};
use vgpu_api::config::Dialect;
use vgpu_cel::{Attribute, Device, Quantity};
use vgpu_dialects::{Devices, Gpu, Inventory, Memory, Request, template};

fn gpus(sizes: &[(&str, u64)]) -> Inventory {
    let gpu = |(at, (model, mebibytes)): (usize, &(&str, u64))| Gpu {
        uuid: format!("GPU-{at}"),
        model: (*model).to_owned(),
        memory: mebibytes << 20,
        parent: None,
        profile: "none".to_owned(),
    };
    Inventory {
        gpus: sizes.iter().enumerate().map(gpu).collect(),
    }
}

fn spec(request: &Request, inventory: &Inventory) -> Value {
    serde_json::to_value(template(request, inventory).unwrap()).unwrap()
}

fn device_request(request: &Request, inventory: &Inventory) -> DeviceRequest {
    let spec = template(request, inventory).unwrap().spec.unwrap().devices.unwrap();
    spec.requests.unwrap().remove(0)
}

#[test]
fn bytes_are_asked_for_exactly() {
    let asked = annotated(
        "nvidia.com/use-gpuuuid",
        "GPU-1",
        json!({"nvidia.com/gpu": 2, "nvidia.com/gpumem": 3000, "nvidia.com/gpucores": 30, "nvidia.com/priority": 1}),
    );
    assert_eq!(
        spec(&request(&translated(&asked)), &Inventory::default()),
        json!({"spec": {"devices": {
            "requests": [{"name": "gpu", "exactly": {
                "deviceClassName": "vgpu", "allocationMode": "ExactCount", "count": 2,
                "capacity": {"requests": {"memory": "3000Mi", "cores": "30"}},
                "selectors": [{"cel": {"expression": r#"device.attributes["dra.vgpu"].uuid in ["GPU-1"]"#}}],
            }}],
            "config": [{"opaque": {"driver": "dra.vgpu", "parameters": {
                "apiVersion": "dra.vgpu/v1alpha1", "kind": "VgpuConfig", "priority": "Low", "reportAs": "hami",
            }}}],
        }}})
    );
}

/// A GPU, and instances of another one, by profile and MiB.
fn with_instances(all: &[(&str, u64)]) -> Inventory {
    let mut inventory = gpus(&[("H100", 81_000)]);
    let instance = |(at, (profile, mebibytes)): (usize, &(&str, u64))| Gpu {
        uuid: format!("MIG-{at}"),
        model: "H100".to_owned(),
        memory: mebibytes << 20,
        parent: Some("GPU-parent".to_owned()),
        profile: (*profile).to_owned(),
    };
    inventory.gpus.extend(all.iter().enumerate().map(instance));
    inventory
}

#[test]
fn a_profile_is_selected_by_its_name() {
    let asked = limits(json!({"nvidia.com/mig-1g.10gb.me": 2}));
    assert_eq!(
        spec(&request(&translated(&asked)), &Inventory::default())["spec"]["devices"]["requests"],
        json!([{"name": "gpu", "exactly": {
            "deviceClassName": "vgpu-mig", "allocationMode": "ExactCount", "count": 2,
            "selectors": [{"cel": {"expression": r#"device.attributes["dra.vgpu"].profile == "1g.10gb+me""#}}],
        }}])
    );
}

fn expressions(request: &DeviceRequest) -> Vec<String> {
    let selectors = request.exactly.as_ref().unwrap().selectors.iter().flatten();
    let expressions = selectors.map(|selector| selector.cel.as_ref().unwrap().expression.clone());
    expressions.collect()
}

/// With larger ones as alternatives, a quota would count the largest, and the pod might wait for ever.
#[test]
fn the_smallest_instance_with_the_memory_is_asked_for_and_no_larger_one() {
    let mode = json!({"annotations": {"nvidia.com/vgpu-mode": "mig", "nvidia.com/use-gpuuuid": "GPU-parent"}});
    let asked = request(&translated(&support::pod(mode, json!({"nvidia.com/gpumem": 12_000}))));
    let of_gpu = r#"device.attributes["dra.vgpu"].parentUUID in ["GPU-parent"]"#;
    let large_enough = r#"device.capacity["dra.vgpu"].memory.compareTo(quantity("12000Mi")) >= 0"#;
    for (all, named) in [
        (
            &[
                ("4g.40gb", 40_000),
                ("1g.10gb", 9_000),
                ("2g.20gb", 20_000),
                ("1g.20gb", 20_000),
            ][..],
            Some(r#"profile == "1g.20gb""#),
        ),
        (
            &[("1g.20gb", 20_000), ("1g.20gb+me", 20_000), ("1g.20gb", 20_100)],
            Some(r#"profile in ["1g.20gb", "1g.20gb+me"]"#),
        ),
        // One that is large enough may come.
        (&[("1g.10gb", 9_000)], None),
        (&[("\" || true", 20_000)], None),
    ] {
        let request = device_request(&asked, &with_instances(all));
        let exactly = request.exactly.as_ref().expect("one kind");
        assert_eq!(
            (exactly.device_class_name.as_str(), &exactly.capacity),
            ("vgpu-mig", &None)
        );
        let named = named.map(|named| format!(r#"device.attributes["dra.vgpu"].{named}"#));
        let all = [Some(of_gpu.to_owned()), named, Some(large_enough.to_owned())];
        assert_eq!(expressions(&request), all.into_iter().flatten().collect::<Vec<_>>());
    }
    // A part of a GPU is no part of an instance.
    let half = Request::fraction(1, Memory::Millionths(500_000), Dialect::Hami);
    let half = device_request(&half, &with_instances(&[("1g.20gb", 20_000)]))
        .first_available
        .expect("one size");
    assert_eq!(half.len(), 1);
}

/// Shared instances have UUIDs of their own.
#[test]
fn a_gpu_that_is_forbidden_gives_no_instances_either() {
    let asked = annotated("nvidia.com/nouse-gpuuuid", "GPU-1", json!({"nvidia.com/gpumem": 3000}));
    let request = device_request(&request(&translated(&asked)), &Inventory::default());
    assert_eq!(
        expressions(&request),
        [
            r#"!(device.attributes["dra.vgpu"].uuid in ["GPU-1"])"#,
            r#"device.attributes["dra.vgpu"].type == "gpu""#
        ]
    );
}

#[test]
fn whole_gpus_have_no_amounts() {
    assert_eq!(
        spec(&Request::whole(4, Dialect::Volcano), &Inventory::default())["spec"]["devices"]["requests"],
        json!([{"name": "gpu", "exactly": {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 4}}])
    );
}

#[test]
fn a_part_is_an_alternative_for_each_size() {
    let half = Request::fraction(1, Memory::Millionths(500_000), Dialect::Kai);
    let inventory = gpus(&[
        ("NVIDIA H100 80GB HBM3", 81_559),
        ("Tesla T4", 15_360),
        ("NVIDIA H100 80GB HBM3", 81_559),
    ]);
    let alternative = |size: &str, name: &str, memory: &str| {
        json!({
            "name": name, "deviceClassName": "vgpu", "allocationMode": "ExactCount", "count": 1,
            "capacity": {"requests": {"memory": memory}},
            "selectors": [{"cel": {"expression":
                format!(r#"device.capacity["dra.vgpu"].memory.compareTo(quantity("{size}")) == 0"#)}}],
        })
    };
    assert_eq!(
        spec(&half, &inventory)["spec"]["devices"]["requests"],
        json!([{"name": "gpu", "firstAvailable": [
            alternative("15Gi", "mib-15360", "7680Mi"),
            alternative("81559Mi", "mib-81559", "40779Mi"),
        ]}])
    );
    // Alternatives are only made for GPUs that the request allows.
    let only_t4 = Request {
        devices: Devices {
            use_types: vec!["t4".to_owned()],
            ..Devices::default()
        },
        ..half.clone()
    };
    assert_eq!(device_request(&only_t4, &inventory).first_available.unwrap().len(), 1);
    // No GPU yet, or none that is large enough.
    assert_eq!(template(&half, &Inventory::default()), None);
    let little = Request::fraction(1, Memory::Millionths(1_000), Dialect::Kai);
    assert_eq!(template(&little, &gpus(&[("small", 15_360)])), None);
}

/// Drivers of different versions report a few KiB more or less for one model.
#[test]
fn sizes_within_one_mib_share_an_alternative() {
    let gpu = |bytes: u64| Gpu {
        uuid: format!("GPU-{bytes}"),
        model: "Tesla T4".to_owned(),
        memory: bytes,
        parent: None,
        profile: "none".to_owned(),
    };
    let gpus = [15_843_721_216, 15_843_721_216 + 8192, 16 << 30].map(gpu);
    let inventory = Inventory { gpus: gpus.to_vec() };
    for part in [10_000, 500_000, 990_000] {
        let wanted = Request::fraction(1, Memory::Millionths(part), Dialect::Hami);
        let request = device_request(&wanted, &inventory);
        let names: Vec<&str> = request
            .first_available
            .iter()
            .flatten()
            .map(|one| one.name.as_str())
            .collect();
        assert_eq!(names, ["mib-15109", "mib-16384"]);
        let matched: Vec<Vec<usize>> = gpus.iter().map(|gpu| matching(&request, gpu)).collect();
        assert_eq!(matched, [[0], [0], [1]]);
    }
}

#[test]
fn a_guaranteed_share_says_so() {
    let asked = annotated(
        "tencent.com/vcuda-core-limit",
        "50",
        json!({"tencent.com/vcuda-core": 50, "tencent.com/vcuda-memory": 4}),
    );
    let spec = spec(&request(&translated(&asked)), &Inventory::default());
    let parameters = &spec["spec"]["devices"]["config"][0]["opaque"]["parameters"];
    assert_eq!(
        (&parameters["computePolicy"], &parameters["reportAs"]),
        (&json!("Guaranteed"), &json!("gpu-manager"))
    );
}

/// Checks that the driver can read the config of every template, and that class vgpu allows it.
fn config_is_valid(spec: &Value) {
    let at = "spec.spec.devices.config[0].opaque.parameters";
    let config =
        vgpu_api::config::Entry::parse(at, &spec["spec"]["devices"]["config"][0]["opaque"]["parameters"]).unwrap();
    vgpu_api::config::merge(&[], &[config]).unwrap();
}

/// Returns the device as the plugin publishes it.
fn device(gpu: &Gpu) -> Device {
    let text = |text: &str| Attribute::String(text.to_owned());
    Device {
        driver: "dra.vgpu".to_owned(),
        allow_multiple_allocations: true,
        attributes: BTreeMap::from([
            ("type".to_owned(), text("gpu")),
            ("uuid".to_owned(), text(&gpu.uuid)),
            ("productName".to_owned(), text(&gpu.model)),
        ]),
        capacity: BTreeMap::from([("memory".to_owned(), Quantity::parse(&gpu.memory.to_string()).unwrap())]),
    }
}

/// Which of the alternatives match a GPU.
fn matching(request: &DeviceRequest, gpu: &Gpu) -> Vec<usize> {
    let device = device(gpu);
    let matches = |selectors: &Option<Vec<k8s_openapi::api::resource::v1::DeviceSelector>>| {
        selectors.iter().flatten().all(|selector| {
            let expression = &selector.cel.as_ref().unwrap().expression;
            assert!(expression.len() <= vgpu_cel::LONGEST_EXPRESSION, "{}", expression.len());
            let program = vgpu_cel::compile(expression).unwrap_or_else(|why| panic!("{expression}: {why}"));
            program
                .matches(&device)
                .unwrap_or_else(|why| panic!("{expression}: {why}"))
        })
    };
    match (&request.exactly, &request.first_available) {
        (Some(exactly), _) => matches(&exactly.selectors).then_some(0).into_iter().collect(),
        (_, Some(all)) => (0..all.len()).filter(|at| matches(&all[*at].selectors)).collect(),
        _ => panic!("{request:?}"),
    }
}

#[test]
fn the_longest_lists_compile_and_match() {
    let many: Vec<String> = (0..128).map(|at| format!("GPU-{at:060}")).collect();
    for key in [
        "nvidia.com/use-gpuuuid",
        "nvidia.com/nouse-gpuuuid",
        "nvidia.com/use-gputype",
        "nvidia.com/nouse-gputype",
    ] {
        let asked = annotated(key, &many.join(","), json!({"nvidia.com/gpumem": 3000}));
        let request = device_request(&request(&translated(&asked)), &Inventory::default());
        let gpu = |uuid: &str| Gpu {
            uuid: uuid.to_owned(),
            model: uuid.to_owned(),
            memory: 1 << 34,
            parent: None,
            profile: "none".to_owned(),
        };
        let used = !key.contains("nouse");
        assert_eq!(matching(&request, &gpu(&many[127])).is_empty(), !used, "{key}");
        assert_eq!(matching(&request, &gpu("GPU-x")).is_empty(), used, "{key}");
    }
}

fn hostile() -> impl Strategy<Value = String> {
    prop_oneof![
        r#"[ -~]{1,40}"#,
        ".{1,16}",
        Just(r#"x"] || true || device.attributes["dra.vgpu"].uuid in ["x"#.to_owned()),
        Just("a\nb\r\u{0}\u{2028}".to_owned()),
        Just("\\".to_owned()),
        Just("'''\"\"\"".to_owned()),
        Just("h100".to_owned()),
    ]
}

proptest! {
    // Each case compiles many selectors.
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Whatever the annotation contains, the selectors compile in Kubernetes' CEL, and select exactly what the
    /// annotation means.
    #[test]
    fn selectors_mean_what_annotations_say(
        items in prop::collection::vec(hostile(), 1..4), other in hostile(),
        key in prop::sample::select(&["nvidia.com/use-gpuuuid", "nvidia.com/nouse-gpuuuid", "nvidia.com/use-gputype", "nvidia.com/nouse-gputype"][..]),
    ) {
        let asked = annotated(key, &items.join(","), json!({"nvidia.com/gpumem": 3000}));
        let Ok(Some(translation)) = vgpu_dialects::translate(&asked, &vgpu_dialects::Settings::default()) else {
            return Ok(()); // too long
        };
        let wanted = request(&translation);
        let request = device_request(&wanted, &Inventory::default());
        for text in items.iter().chain([&other]) {
            let gpu = Gpu { uuid: text.trim().to_owned(), model: format!("NVIDIA {text} 80GB"), memory: 1 << 34, parent: None, profile: "none".to_owned() };
            prop_assert_eq!(!matching(&request, &gpu).is_empty(), wanted.devices.allow(&gpu.uuid, &gpu.model));
        }
    }

    /// For a part of any GPUs, each GPU matches exactly one alternative, which gives it at most that part, and only
    /// slightly less.
    #[test]
    fn no_alternative_gives_more_than_was_asked(
        sizes in prop::collection::vec((64u64..200_000, 0u64..3), 1..14), part in 1u32..1_000_000,
    ) {
        let models: Vec<(&str, u64)> = sizes.iter().map(|(size, _)| ("x", *size)).collect();
        let mut inventory = gpus(&models);
        // Sizes that are not whole MiB.
        for (gpu, (_, more)) in inventory.gpus.iter_mut().zip(&sizes) {
            gpu.memory += more * 4096;
        }
        let wanted = Request::fraction(1, Memory::Millionths(part), Dialect::Kai);
        let exact = |gpu: &Gpu| u128::from(gpu.memory) * u128::from(part);
        let Some(_) = template(&wanted, &inventory) else {
            for gpu in &inventory.gpus {
                prop_assert!(exact(gpu) < (65 << 20) * 1_000_000);
            }
            return Ok(());
        };
        config_is_valid(&spec(&wanted, &inventory));
        let request = device_request(&wanted, &inventory);
        let alternatives = request.first_available.clone().unwrap();
        prop_assert!(alternatives.len() <= 8);
        let few = sizes.iter().collect::<std::collections::BTreeSet<_>>().len() <= 8;
        for gpu in &inventory.gpus {
            let found = matching(&request, gpu);
            prop_assert!(found.len() <= 1);
            let Some(at) = found.first() else {
                prop_assert!(exact(gpu) < (65 << 20) * 1_000_000);
                continue;
            };
            let memory = &alternatives[*at].capacity.as_ref().unwrap().requests.as_ref().unwrap()["memory"].0;
            let bytes = vgpu_quantity::whole(memory).unwrap() as u128;
            prop_assert!(bytes * 1_000_000 <= exact(gpu) && bytes >= 64 << 20);
            if few {
                prop_assert!((bytes + (1 << 20)) * 1_000_000 > exact(gpu));
            }
        }
    }
}

#[test]
fn every_dialect_has_a_valid_config() {
    for asked in [
        limits(json!({"nvidia.com/gpumem": 3000})),
        limits(json!({"koordinator.sh/gpu": 50})),
        limits(json!({"volcano.sh/gpu-memory": 1024})),
        limits(json!({"volcano.sh/vgpu-number": 1})),
        limits(json!({"tencent.com/vcuda-core": 50, "tencent.com/vcuda-memory": 4})),
        annotated("gpu-fraction", "0.5", json!({})),
        annotated(
            "hami.io/gpu-scheduler-policy",
            "topology-aware",
            json!({"nvidia.com/gpumem": 3000}),
        ),
    ] {
        config_is_valid(&spec(&request(&translated(&asked)), &gpus(&[("x", 81_559)])));
    }
}
