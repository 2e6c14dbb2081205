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
fn whole_numbers_round_away_from_zero_and_thousandths_are_exact_or_none() {
    for (text, whole, milli) in [
        ("1.1", Some(2), Some(1100)),
        ("-1.1", Some(-2), Some(-1100)),
        ("1.5", Some(2), Some(1500)),
        ("1u", Some(1), None),
        ("2k", Some(2000), Some(2_000_000)),
        ("9223372036854775807", Some(i64::MAX), None),
        ("18446744073709551616", None, None),
        ("1e60", None, None),
    ] {
        assert_eq!(
            (q(text).whole_away_from_zero(), q(text).exact_milli()),
            (whole, milli),
            "{text}"
        );
    }
}

#[test]
fn ranks_keep_the_order() {
    let mut texts = ["1e60", "1Gi", "1.5", "1500000001n", "1n", "0", "-1.5", "-1e60"].map(q);
    texts.sort();
    assert!(texts.windows(2).all(|pair| pair[0].rank() < pair[1].rank()));
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
    let error = serde_json::from_str::<Quantity>("\"many\"").unwrap_err().to_string();
    assert!(error.contains("\"many\" is not a quantity"), "{error}");
}

proptest! {
    #[test]
    fn what_is_written_is_read_back(text in "-?[1-9][0-9]{0,45}(n|u|m|k|E|Ki|Ei|e7)?", minus in any::<i64>()) {
        let mut quantity = q(&text);
        prop_assert_eq!(q(&quantity.to_string()), quantity.clone());
        quantity.subtract(&Quantity::milli(minus, Format::Decimal));
        prop_assert_eq!(q(&quantity.to_string()), quantity.clone());
        prop_assert_eq!(quantity.is_negative(), quantity.to_string().starts_with('-'));
    }
}
