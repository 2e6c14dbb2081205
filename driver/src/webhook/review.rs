//! Answers one AdmissionReview. Pure: the answer depends on the pod and the settings alone.

use k8s_openapi::ByteString;
use serde_json::value::RawValue;
use vgpu_dialects::{Pod, Record, Refusal, Settings, Translation, translate, update};

use super::admission::{KIND, Kind, Question, Reply, Request, Response, Status, VERSION};

/// What becomes of pods that ask in a dialect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Mode {
    #[default]
    Translate,
    /// Pods are created as they are; warnings say what a translation would have done.
    Report,
}

/// An answer to the API server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// An AdmissionReview as JSON.
    pub body: Vec<u8>,
    pub outcome: Outcome,
}

/// For metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Translated,
    Unchanged,
    Refused,
    Reported,
}

impl Outcome {
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Translated => "translated",
            Self::Unchanged => "unchanged",
            Self::Refused => "refused",
            Self::Reported => "reported",
        }
    }
}

/// A body that is no review of a pod, so that nobody can be answered.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadReview {
    #[error("the body is not an AdmissionReview of {VERSION}: {0}")]
    NotReadable(String),
    #[error("the body is apiVersion {version:?}, kind {kind:?}; send an AdmissionReview of {VERSION}")]
    OtherKind { version: String, kind: String },
    #[error("request: the AdmissionReview has none; send one with the pod in request.object")]
    NoRequest,
    #[error("request.kind: {0} is not v1 Pod, the only kind that is translated; correct the webhook's rules")]
    NoPod(String),
}

/// Answers a review of a pod.
///
/// # Errors
/// The body is no review of a pod.
pub fn review(body: &[u8], settings: &Settings, mode: Mode) -> Result<Answer, BadReview> {
    let question: Question<'_> = serde_json::from_slice(body)
        .map_err(|why| BadReview::NotReadable(vgpu_quantity::shortened(&why.to_string()).into_owned()))?;
    if question.api_version != VERSION || question.kind != KIND {
        let (version, kind) = (question.api_version, question.kind);
        return Err(BadReview::OtherKind {
            version: vgpu_quantity::shortened(&version).into_owned(),
            kind: vgpu_quantity::shortened(&kind).into_owned(),
        });
    }
    let request = question.request.ok_or(BadReview::NoRequest)?;
    let Kind { group, version, kind } = &request.kind;
    if (group.as_str(), version.as_str(), kind.as_str()) != ("", "v1", "Pod") {
        let name = format!("{group}/{version} {kind}");
        return Err(BadReview::NoPod(vgpu_quantity::shortened(&name).into_owned()));
    }
    let verdict = decide(&request, settings, mode);
    let outcome = verdict.outcome();
    let reply = Reply {
        api_version: VERSION,
        kind: KIND,
        response: verdict.response(request.uid),
    };
    // Cannot fail: it has only texts.
    let body = serde_json::to_vec(&reply).unwrap_or_default();
    Ok(Answer { body, outcome })
}

enum Verdict {
    Unchanged,
    Translated(Box<Translation>),
    Refused(String),
    Reported(Vec<String>),
}

fn decide(request: &Request<'_>, settings: &Settings, mode: Mode) -> Verdict {
    match request.operation.as_str() {
        "CREATE" => match pod("request.object", request.object) {
            Ok(pod) => {
                let result = translate(&pod, settings);
                match mode {
                    Mode::Translate => apply(result),
                    Mode::Report => report(result),
                }
            }
            Err(why) => Verdict::Refused(why),
        },
        // A pod that was translated when it was created stays so in mode `Report`, too: without that, a second
        // `kubectl apply` of its manifest would fail.
        "UPDATE" => {
            let old = pod("request.oldObject", request.old_object);
            match old.and_then(|old| Ok((old, pod("request.object", request.object)?))) {
                Ok((old, new)) => apply(update(&old, &new, settings)),
                Err(why) => Verdict::Refused(why),
            }
        }
        _ => Verdict::Unchanged,
    }
}

/// The API server reads a pod before it calls a webhook, so only a fault of one of the two ends here.
fn pod(field: &str, text: Option<&RawValue>) -> Result<Pod, String> {
    let text = text.map_or("null", RawValue::get);
    serde_json::from_str(text).map_err(|why| {
        let why = why.to_string();
        let why = vgpu_quantity::shortened(&why);
        format!("{field}: the pod cannot be read ({why}); label it hami.io/webhook: ignore to create it untranslated")
    })
}

fn apply(result: Result<Option<Translation>, Refusal>) -> Verdict {
    match result {
        Ok(None) => Verdict::Unchanged,
        Ok(Some(translation)) => Verdict::Translated(Box::new(translation)),
        Err(refusal) => Verdict::Refused(refusal.to_string()),
    }
}

fn report(result: Result<Option<Translation>, Refusal>) -> Verdict {
    match result {
        Ok(None) => Verdict::Unchanged,
        Ok(Some(translation)) => {
            let mut warnings = vec![format!(
                "translate.mode is report, so this pod is not translated; with mode translate {}",
                gets(&translation.pod)
            )];
            warnings.extend(translation.warnings.iter().map(ToString::to_string));
            Verdict::Reported(warnings)
        }
        Err(refusal) => Verdict::Reported(vec![format!(
            "translate.mode is report, so this pod is not translated; with mode translate it is refused: {refusal}"
        )]),
    }
}

/// Which container gets what. A pod may have hundreds.
fn gets(pod: &Pod) -> String {
    const MOST: usize = 4;
    let record = Record::of(pod).ok().flatten().unwrap_or_default();
    let got: Vec<String> = record
        .containers
        .iter()
        .map(|asked| match &asked.template {
            Some(template) => format!("container {} gets a claim from template {template}", asked.name),
            None => format!("container {} gets no GPU", asked.name),
        })
        .collect();
    let more = match got.len().saturating_sub(MOST) {
        0 => String::new(),
        more => format!(", and {more} more containers get theirs"),
    };
    let shown: Vec<&str> = got.iter().take(MOST).map(String::as_str).collect();
    shown.join(", ") + &more
}

impl Verdict {
    const fn outcome(&self) -> Outcome {
        match self {
            Self::Unchanged => Outcome::Unchanged,
            Self::Translated(_) => Outcome::Translated,
            Self::Refused(_) => Outcome::Refused,
            Self::Reported(_) => Outcome::Reported,
        }
    }

    fn response(self, uid: String) -> Response {
        let allowed = Response {
            uid,
            allowed: true,
            ..Response::default()
        };
        match self {
            Self::Unchanged => allowed,
            Self::Translated(translation) => Response {
                patch_type: Some("JSONPatch"),
                patch: Some(ByteString(translation.patch.to_string().into_bytes())),
                warnings: translation.warnings.iter().map(ToString::to_string).collect(),
                ..allowed
            },
            Self::Refused(message) => Response {
                allowed: false,
                status: Some(Status {
                    code: 422,
                    reason: "Invalid",
                    message,
                }),
                ..allowed
            },
            Self::Reported(warnings) => Response { warnings, ..allowed },
        }
    }
}

#[cfg(test)]
mod tests {
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

    /// Every place of a JSON value, as pointers.
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

    /// A body that is cut off, or has another value in any place, is answered or refused. A pod that still asks for a
    /// GPU is never let through as it is.
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
}
