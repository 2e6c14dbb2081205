//! Variables and annotations of each dialect, byte for byte.

mod support;

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};
use support::{pod, read, translated};
use vgpu_api::config::{Dialect, Priority};
use vgpu_dialects::{
    Bound, Environment, GpuShare, LEGACY_VIEW_ANNOTATIONS, LEGACY_VIEW_LABEL, LEGACY_VIEW_PREFIX, LegacyView, Record,
    environment, legacy_view,
};

fn share(index: u32, mebibytes: u64, cores: u32) -> GpuShare {
    GpuShare {
        uuid: format!("GPU-{index}"),
        index,
        memory: mebibytes << 20,
        device_memory: 23_040 << 20,
        cores,
        whole: false,
    }
}

fn whole(index: u32) -> GpuShare {
    GpuShare {
        whole: true,
        ..share(index, 23_040, 100)
    }
}

fn back(pod: &Pod, containers: &[(&str, Vec<GpuShare>)]) -> LegacyView {
    let bound = Bound {
        node: "n1".to_owned(),
        at: Duration::new(1_593_764_466, 550_835_304),
        containers: containers
            .iter()
            .map(|(name, shares)| ((*name).to_owned(), shares.clone()))
            .collect(),
    };
    let translated = translated(pod).pod;
    let back = legacy_view(&translated, &Record::of(&translated).unwrap().unwrap(), &bound);
    // The keys are a fixed set, so an admission policy can list them.
    for key in back.annotations.keys() {
        assert!(
            LEGACY_VIEW_ANNOTATIONS.contains(&key.as_str()) || key.starts_with(LEGACY_VIEW_PREFIX),
            "{key}"
        );
    }
    assert!(back.labels.keys().all(|key| key == LEGACY_VIEW_LABEL));
    back
}

fn texts(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect()
}

/// Two containers that ask, and one between them that does not.
fn three(limits: Value) -> Pod {
    read(json!({"spec": {"containers": [
        {"name": "a", "resources": {"limits": limits}},
        {"name": "b"},
        {"name": "c", "resources": {"limits": limits}},
    ]}}))
}

#[test]
fn hami() {
    let pod = three(json!({"nvidia.com/gpu": 2, "nvidia.com/gpumem": 3000, "nvidia.com/gpucores": 30}));
    let shares = |a, b| vec![share(a, 3000, 30), share(b, 3000, 30)];
    let back = back(&pod, &[("a", shares(0, 1)), ("c", shares(2, 3))]);
    assert_eq!(
        back.annotations,
        texts(&[
            (
                "hami.io/vgpu-devices-allocated",
                "GPU-0,NVIDIA,3000,30:GPU-1,NVIDIA,3000,30:;;GPU-2,NVIDIA,3000,30:GPU-3,NVIDIA,3000,30:;",
            ),
            ("hami.io/vgpu-node", "n1"),
            ("hami.io/vgpu-time", "1593764466"),
            ("hami.io/bind-time", "1593764466"),
            ("hami.io/bind-phase", "success"),
        ])
    );
    assert_eq!(back.labels, texts(&[("hami.io/vgpu-node", "n1")]));
}

/// HAMi numbers containers from the first init container on, whether or not they have GPUs.
#[test]
fn hami_has_a_place_for_every_init_container_and_sidecar() {
    let asks = |memory: u32| json!({"limits": {"nvidia.com/gpu": "1", "nvidia.com/gpumem": memory.to_string()}});
    let pod = read(json!({"spec": {
        "initContainers": [
            {"name": "fetch"},
            {"name": "warm", "resources": asks(3000)},
            {"name": "side", "restartPolicy": "Always", "resources": asks(1000)},
        ],
        "containers": [{"name": "log"}, {"name": "main", "resources": asks(3000)}],
    }}));
    let (main, side) = (vec![share(1, 3000, 0)], vec![share(2, 1000, 0)]);
    let back = back(&pod, &[("warm", main.clone()), ("side", side), ("main", main)]);
    assert_eq!(
        back.annotations["hami.io/vgpu-devices-allocated"],
        ";GPU-1,NVIDIA,3000,0:;GPU-2,NVIDIA,1000,0:;;GPU-1,NVIDIA,3000,0:;"
    );
}

#[test]
fn volcano_vgpu() {
    let one = pod(
        json!({}),
        json!({"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory": 3000, "volcano.sh/vgpu-cores": 50}),
    );
    let back = back(&one, &[("main", vec![share(1, 3000, 50)])]);
    assert_eq!(
        back.annotations,
        texts(&[
            ("volcano.sh/vgpu-ids-new", "GPU-1,NVIDIA,3000,50:"),
            ("volcano.sh/vgpu-node", "n1"),
            ("volcano.sh/vgpu-time", "1593764466"),
            ("volcano.sh/bind-time", "1593764466"),
            ("volcano.sh/bind-phase", "success"),
        ])
    );
}

#[test]
fn volcano() {
    let two = pod(json!({}), json!({"volcano.sh/gpu-number": 2}));
    let back = back(&two, &[("main", vec![whole(3), whole(1)])]);
    assert_eq!(
        back.annotations,
        texts(&[
            ("volcano.sh/gpu-index", "1,3"),
            ("volcano.sh/predicate-time", "1593764466550835304"),
            ("volcano.sh/gpu-assigned", "true"),
        ])
    );
}

