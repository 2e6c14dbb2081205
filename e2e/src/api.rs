//! Reads and creates objects on a cluster's API server, in this process.
//!
//! Tests read objects several times a second until they have the expected state, and starting kubectl takes a tenth of
//! a second of CPU time. So `Kube::get` sends requests itself if `Request::by_words` knows the words, and
//! `Kube::apply` if all objects are new and of `KINDS`; both start kubectl for everything else. Tests of kubectl's own
//! messages use kubectl (`Kube::try_apply`).
//!
//! Failure modes: if the server has closed the connection (it was restarted), the request is repeated once on a new
//! one, so an object may already exist. Every other failure is returned to the caller, with the server's own message.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;
use ureq::Agent;
use ureq::tls::{Certificate, ClientCert, PrivateKey, RootCerts, TlsConfig, TlsProvider};

use crate::cluster::State;
use crate::patience;

/// Limit of one request.
const REQUEST: Duration = Duration::from_secs(10);
/// Limit of a response in bytes. The largest list in a test has some thousand events.
const LARGEST: u64 = 256 << 20;

/// The administrator's connection to the API server of one cluster.
#[derive(Debug)]
pub(crate) struct Api {
    agent: Agent,
    server: String,
}

impl Api {
    pub(crate) fn of(state: &State) -> Result<Self> {
        let read =
            |file: std::path::PathBuf| fs::read(&file).with_context(|| format!("cannot read {}", file.display()));
        let kubeconfig: Value = serde_json::from_slice(&read(state.kubeconfig())?).context("a damaged kubeconfig")?;
        let server = kubeconfig["clusters"][0]["cluster"]["server"].as_str();
        let certificate =
            |file| Certificate::from_pem(&read(state.pki(file))?).with_context(|| format!("a damaged {file}"));
        let key = PrivateKey::from_pem(&read(state.pki("admin.key"))?).context("a damaged admin.key")?;
        let tls = TlsConfig::builder()
            .provider(TlsProvider::Rustls)
            .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .root_certs(RootCerts::new_with_certs(&[certificate("ca.crt")?]))
            .client_cert(Some(ClientCert::new_with_certs(&[certificate("admin.crt")?], key)))
            .build();
        let agent = Agent::config_builder()
            .tls_config(tls)
            .proxy(None)
            .http_status_as_error(false)
            .max_idle_connections_per_host(1) // so that the second attempt uses a new connection
            .timeout_global(Some(patience::stretched(REQUEST)))
            .build();
        Ok(Self {
            agent: agent.into(),
            server: server.context("a kubeconfig without a server")?.to_owned(),
        })
    }

    /// Sends a GET. If its status is not a success, the server's message is the error.
    pub(crate) fn text(&self, asked: &Request<'_>) -> Result<String> {
        let answer = self.answer(asked).or_else(|error| match error {
            ureq::Error::Timeout(_) => Err(error),
            _ => self.answer(asked),
        });
        match answer.with_context(|| format!("GET {}", asked.path))? {
            (status, text) if (200..300).contains(&status) => Ok(text),
            (status, text) => bail!("GET {}: {}", asked.path, refusal(status, &text)),
        }
    }

    fn answer(&self, asked: &Request<'_>) -> Result<(u16, String), ureq::Error> {
        let request = self.agent.get(format!("{}{}", self.server, asked.path));
        let mut answer = request.query_pairs(asked.query.iter().copied()).call()?;
        let text = answer
            .body_mut()
            .with_config()
            .limit(LARGEST)
            .lossy_utf8(true)
            .read_to_string()?;
        Ok((answer.status().as_u16(), text))
    }

    /// Creates an object, in `namespace` if the object names none.
    pub(crate) fn create(&self, namespace: &str, object: &Value) -> Result<Created> {
        let namespace = object["metadata"]["namespace"].as_str().unwrap_or(namespace);
        let Some(path) = collection(namespace, object) else {
            return Ok(Created::NotKnown);
        };
        let path = format!("{path}?fieldValidation=Strict");
        self.changed("POST", &path, Some(object)).map(|is_done| match is_done {
            true => Created::New,
            false => Created::Exists,
        })
    }

