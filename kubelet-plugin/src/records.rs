//! The state of the node: for each prepared claim a file, in two places.
//!
//! ```text
//! <kubelet>/plugins/dra.vgpu/claims/<uid>.json     on the disk
//! <run>/claims/<uid>/entry.json                    beside what the claim's containers mount; gone after a reboot
//! <run>/ended/<uid>                                the claim was unprepared while the disk could not be written
//! <run>/turn                                       the instance that changed the node last
//! ```
//!
//! Both copies have the format of a checkpoint of one claim, with the GPUs that it holds and the boot in which it was
//! prepared. The one in `run` is written first and wins; both are replaced by rename. Nothing is synced: what was written
//! outlives this process in the page cache, and after a power loss nothing runs, so every claim is prepared again.
//!
//! How it fails:
//! - One place or one copy vanishes, or is damaged: the other copy counts. The plugin writes the missing one again.
//! - Both copies are damaged: the limits files of the claim say what it holds (`node::recover`).
//! - A reboot: copies of another boot hold nothing, and remember the claim's release until it is prepared again. A copy of
//!   before that boot that a power loss left empty is removed.
//! - A disk that is full: a copy is removed without room. A disk that cannot be written at all: `ended` says so instead. If
//!   that fails too, the Unprepare fails, and kubelet repeats it. The next start removes the copy, if it can.
//! - A crash between the copies: the claim counts as prepared, and everything that it has was made before.
//! - Two instances: each reads both places anew if the other one had a turn since. Without a file `turn`, always: one that
//!   cannot write it, because the disk is full, removes it.
//! - An older release, which has one checkpoint for all claims, reads the copies in `run`: they have its format.

use crate::checkpoint::{Checkpoint, Damage, Entry};
use crate::claimdir::ClaimDirs;
use crate::files;
use crate::inventory::Gpu;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};
use vgpu_abi::limits::is_share_name;

const SUFFIX: &str = ".json";
const MAX_SIZE: usize = 1 << 20;
const MAX_TURN: usize = 256;

/// The files of all claims.
#[derive(Debug)]
pub(crate) struct Records {
    disk: PathBuf,
    run: ClaimDirs,
    ended: PathBuf,
    turn: PathBuf,
    boot: String,
    /// Names this instance in `turn`.
    instance: String,
}

/// A prepared claim, as its files have it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) entry: Entry,
    /// The GPUs that it holds, as they were published.
    pub(crate) gpus: BTreeMap<String, Gpu>,
    /// None: an older release wrote it.
    pub(crate) boot: Option<String>,
}

/// What is found of a claim in one place. `None`: no file.
type Copy = Option<Result<Record, Damage>>;

/// What both places say of a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It is prepared.
    Held(Record),
    /// It holds nothing, and only its release is remembered.
    Dormant(Record),
    /// It may be prepared, and no copy says what it holds.
    Damaged(Damage),
    /// A damaged file of a claim that holds nothing.
    Leftover,
    /// A claim directory without a copy: a Prepare or Unprepare did not end.
    Orphan,
}

/// Everything that both places have.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) verdicts: BTreeMap<String, Verdict>,
    /// Damaged copies, as (UID, file, damage).
    pub(crate) damages: Vec<(String, PathBuf, Damage)>,
    /// The folder on the disk did not exist, so its copies may have vanished.
    pub(crate) is_first: bool,
}

// === impl Record ===

impl Record {
    fn render(&self, uid: &str) -> io::Result<Vec<u8>> {
        let checkpoint = Checkpoint {
            claims: BTreeMap::from([(uid.to_owned(), self.entry.clone())]),
            gpus: self.gpus.clone(),
            boot: self.boot.clone(),
        };
        Ok(checkpoint.render()?)
    }

    pub(crate) fn parse(uid: &str, bytes: &[u8]) -> Result<Self, Damage> {
        let mut checkpoint = Checkpoint::parse(bytes)?;
        let entry = checkpoint.claims.remove(uid);
        Ok(Self {
            entry: entry.ok_or_else(|| Damage::Format(format!("no claim {uid} in it")))?,
            gpus: checkpoint.gpus,
            boot: checkpoint.boot,
        })
    }
}

// === impl Records ===

impl Records {
    pub(crate) fn new(disk: PathBuf, run: ClaimDirs, run_dir: &Path, boot: String) -> Self {
        static INSTANCES: AtomicU64 = AtomicU64::new(0);
        let number = INSTANCES.fetch_add(1, Ordering::Relaxed);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self {
            disk,
            run,
            ended: run_dir.join("ended"),
            turn: run_dir.join("turn"),
            boot,
            instance: format!("{}-{}-{number}", std::process::id(), now.as_nanos()),
        }
    }

