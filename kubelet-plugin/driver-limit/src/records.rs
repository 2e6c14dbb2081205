//! Which shares were started in each container and each pod: a file for each pod. The hook of each claim runs alone and
//! knows its own claim, so this is where the sums come from.
//!
//! ```text
//! <records>/<pod UID>.pod      or <container's ID>.container, if it is in no pod
//!
//! vgpu-driver-limits 1
//! cgroup /kubepods/pod<UID>
//! lifted <GPU UUID, or * for all> <why>
//! unlimited <why><tab>/kubepods/pod<UID>/<container>
//! required /kubepods/pod<UID>/<container>
//! share <claim UID> <share> <GPU UUID> <bytes> /kubepods/pod<UID>/<container>
//! share <claim UID> <share> <GPU UUID> <bytes> -
//! ```
//!
//! A share stays until its pod's cgroup is gone: a pod's limit never goes down while it runs. Of containers that are gone, one
//! line for each share is kept. A pod without a limit on a GPU (`lifted`) keeps none until it ends, and so does a container
//! whose hook failed (`unlimited`), which may lack shares here.
//!
//! A record is locked while it is used, by a file beside it (`.lock`), and nobody waits long for it. Files are replaced whole.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs, io,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use vgpu_abi::{checksum::crc32, limits::TOLERANCE};
use vgpu_hook::text::one_line;
use vgpu_node::{
    files,
    lock_file::{LockFile, Locked},
};

use crate::{claim::Share, hierarchy::Leaf};

const HEADER: &str = "vgpu-driver-limits 1";
/// Bytes: room for some thousand shares.
const MAX_SIZE: usize = 1 << 20;
/// Characters of a reason.
const MAX_WHY: usize = 300;
const BETWEEN_ATTEMPTS: Duration = Duration::from_millis(2);
/// Characters of a container's ID that are in its record's name. A runtime may accept 1024, and a file system 255.
const MAX_NAME: usize = 128;
/// Stands for the cgroup of a container that is gone.
const GONE: &str = "-";
/// Stands for all GPUs.
const ALL: &str = "*";
const OF_POD: &str = "pod";
const OF_CONTAINER: &str = "container";

/// The end of a lock's name, after its record's.
const OF_LOCK: &str = ".lock";
/// Of a hook that was killed while it wrote a record.
const OF_NEW: &str = ".new";

/// A record's place, locked until this value is dropped.
#[derive(Debug)]
pub(crate) struct Records {
    path: PathBuf,
    _lock: Locked,
}

/// What was started in a pod, or in a container without one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    path: PathBuf,
    /// The pod's cgroup, or the container's.
    cgroup: String,
    /// UUIDs of the GPUs on which the pod has no limit, and why.
    lifted: BTreeMap<String, String>,
    /// Cgroups of containers without a limit, and why.
    unlimited: BTreeMap<String, String>,
    /// Cgroups of containers with a claim that requires its limit.
    required: BTreeSet<String>,
    /// Each share with the cgroup of the container that has it; None if that is gone.
    shares: Vec<(Option<String>, Share)>,
}

/// The hard limit of a cgroup on a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Limit {
    pub(crate) cgroup: String,
    pub(crate) gpu: String,
    /// None: no limit.
    pub(crate) bytes: Option<u64>,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("--records {path}: {source}; it must be a folder of root's on the node", path = .path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("--records {path}: {source}; it must be a folder of root's on the node", path = .path.display())]
    Lock { path: PathBuf, source: files::Failed },
    #[error(
        "{path}: another vgpu-driver-limit has this record's lock for too long: look for one that hangs, or start the container again",
        path = .0.display()
    )]
    Busy(PathBuf),
    #[error("{path}: {damage}; delete the pod, and then this file", path = .path.display())]
    Damaged { path: PathBuf, damage: Damage },
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    #[error("its first line is {0:?}, not {HEADER:?}: another release wrote it")]
    Version(String),
    #[error("its line {0:?} cannot be read")]
    Line(String),
    #[error("it is larger than {MAX_SIZE} bytes: more shares than a pod can have")]
    TooLarge,
}

