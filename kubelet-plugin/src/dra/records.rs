//! The record of each prepared claim, `<run>/claims/<uid>/entry.json`. There is one copy, beside the files that the claim's
//! containers mount: an accident that removes it removes the sources of these mounts too.
//!
//! ```text
//! {"version":1,"crc32":"1a2b3c4d","payload":{"uid":"...","claim":{...},"gpus":{...}}}
//! ```
//!
//! The checksum covers the payload's bytes as they were written, so that a release that adds a field still reads the records
//! of an older one. A field added within a version must have a default. A record is replaced by rename and not synced: the
//! page cache outlives this process, and `/run` does not outlive the machine.
//!
//! How it fails:
//! - A record is damaged, or it is gone and the claim's CDI file is not: the limits files say which shares the claim has
//!   (`node::recover`).
//! - A crash: the record is written before the CDI file and removed after it, so a claim directory without both belongs to a
//!   Prepare or an Unprepare that did not end.
//! - A reboot empties `/run`. kubelet prepares again what it starts again.
//! - `/run` is full: a record is removed without room, and a new claim is refused.

use crate::arbitration::SLOTS;
use crate::dra::checkpoint::Entry;
use crate::dra::claimdir::{self, ClaimDirs};
use crate::dra::share::Share;
use crate::files;
use crate::publish::inventory::Gpu;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use vgpu_abi::checksum::crc32;
use vgpu_api::request::{CORES_MAX, HOST_MEMORY_MAX};

const VERSION: u32 = 1;
const MAX_SIZE: usize = 1 << 20;

/// A prepared claim, as stored in its file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    uid: String,
    pub(crate) claim: Entry,
    /// The GPUs of its shares, by UUID and as they were published.
    pub(crate) gpus: BTreeMap<String, Gpu>,
}

/// Why a file is not a valid record.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Damage {
    #[error("is not what this plugin writes: {0}")]
    Format(String),
    #[error("has version {0}, and this release reads version {VERSION}")]
    Version(u32),
    #[error("has checksum {found} instead of {said}: it was truncated or edited")]
    Checksum { said: String, found: String },
    #[error("cannot be read: {0}")]
    Unreadable(String),
}

#[derive(Deserialize)]
struct Version {
    version: u32,
}

#[derive(Serialize, Deserialize)]
struct Sealed<'a> {
    version: u32,
    crc32: String,
    #[serde(borrow)]
    payload: &'a RawValue,
}

/// Reads the record of each claim that has a directory. `None`: the directory has no record.
///
/// # Errors
/// The claim directories cannot be listed.
pub(crate) fn read(dirs: &ClaimDirs) -> Result<BTreeMap<String, Option<Result<Record, Damage>>>, claimdir::Error> {
    let uids = dirs.uids()?.into_iter();
    Ok(uids.map(|uid| (uid.clone(), read_one(dirs, &uid))).collect())
}

