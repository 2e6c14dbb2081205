//! Sizes and offsets of a ledger and of its lanes, and [`Stamp`]; [`super`] shows the whole layout.

/// The size of a ledger in bytes.
pub const SIZE: usize = 1536 * LINE;
/// Offset of the second ledger, which counts host memory.
pub const HOST_AT: usize = SIZE;
/// The size of a file with two ledgers.
pub const MAX_SIZE: usize = 2 * SIZE;
/// Size and alignment of a lane: two cache lines, because processors fetch them in pairs.
pub const LINE: usize = 128;
/// Number of lanes, including the reaper's.
pub const LANES: usize = 1015;
/// The lane in which a reaper writes its operations.
pub const REAPER: usize = 0;
/// Version of the layout.
pub const VERSION: u32 = 1;

pub const FORMAT: u64 = u64::from_le_bytes(*b"vgpuledg");
pub const SEAL: u64 = u64::from_le_bytes(*b"\x89sealed\n");

/// Offsets in the file.
pub const FORMAT_AT: usize = 0;
pub const VERSION_AT: usize = 8;
pub const LANES_AT: usize = 12;
pub const SIZE_AT: usize = 16;
pub const SHARE_AT: usize = 24;
pub const CHARGED_AT: usize = LINE;
pub const WRITER_AT: usize = LINE + 8;
pub const PEAK_AT: usize = LINE + 16;
pub const OBJECTS_USED_AT: usize = 2 * LINE;
pub const CONTEXT_TOOK_AT: usize = 2 * LINE + 8;
pub const FIRST_LANE_AT: usize = 8 * LINE;
pub const FIRST_OBJECT_AT: usize = FIRST_LANE_AT + LANES * LINE;
pub const SEAL_AT: usize = SIZE - 8;

/// Offsets in a lane.
pub mod lane {
    /// Even: free. Odd: claimed. Incremented by each claim and each release of the lane.
    pub const GENERATION: usize = 0;
    /// Number of the lane's last operation.
    pub const SEQUENCE: usize = 8;
    /// Number of the last operation that is recorded as done.
    pub const APPLIED: usize = 16;
    /// The lane's charge after its last even operation, and after its last odd one. Lane [`REAPER`](super::REAPER) has
    /// no charge: here it names the claim that it releases, as a [`Stamp`](super::Stamp).
    pub const CHARGED: [usize; 2] = [24, 32];
    /// [`Stamp`](super::Stamp) of the process's first claim: the same in all its lanes.
    pub const PROCESS: usize = 40;
    /// Inode of the owner's PID namespace.
    pub const PID_NAMESPACE: usize = 48;
    /// The owner's PID in its own namespace.
    pub const PID: usize = 56;
    /// 1: the owner has had a context on the GPU. Process lists leave out processes without a context and without a
    /// charge.
    pub const CONTEXT: usize = 60;
}

const _: () = assert!(LANES <= 1 << Stamp::LANE_BITS);

/// Identifies an operation (lane, sequence) or a claim (lane, generation) in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stamp {
    pub lane: usize,
    pub number: u64,
}

// === impl Stamp ===

impl Stamp {
    /// Enough for all lanes and all exported objects, which are numbered after the lanes.
    pub const LANE_BITS: u32 = 11;
    pub const NUMBER_BITS: u32 = 64 - Self::LANE_BITS;
    /// The highest number. With 30 ns for each operation it is reached after 8 years.
    pub const LAST: u64 = (1 << Self::NUMBER_BITS) - 1;

    #[must_use]
    pub const fn pack(self) -> u64 {
        ((self.lane as u64) << Self::NUMBER_BITS) | (self.number & Self::LAST)
    }

    #[must_use]
    pub const fn unpack(word: u64) -> Self {
        Self {
            lane: (word >> Self::NUMBER_BITS) as usize,
            number: word & Self::LAST,
        }
    }
}
