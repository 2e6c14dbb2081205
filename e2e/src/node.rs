//! What a claim leaves on the node, read from the host through init's root folder.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::cluster::Cluster;

const CDI: &str = "/run/cdi"; // /var/run is a link, which would lead to the host's
const CLAIMS: &str = "/run/vgpu/claims";
const CHECKPOINT: &str = "/var/lib/kubelet/plugins/dra.vgpu/checkpoint.json";

/// The CDI file of a claim: its path in the cluster, and its text.
pub fn cdi_spec(cluster: &Cluster, claim_uid: &str) -> Result<(String, String)> {
    let inside = format!("{CDI}/dra.vgpu-claim_{claim_uid}.json");
    let text = fs::read_to_string(cluster.path_inside(&inside)?).with_context(|| format!("{inside} is missing"))?;
    Ok((inside, text))
}

/// The folder of a claim on the node.
pub fn claim_folder(cluster: &Cluster, claim_uid: &str) -> Result<PathBuf> {
    cluster.path_inside(&format!("{CLAIMS}/{claim_uid}"))
}

/// Everything that is still there of these claims: CDI files, folders, mounts, checkpoint entries.
pub fn left_of(cluster: &Cluster, claim_uids: &[String]) -> Result<Vec<String>> {
    let mut left = Vec::new();
    for folder in [CDI, CLAIMS] {
        let entries = fs::read_dir(cluster.path_inside(folder)?)
            .into_iter()
            .flatten()
            .flatten();
        for name in entries.map(|entry| entry.file_name().to_string_lossy().into_owned()) {
            if claim_uids.iter().any(|uid| name.contains(uid)) {
                left.push(format!("{folder}/{name}"));
            }
        }
    }
    let init = fs::read_to_string(cluster.state().init()).context("the cluster has no first process")?;
    let mounts =
        fs::read_to_string(format!("/proc/{}/mountinfo", init.trim())).context("cannot read the cluster's mounts")?;
    for line in mounts
        .lines()
        .filter(|line| claim_uids.iter().any(|uid| line.contains(uid.as_str())))
    {
        left.push(format!("mount {}", line.split(' ').nth(4).unwrap_or(line)));
    }
    let checkpoint = fs::read_to_string(cluster.path_inside(CHECKPOINT)?).unwrap_or_default();
    left.extend(
        claim_uids
            .iter()
            .filter(|uid| checkpoint.contains(uid.as_str()))
            .map(|uid| format!("{CHECKPOINT}: {uid}")),
    );
    Ok(left)
}
