//! Texts that come from files and programs, made fit for events and conditions, and names of Kubernetes. Pure.

/// Returns at most this many letters of a text, on one line: control characters become blanks.
pub(crate) fn printable(text: &str, most: usize) -> String {
    let letters = text.trim().chars().take(most);
    letters
        .map(|letter| if letter.is_control() { ' ' } else { letter })
        .collect()
}

/// Returns true if a text is a DNS label as Kubernetes has it: the name of a request, or of a claim in a pod.
pub(crate) fn is_dns_label(text: &str) -> bool {
    text.len() <= 63 && is_part(text)
}

/// Returns true if a text is a DNS subdomain as Kubernetes has it, whose parts may be longer than a label: the name of most
/// objects.
pub(crate) fn is_dns_subdomain(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(is_part)
}

fn is_part(text: &str) -> bool {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    !text.is_empty() && text.bytes().all(inner) && !text.starts_with('-') && !text.ends_with('-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_that_kubernetes_takes() {
        let long = "a".repeat(64);
        for (text, is_label, is_subdomain) in [
            ("gpu-0", true, true),
            ("a.b", false, true),
            (&long, false, true),
            (&"a.".repeat(128), false, false),
            ("", false, false),
            ("..", false, false),
            ("a/b", false, false),
            ("-a", false, false),
            ("A", false, false),
        ] {
            assert_eq!(
                (is_dns_label(text), is_dns_subdomain(text)),
                (is_label, is_subdomain),
                "{text}"
            );
        }
    }

    #[test]
    fn a_text_is_short_and_on_one_line() {
        assert_eq!(printable(" a\u{1b}[31m\nb\r\n", 100), "a [31m b");
        assert_eq!(printable("äöü", 2), "äö");
    }
}
