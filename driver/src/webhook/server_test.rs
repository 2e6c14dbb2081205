//! The server over real TLS: answers, refusals, limits, and a certificate that changes.

use std::net::SocketAddr;
use std::sync::Arc;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream as ClientStream;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use super::*;
use crate::metrics::Metrics;
use crate::webhook::certificate::{Pair, issue};

const HOST: &str = "x-webhook.n.svc";

/// Long limits, so that no test fails on a busy machine.
const PATIENT: Limits = Limits {
    body: 64 << 10,
    body_timeout: Duration::from_secs(600),
    handshake_timeout: Duration::from_secs(600),
};

fn pair() -> Pair {
    let now = k8s_openapi::jiff::Timestamp::now().as_second();
    issue(HOST, now).unwrap()
}

struct World {
    address: SocketAddr,
    served: Arc<Served>,
    ends: watch::Sender<bool>,
}

impl World {
    fn new(limits: Limits) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let served = Arc::new(Served::default());
        let (ends, ending) = watch::channel(false);
        let mut reviewer = Reviewer::new(Settings::default(), Mode::Translate, Metrics::new().reviews.clone());
        reviewer.limits = limits;
        start(listener, acceptor(served.clone()).unwrap(), reviewer, ending).unwrap();
        Self { address, served, ends }
    }

    fn serving(pair: &Pair) -> Self {
        Self::with(pair, PATIENT)
    }

    fn with(pair: &Pair, limits: Limits) -> Self {
        let world = Self::new(limits);
        world.served.set(pair.certified().unwrap());
        world
    }

    /// Connects like the API server: trusts only this authority, and uses the Service's name.
    async fn connect(&self, authority: &str) -> std::io::Result<ClientStream<TcpStream>> {
        let mut roots = RootCertStore::empty();
        roots
            .add(CertificateDer::from_pem_slice(authority.as_bytes()).unwrap())
            .unwrap();
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let stream = TcpStream::connect(self.address).await?;
        TlsConnector::from(Arc::new(config))
            .connect(ServerName::try_from(HOST).unwrap(), stream)
            .await
    }
}

/// Sends one request. Returns the status and the body.
async fn send(stream: &mut ClientStream<TcpStream>, head: &str, body: &[u8]) -> (u16, String) {
    let request = format!(
        "{head} HTTP/1.1\r\nhost: {HOST}\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    // The server may answer before it has read everything.
    let _ = stream.write_all(body).await;
    answer_of(stream).await
}

async fn answer_of(stream: &mut ClientStream<TcpStream>) -> (u16, String) {
    let mut text = String::new();
    let mut buffer = [0; 4096];
    loop {
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            if length.is_some_and(|length| body.len() >= length.parse().unwrap()) {
                let status = head.split(' ').nth(1).unwrap().parse().unwrap();
                return (status, body.to_owned());
            }
        }
        let read = stream.read(&mut buffer).await.unwrap();
        assert_ne!(read, 0, "the connection was closed: {text}");
        text.push_str(std::str::from_utf8(&buffer[..read]).unwrap());
    }
}

