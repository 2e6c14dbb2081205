//! A GPU on which claims make instances: all that it could have are devices, and one that was made is a device as if it had
//! always been there. Pure.
//!
//! A device's attributes and capacity do not change when its instance is made: the UUID is the GPU's, and the memory what the
//! driver says of the profile. Nor do those of the undivided GPU change while it is in MIG mode.

use super::unavailable::Unavailable;
use vgpu_mig::{Candidate, Made, Pool};
use vgpu_node::driver_limit::DriverLimit;
use vgpu_node::gpus::{Gpu, Instance};

/// A GPU with the instances that it offers, and itself where claims switch its MIG mode.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DynamicGpu {
    /// Its memory is known if the pool has the undivided GPU.
    pub gpu: Gpu,
    pub pool: Pool,
    /// Why no new claim may have the undivided GPU, while claims may make instances.
    pub undivided_unavailable: Option<Unavailable>,
}

// === impl DynamicGpu ===

impl DynamicGpu {
    /// Returns false if nothing is known yet of what the GPU offers: its pool is empty.
    #[must_use]
    pub fn is_surveyed(&self) -> bool {
        !self.pool.counters.is_empty()
    }

    /// A candidate as an instance that is not made yet.
    #[must_use]
    pub fn instance(&self, candidate: &Candidate) -> Gpu {
        let profile = &candidate.profile;
        Gpu {
            memory: profile.memory_mib << 20,
            nvlink_clique: None,
            driver_limit: Some(DriverLimit::None("its GPU is in MIG mode".into())),
            mig: Some(Instance {
                parent: self.gpu.uuid.clone(),
                index: candidate.placement.start,
                profile: profile.name.clone(),
                placement: Some(candidate.placement),
                multiprocessors: profile.multiprocessors,
                ..Instance::default()
            }),
            ..self.gpu.clone()
        }
    }

