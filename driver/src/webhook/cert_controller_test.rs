//! Reads and writes against a stand-in API server that keeps versions and refuses old ones.

use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::{Body as Bytes, to_bytes};
use axum::http::{Request, Response};
use serde_json::{Value, json};

use super::*;

const SECRET: &str = "/api/v1/namespaces/n/secrets/x-webhook";
const CONFIGURATION: &str = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/x-webhook";

/// The two objects, and the requests.
#[derive(Debug, Default)]
struct Objects {
    secret: Option<Value>,
    configuration: Value,
    version: u64,
    date: Option<&'static str>,
    asked: Vec<String>,
}

impl Objects {
    fn answer(&mut self, method: &str, path: &str, body: Value) -> (u16, Value) {
        self.asked.push(format!("{method} {path}"));
        let conflict = || {
            (
                409,
                json!({"kind": "Status", "code": 409, "reason": "Conflict", "message": "old"}),
            )
        };
        match (method, path) {
            ("GET", SECRET) => match &self.secret {
                Some(secret) => (200, secret.clone()),
                None => (404, json!({"kind": "Status", "code": 404, "reason": "NotFound"})),
            },
            ("GET", CONFIGURATION) => (200, self.configuration.clone()),
            ("POST", "/api/v1/namespaces/n/secrets") if self.secret.is_none() => self.keep(body),
            ("PUT", SECRET) => {
                let old = self
                    .secret
                    .as_ref()
                    .map(|secret| &secret["metadata"]["resourceVersion"]);
                if old != Some(&body["metadata"]["resourceVersion"]) {
                    return conflict();
                }
                self.keep(body)
            }
            ("PATCH", CONFIGURATION) => {
                let now = &self.configuration["metadata"];
                let precondition = &body["metadata"];
                if (&now["uid"], &now["resourceVersion"]) != (&precondition["uid"], &precondition["resourceVersion"]) {
                    return conflict();
                }
                self.version += 1;
                self.configuration["metadata"]["resourceVersion"] = self.version.to_string().into();
                assert_eq!(body["webhooks"][0]["name"], WEBHOOK);
                self.configuration["webhooks"][1]["clientConfig"]["caBundle"] =
                    body["webhooks"][0]["clientConfig"]["caBundle"].clone();
                (200, self.configuration.clone())
            }
            _ => conflict(),
        }
    }

    fn keep(&mut self, mut secret: Value) -> (u16, Value) {
        self.version += 1;
        secret["metadata"]["resourceVersion"] = self.version.to_string().into();
        self.secret = Some(secret.clone());
        (200, secret)
    }

    fn bundle(&self) -> Vec<Authority> {
        bundle(&serde_json::from_value(self.configuration.clone()).unwrap()).unwrap()
    }

    fn current(&self) -> Authority {
        let secret: Secret = serde_json::from_value(self.secret.clone().unwrap()).unwrap();
        secret::current(&secret)
            .expect("in use")
            .authority("x-webhook.n.svc")
            .unwrap()
    }
}

/// A webhook of somebody else is in the same configuration, before ours.
fn world() -> (Arc<Mutex<Objects>>, CertController) {
    let webhook = |name: &str| {
        json!({"name": name, "admissionReviewVersions": ["v1"], "sideEffects": "None",
            "clientConfig": {"service": {"name": "x-webhook", "namespace": "n"}}})
    };
    let objects = Arc::new(Mutex::new(Objects {
        configuration: json!({"metadata": {"name": "x-webhook", "uid": "u", "resourceVersion": "1"},
            "webhooks": [webhook("other.example"), webhook(WEBHOOK)]}),
        version: 1,
        date: Some("Mon, 23 Nov 2026 23:19:55 GMT"),
        ..Objects::default()
    }));
    let own = objects.clone();
    let router = Router::new().fallback(async move |request: Request<Bytes>| {
        let (method, path) = (request.method().to_string(), request.uri().path().to_owned());
        let body = to_bytes(request.into_body(), usize::MAX).await.unwrap();
        let mut objects = own.lock().unwrap();
        let (code, body) = objects.answer(&method, &path, serde_json::from_slice(&body).unwrap_or_default());
        let mut response = Response::builder()
            .status(code)
            .header("content-type", "application/json");
        if let Some(date) = objects.date {
            response = response.header("date", date);
        }
        response.body(Bytes::from(body.to_string())).unwrap()
    });
    let names = Names {
        namespace: "n".into(),
        name: "x-webhook".into(),
    };
    let term = watch::channel(None).1;
    (
        objects,
        CertController::new(Client::new(router, "default"), names, term, Arc::default()),
    )
}