fn read_one(dirs: &ClaimDirs, uid: &str) -> Option<Result<Record, Damage>> {
    match files::read_bounded(&dirs.entry_path(uid), MAX_SIZE) {
        Ok(bytes) if bytes.len() > MAX_SIZE => Some(Err(Damage::Format(format!("more than {MAX_SIZE} bytes")))),
        Ok(bytes) => Some(Record::parse(uid, &bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => Some(Err(Damage::Unreadable(error.to_string()))),
    }
}

/// Writes the record of a claim, whose directory exists, if it differs. Returns true if it was written.
///
/// # Errors
/// The file cannot be written, and why.
pub(crate) fn save(
    dirs: &ClaimDirs,
    uid: &str,
    claim: &Entry,
    gpus: BTreeMap<String, Gpu>,
) -> Result<bool, (PathBuf, io::Error)> {
    let path = dirs.entry_path(uid);
    let record = Record {
        uid: uid.to_owned(),
        claim: claim.clone(),
        gpus,
    };
    // Compare the records, not the bytes: a later release may have written fields that this one does not know.
    if read_one(dirs, uid) == Some(Ok(record.clone())) {
        return Ok(false);
    }
    let bytes = record.render().map_err(io::Error::from);
    let written = bytes.and_then(|bytes| files::replace(&path, &bytes, 0o600));
    written.map(|()| true).map_err(|error| (path, error))
}

/// Removes the record of a claim, if there is one.
///
/// # Errors
/// The file cannot be removed, and why.
pub(crate) fn remove(dirs: &ClaimDirs, uid: &str) -> Result<(), (PathBuf, io::Error)> {
    let path = dirs.entry_path(uid);
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err((path, error)),
        _ => Ok(()),
    }
}

// === impl Record ===

impl Record {
    fn render(&self) -> serde_json::Result<Vec<u8>> {
        let payload = serde_json::value::to_raw_value(self)?;
        let mut bytes = serde_json::to_vec(&Sealed {
            version: VERSION,
            crc32: format!("{:08x}", crc32(payload.get().as_bytes())),
            payload: &payload,
        })?;
        bytes.push(b'\n');
        Ok(bytes)
    }

    pub(crate) fn parse(uid: &str, bytes: &[u8]) -> Result<Self, Damage> {
        let format = |error: serde_json::Error| Damage::Format(error.to_string());
        let Version { version } = serde_json::from_slice(bytes).map_err(format)?;
        if version != VERSION {
            return Err(Damage::Version(version));
        }
        let sealed: Sealed<'_> = serde_json::from_slice(bytes).map_err(format)?;
        let found = format!("{:08x}", crc32(sealed.payload.get().as_bytes()));
        if found != sealed.crc32 {
            return Err(Damage::Checksum {
                said: sealed.crc32,
                found,
            });
        }
        let record: Self = serde_json::from_str(sealed.payload.get()).map_err(format)?;
        record.check(uid).map_err(Damage::Format)?;
        Ok(record)
    }

    /// Amounts are added up and slots are used as indices, so amounts and slots that no GPU can have are damage.
    fn check(&self, uid: &str) -> Result<(), String> {
        if self.uid != uid {
            return Err(format!("it is the record of claim {:?}", self.uid));
        }
        for held in &self.claim.shares {
            let Share {
                name,
                memory,
                host_memory,
                cores,
                ..
            } = &held.share;
            let fits = *memory <= HOST_MEMORY_MAX && *host_memory <= HOST_MEMORY_MAX && *cores <= CORES_MAX;
            if !fits || held.slot.is_some_and(|slot| slot >= SLOTS) {
                return Err(format!(
                    "share {name} has {memory} bytes, {host_memory} of the host's, {cores} cores and slot {:?}",
                    held.slot
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dra::checkpoint::Held;
    use crate::dra::share::tests::share;
    use crate::publish::inventory::tests::gpu;
    use proptest::prelude::*;

    const GOLDEN: &[u8] = include_bytes!("../../testdata/claim-v1.json");
    const UID: &str = "5c0f3b9a-0000-4000-8000-000000000001";

    fn record() -> Record {
        let held = Held {
            share: share("6e2a4c1e-0d5c-4f0e-9a5b-0c5b1f1b2a3c"),
            slot: Some(3),
        };
        Record {
            uid: UID.into(),
            claim: Entry {
                namespace: "default".into(),
                name: "quarter".into(),
                library: "0".repeat(64),
                shares: vec![held],
                pods: Vec::new(),
            },
            gpus: BTreeMap::from([(gpu(0).uuid, gpu(0))]),
        }
    }

    fn sealed(payload: &str) -> String {
        let crc = crc32(payload.as_bytes());
        format!(r#"{{"version":1,"crc32":"{crc:08x}","payload":{payload},"more":true}}"#)
    }

    #[test]
    fn version_1_is_read_as_it_was_first_written() {
        assert_eq!(Record::parse(UID, GOLDEN), Ok(record()));
        let rendered = record().render().expect("bytes");
        assert_eq!(String::from_utf8_lossy(&rendered), String::from_utf8_lossy(GOLDEN));
    }

    #[test]
    fn every_cut_and_every_changed_byte_is_noticed() {
        for end in 0..GOLDEN.len() - 1 {
            assert!(Record::parse(UID, &GOLDEN[..end]).is_err(), "cut at {end}");
        }
        for at in 0..GOLDEN.len() - 1 {
            let mut changed = GOLDEN.to_vec();
            changed[at] ^= 1;
            assert_ne!(Record::parse(UID, &changed), Ok(record()), "byte {at} changed");
        }
        assert!(Record::parse("another", GOLDEN).is_err());
    }

    #[test]
    fn a_field_of_a_later_release_does_no_harm() {
        let mut payload = serde_json::to_value(record()).expect("JSON");
        payload["later"] = serde_json::json!([1, 2]);
        assert_eq!(
            Record::parse(UID, sealed(&payload.to_string()).as_bytes()),
            Ok(record())
        );
        assert_eq!(Record::parse(UID, br#"{"version":2}"#), Err(Damage::Version(2)));
        // The file stays until something else changes.
        let folder = tempfile::tempdir().expect("a folder");
        let (dirs, mut known) = (ClaimDirs::new(folder.path().into(), false), record());
        let path = dirs.entry_path(UID);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        std::fs::write(&path, sealed(&payload.to_string())).expect("written");
        let save = |record: &Record| save(&dirs, UID, &record.claim, record.gpus.clone()).expect("saved");
        assert!(!save(&known));
        known.claim.library = "1".repeat(64);
        assert!(save(&known) && !save(&known));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// Also with a checksum that fits: a later release or another program may have written it.
        #[test]
        fn any_file_is_a_record_or_damage(
            bytes in prop::collection::vec(any::<u8>(), 0..300),
            at in 0..GOLDEN.len(),
            payload in "\\{\"claim\":(null|\\[\\]|\\{[^{}]{0,40}\\})?[^{}]{0,20}\\}",
        ) {
            let _ = Record::parse(UID, &bytes);
            let mut spliced = GOLDEN[..at].to_vec();
            spliced.extend(&bytes);
            let _ = Record::parse(UID, &spliced);
            if let Err(damage) = Record::parse(UID, sealed(&payload).as_bytes()) {
                prop_assert!(!damage.to_string().is_empty());
            }
        }
    }
}
