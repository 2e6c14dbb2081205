//! Serves /healthz (the process responds), /readyz (every part works, or why one does not) and /metrics (for
//! Prometheus).

use crate::ready::Readiness;
use axum::Router;
use axum::http::{StatusCode, header};
use axum::routing::get;
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::registry::Registry;
use std::sync::Arc;

const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Routes the three pages. The registries have different names.
pub fn router(readiness: Readiness, registries: Vec<Registry>) -> Router {
    let registries = Arc::new(registries);
    let ready = move || async move {
        match readiness.status() {
            (true, text) => (StatusCode::OK, text),
            (false, text) => (StatusCode::SERVICE_UNAVAILABLE, text),
        }
    };
    let metrics = move || async move {
        // Not on the thread of all servers: a scrape reads ledgers, and may wait for a turn that works.
        let encoded = tokio::task::spawn_blocking(move || {
            let mut text = String::new();
            let all = registries
                .iter()
                .try_for_each(|registry| encode_registry(&mut text, registry));
            all.and_then(|()| encode_eof(&mut text))
                .map(|()| text)
                .map_err(|error| error.to_string())
        });
        match encoded.await.unwrap_or_else(|error| Err(error.to_string())) {
            Ok(text) => (StatusCode::OK, [(header::CONTENT_TYPE, OPENMETRICS)], text),
            Err(error) => (
                StatusCode::INTERNAL_SERVER_ERROR,
                [(header::CONTENT_TYPE, "text/plain")],
                error,
            ),
        }
    };
    Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
}