#[tokio::test]
async fn from_nothing_to_a_trusted_certificate_in_three_writes() {
    let (objects, mut controller) = world();
    assert_eq!(controller.turn(Role::Leader).await.unwrap(), Step::Issue);
    assert_eq!(objects.lock().unwrap().bundle(), []);
    assert!(matches!(controller.turn(Role::Leader).await.unwrap(), Step::Trust(_)));
    assert_eq!(controller.turn(Role::Leader).await.unwrap(), Step::Promote);
    assert_eq!(controller.turn(Role::Leader).await.unwrap(), Step::Wait);
    let objects = objects.lock().unwrap();
    assert_eq!(objects.bundle(), [objects.current()]);
    // The time of the API server's clock, whatever this machine's clock says.
    let now = seconds("Mon, 23 Nov 2026 23:19:55 GMT").unwrap();
    assert_eq!(now, 1_795_475_995);
    assert_eq!(objects.current().from, now - 86_400);
    assert!(objects.configuration["webhooks"][0]["clientConfig"]["caBundle"].is_null());
    let writes: Vec<&String> = objects.asked.iter().filter(|asked| !asked.starts_with("GET")).collect();
    assert_eq!(
        writes,
        [
            "POST /api/v1/namespaces/n/secrets",
            &format!("PATCH {CONFIGURATION}"),
            &format!("PUT {SECRET}")
        ]
    );
}

#[tokio::test]
async fn a_damaged_secret_is_replaced_and_keeps_its_metadata() {
    let (objects, mut controller) = world();
    let damaged = json!({"metadata": {"name": "x-webhook", "labels": {"a": "b"}},
        "data": {"ca.crt": "AAAA", "tls.crt": "AAAA", "tls.key": "AAAA"}});
    objects.lock().unwrap().keep(damaged);
    while controller.turn(Role::Leader).await.unwrap() != Step::Wait {}
    let objects = objects.lock().unwrap();
    assert_eq!(objects.bundle(), [objects.current()]);
    assert_eq!(objects.secret.as_ref().unwrap()["metadata"]["labels"]["a"], "b");
}

#[tokio::test]
async fn of_two_leaders_the_late_write_is_refused() {
    let (objects, mut controller) = world();
    let (secret, _) = controller.secret().await.unwrap();
    let configuration = controller.configuration().await.unwrap();
    while controller.turn(Role::Leader).await.unwrap() != Step::Wait {}
    let before = objects.lock().unwrap().bundle();
    let pair = certificate::issue("x-webhook.n.svc", 1_795_475_995).unwrap();
    for late in [
        controller.store(secret::with_next(secret, "x-webhook", &pair)).await,
        controller.trust(&configuration, &[]).await,
    ] {
        let Err(Failure::Kube(kube::Error::Api(status))) = late else {
            panic!("{late:?}");
        };
        assert_eq!(status.code, 409);
    }
    assert_eq!(objects.lock().unwrap().bundle(), before);
}

