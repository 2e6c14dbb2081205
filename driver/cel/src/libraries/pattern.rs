//! Regular expressions in Go's syntax, run by Rust's engine (both never backtrack, both prefer the leftmost match).
//!
//! The syntaxes differ in details. In Go, digits, words and white space are ASCII; `&&`, `--`, `~~` and `[` within a
//! class are plain characters; a `{` that does not start a repetition is plain; `\Q...\E` quotes; and Rust's additions
//! (`x` and `R` flags, `\<`, class operations) do not exist.

use regex::{Regex, RegexBuilder};

#[derive(Debug)]
pub(crate) struct Pattern(Regex);

/// Memory limit of a compiled pattern. Go allows more, and takes more time.
const SIZE_LIMIT: usize = 2 << 20;

impl Pattern {
    pub(crate) fn new(text: &str) -> Result<Self, String> {
        let translated = translate(text)?;
        RegexBuilder::new(&translated)
            .size_limit(SIZE_LIMIT)
            .nest_limit(250)
            .octal(false)
            .build()
            .map(Self)
            .map_err(|why| {
                let why = why.to_string();
                why.lines()
                    .last()
                    .unwrap_or_default()
                    .trim_start_matches("error: ")
                    .to_owned()
            })
    }

    pub(crate) fn is_match(&self, text: &str) -> bool {
        self.0.is_match(text)
    }

    pub(crate) fn find<'t>(&self, text: &'t str) -> Option<&'t str> {
        self.0.find(text).map(|found| found.as_str())
    }

    pub(crate) fn find_all<'t>(&self, text: &'t str, limit: usize) -> impl Iterator<Item = &'t str> {
        self.0.find_iter(text).take(limit).map(|found| found.as_str())
    }
}

fn translate(text: &str) -> Result<String, String> {
    let mut out = String::with_capacity(text.len() + 16);
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let after = &rest[c.len_utf8()..];
        rest = match c {
            '\\' => escape(after, false, &mut out)?,
            '[' => class(after, &mut out)?,
            '(' => group(after, &mut out)?,
            '{' => match repetition(after)? {
                Some(length) => {
                    out.push('{');
                    out.push_str(&after[..length]);
                    &after[length..]
                }
                None => {
                    out.push_str("\\{");
                    after
                }
            },
            '}' => {
                out.push_str("\\}");
                after
            }
            other => {
                out.push(other);
                after
            }
        };
    }
    Ok(out)
}

/// Returns the length of `3}`, `3,}` or `3,5}`. Go allows at most 1000 repetitions.
fn repetition(text: &str) -> Result<Option<usize>, String> {
    let Some(end) = text.find('}') else { return Ok(None) };
    let (low, high) = text[..end].split_once(',').unwrap_or((&text[..end], ""));
    let digits = |part: &str| part.bytes().all(|b| b.is_ascii_digit());
    if low.is_empty() || !digits(low) || !digits(high) {
        return Ok(None);
    }
    for number in [low, high] {
        if number.len() > 4 || number.parse::<u32>().is_ok_and(|n| n > 1000) {
            return Err("invalid repeat count".to_owned());
        }
    }
    Ok(Some(end + 1))
}

/// Translates the text after an opening parenthesis. Go's flags are i, m, s and U.
fn group<'t>(text: &'t str, out: &mut String) -> Result<&'t str, String> {
    out.push('(');
    let Some(flags) = text.strip_prefix('?') else {
        return Ok(text);
    };
    if flags.starts_with("P<") || flags.starts_with('<') {
        return Ok(text);
    }
    let end = flags.find([':', ')']).ok_or("missing closing )")?;
    if !flags[..end].chars().all(|c| "imsU-".contains(c)) || flags[..end].is_empty() && flags.starts_with(')') {
        return Err("invalid or unsupported Perl syntax".to_owned());
    }
    out.push('?');
    out.push_str(&flags[..end]);
    Ok(&flags[end..])
}

/// Translates the text after a backslash.
fn escape<'t>(text: &'t str, within_class: bool, out: &mut String) -> Result<&'t str, String> {
    let c = text.chars().next().ok_or("trailing backslash at end of expression")?;
    let after = &text[c.len_utf8()..];
    let plain = match (c, within_class) {
        ('d', true) => "0-9",
        ('w', true) => "0-9A-Za-z_",
        ('s', true) => "\\t\\n\\x0C\\r ",
        ('d', false) => "[0-9]",
        ('w', false) => "[0-9A-Za-z_]",
        ('s', false) => "[\\t\\n\\x0C\\r ]",
        ('D', true) => "[^0-9]",
        ('W', true) => "[^0-9A-Za-z_]",
        ('S', true) => "[^\\t\\n\\x0C\\r ]",
        ('D', false) => "[^0-9]",
        ('W', false) => "[^0-9A-Za-z_]",
        ('S', false) => "[^\\t\\n\\x0C\\r ]",
        ('b', false) => "(?-u:\\b)",
        ('B', false) => "(?:(?-u:\\b)[^\\x00-\\x{10FFFF}]|\\B)",
        ('A', false) => "\\A",
        ('z', false) => "\\z",
        ('a', _) => "\\x07",
        ('f', _) => "\\x0C",
        ('n', _) => "\\n",
        ('r', _) => "\\r",
        ('t', _) => "\\t",
        ('v', _) => "\\x0B",
        ('Q', false) => {
            let (quoted, after) = match after.split_once("\\E") {
                Some((quoted, after)) => (quoted, after),
                None => (after, ""),
            };
            // Each character of a quoted text is an atom of its own.
            for c in quoted.chars() {
                literal(c, out);
            }
            return Ok(after);
        }
        ('x' | 'p' | 'P', _) => {
            out.push('\\');
            out.push(c);
            return Ok(after);
        }
        ('0'..='7', _) => return octal(text, out),
        _ if c.is_ascii_punctuation() => {
            literal(c, out);
            return Ok(after);
        }
        _ => return Err(format!("invalid escape sequence: \\{c}")),
    };
    out.push_str(plain);
    Ok(after)
}

