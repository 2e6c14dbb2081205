//! Explanations: why a pod or a claim waits, and what would fit.

mod fit;
#[path = "../../../allocator/src/offline/tests/objects.rs"]
mod objects;

use serde_json::{Value, json};
use vgpu_allocator::offline::{Options, run};
use vgpu_allocator::{Room, SelectorCache};

use super::*;
use objects::{claim, class, gpu, held, memory, node, objects, slice};

fn why(all: impl IntoIterator<Item = Value>, subject: &str) -> Result<Explanation, ExplainError> {
    let subject = Subject::parse(subject, "ns").unwrap();
    explain(&objects(all), &subject, &Options::default(), Time::default())
}

fn pod(name: &str, claims: &[&str]) -> Value {
    let entries = claims.iter().enumerate();
    let entries: Vec<Value> = entries
        .map(|(index, claim)| json!({"name": format!("c{index}"), "resourceClaimName": claim}))
        .collect();
    json!({"kind": "Pod", "metadata": {"name": name, "namespace": "ns"}, "spec": {"resourceClaims": entries}})
}

/// A node with these devices, and more objects.
fn one_node(devices: impl IntoIterator<Item = Value>, more: impl IntoIterator<Item = Value>) -> Vec<Value> {
    let cluster = [node("n"), class(), slice("n", devices)];
    cluster.into_iter().chain(more).collect()
}

/// The same, and a second node `m` with devices.
fn two_nodes(
    devices: impl IntoIterator<Item = Value>,
    of_m: impl IntoIterator<Item = Value>,
    more: impl IntoIterator<Item = Value>,
) -> Vec<Value> {
    let second = [node("m"), slice("m", of_m)];
    one_node(devices, second.into_iter().chain(more))
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
        let objects = one_node([gpu("a", "80Gi")], [asked]);
        why(objects, "claim/mine").unwrap().to_string()
    };
    let text = explained("device.attributes['drv'].model ==\n  'x100'\n");
    let mut lines = text.lines();
    let first = lines.next().unwrap();
    assert!(
        first.contains("no GPU of the cluster matches it, so it waits for another GPU or another selector"),
        "{first}"
    );
    assert_eq!(
        lines.next(),
        Some(
            "  claim ns/mine, request r, node n, pool n, device a: Selector: the selector of the request does not match: \
             device.attributes['drv'].model == 'x100'"
        )
    );
    let text = explained("device.driver == 'drv'");
    assert!(text.contains("Capacity") && !text.contains("matches it"), "{text}");
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

    // The named amounts fit, and one step more does not.
    for (memory, cores, fits) in [
        ("30Gi", "50", true),
        ("30721Mi", "50", false),
        ("60Gi", "20", true),
        ("60Gi", "21", false),
    ] {
        let mut claim = asked.clone();
        claim["spec"]["devices"]["requests"][0]["exactly"]["capacity"]["requests"] =
            json!({"memory": memory, "cores": cores});
        let (objects, mut cache) = (objects(all(claim)), SelectorCache::default());
        let report = run(&objects, &Options::default(), &mut cache, &mut String::new).unwrap();
        assert_eq!(report.fits(), fits, "{memory} {cores}");
    }
}

/// With 80Gi and 20Gi free, an amount that fits on one device would not fit twice.
#[test]
fn of_several_devices_no_largest_fraction_is_told() {
    let mut two = memory("mine", "70Gi");
    two["spec"]["devices"]["requests"][0]["exactly"]["count"] = 2.into();
    let all = one_node([gpu("a", "80Gi"), gpu("b", "20Gi")], [two]);
    let answer = why(all, "claim/mine").unwrap();
    assert!(!answer.fits());
    assert_eq!((&answer.largest.memory, &answer.largest.cores), (&None, &None));
    let words = answer.to_string();
    assert!(!words.contains("no device") && !words.contains("would fit"), "{words}");
}

