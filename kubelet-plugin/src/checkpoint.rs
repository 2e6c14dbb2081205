//! Prepared claims, and their format on disk. `records` has a file for each claim in this format; releases before it had
//! one file for all claims, which is read here once and replaced by those.
//!
//! ```text
//! {"version":1,"crc32":"1a2b3c4d","payload":{"claims":{"<uid>":{...}},"gpus":{...},"boot":"..."}}
//! ```
//!
//! The checksum covers the payload's bytes as written, so that a release that adds a field still reads what
//! an older one wrote. A field added within a version must have a default.
//!
//! Failure modes: a file that is truncated, edited or of another version is reported as damage with its reason.
//! - An older release that starts after this one finds no checkpoint, and rebuilds it from the claim directories: each has
//!   a copy of its claim in the format that this release reads. A checkpoint that stayed would make it remove the claims
//!   that are not in it, so it is removed as soon as every claim has its files.
//! - An older release that runs beside this one writes its checkpoint again after each removal. What it prepared is found
//!   by the claim directories, and what it unprepared by their absence (`node::former`).

use crate::arbitration::SLOTS;
use crate::files::{self, safe_name};
use crate::inventory::Gpu;
use crate::share::{ClaimId, Share};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};
use vgpu_abi::checksum::crc32;
use vgpu_api::request::{CORES_MAX, HOST_MEMORY_MAX};

const VERSION: u32 = 1;
/// A thousand claims take less than a megabyte.
const MAX_SIZE: usize = 64 << 20;

/// All prepared claims, by UID.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkpoint {
    pub claims: BTreeMap<String, Entry>,
    /// The GPUs on which claims hold shares, by UUID and as they were published. A GPU that is lost stays
    /// published after a restart.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub gpus: BTreeMap<String, Gpu>,
    /// In a claim's file: the boot of the machine in which it was prepared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot: Option<String>,
}

/// One prepared claim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    pub namespace: String,
    pub name: String,
    /// Digest of the library to which the claim is bound since its first Prepare.
    #[serde(deserialize_with = "safe_name")]
    pub library: String,
    /// In the order of the claim's results.
    pub shares: Vec<Held>,
    /// The pods that it was reserved for when it was last prepared: they name it in texts, and their containers may lack its
    /// mounts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pods: Vec<Pod>,
}

/// A pod of a claim, in the claim's namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pod {
    pub name: String,
    pub uid: String,
}

/// A share with its slot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    #[serde(flatten)]
    pub share: Share,
    /// Its file in the GPU's arbitration directory; `None` for a monitor.
    pub slot: Option<u8>,
}

/// Why a file is not a valid checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    #[error("is not what this plugin writes: {0}")]
    Format(String),
    #[error("has version {0}, and this release reads version {VERSION}")]
    Version(u32),
    #[error("has checksum {found} instead of {said}: it was truncated or edited")]
    Checksum { said: String, found: String },
    #[error("cannot be read: {0}")]
    Unreadable(String),
}

/// Identifies a state of the file: inode, time of change, size.
pub type Stamp = (u64, i64, i64, u64);

/// The file of an older release.
#[derive(Clone, Debug)]
pub struct FormerFile {
    path: PathBuf,
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

// === impl Entry ===

impl Entry {
    /// Takes over what only the API server knows, for an entry with the results of these shares.
    pub(crate) fn name_as(&mut self, id: &ClaimId, shares: &[Share]) {
        for (held, share) in self.shares.iter_mut().zip(shares) {
            held.share = share.clone();
        }
        (self.namespace, self.name) = (id.namespace.clone(), id.name.clone());
    }

    /// The claim with this UID.
    #[must_use]
    pub fn id(&self, uid: &str) -> ClaimId {
        ClaimId {
            namespace: self.namespace.clone(),
            name: self.name.clone(),
            uid: uid.to_owned(),
        }
    }
}

// === impl Checkpoint ===

impl Checkpoint {
    /// Renders the file's content.
    ///
    /// # Errors Never for these types; serde_json's signature has one.
    pub fn render(&self) -> serde_json::Result<Vec<u8>> {
        let payload = serde_json::value::to_raw_value(self)?;
        let mut bytes = serde_json::to_vec(&Sealed {
            version: VERSION,
            crc32: format!("{:08x}", crc32(payload.get().as_bytes())),
            payload: &payload,
        })?;
        bytes.push(b'\n');
        Ok(bytes)
    }

    /// # Errors
    /// The content was not written by [`Checkpoint::render`].
    pub fn parse(bytes: &[u8]) -> Result<Self, Damage> {
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
        let checkpoint: Self = serde_json::from_str(sealed.payload.get()).map_err(format)?;
        checkpoint.check().map_err(Damage::Format)?;
        Ok(checkpoint)
    }

