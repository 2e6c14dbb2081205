//! The GPUs of a cluster, with the fields that templates depend on.

use k8s_openapi::api::resource::v1::Device;
use vgpu_api::{capacity, device_type};

/// One published GPU, or an instance of one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Gpu {
    pub uuid: String,
    /// Attribute `productName`.
    pub model: String,
    /// Capacity `memory`, in bytes.
    pub memory: u64,
    /// If it is an instance of a GPU in MIG mode: the UUID of that GPU.
    pub parent: Option<String>,
    /// The profile of an instance; of a GPU nothing that depends on it.
    pub profile: String,
}

/// Every published GPU of our driver, and every instance.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Inventory {
    pub gpus: Vec<Gpu>,
}

impl Gpu {
    /// `None` for a monitor, and for a device without an attribute or capacity that all our GPUs have.
    #[must_use]
    pub fn of_device(device: &Device) -> Option<Self> {
        let attributes = device.attributes.as_ref()?;
        let text = |name: &str| attributes.get(name)?.string.clone();
        let published = device.capacity.as_ref()?;
        let memory = &capacity::find(capacity::MEMORY, |name| published.get(name))
            .ok()??
            .value
            .0;
        let parent = match text(device_type::ATTRIBUTE)?.as_str() {
            device_type::GPU => None,
            device_type::MIG => Some(text(device_type::PARENT_UUID).unwrap_or_default()),
            _ => return None,
        };
        Some(Self {
            parent,
            profile: text(device_type::PROFILE).unwrap_or_default(),
            uuid: text("uuid")?,
            model: text("productName").unwrap_or_default(),
            memory: u64::try_from(vgpu_quantity::whole(memory).ok()?).ok()?,
        })
    }
}