    /// Returns true if no other instance had a turn since this one's last, and notes that this one has it now.
    pub(crate) fn is_still_mine(&self) -> bool {
        let found = files::read_bounded(&self.turn, MAX_TURN);
        if found.is_ok_and(|found| found == self.instance.as_bytes()) {
            return true;
        }
        if let Err(error) = files::replace(&self.turn, self.instance.as_bytes(), 0o600) {
            // Else the instance that it names would not see what this one changes. To remove it needs no room.
            let _ = std::fs::remove_file(&self.turn);
            tracing::debug!(
                "each call reads the state anew, because {} is not written: {error}",
                self.turn.display()
            );
        }
        false
    }

    /// Reads both places, and removes temporary files that a crash left.
    ///
    /// # Errors
    /// The claim directories cannot be listed.
    pub(crate) fn read(&self) -> Result<Found, crate::claimdir::Error> {
        let mut found = Found::default();
        self.sweep_ended();
        let mut uids = self.run.uids()?;
        match self.on_disk() {
            Ok(on_disk) => uids.extend(on_disk),
            Err(error) if error.kind() == io::ErrorKind::NotFound => found.is_first = true,
            Err(error) => {
                let damage = Damage::Unreadable(error.to_string());
                found.damages.push((String::new(), self.disk.clone(), damage));
            }
        }
        uids.sort();
        uids.dedup();
        for uid in uids {
            let copies = [(self.run.entry_path(&uid)), self.file(&uid)].map(|path| (read_copy(&uid, &path), path));
            for (copy, path) in &copies {
                if let Some(Err(damage)) = copy {
                    found.damages.push((uid.clone(), path.clone(), damage.clone()));
                }
            }
            let [(run, _), (disk, _)] = copies;
            let has_directory = self.run.claim_path(&uid).exists();
            let verdict = verdict(run, disk, has_directory, self.ended.join(&uid).exists(), &self.boot);
            found.verdicts.insert(uid, verdict);
        }
        Ok(found)
    }

    /// Writes both copies of a claim that is prepared, as far as they differ. Returns true if one did.
    ///
    /// # Errors
    /// The first copy that cannot be written, and why.
    pub(crate) fn save(
        &self,
        uid: &str,
        entry: &Entry,
        gpus: BTreeMap<String, Gpu>,
    ) -> Result<bool, (PathBuf, io::Error)> {
        let record = Record {
            entry: entry.clone(),
            gpus,
            boot: Some(self.boot.clone()),
        };
        let (run, disk) = (self.run.entry_path(uid), self.file(uid));
        let bytes = record.render(uid).map_err(|error| (run.clone(), error))?;
        let in_run = write(run, &bytes)?;
        let on_disk = write(disk, &bytes)?;
        // From now on it would be wrong, if the copy in `run` vanished.
        self.remove_ended(uid)?;
        Ok(in_run || on_disk)
    }

    /// Writes a claim that holds nothing now, on the disk alone.
    ///
    /// # Errors
    /// The copy cannot be written, and why.
    pub(crate) fn save_dormant(&self, uid: &str, entry: &Entry) -> Result<(), (PathBuf, io::Error)> {
        let record = Record {
            entry: entry.clone(),
            gpus: BTreeMap::new(),
            boot: None,
        };
        let path = self.file(uid);
        let bytes = record.render(uid).map_err(|error| (path.clone(), error))?;
        write(path, &bytes).map(drop)
    }

    /// Returns true if a copy of a claim is missing.
    pub(crate) fn is_missing(&self, uid: &str) -> bool {
        !self.file(uid).exists() || !self.run.entry_path(uid).exists()
    }

    /// Removes the copy on the disk, or notes that it counts for nothing. The one in `run` goes with the claim directory.
    ///
    /// # Errors
    /// Neither is possible: why the copy cannot be removed.
    pub(crate) fn end(&self, uid: &str) -> Result<(), (PathBuf, io::Error)> {
        let path = self.file(uid);
        match std::fs::remove_file(&path) {
            Ok(()) => self.remove_ended(uid),
            // A read-only disk refuses also what is not there.
            Err(_) if is_gone(&path) => self.remove_ended(uid),
            Err(error) => {
                let note = || {
                    std::fs::create_dir_all(&self.ended)?;
                    std::fs::File::create(self.ended.join(uid))
                };
                match note() {
                    Ok(_) => {
                        tracing::warn!(
                            uid,
                            "{} of a claim that is unprepared cannot be removed: {error}",
                            path.display()
                        );
                        Ok(())
                    }
                    Err(_) => Err((path, error)),
                }
            }
        }
    }

