//! Why claims do not fit.

use super::*;

#[test]
fn what_does_not_fit_says_why_device_by_device() {
    let mut tainted = gpu("tainted", "80Gi");
    tainted["taints"] = json!([{"key": "health", "value": "bad", "effect": "NoSchedule"}]);
    let report = report([
        node("n"),
        class(),
        slice(
            "n",
            [gpu("full", "80Gi"), gpu("taken", "80Gi"), tainted, gpu("small", "8Gi")],
        ),
        held("ns1", "n", "full", Some("70Gi")),
        held("ns2", "n", "taken", None),
        memory("mine", "20Gi"),
    ]);
    assert_eq!(
        kinds(&report),
        [
            (ReasonKind::Capacity, "full"),
            (ReasonKind::InUse, "taken"),
            (ReasonKind::Taint, "tainted"),
            (ReasonKind::Capacity, "small"),
        ]
    );
    let list = report.document();
    assert_eq!(list["items"][0].get("status"), None);
    assert_eq!(
        list["reasons"][0],
        json!({
            "claim": "ns/mine", "request": "r", "node": "n", "pool": "n", "device": "full", "reason": "Capacity",
            "field": "spec.devices.requests[0].exactly.capacity.requests.memory",
            "message": "memory: 20Gi wanted, 10Gi of 80Gi free, held by ns/ns1",
        })
    );
    let words = report.reasons()[1].to_string();
    assert_eq!(
        words,
        "claim ns/mine, request r, node n, pool n, device taken: InUse: in use, held by ns/ns2"
    );
}

#[test]
fn selectors_constraints_counters_and_earlier_claims_are_named() {
    let selector = |text: &str| json!({"selectors": [{"cel": {"expression": text}}]});
    let one = || [node("n"), class(), slice("n", [gpu("a", "80Gi")])];
    let with = |claim| report(one().into_iter().chain([claim]));

    let mismatch = with(claim("c", selector("device.attributes[\"drv\"].model == \"a100\"")));
    assert_eq!(kinds(&mismatch), [(ReasonKind::Selector, "a")]);
    assert_eq!(
        mismatch.reasons()[0].field,
        "spec.devices.requests[0].exactly.selectors[0].cel.expression"
    );

    for (text, words) in [
        ("device.name", "does not compile"),
        ("device.attributes[\"drv\"].none == 1", "no such key"),
    ] {
        let failure = with(claim("c", selector(text)));
        assert_eq!(kinds(&failure), [(ReasonKind::CelError, "a")]);
        assert!(failure.reasons()[0].message.contains(words), "{:?}", failure.reasons());
    }

    let mut constrained = claim("c", json!({}));
    constrained["spec"]["devices"]["constraints"] = json!([{"matchAttribute": "drv/uuid"}]);
    assert_eq!(kinds(&with(constrained)), [(ReasonKind::Constraint, "a")]);

    let together = report(one().into_iter().chain([memory("c1", "50Gi"), memory("c2", "50Gi")]));
    assert_eq!(kinds(&together), [(ReasonKind::Capacity, "a")]);
    assert_eq!(together.reasons()[0].claim, "ns/c2");
    assert_eq!(
        together.reasons()[0].message,
        "memory: 50Gi wanted, 30Gi of 80Gi free, and asked for together with ns/c1"
    );

    let mut counters = slice("n", []);
    counters["metadata"]["name"] = "counters".into();
    counters["spec"]["pool"]["resourceSliceCount"] = 2.into();
    counters["spec"]["sharedCounters"] = json!([{"name": "set", "counters": {"memory": {"value": "8Gi"}}}]);
    let mut part = gpu("part", "16Gi");
    part["consumesCounters"] = json!([{"counterSet": "set", "counters": {"memory": {"value": "16Gi"}}}]);
    let mut parts = slice("n", [part]);
    parts["spec"]["pool"]["resourceSliceCount"] = 2.into();
    assert_eq!(
        kinds(&report([node("n"), class(), counters, parts, claim("c", json!({}))])),
        [(ReasonKind::Counter, "part")]
    );
}

