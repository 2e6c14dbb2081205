//! What a share should ask for, by what it has used. Pure.
//!
//! It never advises less than what was used, and nothing where too little is known: measured for too short a time, no
//! figure, or memory was refused, because a share that was too small has not shown what it needs.

use std::time::Duration;

use serde::Serialize;

/// The shortest measured time that advice can be based on.
const LEAST_MEASURED: Duration = Duration::from_secs(10 * 60);
/// Percent of the peak that are added as a margin.
const MARGIN: u64 = 10;
const MI: u64 = 1 << 20;
const GI: u64 = 1 << 30;
/// The smallest share.
const LEAST_MEMORY: u64 = 64 * MI;
const CORES_STEP: u32 = 5;

/// What shares with equal requests have used, the most of each figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Measured {
    pub(crate) memory: u64,
    pub(crate) cores: u32,
    /// `None`: the peak of one of the shares is not known.
    pub(crate) memory_peak: Option<u64>,
    /// The most GPU time of one minute, in percent.
    pub(crate) time_peak: Option<u32>,
    pub(crate) time_mean: Option<u32>,
    pub(crate) refusals: u64,
    pub(crate) measured: Duration,
}

/// An advice, or why there is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(tag = "verdict", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub(crate) enum Advice {
    /// The share was measured for too short a time.
    TooEarly,
    /// The share's use is not known.
    NotMeasured,
    /// Memory was refused: the share needs more, but it is not known how much.
    NeedsMore { refusals: u64 },
    /// The share has used no memory at all.
    Unused,
    /// These requests would have been enough.
    Enough { memory_bytes: u64, cores: u32 },
}

impl Advice {
    /// Returns the advice for shares that have used this.
    pub(crate) fn of(seen: &Measured) -> Self {
        match seen.memory_peak {
            // A single refusal is enough, however short the time.
            _ if seen.refusals > 0 => Self::NeedsMore {
                refusals: seen.refusals,
            },
            _ if seen.measured < LEAST_MEASURED => Self::TooEarly,
            None => Self::NotMeasured,
            Some(0) => Self::Unused,
            Some(peak) => Self::Enough {
                memory_bytes: memory(seen.memory, peak),
                cores: cores(seen.cores, seen.time_peak, seen.time_mean),
            },
        }
    }
}

/// Returns the memory to ask for: the peak with a margin, but no more than is asked for now if that was enough.
fn memory(held: u64, peak: u64) -> u64 {
    let with_margin = rounded_up(peak.saturating_add(peak / 100 * MARGIN));
    with_margin.min(held.max(peak))
}

/// Rounds up to a size that people write.
fn rounded_up(bytes: u64) -> u64 {
    let step = match bytes {
        0..=GI => 64 * MI,
        _ if bytes <= 4 * GI => 256 * MI,
        _ => GI,
    };
    bytes.max(LEAST_MEMORY).div_ceil(step).saturating_mul(step)
}

/// Returns the cores to ask for: less only if no minute used as much, more only if the mean was higher. A share may use
/// more than its cores while others are idle, so a high peak is no reason to ask for more.
fn cores(held: u32, peak: Option<u32>, mean: Option<u32>) -> u32 {
    let stepped = |percent: u32| percent.max(1).div_ceil(CORES_STEP).saturating_mul(CORES_STEP).min(100);
    match (held, peak, mean) {
        (0, ..) | (_, None, _) => held,
        (_, Some(peak), _) if peak < held => stepped(peak).min(held),
        (_, _, Some(mean)) if mean > held => stepped(mean),
        _ => held,
    }
}

/// Returns how many shares with these requests one GPU has room for.
pub(crate) fn on_one_gpu(gpu_memory: u64, memory: u64, cores: u32) -> u64 {
    let by_memory = gpu_memory.checked_div(memory).unwrap_or(0);
    let by_cores = 100_u32.checked_div(cores).map_or(u64::MAX, u64::from);
    by_memory.min(by_cores)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn seen(memory: u64, peak: u64) -> Measured {
        Measured {
            memory,
            cores: 25,
            memory_peak: Some(peak),
            time_peak: Some(8),
            time_mean: Some(4),
            refusals: 0,
            measured: HOUR,
        }
    }

    #[test]
    fn the_peak_with_a_margin_is_rounded_up_to_a_size_that_people_write() {
        for (peak, memory_bytes) in [
            (1, 64 * MI),
            (600 * MI, 704 * MI),
            (3 * GI, 3 * GI + 512 * MI),
            (9 * GI + 200 * MI, 11 * GI),
            // Near the limit: the request stays the same.
            (19 * GI, 20 * GI),
            (20 * GI, 20 * GI),
        ] {
            let enough = Advice::Enough {
                memory_bytes,
                cores: 10,
            };
            assert_eq!(Advice::of(&seen(20 * GI, peak)), enough, "{peak}");
        }
    }

    #[test]
    fn never_less_than_what_was_used_is_advised() {
        for held in [64 * MI, 100 * MI, GI, 20 * GI, 80 * GI] {
            for part in 1..=120 {
                let peak = held / 100 * part;
                let Advice::Enough { memory_bytes, .. } = Advice::of(&seen(held, peak)) else {
                    panic!("{held} {peak}");
                };
                assert!(
                    memory_bytes >= peak && memory_bytes <= held.max(peak),
                    "{held} {peak} {memory_bytes}"
                );
            }
        }
        for held in 0..=100 {
            for peak in 0..=100 {
                for mean in 0..=peak {
                    let advised = cores(held, Some(peak), Some(mean));
                    assert!(held == 0 || advised >= mean, "{held} {peak} {mean}");
                    assert!(advised >= peak.min(held) && advised <= 100, "{held} {peak} {mean}");
                }
            }
        }
    }

    #[test]
    fn without_knowledge_there_is_no_advice() {
        let of = |change: fn(&mut Measured)| {
            let mut seen = seen(20 * GI, GI);
            change(&mut seen);
            Advice::of(&seen)
        };
        let enough = |cores| {
            let memory_bytes = GI + 256 * MI;
            Advice::Enough { memory_bytes, cores }
        };
        let refused = of(|seen| (seen.refusals, seen.measured) = (3, Duration::ZERO));
        assert_eq!(refused, Advice::NeedsMore { refusals: 3 });
        let early = of(|seen| seen.measured = LEAST_MEASURED - Duration::from_secs(1));
        assert_eq!(early, Advice::TooEarly);
        assert_eq!(of(|seen| seen.memory_peak = None), Advice::NotMeasured);
        assert_eq!(of(|seen| seen.memory_peak = Some(0)), Advice::Unused);
        // Nothing is known about cores, so they stay the same.
        assert_eq!(of(|seen| seen.time_peak = None), enough(25));
        assert_eq!(of(|seen| seen.cores = 0), enough(0));
        let busy = of(|seen| (seen.time_peak, seen.time_mean) = (Some(90), Some(41)));
        assert_eq!(busy, enough(45));
    }

    #[test]
    fn memory_and_cores_both_limit_how_many_fit_on_one_gpu() {
        assert_eq!(on_one_gpu(80 * GI, 20 * GI, 0), 4);
        assert_eq!(on_one_gpu(80 * GI, 11 * GI, 10), 7);
        assert_eq!(on_one_gpu(80 * GI, 11 * GI, 30), 3);
        assert_eq!(on_one_gpu(80 * GI, 0, 30), 0);
    }
}
