//! Selectors as messages show them: on one line, without comments, and not longer than a message can be.

use crate::model::Device;
use crate::pools::Candidate;

/// The most characters of a selector that a message shows.
const SHOWN: usize = 240;
/// How many of these are the selector's end.
const END: usize = 80;

/// A selector for a message. Line breaks and indentation become one space; of a long selector the middle is left out.
pub(crate) fn excerpt(expression: &str) -> String {
    let line = one_line(expression);
    let length = line.chars().count();
    if length <= SHOWN {
        return line;
    }
    let start: String = line.chars().take(SHOWN - END).collect();
    let end: String = line.chars().skip(length - END).collect();
    format!("{start}...{end}")
}

/// Outside of quotes, whitespace becomes one space and comments are dropped, because on one line a comment would hide
/// everything after it.
fn one_line(expression: &str) -> String {
    let mut line = String::with_capacity(expression.len());
    let mut quote = None;
    let mut rest = expression.trim().chars().peekable();
    while let Some(next) = rest.next() {
        match (quote, next) {
            (Some(_), '\\') => {
                line.push(next);
                line.extend(rest.next());
            }
            (Some(open), _) => {
                line.push(next);
                quote = Some(open).filter(|open| *open != next);
            }
            (None, '"' | '\'') => {
                line.push(next);
                quote = Some(next);
            }
            (None, '/') if rest.peek() == Some(&'/') => while rest.next_if(|next| *next != '\n').is_some() {},
            (None, _) if next.is_whitespace() => {
                if !line.ends_with(' ') {
                    line.push(' ');
                }
            }
            (None, _) => line.push(next),
        }
    }
    // A literal in three quotes may have lines, too.
    let line = line.replace(|next: char| next.is_control(), " ");
    line.trim_end().to_owned()
}

/// Returns the domain whose attributes or capacity a selector reads, if it reads no other domain and the device has
/// nothing in it.
pub(crate) fn foreign_domain<'e>(expression: &'e str, driver: &str, device: &Device) -> Option<&'e str> {
    let mut foreign = None;
    for (at, map) in expression
        .match_indices("attributes")
        .chain(expression.match_indices("capacity"))
    {
        let Some(domain) = key(&expression[at + map.len()..]) else {
            continue;
        };
        let has = |name: &String| name.split_once('/').is_some_and(|(of, _)| of == domain);
        if domain == driver || device.attributes.keys().any(has) || device.capacity.keys().any(has) {
            return None;
        }
        foreign = Some(domain);
    }
    foreign
}

/// The end of a message about a selector that does not match a device or fails on it: empty, or what is wrong with its domain.
pub(crate) fn domain_hint(expression: &str, candidate: &Candidate) -> String {
    let driver = candidate.driver();
    match foreign_domain(expression, driver, candidate.device()) {
        Some(domain) => format!("; {domain:?} is another driver's domain, this device has {driver:?}"),
        None => String::new(),
    }
}

/// The text literal between the brackets with which an expression begins.
fn key(expression: &str) -> Option<&str> {
    let literal = expression.trim_start().strip_prefix('[')?.trim_start();
    let quote = literal.chars().next().filter(|quote| ['"', '\''].contains(quote))?;
    let (key, _) = literal[1..].split_once(quote)?;
    Some(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_selector_of_several_lines_is_shown_on_one() {
        for (expression, shown) in [
            ("device.driver == 'x'", "device.driver == 'x'"),
            ("\n  a ==\n\t1 &&\r\n    b == 2\n", "a == 1 && b == 2"),
            ("a == 1 // not b\n  && b == 2", "a == 1 && b == 2"),
            ("a == 'two  spaces // here'", "a == 'two  spaces // here'"),
            (
                r#"a == "it's" && b == 'a \' b  c'"#,
                r#"a == "it's" && b == 'a \' b  c'"#,
            ),
            ("a == '''one\ntwo'''", "a == '''one two'''"),
            ("a / b", "a / b"),
            ("// nothing", ""),
        ] {
            assert_eq!(excerpt(expression), shown, "{expression}");
        }
    }

    #[test]
    fn of_a_long_selector_the_middle_is_left_out() {
        let expression = format!("start == '{}' && \u{e4}nd == 1", "x".repeat(9000));
        let shown = excerpt(&expression);
        assert_eq!(shown.chars().count(), SHOWN + "...".len());
        assert!(
            shown.starts_with("start == 'xxx") && shown.ends_with("xxx' && \u{e4}nd == 1"),
            "{shown}"
        );
    }

    #[test]
    fn the_domain_of_another_driver_is_found() {
        let device: Device = serde_json::from_str(
            r#"{"name": "gpu-0", "attributes": {"model": {"string": "A100"}, "pci.example.com/bus": {"string": "0"}}}"#,
        )
        .unwrap();
        for (expression, domain) in [
            (
                "device.attributes['gpu.nvidia.com'].productName == 'H100'",
                Some("gpu.nvidia.com"),
            ),
            ("device.capacity[ \"gpu.nvidia.com\" ].memory", Some("gpu.nvidia.com")),
            ("device.attributes['dra.vgpu'].model == 'H100'", None),
            ("device.attributes['pci.example.com'].bus == '1'", None),
            (
                "'x' in device.attributes['a.b'] || device.attributes['dra.vgpu'].model == 'x'",
                None,
            ),
            ("device.attributes[device.driver].model == 'H100'", None),
            ("device.attributes", None),
            ("device.attributes['", None),
        ] {
            assert_eq!(foreign_domain(expression, "dra.vgpu", &device), domain, "{expression}");
        }
    }
}
