//! Fuzzes what the plugin reads: calls, claims with their configs, its own files, /proc and the driver's answers. Each
//! test begins with the files in `testdata/seeds` and changes some of their bytes or values. Add an input that failed
//! to these files.
//!
//! `PROPTEST_CASES=1000000 cargo test --release -p vgpu-kubelet-plugin --lib fuzz` goes on for longer.

use crate::api::{Claims, Error as ApiError};
use crate::dra::mount_users::{Keeper, MountUsers, ShareMount};
use crate::dra::node::SharedNode;
use crate::dra::node::tests::{Rig, claim, id};
use crate::dra::server::Service;
use crate::dra::share::{ClaimId, ShareKey};
use crate::enforcement::process_tests::{in_pod, mount, process};
use crate::enforcement::{Extent, Processes};
use crate::metrics::Metrics;
use crate::publish::inventory::tests::gpu;
use crate::publish::inventory::{Gpu, Inventory, List};
use crate::publish::slice::tests::WHOLE;
use crate::publish::slice::{devices, slices};
use k8s_openapi::api::resource::v1::ResourceClaim;
use proptest::prelude::*;
use prost::Message as _;
use serde_json::{Value, json};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use vgpu_abi::checksum::crc32;
use vgpu_abi::limits::is_share_name;
use vgpu_proto::dra::{v1, v1beta1};
use vgpu_proto::registration;

fn config() -> ProptestConfig {
    ProptestConfig {
        failure_persistence: None,
        // As many as fit into a second or two, unless the variable sets the number.
        cases: std::env::var("PROPTEST_CASES").map_or(96, |_| ProptestConfig::default().cases),
        ..ProptestConfig::default()
    }
}

/// The seeds of one kind, by file name.
fn seeds(kind: &str) -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/seeds").join(kind);
    let mut files: Vec<PathBuf> = fs::read_dir(folder)
        .expect("seeds")
        .map(|file| file.expect("a file").path())
        .collect();
    files.sort();
    let read = |path: &PathBuf| {
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        (name, fs::read(path).expect("a seed"))
    };
    files.iter().map(read).collect()
}

/// One change of bytes: what, where, and a byte.
type Change = (u8, u16, u8);

fn changes() -> impl Strategy<Value = Vec<Change>> {
    prop::collection::vec(any::<Change>(), 0..6)
}

fn changed(seed: &[u8], changes: &[Change]) -> Vec<u8> {
    let mut bytes = seed.to_vec();
    for (what, at, byte) in changes {
        let at = usize::from(*at) % (bytes.len() + 1);
        match what % 5 {
            0 => bytes.truncate(at),
            1 => bytes.insert(at, *byte),
            2 => bytes.extend(std::iter::repeat_n(*byte, at)),
            3 if at < bytes.len() => drop(bytes.remove(at)),
            _ => {
                if let Some(old) = bytes.get_mut(at) {
                    *old = *byte;
                }
            }
        }
    }
    bytes
}

/// One change of a document: the number of a value in it, and the value that replaces it.
type Edit = (u16, u8);

fn edits() -> impl Strategy<Value = Vec<Edit>> {
    prop::collection::vec(any::<Edit>(), 0..4)
}

/// Edge values: valid in some field, or in none.
fn odd(which: u8) -> Value {
    let all = [
        json!(null),
        json!(true),
        json!([]),
        json!({}),
        json!(-1),
        json!(0),
        json!(255),
        json!(u64::MAX),
        json!(1.5),
        json!(""),
        json!("0"),
        json!("-20Gi"),
        json!("1e30"),
        json!("999999999999Gi"),
        json!("../../../evil"),
        json!("/etc/passwd"),
        json!("u\u{0}\n\u{202e}"),
        json!("x".repeat(5_000)),
        json!("GPU-3f8a1c20-1111-2222-3333-444455556666"),
        json!("gpu-3f8a1c21"),
        json!("Share"),
        json!("Monitor"),
    ];
    all[usize::from(which) % all.len()].clone()
}

fn edited(document: &Value, edits: &[Edit]) -> Value {
    let mut document = document.clone();
    for (at, which) in edits {
        let count = places(&mut document, &mut 0, None);
        places(&mut document, &mut 0, Some((usize::from(*at) % count, odd(*which))));
    }
    document
}

