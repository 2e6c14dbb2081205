//! The rows of `cuda.txt` and `nvml.txt`: a heading with the fate, and the functions that share it.

use std::fmt;

/// How the shim treats a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fate {
    Charged,
    Released,
    Limited,
    Virtualised,
    PassedThrough,
    /// A gap: it needs a hook.
    Unaccounted,
}

impl Fate {
    pub const ALL: [Self; 6] = [
        Self::Charged,
        Self::Released,
        Self::Limited,
        Self::Virtualised,
        Self::PassedThrough,
        Self::Unaccounted,
    ];

    /// Returns true if a table of the shim declares names of this fate.
    pub fn is_hooked(self) -> bool {
        !matches!(self, Self::PassedThrough | Self::Unaccounted)
    }

    fn tells_bytes(self) -> bool {
        matches!(self, Self::Charged | Self::Released)
    }

    pub fn word(self) -> &'static str {
        match self {
            Self::Charged => "charged",
            Self::Released => "released",
            Self::Limited => "limited",
            Self::Virtualised => "virtualised",
            Self::PassedThrough => "passed through",
            Self::Unaccounted => "unaccounted",
        }
    }
}

impl fmt::Display for Fate {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.word())
    }
}

/// Functions with one fate, for one reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    pub fate: Fate,
    /// The bytes charged or released; empty for the other fates.
    pub bytes: String,
    pub reason: String,
    pub names: Vec<String>,
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Error {
    #[error(
        "line {line}: {word:?} is no fate: write one of charged, released, limited, virtualised, passed through, unaccounted"
    )]
    Fate { line: usize, word: String },
    #[error("line {line}: {fate} has {found} fields after it: write {fate}{form}")]
    Fields {
        line: usize,
        fate: Fate,
        found: usize,
        form: &'static str,
    },
    #[error("line {line}: a field is empty: write what is charged, and why")]
    Empty { line: usize },
    #[error("line {line}: names without a heading: write FATE | REASON above them")]
    NoHeading { line: usize },
    #[error("line {line}: the heading has no names: write them below it, indented")]
    NoNames { line: usize },
}

/// Reads a file of rows: headings from the first column, names indented below, `#` begins a comment.
///
/// # Errors
/// The first line that is not of this form.
pub fn parse(text: &str) -> Result<Vec<Row>, Error> {
    let mut rows: Vec<Row> = Vec::new();
    let mut heading = 0;
    for (line, content) in text.lines().enumerate().map(|(index, content)| (index + 1, content)) {
        if content.trim().is_empty() || content.starts_with('#') {
            continue;
        }
        if content.starts_with(' ') {
            let row = rows.last_mut().ok_or(Error::NoHeading { line })?;
            row.names.extend(content.split_whitespace().map(String::from));
            continue;
        }
        named(&rows, heading)?;
        rows.push(parse_heading(line, content)?);
        heading = line;
    }
    named(&rows, heading)?;
    Ok(rows)
}

fn named(rows: &[Row], line: usize) -> Result<(), Error> {
    match rows.last() {
        Some(row) if row.names.is_empty() => Err(Error::NoNames { line }),
        _ => Ok(()),
    }
}

fn parse_heading(line: usize, content: &str) -> Result<Row, Error> {
    let mut fields = content.split('|').map(|field| field.trim().to_owned());
    let word = fields.next().unwrap_or_default();
    let Some(fate) = Fate::ALL.into_iter().find(|fate| fate.word() == word) else {
        return Err(Error::Fate { line, word });
    };
    let fields: Vec<String> = fields.collect();
    if fields.iter().any(String::is_empty) {
        return Err(Error::Empty { line });
    }
    let found = fields.len();
    let (bytes, reason) = match (fate.tells_bytes(), <[String; 2]>::try_from(fields)) {
        (true, Ok([bytes, reason])) => (bytes, reason),
        (false, Err(fields)) if found == 1 => (String::new(), fields.concat()),
        (tells, _) => {
            let form = if tells { " | BYTES | REASON" } else { " | REASON" };
            return Err(Error::Fields {
                line,
                fate,
                found,
                form,
            });
        }
    };
    Ok(Row {
        fate,
        bytes,
        reason,
        names: Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headings_and_names() {
        let rows =
            parse("# comment\n\ncharged | all of it | first\n  cuA cuB\n  cuC\n\npassed through | only reads\n  cuD\n");
        let row = |fate, bytes: &str, reason: &str, names: &[&str]| Row {
            fate,
            bytes: bytes.into(),
            reason: reason.into(),
            names: names.iter().map(|name| (*name).into()).collect(),
        };
        let expected = vec![
            row(Fate::Charged, "all of it", "first", &["cuA", "cuB", "cuC"]),
            row(Fate::PassedThrough, "", "only reads", &["cuD"]),
        ];
        assert_eq!(rows, Ok(expected));
    }

    #[test]
    fn every_other_form_is_refused() {
        let line = 1;
        let word = "allowed".into();
        assert_eq!(parse("allowed | x\n  cuA"), Err(Error::Fate { line, word }));
        for (text, found) in [
            ("charged | x\n  cuA", 1),
            ("charged | x | y | z\n  cuA", 3),
            ("limited | x | y\n  cuA", 2),
        ] {
            let error = parse(text).expect_err(text);
            assert!(
                matches!(error, Error::Fields { line: 1, found: n, .. } if n == found),
                "{error}"
            );
        }
        assert_eq!(parse("limited | \n  cuA"), Err(Error::Empty { line }));
        assert_eq!(parse("  cuA"), Err(Error::NoHeading { line }));
        assert_eq!(parse("limited | x\nlimited | y\n  cuA"), Err(Error::NoNames { line }));
        assert_eq!(parse("limited | x\n"), Err(Error::NoNames { line }));
    }
}
