//! Functions on strings. Positions are in characters, not bytes.

use super::format_text;
use super::operators::LONGEST;
use super::quote::quote;
use crate::evaluate::Evaluation;
use crate::node::{Call, Function};
use crate::value::{Out, Text, Value, error, no_such_overload};

pub(super) fn function(name: &str) -> Option<Function> {
    Some(match name {
        "contains" => |_, _, args| two(args, |a, b| Value::Bool(a.contains(b))),
        "startsWith" => |_, _, args| two(args, |a, b| Value::Bool(a.starts_with(b))),
        "endsWith" => |_, _, args| two(args, |a, b| Value::Bool(a.ends_with(b))),
        "charAt" => char_at,
        "lowerAscii" => |_, _, args| one(args, |text| text.to_ascii_lowercase()),
        "upperAscii" => |_, _, args| one(args, |text| text.to_ascii_uppercase()),
        "trim" => |_, _, args| one(args, |text| text.trim_matches(is_space).to_owned()),
        "strings.quote" => |run, _, args| {
            if let [Value::Str(text)] = args {
                run.work(text.as_str().len() / 4)?;
            }
            one(args, quote)
        },
        "replace" => replace,
        "split" => split,
        "substring" => substring,
        "join" => join,
        "format" => format,
        _ => return None,
    })
}

fn one<'v>(args: &[Value<'v>], with: impl Fn(&str) -> String) -> Out<'v> {
    match args {
        [Value::Str(text)] => Ok(Value::text(with(text.as_str()))),
        _ => no_such_overload(),
    }
}

fn two<'v>(args: &[Value<'v>], with: impl Fn(&str, &str) -> Value<'v>) -> Out<'v> {
    match args {
        [Value::Str(a), Value::Str(b)] => Ok(with(a.as_str(), b.as_str())),
        _ => no_such_overload(),
    }
}

fn out_of_range<T>(index: i64) -> Result<T, crate::value::Fault> {
    error(format!("index out of range: {index}"))
}

/// The byte position of the character with this index; the text's length for the index after the last one.
fn position(text: &str, index: i64) -> Option<usize> {
    let index = usize::try_from(index).ok()?;
    if text.is_ascii() {
        return (index <= text.len()).then_some(index);
    }
    text.char_indices().map(|(at, _)| at).chain([text.len()]).nth(index)
}

/// Go's definition of white space.
fn is_space(c: char) -> bool {
    c.is_whitespace()
}

