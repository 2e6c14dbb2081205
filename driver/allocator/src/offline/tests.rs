use serde_json::{Value, json};

use super::*;

/// Objects that are given in this order, without their apiVersion.
fn objects(all: impl IntoIterator<Item = Value>) -> Objects {
    let mut objects = Objects::default();
    for mut document in all {
        let version = if document["kind"] == "Node" {
            "v1"
        } else {
            "resource.k8s.io/v1"
        };
        document["apiVersion"] = version.into();
        objects.add(document, "test.yaml").unwrap();
    }
    objects
}

fn allocate(objects: &Objects, options: &Options) -> Result<Report, OfflineError> {
    let mut count = 0;
    run(objects, options, &mut SelectorCache::default(), &mut || {
        count += 1;
        format!("share-{count}")
    })
}

fn report(all: impl IntoIterator<Item = Value>) -> Report {
    allocate(&objects(all), &Options::default()).unwrap()
}

fn with_policy(all: impl IntoIterator<Item = Value>, policy: Policy) -> Vec<String> {
    let options = Options {
        policy,
        ..Options::default()
    };
    devices(&allocate(&objects(all), &options).unwrap())
}

/// `pool/device` of every result.
fn devices(report: &Report) -> Vec<String> {
    let list = report.document();
    let items = list["items"].as_array().unwrap().clone();
    let results = items.iter().flat_map(|item| {
        let results = item["status"]["allocation"]["devices"]["results"].as_array();
        results.cloned().unwrap_or_default()
    });
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    results
        .map(|result| format!("{}/{}", text(&result["pool"]), text(&result["device"])))
        .collect()
}

fn kinds(report: &Report) -> Vec<(ReasonKind, &str)> {
    assert!(!report.fits());
    let reasons = report.reasons().iter();
    reasons.map(|reason| (reason.reason, reason.device.as_str())).collect()
}

fn node(name: &str) -> Value {
    json!({"kind": "Node", "metadata": {"name": name, "labels": {"zone": "a"}}})
}

fn class() -> Value {
    json!({"kind": "DeviceClass", "metadata": {"name": "gpu"},
        "spec": {"selectors": [{"cel": {"expression": "device.driver == \"drv\""}}]}})
}

fn gpu(name: &str, memory: &str) -> Value {
    json!({"name": name, "allowMultipleAllocations": true, "attributes": {"model": {"string": "h100"}}, "capacity": {
        "memory": {"value": memory, "requestPolicy": {"default": memory, "validRange": {"min": "1Mi", "step": "1Mi"}}},
        "cores": {"value": "100", "requestPolicy": {"default": "0", "validRange": {"min": "0", "max": "100", "step": "1"}}},
    }})
}

fn slice(node: &str, devices: impl IntoIterator<Item = Value>) -> Value {
    json!({"kind": "ResourceSlice", "metadata": {"name": format!("{node}-slice")}, "spec": {
        "driver": "drv", "nodeName": node, "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
        "devices": devices.into_iter().collect::<Vec<_>>(),
    }})
}

fn claim(name: &str, exactly: Value) -> Value {
    let mut ask = json!({"deviceClassName": "gpu"});
    ask.as_object_mut()
        .unwrap()
        .extend(exactly.as_object().unwrap().clone());
    json!({"kind": "ResourceClaim", "metadata": {"name": name, "namespace": "ns"},
        "spec": {"devices": {"requests": [{"name": "r", "exactly": ask}]}}})
}

fn memory(name: &str, amount: &str) -> Value {
    claim(name, json!({"capacity": {"requests": {"memory": amount}}}))
}

/// A claim that holds a share, or without an amount the whole device.
fn held(name: &str, pool: &str, device: &str, amount: Option<&str>) -> Value {
    let mut claim = memory(name, amount.unwrap_or("1Gi"));
    let mut result = json!({"request": "r", "driver": "drv", "pool": pool, "device": device});
    if let Some(amount) = amount {
        result["shareID"] = "s".into();
        result["consumedCapacity"] = json!({"memory": amount, "cores": "0"});
    }
    claim["status"] = json!({"allocation": {"devices": {"results": [result]}}});
    claim
}

