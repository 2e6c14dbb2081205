//! The client beside a server of TLS, with and without HTTP/2.

use super::*;
use crate::api::{Claims as _, Cluster};
use futures::future::join_all;
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use hyper_util::server::conn::auto;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

/// An API server with one claim.
struct Server {
    connections: Arc<AtomicUsize>,
    /// Ends the connections that are open.
    cut: watch::Sender<u32>,
    config: Config,
}

impl Server {
    async fn with(protocols: &[&[u8]]) -> Self {
        let name = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).expect("a certificate");
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(name.signing_key.serialize_der()));
        let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
        let tls = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(vec![name.cert.der().clone()], key);
        let mut tls = tls.expect("a server");
        tls.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
        let acceptor = TlsAcceptor::from(Arc::new(tls));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let (cut, cuts) = watch::channel(0);
        let connections = Arc::new(AtomicUsize::new(0));
        let count = connections.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                count.fetch_add(1, Ordering::SeqCst);
                let (acceptor, mut cuts) = (acceptor.clone(), cuts.clone());
                cuts.mark_unchanged();
                tokio::spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else {
                        return;
                    };
                    let service = hyper::service::service_fn(answer);
                    let server = auto::Builder::new(TokioExecutor::new());
                    tokio::select! {
                        _ = server.serve_connection(TokioIo::new(stream), service) => {}
                        _ = cuts.changed() => {}
                    }
                });
            }
        });
        let url = format!("https://localhost:{port}").parse().expect("a URL");
        let mut config = Config::new(url);
        config.root_cert = Some(vec![name.cert.der().to_vec()]);
        Self {
            connections,
            cut,
            config,
        }
    }

    fn cluster(&self) -> Cluster {
        Cluster::new(client(self.config.clone()).expect("a client"), "n1".into())
    }

    fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

async fn answer(request: http::Request<Incoming>) -> Result<http::Response<String>, Infallible> {
    tokio::time::sleep(Duration::from_millis(20)).await;
    let name = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
    let text = format!(r#"{{"metadata": {{"name": "{name}"}}, "spec": {{}}}}"#);
    Ok(http::Response::new(text))
}

async fn get(cluster: &Cluster, name: &str) -> Result<String, String> {
    let found = cluster.get("d", name).await.map_err(|error| error.to_string())?;
    found
        .and_then(|claim| claim.metadata.name)
        .ok_or_else(|| "none".to_owned())
}

#[tokio::test]
async fn a_hundred_requests_at_once_make_no_new_connection() {
    let server = Server::with(&[b"h2", b"http/1.1"]).await;
    let cluster = server.cluster();
    assert_eq!(get(&cluster, "first").await, Ok("first".to_owned()));
    let names: Vec<String> = (0..100).map(|n| format!("claim-{n}")).collect();
    let found = join_all(names.iter().map(|name| get(&cluster, name))).await;
    assert!(found.into_iter().map(Result::unwrap).eq(names));
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn one_that_is_lost_is_made_again() {
    let server = Server::with(&[b"h2"]).await;
    let cluster = server.cluster();
    assert!(get(&cluster, "first").await.is_ok());
    server.cut.send_modify(|cuts| *cuts += 1);
    // Requests in flight may fail; later requests must not.
    while server.connections() < 2 {
        let _ = get(&cluster, "second").await;
    }
    assert_eq!(get(&cluster, "third").await, Ok("third".to_owned()));
}

#[tokio::test]
async fn a_server_without_http_2_is_spoken_to_as_before() {
    for protocols in [vec![b"http/1.1".as_slice()], Vec::new()] {
        let server = Server::with(&protocols).await;
        let cluster = server.cluster();
        let found = join_all((0..20).map(|_| get(&cluster, "claim"))).await;
        assert!(found.iter().all(Result::is_ok), "{found:?}");
        assert!(server.connections() > 1);
    }
}

#[tokio::test]
async fn a_server_that_is_not_the_api_server_is_refused() {
    let server = Server::with(&[b"h2"]).await;
    let other = Server::with(&[b"h2"]).await;
    let mut config = server.config.clone();
    config.root_cert = other.config.root_cert.clone();
    let cluster = Cluster::new(client(config).expect("a client"), "n1".into());
    let error = get(&cluster, "claim").await.expect_err("refused");
    assert!(error.contains("certificate"), "{error}");
}