impl Records {
    /// Waits until nobody else uses this record, and not after `until`. Creates its folder if it is missing.
    pub(crate) fn lock(record: PathBuf, until: Instant) -> Result<Self, Error> {
        let lock = open_lock(&record)?;
        loop {
            if let Some(locked) = try_lock(&lock)? {
                return Ok(Self {
                    path: record,
                    _lock: locked,
                });
            }
            if Instant::now() >= until {
                return Err(Error::Busy(record));
            }
            thread::sleep(BETWEEN_ATTEMPTS);
        }
    }

    /// Adds a container's shares to its pod's record, and writes that.
    pub(crate) fn add(
        &self,
        leaf: &Leaf,
        shares: &[Share],
        is_required: bool,
        exists: impl Fn(&str) -> bool,
    ) -> Result<Record, Error> {
        let mut record = self.record(leaf)?;
        record.add(&leaf.path, shares);
        if is_required {
            record.required.insert(leaf.path.clone());
        }
        record.forget_ended(exists);
        record.write()?;
        Ok(record)
    }

    /// Notes that a container's pod has no limit on these GPUs until it ends, and writes that. A former reason stays.
    pub(crate) fn lift(&self, leaf: &Leaf, gpus: &[String], why: &str) -> Result<Record, Error> {
        let mut record = self.record(leaf)?;
        for gpu in gpus {
            record.lift(gpu, why);
        }
        record.write()?;
        Ok(record)
    }

    /// Notes that a container has no limit, unless a claim of it requires one, nor has its pod on the GPUs of these shares, and
    /// writes that. Without shares, which could not be read, the pod has none on any GPU.
    pub(crate) fn give_up(
        &self,
        leaf: &Leaf,
        shares: &[Share],
        why: &str,
        exists: impl Fn(&str) -> bool,
    ) -> Result<Record, Error> {
        let mut record = self.record(leaf)?;
        record.add(&leaf.path, shares);
        for share in shares {
            record.lift(&share.gpu, why);
        }
        if shares.is_empty() {
            record.lift(ALL, why);
        }
        if !record.is_required(&leaf.path) {
            let why = one_line(why, MAX_WHY);
            record.unlimited.entry(leaf.path.clone()).or_insert(why);
        }
        record.forget_ended(exists);
        record.write()?;
        Ok(record)
    }

    /// The record of a container's pod, which is empty if there is none yet.
    fn record(&self, leaf: &Leaf) -> Result<Record, Error> {
        let cgroup = leaf.pod.as_ref().map_or(&leaf.path, |pod| &pod.path);
        let path = self.path.clone();
        let before = match Record::read(&path) {
            Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => None,
            read => Some(read?),
        };
        // Of a pod with the same UID elsewhere: a static pod that was made again with other resources.
        let before = before.filter(|record| record.cgroup == *cgroup);
        Ok(before.unwrap_or_else(|| Record {
            path,
            cgroup: cgroup.clone(),
            lifted: BTreeMap::new(),
            unlimited: BTreeMap::new(),
            required: BTreeSet::new(),
            shares: Vec::new(),
        }))
    }
}

fn open_lock(record: &Path) -> Result<LockFile, Error> {
    let folder = record.parent().unwrap_or(record);
    let path = || folder.to_path_buf();
    files::private_folder(folder).map_err(|source| Error::Io { path: path(), source })?;
    LockFile::open(&with_end(record, OF_LOCK)).map_err(|source| Error::Lock { path: path(), source })
}

fn try_lock(lock: &LockFile) -> Result<Option<Locked>, Error> {
    lock.try_lock().map_err(|source| Error::Lock {
        path: lock.path().to_path_buf(),
        source,
    })
}