    /// Deletes an object without waiting for its end. Its absence is no error.
    pub(crate) fn delete(&self, asked: &Request<'_>) -> Result<()> {
        self.changed("DELETE", &asked.path, None).map(drop)
    }

    /// Returns false if a POST's object already exists, or a DELETE's object does not exist.
    fn changed(&self, verb: &str, path: &str, body: Option<&Value>) -> Result<bool> {
        let change = || {
            let url = format!("{}{path}", self.server);
            let mut answer = match body {
                Some(body) => self
                    .agent
                    .post(url)
                    .content_type("application/json")
                    .send(body.to_string().as_bytes())?,
                None => self.agent.delete(url).call()?,
            };
            let text = answer.body_mut().with_config().limit(LARGEST).read_to_string()?;
            Ok((answer.status().as_u16(), text))
        };
        let answer = change().or_else(|error| match error {
            ureq::Error::Timeout(_) => Err(error),
            _ => change(),
        });
        match answer.with_context(|| format!("{verb} {path}"))? {
            (status, _) if (200..300).contains(&status) => Ok(true),
            (409, text) if body.is_some() && text.contains("\"AlreadyExists\"") => Ok(false),
            (404, _) if body.is_none() => Ok(false),
            (status, text) => bail!("{}", refusal(status, &text)),
        }
    }

    /// Returns true if the node's kubelet reports, and reports ready.
    pub(crate) fn is_ready(&self, node: &str) -> Result<bool> {
        let found = self.json(&Request::raw(&format!("/api/v1/nodes/{node}")))?;
        let conditions = found["status"]["conditions"].as_array();
        let ready = conditions.and_then(|all| all.iter().find(|one| one["type"] == "Ready"));
        Ok(ready.is_some_and(|ready| ready["status"] == "True"))
    }

    /// An object or a list as `kubectl get -o json` prints it: each item of a list has its kind.
    pub(crate) fn json(&self, asked: &Request<'_>) -> Result<Value> {
        let text = self.text(asked)?;
        let mut found = serde_json::from_str(&text).with_context(|| format!("GET {}: no JSON", asked.path))?;
        name_items(&mut found);
        Ok(found)
    }
}

/// Formats the server's refusal as kubectl does.
fn refusal(status: u16, body: &str) -> String {
    let said: Value = serde_json::from_str(body).unwrap_or_default();
    match (said["reason"].as_str(), said["message"].as_str()) {
        (Some(reason), Some(message)) => format!("Error from server ({reason}): {message}"),
        _ => format!("status {status}: {body}"),
    }
}

/// The result of a creation.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Created {
    New,
    Exists,
    /// The kind is not in `KINDS`.
    NotKnown,
}

/// The path of the collection in which an object is created.
fn collection(namespace: &str, object: &Value) -> Option<String> {
    let (version, kind) = (object["apiVersion"].as_str()?, object["kind"].as_str()?);
    let group = match version {
        "v1" => "/api/v1".to_owned(),
        _ => format!("/apis/{version}"),
    };
    let word = kind.to_lowercase();
    let known = KINDS
        .iter()
        .find(|(words, of, ..)| words.contains(&&*word) && *of == group)?;
    let (_, _, plural, is_namespaced) = known;
    Some(match is_namespaced {
        true => format!("{group}/namespaces/{namespace}/{plural}"),
        false => format!("{group}/{plural}"),
    })
}

/// The objects in a text of manifests, with the items of Lists. None if kubectl must read it.
pub(crate) fn objects(manifests: &str) -> Option<Vec<Value>> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(manifests).ok()?;
    let mut all = Vec::new();
    for mut document in documents {
        match document["kind"].as_str() {
            Some("List") => all.extend(document["items"].as_array_mut().map(std::mem::take)?),
            Some(_) => all.push(document),
            None if document.is_null() => {}
            None => return None,
        }
    }
    Some(all)
}

