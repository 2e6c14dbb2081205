//! Remembers on which GPU a stream is, in a process that has several: a launch goes there, whatever context is current.
//!
//! The handle of a destroyed stream may be reused, perhaps on another GPU. So the end of any stream or context invalidates all
//! entries, by a number that each entry carries.
//!
//! How it fails: if the driver's answer arrives while a stream ends, it is stored with the old number, so it is never
//! used. The number has 15 bits: an entry is wrongly used if exactly 32,768 streams or contexts have ended since it was
//! stored.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// Number of entries. If the handles of two streams collide, the driver is asked each time.
const PLACES: usize = 256;
/// Bits of an entry: the handle without its lowest four bits, which are always the same; the number of ends; the GPU.
const GPU_BITS: u32 = 5;
const END_BITS: u32 = 15;
const HANDLE_BITS: u32 = 44;
/// The value of an unused place. No handle is that high.
const UNUSED: u64 = u64::MAX;

/// The GPUs of streams.
#[derive(Debug)]
pub struct StreamGpus {
    entries: [AtomicU64; PLACES],
    /// How many streams and contexts have ended.
    ends: AtomicU64,
}

impl StreamGpus {
    #[must_use]
    #[allow(clippy::new_without_default)] // It is a static.
    pub const fn new() -> Self {
        Self {
            entries: [const { AtomicU64::new(UNUSED) }; PLACES],
            ends: AtomicU64::new(0),
        }
    }

    /// Returns the GPU of `stream`. If it is not known, `ask` asks the driver.
    #[inline]
    pub fn get(&self, stream: usize, ask: impl FnOnce() -> Option<usize>) -> Option<usize> {
        let key = (stream as u64).rotate_right(4);
        let ends = self.ends.load(Acquire) % (1 << END_BITS);
        let entry = &self.entries[key as usize % PLACES];
        let tag = key << END_BITS | ends;
        let known = entry.load(Relaxed);
        if known >> GPU_BITS == tag {
            return Some(known as usize % (1 << GPU_BITS));
        }
        let gpu = ask()?;
        if key < 1 << HANDLE_BITS && gpu < 1 << GPU_BITS {
            entry.store(tag << GPU_BITS | gpu as u64, Relaxed);
        }
        Some(gpu)
    }

    /// Must be called both before and after a stream or a context is destroyed.
    pub fn forget(&self) {
        self.ends.fetch_add(1, Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEVER: fn() -> Option<usize> = || panic!("it is known");

    #[test]
    fn a_stream_is_asked_for_once() {
        let gpus = StreamGpus::new();
        for (stream, gpu) in [(0x5600_0000_1230_usize, 1), (0x5600_0000_1240, 0)] {
            assert_eq!(gpus.get(stream, || Some(gpu)), Some(gpu));
            assert_eq!(gpus.get(stream, NEVER), Some(gpu));
        }
        assert_eq!(gpus.get(0x5600_0000_1230, NEVER), Some(1));
        assert_eq!(gpus.get(0x5600_0000_1250, || None), None, "the driver does not tell");
        assert_eq!(gpus.get(0x5600_0000_1250, || Some(1)), Some(1), "and is asked again");
    }

    #[test]
    fn the_end_of_a_stream_forgets_all_and_what_was_asked_meanwhile() {
        let gpus = StreamGpus::new();
        let stream = 0x7f00_dead_bee0_usize;
        assert_eq!(gpus.get(stream, || Some(1)), Some(1));
        gpus.forget();
        let late = || {
            gpus.forget();
            Some(1)
        };
        assert_eq!(gpus.get(stream, late), Some(1));
        assert_eq!(gpus.get(stream, || Some(0)), Some(0), "the handle is another stream's");
        assert_eq!(gpus.get(stream, NEVER), Some(0));
    }

    #[test]
    fn what_does_not_fit_into_an_entry_is_asked_for_each_time() {
        let gpus = StreamGpus::new();
        for (stream, gpu) in [(usize::MAX, 0), (0x7f00_0000_1001, 1), (0x7f00_0000_1000, 32)] {
            assert_eq!(gpus.get(stream, || Some(gpu)), Some(gpu));
            assert_eq!(gpus.get(stream, || Some(gpu + 1)), Some(gpu + 1), "{stream:x}");
        }
    }

    #[test]
    fn two_streams_of_one_place_do_not_become_one() {
        let gpus = StreamGpus::new();
        let (one, other) = (0x7f00_0000_1000_usize, 0x7f00_0000_1000 + PLACES * 16);
        for _ in 0..3 {
            assert_eq!(gpus.get(one, || Some(0)), Some(0));
            assert_eq!(gpus.get(other, || Some(1)), Some(1));
        }
    }
}
