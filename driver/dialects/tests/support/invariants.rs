//! Invariants of every pod: nobody gets more, nobody else is touched, and a second translation changes nothing.

use k8s_openapi::api::core::v1::{Container, Pod, ResourceRequirements};
use vgpu_dialects::{
    Gpu, Inventory, Memory, Record, Request, Settings, TRANSLATED, recorded, template, translate, update,
};

use super::patched;

/// Checks all of it. Returns false for a pod that is refused, or asks for nothing.
pub(crate) fn check(pod: &Pod) -> bool {
    let settings = settings();
    let Ok(Some(translation)) = translate(pod, &settings) else {
        return false;
    };
    let after = &translation.pod;

    // The patch is the same change.
    assert_eq!(&patched(pod, &translation.patch), after);

    // A second translation changes nothing.
    assert_eq!(translate(after, &settings), Ok(None));
    assert_eq!(update(after, after, &settings), Ok(None));

    // The controller can read the record.
    let record = Record::of(after).unwrap().unwrap();
    assert_eq!(&recorded(after).unwrap(), &translation.templates);

    // The author wrote a record, which may describe a different original pod.
    let annotations = pod.metadata.annotations.as_ref();
    if annotations.is_some_and(|annotations| annotations.contains_key(TRANSLATED)) {
        return true;
    }
    // What `kubectl apply` and `kubectl replace` send.
    let again = update(after, pod, &settings).unwrap().unwrap();
    assert_eq!(&again.pod, after);
    assert_eq!(bare(pod), bare(after));
    let (before, now) = (pod.spec.as_ref().unwrap(), after.spec.as_ref().unwrap());
    let is_replaced = |name: &String| settings.schedulers.contains(name);
    if !before.scheduler_name.as_ref().is_some_and(is_replaced) {
        assert_eq!(before.scheduler_name, now.scheduler_name);
    }

    // Claims that were there stay, and each new one has its template.
    let old = before.resource_claims.as_deref().unwrap_or_default();
    let claims = now.resource_claims.as_deref().unwrap_or_default();
    assert!(claims.starts_with(old));
    for claim in &claims[old.len()..] {
        let template = claim.resource_claim_template_name.as_ref().unwrap();
        assert!(translation.templates.iter().any(|known| known.name == *template));
    }

    for (before, now) in all(pod).into_iter().zip(all(after)) {
        let Some(asked) = record.containers.iter().find(|asked| asked.name == now.name) else {
            assert_eq!(before, now);
            continue;
        };
        let (of_old, of_new) = (resources(before), resources(now));
        for (old, new) in [(of_old.limits, of_new.limits), (of_old.requests, of_new.requests)] {
            let mut stays = old.unwrap_or_default();
            stays.retain(|key, _| !asked.limits.contains_key(key) && !asked.requests.contains_key(key));
            assert_eq!(stays, new.unwrap_or_default());
        }
        let Some(request) = record.request(&now.name) else {
            continue;
        };
        let (old, new) = (of_old.claims.unwrap_or_default(), of_new.claims.unwrap_or_default());
        assert!(new.starts_with(&old) && new.len() == old.len() + 1);
        is_no_more(request, before, pod);
    }
    true
}

/// The result is never more than the request, except for whole GPUs.
fn is_no_more(request: &Request, container: &Container, pod: &Pod) {
    assert!(request.check().is_ok());
    assert!(u64::from(request.cores) <= most_cores(container));
    let size = 81_559 << 20;
    let most = most_memory(container, pod, size);
    match request.memory {
        Memory::Bytes(bytes) => assert!(bytes < most.saturating_add(1 << 20)),
        Memory::Millionths(part) => {
            assert!(u128::from(size) * u128::from(part) / 1_000_000 <= u128::from(most));
        }
        Memory::All => {}
    }
    let gpu = Gpu {
        uuid: "GPU-1".into(),
        model: "a100".into(),
        memory: size,
        parent: None,
        profile: "none".to_owned(),
    };
    let _ = template(request, &Inventory { gpus: vec![gpu] });
}

/// A pod without all that a translation may change.
fn bare(pod: &Pod) -> Pod {
    let mut pod = pod.clone();
    let spec = pod.spec.as_mut().unwrap();
    spec.resource_claims = None;
    spec.scheduler_name = None;
    for container in spec
        .containers
        .iter_mut()
        .chain(spec.init_containers.iter_mut().flatten())
    {
        container.resources = None;
    }
    if let Some(annotations) = &mut pod.metadata.annotations {
        annotations.remove(TRANSLATED);
    }
    // An empty map is the same as none.
    pod.metadata.annotations = pod.metadata.annotations.filter(|annotations| !annotations.is_empty());
    pod
}

fn resources(container: &Container) -> ResourceRequirements {
    container.resources.clone().unwrap_or_default()
}

/// Returns the settings with which every pod is translated here.
pub(crate) fn settings() -> Settings {
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

/// The most memory per GPU that a container's resources can mean, in bytes of a GPU of `size`.
fn most_memory(container: &Container, pod: &Pod, size: u64) -> u64 {
    let mebibytes = |key| limit(container, key).map(|number| if number < 1 << 20 { number << 20 } else { number });
    let percent = |key| limit(container, key).map(|number| size / 100 * number.min(100) + size % 100);
    let annotation = |key: &str| {
        pod.metadata
            .annotations
            .as_ref()
            .and_then(|all| all.get(key)?.trim().parse::<f64>().ok())
    };
    let in_key = |what: &str| {
        let key = format!("nvidia.com/container.{}.gpu-memory.{what}", container.name);
        let written = pod.metadata.annotations.as_ref()?.get(&key)?;
        vgpu_quantity::read_bytes(written)
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
        in_key("request"),
        in_key("limit"),
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
