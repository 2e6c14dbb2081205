//! The faults of this boot in one file, `/run/vgpu/faults.json`.
//!
//! The slices have the faults too, as taints, but kubelet deletes those whenever it starts, and a plugin that starts must
//! not need the API server. Only the instance that publishes writes the file; the next one reads it when it takes over.
//!
//! How it fails: a file that is missing, damaged or of another boot has no faults, and is written at the next sample. A file
//! that cannot be written is logged once, and a restart then forgets the XIDs.

use super::open_faults::Kept;
use serde::{Deserialize, Serialize};
use std::io;
use std::path::PathBuf;
use vgpu_node::files;

/// Limit of the file's size. All GPUs of a large node together need much less.
const MAX_SIZE: usize = 1 << 20;

#[derive(Debug)]
pub struct FaultStore {
    path: PathBuf,
    /// This boot's id.
    boot: String,
    /// The content of the file if this process wrote it.
    written: Option<Kept>,
    /// Why it could not be written.
    failure: Option<String>,
}

#[derive(Serialize, Deserialize)]
struct Record {
    boot: String,
    gpus: Kept,
}

// === impl FaultStore ===

impl FaultStore {
    #[must_use]
    pub fn new(path: PathBuf, boot: String) -> Self {
        Self {
            path,
            boot,
            written: None,
            failure: None,
        }
    }

    /// Reads the faults of former instances.
    #[must_use]
    pub fn read(&self) -> Kept {
        let content = match files::read_bounded(&self.path, MAX_SIZE) {
            Ok(content) => content,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Kept::default(),
            Err(error) => {
                tracing::warn!("{} cannot be read: {error}", self.path.display());
                return Kept::default();
            }
        };
        match serde_json::from_slice::<Record>(&content) {
            Ok(record) if record.boot == self.boot => record.gpus.valid(),
            Ok(_) => Kept::default(),
            Err(error) => {
                tracing::warn!("{} is damaged and will be replaced: {error}", self.path.display());
                Kept::default()
            }
        }
    }

    /// Writes the faults if they changed, or if the file is missing.
    pub fn write(&mut self, kept: Kept) {
        if self.written.as_ref() == Some(&kept) && self.path.exists() {
            return;
        }
        let record = Record {
            boot: self.boot.clone(),
            gpus: kept,
        };
        let bytes = serde_json::to_vec(&record).map_err(io::Error::from);
        match bytes.and_then(|bytes| files::replace(&self.path, &bytes, 0o600)) {
            Ok(()) => (self.written, self.failure) = (Some(record.gpus), None),
            Err(error) => {
                let failure = Some(error.to_string());
                if self.failure != failure {
                    tracing::warn!(
                        "{} cannot be written, and a restart may forget faults of GPUs: {error}",
                        self.path.display()
                    );
                }
                self.failure = failure;
            }
        }
    }
}

// === impl Kept ===

impl Kept {
    /// Removes faults that no taint could have.
    fn valid(mut self) -> Self {
        let is_label = |value: &str| {
            let inner = |b: u8| b.is_ascii_alphanumeric() || b == b'-';
            (1..=63).contains(&value.len())
                && value.bytes().all(inner)
                && !value.starts_with('-')
                && !value.ends_with('-')
        };
        for gpu in self.0.values_mut() {
            gpu.faults.retain(|fault| is_label(&fault.value));
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::super::open_faults::KeptGpu;
    use super::*;
    use crate::publish::inventory::{Fault, Reason};
    use std::collections::BTreeMap;
    use std::path::Path;

    fn kept(value: &str) -> Kept {
        let fault = Fault {
            reason: Reason::Xid,
            value: value.into(),
            blocks: true,
        };
        let gpu = KeptGpu {
            uncorrected: Some(3),
            faults: vec![fault],
        };
        Kept(BTreeMap::from([("GPU-0".into(), gpu)]))
    }

    fn open(folder: &Path, boot: &str) -> FaultStore {
        FaultStore::new(folder.join("faults.json"), boot.into())
    }

    #[test]
    fn faults_outlive_the_plugin_and_not_the_boot() {
        let folder = tempfile::tempdir().expect("a folder");
        assert_eq!(open(folder.path(), "b").read(), Kept::default());
        open(folder.path(), "b").write(kept("79"));
        assert_eq!(open(folder.path(), "b").read(), kept("79"));
        assert_eq!(open(folder.path(), "another boot").read(), Kept::default());
    }

    #[test]
    fn a_file_that_is_lost_is_written_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut store = open(folder.path(), "b");
        for _ in 0..2 {
            store.write(kept("79"));
            assert_eq!(store.read(), kept("79"));
            std::fs::remove_file(folder.path().join("faults.json")).expect("removed");
        }
    }

    #[test]
    fn a_damaged_file_has_no_faults_and_is_replaced() {
        let folder = tempfile::tempdir().expect("a folder");
        for damage in [&b""[..], b"{\"boot\":\"b\"}", &[0xff; 10]] {
            std::fs::write(folder.path().join("faults.json"), damage).expect("written");
            let mut store = open(folder.path(), "b");
            assert_eq!(store.read(), Kept::default(), "{damage:?}");
            store.write(kept("79"));
            assert_eq!(open(folder.path(), "b").read(), kept("79"), "{damage:?}");
        }
    }

    #[test]
    fn a_fault_that_no_taint_could_have_is_dropped_and_a_missing_folder_stops_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        for value in ["", "-1", "a b", "ü", &"7".repeat(64)] {
            open(folder.path(), "b").write(kept(value));
            assert!(open(folder.path(), "b").read().0["GPU-0"].faults.is_empty(), "{value}");
        }
        let mut nowhere = open(&folder.path().join("none"), "b");
        nowhere.write(kept("79"));
        assert_eq!(nowhere.read(), Kept::default());
    }
}
