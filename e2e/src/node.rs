//! The files and mounts of claims on nodes, read from the host through each node's root folder.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::cluster::{Cluster, NodeHandle};

const CDI: &str = "/run/cdi"; // /var/run is a link, which would lead to the host's /run
const CLAIMS: &str = "/run/vgpu/claims";

/// The nodes on which a claim is prepared, which have its CDI file.
pub fn prepared_on<'a>(cluster: &'a Cluster, claim_uid: &str) -> Result<Vec<NodeHandle<'a>>> {
    let mut found = Vec::new();
    for node in cluster.nodes() {
        if node.path_inside(&cdi_file(claim_uid))?.exists() {
            found.push(node);
        }
    }
    Ok(found)
}

fn cdi_file(claim_uid: &str) -> String {
    format!("{CDI}/dra.vgpu-claim_{claim_uid}.json")
}

/// The path of a claim's CDI file on its node, and its text.
pub fn cdi_spec(cluster: &Cluster, claim_uid: &str) -> Result<(String, String)> {
    let inside = cdi_file(claim_uid);
    let nodes = prepared_on(cluster, claim_uid)?;
    let node = nodes.first().with_context(|| format!("{inside} is on no node"))?;
    let text = fs::read_to_string(node.path_inside(&inside)?).with_context(|| format!("{inside} is missing"))?;
    Ok((inside, text))
}

/// The folder of a claim on the node that has prepared it.
pub fn claim_folder(cluster: &Cluster, claim_uid: &str) -> Result<PathBuf> {
    let nodes = prepared_on(cluster, claim_uid)?;
    let node = nodes
        .first()
        .with_context(|| format!("claim {claim_uid} is prepared on no node"))?;
    node.path_inside(&format!("{CLAIMS}/{claim_uid}"))
}

/// The prepared claims of all running nodes by UID, as in the plugin's records. A claim whose file is just being
/// replaced or removed is left out.
pub fn claims(cluster: &Cluster) -> Result<BTreeMap<String, Value>> {
    let mut found = BTreeMap::new();
    for node in cluster.nodes() {
        for entry in fs::read_dir(node.path_inside(CLAIMS)?).into_iter().flatten().flatten() {
            let uid = entry.file_name().to_string_lossy().into_owned();
            let text = fs::read(entry.path().join("entry.json")).unwrap_or_default();
            let Ok(mut file) = serde_json::from_slice::<Value>(&text) else {
                continue;
            };
            let claim = file["payload"]["claim"].take();
            found.insert(uid, claim);
        }
    }
    Ok(found)
}

/// Bytes and percent of each GPU that prepared claims use, by UUID.
#[must_use]
pub fn held(claims: &BTreeMap<String, Value>) -> BTreeMap<String, (u64, u64)> {
    let mut held: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    let shares = claims
        .values()
        .flat_map(|claim| claim["shares"].as_array().into_iter().flatten());
    for share in shares {
        let (memory, cores) = held
            .entry(share["gpu"].as_str().unwrap_or_default().to_owned())
            .or_default();
        *memory += share["memory"].as_u64().unwrap_or_default();
        *cores += share["cores"].as_u64().unwrap_or_default();
    }
    held
}

/// Everything of these claims that is still on a running node: CDI files, folders, mounts, the plugin's own files.
pub fn left_of(cluster: &Cluster, claim_uids: &[String]) -> Result<Vec<String>> {
    let mut left = Vec::new();
    for node in cluster.nodes() {
        let found = left_on(&node, claim_uids)?;
        left.extend(found.into_iter().map(|what| format!("{}: {what}", node.name())));
    }
    Ok(left)
}

fn left_on(node: &NodeHandle<'_>, claim_uids: &[String]) -> Result<Vec<String>> {
    let mut left = Vec::new();
    for folder in [CDI, CLAIMS] {
        let entries = fs::read_dir(node.path_inside(folder)?).into_iter().flatten().flatten();
        for name in entries.map(|entry| entry.file_name().to_string_lossy().into_owned()) {
            if claim_uids.iter().any(|uid| name.contains(uid)) {
                left.push(format!("{folder}/{name}"));
            }
        }
    }
    let mounts = node.mounts()?;
    let ours = |line: &&str| claim_uids.iter().any(|uid| line.contains(uid.as_str()));
    for line in mounts.lines().filter(ours) {
        left.push(format!("mount {}", line.split(' ').nth(4).unwrap_or(line)));
    }
    Ok(left)
}
