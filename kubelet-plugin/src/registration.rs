//! Registers the plugin with kubelet, and binds Unix sockets.
//!
//! kubelet watches a folder: it connects to every socket that appears there, asks for the plugin's name, and
//! reports back if it accepted the plugin. A stale socket of a former instance is removed before binding. At
//! the end only the own socket is removed, because during a rolling update the path may already be the next
//! instance's.

use crate::ready::Readiness;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use tokio::net::UnixListener;
use tonic::{Request, Response, Status};
use vgpu_api::DRIVER_NAME;
use vgpu_proto::registration::registration_server::Registration;
use vgpu_proto::registration::{InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse};

/// kubelet uses the first version that it supports.
const VERSIONS: [&str; 4] = [
    "v1.DRAPlugin",
    "v1beta1.DRAPlugin",
    "v1.DRAResourceHealth",
    "v1alpha1.DRAResourceHealth",
];
/// The part's name in [`Readiness`].
pub const PART: &str = "registration";

/// Implements kubelet's registration service.
#[derive(Clone)]
pub struct Registrar {
    pub dra_socket: PathBuf,
    pub readiness: Readiness,
}

/// A listening socket. Dropping it removes its file, if that is still its own.
pub struct Socket {
    path: PathBuf,
    identity: (u64, u64),
}

#[tonic::async_trait]
impl Registration for Registrar {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(PluginInfo {
            r#type: "DRAPlugin".into(),
            name: DRIVER_NAME.into(),
            endpoint: self.dra_socket.display().to_string(),
            supported_versions: VERSIONS.map(str::to_owned).to_vec(),
        }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let RegistrationStatus {
            plugin_registered,
            error,
        } = request.into_inner();
        if plugin_registered {
            tracing::info!("kubelet has registered the plugin");
            self.readiness.set(PART, Ok(()));
        } else {
            tracing::error!(error, "kubelet refuses the plugin");
            self.readiness
                .set(PART, Err(format!("kubelet refuses the plugin: {error}")));
        }
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}

// === impl Socket ===

impl Socket {
    /// Listens at `path`, after removing a file there.
    ///
    /// # Errors
    /// The folder cannot be created, or the socket cannot be bound.
    pub fn bind(path: &Path) -> io::Result<(UnixListener, Self)> {
        std::fs::create_dir_all(path.parent().unwrap_or(path))?;
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(path)?;
        let found = std::fs::metadata(path)?;
        let socket = Self {
            path: path.to_path_buf(),
            identity: (found.dev(), found.ino()),
        };
        Ok((listener, socket))
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let found = std::fs::metadata(&self.path);
        if found.is_ok_and(|found| (found.dev(), found.ino()) == self.identity) {
            // A file that cannot be removed is stale, and the next instance removes it.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_stale_socket_is_replaced_and_a_successors_is_left_alone() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("sub/x.sock");
        let (_old_listener, old) = Socket::bind(&path).expect("bound");
        let (_new_listener, new) = Socket::bind(&path).expect("bound over the old one");
        drop(old);
        assert!(path.exists(), "the successor's");
        drop(new);
        assert!(!path.exists());
    }
}