    fn remove_ended(&self, uid: &str) -> Result<(), (PathBuf, io::Error)> {
        let path = self.ended.join(uid);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err((path, error)),
            _ => Ok(()),
        }
    }

    /// Removes the files on the disk of claims that have ended, if that is possible now.
    fn sweep_ended(&self) {
        let Ok(ended) = std::fs::read_dir(&self.ended) else {
            return;
        };
        for entry in ended.flatten() {
            let uid = entry.file_name().to_string_lossy().into_owned();
            // A claim with a copy in `run` was prepared again.
            let is_held = !is_gone(&self.run.entry_path(&uid));
            let file = self.file(&uid);
            if is_held || std::fs::remove_file(&file).is_ok() || is_gone(&file) {
                let _ = std::fs::remove_file(entry.path());
            }
        }
        // Unless one of them stays.
        let _ = std::fs::remove_dir(&self.ended);
    }

    /// The file of a claim on the disk.
    pub(crate) fn file(&self, uid: &str) -> PathBuf {
        self.disk.join(format!("{uid}{SUFFIX}"))
    }

    /// The claims with a file on the disk.
    fn on_disk(&self) -> io::Result<Vec<String>> {
        let mut uids = Vec::new();
        for entry in std::fs::read_dir(&self.disk)? {
            let entry = entry?;
            let Ok(name) = entry.file_name().into_string() else {
                continue;
            };
            if let Some(uid) = name.strip_suffix(SUFFIX) {
                uids.extend(Some(uid.to_owned()).filter(|uid| is_share_name(uid)));
            } else if name.ends_with(files::TEMPORARY) {
                // One that stays is replaced by the next Prepare of its claim.
                let _ = std::fs::remove_file(entry.path());
            }
        }
        Ok(uids)
    }
}

/// Writes a copy if it differs. Returns true if it was written.
fn write(path: PathBuf, bytes: &[u8]) -> Result<bool, (PathBuf, io::Error)> {
    if files::read_bounded(&path, MAX_SIZE).is_ok_and(|found| found == bytes) {
        return Ok(false);
    }
    let replaced = match files::replace(&path, bytes, 0o600) {
        // Nearly always the folder is there.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            std::fs::create_dir_all(path.parent().unwrap_or(&path)).and_then(|()| files::replace(&path, bytes, 0o600))
        }
        replaced => replaced,
    };
    replaced.map(|()| true).map_err(|error| (path, error))
}

