//! The node's GPUs, behind a trait: NVML in production ([`crate::nvml`]), a list in tests.
//!
//! The software GPU needs no code here: it is a driver root with its own libnvidia-ml.so.1.
//!
//! Failure modes: without a driver (yet) the caller keeps running, reports why, and retries. A GPU that falls
//! off the bus (NVML goes on counting it) or that is divided into MIG instances is left out of the next list
//! with the reason. The caller then has an inventory in which it is unavailable: it gets a taint, is reported as unhealthy and
//! takes no new claims. The other GPUs are not affected.

pub mod dynamic;
pub mod fault;
pub mod unavailable;

pub use dynamic::DynamicGpu;
pub use fault::{Fault, Faults, Reason};
pub use unavailable::Unavailable;

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;
use vgpu_api::{INSTANCE_PREFIX, MONITOR_SUFFIX, UNDIVIDED_SUFFIX, gpu_of_undivided};
use vgpu_mig::Candidate;
use vgpu_node::gpus;
use vgpu_node::gpus::UUID_OF_INSTANCE;
pub use vgpu_node::gpus::{Gpu, LeftOut, List};

/// Lists the node's GPUs.
pub trait Gpus: Send + Sync + 'static {
    /// The node's GPUs, ordered by index. May block for seconds.
    ///
    /// # Errors
    /// No GPU can be listed.
    fn list(&self) -> Result<List, Error>;
}

/// Why GPUs cannot be listed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Error {
    #[error(
        "--driver-root {}: {missing}; install NVIDIA's driver, or set --driver-root (chart value driverRoot) to the root \
         of the file system that has it",
        root.display()
    )]
    NoLibrary { root: PathBuf, missing: String },
    #[error("{} cannot be loaded or started: {reason}; check the node's NVIDIA driver", library.display())]
    Init { library: PathBuf, reason: String },
    #[error(transparent)]
    Gpu(#[from] gpus::Error),
    #[error("NVML has not answered for {0} s; check nvidia-smi and the kernel's log (dmesg) on the node")]
    Late(u64),
    /// The driver is not asked, because it is to be unloaded.
    #[error("NVML is not asked: {0}")]
    Paused(String),
    /// There is no answer at all.
    #[error("{0}")]
    Silent(String),
}

/// The GPUs by the names of their devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inventory {
    gpus: BTreeMap<String, Gpu>,
    /// The GPUs on which claims make instances.
    dynamic: Vec<DynamicGpu>,
    /// The instances that claims made, which are published whether they are there or not.
    made: BTreeMap<String, Gpu>,
    /// By UUID.
    unavailable: BTreeMap<String, Unavailable>,
    faults: Faults,
    remarks: Remarks,
}

/// What an operator should know of the driver's list, beside faults of GPUs: a sentence each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Remarks {
    /// Why GPUs are not published. GPUs in MIG mode are not meant to be.
    pub left_out: Vec<String>,
    /// What GPUs say of their NVLinks and do not agree on.
    pub contradictions: Vec<String>,
    /// Why a setting of the node does not hold.
    pub settings: Vec<String>,
}

