//! The ledger's format: how much memory each process of one share has charged.
//!
//! The plugin or `vgpu run` creates the file with a fixed size ([`image`]). Every process of the share maps it
//! (`vgpu-core`). The plugin reads it with a size limit ([`read`]) and never maps it. Limits are in the limits file
//! only, so a tenant that damages its ledger can at most lift its own limit.
//!
//! ```text
//!      0  format, version, lanes, size, share             line 0, constant
//!    128  total {charged bytes, stamp of the last writer} line 1, changed as one 16-byte word
//!    144  the highest total                              written after it, so a reader takes the higher of both
//!    256  number of objects that were ever used           line 2, where a search for an object may stop
//!    264  what the largest context of a process took, + 1  0: none was measured
//!    384  refusals ([`refusal`])                         lines 3 to 7
//!   1024  lane 0 (the reaper's), lane 1, ... lane 1014    a line of 128 bytes each
//! 130944  object 0, ... object 511 ([`object`])           a line each
//! 196600  seal                                            last 8 bytes, so a truncated file has none
//! ```
//!
//! The file of a share with host memory (`host-memory` in its limits) has two of these: the first is for device memory,
//! the second ([`HOST_AT`]) for host memory.
//!
//! All numbers are little-endian. A lane belongs to one process, and only this process changes it. Once its owner is
//! dead, only the process that holds the reaper's lock does. A [`Stamp`] identifies one operation uniquely: the
//! sequence of a lane continues with its next owner and never repeats.
//!
//! `vgpu_core::ledger` says why the total is exact whenever a process is killed. Both sides compute the charge of a dead
//! owner by the same rule, [`settled_charge`].
//!
//! Failure modes of [`read`]: a tenant may have written anything, and processes write while the plugin reads. So every
//! number is range-checked and none is used as an index without a check. The total is one aligned 8-byte word; the lanes
//! may differ from it by one operation each.

mod layout;
pub mod object;
pub mod refusal;
mod words;

use crate::checksum::crc32;
use crate::limits::Limits;
pub use layout::*;
use object::OBJECTS;
use refusal::Refusals;
use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;
use words::{half, word};

const _: () = assert!(refusal::SLOTS_AT + refusal::SLOTS * LINE == FIRST_LANE_AT);
const _: () = assert!(FIRST_OBJECT_AT + OBJECTS * LINE + LINE == SIZE);
const _: () = assert!(
    SIZE.is_multiple_of(64 << 10),
    "the second ledger is mapped by itself, and arm64 has pages of up to 64 KiB"
);

/// The memory that the processes of a share have charged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes charged to the share, including those of dead processes that are not released yet.
    pub charged: u64,
    /// Bytes of host memory charged to the share.
    pub host: u64,
    /// The most device memory that was ever charged.
    pub peak: u64,
    pub refusals: Refusals,
    /// The processes, by PID. Some may be dead: the ledger does not show that.
    pub processes: Vec<Process>,
}

/// One process of a share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Its PID in its own namespace: two containers of one share may both have a PID 1. 0: exported memory whose
    /// holders the ledger does not name.
    pub pid: u32,
    /// Inode of the PID namespace of `pid`.
    pub pid_namespace: u64,
    pub charged: u64,
    /// Bytes of host memory, not part of `charged`.
    pub host: u64,
}

/// Why bytes are not a valid ledger. The caller adds the file's path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Damage {
    Size(usize),
    Format,
    Version(u32),
    Unsealed,
    /// The ledger belongs to another share.
    Share,
    /// The stamp of the last writer names a lane that does not exist.
    Writer(u64),
    /// The charge of this lane is larger than any total can be.
    Lane(usize),
    /// The charge of this exported object is larger than any total can be.
    Object(usize),
}

/// Returns the size of the ledger file of a share with these limits.
#[must_use]
pub fn size(limits: &Limits) -> usize {
    if limits.host_memory > 0 { MAX_SIZE } else { SIZE }
}

/// Returns the content of a new ledger file.
#[must_use]
pub fn image(limits: &Limits) -> Vec<u8> {
    let mut bytes = vec![0; size(limits)];
    for (at, part) in parts(limits) {
        bytes[at..at + part.len()].copy_from_slice(&part);
    }
    bytes
}

/// Returns the parts of a new ledger file that are not zero, as (offset, bytes). Seals come last, so an incompletely
/// written file has none.
#[must_use]
pub fn parts(limits: &Limits) -> Vec<(usize, Vec<u8>)> {
    let mut head = vec![0; SHARE_AT + 4];
    let mut put = |at: usize, value: &[u8]| head[at..at + value.len()].copy_from_slice(value);
    put(FORMAT_AT, &FORMAT.to_le_bytes());
    put(VERSION_AT, &VERSION.to_le_bytes());
    put(LANES_AT, &(LANES as u32).to_le_bytes());
    put(SIZE_AT, &(SIZE as u64).to_le_bytes());
    put(SHARE_AT, &share_checksum(&limits.share, &limits.gpu).to_le_bytes());
    let ledgers = (0..size(limits)).step_by(SIZE);
    let heads = ledgers.clone().map(|at| (at, head.clone()));
    let seals = ledgers.map(|at| (at + SEAL_AT, SEAL.to_le_bytes().to_vec()));
    heads.chain(seals).collect()
}

