//! The view of its shares that a pod of a dialect expects: variables and annotations in which programs and tools of the
//! earlier system look for their GPUs.
//!
//! They are hints. No limit depends on them: containers can change their variables, and the library does not read
//! them where a claim has limits.

mod annotations;
mod environment;

use std::time::Duration;

pub(crate) use annotations::is_legacy_key;
pub use annotations::{LEGACY_VIEW_ANNOTATIONS, LEGACY_VIEW_LABEL, LEGACY_VIEW_PREFIX, LegacyView, legacy_view};
pub use environment::{Environment, environment};

/// One allocated GPU of a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuShare {
    pub uuid: String,
    /// The GPU's number on its node.
    pub index: u32,
    /// Bytes of its memory that the container may use.
    pub memory: u64,
    /// Bytes of memory that the GPU has.
    pub device_memory: u64,
    /// Percent of its time; 100 for a whole GPU.
    pub cores: u32,
    /// The GPU is shared with nobody: class `gpu`.
    pub whole: bool,
}

impl GpuShare {
    /// Memory in MiB.
    fn mebibytes(&self) -> u64 {
        self.memory >> 20
    }

    /// Percent of the GPU's memory, rounded to the nearest: a request for 50 % that was rounded down to whole MiB is 50
    /// % again.
    fn hundredths(&self) -> u64 {
        let all = u128::from(self.device_memory.max(1));
        let part = (u128::from(self.memory) * 100 + all / 2) / all;
        u64::try_from(part).unwrap_or(u64::MAX)
    }
}

/// A pod that is bound to a node, with what its claims got.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bound {
    pub node: String,
    /// When it was bound, since 1970.
    pub at: Duration,
    /// The GPUs of each container that has some, by the container's name.
    pub containers: std::collections::BTreeMap<String, Vec<GpuShare>>,
}

/// Numbers of GPUs separated by commas, in order and each once.
fn indices<'a>(shares: impl IntoIterator<Item = &'a GpuShare>) -> String {
    let mut indices: Vec<u32> = shares.into_iter().map(|share| share.index).collect();
    indices.sort_unstable();
    indices.dedup();
    let indices: Vec<String> = indices.iter().map(u32::to_string).collect();
    indices.join(",")
}
