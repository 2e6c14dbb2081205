//! The account of a namespace's GPU hours.
//!
//! A share costs its fraction of a GPU (the larger of memory and time) from its allocation to its end. The sum is kept
//! in millionths of a GPU times milliseconds, so it is exact. Failure modes:
//! - **An outage** (nobody led): shares that still exist are charged for it, from their allocation. A share that ended
//!   during it is charged up to the last sum before it; one that began and ended during it is not charged.
//! - **A clock that jumps:** within a process the time between two sums is measured by a clock that does not jump, so
//!   the jump is not charged ([`Steady`]). If a sum is later than now, for example from a leader whose clock was ahead,
//!   charging continues from now.
//! - **A crash between two sums:** like an outage of at most 10 s.

use std::collections::HashMap;
use std::time::Duration;

use vgpu_planner::Time;

use crate::Now;
use crate::spec::Budget;

const HOUR: u128 = 3_600_000;
/// In the unit of [`GpuTime`].
const SECOND: u128 = 1_000_000_000;

/// Millionths of a GPU times milliseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct GpuTime(pub u128);

impl GpuTime {
    /// The time in hundredths of an hour, rounded down, for users.
    #[must_use]
    pub fn hours(self) -> String {
        let hundredths = self.0 / (HOUR * 10_000);
        let text = format!("{}.{:02}", hundredths / 100, hundredths % 100);
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    }

    pub(crate) fn seconds(self) -> String {
        format!("{}.{:09}", self.0 / SECOND, self.0 % SECOND)
    }

    pub(crate) fn read(text: &str) -> Option<Self> {
        let (whole, fraction) = text.split_once('.')?;
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        if !is_number(whole) || fraction.len() != 9 || !is_number(fraction) {
            return None;
        }
        let whole = u128::from(whole.parse::<u64>().ok()?);
        Some(Self(whole * SECOND + fraction.parse::<u128>().ok()?))
    }

    /// Converts GPU hours, given in millionths.
    #[must_use]
    pub fn of_hours(gpu_hours: u64) -> Self {
        Self(u128::from(gpu_hours) * HOUR)
    }

    fn charge(&mut self, rate: u64, passed: Duration) {
        self.0 = self.0.saturating_add(u128::from(rate) * passed.as_millis());
    }
}

/// A sum in the form of `status.budget`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sum {
    pub is_spent: bool,
    pub gpu_hours: u64,
    pub used: GpuTime,
    pub period_start: Time,
    pub period_end: Time,
    /// The time up to which all shares are charged.
    pub as_of: Time,
}

/// The running account.
#[derive(Debug, Clone)]
pub struct Account {
    budget: Budget,
    /// When the first period began.
    anchor: Time,
    used: GpuTime,
    period_start: Time,
    as_of: Time,
    /// The time up to which other leaders charged the shares that exist at the start.
    resumed_from: Time,
    /// By claim UID: millionths of a GPU.
    rates: HashMap<String, u64>,
}

impl Account {
    /// Continues from the last sum. `jump`: the jump of this process's clock since that sum, if any.
    #[must_use]
    pub fn resume(budget: Budget, anchor: Time, last: Option<&Sum>, now: Time) -> Self {
        let period_start = period(anchor, budget.every, now);
        let mut account = Self {
            budget,
            anchor,
            used: GpuTime::default(),
            period_start,
            as_of: now,
            resumed_from: now,
            rates: HashMap::new(),
        };
        if let Some(last) = last {
            account.resumed_from = last.as_of.min(now);
            // If that period began later than this one or has another length, what was used in it still counts.
            if last.period_start >= period_start {
                account.used = last.used;
            }
        }
        account
    }

    #[must_use]
    pub const fn budget(&self) -> &Budget {
        &self.budget
    }

    /// Replaces the budget. What was used in this period still counts.
    pub fn set_budget(&mut self, budget: Budget) {
        self.budget = budget;
        self.period_start = self
            .period_start
            .max(period(self.anchor, budget.every, self.as_of))
            .min(self.as_of);
    }

