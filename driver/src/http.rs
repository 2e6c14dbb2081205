//! Serves /healthz (the main loop runs), /readyz (every kind was listed once) and /metrics.

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
    pub(crate) metrics: Metrics,
}

impl Health {
    pub(crate) fn new() -> Self {
        Self {
            started: Instant::now(),
            beat: AtomicU64::new(0),
            ready: AtomicBool::new(false),
            metrics: Metrics::new(),
        }
    }

    pub(crate) fn beat(&self, ready: bool) {
        self.beat.store(self.started.elapsed().as_secs(), Ordering::Relaxed);
        self.ready.store(ready, Ordering::Relaxed);
    }

    fn alive(&self) -> bool {
        let beat = Duration::from_secs(self.beat.load(Ordering::Relaxed));
        self.started.elapsed().saturating_sub(beat) < STALLED
    }
}

fn answer(ok: bool, otherwise: &'static str) -> (StatusCode, &'static str) {
    if ok {
        (StatusCode::OK, "ok\n")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, otherwise)
    }
}

/// Serves until the process ends.
pub(crate) async fn serve(listener: tokio::net::TcpListener, health: Arc<Health>) -> std::io::Result<()> {
    let (live, ready, metrics) = (health.clone(), health.clone(), health);
    let router = Router::new()
        .route(
            "/healthz",
            get(async move || answer(live.alive(), "the main loop has not turned for a minute\n")),
        )
        .route(
            "/readyz",
            get(async move || {
                let ready = ready.ready.load(Ordering::Relaxed);
                answer(
                    ready,
                    "pods, nodes, claims, slices, classes and taint rules are not all listed yet\n",
                )
            }),
        )
        .route("/metrics", get(async move || metrics.metrics.text()));
    axum::serve(listener, router).await
}
