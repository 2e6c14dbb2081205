//! Texts of others in our messages.

/// Characters shown of a name.
pub const SHOWN: usize = 64;

/// Returns the first `max` characters of a text, on one line.
#[must_use]
pub fn one_line(text: &str, max: usize) -> String {
    let shown = |c: char| if c.is_control() { ' ' } else { c };
    text.chars().map(shown).take(max).collect()
}

/// Returns a name for a message: shortened, and without control characters.
#[must_use]
pub fn shown(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(SHOWN).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_text_is_cut_and_has_one_line() {
        assert_eq!(shown("/a\n b\tc\u{7f}"), "/a bc");
        assert_eq!(shown(&"ä".repeat(65)), "ä".repeat(64));
        assert_eq!(one_line("a\nb\u{7f}c", 4), "a b ");
    }
}