#[test]
fn claims_that_wait_are_answered_and_those_that_hold_count() {
    let report = report([
        node("n"),
        class(),
        slice("n", [gpu("a", "80Gi")]),
        held("first", "n", "a", Some("50Gi")),
        memory("second", "20Gi"),
        memory("third", "10Gi"),
    ]);
    assert!(report.fits());
    let list = report.document();
    assert_eq!(list["kind"], "List");
    assert_eq!(list["items"][0]["metadata"]["name"], "second");
    assert_eq!(list["items"].as_array().unwrap().len(), 2);
    assert_eq!(
        list["items"][0]["status"]["allocation"],
        json!({
            "devices": {"results": [{
                "request": "r", "driver": "drv", "pool": "n", "device": "a", "shareID": "share-1",
                "consumedCapacity": {"memory": "20Gi", "cores": "0"},
            }]},
            "nodeSelector": {"nodeSelectorTerms": [
                {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]},
            ]},
        })
    );
}

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
            "message": "memory: 20Gi wanted, 10Gi free, held by ns/ns1",
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
fn of_two_generations_only_the_newer_counts() {
    let old = slice("n", [gpu("old", "80Gi")]);
    let mut new = slice("n", [gpu("new", "80Gi")]);
    new["metadata"]["name"] = "another".into();
    new["spec"]["pool"]["generation"] = 2.into();
    for slices in [[old.clone(), new.clone()], [new.clone(), old.clone()]] {
        let report = report(
            [node("n"), class()]
                .into_iter()
                .chain(slices)
                .chain([memory("c", "1Gi")]),
        );
        assert_eq!(devices(&report), ["n/new"]);
    }
    // While the newer one is not whole, the older one does not stand in for it.
    new["spec"]["pool"]["resourceSliceCount"] = 2.into();
    let report = report([node("n"), class(), old, new, memory("c", "1Gi")]);
    assert_eq!(kinds(&report), [(ReasonKind::IncompletePool, "")]);
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
fn a_claim_may_mix_drivers() {
    let mut other = slice("n", [gpu("b", "80Gi")]);
    other["spec"]["driver"] = "other".into();
    other["spec"]["pool"]["name"] = "others".into();
    let any = json!({"kind": "DeviceClass", "metadata": {"name": "any"}, "spec": {"selectors": [
        {"cel": {"expression": "device.driver == \"other\""}}]}});
    let mut claim = claim("c", json!({}));
    let requests = claim["spec"]["devices"]["requests"].as_array_mut().unwrap();
    requests.push(json!({"name": "s", "exactly": {"deviceClassName": "any"}}));
    let report = report([node("n"), class(), any, slice("n", [gpu("a", "80Gi")]), other, claim]);
    assert_eq!(devices(&report), ["n/a", "others/b"]);
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

#[test]
fn a_mistake_in_the_claims_is_no_reason_but_an_error() {
    let with = |exactly: Value| {
        allocate(
            &objects([node("n"), class(), slice("n", [gpu("a", "80Gi")]), claim("c", exactly)]),
            &Options::default(),
        )
    };
    for (exactly, words) in [
        (json!({"allocationMode": "Some"}), "allocationMode \"Some\""),
        (json!({"count": 33}), "33 devices are more than the 32"),
        (json!({"deviceClassName": ""}), "deviceClassName is empty"),
        (json!({"selectors": [{}]}), "selectors[0]"),
    ] {
        let error = with(exactly).unwrap_err().to_string();
        assert!(error.contains(words) && error.contains("ns/c"), "{error}");
    }
}

#[test]
fn documents_that_cannot_be_read_are_named() {
    let add = |document: Value| Objects::default().add(document, "f.yaml").unwrap_err().to_string();
    for (document, words) in [
        (json!([1]), "f.yaml: a document is a list"),
        (json!({"a": 1}), "an object without a kind"),
        (json!({"kind": "List"}), "has no items"),
        (
            json!({"kind": "ResourceClaim", "apiVersion": "resource.k8s.io/v1beta1", "metadata": {"name": "c"}}),
            "ResourceClaim c: apiVersion \"resource.k8s.io/v1beta1\" is not read; convert it to resource.k8s.io/v1",
        ),
        (
            json!({"kind": "ResourceSlice", "apiVersion": "resource.k8s.io/v1", "metadata": {"name": "s"},
                "spec": {"devices": [{"name": "d", "capacity": {"memory": {"value": "20GB"}}}]}}),
            "ResourceSlice s: spec.devices[0].capacity.memory.value: \"20GB\" is not a quantity",
        ),
    ] {
        let error = add(document);
        assert!(error.contains(words), "{error}");
    }
    let mut deep = json!({"kind": "Node", "apiVersion": "v1"});
    for _ in 0..10 {
        deep = json!({"kind": "List", "items": [deep]});
    }
    assert!(add(deep).contains("lists lie in lists"));
}

#[test]
fn lists_are_taken_apart_and_other_kinds_are_left_out() {
    let mut objects = Objects::default();
    let claim = memory("c", "1Gi");
    let list = json!({"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}},
        {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimList", "items": [{"metadata": claim["metadata"], "spec": claim["spec"]}]},
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "ns"}},
    ]});
    objects.add(list, "f").unwrap();
    objects.add(Value::Null, "f").unwrap();
    assert_eq!(
        (objects.nodes.len(), objects.claims.len(), objects.ignored()),
        (1, 1, &["Pod ns/p".to_owned()][..])
    );
}

