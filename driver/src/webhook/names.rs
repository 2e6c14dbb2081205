//! How the webhook's objects are called.

/// The webhook's name in the MutatingWebhookConfiguration.
pub const WEBHOOK: &str = "pods.translate.dra.vgpu";
/// The path of reviews.
pub const PATH: &str = "/translate";

/// Service, Secret and MutatingWebhookConfiguration have one name; the first two are in this namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Names {
    pub namespace: String,
    pub name: String,
}

impl Names {
    /// The name by which the API server calls, which the certificate must have.
    pub(super) fn host(&self) -> String {
        format!("{}.{}.svc", self.name, self.namespace)
    }

    /// For logs.
    pub(super) fn secret(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}