    /// Amounts and slots are added up and used as indices: those that no GPU can have are damage.
    fn check(&self) -> Result<(), String> {
        for held in self.claims.values().flat_map(|entry| &entry.shares) {
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

    /// Every share on a GPU, with its claim.
    pub fn on_gpu<'a>(&'a self, gpu: &'a str) -> impl Iterator<Item = (&'a Entry, &'a Held)> {
        let all = self.claims.values();
        all.flat_map(|entry| entry.shares.iter().map(move |held| (entry, held)))
            .filter(move |(_, held)| held.share.gpu == gpu)
    }
}

// === impl FormerFile ===

impl FormerFile {
    #[must_use]
    pub fn new(path: PathBuf) -> Self {
        Self { path }
    }

    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the checkpoint; `None` if there is none.
    ///
    /// # Errors
    /// The damage of the file.
    pub fn load(&self) -> Result<Option<Checkpoint>, Damage> {
        match files::read_bounded(&self.path, MAX_SIZE) {
            Ok(bytes) if bytes.len() > MAX_SIZE => Err(Damage::Format(format!("more than {MAX_SIZE} bytes"))),
            Ok(bytes) => Checkpoint::parse(&bytes).map(Some),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Damage::Unreadable(error.to_string())),
        }
    }

    /// Removes the file, if it exists.
    ///
    /// # Errors
    /// It cannot be removed.
    pub fn remove(&self) -> io::Result<()> {
        match std::fs::remove_file(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Renames a damaged file, so that it can be inspected, and returns its new path.
    ///
    /// # Errors
    /// It cannot be renamed.
    pub fn set_aside(&self) -> io::Result<PathBuf> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut name = self.path.as_os_str().to_owned();
        name.push(format!(".damaged-{}", now.as_millis()));
        let aside = PathBuf::from(name);
        std::fs::rename(&self.path, &aside)?;
        Ok(aside)
    }

    /// Returns the state of the file on disk; `None` if it does not exist.
    #[must_use]
    pub fn stamp(&self) -> Option<Stamp> {
        let found = std::fs::metadata(&self.path).ok()?;
        Some((found.ino(), found.mtime(), found.mtime_nsec(), found.size()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::share::tests::share;

    const GOLDEN: &[u8] = include_bytes!("../testdata/checkpoint-v1.json");

    fn example() -> Checkpoint {
        let held = Held {
            share: share("6e2a4c1e-0d5c-4f0e-9a5b-0c5b1f1b2a3c"),
            slot: Some(3),
        };
        let entry = Entry {
            namespace: "default".into(),
            name: "quarter".into(),
            library: "0".repeat(64),
            shares: vec![held],
            pods: Vec::new(),
        };
        Checkpoint {
            claims: BTreeMap::from([("5c0f3b9a-0000-4000-8000-000000000001".to_owned(), entry)]),
            ..Checkpoint::default()
        }
    }

    #[test]
    fn version_1_is_read_as_it_was_first_written() {
        assert_eq!(Checkpoint::parse(GOLDEN), Ok(example()));
        assert_eq!(
            String::from_utf8_lossy(&example().render().expect("bytes")),
            String::from_utf8_lossy(GOLDEN)
        );
    }

    #[test]
    fn every_cut_and_every_changed_byte_is_noticed() {
        for end in 0..GOLDEN.len() - 1 {
            assert!(Checkpoint::parse(&GOLDEN[..end]).is_err(), "cut at {end}");
        }
        for at in 0..GOLDEN.len() - 1 {
            let mut changed = GOLDEN.to_vec();
            changed[at] ^= 1;
            assert_ne!(Checkpoint::parse(&changed), Ok(example()), "byte {at} changed");
        }
    }

    #[test]
    fn a_field_of_a_later_release_does_no_harm() {
        let payload = r#"{"claims":{},"later":[1,2]}"#;
        let text = format!(
            r#"{{"version":1,"crc32":"{:08x}","payload":{payload},"more":true}}"#,
            crc32(payload.as_bytes())
        );
        assert_eq!(Checkpoint::parse(text.as_bytes()), Ok(Checkpoint::default()));
        assert_eq!(Checkpoint::parse(br#"{"version":2}"#), Err(Damage::Version(2)));
    }

    #[test]
    fn the_file_of_an_older_release_is_read_removed_or_set_aside() {
        let dir = tempfile::tempdir().expect("a folder");
        let former = FormerFile::new(dir.path().join("checkpoint.json"));
        assert_eq!((former.load(), former.stamp()), (Ok(None), None));
        std::fs::write(former.path(), GOLDEN).expect("written");
        assert_eq!(former.load(), Ok(Some(example())));
        former.remove().expect("removed");
        former.remove().expect("gone");
        std::fs::write(former.path(), "garbage").expect("written");
        assert!(matches!(former.load(), Err(Damage::Format(_))));
        let aside = former.set_aside().expect("moved");
        assert_eq!(std::fs::read_to_string(aside).expect("kept"), "garbage");
        assert_eq!(former.load(), Ok(None));
    }
}
