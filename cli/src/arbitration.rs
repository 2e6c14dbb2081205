//! The pages in which the shares of one GPU arbitrate its time: one folder a GPU for all runs of a user.
//!
//! ```text
//! <run dir>/.arbitration/<GPU>/00 .. 63    one page each, of the share that has the slot
//!                              node        what each slot is entitled to; `vgpu run` alone writes it
//! <run dir>/<id>/shares/.arbitration       a symlink to it, by which the library finds it without a mount namespace
//! ```
//!
//! All changes happen under the folder's lock ([`crate::run_dir`]). No list of slots is kept: the limits file of each
//! share names its slot, so a share that is removed has freed it, also after SIGKILL.
//!
//! How it fails: a `vgpu run` that is killed within the node page leaves an odd sequence, by which every share keeps to
//! its own bucket until the next run starts or ends. A share with damaged limits has no entry. A `vgpu run` of an older
//! release does not know the folder and removes it; shares of the next run then do not see those of before. COMMAND of
//! root that becomes another user without a mount namespace cannot open its page, and keeps to its bucket: other users
//! must not be able to cut a page that root has mapped.
#![forbid(unsafe_code)]

use crate::run_dir::{self, Locked, RunDir};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use vgpu_abi::arbitration::{PAGE, SLOTS, node_page_writes, slot_file_name};
use vgpu_abi::entitlement::{Holder, entries};
use vgpu_abi::limits::Limits;
use vgpu_abi::paths::{ARBITRATION, NODE_PAGE};

/// A share of this user, as far as others on its GPU have to know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Neighbour {
    pub limits: Limits,
    /// When its limits were written.
    pub generation: u64,
}

/// The pages that could not be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write {}: {source}", path.display())]
pub struct PageError {
    pub path: PathBuf,
    pub source: io::Error,
}

/// The folder of a GPU's pages.
#[must_use]
pub fn folder(run_dir: &RunDir, gpu: &str) -> PathBuf {
    root(run_dir).join(gpu)
}

/// The folder of all pages.
#[must_use]
pub fn root(run_dir: &RunDir) -> PathBuf {
    run_dir.path().join(ARBITRATION)
}

/// Returns a slot of the GPU that none of the shares has.
#[must_use]
pub fn free_slot<'a>(gpu: &str, shares: impl IntoIterator<Item = &'a Limits>) -> Option<u8> {
    let on_gpu = shares.into_iter().filter(|limits| limits.gpu == gpu);
    let taken: Vec<u8> = on_gpu.filter_map(|limits| limits.slot).collect();
    (0..SLOTS as u8).find(|slot| !taken.contains(slot))
}

/// Creates what is missing of a GPU's pages, and clears that of a new share's slot.
///
/// # Errors
/// A page cannot be written.
pub fn prepare(run_dir: &RunDir, _locked: &Locked, gpu: &str, slot: u8) -> Result<(), PageError> {
    let folder = folder(run_dir, gpu);
    let make = |path: &Path| {
        let made = DirBuilder::new().recursive(true).mode(0o755).create(path);
        // COMMAND may become any user; the folder of all shares stays closed.
        made.and_then(|()| fs::set_permissions(path, fs::Permissions::from_mode(0o755)))
            .map_err(failed(path))
    };
    make(&root(run_dir))?;
    make(&folder)?;
    let own = slot_file_name(slot);
    let slots = (0..SLOTS as u8).map(slot_file_name);
    for name in slots.chain([NODE_PAGE.to_owned()]) {
        let path = folder.join(&name);
        let mode = if name == NODE_PAGE { 0o644 } else { slot_mode(run_dir) };
        page(&path, mode, name == own).map_err(failed(&path))?;
    }
    Ok(())
}

/// With a mount namespace, nobody else can enter the folder, and each COMMAND finds its own slot alone writable.
fn slot_mode(run_dir: &RunDir) -> u32 {
    if run_dir.path() == Path::new(run_dir::ROOT) {
        0o666
    } else {
        0o600
    }
}

/// Makes a file one page of zeros if it is not one page long, or if it is to be cleared. Its inode stays, because shares
/// have it mapped.
fn page(path: &Path, mode: u32, clear: bool) -> io::Result<()> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(mode)
        .custom_flags(libc::O_NOFOLLOW)
        .open(path)?;
    if clear || file.metadata()?.len() != PAGE as u64 {
        file.set_permissions(fs::Permissions::from_mode(mode))?;
        file.set_len(PAGE as u64)?;
        file.write_all_at(&[0; PAGE], 0)?;
    }
    Ok(())
}

/// Writes the node page of every GPU.
///
/// # Errors
/// The first page that cannot be written; the others are.
pub fn renew(run_dir: &RunDir, _locked: &Locked, shares: &[Neighbour]) -> Result<(), PageError> {
    let gpus = fs::read_dir(root(run_dir)).into_iter().flatten().flatten();
    let mut failure = Ok(());
    for gpu in gpus {
        let holders: Vec<Holder> = holders(&gpu.file_name().to_string_lossy(), shares);
        let path = gpu.path().join(NODE_PAGE);
        let written = write(&path, &holders).map_err(failed(&path));
        failure = failure.and(written);
    }
    failure
}

fn write(path: &Path, holders: &[Holder]) -> io::Result<()> {
    let file = File::options()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NOFOLLOW)
        .open(path)?;
    let mut sequence = [0; 4];
    file.read_exact_at(&mut sequence, 0)?;
    let writes = node_page_writes(sequence, &entries(holders));
    writes.iter().try_for_each(|(at, bytes)| file.write_all_at(bytes, *at))
}