/// The kind of a published device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device<'a> {
    /// A GPU or an instance.
    Gpu(&'a Gpu),
    /// A GPU's monitor, for admin access.
    Monitor(&'a Gpu),
}

// === impl Inventory ===

impl Inventory {
    /// Names each GPU `gpu-` and the first eight hex digits of its UUID, because an index may change with the next reboot. If
    /// names collide, they get the whole UUID. The name of an instance also has profile and first slice, because another
    /// instance in the same place has the same UUID, and a claim that was allocated before must not get that one.
    #[must_use]
    pub fn new(gpus: Vec<Gpu>) -> Self {
        Self::with_unavailable(gpus, BTreeMap::new())
    }

    /// The same; `unavailable` has the reasons of GPUs that are unavailable, by UUID.
    #[must_use]
    pub fn with_unavailable(gpus: Vec<Gpu>, unavailable: BTreeMap<String, Unavailable>) -> Self {
        let short: Vec<String> = gpus.iter().map(short_name).collect();
        let name = |at: usize| {
            let unique = short.iter().filter(|other| **other == short[at]).count() == 1;
            if unique {
                short[at].clone()
            } else {
                long_name(&gpus[at])
            }
        };
        let names: Vec<String> = (0..gpus.len()).map(name).collect();
        Self {
            gpus: names.into_iter().zip(gpus).collect(),
            dynamic: Vec::new(),
            made: BTreeMap::new(),
            unavailable,
            faults: Faults::new(),
            remarks: Remarks::default(),
        }
    }

    #[must_use]
    pub fn with_remarks(mut self, remarks: Remarks) -> Self {
        self.remarks = remarks;
        self
    }

    #[must_use]
    pub fn remarks(&self) -> &Remarks {
        &self.remarks
    }

    /// Returns the inventory with GPUs on which claims make instances. `unavailable` has the reasons of those that are unavailable,
    /// by UUID.
    #[must_use]
    pub fn with_dynamic(mut self, dynamic: Vec<DynamicGpu>, unavailable: BTreeMap<String, Unavailable>) -> Self {
        self.dynamic = dynamic;
        self.unavailable.extend(unavailable);
        self
    }

    #[must_use]
    pub fn dynamic(&self) -> &[DynamicGpu] {
        &self.dynamic
    }

    /// Returns the instance for which a device stands that a claim could make, and its GPU.
    #[must_use]
    pub fn candidate(&self, device: &str) -> Option<(&DynamicGpu, &Candidate)> {
        let mut all = self.dynamic.iter();
        all.find_map(|dynamic| Some((dynamic, dynamic.pool.find(device)?)))
    }

    /// Returns the GPU that a device is, if claims switch its MIG mode. It has one name in the pool of its instances, and the one
    /// of before for claims that were allocated it in the pool of the GPUs.
    #[must_use]
    pub fn undivided(&self, device: &str) -> Option<&DynamicGpu> {
        let mut all = self.dynamic.iter();
        all.find(|dynamic| {
            let own = dynamic.pool.undivided.as_ref();
            own.is_some_and(|own| own.name == device || own.name.strip_suffix(UNDIVIDED_SUFFIX) == Some(device))
        })
    }

    /// Adds an instance that claims made, by the name of its device.
    pub fn add_made(&mut self, device: &str, gpu: Gpu) {
        self.made.insert(device.to_owned(), gpu);
    }

    pub fn forget_made(&mut self) {
        self.made.clear();
    }

    /// Returns the inventory with these faults.
    #[must_use]
    pub fn with_faults(mut self, faults: &Faults) -> Self {
        let is_of = |gpu: &Gpu, uuid: &str| gpu.uuid == uuid || gpu.mig.as_ref().is_some_and(|mig| mig.parent == uuid);
        let all = || {
            let divided = self.dynamic.iter().map(|dynamic| &dynamic.gpu);
            self.gpus.values().chain(divided)
        };
        let is_listed = |uuid: &str| all().any(|gpu| is_of(gpu, uuid));
        let own = faults.iter().filter(|(uuid, _)| is_listed(uuid));
        self.faults = own.map(|(uuid, faults)| (uuid.clone(), faults.clone())).collect();
        self
    }

    /// The faults of the GPU with this UUID, or of an instance's GPU. They refuse no claim that was allocated already, or
    /// that tolerates the taint.
    #[must_use]
    pub fn faults(&self, uuid: &str) -> &[Fault] {
        let parent = self
            .gpu(uuid)
            .and_then(|gpu| gpu.mig.as_ref())
            .map(|mig| mig.parent.as_str());
        self.faults.get(parent.unwrap_or(uuid)).map_or(&[], Vec::as_slice)
    }

    /// Why new claims are kept away from the GPU with this UUID: a sentence for each reason.
    #[must_use]
    pub fn troubles(&self, uuid: &str) -> Vec<String> {
        self.sentences(self.unavailable(uuid), uuid)
    }

    /// The same of the instances that claims could make of it.
    #[must_use]
    pub fn troubles_of_parts(&self, uuid: &str) -> Vec<String> {
        self.sentences(self.unavailable_parts(uuid), uuid)
    }

    fn sentences(&self, unavailable: Option<&Unavailable>, uuid: &str) -> Vec<String> {
        let unavailable = unavailable.map(|why| why.text(uuid));
        // Faults are the GPU's, also of an instance.
        let of_gpu = self
            .gpu(uuid)
            .and_then(|gpu| gpu.mig.as_ref())
            .map_or(uuid, |mig| &mig.parent);
        let faults = self.faults(uuid).iter().filter(|fault| fault.blocks);
        unavailable
            .into_iter()
            .chain(faults.map(|fault| fault.text(of_gpu)))
            .collect()
    }

    /// Returns the name of the taint that keeps new claims away from the GPU with this UUID.
    #[must_use]
    pub fn problem(&self, uuid: &str) -> Option<&'static str> {
        let fault = self.faults(uuid).iter().find(|fault| fault.blocks);
        let unavailable = self.unavailable(uuid).map(Unavailable::name);
        unavailable.or(fault.map(|fault| fault.reason.name()))
    }

    /// Why no new claim may have the GPU with this UUID.
    #[must_use]
    pub fn unavailable(&self, uuid: &str) -> Option<&Unavailable> {
        let of_gpu = || {
            let made = self.made.values().find(|gpu| gpu.uuid == uuid)?;
            self.unavailable.get(&made.mig.as_ref()?.parent)
        };
        let undivided = || {
            let mut all = self.dynamic.iter();
            all.find(|dynamic| dynamic.gpu.uuid == uuid)?
                .undivided_unavailable
                .as_ref()
        };
        self.unavailable.get(uuid).or_else(of_gpu).or_else(undivided)
    }

    /// Why no new claim may make an instance of the GPU with this UUID.
    #[must_use]
    pub fn unavailable_parts(&self, uuid: &str) -> Option<&Unavailable> {
        self.unavailable.get(uuid)
    }

    /// Device names and GPUs, in the order in which the scheduler allocates them, with the instances that claims made. A GPU whose
    /// MIG mode claims switch is among them unless they have made instances of it.
    #[must_use]
    pub fn by_index(&self) -> Vec<(&str, &Gpu)> {
        let all = self.gpus.iter().chain(&self.made);
        let mut all: Vec<_> = all.map(|(name, gpu)| (name.as_str(), gpu)).collect();
        let is_divided = |uuid: &str| {
            let mut made = self.made.values().filter_map(|gpu| gpu.mig.as_ref());
            made.any(|mig| mig.parent == uuid)
        };
        all.extend(self.dynamic.iter().filter_map(|DynamicGpu { gpu, pool, .. }| {
            let own = pool.undivided.as_ref().filter(|_| !is_divided(&gpu.uuid))?;
            Some((own.name.as_str(), gpu))
        }));
        all.sort_by_key(|(_, gpu)| (gpu.index, gpu.mig.as_ref().map(|mig| mig.index)));
        all
    }

    #[must_use]
    pub fn device(&self, name: &str) -> Option<Device<'_>> {
        if let Some(gpu) = self.gpus.get(name).or_else(|| self.made.get(name)) {
            return Some(Device::Gpu(gpu));
        }
        if let Some(dynamic) = self.undivided(name) {
            return Some(Device::Gpu(&dynamic.gpu));
        }
        // A claim was allocated it while claims switched its mode, which they do not any more.
        let former = gpu_of_undivided(name).and_then(|_| self.gpus.get(name.strip_suffix(UNDIVIDED_SUFFIX)?));
        if let Some(gpu) = former {
            return Some(Device::Gpu(gpu));
        }
        let gpu = self.gpus.get(name.strip_suffix(MONITOR_SUFFIX)?)?;
        gpu.mig.is_none().then_some(Device::Monitor(gpu))
    }

    #[must_use]
    pub fn gpu(&self, uuid: &str) -> Option<&Gpu> {
        let undivided = self.dynamic.iter().filter(|dynamic| dynamic.pool.undivided.is_some());
        let undivided = undivided.map(|dynamic| &dynamic.gpu);
        let mut all = self.gpus.values().chain(self.made.values()).chain(undivided);
        all.find(|gpu| gpu.uuid == uuid)
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.gpus.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.gpus.is_empty()
    }
}

