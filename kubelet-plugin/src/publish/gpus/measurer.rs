//! Measures the size of contexts in the background: a measurement takes up to a minute on some nodes. Lists of the GPUs
//! are applied meanwhile, so that the health of GPUs that are in use stays known.

use crate::publish::contexts::Contexts;
use crate::publish::inventory::Gpu;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use vgpu_context_size::ContextSize;

const MEASURED_WITHIN: Duration = Duration::from_secs(5);

/// Measures what contexts take, one GPU at a time.
pub(super) struct Measurer {
    /// None while a measurement has them.
    contexts: Option<Contexts>,
    pending: Option<JoinHandle<Measured>>,
}

/// The GPUs that were asked about, and the sizes that are known.
type Measured = (Contexts, Vec<Gpu>, BTreeMap<String, ContextSize>);

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
                // A measurement panicked: sizes are not known from now on.
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
