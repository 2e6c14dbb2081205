//! Compares once, for `vgpu-kubelet-plugin check`: the processes that the driver lists on a GPU, and one share whose files
//! the caller names, because no claim is prepared. The rules are those of `verdicts::memory`, the reading that of `processes`.
//!
//! How it fails: it returns an error where a turn would report an unknown condition. A folder that is not a separate
//! mount is refused, because its device number does not identify the share.

use super::processes::{Extent, Process, Processes, Seen};
use super::verdicts::memory::{Answers, Ledger, ShareFacts, Verdicts, verdicts};
use crate::dra::mount_users::{Device, ShareMount};
use crate::dra::share::ShareKey;
use crate::nvml::Memory;
use crate::tmpfs;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use vgpu_abi::ledger;
use vgpu_abi::limits::{self, Limits};
use vgpu_abi::paths::{LEDGER, LIMITS};
use vgpu_node::files;

/// Where a share's files are.
#[derive(Clone, Debug)]
pub struct ShareFiles {
    /// The folder with its limits and its ledger.
    pub folder: PathBuf,
    /// The tmpfs that only the share's mount namespaces have. None: processes are not matched by mounts.
    pub tmpfs: Option<PathBuf>,
}

/// The result of one comparison.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ShareComparison {
    pub limit: u64,
    /// Bytes charged to the share, by its ledger.
    pub charged: u64,
    pub processes: Vec<Listed>,
    /// None without a tmpfs.
    pub verdict: Option<Verdict>,
}

/// A process that the driver lists on the GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Listed {
    pub pid: u32,
    /// None: the driver does not say.
    pub bytes: Option<u64>,
    /// True if /proc has this process.
    pub is_here: bool,
    /// Bytes charged to this process, by the share's ledger. None: the ledger does not name the process.
    pub charged: Option<u64>,
    /// True if its mount namespace has the share's tmpfs.
    pub has_share: bool,
    /// True if the plugin would report that it uses a GPU without a share.
    pub is_unexplained: bool,
}

/// The condition `MemoryEnforced` that a claim would get if this result lasted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Verdict {
    pub status: &'static str,
    pub reason: String,
    /// Bytes of the share by the driver.
    pub used: Option<u64>,
}

/// Compares once. `memory`: of the processes on `gpu`.
///
/// # Errors
/// Why the processes or the share are not known.
pub fn compare_share(
    memory: impl FnOnce() -> Result<Memory, String>,
    processes: &Processes,
    gpu: &str,
    files: &ShareFiles,
) -> Result<ShareComparison, String> {
    let (facts, mounts) = facts(files)?;
    let memory = memory()?;
    let asked: BTreeSet<u32> = memory.keys().copied().collect();
    let seen = processes.read(&mounts, &asked, Extent::All)?;
    let answers = Answers::from([(gpu.to_owned(), Ok(memory.clone()))]);
    let found = verdicts(
        std::slice::from_ref(&facts),
        &answers,
        Ok(&seen),
        None,
        &BTreeMap::new(),
    );
    let verdict = found.shares.get(&facts.key).filter(|_| !mounts.is_empty());
    let charged = match &facts.ledger {
        Ledger::Read { charged, .. } => *charged,
        Ledger::Other | Ledger::Damaged => 0,
    };
    Ok(ShareComparison {
        limit: facts.limit,
        charged,
        processes: listed(&facts, &memory, &seen, &found, !mounts.is_empty()),
        verdict: verdict.map(|verdict| Verdict {
            status: verdict.finding.text(),
            reason: verdict.finding.reason.to_string(),
            used: verdict.used,
        }),
    })
}

/// The share by its files, and its mount if it has a tmpfs of its own.
fn facts(files: &ShareFiles) -> Result<(ShareFacts, Vec<ShareMount>), String> {
    let read = |name: &str, most| {
        let path = files.folder.join(name);
        files::read_bounded(&path, most).map_err(|error| format!("{}: {error}", path.display()))
    };
    let damaged = |name: &str, why: String| format!("{}: {why}", files.folder.join(name).display());
    let limits = Limits::parse(&read(LIMITS, limits::MAX_SIZE)?);
    let limits = limits.map_err(|error| damaged(LIMITS, error.to_string()))?;
    let usage = ledger::read(&read(LEDGER, ledger::MAX_SIZE)?);
    let usage = usage.map_err(|error| damaged(LEDGER, error.to_string()))?;
    let key: ShareKey = ("check".to_owned(), limits.share);
    let mount = files.tmpfs.as_deref().map(|tmpfs| device(tmpfs).map(Device::Number));
    let mount = mount.transpose()?.map(|device| ShareMount {
        key: key.clone(),
        device,
    });
    let facts = ShareFacts {
        key,
        gpu: limits.gpu,
        limit: limits.memory,
        // A limits file does not name the memory's source. A person reads this comparison.
        is_configured: false,
        ledger: usage.into(),
        prepared: None,
    };
    Ok((facts, mount.into_iter().collect()))
}

fn device(folder: &Path) -> Result<u64, String> {
    let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
    if !tmpfs::is_mounted(folder).map_err(failed)? {
        return Err(format!("{} is not a tmpfs of its own", folder.display()));
    }
    Ok(std::fs::metadata(folder).map_err(failed)?.dev())
}