/// Returns the checksum by which a ledger is matched to its share. It leaves the limits out, because they may change
/// while the ledger is in use.
#[must_use]
pub fn share_checksum(share: &str, gpu: &str) -> u32 {
    crc32(format!("{share}\0{gpu}").as_bytes())
}

/// Returns the range of a ledger that need not be read, from its bytes before [`FIRST_OBJECT_AT`]: the objects that
/// were never used. These bytes are zero, unless the tenant wrote there itself.
#[must_use]
pub fn never_used(head: &[u8]) -> Range<usize> {
    let used = usize::try_from(word(head, OBJECTS_USED_AT)).unwrap_or(OBJECTS);
    FIRST_OBJECT_AT + used.min(OBJECTS) * LINE..FIRST_OBJECT_AT + OBJECTS * LINE
}

/// Checks that `bytes` are one complete ledger of this version.
///
/// # Errors
/// The kind of damage.
pub fn check(bytes: &[u8]) -> Result<(), Damage> {
    match (bytes.first_chunk(), bytes.last_chunk()) {
        (Some(first), Some(last)) if bytes.len() == SIZE => check_ends(first, last),
        _ => Err(Damage::Size(bytes.len())),
    }
}

/// Like [`check`], for a ledger of the right size, from its first and last line only.
///
/// # Errors
/// The kind of damage.
pub fn check_ends(first: &[u8; LINE], last: &[u8; LINE]) -> Result<(), Damage> {
    if word(first, FORMAT_AT) != FORMAT {
        return Err(Damage::Format);
    }
    let version = half(first, VERSION_AT);
    if version != VERSION {
        return Err(Damage::Version(version));
    }
    if word(last, SEAL_AT + LINE - SIZE) != SEAL {
        return Err(Damage::Unsealed);
    }
    if half(first, LANES_AT) as usize != LANES || word(first, SIZE_AT) != SIZE as u64 {
        return Err(Damage::Format);
    }
    Ok(())
}

/// Returns what the processes of a share have charged, from the bytes of its ledger file. The module's failure modes
/// say how exact it is while processes write.
///
/// # Errors
/// The bytes cannot be a ledger of this version.
pub fn read(bytes: &[u8]) -> Result<Usage, Damage> {
    let (device, host) = match bytes.split_at_checked(HOST_AT) {
        Some((device, host)) if bytes.len() == MAX_SIZE => (read_one(device)?, read_one(host)?),
        _ => return read_one(bytes),
    };
    let mut usage = Usage {
        host: host.charged,
        ..device
    };
    for process in host.processes {
        let same = |known: &&mut Process| (known.pid_namespace, known.pid) == (process.pid_namespace, process.pid);
        match usage.processes.iter_mut().find(same) {
            Some(known) => known.host = known.host.saturating_add(process.charged),
            None => usage.processes.push(Process {
                charged: 0,
                host: process.charged,
                ..process
            }),
        }
    }
    Ok(usage)
}

/// Returns how many of a share's processes live, from bytes that [`read`] accepts. A process holds a lock on the first
/// byte of each of its lanes until it ends, however it ends; `is_locked` returns true if the byte at this offset of the
/// ledger's file is locked.
pub fn living(bytes: &[u8], mut is_locked: impl FnMut(u64) -> bool) -> usize {
    let mut living = BTreeSet::new();
    for (number, one) in bytes.chunks_exact(SIZE).enumerate() {
        for index in REAPER + 1..LANES {
            let at = FIRST_LANE_AT + index * LINE;
            if word(one, at + lane::GENERATION).is_multiple_of(2) {
                continue;
            }
            let process = (word(one, at + lane::PID_NAMESPACE), half(one, at + lane::PID));
            if !living.contains(&process) && is_locked((number * SIZE + at) as u64) {
                living.insert(process);
            }
        }
    }
    living.len()
}

fn read_one(bytes: &[u8]) -> Result<Usage, Damage> {
    check(bytes)?;
    let writer = word(bytes, WRITER_AT);
    if Stamp::unpack(writer).lane >= LANES {
        return Err(Damage::Writer(writer));
    }
    let taken = taken(bytes, writer);
    // (process stamp, process); a few hundred at most, so that a linear search is enough.
    let mut found: Vec<(u64, Process)> = Vec::new();
    for index in REAPER + 1..LANES {
        let at = FIRST_LANE_AT + index * LINE;
        let field = |offset: usize| word(bytes, at + offset);
        let claim = Stamp {
            lane: index,
            number: field(lane::GENERATION),
        };
        if claim.number.is_multiple_of(2) {
            continue;
        }
        let pair = lane::CHARGED.map(field);
        let charged = match taken {
            Some(taken) if taken == claim => 0,
            _ => settled_charge(index, field(lane::SEQUENCE), field(lane::APPLIED), pair, writer),
        };
        if charged > i64::MAX as u64 {
            return Err(Damage::Lane(index));
        }
        let process = field(lane::PROCESS);
        match found.iter_mut().find(|(stamp, _)| *stamp == process) {
            Some((_, known)) => known.charged = known.charged.saturating_add(charged),
            None => found.push((
                process,
                Process {
                    pid: half(bytes, at + lane::PID),
                    pid_namespace: field(lane::PID_NAMESPACE),
                    charged,
                    host: 0,
                },
            )),
        }
    }
    add_objects(bytes, writer, taken, &mut found)?;
    let mut processes: Vec<Process> = found.into_iter().map(|(_, process)| process).collect();
    processes.sort_by_key(|process| (process.pid_namespace, process.pid));
    let charged = word(bytes, CHARGED_AT);
    Ok(Usage {
        charged,
        host: 0,
        peak: word(bytes, PEAK_AT).max(charged),
        refusals: refusal::read(bytes),
        processes,
    })
}

