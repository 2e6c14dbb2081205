//! Random pods: whatever they ask, nobody gets more, nobody else is touched, and twice is once.

mod support;

use k8s_openapi::api::core::v1::{Container, Pod};
use proptest::prelude::*;
use serde_json::{Map, Value, json};
use support::{patched, read};
use vgpu_dialects::{
    Gpu, Inventory, Memory, OTHER_CLAIMS, Record, Settings, TRANSLATED, recorded, template, translate, update,
};

const RESOURCES: &[&str] = &[
    "nvidia.com/gpu",
    "nvidia.com/gpumem",
    "nvidia.com/gpumem-percentage",
    "nvidia.com/gpucores",
    "nvidia.com/priority",
    "koordinator.sh/gpu",
    "koordinator.sh/gpu.shared",
    "koordinator.sh/gpu-core",
    "koordinator.sh/gpu-memory",
    "koordinator.sh/gpu-memory-ratio",
    "volcano.sh/gpu-memory",
    "volcano.sh/gpu-number",
    "volcano.sh/vgpu-number",
    "volcano.sh/vgpu-memory",
    "volcano.sh/vgpu-memory-percentage",
    "volcano.sh/vgpu-cores",
    "tencent.com/vcuda-core",
    "tencent.com/vcuda-memory",
    "cpu",
    "memory",
    "nvidia.com/gpu.shared",
    "koordinator.sh/rdma",
];
const ANNOTATIONS: &[&str] = &[
    "gpu-fraction",
    "gpu-memory",
    "gpu-fraction-num-devices",
    "gpu-fraction-container-name",
    "nvidia.com/use-gputype",
    "nvidia.com/nouse-gpuuuid",
    "nvidia.com/vgpu-mode",
    "nvidia.com/numa-bind",
    "hami.io/gpu-scheduler-policy",
    "tencent.com/vcuda-core-limit",
    "volcano.sh/vgpu-use-gpuuuid",
    "hami.io/whatever",
    TRANSLATED,
    OTHER_CLAIMS,
    "mine",
];

/// A number that the resource may well have; now and then any text.
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

