//! Texts that come from files and programs, made fit for events and conditions. Pure.

/// Returns at most this many letters of a text, on one line: control characters become blanks.
pub(crate) fn printable(text: &str, most: usize) -> String {
    let letters = text.trim().chars().take(most);
    letters
        .map(|letter| if letter.is_control() { ' ' } else { letter })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_short_and_on_one_line() {
        assert_eq!(printable(" a\u{1b}[31m\nb\r\n", 100), "a [31m b");
        assert_eq!(printable("äöü", 2), "äö");
    }
}
