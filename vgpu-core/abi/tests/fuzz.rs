//! Parsing arbitrary bytes never panics and never returns an impossible value. Half of the rounds are the same every time.
//! The others are seeded by the clock; the seed is printed, and VGPU_SEED repeats it.

use vgpu_abi::arbitration::SLOTS;
use vgpu_abi::checksum::crc32;
use vgpu_abi::ledger::object::OBJECTS;
use vgpu_abi::ledger::{self, FIRST_LANE_AT, FIRST_OBJECT_AT, LANES, LINE, SEAL_AT, SIZE, Stamp, lane, settled_charge};
use vgpu_abi::limits::{Limits, MAX_SIZE, is_share_name};

const GOLDEN: &[u8] = include_bytes!("../testdata/limits-v1");

/// A small generator.
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() >> 11) as usize % bound
    }
}

/// Returns a fixed generator, and a generator that differs in each run.
fn chances() -> [Chance; 2] {
    let given = std::env::var("VGPU_SEED").ok().and_then(|text| text.parse().ok());
    let clock = || {
        let now = std::time::SystemTime::now().duration_since(std::time::SystemTime::UNIX_EPOCH);
        now.map_or(1, |now| now.as_nanos() as u64)
    };
    let seed: u64 = given.unwrap_or_else(|| if cfg!(miri) { 2 } else { clock() });
    println!("VGPU_SEED={seed}");
    [Chance(0x9E37_79B9), Chance(seed | 1)]
}

fn rounds(usual: usize) -> usize {
    if cfg!(miri) { usual / 500 + 2 } else { usual }
}

/// Cuts, doubles, swaps and overwrites parts of `bytes`.
fn spoil(chance: &mut Chance, bytes: &mut Vec<u8>) {
    for _ in 0..=chance.below(4) {
        if bytes.is_empty() {
            return;
        }
        let (at, other) = (chance.below(bytes.len()), chance.below(bytes.len()));
        let (from, to) = (at.min(other), at.max(other));
        match chance.below(8) {
            0 => bytes[at] ^= 1 << chance.below(8),
            1 => bytes[at] = chance.next() as u8,
            2 => bytes.truncate(at),
            3 => drop(bytes.drain(from..to)),
            4 => bytes.extend_from_within(from..to),
            5 => bytes.swap(from, to),
            6 => bytes.insert(at, b"\n 0-9/\0\xff"[chance.below(8)]),
            _ => {
                let piece = bytes[from..to].to_vec();
                drop(bytes.splice(at..at, piece));
            }
        }
    }
}

#[test]
fn limits_are_read_exactly_or_refused() {
    for mut chance in chances() {
        let mut read = 0;
        for _ in 0..rounds(40_000) {
            let mut bytes = GOLDEN.to_vec();
            let sealed = chance.below(2) == 0;
            if sealed {
                // A faulty writer would seal it like this, with a correct checksum.
                bytes.truncate(bytes.len() - "crc32 00000000\n".len());
            }
            spoil(&mut chance, &mut bytes);
            if sealed {
                let crc = crc32(&bytes);
                bytes.extend_from_slice(format!("crc32 {crc:08x}\n").as_bytes());
            }
            let Ok(limits) = Limits::parse(&bytes) else { continue };
            read += 1;
            assert!(limits.memory > 0 && limits.cores <= 100 && is_share_name(&limits.share));
            assert!(limits.slot.is_none_or(|slot| usize::from(slot) < SLOTS));
            assert!(limits.libcuda.is_absolute() && limits.libnvidia_ml.is_absolute() && !limits.gpu.is_empty());
            assert_eq!(Limits::parse(limits.render().as_bytes()), Ok(limits), "{bytes:?}");
        }
        assert!(
            read > 0 || cfg!(miri),
            "no change was ever sound: the test looks at nothing"
        );
    }
}

#[test]
fn limits_of_any_bytes_are_refused() {
    for mut chance in chances() {
        for _ in 0..rounds(4_000) {
            let bytes: Vec<u8> = (0..chance.below(400)).map(|_| chance.next() as u8).collect();
            assert!(Limits::parse(&bytes).is_err());
        }
    }
    assert!(Limits::parse(&vec![b'\n'; MAX_SIZE + 1]).is_err());
}

