//! This process's part of a GPU's time: the arbiter is chosen when the process's state is created, in a container of
//! HAMi at the first launch.

use std::path::PathBuf;
use std::sync::OnceLock;
use vgpu_abi::limits::{ComputePolicy, Limits};
use vgpu_abi::paths::ARBITRATION;
use vgpu_core::arbiter::Arbiter;
use vgpu_core::grants::GpuGrants;
use vgpu_core::os::stderr;

/// A limited part of one GPU's time.
#[derive(Debug)]
pub(crate) struct TimeShare {
    limits: Limits,
    /// The folder of the GPU's pages; in a container of HAMi, the folder of the share.
    folder: PathBuf,
    of_hami: bool,
    arbiter: OnceLock<Option<Arbiter>>,
}

impl TimeShare {
    /// Returns None if the time is not limited. A process with several shares of a GPU uses the turns of the share with
    /// the most `cores`, and is not limited if one of its shares is Unlimited.
    pub(crate) fn of(gpu: &GpuGrants, of_hami: bool) -> Option<Self> {
        #[cfg(feature = "dissect")]
        if crate::dissect::is_off("limiter") {
            return None;
        }
        let mut policies = gpu.shares.iter().map(|share| share.limits.compute_policy);
        if policies.any(|policy| policy == ComputePolicy::Unlimited) {
            return None;
        }
        let share = gpu.shares.iter().max_by_key(|share| share.limits.cores)?;
        let folder = if of_hami {
            share.directory.clone()
        } else {
            share.directory.parent()?.join(ARBITRATION).join(&gpu.gpu)
        };
        Some(Self {
            limits: share.limits.clone(),
            folder,
            of_hami,
            arbiter: OnceLock::new(),
        })
    }

    /// Returns the arbiter, and opens it if necessary. None: it could not be opened or is not needed.
    #[inline(always)]
    pub(crate) fn arbiter(&self) -> Option<&Arbiter> {
        self.arbiter.get_or_init(|| self.open()).as_ref()
    }

    /// Returns the arbiter if it was opened.
    pub(crate) fn arbiter_in_use(&self) -> Option<&Arbiter> {
        self.arbiter.get()?.as_ref()
    }

    #[cold]
    fn open(&self) -> Option<Arbiter> {
        let limits = &self.limits;
        if self.of_hami {
            let only_beside_others = limits.compute_policy == ComputePolicy::Balanced;
            return Arbiter::alone(Some(&self.folder), limits, only_beside_others);
        }
        let (arbiter, reason) = Arbiter::open(&self.folder, limits);
        // A share without `cores` has no guaranteed time to lose, so nothing is reported.
        if let Some(reason) = reason.filter(|_| limits.cores > 0) {
            stderr::say(&format!(
                "share {}: {reason}; it cannot take turns with others, and is held to its {} % of the GPU's time alone",
                limits.share, limits.cores
            ));
        }
        arbiter
    }
}
