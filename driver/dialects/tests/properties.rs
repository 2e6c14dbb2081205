//! Random pods: whatever they ask, nobody gets more, nobody else is touched, and a second translation changes nothing.

mod support;

use std::sync::LazyLock;

use k8s_openapi::api::core::v1::Pod;
use proptest::prelude::*;
use serde_json::{Map, Value, json};
use support::invariants::{self, settings};
use support::read;
use vgpu_dialects::{OTHER_CLAIMS, TRANSLATED, recorded, translate, update};

static RESOURCES: LazyLock<Vec<&str>> = LazyLock::new(|| {
    let names = "nvidia.com/gpu nvidia.com/gpumem nvidia.com/gpumem-percentage nvidia.com/gpucores \
                 nvidia.com/priority koordinator.sh/gpu koordinator.sh/gpu.shared koordinator.sh/gpu-core \
                 koordinator.sh/gpu-memory koordinator.sh/gpu-memory-ratio volcano.sh/gpu-memory \
                 volcano.sh/gpu-number volcano.sh/vgpu-number volcano.sh/vgpu-memory \
                 volcano.sh/vgpu-memory-percentage volcano.sh/vgpu-cores tencent.com/vcuda-core \
                 tencent.com/vcuda-memory cpu memory nvidia.com/gpu.shared koordinator.sh/rdma";
    names.split(' ').collect()
});
static ANNOTATIONS: LazyLock<Vec<&str>> = LazyLock::new(|| {
    let names = "gpu-fraction gpu-memory gpu-fraction-num-devices gpu-fraction-container-name \
                 nvidia.com/use-gputype nvidia.com/nouse-gpuuuid nvidia.com/vgpu-mode nvidia.com/numa-bind \
                 hami.io/gpu-scheduler-policy tencent.com/vcuda-core-limit volcano.sh/vgpu-use-gpuuuid \
                 nvidia.com/container.c0.gpu-memory.request nvidia.com/container.c0.gpu-memory.limit \
                 nvidia.com/container.c1.gpu-memory.limit hami.io/whatever mine";
    names.split(' ').chain([TRANSLATED, OTHER_CLAIMS]).collect()
});

/// Usually a plausible number for the resource; sometimes any text.
fn amount(name: &'static str) -> BoxedStrategy<String> {
    let percent = || (1u64..=100).prop_map(|number| number.to_string()).boxed();
    let good = match name {
        "nvidia.com/gpu" | "koordinator.sh/gpu.shared" | "volcano.sh/gpu-number" | "volcano.sh/vgpu-number" => {
            (0u64..5).prop_map(|number| number.to_string()).boxed()
        }
        "nvidia.com/gpumem" | "volcano.sh/gpu-memory" | "volcano.sh/vgpu-memory" => {
            prop_oneof![4 => (64u64..90_000).prop_map(|number| number.to_string()), 1 => Just("3G".to_owned())].boxed()
        }
        "koordinator.sh/gpu-memory" => (1u64..90).prop_map(|number| format!("{number}Gi")).boxed(),
        "koordinator.sh/gpu"
        | "koordinator.sh/gpu-core"
        | "koordinator.sh/gpu-memory-ratio"
        | "tencent.com/vcuda-core" => {
            prop_oneof![percent(), (1u64..5).prop_map(|number| (number * 100).to_string())].boxed()
        }
        "tencent.com/vcuda-memory" => (1u64..300).prop_map(|number| number.to_string()).boxed(),
        "nvidia.com/priority" => (0u64..3).prop_map(|number| number.to_string()).boxed(),
        _ => percent(),
    };
    prop_oneof![
        30 => good,
        1 => prop::sample::select(&["0", "3300", "1500m", "-1"][..]).prop_map(str::to_owned),
        1 => any::<u64>().prop_map(|number| number.to_string()),
        1 => ".{0,12}",
    ]
    .boxed()
}

/// Resources from a small set of names, so that related ones often occur together.
fn amounts() -> impl Strategy<Value = Map<String, Value>> {
    let family = prop_oneof![
        4 => Just(&RESOURCES[0..5]),
        4 => Just(&RESOURCES[5..10]),
        2 => Just(&RESOURCES[10..12]),
        4 => Just(&RESOURCES[12..16]),
        4 => Just(&RESOURCES[16..18]),
        4 => Just(&RESOURCES[18..22]),
        1 => Just(&RESOURCES[..]),
    ];
    family.prop_flat_map(|names| {
        let pair = prop::sample::select(names).prop_flat_map(|name| (Just(name), amount(name)));
        prop::collection::vec(pair, 0..4).prop_map(|pairs| {
            let pairs = pairs.into_iter().map(|(key, value)| (key.to_owned(), json!(value)));
            pairs.chain([("cpu".to_owned(), json!("1"))]).collect()
        })
    })
}

