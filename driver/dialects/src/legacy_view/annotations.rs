//! The annotations and labels of a bound pod.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};
use vgpu_api::config::Dialect;
use vgpu_quantity::format_bytes;

use super::{Bound, GpuShare, indices};
use crate::record::Record;

/// What the controller writes into a pod once it is bound.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LegacyView {
    pub annotations: BTreeMap<String, String>,
    pub labels: BTreeMap<String, String>,
}

/// The beginning of the keys that have a container's number at their end.
pub const LEGACY_VIEW_PREFIX: &str = "tencent.com/predicate-gpu-idx-";
/// The only label that [`legacy_view`] writes.
pub const LEGACY_VIEW_LABEL: &str = "hami.io/vgpu-node";
/// Every annotation that [`legacy_view`] writes, except those with [`LEGACY_VIEW_PREFIX`]: an admission policy may
/// restrict the controller's account to them.
pub const LEGACY_VIEW_ANNOTATIONS: [&str; 18] = [
    "hami.io/vgpu-devices-allocated",
    "hami.io/vgpu-node",
    "hami.io/vgpu-time",
    "hami.io/bind-time",
    "hami.io/bind-phase",
    "volcano.sh/vgpu-ids-new",
    "volcano.sh/vgpu-node",
    "volcano.sh/vgpu-time",
    "volcano.sh/bind-time",
    "volcano.sh/bind-phase",
    "volcano.sh/gpu-index",
    "volcano.sh/predicate-time",
    "volcano.sh/gpu-assigned",
    "tencent.com/predicate-node",
    "tencent.com/predicate-time",
    "tencent.com/gpu-assigned",
    "scheduling.koordinator.sh/device-allocated",
    RECEIVED,
];
const RECEIVED: &str = "received-resource-type";

/// Returns true for a key that [`legacy_view`] writes: a manifest may be a copy of a running pod.
pub(crate) fn is_legacy_key(key: &str) -> bool {
    LEGACY_VIEW_ANNOTATIONS.contains(&key) || key.starts_with(LEGACY_VIEW_PREFIX)
}

/// The annotations and labels of every dialect that the pod uses.
#[must_use]
pub fn legacy_view(pod: &Pod, record: &Record, bound: &Bound) -> LegacyView {
    let mut view = LegacyView::default();
    let mut dialects: Vec<Dialect> = record.containers.iter().map(|asked| asked.dialect).collect();
    dialects.sort_unstable();
    dialects.dedup();
    for dialect in dialects {
        let pod = PodShares::new(pod, record, bound, dialect);
        let mut set = |key: &str, value: String| {
            view.annotations.insert(key.to_owned(), value);
        };
        let seconds = bound.at.as_secs().to_string();
        let nanoseconds = bound.at.as_nanos().to_string();
        match dialect {
            Dialect::Hami => {
                set("hami.io/vgpu-devices-allocated", pod.hami());
                set("hami.io/vgpu-node", bound.node.clone());
                set("hami.io/vgpu-time", seconds.clone());
                set("hami.io/bind-time", seconds);
                set("hami.io/bind-phase", "success".to_owned());
                view.labels.insert(LEGACY_VIEW_LABEL.to_owned(), bound.node.clone());
            }
            Dialect::VolcanoVgpu => {
                set("volcano.sh/vgpu-ids-new", pod.volcano_vgpu());
                set("volcano.sh/vgpu-node", bound.node.clone());
                set("volcano.sh/vgpu-time", seconds.clone());
                set("volcano.sh/bind-time", seconds);
                set("volcano.sh/bind-phase", "success".to_owned());
            }
            Dialect::Volcano => {
                set("volcano.sh/gpu-index", indices(pod.all()));
                set("volcano.sh/predicate-time", nanoseconds);
                set("volcano.sh/gpu-assigned", "true".to_owned());
            }
            Dialect::GpuManager => {
                for (at, shares) in pod
                    .containers
                    .iter()
                    .enumerate()
                    .filter(|(_, shares)| !shares.is_empty())
                {
                    set(&format!("{LEGACY_VIEW_PREFIX}{at}"), indices(*shares));
                }
                set("tencent.com/predicate-node", bound.node.clone());
                set("tencent.com/predicate-time", nanoseconds);
                set("tencent.com/gpu-assigned", "true".to_owned());
            }
            Dialect::Koordinator => set("scheduling.koordinator.sh/device-allocated", pod.koordinator()),
            Dialect::Kai => set(RECEIVED, "Fraction".to_owned()),
        }
    }
    view
}

