//! Text of a user as a CEL literal.

/// A text as a CEL literal in double quotes. Everything but printable ASCII is written as an escape, so that no two
/// readers of the text can differ about it.
pub(crate) fn literal(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => {
                quoted.push('\\');
                quoted.push(c);
            }
            ' '..='~' => quoted.push(c),
            other => {
                let code = u32::from(other);
                quoted.push_str(&match code {
                    ..=0xffff => format!("\\u{code:04x}"),
                    _ => format!("\\U{code:08x}"),
                });
            }
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_literal_holds_any_text() {
        for (text, quoted) in [
            ("GPU-1", r#""GPU-1""#),
            (r#"a"] || true || ["b"#, r#""a\"] || true || [\"b""#),
            ("a\\", r#""a\\""#),
            ("a\nb", r#""a\u000ab""#),
            ("\u{e4}\u{1f600}", r#""\u00e4\U0001f600""#),
        ] {
            assert_eq!(literal(text), quoted);
        }
    }
}
