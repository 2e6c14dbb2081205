//! url(): absolute addresses and absolute paths, parsed as Go's net/url does.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::node::Function;
use crate::value::{Key, Map, Out, Value, error, no_such_overload};

#[derive(Debug)]
pub(crate) struct Url {
    text: String,
    scheme: String,
    /// The host with its port.
    host: String,
    path: String,
    query: String,
}

impl Url {
    pub(crate) fn text(&self) -> &str {
        &self.text
    }
}

pub(super) fn function(name: &str) -> Option<Function> {
    Some(match name {
        "url" => |_, _, args| match args {
            [Value::Str(text)] => match parse(text.as_str()) {
                Ok(url) => Ok(Value::Url(Arc::new(url))),
                Err(why) => error(format!("URL parse error during conversion from string: {why}")),
            },
            _ => no_such_overload(),
        },
        "isURL" => |_, _, args| match args {
            [Value::Str(text)] => Ok(Value::Bool(parse(text.as_str()).is_ok())),
            _ => no_such_overload(),
        },
        "getScheme" => |_, _, args| part(args, |url| url.scheme.clone()),
        "getHost" => |_, _, args| part(args, |url| url.host.clone()),
        "getHostname" => |_, _, args| part(args, |url| split_host(&url.host).0.to_owned()),
        "getPort" => |_, _, args| part(args, |url| split_host(&url.host).1.to_owned()),
        "getEscapedPath" => |_, _, args| part(args, |url| url.path.clone()),
        "getQuery" => |run, _, args| match args {
            [Value::Url(url)] => {
                run.work(url.query.len())?;
                Ok(query(&url.query))
            }
            _ => no_such_overload(),
        },
        _ => return None,
    })
}

fn part<'v>(args: &[Value<'v>], of: fn(&Url) -> String) -> Out<'v> {
    match args {
        [Value::Url(url)] => Ok(Value::text(of(url))),
        _ => no_such_overload(),
    }
}

/// Parses a URL with a scheme, or a path from the root.
pub(super) fn parse(text: &str) -> Result<Url, &'static str> {
    if text.is_empty() {
        return Err("empty url");
    }
    if text.bytes().any(|b| b < 0x20 || b == 0x7f) {
        return Err("invalid control character in URL");
    }
    let (scheme, rest) = scheme(text)?;
    // A fragment is only split off after the rest was checked; Go does this in two passes.
    let (rest, _fragment) = rest.split_once('#').unwrap_or((rest, ""));
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    if !rest.starts_with('/') {
        if scheme.is_empty() {
            return Err("invalid URI for request");
        }
        // An opaque address such as mailto:x has no further parts.
        return Ok(Url {
            text: text.to_owned(),
            scheme,
            host: String::new(),
            path: String::new(),
            query: query.to_owned(),
        });
    }
    let (authority, path) = match rest.strip_prefix("//") {
        Some(after) if !scheme.is_empty() => after.split_at(after.find('/').unwrap_or(after.len())),
        _ => ("", rest),
    };
    let host = host(authority)?;
    let path = escaped(path)?;
    Ok(Url {
        text: text.to_owned(),
        scheme,
        host,
        path,
        query: query.to_owned(),
    })
}

fn scheme(text: &str) -> Result<(String, &str), &'static str> {
    for (at, c) in text.char_indices() {
        match c {
            'a'..='z' | 'A'..='Z' => {}
            '0'..='9' | '+' | '-' | '.' if at > 0 => {}
            ':' if at > 0 => return Ok((text[..at].to_ascii_lowercase(), &text[at + 1..])),
            ':' => return Err("missing protocol scheme"),
            _ => break,
        }
    }
    Ok((String::new(), text))
}

