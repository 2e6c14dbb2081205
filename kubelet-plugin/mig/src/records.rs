//! A file for each instance that claims make, and for each GPU whose mode the plugin switched on.
//!
//! ```text
//! /var/lib/vgpu/mig/                                   0700
//!                   GPU-3f8a1c20-....9.4.json          profile 9 from memory slice 4 on
//!                   GPU-3f8a1c20-....mode.json         MIG mode was off before
//! ```
//!
//! The folder is not below /run: without these files, what a killed plugin leaves would look like an administrator's
//! instance, which is never touched. The format is that of `vgpu_node::sealed`: a field added within a version must have a
//! default, and a release ignores a field that it does not know.
//!
//! A record says: when it was written, nothing overlapped this place, and what is there now was made by a claim. It is
//! written before the instance is made and removed after it was destroyed.
//!
//! Failure modes:
//! - A crash between record and instance, or between the instance's end and that of the record: the record names an instance
//!   that is not there. [`crate::instances`] decides what happens.
//! - A crash while writing: the file is the former or the new one; a temporary file is replaced by the next writer.
//! - Power is lost: no instance outlives that, so only the boot id in the file matters. The first write is synced, so that a
//!   file that cannot be read was edited or is another release's.
//! - A file that was edited, truncated, or is of another version is reported, and kept for as long as an instance is at its
//!   place.
//! - The disk is full: no instance is made. One is still destroyed, and its record removed.

use crate::driver::slices;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;
use vgpu_node::files::{self, Failed, failed, safe_uuid};
use vgpu_node::gpus::{Gpu, Placement};
use vgpu_node::sealed::{self, Damage};

/// The format of a record.
const VERSION: u32 = 1;
/// A record with the claims of 64 shares has some 4 KiB.
const MAX_RECORD: usize = 1 << 18;
const END: &str = ".json";
const MODE: &str = "mode";

/// Where an instance is: one record each.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// UUID.
    pub gpu: String,
    /// The profile's id.
    pub profile: u32,
    /// The first memory slice.
    pub start: u32,
}

/// An instance that claims made, or are about to make.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    /// The boot in which it was made: none outlives one.
    pub boot: String,
    #[serde(deserialize_with = "safe_uuid")]
    pub gpu: String,
    pub profile: u32,
    /// For messages.
    pub profile_name: String,
    pub placement: Placement,
    /// UIDs of the claims that use it. Empty: it is to be destroyed.
    pub claims: BTreeSet<String>,
    pub stage: Stage,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Stage {
    /// It may be there: an instance of this profile in this place is this record's.
    Making,
    Made {
        gpu_instance: u32,
        compute_instance: u32,
        uuid: Option<String>,
    },
    /// It is known not to be there: an instance in its place is somebody else's.
    Absent,
}

/// A GPU whose MIG mode was off before the plugin switched it on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Switched {
    /// The mode does not outlive a boot on GPUs whose mode is switched.
    pub boot: String,
    #[serde(deserialize_with = "safe_uuid")]
    pub gpu: String,
    /// The GPU as it was published: the driver does not say its size in MIG mode, and the plugin may start in that time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub whole: Option<Box<Gpu>>,
}

/// All records.
#[derive(Debug, Default)]
pub struct Records {
    pub instances: BTreeMap<Key, Record>,
    pub switched: Vec<Switched>,
    /// Names of files, and why they cannot be used.
    pub damaged: Vec<(String, Damage)>,
}

/// Small files by name: a folder, or a test's.
pub trait Store {
    /// Replaces a file atomically. `is_synced`: it must outlive a loss of power.
    ///
    /// # Errors
    /// It cannot be written. Then the former file is there.
    fn write(&self, name: &str, bytes: &[u8], is_synced: bool) -> Result<(), Failed>;

    /// Removes a file, if it exists.
    ///
    /// # Errors
    /// It cannot be removed.
    fn remove(&self, name: &str) -> Result<(), Failed>;

    /// Returns all files, or why one cannot be read.
    ///
    /// # Errors
    /// They cannot be listed.
    fn all(&self) -> Result<BTreeMap<String, Result<Vec<u8>, String>>, Failed>;
}

/// The folder of the records.
#[derive(Clone, Debug)]
pub struct Folder(PathBuf);

// === impl Key ===

impl Key {
    #[must_use]
    pub fn file(&self) -> String {
        format!("{}.{}.{}{END}", self.gpu, self.profile, self.start)
    }

    /// Returns the key in the name of a file.
    pub(crate) fn of_file(name: &str) -> Option<Self> {
        let mut parts = name.strip_suffix(END)?.rsplitn(3, '.');
        let (start, profile, gpu) = (parts.next()?, parts.next()?, parts.next()?);
        Some(Self {
            gpu: gpu.to_owned(),
            profile: profile.parse().ok()?,
            start: start.parse().ok()?,
        })
    }
}

