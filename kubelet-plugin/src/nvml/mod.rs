//! NVML in a child process: all that the plugin asks the driver goes through [`Nvml`].
//!
//! ```text
//!  gpus, faults, compute, truth ► Nvml ── a question, a line of JSON ──► child: this program, `nvml-child DRIVER_ROOT`
//!                     ▲                                       │ Local: libnvidia-ml.so.1 of the driver root
//!                     └──────── an answer, a line ────────────┘
//! ```
//!
//! To ask something new: a variant of [`Question`] and of [`Answer`], an arm in [`Local::answer`], and a method of [`Nvml`].
//!
//! How it fails:
//! - The child dies, or answers nonsense: the question fails, and the next one starts another child.
//! - It hangs: it is killed after [`ANSWERS_WITHIN`], or [`STARTS_WITHIN`] if it has not answered yet (a driver without
//!   persistence mode loads for long). One that hangs in the kernel cannot be killed. Nobody waits for it, and of such
//!   children there are at most [`UNENDED`]: then nothing is asked until one ends.
//! - This process ends in any way: the child sees the end of its socket and kills itself, also while NVML hangs.
//! - The driver is to be unloaded: [`Nvml::pause`] kills the child, also in the middle of a question, and none is started
//!   until [`Nvml::resume`].

mod child;
mod parent;

pub use child::helper;
pub use parent::{Nvml, Silence};

use crate::compute::{GpuRates as _, NvmlUtilisation, Rates, Used, Utilisation as _};
use crate::faults::{NvmlReadings, Reading, Readings as _};
use crate::inventory::nvml::NvmlGpus;
use crate::inventory::{Error, Gpus as _, List};
use crate::truth::{GpuProcesses as _, Memory, NvmlProcesses};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::Duration;

/// The first argument of the child.
pub const ARGUMENT: &str = "nvml-child";
const ANSWERS_WITHIN: Duration = Duration::from_secs(12);
const STARTS_WITHIN: Duration = Duration::from_secs(60);
const UNENDED: usize = 3;
/// An answer with 64 GPUs and thousands of processes is much smaller.
const MAX_LINE: usize = 4 << 20;

/// What can be asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Question {
    List,
    /// Of each process on the GPU with this UUID.
    Utilisation(String),
    /// How busy each GPU is.
    Rates,
    /// The memory of each process on the GPU with this UUID.
    Processes(String),
    /// A reading of each GPU.
    Faults,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum Answer {
    List(Result<List, Error>),
    Utilisation(Option<Used>),
    Rates(Rates),
    Processes(Result<Memory, String>),
    Faults(Result<Vec<Reading>, String>),
}

/// NVML in this process: what the child has.
struct Local {
    gpus: NvmlGpus,
    utilisation: NvmlUtilisation,
    processes: NvmlProcesses,
    readings: NvmlReadings,
}

// === impl Local ===

impl Local {
    fn new(driver_root: PathBuf) -> Self {
        Self {
            gpus: NvmlGpus::new(driver_root.clone()),
            utilisation: NvmlUtilisation::new(driver_root.clone()),
            processes: NvmlProcesses::new(driver_root.clone()),
            readings: NvmlReadings::new(driver_root),
        }
    }

    fn answer(&self, question: Question) -> Answer {
        match question {
            Question::List => Answer::List(self.gpus.list()),
            Question::Utilisation(gpu) => Answer::Utilisation(self.utilisation.of(&gpu)),
            Question::Rates => Answer::Rates(self.utilisation.rates()),
            Question::Processes(gpu) => Answer::Processes(self.processes.of(&gpu)),
            Question::Faults => Answer::Faults(self.readings.readings()),
        }
    }
}