#[tokio::test]
async fn without_the_api_servers_time_or_the_webhook_nothing_is_written() {
    let (objects, mut controller) = world();
    objects.lock().unwrap().date = None;
    assert!(matches!(controller.turn(Role::Leader).await, Err(Failure::NoDate)));
    objects.lock().unwrap().date = Some("yesterday");
    assert!(matches!(controller.turn(Role::Leader).await, Err(Failure::NoDate)));
    objects.lock().unwrap().date = Some("Mon, 23 Nov 2026 23:19:55 GMT");
    objects.lock().unwrap().configuration["webhooks"] = json!([]);
    let error = controller.turn(Role::Leader).await.unwrap_err().to_string();
    assert!(
        error.contains("x-webhook has no webhook pods.translate.dra.vgpu"),
        "{error}"
    );
    let objects = objects.lock().unwrap();
    assert!(
        objects.asked.iter().all(|asked| asked.starts_with("GET")),
        "{:?}",
        objects.asked
    );
}

#[tokio::test]
async fn with_a_certificate_only_the_leader_looks_and_writes() {
    let (objects, mut controller) = world();
    let pair = certificate::issue("x-webhook.n.svc", 1_795_475_995).unwrap();
    controller.served.set(pair.certified().unwrap());
    let (terms, term) = watch::channel(None);
    controller.term = term;
    let running = tokio::spawn(controller.run());
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert_eq!(objects.lock().unwrap().asked, Vec::<String>::new());
    terms.send_replace(Some(Term {
        epoch: "e".into(),
        until: vgpu_planner::Time::default(),
    }));
    until_in_use(&objects).await;
    running.abort();
}

async fn until_in_use(objects: &Mutex<Objects>) {
    let in_use = || {
        let secret: Secret = serde_json::from_value(objects.lock().unwrap().secret.clone()?).ok()?;
        secret::current(&secret)
    };
    let made = async {
        while in_use().is_none() {
            tokio::task::yield_now().await;
        }
    };
    let limit = Duration::from_secs(60);
    tokio::time::timeout(limit, made).await.expect("a pair in use");
}

/// `translate.dialects` is switched on: the leader is an old pod, which ends only once this replica is ready.
#[tokio::test]
async fn a_replica_without_a_certificate_makes_the_first_pair_while_another_leads() {
    let (objects, mut controller) = world();
    let (_terms, term) = watch::channel(None);
    controller.term = term;
    let served = controller.served.clone();
    let running = tokio::spawn(controller.run());
    until_in_use(&objects).await;
    {
        let objects = objects.lock().unwrap();
        assert_eq!(objects.bundle(), [objects.current()], "trusted before it is in use");
    }
    assert!(served.shown().is_none(), "the watch of the Secret loads it");
    running.abort();
}

#[tokio::test]
async fn of_replicas_that_start_together_one_makes_the_pair() {
    let (objects, mut one) = world();
    let (client, names) = (one.client.clone(), one.names.clone());
    let mut two = CertController::new(client, names, watch::channel(None).1, Arc::default());
    for _ in 0..4 {
        for controller in [&mut one, &mut two] {
            controller.turn(Role::Starter).await.unwrap();
        }
    }
    let objects = objects.lock().unwrap();
    assert_eq!(objects.bundle(), [objects.current()]);
    let issued = objects.asked.iter().filter(|asked| asked.starts_with("POST")).count();
    assert_eq!(issued, 1);
}

/// Older replicas serve with this pair: only the leader replaces it, or repairs the caBundle.
#[tokio::test]
async fn a_replica_that_starts_leaves_a_pair_in_use_alone() {
    let (objects, mut controller) = world();
    while controller.turn(Role::Leader).await.unwrap() != Step::Wait {}
    let asked = objects.lock().unwrap().asked.len();
    objects.lock().unwrap().configuration["webhooks"][1]["clientConfig"]["caBundle"] = Value::Null;
    assert_eq!(controller.turn(Role::Starter).await.unwrap(), Step::Wait);
    let objects = objects.lock().unwrap();
    assert_eq!(objects.asked[asked..], [format!("GET {SECRET}")]);
}