fn container() -> impl Strategy<Value = Value> {
    (
        amounts(),
        any::<bool>(),
        prop::bool::weighted(0.05),
        prop::bool::weighted(0.1),
    )
        .prop_map(|(amounts, both, privileged, claim)| {
            let mut container = json!({"image": "i", "resources": {"limits": amounts}});
            if both {
                container["resources"]["requests"] = json!(amounts);
            }
            if privileged {
                container["securityContext"] = json!({"privileged": true});
            }
            if claim {
                container["resources"]["claims"] = json!([{"name": "mine"}]);
            }
            container
        })
}

fn pods() -> impl Strategy<Value = Pod> {
    let annotation = prop::sample::select(&ANNOTATIONS[..]).prop_flat_map(|key| {
        let good: &'static [&'static str] = match key {
            "gpu-fraction" => &["0.5", "0.25", "0.333"],
            "gpu-memory" => &["4096", "100"],
            key if key.starts_with("nvidia.com/container.") => &["4Gi", "4096Mi", "100Mi"],
            "gpu-fraction-num-devices" => &["1", "2"],
            "gpu-fraction-container-name" => &["c0", "c1", "i0"],
            "nvidia.com/vgpu-mode" => &["hami-core", ""],
            "nvidia.com/numa-bind" => &["true", "false"],
            "hami.io/gpu-scheduler-policy" => &["binpack", "spread", "mutex"],
            "tencent.com/vcuda-core-limit" => &["50", "80"],
            TRANSLATED => &["", "{}", "{\"containers\":[]}"],
            _ => &["a100,h100", "GPU-1", "mine", ""],
        };
        let value = prop_oneof![9 => prop::sample::select(good).prop_map(str::to_owned), 1 => ".{0,30}"];
        (Just(key), value)
    });
    let annotations = prop::collection::vec(annotation, 0..3)
        .prop_map(|pairs| pairs.into_iter().collect::<std::collections::BTreeMap<_, _>>());
    let containers = prop::collection::vec(container(), 1..4);
    let init = prop::collection::vec((container(), any::<bool>()), 0..3);
    let scheduler = prop::option::of(prop::sample::select(&["default-scheduler", "volcano", "other"][..]));
    (annotations, containers, init, scheduler).prop_map(|(annotations, mut containers, init, scheduler)| {
        for (at, container) in containers.iter_mut().enumerate() {
            container["name"] = json!(format!("c{at}"));
        }
        let init: Vec<Value> = init
            .into_iter()
            .enumerate()
            .map(|(at, (mut container, sidecar))| {
                container["name"] = json!(format!("i{at}"));
                if sidecar {
                    container["restartPolicy"] = json!("Always");
                }
                container
            })
            .collect();
        let mut spec = json!({"containers": containers, "initContainers": init,
            "resourceClaims": [{"name": "mine", "resourceClaimName": "mine"}]});
        if let Some(scheduler) = scheduler {
            spec["schedulerName"] = json!(scheduler);
        }
        read(json!({"metadata": {"name": "p", "annotations": annotations}, "spec": spec}))
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn nobody_gets_more_and_nobody_else_is_touched(pod in pods()) {
        invariants::check(&pod);
    }

    /// No bytes in the annotation do harm.
    #[test]
    fn any_record_is_read_or_refused(text in ".{0,200}", pod in pods()) {
        let mut pod = pod;
        pod.metadata.annotations.get_or_insert_default().insert(TRANSLATED.to_owned(), text);
        let _ = recorded(&pod);
        let _ = translate(&pod, &settings());
        let _ = update(&pod, &pod, &settings());
    }
}

/// The properties mean something only if enough random pods are translated.
#[test]
fn many_random_pods_are_translated() {
    use proptest::strategy::ValueTree as _;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let translated = (0..500).filter(|_| {
        let pod = pods().new_tree(&mut runner).unwrap().current();
        matches!(translate(&pod, &settings()), Ok(Some(_)))
    });
    let count = translated.count();
    assert!(count > 75, "{count} of 500");
}
