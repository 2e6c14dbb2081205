//! A line of text in a fixed buffer. Nothing is allocated, because the allocator may be the program's, and the program
//! may be inside it.
//!
//! How it fails: a line that is longer than the buffer is cut off and ends with `...`. Control characters become `?`,
//! so a name with a line break cannot add a line.

use std::fmt;

/// Maximum size of a line, including its end.
const LONGEST: usize = 1024;
const CUT: &[u8] = b"...\n";

pub struct Line {
    bytes: [u8; LONGEST],
    used: usize,
    is_cut: bool,
}

impl Line {
    /// Formats `text` to a line.
    #[must_use]
    pub fn of(text: fmt::Arguments<'_>) -> Self {
        let mut line = Self {
            bytes: [0; LONGEST],
            used: 0,
            is_cut: false,
        };
        line.is_cut = fmt::Write::write_fmt(&mut line, text).is_err();
        let end: &[u8] = if line.is_cut { CUT } else { b"\n" };
        line.bytes[line.used..line.used + end.len()].copy_from_slice(end);
        line.used += end.len();
        line
    }

    /// Returns the bytes, including the line break.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.used]
    }
}

impl fmt::Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for character in text.chars() {
            let mut utf8 = [0; 4];
            let shown = if character.is_control() { '?' } else { character };
            let utf8 = shown.encode_utf8(&mut utf8).as_bytes();
            let end = self.used + utf8.len();
            if end > LONGEST - CUT.len() {
                return Err(fmt::Error);
            }
            self.bytes[self.used..end].copy_from_slice(utf8);
            self.used = end;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::Line;

    #[test]
    fn a_line_is_one_line_however_long_its_text_is() {
        let line = |text: &str| String::from_utf8(Line::of(format_args!("{text}")).bytes().to_vec()).expect("UTF-8");
        assert_eq!(line("a\nb\x1b[0m ü"), "a?b?[0m ü\n");
        let long = line(&"ü".repeat(2000));
        assert!(
            long.ends_with("ü...\n") && long.len() <= super::LONGEST,
            "{}",
            long.len()
        );
        assert_eq!(long.lines().count(), 1);
    }
}
