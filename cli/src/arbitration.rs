//! The pages in which the shares of one GPU arbitrate its time (`vgpu_node::arbitration`): one folder a GPU for all runs of a
//! user.
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
//! its own bucket until the next run starts or ends. A share with damaged limits has no entry. A COMMAND of root that becomes
//! another user without a mount namespace cannot open its page, and keeps to its bucket: other users must not be able to cut
//! a page that root has mapped.
#![forbid(unsafe_code)]

use crate::run_dir::{self, Locked, RunDir};
use std::path::{Path, PathBuf};
use vgpu_abi::entitlement::{Holder, entries};
use vgpu_abi::limits::Limits;
use vgpu_abi::paths::ARBITRATION;
use vgpu_node::arbitration::{Arbitration, Error, SLOTS, Sharing};

/// The limits of one of this user's shares, as the other shares on its GPU read them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Neighbour {
    pub limits: Limits,
    /// When its limits were written.
    pub generation: u64,
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
    (0..SLOTS).find(|slot| !taken.contains(slot))
}

/// Creates a GPU's missing pages, and clears the page of a new share's slot.
///
/// # Errors
/// A page cannot be written.
pub fn prepare(run_dir: &RunDir, _locked: &Locked, gpu: &str, slot: u8) -> Result<(), Error> {
    let pages = pages(run_dir);
    pages.ensure(gpu)?;
    pages.clear(gpu, slot)
}

fn pages(run_dir: &RunDir) -> Arbitration {
    // With a mount namespace, nobody else can enter the folder, and each COMMAND can write only its own slot.
    let has_namespace = run_dir.path() == Path::new(run_dir::ROOT);
    let slot_mode = if has_namespace { 0o666 } else { 0o600 };
    Arbitration::new(root(run_dir), Sharing::Programs { slot_mode })
}

/// Writes the node page of every GPU.
///
/// # Errors
/// The first page that cannot be written; the others are.
pub fn renew(run_dir: &RunDir, _locked: &Locked, shares: &[Neighbour]) -> Result<(), Error> {
    let pages = pages(run_dir);
    let mut failure = Ok(());
    for gpu in pages.gpus()? {
        let holders: Vec<Holder> = holders(&gpu, shares);
        failure = failure.and(pages.write_node_page(&gpu, &entries(&holders)));
    }
    failure
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
    // The next run reuses a folder that cannot be removed.
    let _ = std::fs::remove_dir_all(root(run_dir));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;
    use vgpu_abi::arbitration::{PAGE, entry};
    use vgpu_abi::paths::NODE_PAGE;

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
        let (_tmp, run_dir) = crate::run_dir::tests::temporary();
        let locked = run_dir.lock().unwrap();
        prepare(&run_dir, &locked, "GPU-a", 0).unwrap();
        let folder = folder(&run_dir, "GPU-a");
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 65);
        for (name, bytes) in [("00", &b"old"[..]), ("01", &[7; PAGE]), ("02", &[7; 2 * PAGE])] {
            fs::write(folder.join(name), bytes).unwrap();
        }
        prepare(&run_dir, &locked, "GPU-a", 3).unwrap();
        let read = |name: &str| fs::read(folder.join(name)).unwrap();
        assert_eq!((read("00").len(), read("02").len()), (PAGE, PAGE), "cut and grown");
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
        let (_tmp, run_dir) = crate::run_dir::tests::temporary();
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