fn with_end(record: &Path, end: &str) -> PathBuf {
    let mut name = record.as_os_str().to_owned();
    name.push(end);
    name.into()
}

/// The path of the record of a container, or of its pod. `id`: the container's.
pub(crate) fn path(folder: &Path, leaf: &Leaf, id: &str) -> PathBuf {
    folder.join(match &leaf.pod {
        Some(pod) => format!("{}.{OF_POD}", pod.uid),
        None => format!("{}.{OF_CONTAINER}", short(id)),
    })
}

/// Removes the records whose cgroup is gone, and what killed hooks left. What is in use, or cannot be read or removed, stays: it
/// concerns other pods. No record may be locked by this process.
pub(crate) fn remove_ended(folder: &Path, exists: impl Fn(&str) -> bool) {
    let has_ended = |record: &Path| Record::read(record).is_ok_and(|record| !exists(&record.cgroup));
    for path in entries(folder) {
        let name = path.to_string_lossy();
        let left = [OF_LOCK, OF_NEW].iter().find_map(|end| name.strip_suffix(end));
        let record = left.map_or(path.clone(), PathBuf::from);
        let is_done = match left {
            Some(_) if name.ends_with(OF_LOCK) => !record.exists(),
            Some(_) => true,
            None => has_ended(&record),
        };
        let lock = is_done.then(|| open_lock(&record).ok()).flatten();
        let Some(lock) = lock else { continue };
        let Ok(Some(_locked)) = try_lock(&lock) else { continue };
        // Again, as nobody else changes it now.
        if has_ended(&record) {
            let _ = fs::remove_file(&record);
        }
        let _ = fs::remove_file(with_end(&record, OF_NEW));
        if !record.exists() {
            let _ = fs::remove_file(lock.path());
        }
    }
}

/// The paths of all records, in the order of their names. Some may be gone when they are read.
pub(crate) fn all(folder: &Path) -> Vec<PathBuf> {
    let is_record = |path: &PathBuf| path.extension().is_some_and(|end| end == OF_POD || end == OF_CONTAINER);
    let mut paths: Vec<PathBuf> = entries(folder).filter(is_record).collect();
    paths.sort();
    paths
}

fn entries(folder: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.path())
}

/// A container's ID that fits into a file's name.
fn short(id: &str) -> String {
    match id.get(..MAX_NAME) {
        Some(start) if id.len() > MAX_NAME => format!("{start}-{:08x}", crc32(id.as_bytes())),
        _ => id.to_owned(),
    }
}

impl Record {
    pub(crate) fn read(path: &Path) -> Result<Self, Error> {
        let bytes = files::read_bounded(path, MAX_SIZE).map_err(|source| Error::Io {
            path: path.to_path_buf(),
            source,
        })?;
        let damaged = |damage| Error::Damaged {
            path: path.to_path_buf(),
            damage,
        };
        if bytes.len() > MAX_SIZE {
            return Err(damaged(Damage::TooLarge));
        }
        Self::parse(path, &String::from_utf8_lossy(&bytes)).map_err(damaged)
    }

    /// The folder must be locked.
    pub(crate) fn write(&self) -> Result<(), Error> {
        let text = self.render();
        if text.len() > MAX_SIZE {
            let damage = Damage::TooLarge;
            return Err(Error::Damaged {
                path: self.path.clone(),
                damage,
            });
        }
        files::replace(&self.path, text.as_bytes(), 0o600).map_err(|source| Error::Io {
            path: self.path.clone(),
            source,
        })
    }

    fn add(&mut self, leaf: &str, shares: &[Share]) {
        for share in shares {
            let is_it = |(of, known): &(Option<String>, Share)| {
                of.as_deref() == Some(leaf) && (&known.claim, &known.name) == (&share.claim, &share.name)
            };
            self.shares.retain(|known| !is_it(known));
            self.shares.push((Some(leaf.to_owned()), share.clone()));
        }
    }

