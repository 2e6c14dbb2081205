//! The layout of HAMi's shared region, version 1.2, as its monitor reads it: 2,008,952 bytes, little-endian, for 16
//! GPUs and 1024 processes. This module only encodes bytes; [`super::mirror`] writes the file.
//!
//! ```text
//!        0  magic 19920718, written last          56  GPUs           64  their UUIDs, 96 bytes each
//!     1600  memory limits (bytes), 8 bytes each  1728  time limits (percent), 8 bytes each
//!     1856  processes, 1960 bytes each: PID, host PID, then for each GPU the memory in use (64 bytes: context,
//!           module, data, offset, total), the monitor's figures, utilisation, status
//!  2008896  number of processes, switches of the monitor, time of the last launch
//! ```
//!
//! Its locks (a semaphore at 24, another after the last launch) belong to HAMi-core. This library writes them as free
//! into a new file and never takes them.
#![forbid(unsafe_code)]

use super::variables::MAX_DEVICES;

pub const SIZE: u64 = 2_008_952;
pub const MAGIC: u32 = 19_920_718;
const VERSION: [u32; 2] = [1, 2];
/// Maximum number of processes in the region.
pub const MAX_PROCESSES: usize = 1024;

pub const MAGIC_AT: u64 = 0;
/// The header reaches from here to the first process.
pub const HEADER_AT: u64 = 4;
const SEMAPHORE_AT: usize = 24;
/// The header describes the GPUs from here on. Before are versions and a lock.
pub const DEVICES_AT: usize = 56;
const UUIDS_AT: usize = 64;
const UUID_SIZE: usize = 96;
const LIMITS_AT: usize = UUIDS_AT + MAX_DEVICES * UUID_SIZE;
const SM_LIMITS_AT: usize = LIMITS_AT + MAX_DEVICES * 8;
const PROCESSES_AT: usize = SM_LIMITS_AT + MAX_DEVICES * 8;
const PROCESS_SIZE: usize = 1960;
/// In the entry of a process: the memory in use on each GPU, 64 bytes each.
const USED_AT: usize = 8;
const USED_SIZE: usize = 64;
const DATA_AT: usize = 16;
const TOTAL_AT: usize = 32;
pub const PROCESS_COUNT_AT: u64 = (PROCESSES_AT + MAX_PROCESSES * PROCESS_SIZE) as u64;
/// The second semaphore, after the time of the last launch.
pub const LAST_SEMAPHORE_AT: u64 = PROCESS_COUNT_AT + 24;

const _: () = assert!(LIMITS_AT == 1600 && SM_LIMITS_AT == 1728 && PROCESSES_AT == 1856);
const _: () = assert!(PROCESS_COUNT_AT == 2_008_896 && PROCESS_COUNT_AT + 56 == SIZE);
const _: () = assert!(USED_AT + MAX_DEVICES * USED_SIZE + 128 + MAX_DEVICES * 48 + 8 + 24 == PROCESS_SIZE);

/// A GPU in the region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    pub uuid: String,
    pub limit: u64,
    /// Percent; 100 if time is not limited.
    pub sm_limit: u64,
}

/// Returns the bytes from [`HEADER_AT`] to the first process.
#[must_use]
pub fn header(devices: &[Device]) -> Vec<u8> {
    let mut bytes = vec![0; PROCESSES_AT];
    let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
    put(4, &VERSION[0].to_le_bytes());
    put(8, &VERSION[1].to_le_bytes());
    put(SEMAPHORE_AT, &1_u64.to_le_bytes());
    let devices = devices.iter().take(MAX_DEVICES);
    put(DEVICES_AT, &(devices.len() as u64).to_le_bytes());
    for (place, device) in devices.enumerate() {
        let uuid = device.uuid.as_bytes();
        // The last byte stays zero.
        put(UUIDS_AT + place * UUID_SIZE, &uuid[..uuid.len().min(UUID_SIZE - 1)]);
        put(LIMITS_AT + place * 8, &device.limit.to_le_bytes());
        put(SM_LIMITS_AT + place * 8, &device.sm_limit.to_le_bytes());
    }
    bytes.split_off(HEADER_AT as usize)
}

/// Returns the offset of the entry of process `slot`.
#[must_use]
pub fn process_at(slot: usize) -> u64 {
    (PROCESSES_AT + slot.min(MAX_PROCESSES - 1) * PROCESS_SIZE) as u64
}

/// Returns the start of a process entry: the PID in its own namespace, and the memory in use on each GPU. The monitor
/// writes the rest of the entry.
#[must_use]
pub fn process(pid: u32, used: &[u64]) -> Vec<u8> {
    let mut bytes = vec![0; USED_AT + MAX_DEVICES * USED_SIZE];
    bytes[..4].copy_from_slice(&pid.to_le_bytes());
    for (place, used) in used.iter().take(MAX_DEVICES).enumerate() {
        for field in [DATA_AT, TOTAL_AT] {
            let at = USED_AT + place * USED_SIZE + field;
            bytes[at..at + 8].copy_from_slice(&used.to_le_bytes());
        }
    }
    bytes
}

/// Returns true if a file of `size` bytes that begins with `magic` is a region of this version, initialised or not.
#[must_use]
pub fn is_region(size: u64, magic: u32) -> bool {
    size == SIZE && (magic == MAGIC || magic == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_lies_where_the_monitor_looks() {
        let device = |uuid: &str, limit, sm_limit| Device {
            uuid: uuid.into(),
            limit,
            sm_limit,
        };
        let long = "x".repeat(200);
        let bytes = header(&[device("GPU-1", 3000 << 20, 30), device(&long, u64::MAX, 100)]);
        let mut file = vec![0; PROCESSES_AT];
        file[HEADER_AT as usize..].copy_from_slice(&bytes);
        let word = |at: usize| u64::from_le_bytes(file[at..at + 8].try_into().expect("8 bytes"));
        assert_eq!([file[4], file[8]], [1, 2]);
        assert_eq!(word(56), 2);
        assert_eq!(&file[64..70], b"GPU-1\0");
        assert_eq!((file[64 + 96 + 94], file[64 + 96 + 95]), (b'x', 0));
        assert_eq!(
            [word(1600), word(1608), word(1728), word(1736)],
            [3000 << 20, u64::MAX, 30, 100]
        );
        assert_eq!(process_at(0), 1856);
        assert_eq!(process_at(1023) + 1960, 2_008_896);
        assert_eq!(process_at(9999), process_at(1023));
        let one = process(42, &[5, 0, 7]);
        let word = |at: usize| u64::from_le_bytes(one[at..at + 8].try_into().expect("8 bytes"));
        assert_eq!(word(0), 42);
        assert_eq!(
            [word(8 + 16), word(8 + 32), word(8 + 64 + 32), word(8 + 128 + 32)],
            [5, 5, 0, 7]
        );
        assert_eq!(process(1, &[1; 99]).len(), one.len());
    }

    #[test]
    fn only_a_region_is_written_to() {
        assert!(is_region(SIZE, MAGIC) && is_region(SIZE, 0));
        assert!(!is_region(SIZE, 7) && !is_region(SIZE - 1, MAGIC) && !is_region(1_197_897, MAGIC));
    }
}
