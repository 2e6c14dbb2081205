//! What a failed request means for the object that it was about.

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

/// Statuses of requests that were not processed for a reason that may be over by the next attempt.
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
