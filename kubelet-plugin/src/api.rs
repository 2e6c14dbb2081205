//! The plugin's requests to the API server, behind traits that tests implement in memory.

use k8s_openapi::api::core::v1::{Node, ObjectReference};
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceSlice};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, DeleteParams, PostParams, Preconditions};
use kube::core::PartialObjectMeta;
use std::future::Future;
use vgpu_api::DRIVER_NAME;

/// Why a request to the API server failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The object changed or exists already: read it again.
    #[error("API server: {0}")]
    Conflict(String),
    #[error("API server: {0}")]
    NotFound(String),
    /// The object is refused as it is.
    #[error("API server: {0}")]
    Invalid(String),
    #[error("API server: {0}")]
    Other(String),
}

/// Reads ResourceClaims one at a time: a watch would hold all claims of the cluster in memory.
pub trait Claims: Send + Sync + 'static {
    /// The claim; `None` if there is none.
    fn get(&self, namespace: &str, name: &str) -> impl Future<Output = Result<Option<ResourceClaim>, Error>> + Send;
}

/// Reads and writes ResourceSlices, and reads the UID of their owner.
pub trait Slices: Send + Sync + 'static {
    /// UID of this node's object.
    fn node_uid(&self) -> impl Future<Output = Result<String, Error>> + Send;
    /// Major and minor version of the API server.
    fn version(&self) -> impl Future<Output = Result<(u32, u32), Error>> + Send;
    /// With `dry_run` nothing is stored; the answer is what would be stored.
    fn create(&self, slice: &ResourceSlice, dry_run: bool)
    -> impl Future<Output = Result<ResourceSlice, Error>> + Send;
    fn replace(&self, slice: &ResourceSlice) -> impl Future<Output = Result<ResourceSlice, Error>> + Send;
    /// Deletes the object only if its resourceVersion is still that of `slice`.
    fn delete(&self, slice: &ResourceSlice) -> impl Future<Output = Result<(), Error>> + Send;
}

/// Creates events.
pub trait Events: Send + Sync + 'static {
    fn warn(
        &self,
        regarding: ObjectReference,
        reason: &'static str,
        note: String,
    ) -> impl Future<Output = Result<(), Error>> + Send;
}

/// The API server, through `kube`.
#[derive(Clone)]
pub struct Cluster {
    client: kube::Client,
    node_name: String,
}

// === impl Error ===

impl From<kube::Error> for Error {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => match status.code {
                404 => Self::NotFound(status.message),
                409 => Self::Conflict(status.message),
                422 => Self::Invalid(format!("{} (422)", status.message)),
                _ => Self::Other(format!("{} ({})", status.message, status.code)),
            },
            error => Self::Other(with_causes(&error)),
        }
    }
}

// === impl Cluster ===

impl Cluster {
    #[must_use]
    pub fn new(client: kube::Client, node_name: String) -> Self {
        Self { client, node_name }
    }

    /// Nodes by their metadata alone: kubelet writes the status of each every few minutes.
    #[must_use]
    pub fn nodes(&self) -> Api<PartialObjectMeta<Node>> {
        Api::all(self.client.clone())
    }

    pub(crate) fn client(&self) -> kube::Client {
        self.client.clone()
    }

    pub(crate) fn node_name(&self) -> &str {
        &self.node_name
    }

    #[must_use]
    pub fn slices(&self) -> Api<ResourceSlice> {
        Api::all(self.client.clone())
    }
}

impl Claims for Cluster {
    async fn get(&self, namespace: &str, name: &str) -> Result<Option<ResourceClaim>, Error> {
        let claims: Api<ResourceClaim> = Api::namespaced(self.client.clone(), namespace);
        Ok(claims.get_opt(name).await?)
    }
}

impl Slices for Cluster {
    async fn node_uid(&self) -> Result<String, Error> {
        let node = Api::<Node>::all(self.client.clone()).get(&self.node_name).await?;
        node.metadata.uid.ok_or_else(|| Error::Other("node without UID".into()))
    }

    async fn version(&self) -> Result<(u32, u32), Error> {
        let found = self.client.apiserver_version().await?;
        // Some distributions write a minor version such as 37+.
        let number = |text: &str| text.trim_end_matches('+').parse().ok();
        let version = number(&found.major).zip(number(&found.minor));
        version.ok_or_else(|| Error::Other(format!("version {}.{} is no number", found.major, found.minor)))
    }

    async fn create(&self, slice: &ResourceSlice, dry_run: bool) -> Result<ResourceSlice, Error> {
        let parameters = PostParams {
            dry_run,
            ..PostParams::default()
        };
        Ok(self.slices().create(&parameters, slice).await?)
    }

    async fn replace(&self, slice: &ResourceSlice) -> Result<ResourceSlice, Error> {
        let name = slice.metadata.name.as_deref().unwrap_or_default();
        Ok(self.slices().replace(name, &PostParams::default(), slice).await?)
    }

    async fn delete(&self, slice: &ResourceSlice) -> Result<(), Error> {
        let parameters = DeleteParams {
            preconditions: Some(Preconditions {
                uid: slice.metadata.uid.clone(),
                resource_version: slice.metadata.resource_version.clone(),
            }),
            ..DeleteParams::default()
        };
        let name = slice.metadata.name.as_deref().unwrap_or_default();
        self.slices().delete(name, &parameters).await?;
        Ok(())
    }
}

impl Events for Cluster {
    async fn warn(&self, regarding: ObjectReference, reason: &'static str, note: String) -> Result<(), Error> {
        // Events about cluster-scoped objects are in namespace `default`.
        let namespace = regarding.namespace.clone().unwrap_or_else(|| "default".into());
        let name = regarding.name.clone().unwrap_or_default();
        let event = Event {
            metadata: ObjectMeta {
                generate_name: Some(format!("{name}-")), // a dot at its end is refused since 1.37
                namespace: Some(namespace.clone()),
                ..ObjectMeta::default()
            },
            type_: Some("Warning".into()),
            reason: Some(reason.into()),
            note: Some(cut(note)),
            action: Some("Prepare".into()),
            event_time: Some(MicroTime(Timestamp::now())),
            reporting_controller: Some(DRIVER_NAME.into()),
            reporting_instance: Some(self.node_name.clone()),
            regarding: Some(regarding),
            ..Event::default()
        };
        let events: Api<Event> = Api::namespaced(self.client.clone(), &namespace);
        events.create(&PostParams::default(), &event).await?;
        Ok(())
    }
}

/// The text of an error and of its causes: errors of kube and tonic say only that a request failed.
pub(crate) fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let why = inner.to_string();
        if !text.contains(&why) {
            text = format!("{text}: {why}");
        }
        cause = inner.source();
    }
    text
}

/// The API server accepts notes of up to 1 KiB.
fn cut(mut note: String) -> String {
    let mut end = note.len().min(1000);
    while !note.is_char_boundary(end) {
        end -= 1;
    }
    note.truncate(end);
    note
}