#[test]
fn gpu_manager() {
    let pod = three(json!({"tencent.com/vcuda-core": 50, "tencent.com/vcuda-memory": 4}));
    let back = back(
        &pod,
        &[("a", vec![share(0, 1024, 50)]), ("c", vec![share(2, 1024, 50)])],
    );
    assert_eq!(
        back.annotations,
        texts(&[
            ("tencent.com/predicate-gpu-idx-0", "0"),
            ("tencent.com/predicate-gpu-idx-2", "2"),
            ("tencent.com/predicate-node", "n1"),
            ("tencent.com/predicate-time", "1593764466550835304"),
            ("tencent.com/gpu-assigned", "true"),
        ])
    );
}

#[test]
fn koordinator() {
    let half = pod(json!({}), json!({"koordinator.sh/gpu": 50}));
    assert_eq!(
        back(&half, &[("main", vec![share(1, 11_520, 50)])]).annotations,
        texts(&[(
            "scheduling.koordinator.sh/device-allocated",
            r#"{"gpu":[{"minor":1,"resources":{"koordinator.sh/gpu-core":"50","koordinator.sh/gpu-memory":"11520Mi","koordinator.sh/gpu-memory-ratio":"50"}}]}"#,
        )])
    );
    // Two containers on one GPU are one entry.
    let two = three(json!({"koordinator.sh/gpu": 25}));
    let shares = || vec![share(0, 5760, 25)];
    let back = back(&two, &[("a", shares()), ("c", shares())]);
    let allocated: Value =
        serde_json::from_str(&back.annotations["scheduling.koordinator.sh/device-allocated"]).unwrap();
    assert_eq!(allocated["gpu"][0]["resources"]["koordinator.sh/gpu-core"], "50");
    assert_eq!(allocated["gpu"].as_array().unwrap().len(), 1);
}

#[test]
fn kai() {
    let half = pod(json!({"annotations": {"gpu-fraction": "0.5"}}), json!({}));
    let back = back(&half, &[("main", vec![share(1, 11_520, 0)])]);
    assert_eq!(back.annotations, texts(&[("received-resource-type", "Fraction")]));
}

/// An init container that uses an app container's claim has the same GPU: it is counted once.
#[test]
fn a_shared_claim_counts_once() {
    let asks = json!({"limits": {"koordinator.sh/gpu": 50}});
    let pod = read(json!({"spec": {
        "initContainers": [{"name": "init", "resources": asks}], "containers": [{"name": "main", "resources": asks}],
    }}));
    let shares = || vec![share(0, 11_520, 50)];
    let back = back(&pod, &[("init", shares()), ("main", shares())]);
    assert!(
        back.annotations["scheduling.koordinator.sh/device-allocated"].contains(r#""koordinator.sh/gpu-core":"50""#)
    );
}

#[test]
fn variables() {
    let of = |dialect, shares: &[GpuShare]| {
        environment(&Environment {
            dialect,
            shares,
            priority: None,
            visible_devices: false,
        })
    };
    let two = [share(0, 3000, 30), share(2, 3000, 30)];
    let limits = texts(&[
        ("CUDA_DEVICE_MEMORY_LIMIT_0", "3000m"),
        ("CUDA_DEVICE_MEMORY_LIMIT_1", "3000m"),
        ("CUDA_DEVICE_SM_LIMIT", "30"),
    ]);
    assert_eq!(of(Dialect::Hami, &two), limits);
    assert_eq!(of(Dialect::VolcanoVgpu, &two), limits);
    assert_eq!(
        of(Dialect::Koordinator, &[share(0, 1, 50)]),
        texts(&[("CUDA_DEVICE_MEMORY_LIMIT", "1048576"), ("CUDA_DEVICE_SM_LIMIT", "50")])
    );
    assert_eq!(of(Dialect::Koordinator, &[whole(0)]), texts(&[]));
    assert_eq!(
        of(Dialect::Volcano, &[share(0, 1024, 0)]),
        texts(&[("VOLCANO_GPU_ALLOCATED", "1024"), ("VOLCANO_GPU_MEMORY_TOTAL", "23040")])
    );
    assert_eq!(
        of(Dialect::Volcano, &[whole(0), whole(1)]),
        texts(&[("VOLCANO_GPU_ALLOCATED", "2")])
    );
    assert_eq!(of(Dialect::GpuManager, &two), texts(&[]));
    let portion = |limit: &str| {
        texts(&[
            ("GPU_PORTION", "0.50"),
            ("RUNAI_NUM_OF_GPUS", "0.50"),
            ("CUDA_DEVICE_MEMORY_LIMIT", limit),
        ])
    };
    assert_eq!(of(Dialect::Kai, &[share(0, 11_520, 0)]), portion("11520m"));
    // Rounded down to whole MiB.
    let mut h100 = share(0, 40_779, 0);
    h100.device_memory = 81_559 << 20;
    assert_eq!(of(Dialect::Kai, &[h100]), portion("40779m"));
    for dialect in Dialect::ALL {
        assert_eq!(of(dialect, &[]), texts(&[]));
    }
}

#[test]
fn priority_and_visible_devices_are_given_where_they_are_known() {
    let shares = [share(2, 3000, 30), share(0, 3000, 30)];
    let of = |dialect, priority| {
        environment(&Environment {
            dialect,
            shares: &shares,
            priority,
            visible_devices: true,
        })
    };
    assert_eq!(of(Dialect::Hami, Some(Priority::High))["CUDA_TASK_PRIORITY"], "0");
    assert_eq!(of(Dialect::Hami, Some(Priority::Low))["CUDA_TASK_PRIORITY"], "1");
    assert_eq!(of(Dialect::Hami, None)["NVIDIA_VISIBLE_DEVICES"], "GPU-2,GPU-0");
    assert_eq!(of(Dialect::Volcano, None)["NVIDIA_VISIBLE_DEVICES"], "0,2");
    assert_eq!(of(Dialect::Koordinator, None)["NVIDIA_VISIBLE_DEVICES"], "0,2");
}
