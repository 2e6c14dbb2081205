//! `"...".format([...])`.

use super::conversions::{shortest, text_of};
use super::go_time;
use super::operators::LONGEST;
use super::quote::quote;
use crate::types::Type;
use crate::value::Value;

/// A verb: `%s`, or `%.2f` with its number of decimal places.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Verb {
    letter: char,
    places: Option<usize>,
}

impl std::fmt::Display for Verb {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.letter)
    }
}

enum Piece<'t> {
    Text(&'t str),
    Verb(Verb),
}

/// The verbs of a format, in order.
pub(crate) fn verbs(text: &str) -> Result<Vec<Verb>, String> {
    Ok(pieces(text)?
        .into_iter()
        .filter_map(|piece| match piece {
            Piece::Verb(verb) => Some(verb),
            Piece::Text(_) => None,
        })
        .collect())
}

fn pieces(text: &str) -> Result<Vec<Piece<'_>>, String> {
    let mut pieces = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find('%') {
        pieces.push(Piece::Text(&rest[..at]));
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('%') {
            pieces.push(Piece::Text("%"));
            rest = after;
            continue;
        }
        let mut places = None;
        if let Some(after) = rest.strip_prefix('.') {
            let end = after.find(|c: char| !c.is_ascii_digit()).unwrap_or(after.len());
            if end == 0 {
                return Err("error while converting precision to integer".to_owned());
            }
            places = Some(
                after[..end]
                    .parse()
                    .map_err(|_| "error while converting precision to integer")?,
            );
            rest = &after[end..];
        }
        let letter = rest.chars().next().ok_or("unexpected end of string")?;
        if !matches!(letter, 's' | 'd' | 'f' | 'e' | 'b' | 'x' | 'X' | 'o') {
            return Err(format!("unrecognized formatting clause \"{letter}\""));
        }
        pieces.push(Piece::Verb(Verb { letter, places }));
        rest = &rest[1..];
    }
    pieces.push(Piece::Text(rest));
    Ok(pieces)
}

/// Returns true if the verb accepts a value of that type.
pub(crate) fn accepts(verb: Verb, t: &Type) -> bool {
    if matches!(t, Type::Dyn | Type::Param(_)) {
        return true;
    }
    match verb.letter {
        's' => !matches!(t, Type::Object(_) | Type::Optional(_)),
        'd' => matches!(t, Type::Int | Type::Uint),
        'f' | 'e' => matches!(t, Type::Double | Type::Str),
        'b' => matches!(t, Type::Int | Type::Uint | Type::Bool),
        'o' => matches!(t, Type::Int | Type::Uint),
        _ => matches!(t, Type::Int | Type::Uint | Type::Str | Type::Bytes),
    }
}

/// Limit of decimal places: more than a double has digits.
const MOST_PLACES: usize = 2_000;

