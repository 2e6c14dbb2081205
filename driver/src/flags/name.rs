//! Names of Kubernetes' objects.

/// Returns true for lower case letters, digits, `-` and `.`, which begins and ends with a letter or a digit.
pub(crate) fn is_name(text: &str, most: usize) -> bool {
    let edge = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit();
    let inner = |c: u8| edge(c) || c == b'-' || c == b'.';
    let ends = [text.as_bytes().first(), text.as_bytes().last()];
    text.len() <= most && text.bytes().all(inner) && ends.iter().all(|end| end.is_some_and(|end| edge(*end)))
}
