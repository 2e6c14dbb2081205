//! Explanations: why a pod or a claim waits, and what would fit.

use super::*;
use crate::explain::Room;

fn why(all: impl IntoIterator<Item = Value>, subject: &str) -> Result<Explanation, OfflineError> {
    let subject = Subject::parse(subject, "ns").unwrap();
    explain(
        &objects(all),
        &subject,
        &Options::default(),
        &mut SelectorCache::default(),
    )
}

fn pod(name: &str, claims: &[&str]) -> Value {
    let entries = claims.iter().enumerate();
    let entries: Vec<Value> = entries
        .map(|(index, claim)| json!({"name": format!("c{index}"), "resourceClaimName": claim}))
        .collect();
    json!({"kind": "Pod", "metadata": {"name": name, "namespace": "ns"}, "spec": {"resourceClaims": entries}})
}

fn amount(room: Option<&Room<String>>) -> Option<(String, &str)> {
    room.map(|room| (room.amount.to_string(), room.device.as_str()))
}

fn asks(name: &str, memory: &str, cores: &str) -> Value {
    claim(
        name,
        json!({"capacity": {"requests": {"memory": memory, "cores": cores}}}),
    )
}

/// A share of memory and cores of a device of node n.
fn holds(name: &str, device: &str, memory: &str, cores: &str) -> Value {
    let mut claim = held(name, "n", device, Some(memory));
    claim["status"]["allocation"]["devices"]["results"][0]["consumedCapacity"]["cores"] = cores.into();
    claim
}

#[test]
fn a_selector_that_no_device_matches_is_named_first() {
    let explained = |selector: &str| {
        let mut asked = asks("mine", "90Gi", "50");
        asked["spec"]["devices"]["requests"][0]["exactly"]["selectors"] = json!([{"cel": {"expression": selector}}]);
        let objects = [node("n"), class(), slice("n", [gpu("a", "80Gi")]), asked];
        why(objects, "claim/mine").unwrap().to_string()
    };
    let text = explained("device.attributes['drv'].model ==\n  'x100'\n");
    let mut lines = text.lines();
    assert_eq!(
        lines.next(),
        Some("claim ns/mine does not fit on node n: no device matches the selector of request r")
    );
    assert_eq!(
        lines.next(),
        Some(
            "  claim ns/mine, request r, node n, pool n, device a: Selector: the selector of the request does not match: \
             device.attributes['drv'].model == 'x100'"
        )
    );
    let text = explained("device.driver == 'drv'");
    assert!(text.starts_with("claim ns/mine does not fit on node n\n"), "{text}");
}

#[test]
fn the_largest_fraction_is_what_an_allocation_would_get() {
    let mut tainted = gpu("tainted", "80Gi");
    tainted["taints"] = json!([{"key": "health", "effect": "NoSchedule"}]);
    let mut other = gpu("other", "80Gi");
    other["attributes"]["model"] = json!({"string": "a100"});
    let mut asked = asks("mine", "60Gi", "50");
    asked["spec"]["devices"]["requests"][0]["exactly"]["selectors"] =
        json!([{"cel": {"expression": "device.attributes[\"drv\"].model == \"h100\""}}]);
    let all = |claim: Value| {
        [
            node("n"),
            class(),
            slice(
                "n",
                [
                    gpu("a", "80Gi"),
                    gpu("b", "80Gi"),
                    gpu("c", "80Gi"),
                    tainted.clone(),
                    other.clone(),
                ],
            ),
            // a has memory and no cores, b has both but too little, c has cores and no memory.
            holds("ha", "a", "10Gi", "80"),
            holds("hb", "b", "50Gi", "30"),
            holds("hc", "c", "79Gi", "0"),
            claim,
        ]
    };
    let answer = why(all(asked.clone()), "claim/mine").unwrap();
    assert!(!answer.fits());
    assert_eq!(amount(answer.largest.memory.as_ref()), Some(("30Gi".into(), "b")));
    assert_eq!(amount(answer.largest.cores.as_ref()), Some(("20".into(), "a")));
    assert_eq!(answer.reasons.len(), 5);
    assert!(
        answer.reasons[0].message.contains("held by ns/ha"),
        "{:?}",
        answer.reasons[0]
    );

    // What it says would fit does, and one step more does not.
    for (memory, cores, fits) in [
        ("30Gi", "50", true),
        ("30721Mi", "50", false),
        ("60Gi", "20", true),
        ("60Gi", "21", false),
    ] {
        let mut claim = asked.clone();
        claim["spec"]["devices"]["requests"][0]["exactly"]["capacity"]["requests"] =
            json!({"memory": memory, "cores": cores});
        assert_eq!(report(all(claim)).fits(), fits, "{memory} {cores}");
    }
}

/// With 80Gi and 20Gi free nothing that is said of one device would fit twice.
#[test]
fn of_several_devices_no_largest_fraction_is_told() {
    let mut two = memory("mine", "70Gi");
    two["spec"]["devices"]["requests"][0]["exactly"]["count"] = 2.into();
    let all = [
        node("n"),
        class(),
        slice("n", [gpu("a", "80Gi"), gpu("b", "20Gi")]),
        two,
    ];
    let answer = why(all, "claim/mine").unwrap();
    assert!(!answer.fits());
    assert_eq!((&answer.largest.memory, &answer.largest.cores), (&None, &None));
    let words = answer.to_string();
    assert!(!words.contains("no device") && !words.contains("most "), "{words}");
}

