//! Reads objects from a cluster's API server, with kubectl's kubeconfig, contexts and credentials. Only `doctor --probe`
//! creates and deletes some there.
//!
//! ```text
//!  ClusterFlags ─► kubeconfig, or a pod's service account ─► Cluster ─► lists, all at once ─► JSON
//! ```
//!
//! How it fails: each list has its own answer, so a missing right costs one list and its error names the right. A server
//! that cannot be reached, or that refuses the login, is the error of every list; the caller stops at the first.

use std::error::Error as _;
use std::time::Duration;

use futures::future::join_all;
use http_body_util::{BodyExt as _, Limited};
use kube::client::{AuthError, Body};
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};
use serde_json::Value;
use tokio::runtime::Runtime;

use crate::flags::ClusterFlags;

/// Time limits of the connection, and of each answer.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// For pages other than lists: the time until the whole answer, and its size in bytes.
const PAGE_TIMEOUT: Duration = Duration::from_secs(5);
const PAGE_MAX: usize = 64 << 10;

/// A kind of objects, as the API server's paths name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Kind {
    /// Empty for the core group.
    group: &'static str,
    version: &'static str,
    pub(crate) plural: &'static str,
}

impl Kind {
    fn path(self, namespace: Option<&str>) -> String {
        let Self { group, version, plural } = self;
        let root = if group.is_empty() { "/api" } else { "/apis/" };
        let within = namespace.map_or_else(String::new, |namespace| format!("namespaces/{namespace}/"));
        format!("{root}{group}/{version}/{within}{plural}")
    }

    /// Returns what a right allows in words, such as `list pods in namespace team`.
    fn action(self, verb: &str, namespace: Option<&str>) -> String {
        let Self { group, plural, .. } = self;
        let dot = if group.is_empty() { "" } else { "." };
        match namespace {
            Some(namespace) => format!("{verb} {plural}{dot}{group} in namespace {namespace}"),
            None => format!("{verb} {plural}{dot}{group} in all namespaces"),
        }
    }
}

const fn kind(group: &'static str, version: &'static str, plural: &'static str) -> Kind {
    Kind { group, version, plural }
}

pub(crate) const NODES: Kind = kind("", "v1", "nodes");
pub(crate) const PODS: Kind = kind("", "v1", "pods");
pub(crate) const EVENTS: Kind = kind("events.k8s.io", "v1", "events");
pub(crate) const NAMESPACES: Kind = kind("", "v1", "namespaces");
pub(crate) const DAEMON_SETS: Kind = kind("apps", "v1", "daemonsets");
pub(crate) const DEPLOYMENTS: Kind = kind("apps", "v1", "deployments");
pub(crate) const REPLICA_SETS: Kind = kind("apps", "v1", "replicasets");
pub(crate) const STATEFUL_SETS: Kind = kind("apps", "v1", "statefulsets");
pub(crate) const JOBS: Kind = kind("batch", "v1", "jobs");
pub(crate) const CRON_JOBS: Kind = kind("batch", "v1", "cronjobs");
pub(crate) const LEASES: Kind = kind("coordination.k8s.io", "v1", "leases");
pub(crate) const POLICIES: Kind = kind("admissionregistration.k8s.io", "v1", "validatingadmissionpolicies");
pub(crate) const BINDINGS: Kind = kind(
    "admissionregistration.k8s.io",
    "v1",
    "validatingadmissionpolicybindings",
);
pub(crate) const ROLE_BINDINGS: Kind = kind("rbac.authorization.k8s.io", "v1", "clusterrolebindings");
pub(crate) const RESOURCE_QUOTAS: Kind = kind("", "v1", "resourcequotas");
pub(crate) const CLASSES: Kind = kind("resource.k8s.io", "v1", "deviceclasses");
pub(crate) const SLICES: Kind = kind("resource.k8s.io", "v1", "resourceslices");
pub(crate) const CLAIMS: Kind = kind("resource.k8s.io", "v1", "resourceclaims");
pub(crate) const TEMPLATES: Kind = kind("resource.k8s.io", "v1", "resourceclaimtemplates");
pub(crate) const TAINT_RULES: Kind = kind("resource.k8s.io", "v1", "devicetaintrules");
pub(crate) const QUOTAS: Kind = kind("dra.vgpu", "v1alpha1", "vgpuquotas");
pub(crate) const USAGES: Kind = kind("dra.vgpu", "v1alpha1", "vgpuusages");
pub(crate) const VGPU_NODES: Kind = kind("dra.vgpu", "v1alpha1", "vgpunodes");
/// Access questions: the API server answers them and does not store them.
pub(crate) const ACCESS_REVIEWS: Kind = kind("authorization.k8s.io", "v1", "subjectaccessreviews");