    /// Keeps one line for each share of containers that are gone. Returns whether anything was changed.
    pub(crate) fn forget_ended(&mut self, exists: impl Fn(&str) -> bool) -> bool {
        let before = (self.shares.clone(), self.unlimited.len(), self.required.len());
        self.unlimited.retain(|leaf, _| exists(leaf));
        self.required.retain(|leaf| exists(leaf));
        for (leaf, _) in &mut self.shares {
            leaf.take_if(|path| !exists(path));
        }
        // Those of living containers first, because they name the share already.
        let name = |share: &Share| (share.claim.clone(), share.name.clone());
        let living = self.shares.iter().filter(|(leaf, _)| leaf.is_some());
        let mut named: BTreeSet<_> = living.map(|(_, share)| name(share)).collect();
        self.shares
            .retain(|(leaf, share)| leaf.is_some() || named.insert(name(share)));
        (&self.shares, self.unlimited.len(), self.required.len()) != (&before.0, before.1, before.2)
    }

    /// Notes that the pod has no limit on a GPU. The first reason stays.
    pub(crate) fn lift(&mut self, gpu: &str, why: &str) {
        let why = || one_line(why, MAX_WHY);
        self.lifted.entry(gpu.to_owned()).or_insert_with(why);
    }

    pub(crate) fn is_lifted(&self, gpu: &str) -> bool {
        self.lifted(gpu).is_some()
    }

    /// Why a container has no limit, if it has none.
    pub(crate) fn why_unlimited(&self, leaf: &str) -> Option<&str> {
        self.unlimited.get(leaf).map(String::as_str)
    }

    /// Returns true if a claim of the container requires its limit.
    pub(crate) fn is_required(&self, leaf: &str) -> bool {
        self.required.contains(leaf)
    }

    /// The cgroups of the containers.
    pub(crate) fn leaves(&self) -> BTreeSet<String> {
        self.shares.iter().filter_map(|(leaf, _)| leaf.clone()).collect()
    }

    /// Why the pod has no limit on a GPU.
    pub(crate) fn lifted(&self, gpu: &str) -> Option<&str> {
        let why = self.lifted.get(gpu).or_else(|| self.lifted.get(ALL));
        why.map(String::as_str)
    }

    /// The pod's cgroup.
    pub(crate) fn pod(&self) -> Option<&str> {
        self.path
            .extension()
            .is_some_and(|end| end == OF_POD)
            .then_some(&self.cgroup)
    }

    /// The UUIDs of all GPUs of the record's shares.
    pub(crate) fn gpus(&self) -> BTreeSet<String> {
        self.shares.iter().map(|(_, share)| share.gpu.clone()).collect()
    }

    /// The cgroups of the containers, and the shares of each.
    pub(crate) fn containers(&self) -> BTreeMap<&str, Vec<&Share>> {
        let mut containers: BTreeMap<&str, Vec<&Share>> = BTreeMap::new();
        for (leaf, share) in &self.shares {
            if let Some(leaf) = leaf {
                containers.entry(leaf).or_default().push(share);
            }
        }
        containers
    }

