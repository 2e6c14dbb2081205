//! Tests what is allocated, and how the result is written.

use super::*;

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
    // While the newer generation is incomplete, the older one is not used.
    new["spec"]["pool"]["resourceSliceCount"] = 2.into();
    let report = report([node("n"), class(), old, new, memory("c", "1Gi")]);
    assert_eq!(kinds(&report), [(ReasonKind::IncompletePool, "")]);
}

#[test]
fn a_claim_may_mix_drivers() {
    let mut other = slice("n", [gpu("b", "80Gi")]);
    other["spec"]["driver"] = "other".into();
    other["spec"]["pool"]["name"] = "others".into();
    other["metadata"]["name"] = "others-slice".into();
    let any = json!({"kind": "DeviceClass", "metadata": {"name": "any"}, "spec": {"selectors": [
        {"cel": {"expression": "device.driver == \"other\""}}]}});
    let mut claim = claim("c", json!({}));
    let requests = claim["spec"]["devices"]["requests"].as_array_mut().unwrap();
    requests.push(json!({"name": "s", "exactly": {"deviceClassName": "any"}}));
    let report = report([node("n"), class(), any, slice("n", [gpu("a", "80Gi")]), other, claim]);
    assert_eq!(devices(&report), ["n/a", "others/b"]);
}

#[test]
fn a_thousand_claims_take_no_thousand_frames() {
    let claims = (0..2000).map(|index| memory(&format!("c{index}"), "1Mi"));
    let all = [node("n"), class(), slice("n", [gpu("a", "80Gi")])]
        .into_iter()
        .chain(claims);
    assert_eq!(devices(&report(all)).len(), 2000);
}
