//! The checkpoint: the prepared claims of this node, on disk.
//!
//! ```text
//! {"version":1,"crc32":"1a2b3c4d","payload":{"claims":{"<uid>":{...}}}}
//! ```
//!
//! The checksum covers the payload's bytes as written, so that a release that adds a field still reads what
//! an older one wrote. A field added within a version must have a default.
//!
//! Failure modes: a crash while writing leaves the old file (atomic replacement). A file that is truncated,
//! edited or of another version is reported as damage with its reason; `node::recover` moves it aside and
//! rebuilds it. Each claim directory has a copy of its entry in the same format, from which it is rebuilt.

use crate::files;
use crate::inventory::Gpu;
use crate::share::{ClaimId, Share};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};
use vgpu_abi::checksum::crc32;

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
}

/// One prepared claim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    pub namespace: String,
    pub name: String,
    /// Digest of the library to which the claim is bound since its first Prepare.
    pub library: String,
    /// In the order of the claim's results.
    pub shares: Vec<Held>,
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
    /// Every start leaves a file, so a missing one is damage too.
    #[error("is gone")]
    Gone,
}

/// Identifies a state of the file: inode, time of change, size.
pub type Stamp = (u64, i64, i64, u64);

/// The checkpoint's file.
#[derive(Clone, Debug)]
pub struct Store {
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
        serde_json::from_str(sealed.payload.get()).map_err(format)
    }

    /// A checkpoint of one claim.
    #[must_use]
    pub fn of(uid: &str, entry: &Entry) -> Self {
        Self {
            claims: BTreeMap::from([(uid.to_owned(), entry.clone())]),
            ..Self::default()
        }
    }

    /// Every share on a GPU, with its claim.
    pub fn on_gpu<'a>(&'a self, gpu: &'a str) -> impl Iterator<Item = (&'a Entry, &'a Held)> {
        let all = self.claims.values();
        all.flat_map(|entry| entry.shares.iter().map(move |held| (entry, held)))
            .filter(move |(_, held)| held.share.gpu == gpu)
    }
}

// === impl Store ===

impl Store {
    #[must_use]
    pub fn new(path: PathBuf) -> Self {
        Self { path }
    }

    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the checkpoint; `None` before the first save.
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

    /// # Errors
    /// The first step that failed; the old file is then still in place.
    pub fn save(&self, checkpoint: &Checkpoint) -> io::Result<()> {
        files::replace(&self.path, &checkpoint.render()?, 0o600)
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

    /// Makes others read the file again, without writing to it.
    ///
    /// # Errors
    /// The file's time cannot be set.
    pub fn touch(&self) -> io::Result<()> {
        File::options()
            .write(true)
            .open(&self.path)?
            .set_modified(SystemTime::now())
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
        };
        Checkpoint::of("5c0f3b9a-0000-4000-8000-000000000001", &entry)
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
    fn a_store_replaces_and_sets_aside() {
        let dir = tempfile::tempdir().expect("a folder");
        let store = Store::new(dir.path().join("checkpoint.json"));
        assert_eq!(store.load(), Ok(None));
        assert_eq!(store.stamp(), None);
        store.save(&example()).expect("saved");
        let first = store.stamp();
        assert_eq!(store.load(), Ok(Some(example())));
        store.save(&Checkpoint::default()).expect("saved");
        assert_ne!(store.stamp(), first);
        std::fs::write(store.path(), "garbage").expect("written");
        assert!(matches!(store.load(), Err(Damage::Format(_))));
        let aside = store.set_aside().expect("moved");
        assert_eq!(std::fs::read_to_string(aside).expect("kept"), "garbage");
        assert_eq!(store.load(), Ok(None));
    }
}