/// Translates `\012`: Go accepts octal numbers of up to three digits, but a single digit only if it is 0.
fn octal<'t>(text: &'t str, out: &mut String) -> Result<&'t str, String> {
    let end = text
        .char_indices()
        .take(3)
        .take_while(|(_, c)| ('0'..='7').contains(c))
        .count();
    if !text.starts_with('0') && end == 1 {
        return Err(format!("invalid escape sequence: \\{}", &text[..1]));
    }
    let number = u32::from_str_radix(&text[..end], 8).map_err(|_| "invalid escape sequence")?;
    out.push_str(&format!("\\x{{{number:x}}}"));
    Ok(&text[end..])
}

fn literal(c: char, out: &mut String) {
    if c.is_ascii_punctuation() {
        out.push('\\');
    }
    out.push(c);
}

/// Translates the text after an opening bracket.
fn class<'t>(text: &'t str, out: &mut String) -> Result<&'t str, String> {
    out.push('[');
    let mut rest = text;
    if let Some(after) = rest.strip_prefix('^') {
        out.push('^');
        rest = after;
    }
    // A bracket in first place is plain.
    let mut first = true;
    while let Some(c) = rest.chars().next() {
        let after = &rest[c.len_utf8()..];
        rest = match c {
            ']' if !first => {
                out.push(']');
                return Ok(after);
            }
            '\\' => escape(after, true, out)?,
            '[' if after.starts_with(':') && after[1..].contains(":]") => {
                // A named class such as [:alpha:]. Rust knows the same names.
                let end = after[1..].find(":]").map_or(after.len(), |at| at + 3);
                out.push('[');
                out.push_str(&after[..end]);
                &after[end..]
            }
            '-' => {
                // A dash at either end is plain; between two characters it is a range.
                if first || after.starts_with(']') {
                    out.push_str("\\-");
                } else {
                    out.push('-');
                }
                after
            }
            other if other.is_ascii_punctuation() => {
                out.push('\\');
                out.push(other);
                after
            }
            other => {
                out.push(other);
                after
            }
        };
        first = false;
    }
    Err("missing closing ]".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn go_syntax_means_what_it_means_in_go() {
        for (pattern, text, found) in [
            (r"\d+", "\u{663}45", Some("45")),
            (r"\w+", "\u{e9}ab_1", Some("ab_1")),
            (r"[a&&b]+", "&&b", Some("&&b")),
            (r"[[a]+", "[a", Some("[a")),
            (r"[]a]+", "]a", Some("]a")),
            (r"a{,2}", "a{,2}", Some("a{,2}")),
            (r"a{2}", "aaa", Some("aa")),
            (r"{x}", "{x}", Some("{x}")),
            (r"\Qa.b\E+", "xa.bb", Some("a.bb")),
            (r"\x41\x{42}\103", "ABC", Some("ABC")),
            (r"(?i)abc", "xABC", Some("ABC")),
            (r"(?U)a+", "aaa", Some("a")),
            (r"^[[:alpha:]]+$", "abc", Some("abc")),
            (r"[a\-z]+", "-", Some("-")),
            (r"[\d-]+", "1-2", Some("1-2")),
            (r"\pL+", "1\u{e9}", Some("\u{e9}")),
            (r"a|b", "b", Some("b")),
            ("", "abc", Some("")),
        ] {
            let compiled = Pattern::new(pattern).unwrap_or_else(|e| panic!("{pattern}: {e}"));
            assert_eq!(compiled.find(text), found, "{pattern}");
        }
    }

    #[test]
    fn what_go_refuses_is_refused() {
        for pattern in [
            "(",
            ")",
            "[",
            "*",
            "a{1001}",
            "(?=a)",
            "(?x)a",
            r"\1",
            r"\y",
            r"\",
            "(?P<n",
            "[z-a]",
            "a{2,1}",
            r"\p{Nope}",
        ] {
            assert!(Pattern::new(pattern).is_err(), "{pattern}");
        }
    }

    #[test]
    fn a_bomb_is_refused() {
        assert!(Pattern::new(r"(((\pL{1000}){1000}){1000})").is_err());
        assert!(Pattern::new(&"(".repeat(5000)).is_err());
        assert!(Pattern::new(&format!("{}a{}", "(".repeat(2000), ")".repeat(2000))).is_err());
    }
}
