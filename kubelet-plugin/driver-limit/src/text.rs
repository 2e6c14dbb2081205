//! Text of others in lines of ours.

/// Returns the first `max` characters of a text, as one line.
pub(crate) fn one_line(text: &str, max: usize) -> String {
    let shown = |c: char| if c.is_control() { ' ' } else { c };
    text.chars().map(shown).take(max).collect()
}