/// A node of instances, by profile and placement; the last one has a taint. And a claim for one with the profile.
fn instances(profile: &str) -> Vec<Value> {
    let is_mig = "device.driver == 'dra.vgpu' && device.attributes['dra.vgpu'].type == 'mig'";
    let class = json!({"kind": "DeviceClass", "metadata": {"name": "vgpu-mig"},
        "spec": {"selectors": [{"cel": {"expression": is_mig}}]}});
    let instance = |(profile, start, size): (&str, u64, u64)| {
        json!({"name": format!("mig-{start}"), "capacity": {"memory": {"value": "9Gi"}}, "attributes": {"type": {"string": "mig"},
            "profile": {"string": profile}, "placement": {"string": format!("{start}:{size}")}}})
    };
    let devices = [("3g.40gb", 0, 4), ("1g.10gb", 4, 1), ("1g.10gb", 5, 1)].map(instance);
    let mut slice = slice("n", devices);
    slice["spec"]["driver"] = json!("dra.vgpu");
    slice["spec"]["devices"][2]["taints"] = json!([{"key": "dra.vgpu/xid", "value": "79", "effect": "NoSchedule"}]);
    let mut holder = held("secret", "n", "mig-4", None);
    holder["metadata"]["namespace"] = json!("other");
    holder["status"]["allocation"]["devices"]["results"][0]["driver"] = json!("dra.vgpu");
    let selector = format!("device.attributes['dra.vgpu'].profile == '{profile}'");
    let mine = claim(
        "mine",
        json!({"deviceClassName": "vgpu-mig", "selectors": [{"cel": {"expression": selector}}]}),
    );
    vec![node("n"), class, slice, holder, mine]
}

#[test]
fn instances_are_named_by_profile_and_place() {
    let answer = why(instances("1g.10gb"), "mine").unwrap();
    let said = &answer.summary.join("\n");
    let words = "instances: 1g.10gb: 1 taken, 1 not usable (n 4:1, n 5:1); 3g.40gb: 1 not matched";
    assert!(said.contains(words) && !said.contains("never"), "{said}");
    assert!(!said.contains("secret"), "{said}");
    let text = answer.to_string();
    assert!(text.contains("device mig-4, 1g.10gb at 4:1: InUse"), "{text}");
    assert_eq!(answer.state, Standing::Waits);
}

#[test]
fn a_profile_that_no_node_has_never_fits() {
    let answer = why(instances("7g.80gb"), "mine").unwrap();
    let said = &answer.summary.join("\n");
    let words = "no node of the cluster has an instance that its selectors match, so this never fits, however long it waits: \
                 match one that is there: 1g.10gb, 3g.40gb, or make such an instance";
    assert!(said.contains(words), "{said}");
    assert_eq!((answer.state, &*answer.reason), (Standing::Never, "NeverFits"));
    let mut without = instances("7g.80gb");
    without[2]["spec"]["devices"] = json!([{"name": "gpu-0", "attributes": {"type": {"string": "gpu"},
        "parentUUID": {"string": "GPU-0"}, "profile": {"string": "none"}, "placement": {"string": "none"}}}]);
    let text = why(without, "mine").unwrap().to_string();
    assert!(text.contains("no node publishes an instance: make one"), "{text}");
    assert!(
        !text.contains("instances:") && !text.contains("none at none"),
        "a GPU is no instance: {text}"
    );
}

/// Nobody need wait for an instance that the selectors do not match, although claims share it, or it has a taint.
#[test]
fn an_instance_that_does_not_match_is_not_waited_for() {
    let mut shared = instances("1g.10gb");
    shared[1]["spec"]["selectors"][0]["cel"]["expression"] = json!("device.driver == 'dra.vgpu'");
    let devices = &mut shared[2]["spec"]["devices"];
    for device in devices.as_array_mut().unwrap() {
        device["allowMultipleAllocations"] = true.into();
        device["attributes"]["profile"] = json!({"string": "3g.40gb"});
    }
    shared[4]["spec"]["devices"]["requests"][0]["exactly"]["capacity"] = json!({"requests": {"memory": "20Gi"}});
    shared.remove(3);
    let said = why(shared, "mine").unwrap().summary.join("\n");
    assert!(said.contains("instances: 3g.40gb: 3 not matched"), "{said}");
}

