//! Time as the API server writes it. The clock is the caller's, and goes forward: what it was when the process began, and
//! from then on what a clock that nobody sets has counted. [`Latest`] is for one that goes back all the same.

use std::fmt;
use std::time::Duration;

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

    /// How long ago `earlier` was; nothing for a time ahead.
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

    /// Reads `2026-11-22T01:02:03Z`, with or without a fraction and with any offset; `None` for anything else.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (date, time) = text.split_once(['T', 't'])?;
        let [year, month, day] = numbers(date, '-')?;
        let at = time.find(['Z', 'z', '+', '-'])?;
        let (clock, zone) = time.split_at(at);
        let (clock, fraction) = clock.split_once('.').unwrap_or((clock, "0"));
        let [hour, minute, second] = numbers(clock, ':')?;
        let in_range = (1..=12).contains(&month)
            && (1..=days_in(year, month)).contains(&day)
            && hour < 24
            && minute < 60
            && second <= 60;
        if !in_range || fraction.is_empty() || !fraction.bytes().all(|digit| digit.is_ascii_digit()) {
            return None;
        }
        let millis: i64 = format!("{fraction:0<3}").get(..3)?.parse().ok()?;
        let offset = match zone.split_at(1) {
            ("Z" | "z", "") => 0,
            (sign, offset) => {
                let [hours, minutes] = numbers(offset, ':')?;
                let size = (hours * 60 + minutes) * 60;
                if sign == "-" { -size } else { size }
            }
        };
        let seconds = days(year, month, day) * 86_400 + hour * 3_600 + minute * 60 + second - offset;
        Some(Self(seconds * 1_000 + millis))
    }
}

/// The latest time that was told.
#[derive(Debug, Default)]
pub(crate) struct Latest(Option<Time>);

/// Callers that look at the clock side by side may be told apart in the wrong order.
const OUT_OF_ORDER: Duration = Duration::from_secs(2);

impl Latest {
    /// What time it is, and whether the clock was set back: then nothing that was noted by it means anything.
    pub(crate) fn take(&mut self, now: Time) -> (Time, bool) {
        let latest = self.0.unwrap_or(now);
        let is_set_back = latest.since(now) > OUT_OF_ORDER;
        let now = if is_set_back { now } else { now.max(latest) };
        self.0 = Some(now);
        (now, is_set_back)
    }
}

/// Of a fixed count of unsigned numbers, each at most four digits long.
fn numbers<const N: usize>(text: &str, separator: char) -> Option<[i64; N]> {
    let mut found = [0; N];
    let mut parts = text.split(separator);
    for place in &mut found {
        let part = parts
            .next()
            .filter(|part| (1..=4).contains(&part.len()) && part.bytes().all(|digit| digit.is_ascii_digit()))?;
        *place = part.parse().ok()?;
    }
    parts.next().is_none().then_some(found)
}

fn days_in(year: i64, month: i64) -> i64 {
    let next = if month == 12 {
        days(year + 1, 1, 1)
    } else {
        days(year, month + 1, 1)
    };
    next - days(year, month, 1)
}

/// Days since 1970. Years are counted from March, so that the day that is sometimes there is a year's last.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let (year, month) = if month > 2 {
        (year, month - 3)
    } else {
        (year - 1, month + 9)
    };
    let leaps = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    year * 365 + leaps + (month * 153 + 2) / 5 + day - 1 - 719_468
}

impl fmt::Display for Time {
    /// In whole seconds, as the API server keeps it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.div_euclid(1_000);
        let (day, clock) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
        // The year that contains the day: off by one at most, since no year is shorter than 365 days.
        let mut year = 1970 + day.div_euclid(365);
        while days(year, 1, 1) > day {
            year -= 1;
        }
        let mut month = 12;
        while days(year, month, 1) > day {
            month -= 1;
        }
        let of_month = day - days(year, month, 1) + 1;
        let (hour, minute, second) = (clock / 3_600, clock / 60 % 60, clock % 60);
        write!(
            f,
            "{year:04}-{month:02}-{of_month:02}T{hour:02}:{minute:02}:{second:02}Z"
        )
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
            "2026-01-01T00:00Z",
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
