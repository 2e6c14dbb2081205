//! Finds out in the background what NVML's list does not say of GPUs: the size of a context, and whether the driver limits
//! cgroups. That takes up to a minute on some nodes. Lists of the GPUs are applied meanwhile, so that the health of GPUs
//! that are in use stays known.

use crate::driver_limit::probe::Prober;
use crate::publish::contexts::Contexts;
use crate::publish::inventory::Gpu;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use vgpu_context_size::ContextSize;
use vgpu_node::driver_limit::DriverLimit;

const MEASURED_WITHIN: Duration = Duration::from_secs(5);

/// Measures one GPU at a time.
pub(super) struct Measurer {
    /// None while a measurement has them.
    tools: Option<Tools>,
    pending: Option<JoinHandle<(Tools, Vec<Gpu>, Measured)>>,
    /// True if the driver may have been replaced since the last measurement.
    is_new_driver: bool,
}

struct Tools {
    contexts: Contexts,
    prober: Prober,
}

/// What is known of the GPUs that were asked about, by UUID.
#[derive(Debug, Default)]
pub(super) struct Measured {
    pub(super) contexts: BTreeMap<String, ContextSize>,
    pub(super) driver_limits: BTreeMap<String, DriverLimit>,
}

// === impl Measurer ===

impl Measurer {
    pub(super) fn new(contexts: Contexts, prober: Prober) -> Self {
        Self {
            tools: Some(Tools { contexts, prober }),
            pending: None,
            is_new_driver: false,
        }
    }

    /// Notes that a list of the GPUs failed, as while a driver is replaced.
    pub(super) fn note_failed_list(&mut self) {
        self.is_new_driver = true;
    }

    /// Returns what is known of these GPUs, as far as that can be measured. None: it is still being measured.
    pub(super) async fn measure(&mut self, gpus: &[Gpu]) -> Option<Measured> {
        timeout(MEASURED_WITHIN, async {
            loop {
                if let Some(mut tools) = self.tools.take() {
                    if std::mem::take(&mut self.is_new_driver) {
                        tools.prober.ask_again();
                    }
                    let gpus = gpus.to_vec();
                    self.pending = Some(tokio::task::spawn_blocking(move || {
                        let measured = Measured {
                            contexts: tools.contexts.of(&gpus),
                            driver_limits: tools.prober.of(&gpus),
                        };
                        (tools, gpus, measured)
                    }));
                }
                // A measurement panicked: nothing is known from now on.
                let Some(measuring) = &mut self.pending else {
                    return Measured::default();
                };
                let ended = measuring.await;
                self.pending = None;
                let Ok((tools, asked, measured)) = ended else {
                    continue;
                };
                self.tools = Some(tools);
                // Another GPU may have appeared while these were measured.
                if gpus.iter().all(|gpu| asked.contains(gpu)) {
                    return measured;
                }
            }
        })
        .await
        .ok()
    }
}
