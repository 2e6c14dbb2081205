//! NVML's utilisation of each process. Loaded from the driver root like the list of GPUs, and by a handle of its own,
//! because a list that hangs must not wait for this, nor this for a list.
//!
//! How it fails: a GPU that NVML cannot measure by process has no answer. It finds no sample of an idle GPU either, so that
//! counts as no use only on a GPU that it has measured before. NVML names processes by PIDs of the node.

use crate::inventory::{Error, nvml};
use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::ProcessUtilizationSample;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

/// Percent of the time since the last question, by PID.
pub type Used = BTreeMap<u32, f64>;

/// Percent of a short time before the question in which something ran on each GPU, by UUID.
pub type Rates = BTreeMap<String, u32>;

/// Something that measures processes.
pub trait Utilisation: Send + Sync + 'static {
    /// Returns how much each process used of a GPU since the last question. None: it is not known.
    fn of(&self, gpu: &str) -> Option<Used>;
}

/// Something that measures whole GPUs.
pub trait GpuRates: Send + Sync + 'static {
    /// Returns how busy each GPU is. GPUs of which that is not known are left out.
    fn rates(&self) -> Rates;
}

/// The driver's NVML.
pub struct NvmlUtilisation {
    driver_root: PathBuf,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    nvml: Option<Nvml>,
    /// When the last sample of each GPU was made, by NVML's clock.
    last: BTreeMap<String, u64>,
}

// === impl NvmlUtilisation ===

impl NvmlUtilisation {
    #[must_use]
    pub fn new(driver_root: PathBuf) -> Self {
        Self {
            driver_root,
            state: Mutex::new(State::default()),
        }
    }

    /// Returns the new samples; None if NVML has never had one of this GPU.
    fn samples(&self, gpu: &str) -> Result<Option<Vec<ProcessUtilizationSample>>, Error> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let since = state.last.get(gpu).copied();
        // Kept only if it works, as by the scan of the GPUs.
        let nvml = match state.nvml.take() {
            Some(nvml) => nvml,
            None => nvml::start(&self.driver_root)?,
        };
        let failed = |error: NvmlError| Error::Field {
            index: 0,
            field: "utilisation of processes".into(),
            reason: error.to_string(),
        };
        let device = nvml.device_by_uuid(gpu).map_err(failed)?;
        // An error here is mostly one of the GPU or of what it can measure, and no reason to start anew.
        let samples = match device.process_utilization_stats(since) {
            Err(NvmlError::NotFound) => Ok(Vec::new()),
            answer => answer.map_err(failed),
        };
        state.nvml = Some(nvml);
        let samples = samples?;
        if let Some(last) = samples.iter().map(|sample| sample.timestamp).max() {
            state.last.insert(gpu.to_owned(), last);
        }
        Ok(state.last.contains_key(gpu).then_some(samples))
    }
}

impl GpuRates for NvmlUtilisation {
    fn rates(&self) -> Rates {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let nvml = match state.nvml.take().map_or_else(|| nvml::start(&self.driver_root), Ok) {
            Ok(nvml) => nvml,
            Err(error) => {
                tracing::debug!(%error, "no utilisation of GPUs");
                return Rates::new();
            }
        };
        let rate = |index: u32| {
            let device = nvml.device_by_index(index).ok()?;
            Some((device.uuid().ok()?, device.utilization_rates().ok()?.gpu.min(100)))
        };
        let rates = (0..nvml.device_count().unwrap_or(0)).filter_map(rate).collect();
        state.nvml = Some(nvml);
        rates
    }
}

impl Utilisation for NvmlUtilisation {
    fn of(&self, gpu: &str) -> Option<Used> {
        let samples = self.samples(gpu);
        let samples = samples.inspect_err(|error| tracing::debug!(%error, gpu, "no utilisation of processes"));
        let samples = samples.ok().flatten()?;
        Some(mean(samples.iter().map(|sample| (sample.pid, sample.sm_util))))
    }
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
    fn a_process_with_several_samples_has_their_mean() {
        let samples = [(1, 30), (2, 10), (1, 50), (3, 4_000_000_000)];
        assert_eq!(
            mean(samples.into_iter()),
            BTreeMap::from([(1, 40.0), (2, 10.0), (3, 100.0)])
        );
    }

    #[test]
    fn a_node_without_a_driver_says_nothing() {
        let root = tempfile::tempdir().expect("a folder");
        let nvml = NvmlUtilisation::new(root.path().to_path_buf());
        assert_eq!(nvml.of("GPU-1"), None);
        assert_eq!(nvml.rates(), Rates::new());
        assert!(matches!(nvml.samples("GPU-1"), Err(Error::NoLibrary { .. })));
    }
}
