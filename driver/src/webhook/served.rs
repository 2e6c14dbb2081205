//! The certificate that this replica shows, which changes while connections come in.

use std::sync::{Arc, PoisonError, RwLock};

use tokio_rustls::rustls::server::{ClientHello, ResolvesServerCert};
use tokio_rustls::rustls::sign::CertifiedKey;

/// `None` until the Secret has a pair in use. Connections fail then, and the API server refuses the pod.
#[derive(Debug, Default)]
pub(super) struct Served(RwLock<Option<Arc<CertifiedKey>>>);

impl Served {
    pub(super) fn set(&self, certified: Arc<CertifiedKey>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Some(certified);
    }

    pub(super) fn shown(&self) -> Option<Arc<CertifiedKey>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl ResolvesServerCert for Served {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.shown()
    }
}
