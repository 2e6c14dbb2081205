//! Reads faults through NVML, loaded from the driver root. A thread waits for XIDs; all else is polled.
//!
//! How it fails:
//! - A GPU whose events cannot be registered (it is lost) is tried again every few seconds. NVML frees a whole event set
//!   when one GPU of it fails, so a new one is made without that GPU, and the old one is emptied before it is freed.
//! - The GPU of an XID is not named (it fell off the bus): the GPUs that cannot be read get the XID, or else all GPUs.
//! - A driver without events, or a GPU without XIDs, says so, which is not an error.

use super::library;
use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enum_wrappers::device::{EccCounter, MemoryError};
use nvml_wrapper::enums::device::SampleValue;
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::event::EventSet;
use nvml_wrapper::struct_wrappers::event::EventData;
use nvml_wrapper::structs::device::FieldId;
use nvml_wrapper::sys_exports::field_id;
use nvml_wrapper::{Device, Nvml};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long a wait for events may take; then GPUs that are not watched are tried again.
const WAIT_MS: u32 = 5000;
const RETRY: Duration = Duration::from_secs(5);
/// XIDs of one GPU between two readings.
const MAX_XIDS: usize = 64;
/// What NVML reports for an XID that it does not know.
const UNKNOWN_XID: u64 = 999;

/// An answer to one question about a GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Asked<T> {
    Is(T),
    /// The GPU or its driver does not support the question. This neither shows a fault nor that the GPU is well.
    NotSupported,
    Failed(String),
}

/// The driver's answers about the faults of one GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reading {
    pub uuid: String,
    /// XIDs since the last reading.
    pub xids: Vec<u64>,
    /// `Is` if XIDs are waited for.
    pub events: Asked<()>,
    /// Memory errors that ECC did not correct since the driver was loaded.
    pub uncorrected: Asked<u64>,
    pub remap_pending: Asked<bool>,
    pub remap_failed: Asked<bool>,
    /// `nvmlDeviceGpuRecoveryAction_t`; 0: the driver asks for nothing.
    pub action: Asked<u64>,
}

/// The events that the waiting thread has seen.
#[derive(Default)]
pub(super) struct Events {
    /// By UUID; a GPU that is missing is not waited for.
    watched: BTreeMap<String, Asked<()>>,
    /// Why nothing is waited for.
    failure: Option<Asked<()>>,
    xids: BTreeMap<String, Vec<u64>>,
    /// XIDs of a GPU that could not be named.
    unnamed: Vec<u64>,
}

// === impl Asked ===

impl<T> Asked<T> {
    fn has_failed(&self) -> bool {
        matches!(self, Self::Failed(_))
    }

    fn failure(&self) -> Option<&str> {
        match self {
            Self::Failed(why) => Some(why),
            _ => None,
        }
    }
}

// === impl Reading ===

impl Reading {
    /// Returns the reading of a GPU and a driver that know nothing of faults.
    #[must_use]
    pub fn unsupported(uuid: &str) -> Self {
        Self {
            uuid: uuid.to_owned(),
            xids: Vec::new(),
            events: Asked::NotSupported,
            uncorrected: Asked::NotSupported,
            remap_pending: Asked::NotSupported,
            remap_failed: Asked::NotSupported,
            action: Asked::NotSupported,
        }
    }

    /// Returns the first question that failed.
    #[must_use]
    pub fn failure(&self) -> Option<&str> {
        let counts = self.uncorrected.failure().or(self.action.failure());
        counts.or(self.remap_pending.failure()).or(self.remap_failed.failure())
    }

    /// True if everything was read that GPU and driver support, and XIDs are waited for.
    pub(crate) fn is_whole(&self) -> bool {
        self.failure().is_none() && !self.events.has_failed()
    }
}

/// Starts the thread that waits for XIDs until the process ends.
pub(super) fn start_waiting(driver_root: &Path, events: &Arc<Mutex<Events>>) -> io::Result<()> {
    let (driver_root, events) = (driver_root.to_path_buf(), events.clone());
    let waiting = std::thread::Builder::new().spawn(move || wait(&driver_root, &events));
    waiting.map(drop)
}

fn locked(events: &Mutex<Events>) -> MutexGuard<'_, Events> {
    events.lock().unwrap_or_else(PoisonError::into_inner)
}

