//! Expressions that try to do harm: each ends with an answer or an error.

use std::fmt::Write as _;

use proptest::prelude::*;
use vgpu_cel::{Device, EvalError, LONGEST_EXPRESSION, compile};

/// The test is that this returns: without the limits it would take hours, or all memory.
fn run(expression: &str) -> Result<Result<bool, EvalError>, String> {
    compile(expression)
        .map(|program| program.matches(&Device::default()))
        .map_err(|why| why.to_string())
}

/// A chain of cel.bind whose values double.
fn doubling(first: &str, levels: usize, next: &str, last: &str) -> String {
    let mut text = String::new();
    let _ = write!(text, "cel.bind(x0, {first}, ");
    for level in 1..=levels {
        let _ = write!(
            text,
            "cel.bind(x{level}, {}, ",
            next.replace('x', &format!("x{}", level - 1))
        );
    }
    text.push_str(&last.replace('x', &format!("x{levels}")));
    text.push_str(&")".repeat(levels + 1));
    text
}

#[test]
fn nesting_is_bounded_and_needs_no_stack_of_the_caller() {
    // Half of the length limit each way, from a thread with a small stack.
    let small = std::thread::Builder::new().stack_size(1 << 20);
    let threads = small.spawn(|| {
        for (open, close) in [
            ("(", ")"),
            ("[", "]"),
            ("{1:", "}"),
            ("!", ""),
            ("-", ""),
            ("size(", ")"),
            ("[0].map(x, ", ")"),
        ] {
            let times = LONGEST_EXPRESSION / (open.len() + close.len()).max(2) - 10;
            for times in [100, times] {
                let text = format!("{}true{}", open.repeat(times), close.repeat(times));
                if let Err(why) = run(&text) {
                    assert!(!why.is_empty());
                }
            }
        }
        for link in [
            ".a",
            "[0]",
            " + 1",
            " && true",
            ".size()",
            " ? true : true",
            ".?a",
            " == true",
        ] {
            let text = format!("device{}", link.repeat((LONGEST_EXPRESSION - 10) / link.len()));
            let _ = run(&text);
        }
        // Expressions of the allowed depth also run; a chain of `&&` is not deep at all.
        let all = vec!["true"; 1_000].join(" && ");
        assert_eq!(run(&all), Ok(Ok(true)));
    });
    threads.unwrap().join().unwrap();
}

#[test]
fn a_text_that_is_too_long_is_refused() {
    let text = format!("'{}' == ''", "a".repeat(LONGEST_EXPRESSION));
    assert!(run(&text).unwrap_err().contains("the limit is 10240"));
}

#[test]
fn a_loop_that_is_too_long_ends_by_its_cost() {
    for expression in [
        "lists.range(1000000000000).size() > 0",
        "lists.range(100000).all(x, lists.range(100000).all(y, x + y >= 0))",
        "lists.range(1000).all(a, lists.range(1000).all(b, lists.range(1000).all(c, true)))",
        "lists.range(50000).map(x, 'abcdefghij' + string(x)).join(',').matches('(a|b|c)*d')",
    ] {
        assert_eq!(run(expression), Ok(Err(EvalError::CostLimit)), "{expression}");
    }
    // Neither an inner error nor another answer hides the limit.
    assert_eq!(
        run("lists.range(100000).all(x, lists.range(100000).exists(y, 1 / 0 == 1)) || true"),
        Ok(Err(EvalError::CostLimit))
    );
}

#[test]
fn what_the_cost_does_not_see_is_bounded_too() {
    for expression in [
        // Lists, texts and types that double on each line.
        doubling("[0]", 90, "x + x", "x.size() > 0"),
        doubling("'aaaaaaaaaaaaaaaa'", 90, "x + x", "x.size() > 0"),
        doubling("[0]", 90, "[x, x]", "x == x"),
        doubling("[]", 90, "[x, x]", "x.includes(x)"),
        doubling("[0]", 90, "[x, x]", "'%s'.format([x]) == ''"),
        doubling("'a'", 90, "{x: x}", "x == x"),
        doubling("[0]", 90, "{'a': x, 'b': x}", "x == x"),
        doubling("optional.of([0])", 60, "x.optMap(v, v + v)", "x.hasValue()"),
        doubling("'ab'", 90, "x.replace('', x)", "x.size() > 0"),
        doubling("'a'", 90, "strings.quote(x)", "x.size() > 0"),
        doubling(
            "['a']",
            90,
            "[x.join('bbbbbbbbbbbbbbbbbbbbbb'), x.join('c')]",
            "x.size() > 0",
        ),
        // Much work per unit of cost.
        format!(
            "cel.bind(s, '{}', lists.range(90000).all(x, s.size() > 0))",
            "a".repeat(9_000)
        ),
        "cel.bind(l, lists.range(20000), lists.range(20000).all(x, l == l))".to_owned(),
        "cel.bind(l, lists.range(20000).map(x, ''), lists.range(20000).all(x, !l.includes('a')))".to_owned(),
        // Patterns that are only known at run time.
        "lists.range(20000).all(x, 'x'.matches(string(x) + '(((a{30}){30}){2})') || true)".to_owned(),
        "lists.range(20000).all(x, 'x'.matches('[a-z]{500}' + string(x)) || true)".to_owned(),
    ] {
        let _ = run(&expression);
    }
}

#[test]
fn patterns_cannot_explode() {
    let backtracking = format!("'{}'.matches('(a+)+$')", "a".repeat(5_000) + "b");
    assert_eq!(run(&backtracking), Ok(Ok(false)));
    for pattern in ["((a{1000}){1000}){1000}", "(\\\\pL{1000}){1000}", "(?:x{1000}){100}"] {
        let _ = run(&format!("'a'.matches('{pattern}')"));
    }
}

#[test]
fn types_cannot_grow_without_end() {
    let text = doubling("'a'", 200, "{x: x}", "x == {}");
    let why = run(&text).unwrap_err();
    assert!(
        why.contains("too complex") || why.contains("deep") || why.contains("recursion"),
        "{why}"
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Any text.
    #[test]
    fn no_text_panics(text in "\\PC{0,60}") {
        let _ = run(&text);
    }

    /// Texts of the language's own tokens, which get further.
    #[test]
    fn no_words_panic(words in proptest::collection::vec(prop_oneof![
        Just("device"), Just("."), Just("attributes"), Just("["), Just("]"), Just("("), Just(")"), Just("'a'"), Just("\"b\""),
        Just("1"), Just("2u"), Just("1.5"), Just("=="), Just("&&"), Just("||"), Just("!"), Just("?"), Just(":"), Just("{"),
        Just("}"), Just(","), Just("map"), Just("x"), Just("in"), Just("cel.bind"), Just("has"), Just("+"), Just("-"),
        Just(".?"), Just("quantity"), Just("semver"), Just("b'\\xff'"), Just("null"), Just("true"), Just("`a`"), Just("r'"),
        Just("'''"), Just("\\"), Just("//"), Just("\n"), Just("optional.none()"), Just("9223372036854775808"), Just("0x"),
    ], 0..25)) {
        let _ = run(&words.join(" "));
        let _ = run(&words.concat());
    }
}