#[test]
fn the_node_must_be_there() {
    let none = allocate(&objects([class()]), &Options::default()).unwrap_err();
    assert_eq!(none, OfflineError::NoNode);
    let options = Options {
        node: Some("m".into()),
        ..Options::default()
    };
    let unknown = allocate(&objects([node("n")]), &options).unwrap_err().to_string();
    assert!(unknown.contains("\"m\"") && unknown.contains("has n"), "{unknown}");
}

/// Two nodes: one GPU in use by half, one by a quarter, the rest unused.
fn two_nodes() -> Vec<Value> {
    vec![
        node("n1"),
        node("n2"),
        class(),
        slice("n1", [gpu("a", "80Gi"), gpu("b", "80Gi")]),
        slice("n2", [gpu("a", "80Gi"), gpu("b", "80Gi"), gpu("c", "40Gi")]),
        held("half", "n1", "b", Some("40Gi")),
        held("quarter", "n2", "b", Some("20Gi")),
    ]
}

#[test]
fn policies_choose_among_nodes_and_devices() {
    for (policy, amount, expected) in [
        (Policy::FirstFit, "20Gi", "n1/a"),
        (Policy::Binpack, "20Gi", "n1/b"),
        (Policy::Binpack, "41Gi", "n2/b"),
        (Policy::Binpack, "70Gi", "n1/a"),
        (Policy::Spread, "20Gi", "n2/a"),
        (Policy::WholeGpus, "20Gi", "n1/b"),
        (Policy::WholeGpus, "50Gi", "n2/b"),
        (Policy::WholeGpus, "70Gi", "n1/a"),
    ] {
        let all = two_nodes().into_iter().chain([memory("mine", amount)]);
        assert_eq!(with_policy(all, policy), [expected], "{} {amount}", policy.name());
    }
}

#[test]
fn whole_gpus_leaves_unused_ones_where_binpack_would_not() {
    // 40Gi unused is less than 60Gi left of a GPU in use.
    let all = || {
        let gpus = [gpu("small", "40Gi"), gpu("large", "80Gi")];
        [
            node("n"),
            class(),
            slice("n", gpus),
            held("h", "n", "large", Some("20Gi")),
            memory("mine", "10Gi"),
        ]
    };
    assert_eq!(with_policy(all(), Policy::Binpack), ["n/small"]);
    assert_eq!(with_policy(all(), Policy::WholeGpus), ["n/large"]);
}

#[test]
fn affinity_is_kept_where_it_can_be_and_given_up_where_it_cannot() {
    let at = |name: &str, numa: i64| {
        let mut gpu = gpu(name, "80Gi");
        gpu["attributes"]["resource.kubernetes.io/numaNode"] = json!({"int": numa});
        gpu["attributes"]["resource.kubernetes.io/pcieRoot"] = json!({"string": format!("pci{numa}")});
        gpu
    };
    // By memory left alone c and a would come first.
    let all = |claims: Vec<Value>| {
        let gpus = [at("a", 0), at("b", 1), at("c", 1), at("d", 0), at("e", 0)];
        let held = [held("h1", "n", "c", Some("20Gi")), held("h2", "n", "a", Some("10Gi"))];
        [node("n"), class(), slice("n", gpus)]
            .into_iter()
            .chain(held)
            .chain(claims)
    };
    let many = |count: i64| {
        vec![claim(
            "c",
            json!({"count": count, "capacity": {"requests": {"memory": "10Gi"}}}),
        )]
    };
    for policy in [Policy::Numa, Policy::Pcie] {
        assert_eq!(
            with_policy(all(many(2)), policy),
            ["n/c", "n/b"],
            "the smaller place that does"
        );
        assert_eq!(with_policy(all(many(3)), policy), ["n/a", "n/d", "n/e"]);
        assert_eq!(with_policy(all(many(5)), policy).len(), 5, "no place has five");
        // Two claims of one pod that no place holds together: each for itself.
        let two = with_policy(all(many(2).into_iter().chain(many(3)).collect()), policy);
        assert_eq!(two.len(), 5);
    }
    assert_eq!(with_policy(all(many(2)), Policy::Binpack), ["n/c", "n/a"]);
}

#[test]
fn a_thousand_claims_take_no_thousand_frames() {
    let claims = (0..2000).map(|index| memory(&format!("c{index}"), "1Mi"));
    let all = [node("n"), class(), slice("n", [gpu("a", "80Gi")])]
        .into_iter()
        .chain(claims);
    assert_eq!(devices(&report(all)).len(), 2000);
}
