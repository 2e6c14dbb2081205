//! What a user probably meant by a text that is no quantity.

/// After a number of cores. For memory it is unknown what the percentage refers to.
pub(crate) const PERCENT: &str = "%";

/// Returns the quantity that was probably meant by a common mistake: `20Gi` for `20GB`, `25` for `25%`.
pub(crate) fn meant(text: &str) -> Option<String> {
    let (number, suffix) = number(text)?;
    let unit = if suffix.trim() == PERCENT {
        ""
    } else {
        suggestion(suffix)?
    };
    let sign = if text.starts_with('-') { "-" } else { "" };
    Some(format!("{sign}{number}{unit}"))
}

/// The unit that was probably meant by a common mistake.
fn suggestion(suffix: &str) -> Option<&'static str> {
    let lower = suffix.trim().to_ascii_lowercase();
    Some(
        match lower
            .trim_end_matches("bytes")
            .trim_end_matches("byte")
            .trim_end_matches('b')
        {
            "k" | "ki" => "Ki",
            "m" | "mi" => "Mi",
            "g" | "gi" => "Gi",
            "t" | "ti" => "Ti",
            _ => return None,
        },
    )
}

/// Splits a text into number and unit; `None` without a digit, or with more than one point.
pub(crate) fn number(text: &str) -> Option<(&str, &str)> {
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    let end = unsigned.find(|c: char| !c.is_ascii_digit() && c != '.');
    let (number, suffix) = unsigned.split_at(end.unwrap_or(unsigned.len()));
    let is_number = number.contains(|c: char| c.is_ascii_digit()) && number.matches('.').count() <= 1;
    is_number.then_some((number, suffix))
}