/// A GPU that is in use, or has too little free, may become free; one that is too small or does not match never does.
#[test]
fn more_gpus_than_any_node_has_never_fit() {
    let two = |memory: &str, devices: Vec<Value>| {
        let mut two = self::memory("mine", memory);
        two["spec"]["devices"]["requests"][0]["exactly"]["count"] = 2.into();
        let all = two_nodes(devices, [gpu("c", "80Gi")], [held("h", "n", "a", None), two]);
        why(all, "mine").unwrap()
    };
    let never = "2 are wanted on one node, and no node of the cluster has more than 1 GPU for it, even unused, so this never \
                 fits, however long it waits: ask for at most that, or by several pods";
    for devices in [vec![gpu("a", "80Gi")], vec![gpu("a", "80Gi"), gpu("b", "20Gi")]] {
        let answer = two("70Gi", devices);
        let text = answer.to_string();
        assert!(text.contains(never) && !text.contains("would do"), "{text}");
        assert_eq!((answer.state, &*answer.reason), (Standing::Never, "NeverFits"));
    }
    let answer = two("70Gi", vec![gpu("a", "80Gi"), gpu("b", "80Gi")]);
    let text = answer.to_string();
    assert!(
        !text.contains("never") && text.contains("2 are wanted on one node"),
        "{text}"
    );
    assert_eq!((answer.state, &*answer.reason), (Standing::Waits, "InUse"));
    let mut incomplete = slice("n", [gpu("a", "80Gi")]);
    incomplete["spec"]["pool"]["resourceSliceCount"] = 2.into();
    let mut asked = memory("mine", "70Gi");
    asked["spec"]["devices"]["requests"][0]["exactly"]["count"] = 2.into();
    let text = why([node("n"), class(), incomplete, asked], "mine")
        .unwrap()
        .to_string();
    assert!(!text.contains("never"), "the rest of the pool may have more: {text}");
}

#[test]
fn a_device_that_is_not_shared_is_had_whole_or_not_at_all() {
    let whole = |name: &str| {
        let mut gpu = gpu(name, "80Gi");
        gpu["allowMultipleAllocations"] = false.into();
        gpu["capacity"] = json!({"memory": {"value": "80Gi"}, "cores": {"value": "100"}});
        gpu
    };
    let all = one_node(
        [whole("taken"), whole("unused")],
        [held("h", "n", "taken", None), memory("mine", "90Gi")],
    );
    let answer = why(all, "mine").unwrap();
    assert_eq!(amount(answer.largest.memory.as_ref()), Some(("80Gi".into(), "unused")));
    assert_eq!(answer.largest.cores, None);
}

#[test]
fn nothing_is_left_is_an_answer_too() {
    let all = one_node([gpu("a", "80Gi")], [held("h", "n", "a", None), memory("mine", "1Gi")]);
    let answer = why(all, "mine").unwrap();
    assert_eq!((&answer.largest.memory, &answer.largest.cores), (&None, &None));
    let words = answer.to_string();
    assert!(
        words.contains("on 1 of 1 devices: InUse: in use, held by ns/h (n a)\n"),
        "{words}"
    );
    assert!(
        words.contains("no GPU has both that much memory and that many cores free"),
        "{words}"
    );
}

#[test]
fn all_nodes_are_looked_at_and_the_largest_of_all_is_said() {
    let answer = why(
        two_nodes(
            [gpu("a", "40Gi")],
            [gpu("b", "60Gi")],
            [memory("mine", "70Gi"), pod("p", &["mine"])],
        ),
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
        one_node(
            [gpu("a", "80Gi")],
            [
                memory("first", "50Gi"),
                memory("second", second),
                memory("of-another-pod", "80Gi"),
                pod("p", &["first", "second"]),
            ],
        )
    };
    let answer = why(all("50Gi"), "p").unwrap();
    assert_eq!(answer.waiting, ["ns/first", "ns/second"]);
    assert_eq!(answer.reasons[0].claim, "ns/second");
    assert_eq!(amount(answer.largest.memory.as_ref()), Some(("30Gi".into(), "a")));
    let answer = why(all("30Gi"), "p").unwrap();
    assert!(answer.fits() && answer.reasons.is_empty());
    assert!(
        answer.to_string().ends_with("\n  fits on 1 of 1 nodes: n\n"),
        "{answer}"
    );
}