    /// Charges all shares up to a time.
    pub fn advance(&mut self, to: Time) {
        let start = period(self.anchor, self.budget.every, to);
        if start > self.period_start {
            self.used = GpuTime::default();
            self.period_start = start;
            self.as_of = self.as_of.max(start);
        }
        let total: u64 = self.rates.values().copied().fold(0, u64::saturating_add);
        self.used.charge(total, to.since(self.as_of));
        self.as_of = self.as_of.max(to);
    }

    /// Sets what a share costs from now on. A share that was found already allocated is charged from its allocation, if
    /// that was after the last sum of another leader; if the time is unknown, from that sum.
    pub fn set(&mut self, claim: &str, rate: u64, found: Option<Option<Time>>) {
        let is_new = self.rates.insert(claim.to_owned(), rate).is_none();
        if let Some(allocated_at) = found.filter(|_| is_new) {
            let since = allocated_at.unwrap_or(self.resumed_from);
            let since = since.max(self.resumed_from).max(self.period_start);
            self.used.charge(rate, self.as_of.since(since));
        }
    }

    pub fn end(&mut self, claim: &str) {
        self.rates.remove(claim);
    }

    #[must_use]
    pub fn knows(&self, claim: &str) -> bool {
        self.rates.contains_key(claim)
    }

    /// Skips a jump of the clock without charging it.
    pub fn jump(&mut self, by: i64) {
        self.as_of = self.as_of.moved(by);
        self.resumed_from = self.resumed_from.moved(by);
        // If the clock was set back to before the period, the period continues.
        self.period_start = self.period_start.min(self.as_of);
    }

    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.rates.is_empty()
    }

    #[must_use]
    pub fn sum(&self) -> Sum {
        Sum {
            is_spent: self.used >= GpuTime::of_hours(self.budget.gpu_hours),
            gpu_hours: self.budget.gpu_hours,
            used: self.used,
            period_start: self.period_start,
            period_end: period(self.anchor, self.budget.every, self.period_start).after(self.budget.every),
            as_of: self.as_of,
        }
    }
}

/// The beginning of the period that contains a time. Periods begin with the quota, so every leader gets the same
/// result.
fn period(anchor: Time, every: Duration, now: Time) -> Time {
    let every = i64::try_from(every.as_millis()).unwrap_or(i64::MAX).max(1);
    let passed = now.millis().saturating_sub(anchor.millis()).div_euclid(every);
    anchor.moved(passed.saturating_mul(every))
}

/// This process's time of day, which advances evenly: a jump of the machine's clock is reported.
#[derive(Debug, Clone, Copy)]
pub struct Steady {
    base: Time,
    /// The last jump: the time before it, and the change.
    last_jump: Option<(Time, i64)>,
}

/// Smaller changes are the usual corrections of clocks.
const TOLERANCE: i64 = 5_000;

impl Steady {
    #[must_use]
    pub fn new(now: Now, wall: Time) -> Self {
        Self {
            base: wall.moved(-millis(now)),
            last_jump: None,
        }
    }

    #[must_use]
    pub fn wall(&self, now: Now) -> Time {
        self.base.after(now)
    }

    /// Compares with the machine's clock, and returns the jump, if there was one.
    pub fn check(&mut self, now: Now, machine: Time) -> Option<i64> {
        let before = self.wall(now);
        let by = machine.millis() - before.millis();
        if by.abs() <= TOLERANCE {
            return None;
        }
        self.base = self.base.moved(by);
        self.last_jump = Some((before, by));
        Some(by)
    }

    /// Converts a time that was written before this process's last clock jump to the clock after it.
    #[must_use]
    pub fn shifted(&self, written: Time) -> Time {
        match self.last_jump {
            Some((before, by)) if written <= before => written.moved(by),
            _ => written,
        }
    }
}

fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use vgpu_api::quota::WhenSpent;

    fn budget(gpu_hours: u64, hours: u64) -> Budget {
        Budget {
            gpu_hours: gpu_hours * 1_000_000,
            every: Duration::from_secs(hours * 3600),
            when_spent: WhenSpent::Hold,
        }
    }

    const fn at(seconds: i64) -> Time {
        Time::from_millis(seconds * 1000)
    }

    #[test]
    fn a_share_costs_its_part_until_it_ends() {
        let mut account = Account::resume(budget(1, 24), at(0), None, at(0));
        account.set("a", 250_000, None);
        account.advance(at(4 * 3600));
        assert_eq!(account.sum().used.hours(), "1");
        assert!(account.sum().is_spent, "four hours of a quarter");
        account.end("a");
        account.advance(at(9 * 3600));
        assert_eq!(account.sum().used.hours(), "1");
        account.advance(at(24 * 3600));
        assert_eq!(
            (account.sum().used, account.sum().is_spent),
            (GpuTime(0), false),
            "the reset"
        );
        assert_eq!(account.sum().period_end, at(48 * 3600));
    }

    #[test]
    fn a_share_over_a_reset_is_charged_from_the_reset() {
        let mut account = Account::resume(budget(9, 1), at(0), None, at(0));
        account.set("a", 1_000_000, None);
        account.advance(at(3600 * 5 + 600));
        assert_eq!(account.sum().used.seconds(), "600.000000000");
    }

    #[test]
    fn no_hours_are_spent_from_the_start() {
        assert!(Account::resume(budget(0, 1), at(0), None, at(0)).sum().is_spent);
    }

    #[test]
    fn after_an_outage_those_that_are_there_are_charged_for_it() {
        let mut account = Account::resume(budget(100, 24), at(0), None, at(0));
        account.set("stays", 1_000_000, None);
        account.set("ends", 1_000_000, None);
        account.advance(at(100));
        let last = account.sum();
        // Until 1000 nobody leads; "ends" ends, "came" begins at 500.
        let mut account = Account::resume(budget(100, 24), at(0), Some(&last), at(1000));
        account.set("stays", 1_000_000, Some(Some(at(0))));
        account.set("came", 1_000_000, Some(Some(at(500))));
        account.set("no-time", 1_000_000, Some(None));
        assert_eq!(account.sum().used.seconds(), "2500.000000000"); // 200 + 900 + 500 + 900
    }

    #[test]
    fn a_sum_of_the_future_is_gone_on_with_from_now() {
        let mut account = Account::resume(budget(100, 1), at(0), None, at(50_000));
        account.set("a", 1_000_000, None);
        account.advance(at(50_010));
        let ahead = account.sum();
        let mut account = Account::resume(budget(100, 1), at(0), Some(&ahead), at(100));
        account.set("a", 1_000_000, Some(Some(at(0))));
        account.advance(at(110));
        assert_eq!(account.sum().used.seconds(), "20.000000000");
        assert_eq!(account.sum().period_start, at(0));
    }

    #[test]
    fn a_jump_is_not_charged() {
        let seconds = Duration::from_secs;
        let mut clock = Steady::new(seconds(10), at(1000));
        assert_eq!(clock.wall(seconds(15)), at(1005));
        assert_eq!(clock.check(seconds(20), at(1011)), None);
        let mut account = Account::resume(budget(100, 240), at(0), None, clock.wall(seconds(20)));
        account.set("a", 1_000_000, None);
        for (machine, by) in [(at(86_400), 86_400_000 - 1_030_000), (at(500), 0)] {
            let now = if by > 0 { seconds(40) } else { seconds(50) };
            account.advance(clock.wall(now));
            let jumped = clock.check(now, machine).unwrap();
            account.jump(jumped);
            if by > 0 {
                assert_eq!(jumped, by);
            }
            assert_eq!(clock.wall(now), machine);
        }
        account.advance(clock.wall(seconds(60)));
        assert_eq!(account.sum().used.seconds(), "40.000000000");
        // A sum from before the jump, for the next term of this process.
        let mut clock = Steady::new(seconds(0), at(1000));
        clock.check(seconds(10), at(5000));
        assert_eq!((clock.shifted(at(1000)), clock.shifted(at(4995))), (at(4990), at(4995)));
    }

    #[test]
    fn another_length_of_the_period_keeps_what_was_used_in_it() {
        let mut account = Account::resume(budget(9, 1), at(0), None, at(600));
        account.set("a", 1_000_000, None);
        account.advance(at(1200));
        account.set_budget(budget(9, 24));
        account.advance(at(2 * 3600));
        assert_eq!(account.sum().used.seconds(), "6600.000000000");
    }
}
