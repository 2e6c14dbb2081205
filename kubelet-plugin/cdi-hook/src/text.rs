//! Users' texts in our messages.

/// Characters shown of a text.
const SHOWN: usize = 64;

/// Returns the text for a message: shortened, and on one line.
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