/// All pools of our driver have a slash in their name.
#[test]
fn a_pools_name_may_have_slashes() {
    let mut of_pool = slice("n", [gpu("a", "80Gi")]);
    of_pool["spec"]["pool"]["name"] = "n/vgpu".into();
    let failing = json!({"selectors": [{"cel": {"expression": "device.attributes['drv'].none == 1"}}]});
    let failure = report([node("n"), class(), of_pool.clone(), claim("c", failing)]);
    assert_eq!(kinds(&failure), [(ReasonKind::CelError, "a")]);
    assert_eq!(failure.reasons()[0].pool, "n/vgpu");
    of_pool["spec"]["pool"]["resourceSliceCount"] = 2.into();
    let all = claim("c", json!({"allocationMode": "All"}));
    let half = report([node("n"), class(), of_pool, all]);
    assert_eq!(kinds(&half), [(ReasonKind::IncompletePool, "")]);
    assert_eq!(half.reasons()[0].pool, "n/vgpu");
}

#[test]
fn a_pool_that_is_not_whole_gives_nothing() {
    let mut part = slice("n", [gpu("a", "80Gi")]);
    part["spec"]["pool"]["resourceSliceCount"] = 2.into();
    let all = |mode: &str| {
        report([
            node("n"),
            class(),
            part.clone(),
            claim("c", json!({"allocationMode": mode})),
        ])
    };
    for mode in ["ExactCount", "All"] {
        let report = all(mode);
        assert_eq!(kinds(&report), [(ReasonKind::IncompletePool, "")], "{mode}");
        assert_eq!(report.reasons()[0].pool, "n", "{mode}");
    }
}

#[test]
fn negative_and_enormous_capacities_are_reasons_and_no_panics() {
    for (value, asked) in [
        ("-1Gi", ""),
        ("80Gi", "18446744073709551616"),
        ("80Gi", "9223372036854775807"),
    ] {
        let mut device = gpu("a", value);
        device["capacity"]["memory"]["requestPolicy"]["default"] = value.into();
        let claim = match asked {
            "" => claim("c", json!({})),
            asked => memory("c", asked),
        };
        let report = report([node("n"), class(), slice("n", [device]), claim]);
        assert_eq!(kinds(&report), [(ReasonKind::Capacity, "a")], "{value} {asked}");
    }
    let enormous = gpu("a", "99999999999999999999999999999999999999999999E");
    let report = report([node("n"), class(), slice("n", [enormous]), memory("c", "1Gi")]);
    assert_eq!(devices(&report), ["n/a"]);
}

#[test]
fn an_unknown_class_is_named() {
    let report = report([node("n"), slice("n", [gpu("a", "80Gi")]), claim("c", json!({}))]);
    assert_eq!(kinds(&report), [(ReasonKind::UnknownClass, "")]);
    let reason = &report.reasons()[0];
    assert_eq!(reason.field, "spec.devices.requests[0].exactly.deviceClassName");
    assert!(reason.message.contains("\"gpu\""), "{reason}");
}

#[test]
fn slices_of_no_given_node_are_a_mismatch() {
    let report = report([
        node("n"),
        class(),
        slice("elsewhere", [gpu("a", "80Gi")]),
        claim("c", json!({})),
    ]);
    let [.., (kind, device)] = kinds(&report)[..] else {
        panic!("{:?}", report.reasons());
    };
    assert_eq!((kind, device), (ReasonKind::NodeMismatch, "a"));
    assert!(kinds(&report).iter().all(|(kind, _)| *kind == ReasonKind::NodeMismatch));
}

#[test]
fn a_rule_taints_beside_the_slice() {
    let rule = json!({"kind": "DeviceTaintRule", "metadata": {"name": "drain"}, "spec": {
        "deviceSelector": {"driver": "drv", "device": "a"}, "taint": {"key": "drain", "effect": "NoExecute"}}});
    let all = || {
        [
            node("n"),
            class(),
            slice("n", [gpu("a", "80Gi")]),
            rule.clone(),
            claim("c", json!({})),
        ]
    };
    assert_eq!(kinds(&report(all())), [(ReasonKind::Taint, "a")]);
    let options = Options {
        features: Features::default().parse("DRADeviceTaintRules=false").unwrap(),
        ..Options::default()
    };
    assert!(allocate(&objects(all()), &options).unwrap().fits());
}
