use super::*;
use proptest::prelude::*;

fn q(text: &str) -> Quantity {
    text.parse().unwrap_or_else(|e| panic!("{text}: {e}"))
}

#[test]
fn the_canonical_form_is_that_of_kubernetes() {
    for (text, canonical) in [
        ("0", "0"),
        ("-0", "0"),
        ("0Gi", "0"),
        ("20", "20"),
        ("1024Mi", "1Gi"),
        ("1.5Gi", "1536Mi"),
        ("1.5", "1500m"),
        ("0.5Ki", "512"),
        ("1000", "1k"),
        ("1100", "1100"),
        ("12000000", "12M"),
        ("100e3", "100e3"),
        ("1e3", "1e3"),
        ("1000e3", "1e6"),
        ("-1Gi", "-1Gi"),
        ("250m", "250m"),
        ("0.1m", "100u"),
        ("0.1n", "1n"),
        ("-0.1n", "-1n"),
        ("1e-400", "1e-9"),
        ("0.0000000001Ki", "103n"),
        ("10Ei", "9223372036854775807"),
        ("18446744073709551616", "18446744073709551616"),
        ("99999999999999999999E", "99999999999999999999E"),
        ("1e21", "1e21"),
        ("1000E", "1e21"),
        ("123456789012345678901234567890.5", "123456789012345678901234567890500m"),
    ] {
        assert_eq!(q(text).to_string(), canonical, "{text}");
        assert_eq!(q(canonical), q(text), "{text}");
    }
}

#[test]
fn numbers_beyond_64_and_128_bits_are_exact() {
    let mut sum = q("1e60");
    sum.add(&q("1n"));
    assert!(sum > q("1e60"));
    sum.subtract(&q("1e60"));
    assert_eq!(sum, q("1n"));
    assert!(q("1e60") > q("1e59") && q("-1e60") < q("-1e59") && q("-1e60") < q("9Ei"));
    assert_eq!(q("18446744073709551616").whole_away_from_zero(), None);
    assert_eq!(q("1e60").exact_milli(), None);
    assert_eq!((q("1e60").rank(), q("-1e60").rank()), (i128::MAX, i128::MIN));
}

#[test]
fn whole_numbers_round_away_from_zero_and_thousandths_are_exact_or_none() {
    assert_eq!(q("1.1").whole_away_from_zero(), Some(2));
    assert_eq!(q("-1.1").whole_away_from_zero(), Some(-2));
    assert_eq!(q("1.5").exact_milli(), Some(1500));
    assert_eq!(q("1u").exact_milli(), None);
    assert_eq!(q("9223372036854775807").whole_away_from_zero(), Some(i64::MAX));
    assert_eq!(q("9223372036854775807").exact_milli(), None);
}

#[test]
fn what_is_no_quantity_is_refused() {
    for text in ["", "-", ".", "abc", "1.2.3", "--1", " 1", "Gi"] {
        assert!(
            matches!(text.parse::<Quantity>(), Err(QuantityError::NotANumber { .. })),
            "{text}"
        );
    }
    for text in ["1gi", "20GB", "1e", "1ee3", "1K", "1e99999999999"] {
        assert!(
            matches!(text.parse::<Quantity>(), Err(QuantityError::UnknownSuffix { .. })),
            "{text}"
        );
    }
    for text in ["1e999999999", "1e-999999999", &"9".repeat(5000)] {
        assert!(
            matches!(text.parse::<Quantity>(), Err(QuantityError::TooLong { .. })),
            "{text}"
        );
    }
    assert_eq!(q("0e999999999"), q("0"));
}

#[test]
fn json_holds_text_or_a_number() {
    for (json, text) in [
        ("\"20Gi\"", "20Gi"),
        ("5", "5"),
        ("-3", "-3"),
        ("0.5", "500m"),
        ("18446744073709551615", "18446744073709551615"),
    ] {
        assert_eq!(serde_json::from_str::<Quantity>(json).unwrap(), q(text), "{json}");
    }
    assert_eq!(serde_json::to_string(&q("1024Mi")).unwrap(), "\"1Gi\"");
    assert!(
        serde_json::from_str::<Quantity>("\"many\"")
            .unwrap_err()
            .to_string()
            .contains("\"many\" is not a quantity")
    );
}

proptest! {
    /// Whatever the sizes, sums and order are those of whole numbers of billionths.
    #[test]
    fn arithmetic_is_exact(a in "-?[1-9][0-9]{0,45}[numkMGT]?", b in "-?[1-9][0-9]{0,45}(n|u|m|Ki|Gi|e7)?") {
        let (a, b) = (q(&a), q(&b));
        let (big_a, big_b) = (BigInt::from(&a), BigInt::from(&b));
        prop_assert_eq!(a.cmp(&b), big_a.cmp(&big_b));
        let mut sum = a.clone();
        sum.add(&b);
        prop_assert_eq!(BigInt::from(&sum), &big_a + &big_b);
        sum.subtract(&b);
        prop_assert_eq!(&sum, &a);
        prop_assert_eq!(a.is_negative(), big_a < BigInt::from(0));
        prop_assert_eq!(q(&a.to_string()), a);
    }

    #[test]
    fn no_text_panics(text in "[-+]?[0-9.]{0,45}([KMGTPE]i|[numkMGTPE]|[eE][-+]?[0-9]{1,5}|.{0,3})") {
        let _ = text.parse::<Quantity>();
    }
}