/// Returns the claim of the lane or object whose charge the last reap has subtracted from the total. It may still look
/// claimed, because the reaper is not done or has died. In a new ledger the result matches no claim.
fn taken(bytes: &[u8], writer: u64) -> Option<Stamp> {
    let field = |offset: usize| word(bytes, FIRST_LANE_AT + REAPER * LINE + offset);
    let sequence = field(lane::SEQUENCE);
    let operation = Stamp {
        lane: REAPER,
        number: sequence,
    };
    let took_place = field(lane::APPLIED) >= sequence || writer == operation.pack();
    took_place.then(|| Stamp::unpack(field(lane::CHARGED[usize::from(!sequence.is_multiple_of(2))])))
}

/// Adds each exported object to the process that is shown with it, or to PID 0 if no holder is known.
fn add_objects(bytes: &[u8], writer: u64, taken: Option<Stamp>, found: &mut Vec<(u64, Process)>) -> Result<(), Damage> {
    for index in 0..OBJECTS {
        let at = FIRST_OBJECT_AT + index * LINE;
        let of_lane = |lane: usize, offset: usize| match lane {
            REAPER..LANES => word(bytes, FIRST_LANE_AT + lane * LINE + offset),
            _ => 0,
        };
        let claim = Stamp {
            lane: LANES + index,
            number: word(bytes, at + object::GENERATION),
        };
        if claim.number.is_multiple_of(2) || taken == Some(claim) {
            continue;
        }
        let from = word(bytes, at + object::FROM);
        let maker = Stamp::unpack(from).lane;
        let (sequence, applied) = (of_lane(maker, lane::SEQUENCE), of_lane(maker, lane::APPLIED));
        let charged = word(bytes, at + object::BYTES);
        if charged == 0 || !object::moved(from, sequence, applied, writer) {
            continue;
        }
        if charged > i64::MAX as u64 {
            return Err(Damage::Object(index));
        }
        let holders = std::array::from_fn(|place| word(bytes, at + object::HOLDERS_AT + place * 8));
        let is_claimed = |claim: Stamp| of_lane(claim.lane, lane::GENERATION) == claim.number;
        let payer = object::payer(holders, is_claimed).unwrap_or(0);
        let named = found.iter().position(|(stamp, _)| *stamp == payer);
        match named.or_else(|| found.iter().position(|(stamp, _)| *stamp == 0)) {
            Some(place) => found[place].1.charged = found[place].1.charged.saturating_add(charged),
            None => found.push((
                0,
                Process {
                    pid: 0,
                    pid_namespace: 0,
                    charged,
                    host: 0,
                },
            )),
        }
    }
    Ok(())
}

/// Returns the charge of lane `index` whose owner is dead or between two operations. The lane's last operation took
/// place if the total names it as the last writer, or if `applied` records it.
///
/// `writer` must have been read before `applied`, because a writer records the last operation in `applied` before it
/// overwrites the total.
#[must_use]
pub fn settled_charge(index: usize, sequence: u64, applied: u64, charged: [u64; 2], writer: u64) -> u64 {
    let operation = Stamp {
        lane: index,
        number: sequence,
    };
    let took_place = applied >= sequence || writer == operation.pack();
    let [even, odd] = charged;
    if took_place == sequence.is_multiple_of(2) {
        even
    } else {
        odd
    }
}

// === impl Damage ===

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Size(size) => write!(
                f,
                "ledger has {size} bytes, not {SIZE}: it was cut, or library and plugin differ in version"
            ),
            Self::Format => write!(f, "not a ledger (format, lanes or size field)"),
            Self::Version(version) => write!(
                f,
                "ledger version {version} is not {VERSION}: library and plugin differ in version"
            ),
            Self::Unsealed => write!(f, "ledger was not written to its end"),
            Self::Share => write!(f, "ledger belongs to another share"),
            Self::Writer(word) => write!(f, "ledger names a last writer that cannot be ({word:#x})"),
            Self::Lane(index) => write!(f, "lane {index} of the ledger holds an impossible charge"),
            Self::Object(index) => write!(f, "object {index} of the ledger holds an impossible charge"),
        }
    }
}

impl std::error::Error for Damage {}

#[cfg(test)]
#[path = "ledger_tests.rs"]
mod tests;
