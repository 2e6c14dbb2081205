//! NVML in this process, loaded from the driver root: what the child answers with. The software GPU needs no code here: it
//! is a driver root with its own libnvidia-ml.so.1.
//!
//! The library is initialised once and kept, because that costs seconds on a node without persistence mode. It is loaded
//! again after a failure, because after a driver upgrade every call of the old library fails.

use super::faults::{self, Events};
use super::{GpuDriver, GpuSample, Memory, MigAnswer, Sample, library, processes};
use crate::publish::inventory::Error;
use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use vgpu_mig::{Call, Code, MigDriver as _, Refused};
use vgpu_node::gpus::{self, MemorySizes};

/// The GPUs of one driver root.
pub struct Local {
    driver_root: PathBuf,
    sizes: MemorySizes,
    state: Mutex<State>,
    /// Shared with the thread that waits for XIDs.
    events: Arc<Mutex<Events>>,
}

#[derive(Default)]
struct State {
    nvml: Option<Nvml>,
    /// True once the thread that waits for XIDs was started.
    is_waiting: bool,
    /// The UUIDs by index, also of GPUs that do not answer any more.
    uuids: BTreeMap<u32, String>,
    /// When NVML last measured the processes of each GPU, by index and NVML's clock.
    measured: BTreeMap<u32, Option<u64>>,
}

// === impl Local ===

impl Local {
    #[must_use]
    pub fn new(driver_root: PathBuf, sizes: MemorySizes) -> Self {
        Self {
            driver_root,
            sizes,
            state: Mutex::default(),
            events: Arc::default(),
        }
    }

    /// Makes a call for the instances of a GPU. Loads nothing: that may take a minute, and a claim waits.
    pub(super) fn mig(&self, gpu: &str, call: &Call) -> MigAnswer {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let not_loaded = || Refused::new("nvmlInit", Code::NoAnswer, "the next sample loads the driver");
        let nvml = state.nvml.take().ok_or_else(not_loaded)?;
        let answer = vgpu_mig::nvml::Local(&nvml).call(gpu, call);
        state.nvml = Some(nvml);
        answer
    }

    fn try_sample(&self, with_list: bool) -> Result<Sample, Error> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let nvml = match state.nvml.take() {
            Some(nvml) => nvml,
            None => library::start(&self.driver_root)?,
        };
        let list = with_list.then(|| gpus::list(&nvml, &self.sizes)).transpose()?;
        let count = nvml.device_count().map_err(gpus::failed("device count"))?;
        if !state.is_waiting {
            faults::start_waiting(&self.driver_root, &self.events).map_err(|error| Error::Silent(error.to_string()))?;
            state.is_waiting = true;
        }
        state.uuids.retain(|index, _| *index < count);
        let (mut gpus, mut parts) = (Vec::new(), Vec::new());
        for index in 0..count {
            let Some(mut gpu) = state.read(&nvml, index) else {
                continue;
            };
            match instances(&nvml, index) {
                Ok(of_gpu) => {
                    gpu.memory = without_parts(gpu.memory, &of_gpu);
                    parts.extend(of_gpu);
                }
                Err(why) => gpu.memory = Err(why.to_string()),
            }
            gpus.push(gpu);
        }
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        events.pass_on(&mut gpus.iter_mut().map(|gpu| &mut gpu.faults).collect::<Vec<_>>());
        drop(events);
        gpus.extend(parts);
        state.nvml = Some(nvml);
        Ok(Sample {
            list: list.map(Ok),
            gpus: Ok(gpus),
        })
    }
}

impl GpuDriver for Local {
    fn sample(&self, with_list: bool) -> Sample {
        self.try_sample(with_list)
            .unwrap_or_else(|error| Sample::failed(&error, with_list))
    }
}

// === impl State ===

