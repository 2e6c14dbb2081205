//! The HTTPS server of reviews.
//!
//! It has a thread of its own, so that a long pass of the planner delays no pod. HTTP/1.1: the API server keeps its
//! connections open, and each connection is closed in order when this replica ends.
//!
//! Failure modes:
//! - **A body that is too large, or no review:** answered with a status and a text; the API server refuses the pod.
//! - **Slow or hostile clients:** handshakes, heads and bodies have deadlines, and connections and bodies at a time are
//!   bounded, and so is memory. Who fills all connections delays pods, but lets none through untranslated.
//! - **No certificate yet:** the handshake fails. The replica is not ready until it has one.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, watch};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::server::TlsStream;
use vgpu_dialects::Settings;

use super::names::PATH;
use super::review::{BadReview, Mode, review};
use super::served::Served;
use crate::metrics::Reviews;

/// The limits of one request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    body: usize,
    body_timeout: Duration,
    handshake_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            // A pod has at most 3 MiB at the API server, and an update has two.
            body: 8 << 20,
            // The API server waits for 5 s.
            body_timeout: Duration::from_secs(4),
            handshake_timeout: Duration::from_secs(4),
        }
    }
}

const BODIES: usize = 16;
const CONNECTIONS: usize = 256;
/// For the head of a request, including the wait on a connection that is kept open. The API server closes such
/// connections after 90 s; if this server closed them first, a review could be lost.
const HEAD_TIMEOUT: Duration = Duration::from_secs(120);

/// The settings and state that answers depend on.
#[derive(Debug, Clone)]
pub(super) struct Reviewer {
    pub(super) settings: Arc<Settings>,
    pub(super) mode: Mode,
    pub(super) metrics: Reviews,
    pub(super) bodies: Arc<Semaphore>,
    pub(super) limits: Limits,
}

impl Reviewer {
    pub(super) fn new(settings: Settings, mode: Mode, metrics: Reviews) -> Self {
        Self {
            settings: Arc::new(settings),
            mode,
            metrics,
            bodies: Arc::new(Semaphore::new(BODIES)),
            limits: Limits::default(),
        }
    }

    pub(super) fn router(self) -> Router {
        Router::new().route(PATH, post(answer)).with_state(self)
    }
}

async fn answer(State(reviewer): State<Reviewer>, request: Request) -> Response {
    let body = tokio::time::timeout(reviewer.limits.body_timeout, body(&reviewer, request.into_body()));
    let (body, _turn) = match body.await {
        Ok(Some(read)) => read,
        Ok(None) => {
            reviewer.metrics.bad();
            let text = format!(
                "the body is cut off, or has more than {} bytes; send one AdmissionReview\n",
                reviewer.limits.body
            );
            return (StatusCode::PAYLOAD_TOO_LARGE, text).into_response();
        }
        Err(_) => {
            reviewer.metrics.bad();
            let text = format!("the body did not come within {:?}\n", reviewer.limits.body_timeout);
            return (StatusCode::REQUEST_TIMEOUT, text).into_response();
        }
    };
    let begun = Instant::now();
    match review(&body, &reviewer.settings, reviewer.mode) {
        Ok(answer) => {
            reviewer.metrics.answered(answer.outcome, begun.elapsed());
            ([(header::CONTENT_TYPE, "application/json")], answer.body).into_response()
        }
        Err(error) => bad(&reviewer, &error),
    }
}

async fn body(reviewer: &Reviewer, body: Body) -> Option<(axum::body::Bytes, tokio::sync::OwnedSemaphorePermit)> {
    let turn = reviewer.bodies.clone().acquire_owned().await.ok()?;
    Some((to_bytes(body, reviewer.limits.body).await.ok()?, turn))
}

fn bad(reviewer: &Reviewer, error: &BadReview) -> Response {
    reviewer.metrics.bad();
    tracing::warn!(%error, "the webhook was sent what it cannot answer");
    (StatusCode::BAD_REQUEST, format!("{error}\n")).into_response()
}

/// TLS with the certificate of the moment.
///
/// # Errors
/// The TLS library does not have its own default versions.
pub(super) fn acceptor(served: Arc<Served>) -> Result<TlsAcceptor, tokio_rustls::rustls::Error> {
    let provider = Arc::new(ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_cert_resolver(served);
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// Serves on a thread of its own until the process ends. When `ends` becomes true, connections are closed after the
/// review that they are at, and new ones after their first.
///
/// # Errors
/// The thread cannot be started.
pub(super) fn start(
    listener: TcpListener,
    tls: TlsAcceptor,
    reviewer: Reviewer,
    ends: watch::Receiver<bool>,
) -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let serve = move || {
        if let Err(error) = runtime.block_on(serve(listener, tls, reviewer, ends)) {
            // Without it the API server refuses pods until this process starts again.
            tracing::error!(%error, "the webhook's server ended");
            std::process::exit(1);
        }
    };
    std::thread::Builder::new().name("webhook".into()).spawn(serve)?;
    Ok(())
}

async fn serve(
    listener: TcpListener,
    tls: TlsAcceptor,
    reviewer: Reviewer,
    ends: watch::Receiver<bool>,
) -> std::io::Result<()> {
    let handshake = reviewer.limits.handshake_timeout;
    let router = reviewer.router();
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let connections = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok(place) = connections.clone().acquire_owned().await else {
            return Ok(());
        };
        let stream = match listener.accept().await {
            Ok((stream, _)) => {
                // Answers are small, and each is waited for.
                let _ = stream.set_nodelay(true);
                stream
            }
            Err(error) => {
                tracing::warn!(%error, "the webhook cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let (tls, router, ends) = (tls.clone(), router.clone(), ends.clone());
        tokio::spawn(async move {
            match tokio::time::timeout(handshake, tls.accept(stream)).await {
                Ok(Ok(stream)) => connection(stream, router, ends).await,
                Ok(Err(error)) => tracing::debug!(%error, "a TLS handshake with the webhook failed"),
                Err(_) => tracing::debug!("a TLS handshake with the webhook took too long"),
            }
            drop(place);
        });
    }
}

async fn connection(stream: TlsStream<TcpStream>, router: Router, mut ends: watch::Receiver<bool>) {
    let service = TowerToHyperService::new(router);
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .keep_alive(!*ends.borrow_and_update())
        .serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    let served: Result<(), hyper::Error> = tokio::select! {
        served = connection.as_mut() => served,
        // If the sender is gone, `changed` fails and this branch is disabled.
        Ok(()) = ends.changed() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = served {
        tracing::debug!(%error, "a connection to the webhook broke");
    }
}

#[cfg(test)]
#[path = "server_test.rs"]
mod tests;
