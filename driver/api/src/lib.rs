//! The requests that a claim can make of `dra.vgpu`: names, capacity requests and `VgpuConfig`, as plain values. [`quota`] has the
//! kinds of namespace quotas, [`usage`] those that say what is held and used.
//!
//! ```text
//!  capacity.requests {memory, cores} ──► request::check ──► Requested {memory, cores}
//!                                           │
//!                                        vgpu_quantity::whole ("20Gi" ⇄ 21474836480)
//!                                           │
//!  opaque parameters of the class ──► config::parse ─┐
//!                                                    ├─► config::merge ──► Effective ──► Effective::check(grant)
//!  opaque parameters of the claim ──► config::parse ─┘
//! ```
//!
//! [`decode`] reads objects that users wrote, as the API server reads them.
//!
//! The kubelet plugin (at Prepare), the controller (why is a pod Pending) and `vgpu run` share these rules. The
//! admission policy in `deploy/helm` repeats them in CEL, and `deploy/admission-cases` tests both with one set of
//! examples. Nothing here does I/O, has a client of Kubernetes or can panic on input: every text may come from a tenant.
//!
//! Errors name the field's path and its value, and say what to do.

#![forbid(unsafe_code)]

pub mod capacity;
pub mod config;
pub mod decode;
pub mod gpu_memory;
mod loosen;
mod profile;
pub mod quota;
pub mod request;
pub mod slice;
pub mod usage;

pub use profile::Profile;

/// The DRA driver's name: in ResourceSlices, opaque configs, sockets.
pub const DRIVER_NAME: &str = "dra.vgpu";

/// The API version that opaque parameters carry.
pub const CONFIG_API_VERSION: &str = "dra.vgpu/v1alpha1";

/// The kind that opaque parameters carry.
pub const CONFIG_KIND: &str = "VgpuConfig";

/// Sentences that several programs say: advice for a driver or kubelet in another folder, with the names of the chart's
/// values, and what a taint of a GPU means.
pub mod advice {
    pub const DRIVER_ROOT: &str =
        "set the chart's driverRoot to the folder that has the driver (/run/nvidia/driver with the GPU Operator)";
    pub const KUBELET_ROOT: &str = "set the chart's plugin.kubeletRoot to kubelet's --root-dir";

    /// Explains a taint that the plugin gives to a GPU with a fault (`docs/health.md`). Returns `None` for other keys.
    #[must_use]
    pub fn fault(key: &str, value: &str) -> Option<String> {
        let said = match key.strip_prefix("dra.vgpu/")? {
            "xid" => format!("the driver reported XID {value}"),
            "ecc" => format!("{value} memory errors that ECC did not correct"),
            "remap" => "rows of its memory that have errors could not be remapped".to_owned(),
            "recovery" => format!("the driver asks for the action {value}"),
            "lost" => "the driver does not list it any more".to_owned(),
            "mig" => "it is in MIG mode".to_owned(),
            "overlap" => {
                "claims have instances of it, or its GPU as a whole, or a process of an ended claim still has an instance in its \
                 place"
                    .to_owned()
            }
            "replaced" => "it was destroyed, and another instance is in its place".to_owned(),
            "silent" => "the driver does not answer, or is not asked".to_owned(),
            _ => return None,
        };
        Some(said)
    }
}

/// Identifies a pod. The UID tells it from a later pod with the same name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodRef {
    pub namespace: String,
    pub name: String,
    pub uid: String,
}

/// A GPU's monitor device has the GPU's device name with this suffix.
pub const MONITOR_SUFFIX: &str = "-monitor";

/// The device of a GPU has a name with this prefix.
pub const GPU_PREFIX: &str = "gpu-";

/// The device of an instance of a GPU in MIG mode has a name with this prefix.
pub const INSTANCE_PREFIX: &str = "mig-";

