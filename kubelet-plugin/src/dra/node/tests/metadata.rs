//! The metadata of prepared claims: its files on the node, and their mounts.

use super::*;
use crate::dra::checkpoint::NamedBy;
use serde_json::Value;
use std::io::Read as _;

const FOLDER: &str = "/var/run/kubernetes.io/dra-device-attributes";

/// A claim with this annotation for the pod's name of it.
fn from_template(uid: &str, pod_claim: &str) -> (ClaimId, ResourceClaim) {
    let (id, mut claim) = claim(uid, &[("s1", 20, 25)]);
    let annotation = ("resource.kubernetes.io/pod-claim-name".to_owned(), pod_claim.to_owned());
    claim.metadata.annotations = Some(BTreeMap::from([annotation]));
    (id, claim)
}

fn file(rig: &Rig, uid: &str) -> PathBuf {
    rig.path(&format!("run/claims/{uid}/gpu.metadata.json"))
}

fn read(rig: &Rig, uid: &str) -> Value {
    serde_json::from_slice(&std::fs::read(file(rig, uid)).expect("a file")).expect("JSON")
}

/// The paths in containers at which the metadata of a claim is mounted.
fn targets(rig: &Rig, uid: &str) -> Vec<String> {
    let spec = std::fs::read(rig.path(&format!("cdi/dra.vgpu-claim_{uid}.json"))).expect("a CDI file");
    let spec: Value = serde_json::from_slice(&spec).expect("JSON");
    let mounts = spec["devices"][0]["containerEdits"]["mounts"]
        .as_array()
        .expect("mounts");
    let host = file(rig, uid);
    let ours = mounts
        .iter()
        .filter(|mount| mount["hostPath"] == *host.to_string_lossy());
    ours.map(|mount| mount["containerPath"].as_str().expect("a path").to_owned())
        .collect()
}

#[test]
fn a_claim_has_its_metadata_until_it_is_unprepared() {
    on_each_file_system("a_claim_has_its_metadata_until_it_is_unprepared", |rig| {
        let mut node = rig.open();
        for (claim, path) in [
            (claim("u1", &[("s1", 20, 25), ("s2", 10, 0)]), "resourceclaims/claim-u1"),
            (from_template("u2", "card"), "resourceclaimtemplates/card"),
        ] {
            let uid = claim.0.uid.clone();
            prepare(&mut node, claim).expect("prepared");
            assert_eq!(
                targets(rig, &uid),
                [format!("{FOLDER}/{path}/gpu/dra.vgpu-metadata.json")]
            );
        }
        let devices = &read(rig, "u1")["requests"][0]["devices"];
        let memory = |at: usize| devices[at]["attributes"]["memory"]["int"].as_u64();
        assert_eq!((memory(0), memory(1)), (Some(20 << 30), Some(10 << 30)));
        assert_eq!(read(rig, "u2")["podClaimName"], "card");
        for uid in ["u1", "u2"] {
            unprepare(&mut node, uid).expect("unprepared");
        }
        assert_eq!(rig.leftovers(), [""; 0]);
    });
}

#[test]
fn a_container_that_runs_keeps_the_file_that_it_has() {
    let (rig, mut node) = prepared(20, 25);
    let (before, mut open) = (read(&rig, "u1"), std::fs::File::open(file(&rig, "u1")).expect("a file"));
    prepare(&mut node, claim("u1", &[("s1", 20, 25)])).expect("prepared again");
    assert_eq!(read(&rig, "u1"), before, "nothing differs");
    // The driver numbers its GPUs in another way now, so the file says something else.
    let changed = crate::publish::inventory::Gpu { index: 7, ..gpu(0) };
    node.set_inventory(Ok(Inventory::new(vec![changed, gpu(1)])));
    prepare(&mut node, claim("u1", &[("s1", 20, 25)])).expect("prepared again");
    let after = read(&rig, "u1");
    assert_eq!(after["metadata"]["generation"], 2);
    assert_eq!(after["requests"][0]["devices"][0]["attributes"]["index"]["int"], 7);
    unprepare(&mut node, "u1").expect("unprepared");
    let mut kept = String::new();
    open.read_to_string(&mut kept).expect("read");
    assert_eq!(serde_json::from_str::<Value>(&kept).expect("JSON"), before);
}

#[test]
fn an_annotation_that_leads_out_of_the_folder_is_refused_before_anything_is_made() {
    let rig = Rig::new(false);
    let mut node = rig.open();
    let error = prepare(&mut node, from_template("u1", "../../../../../dev/vgpu/s1/limits")).expect_err("refused");
    assert!(
        error.to_string().contains("resource.kubernetes.io/pod-claim-name"),
        "{error}"
    );
    assert_eq!(error.kind(), "claim");
    assert_eq!(rig.leftovers(), [""; 0]);
    prepare(&mut node, from_template("u1", "gpu")).expect("corrected");
}

#[test]
fn files_that_are_lost_are_written_again_and_those_of_former_results_go() {
    let (rig, mut node) = prepared(20, 25);
    let _ = node.renew_cdi_files(&node.locked());
    std::fs::remove_file(file(&rig, "u1")).expect("removed");
    let other = rig.path("run/claims/u1/former.metadata.json");
    std::fs::write(&other, "{}").expect("written");
    let locked = node.locked();
    assert!(node.renew_cdi_files(&locked).expect("read").is_empty());
    assert_eq!(read(&rig, "u1")["metadata"]["generation"], 1);
    assert!(!other.exists());
}

/// The record is of a release without metadata, or was rebuilt from limits files.
#[test]
fn a_claim_whose_name_in_pods_is_not_known_has_none_until_it_is_prepared_again() {
    let (rig, node) = prepared(20, 25);
    drop(node);
    let dirs = ClaimDirs::new(rig.config().claims_dir, false);
    let checkpoint = rig.checkpoint();
    let mut entry = checkpoint.claims["u1"].clone();
    assert_eq!(entry.named_by.take(), Some(NamedBy::Claim));
    dirs.save_record("u1", &entry, checkpoint.gpus).expect("saved");
    let mut node = rig.open();
    assert_eq!(targets(&rig, "u1"), [""; 0]);
    assert!(file(&rig, "u1").exists(), "a container may have it");
    prepare(&mut node, from_template("u1", "gpu")).expect("prepared again");
    assert_eq!(targets(&rig, "u1").len(), 1);
    assert_eq!(read(&rig, "u1")["podClaimName"], "gpu");
}
