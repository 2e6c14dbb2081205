//! Selectors as users write them, and their results.

use vgpu_cel::{Attribute, Device, EvalError, Quantity, compile};

fn gpu() -> Device {
    let text = |text: &str| Attribute::String(text.to_owned());
    Device {
        driver: "dra.vgpu".into(),
        allow_multiple_allocations: true,
        attributes: [
            ("type", text("gpu")),
            ("index", Attribute::Int(3)),
            ("shared", Attribute::Bool(true)),
            ("productName", text("NVIDIA H100 80GB HBM3")),
            ("driverVersion", Attribute::Version("535.161.8".into())),
            ("links", Attribute::Strings(vec!["a".into(), "b".into()])),
            ("resource.kubernetes.io/numaNode", Attribute::Int(0)),
        ]
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect(),
        capacity: [("memory", "80Gi"), ("cores", "100")]
            .into_iter()
            .map(|(name, value)| (name.to_owned(), Quantity::parse(value).unwrap()))
            .collect(),
    }
}

/// Selectors that match [`gpu`], then those that do not.
const YES: &str = r#"
device.driver == "dra.vgpu"
device.driver == "dra.vgpu" && device.attributes["dra.vgpu"].type == "gpu" && device.capacity["dra.vgpu"].memory.compareTo(quantity("20Gi")) >= 0
device.attributes["dra.vgpu"].driverVersion.compareTo(semver("535.0.0")) > 0
device.attributes["resource.kubernetes.io"].numaNode == 0
device.attributes["dra.vgpu"].?missing.orValue(7) == 7
device.attributes["no.such"].?a.orValue("x") == "x"
has(device.attributes["dra.vgpu"].type)
cel.bind(a, device.attributes["dra.vgpu"], a.shared && a.index == 3)
device.allowMultipleAllocations
device.attributes["dra.vgpu"].shared
device.attributes["dra.vgpu"].links.includes("b")
device.attributes["dra.vgpu"].type.includes("gpu")
device.attributes["dra.vgpu"].productName.matches("H[12]00")
device.attributes["dra.vgpu"].type in ["gpu", "mig"]
device.attributes["dra.vgpu"].missing == 1 || true
"dra.vgpu" in device.attributes && !("x.y" in device.attributes)
device.attributes["dra.vgpu"][?"type"].optMap(t, t + "!").orValue("") == "gpu!"
[3, 1, 2].sortBy(x, -x) == [3, 2, 1]
{"a": 1, "b": 2}.transformMap(k, v, v * 2) == {"a": 2, "b": 4}
"%d of %s".format([dyn(3), "x"]) == "3 of x"
"#;
const NO: &str = r#"
device.capacity["dra.vgpu"].memory.isGreaterThan(quantity("80Gi"))
device.attributes["dra.vgpu"].driverVersion.isLessThan(semver("v530", true))
has(device.attributes["no.such"].a)
device.attributes["dra.vgpu"].links.exists(l, l == "c")
false && device.attributes["dra.vgpu"].missing == 1
"#;

#[test]
fn selectors_say_yes_or_no() {
    let cases = |text: &'static str, expected| text.trim().lines().map(move |line| (line, expected));
    for (expression, expected) in cases(YES, true).chain(cases(NO, false)) {
        let program = compile(expression).unwrap_or_else(|e| panic!("{expression}: {e}"));
        assert_eq!(program.matches(&gpu()), Ok(expected), "{expression}");
    }
}

#[test]
fn what_cannot_be_right_is_refused_before_it_runs() {
    for (expression, why) in [
        ("devise.driver == 'x'", "at 1:1: undeclared reference to \"devise\""),
        ("device.drivers == 'x'", "undefined field \"drivers\""),
        ("false && nothing(1)", "undeclared reference to \"nothing\""),
        ("device.driver", "must evaluate to bool or an unknown type, not string"),
        (
            "device.driver == 1",
            "no matching overload for \"==\" applied to (string, int)",
        ),
        ("device.capacity['a'].b > 1", "no matching overload"),
        ("true ? 1 : 2", "must evaluate to bool"),
        ("[1, 'a'] == [2]", "expected type int but found string"),
        ("'a'.matches('(')", "invalid matches argument"),
        ("int('x') == 1", "invalid int argument"),
        ("device.driver ==", "at 1:"),
        ("'%d'.format(['x']) == ''", "not allowed for %d"),
    ] {
        let error = compile(expression).expect_err(expression).to_string();
        assert!(error.contains(why), "{expression}: {error}");
    }
}

#[test]
fn an_error_names_what_is_missing() {
    let missing = compile(r#"device.attributes["dra.vgpu"].model == "x""#).unwrap();
    assert_eq!(
        missing.matches(&gpu()),
        Err(EvalError::Failed("no such key: model".into()))
    );
    let number = compile(r#"device.attributes["dra.vgpu"].index"#).unwrap();
    assert_eq!(number.matches(&gpu()), Err(EvalError::NotBool("int")));
}
