//! Keeps what claims need on the node's disk: the library, and the CDI files of prepared claims.
//!
//! Each has a loop of its own: a disk that hangs stops these, and neither health nor slices.

use crate::node::SharedNode;
use crate::ready::Readiness;
use std::time::Duration;

/// The library's name in [`Readiness`].
pub const LIBRARY: &str = "library";
const EVERY: Duration = Duration::from_secs(10);

/// Installs the library, also after a start on a full disk. Without it, claims can only be unprepared.
pub async fn library(node: SharedNode, readiness: Readiness) {
    loop {
        let installed = node.turn(|node, locked| node.ensure_library(locked)).await;
        match installed.and_then(|installed| installed) {
            Ok(()) => {
                if readiness.set(LIBRARY, Ok(())) {
                    tracing::info!("the library is installed");
                }
            }
            Err(error) => {
                if readiness.set(LIBRARY, Err(error.to_string())) {
                    tracing::error!("{error}");
                }
            }
        }
        tokio::time::sleep(EVERY).await;
    }
}

/// Renews the CDI files of prepared claims. Also while the driver does not answer: its files may be there already, and
/// containers start again.
pub async fn cdi_files(node: SharedNode) {
    loop {
        if node.read(|node| node.has_stale_cdi_files()).await.unwrap_or_default() {
            let renewed = node.turn(|node, locked| node.renew_cdi_files(locked)).await;
            if let Err(error) = renewed {
                tracing::warn!("CDI files of prepared claims are not renewed yet: {error}");
            }
        }
        tokio::time::sleep(EVERY).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::tests::{Rig, claim};

    #[tokio::test(start_paused = true)]
    async fn a_lost_cdi_file_is_written_again_although_nothing_is_prepared() {
        let rig = Rig::new(false);
        let node = SharedNode::new(rig.open());
        let claims = [claim("u1", &[("s1", 20, 25)])];
        let prepared = node.turn(move |node, locked| node.prepare(locked, &claims).remove(0).is_ok());
        assert_eq!(prepared.await.ok(), Some(true));
        let file = rig.path("cdi/dra.vgpu-claim_u1.json");
        let keeping = tokio::spawn(cdi_files(node));
        for _ in 0..2 {
            std::fs::remove_file(&file).expect("a CDI file");
            for _ in 0..60 {
                tokio::time::sleep(Duration::from_secs(1)).await;
                if file.exists() {
                    break;
                }
            }
            assert!(file.exists());
        }
        keeping.abort();
    }
}