// === impl Record ===

impl Record {
    #[must_use]
    pub fn key(&self) -> Key {
        Key {
            gpu: self.gpu.clone(),
            profile: self.profile,
            start: self.placement.start,
        }
    }

    /// # Errors
    /// It cannot be written.
    pub fn save(&self, store: &impl Store, is_synced: bool) -> Result<(), Failed> {
        write(store, &self.key().file(), self, is_synced)
    }

    /// Returns the instance in words, without its GPU.
    pub(crate) fn place(&self) -> String {
        let slices = slices(self.placement);
        format!("{} at memory slices {slices:?}", self.profile_name)
    }
}

impl std::fmt::Display for Record {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} of GPU {}", self.place(), self.gpu)
    }
}

// === impl Switched ===

impl Switched {
    #[must_use]
    pub fn file(&self) -> String {
        format!("{}.{MODE}{END}", self.gpu)
    }

    /// Returns the UUID of the GPU whose mode a file of this name is about.
    #[must_use]
    pub fn gpu_of_file(name: &str) -> Option<&str> {
        name.strip_suffix(END)?.strip_suffix(MODE)?.strip_suffix('.')
    }

    /// # Errors
    /// It cannot be written.
    pub fn save(&self, store: &impl Store) -> Result<(), Failed> {
        write(store, &self.file(), self, true)
    }
}

// === impl Records ===

impl Records {
    /// # Errors
    /// The files cannot be listed.
    pub fn read(store: &impl Store) -> Result<Self, Failed> {
        let mut records = Self::default();
        for (name, bytes) in store.all()? {
            if let Err(damage) = bytes
                .map_err(Damage::Unreadable)
                .and_then(|bytes| records.add(&name, &bytes))
            {
                records.damaged.push((name, damage));
            }
        }
        Ok(records)
    }

    fn add(&mut self, name: &str, bytes: &[u8]) -> Result<(), Damage> {
        if bytes.len() > MAX_RECORD {
            return Err(Damage::Format(format!("more than {MAX_RECORD} bytes")));
        }
        let is_its = |expected: &str| match expected == name {
            true => Ok(()),
            false => Err(Damage::Format(format!("it is the record of {expected}"))),
        };
        match Key::of_file(name) {
            Some(key) => {
                let record: Record = sealed::open(VERSION, bytes)?;
                is_its(&record.key().file())?;
                self.instances.insert(key, record);
            }
            None => {
                let switched: Switched = sealed::open(VERSION, bytes)?;
                is_its(&switched.file())?;
                self.switched.push(switched);
            }
        }
        Ok(())
    }

    /// Returns the record of a GPU whose mode the plugin switched on in this boot.
    #[must_use]
    pub fn switched(&self, gpu: &str, boot: &str) -> Option<&Switched> {
        let mut all = self.switched.iter();
        all.find(|switched| switched.gpu == gpu && switched.boot == boot)
    }

    /// The instances of a GPU.
    pub fn of_gpu(&self, gpu: &str) -> impl Iterator<Item = &Record> {
        self.instances.values().filter(move |record| record.gpu == gpu)
    }
}

fn write(store: &impl Store, name: &str, record: &impl Serialize, is_synced: bool) -> Result<(), Failed> {
    let bytes = sealed::seal(VERSION, record).map_err(io::Error::other);
    let bytes = bytes.map_err(failed("write", name.as_ref()))?;
    store.write(name, &bytes, is_synced)
}

// === impl Folder ===

impl Folder {
    #[must_use]
    pub fn new(path: PathBuf) -> Self {
        Self(path)
    }
}

impl Store for Folder {
    fn write(&self, name: &str, bytes: &[u8], is_synced: bool) -> Result<(), Failed> {
        files::private_folder(&self.0).map_err(failed("create", &self.0))?;
        let path = self.0.join(name);
        let replaced = match is_synced {
            true => files::replace_synced(&path, bytes, 0o600),
            false => files::replace(&path, bytes, 0o600),
        };
        replaced.map_err(failed("write", &path))
    }