/// For each GPU of one container: `UUID,NVIDIA,<MiB>,<cores>:`.
fn encoded(shares: &[GpuShare]) -> String {
    let gpu = |share: &GpuShare| format!("{},NVIDIA,{},{}:", share.uuid, share.mebibytes(), share.cores);
    shares.iter().map(gpu).collect()
}

/// The GPUs of a pod that were asked for in one dialect.
struct PodShares<'a> {
    /// For each entry of `spec.containers`; empty without GPUs of this dialect.
    containers: Vec<&'a [GpuShare]>,
    /// For each entry of `spec.initContainers`.
    init: Vec<&'a [GpuShare]>,
    /// The entries of `init` whose claim no app container uses.
    only_init: Vec<&'a [GpuShare]>,
}

impl<'a> PodShares<'a> {
    fn new(pod: &Pod, record: &Record, bound: &'a Bound, dialect: Dialect) -> Self {
        let asked = |name: &str| {
            let mut all = record.containers.iter();
            all.find(|asked| asked.name == name && asked.dialect == dialect)
        };
        let of = |name: &str| match asked(name) {
            Some(_) => bound.containers.get(name).map_or(&[][..], Vec::as_slice),
            None => &[],
        };
        let spec = pod.spec.as_ref();
        let apps: Vec<&str> = spec
            .iter()
            .flat_map(|spec| &spec.containers)
            .map(|container| container.name.as_str())
            .collect();
        let claim = |name: &str| asked(name).and_then(|asked| asked.claim.as_deref());
        let claims_of_apps: Vec<Option<&str>> = apps.iter().map(|name| claim(name)).collect();
        let init: Vec<&str> = spec
            .iter()
            .flat_map(|spec| spec.init_containers.iter().flatten())
            .map(|container| container.name.as_str())
            .collect();
        let is_only = |name: &&&str| !claims_of_apps.contains(&claim(name));
        Self {
            containers: apps.iter().map(|name| of(name)).collect(),
            only_init: init.iter().filter(is_only).map(|name| of(name)).collect(),
            init: init.iter().map(|name| of(name)).collect(),
        }
    }

    fn all(&self) -> impl Iterator<Item = &'a GpuShare> + use<'a, '_> {
        self.containers
            .iter()
            .chain(&self.only_init)
            .flat_map(|shares| shares.iter())
    }

    /// Writes the shares as HAMi does: init containers (including sidecars) come first, and `;` ends each container.
    fn hami(&self) -> String {
        let places = self.init.iter().chain(&self.containers);
        places.map(|shares| encoded(shares) + ";").collect()
    }

    /// Writes the shares as Volcano's vGPU does, which only handles app containers, with `;` between them.
    fn volcano_vgpu(&self) -> String {
        let places: Vec<String> = self.containers.iter().map(|shares| encoded(shares)).collect();
        places.join(";")
    }

    /// `{"gpu":[{"minor":1,"resources":{...}}]}`: one entry for each GPU, with the sum of the containers' amounts.
    fn koordinator(&self) -> String {
        let mut gpus: BTreeMap<u32, (u64, u32, u64)> = BTreeMap::new();
        for share in self.all() {
            let (memory, cores, device) = gpus.entry(share.index).or_default();
            *memory = memory.saturating_add(share.memory);
            *cores = cores.saturating_add(share.cores);
            *device = share.device_memory;
        }
        let entry = |(minor, (memory, cores, device_memory)): (u32, (u64, u32, u64))| {
            let all = GpuShare {
                uuid: String::new(),
                index: minor,
                memory,
                device_memory,
                cores,
                whole: false,
            };
            json!({"minor": minor, "resources": {
                "koordinator.sh/gpu-core": cores.to_string(),
                "koordinator.sh/gpu-memory": format_bytes(memory),
                "koordinator.sh/gpu-memory-ratio": all.hundredths().to_string(),
            }})
        };
        let gpus: Vec<Value> = gpus.into_iter().map(entry).collect();
        json!({ "gpu": gpus }).to_string()
    }
}
