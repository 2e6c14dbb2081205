//! The GPU time that `cores` guarantees, as tokens in ns: refilled by the clock, reduced by charges. Debt has no bound.

use std::sync::atomic::Ordering::Relaxed;

use vgpu_abi::arbitration::{Bucket, WEIGHT_OF_ONE_CORE};

use super::Ns;

/// The weight of the whole GPU.
pub(super) const WHOLE: u64 = 100 * WEIGHT_OF_ONE_CORE as u64;
/// Refills happen in steps of this length. A step adds a whole number of tokens for any weight, so that no time is lost
/// to rounding.
const STEP: Ns = WHOLE;

/// An upper bound of the time for which a thread is preempted between reading the clock and refilling.
const LATE: Ns = 1000 * super::MS;

/// Adds the tokens since the last refill, and returns all tokens. `weight` is the rate in thousandths of a percent.
pub(super) fn refill(bucket: &Bucket, weight: u32, burst: Ns, now: Ns) -> i64 {
    let at = bucket.at.load(Relaxed);
    let burst = i64::try_from(burst).unwrap_or(i64::MAX);
    // Another thread, which read the clock later, may have refilled it since `now` was read.
    let is_ahead = at > now && at - now < LATE;
    if is_ahead {
        return bucket.tokens.load(Relaxed);
    }
    if at == 0 || at > now {
        // A new page, or a damaged one: any saved tokens are dropped, because their number is unknown.
        if bucket.at.compare_exchange(at, now, Relaxed, Relaxed).is_ok() {
            let _ = bucket.tokens.fetch_min(0, Relaxed);
        }
        return bucket.tokens.load(Relaxed);
    }
    let steps = (now - at) / STEP;
    // The thread that moves the time adds the tokens. If it is killed in between, the share loses them.
    if steps > 0
        && bucket
            .at
            .compare_exchange(at, at + steps * STEP, Relaxed, Relaxed)
            .is_ok()
    {
        let added = i64::try_from(u128::from(steps) * u128::from(weight)).unwrap_or(i64::MAX);
        let _ = bucket
            .tokens
            .fetch_update(Relaxed, Relaxed, |tokens| Some(tokens.saturating_add(added).min(burst)));
    }
    bucket.tokens.load(Relaxed)
}

/// Takes tokens for a charge.
pub(super) fn take(bucket: &Bucket, charge: Ns) {
    let charge = i64::try_from(charge).unwrap_or(i64::MAX);
    let _ = bucket
        .tokens
        .fetch_update(Relaxed, Relaxed, |tokens| Some(tokens.saturating_sub(charge)));
}

/// Returns how long it takes to earn so many tokens.
pub(super) fn time_for(tokens: u64, weight: u32) -> Ns {
    (u128::from(tokens) * u128::from(WHOLE) / u128::from(weight.max(1))).min(u128::from(u64::MAX)) as Ns
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Ns = 1_000_000;

    #[test]
    fn a_tenth_of_the_time_is_a_tenth_however_often_it_is_asked() {
        let periods = if cfg!(miri) {
            &[5 * MS][..]
        } else {
            &[999, 10_000, 123_457, 5 * MS]
        };
        for &period in periods {
            let bucket = Bucket::default();
            let mut now = 1;
            refill(&bucket, 10_000, 1000 * MS, now);
            while now < 1000 * MS {
                now += period;
                refill(&bucket, 10_000, 1000 * MS, now);
            }
            let tokens = bucket.tokens.load(Relaxed);
            assert!(
                (tokens - now as i64 / 10).abs() <= 10_000,
                "{tokens} of {now} every {period}"
            );
        }
    }

    #[test]
    fn savings_end_at_the_burst_and_debt_nowhere() {
        let bucket = Bucket::default();
        refill(&bucket, 50_000, 2 * MS, 1);
        assert_eq!(refill(&bucket, 50_000, 2 * MS, 1 + 1000 * MS), 2 * MS as i64);
        take(&bucket, 1_000_000 * MS);
        assert_eq!(bucket.tokens.load(Relaxed), -999_998 * MS as i64);
        assert_eq!(time_for(5 * MS, 50_000), 10 * MS);
    }

    #[test]
    fn a_thread_that_read_the_clock_before_another_one_takes_no_savings() {
        let bucket = Bucket::default();
        refill(&bucket, 50_000, 20 * MS, 1);
        assert_eq!(refill(&bucket, 50_000, 20 * MS, 1 + 40 * MS), 20 * MS as i64);
        assert_eq!(refill(&bucket, 50_000, 20 * MS, 1 + 30 * MS), 20 * MS as i64);
        assert_eq!(
            bucket.at.load(Relaxed),
            1 + 40 * MS,
            "the time between is not given twice"
        );
    }

    #[test]
    fn a_time_in_the_future_gives_nothing() {
        let bucket = Bucket::default();
        bucket.at.store(u64::MAX, Relaxed);
        bucket.tokens.store(i64::MAX, Relaxed);
        assert_eq!(refill(&bucket, 50_000, 2 * MS, 5), 0);
        assert_eq!(refill(&bucket, 50_000, 2 * MS, 5 + 2 * MS), MS as i64);
    }
}
