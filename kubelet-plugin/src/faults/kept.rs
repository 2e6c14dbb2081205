//! The faults in two files, of which either may vanish: one on the disk, one in the memory of this boot.
//!
//! The slices have the faults too, as taints, but kubelet deletes those whenever it starts, and a plugin that starts
//! must not need the API server.
//!
//! How it fails: a file that is missing, damaged or of another boot counts for nothing, and is written again at the next
//! look. One that the other instance of a rolling update wrote is read at the next look: faults that are new in it begin
//! here, and those that it had before have ended. A file that is gone or damaged ends none. A file that cannot be written
//! is logged once.

use super::conditions::{Ended, Kept, KeptGpu};
use crate::files;
use serde::{Deserialize, Serialize};
use std::io;
use std::path::PathBuf;

/// Every GPU of a large node needs much less.
const MAX_SIZE: usize = 1 << 20;

/// The two files.
#[derive(Debug)]
pub struct Files {
    boot: String,
    places: [Place; 2],
}

#[derive(Debug)]
struct Place {
    path: PathBuf,
    /// Its content when it was last read or written.
    content: Option<Vec<u8>>,
    /// Why it could not be written.
    failure: Option<String>,
}

/// The change that another instance made to a file.
#[derive(Debug, PartialEq, Eq)]
pub struct Written {
    pub kept: Kept,
    /// Faults that were in the file before, and are not any more.
    pub ended: Ended,
}

#[derive(Serialize, Deserialize)]
struct Record {
    boot: String,
    gpus: Kept,
}

// === impl Files ===

impl Files {
    /// `boot` is this boot's id.
    #[must_use]
    pub fn new(boot: String, disk: PathBuf, run: PathBuf) -> Self {
        let place = |path| Place {
            path,
            content: None,
            failure: None,
        };
        Self {
            boot,
            places: [disk, run].map(place),
        }
    }

    /// Returns what was written by others since the last look.
    pub fn changed(&mut self) -> Vec<Written> {
        let boot = &self.boot;
        let read = |place: &mut Place| {
            let content = files::read_bounded(&place.path, MAX_SIZE).ok();
            if content == place.content {
                return None;
            }
            let before = std::mem::replace(&mut place.content, content);
            let kept = match place.content.as_deref().map(|new| parse(new, boot))? {
                Ok(kept) => kept?,
                Err(error) => {
                    tracing::warn!("{} is damaged and is written anew: {error}", place.path.display());
                    return None;
                }
            };
            let before = before.and_then(|before| parse(&before, boot).ok().flatten());
            let ended = before.unwrap_or_default().lacks(&kept);
            Some(Written { kept, ended })
        };
        self.places.iter_mut().filter_map(read).collect()
    }

    /// Writes the files that have something else.
    pub fn write(&mut self, kept: &Kept) {
        let record = Record {
            boot: self.boot.clone(),
            gpus: kept.clone(),
        };
        let written = serde_json::to_vec(&record).map_err(io::Error::from);
        for place in &mut self.places {
            let written = match &written {
                Ok(bytes) if place.content.as_ref() == Some(bytes) => continue,
                Ok(bytes) => files::replace(&place.path, bytes, 0o600).map(|()| bytes.clone()),
                Err(error) => Err(io::Error::other(error.to_string())),
            };
            place.failure = match written {
                Ok(bytes) => {
                    place.content = Some(bytes);
                    None
                }
                Err(error) => {
                    let failure = error.to_string();
                    if place.failure.as_ref() != Some(&failure) {
                        tracing::warn!(
                            "{} cannot be written, and a restart may forget faults of GPUs: {failure}",
                            place.path.display()
                        );
                    }
                    Some(failure)
                }
            };
        }
    }
}

/// The faults in a file; None if they are of another boot.
fn parse(content: &[u8], boot: &str) -> serde_json::Result<Option<Kept>> {
    let record: Record = serde_json::from_slice(content)?;
    Ok((record.boot == boot).then(|| record.gpus.valid()))
}

// === impl Kept ===

