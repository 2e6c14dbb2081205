//! How the leader writes, and what a failed request means for the object that it was about.

use std::time::Duration;

use kube::api::PatchParams;

/// The name under which the controller writes.
pub(crate) const MANAGER: &str = "vgpu-controller";
/// For one write with its reads. The lease is held for longer after the check than this, and it is far less than the time
/// for which a device has no allocator when it changes from one to the other.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Gives a request up after [`TIMEOUT`]: whether it was carried out is then not known.
pub(crate) async fn timely<T>(request: impl Future<Output = kube::Result<T>>) -> kube::Result<T> {
    match tokio::time::timeout(TIMEOUT, request).await {
        Ok(answer) => answer,
        Err(_) => Err(kube::Error::Service(format!("no answer within {TIMEOUT:?}").into())),
    }
}

/// The parameters of a patch by the controller.
pub(crate) fn by_us() -> PatchParams {
    PatchParams {
        field_manager: Some(MANAGER.to_owned()),
        ..PatchParams::default()
    }
}

/// What the failure says about the object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Failure {
    /// 404: there is no such object.
    Gone,
    /// 409: it has another version, or the name is taken.
    Conflict,
    /// The API server refused the request, with this message; the object is unchanged.
    Refused(String),
    /// The request was not processed, or how far it got is not known.
    Unknown,
}

/// Statuses of requests that were not processed for a temporary reason.
const NOT_PROCESSED: [u16; 3] = [401, 408, 429];

impl Failure {
    /// Sorts an error, and logs it unless it only says that the object has changed. `what`: the write, for the log.
    pub(crate) fn of(error: &kube::Error, what: &dyn std::fmt::Debug) -> Self {
        match error {
            kube::Error::Api(status) if status.code == 404 => Self::Gone,
            kube::Error::Api(status) if status.code == 409 => Self::Conflict,
            kube::Error::Api(status) if (400..500).contains(&status.code) && !NOT_PROCESSED.contains(&status.code) => {
                tracing::warn!(?what, %status, "the API server refuses a write");
                Self::Refused(status.message.clone())
            }
            error => {
                tracing::warn!(?what, %error, "a write failed, or has no answer");
                Self::Unknown
            }
        }
    }
}
