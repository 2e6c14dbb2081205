//! The container's state, which the runtime passes to hooks on standard input.

use std::io::{self, Read};

use serde_json::Value;

use crate::text::SHOWN;

/// Bytes: a state has an id, paths and annotations, and Kubernetes allows 256 KiB of annotations.
const MAX: u64 = 1 << 20;
/// Bytes of an id. containerd allows 76, runc 1024.
pub const MAX_ID: usize = 1024;

/// A state with an id of one line.
#[derive(Debug)]
pub struct State {
    pub id: String,
    fields: Value,
}

/// What is wrong with a document of the runtime's.
#[derive(Debug, thiserror::Error)]
pub enum Damage {
    #[error("cannot be read: {0}")]
    Io(#[from] io::Error),
    #[error("larger than {0} bytes")]
    TooLarge(u64),
    #[error("not JSON: {0}")]
    Json(#[from] serde_json::Error),
    #[error("has no text in {0}")]
    Missing(&'static str),
    #[error("{field} is {value}, not {wanted}")]
    Bad {
        field: &'static str,
        /// As JSON, shortened.
        value: String,
        wanted: &'static str,
    },
}

impl State {
    /// Reads a state. Messages and reports contain its id, and each must be one line.
    ///
    /// # Errors
    /// It is no JSON, is too large, or has no such id.
    pub fn read(stdin: impl Read) -> Result<Self, Damage> {
        let fields = json(stdin, MAX)?;
        let id = text(&fields, "/id", "id")?;
        if id.is_empty() || id.len() > MAX_ID || id.contains(|c: char| c.is_control()) {
            return Err(Damage::bad("id", &fields["id"], "1 to 1024 characters of one line"));
        }
        Ok(Self {
            id: id.to_owned(),
            fields,
        })
    }

    /// A field's text.
    ///
    /// # Errors
    /// It has none.
    pub fn text(&self, field: &'static str) -> Result<&str, Damage> {
        self.fields[field].as_str().ok_or(Damage::Missing(field))
    }

    /// A field's value; null if it is missing.
    #[must_use]
    pub fn value(&self, field: &str) -> &Value {
        &self.fields[field]
    }
}

impl Damage {
    /// A field has a value that is not what is wanted.
    #[must_use]
    pub fn bad(field: &'static str, value: &Value, wanted: &'static str) -> Self {
        // JSON has no line breaks.
        let value = value.to_string().chars().take(SHOWN).collect();
        Self::Bad { field, value, wanted }
    }
}

/// Reads a document of at most `max` bytes.
///
/// # Errors
/// It cannot be read, is larger, or is no JSON.
pub fn json(from: impl Read, max: u64) -> Result<Value, Damage> {
    let mut bytes = Vec::new();
    from.take(max + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > max {
        return Err(Damage::TooLarge(max));
    }
    Ok(serde_json::from_slice(&bytes)?)
}

/// Returns the text at a JSON pointer. `field`: its name in messages.
///
/// # Errors
/// There is none.
pub fn text<'a>(document: &'a Value, pointer: &str, field: &'static str) -> Result<&'a str, Damage> {
    document
        .pointer(pointer)
        .and_then(Value::as_str)
        .ok_or(Damage::Missing(field))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_one_line_of_at_most_1024_bytes() {
        let state = |id: &str| State::read(format!(r#"{{"id": {id}, "pid": 7}}"#).as_bytes());
        let longest = format!("\"{}\"", "a".repeat(MAX_ID));
        assert_eq!(state(&longest).expect("a state").id.len(), MAX_ID);
        for (id, expected) in [
            (r#""""#, "id is \"\", not 1 to 1024 characters"),
            (r#""a\nb""#, "id is \"a\\nb\", not 1 to 1024 characters"),
            (&longest.replacen('a', "aa", 1), "id is \"aaa"),
            ("7", "has no text in id"),
            ("null", "has no text in id"),
        ] {
            let error = state(id).expect_err(id).to_string();
            assert!(
                error.starts_with(expected) && !error.contains('\n') && error.len() < 200,
                "{error}"
            );
        }
        let state = state("\"c1\"").expect("a state");
        assert_eq!(state.value("pid"), 7);
        assert_eq!(state.value("none"), &Value::Null);
        assert!(matches!(state.text("bundle"), Err(Damage::Missing("bundle"))));
    }

    #[test]
    fn what_does_not_end_is_refused() {
        let error = State::read(io::repeat(b' ')).expect_err("endless").to_string();
        assert_eq!(error, "larger than 1048576 bytes");
    }
}