fn asked<T>(answer: Result<T, NvmlError>) -> Asked<T> {
    match answer {
        Ok(value) => Asked::Is(value),
        // A library older than the function lacks it.
        Err(NvmlError::NotSupported | NvmlError::FailedToLoadSymbol(_)) => Asked::NotSupported,
        Err(error) => Asked::Failed(error.to_string()),
    }
}

/// Reads everything but the XIDs.
pub(super) fn read(device: &Result<Device<'_>, NvmlError>, uuid: &str) -> Reading {
    let fields = [
        field_id::NVML_FI_DEV_REMAPPED_PENDING,
        field_id::NVML_FI_DEV_REMAPPED_FAILURE,
        field_id::NVML_FI_DEV_GET_GPU_RECOVERY_ACTION,
    ];
    let (uncorrected, mut values) = match device {
        Ok(device) => (
            asked(device.total_ecc_errors(MemoryError::Uncorrected, EccCounter::Volatile)),
            all(device, &fields),
        ),
        Err(error) => {
            let failed = Asked::Failed(error.to_string());
            (failed.clone(), vec![failed; fields.len()])
        }
    };
    values.resize(fields.len(), Asked::Failed("NVML returned fewer fields".into()));
    let flag = |value: &Asked<u64>| match value {
        Asked::Is(number) => Asked::Is(*number != 0),
        Asked::NotSupported => Asked::NotSupported,
        Asked::Failed(why) => Asked::Failed(why.clone()),
    };
    Reading {
        uncorrected,
        remap_pending: flag(&values[0]),
        remap_failed: flag(&values[1]),
        action: values[2].clone(),
        ..Reading::unsupported(uuid)
    }
}

/// Reads the value of each field.
fn all(device: &Device<'_>, fields: &[u32]) -> Vec<Asked<u64>> {
    let ids: Vec<FieldId> = fields.iter().map(|id| FieldId(*id)).collect();
    let samples = match device.field_values_for(&ids) {
        Ok(samples) => samples,
        Err(error) => return vec![asked(Err(error)); fields.len()],
    };
    let value = |sample: Result<nvml_wrapper::struct_wrappers::device::FieldValueSample, NvmlError>| {
        let number = match sample.and_then(|sample| sample.value)? {
            SampleValue::U32(number) => Some(u64::from(number)),
            SampleValue::U64(number) => Some(number),
            SampleValue::I64(number) => u64::try_from(number).ok(),
            SampleValue::F64(_) => None,
        };
        number.ok_or(NvmlError::Unknown)
    };
    let answer = |sample| match value(sample) {
        // The driver is older than the field.
        Err(NvmlError::InvalidArg) => Asked::NotSupported,
        answer => asked(answer),
    };
    samples.into_iter().map(answer).collect()
}

// === impl Events ===

impl Events {
    /// Moves what was seen into the readings.
    pub(super) fn pass_on(&mut self, readings: &mut [&mut Reading]) {
        let can_be_any = readings.iter().all(|reading| reading.failure().is_none());
        for reading in &mut *readings {
            reading.xids = self.xids.remove(&reading.uuid).unwrap_or_default();
            if can_be_any || reading.failure().is_some() {
                reading.xids.extend(&self.unnamed);
            }
            let watched = self.watched.get(&reading.uuid).or(self.failure.as_ref());
            reading.events = watched
                .cloned()
                .unwrap_or_else(|| Asked::Failed("its XIDs are not waited for yet".into()));
        }
        if !readings.is_empty() {
            self.unnamed.clear();
        }
    }

    fn keep(&mut self, event: &EventData<'_>) {
        let xid = match &event.event_data {
            Some(XidError::Value(xid)) => *xid,
            Some(XidError::Unknown) => UNKNOWN_XID,
            None => return,
        };
        let of = match event.device.uuid() {
            Ok(uuid) => self.xids.entry(uuid).or_default(),
            Err(_) => &mut self.unnamed,
        };
        if of.len() < MAX_XIDS && !of.contains(&xid) {
            of.push(xid);
        }
    }
}

/// Waits for events until the process ends.
fn wait(driver_root: &Path, events: &Mutex<Events>) {
    loop {
        let failure = match follow(driver_root, events) {
            Err(NvmlError::NotSupported | NvmlError::FailedToLoadSymbol(_)) => Asked::NotSupported,
            Err(error) => Asked::Failed(error.to_string()),
            Ok(never) => match never {},
        };
        let mut events = locked(events);
        events.watched.clear();
        events.failure = Some(failure);
        drop(events);
        std::thread::sleep(RETRY);
    }
}

