//! Keeps what claims need on the node: the library, and the CDI files of prepared claims. In a loop of its own, so that a
//! disk that hangs stops neither health nor slices.

use crate::dra::node::{Error, Node, SharedNode};
use crate::ready::Readiness;
use std::collections::BTreeMap;
use std::time::Duration;

/// The library's name in [`Readiness`].
pub const LIBRARY: &str = "library";
const EVERY: Duration = Duration::from_secs(10);

/// Installs the library and renews CDI files. Tries both again, for example after a start on a full disk. Without the
/// library, claims can only be unprepared. CDI files are renewed even while the driver does not answer: its files may
/// exist already, and containers may restart.
pub async fn run(node: SharedNode, readiness: Readiness) {
    let mut failed = Ok(BTreeMap::new());
    loop {
        let kept = node.turn(|node, locked| (node.ensure_library(locked), Node::renew_cdi_files(node, locked)));
        let (installed, renewed) = match kept.await {
            Ok((installed, renewed)) => (installed, renewed.map_err(|error| error.to_string())),
            Err(error) => {
                let text = error.to_string();
                (Err(error), Err(text))
            }
        };
        note_library(&readiness, installed);
        note_renewed(&failed, &renewed);
        failed = renewed;
        tokio::time::sleep(EVERY).await;
    }
}

fn note_library(readiness: &Readiness, installed: Result<(), Error>) {
    match installed {
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
}

type Renewed = Result<BTreeMap<String, String>, String>;

/// Logs what has failed since the last round.
fn note_renewed(before: &Renewed, now: &Renewed) {
    let known = before.as_ref().ok();
    match now {
        Ok(failed) => {
            let is_known = |uid: &String, error| known.is_some_and(|known| known.get(uid) == Some(error));
            for (uid, error) in failed.iter().filter(|(uid, error)| !is_known(uid, error)) {
                tracing::warn!(uid, "a container of this claim may not start again: {error}");
            }
        }
        Err(error) if before.as_ref().err() != Some(error) => {
            tracing::warn!(
                "CDI files of prepared claims are not renewed, so their containers may not start again: {error}"
            );
        }
        Err(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dra::node::tests::{Rig, claim, prepare};

    #[tokio::test(start_paused = true)]
    async fn a_lost_cdi_file_is_written_again_although_nothing_is_prepared() {
        let rig = Rig::new(false);
        let node = SharedNode::new(rig.open());
        let one = claim("u1", &[("s1", 20, 25)]);
        let prepared = node.turn(move |node, _| prepare(node, one).is_ok());
        assert_eq!(prepared.await.ok(), Some(true));
        let file = rig.path("cdi/dra.vgpu-claim_u1.json");
        let keeping = tokio::spawn(run(node, Readiness::new(&[LIBRARY])));
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