    fn remove(&self, name: &str) -> Result<(), Failed> {
        let path = self.0.join(name);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed.map_err(failed("remove", &path)),
        }
    }

    fn all(&self) -> Result<BTreeMap<String, Result<Vec<u8>, String>>, Failed> {
        let names = files::regular_files(&self.0).map_err(failed("list", &self.0))?;
        let records = names.into_iter().filter(|name| name.ends_with(END));
        let read = |name: String| {
            let bytes = files::read_bounded(&self.0.join(&name), MAX_RECORD);
            (name, bytes.map_err(|error| error.to_string()))
        };
        Ok(records.map(read).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::os::unix::fs::PermissionsExt as _;

    const GOLDEN: &str = concat!(
        r#"{"version":1,"crc32":"e4374590","payload":{"boot":"b1","gpu":"GPU-3f8a1c20-1111","profile":9,"#,
        r#""profileName":"3g.40gb","placement":{"start":4,"size":4},"claims":["u1","u2"],"#,
        r#""stage":{"made":{"gpuInstance":2,"computeInstance":0,"uuid":"MIG-1"}}}}"#,
        "\n"
    );
    const NAME: &str = "GPU-3f8a1c20-1111.9.4.json";

    fn record() -> Record {
        Record {
            boot: "b1".into(),
            gpu: "GPU-3f8a1c20-1111".into(),
            profile: 9,
            profile_name: "3g.40gb".into(),
            placement: Placement { start: 4, size: 4 },
            claims: ["u1", "u2"].map(String::from).into(),
            stage: Stage::Made {
                gpu_instance: 2,
                compute_instance: 0,
                uuid: Some("MIG-1".into()),
            },
        }
    }

    fn read(name: &str, bytes: &[u8]) -> Result<Records, Damage> {
        let mut records = Records::default();
        records.add(name, bytes)?;
        Ok(records)
    }

    #[test]
    fn a_folder_keeps_records_and_only_root_reads_them() {
        let dir = tempfile::tempdir().expect("a folder");
        let folder = Folder::new(dir.path().join("mig"));
        assert!(Records::read(&folder).expect("none").instances.is_empty());
        record().save(&folder, true).expect("written");
        let gpu = "GPU-3f8a1c20-1111".to_owned();
        let switched = Switched {
            boot: "b1".into(),
            gpu: gpu.clone(),
            whole: Some(Box::new(Gpu {
                uuid: gpu.clone(),
                memory: 80 << 30,
                ..Gpu::default()
            })),
        };
        switched.save(&folder).expect("written");
        let path = dir.path().join("mig").join(NAME);
        assert_eq!(std::fs::read_to_string(&path).expect("a file"), GOLDEN);
        let mode = std::fs::metadata(dir.path().join("mig"))
            .expect("a folder")
            .permissions()
            .mode();
        assert_eq!(mode & 0o7777, 0o700);
        // Not a record: a crash left it.
        std::fs::write(dir.path().join("mig").join("x.json.new"), "").expect("written");
        let records = Records::read(&folder).expect("listed");
        assert_eq!(records.instances.values().collect::<Vec<_>>(), [&record()]);
        assert_eq!(records.switched(&gpu, "b1"), Some(&switched));
        assert_eq!(records.switched(&gpu, "b2"), None, "the mode does not outlive a boot");
        assert_eq!(records.damaged, []);
        std::fs::write(&path, "{").expect("written");
        let records = Records::read(&folder).expect("listed");
        assert_eq!((records.instances.len(), &records.damaged[0].0), (0, &NAME.to_owned()));
        for name in [NAME, &switched.file(), "absent.json"] {
            folder.remove(name).expect("removed");
        }
        assert!(folder.all().expect("listed").is_empty());
    }

    #[test]
    fn a_record_belongs_to_its_file_and_a_later_field_does_no_harm() {
        assert_eq!(
            read(NAME, GOLDEN.as_bytes()).expect("a record").instances[&record().key()],
            record()
        );
        assert!(read("GPU-3f8a1c20-1111.9.0.json", GOLDEN.as_bytes()).is_err());
        let mut later = serde_json::to_value(record()).expect("JSON");
        later["later"] = serde_json::json!([1]);
        let bytes = sealed::seal(VERSION, &later).expect("bytes");
        assert!(read(NAME, &bytes).is_ok());
        later["gpu"] = "../x".into();
        let bytes = sealed::seal(VERSION, &later).expect("bytes");
        assert!(read("../x.9.4.json", &bytes).is_err(), "no path");
        let version = Damage::Version { found: 2, reads: 1 };
        assert_eq!(read(NAME, br#"{"version":2}"#).err(), Some(version));
        assert_eq!(
            record().to_string(),
            "3g.40gb at memory slices 4..8 of GPU GPU-3f8a1c20-1111"
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_file_is_a_record_or_damage(name in ".{0,30}", at in 0..GOLDEN.len(), byte in any::<u8>()) {
            let mut bytes = GOLDEN.as_bytes().to_vec();
            bytes[at] = byte;
            for name in [&name, NAME] {
                if let Ok(records) = read(name, &bytes) {
                    prop_assert!(records.instances.values().all(|found| *found == record()));
                }
            }
        }
    }
}
