//! How busy whole GPUs are, for metrics with HAMi's names.
//!
//! A scrape never waits for the driver: NVML is asked every [`EVERY`] beside, and while it hangs nothing is known.

use super::utilisation::{GpuRates, Rates};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How often NVML is asked how busy the GPUs are.
const EVERY: Duration = Duration::from_secs(5);

/// How busy each GPU is, as of the last answer.
#[derive(Clone, Debug, Default)]
pub struct Busy(Arc<Mutex<Rates>>);

// === impl Busy ===

impl Busy {
    #[must_use]
    pub fn rates(&self) -> Rates {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, rates: Rates) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = rates;
    }
}

/// Asks for ever. An NVML that hangs is not asked again before it has answered; meanwhile nothing is known.
pub async fn watch(nvml: impl GpuRates, busy: Busy) {
    watch_every(EVERY, nvml, busy).await;
}

pub(crate) async fn watch_every(every: Duration, nvml: impl GpuRates, busy: Busy) {
    let nvml = Arc::new(nvml);
    loop {
        let nvml = nvml.clone();
        let mut asked = std::pin::pin!(tokio::task::spawn_blocking(move || nvml.rates()));
        let rates = loop {
            match tokio::time::timeout(every, &mut asked).await {
                Ok(rates) => break rates.unwrap_or_default(),
                Err(_) => busy.set(Rates::new()),
            }
        };
        busy.set(rates);
        tokio::time::sleep(every).await;
    }
}