#[test]
fn what_is_allocated_says_where_the_rest_must_be() {
    let mut has = held("has", "m", "b", Some("1Gi"));
    has["status"]["allocation"]["nodeSelector"] = json!({"nodeSelectorTerms": [
        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["m"]}]}]});
    let all = || {
        two_nodes(
            [gpu("a", "80Gi")],
            [gpu("b", "40Gi")],
            [
                has.clone(),
                memory("mine", "70Gi"),
                pod("p", &["has", "mine"]),
                pod("q", &["has"]),
            ],
        )
    };
    let answer = why(all(), "p").unwrap();
    assert_eq!((answer.nodes, answer.fits), (vec!["m".to_owned()], vec![]));
    assert_eq!(answer.held, ["claim ns/has has b of pool m"]);
    let answer = why(all(), "q").unwrap();
    assert!(answer.fits());
    let words = answer.to_string();
    assert!(
        words.starts_with(
            "pod ns/q has everything: claim ns/has has b of pool m\n  claim ns/has is also used by pods p: "
        ),
        "{words}"
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
fn a_deleted_claim_of_a_template_is_the_reason() {
    let mut made = pod("p", &["mine"]);
    made["spec"]["nodeName"] = "n".into();
    made["status"] = json!({"resourceClaimStatuses": [{"name": "b", "resourceClaimName": "gone"}]});
    made["spec"]["resourceClaims"] = json!([{"name": "b", "resourceClaimTemplateName": "t"}]);
    let words = "pod ns/p: claim ns/gone, which its template made, was deleted: delete the pod, and a new one gets a new claim\n";
    let said = |pod: &Value| why([node("n"), class(), pod.clone()], "p").unwrap();
    let answer = said(&made);
    assert_eq!(
        (answer.to_string().as_str(), answer.reason.as_str()),
        (words, "ClaimDeleted")
    );
    made["status"]["phase"] = "Succeeded".into();
    assert!(!said(&made).to_string().contains("deleted"), "it needs none");
}

#[test]
fn a_subject_that_is_not_there_is_a_mistake() {
    let all = || [node("n"), memory("x", "1Gi"), pod("x", &[]), pod("broken", &[])];
    let error = |subject: &str| why(all(), subject).unwrap_err().to_string();
    assert!(error("x").contains("write pod/NAME or claim/NAME"));
    assert!(error("claim/y").starts_with("claim y not found in namespace ns"));
    assert!(error("pod/y").starts_with("pod y not found in namespace ns"));
    assert!(matches!(Subject::parse("node/n", "ns"), Err(ExplainError::SubjectKind(kind)) if kind == "node"));
    assert_eq!(why(all(), "pod/x").unwrap().to_string(), "pod ns/x has no claims\n");
    let mut broken = pod("broken", &[]);
    broken["spec"]["resourceClaims"] = json!([{"name": 1}]);
    let words = why([node("n"), broken], "broken").unwrap_err().to_string();
    assert!(
        words.starts_with("Pod ns/broken: spec.resourceClaims[0].name"),
        "{words}"
    );
}

fn template(name: &str) -> Value {
    json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate",
        "metadata": {"name": name, "namespace": "ns"}, "spec": {"spec": {}}})
}

/// kube-scheduler does not try such a pod, and says nothing.
#[test]
fn what_has_the_name_of_a_claim_that_does_not_exist_is_said() {
    let mut elsewhere = memory("far", "1Gi");
    elsewhere["metadata"]["namespace"] = "other".into();
    let said = |claim: &str| {
        let all = [
            node("n"),
            class(),
            template("quarter"),
            elsewhere.clone(),
            pod("p", &[claim]),
        ];
        let answer = why(all, "p").unwrap();
        assert!(!answer.fits(), "{answer}");
        assert_eq!(answer.missing, [format!("ns/{claim}")]);
        answer.to_string()
    };
    assert_eq!(
        said("quarter"),
        "pod ns/p: claim ns/quarter does not exist: that is a ResourceClaimTemplate, so write resourceClaimTemplateName: \
         quarter in place of resourceClaimName\n"
    );
    assert_eq!(
        said("far"),
        "pod ns/p: claim ns/far does not exist: there is one in namespace other, but a pod can use claims of its own \
         namespace only; create it in ns\n"
    );
    assert_eq!(
        said("gone"),
        "pod ns/p: claim ns/gone does not exist: create it in namespace ns, as claims of other namespaces cannot be used; \
         if it is the name of a ResourceClaimTemplate, write resourceClaimTemplateName: gone in place of \
         resourceClaimName\n"
    );
}

