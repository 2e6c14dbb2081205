//! CEL selectors for the GPUs that a request allows. Text of a user reaches CEL only as a literal, escaped here.

use vgpu_api::DRIVER_NAME;

use crate::request::Devices;

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

/// A list as a CEL literal.
fn list(items: &[String]) -> String {
    let items: Vec<String> = items.iter().map(|item| literal(item)).collect();
    format!("[{}]", items.join(", "))
}

/// The selectors, each below Kubernetes' 10 KiB. None where every GPU is allowed.
pub(crate) fn selectors(devices: &Devices) -> Vec<String> {
    let uuid = format!(r#"device.attributes["{DRIVER_NAME}"].uuid"#);
    let model = format!(r#"device.attributes["{DRIVER_NAME}"].productName.lowerAscii()"#);
    let parts = [
        (&devices.use_uuids, "", format!("{uuid} in ITEMS")),
        (&devices.not_uuids, "!", format!("({uuid} in ITEMS)")),
        (
            &devices.use_types,
            "",
            format!("ITEMS.exists(part, {model}.contains(part))"),
        ),
        (
            &devices.not_types,
            "!",
            format!("ITEMS.exists(part, {model}.contains(part))"),
        ),
    ];
    parts
        .into_iter()
        .filter(|(items, ..)| !items.is_empty())
        .map(|(items, not, text)| format!("{not}{}", text.replace("ITEMS", &list(items))))
        .collect()
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