impl Kept {
    /// The faults that `after` does not have any more.
    fn lacks(&self, after: &Self) -> Ended {
        let all = |kept: &Self| -> Ended {
            let of = |(uuid, gpu): (&String, &KeptGpu)| -> Vec<_> {
                gpu.faults.iter().map(|fault| (uuid.clone(), fault.reason)).collect()
            };
            kept.0.iter().flat_map(of).collect()
        };
        &all(self) - &all(after)
    }

    /// Without faults that no taint could have.
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
    use super::*;
    use crate::inventory::{Fault, Reason};
    use std::collections::BTreeMap;
    use std::path::Path;

    fn kept(value: &str) -> Kept {
        let fault = Fault {
            reason: Reason::Xid,
            value: value.into(),
            counts: true,
        };
        let gpu = KeptGpu {
            uncorrected: Some(3),
            faults: vec![fault],
        };
        Kept(BTreeMap::from([("GPU-0".into(), gpu)]))
    }

    fn open(folder: &Path, boot: &str) -> Files {
        Files::new(boot.into(), folder.join("disk"), folder.join("run"))
    }

    /// The faults that others wrote.
    fn found(files: &mut Files) -> Vec<Kept> {
        files.changed().into_iter().map(|written| written.kept).collect()
    }

    #[test]
    fn either_file_may_vanish_or_be_damaged_and_is_written_again() {
        let folder = tempfile::tempdir().expect("a folder");
        for name in ["disk", "run"] {
            let mut files = open(folder.path(), "b");
            files.write(&kept("79"));
            for damage in [None, Some(&b""[..]), Some(b"{\"boot\":\"b\"}"), Some(&[0xff; 10])] {
                let path = folder.path().join(name);
                match damage {
                    None => std::fs::remove_file(&path).expect("removed"),
                    Some(bytes) => std::fs::write(&path, bytes).expect("written"),
                }
                assert_eq!(found(&mut open(folder.path(), "b")), [kept("79")], "{name} {damage:?}");
                assert_eq!(files.changed(), [], "damage is nothing new");
                files.write(&kept("79"));
                assert_eq!(found(&mut open(folder.path(), "b")), [kept("79"), kept("79")]);
            }
        }
        assert_eq!(open(folder.path(), "another boot").changed(), []);
    }

    #[test]
    fn what_the_other_instance_wrote_is_read_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let (mut one, mut other) = (open(folder.path(), "b"), open(folder.path(), "b"));
        one.write(&kept("79"));
        assert_eq!(one.changed(), [], "its own");
        assert_eq!(found(&mut other), [kept("79"), kept("79")]);
        assert_eq!(other.changed(), []);
        other.write(&kept("48"));
        assert_eq!(found(&mut one), [kept("48"), kept("48")]);
    }

    #[test]
    fn a_fault_that_the_other_instance_ended_is_told_and_a_file_that_is_gone_ends_none() {
        let folder = tempfile::tempdir().expect("a folder");
        let (mut one, mut other) = (open(folder.path(), "b"), open(folder.path(), "b"));
        one.write(&kept("79"));
        other.write(&kept("79"));
        assert_eq!(one.changed(), [], "the same again");
        other.write(&Kept::default());
        let told = one.changed();
        let xid = Ended::from([("GPU-0".to_owned(), Reason::Xid)]);
        assert!(
            told.len() == 2 && told.iter().all(|written| written.ended == xid),
            "{told:?}"
        );
        one.write(&kept("79"));
        for name in ["disk", "run"] {
            std::fs::remove_file(folder.path().join(name)).expect("removed");
        }
        assert_eq!(one.changed(), []);
        other.write(&Kept::default());
        found(&mut other);
        other.write(&Kept::default());
        assert!(
            one.changed().iter().all(|written| written.ended.is_empty()),
            "nothing is known of what it had"
        );
    }

    #[test]
    fn a_fault_that_no_taint_could_have_is_dropped_and_a_folder_that_is_not_there_stops_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        for value in ["", "-1", "a b", "ü", &"7".repeat(64)] {
            open(folder.path(), "b").write(&kept(value));
            let read = found(&mut open(folder.path(), "b"));
            assert!(read.iter().all(|kept| kept.0["GPU-0"].faults.is_empty()), "{value}");
        }
        let mut nowhere = open(&folder.path().join("none"), "b");
        nowhere.write(&kept("79"));
        assert_eq!(nowhere.changed(), []);
    }
}
