//! A stand-in for the API server, for tests: it gives prepared answers in turn, and records the requests.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{Request, Response};
use kube::Client;
use serde_json::{Value, json};

/// Method, path with query, body.
pub(crate) type Sent = (String, String, Value);

/// The requests that the stand-in was sent.
#[derive(Clone, Default)]
pub(crate) struct Server(Arc<Mutex<Vec<Sent>>>);

impl Server {
    /// After the last of these answers it no longer answers.
    pub(crate) fn answering(answers: impl IntoIterator<Item = (u16, Value)>) -> (Self, Client) {
        let server = Self::default();
        let answers: Mutex<VecDeque<(u16, Value)>> = Mutex::new(answers.into_iter().collect());
        let (own, answers) = (server.clone(), Arc::new(answers));
        let router = Router::new().fallback(async move |request: Request<Body>| {
            let sent = parts(request).await;
            own.0.lock().unwrap().push(sent);
            let next = answers.lock().unwrap().pop_front();
            match next {
                Some((code, body)) => response(code, &body),
                None => std::future::pending().await,
            }
        });
        (server, Client::new(router, "default"))
    }

    pub(crate) fn sent(&self) -> Vec<Sent> {
        self.0.lock().unwrap().clone()
    }

    /// The method and the path of a request, without its query.
    pub(crate) fn line(&self, at: usize) -> String {
        let (method, path, _) = &self.sent()[at];
        format!("{method} {}", path.split('?').next().unwrap())
    }

    pub(crate) fn body(&self, at: usize) -> Value {
        self.sent()[at].2.clone()
    }
}

pub(crate) async fn parts(request: Request<Body>) -> Sent {
    let method = request.method().to_string();
    let path = request.uri().path_and_query().unwrap().to_string();
    let body = to_bytes(request.into_body(), usize::MAX).await.unwrap();
    (method, path, serde_json::from_slice(&body).unwrap_or_default())
}

pub(crate) fn response(code: u16, body: &Value) -> Response<Body> {
    let response = Response::builder()
        .status(code)
        .header("content-type", "application/json");
    response.body(Body::from(body.to_string())).unwrap()
}

/// A failure with this message.
pub(crate) fn status(code: u16, message: &str) -> (u16, Value) {
    let reason = if code == 404 { "NotFound" } else { "Other" };
    let body = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": reason, "code": code});
    (code, body)
}
