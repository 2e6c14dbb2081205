//! The connection to the API server: one, of HTTP/2, for all requests.
//!
//! kube's own client uses HTTP/1.1. With it, each watch has its own connection, and a hundred Prepares at once open a
//! hundred more, each with a TLS handshake. After 90 s without a request, the next Prepare also starts with a
//! handshake. Over HTTP/2 all requests share the connection of the watches, which is always open.
//!
//! How it fails:
//! - The other side disappears without closing: pings notice it, all requests fail, and the next ones connect again.
//! - A proxy in front of the API server only supports HTTP/1.1: the connection uses HTTP/1.1.
//! - A proxy by `HTTPS_PROXY`: kube's own client is used, and its errors say what it supports.

use hyper_rustls::{FixedServerNameResolver, HttpsConnectorBuilder};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::client::retry::RetryPolicy;
use kube::client::{Body, ConfigExt as _};
use kube::{Client, Config};
use std::time::Duration;
use tower::retry::RetryLayer;
use tower::{BoxError, ServiceBuilder};

/// A dead connection is noticed within the sum of both times. The API server does not count pings as requests.
const PING_EVERY: Duration = Duration::from_secs(15);
const PING_ANSWERED_WITHIN: Duration = Duration::from_secs(15);

/// Returns a client of this API server. It connects at its first request.
///
/// # Errors
/// The configuration's certificates or credentials cannot be used.
pub fn client(config: Config) -> anyhow::Result<Client> {
    if config.proxy_url.is_some() {
        return Ok(Client::try_from(config)?);
    }
    let mut http = HttpConnector::new();
    http.enforce_http(false);
    http.set_nodelay(true);
    http.set_connect_timeout(config.connect_timeout);
    let mut tls = HttpsConnectorBuilder::new()
        .with_tls_config(config.rustls_client_config()?)
        .https_or_http();
    if let Some(name) = &config.tls_server_name {
        tls = tls.with_server_name_resolver(FixedServerNameResolver::new(name.clone().try_into()?));
    }
    let connector = tls.enable_http1().enable_http2().wrap_connector(http);
    let connection = legacy::Client::builder(TokioExecutor::new())
        .timer(TokioTimer::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(None)
        .http2_keep_alive_interval(PING_EVERY)
        .http2_keep_alive_timeout(PING_ANSWERED_WITHIN)
        .http2_keep_alive_while_idle(true)
        .build::<_, Body>(connector);
    let retry = config
        .default_retry
        .then(|| RetryLayer::new(RetryPolicy::server_retry()));
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(retry)
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(connection);
    Ok(Client::new(service, config.default_namespace))
}

#[cfg(test)]
#[path = "connection_tests.rs"]
mod tests;
