//! Asks the driver, and never waits for it for long: one that hangs does so for ever.
//!
//! How it fails:
//! - A driver that hangs keeps the one thread that asked it. It is not asked again before it has answered, so that no
//!   second thread hangs. What it says in the end is as old as the question, so that is dropped and it is asked anew.
//! - A measurement of contexts takes up to a minute on some nodes. Scans go on meanwhile, so that the health of GPUs
//!   that are in use stays known.

use crate::contexts::Contexts;
use crate::inventory::{self, Gpu, Gpus, List};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use vgpu_context_size::ContextSize;

pub(super) const ANSWERS_WITHIN: Duration = Duration::from_secs(15);
const MEASURED_WITHIN: Duration = Duration::from_secs(5);

/// Why a scan returned no GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ScanFailure {
    /// The node has no NVML library.
    NoDriver(String),
    /// There is a driver, but no GPU could be listed.
    Silent(String),
    /// The driver has not answered yet.
    Late(String),
}

/// Lists the GPUs, one question at a time.
pub(super) struct Scanner<G> {
    gpus: Arc<G>,
    /// The question that was not answered in time.
    pending: Option<JoinHandle<Result<List, inventory::Error>>>,
}

/// Measures what contexts take, one GPU at a time.
pub(super) struct Measurer {
    /// None while a measurement has them.
    contexts: Option<Contexts>,
    pending: Option<JoinHandle<Measured>>,
}

/// The GPUs that were asked about, and the sizes on those for which it is known.
type Measured = (Contexts, Vec<Gpu>, BTreeMap<String, ContextSize>);

// === impl ScanFailure ===

impl ScanFailure {
    pub(super) fn reason(self) -> String {
        match self {
            Self::NoDriver(reason) | Self::Silent(reason) | Self::Late(reason) => reason,
        }
    }
}

// === impl Scanner ===

impl<G: Gpus> Scanner<G> {
    pub(super) fn new(gpus: G) -> Self {
        Self {
            gpus: Arc::new(gpus),
            pending: None,
        }
    }

    pub(super) async fn scan(&mut self) -> Result<List, ScanFailure> {
        let scan = async {
            if let Some(late) = &mut self.pending {
                // Whatever it says is old.
                let _ = late.await;
                self.pending = None;
            }
            let gpus = self.gpus.clone();
            let asked = self.pending.insert(tokio::task::spawn_blocking(move || gpus.list()));
            let answer = asked.await;
            self.pending = None;
            answer
        };
        match timeout(ANSWERS_WITHIN, scan).await {
            Ok(Ok(Ok(list))) => Ok(list),
            Ok(Ok(Err(error @ inventory::Error::NoLibrary { .. }))) => Err(ScanFailure::NoDriver(error.to_string())),
            Ok(Ok(Err(error))) => Err(ScanFailure::Silent(error.to_string())),
            Ok(Err(error)) => Err(ScanFailure::Silent(format!(
                "the scan of the GPUs ended early: {error}"
            ))),
            Err(_) => Err(ScanFailure::Late(format!(
                "NVML has not answered for {} s; check nvidia-smi and the kernel's log (dmesg) on the node",
                ANSWERS_WITHIN.as_secs()
            ))),
        }
    }
}

// === impl Measurer ===

impl Measurer {
    pub(super) fn new(contexts: Contexts) -> Self {
        Self {
            contexts: Some(contexts),
            pending: None,
        }
    }

    /// Returns what a context takes on these GPUs, as far as that can be measured. None: it is still being measured.
    pub(super) async fn measure(&mut self, gpus: &[Gpu]) -> Option<BTreeMap<String, ContextSize>> {
        timeout(MEASURED_WITHIN, async {
            loop {
                if let Some(mut contexts) = self.contexts.take() {
                    let gpus = gpus.to_vec();
                    self.pending = Some(tokio::task::spawn_blocking(move || {
                        let sizes = contexts.of(&gpus);
                        (contexts, gpus, sizes)
                    }));
                }
                // A measurement that panicked: sizes are not known from now on.
                let Some(measuring) = &mut self.pending else {
                    return BTreeMap::new();
                };
                let measured = measuring.await;
                self.pending = None;
                let Ok((contexts, asked, sizes)) = measured else {
                    continue;
                };
                self.contexts = Some(contexts);
                // Another GPU may have appeared while these were measured.
                if gpus.iter().all(|gpu| asked.contains(gpu)) {
                    return sizes;
                }
            }
        })
        .await
        .ok()
    }
}