/// Eight digits of the UUID.
fn short_name(gpu: &Gpu) -> String {
    let digits = uuid_digits(&gpu.uuid);
    label(gpu, digits.get(..8).unwrap_or(&digits))
}

/// The whole UUID, or its beginning: at most 40 bytes of it, which leaves room for a suffix in a DNS label.
fn long_name(gpu: &Gpu) -> String {
    let digits = uuid_digits(&gpu.uuid);
    label(gpu, digits.get(..40).unwrap_or(&digits))
}

/// A DNS label, which must not end with a dash and has at most 63 characters.
fn label(gpu: &Gpu, digits: &str) -> String {
    let name = match &gpu.mig {
        None => format!("gpu-{digits}"),
        Some(mig) => {
            let start = mig.placement.map_or(String::new(), |place| format!("-{}", place.start));
            format!("{INSTANCE_PREFIX}{digits}-{}{start}", profile_label(&mig.profile))
        }
    };
    name.get(..63).unwrap_or(&name).trim_end_matches('-').to_owned()
}

/// A profile as a part of a DNS label: `3g-40gb` for `3g.40gb`, `1g-10gb-me` for `1g.10gb+me`, `1g-24gb-no-me` for
/// `1g.24gb-me`, which has no media engines.
fn profile_label(profile: &str) -> String {
    let parts = profile
        .to_ascii_lowercase()
        .replace('-', "-no-")
        .replace(['.', '+'], "-");
    parts
        .chars()
        .filter(|c| c.is_ascii_alphanumeric() || *c == '-')
        .collect()
}