/// The device of an instance that a claim makes has a name with this prefix and [`GPU_DIGITS`] digits of its GPU's UUID, which no
/// UUID has: its pool is known by its name.
pub const CANDIDATE_PREFIX: &str = "mig-of-";

/// The device of a GPU whose MIG mode claims switch is `gpu-`, [`GPU_DIGITS`] digits of its UUID, and this: its pool is that of
/// the GPU's instances, and is known by its name. The same GPU has another name while it is in the pool of the GPUs.
pub const UNDIVIDED_SUFFIX: &str = "-undivided";

/// How many digits of a GPU's UUID are in the names of its instances that claims make, and of their pool.
pub const GPU_DIGITS: usize = 8;

/// The names of pools after the node's name and a slash.
pub mod pool {
    pub const GPUS: &str = "vgpu";
    pub const INSTANCES: &str = "vgpu-mig";
    pub const MONITORS: &str = "vgpu-monitor";
}

/// The names of a node's pools. The cluster autoscaler compares the allocated devices of a pool with all of its devices, as if
/// they were equal. So monitor devices, which nobody allocates without admin access, and instances, which are parts of GPUs,
/// must not be in the pool of the GPUs. The instances that claims make of a GPU are a pool of their own, which is named
/// after the GPU: one overdrawn counter stops all devices of a pool. A GPU whose MIG mode claims switch is in that pool too.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pools {
    pub gpus: String,
    pub instances: String,
    pub monitors: String,
}

impl Pools {
    /// The longest of the suffixes, which limits the length of a node's name.
    pub const LONGEST_SUFFIX: &str = "/vgpu-monitor";
    /// The longest where claims make instances.
    pub const LONGEST_DYNAMIC_SUFFIX: &str = "/vgpu-mig-00000000";

    #[must_use]
    pub fn of(node: &str) -> Self {
        Self {
            gpus: format!("{node}/{}", pool::GPUS),
            instances: format!("{node}/{}", pool::INSTANCES),
            monitors: format!("{node}{}", Self::LONGEST_SUFFIX),
        }
    }

    /// The pool of a device.
    #[must_use]
    pub fn of_device(&self, device: &str) -> String {
        if device.ends_with(MONITOR_SUFFIX) {
            self.monitors.clone()
        } else if let Some(gpu) = gpu_of_dynamic(device) {
            format!("{}-{gpu}", self.instances)
        } else if device.starts_with(INSTANCE_PREFIX) {
            self.instances.clone()
        } else {
            self.gpus.clone()
        }
    }

    /// Returns true if `pool` is one of them.
    #[must_use]
    pub fn contains(&self, pool: &str) -> bool {
        let of_gpu = || pool.strip_prefix(self.instances.as_str())?.strip_prefix('-');
        [&self.gpus, &self.instances, &self.monitors]
            .into_iter()
            .any(|own| own == pool)
            || of_gpu().is_some_and(are_gpu_digits)
    }
}

/// Returns the digits of the GPU of which this device is an instance that a claim makes.
#[must_use]
pub fn gpu_of_candidate(device: &str) -> Option<&str> {
    let digits = device.strip_prefix(CANDIDATE_PREFIX)?.get(..GPU_DIGITS)?;
    are_gpu_digits(digits).then_some(digits)
}

/// Returns the name of the device of a GPU whose MIG mode claims switch. `digits`: the first ones of its UUID.
#[must_use]
pub fn undivided(digits: &str) -> String {
    format!("{GPU_PREFIX}{digits}{UNDIVIDED_SUFFIX}")
}

/// Returns the digits of the GPU that this device is, if claims switch its MIG mode.
#[must_use]
pub fn gpu_of_undivided(device: &str) -> Option<&str> {
    let digits = device.strip_prefix(GPU_PREFIX)?.strip_suffix(UNDIVIDED_SUFFIX)?;
    are_gpu_digits(digits).then_some(digits)
}

