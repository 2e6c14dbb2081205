//! Conversions: `int()`, `string()`, `type()` and others.

use std::sync::Arc;

use super::{go_time, network};
use crate::evaluate::Evaluation;
use crate::node::{Call, Function};
use crate::value::{Out, Value, error, no_such_overload};

pub(super) fn function(name: &str) -> Option<Function> {
    Some(match name {
        "dyn" => |_, _, args| args.first().cloned().map_or_else(no_such_overload, Ok),
        "type" => |_, _, args| match args {
            [value] => Ok(Value::Type(value.type_name())),
            _ => no_such_overload(),
        },
        "bool" => to_bool,
        "bytes" => to_bytes,
        "double" => to_double,
        "duration" => to_duration,
        "int" => to_int,
        "string" => to_string,
        "timestamp" => to_timestamp,
        "uint" => to_uint,
        _ => return None,
    })
}

fn unreadable<'v>(to: &str) -> Out<'v> {
    error(format!("type conversion error from 'string' to '{to}'"))
}

fn to_bool<'v>(_: &mut Evaluation<'v>, _: &Call, args: &[Value<'v>]) -> Out<'v> {
    match args {
        [Value::Bool(b)] => Ok(Value::Bool(*b)),
        [Value::Str(text)] => match text.as_str() {
            "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(Value::Bool(true)),
            "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(Value::Bool(false)),
            _ => unreadable("bool"),
        },
        _ => no_such_overload(),
    }
}

fn to_bytes<'v>(run: &mut Evaluation<'v>, _: &Call, args: &[Value<'v>]) -> Out<'v> {
    match args {
        [Value::Bytes(bytes)] => Ok(Value::Bytes(Arc::clone(bytes))),
        [Value::Str(text)] => {
            run.work(text.as_str().len() / 8)?;
            Ok(Value::Bytes(text.as_str().as_bytes().into()))
        }
        _ => no_such_overload(),
    }
}

fn to_double<'v>(_: &mut Evaluation<'v>, _: &Call, args: &[Value<'v>]) -> Out<'v> {
    match args {
        [Value::Double(d)] => Ok(Value::Double(*d)),
        [Value::Int(i)] => Ok(Value::Double(*i as f64)),
        [Value::Uint(u)] => Ok(Value::Double(*u as f64)),
        [Value::Str(text)] => match double(text.as_str()) {
            Some(d) => Ok(Value::Double(d)),
            None => unreadable("double"),
        },
        _ => no_such_overload(),
    }
}

/// Parses a number as Go's ParseFloat does, except hexadecimal numbers.
pub(super) fn double(text: &str) -> Option<f64> {
    let lower = text.to_ascii_lowercase();
    let bare = lower.strip_prefix(['+', '-']).unwrap_or(&lower);
    if matches!(bare, "inf" | "infinity" | "nan") {
        return lower.parse().ok();
    }
    if !bare.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
        return None;
    }
    // Go refuses numbers out of range; Rust returns infinity.
    text.parse().ok().filter(|d: &f64| d.is_finite())
}

fn to_duration<'v>(_: &mut Evaluation<'v>, _: &Call, args: &[Value<'v>]) -> Out<'v> {
    match args {
        [Value::Duration(d)] => Ok(Value::Duration(*d)),
        [Value::Str(text)] => match go_time::parse_duration(text.as_str()) {
            Some(d) => Ok(Value::Duration(d)),
            None => unreadable("google.protobuf.Duration"),
        },
        _ => no_such_overload(),
    }
}

fn to_timestamp<'v>(_: &mut Evaluation<'v>, _: &Call, args: &[Value<'v>]) -> Out<'v> {
    match args {
        [Value::Timestamp(t, zone)] => Ok(Value::Timestamp(*t, *zone)),
        [Value::Int(seconds)] => go_time::timestamp(i128::from(*seconds) * go_time::SECOND, 0),
        [Value::Str(text)] => match go_time::parse_timestamp(text.as_str()) {
            Some((t, zone)) => go_time::timestamp(t, zone),
            None => unreadable("google.protobuf.Timestamp"),
        },
        _ => no_such_overload(),
    }
}

fn to_int<'v>(_: &mut Evaluation<'v>, _: &Call, args: &[Value<'v>]) -> Out<'v> {
    match args {
        [Value::Int(i)] => Ok(Value::Int(*i)),
        [Value::Uint(u)] => i64::try_from(*u).map_or_else(|_| error("integer overflow"), |i| Ok(Value::Int(i))),
        // cel-go treats the ends of the range as too large.
        [Value::Double(d)]
            if d.is_finite() && *d > -9_223_372_036_854_775_808.0 && *d < 9_223_372_036_854_775_807.0 =>
        {
            Ok(Value::Int(*d as i64))
        }
        [Value::Double(_)] => error("integer overflow"),
        [Value::Duration(d)] => Ok(Value::Int(*d)),
        [Value::Timestamp(t, _)] => Ok(Value::Int(t.div_euclid(go_time::SECOND) as i64)),
        [Value::Str(text)] => match text.as_str().parse() {
            Ok(i) => Ok(Value::Int(i)),
            Err(_) => unreadable("int"),
        },
        _ => no_such_overload(),
    }
}

fn to_uint<'v>(_: &mut Evaluation<'v>, _: &Call, args: &[Value<'v>]) -> Out<'v> {
    match args {
        [Value::Uint(u)] => Ok(Value::Uint(*u)),
        [Value::Int(i)] => {
            u64::try_from(*i).map_or_else(|_| error("unsigned integer overflow"), |u| Ok(Value::Uint(u)))
        }
        [Value::Double(d)] if d.is_finite() && *d >= 0.0 && *d < 18_446_744_073_709_551_615.0 => {
            Ok(Value::Uint(*d as u64))
        }
        [Value::Double(_)] => error("unsigned integer overflow"),
        [Value::Str(text)] => match text.as_str().parse() {
            // Rust accepts a sign here, Go does not.
            Ok(u) if !text.as_str().starts_with('+') => Ok(Value::Uint(u)),
            _ => unreadable("uint"),
        },
        _ => no_such_overload(),
    }
}

fn to_string<'v>(run: &mut Evaluation<'v>, _: &Call, args: &[Value<'v>]) -> Out<'v> {
    match args {
        [value @ Value::Str(_)] => Ok(value.clone()),
        [Value::Bytes(bytes)] => {
            run.work(bytes.len() / 8)?;
            match std::str::from_utf8(bytes) {
                Ok(text) => Ok(Value::text(text)),
                Err(_) => error("invalid UTF-8 in bytes, cannot convert to string"),
            }
        }
        [value] => text_of(value).map_or_else(no_such_overload, |text| Ok(Value::text(text))),
        _ => no_such_overload(),
    }
}

/// Converts a value to text; `None` for types without a text form.
pub(super) fn text_of(value: &Value<'_>) -> Option<String> {
    Some(match value {
        Value::Bool(b) => b.to_string(),
        Value::Int(i) => i.to_string(),
        Value::Uint(u) => u.to_string(),
        Value::Double(d) => shortest(*d),
        Value::Duration(d) => go_time::duration_text(*d),
        Value::Timestamp(t, zone) => go_time::timestamp_text(*t, *zone),
        Value::Ip(ip) => ip.to_string(),
        Value::Cidr(ip, bits) => network::cidr_text(*ip, *bits),
        _ => return None,
    })
}

/// A double as Go's %g writes it: with an exponent below 1e-4 and from 1e6 on.
pub(super) fn shortest(d: f64) -> String {
    if d.is_nan() {
        return "NaN".to_owned();
    }
    if d.is_infinite() {
        return if d > 0.0 { "+Inf" } else { "-Inf" }.to_owned();
    }
    let scientific = format!("{d:e}");
    let Some((mantissa, exponent)) = scientific.split_once('e') else {
        return scientific;
    };
    match exponent.parse::<i32>() {
        Ok(exponent) if d != 0.0 && !(-4..6).contains(&exponent) => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{mantissa}e{sign}{:02}", exponent.abs())
        }
        _ => format!("{d}"),
    }
}
