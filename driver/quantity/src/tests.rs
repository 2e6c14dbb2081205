use super::*;
use proptest::prelude::*;

fn q(text: &str) -> Quantity {
    Quantity::parse(text).unwrap_or_else(|e| panic!("{text}: {e}"))
}

#[test]
fn units_have_their_values() {
    for (text, value) in [
        ("0", 0),
        ("+5", 5),
        ("-3", -3),
        ("20Gi", 20 << 30),
        ("1k", 1000),
        ("1e3", 1000),
        ("2E3", 2000),
        ("5E", 5_000_000_000_000_000_000),
        ("007", 7),
        ("+", 0),
        (".", 0),
        ("-.", 0),
        ("Ki", 0),
        ("+Ki", 0),
        (".Ki", 0),
        ("E", 0),
        ("e3", 0),
        (".e+3", 0),
    ] {
        assert_eq!(q(text).as_i64(), Some(value), "{text}");
    }
}

#[test]
fn a_fraction_is_no_integer_even_where_its_value_is_whole() {
    for text in ["1000m", "1.5Ki", "1.0", "250m"] {
        assert_eq!(q(text).as_i64(), None, "{text}");
    }
    assert_eq!(q("1000m"), q("1"));
    assert_eq!(q("1.5Ki"), q("1536"));
}

#[test]
fn what_is_finer_than_a_billionth_is_rounded_up() {
    assert_eq!(q("0.1n"), q("1n"));
    assert_eq!(q("1e-400"), q("1n"));
    assert_eq!(q("-0.1n"), q("-1n"));
    assert_eq!(q("1.0000000001"), q("1000000001n"));
}

#[test]
fn large_numbers_are_exact_and_binary_ones_are_held() {
    assert_eq!(q("16Ei"), q("9223372036854775807"));
    assert!(q("16E") > q("16Ei"));
    assert!(q("9223372036854775808") > q("9223372036854775807"));
    assert!(q("1e40") > q("99999999999999999999E"));
    assert_eq!(q("9223372036854775807").plus(&q("1")), q("9223372036854775808"));
    assert_eq!(q("1e40").minus(&q("1e40")), Quantity::ZERO);
    assert_eq!(q("1e40").plus(&q("1n")).minus(&q("1e40")), q("1n"));
}

#[test]
fn what_is_no_quantity_is_refused() {
    for text in [
        "", "a", "Gib", "..", "e", "1Gib", "1 Gi", "--1", "1.2.3", "1e", "1ee3", "1K", "1e5000", "\u{663}",
    ] {
        assert!(Quantity::parse(text).is_err(), "{text:?}: {:?}", Quantity::parse(text));
    }
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
        ("-8Ei", "-9223372036854775807"),
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
    fn no_text_panics(text in "[-+]?[0-9.]{0,45}([KMGTPE]i|[numkMGTPE]|[eE][-+]?[0-9]{1,5}|.{0,3})") {
        if let Ok(quantity) = Quantity::parse(&text) {
            prop_assert_eq!(quantity.minus(&quantity), Quantity::ZERO);
            prop_assert_eq!(quantity.signum(), i64::from(quantity > Quantity::ZERO) - i64::from(quantity < Quantity::ZERO));
        }
    }

    /// Compares with plain integers: thousandths of a decimal unit.
    #[test]
    fn order_and_sums_are_those_of_integers(a in -1_000_000i64..1_000_000, b in -1_000_000i64..1_000_000) {
        let (x, y) = (q(&format!("{a}m")), q(&format!("{b}m")));
        prop_assert_eq!(x.cmp(&y), a.cmp(&b));
        prop_assert_eq!(x.plus(&y), q(&format!("{}m", a + b)));
        prop_assert_eq!(x.minus(&y), q(&format!("{}m", a - b)));
    }

    #[test]
    fn what_is_written_is_read_back(text in "-?[1-9][0-9]{0,45}(n|u|m|k|E|Ki|Ei|e7)?", minus in any::<i64>()) {
        let mut quantity = q(&text);
        prop_assert_eq!(q(&quantity.to_string()), quantity.clone());
        quantity.subtract(&Quantity::milli(minus, Format::Decimal));
        prop_assert_eq!(q(&quantity.to_string()), quantity.clone());
        prop_assert_eq!(quantity.is_negative(), quantity.to_string().starts_with('-'));
    }
}

#[test]
fn a_suggestion_is_whole_gibibytes_that_can_be_requested() {
    for (amount, suggested, readable) in [
        ("56702Mi", "55Gi", "55.3Gi"),
        ("7400Mi", "7400Mi", "7.2Gi"),
        ("80Gi", "80Gi", "80Gi"),
        ("-10Gi", "-10Gi", "-10Gi"),
        ("64Mi", "64Mi", "64Mi"),
        // Cores.
        ("100", "100", "100"),
    ] {
        let quantity = Quantity::parse(amount).unwrap();
        assert_eq!(
            (quantity.suggested().as_str(), quantity.readable().as_str()),
            (suggested, readable)
        );
        assert!(whole(suggested).is_ok());
    }
}
