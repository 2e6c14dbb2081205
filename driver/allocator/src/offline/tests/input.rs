//! Mistakes in the input.

use super::*;

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
