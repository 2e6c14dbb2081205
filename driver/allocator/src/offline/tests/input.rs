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
fn an_object_that_cannot_be_read_is_refused_with_its_field() {
    let claim = |version: &str, devices: Value| json!({"kind": "ResourceClaim", "apiVersion": version, "metadata": {"name": "c"}, "spec": {"devices": devices}});
    let request =
        |capacity: Value| json!({"requests": [{"name": "r", "exactly": {"capacity": {"requests": capacity}}}]});
    let v1 = "resource.k8s.io/v1";
    for (document, words) in [
        (
            claim("resource.k8s.io/v1beta1", json!({})),
            "apiVersion \"resource.k8s.io/v1beta1\" is not read; convert it to resource.k8s.io/v1",
        ),
        (
            claim(v1, request(json!({"memory": "20GB"}))),
            "spec.devices.requests[0].exactly.capacity.requests.memory: \"20GB\" is not a quantity",
        ),
        (
            claim(v1, json!({"requests": 1})),
            "spec.devices.requests: 1 is not a list; write [1]",
        ),
    ] {
        let error = Objects::default().add(document, "f.yaml").unwrap_err().to_string();
        assert!(error.starts_with(words), "{error}");
    }
    let mut objects = Objects::default();
    let nothing = claim(v1, request(json!({"memory": null, "cores": 10})));
    objects.add(nothing.clone(), "f.yaml").unwrap();
    let twice = objects.add(nothing, "g.yaml").unwrap_err().to_string();
    assert_eq!(twice, "is given twice, in f.yaml too; leave one of them out");
}

#[test]
fn other_kinds_are_left_out() {
    let mut objects = Objects::default();
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "ns"}});
    objects.add(pod, "f").unwrap();
    assert_eq!(objects.ignored(), &["Pod ns/p".to_owned()]);
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