    fn render(&self) -> String {
        let mut text = format!("{HEADER}\ncgroup {}\n", self.cgroup);
        for (gpu, why) in &self.lifted {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "lifted {gpu} {why}");
        }
        for (leaf, why) in &self.unlimited {
            let _ = writeln!(text, "unlimited {why}\t{leaf}");
        }
        for leaf in &self.required {
            let _ = writeln!(text, "required {leaf}");
        }
        for (leaf, share) in &self.shares {
            let Share {
                claim,
                name,
                gpu,
                memory,
            } = share;
            let leaf = leaf.as_deref().unwrap_or(GONE);
            let _ = writeln!(text, "share {claim} {name} {gpu} {memory} {leaf}");
        }
        text
    }

    fn parse(path: &Path, text: &str) -> Result<Self, Damage> {
        let shortened = |line: &str| line.chars().take(64).collect();
        let mut lines = text.lines();
        let first = lines.next().unwrap_or_default();
        if first != HEADER {
            return Err(Damage::Version(shortened(first)));
        }
        let line = lines.next().unwrap_or_default();
        let cgroup = line.strip_prefix("cgroup ").filter(|path| path.starts_with('/'));
        let cgroup = cgroup.ok_or_else(|| Damage::Line(shortened(line)))?.to_owned();
        let (mut lifted, mut unlimited) = (BTreeMap::new(), BTreeMap::new());
        let (mut required, mut shares) = (BTreeSet::new(), Vec::new());
        for line in lines {
            if let Some((gpu, why)) = line.strip_prefix("lifted ").and_then(|rest| rest.split_once(' ')) {
                lifted.insert(gpu.to_owned(), why.to_owned());
            } else if let Some((why, leaf)) = line.strip_prefix("unlimited ").and_then(|rest| rest.split_once('\t')) {
                unlimited.insert(leaf.to_owned(), why.to_owned());
            } else if let Some(leaf) = line.strip_prefix("required ") {
                required.insert(leaf.to_owned());
            } else {
                shares.push(share(line).ok_or_else(|| Damage::Line(shortened(line)))?);
            }
        }
        Ok(Self {
            path: path.to_path_buf(),
            cgroup,
            lifted,
            unlimited,
            required,
            shares,
        })
    }

    /// The limits that follow for a container and its pod.
    pub(crate) fn limits(&self, leaf: &Leaf) -> Vec<Limit> {
        let own = self.of_container(&leaf.path);
        // The pod first: it must not be in the way of the container.
        let of_pod = own.iter().filter_map(|limit| self.of_pod(&limit.gpu));
        of_pod.chain(own.iter().cloned()).collect()
    }

    /// The sum of a container's shares of each GPU, and one tolerance, because its shares are judged together. Or none, if its hook
    /// failed.
    pub(crate) fn of_container(&self, leaf: &str) -> Vec<Limit> {
        let sums = self.sums(|of| of == Some(leaf));
        let limit = |(gpu, sum): (&str, Sum)| Limit {
            cgroup: leaf.to_owned(),
            gpu: gpu.to_owned(),
            bytes: self.why_unlimited(leaf).is_none().then(|| sum.with_tolerances(1)),
        };
        sums.into_iter().map(limit).collect()
    }

    /// The sum of all shares of a GPU that were started in the pod, with a tolerance for each, or none if it was lifted. A share
    /// that several containers have is in it once. Returns None for a container without a pod.
    pub(crate) fn of_pod(&self, gpu: &str) -> Option<Limit> {
        let mut sums = self.sums(|_| true);
        let sum = sums.remove(gpu).unwrap_or_default();
        Some(Limit {
            cgroup: self.pod()?.to_owned(),
            gpu: gpu.to_owned(),
            bytes: (!self.is_lifted(gpu)).then(|| sum.with_tolerances(sum.shares)),
        })
    }

    /// Adds up the distinct shares of each GPU that are in the containers that `wanted` accepts.
    fn sums(&self, wanted: impl Fn(Option<&str>) -> bool) -> BTreeMap<&str, Sum> {
        let mut seen = BTreeSet::new();
        let mut sums: BTreeMap<&str, Sum> = BTreeMap::new();
        for (_, share) in self.shares.iter().filter(|(of, _)| wanted(of.as_deref())) {
            if seen.insert((&share.claim, &share.name)) {
                let sum = sums.entry(&share.gpu).or_default();
                sum.shares += 1;
                sum.bytes = sum.bytes.saturating_add(share.memory);
            }
        }
        sums
    }
}

#[derive(Default)]
struct Sum {
    shares: u64,
    bytes: u64,
}

impl Sum {
    fn with_tolerances(&self, tolerances: u64) -> u64 {
        self.bytes.saturating_add(tolerances.saturating_mul(TOLERANCE))
    }
}