/// A list to read: a kind, in a namespace or everywhere.
#[derive(Debug, Clone, Copy)]
pub(crate) struct List<'a> {
    kind: Kind,
    /// `None`: all namespaces.
    namespace: Option<&'a str>,
    /// A label selector; empty for all.
    labels: &'a str,
    /// The most objects that are read; 0 for all.
    most: u32,
}

impl<'a> List<'a> {
    pub(crate) const fn everywhere(kind: Kind) -> Self {
        Self {
            kind,
            namespace: None,
            labels: "",
            most: 0,
        }
    }

    /// Returns a list in a namespace, or everywhere.
    pub(crate) const fn of(kind: Kind, namespace: Option<&'a str>) -> Self {
        Self {
            kind,
            namespace,
            labels: "",
            most: 0,
        }
    }

    pub(crate) const fn labelled(kind: Kind, labels: &'a str) -> Self {
        Self {
            kind,
            namespace: None,
            labels,
            most: 0,
        }
    }

    pub(crate) const fn labelled_within(kind: Kind, namespace: &'a str, labels: &'a str) -> Self {
        Self {
            namespace: Some(namespace),
            ..Self::labelled(kind, labels)
        }
    }

    pub(crate) const fn at_most(self, most: u32) -> Self {
        Self { most, ..self }
    }

    fn path(&self) -> String {
        let labels = match self.labels {
            "" => String::new(),
            labels => format!("?labelSelector={}", labels.replace('=', "%3D")),
        };
        let limit = match (self.most, labels.is_empty()) {
            (0, _) => String::new(),
            (most, true) => format!("?limit={most}"),
            (most, false) => format!("&limit={most}"),
        };
        format!("{}{labels}{limit}", self.kind.path(self.namespace))
    }

    fn what(&self) -> String {
        self.kind.action("list", self.namespace)
    }
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectError {
    #[error("--kubeconfig {file}: {error}")]
    File { file: String, error: KubeconfigError },
    #[error("--context {wanted}: the kubeconfig has no such context; it has {}", .known.join(", "))]
    Context { wanted: String, known: Vec<String> },
    #[error("{0}; name a kubeconfig by --kubeconfig or KUBECONFIG, or give the objects in files by -f")]
    Config(String),
    #[error("the kubeconfig cannot be used: {0}")]
    Client(kube::Error),
    #[error("the client cannot start: {0}")]
    Runtime(std::io::Error),
}

/// Why a list was not read.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum ReadError {
    #[error("the right to {0} is missing")]
    Forbidden(String),
    #[error("the cluster has no {0}")]
    NotServed(&'static str),
    #[error("{0}: no such object")]
    Absent(String),
    #[error("{server} refused the login: {why}; log in again, or name another user by --as or --context")]
    Login { server: String, why: String },
    #[error("{server} does not answer: {why}; is the context right? `kubectl config get-contexts` lists them")]
    Unreachable { server: String, why: String },
    #[error("{what}: {why}")]
    Refused { what: String, why: String },
}

impl ReadError {
    /// Several missing rights as one error.
    pub(crate) fn all(errors: Vec<Self>) -> Self {
        let mut errors = errors.into_iter();
        let first = errors.next().unwrap_or(Self::NotServed("objects"));
        errors.fold(first, |all, next| match (all, next) {
            (Self::Forbidden(all), Self::Forbidden(next)) => Self::Forbidden(format!("{all}, and to {next}")),
            (all, _) => all,
        })
    }