/// Counts the values of a document, and replaces one of them.
fn places(value: &mut Value, count: &mut usize, mut write: Option<(usize, Value)>) -> usize {
    let written = write.take_if(|(at, _)| at == count);
    *count += 1;
    if let Some((_, new)) = written {
        *value = new;
        return *count;
    }
    match value {
        Value::Array(items) => {
            for item in items {
                places(item, count, write.clone());
            }
        }
        Value::Object(fields) => {
            for (_, field) in fields.iter_mut() {
                places(field, count, write.clone());
            }
        }
        _ => {}
    }
    *count
}

/// An API server in which every name is the claim of [`claim`].
#[derive(Clone)]
struct Everything;

impl Claims for Everything {
    async fn get(&self, _: &str, name: &str) -> Result<Option<ResourceClaim>, ApiError> {
        let uid = name.strip_prefix("claim-").unwrap_or(name);
        Ok(Some(claim(uid, &[(uid, 1, 1)]).1))
    }
}

#[derive(Clone)]
struct Nobody;

impl MountUsers for Nobody {
    fn keepers(&self, _: &[ShareMount]) -> Result<BTreeMap<ShareKey, Keeper>, String> {
        Ok(BTreeMap::new())
    }
}

/// The entries of the rig's folder, without the folders that the plugin writes.
fn outside(rig: &Rig) -> BTreeSet<PathBuf> {
    let own = ["run", "kubelet", "cdi", "store"];
    let top = fs::read_dir(rig.path(""))
        .expect("the rig")
        .map(|entry| entry.expect("an entry").path());
    top.filter(|path| !own.iter().any(|name| path.ends_with(name)))
        .collect()
}

#[test]
fn any_bytes_of_a_call_are_a_call_or_an_error() {
    let rig = Rig::new(false);
    let node = SharedNode::new(rig.open());
    let stopped = tokio::sync::watch::channel(false).1;
    let driver = Service::new(node, Everything, Nobody, Metrics::default(), stopped);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let (before, seeds) = (outside(&rig), seeds("grpc"));
    proptest!(config(), |(which in 0..seeds.len(), changes in changes())| {
        let bytes = changed(&seeds[which].1, &changes);
        let _ = v1beta1::NodePrepareResourcesRequest::decode(&*bytes);
        let _ = v1beta1::NodeUnprepareResourcesRequest::decode(&*bytes);
        let _ = registration::RegistrationStatus::decode(&*bytes);
        let _ = vgpu_proto::pod_resources::ListPodResourcesResponse::decode(&*bytes);
        let Ok(request) = v1::NodePrepareResourcesRequest::decode(&*bytes) else { return Ok(()) };
        let ids: Vec<ClaimId> = request.claims.into_iter().map(|claim| ClaimId {
            namespace: claim.namespace,
            name: claim.name,
            uid: claim.uid,
        }).collect();
        let uids: BTreeSet<&String> = ids.iter().map(|id| &id.uid).collect();
        let answers = runtime.block_on(driver.prepare(ids.clone()));
        prop_assert_eq!(answers.keys().collect::<BTreeSet<_>>(), uids.clone());
        for (uid, answer) in &answers {
            prop_assert!(is_share_name(uid) || answer.is_err(), "{:?}", uid);
        }
        let answers = runtime.block_on(driver.unprepare(ids.clone()));
        prop_assert_eq!(answers.keys().collect::<BTreeSet<_>>(), uids);
        prop_assert_eq!(rig.leftovers(), [""; 0]);
        prop_assert_eq!(&outside(&rig), &before);
    });
}

#[test]
fn any_claim_is_prepared_within_its_gpu_or_refused() {
    let rig = Rig::fast(false);
    let node = RefCell::new(rig.open());
    let before = outside(&rig);
    let seeds: Vec<Value> = seeds("claims")
        .iter()
        .map(|(_, seed)| serde_json::from_slice(seed).expect("JSON"))
        .collect();
    proptest!(config(), |(which in 0..seeds.len(), edits in edits())| {
        let Ok(claim) = serde_json::from_value::<ResourceClaim>(edited(&seeds[which], &edits)) else { return Ok(()) };
        let mut node = node.borrow_mut();
        let locked = node.locked();
        let answer = node.prepare(&locked, &[(id("u1"), claim)]).0.remove(0);
        match answer {
            Ok(devices) => {
                prop_assert!(!devices.is_empty());
                let entry = &node.claims().claims["u1"];
                for held in &entry.shares {
                    prop_assert!(is_share_name(&held.share.name));
                    prop_assert!(held.share.memory <= gpu(0).memory && held.share.cores <= 100);
                }
            }
            Err(error) => prop_assert!(!error.to_string().is_empty() && error.to_string().len() < 20_000),
        }
        prop_assert!(node.unprepare(&locked, &["u1"])[0].is_ok());
        prop_assert_eq!(rig.leftovers(), [""; 0]);
        prop_assert_eq!(&outside(&rig), &before);
    });
}

