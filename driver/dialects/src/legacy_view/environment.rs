//! The variables of a container whose claim has `reportAs`.

use std::collections::BTreeMap;

use vgpu_api::config::{Dialect, Priority};

use super::{GpuShare, indices};

const VISIBLE: &str = "NVIDIA_VISIBLE_DEVICES";

/// The inputs of the variables.
#[derive(Debug, Clone, Copy)]
pub struct Environment<'a> {
    pub dialect: Dialect,
    /// The GPUs of one claim.
    pub shares: &'a [GpuShare],
    /// The claim's priority, for `CUDA_TASK_PRIORITY`; `None` if its config has none.
    pub priority: Option<Priority>,
    /// If true, `NVIDIA_VISIBLE_DEVICES` names the GPUs as the dialect does, instead of `void`
    /// (`plugin.visibleDevices`). NVIDIA's runtime, if it starts the container, may then mount the driver in addition
    /// to this driver's library.
    pub visible_devices: bool,
}

/// The variables, by name. Empty without GPUs.
#[must_use]
pub fn environment(of: &Environment<'_>) -> BTreeMap<String, String> {
    let Some(first) = of.shares.first() else {
        return BTreeMap::new();
    };
    let mut variables = match of.dialect {
        Dialect::Hami | Dialect::VolcanoVgpu => hami(of, first),
        // In Koordinator, a container with all of a GPU's memory has no limit.
        Dialect::Koordinator if first.memory < first.device_memory => vec![
            ("CUDA_DEVICE_MEMORY_LIMIT", first.memory.to_string()),
            ("CUDA_DEVICE_SM_LIMIT", first.cores.to_string()),
        ],
        Dialect::Volcano if first.whole => vec![("VOLCANO_GPU_ALLOCATED", of.shares.len().to_string())],
        Dialect::Volcano => vec![
            ("VOLCANO_GPU_ALLOCATED", first.mebibytes().to_string()),
            ("VOLCANO_GPU_MEMORY_TOTAL", (first.device_memory >> 20).to_string()),
        ],
        Dialect::GpuManager | Dialect::Koordinator => Vec::new(),
        Dialect::Kai => kai(first),
    };
    if of.visible_devices {
        variables.push((VISIBLE, visible(of)));
    }
    let variables = variables.into_iter();
    let mut variables: BTreeMap<String, String> = variables.map(|(name, value)| (name.to_owned(), value)).collect();
    if let Dialect::Hami | Dialect::VolcanoVgpu = of.dialect {
        let limits = of.shares.iter().enumerate();
        variables.extend(limits.map(|(at, share)| {
            let limit = format!("{}m", share.mebibytes());
            (format!("CUDA_DEVICE_MEMORY_LIMIT_{at}"), limit)
        }));
    }
    variables
}

/// The GPUs' names in the dialect's form.
fn visible(of: &Environment<'_>) -> String {
    match of.dialect {
        Dialect::Hami | Dialect::VolcanoVgpu => {
            let uuids: Vec<&str> = of.shares.iter().map(|share| share.uuid.as_str()).collect();
            uuids.join(",")
        }
        // Sorted by the GPUs' numbers.
        Dialect::Koordinator | Dialect::Volcano | Dialect::GpuManager | Dialect::Kai => indices(of.shares),
    }
}

/// Returns HAMi's variables without the memory limits, which have a variable for each GPU.
fn hami(of: &Environment<'_>, first: &GpuShare) -> Vec<(&'static str, String)> {
    let mut variables = vec![("CUDA_DEVICE_SM_LIMIT", first.cores.to_string())];
    if let (Dialect::Hami, Some(priority)) = (of.dialect, of.priority) {
        let number = match priority {
            Priority::High => "0",
            Priority::Low => "1",
        };
        variables.push(("CUDA_TASK_PRIORITY", number.to_owned()));
    }
    variables
}

fn kai(first: &GpuShare) -> Vec<(&'static str, String)> {
    let hundredths = first.hundredths();
    let portion = format!("{}.{:02}", hundredths / 100, hundredths % 100);
    vec![
        ("GPU_PORTION", portion.clone()),
        ("RUNAI_NUM_OF_GPUS", portion),
        // One variable for all GPUs, as KAI's plugin for HAMi-core sets it: each of them has the same share.
        ("CUDA_DEVICE_MEMORY_LIMIT", format!("{}m", first.mebibytes())),
    ]
}