/// Resources of few names, so that combinations that belong together occur.
fn amounts() -> impl Strategy<Value = Map<String, Value>> {
    let family = prop_oneof![
        4 => Just(&RESOURCES[0..5]),
        4 => Just(&RESOURCES[5..10]),
        2 => Just(&RESOURCES[10..12]),
        4 => Just(&RESOURCES[12..16]),
        4 => Just(&RESOURCES[16..18]),
        4 => Just(&RESOURCES[18..22]),
        1 => Just(RESOURCES),
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
    let annotation = prop::sample::select(ANNOTATIONS).prop_flat_map(|key| {
        let good: &'static [&'static str] = match key {
            "gpu-fraction" => &["0.5", "0.25", "0.333"],
            "gpu-memory" => &["4096", "100"],
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

fn settings() -> Settings {
    Settings {
        schedulers: ["volcano".to_owned()].into(),
        high_priority_class: Some("vgpu-high".to_owned()),
        ..Settings::default()
    }
}

fn all(pod: &Pod) -> Vec<&Container> {
    let spec = pod.spec.as_ref().unwrap();
    spec.containers
        .iter()
        .chain(spec.init_containers.iter().flatten())
        .collect()
}

fn limit(container: &Container, key: &str) -> Option<u64> {
    let limits = container.resources.as_ref()?.limits.as_ref()?;
    u64::try_from(vgpu_quantity::whole(&limits.get(key)?.0).ok()?).ok()
}

/// The most memory of each GPU that a container's words can mean, in bytes of a GPU of `size`.
fn most_memory(container: &Container, pod: &Pod, size: u64) -> u64 {
    let mebibytes = |key| limit(container, key).map(|number| if number < 1 << 20 { number << 20 } else { number });
    let percent = |key| limit(container, key).map(|number| size / 100 * number.min(100) + size % 100);
    let annotation = |key: &str| {
        pod.metadata
            .annotations
            .as_ref()
            .and_then(|all| all.get(key)?.trim().parse::<f64>().ok())
    };
    [
        mebibytes("nvidia.com/gpumem").filter(|bytes| *bytes > 0),
        percent("nvidia.com/gpumem-percentage"),
        mebibytes("volcano.sh/gpu-memory"),
        mebibytes("volcano.sh/vgpu-memory"),
        percent("volcano.sh/vgpu-memory-percentage"),
        limit(container, "koordinator.sh/gpu-memory"),
        percent("koordinator.sh/gpu-memory-ratio"),
        percent("koordinator.sh/gpu"),
        limit(container, "tencent.com/vcuda-memory").map(|blocks| blocks.saturating_mul(256 << 20)),
        annotation("gpu-memory").map(|mebibytes| (mebibytes * 1_048_576.0) as u64),
        annotation("gpu-fraction").map(|part| (part * size as f64) as u64 + 1),
    ]
    .into_iter()
    .flatten()
    .max()
    .unwrap_or(u64::MAX)
}

fn most_cores(container: &Container) -> u64 {
    let keys = [
        "nvidia.com/gpucores",
        "volcano.sh/vgpu-cores",
        "koordinator.sh/gpu-core",
        "koordinator.sh/gpu",
        "tencent.com/vcuda-core",
    ];
    keys.into_iter()
        .filter_map(|key| limit(container, key))
        .max()
        .unwrap_or(0)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn nobody_gets_more_and_nobody_else_is_touched(pod in pods()) {
        let settings = settings();
        let Ok(Some(translation)) = translate(&pod, &settings) else { return Ok(()) };
        let after = &translation.pod;

        // The patch is the same change.
        prop_assert_eq!(&patched(&pod, &translation.patch), after);

        // Twice is once.
        prop_assert_eq!(translate(after, &settings), Ok(None));
        prop_assert_eq!(update(after, after, &settings), Ok(None));
        // Also for what `kubectl apply` and `kubectl replace` send.
        let again = update(after, &pod, &settings).unwrap().unwrap();
        prop_assert_eq!(&again.pod, after);

        // The record is one that the controller reads, and every claim has its template.
        let record = Record::of(after).unwrap().unwrap();
        prop_assert_eq!(&recorded(after).unwrap(), &translation.templates);
        let spec = after.spec.as_ref().unwrap();
        let claims = spec.resource_claims.clone().unwrap_or_default();
        for claim in claims.iter().filter(|claim| claim.name != "mine") {
            let template = claim.resource_claim_template_name.as_ref().unwrap();
            prop_assert!(translation.templates.iter().any(|known| known.name == *template));
        }

        // Everything but resources, claims, scheduler and annotation stays.
        let bare = |pod: &Pod| {
            let mut pod = pod.clone();
            let spec = pod.spec.as_mut().unwrap();
            spec.resource_claims = None;
            spec.scheduler_name = None;
            for container in spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten()) {
                container.resources = None;
            }
            if let Some(annotations) = &mut pod.metadata.annotations {
                annotations.remove(TRANSLATED);
            }
            pod
        };
        prop_assert_eq!(bare(&pod), bare(after));
        if pod.spec.as_ref().unwrap().scheduler_name.as_deref() != Some("volcano") {
            prop_assert_eq!(&pod.spec.as_ref().unwrap().scheduler_name, &spec.scheduler_name);
        }

        for (before, now) in all(&pod).into_iter().zip(all(after)) {
            let Some(request) = record.request(&now.name) else {
                if !record.containers.iter().any(|asked| asked.name == now.name) {
                    prop_assert_eq!(before, now);
                }
                continue;
            };
            let resources = now.resources.as_ref().unwrap();
            let left = |key: &str| resources.limits.as_ref().is_some_and(|limits| limits.contains_key(key));
            let dialect = record.containers.iter().find(|asked| asked.name == now.name).unwrap();
            prop_assert!(!dialect.limits.keys().any(|key| left(key)));
            prop_assert!(left("cpu"));
            prop_assert_eq!(resources.claims.as_ref().unwrap().iter().filter(|claim| claim.name != "mine").count(), 1);

            // Never more than was asked for, except where whole GPUs were.
            prop_assert!(request.check().is_ok());
            prop_assert!(u64::from(request.cores) <= most_cores(before));
            let size = 81_559 << 20;
            let inventory = Inventory { gpus: vec![Gpu { uuid: "GPU-1".into(), model: "a100".into(), memory: size }] };
            match request.memory {
                Memory::Bytes(bytes) => prop_assert!(bytes < most_memory(before, &pod, size).saturating_add(1 << 20)),
                Memory::Millionths(part) => {
                    prop_assert!(u128::from(size) * u128::from(part) / 1_000_000 <= u128::from(most_memory(before, &pod, size)));
                }
                Memory::All => {}
            }
            let _ = template(request, &inventory);
        }
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
