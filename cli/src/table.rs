//! A table for a terminal: columns as wide as their cells, and fewer of them where the terminal is narrow.
//!
//! How it fails: cells may contain tenants' text, so control characters become spaces and no escape sequence reaches
//! the terminal. Columns that must stay are printed even if they do not fit, because a truncated name is useless; the
//! terminal then wraps the line.
#![forbid(unsafe_code)]

use std::io;

use crate::environment;
use crate::output::clean;

/// The content of a cell whose figure is not known.
pub(crate) const UNKNOWN: &str = "-";
const GAP: usize = 2;

/// A column of a table.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Column {
    pub(crate) title: &'static str,
    /// Figures are aligned to the right.
    pub(crate) is_figure: bool,
    /// 0: the column always stays. The column with the highest number is left out first.
    pub(crate) leave_out: u8,
}

/// Returns a column of names.
pub(crate) const fn words(title: &'static str, leave_out: u8) -> Column {
    Column {
        title,
        is_figure: false,
        leave_out,
    }
}

/// Returns a column of figures.
pub(crate) const fn figure(title: &'static str, leave_out: u8) -> Column {
    Column {
        title,
        is_figure: true,
        leave_out,
    }
}

/// Returns the table's lines, at most `width` characters wide if enough columns may be left out. The last line names
/// the omitted columns.
pub(crate) fn table<const N: usize>(columns: &[Column; N], rows: &[[String; N]], width: Option<usize>) -> String {
    let rows: Vec<[String; N]> = rows.iter().map(|row| row.each_ref().map(|cell| clean(cell))).collect();
    let widths: Vec<usize> = (0..N)
        .map(|at| {
            let cells = rows.iter().map(|row| row[at].chars().count());
            cells.max().unwrap_or(0).max(columns[at].title.len())
        })
        .collect();
    let mut shown: Vec<usize> = (0..N).collect();
    let total = |shown: &[usize]| {
        shown
            .iter()
            .map(|at| widths[*at] + GAP)
            .sum::<usize>()
            .saturating_sub(GAP)
    };
    while width.is_some_and(|width| total(&shown) > width) {
        let optional = shown.iter().copied().filter(|at| columns[*at].leave_out > 0);
        let Some(last) = optional.max_by_key(|at| columns[*at].leave_out) else {
            break;
        };
        shown.retain(|at| *at != last);
    }
    let line = |cells: &dyn Fn(usize) -> String| {
        let padded = shown.iter().map(|at| match columns[*at].is_figure {
            true => format!("{:>1$}", cells(*at), widths[*at]),
            false => format!("{:<1$}", cells(*at), widths[*at]),
        });
        let line = padded.collect::<Vec<_>>().join(&" ".repeat(GAP));
        format!("{}\n", line.trim_end())
    };
    let mut text = line(&|at| columns[at].title.to_owned());
    text.extend(rows.iter().map(|row| line(&|at| row[at].clone())));
    let left_out: Vec<&str> = (0..N)
        .filter(|at| !shown.contains(at))
        .map(|at| columns[at].title)
        .collect();
    if !left_out.is_empty() {
        text.push_str(&format!("too narrow for {}; -o json has all\n", left_out.join(", ")));
    }
    text
}

/// Breaks lines of more than `width` characters at their spaces, where a terminal would break words. A longer word stays in
/// one piece.
pub(crate) fn fold(text: &str, width: Option<usize>) -> String {
    let Some(width) = width else {
        return text.to_owned();
    };
    let mut folded = String::new();
    for line in text.lines() {
        let mut length = 0;
        for (number, word) in line.split(' ').enumerate() {
            let more = word.chars().count();
            if number > 0 && length + 1 + more > width {
                folded.truncate(folded.trim_end_matches(' ').len());
                folded.push('\n');
                length = 0;
            } else if number > 0 {
                folded.push(' ');
                length += 1;
            }
            folded.push_str(word);
            length += more;
        }
        folded.push('\n');
    }
    folded
}

/// Returns the width of the terminal, or the caller's COLUMNS, which `watch` sets. `None`: no limit.
pub(crate) fn width() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(io::stdout()).ok();
    let columns = size.map(|size| usize::from(size.ws_col)).filter(|columns| *columns > 0);
    columns.or_else(environment::columns)
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: [Column; 4] = [
        words("CLAIM", 0),
        words("NODE", 2),
        figure("HELD", 0),
        figure("PEAK", 1),
    ];

    fn rows() -> Vec<[String; 4]> {
        [["train", "node-1", "20Gi", "-"], ["serve-a", "n", "512Mi", "1.5Gi"]]
            .map(|row| row.map(str::to_owned))
            .to_vec()
    }

    #[test]
    fn columns_are_aligned_and_no_line_ends_with_a_space() {
        let wanted = "CLAIM    NODE     HELD   PEAK\ntrain    node-1   20Gi      -\nserve-a  n       512Mi  1.5Gi\n";
        assert_eq!(table(&COLUMNS, &rows(), None), wanted);
        assert_eq!(table(&COLUMNS, &rows(), Some(29)), wanted);
    }

    #[test]
    fn a_narrow_terminal_gets_fewer_columns_and_their_names() {
        let wanted = "CLAIM     HELD   PEAK\ntrain     20Gi      -\nserve-a  512Mi  1.5Gi\ntoo narrow for NODE; -o json has all\n";
        assert_eq!(table(&COLUMNS, &rows(), Some(28)), wanted);
        let least = table(&COLUMNS, &rows(), Some(5));
        assert!(least.starts_with("CLAIM     HELD\n"), "{least}");
        assert!(
            least.ends_with("too narrow for NODE, PEAK; -o json has all\n"),
            "{least}"
        );
    }

    #[test]
    fn long_lines_break_at_their_spaces() {
        let text = "CLAIM  HELD\nshares: 8; memory: 160Gi held, äccc\na-name-that-is-too-long x\n\n";
        assert_eq!(fold(text, None), text);
        assert_eq!(fold(text, Some(40)), text);
        let wanted = "CLAIM  HELD\nshares: 8;\nmemory: 160Gi\nheld, äccc\na-name-that-is-too-long\nx\n\n";
        assert_eq!(fold(text, Some(14)), wanted);
    }

    #[test]
    fn control_characters_of_names_are_spaces() {
        let hostile = [["\u{1b}]0;own\u{7}a\n", "n", "1Gi", "-"].map(str::to_owned)];
        let text = table(&COLUMNS, &hostile, None);
        assert_eq!(text.lines().count(), 2, "{text:?}");
        assert!(!text.contains(['\u{1b}', '\u{7}']), "{text:?}");
    }
}
