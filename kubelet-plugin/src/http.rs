//! Serves /healthz (the process responds), /readyz (every part works, or why one does not) and /metrics (for
//! Prometheus).

use crate::ready::Readiness;
use axum::Router;
use axum::http::{StatusCode, header};
use axum::routing::get;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use std::sync::Arc;

const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Routes the three pages.
pub fn router(readiness: Readiness, registry: Registry) -> Router {
    let registry = Arc::new(registry);
    let ready = move || async move {
        match readiness.status() {
            (true, text) => (StatusCode::OK, text),
            (false, text) => (StatusCode::SERVICE_UNAVAILABLE, text),
        }
    };
    let metrics = move || async move {
        let mut text = String::new();
        match encode(&mut text, &registry) {
            Ok(()) => (StatusCode::OK, [(header::CONTENT_TYPE, OPENMETRICS)], text),
            Err(error) => (
                StatusCode::INTERNAL_SERVER_ERROR,
                [(header::CONTENT_TYPE, "text/plain")],
                error.to_string(),
            ),
        }
    };
    Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
}
