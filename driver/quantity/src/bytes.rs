//! Bytes as texts: as Kubernetes writes them, and for messages.

use std::fmt::Write as _;

/// Formats bytes with the largest binary unit that divides them, as Kubernetes does: `20Gi`, `81559Mi`, `0`.
pub fn format_bytes(bytes: u64) -> String {
    const UNITS: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    let unit = if bytes == 0 {
        0
    } else {
        (bytes.trailing_zeros() / 10).min(6)
    };
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = write!(text, "{}{}", bytes >> (10 * unit), UNITS[unit as usize]);
    text
}

/// Formats bytes for messages: from 1 GiB on in GiB with one decimal place, rounded down (56702Mi is `55.3Gi`).
#[must_use]
pub fn readable_bytes(bytes: u64) -> String {
    const GI: u64 = 1 << 30;
    let (whole, rest) = (bytes / GI, bytes % GI);
    match (whole, (rest * 10) >> 30) {
        (0, _) => format_bytes(bytes),
        (_, 0) => format_bytes(whole * GI),
        (whole, tenths) => format!("{whole}.{tenths}Gi"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_written_as_kubernetes_does() {
        for (bytes, text) in [
            (0, "0"),
            (1, "1"),
            (1536, "1536"),
            (81_559 << 20, "81559Mi"),
            (20 << 30, "20Gi"),
            (1 << 40, "1Ti"),
            (1 << 63, "8Ei"),
            (u64::MAX, "18446744073709551615"),
        ] {
            assert_eq!(format_bytes(bytes), text);
        }
    }

    #[test]
    fn a_reader_gets_gibibytes() {
        for (bytes, text) in [
            (0, "0"),
            (300 << 20, "300Mi"),
            (1_023 << 20, "1023Mi"),
            (1_025 << 20, "1Gi"),
            (56_702 << 20, "55.3Gi"),
            (81_559 << 20, "79.6Gi"),
            (80 << 30, "80Gi"),
            (1 << 40, "1Ti"),
            (u64::MAX, "17179869183.9Gi"),
        ] {
            assert_eq!(readable_bytes(bytes), text);
        }
    }
}