    /// Returns true if the error concerns only this list, not the whole connection.
    pub(crate) fn is_of_one_list(&self) -> bool {
        matches!(self, Self::Forbidden(_) | Self::NotServed(_))
    }
}

/// A connection to a cluster as one user.
pub(crate) struct Cluster {
    client: Client,
    runtime: Runtime,
    server: String,
    namespace: String,
}

impl Cluster {
    /// `namespace`: the one that the user named.
    pub(crate) fn connect(flags: &ClusterFlags, namespace: Option<&str>) -> Result<Self, ConnectError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(ConnectError::Runtime)?;
        let mut config = runtime.block_on(config(flags))?;
        config.connect_timeout = Some(CONNECT_TIMEOUT);
        config.read_timeout = Some(ANSWER_TIMEOUT);
        if flags.user.is_some() {
            config.auth_info.impersonate = flags.user.clone();
        }
        if !flags.groups.is_empty() {
            config.auth_info.impersonate_groups = Some(flags.groups.clone());
        }
        let server = config.cluster_url.to_string();
        let namespace = namespace.unwrap_or(&config.default_namespace).to_owned();
        // The client spawns a task, so it must be created inside the runtime.
        let client = {
            let _inside = runtime.enter();
            Client::try_from(config).map_err(ConnectError::Client)?
        };
        Ok(Self {
            client,
            runtime,
            server: server.trim_end_matches('/').to_owned(),
            namespace,
        })
    }

