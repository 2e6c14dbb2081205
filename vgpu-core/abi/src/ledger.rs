//! The ledger's format: what the processes of one share hold. One file of a fixed size a share,
//! made by the node, mapped by every process of the share (`vgpu-core`), read by the node in
//! bounded reads ([`read`]) and never mapped there. It holds no limit: limits come from the limits
//! file alone, so damage here can at worst lift the damager's own.
//!
//! ```text
//!      0  format, version, lanes, size, share            line 0, constant
//!    128  total {charged bytes, stamp of the last writer} line 1, changed as one 16-byte word
//!    256  objects that were ever used                     line 2: how far who looks for one must go
//!   1024  lane 0 (the reaper's), lane 1, ... lane 1014    a line of 128 bytes each
//! 130944  object 0, ... object 511 ([`object`])           a line each
//! 196600  seal                                            last 8 bytes, so a cut file has none
//! ```
//!
//! A share that may go on in host memory (`host-memory` in its limits) has two of these in a row: the
//! first for device memory, the second ([`HOST_AT`]) for host memory. Each is exact by itself.
//!
//! All numbers are little-endian. A lane belongs to one process at a time; its owner alone changes
//! it, and when the owner is dead the holder of the reaper's lock does. A [`Stamp`] names one
//! operation for all time: sequences of a lane go on from owner to owner and never repeat.
//!
//! How an operation stays exact whatever is killed whenever is told in `vgpu_core::ledger`; the
//! rule by which a dead owner's charge is known is [`settled`], used by both sides.
//!
//! Failure modes of [`read`]: the bytes are hostile (a tenant may write anything) and torn (writers
//! go on while the node reads). Every number is range-checked, nothing is indexed by them, and the
//! total is one aligned 8-byte word; lanes may be one operation apart from it.

mod layout;
pub mod object;

use crate::checksum::crc32;
use crate::limits::Limits;
pub use layout::*;
use object::OBJECTS;
use std::fmt;

const _: () = assert!(FIRST_OBJECT_AT + OBJECTS * LINE + LINE == SIZE);
const _: () = assert!(SIZE.is_multiple_of(4096), "the second ledger is mapped by itself");

/// What the processes of a share hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes charged to the share, those of dead processes that nobody has given back yet included.
    pub charged: u64,
    /// The same of host memory: what the share's programs have beyond its device memory.
    pub host: u64,
    /// Who holds them, by PID. Whether a process still lives cannot be told from the bytes.
    pub processes: Vec<Process>,
}

/// One process of a share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Its PID as it sees itself: two containers of one share may both have a PID 1. 0: exported memory that
    /// is held by processes which the ledger does not name.
    pub pid: u32,
    /// Inode of the PID namespace in which `pid` counts.
    pub pid_namespace: u64,
    pub charged: u64,
    /// Bytes of host memory beyond.
    pub host: u64,
}

/// Why bytes are no ledger. The reader adds the file's path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Damage {
    Size(usize),
    Format,
    Version(u32),
    Unsealed,
    /// A ledger of another share.
    Share,
    /// The total's last writer is no lane.
    Writer(u64),
    /// A lane holds more than all lanes together can.
    Lane(usize),
    /// An exported object does.
    Object(usize),
}

/// The size of the file of a share with these limits.
#[must_use]
pub fn size(limits: &Limits) -> usize {
    if limits.host_memory > 0 { MAX_SIZE } else { SIZE }
}

/// The bytes of a share's new file. Written in order, the seal comes last.
#[must_use]
pub fn image(limits: &Limits) -> Vec<u8> {
    one(limits).repeat(size(limits) / SIZE)
}

fn one(limits: &Limits) -> Vec<u8> {
    let mut bytes = vec![0; SIZE];
    let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
    put(FORMAT_AT, &FORMAT.to_le_bytes());
    put(VERSION_AT, &VERSION.to_le_bytes());
    put(LANES_AT, &(LANES as u32).to_le_bytes());
    put(SIZE_AT, &(SIZE as u64).to_le_bytes());
    put(SHARE_AT, &share_mark(&limits.share, &limits.gpu).to_le_bytes());
    put(SEAL_AT, &SEAL.to_le_bytes());
    bytes
}

/// What ties a ledger to its share: not to its limits, which may change while it lives.
#[must_use]
pub fn share_mark(share: &str, gpu: &str) -> u32 {
    crc32(format!("{share}\0{gpu}").as_bytes())
}

/// Checks that `bytes` (all of the file) are a ledger of this version.
///
/// # Errors
/// What is wrong with them.
pub fn check(bytes: &[u8]) -> Result<(), Damage> {
    match (bytes.first_chunk(), bytes.last_chunk()) {
        (Some(first), Some(last)) if bytes.len() == SIZE => check_ends(first, last),
        _ => Err(Damage::Size(bytes.len())),
    }
}

/// The same of a file of the right size, by its first line and its last.
///
/// # Errors
/// What is wrong with them.
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

/// What the share's processes hold, from the bytes of its ledger, as read at one moment or
/// nearly: see the module's failure modes.
///
/// # Errors
/// Bytes that no version-2 ledger can have.
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
            _ => settled(index, field(lane::SEQUENCE), field(lane::APPLIED), pair, writer),
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
    Ok(Usage {
        charged: word(bytes, CHARGED_AT),
        host: 0,
        processes,
    })
}

/// The claim whose charge the last reap took out of the total, which may not be free yet: its reaper died, or
/// is about to. Nobody's, of a new ledger.
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

/// Adds to each process what it is shown with of the exported objects; what nobody known holds is PID 0's.
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

/// What lane `index` holds, its owner being dead or between two operations: its last operation
/// took place if the total still names it as the last writer, or if someone has recorded so.
///
/// `writer` must have been read before `applied`: who overwrites the total records first.
#[must_use]
pub fn settled(index: usize, sequence: u64, applied: u64, charged: [u64; 2], writer: u64) -> u64 {
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

// A caller has checked that `bytes` is SIZE long, and every `at` is a sum of this file's constants.
fn word(bytes: &[u8], at: usize) -> u64 {
    let raw = bytes.get(at..at + 8).and_then(|raw| raw.try_into().ok());
    u64::from_le_bytes(raw.unwrap_or_default())
}

fn half(bytes: &[u8], at: usize) -> u32 {
    let raw = bytes.get(at..at + 4).and_then(|raw| raw.try_into().ok());
    u32::from_le_bytes(raw.unwrap_or_default())
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
