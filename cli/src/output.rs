//! Writes to stdout, and cleans foreign texts in it.
#![forbid(unsafe_code)]

use std::io::{self, ErrorKind, Write as _};

/// Returns foreign text without control characters, such as those of escape sequences.
pub(crate) fn clean(text: &str) -> String {
    text.replace(char::is_control, " ")
}

/// Writes an answer to stdout. It is no error if the reader has closed it.
///
/// # Errors
/// Why it cannot be written.
pub(crate) fn print(text: &str) -> io::Result<()> {
    match io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}

#[cfg(test)]
mod tests {
    use super::clean;

    #[test]
    fn foreign_text_is_one_line_without_escape_sequences() {
        assert_eq!(clean("a\u{1b}[31m\nb"), "a [31m b");
    }
}
