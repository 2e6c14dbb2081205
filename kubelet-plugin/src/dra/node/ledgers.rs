//! Reads the ledgers of prepared claims.
//!
//! A claim keeps its library over upgrades of the plugin, and with it the format of its ledger. So a format that this
//! release does not know is not reported as damage by the tenant.

use super::Node;
use crate::dra::checkpoint::Entry;
use crate::dra::share::Share;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use vgpu_abi::ledger::{self, Usage};
use vgpu_abi::paths::LEDGER;
use vgpu_node::{files, locks};

/// The result of reading a share's ledger.
#[derive(Debug)]
pub enum LedgerReading {
    Read(Usage),
    /// The claim has the library of another release, whose format this one cannot read.
    OtherFormat,
    /// The tenant damaged or replaced it.
    Damaged(LedgerError),
}

/// Why a ledger cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    #[error("cannot be read: {0}")]
    Io(#[from] io::Error),
    /// Its tenant damaged it, or it has the format of another release.
    #[error(transparent)]
    Damage(#[from] ledger::Damage),
}

// === impl Node ===

impl Node {
    /// Reads the ledger of a share of a prepared claim. `buffer` is reused between calls.
    #[must_use]
    pub fn ledger(&self, uid: &str, entry: &Entry, share: &Share, buffer: &mut Vec<u8>) -> LedgerReading {
        match usage(&self.ledger_path(uid, share), buffer) {
            Ok(usage) => LedgerReading::Read(usage),
            Err(_) if self.library() != Some(&entry.library) => LedgerReading::OtherFormat,
            Err(damage) => LedgerReading::Damaged(damage),
        }
    }

    /// Returns how many processes of a share live, from the buffer that [`ledger`](Self::ledger) has filled. The ledger
    /// also names killed processes, until another process needs their memory. None if the file can no longer be opened.
    #[must_use]
    pub fn living(&self, uid: &str, share: &Share, buffer: &[u8]) -> Option<usize> {
        living(&self.ledger_path(uid, share), buffer)
    }

    fn ledger_path(&self, uid: &str, share: &Share) -> PathBuf {
        self.dirs.share_path(uid, &share.name).join(LEDGER)
    }
}

// === impl LedgerReading ===

impl LedgerReading {
    #[must_use]
    pub fn usage(self) -> Option<Usage> {
        match self {
            Self::Read(usage) => Some(usage),
            Self::OtherFormat | Self::Damaged(_) => None,
        }
    }
}

/// Reads how much memory and how many processes a share has.
fn usage(path: &Path, buffer: &mut Vec<u8>) -> Result<Usage, LedgerError> {
    read(path, buffer)?;
    Ok(ledger::read(buffer)?)
}

fn living(path: &Path, ledger: &[u8]) -> Option<usize> {
    let (file, _) = files::open_regular(path).ok()?;
    let is_locked = |offset| locks::is_locked(&file, offset, 1).unwrap_or(false);
    Some(ledger::living(ledger, is_locked))
}

/// Reads a ledger's file without the part that has only zeros, because a scrape spends most of its time on the copy.
fn read(path: &Path, buffer: &mut Vec<u8>) -> Result<(), LedgerError> {
    let (file, length) = files::open_regular(path)?;
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    if ![ledger::SIZE, ledger::MAX_SIZE].contains(&length) {
        return Err(ledger::Damage::Size(length).into());
    }
    buffer.resize(length, 0);
    for (number, one) in buffer.chunks_exact_mut(ledger::SIZE).enumerate() {
        let at = (number * ledger::SIZE) as u64;
        let (head, rest) = one.split_at_mut(ledger::FIRST_OBJECT_AT);
        file.read_exact_at(head, at)?;
        // Read the number of objects again, after the lanes: a charge may have moved from a lane to a new object.
        let count = ledger::OBJECTS_USED_AT..ledger::OBJECTS_USED_AT + 8;
        file.read_exact_at(&mut head[count.clone()], at + count.start as u64)?;
        let unused = ledger::never_used(head);
        for part in [ledger::FIRST_OBJECT_AT..unused.start, unused.end..ledger::SIZE] {
            let read = &mut rest[part.start - ledger::FIRST_OBJECT_AT..part.end - ledger::FIRST_OBJECT_AT];
            file.read_exact_at(read, at + part.start as u64)?;
        }
        rest[unused.start - ledger::FIRST_OBJECT_AT..unused.end - ledger::FIRST_OBJECT_AT].fill(0);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dra::node::tests::prepared;

    #[test]
    fn hostile_ledgers_say_nothing_and_take_nothing() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join(LEDGER);
        for bytes in [vec![], vec![0; 1], vec![0xff; ledger::SIZE], vec![0; 10 * ledger::SIZE]] {
            std::fs::write(&path, &bytes).expect("written");
            let error = usage(&path, &mut Vec::new()).expect_err("no ledger");
            assert!(matches!(error, LedgerError::Damage(_)), "{error}");
        }
        std::fs::remove_file(&path).expect("removed");
        std::os::unix::fs::symlink("/etc/passwd", &path).expect("a link");
        assert!(matches!(usage(&path, &mut Vec::new()), Err(LedgerError::Io(_))));
    }

    /// Two processes with a lane each: the second was killed.
    #[test]
    fn a_process_that_was_killed_is_not_living() {
        let (rig, node) = prepared(20, 25);
        let path = rig.path("run/claims/u1/s1").join(LEDGER);
        let mut bytes = std::fs::read(&path).expect("read");
        for index in [1, 2] {
            let at = ledger::FIRST_LANE_AT + index * ledger::LINE;
            bytes[at + ledger::lane::GENERATION] = 1;
            bytes[at + ledger::lane::PID] = index as u8;
            bytes[at + ledger::lane::PROCESS] = index as u8;
        }
        std::fs::write(&path, &bytes).expect("written");
        let process = std::fs::File::options().write(true).open(&path).expect("opened");
        let lock = locks::exclusive((ledger::FIRST_LANE_AT + ledger::LINE) as u64, 1);
        nix::fcntl::fcntl(&process, nix::fcntl::FcntlArg::F_OFD_SETLK(&lock)).expect("locked");
        let (entry, mut buffer) = (&node.claims().claims["u1"], Vec::new());
        let share = &entry.shares[0].share;
        let usage = node.ledger("u1", entry, share, &mut buffer).usage().expect("a ledger");
        assert_eq!(usage.processes.len(), 2);
        assert_eq!(node.living("u1", share, &buffer), Some(1));
        drop(process);
        assert_eq!(node.living("u1", share, &buffer), Some(0));
    }

    #[test]
    fn only_objects_that_were_never_used_are_left_out_of_a_read() {
        let dir = tempfile::tempdir().expect("a folder");
        let (path, mut buffer) = (dir.path().join("ledger"), Vec::new());
        let used_at = |at: usize| at + ledger::OBJECTS_USED_AT..at + ledger::OBJECTS_USED_AT + 8;
        for (size, used) in [
            (ledger::MAX_SIZE, [3, 0]),
            (ledger::SIZE, [0, 0]),
            (ledger::SIZE, [512, 0]),
            (ledger::MAX_SIZE, [u64::MAX, 1]),
        ] {
            let mut bytes: Vec<u8> = (0..size).map(|at| (at % 251) as u8 | 1).collect();
            for (at, used) in (0..size).step_by(ledger::SIZE).zip(used) {
                bytes[used_at(at)].copy_from_slice(&used.to_le_bytes());
            }
            std::fs::write(&path, &bytes).expect("written");
            read(&path, &mut buffer).expect("read");
            for (at, used) in (0..size).step_by(ledger::SIZE).zip(used) {
                let first =
                    at + ledger::FIRST_OBJECT_AT + usize::try_from(used.min(512)).expect("small") * ledger::LINE;
                bytes[first..at + ledger::SIZE - ledger::LINE].fill(0);
            }
            assert!(buffer == bytes, "{size} {used:?}");
        }
    }
}
