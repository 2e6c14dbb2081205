//! Figures of usage objects as numbers and as words.

use std::time::Duration;

use vgpu_planner::Time;
use vgpu_quantity::{read_bytes, readable_bytes};

use crate::table::UNKNOWN;

/// If an object was not written for this long, its figures are old.
const STALE: Duration = Duration::from_secs(5 * 60);

/// Returns memory for a cell.
pub(super) fn memory(quantity: &str) -> String {
    read_bytes(quantity).map_or_else(|| UNKNOWN.to_owned(), readable_bytes)
}

/// Returns percent for a cell.
pub(super) fn percent(value: Option<u32>) -> String {
    value.map_or_else(|| UNKNOWN.to_owned(), |value| format!("{value}%"))
}

/// Returns a text for a cell.
pub(super) fn word(text: &str) -> String {
    match text {
        "" => UNKNOWN.to_owned(),
        text => text.to_owned(),
    }
}

/// Returns how long ago `as_of` was; `None` if it is no time.
pub(super) fn age(as_of: &str, now: Time) -> Option<Duration> {
    Time::parse(as_of).map(|as_of| now.since(as_of))
}

/// Returns true if the figures are old, or if it is not known how old they are.
pub(super) fn is_stale(age: Option<Duration>) -> bool {
    age.is_none_or(|age| age > STALE)
}

/// Why a VgpuUsage may be old.
pub(super) const STALE_USAGE: &str =
    "stale: not written for 5 minutes; no figure has moved, or vgpu-controller does not run (`kubectl vgpu doctor`)";

/// If the figures of a VgpuUsage are old, returns how old they are and a possible reason.
pub(crate) fn stale(as_of: &str, now: Time) -> Option<String> {
    let age = age(as_of, now);
    let ago = age.map_or_else(
        || "of an unknown time".to_owned(),
        |age| format!("of {} ago", rough(age)),
    );
    is_stale(age).then(|| format!("figures {ago}, {STALE_USAGE}"))
}

/// Returns a time in its largest unit: `42s`, `12m`, `5h`, `3d`.
pub(super) fn rough(time: Duration) -> String {
    match time.as_secs() {
        seconds @ 0..60 => format!("{seconds}s"),
        seconds @ 60..7200 => format!("{}m", seconds / 60),
        seconds @ 7200..172_800 => format!("{}h", seconds / 3600),
        seconds => format!("{}d", seconds / 86_400),
    }
}

/// Returns an age for a cell, with a mark if it is old.
pub(super) fn age_cell(as_of: &str, now: Time) -> String {
    match age(as_of, now) {
        None => format!("{UNKNOWN} stale"),
        Some(age) if is_stale(Some(age)) => format!("{} stale", rough(age)),
        Some(age) => rough(age),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_figure_is_unknown_and_not_zero() {
        for text in ["", "abc", "-1Gi"] {
            assert_eq!(memory(text), "-", "{text}");
        }
        assert_eq!((memory("0"), memory("40Gi")), ("0".to_owned(), "40Gi".to_owned()));
        assert_eq!((percent(None), percent(Some(0))), ("-".to_owned(), "0%".to_owned()));
    }

    #[test]
    fn figures_of_more_than_five_minutes_or_of_no_known_age_are_stale() {
        let now = Time::parse("2026-01-01T01:00:00Z").unwrap();
        for (as_of, cell) in [
            ("2026-01-01T00:59:18Z", "42s"),
            ("2026-01-01T00:55:00Z", "5m"),
            ("2026-01-01T00:54:59Z", "5m stale"),
            ("2025-12-29T00:00:00Z", "3d stale"),
            ("", "- stale"),
            // The writer's clock is ahead.
            ("2026-01-01T02:00:00Z", "0s"),
        ] {
            assert_eq!(age_cell(as_of, now), cell, "{as_of}");
        }
    }
}