#[test]
fn a_device_that_is_not_shared_is_had_whole_or_not_at_all() {
    let whole = |name: &str| {
        let mut gpu = gpu(name, "80Gi");
        gpu["allowMultipleAllocations"] = false.into();
        gpu["capacity"] = json!({"memory": {"value": "80Gi"}, "cores": {"value": "100"}});
        gpu
    };
    let all = [
        node("n"),
        class(),
        slice("n", [whole("taken"), whole("unused")]),
        held("h", "n", "taken", None),
        memory("mine", "90Gi"),
    ];
    let answer = why(all, "mine").unwrap();
    assert_eq!(amount(answer.largest.memory.as_ref()), Some(("80Gi".into(), "unused")));
    assert_eq!(answer.largest.cores, None);
}

#[test]
fn nothing_is_left_is_an_answer_too() {
    let all = [
        node("n"),
        class(),
        slice("n", [gpu("a", "80Gi")]),
        held("h", "n", "a", None),
        memory("mine", "1Gi"),
    ];
    let answer = why(all, "mine").unwrap();
    assert_eq!((&answer.largest.memory, &answer.largest.cores), (&None, &None));
    let words = answer.to_string();
    assert!(words.starts_with("claim ns/mine does not fit on node n\n"), "{words}");
    assert!(words.contains("InUse: in use, held by ns/h"), "{words}");
    assert!(words.contains("no eligible GPU has free memory"), "{words}");
}

#[test]
fn all_nodes_are_looked_at_and_the_largest_of_all_is_said() {
    let answer = why(
        [
            node("n"),
            node("m"),
            class(),
            slice("n", [gpu("a", "40Gi")]),
            slice("m", [gpu("b", "60Gi")]),
            memory("mine", "70Gi"),
            pod("p", &["mine"]),
        ],
        "pod/p",
    )
    .unwrap();
    assert_eq!(
        (&answer.subject[..], answer.nodes.len(), answer.fits.len()),
        ("pod ns/p", 2, 0)
    );
    assert_eq!(amount(answer.largest.memory.as_ref()), Some(("60Gi".into(), "b")));
    assert_eq!(answer.largest.cores, None, "no device has 70Gi, at whatever cores");
}

#[test]
fn the_claims_of_a_pod_are_asked_about_together() {
    let all = |second: &str| {
        [
            node("n"),
            class(),
            slice("n", [gpu("a", "80Gi")]),
            memory("first", "50Gi"),
            memory("second", second),
            memory("of-another-pod", "80Gi"),
            pod("p", &["first", "second"]),
        ]
    };
    let answer = why(all("50Gi"), "p").unwrap();
    assert_eq!(answer.waiting, ["ns/first", "ns/second"]);
    assert_eq!(answer.reasons[0].claim, "ns/second");
    assert_eq!(amount(answer.largest.memory.as_ref()), Some(("30Gi".into(), "a")));
    let answer = why(all("30Gi"), "p").unwrap();
    assert!(answer.fits() && answer.reasons.is_empty());
    assert!(
        answer.to_string().contains("which fits on 1 of 1 nodes: n."),
        "{answer}"
    );
}

#[test]
fn what_is_allocated_says_where_the_rest_must_be() {
    let mut has = held("has", "m", "b", Some("1Gi"));
    has["status"]["allocation"]["nodeSelector"] = json!({"nodeSelectorTerms": [
        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["m"]}]}]});
    let all = || {
        [
            node("n"),
            node("m"),
            class(),
            slice("n", [gpu("a", "80Gi")]),
            slice("m", [gpu("b", "40Gi")]),
            has.clone(),
            memory("mine", "70Gi"),
            pod("p", &["has", "mine"]),
            pod("q", &["has"]),
        ]
    };
    let answer = why(all(), "p").unwrap();
    assert_eq!((answer.nodes, answer.fits), (vec!["m".to_owned()], vec![]));
    assert_eq!(answer.held, ["claim ns/has has b of pool m"]);
    let answer = why(all(), "q").unwrap();
    assert!(answer.fits());
    assert_eq!(
        answer.to_string(),
        "pod ns/q has everything: claim ns/has has b of pool m\n"
    );
}

#[test]
fn claims_that_are_not_there_are_named() {
    let mut made = pod("p", &["gone"]);
    made["spec"]["resourceClaims"] = json!([
        {"name": "a", "resourceClaimName": "gone"},
        {"name": "b", "resourceClaimTemplateName": "t"},
        {"name": "c", "resourceClaimTemplateName": "t"},
    ]);
    made["status"] = json!({"resourceClaimStatuses": [{"name": "b", "resourceClaimName": "mine"}]});
    let answer = why([node("n"), class(), memory("mine", "1Gi"), made], "p").unwrap();
    assert_eq!(answer.missing, ["ns/gone", "c, which its template has not made yet"]);
    assert_eq!(answer.waiting, ["ns/mine"]);
    assert!(!answer.fits());
}

#[test]
fn a_subject_that_is_not_there_is_a_mistake() {
    let all = || [node("n"), memory("x", "1Gi"), pod("x", &[]), pod("broken", &[])];
    let error = |subject: &str| why(all(), subject).unwrap_err().to_string();
    assert!(error("x").contains("write pod/NAME or claim/NAME"));
    assert!(error("claim/y").starts_with("claim y not found in namespace ns"));
    assert!(error("pod/y").starts_with("pod y not found in namespace ns"));
    assert!(matches!(Subject::parse("node/n", "ns"), Err(OfflineError::SubjectKind(kind)) if kind == "node"));
    assert_eq!(why(all(), "pod/x").unwrap().to_string(), "pod ns/x has no claims\n");
    let mut broken = pod("broken", &[]);
    broken["spec"]["resourceClaims"] = json!([{"name": 1}]);
    let words = why([node("n"), broken], "broken").unwrap_err().to_string();
    assert!(
        words.starts_with("Pod ns/broken: spec.resourceClaims[0].name"),
        "{words}"
    );
}