/// A claim's record with a valid checksum, so that a test gets to the fields in it.
fn sealed(payload: &Value) -> String {
    let payload = payload.to_string();
    format!(
        r#"{{"version":1,"crc32":"{:08x}","payload":{payload}}}"#,
        crc32(payload.as_bytes())
    )
}

#[test]
fn any_entry_is_taken_over_or_set_aside_and_nothing_leaves_its_folder() {
    let seeds: Vec<Value> = seeds("entries")
        .iter()
        .map(|(_, seed)| serde_json::from_slice(seed).expect("JSON"))
        .collect();
    let check = |payload: &Value| -> Result<(), TestCaseError> {
        let rig = Rig::fast(false);
        fs::create_dir_all(rig.path("run/claims/u1")).expect("a folder");
        fs::write(rig.record("u1"), sealed(payload)).expect("written");
        let before = outside(&rig);
        let opened = rig.try_open();
        prop_assert!(opened.is_ok(), "{:?}", opened.err());
        let mut node = opened.expect("a node");
        let locked = node.locked();
        let text = node.take_damages().join("\n");
        prop_assert!(text.len() < 100_000);
        let _ = node.prepare(
            &locked,
            &[claim("u1", &[("s1", 20, 25)]), claim("u2", &[("s2", 20, 25)])],
        );
        node.remove_unused_releases(&locked);
        for uid in ["u1", "u2"] {
            prop_assert!(node.unprepare(&locked, &[uid])[0].is_ok());
        }
        prop_assert_eq!(&outside(&rig), &before);
        for folder in ["run", "run/claims", "run/gpus", "kubelet", "store"] {
            prop_assert!(!rig.path(folder).join("evil").exists());
        }
        Ok(())
    };
    for seed in &seeds {
        check(seed).expect("a seed");
    }
    proptest!(config(), |(which in 0..seeds.len(), edits in edits())| {
        check(&edited(&seeds[which], &edits))?;
    });
}

#[test]
fn any_cdi_file_of_a_prepared_claim_is_replaced_by_its_own() {
    let rig = Rig::fast(false);
    let mut node = rig.open();
    let (one, two) = (claim("u1", &[("s1", 20, 25)]), claim("u2", &[("s2", 20, 25)]));
    let locked = node.locked();
    assert!(node.prepare(&locked, &[one.clone(), two]).0.iter().all(Result::is_ok));
    drop(locked);
    let (path, other) = (
        rig.path("cdi/dra.vgpu-claim_u1.json"),
        rig.path("cdi/dra.vgpu-claim_u2.json"),
    );
    let node = RefCell::new(node);
    let (right, others) = (fs::read(&path).expect("a file"), fs::read(&other).expect("a file"));
    let mut seeds: Vec<Vec<u8>> = seeds("cdi").into_iter().map(|(_, seed)| seed).collect();
    seeds.push(right.clone());
    proptest!(config(), |(which in 0..seeds.len(), changes in changes(), starts in any::<bool>())| {
        fs::write(&path, changed(&seeds[which], &changes)).expect("written");
        if starts {
            drop(rig.open());
        } else {
            let mut node = node.borrow_mut();
            let locked = node.locked();
            prop_assert!(node.prepare(&locked, std::slice::from_ref(&one)).0[0].is_ok());
        }
        let found: Value = serde_json::from_slice(&fs::read(&path).expect("a file")).expect("JSON");
        prop_assert_eq!(found, serde_json::from_slice::<Value>(&right).expect("JSON"));
        prop_assert_eq!(&fs::read(&other).expect("a file"), &others);
    });
}