fn name_items(list: &mut Value) {
    let version = list["apiVersion"].clone();
    let kind = list["kind"].as_str().and_then(|kind| kind.strip_suffix("List"));
    let kind = kind.map(Value::from);
    let items = list.get_mut("items").and_then(Value::as_array_mut);
    if let (Some(kind), Some(items)) = (kind, items) {
        for item in items {
            item["apiVersion"] = version.clone();
            item["kind"] = kind.clone();
        }
    }
}

/// Kinds: kubectl's words, path, and whether objects are in a namespace.
const KINDS: [(&[&str], &str, &str, bool); 16] = [
    (&["pod", "pods"], "/api/v1", "pods", true),
    (&["event", "events"], "/api/v1", "events", true),
    (&["secret", "secrets"], "/api/v1", "secrets", true),
    (&["serviceaccount"], "/api/v1", "serviceaccounts", true),
    (&["configmap", "configmaps"], "/api/v1", "configmaps", true),
    (&["resourcequota", "resourcequotas"], "/api/v1", "resourcequotas", true),
    (&["namespace", "namespaces"], "/api/v1", "namespaces", false),
    (&["node", "nodes"], "/api/v1", "nodes", false),
    (&["resourceclaim", "resourceclaims"], RESOURCE, "resourceclaims", true),
    (
        &["resourceclaimtemplate", "resourceclaimtemplates"],
        RESOURCE,
        "resourceclaimtemplates",
        true,
    ),
    (&["resourceslice", "resourceslices"], RESOURCE, "resourceslices", false),
    (&["deviceclass", "deviceclasses"], RESOURCE, "deviceclasses", false),
    (&["lease"], "/apis/coordination.k8s.io/v1", "leases", true),
    (&["deployment", "deployments"], "/apis/apps/v1", "deployments", true),
    (&["job", "jobs"], "/apis/batch/v1", "jobs", true),
    (&["vgpuquota"], "/apis/dra.vgpu/v1alpha1", "vgpuquotas", true),
];
const RESOURCE: &str = "/apis/resource.k8s.io/v1";

/// A GET request: path and query parameters.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Request<'a> {
    path: String,
    query: Vec<(&'static str, &'a str)>,
}

impl<'a> Request<'a> {
    /// A path as `kubectl get --raw` takes it.
    pub(crate) fn raw(path: &str) -> Self {
        Self {
            path: path.to_owned(),
            query: Vec::new(),
        }
    }

