//! 200 random starts and ends with an outage in between, against an account that knows every moment.

use proptest::prelude::*;
use std::time::Duration;
use vgpu_api::quota::WhenSpent;
use vgpu_planner::Time;
use vgpu_quota::{Account, Budget, GpuTime};

#[derive(Debug, Clone, Copy)]
struct Share {
    rate: u64,
    from: i64,
    to: i64,
}

fn shares() -> impl Strategy<Value = Vec<Share>> {
    let share = (1u64..=1_000_000, 0i64..7_000_000, 1i64..3_000_000);
    prop::collection::vec(
        share.prop_map(|(rate, from, lasts)| Share {
            rate,
            from,
            to: from + lasts,
        }),
        100,
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]
    #[test]
    fn the_account_is_exact_but_for_what_ends_in_an_outage(
        shares in shares(),
        outage in (1_000_000i64..4_000_000, 1i64..2_000_000),
        hours in 1u64..3,
    ) {
        let (gone, back) = (outage.0, outage.0 + outage.1);
        let last_sum = gone / 10_000 * 10_000;
        let end = 8_000_000;
        let every = Duration::from_secs(hours * 3600);
        let budget = Budget { gpu_hours: 1_000_000, every, when_spent: WhenSpent::Hold };
        let mut events: Vec<(i64, usize, bool)> = Vec::new();
        for (i, share) in shares.iter().enumerate() {
            events.push((share.from, i, true));
            events.push((share.to, i, false));
        }
        events.sort_unstable();
        let id = |i: usize| format!("claim-{i}");
        let mut account = Account::resume(budget, Time::from_millis(0), None, Time::from_millis(0));
        for (at, i, begins) in events.iter().filter(|(at, ..)| *at <= last_sum) {
            account.advance(Time::from_millis(*at));
            match begins {
                true => account.set(&id(*i), shares[*i].rate, None),
                false => account.end(&id(*i)),
            }
        }
        account.advance(Time::from_millis(last_sum));
        let written = account.sum();
        // Another leader: it finds the shares that exist then.
        let mut account = Account::resume(budget, Time::from_millis(0), Some(&written), Time::from_millis(back));
        for (i, share) in shares.iter().enumerate().filter(|(_, share)| share.from <= back && share.to > back) {
            account.set(&id(i), share.rate, Some(Some(Time::from_millis(share.from))));
        }
        for (at, i, begins) in events.iter().filter(|(at, ..)| *at > back && *at <= end) {
            account.advance(Time::from_millis(*at));
            match begins {
                true => account.set(&id(*i), shares[*i].rate, None),
                false => account.end(&id(*i)),
            }
        }
        account.advance(Time::from_millis(end));
        // The exact account: shares that ended during the outage are charged up to the last sum.
        let period = i64::try_from(every.as_millis()).unwrap();
        let start = end / period * period;
        let exact: u128 = shares.iter().map(|share| {
            let ended_unseen = share.to > last_sum && share.to <= back;
            let to = if ended_unseen { last_sum } else { share.to }.min(end);
            let from = share.from.max(start);
            u128::from(share.rate) * u128::try_from((to - from).max(0)).unwrap()
        }).sum();
        prop_assert_eq!(account.sum().used, GpuTime(exact));
    }
}