fn question() -> Vec<u8> {
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
        "uid": "u-1", "operation": "CREATE", "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "object": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [
            {"name": "main", "resources": {"limits": {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000"}}}]}}}})
    .to_string()
    .into_bytes()
}

#[tokio::test]
async fn a_review_is_answered_over_tls_and_the_connection_stays() {
    let pair = pair();
    let world = World::serving(&pair);
    let mut stream = world.connect(&pair.authority).await.unwrap();
    for _ in 0..2 {
        let (status, body) = send(&mut stream, "POST /translate?timeout=5s", &question()).await;
        assert_eq!(status, 200, "{body}");
        let body: Value = serde_json::from_str(&body).unwrap();
        assert_eq!(body["response"]["uid"], "u-1");
        assert!(body["response"]["patch"].is_string(), "{body}");
    }
}

#[tokio::test]
async fn what_cannot_be_answered_gets_a_status_and_a_text() {
    let pair = pair();
    let world = World::serving(&pair);
    let mut stream = world.connect(&pair.authority).await.unwrap();
    let (status, text) = send(&mut stream, "POST /translate", b"{").await;
    assert_eq!(status, 400);
    assert!(text.starts_with("the body is not an AdmissionReview"), "{text}");
    let (status, _) = send(&mut stream, "GET /translate", b"").await;
    assert_eq!(status, 405);
    let (status, _) = send(&mut stream, "POST /other", b"{}").await;
    assert_eq!(status, 404);
}

#[tokio::test]
async fn a_body_that_is_too_large_is_refused() {
    let pair = pair();
    let world = World::serving(&pair);
    let mut stream = world.connect(&pair.authority).await.unwrap();
    let (status, text) = send(&mut stream, "POST /translate", &vec![b' '; PATIENT.body + 1]).await;
    assert_eq!(status, 413);
    assert!(text.contains("65536 bytes"), "{text}");
    let mut fits = question();
    fits.resize(PATIENT.body, b' ');
    let mut stream = world.connect(&pair.authority).await.unwrap();
    let (status, text) = send(&mut stream, "POST /translate", &fits).await;
    assert_eq!(status, 200, "{text}");
}

#[tokio::test]
async fn a_body_that_does_not_come_is_not_waited_for() {
    let pair = pair();
    let impatient = Limits {
        body_timeout: Duration::from_millis(20),
        ..PATIENT
    };
    let world = World::with(&pair, impatient);
    let mut stream = world.connect(&pair.authority).await.unwrap();
    let head = format!("POST /translate HTTP/1.1\r\nhost: {HOST}\r\ncontent-length: 100\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    let (status, text) = answer_of(&mut stream).await;
    assert_eq!(status, 408);
    assert!(text.starts_with("the body did not come within 20ms"), "{text}");
}

#[tokio::test]
async fn without_a_certificate_and_with_an_untrusted_one_no_connection_comes_about() {
    let (own, other) = (pair(), pair());
    let world = World::new(PATIENT);
    assert!(world.connect(&own.authority).await.is_err());
    world.served.set(other.certified().unwrap());
    assert!(world.connect(&own.authority).await.is_err());
    world.connect(&other.authority).await.unwrap();
}

#[tokio::test]
async fn a_new_certificate_is_shown_without_a_restart_and_open_connections_go_on() {
    let (old, new) = (pair(), pair());
    let world = World::serving(&old);
    let mut open = world.connect(&old.authority).await.unwrap();
    assert_eq!(send(&mut open, "POST /translate", &question()).await.0, 200);
    world.served.set(new.certified().unwrap());
    assert!(world.connect(&old.authority).await.is_err());
    let mut fresh = world.connect(&new.authority).await.unwrap();
    assert_eq!(send(&mut fresh, "POST /translate", &question()).await.0, 200);
    assert_eq!(send(&mut open, "POST /translate", &question()).await.0, 200);
}

#[tokio::test]
async fn a_replica_that_ends_closes_connections_in_order_and_answers_new_ones_once() {
    let pair = pair();
    let world = World::serving(&pair);
    let mut idle = world.connect(&pair.authority).await.unwrap();
    assert_eq!(send(&mut idle, "POST /translate", &question()).await.0, 200);
    world.ends.send_replace(true);
    let mut rest = Vec::new();
    // An idle connection is closed with TLS' own farewell: without it this is an error.
    idle.read_to_end(&mut rest).await.unwrap();
    assert_eq!(rest, b"");
    let mut late = world.connect(&pair.authority).await.unwrap();
    assert_eq!(send(&mut late, "POST /translate", &question()).await.0, 200);
    late.read_to_end(&mut rest).await.unwrap();
    assert_eq!(rest, b"");
}