/// A UUID without its prefix and without characters that a device name must not have.
fn uuid_digits(uuid: &str) -> String {
    let bare = ["GPU-", UUID_OF_INSTANCE]
        .into_iter()
        .find_map(|prefix| uuid.strip_prefix(prefix));
    let bare = bare.unwrap_or(uuid).to_ascii_lowercase();
    bare.chars()
        .filter(|c| c.is_ascii_alphanumeric() || *c == '-')
        .collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A driver that lists these GPUs.
    pub(crate) struct Listed(pub(crate) Vec<Gpu>);

    impl Gpus for Listed {
        fn list(&self) -> Result<List, Error> {
            Ok(List::new(self.0.iter().cloned().map(Ok)))
        }
    }

    /// GPU `index` of a made-up node.
    pub(crate) fn gpu(index: u32) -> Gpu {
        Gpu {
            uuid: format!("GPU-3f8a1c2{index}-1111-2222-3333-444455556666"),
            index,
            minor: Some(index),
            name: "NVIDIA H100 80GB HBM3".into(),
            brand: "Nvidia".into(),
            architecture: "Hopper".into(),
            compute_capability: (9, 0),
            driver_version: "535.161.08".into(),
            cuda_version: (12, 2),
            memory: 80 << 30,
            memory_source: gpus::MemorySource::Nvml,
            pci_bus_id: Some("0000:3b:00.0".into()),
            pcie_root: Some("pci0000:3a".into()),
            numa_node: Some(0),
            nvlink_clique: Some("GPU-3f8a1c20-1111-2222-3333-444455556666".into()),
            driver_limit: None,
            mig: None,
        }
    }

    /// The instance of GPU `index` with this UUID.
    pub(crate) fn instance(index: u32, uuid: &str) -> Gpu {
        Gpu {
            uuid: uuid.into(),
            memory: 40_448 << 20,
            nvlink_clique: None,
            mig: Some(gpus::Instance {
                parent: gpu(index).uuid,
                index: 1,
                profile: "3g.40gb".into(),
                gpu_instance: 2,
                compute_instance: 0,
                placement: Some(gpus::Placement { start: 4, size: 4 }),
                multiprocessors: 60,
            }),
            ..gpu(index)
        }
    }

    #[test]
    fn an_instance_has_a_name_of_its_own_no_monitor_and_the_faults_of_its_gpu() {
        let uuid = "MIG-aaaabbbb-1111-5222-8333-444455556666";
        let inventory = Inventory::new(vec![instance(1, uuid), gpu(0)]);
        assert!(matches!(inventory.device("mig-aaaabbbb-3g-40gb-4"), Some(Device::Gpu(found)) if found.uuid == uuid));
        assert_eq!(inventory.device("mig-aaaabbbb-3g-40gb-4-monitor"), None);
        let fault = Fault {
            reason: Reason::Xid,
            value: "79".into(),
            blocks: true,
        };
        let inventory = inventory.with_faults(&Faults::from([(gpu(1).uuid, vec![fault.clone()])]));
        assert_eq!(
            (inventory.faults(uuid), inventory.faults(&gpu(0).uuid)),
            (&[fault][..], &[][..])
        );
        assert_eq!(inventory.problem(uuid), Some("xid"));
    }

    #[test]
    fn profiles_and_places_have_names_of_their_own_that_are_dns_labels() {
        let named = |profile: &str, start, uuid: &str| {
            let mut one = instance(0, uuid);
            let mig = one.mig.as_mut().expect("an instance");
            mig.profile = profile.into();
            mig.placement = Some(gpus::Placement { start, size: 1 });
            one
        };
        let uuid = "MIG-aaaabbbb-1111-5222-8333-444455556666";
        for (profile, expected) in [
            ("1g.10gb", "mig-aaaabbbb-1g-10gb-0"),
            ("1g.10gb+me", "mig-aaaabbbb-1g-10gb-me-0"),
            ("1g.24gb-me", "mig-aaaabbbb-1g-24gb-no-me-0"),
            ("1g.24gb+me.all", "mig-aaaabbbb-1g-24gb-me-all-0"),
            ("1c.3g.40gb", "mig-aaaabbbb-1c-3g-40gb-0"),
            ("1g/..", "mig-aaaabbbb-1g---0"),
        ] {
            let inventory = Inventory::new(vec![named(profile, 0, uuid)]);
            assert!(
                inventory.device(expected).is_some(),
                "{profile}: {:?}",
                inventory.by_index()
            );
        }
        let alike = ["4", "6"].map(|start| format!("MIG-aaaabbbb-1111-5222-8333-44445555666{start}"));
        let both = alike
            .iter()
            .zip([4, 6])
            .map(|(uuid, start)| named("2g.20gb+me", start, uuid));
        let inventory = Inventory::new(both.collect());
        let names: Vec<&str> = inventory.by_index().into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["mig-aaaabbbb-2g-20gb-me-4", "mig-aaaabbbb-2g-20gb-me-6"]);
        let long = Inventory::new(vec![
            named(&"g".repeat(70), 0, uuid),
            named(&"g".repeat(71), 0, &alike[0]),
        ]);
        assert!(
            long.by_index().iter().all(|(name, _)| name.len() <= 63),
            "{:?}",
            long.by_index()
        );
        assert_eq!(long.len(), 2);
    }

    #[test]
    fn names_come_from_uuids_and_survive_a_reordering() {
        let inventory = Inventory::new(vec![gpu(0), gpu(1)]);
        assert!(matches!(inventory.device("gpu-3f8a1c20"), Some(Device::Gpu(found)) if found.index == 0));
        assert!(matches!(inventory.device("gpu-3f8a1c21-monitor"), Some(Device::Monitor(found)) if found.index == 1));
        assert_eq!(inventory.device("gpu-0"), None);
        assert_eq!(inventory.device("-monitor"), None);
        assert_eq!(Inventory::new(vec![gpu(1), gpu(0)]), inventory);
    }

    #[test]
    fn colliding_names_take_the_whole_uuid() {
        let twin = Gpu {
            uuid: "GPU-3f8a1c20-1111-2222-3333-444455556667".into(),
            index: 1,
            ..gpu(0)
        };
        let inventory = Inventory::new(vec![gpu(0), twin, gpu(2)]);
        let names: Vec<_> = inventory.by_index().into_iter().map(|(name, _)| name).collect();
        assert_eq!(
            names,
            [
                "gpu-3f8a1c20-1111-2222-3333-444455556666",
                "gpu-3f8a1c20-1111-2222-3333-444455556667",
                "gpu-3f8a1c22"
            ]
        );
        assert!(names.iter().all(|name| name.len() + MONITOR_SUFFIX.len() <= 63));
    }
}
