//! NVML in a child process: the plugin asks the driver for a [`Sample`] of all GPUs, and has it make and destroy instances of GPUs
//! in MIG mode, through [`Nvml`].
//!
//! ```text
//!  sampler ───┐
//!  Prepare … ─┴─► Nvml ── a question, a line of JSON ──► child: this program, `nvml-child DRIVER_ROOT SIZES`
//!                  ▲                                        │ Local: libnvidia-ml.so.1 of the driver root
//!                  └──────── the answer, a line ────────────┘
//! ```
//!
//! [`sampler`] asks every 2 s, and sends each sample to everything that reads one.
//!
//! To ask for something new, add a field to [`GpuSample`], and fill it in `local.rs`. Calls for instances are `vgpu_mig`'s.
//!
//! How it fails:
//! - The child dies, or answers nonsense: the question fails, and the next sample starts another child. A call for an instance may
//!   have been carried out then, and is never sent twice. None is sent while a child may still carry one out, this plugin's or
//!   another one's (`call_lock`).
//! - It hangs: it is killed after [`ANSWERS_WITHIN`], or [`STARTS_WITHIN`] if it has not answered yet (a driver without
//!   persistence mode loads for long). A child that hangs in the kernel cannot be killed. Nobody waits for it; while there
//!   are [`UNENDED`] such children, nothing is asked.
//! - A call for an instance, which a claim's turn waits for, ends by the time that the turn gives it. It is refused at once while
//!   no child has answered a sample, and while an answer to a former call is missing: so no turn waits for a driver that loads
//!   or hangs.
//! - This process ends in any way: the child sees the end of its socket and kills itself, also while NVML hangs.
//! - The driver is to be unloaded: [`Nvml::pause`] kills the child, also in the middle of a question, and none is started
//!   until [`Nvml::resume`].

mod call_lock;
mod child;
mod faults;
mod library;
mod local;
mod parent;
mod processes;
pub mod sampler;

pub use child::helper;
pub use faults::{Asked, Reading};
pub use local::Local;
pub use parent::{Nvml, NvmlError};
pub use processes::{Memory, Used};

use crate::publish::inventory::{Error, List};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use vgpu_mig::{Answer, Call, Refused};

/// The first argument of the child.
pub const ARGUMENT: &str = "nvml-child";
const ANSWERS_WITHIN: Duration = Duration::from_secs(12);
const STARTS_WITHIN: Duration = Duration::from_secs(60);
const UNENDED: usize = 3;
/// An answer with 64 GPUs and thousands of processes is much smaller.
const MAX_LINE: usize = 4 << 20;

/// The driver: NVML in a child, in this process, or a test's.
pub trait GpuDriver: Send + Sync + 'static {
    /// Asks about all GPUs. May block for as long as the driver does.
    fn sample(&self, with_list: bool) -> Sample;
}

/// A question to the child.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum Question {
    /// Answered by a [`Sample`].
    Sample { with_list: bool },
    /// A call for the instances of a GPU, answered by [`MigAnswer`].
    Mig { gpu: String, call: Call },
}

type MigAnswer = Result<Answer, Refused>;

/// The driver's answer about all GPUs at one time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// The GPUs with their properties; None if they were not asked for.
    pub list: Option<Result<List, Error>>,
    /// The values that change all the time, for each GPU whose UUID is known; an error if the driver cannot be asked.
    pub gpus: Result<Vec<GpuSample>, String>,
}

/// The driver's answer about one GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GpuSample {
    pub faults: Reading,
    pub memory: Result<Memory, String>,
    /// None: the driver has never measured a process of this GPU.
    pub used: Option<Used>,
    /// Percentage of a short period before the question during which something ran on the GPU.
    pub busy: Option<u32>,
}

// === impl Sample ===

impl Sample {
    /// The sample of a driver that cannot be asked.
    #[must_use]
    pub fn failed(error: &Error, with_list: bool) -> Self {
        Self {
            list: with_list.then(|| Err(error.clone())),
            gpus: Err(error.to_string()),
        }
    }

    /// Answers about each GPU; none if the driver cannot be asked.
    pub fn gpus(&self) -> impl Iterator<Item = (&str, &GpuSample)> {
        let all = self.gpus.iter().flatten();
        all.map(|gpu| (gpu.faults.uuid.as_str(), gpu))
    }

    #[must_use]
    pub fn gpu(&self, uuid: &str) -> Option<&GpuSample> {
        self.gpus().find(|(known, _)| *known == uuid).map(|(_, gpu)| gpu)
    }

    /// The memory of the processes of one GPU.
    ///
    /// # Errors
    /// Why it is not known.
    pub fn memory(&self, uuid: &str) -> Result<Memory, String> {
        self.gpus.as_ref().map_err(String::clone)?;
        let gpu = self.gpu(uuid).ok_or_else(|| format!("the driver has no GPU {uuid}"))?;
        gpu.memory.clone()
    }
}
