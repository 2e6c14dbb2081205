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
    assert_eq!(q("9223372036854775807").add(&q("1")), q("9223372036854775808"));
    assert_eq!(q("1e40").sub(&q("1e40")), Quantity::ZERO);
    assert_eq!(q("1e40").add(&q("1n")).sub(&q("1e40")), q("1n"));
}

#[test]
fn what_is_no_quantity_is_refused() {
    for text in [
        "", "a", "Gib", "..", "e", "1Gib", "1 Gi", "--1", "1.2.3", "1e", "1ee3", "1K", "1e5000", "\u{663}",
    ] {
        assert!(Quantity::parse(text).is_err(), "{text:?}: {:?}", Quantity::parse(text));
    }
}

proptest! {
    #[test]
    fn no_text_panics(text in "[-+]?[0-9.]{0,45}([KMGTPE]i|[numkMGTPE]|[eE][-+]?[0-9]{1,5}|.{0,3})") {
        if let Ok(quantity) = Quantity::parse(&text) {
            prop_assert_eq!(quantity.sub(&quantity), Quantity::ZERO);
            prop_assert_eq!(quantity.signum(), i64::from(quantity > Quantity::ZERO) - i64::from(quantity < Quantity::ZERO));
        }
    }

    /// Against plain integers: thousandths of a decimal unit.
    #[test]
    fn order_and_sums_are_those_of_integers(a in -1_000_000i64..1_000_000, b in -1_000_000i64..1_000_000) {
        let (x, y) = (q(&format!("{a}m")), q(&format!("{b}m")));
        prop_assert_eq!(x.cmp(&y), a.cmp(&b));
        prop_assert_eq!(x.add(&y), q(&format!("{}m", a + b)));
        prop_assert_eq!(x.sub(&y), q(&format!("{}m", a - b)));
    }
}
