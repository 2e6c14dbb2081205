//! A mapped ledger: the layout of `vgpu_abi::ledger` as atomic words.

use super::wide::Total;
use std::mem::{offset_of, size_of};
use std::sync::atomic::{AtomicU32, AtomicU64};
use vgpu_abi::ledger as format;
use vgpu_abi::ledger::{object, refusal};

/// A mapped ledger.
#[repr(C, align(128))]
pub struct Region {
    pub format: AtomicU64,
    pub version: AtomicU32,
    pub lane_count: AtomicU32,
    pub size: AtomicU64,
    pub share: AtomicU32,
    _constant: [u8; 100],
    pub total: Total,
    /// The highest total, written after the total.
    pub peak: AtomicU64,
    _total: [u8; 104],
    /// Number of exported objects that were ever used; a search stops there.
    pub objects_used: AtomicU64,
    /// Size of the largest context of a process, plus 1; 0: not known.
    pub context_took: AtomicU64,
    _header: [u8; format::LINE - 16],
    pub refusals: Refusals,
    pub lanes: [Lane; format::LANES],
    pub objects: [Object; object::OBJECTS],
    _trailer: [u8; format::LINE - 8],
    pub seal: AtomicU64,
}

/// Calls that failed with out of memory: `vgpu_abi::ledger::refusal`.
#[repr(C, align(128))]
pub struct Refusals {
    /// Number of refusals for each cause.
    pub counts: [AtomicU64; 2],
    pub largest: AtomicU64,
    _line: [u8; format::LINE - 24],
    pub slots: [[AtomicU64; refusal::WORDS]; refusal::SLOTS],
}

/// The charge of one process, or of one of its threads when they contend.
#[repr(C, align(128))]
pub struct Lane {
    /// Odd while claimed.
    pub generation: AtomicU64,
    pub sequence: AtomicU64,
    pub applied: AtomicU64,
    pub charged: [AtomicU64; 2],
    pub process: AtomicU64,
    pub pid_namespace: AtomicU64,
    pub pid: AtomicU32,
    pub context: AtomicU32,
    _line: [u8; 64],
}

/// Memory that several processes hold: `vgpu_abi::ledger::object`.
#[repr(C, align(128))]
pub struct Object {
    /// Odd while claimed.
    pub generation: AtomicU64,
    pub bytes: AtomicU64,
    pub from: AtomicU64,
    pub place: AtomicU64,
    pub key: [AtomicU64; 8],
    pub holders: [AtomicU64; object::HOLDERS],
}

const _: () = {
    assert!(size_of::<Region>() == format::SIZE);
    assert!(size_of::<Lane>() == format::LINE);
    assert!(offset_of!(Region, format) == format::FORMAT_AT);
    assert!(offset_of!(Region, version) == format::VERSION_AT);
    assert!(offset_of!(Region, lane_count) == format::LANES_AT);
    assert!(offset_of!(Region, size) == format::SIZE_AT);
    assert!(offset_of!(Region, share) == format::SHARE_AT);
    assert!(offset_of!(Region, total) == format::CHARGED_AT);
    assert!(format::CHARGED_AT + 8 == format::WRITER_AT);
    assert!(offset_of!(Region, peak) == format::PEAK_AT);
    assert!(offset_of!(Region, refusals) == refusal::BY_LIMIT_AT);
    assert!(refusal::BY_LIMIT_AT + 8 * refusal::Cause::Driver as usize == refusal::BY_DRIVER_AT);
    assert!(offset_of!(Region, refusals) + offset_of!(Refusals, largest) == refusal::LARGEST_AT);
    assert!(offset_of!(Region, refusals) + offset_of!(Refusals, slots) == refusal::SLOTS_AT);
    assert!(offset_of!(Region, lanes) == format::FIRST_LANE_AT);
    assert!(offset_of!(Region, objects_used) == format::OBJECTS_USED_AT);
    assert!(offset_of!(Region, context_took) == format::CONTEXT_TOOK_AT);
    assert!(offset_of!(Region, objects) == format::FIRST_OBJECT_AT);
    assert!(size_of::<Object>() == format::LINE);
    assert!(offset_of!(Object, generation) == object::GENERATION);
    assert!(offset_of!(Object, bytes) == object::BYTES);
    assert!(offset_of!(Object, from) == object::FROM);
    assert!(offset_of!(Object, place) == object::PLACE);
    assert!(offset_of!(Object, key) == object::KEY);
    assert!(offset_of!(Object, holders) == object::HOLDERS_AT);
    assert!(offset_of!(Region, seal) == format::SEAL_AT);
    assert!(offset_of!(Lane, generation) == format::lane::GENERATION);
    assert!(offset_of!(Lane, sequence) == format::lane::SEQUENCE);
    assert!(offset_of!(Lane, applied) == format::lane::APPLIED);
    assert!(offset_of!(Lane, charged) == format::lane::CHARGED[0]);
    assert!(format::lane::CHARGED[0] + 8 == format::lane::CHARGED[1]);
    assert!(offset_of!(Lane, process) == format::lane::PROCESS);
    assert!(offset_of!(Lane, pid_namespace) == format::lane::PID_NAMESPACE);
    assert!(offset_of!(Lane, pid) == format::lane::PID);
    assert!(offset_of!(Lane, context) == format::lane::CONTEXT);
};

/// Returns the offset of lane `index` in the file. Its owner locks the first byte. Object `i`, on which all holders
/// have a read lock, has the index `LANES + i`.
#[must_use]
pub const fn lane_offset(index: usize) -> usize {
    format::FIRST_LANE_AT + index * format::LINE
}
