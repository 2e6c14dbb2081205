//! An answer of `vgpu explain`, and how much of it is printed.

use serde_json::Value;

/// Lines of an answer without `--all`.
pub(super) const MOST_LINES: usize = 20;

/// An answer.
pub(super) struct Told {
    /// The lines of the answer, without line ends.
    pub(super) lines: Vec<String>,
    pub(super) document: Value,
    /// True if nothing in the answer waits.
    pub(super) is_yes: bool,
}

/// Shortens `details` so that there are at most `most` lines in all, and says how many were left out.
pub(super) fn shortened(mut lines: Vec<String>, details: Vec<String>, ends: Vec<String>, most: usize) -> Vec<String> {
    let room = most.saturating_sub(lines.len() + ends.len());
    if details.len() > room {
        let shown = room.saturating_sub(1);
        let left_out = details.len() - shown;
        lines.extend(details.into_iter().take(shown));
        lines.push(format!(
            "  and {left_out} more lines: --all prints them, and -o json has all"
        ));
    } else {
        lines.extend(details);
    }
    lines.extend(ends);
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_out_is_counted() {
        let lines = |count: usize| (0..count).map(|at| at.to_string()).collect::<Vec<_>>();
        assert_eq!(shortened(lines(2), lines(16), lines(2), 20).len(), 20);
        let short = shortened(lines(2), lines(17), lines(2), 20);
        assert_eq!(
            (short.len(), &*short[17]),
            (20, "  and 2 more lines: --all prints them, and -o json has all")
        );
        assert_eq!(shortened(lines(2), lines(100), lines(2), usize::MAX).len(), 104);
    }
}
