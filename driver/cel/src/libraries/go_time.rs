//! Durations and timestamps, parsed and written as in Go.

use crate::value::{Out, Value, error};

pub(crate) const SECOND: i128 = 1_000_000_000;
/// The range of timestamps: from the year 1 to the end of the year 9999.
pub(crate) const FIRST: i128 = -62_135_596_800 * SECOND;
const LAST: i128 = 253_402_300_800 * SECOND - 1;

/// Returns the timestamp if it is in the range.
pub(crate) fn timestamp<'v>(nanoseconds: i128, zone: i32) -> Out<'v> {
    if (FIRST..=LAST).contains(&nanoseconds) {
        Ok(Value::Timestamp(nanoseconds, zone))
    } else {
        error("timestamp overflow")
    }
}

/// Parses `1h30m`, `-1.5s`, `0`: whole and fractional numbers with units.
pub(crate) fn parse_duration(text: &str) -> Option<i64> {
    let (negative, mut rest) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    if rest == "0" {
        return Some(0);
    }
    if rest.is_empty() {
        return None;
    }
    let mut total: u64 = 0;
    while !rest.is_empty() {
        let (whole, after) = digits(rest);
        let (fraction, after) = match after.strip_prefix('.') {
            Some(after) => digits(after),
            None => ("", after),
        };
        if whole.is_empty() && fraction.is_empty() {
            return None;
        }
        let end = after
            .find(|c: char| c == '.' || c.is_ascii_digit())
            .unwrap_or(after.len());
        let (name, after) = after.split_at(end);
        let unit: u64 = match name {
            "ns" => 1,
            "us" | "\u{b5}s" | "\u{3bc}s" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            _ => return None,
        };
        let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
        let mut part = whole.checked_mul(unit)?;
        if !fraction.is_empty() {
            // Go also computes the fraction with a double.
            let digits = &fraction[..fraction.len().min(18)];
            let value: u64 = digits.parse().ok()?;
            let scale = 10f64.powi(digits.len() as i32);
            part = part.checked_add((value as f64 * (unit as f64 / scale)) as u64)?;
        }
        total = total.checked_add(part)?;
        if total > 1 << 63 {
            return None;
        }
        rest = after;
    }
    if negative {
        return i64::try_from(-i128::from(total)).ok();
    }
    i64::try_from(total).ok()
}

fn digits(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    text.split_at(end)
}

/// The duration in seconds, with as many digits as needed.
pub(crate) fn duration_text(nanoseconds: i64) -> String {
    let seconds = (nanoseconds / 1_000_000_000) as f64 + (nanoseconds % 1_000_000_000) as f64 / 1e9;
    format!("{seconds}s")
}

/// A date: year, month, day.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Date {
    pub(crate) year: i64,
    pub(crate) month: i64,
    pub(crate) day: i64,
}

/// The date of a day, as days since 1970.
pub(crate) fn date(days: i64) -> Date {
    // Years start in March of the year 0, so that a leap day is the last day of its year. The calendar repeats every
    // 400 years.
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let (month, year) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    Date {
        year: year_of_era + era * 400 + year,
        month,
        day: day_of_year - (153 * ((month + 9) % 12) + 2) / 5 + 1,
    }
}