#[test]
fn every_sound_limits_file_reads_back() {
    for mut chance in chances() {
        let mut limits = Limits::parse(GOLDEN).expect("golden limits");
        for _ in 0..rounds(4_000) {
            let letters = b"abcdefghijklmnopqrstuvwxyz0123456789-";
            let length = 1 + chance.below(63);
            limits.share = (0..length)
                .map(|_| letters[chance.below(letters.len())] as char)
                .collect();
            limits.order = chance.next() as u32;
            limits.memory = (chance.next() >> chance.below(64)).max(1);
            limits.cores = chance.below(101) as u32;
            limits.slot = u8::try_from(chance.below(SLOTS + 1))
                .ok()
                .filter(|slot| usize::from(*slot) < SLOTS);
            limits.host_memory = chance.next() >> chance.below(64);
            limits.context_reserve = [None, Some(0), Some(2 | chance.next() >> chance.below(64))][chance.below(3)];
            limits.libcuda = format!("/{}", char::from_u32(chance.below(0x3000) as u32 + 0x20).unwrap_or('x')).into();
            assert_eq!(Limits::parse(limits.render().as_bytes()), Ok(limits.clone()));
        }
    }
}

#[test]
fn a_ledger_of_any_bytes_is_read_within_bounds_or_refused() {
    let fresh = ledger::image(&Limits::parse(GOLDEN).expect("golden limits"));
    for mut chance in chances() {
        let mut read = 0;
        for _ in 0..rounds(1_500) {
            let mut bytes = fresh.clone();
            for _ in 0..chance.below(300) {
                let at = match chance.below(8) {
                    0 => 8 * chance.below(SIZE / 8),
                    1 => LINE + 8 * chance.below(2),
                    2 => FIRST_OBJECT_AT + chance.below(OBJECTS) * LINE + 8 * chance.below(LINE / 8),
                    _ => FIRST_LANE_AT + chance.below(LANES) * LINE + 8 * chance.below(LINE / 8),
                };
                let value = match chance.below(4) {
                    0 => chance.next(),
                    1 => chance.next() >> 10,
                    2 => u64::MAX >> chance.below(64),
                    _ => chance.below(1 << 20) as u64,
                };
                bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
            }
            if chance.below(8) == 0 {
                spoil(&mut chance, &mut bytes);
            }
            let Ok(usage) = ledger::read(&bytes) else { continue };
            read += 1;
            assert!(usage.processes.len() <= LANES, "one a lane, and PID 0");
            assert!(
                usage
                    .processes
                    .is_sorted_by_key(|process| (process.pid_namespace, process.pid))
            );
            assert_eq!((bytes.len(), &bytes[SEAL_AT..]), (SIZE, &fresh[SEAL_AT..]));
        }
        assert!(
            read > 0 || cfg!(miri),
            "no ledger was ever sound: the test looks at nothing"
        );
    }
}

#[test]
fn settled_is_one_of_the_two_and_of_the_right_parity() {
    for mut chance in chances() {
        for _ in 0..rounds(20_000) {
            let (index, sequence) = (chance.below(LANES), chance.next() >> Stamp::LANE_BITS);
            let applied = sequence.wrapping_sub(1).wrapping_add(chance.below(3) as u64);
            let number = sequence.wrapping_sub(chance.below(2) as u64) & Stamp::LAST;
            let writer = Stamp {
                lane: if chance.below(2) == 0 {
                    index
                } else {
                    chance.below(LANES)
                },
                number,
            };
            let took_place = applied >= sequence || (writer.lane == index && number == sequence);
            let held = settled_charge(index, sequence, applied, [10, 11], writer.pack());
            let last = if took_place { sequence } else { sequence.wrapping_sub(1) };
            assert_eq!(held, 10 + last % 2, "{sequence} {applied} {writer:?}");
        }
    }
    assert_eq!(lane::CHARGED[1] - lane::CHARGED[0], 8);
}
