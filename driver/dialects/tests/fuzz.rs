//! Fuzzes the translation: changes random fields of pods, whether or not the result makes sense. The seeds are the
//! examples of every dialect and the pods in `tests/seeds`, where each pod that failed is added.
//!
//! No pod may make the translation panic, and every pod that the API server could send must satisfy
//! `support/invariants.rs`. `PROPTEST_CASES=1000000 cargo test --release -p vgpu-dialects --test fuzz` runs longer.

mod support;

use std::fs;
use std::path::Path;
use std::sync::LazyLock;

use k8s_openapi::api::core::v1::Pod;
use proptest::prelude::*;
use serde_json::{Value, json};
use support::{invariants, texts};
use vgpu_dialects::{Record, asking_annotations, asking_resources, recorded, translate, update};

/// The seeds, by file name.
static SEEDS: LazyLock<Vec<(String, Value)>> = LazyLock::new(|| {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut seeds = Vec::new();
    for folder in ["tests/seeds", "../../deploy/examples/dialects"] {
        let mut files: Vec<_> = fs::read_dir(root.join(folder))
            .unwrap()
            .flatten()
            .map(|file| file.path())
            .collect();
        files.sort();
        for file in files
            .iter()
            .filter(|file| file.extension().is_some_and(|kind| kind == "yaml"))
        {
            let text = fs::read_to_string(file).unwrap();
            let objects: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap();
            for object in objects {
                let mut pod = match object["kind"].as_str() {
                    Some("Pod") => object,
                    Some("Deployment") => object["spec"]["template"].clone(),
                    _ => continue,
                };
                texts(&mut pod);
                seeds.push((file.display().to_string(), pod));
            }
        }
    }
    seeds
});

/// Values that are meaningful in some field, or in none.
static VALUES: LazyLock<Vec<Value>> = LazyLock::new(|| {
    let mut values = vec![
        json!(null),
        json!(true),
        json!([]),
        json!({}),
        json!(-1),
        json!("GPU-1,".repeat(400)),
        json!("m".repeat(5_000)),
        json!(r#"a"b'c\d"#),
        json!("\u{0}\u{202e}\u{1f600}"),
    ];
    let words = "0 1 2 32 33 50 64 99 100 150 200 3000 1048576 3G 3000M 1500m 1e3 -1 0.5 0.333 1.0 NaN \
                 18446744073709551615 99999999999999999999 4Gi 8Ei Always mutex mig true a100,h100 ,, main volcano {} [] \
                 ignore";
    let words = ["", " "].into_iter().chain(words.split(' '));
    values.extend(words.map(|word| json!(word)));
    values
});

/// Keys that a pod may have anywhere.
static KEYS: LazyLock<Vec<&str>> = LazyLock::new(|| {
    let dialects = vgpu_dialects::Dialect::ALL;
    let asks = dialects
        .into_iter()
        .flat_map(|dialect| asking_resources(dialect).iter().chain(asking_annotations(dialect)));
    let others = [
        "nvidia.com/container.main.gpu-memory.request",
        "nvidia.com/container.main.gpu-memory.limit",
        "nvidia.com/container.main.gpu-compute.mode",
        "nvidia.com/priority",
        "nvidia.com/use-gputype",
        "nvidia.com/nouse-gpuuuid",
        "nvidia.com/vgpu-mode",
        "nvidia.com/numa-bind",
        "hami.io/gpu-scheduler-policy",
        "hami.io/webhook",
        "koordinator.sh/gpu-isolation-provider",
        "tencent.com/vcuda-core-limit",
        "volcano.sh/vgpu-use-gpuuuid",
        "dra.vgpu/translated",
        "dra.vgpu/other-claims",
        "annotations",
        "labels",
        "limits",
        "requests",
        "claims",
        "resources",
        "privileged",
        "securityContext",
        "nodeName",
        "schedulerName",
        "initContainers",
        "resourceClaims",
        "restartPolicy",
        "name",
        "a/b~c",
    ];
    asks.copied().chain(others).collect()
});

/// JSON pointers to everything in a value.
fn places(value: &Value, at: &str, all: &mut Vec<String>) {
    all.push(at.to_owned());
    let part = |key: &str| key.replace('~', "~0").replace('/', "~1");
    match value {
        Value::Object(map) => {
            map.iter()
                .for_each(|(key, value)| places(value, &format!("{at}/{}", part(key)), all));
        }
        Value::Array(items) => {
            items
                .iter()
                .enumerate()
                .for_each(|(number, value)| places(value, &format!("{at}/{number}"), all));
        }
        _ => {}
    }
}

/// One change: the operation, its position, the value and the key.
type Change = (u8, prop::sample::Index, prop::sample::Index, prop::sample::Index);

fn change(pod: &mut Value, (what, place, value, key): &Change) {
    let mut all = Vec::new();
    places(pod, "", &mut all);
    let at = place.get(&all);
    let target = pod.pointer_mut(at).expect("it was listed");
    match (what % 5, &mut *target) {
        (0, target) => *target = value.get(&VALUES).clone(),
        (1, Value::Object(map)) => drop(map.insert((*key.get(&KEYS)).to_owned(), value.get(&VALUES).clone())),
        (2, Value::Object(map)) => {
            let name = map.keys().nth(key.index(map.len().max(1))).cloned();
            name.and_then(|name| map.remove(&name));
        }
        (2, Value::Array(items)) if !items.is_empty() => drop(items.remove(key.index(items.len()))),
        (3, Value::Array(items)) if !items.is_empty() => items.push(items[key.index(items.len())].clone()),
        // Replaced by the value at the same position of another pod, or by any of that pod's values.
        (_, target) => {
            let other = &value.get(&SEEDS).1;
            let mut all = Vec::new();
            places(other, "", &mut all);
            let from = other.pointer(at).or_else(|| other.pointer(&all[key.index(all.len())]));
            *target = from.cloned().unwrap_or_default();
        }
    }
}

/// The API server refuses a pod in which two containers have one name, after all webhooks.
fn has_twins(pod: &Pod) -> bool {
    let Some(spec) = &pod.spec else { return true };
    let all = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let mut names: Vec<&str> = all.map(|container| container.name.as_str()).collect();
    names.sort_unstable();
    names.windows(2).any(|pair| pair[0] == pair[1])
}

/// Returns true if the pod is translated.
fn tried(pod: Value) -> bool {
    let mut pod = pod;
    texts(&mut pod);
    let Ok(pod) = serde_json::from_value::<Pod>(pod) else {
        return false;
    };
    let settings = invariants::settings();
    let _ = (recorded(&pod), Record::of(&pod), update(&pod, &pod, &settings));
    if has_twins(&pod) {
        let _ = translate(&pod, &settings);
        return false;
    }
    invariants::check(&pod)
}

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 20_000, ..ProptestConfig::default() })]

    #[test]
    fn no_changed_pod_breaks_the_translation(
        seed in any::<prop::sample::Index>(),
        changes in prop::collection::vec(any::<Change>(), 1..8),
    ) {
        let mut pod = seed.get(&SEEDS).1.clone();
        for one in &changes {
            change(&mut pod, one);
        }
        tried(pod);
    }
}

#[test]
fn every_seed_is_translated_or_refused_by_its_name() {
    assert!(SEEDS.len() > 20, "{} seeds", SEEDS.len());
    for (file, pod) in SEEDS.iter() {
        let is_bad = file.contains("refused");
        assert_eq!(tried(pod.clone()), !is_bad, "{file}");
    }
}