fn share(line: &str) -> Option<(Option<String>, Share)> {
    let mut words = line.strip_prefix("share ")?.splitn(5, ' ');
    let mut word = || words.next().map(str::to_owned);
    let share = Share {
        claim: word()?,
        name: word()?,
        gpu: word()?,
        memory: word()?.parse().ok()?,
    };
    match word()? {
        gone if gone == GONE => Some((None, share)),
        leaf if leaf.starts_with('/') => Some((Some(leaf), share)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hierarchy::Pod;

    const GIB: u64 = 1 << 30;

    fn leaf(name: &str) -> Leaf {
        Leaf {
            path: format!("/kubepods/pod1/{name}"),
            pod: Some(Pod {
                uid: "uid-1".into(),
                path: "/kubepods/pod1".into(),
            }),
        }
    }

    fn share(claim: &str, name: &str, gpu: &str, memory: u64) -> Share {
        Share {
            claim: claim.into(),
            name: name.into(),
            gpu: gpu.into(),
            memory,
        }
    }

    fn limit(cgroup: &str, gpu: &str, memory: u64, tolerances: u64) -> Limit {
        Limit {
            cgroup: cgroup.into(),
            gpu: gpu.into(),
            bytes: Some(memory + tolerances * TOLERANCE),
        }
    }

    fn locked(folder: &Path, leaf: &Leaf) -> Records {
        Records::lock(path(folder, leaf, "c1"), Instant::now() + Duration::from_secs(10)).expect("a folder")
    }

    fn started(folder: &Path, leaf: &Leaf, shares: &[Share]) -> Vec<Limit> {
        let record = locked(folder, leaf).add(leaf, shares, false, |_| true);
        record.expect("a record").limits(leaf)
    }

    fn record(cgroup: &str, shares: &[(&str, Share)]) -> Record {
        let of = |(leaf, share): &(&str, Share)| ((*leaf != GONE).then(|| (*leaf).to_owned()), share.clone());
        Record {
            path: "/records/uid-1.pod".into(),
            cgroup: cgroup.into(),
            lifted: BTreeMap::new(),
            unlimited: BTreeMap::new(),
            required: BTreeSet::new(),
            shares: shares.iter().map(of).collect(),
        }
    }

    #[test]
    fn a_pod_gets_what_was_started_in_it_and_each_container_its_claims() {
        let folder = tempfile::tempdir().expect("a folder");
        let (pod, one, two) = ("/kubepods/pod1", leaf("one"), leaf("two"));
        let a = share("a", "s", "GPU-1", 10 * GIB);
        let first = started(folder.path(), &one, std::slice::from_ref(&a));
        let expected = [limit(pod, "GPU-1", 10 * GIB, 1), limit(&one.path, "GPU-1", 10 * GIB, 1)];
        assert_eq!(first, expected);
        // Another container of the same claim.
        let second = started(folder.path(), &two, std::slice::from_ref(&a));
        let expected = [limit(pod, "GPU-1", 10 * GIB, 1), limit(&two.path, "GPU-1", 10 * GIB, 1)];
        assert_eq!(second, expected);
        // A second claim in the second container, with two shares of the GPU and one of another.
        let b = [
            share("b", "s", "GPU-1", 5 * GIB),
            share("b", "t", "GPU-1", GIB),
            share("b", "u", "GPU-2", 2 * GIB),
        ];
        let third = started(folder.path(), &two, &b);
        let expected = [
            limit(pod, "GPU-1", 16 * GIB, 3),
            limit(pod, "GPU-2", 2 * GIB, 1),
            limit(&two.path, "GPU-1", 16 * GIB, 1),
            limit(&two.path, "GPU-2", 2 * GIB, 1),
        ];
        assert_eq!(third, expected);
        // The first container again: it has its own claim alone.
        let again = started(folder.path(), &one, std::slice::from_ref(&a));
        let expected = [limit(pod, "GPU-1", 16 * GIB, 3), limit(&one.path, "GPU-1", 10 * GIB, 1)];
        assert_eq!(again, expected);
    }

    #[test]
    fn a_container_in_no_pod_has_its_own_limit_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let leaf = Leaf {
            path: "/machine.slice/libpod-c1.scope".into(),
            pod: None,
        };
        let found = started(folder.path(), &leaf, &[share("a", "s", "GPU-1", GIB)]);
        assert_eq!(found, [limit(&leaf.path, "GPU-1", GIB, 1)]);
        assert!(folder.path().join("c1.container").is_file());
    }

    #[test]
    fn records_of_ended_pods_are_removed() {
        let folder = tempfile::tempdir().expect("a folder");
        started(folder.path(), &leaf("one"), &[share("a", "s", "GPU-1", GIB)]);
        for left in ["uid-2.pod.new", "uid-3.pod.lock"] {
            fs::write(folder.path().join(left), "half").expect("of a hook that was killed");
        }
        remove_ended(folder.path(), |cgroup| cgroup == "/kubepods/pod1");
        let mut names: Vec<_> = entries(folder.path()).collect();
        names.sort();
        assert_eq!(
            names,
            ["uid-1.pod", "uid-1.pod.lock"].map(|name| folder.path().join(name))
        );
        let in_use = locked(folder.path(), &leaf("one"));
        remove_ended(folder.path(), |_| false);
        assert!(folder.path().join("uid-1.pod").is_file());
        drop(in_use);
        remove_ended(folder.path(), |_| false);
        assert_eq!(fs::read_dir(folder.path()).expect("listed").count(), 0);
    }

    #[test]
    fn a_record_does_not_grow_with_each_start_of_a_container() {
        let folder = tempfile::tempdir().expect("a folder");
        let (a, b) = (share("a", "s", "GPU-1", 10 * GIB), share("b", "s", "GPU-1", GIB));
        started(folder.path(), &leaf("first"), &[a.clone(), b]);
        let mut sizes = BTreeSet::new();
        for start in 100..200 {
            let own = leaf(&start.to_string());
            let lives = |cgroup: &str| cgroup == own.path;
            let record = locked(folder.path(), &own).add(&own, std::slice::from_ref(&a), false, lives);
            let record = record.expect("a record");
            let expected = [
                limit("/kubepods/pod1", "GPU-1", 11 * GIB, 2),
                limit(&own.path, "GPU-1", 10 * GIB, 1),
            ];
            assert_eq!(
                record.limits(&own),
                expected,
                "the share that is gone stays in the pod's sum"
            );
            sizes.insert(record.render().len());
        }
        assert_eq!(sizes.len(), 1);
        // A longer one than a pod can have is not cut, which would lose shares.
        let path = folder.path().join("uid-1.pod");
        let text = fs::read_to_string(&path).expect("a record");
        fs::write(&path, text + &"share b t GPU-1 1 -\n".repeat(MAX_SIZE / 20)).expect("written");
        let error = locked(folder.path(), &leaf("one")).add(&leaf("one"), &[a], false, |_| true);
        assert!(
            error
                .expect_err("too long")
                .to_string()
                .contains("uid-1.pod: it is larger than")
        );
    }

    #[test]
    fn a_pod_that_was_made_again_elsewhere_begins_anew() {
        let folder = tempfile::tempdir().expect("a folder");
        started(folder.path(), &leaf("one"), &[share("a", "s", "GPU-1", GIB)]);
        let mut moved = leaf("one");
        moved.pod.as_mut().expect("a pod").path = "/kubepods/burstable/pod1".into();
        let found = started(folder.path(), &moved, &[share("b", "s", "GPU-1", GIB)]);
        assert_eq!(found[0], limit("/kubepods/burstable/pod1", "GPU-1", GIB, 1));
    }

    #[test]
    fn sums_do_not_overflow() {
        let record = record(
            "/a",
            &[
                ("/a/b", share("a", "s", "GPU-1", u64::MAX)),
                ("/a/b", share("b", "s", "GPU-1", 1)),
            ],
        );
        let leaf = Leaf {
            path: "/a/b".into(),
            pod: None,
        };
        assert_eq!(record.limits(&leaf)[0].bytes, Some(u64::MAX));
    }

    #[test]
    fn a_record_reads_back_and_every_other_text_is_refused() {
        let mut record = record(
            "/kubepods/pod1",
            &[
                ("/kubepods/pod1/a b", share("a", "s", "GPU-1", GIB)),
                (GONE, share("b", "s", "GPU-1", GIB)),
            ],
        );
        record.lift("GPU-2", "a reason\nof two lines");
        let text = record.render();
        let parse = |text: &str| Record::parse(&record.path, text);
        assert_eq!(parse(&text), Ok(record.clone()));
        for (text, expected) in [
            (String::new(), Damage::Version(String::new())),
            (
                text.replace(" 1\n", " 2\n"),
                Damage::Version("vgpu-driver-limits 2".into()),
            ),
            (
                text.replace("cgroup /", "cgroup "),
                Damage::Line("cgroup kubepods/pod1".into()),
            ),
            (format!("{HEADER}\n"), Damage::Line(String::new())),
            (
                format!("{HEADER}\ncgroup /a\nshare a s GPU-1 many /b\n"),
                Damage::Line("share a s GPU-1 many /b".into()),
            ),
            (
                format!("{HEADER}\ncgroup /a\nshare a s GPU-1 1\n"),
                Damage::Line("share a s GPU-1 1".into()),
            ),
            (format!("{HEADER}\ncgroup /a\n\n"), Damage::Line(String::new())),
        ] {
            assert_eq!(parse(&text), Err(expected), "{text}");
        }
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join("uid-1.pod"), "vgpu-driver-limits 2\n").expect("written");
        let records = locked(folder.path(), &leaf("one"));
        let error = records
            .add(&leaf("one"), &[], false, |_| true)
            .expect_err("another release")
            .to_string();
        assert!(
            error.contains("uid-1.pod: ") && error.contains("another release"),
            "{error}"
        );
        drop(records);
        remove_ended(folder.path(), |_| false);
        assert!(folder.path().join("uid-1.pod").is_file(), "not ours to remove");
    }

    #[test]
    fn any_record_reads_back_and_no_bytes_panic() {
        use proptest::prelude::*;
        let word = "[a-zA-Z0-9-]{1,40}";
        let one = (
            proptest::option::of("/[a-z0-9./ -]{0,40}"),
            word,
            word,
            word,
            any::<u64>(),
        );
        let shares = proptest::collection::vec(one, 0..5);
        let lifted = proptest::collection::btree_map(word, "[a-z .]{0,40}", 0..3);
        let unlimited = proptest::collection::btree_map("/[a-z0-9./ -]{0,40}", "[a-z .]{0,40}", 0..3);
        let required = proptest::collection::btree_set("/[a-z0-9./ -]{0,40}", 0..3);
        proptest!(|(cgroup in "/[a-z0-9./ -]{0,40}", shares in shares, lifted in lifted, unlimited in unlimited, required in required, text in "(vgpu-driver-limits 1|cgroup|share|lifted|unlimited|required|\t|/|\n| |[0-9]{1,30}|.){0,30}")| {
            let share = |(leaf, claim, name, gpu, memory): (Option<String>, String, String, String, u64)| {
                (leaf, Share { claim, name, gpu, memory })
            };
            let record = Record { path: "/r.pod".into(), cgroup, lifted, unlimited, required, shares: shares.into_iter().map(share).collect() };
            prop_assert_eq!(Record::parse(&record.path, &record.render()), Ok(record.clone()));
            let _ = Record::parse(&record.path, &text);
        });
    }
}
