//! The clock of the process: the time of day, which never goes back.
//!
//! Deadlines of this process (the lease, the age of a decision) need a clock that only goes forward. What the API
//! server wrote (since when a device is tainted) needs the time of day. So this is the time of day, advanced by the
//! monotonic clock. If the machine's clock is set ahead, this clock follows: every deadline comes earlier, which is
//! safe. If it is set back, this clock cannot follow, and a process that is ahead of the API server would take devices
//! over too early. So the process ends and starts again with the new time.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use vgpu_planner::Time;

/// How far the machine's clock may fall behind.
const TOLERANCE: Duration = Duration::from_secs(2);

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the machine's clock was set back by {0:?}; what was decided by the old time cannot be trusted, so the controller starts again"
)]
pub(crate) struct SetBack(Duration);

/// The process's clock.
#[derive(Debug)]
pub(crate) struct Clock {
    started: Instant,
    /// The process's start in milliseconds since 1970, by the latest reading of the machine's clock.
    origin: Mutex<Option<i64>>,
}

impl Clock {
    pub(crate) fn start() -> Self {
        Self {
            started: Instant::now(),
            origin: Mutex::new(None),
        }
    }

    /// The time since the process started.
    pub(crate) fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// The machine's current clock: milliseconds since 1970.
    pub(crate) fn machine_millis(&self) -> i64 {
        millis(machine())
    }

    pub(crate) fn now(&self) -> Time {
        self.read().0
    }

    /// Compares with the machine's clock.
    ///
    /// # Errors
    /// The machine's clock was set back by more than [`TOLERANCE`].
    pub(crate) fn check(&self) -> Result<(), SetBack> {
        let behind = self.read().1;
        match behind > TOLERANCE {
            true => Err(SetBack(behind)),
            false => Ok(()),
        }
    }

    fn read(&self) -> (Time, Duration) {
        let mut origin = self.origin.lock().unwrap_or_else(PoisonError::into_inner);
        let (new, now, behind) = read(*origin, self.started.elapsed(), machine());
        *origin = Some(new);
        (now, behind)
    }
}

fn machine() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

/// Returns the new origin, the time, and how far the machine's clock is behind it.
fn read(origin: Option<i64>, elapsed: Duration, machine: Duration) -> (i64, Time, Duration) {
    let by_machine = millis(machine).saturating_sub(millis(elapsed));
    let origin = origin.map_or(by_machine, |known| known.max(by_machine));
    let now = Time::from_millis(origin.saturating_add(millis(elapsed)));
    (
        now.millis() - millis(elapsed),
        now,
        now.since(Time::from_millis(millis(machine))),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn it_follows_forwards_and_never_goes_back() {
        let (origin, now, behind) = read(None, seconds(5), seconds(1_000));
        assert_eq!((now.millis(), behind), (1_000_000, Duration::ZERO));
        let (origin, now, behind) = read(Some(origin), seconds(6), seconds(1_001));
        assert_eq!((now.millis(), behind), (1_001_000, Duration::ZERO));
        let (origin, now, behind) = read(Some(origin), seconds(7), seconds(1_100));
        assert_eq!((now.millis(), behind), (1_100_000, Duration::ZERO), "set ahead");
        let (origin, now, behind) = read(Some(origin), seconds(8), seconds(1_003));
        assert_eq!((now.millis(), behind), (1_101_000, seconds(98)), "set back");
        // The machine was suspended: only the time of day advanced.
        let (_, now, behind) = read(Some(origin), seconds(9), seconds(2_000));
        assert_eq!((now.millis(), behind), (2_000_000, Duration::ZERO));
    }

    #[test]
    fn the_machines_own_clock_is_followed() {
        let clock = Clock::start();
        let before = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let now = clock.now();
        assert!(now.since(Time::from_millis(0)) + seconds(1) > before);
        assert_eq!(clock.check(), Ok(()));
        assert!(clock.now() >= now);
    }
}