    /// The instance of a candidate that was made. None: the driver does not say its UUID.
    #[must_use]
    pub fn made(&self, candidate: &Candidate, made: &Made) -> Option<Gpu> {
        let mut instance = self.instance(candidate);
        instance.uuid.clone_from(made.uuid.as_ref()?);
        if let Some(mig) = &mut instance.mig {
            (mig.gpu_instance, mig.compute_instance) = (made.gpu_instance, made.compute_instance);
        }
        Some(instance)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::publish::inventory::tests::gpu;
    use crate::publish::inventory::{Device, Inventory};
    use std::collections::BTreeMap;
    use vgpu_mig::candidates::Place;
    use vgpu_mig::driver::{Engines, Profile};
    use vgpu_node::gpus::Placement;

    /// Id, name, compute slices, MiB, multiprocessors, size, starts.
    type Row = (u32, &'static str, u32, u64, u32, u32, &'static [u32]);

    /// The profiles of an H100, as NVIDIA's guide prints them. Its engines are those of the compute slices, and OFA.
    pub(crate) fn h100() -> Vec<Profile> {
        const SEVEN: &[u32] = &[0, 1, 2, 3, 4, 5, 6];
        let rows: [Row; 7] = [
            (19, "1g.10gb", 1, 9_984, 16, 1, SEVEN),
            (20, "1g.10gb+me", 1, 9_984, 16, 1, SEVEN),
            (15, "1g.20gb", 1, 20_096, 26, 2, &[0, 2, 4, 6]),
            (14, "2g.20gb", 2, 20_096, 32, 2, &[0, 2, 4]),
            (9, "3g.40gb", 3, 40_448, 60, 4, &[0, 4]),
            (5, "4g.40gb", 4, 40_448, 64, 4, &[0]),
            (0, "7g.80gb", 7, 81_152, 132, 8, &[0]),
        ];
        let profile = |(id, name, compute_slices, memory_mib, multiprocessors, size, starts): Row| Profile {
            id,
            name: name.into(),
            compute_slices,
            memory_mib,
            multiprocessors,
            copy_engines: compute_slices,
            engines: Engines {
                decoders: compute_slices,
                jpegs: compute_slices,
                ofas: u32::from(matches!(id, 20 | 0)),
                encoders: 0,
            },
            placements: starts.iter().map(|start| Placement { start: *start, size }).collect(),
        };
        rows.map(profile).into()
    }

    /// GPU 0, an H100 in MIG mode.
    pub(crate) fn divided(administrators: &[Place], held: &[Place]) -> DynamicGpu {
        let pool = Pool::new(&gpu(0).uuid, &h100(), administrators, held).expect("a pool");
        DynamicGpu {
            gpu: gpu(0),
            pool,
            undivided_unavailable: None,
        }
    }

    /// GPU 0, an H100 whose MIG mode claims switch.
    pub(crate) fn switched() -> DynamicGpu {
        let mut dynamic = divided(&[], &[]);
        dynamic.pool = dynamic.pool.with_undivided(&gpu(0).uuid);
        dynamic
    }

    #[test]
    fn a_switched_gpu_is_found_by_both_of_its_names_and_is_itself_or_its_instances() {
        const UNDIVIDED: &str = "gpu-3f8a1c20-undivided";
        let mut inventory = Inventory::new(vec![gpu(1)]).with_dynamic(vec![switched()], BTreeMap::new());
        // Claims that were allocated before the chart's value changed have the other name.
        for name in [UNDIVIDED, "gpu-3f8a1c20"] {
            assert!(matches!(inventory.device(name), Some(Device::Gpu(found)) if *found == gpu(0)));
        }
        assert!(matches!(inventory.device("gpu-3f8a1c21-undivided"), Some(Device::Gpu(found)) if *found == gpu(1)));
        assert_eq!(inventory.device("gpu-3f8a1c20-monitor"), None);
        assert_eq!(inventory.device("gpu-3f8a1c20-undivided-monitor"), None);
        assert_eq!(inventory.gpu(&gpu(0).uuid), Some(&gpu(0)));
        let names = |inventory: &Inventory| -> Vec<String> {
            inventory
                .by_index()
                .into_iter()
                .map(|(name, _)| name.to_owned())
                .collect()
        };
        assert_eq!(names(&inventory), [UNDIVIDED, "gpu-3f8a1c21"]);
        let dynamic = switched();
        let candidate = dynamic.pool.find("mig-of-3f8a1c20-3g-40gb-4").expect("a candidate");
        let made = Made {
            gpu_instance: 2,
            compute_instance: 0,
            uuid: Some("MIG-2".into()),
        };
        let made = dynamic.made(candidate, &made).expect("a UUID");
        inventory.add_made(&candidate.name, made);
        assert_eq!(names(&inventory), [candidate.name.as_str(), "gpu-3f8a1c21"]);
    }

    #[test]
    fn a_reason_of_the_undivided_gpu_keeps_no_claim_from_its_instances() {
        let uuid = gpu(0).uuid;
        let mut dynamic = switched();
        dynamic.undivided_unavailable = Some(Unavailable::Mig);
        let inventory = |unavailable| Inventory::default().with_dynamic(vec![dynamic.clone()], unavailable);
        let own = inventory(BTreeMap::new());
        assert_eq!(own.unavailable(&uuid), Some(&Unavailable::Mig));
        assert_eq!(own.unavailable_parts(&uuid), None);
        assert_eq!((own.troubles(&uuid).len(), own.troubles_of_parts(&uuid).len()), (1, 0));
        let lost = Unavailable::Lost(String::new());
        let both = inventory(BTreeMap::from([(uuid.clone(), lost.clone())]));
        assert_eq!(
            (both.unavailable(&uuid), both.unavailable_parts(&uuid)),
            (Some(&lost), Some(&lost))
        );
    }

    #[test]
    fn a_made_instance_is_the_device_that_was_published_and_no_new_one() {
        let dynamic = divided(&[], &[]);
        let candidate = dynamic.pool.find("mig-of-3f8a1c20-3g-40gb-4").expect("a candidate");
        let made = Made {
            gpu_instance: 2,
            compute_instance: 0,
            uuid: Some("MIG-2".into()),
        };
        let gpu = dynamic.made(candidate, &made).expect("a UUID");
        let name = candidate.name.clone();
        let mut inventory = Inventory::new(Vec::new()).with_dynamic(vec![dynamic.clone()], BTreeMap::new());
        assert_eq!((inventory.device(&name), inventory.gpu("MIG-2")), (None, None));
        inventory.add_made(&name, gpu.clone());
        assert_eq!(inventory.gpu("MIG-2"), Some(&gpu));
        assert_eq!(gpu.mig.as_ref().map(|mig| mig.place()), Some((&*dynamic.gpu.uuid, 2)));
        let as_candidate = dynamic.instance(candidate);
        assert_eq!(
            (as_candidate.memory, &as_candidate.uuid),
            (gpu.memory, &dynamic.gpu.uuid)
        );
        assert_eq!(dynamic.made(candidate, &Made { uuid: None, ..made }), None);
    }
}
