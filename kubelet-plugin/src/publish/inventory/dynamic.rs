//! A GPU on which claims make instances: all that it could have are devices, and one that was made is a device as if it had
//! always been there. Pure.
//!
//! A device's attributes and capacity do not change when its instance is made: the UUID is the GPU's, and the memory what the
//! driver says of the profile.

use vgpu_mig::{Candidate, Made, Pool};
use vgpu_node::driver_limit::DriverLimit;
use vgpu_node::gpus::{Gpu, Instance};

/// A GPU in MIG mode with the instances that it offers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DynamicGpu {
    pub gpu: Gpu,
    pub pool: Pool,
}

// === impl DynamicGpu ===

impl DynamicGpu {
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