fn is_gone(path: &Path) -> bool {
    let found = path.symlink_metadata();
    found.is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

fn read_copy(uid: &str, path: &Path) -> Copy {
    match files::read_bounded(path, MAX_SIZE) {
        Ok(bytes) if bytes.len() > MAX_SIZE => Some(Err(Damage::Format(format!("more than {MAX_SIZE} bytes")))),
        Ok(bytes) => Some(Record::parse(uid, &bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => Some(Err(Damage::Unreadable(error.to_string()))),
    }
}

/// Pure: what both copies together say.
fn verdict(run: Copy, disk: Copy, has_directory: bool, is_ended: bool, boot: &str) -> Verdict {
    // An older release names no boot, and what it wrote in `run` is gone after a reboot.
    let run_counts = |record: &Record| record.boot.as_deref().is_none_or(|of| of == boot);
    let is_ended = is_ended && run.is_none();
    let disk_counts = |record: &Record| record.boot.as_deref() == Some(boot) && !is_ended;
    match (run, disk) {
        (Some(Ok(record)), _) if run_counts(&record) => Verdict::Held(record),
        (_, Some(Ok(record))) if disk_counts(&record) => Verdict::Held(record),
        (Some(Err(damage)), _) => Verdict::Damaged(damage),
        (None | Some(Ok(_)), Some(Ok(record))) | (Some(Ok(record)), None | Some(Err(_))) => Verdict::Dormant(record),
        (None, Some(Err(damage))) if has_directory && !is_ended => Verdict::Damaged(damage),
        (None, Some(Err(_))) => Verdict::Leftover,
        (None, None) => Verdict::Orphan,
    }
}

/// Reads which boot of the machine this is.
///
/// # Errors
/// The kernel's file cannot be read, or is empty.
pub(crate) fn boot(path: &Path) -> io::Result<String> {
    let text = std::fs::read_to_string(path)?;
    match text.trim() {
        "" => Err(io::Error::other("it is empty")),
        boot => Ok(boot.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::Held;
    use crate::inventory::tests::gpu;
    use crate::share::tests::share;
    use proptest::prelude::*;

    const GOLDEN: &[u8] = include_bytes!("../testdata/claim-v1.json");
    const UID: &str = "5c0f3b9a-0000-4000-8000-000000000001";
    const BOOT: &str = "0f0e0d0c-0000-4000-8000-00000000b007";

    fn record(boot: Option<&str>) -> Record {
        let held = Held {
            share: share("6e2a4c1e-0d5c-4f0e-9a5b-0c5b1f1b2a3c"),
            slot: Some(3),
        };
        Record {
            entry: Entry {
                namespace: "default".into(),
                name: "quarter".into(),
                library: "0".repeat(64),
                shares: vec![held],
                pods: Vec::new(),
            },
            gpus: BTreeMap::from([(gpu(0).uuid, gpu(0))]),
            boot: boot.map(str::to_owned),
        }
    }

    #[test]
    fn a_claims_file_is_read_as_it_was_first_written_also_by_an_older_release() {
        assert_eq!(Record::parse(UID, GOLDEN), Ok(record(Some(BOOT))));
        let rendered = record(Some(BOOT)).render(UID).expect("bytes");
        assert_eq!(String::from_utf8_lossy(&rendered), String::from_utf8_lossy(GOLDEN));
        // The part that a release knows that has one checkpoint for all claims.
        let older = Checkpoint::parse(GOLDEN).expect("a checkpoint");
        assert_eq!(older.claims[UID], record(None).entry);
    }

    #[test]
    fn every_cut_and_every_changed_byte_is_noticed() {
        for end in 0..GOLDEN.len() - 1 {
            assert!(Record::parse(UID, &GOLDEN[..end]).is_err(), "cut at {end}");
        }
        for at in 0..GOLDEN.len() - 1 {
            let mut changed = GOLDEN.to_vec();
            changed[at] ^= 1;
            assert_ne!(
                Record::parse(UID, &changed),
                Ok(record(Some(BOOT))),
                "byte {at} changed"
            );
        }
        assert!(Record::parse("another", GOLDEN).is_err());
    }

    /// Every state of the two copies, with the verdict by a rule of its own: a copy of this boot holds, unless the claim
    /// ended; a claim that may hold something is never forgotten.
    #[test]
    fn every_state_of_two_copies_has_its_verdict() {
        let damage = || Some(Err(Damage::Unreadable("EIO".into())));
        let copy = |boot| Some(Ok(record(boot)));
        let run_copies = [
            ("none", None),
            ("damaged", damage()),
            ("now", copy(Some(BOOT))),
            ("before", copy(Some("b"))),
            ("older", copy(None)),
        ];
        for (run_is, run) in run_copies {
            for (disk_is, disk) in [
                ("none", None),
                ("damaged", damage()),
                ("now", copy(Some(BOOT))),
                ("before", copy(Some("b"))),
            ] {
                for (has_directory, is_ended) in [(false, false), (false, true), (true, false), (true, true)] {
                    if !has_directory && run_is != "none" {
                        continue;
                    }
                    let found = verdict(run.clone(), disk.clone(), has_directory, is_ended, BOOT);
                    let expected = match (run_is, disk_is) {
                        ("now" | "older", _) => "held",
                        ("none", "now") if is_ended => "dormant",
                        (_, "now") => "held",
                        ("damaged", _) => "damaged",
                        (_, "before") | ("before", _) => "dormant",
                        ("none", "damaged") if has_directory && !is_ended => "damaged",
                        ("none", "damaged") => "leftover",
                        _ => "orphan",
                    };
                    let found = match found {
                        Verdict::Held(_) => "held",
                        Verdict::Dormant(_) => "dormant",
                        Verdict::Damaged(_) => "damaged",
                        Verdict::Leftover => "leftover",
                        Verdict::Orphan => "orphan",
                    };
                    assert_eq!(
                        found, expected,
                        "run {run_is}, disk {disk_is}, {has_directory}, {is_ended}"
                    );
                }
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// Also with a checksum that fits: what a later release or another program may have written.
        #[test]
        fn any_file_is_a_record_or_damage(
            bytes in prop::collection::vec(any::<u8>(), 0..300),
            at in 0..GOLDEN.len(),
            payload in "\\{\"claims\":\\{(\"[a-z0-9-]{0,40}\":(null|\\[\\]|\\{[^{}]{0,40}\\}))?\\}[^{}]{0,20}\\}",
        ) {
            let _ = Record::parse(UID, &bytes);
            let mut spliced = GOLDEN[..at].to_vec();
            spliced.extend(&bytes);
            let _ = Record::parse(UID, &spliced);
            let sealed = format!(
                r#"{{"version":1,"crc32":"{:08x}","payload":{payload}}}"#,
                vgpu_abi::checksum::crc32(payload.as_bytes())
            );
            if let Err(damage) = Record::parse(UID, sealed.as_bytes()) {
                prop_assert!(!damage.to_string().is_empty());
            }
        }
    }

    #[test]
    fn a_boot_is_named_by_the_kernel() {
        assert!(boot(Path::new(crate::config::BOOT_ID)).is_ok_and(|boot| boot.len() == 36));
        let empty = tempfile::NamedTempFile::new().expect("a file");
        assert!(boot(empty.path()).is_err() && boot(Path::new("/none")).is_err());
    }
}