fn listed(facts: &ShareFacts, memory: &Memory, seen: &Seen, found: &Verdicts, has_mounts: bool) -> Vec<Listed> {
    let charged = |process: &Process| match &facts.ledger {
        Ledger::Read { processes, .. } => processes.get(&process.inner?).copied(),
        Ledger::Other | Ledger::Damaged => None,
    };
    let one = |(pid, bytes): (&u32, &Option<u64>)| {
        let process = seen.processes.get(pid);
        Listed {
            pid: *pid,
            bytes: *bytes,
            is_here: process.is_some(),
            charged: process.and_then(charged),
            has_share: process.is_some_and(|process| process.shares.contains(&facts.key)),
            is_unexplained: has_mounts && found.unexplained.iter().any(|other| other.pid == *pid),
        }
    };
    memory.iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::enforcement::process_tests::process;
    use std::fs;

    const GPU: &str = "GPU-1";
    const MIB: u64 = 1 << 20;

    fn share(folder: &Path) -> ShareFiles {
        let limits = Limits::of_memory("s", GPU, 100 * MIB, "/l/libcuda.so.1", "/l/libnvidia-ml.so.1");
        fs::write(folder.join(LIMITS), limits.render()).expect("written");
        fs::write(folder.join(LEDGER), ledger::image(&limits)).expect("written");
        ShareFiles {
            folder: folder.to_path_buf(),
            tmpfs: None,
        }
    }

    fn minor(device: u64) -> u32 {
        assert_eq!(rustix::fs::major(device), 0, "a tmpfs has no device");
        rustix::fs::minor(device)
    }

    #[test]
    fn a_process_in_the_shares_namespace_is_matched_and_another_one_is_unexplained() {
        if !tmpfs::tests::can_mount("a_process_in_the_shares_namespace_is_matched_and_another_one_is_unexplained") {
            return;
        }
        let dir = tempfile::tempdir().expect("a folder");
        let (mounted, proc) = (dir.path().join("mounted"), dir.path().join("proc"));
        fs::create_dir(&mounted).expect("a folder");
        let size = tmpfs::Size { bytes: MIB, files: 10 };
        tmpfs::ensure(&mounted, size).expect("mounted");
        let files = ShareFiles {
            tmpfs: Some(mounted.clone()),
            ..share(&mounted)
        };
        let device = fs::metadata(&mounted).expect("there").dev();
        process(&proc.join("5"), 1, &[minor(device)], "");
        process(&proc.join("6"), 2, &[], "");
        let memory = Memory::from([(5, Some(90 * MIB)), (6, Some(MIB)), (7, Some(MIB))]);
        let compare = |memory: &Memory| compare_share(|| Ok(memory.clone()), &Processes::in_folder(&proc), GPU, &files);
        let found = compare(&memory).expect("compared");
        let with_another = compare(&Memory::from([(5, Some(90 * MIB)), (6, Some(MIB))])).expect("compared");
        let beyond = compare(&Memory::from([(5, Some(200 * MIB))])).expect("compared");
        tmpfs::remove(&mounted).expect("unmounted");
        let told = |one: &Listed| (one.pid, one.is_here, one.has_share, one.is_unexplained, one.charged);
        assert_eq!(
            found.processes.iter().map(told).collect::<Vec<_>>(),
            [
                (5, true, true, false, None),
                (6, true, false, true, None),
                (7, false, false, false, None),
            ]
        );
        assert_eq!((found.limit, found.charged), (100 * MIB, 0));
        let verdict = |compared: ShareComparison| {
            compared
                .verdict
                .map(|verdict| (verdict.status, verdict.reason, verdict.used))
        };
        let unknown = ("Unknown", "ProcessesUnknown".to_owned(), None);
        assert_eq!(verdict(found), Some(unknown), "process 7 may be the share's");
        let within = ("True", "Library".to_owned(), Some(90 * MIB));
        assert_eq!(verdict(with_another), Some(within));
        let over = ("False", "OverLimit".to_owned(), Some(200 * MIB));
        assert_eq!(verdict(beyond), Some(over));
    }

    #[test]
    fn without_a_tmpfs_the_list_is_known_and_there_is_no_verdict() {
        let dir = tempfile::tempdir().expect("a folder");
        let files = share(dir.path());
        let proc = dir.path().join("proc");
        process(&proc.join("5"), 1, &[], "");
        let memory = Memory::from([(5, Some(MIB))]);
        let found = compare_share(|| Ok(memory), &Processes::in_folder(&proc), GPU, &files).expect("compared");
        assert_eq!(found.verdict, None);
        let only = &found.processes[0];
        assert!(only.is_here && !only.has_share && !only.is_unexplained, "{only:?}");
    }

    #[test]
    fn what_cannot_be_known_is_an_error() {
        let dir = tempfile::tempdir().expect("a folder");
        let files = share(dir.path());
        let proc = Processes::in_folder(dir.path());
        let hangs = || Err("it hangs".to_owned());
        assert_eq!(compare_share(hangs, &proc, GPU, &files), Err("it hangs".into()));
        let lists = || Ok(Memory::new());
        let shared = ShareFiles {
            tmpfs: Some(dir.path().to_path_buf()),
            ..files.clone()
        };
        let error = compare_share(lists, &proc, GPU, &shared).expect_err("others have its device number");
        assert!(error.contains("not a tmpfs of its own"), "{error}");
        let blind = Processes::that_sees_nothing("no hostPID");
        assert_eq!(compare_share(lists, &blind, GPU, &files), Err("no hostPID".into()));
        fs::write(dir.path().join(LEDGER), "x").expect("written");
        let error = compare_share(lists, &proc, GPU, &files).expect_err("damaged");
        assert!(error.contains(LEDGER), "{error}");
    }
}