#[test]
fn a_claim_that_its_template_has_not_made_names_the_template() {
    let mut made = pod("p", &[]);
    made["spec"]["resourceClaims"] = json!([{"name": "gpu", "resourceClaimTemplateName": "quarter"}]);
    let words = why([node("n"), made], "p").unwrap().to_string();
    assert_eq!(
        words,
        "pod ns/p: its claim gpu is not made yet from ResourceClaimTemplate quarter; if that does not exist (kubectl get \
         resourceclaimtemplate quarter -n ns), create it: kubectl apply says why one is refused\n"
    );
}

#[test]
fn who_shares_a_claim_is_a_note() {
    let mut reserved = held("mine", "n", "a", Some("1Gi"));
    reserved["status"]["reservedFor"] = json!([{"resource": "pods", "name": "first", "uid": "1"},
        {"resource": "pods", "name": "p", "uid": "2"}]);
    let note = |claim: Value, others: &[Value]| {
        let all = one_node([gpu("a", "80Gi")], [claim, pod("p", &["mine"])]);
        let answer = why(all.into_iter().chain(others.iter().cloned()), "p").unwrap();
        assert!(answer.fits(), "{answer}");
        answer.notes
    };
    let words = |pods: &str| {
        format!(
            "claim ns/mine is also used by pods {pods}: they share its GPU, and its limit is one for all of them. For a \
             share each, name a ResourceClaimTemplate"
        )
    };
    assert_eq!(note(reserved, &[]), [words("first")]);
    let mut ended = pod("ended", &["mine"]);
    ended["status"] = json!({"phase": "Succeeded"});
    let others = [
        pod("third", &["mine"]),
        pod("second", &["mine"]),
        pod("else", &["x"]),
        ended,
    ];
    assert_eq!(note(memory("mine", "1Gi"), &others), [words("second, third")]);
    assert_eq!(note(memory("mine", "1Gi"), &others[2..]), [""; 0]);
}

/// The size of a tainted GPU is not known.
#[test]
fn more_than_any_gpu_has_never_fits() {
    let words = "no GPU of the cluster that matches has more memory than 80Gi, so this never fits, however long it waits: \
                 ask for at most that, or add a GPU with more";
    let said = |asked: &str, devices: Vec<Value>| {
        let all = two_nodes(
            devices,
            [gpu("small", "40Gi")],
            [holds("h", "a", "79Gi", "0"), memory("mine", asked)],
        );
        let answer = why(all, "mine").unwrap();
        assert!(!answer.fits());
        answer.to_string()
    };
    let text = said("100Gi", vec![gpu("a", "80Gi")]);
    assert!(text.contains(words) && !text.contains("would fit"), "{text}");
    let text = said("60Gi", vec![gpu("a", "80Gi")]);
    assert!(!text.contains("never"), "{text}");
    let mut tainted = gpu("b", "160Gi");
    tainted["taints"] = json!([{"key": "health", "effect": "NoSchedule"}]);
    let text = said("100Gi", vec![gpu("a", "80Gi"), tainted]);
    assert!(!text.contains("never"), "{text}");
    // If only one node is checked, nothing is said about the cluster.
    let all = [
        node("n"),
        node("m"),
        class(),
        slice("n", [gpu("a", "80Gi")]),
        memory("mine", "100Gi"),
    ];
    let (subject, options) = (
        Subject::parse("mine", "ns").unwrap(),
        Options {
            node: Some("n".to_owned()),
            ..Options::default()
        },
    );
    let text = explain(&objects(all), &subject, &options, Time::default())
        .unwrap()
        .to_string();
    assert!(
        !text.contains("never") && text.contains("1 of 2 nodes were looked at"),
        "{text}"
    );
}

#[test]
fn sizes_have_one_unit_unless_rounding_hides_the_difference() {
    for (asked, words) in [
        ("57000Mi", "memory: 55.6Gi wanted, 55.3Gi of 80Gi free"),
        ("56703Mi", "memory: 56703Mi wanted, 56702Mi of 80Gi free"),
    ] {
        let all = one_node(
            [gpu("a", "80Gi")],
            [holds("h", "a", "25218Mi", "0"), memory("mine", asked)],
        );
        let text = why(all, "mine").unwrap().to_string();
        assert!(text.contains(words), "{text}");
    }
}
