//! Finds the share of a process by the ledger that it sees: the one that the plugin made for the share, by device and
//! inode.
//!
//! Failure modes: a process that ended, or whose root is not ours to enter, is left out. A process may have a root of its
//! own making with any links in it, so no link below the root is followed: a link could lead to another share's ledger
//! on the node, and have its work counted there. A process that hides the folder, or that the plugin's PID namespace
//! does not have, belongs to no share. Without hostPID none has.

use crate::share::ShareKey;
use rustix::fs::{Mode, OFlags, ResolveFlags};
use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use vgpu_abi::paths::{CONTAINER_DIR, LEDGER};

/// A share, and its ledger on the node.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub key: ShareKey,
    pub ledger: PathBuf,
}

/// Device and inode.
type Identity = (u64, u64);

/// Returns the shares of these processes, as far as they have one.
pub(super) fn shares_of(proc: &Path, pids: impl IntoIterator<Item = u32>, places: &[Place]) -> BTreeMap<u32, ShareKey> {
    let ledgers = places.iter().filter_map(|place| {
        let found = place.ledger.symlink_metadata().ok()?;
        Some((&place.key, (found.dev(), found.ino())))
    });
    let ledgers: Vec<(&ShareKey, Identity)> = ledgers.collect();
    let share = |pid: u32| {
        let root = proc.join(pid.to_string()).join("root");
        let sees = |(key, ledger): &&(&ShareKey, Identity)| ledger_in(&root, &key.1).is_ok_and(|seen| seen == *ledger);
        let (key, _) = ledgers.iter().find(sees)?;
        Some((pid, (*key).clone()))
    };
    pids.into_iter().filter_map(share).collect()
}

/// Returns which file is the ledger of a share in this root.
fn ledger_in(root: &Path, share: &str) -> io::Result<Identity> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let root = rustix::fs::open(root, flags | OFlags::DIRECTORY, Mode::empty())?;
    let below = Path::new(CONTAINER_DIR)
        .strip_prefix("/")
        .unwrap_or(Path::new(CONTAINER_DIR));
    let path = below.join(share).join(LEDGER);
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS | ResolveFlags::BENEATH;
    let file = rustix::fs::openat2(&root, path, flags, Mode::empty(), resolve)?;
    let found = rustix::fs::fstat(&file)?;
    Ok((found.st_dev, found.st_ino))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_process_belongs_to_the_share_whose_ledger_it_sees() {
        let dir = tempfile::tempdir().expect("a folder");
        let (claims, proc) = (dir.path().join("claims"), dir.path().join("proc"));
        let place = |uid: &str, share: &str| {
            let ledger = claims.join(uid).join(share).join(LEDGER);
            fs::create_dir_all(ledger.parent().expect("a folder")).expect("a folder");
            fs::write(&ledger, "").expect("a ledger");
            Place {
                key: (uid.to_owned(), share.to_owned()),
                ledger,
            }
        };
        // Two claims may name a share alike.
        let mut places = vec![place("u1", "s1"), place("u2", "s2"), place("u3", "s1")];
        let folder = |pid: u32, share: &str| {
            let folder = proc.join(pid.to_string()).join("root/dev/vgpu").join(share);
            fs::create_dir_all(&folder).expect("a folder");
            folder
        };
        // As by a bind mount: the same inode.
        fs::hard_link(&places[0].ledger, folder(1, "s1").join(LEDGER)).expect("a link");
        fs::hard_link(&places[1].ledger, folder(2, "s2").join(LEDGER)).expect("a link");
        fs::hard_link(&places[2].ledger, folder(3, "s1").join(LEDGER)).expect("a link");
        fs::write(folder(4, "s1").join(LEDGER), "").expect("another file");
        // A process that leads us to a neighbour's: by the file, and by the folder.
        symlink(&places[1].ledger, folder(5, "s2").join(LEDGER)).expect("a link");
        let parent = places[1].ledger.parent().expect("a folder");
        symlink(parent, folder(6, "x").with_file_name("s2")).expect("a link");
        fs::create_dir_all(proc.join("7")).expect("a process without a root");
        let found = shares_of(&proc, 1..=8, &places);
        let key = |uid: &str, share: &str| (uid.to_owned(), share.to_owned());
        let expected = [(1, key("u1", "s1")), (2, key("u2", "s2")), (3, key("u3", "s1"))];
        assert_eq!(found, BTreeMap::from(expected));
        places[0].ledger = dir.path().join("gone");
        assert!(!shares_of(&proc, [1], &places).contains_key(&1));
    }
}
