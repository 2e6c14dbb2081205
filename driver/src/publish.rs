//! Writes a notice as an Event (events.k8s.io/v1) on its pod or claim.
//!
//! An event's name is a digest of object, reason and text. So the same notice finds its event again and increases its
//! count, also after a restart.

use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::{Event, EventSeries};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};

use vgpu_planner::explain::MessageKind;
use vgpu_planner::{About, Object};

use crate::notices::Notice;

/// `reportingController` of the events of this program.
pub(crate) const CONTROLLER: &str = "dra.vgpu/controller";
/// A name may have 253 characters; the digest and its dot take 17 of them.
const NAME_MAX: usize = 236;
const TIMEOUT: Duration = Duration::from_secs(10);

/// The result of a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Delivery {
    Said,
    /// The API server refused it: the namespace is being deleted, or a permission is missing.
    Refused,
    /// A transient failure: to be retried.
    Failed,
}

/// Delivers a notice.
pub(crate) async fn deliver(client: &Client, instance: &str, notice: &Notice) -> Delivery {
    let said = tokio::time::timeout(TIMEOUT, say(client, instance, notice)).await;
    match said {
        Ok(Ok(())) => Delivery::Said,
        Ok(Err(kube::Error::Api(status))) if (400..500).contains(&status.code) && status.code != 429 => {
            tracing::warn!(object = %notice.topic.about.key(), %status, "the API server refused an event");
            Delivery::Refused
        }
        Ok(Err(error)) => {
            tracing::warn!(object = %notice.topic.about.key(), %error, "an event could not be written and will be tried again");
            Delivery::Failed
        }
        Err(_) => {
            tracing::warn!(object = %notice.topic.about.key(), "writing an event took more than {TIMEOUT:?}; it will be tried again");
            Delivery::Failed
        }
    }
}

async fn say(client: &Client, instance: &str, notice: &Notice) -> Result<(), kube::Error> {
    let api: Api<Event> = Api::namespaced(client.clone(), namespace(&notice.topic.about));
    let now = MicroTime(Timestamp::now());
    let event = event(instance, notice, now.clone());
    match api.create(&PostParams::default(), &event).await {
        Err(kube::Error::Api(status)) if status.is_already_exists() => {
            // A series counts from 2: one event, and then another.
            let count = i32::try_from(notice.count).unwrap_or(i32::MAX).max(2);
            let patch = serde_json::json!({"series": EventSeries { count, last_observed_time: now }});
            let name = event.metadata.name.unwrap_or_default();
            api.patch(&name, &PatchParams::default(), &Patch::Merge(patch))
                .await
                .map(drop)
        }
        other => other.map(drop),
    }
}

/// The namespace of events about an object. For an object without a namespace it is this one, by Kubernetes' rule.
fn namespace(about: &About) -> &str {
    match about.namespace.as_str() {
        "" => "default",
        namespace => namespace,
    }
}

fn event(instance: &str, notice: &Notice, now: MicroTime) -> Event {
    let about = &notice.topic.about;
    let (version, kind) = match about.object {
        Object::Pod => ("v1", "Pod"),
        Object::Claim => ("resource.k8s.io/v1", "ResourceClaim"),
        Object::Quota => ("dra.vgpu/v1alpha1", "VgpuQuota"),
        Object::QuotaDefault => ("dra.vgpu/v1alpha1", "VgpuQuotaDefault"),
    };
    Event {
        metadata: ObjectMeta {
            namespace: Some(namespace(about).to_owned()),
            name: Some(name(notice)),
            ..ObjectMeta::default()
        },
        type_: Some("Warning".to_owned()),
        reason: Some(notice.message.kind.reason().to_owned()),
        action: Some(action(notice.message.kind).to_owned()),
        note: Some(notice.message.text.clone()),
        event_time: Some(now),
        regarding: Some(ObjectReference {
            api_version: Some(version.to_owned()),
            kind: Some(kind.to_owned()),
            namespace: Some(about.namespace.clone()).filter(|namespace| !namespace.is_empty()),
            name: Some(about.name.clone()),
            uid: Some(about.uid.clone()),
            ..ObjectReference::default()
        }),
        reporting_controller: Some(CONTROLLER.to_owned()),
        reporting_instance: Some(instance.to_owned()),
        ..Event::default()
    }
}

fn action(kind: MessageKind) -> &'static str {
    match kind {
        MessageKind::Decided(_) => "Allocate",
        MessageKind::Waiting | MessageKind::Refused | MessageKind::Room | MessageKind::NoClaim => "Explain",
    }
}

fn name(notice: &Notice) -> String {
    let mut digest = Fnv::new();
    for part in [
        &notice.topic.about.uid,
        notice.message.kind.reason(),
        &notice.message.text,
    ] {
        digest.add(part.as_bytes());
        digest.add(&[0]);
    }
    let object: String = notice.topic.about.name.chars().take(NAME_MAX).collect();
    format!("{}.{:016x}", object.trim_end_matches(['.', '-']), digest.0)
}

/// FNV-1a: the same in every build and release, which the standard library's hasher does not promise.
struct Fnv(u64);

impl Fnv {
    fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    fn add(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vgpu_planner::explain::Message;

    use crate::notices::Topic;

    fn notice(pod: &str, text: &str) -> Notice {
        Notice {
            topic: Topic {
                about: About {
                    object: Object::Pod,
                    namespace: "default".into(),
                    name: pod.into(),
                    uid: "1234".into(),
                },
                decided: None,
            },
            message: Message {
                kind: MessageKind::Waiting,
                text: text.into(),
            },
            lasting: None,
            count: 1,
        }
    }

    #[test]
    fn the_same_text_has_the_same_name_in_every_release() {
        assert_eq!(name(&notice("train", "full")), name(&notice("train", "full")));
        assert_ne!(name(&notice("train", "full")), name(&notice("train", "fuller")));
        let mut another = notice("train", "full");
        another.topic.about.uid = "1235".into();
        assert_ne!(name(&notice("train", "full")), name(&another));
        // Golden: FNV-1a of the three parts, each with a zero byte behind it.
        assert_eq!(name(&notice("train", "full")), "train.dd3a517eae7ac1a3");
    }

    #[test]
    fn events_of_objects_without_a_namespace_are_in_default() {
        let mut notice = notice("teams", "narrow it");
        notice.topic.about.namespace = String::new();
        notice.topic.about.object = Object::QuotaDefault;
        let event = event("x", &notice, MicroTime(Timestamp::UNIX_EPOCH));
        let regarding = event.regarding.unwrap();
        assert_eq!(event.metadata.namespace.as_deref(), Some("default"));
        assert_eq!(
            (regarding.kind.as_deref(), regarding.namespace),
            (Some("VgpuQuotaDefault"), None)
        );
    }

    #[test]
    fn a_long_name_still_makes_a_valid_one() {
        let name = name(&notice(&format!("{}.-", "a".repeat(235)), "full"));
        assert_eq!(name.len(), 235 + 17);
        assert!(!name.contains("-.") && !name.contains(".."));
    }
}