/// Days since 1970 of a date.
pub(crate) fn days(date: Date) -> i64 {
    let year = if date.month <= 2 { date.year - 1 } else { date.year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((date.month + 9) % 12) + 2) / 5 + date.day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

/// Parses RFC 3339 as Go does. Returns nanoseconds since 1970, and seconds east of UTC.
pub(crate) fn parse_timestamp(text: &str) -> Option<(i128, i32)> {
    let number = |range: std::ops::Range<usize>| -> Option<i64> {
        let digits = text.get(range)?;
        digits
            .bytes()
            .all(|b| b.is_ascii_digit())
            .then(|| digits.parse().ok())?
    };
    let mark = |at: usize, is: u8| text.as_bytes().get(at) == Some(&is);
    let marked = mark(4, b'-') && mark(7, b'-') && mark(10, b'T') && mark(13, b':') && mark(16, b':');
    if !marked {
        return None;
    }
    let day = Date {
        year: number(0..4)?,
        month: number(5..7)?,
        day: number(8..10)?,
    };
    let (hour, minute, second) = (number(11..13)?, number(14..16)?, number(17..19)?);
    if !(1..=12).contains(&day.month) || date(days(day)) != day || hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    let mut rest = text.get(19..)?;
    let mut nanoseconds = 0;
    if let Some(fraction) = rest.strip_prefix(['.', ',']) {
        let (fraction, after) = digits(fraction);
        if fraction.is_empty() {
            return None;
        }
        let nine: String = fraction.chars().chain("000000000".chars()).take(9).collect();
        nanoseconds = nine.parse().ok()?;
        rest = after;
    }
    let zone = zone_offset(rest)?;
    let seconds = days(day) * 86_400 + hour * 3_600 + minute * 60 + second - zone;
    Some((i128::from(seconds) * SECOND + nanoseconds, zone as i32))
}

fn zone_offset(zone: &str) -> Option<i64> {
    if zone == "Z" {
        return Some(0);
    }
    let sign = match zone.as_bytes().first()? {
        b'+' => 1,
        b'-' => -1,
        _ => return None,
    };
    let (hours, minutes) = zone.get(1..)?.split_once(':')?;
    let two =
        |text: &str| (text.len() == 2 && text.bytes().all(|b| b.is_ascii_digit())).then(|| text.parse::<i64>().ok())?;
    let (hours, minutes) = (two(hours)?, two(minutes)?);
    (hours <= 24 && minutes < 60).then_some(sign * (hours * 3_600 + minutes * 60))
}

pub(crate) fn timestamp_text(nanoseconds: i128, zone: i32) -> String {
    let seconds = nanoseconds.div_euclid(SECOND) as i64 + i64::from(zone);
    let day = date(seconds.div_euclid(86_400));
    let time = seconds.rem_euclid(86_400);
    let mut text = format!(
        "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}",
        day.year,
        day.month,
        day.day,
        time / 3_600,
        time / 60 % 60,
        time % 60
    );
    let rest = nanoseconds.rem_euclid(SECOND);
    if rest != 0 {
        text.push('.');
        text.push_str(format!("{rest:09}").trim_end_matches('0'));
    }
    if zone == 0 {
        text.push('Z');
    } else {
        let (sign, minutes) = (if zone < 0 { '-' } else { '+' }, zone.abs() / 60);
        text.push_str(&format!("{sign}{:02}:{:02}", minutes / 60, minutes % 60));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (text, seconds) in [
            ("1970-01-01T00:00:00Z", 0i64),
            ("2000-02-29T12:00:00Z", 951_825_600),
            ("2024-12-31T23:59:59Z", 1_735_689_599),
            ("1969-12-31T23:59:59Z", -1),
            ("0001-01-01T00:00:00Z", -62_135_596_800),
            ("9999-12-31T23:59:59Z", 253_402_300_799),
            ("2000-01-01T02:00:00+02:00", 946_684_800),
        ] {
            let (t, zone) = parse_timestamp(text).unwrap();
            assert_eq!(t, i128::from(seconds) * SECOND, "{text}");
            assert_eq!(timestamp_text(t, zone), text);
        }
        for text in [
            "2023-02-29T00:00:00Z",
            "2023-01-01",
            "2023-01-01T24:00:00Z",
            "2023-1-01T00:00:00Z",
            "",
        ] {
            assert_eq!(parse_timestamp(text), None, "{text}");
        }
    }

    #[test]
    fn durations_are_read_as_go_does() {
        for (text, nanoseconds) in [
            ("1h30m", 5_400_000_000_000),
            ("-1.5s", -1_500_000_000),
            ("0", 0),
            ("1ms1us1ns", 1_001_001),
            (".5s", 500_000_000),
        ] {
            assert_eq!(parse_duration(text), Some(nanoseconds), "{text}");
        }
        for text in ["", "-", "1", "1x", "s", "1h ", "9999999h", "."] {
            assert_eq!(parse_duration(text), None, "{text}");
        }
        assert_eq!(duration_text(5_400_000_000_000), "5400s");
        assert_eq!(duration_text(-1_500_000_000), "-1.5s");
    }
}
