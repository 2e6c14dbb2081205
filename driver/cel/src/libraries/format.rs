//! Named formats: `format.dns1123Label().validate("...")`.

use crate::evaluate::Evaluation;
use crate::node::{Call, Function};
use crate::value::{Out, Value, no_such_overload};

pub(crate) struct Format {
    pub(crate) name: &'static str,
    /// The name of the format's function.
    function: &'static str,
    /// The pattern length that Kubernetes assumes in its cost.
    pub(crate) pattern_size: u64,
    check: fn(&str) -> Option<&'static str>,
}

static FORMATS: [Format; 13] = [
    format("DNS1123Label", "dns1123Label", 30, |text| {
        label(text, Start::Any, false)
    }),
    format("DNS1123Subdomain", "dns1123Subdomain", 60, |text| {
        subdomain(text, false)
    }),
    format("DNS1035Label", "dns1035Label", 30, |text| {
        label(text, Start::Letter, false)
    }),
    format("QualifiedName", "qualifiedName", 60, qualified_name),
    format("DNS1123LabelPrefix", "dns1123LabelPrefix", 30, |text| {
        label(text, Start::Any, true)
    }),
    format("DNS1123SubdomainPrefix", "dns1123SubdomainPrefix", 60, |text| {
        subdomain(text, true)
    }),
    format("DNS1035LabelPrefix", "dns1035LabelPrefix", 30, |text| {
        label(text, Start::Letter, true)
    }),
    format("LabelValue", "labelValue", 40, label_value),
    format("URI", "uri", 1103, |text| match super::url::parse(text) {
        Ok(_) => None,
        Err(_) => Some("is not a URI"),
    }),
    format("uuid", "uuid", 70, |text| {
        (!is_uuid(text)).then_some("does not match the UUID format")
    }),
    format("byte", "byte", 84, |text| {
        (!is_base64(text)).then_some("invalid base64")
    }),
    format("date", "date", 71, |text| (!is_date(text)).then_some("invalid date")),
    format("datetime", "datetime", 71, |text| {
        (!is_datetime(text)).then_some("invalid datetime")
    }),
];

const fn format(
    name: &'static str,
    function: &'static str,
    pattern_size: u64,
    check: fn(&str) -> Option<&'static str>,
) -> Format {
    Format {
        name,
        function,
        pattern_size,
        check,
    }
}

fn named(name: &str) -> Option<&'static Format> {
    FORMATS.iter().find(|format| format.function == name)
}

pub(super) fn function(name: &str) -> Option<Function> {
    Some(match name {
        "validate" => validate,
        "format.named" => |_, _, args| match args {
            [Value::Str(name)] => {
                Ok(named(name.as_str()).map_or(Value::Optional(None), |format| Value::some(Value::Format(format))))
            }
            _ => no_such_overload(),
        },
        _ if name.strip_prefix("format.").is_some_and(|name| named(name).is_some()) => |_, call, _| {
            let format = call.name.strip_prefix("format.").and_then(named);
            format.map_or_else(no_such_overload, |format| Ok(Value::Format(format)))
        },
        _ => return None,
    })
}

/// Returns no value if the text is valid, else a list of its mistakes.
fn validate<'v>(run: &mut Evaluation<'v>, _: &Call, args: &[Value<'v>]) -> Out<'v> {
    let [Value::Format(format), Value::Str(text)] = args else {
        return no_such_overload();
    };
    run.work(text.as_str().len())?;
    Ok(match (format.check)(text.as_str()) {
        None => Value::Optional(None),
        Some(why) => Value::some(Value::list(vec![Value::text(why)])),
    })
}

#[derive(Clone, Copy, PartialEq)]
enum Start {
    Letter,
    Any,
}

/// Checks lower case letters, digits and inner dashes; a prefix may also end with a dash.
fn label(text: &str, start: Start, prefix: bool) -> Option<&'static str> {
    let masked = unmasked(text, prefix);
    if masked.len() > 63 {
        return Some("must be no more than 63 characters");
    }
    (!label_characters(&masked, start)).then_some("must consist of lower case alphanumeric characters or '-'")
}

/// The text that Kubernetes checks for a prefix: a dash at the end is replaced by a letter.
fn unmasked(text: &str, prefix: bool) -> String {
    match text.strip_suffix('-') {
        Some(rest) if prefix && !rest.is_empty() => format!("{rest}a"),
        _ => text.to_owned(),
    }
}

fn label_characters(text: &str, start: Start) -> bool {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let bytes = text.as_bytes();
    let (Some(first), Some(last)) = (bytes.first(), bytes.last()) else {
        return false;
    };
    inner(*last)
        && (if start == Start::Letter {
            first.is_ascii_lowercase()
        } else {
            inner(*first)
        })
        && bytes.iter().all(|b| inner(*b) || *b == b'-')
}

fn subdomain(text: &str, prefix: bool) -> Option<&'static str> {
    let masked = unmasked(text, prefix);
    if masked.len() > 253 {
        return Some("must be no more than 253 characters");
    }
    let right = masked.split('.').all(|part| label_characters(part, Start::Any));
    (!right).then_some("must consist of lower case alphanumeric characters, '-' or '.'")
}

fn is_name(text: &str) -> bool {
    let bytes = text.as_bytes();
    let (Some(first), Some(last)) = (bytes.first(), bytes.last()) else {
        return false;
    };
    first.is_ascii_alphanumeric()
        && last.is_ascii_alphanumeric()
        && bytes.iter().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(b))
}

fn qualified_name(text: &str) -> Option<&'static str> {
    let (prefix, name) = match text.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, text),
    };
    if name.contains('/') {
        return Some("a qualified name must be a name with an optional DNS subdomain prefix and '/'");
    }
    if prefix.is_some_and(|prefix| subdomain(prefix, false).is_some()) {
        return Some("prefix part must be a DNS subdomain");
    }
    (name.len() > 63 || !is_name(name)).then_some("name part must consist of alphanumeric characters, '-', '_' or '.'")
}

fn label_value(text: &str) -> Option<&'static str> {
    let right = text.is_empty() || (text.len() <= 63 && is_name(text));
    (!right).then_some("a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.'")
}

/// Accepts a UUID with all dashes at their places, or without any.
fn is_uuid(text: &str) -> bool {
    let lengths = [8usize, 4, 4, 4, 12];
    let mut rest = text;
    for (index, length) in lengths.into_iter().enumerate() {
        let Some(part) = rest.get(..length) else { return false };
        if !part.bytes().all(|b| b.is_ascii_hexdigit()) {
            return false;
        }
        rest = &rest[length..];
        if index < 4 {
            rest = rest.strip_prefix('-').unwrap_or(rest);
        }
    }
    rest.is_empty()
}

fn is_base64(text: &str) -> bool {
    let digits = text.trim_end_matches('=');
    let padding = text.len() - digits.len();
    text.len().is_multiple_of(4)
        && padding <= 2
        && digits
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b == b'+' || b == b'/')
}

fn is_date(text: &str) -> bool {
    text.len() == 10 && super::go_time::parse_timestamp(&format!("{text}T00:00:00Z")).is_some()
}

fn is_datetime(text: &str) -> bool {
    super::go_time::parse_timestamp(&text.to_ascii_uppercase()).is_some()
}
