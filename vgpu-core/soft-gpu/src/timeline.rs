//! Models time: how long queued work takes if processes share a GPU, and the resulting utilisation.
//!
//! The work of a process on one GPU runs in order. While k processes have work queued, each gets 1/k of the GPU: its
//! queue takes k times as long, with k determined anew at each launch. The GPU time that a process has got at a moment
//! follows from `queued`, `end` and k. Samples of it, taken at launches, give the utilisation of the last window. Only
//! the owner writes; readers need no lock. Times are CLOCK_MONOTONIC in ns, which all containers of a machine share.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

const SAMPLES: usize = 32;
/// The least time between samples. All samples together reach back further than WINDOW_NS.
const SAMPLE_NS: u64 = 20_000_000;
/// The window over which utilisation is measured. NVML says "between 1/6 and 1 second".
pub const WINDOW_NS: u64 = 500_000_000;

#[derive(Default)]
#[repr(C)]
struct Sample {
    at: AtomicU64,
    served: AtomicU64,
}

/// One process's work on one GPU.
#[derive(Default)]
#[repr(C)]
pub struct Usage {
    /// GPU time queued since the process started.
    queued: AtomicU64,
    /// When the queue will be empty.
    end: AtomicU64,
    sharers: AtomicU32,
    head: AtomicU32,
    samples: [Sample; SAMPLES],
}

impl Usage {
    pub fn busy(&self, now: u64) -> bool {
        self.end.load(Relaxed) > now
    }

    pub fn end(&self) -> u64 {
        self.end.load(Relaxed)
    }

    fn remaining(&self, at: u64) -> u64 {
        self.end.load(Relaxed).saturating_sub(at) / u64::from(self.sharers.load(Relaxed).max(1))
    }

    /// Returns the GPU time that the process had got at `at`.
    pub fn served(&self, at: u64) -> u64 {
        self.queued.load(Relaxed).saturating_sub(self.remaining(at))
    }

    /// Queues `work` ns of GPU time and returns when it will be done. Only the owner calls this, one thread at a time.
    pub fn launch(&self, now: u64, work: u64, sharers: u32) -> u64 {
        let remaining = self.remaining(now);
        let head = self.head.load(Relaxed) as usize;
        if now.saturating_sub(self.samples[head % SAMPLES].at.load(Relaxed)) >= SAMPLE_NS {
            let next = &self.samples[(head + 1) % SAMPLES];
            next.at.store(now, Relaxed);
            next.served.store(self.served(now), Relaxed);
            self.head.store(((head + 1) % SAMPLES) as u32, Relaxed);
        }
        let sharers = sharers.max(1);
        let end = now.saturating_add(remaining.saturating_add(work).saturating_mul(u64::from(sharers)));
        self.sharers.store(sharers, Relaxed);
        self.queued.fetch_add(work, Relaxed);
        self.end.store(end, Relaxed);
        end
    }

    /// Returns the GPU time that the process had got at `at`, a moment in the past, as exactly as the samples tell.
    fn served_then(&self, at: u64, now: u64) -> u64 {
        let mut before = (0, 0);
        let mut after = (now, self.served(now));
        for sample in &self.samples {
            let point = (sample.at.load(Relaxed), sample.served.load(Relaxed));
            if point.0 == 0 {
                continue;
            }
            if point.0 <= at && point.0 > before.0 {
                before = point;
            } else if point.0 > at && point.0 < after.0 {
                after = point;
            }
        }
        if before.0 == 0 {
            // The process started within the window.
            return 0;
        }
        if after.0 == now {
            // Nothing was launched since, so the present queue tells.
            return self.served(at).max(before.1).min(after.1);
        }
        let part = (after.1.saturating_sub(before.1)) as u128 * (at - before.0) as u128;
        before.1 + (part / (after.0 - before.0).max(1) as u128) as u64
    }

    /// Returns the GPU time in the window that ends now.
    pub fn in_window(&self, now: u64) -> u64 {
        let then = now.saturating_sub(WINDOW_NS);
        self.served(now)
            .saturating_sub(self.served_then(then, now))
            .min(WINDOW_NS)
    }

    /// Resets the words for a new process in this place.
    pub fn clear(&self) {
        for word in [&self.queued, &self.end] {
            word.store(0, Relaxed);
        }
        self.sharers.store(0, Relaxed);
        self.head.store(0, Relaxed);
        for sample in &self.samples {
            sample.at.store(0, Relaxed);
            sample.served.store(0, Relaxed);
        }
    }
}

/// Returns how long a kernel runs alone: its blocks run in waves on the multiprocessors, each of which has room for
/// 2048 threads and at most 32 blocks.
pub fn kernel_ns(blocks: u64, threads_per_block: u64, sms: u32, wave_ns: u64) -> u64 {
    let resident = (2048 / threads_per_block.clamp(1, 1024)).clamp(1, 32) * u64::from(sms.max(1));
    blocks.max(1).div_ceil(resident).saturating_mul(wave_ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn work_queues_in_order_and_stretches_with_sharers() {
        let usage = Usage::default();
        assert_eq!(usage.launch(1_000, 100, 1), 1_100);
        assert_eq!(usage.launch(1_050, 100, 1), 1_200, "50 left and 100 more");
        assert_eq!(
            usage.launch(1_100, 100, 2),
            1_500,
            "100 left and 100 more, at half speed"
        );
        assert_eq!(usage.served(1_300), 200);
    }

    fn percent(usage: &Usage, now: u64) -> u64 {
        usage.in_window(now) * 100 / WINDOW_NS
    }

    #[test]
    fn utilisation_follows_the_duty_cycle() {
        for (work, expected) in [(1, 10), (3, 30), (10, 100)] {
            let usage = Usage::default();
            let mut now = 50 * MS;
            for _ in 0..200 {
                usage.launch(now, work * MS, 1);
                now += 10 * MS;
            }
            let got = percent(&usage, now);
            assert!(got.abs_diff(expected) <= 3, "{work} ms in 10: {got} %");
        }
    }

    #[test]
    fn one_long_kernel_is_busy_until_it_ends_and_idle_a_window_later() {
        let usage = Usage::default();
        usage.launch(100 * MS, 2_000 * MS, 1);
        assert_eq!(percent(&usage, 1_100 * MS), 100);
        assert_eq!(percent(&usage, 2_350 * MS), 50);
        assert_eq!(percent(&usage, 2_700 * MS), 0);
    }

    #[test]
    fn two_sharers_each_get_half() {
        let usage = Usage::default();
        usage.launch(100 * MS, 1_000 * MS, 2);
        assert_eq!(percent(&usage, 1_100 * MS), 50);
    }

    #[test]
    fn kernels_go_in_waves() {
        assert_eq!(kernel_ns(1, 32, 132, 5_000), 5_000);
        assert_eq!(kernel_ns(132 * 8, 256, 132, 5_000), 5_000);
        assert_eq!(kernel_ns(132 * 8 + 1, 256, 132, 5_000), 10_000);
        assert_eq!(kernel_ns(0, 0, 1, 5_000), 5_000);
    }
}