    /// The namespace that the user named, or the context's.
    pub(crate) fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Reads lists at the same time; each has its own answer.
    pub(crate) fn read<const N: usize>(&self, lists: [List<'_>; N]) -> [Result<Value, ReadError>; N] {
        let mut answers = self.read_all(lists.to_vec()).into_iter();
        lists.map(|list| answers.next().unwrap_or(Err(ReadError::NotServed(list.kind.plural))))
    }

    /// Reads any number of lists, like [`Self::read`].
    pub(crate) fn read_all(&self, lists: Vec<List<'_>>) -> Vec<Result<Value, ReadError>> {
        self.runtime.block_on(join_all(lists.iter().map(|list| self.get(list))))
    }

    async fn get(&self, list: &List<'_>) -> Result<Value, ReadError> {
        let request = http::Request::get(list.path()).body(Vec::new());
        match self.answer(request, list.what()).await {
            Err(ReadError::Absent(_)) => Err(ReadError::NotServed(list.kind.plural)),
            answer => answer,
        }
    }

    /// Creates objects at the same time; each has its own answer.
    pub(crate) fn create(
        &self,
        kind: Kind,
        namespace: Option<&str>,
        objects: &[Value],
    ) -> Vec<Result<Value, ReadError>> {
        let create = async |object: &Value| {
            let request = http::Request::post(kind.path(namespace)).header("content-type", "application/json");
            let request = request.body(object.to_string().into_bytes());
            self.answer(request, kind.action("create", namespace)).await
        };
        self.wait(join_all(objects.iter().map(create)))
    }

    /// Deletes an object; it is no error if the object does not exist.
    pub(crate) fn delete(&self, kind: Kind, namespace: &str, name: &str) -> Result<(), ReadError> {
        let request = http::Request::delete(format!("{}/{name}", kind.path(Some(namespace)))).body(Vec::new());
        match self.wait(self.answer(request, kind.action("delete", Some(namespace)))) {
            Ok(_) | Err(ReadError::Absent(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Waits for a future, which may use timers and signals.
    pub(crate) fn wait<F: Future>(&self, future: F) -> F::Output {
        self.runtime.block_on(future)
    }

    async fn answer(
        &self,
        request: Result<http::Request<Vec<u8>>, http::Error>,
        what: String,
    ) -> Result<Value, ReadError> {
        let refused = |why: String| ReadError::Refused {
            what: what.clone(),
            why,
        };
        let request = request.map_err(|error| refused(error.to_string()))?;
        let reads = request.method() == http::Method::GET;
        let text = match self.client.request_text(request).await {
            Err(kube::Error::Api(status)) => {
                return Err(match status.code {
                    401 => ReadError::Login {
                        server: self.server.clone(),
                        why: status.message,
                    },
                    // Pod Security and quotas also refuse a write with 403, but in other words.
                    403 if reads || status.message.contains(" cannot ") => ReadError::Forbidden(what),
                    404 => ReadError::Absent(what),
                    _ => refused(status.message),
                });
            }
            answer => answer.map_err(|error| self.failed(error))?,
        };
        serde_json::from_str(&text).map_err(|why| refused(format!("the answer of {} is not JSON: {why}", self.server)))
    }

    /// Reads paths such as `/version` concurrently, and returns status and body. A tenant's pod may be what answers, so
    /// time and size are limited.
    pub(crate) fn pages(&self, paths: &[String]) -> Vec<Result<(u16, String), ReadError>> {
        self.runtime
            .block_on(join_all(paths.iter().map(|path| self.page(path))))
    }

    /// Returns the API server's clock, in seconds since the epoch. This machine's may be wrong.
    pub(crate) fn clock(&self) -> Option<i64> {
        let request = http::Request::get("/version").body(Body::from(Vec::new())).ok()?;
        let answer = self.wait(async { tokio::time::timeout(PAGE_TIMEOUT, self.client.send(request)).await });
        let answer = answer.ok()?.ok()?;
        let date = jiff::fmt::rfc2822::parse(answer.headers().get("date")?.to_str().ok()?);
        Some(date.ok()?.timestamp().as_second())
    }

    async fn page(&self, path: &str) -> Result<(u16, String), ReadError> {
        let what = || format!("get {path}");
        let refused = |why: String| ReadError::Refused { what: what(), why };
        let request = http::Request::get(path).body(Body::from(Vec::new()));
        let request = request.map_err(|error| refused(error.to_string()))?;
        let answer = async {
            let response = self.client.send(request).await.map_err(|error| self.failed(error))?;
            let status = response.status().as_u16();
            let body = Limited::new(response.into_body(), PAGE_MAX).collect().await;
            let body = body.map_err(|error| refused(error.to_string()))?.to_bytes();
            Ok((status, String::from_utf8_lossy(&body).into_owned()))
        };
        let answer = tokio::time::timeout(PAGE_TIMEOUT, answer).await;
        match answer.unwrap_or_else(|_| Err(refused(format!("no answer within {} s", PAGE_TIMEOUT.as_secs()))))? {
            (403, _) => Err(ReadError::Forbidden(what())),
            answer => Ok(answer),
        }
    }

    /// No answer came.
    fn failed(&self, error: kube::Error) -> ReadError {
        let server = self.server.clone();
        match error {
            // The command's output may contain a token.
            kube::Error::Auth(AuthError::AuthExecRun { cmd, out, .. }) => ReadError::Login {
                server,
                why: format!(
                    "{cmd} ended with {}: {}",
                    out.status,
                    String::from_utf8_lossy(&out.stderr).trim()
                ),
            },
            kube::Error::Auth(why) => ReadError::Login {
                server,
                why: why.to_string(),
            },
            other => ReadError::Unreachable {
                server,
                why: cause(&other),
            },
        }
    }
}

/// The innermost cause, which says what happened to the connection.
fn cause(error: &kube::Error) -> String {
    let mut at = error.source();
    let mut last = error.to_string();
    while let Some(inner) = at {
        last = inner.to_string();
        at = inner.source();
    }
    last
}

async fn config(flags: &ClusterFlags) -> Result<Config, ConnectError> {
    let options = KubeConfigOptions {
        context: flags.context.clone(),
        ..KubeConfigOptions::default()
    };
    if let Some(path) = &flags.kubeconfig {
        let file = path.display().to_string();
        let of_file = |error| ConnectError::File {
            file: file.clone(),
            error,
        };
        let read = Kubeconfig::read_from(path).map_err(of_file)?;
        has_context(&read, flags)?;
        return Config::from_custom_kubeconfig(read, &options).await.map_err(of_file);
    }
    let config = match flags.context {
        Some(_) => {
            let read = Kubeconfig::read().map_err(|error| ConnectError::Config(error.to_string()))?;
            has_context(&read, flags)?;
            Config::from_custom_kubeconfig(read, &options)
                .await
                .map_err(|error| error.to_string())
        }
        None => Config::infer().await.map_err(|error| error.to_string()),
    };
    config.map_err(ConnectError::Config)
}

/// Fails if the context named by the flags does not exist; the error lists the existing contexts.
fn has_context(read: &Kubeconfig, flags: &ClusterFlags) -> Result<(), ConnectError> {
    let mut known = read.contexts.iter().map(|context| context.name.clone());
    match &flags.context {
        Some(wanted) if known.all(|name| name != *wanted) => Err(ConnectError::Context {
            wanted: wanted.clone(),
            known: read.contexts.iter().map(|context| context.name.clone()).collect(),
        }),
        _ => Ok(()),
    }
}
