//! Points in time, in the API server's format. The caller passes in the current time, from a clock that only goes
//! forward: the time of day at which the process began, advanced by a monotonic clock. [`Latest`] detects a clock that
//! goes back all the same.

use std::fmt;
use std::time::Duration;

use jiff::Timestamp;

/// Milliseconds since 1970, UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time(i64);

impl Time {
    #[must_use]
    pub const fn from_millis(millis: i64) -> Self {
        Self(millis)
    }

    #[must_use]
    pub const fn millis(self) -> i64 {
        self.0
    }

    /// Returns how long ago `earlier` was, or zero if it is ahead.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0).max(0).unsigned_abs())
    }

    #[must_use]
    pub fn after(self, duration: Duration) -> Self {
        Self(
            self.0
                .saturating_add(i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)),
        )
    }

    /// This many milliseconds later, or earlier if the number is negative.
    #[must_use]
    pub const fn moved(self, millis: i64) -> Self {
        Self(self.0.saturating_add(millis))
    }

    /// RFC 3339 with milliseconds, which [`Display`](fmt::Display) leaves out.
    #[must_use]
    pub fn text(self) -> String {
        Timestamp::from_millisecond(self.0).unwrap_or_default().to_string()
    }

    /// Reads `2026-11-22T01:02:03Z`, with or without a fraction and with any offset; `None` if it is not a valid time.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let time: Timestamp = text.parse().ok()?;
        Some(Self(time.as_millisecond()))
    }
}

/// The latest time that was passed in.
#[derive(Debug, Default)]
pub(crate) struct Latest(Option<Time>);

/// How much earlier a time may be than the last one: concurrent callers may pass their times in the wrong order.
const OUT_OF_ORDER: Duration = Duration::from_secs(2);

impl Latest {
    /// Returns the time, and true if the clock was set back. Times noted before are then meaningless.
    pub(crate) fn take(&mut self, now: Time) -> (Time, bool) {
        let latest = self.0.unwrap_or(now);
        let is_set_back = latest.since(now) > OUT_OF_ORDER;
        let now = if is_set_back { now } else { now.max(latest) };
        self.0 = Some(now);
        (now, is_set_back)
    }
}

impl fmt::Display for Time {
    /// In whole seconds, as the API server keeps it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (first, last) = (Timestamp::MIN.as_second(), Timestamp::MAX.as_second());
        let seconds = self.0.div_euclid(1_000).clamp(first, last);
        Timestamp::from_second(seconds).unwrap_or_default().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_and_written() {
        for (text, millis) in [
            ("1970-01-01T00:00:00Z", 0),
            ("2000-02-29T12:00:00Z", 951_825_600_000),
            ("2026-11-22T01:02:03Z", 1_795_309_323_000),
            ("1969-12-31T23:59:59Z", -1_000),
        ] {
            assert_eq!(Time::parse(text), Some(Time(millis)), "{text}");
            assert_eq!(Time(millis).to_string(), text);
        }
        assert_eq!(Time::parse("1970-01-01T01:00:00.5+01:00"), Some(Time(500)));
        assert_eq!(Time(500).text(), "1970-01-01T00:00:00.5Z");
        assert_eq!(Time::parse("1969-12-31T23:00:00.123456Z-"), None);
        assert_eq!(Time::parse("1969-12-31T23:30:00.123456-00:30"), Some(Time(123)));
    }

    #[test]
    fn what_is_no_time_is_none() {
        for text in [
            "",
            "now",
            "2026-02-29T00:00:00Z",
            "2026-13-01T00:00:00Z",
            "2026-01-01T24:00:00Z",
            "2026-01-01T00:00:00",
            "2026-01-01T00:00:00.Z",
            "2026-01-01T00:00:00.ééZ",
            "99999-01-01T00:00:00Z",
        ] {
            assert_eq!(Time::parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_clock_that_is_set_back_is_noticed() {
        let mut latest = Latest::default();
        for (now, expected) in [
            (5_000, (5_000, false)),
            (9_000, (9_000, false)),
            (7_000, (9_000, false)),
            (6_999, (6_999, true)),
            (7_000, (7_000, false)),
        ] {
            assert_eq!(latest.take(Time(now)), (Time(expected.0), expected.1));
        }
    }

    #[test]
    fn a_time_ahead_is_no_time_ago() {
        assert_eq!(Time(5).since(Time(9)), Duration::ZERO);
        assert_eq!(
            Time(i64::MAX).after(Duration::from_secs(1)).since(Time(i64::MIN)),
            Duration::from_millis(i64::MAX as u64)
        );
    }
}
