//! Tests the answers to reviews of pods.

use serde_json::{Value, json};

use super::*;

fn written(limits: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"},
        "spec": {"containers": [{"name": "main", "image": "i", "resources": {"limits": limits}}]}})
}

fn hami() -> Value {
    written(json!({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000", "nvidia.com/gpucores": "30"}))
}

fn asked(operation: &str, object: &Value, old: &Value) -> Vec<u8> {
    let kind = json!({"group": "", "version": "v1", "kind": "Pod"});
    let request = json!({"uid": "u-1", "kind": kind, "operation": operation, "object": object, "oldObject": old});
    let review = json!({"apiVersion": VERSION, "kind": KIND, "request": request});
    review.to_string().into_bytes()
}

fn answered(operation: &str, object: &Value, old: &Value, mode: Mode) -> (Outcome, Value) {
    let answer = review(&asked(operation, object, old), &Settings::default(), mode).unwrap();
    let body: Value = serde_json::from_slice(&answer.body).unwrap();
    assert_eq!(
        (&body["apiVersion"], &body["kind"]),
        (&json!("admission.k8s.io/v1"), &json!("AdmissionReview"))
    );
    assert_eq!(body["response"]["uid"], "u-1");
    (answer.outcome, body["response"].clone())
}

fn created(object: &Value, mode: Mode) -> (Outcome, Value) {
    answered("CREATE", object, &Value::Null, mode)
}

/// The pod after the answer's patch, as the API server applies it.
fn patched(object: &Value, response: &Value) -> Value {
    assert_eq!(response["allowed"], true, "{response}");
    assert_eq!(response["patchType"], "JSONPatch", "{response}");
    let patch: ByteString = serde_json::from_value(response["patch"].clone()).expect("base64");
    let patch: json_patch::Patch = serde_json::from_slice(&patch.0).expect("a patch");
    let mut object = object.clone();
    json_patch::patch(&mut object, &patch).expect("it applies");
    object
}

#[test]
fn a_pod_of_hami_gets_a_claim_instead_of_limits() {
    let (outcome, response) = created(&hami(), Mode::Translate);
    assert_eq!(outcome, Outcome::Translated);
    let pod = patched(&hami(), &response);
    assert_eq!(
        pod["spec"]["containers"][0]["resources"],
        json!({"limits": {}, "claims": [{"name": "vgpu-translated-0"}]})
    );
    let claim = &pod["spec"]["resourceClaims"][0];
    assert_eq!(claim["name"], "vgpu-translated-0");
    assert!(claim["resourceClaimTemplateName"].is_string(), "{pod}");
    let warnings = response["warnings"].to_string();
    assert!(warnings.contains("ResourceQuotas for nvidia.com/gpu"), "{warnings}");
}

#[test]
fn a_pod_without_a_dialect_is_allowed_as_it_is() {
    let pod = written(json!({"cpu": "1"}));
    let (outcome, response) = created(&pod, Mode::Translate);
    assert_eq!(outcome, Outcome::Unchanged);
    assert_eq!(response, json!({"uid": "u-1", "allowed": true}));
}

#[test]
fn an_instance_without_a_profile_is_warned_of() {
    let (outcome, response) = created(&written(json!({"nvidia.com/mig-small": "1"})), Mode::Translate);
    assert_eq!((outcome, &response["patch"]), (Outcome::Unchanged, &Value::Null));
    let warnings = response["warnings"].to_string();
    assert!(
        warnings.contains("limits[nvidia.com/mig-small]: is not read: it names no profile"),
        "{warnings}"
    );
    let (outcome, _) = created(&written(json!({"nvidia.com/mig-1g.10gb": "1"})), Mode::Translate);
    assert_eq!(outcome, Outcome::Translated);
}

#[test]
fn a_bad_pod_is_refused_with_field_value_and_advice() {
    let pod = written(json!({"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "150"}));
    let (outcome, response) = created(&pod, Mode::Translate);
    assert_eq!(outcome, Outcome::Refused);
    assert_eq!(
        (&response["allowed"], &response["patch"]),
        (&json!(false), &Value::Null)
    );
    assert_eq!(response["status"]["code"], 422);
    let message = response["status"]["message"].as_str().unwrap();
    for part in [
        "spec.containers[0].resources.limits[nvidia.com/gpumem-percentage]",
        "\"150\"",
        "0 to 100",
    ] {
        assert!(message.contains(part), "{part}: {message}");
    }
}

#[test]
fn in_report_nothing_changes_and_warnings_say_what_would() {
    let (outcome, response) = created(&hami(), Mode::Report);
    assert_eq!(outcome, Outcome::Reported);
    assert_eq!((&response["allowed"], &response["patch"]), (&json!(true), &Value::Null));
    let first = response["warnings"][0].as_str().unwrap();
    assert!(
        first.contains("container main gets a claim from template vgpu-"),
        "{first}"
    );
    let bad = written(json!({"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "150"}));
    let (outcome, response) = created(&bad, Mode::Report);
    assert_eq!((outcome, &response["allowed"]), (Outcome::Reported, &json!(true)));
    let first = response["warnings"][0].as_str().unwrap();
    assert!(first.contains("it is refused: spec.containers[0]"), "{first}");
    let plain = created(&written(json!({"cpu": "1"})), Mode::Report);
    assert_eq!(plain.1, json!({"uid": "u-1", "allowed": true}));
}

/// What `kubectl apply` of the same manifest sends: the limits again, beside the claims.
#[test]
fn a_second_apply_is_the_translated_pod_again_in_both_modes() {
    let translated = patched(&hami(), &created(&hami(), Mode::Translate).1);
    let mut again = translated.clone();
    again["spec"]["containers"][0]["resources"]["limits"] =
        hami()["spec"]["containers"][0]["resources"]["limits"].clone();
    for mode in [Mode::Translate, Mode::Report] {
        let (outcome, response) = answered("UPDATE", &again, &translated, mode);
        assert_eq!(outcome, Outcome::Translated, "{mode:?}");
        assert_eq!(patched(&again, &response), translated, "{mode:?}");
    }
    let (outcome, _) = answered("UPDATE", &translated, &translated, Mode::Translate);
    assert_eq!(outcome, Outcome::Unchanged);
    let (outcome, _) = answered("UPDATE", &hami(), &hami(), Mode::Translate);
    assert_eq!(outcome, Outcome::Unchanged, "a pod from before the webhook");
}

/// KAI's annotations stay, so a second apply sends nothing but the scheduler again.
#[test]
fn a_second_apply_of_a_pod_of_kai_changes_nothing() {
    let settings = Settings {
        schedulers: ["kai-scheduler".to_owned()].into(),
        ..Settings::default()
    };
    let mut written = written(json!({}));
    written["metadata"]["annotations"] = json!({"gpu-fraction": "0.5"});
    written["spec"]["schedulerName"] = json!("kai-scheduler");
    let answer = |operation: &str, object: &Value, old: &Value| {
        let body = review(&asked(operation, object, old), &settings, Mode::Translate)
            .unwrap()
            .body;
        patched(object, &serde_json::from_slice::<Value>(&body).unwrap()["response"])
    };
    let translated = answer("CREATE", &written, &Value::Null);
    assert_eq!(translated["spec"]["schedulerName"], "default-scheduler");
    let mut again = translated.clone();
    again["spec"]["schedulerName"] = json!("kai-scheduler");
    assert_eq!(answer("UPDATE", &again, &translated), translated);
}

#[test]
fn a_labelled_pod_is_left_alone() {
    let mut pod = hami();
    pod["metadata"]["labels"] = json!({"hami.io/webhook": "ignore"});
    assert_eq!(created(&pod, Mode::Translate).0, Outcome::Unchanged);
}

/// The translator reads fields that it knows. A field of a newer Kubernetes has to stay.
#[test]
fn unknown_fields_survive() {
    let mut pod = hami();
    pod["spec"]["ofTheFuture"] = json!({"a": [1]});
    pod["spec"]["containers"][0]["resources"]["ofTheFuture"] = json!(true);
    let after = patched(&pod, &created(&pod, Mode::Translate).1);
    assert_eq!(after["spec"]["ofTheFuture"], json!({"a": [1]}));
    assert_eq!(after["spec"]["containers"][0]["resources"]["ofTheFuture"], true);
}

#[test]
fn a_pod_that_cannot_be_read_is_refused() {
    let mut pod = hami();
    pod["spec"]["containers"] = json!("none");
    let (outcome, response) = created(&pod, Mode::Translate);
    assert_eq!(outcome, Outcome::Refused);
    let message = response["status"]["message"].as_str().unwrap();
    assert!(
        message.starts_with("request.object: the pod cannot be read ("),
        "{message}"
    );
    let (_, response) = answered("UPDATE", &hami(), &Value::Null, Mode::Translate);
    let message = response["status"]["message"].as_str().unwrap();
    assert!(message.starts_with("request.oldObject: "), "{message}");
}

#[test]
fn what_is_no_review_of_a_pod_gets_a_clear_error() {
    let error = |body: &str| review(body.as_bytes(), &Settings::default(), Mode::Translate).unwrap_err();
    let text = |body: &str| error(body).to_string();
    assert!(
        text("{").starts_with("the body is not an AdmissionReview of admission.k8s.io/v1: EOF"),
        "{}",
        text("{")
    );
    assert!(matches!(error(""), BadReview::NotReadable(_)));
    assert!(matches!(error("[]"), BadReview::NotReadable(_)));
    assert_eq!(
        text(r#"{"apiVersion": "admission.k8s.io/v1beta1", "kind": "AdmissionReview"}"#),
        "the body is apiVersion \"admission.k8s.io/v1beta1\", kind \"AdmissionReview\"; send an AdmissionReview of \
         admission.k8s.io/v1"
    );
    let empty = r#"{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}"#;
    assert_eq!(error(empty), BadReview::NoRequest);
    let other = json!({"apiVersion": VERSION, "kind": KIND, "request": {"uid": "u", "operation": "CREATE",
        "kind": {"group": "apps", "version": "v1", "kind": "Deployment"}}});
    assert_eq!(
        error(&other.to_string()),
        BadReview::NoPod("apps/v1 Deployment".to_owned())
    );
}

#[test]
fn other_operations_are_allowed() {
    let (outcome, _) = answered("DELETE", &Value::Null, &hami(), Mode::Translate);
    assert_eq!(outcome, Outcome::Unchanged);
}

/// JSON pointers to everything in a value.
fn places(value: &Value, at: &str, all: &mut Vec<String>) {
    all.push(at.to_owned());
    let part = |key: &str| key.replace('~', "~0").replace('/', "~1");
    match value {
        Value::Object(map) => map
            .iter()
            .for_each(|(key, value)| places(value, &format!("{at}/{}", part(key)), all)),
        Value::Array(items) => items
            .iter()
            .enumerate()
            .for_each(|(number, value)| places(value, &format!("{at}/{number}"), all)),
        _ => {}
    }
}

/// A body that is cut off, or has a different value anywhere, is answered or refused. A pod that still asks for a GPU
/// is never admitted unchanged.
#[test]
fn damaged_bodies_let_no_asking_pod_through() {
    let body = asked("CREATE", &hami(), &Value::Null);
    let settings = Settings::default();
    for end in 0..body.len() {
        assert!(
            review(&body[..end], &settings, Mode::Translate).is_err(),
            "the first {end} bytes"
        );
    }
    let whole: Value = serde_json::from_slice(&body).unwrap();
    let mut all = Vec::new();
    places(&whole, "", &mut all);
    assert!(all.len() > 20, "{all:?}");
    let values = [
        json!(null),
        json!(-1),
        json!("x"),
        json!([]),
        json!({}),
        json!([[]]),
        json!(true),
    ];
    for place in &all {
        for value in &values {
            let mut damaged = whole.clone();
            *damaged.pointer_mut(place).unwrap() = value.clone();
            let Ok(answer) = review(damaged.to_string().as_bytes(), &settings, Mode::Translate) else {
                continue;
            };
            let limits = &damaged["request"]["object"]["spec"]["containers"][0]["resources"]["limits"];
            let asks = limits.as_object().is_some_and(|limits| !limits.is_empty());
            let is_create = damaged["request"]["operation"] == "CREATE";
            let through = answer.outcome == Outcome::Unchanged && is_create && asks;
            assert!(!through, "{place}: {value}: {damaged}");
        }
    }
}