/// Waits for events until NVML fails.
fn follow(driver_root: &Path, events: &Mutex<Events>) -> Result<std::convert::Infallible, NvmlError> {
    let nvml = library::start(driver_root).map_err(|error| {
        tracing::debug!("no events of GPUs: {error}");
        NvmlError::Uninitialized
    })?;
    let (mut set, mut watched) = register(&nvml)?;
    loop {
        let is_whole = watched.len() == nvml.device_count()? as usize;
        {
            let mut events = locked(events);
            events.failure = None;
            events.watched.clone_from(&watched);
        }
        match set.wait(WAIT_MS) {
            Ok(event) => {
                locked(events).keep(&event);
                continue;
            }
            Err(NvmlError::Timeout) if is_whole => continue,
            Err(NvmlError::Timeout) => {}
            // NVML may return this at once, every time.
            Err(NvmlError::GpuLost) => std::thread::sleep(RETRY),
            Err(error) => return Err(error),
        }
        let (new, now_watched) = register(&nvml)?;
        // Events that the old set got meanwhile; the new set may have them, too.
        while let Ok(event) = set.wait(0) {
            locked(events).keep(&event);
        }
        (set, watched) = (new, now_watched);
    }
}

/// Makes an event set of all GPUs that can be registered. Those without XIDs are among the watched ones.
fn register(nvml: &Nvml) -> Result<(EventSet<'_>, BTreeMap<String, Asked<()>>), NvmlError> {
    let mut refused = Vec::new();
    'again: loop {
        let mut set = nvml.create_event_set()?;
        let mut watched = BTreeMap::new();
        for index in (0..nvml.device_count()?).filter(|index| !refused.contains(index)) {
            let Ok((device, uuid)) = nvml.device_by_index(index).and_then(|device| {
                let uuid = device.uuid()?;
                Ok((device, uuid))
            }) else {
                continue;
            };
            let supported = match device.supported_event_types() {
                Ok(types) => types.contains(EventTypes::CRITICAL_XID_ERROR),
                Err(NvmlError::NotSupported) => false,
                Err(_) => continue,
            };
            if !supported {
                watched.insert(uuid, Asked::NotSupported);
                continue;
            }
            match device.register_events(EventTypes::CRITICAL_XID_ERROR, set) {
                Ok(with) => set = with,
                Err(_) => {
                    refused.push(index);
                    continue 'again;
                }
            }
            watched.insert(uuid, Asked::Is(()));
        }
        return Ok((set, watched));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(uuid: &str, fails: bool) -> Reading {
        let uncorrected = match fails {
            true => Asked::Failed("lost".into()),
            false => Asked::Is(0),
        };
        Reading {
            uncorrected,
            ..Reading::unsupported(uuid)
        }
    }

    /// Moves what was seen into the readings of GPUs `a` and `b`.
    fn pass_on(events: &mut Events, b_fails: bool) -> [Reading; 2] {
        let mut readings = [reading("a", false), reading("b", b_fails)];
        events.pass_on(&mut readings.iter_mut().collect::<Vec<_>>());
        readings
    }

    fn xids(readings: &[Reading]) -> Vec<&[u64]> {
        readings.iter().map(|reading| &reading.xids[..]).collect()
    }

    #[test]
    fn an_xid_without_a_name_is_of_those_that_cannot_be_read_or_else_of_any() {
        let mut events = Events {
            unnamed: vec![79],
            xids: BTreeMap::from([("a".into(), vec![48])]),
            ..Events::default()
        };
        events.pass_on(&mut []);
        let readings = pass_on(&mut events, true);
        assert_eq!(xids(&readings), [&[48][..], &[79]]);
        let is_waited_for = |reading: &Reading| !reading.events.has_failed();
        assert!(!readings.iter().any(is_waited_for));
        let readings = pass_on(&mut events, true);
        assert!(xids(&readings).iter().all(|xids| xids.is_empty()), "once");
        events.unnamed = vec![79];
        events.watched.insert("a".into(), Asked::Is(()));
        let readings = pass_on(&mut events, false);
        assert_eq!(xids(&readings), [&[79][..], &[79]]);
        assert!(is_waited_for(&readings[0]) && !is_waited_for(&readings[1]));
    }
}