#[test]
fn any_ledger_is_read_or_damaged_and_the_neighbours_is_read_as_it_is() {
    let rig = Rig::fast(false);
    let mut node = rig.open();
    let locked = node.locked();
    let claims = [claim("u1", &[("s1", 20, 25)]), claim("u2", &[("s2", 20, 25)])];
    assert!(node.prepare(&locked, &claims).0.iter().all(Result::is_ok));
    let usage = |uid: &str| {
        let entry = &node.claims().claims[uid];
        node.ledger(uid, entry, &entry.shares[0].share, &mut Vec::new()).usage()
    };
    let path = rig.path("run/claims/u1/s1/ledger");
    let whole = fs::read(&path).expect("a ledger");
    let expected = usage("u2").expect("read");
    let word = (0..whole.len() / 8, any::<u64>());
    proptest!(config(), |(changes in changes(), words in prop::collection::vec(word, 0..8))| {
        let mut bytes = whole.clone();
        for (at, value) in &words {
            bytes[at * 8..][..8].copy_from_slice(&value.to_le_bytes());
        }
        fs::write(&path, changed(&bytes, &changes)).expect("written");
        if let Some(usage) = usage("u1") {
            prop_assert!(usage.processes.len() < 2048);
        }
        prop_assert_eq!(usage("u2").expect("read"), expected.clone());
    });
}

#[test]
fn any_proc_of_a_tenant_says_nothing_else_of_its_neighbour() {
    let proc = tempfile::tempdir_in("/dev/shm")
        .or_else(|_| tempfile::tempdir())
        .expect("a folder");
    let at = |pid: &str| proc.path().join(pid);
    process(&at("6"), 6, &[2], &in_pod('b', '2'));
    let (mounts, asked) = ([mount("u1", "s", 1), mount("u2", "s", 2)], BTreeSet::from([5, 6]));
    let read = || Processes::in_folder(proc.path()).read(&mounts, &asked, Extent::All);
    let expected = read().expect("read").processes[&6].clone();
    let seeds = seeds("proc");
    proptest!(config(), |(which in 0..seeds.len(), file in 0..5_usize, changes in changes())| {
        process(&at("5"), 5, &[1], &in_pod('a', '1'));
        let file = ["stat", "status", "comm", "cgroup", "mountinfo"][file];
        let bytes = changed(&seeds[which].1, &changes);
        fs::write(at("5").join(file), &bytes).expect("written");
        // Such an input is excused below: the kernel writes the list of mounts, so a tenant cannot add a neighbour's
        // share.
        let has_neighbours = file == "mountinfo" && String::from_utf8_lossy(&bytes).contains(" 0:2 ");
        let seen = read();
        prop_assert!(seen.is_ok());
        let seen = seen.expect("read");
        prop_assert_eq!(&seen.processes[&6], &expected);
        prop_assert!(has_neighbours || seen.users.get(&("u2".into(), "s".into())) == Some(&6));
        if let Some(process) = seen.processes.get(&5) {
            prop_assert!(process.name.len() <= 64 && process.name.chars().all(|c| !c.is_control()));
        }
    });
}

#[test]
fn any_answer_of_the_driver_leads_to_devices_that_the_api_server_takes() {
    let seeds: Vec<Value> = seeds("nvml")
        .iter()
        .map(|(_, seed)| serde_json::from_slice(seed).expect("JSON"))
        .collect();
    let check = |answer: &Value| -> Result<(), TestCaseError> {
        let list = answer.pointer("/list/Ok").cloned().unwrap_or_default();
        let Ok(list) = serde_json::from_value::<List>(list) else {
            return Ok(());
        };
        let inventory = Inventory::new(list.gpus);
        for device in devices(&slices(&inventory, WHOLE)) {
            // As the API server checks it: a DNS label, and short strings.
            let is_label = device.name.len() <= 63
                && device
                    .name
                    .bytes()
                    .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
                && !device.name.starts_with('-')
                && !device.name.ends_with('-');
            prop_assert!(is_label, "{}", device.name);
            for (name, attribute) in device.attributes.iter().flatten() {
                let text = attribute
                    .string
                    .as_deref()
                    .or(attribute.version.as_deref())
                    .unwrap_or_default();
                prop_assert!(text.len() <= 64, "{name}: {text}");
            }
        }
        for (_, gpu) in inventory.by_index() {
            let Gpu { uuid, .. } = gpu;
            prop_assert!(!uuid.contains('/') && !uuid.is_empty(), "{}", uuid);
        }
        Ok(())
    };
    for seed in &seeds {
        check(seed).expect("a seed");
    }
    proptest!(config(), |(which in 0..seeds.len(), edits in edits())| {
        check(&edited(&seeds[which], &edits))?;
    });
}