pub(crate) fn format(text: &str, args: &[Value<'_>]) -> Result<String, String> {
    let mut out = String::new();
    let mut next = args.iter().enumerate();
    for piece in pieces(text)? {
        match piece {
            Piece::Text(text) => out.push_str(text),
            Piece::Verb(verb) => {
                let (_, value) = next.next().ok_or("index out of range")?;
                out.push_str(&one(verb, value)?);
            }
        }
        if out.len() > LONGEST {
            return Err("the text is too long".to_owned());
        }
    }
    Ok(out)
}

fn one(verb: Verb, value: &Value<'_>) -> Result<String, String> {
    let refused = || {
        Err(format!(
            "error during formatting: no formatting of {} with %{verb}",
            value.type_name()
        ))
    };
    let places = verb.places.unwrap_or(6);
    if places > MOST_PLACES {
        return Err(format!("a precision of {places} is too large"));
    }
    Ok(match (verb.letter, value) {
        ('s', value) => string(value)?,
        ('d' | 'o' | 'x' | 'X' | 'b', Value::Int(i)) => {
            let sign = if *i < 0 { "-" } else { "" };
            format!("{sign}{}", radix(verb.letter, i.unsigned_abs()))
        }
        ('d' | 'o' | 'x' | 'X' | 'b', Value::Uint(u)) => radix(verb.letter, *u),
        ('b', Value::Bool(b)) => u8::from(*b).to_string(),
        ('x' | 'X', Value::Str(text)) => hex(verb.letter, text.as_str().as_bytes()),
        ('x' | 'X', Value::Bytes(bytes)) => hex(verb.letter, bytes),
        ('f' | 'e', Value::Double(d)) => number(verb.letter, places, *d),
        ('f' | 'e', Value::Str(text)) => match text.as_str() {
            "NaN" => number(verb.letter, places, f64::NAN),
            "Infinity" => number(verb.letter, places, f64::INFINITY),
            "-Infinity" => number(verb.letter, places, f64::NEG_INFINITY),
            _ => return refused(),
        },
        _ => return refused(),
    })
}

fn radix(letter: char, number: u64) -> String {
    match letter {
        'o' => format!("{number:o}"),
        'x' => format!("{number:x}"),
        'X' => format!("{number:X}"),
        'b' => format!("{number:b}"),
        _ => number.to_string(),
    }
}

fn hex(letter: char, bytes: &[u8]) -> String {
    let lower: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    if letter == 'X' { lower.to_uppercase() } else { lower }
}

/// Formats a number for English readers: thousands separated, the exponent as a power of ten.
fn number(letter: char, places: usize, d: f64) -> String {
    if d.is_nan() {
        return "NaN".to_owned();
    }
    if d.is_infinite() {
        return if d > 0.0 { "\u{221e}" } else { "-\u{221e}" }.to_owned();
    }
    if letter == 'f' {
        let plain = format!("{d:.places$}");
        let (sign, plain) = plain.strip_prefix('-').map_or(("", plain.as_str()), |rest| ("-", rest));
        let (whole, fraction) = plain.split_once('.').unwrap_or((plain, ""));
        let mut grouped = String::new();
        for (index, digit) in whole.chars().enumerate() {
            if index > 0 && (whole.len() - index).is_multiple_of(3) {
                grouped.push(',');
            }
            grouped.push(digit);
        }
        let point = if fraction.is_empty() { "" } else { "." };
        return format!("{sign}{grouped}{point}{fraction}");
    }
    // The precision is ignored, as in Kubernetes.
    let plain = format!("{d:.6e}");
    let (mantissa, exponent) = plain.split_once('e').unwrap_or((plain.as_str(), "0"));
    let (sign, digits) = exponent
        .strip_prefix('-')
        .map_or(("", exponent), |rest| ("\u{207b}", rest));
    let raised: String = format!("{digits:0>2}")
        .chars()
        .map(|digit| {
            const RAISED: [char; 10] = [
                '\u{2070}', '\u{b9}', '\u{b2}', '\u{b3}', '\u{2074}', '\u{2075}', '\u{2076}', '\u{2077}', '\u{2078}',
                '\u{2079}',
            ];
            digit.to_digit(10).map_or(digit, |d| RAISED[d as usize])
        })
        .collect();
    format!("{mantissa}\u{d7}10{sign}{raised}")
}

/// `%s`.
fn string(value: &Value<'_>) -> Result<String, String> {
    Ok(match value {
        Value::Null => "null".to_owned(),
        Value::Str(text) => text.as_str().to_owned(),
        Value::Bytes(bytes) => String::from_utf8(bytes.to_vec()).map_err(|_| "invalid UTF-8 in bytes")?,
        Value::Type(name) => (*name).to_owned(),
        Value::List(_) | Value::Map(_) => {
            let mut out = String::new();
            nested(value, &mut out)?;
            out
        }
        Value::Bool(_)
        | Value::Int(_)
        | Value::Uint(_)
        | Value::Double(_)
        | Value::Timestamp(..)
        | Value::Duration(_) => text_of(value).unwrap_or_default(),
        other => {
            return Err(format!(
                "error during formatting: string clause can only be used on strings, bools, bytes, ints, doubles, maps, lists, types, durations, and timestamps, was given {}",
                other.type_name()
            ));
        }
    })
}

/// Writes a value inside a list or a map. One value can occur many times, so the text may grow far beyond its source.
fn nested(value: &Value<'_>, out: &mut String) -> Result<(), String> {
    if out.len() > LONGEST {
        return Err("the text is too long".to_owned());
    }
    match value {
        Value::List(list) => {
            out.push('[');
            for (index, element) in list.iter().enumerate() {
                if index > 0 {
                    out.push_str(", ");
                }
                nested(element, out)?;
            }
            out.push(']');
        }
        Value::Map(map) => {
            let mut parts = Vec::new();
            let mut length = out.len();
            for (key, value) in map.entries().map_err(|_| "a map cannot be read")? {
                if !matches!(key, Value::Str(_) | Value::Bool(_) | Value::Int(_) | Value::Uint(_)) {
                    return Err(format!(
                        "no formatting function for map key of type {}",
                        key.type_name()
                    ));
                }
                let (mut name, mut text) = (String::new(), String::new());
                nested(&key, &mut name)?;
                nested(&value, &mut text)?;
                length += name.len() + text.len();
                if length > LONGEST {
                    return Err("the text is too long".to_owned());
                }
                parts.push(format!("{name}:{text}"));
            }
            parts.sort_unstable();
            out.push('{');
            out.push_str(&parts.join(", "));
            out.push('}');
        }
        Value::Str(text) => out.push_str(&quote(text.as_str())),
        Value::Bytes(bytes) => {
            out.push('b');
            out.push_str(&quote(&String::from_utf8_lossy(bytes)));
        }
        Value::Double(d) if d.is_nan() => out.push_str("\"NaN\""),
        Value::Double(d) if d.is_infinite() => out.push_str(&format!("\"{}\"", shortest(*d))),
        Value::Double(d) => out.push_str(&format!("{d:.6}")),
        Value::Type(name) => out.push_str(&format!("type({name})")),
        Value::Duration(d) => out.push_str(&format!("duration(\"{}\")", go_time::duration_text(*d))),
        Value::Timestamp(t, zone) => {
            out.push_str(&format!("timestamp(\"{}\")", go_time::timestamp_text(*t, *zone)));
        }
        other => out.push_str(&string(other)?),
    }
    Ok(())
}