    /// The request that `kubectl get -o json` would send for these arguments: KIND [NAME], or KIND with selectors of
    /// labels or fields. None for other arguments.
    pub(crate) fn by_words(namespace: &str, words: &[&'a str]) -> Option<Self> {
        let (kind, mut more) = words.split_first()?;
        let (_, group, plural, is_namespaced) = KINDS.iter().find(|(words, ..)| words.contains(kind))?;
        let mut path = match is_namespaced {
            true => format!("{group}/namespaces/{namespace}/{plural}"),
            false => format!("{group}/{plural}"),
        };
        if let [name, rest @ ..] = more
            && !name.starts_with('-')
        {
            path = format!("{path}/{name}");
            more = rest;
        }
        let mut query = Vec::new();
        while let Some((word, rest)) = more.split_first() {
            let (option, value, rest) = match word.split_once('=') {
                Some((option, value)) => (option, value, rest),
                None => rest.split_first().map(|(value, rest)| (*word, *value, rest))?,
            };
            let parameter = match option {
                "-l" | "--selector" => "labelSelector",
                "--field-selector" => "fieldSelector",
                _ => return None,
            };
            query.push((parameter, value));
            more = rest;
        }
        Some(Self { path, query })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn words_of_kubectl_are_requests() {
        for (words, path, query) in [
            (&["pods"][..], "/api/v1/namespaces/ns/pods", &[][..]),
            (&["pod", "a"], "/api/v1/namespaces/ns/pods/a", &[]),
            (&["resourceslices"], "/apis/resource.k8s.io/v1/resourceslices", &[]),
            (&["namespace", "ns"], "/api/v1/namespaces/ns", &[]),
            (
                &["lease", "l"],
                "/apis/coordination.k8s.io/v1/namespaces/ns/leases/l",
                &[],
            ),
            (
                &["pods", "-l", "a=b", "--field-selector=status.phase=Running"],
                "/api/v1/namespaces/ns/pods",
                &[("labelSelector", "a=b"), ("fieldSelector", "status.phase=Running")],
            ),
            (
                &["events", "--field-selector", "involvedObject.name=p,reason=R"],
                "/api/v1/namespaces/ns/events",
                &[("fieldSelector", "involvedObject.name=p,reason=R")],
            ),
        ] {
            let wanted = Request {
                path: path.to_owned(),
                query: query.to_vec(),
            };
            assert_eq!(Request::by_words("ns", words), Some(wanted), "{words:?}");
        }
    }

    #[test]
    fn other_words_are_left_to_kubectl() {
        for words in [
            &[][..],
            &["daemonset/x"],
            &["crd", "x"],
            &["pods", "-n", "other"],
            &["pods", "-l"],
            &["pods", "a", "b"],
            &["pod", "a", "--ignore-not-found"],
        ] {
            assert_eq!(Request::by_words("ns", words), None, "{words:?}");
        }
    }

    #[test]
    fn objects_are_created_where_their_kind_is() {
        let of = |version: &str, kind: &str| collection("ns", &json!({"apiVersion": version, "kind": kind}));
        assert_eq!(of("v1", "Pod").as_deref(), Some("/api/v1/namespaces/ns/pods"));
        assert_eq!(of("v1", "Node").as_deref(), Some("/api/v1/nodes"));
        let templates = "/apis/resource.k8s.io/v1/namespaces/ns/resourceclaimtemplates";
        assert_eq!(
            of("resource.k8s.io/v1", "ResourceClaimTemplate").as_deref(),
            Some(templates)
        );
        for (version, kind) in [
            ("resource.k8s.io/v1beta1", "ResourceClaim"),
            ("v1", "Pods.x"),
            ("v1", "Binding"),
        ] {
            assert_eq!(of(version, kind), None, "{version} {kind}");
        }
    }

    #[test]
    fn manifests_are_read_one_by_one() {
        let text = "---\nkind: A\n---\n{\"kind\": \"List\", \"items\": [{\"kind\": \"B\"}, {\"kind\": \"C\"}]}\n---\n";
        let kinds: Vec<Value> = objects(text)
            .expect("objects")
            .iter()
            .map(|one| one["kind"].clone())
            .collect();
        assert_eq!(kinds, ["A", "B", "C"]);
        for text in ["kind: [", "a: b", "{\"kind\": \"List\"}"] {
            assert_eq!(objects(text), None, "{text}");
        }
    }

    #[test]
    fn items_of_a_list_say_what_they_are() {
        let mut list = json!({"kind": "PodList", "apiVersion": "v1", "items": [{"metadata": {"name": "a"}}]});
        name_items(&mut list);
        assert_eq!(
            list["items"][0],
            json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "a"}})
        );
        let pod = json!({"kind": "Pod", "apiVersion": "v1"});
        let mut same = pod.clone();
        name_items(&mut same);
        assert_eq!(same, pod);
    }

    #[test]
    fn a_refusal_is_the_servers_message() {
        let status = json!({"kind": "Status", "reason": "NotFound", "message": "pods \"a\" not found"}).to_string();
        assert_eq!(
            refusal(404, &status),
            "Error from server (NotFound): pods \"a\" not found"
        );
        assert_eq!(refusal(502, "gone"), "status 502: gone");
    }
}