/// Returns the digits of the GPU in whose pool this device is, if claims make its instances.
#[must_use]
pub fn gpu_of_dynamic(device: &str) -> Option<&str> {
    gpu_of_candidate(device).or_else(|| gpu_of_undivided(device))
}

fn are_gpu_digits(text: &str) -> bool {
    let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    text.len() == GPU_DIGITS && text.bytes().all(is_digit)
}

/// The taint on devices that vgpu-controller allocates. kube-scheduler does not tolerate it.
pub mod allocator_taint {
    pub const KEY: &str = "dra.vgpu/allocator";
    /// vgpu-controller may allocate, once the taint is [`MIN_AGE_SECONDS`] old.
    pub const CONTROLLER: &str = "controller";
    /// The device is being returned to kube-scheduler: currently nobody allocates it.
    pub const RELEASED: &str = "released";
    pub const EFFECT: &str = "NoSchedule";
    /// After this time, every earlier decision of kube-scheduler has been written or has failed.
    pub const MIN_AGE_SECONDS: u64 = 30;
}

/// The DeviceClasses that the chart installs.
pub mod class {
    /// A fraction of a GPU.
    pub const VGPU: &str = "vgpu";
    /// A whole GPU, exclusive.
    pub const GPU: &str = "gpu";
    /// A whole instance of a GPU in MIG mode, exclusive.
    pub const VGPU_MIG: &str = "vgpu-mig";
    /// Administrative access to a GPU, without memory of its own.
    pub const VGPU_MONITOR: &str = "vgpu-monitor";
    /// Fixed slots, for clusters without consumable capacity. Opt-in.
    pub const VGPU_SLOT: &str = "vgpu-slot";

    /// Returns true if a DeviceClass is one of ours, by its name alone.
    pub fn is_ours(name: &str) -> bool {
        matches!(name, VGPU | GPU | VGPU_MIG | VGPU_MONITOR | VGPU_SLOT)
    }
}

/// Values of the attribute `type` of our devices.
pub mod device_type {
    /// The attribute's own name.
    pub const ATTRIBUTE: &str = "type";
    /// A GPU that can be shared.
    pub const GPU: &str = "gpu";
    /// An instance of a GPU in MIG mode.
    pub const MIG: &str = "mig";
    /// The monitor device beside a GPU.
    pub const MONITOR: &str = "monitor";
    /// A fixed slot of a GPU.
    pub const SLOT: &str = "slot";
    /// The attribute of an instance with its profile's name.
    pub const PROFILE: &str = "profile";
    /// The attribute of an instance with the UUID of its GPU.
    pub const PARENT_UUID: &str = "parentUUID";
    /// The attribute of an instance with its first memory slice, and how many it has: `4:4`.
    pub const PLACEMENT: &str = "placement";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_names_its_pool_and_no_other_pool_is_the_nodes() {
        let pools = Pools::of("n1");
        for (device, pool) in [
            ("gpu-3f8a1c20", "n1/vgpu"),
            ("gpu-3f8a1c20-monitor", "n1/vgpu-monitor"),
            ("mig-3f8a1c20-3g-40gb-4", "n1/vgpu-mig"),
            ("mig-of-3f8a1c20-3g-40gb-4", "n1/vgpu-mig-3f8a1c20"),
            ("mig-of-x", "n1/vgpu-mig"),
            ("gpu-3f8a1c20-undivided", "n1/vgpu-mig-3f8a1c20"),
            ("gpu-3f8a1c2-undivided", "n1/vgpu"),
        ] {
            assert_eq!(pools.of_device(device), pool);
            assert!(pools.contains(pool), "{pool}");
        }
        for pool in [
            "n1/vgpu-mig-",
            "n1/vgpu-mig-3f8a1c2",
            "n1/vgpu-mig-3f8a1c2/",
            "n1/vgpu-mig-3F8A1C20",
            "n2/vgpu-mig-3f8a1c20",
            "n1",
        ] {
            assert!(!pools.contains(pool), "{pool}");
        }
    }
}
