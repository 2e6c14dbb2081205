//! Shortens users' texts for messages.

use std::borrow::Cow;

/// Characters shown. Messages are limited: 1 KiB in an event, 5 KiB in an admission policy.
const SHOWN: usize = 64;

/// A user's text, cut to 64 characters.
///
/// ```
/// assert_eq!(vgpu_quantity::shortened("20Gi"), "20Gi");
/// assert_eq!(vgpu_quantity::shortened(&"9".repeat(5000)).len(), 64 + "...".len());
/// ```
pub fn shortened(text: &str) -> Cow<'_, str> {
    match text.char_indices().nth(SHOWN) {
        None => text.into(),
        Some((end, _)) => format!("{}...", &text[..end]).into(),
    }
}

/// Like [`shortened`], in quotes and on one line.
///
/// ```
/// assert_eq!(vgpu_quantity::quoted("a\nb"), r#""a\nb""#);
/// ```
pub fn quoted(text: &str) -> String {
    format!("{:?}", shortened(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_between_characters() {
        let text = "\u{e4}".repeat(64);
        assert_eq!(shortened(&text), text);
        assert_eq!(shortened(&"\u{e4}".repeat(65)), format!("{text}..."));
    }
}
