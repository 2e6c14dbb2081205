//! Text of users in our messages.

/// The most characters of a text that are shown.
const SHOWN: usize = 64;

/// Returns the text as a message shows it: cut, and on one line.
pub(crate) fn shown(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(SHOWN).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_text_is_cut_and_has_one_line() {
        assert_eq!(shown("/a\n b\tc\u{7f}"), "/a bc");
        assert_eq!(shown(&"ä".repeat(65)), "ä".repeat(64));
    }
}
