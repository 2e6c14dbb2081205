//! A stand-in for a cluster's API server, on loopback.
#![allow(dead_code, reason = "each test program has the whole module")]

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Body;
use axum::http::{Request, Response};
use serde_json::{Value, json};

/// A server that answers until the test's process ends. An object that is created by POST is listed until it is
/// deleted, unless an answer for `POST PATH` is set.
pub(crate) struct Api {
    answers: Arc<Mutex<BTreeMap<String, (u16, String)>>>,
    users: Arc<Mutex<Vec<String>>>,
    created: Arc<Mutex<Created>>,
    folder: tempfile::TempDir,
}

impl Api {
    /// Answers 404 to each path. The context of its kubeconfig has the namespace `team`.
    pub(crate) fn start() -> Self {
        let answers: Arc<Mutex<BTreeMap<String, (u16, String)>>> = Arc::default();
        let users: Arc<Mutex<Vec<String>>> = Arc::default();
        let created: Arc<Mutex<Created>> = Arc::default();
        let (known, seen, kept) = (answers.clone(), users.clone(), created.clone());
        let router = Router::new().fallback(async move |request: Request<Body>| {
            let user = request
                .headers()
                .get("impersonate-user")
                .map(|user| user.to_str().unwrap().to_owned());
            seen.lock().unwrap().extend(user);
            let (path, method) = (request.uri().path().to_owned(), request.method().to_string());
            let body = axum::body::to_bytes(request.into_body(), 1 << 20).await.unwrap();
            let answer = {
                let known = known.lock().unwrap();
                let list = path.rsplit_once('/').map_or("", |(list, _)| list);
                let of_list = (method == "DELETE")
                    .then(|| known.get(&format!("DELETE {list}")))
                    .flatten();
                let set = known.get(&format!("{method} {path}")).or(of_list).cloned();
                set.or_else(|| kept.lock().unwrap().answer(&method, &path, &body))
                    .or_else(|| known.get(&path).cloned())
            };
            let (code, body) = answer.unwrap_or_else(|| status(404, "no such kind"));
            let mut response = Response::builder()
                .status(code)
                .header("content-type", "application/json");
            if let Some((_, date)) = known.lock().unwrap().get("date") {
                response = response.header("date", date);
            }
            response.body(Body::from(body)).unwrap()
        });
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                let listener = tokio::net::TcpListener::from_std(listener).unwrap();
                axum::serve(listener, router).await.unwrap();
            });
        });
        let folder = tempfile::tempdir().unwrap();
        let config = format!(
            r#"{{"apiVersion": "v1", "kind": "Config", "current-context": "here",
                "clusters": [{{"name": "c", "cluster": {{"server": "http://{address}"}}}}],
                "users": [{{"name": "u", "user": {{}}}}],
                "contexts": [{{"name": "here", "context": {{"cluster": "c", "user": "u", "namespace": "team"}}}},
                             {{"name": "other", "context": {{"cluster": "c", "user": "u", "namespace": "other"}}}}]}}"#
        );
        let api = Self {
            answers,
            users,
            created,
            folder,
        };
        std::fs::write(api.kubeconfig(), config).unwrap();
        api
    }

    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.folder.path().join("config")
    }

    /// Sets the answer of a path. `date` as the path sets the server's clock.
    pub(crate) fn set(&self, path: &str, body: impl Into<String>) {
        self.answers.lock().unwrap().insert(path.to_owned(), (200, body.into()));
    }

    pub(crate) fn refuse(&self, path: &str, code: u16) {
        self.answers.lock().unwrap().insert(path.to_owned(), status(code, "no"));
    }

    /// Answers a request by `METHOD PATH`, or by its path.
    pub(crate) fn answer(&self, request: &str, code: u16, message: &str) {
        self.answers
            .lock()
            .unwrap()
            .insert(request.to_owned(), status(code, message));
    }

    /// Refuses to delete anything in a list, with a missing right as the reason.
    pub(crate) fn refuse_deletes(&self, list: &str) {
        self.answer(&format!("DELETE {list}"), 403, "it cannot be");
    }

    /// From now on, all created objects get this status.
    pub(crate) fn set_status(&self, status: Value) {
        self.created.lock().unwrap().status = status;
    }

    /// The paths to which something was posted, and the objects that are left.
    pub(crate) fn created(&self) -> (Vec<String>, Vec<Value>) {
        let created = self.created.lock().unwrap();
        let paths = created.lists.keys().cloned().collect();
        (paths, created.lists.values().flatten().cloned().collect())
    }

    /// The users that requests acted as.
    pub(crate) fn users(&self) -> Vec<String> {
        self.users.lock().unwrap().clone()
    }
}

#[derive(Default)]
struct Created {
    lists: BTreeMap<String, Vec<Value>>,
    status: Value,
}

impl Created {
    fn answer(&mut self, method: &str, path: &str, body: &[u8]) -> Option<(u16, String)> {
        match method {
            "POST" => {
                let object: Value = serde_json::from_slice(body).unwrap();
                self.lists.entry(path.to_owned()).or_default().push(object.clone());
                Some((201, object.to_string()))
            }
            "DELETE" => {
                let (list, name) = path.rsplit_once('/').unwrap();
                let objects = self.lists.get_mut(list)?;
                objects.retain(|object| object["metadata"]["name"] != name);
                Some((200, "{}".to_owned()))
            }
            _ => {
                let mut objects = self.lists.get(path)?.clone();
                for object in &mut objects {
                    object["status"] = self.status.clone();
                    object["spec"]["nodeName"] = self.status["node"].clone();
                }
                Some((200, json!({"items": objects}).to_string()))
            }
        }
    }
}

fn status(code: u16, message: &str) -> (u16, String) {
    let body = format!(
        r#"{{"kind": "Status", "apiVersion": "v1", "metadata": {{}}, "status": "Failure", "message": "{message}",
            "reason": "Other", "code": {code}}}"#
    );
    (code, body)
}
