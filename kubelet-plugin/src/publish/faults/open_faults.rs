//! When a fault begins and ends. Pure: readings and times in, faults out.
//!
//! ```text
//!                 begins                                              ends, if each reading says so for RECOVERED_AFTER
//!  xid       the driver reports one                     the driver asks for nothing
//!   ignored                                             after IGNORED_FOR, if the driver asks for nothing or cannot say
//!  ecc       the count rises                            the driver asks for nothing, or the count is 0 again
//!  remap     rows are to be remapped (blocks no claim), neither
//!            or could not be
//!  recovery  the driver asks for something              it asks for nothing
//! ```
//!
//! Every end needs whole readings: a failed or missing reading restarts the wait. Where a driver cannot say what it asks for,
//! an XID that keeps claims away lasts until the next boot: nothing else says that the GPU is well.
//!
//! [`Kept`] survives a restart: the faults, and the last count of errors, so that old errors are not taken for new ones.

use crate::nvml::{Asked, Reading};
use crate::publish::inventory::{Fault, Faults, Reason};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// How long a GPU must be seen to be well before a fault ends.
pub const RECOVERED_AFTER: Duration = Duration::from_secs(20);
/// How long an ignored XID is shown. A program that causes them all the time changes the taint once in that time.
pub const IGNORED_FOR: Duration = Duration::from_secs(300);
/// The longest gap between two readings. After a longer one every wait begins again.
const MAX_GAP: Duration = Duration::from_secs(15);

/// The faults of all GPUs.
#[derive(Debug)]
pub struct OpenFaults {
    /// XIDs that keep no claim away.
    ignored: BTreeSet<u64>,
    gpus: BTreeMap<String, Gpu>,
    /// When the last reading was made.
    last: Option<Instant>,
}

#[derive(Debug, Default)]
struct Gpu {
    /// The count of uncorrected errors when it was last read.
    uncorrected: Option<u64>,
    open: BTreeMap<Reason, Open>,
}

/// A fault that has begun.
#[derive(Debug)]
struct Open {
    fault: Fault,
    /// Since when each reading says that it is over.
    well_since: Option<Instant>,
}

/// The state that survives a restart, by the GPU's UUID.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept(pub BTreeMap<String, KeptGpu>);

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptGpu {
    pub uncorrected: Option<u64>,
    pub faults: Vec<Fault>,
}

/// NVML's numbers of what a driver asks for, by name. A newer driver may know more.
const ACTIONS: [&str; 8] = [
    "none",
    "reset",
    "reboot",
    "drain-p2p",
    "drain-and-reset",
    "recover-imex-domain",
    "bus-reset",
    "system-reboot",
];

/// The result of a reading for one kind of fault.
enum Said {
    Present { value: String, blocks: bool },
    Absent,
    Unknown,
}

// === impl OpenFaults ===

impl OpenFaults {
    /// Returns the state without faults. `ignored` are the XIDs that keep no claim away.
    #[must_use]
    pub fn new(ignored: BTreeSet<u64>) -> Self {
        Self {
            ignored,
            gpus: BTreeMap::new(),
            last: None,
        }
    }

    /// Adds the faults of a former instance.
    pub fn add(&mut self, kept: &Kept) {
        for (uuid, of) in &kept.0 {
            let gpu = self.gpus.entry(uuid.clone()).or_default();
            gpu.uncorrected = gpu.uncorrected.or(of.uncorrected);
            for fault in &of.faults {
                let mut fault = fault.clone();
                if fault.reason == Reason::Xid {
                    // The configuration may have changed.
                    fault.blocks = fault.value.parse().is_ok_and(|xid| !self.ignored.contains(&xid));
                }
                gpu.open.entry(fault.reason).or_insert(Open::new(fault));
            }
        }
    }

    #[must_use]
    pub fn kept(&self) -> Kept {
        let of = |gpu: &Gpu| KeptGpu {
            uncorrected: gpu.uncorrected,
            faults: gpu.faults(),
        };
        Kept(self.gpus.iter().map(|(uuid, gpu)| (uuid.clone(), of(gpu))).collect())
    }

    #[must_use]
    pub fn faults(&self) -> Faults {
        let all = self.gpus.iter().map(|(uuid, gpu)| (uuid.clone(), gpu.faults()));
        all.filter(|(_, faults)| !faults.is_empty()).collect()
    }

