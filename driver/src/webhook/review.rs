//! Answers one AdmissionReview. Pure: the answer depends on the pod and the settings alone.

use k8s_openapi::ByteString;
use serde_json::value::RawValue;
use vgpu_api::decode::from_json;
use vgpu_dialects::{Pod, Record, Refusal, Settings, Translation, translate, update, without_profile};

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

/// A body that is not a review of a pod, so that it cannot be answered.
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
    /// With warnings.
    Unchanged(Vec<String>),
    Translated(Box<Translation>),
    Refused(String),
    Reported(Vec<String>),
}

fn decide(request: &Request<'_>, settings: &Settings, mode: Mode) -> Verdict {
    match request.operation.as_str() {
        "CREATE" => match pod("request.object", request.object) {
            Ok(pod) => {
                let result = translate(&pod, settings);
                let verdict = match mode {
                    Mode::Translate => apply(result),
                    Mode::Report => report(result),
                };
                match verdict {
                    Verdict::Unchanged(_) => {
                        let unread = without_profile(&pod, settings);
                        Verdict::Unchanged(unread.iter().map(ToString::to_string).collect())
                    }
                    other => other,
                }
            }
            Err(why) => Verdict::Refused(why),
        },
        // A pod that was translated when it was created stays translated even in mode `Report`; otherwise a second
        // `kubectl apply` of its manifest would fail.
        "UPDATE" => {
            let old = pod("request.oldObject", request.old_object);
            match old.and_then(|old| Ok((old, pod("request.object", request.object)?))) {
                Ok((old, new)) => apply(update(&old, &new, settings)),
                Err(why) => Verdict::Refused(why),
            }
        }
        _ => Verdict::Unchanged(Vec::new()),
    }
}

/// The API server reads a pod before it calls a webhook, so this only fails because of a bug in the API server or here.
fn pod(field: &str, text: Option<&RawValue>) -> Result<Pod, String> {
    from_json(text.map_or("null", RawValue::get)).map_err(|why| {
        format!("{field}: the pod cannot be read ({why}); label it hami.io/webhook: ignore to create it untranslated")
    })
}

fn apply(result: Result<Option<Translation>, Refusal>) -> Verdict {
    match result {
        Ok(None) => Verdict::Unchanged(Vec::new()),
        Ok(Some(translation)) => Verdict::Translated(Box::new(translation)),
        Err(refusal) => Verdict::Refused(refusal.to_string()),
    }
}

fn report(result: Result<Option<Translation>, Refusal>) -> Verdict {
    match result {
        Ok(None) => Verdict::Unchanged(Vec::new()),
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
            Self::Unchanged(_) => Outcome::Unchanged,
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
            Self::Unchanged(warnings) => Response { warnings, ..allowed },
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
#[path = "review_test.rs"]
mod tests;