fn host(authority: &str) -> Result<String, &'static str> {
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    if let Some((user, _)) = authority.rsplit_once('@')
        && !user
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"-._:~!$&'()*+,;=%@".contains(&b))
    {
        return Err("net/url: invalid userinfo");
    }
    let (name, after) = if let Some(inner) = host.strip_prefix('[') {
        let (address, after) = inner.rsplit_once(']').ok_or("missing ']' in host")?;
        let address = address.split_once("%25").map_or(address, |(address, _)| address);
        if address.parse::<std::net::Ipv6Addr>().is_err() {
            return Err("invalid host");
        }
        ("", after)
    } else {
        let colon = host.find(':').unwrap_or(host.len());
        host.split_at(colon)
    };
    let port = after.strip_prefix(':').unwrap_or(after);
    if !after.is_empty() && (!after.starts_with(':') || !port.bytes().all(|b| b.is_ascii_digit())) {
        return Err("invalid port after host");
    }
    let plain = |b: u8| b >= 0x80 || b.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:[]<>\"%".contains(&b);
    if !name.bytes().all(plain) {
        return Err("invalid character in host name");
    }
    if name.contains('%') {
        return Err("invalid URL escape in host name");
    }
    Ok(host.to_owned())
}

/// Escapes the characters of a path that must be escaped.
fn escaped(path: &str) -> Result<String, &'static str> {
    let bytes = path.as_bytes();
    for (at, _) in path.match_indices('%') {
        let digits = bytes.get(at + 1..at + 3).ok_or("invalid URL escape")?;
        if !digits.iter().all(u8::is_ascii_hexdigit) {
            return Err("invalid URL escape");
        }
    }
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.~$&+,/:;=@!'()*[]%".contains(&b);
    if bytes.iter().all(|b| plain(*b)) {
        return Ok(path.to_owned());
    }
    // Go builds such a path again from its unescaped form.
    let keep = |b: u8| b.is_ascii_alphanumeric() || b"-_.~$&+,/:;=@".contains(&b);
    let mut out = String::new();
    for b in unescape(path, false) {
        if keep(b) {
            out.push(char::from(b));
        } else {
            out.push_str(&format!("%{b:02X}"));
        }
    }
    Ok(out)
}

fn unescape(text: &str, plus: bool) -> Vec<u8> {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(&b) = bytes.get(at) {
        let code = (b == b'%').then(|| text.get(at + 1..at + 3)).flatten();
        match code.and_then(|code| u8::from_str_radix(code, 16).ok()) {
            Some(code) => {
                out.push(code);
                at += 3;
            }
            None => {
                out.push(if plus && b == b'+' { b' ' } else { b });
                at += 1;
            }
        }
    }
    out
}

/// Splits a host into name and port.
fn split_host(host: &str) -> (&str, &str) {
    let (name, port) = match host.rfind(':') {
        Some(colon) if host[colon + 1..].bytes().all(|b| b.is_ascii_digit()) && !host.ends_with(']') => {
            (&host[..colon], &host[colon + 1..])
        }
        _ => (host, ""),
    };
    (
        name.strip_prefix('[')
            .and_then(|name| name.strip_suffix(']'))
            .unwrap_or(name),
        port,
    )
}

fn query(text: &str) -> Value<'static> {
    let mut all: BTreeMap<Key, (Value<'static>, Vec<Value<'static>>)> = BTreeMap::new();
    for pair in text.split('&').filter(|pair| !pair.is_empty()) {
        // Go drops pairs that it cannot parse.
        if pair.contains(';') || !escapes_are_right(pair) {
            continue;
        }
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let name = String::from_utf8_lossy(&unescape(name, true)).into_owned();
        let value = String::from_utf8_lossy(&unescape(value, true)).into_owned();
        let name: Arc<str> = name.into();
        let entry = all.entry(Key::Str(Arc::clone(&name)));
        entry
            .or_insert_with(|| (Value::text(name), Vec::new()))
            .1
            .push(Value::text(value));
    }
    let map = all
        .into_iter()
        .map(|(key, (name, values))| (key, (name, Value::list(values))));
    Value::Map(Map::Owned(Arc::new(map.collect())))
}

fn escapes_are_right(text: &str) -> bool {
    text.match_indices('%').all(|(at, _)| {
        text.as_bytes()
            .get(at + 1..at + 3)
            .is_some_and(|code| code.iter().all(u8::is_ascii_hexdigit))
    })
}
