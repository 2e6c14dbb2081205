//! Serves /healthz (the process responds), /readyz (every part works, or why one does not) and /metrics (for
//! Prometheus).

use crate::ready::Readiness;
use axum::Router;
use axum::http::{StatusCode, header};
use axum::routing::get;
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::registry::Registry;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};

/// Two Prometheus servers may scrape at the same time.
const SCRAPES: usize = 2;
/// A scrape, with its wait for the ones before it. Prometheus gives up after 10 s by default.
const SCRAPED_WITHIN: Duration = Duration::from_secs(8);

const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const PLAIN: [(header::HeaderName, &str); 1] = [(header::CONTENT_TYPE, "text/plain")];

/// Routes the three pages. The registries have different names.
pub fn router(readiness: Readiness, registries: Vec<Registry>) -> Router {
    pages(readiness, registries, SCRAPED_WITHIN)
}

fn pages(readiness: Readiness, registries: Vec<Registry>, within: Duration) -> Router {
    let registries = Arc::new(registries);
    let ready = move || async move {
        match readiness.status() {
            (true, text) => (StatusCode::OK, text),
            (false, text) => (StatusCode::SERVICE_UNAVAILABLE, text),
        }
    };
    let scrapes = Arc::new(Semaphore::new(SCRAPES));
    // The length of the last page, and some room: text that grows step by step is copied each time.
    let length = Arc::new(AtomicUsize::new(0));
    let metrics = move || async move {
        let deadline = Instant::now() + within;
        // Scrapes that hang would take up one thread after the other.
        let Ok(Ok(permit)) = timeout_at(deadline, scrapes.acquire_owned()).await else {
            return busy(within);
        };
        // Not on the thread of all servers: a scrape reads ledgers, and may wait for a running turn.
        let encoded = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            let mut text = String::with_capacity(length.load(Ordering::Relaxed) * 17 / 16);
            let all = registries
                .iter()
                .try_for_each(|registry| encode_registry(&mut text, registry));
            let all = all.and_then(|()| encode_eof(&mut text));
            length.store(text.len(), Ordering::Relaxed);
            all.map(|()| text).map_err(|error| error.to_string())
        });
        let Ok(encoded) = timeout_at(deadline, encoded).await else {
            return busy(within);
        };
        match encoded.unwrap_or_else(|error| Err(error.to_string())) {
            Ok(text) => (StatusCode::OK, [(header::CONTENT_TYPE, OPENMETRICS)], text),
            Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, PLAIN, error),
        }
    };
    Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
}

/// Returned when the node's state stays locked too long.
fn busy(waited: Duration) -> (StatusCode, [(header::HeaderName, &'static str); 1], String) {
    let text = format!(
        "the node's state was not free for {} s: a call of kubelet's hangs; check the node's disks\n",
        waited.as_secs()
    );
    (StatusCode::SERVICE_UNAVAILABLE, PLAIN, text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus_client::collector::Collector;
    use prometheus_client::encoding::DescriptorEncoder;
    use std::sync::{Condvar, Mutex};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpListener, TcpStream};

    /// A source of figures that hangs until it is allowed to go on, and counts the threads that it has.
    #[derive(Clone, Debug, Default)]
    struct Hangs(Arc<(Mutex<(bool, usize)>, Condvar)>);

    impl Collector for Hangs {
        fn encode(&self, _: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
            let (state, changed) = &*self.0;
            let mut state = state.lock().expect("a lock");
            state.1 += 1;
            while !state.0 {
                state = changed.wait(state).expect("a lock");
            }
            Ok(())
        }
    }

    async fn status_of(address: std::net::SocketAddr, page: &str) -> String {
        let mut stream = TcpStream::connect(address).await.expect("a connection");
        let request = format!("GET {page} HTTP/1.1\r\nhost: node\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.expect("a request");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("an answer");
        answer.split(' ').nth(1).expect("a status").to_owned()
    }

    #[tokio::test]
    async fn scrapes_that_hang_are_refused_and_take_up_two_threads_at_most() {
        let hangs = Hangs::default();
        let mut registry = Registry::default();
        registry.register_collector(Box::new(hangs.clone()));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let pages = pages(Readiness::new(&[]), vec![registry], Duration::from_millis(50));
        tokio::spawn(async move { axum::serve(listener, pages).await });
        let mut seen = Vec::new();
        for _ in 0..4 {
            seen.push(status_of(address, "/metrics").await);
            seen.push(status_of(address, "/healthz").await);
        }
        // The threads end also if the test fails.
        let threads = {
            let mut state = hangs.0.0.lock().expect("a lock");
            state.0 = true;
            state.1
        };
        hangs.0.1.notify_all();
        assert_eq!(seen, ["503", "200"].repeat(4));
        assert_eq!(threads, 2);
        let mut answer = String::new();
        for _ in 0..100 {
            answer = status_of(address, "/metrics").await;
            if answer == "200" {
                break;
            }
        }
        assert_eq!(answer, "200");
    }
}
