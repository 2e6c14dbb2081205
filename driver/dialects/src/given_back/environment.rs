//! The variables of a container whose claim has `reportAs`.

use std::collections::BTreeMap;

use vgpu_api::config::{Dialect, Priority};

use super::{GpuShare, indices};

const VISIBLE: &str = "NVIDIA_VISIBLE_DEVICES";

/// What the variables are made from.
#[derive(Debug, Clone, Copy)]
pub struct Environment<'a> {
    pub dialect: Dialect,
    /// The GPUs of one claim.
    pub shares: &'a [GpuShare],
    /// As the claim's config says, for `CUDA_TASK_PRIORITY`; `None` if it says nothing.
    pub priority: Option<Priority>,
    /// Name the GPUs in `NVIDIA_VISIBLE_DEVICES` as the dialect does, instead of `void` (`plugin.visibleDevices`).
    /// NVIDIA's runtime, if it starts the container, may then mount the driver beside this one's library.
    pub visible_devices: bool,
}

/// The variables, by name. Empty without GPUs.
#[must_use]
pub fn environment(of: &Environment<'_>) -> BTreeMap<String, String> {
    let mut variables = BTreeMap::new();
    let Some(first) = of.shares.first() else {
        return variables;
    };
    let mut set = |name: &str, value: String| {
        variables.insert(name.to_owned(), value);
    };
    let uuids = || {
        let uuids: Vec<&str> = of.shares.iter().map(|share| share.uuid.as_str()).collect();
        uuids.join(",")
    };
    if of.visible_devices {
        set(
            VISIBLE,
            match of.dialect {
                Dialect::Hami | Dialect::VolcanoVgpu => uuids(),
                // In the order of the GPUs' numbers.
                Dialect::Koordinator | Dialect::Volcano | Dialect::GpuManager | Dialect::Kai => indices(of.shares),
            },
        );
    }
    match of.dialect {
        Dialect::Hami | Dialect::VolcanoVgpu => {
            for (at, share) in of.shares.iter().enumerate() {
                set(
                    &format!("CUDA_DEVICE_MEMORY_LIMIT_{at}"),
                    format!("{}m", share.mebibytes()),
                );
            }
            set("CUDA_DEVICE_SM_LIMIT", first.cores.to_string());
            if let (Dialect::Hami, Some(priority)) = (of.dialect, of.priority) {
                let number = match priority {
                    Priority::High => "0",
                    Priority::Low => "1",
                };
                set("CUDA_TASK_PRIORITY", number.to_owned());
            }
        }
        Dialect::Koordinator => {
            // A container with all of a GPU's memory has no limit there.
            if first.memory < first.device_memory {
                set("CUDA_DEVICE_MEMORY_LIMIT", first.memory.to_string());
                set("CUDA_DEVICE_SM_LIMIT", first.cores.to_string());
            }
        }
        Dialect::Volcano if first.whole => set("VOLCANO_GPU_ALLOCATED", of.shares.len().to_string()),
        Dialect::Volcano => {
            set("VOLCANO_GPU_ALLOCATED", first.mebibytes().to_string());
            set("VOLCANO_GPU_MEMORY_TOTAL", (first.device_memory >> 20).to_string());
        }
        Dialect::GpuManager => {}
        Dialect::Kai => {
            let hundredths = first.hundredths();
            let portion = format!("{}.{:02}", hundredths / 100, hundredths % 100);
            set("GPU_PORTION", portion.clone());
            set("RUNAI_NUM_OF_GPUS", portion);
            // One variable for all GPUs, as KAI's plugin for HAMi-core sets it: each of them has the same share.
            set("CUDA_DEVICE_MEMORY_LIMIT", format!("{}m", first.mebibytes()));
        }
    }
    variables
}