impl State {
    /// Returns None for a GPU whose UUID was never read. The list reports that one.
    fn read(&mut self, nvml: &Nvml, index: u32) -> Option<GpuSample> {
        let device = nvml.device_by_index(index);
        if let Some(uuid) = device.as_ref().ok().and_then(|device| device.uuid().ok()) {
            self.uuids.insert(index, uuid);
        }
        let uuid = self.uuids.get(&index)?;
        let faults = faults::read(&device, uuid);
        let measured = self.measured.entry(index).or_default();
        Some(match &device {
            Err(error) => GpuSample {
                faults,
                memory: Err(error.to_string()),
                used: None,
                busy: None,
            },
            Ok(device) => GpuSample {
                faults,
                memory: processes::memory(device).map_err(|error| error.to_string()),
                // Not every GPU can measure processes.
                used: processes::used(device, measured).unwrap_or_default(),
                busy: device.utilization_rates().ok().map(|rates| rates.gpu.min(100)),
            },
        })
    }
}

/// Reads the instances of a GPU in MIG mode. Faults are their GPU's, and NVML measures no use of time for them.
fn instances(nvml: &Nvml, index: u32) -> Result<Vec<GpuSample>, NvmlError> {
    let device = nvml.device_by_index(index)?;
    if !gpus::is_divided(&device)? {
        return Ok(Vec::new());
    }
    let mut found = Vec::new();
    for index in 0..device.mig_device_count()? {
        let instance = match device.mig_device_by_index(index) {
            // Indices have gaps.
            Err(NvmlError::NotFound | NvmlError::InvalidArg) => continue,
            instance => instance?,
        };
        found.push(GpuSample {
            faults: faults::Reading::unsupported(&instance.uuid()?),
            memory: processes::memory(&instance).map_err(|error| error.to_string()),
            used: None,
            busy: None,
        });
    }
    Ok(found)
}

/// A GPU's processes without those of its instances: a privileged caller finds these in both lists, and they are explained by
/// the instance's shares.
fn without_parts(memory: Result<Memory, String>, parts: &[GpuSample]) -> Result<Memory, String> {
    let mut memory = memory?;
    for part in parts {
        let of_part = part.memory.as_ref().map_err(Clone::clone)?;
        memory.retain(|pid, _| !of_part.contains_key(pid));
    }
    Ok(memory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_of_instances_are_not_their_gpus() {
        let part = |memory: Result<Memory, String>| GpuSample {
            faults: faults::Reading::unsupported("MIG-x"),
            memory,
            used: None,
            busy: None,
        };
        let all = || Ok(Memory::from([(1, Some(5)), (2, None), (3, Some(7))]));
        let two = [
            part(Ok(Memory::from([(1, Some(5))]))),
            part(Ok(Memory::from([(2, Some(1))]))),
        ];
        assert_eq!(without_parts(all(), &two), Ok(Memory::from([(3, Some(7))])));
        assert_eq!(without_parts(all(), &[]), all());
        let silent = [part(Err("GPU is lost".into()))];
        assert_eq!(
            without_parts(all(), &silent),
            Err("GPU is lost".to_owned()),
            "it may be any of them"
        );
        assert_eq!(without_parts(Err("hangs".into()), &two), Err("hangs".to_owned()));
    }

    #[test]
    fn a_node_without_a_driver_says_where_it_looked() {
        let root = tempfile::tempdir().expect("a folder");
        let sample = Local::new(root.path().to_path_buf(), MemorySizes::default()).sample(true);
        let error = sample.list.expect("asked for").expect_err("no driver");
        assert!(matches!(&error, Error::NoLibrary { root: named, .. } if named == root.path()));
        let error = error.to_string();
        for place in [
            "--driver-root",
            "/etc/ld.so.cache",
            "/usr/local/nvidia/lib64",
            "driverRoot",
        ] {
            assert!(error.contains(place), "{place}: {error}");
        }
        assert_eq!(sample.gpus, Err(error));
    }

    #[test]
    fn a_library_that_is_none_is_named() {
        let root = tempfile::tempdir().expect("a folder");
        let folder = root.path().join("usr/lib64");
        std::fs::create_dir_all(&folder).expect("a folder");
        std::fs::write(folder.join("libnvidia-ml.so.1"), "not ELF").expect("written");
        let sample = Local::new(root.path().to_path_buf(), MemorySizes::default()).sample(true);
        let error = sample.list.expect("asked for").expect_err("no library");
        assert!(
            matches!(&error, Error::Init { library, .. } if library.starts_with(root.path())),
            "{error}"
        );
    }
}