fn holders(gpu: &str, shares: &[Neighbour]) -> Vec<Holder> {
    let on_gpu = shares.iter().filter(|share| share.limits.gpu == gpu);
    let holder = |share: &Neighbour| {
        Some(Holder {
            slot: share.limits.slot?,
            cores: share.limits.cores,
            compute_policy: share.limits.compute_policy,
            priority: share.limits.priority,
            generation: share.generation,
            ignored: false,
        })
    };
    on_gpu.filter_map(holder).collect()
}

/// Removes all pages: no share is left.
pub fn remove(run_dir: &RunDir, _locked: &Locked) {
    // The next run uses again what cannot be removed.
    let _ = fs::remove_dir_all(root(run_dir));
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> PageError {
    let path = path.to_path_buf();
    move |source| PageError { path, source }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vgpu_abi::arbitration::entry;

    fn run_dir() -> (tempfile::TempDir, RunDir) {
        let tmp = tempfile::tempdir().unwrap();
        let environment = crate::environment::Environment {
            uid: rustix::process::geteuid().as_raw(),
            runtime_dir: Some(tmp.path().to_path_buf()),
            ..Default::default()
        };
        let run_dir = RunDir::open(&environment, false).unwrap();
        (tmp, run_dir)
    }

    fn share(gpu: &str, slot: Option<u8>, cores: u32) -> Neighbour {
        Neighbour {
            limits: Limits {
                slot,
                cores,
                ..Limits::of_memory("a", gpu, 1 << 30, "/c", "/n")
            },
            generation: 7,
        }
    }

    #[test]
    fn a_free_slot_is_the_least_on_that_gpu() {
        let shares = [
            share("GPU-a", Some(0), 0),
            share("GPU-a", Some(2), 0),
            share("GPU-a", None, 0),
            share("GPU-b", Some(1), 0),
        ];
        let free = |gpu, shares: &[Neighbour]| free_slot(gpu, shares.iter().map(|share| &share.limits));
        assert_eq!(free("GPU-a", &shares), Some(1));
        assert_eq!(free("GPU-b", &shares), Some(0));
        let all: Vec<_> = (0..64).map(|slot| share("GPU-a", Some(slot), 0)).collect();
        assert_eq!(free("GPU-a", &all), None);
    }

    #[test]
    fn pages_are_made_once_and_only_the_new_shares_is_cleared() {
        let (_tmp, run_dir) = run_dir();
        let locked = run_dir.lock().unwrap();
        prepare(&run_dir, &locked, "GPU-a", 0).unwrap();
        let folder = folder(&run_dir, "GPU-a");
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 65);
        for (name, bytes) in [("00", &b"old"[..]), ("01", &[7; PAGE]), ("02", &[7; 2 * PAGE])] {
            fs::write(folder.join(name), bytes).unwrap();
        }
        prepare(&run_dir, &locked, "GPU-a", 3).unwrap();
        let read = |name: &str| fs::read(folder.join(name)).unwrap();
        assert_eq!(
            (read("00"), read("02")),
            (vec![0; PAGE], vec![0; PAGE]),
            "cut and grown"
        );
        assert_eq!(read("01"), [7; PAGE], "in use");
        prepare(&run_dir, &locked, "GPU-a", 1).unwrap();
        assert_eq!(read("01"), [0; PAGE], "of the former share");
        let mode = |name: &str| fs::metadata(folder.join(name)).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode("63"), mode("node")), (0o600, 0o644));
        remove(&run_dir, &locked);
        assert!(!root(&run_dir).exists());
    }

    #[test]
    fn node_pages_say_what_each_share_on_the_gpu_is_entitled_to() {
        let (_tmp, run_dir) = run_dir();
        let locked = run_dir.lock().unwrap();
        let weights = |gpu: &str| -> Vec<u32> {
            let bytes = fs::read(folder(&run_dir, gpu).join(NODE_PAGE)).unwrap();
            let found = (0..3).map(|slot| entry(&bytes, slot).expect("a page between two writes"));
            found.map(|entry| entry.weight).collect()
        };
        renew(&run_dir, &locked, &[]).expect("no GPU, no page");
        for gpu in ["GPU-a", "GPU-b"] {
            prepare(&run_dir, &locked, gpu, 0).unwrap();
        }
        let shares = [
            share("GPU-a", Some(0), 30),
            share("GPU-b", Some(0), 10),
            share("GPU-a", Some(2), 0),
            share("GPU-a", None, 0),
        ];
        renew(&run_dir, &locked, &shares).unwrap();
        assert_eq!(
            (weights("GPU-a"), weights("GPU-b")),
            (vec![30_000, 0, 70_000], vec![10_000, 0, 0])
        );
        // A writer that was killed left an odd sequence.
        fs::write(folder(&run_dir, "GPU-a").join(NODE_PAGE), [1; PAGE]).unwrap();
        renew(&run_dir, &locked, &shares[1..]).unwrap();
        assert_eq!(weights("GPU-a"), [0, 0, 100_000]);
        fs::remove_file(folder(&run_dir, "GPU-a").join(NODE_PAGE)).unwrap();
        let line = renew(&run_dir, &locked, &shares[..1]).unwrap_err().to_string();
        assert!(line.contains("GPU-a/node"), "{line}");
        assert_eq!(weights("GPU-b"), [0, 0, 0], "the others are written all the same");
    }
}
