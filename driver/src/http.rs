//! Serves /healthz (the main loop runs), /readyz (every kind was listed once, and the webhook has a certificate) and
//! /metrics.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;

use crate::metrics::Metrics;

/// The main loop turns at least every [`crate::main_loop::HEARTBEAT`]; after this time without a turn it hangs.
const STALLED: Duration = Duration::from_secs(60);

/// The state of the main loop for the probes.
#[derive(Debug)]
pub(crate) struct Health {
    started: Instant,
    beat: AtomicU64,
    ready: AtomicBool,
    /// False while the webhook has no certificate to show.
    certificate: AtomicBool,
    pub(crate) metrics: Metrics,
}

impl Health {
    pub(crate) fn new() -> Self {
        Self {
            started: Instant::now(),
            beat: AtomicU64::new(0),
            ready: AtomicBool::new(false),
            certificate: AtomicBool::new(true),
            metrics: Metrics::new(),
        }
    }

    pub(crate) fn beat(&self, ready: bool) {
        self.beat.store(self.started.elapsed().as_secs(), Ordering::Relaxed);
        self.ready.store(ready, Ordering::Relaxed);
    }

    /// The webhook serves: without a certificate this replica is not ready.
    pub(crate) fn waits_for_certificate(&self) {
        self.metrics.reviews.certificate_until(0);
        self.certificate.store(false, Ordering::Relaxed);
    }

    pub(crate) fn certificate_loaded(&self, until: i64) {
        self.metrics.reviews.certificate_until(until);
        self.certificate.store(true, Ordering::Relaxed);
    }

    /// Why this replica is not ready; `None` if it is.
    fn lacks(&self) -> Option<&'static str> {
        let is = |flag: &AtomicBool| flag.load(Ordering::Relaxed);
        if !is(&self.certificate) {
            Some(
                "the webhook has no certificate yet; this replica or the leader stores one in the webhook's Secret, and the log says what fails\n",
            )
        } else if !is(&self.ready) {
            Some("pods, nodes, claims, slices, classes and taint rules are not all listed yet\n")
        } else {
            None
        }
    }

    fn alive(&self) -> bool {
        let beat = Duration::from_secs(self.beat.load(Ordering::Relaxed));
        self.started.elapsed().saturating_sub(beat) < STALLED
    }
}

fn answer(lacks: Option<&'static str>) -> (StatusCode, &'static str) {
    match lacks {
        None => (StatusCode::OK, "ok\n"),
        Some(text) => (StatusCode::SERVICE_UNAVAILABLE, text),
    }
}

/// Serves until the process ends.
pub(crate) async fn serve(listener: tokio::net::TcpListener, health: Arc<Health>) -> std::io::Result<()> {
    let (live, ready, metrics) = (health.clone(), health.clone(), health);
    let router = Router::new()
        .route(
            "/healthz",
            get(async move || answer((!live.alive()).then_some("the main loop has not turned for a minute\n"))),
        )
        .route("/readyz", get(async move || answer(ready.lacks())))
        .route("/metrics", get(async move || metrics.metrics.text()));
    axum::serve(listener, router).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replica_is_ready_with_lists_and_certificate() {
        let health = Health::new();
        let lacks = |word: &str| {
            let lacks = health.lacks().unwrap_or_default();
            assert!(lacks.contains(word), "{word}: {lacks:?}");
        };
        lacks("listed");
        health.waits_for_certificate();
        lacks("certificate");
        health.beat(true);
        lacks("certificate");
        health.certificate_loaded(7);
        assert_eq!(health.lacks(), None);
    }
}