fn char_at<'v>(_: &mut Evaluation<'v>, _: &Call, args: &[Value<'v>]) -> Out<'v> {
    let [Value::Str(text), Value::Int(index)] = args else {
        return no_such_overload();
    };
    match position(text.as_str(), *index) {
        Some(at) => Ok(Value::text(
            text.as_str()[at..].chars().next().map_or(String::new(), String::from),
        )),
        None => out_of_range(*index),
    }
}

/// The index of the first occurrence of a text, from an offset on.
pub(super) fn index_of<'v>(text: &str, part: &str, offset: i64) -> Out<'v> {
    if offset < 0 {
        return out_of_range(offset);
    }
    let length = text.chars().count() as i64;
    if part.is_empty() {
        return Ok(Value::Int(offset.min(length)));
    }
    let found = position(text, offset)
        .filter(|_| offset < length)
        .and_then(|from| text[from..].find(part).map(|at| from + at))
        .map_or(-1, |at| text[..at].chars().count() as i64);
    Ok(Value::Int(found))
}

/// The index of the last occurrence of a text that does not start after an offset.
pub(super) fn last_index_of<'v>(text: &str, part: &str, offset: Option<i64>) -> Out<'v> {
    let length = text.chars().count() as i64;
    let offset = match offset {
        None if part.is_empty() => return Ok(Value::Int(length)),
        None if text.len() < part.len() => return Ok(Value::Int(-1)),
        None => length - 1,
        Some(offset) => offset,
    };
    if offset < 0 {
        return out_of_range(offset);
    }
    if part.is_empty() {
        return Ok(Value::Int(offset.min(length)));
    }
    if offset >= length {
        return Ok(Value::Int(-1));
    }
    let last = position(text, offset).map_or(text.len(), |at| (at + part.len()).min(text.len()));
    let end = (last..=text.len())
        .find(|at| text.is_char_boundary(*at))
        .unwrap_or(text.len());
    let found = text[..end]
        .rfind(part)
        .map_or(-1, |at| text[..at].chars().count() as i64);
    Ok(Value::Int(found))
}

fn replace<'v>(run: &mut Evaluation<'v>, _: &Call, args: &[Value<'v>]) -> Out<'v> {
    let (text, old, new, limit) = match args {
        [Value::Str(text), Value::Str(old), Value::Str(new)] => (text, old, new, -1),
        [Value::Str(text), Value::Str(old), Value::Str(new), Value::Int(limit)] => (text, old, new, *limit),
        _ => return no_such_overload(),
    };
    let (text, old, new) = (text.as_str(), old.as_str(), new.as_str());
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    // Both Go and Rust find an empty text before each character and at the end.
    let found = text.matches(old).take(limit).count();
    let length = text.len() as u128 + found as u128 * new.len() as u128;
    if length > LONGEST as u128 {
        return error("the text is too long");
    }
    run.work(length as usize / 8)?;
    Ok(Value::text(text.replacen(old, new, limit)))
}

fn split<'v>(run: &mut Evaluation<'v>, _: &Call, args: &[Value<'v>]) -> Out<'v> {
    let (text, separator, limit) = match args {
        [Value::Str(text), Value::Str(separator)] => (text, separator, -1),
        [Value::Str(text), Value::Str(separator), Value::Int(limit)] => (text, separator, *limit),
        _ => return no_such_overload(),
    };
    let (text, separator) = (text.as_str(), separator.as_str());
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    if limit == 0 {
        return Ok(Value::list(Vec::new()));
    }
    run.work(text.len())?;
    let parts: Vec<_> = if separator.is_empty() {
        // An empty separator splits into characters; the last part is the rest.
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some(c) = rest.chars().next() {
            if parts.len() + 1 == limit {
                parts.push(Value::text(rest));
                break;
            }
            parts.push(Value::text(String::from(c)));
            rest = &rest[c.len_utf8()..];
        }
        parts
    } else {
        text.splitn(limit, separator).map(Value::text).collect()
    };
    Ok(Value::list(parts))
}

fn substring<'v>(_: &mut Evaluation<'v>, _: &Call, args: &[Value<'v>]) -> Out<'v> {
    let (text, start, end) = match args {
        [Value::Str(text), Value::Int(start)] => (text, *start, None),
        [Value::Str(text), Value::Int(start), Value::Int(end)] => (text, *start, Some(*end)),
        _ => return no_such_overload(),
    };
    if let Some(end) = end
        && start > end
    {
        return error(format!("invalid substring range. start: {start}, end: {end}"));
    }
    let whole = text.as_str();
    let Some(from) = position(whole, start) else {
        return out_of_range(start);
    };
    let to = match end {
        None => whole.len(),
        Some(end) => match position(whole, end) {
            Some(to) => to,
            None => return out_of_range(end),
        },
    };
    Ok(match text {
        Text::Borrowed(text) => Value::Str(Text::Borrowed(&text[from..to])),
        Text::Owned(text) => Value::text(&text[from..to]),
    })
}

fn join<'v>(run: &mut Evaluation<'v>, _: &Call, args: &[Value<'v>]) -> Out<'v> {
    let (list, separator) = match args {
        [Value::List(list)] => (list, ""),
        [Value::List(list), Value::Str(separator)] => (list, separator.as_str()),
        _ => return no_such_overload(),
    };
    run.work(list.len())?;
    let mut text = String::new();
    for (index, element) in list.iter().enumerate() {
        let Value::Str(part) = element else {
            return error(format!("join: invalid input of type {}", element.type_name()));
        };
        if index > 0 {
            text.push_str(separator);
        }
        text.push_str(part.as_str());
        if text.len() > LONGEST {
            return error("the text is too long");
        }
    }
    run.work(text.len() / 8)?;
    Ok(Value::text(text))
}

fn format<'v>(run: &mut Evaluation<'v>, _: &Call, args: &[Value<'v>]) -> Out<'v> {
    let [Value::Str(text), Value::List(list)] = args else {
        return no_such_overload();
    };
    let formatted = format_text::format(text.as_str(), list);
    match formatted {
        Ok(text) => {
            run.work(text.len() / 8)?;
            Ok(Value::text(text))
        }
        Err(why) => error(why),
    }
}