    /// Applies the readings of all GPUs, or a question that failed.
    pub fn apply(&mut self, readings: Result<&[Reading], &str>, now: Instant) {
        let before = self.last.replace(now);
        let has_gap = before.is_none_or(|before| now.saturating_duration_since(before) > MAX_GAP);
        let readings = readings.unwrap_or_default();
        for (uuid, gpu) in &mut self.gpus {
            if has_gap || !readings.iter().any(|reading| reading.uuid == *uuid) {
                gpu.restart_wait();
            }
        }
        for reading in readings {
            let gpu = self.gpus.entry(reading.uuid.clone()).or_default();
            for reason in [Reason::Xid, Reason::Ecc, Reason::Remap, Reason::Recovery] {
                let said = match reason {
                    Reason::Xid => xid(reading, &self.ignored, gpu.blocks(reason)),
                    Reason::Ecc => ecc(reading, gpu.uncorrected),
                    Reason::Remap => remap(reading),
                    Reason::Recovery => recovery(reading),
                };
                gpu.apply(reason, said, reading.is_whole(), now);
            }
            if let Asked::Is(count) = reading.uncorrected {
                gpu.uncorrected = Some(count);
            }
        }
    }
}

// === impl Gpu ===

impl Gpu {
    fn faults(&self) -> Vec<Fault> {
        self.open.values().map(|open| open.fault.clone()).collect()
    }

    fn blocks(&self, reason: Reason) -> bool {
        self.open.get(&reason).is_some_and(|open| open.fault.blocks)
    }

    fn restart_wait(&mut self) {
        for open in self.open.values_mut() {
            open.well_since = None;
        }
    }

    fn apply(&mut self, reason: Reason, said: Said, is_whole: bool, now: Instant) {
        match said {
            Said::Present { value, blocks } => {
                let fault = Fault { reason, value, blocks };
                match self.open.get_mut(&reason) {
                    Some(open) => open.renew(fault),
                    None => drop(self.open.insert(reason, Open::new(fault))),
                }
            }
            Said::Absent if is_whole => {
                if self.open.get_mut(&reason).is_some_and(|open| open.is_over(now)) {
                    self.open.remove(&reason);
                }
            }
            Said::Absent | Said::Unknown => {
                if let Some(open) = self.open.get_mut(&reason) {
                    open.well_since = None;
                }
            }
        }
    }
}

// === impl Open ===

impl Open {
    fn new(fault: Fault) -> Self {
        Self {
            fault,
            well_since: None,
        }
    }

    /// Applies a fault that was seen again. An event keeps its first value, so that its taint keeps its age; a flag has the
    /// newest one. A fault that blocks new claims is never replaced by one that does not.
    fn renew(&mut self, again: Fault) {
        self.well_since = None;
        let is_flag = matches!(again.reason, Reason::Remap | Reason::Recovery);
        if again.blocks && !self.fault.blocks || is_flag && again.blocks == self.fault.blocks {
            self.fault = again;
        }
    }

    fn is_over(&mut self, now: Instant) -> bool {
        let since = *self.well_since.get_or_insert(now);
        let lasts = match self.fault.reason {
            Reason::Xid if !self.fault.blocks => IGNORED_FOR,
            _ => RECOVERED_AFTER,
        };
        now.saturating_duration_since(since) >= lasts
    }
}

fn xid(reading: &Reading, ignored: &BTreeSet<u64>, open_blocks: bool) -> Said {
    let blocking = reading.xids.iter().find(|xid| !ignored.contains(xid));
    if let Some(xid) = blocking.or(reading.xids.first()) {
        return Said::Present {
            value: xid.to_string(),
            blocks: blocking.is_some(),
        };
    }
    match reading.action {
        Asked::Is(0) => Said::Absent,
        Asked::NotSupported if !open_blocks => Said::Absent,
        _ => Said::Unknown,
    }
}

fn ecc(reading: &Reading, before: Option<u64>) -> Said {
    let Asked::Is(count) = reading.uncorrected else {
        return Said::Unknown;
    };
    let before = before.unwrap_or(0);
    // A count that fell was reset, and all of it is new.
    if count != before && count > 0 {
        return Said::Present {
            value: count.to_string(),
            blocks: true,
        };
    }
    match reading.action {
        _ if count == 0 => Said::Absent,
        Asked::Is(0) => Said::Absent,
        _ => Said::Unknown,
    }
}

fn remap(reading: &Reading) -> Said {
    let present = |value: &str, blocks| Said::Present {
        value: value.to_owned(),
        blocks,
    };
    match (&reading.remap_failed, &reading.remap_pending) {
        (Asked::Is(true), _) => present("failed", true),
        // NVIDIA: programs go on, and new ones may be started.
        (_, Asked::Is(true)) => present("pending", false),
        (Asked::Is(false), Asked::Is(false)) => Said::Absent,
        _ => Said::Unknown,
    }
}

fn recovery(reading: &Reading) -> Said {
    let action = match reading.action {
        Asked::Is(0) => return Said::Absent,
        Asked::Is(number) => number,
        _ => return Said::Unknown,
    };
    let named = usize::try_from(action).ok().and_then(|number| ACTIONS.get(number));
    let action = named.map_or_else(|| format!("action-{action}"), |name| (*name).to_owned());
    Said::Present {
        value: action,
        blocks: true,
    }
}
