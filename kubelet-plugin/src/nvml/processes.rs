//! What NVML says of the processes of a GPU: their memory, and how much of its time they used.
//!
//! How it fails: an error never means that nobody uses the GPU. A process whose memory NVML does not know has None. NVML
//! has no sample of an idle GPU, which means no use only on a GPU that it has measured before. NVML names processes by PIDs
//! of the node.

use nvml_wrapper::Device;
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use std::collections::BTreeMap;
use vgpu_context_size::probe::whole_list;

/// The memory of each process of a GPU, by PID. None: the driver does not say.
pub type Memory = BTreeMap<u32, Option<u64>>;

/// Percent of the time since the last question, by PID.
pub type Used = BTreeMap<u32, f64>;

pub(super) fn memory(device: &Device<'_>) -> Result<Memory, NvmlError> {
    let mut listed = whole_list(|| device.running_compute_processes())?;
    // Not every GPU has graphics, and a process with both is in both lists.
    listed.extend(whole_list(|| device.running_graphics_processes()).unwrap_or_default());
    Ok(most(listed.into_iter().map(|process| {
        let used = match process.used_gpu_memory {
            UsedGpuMemory::Used(bytes) => Some(bytes),
            UsedGpuMemory::Unavailable => None,
        };
        (process.pid, used)
    })))
}

/// The memory of each process; of a process that is listed twice, the larger figure.
fn most(listed: impl Iterator<Item = (u32, Option<u64>)>) -> Memory {
    let mut memory = Memory::new();
    for (pid, used) in listed {
        let known = memory.entry(pid).or_insert(used);
        *known = (*known).max(used);
    }
    memory
}

/// Returns how much each process used since `last`, the time of the last sample by NVML's clock. None if NVML has never
/// measured a process of this GPU.
pub(super) fn used(device: &Device<'_>, last: &mut Option<u64>) -> Result<Option<Used>, NvmlError> {
    let samples = match device.process_utilization_stats(*last) {
        Err(NvmlError::NotFound) => Vec::new(),
        answer => answer?,
    };
    *last = samples.iter().map(|sample| sample.timestamp).max().or(*last);
    let used = mean(samples.iter().map(|sample| (sample.pid, sample.sm_util)));
    Ok(last.is_some().then_some(used))
}

/// The mean of the samples of each process.
fn mean(samples: impl Iterator<Item = (u32, u32)>) -> Used {
    let mut sums: BTreeMap<u32, (u32, u32)> = BTreeMap::new();
    for (pid, percent) in samples {
        let (sum, count) = sums.entry(pid).or_default();
        (*sum, *count) = (*sum + percent.min(100), *count + 1);
    }
    let means = sums.into_iter();
    means
        .map(|(pid, (sum, count))| (pid, f64::from(sum) / f64::from(count)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_in_both_lists_counts_once() {
        let listed = [(1, Some(5)), (2, None), (1, Some(7)), (2, Some(1)), (3, None)];
        let expected = Memory::from([(1, Some(7)), (2, Some(1)), (3, None)]);
        assert_eq!(most(listed.into_iter()), expected);
    }

    #[test]
    fn a_process_with_several_samples_has_their_mean() {
        let samples = [(1, 30), (2, 10), (1, 50), (3, 4_000_000_000)];
        let expected = Used::from([(1, 40.0), (2, 10.0), (3, 100.0)]);
        assert_eq!(mean(samples.into_iter()), expected);
    }
}
