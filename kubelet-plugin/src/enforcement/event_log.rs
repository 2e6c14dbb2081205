//! Records which objects already have which event: one log for all events.
//!
//! How it fails: an event that cannot be created is tried again in the next round. A round ends after three failures:
//! if the API server is down, each may take as long as the timeout of a connection. After a restart of the plugin,
//! problems that still exist are reported once more.

use crate::api::{Claims, Error, Events};
use crate::dra::share::ClaimId;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::resource::v1::ResourceClaimConsumerReference;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// How often a claim is read again although all of its pods have the event: it may have a new pod.
const READ_EVERY: Duration = Duration::from_secs(60);
/// How many requests may fail in one round.
const FAILURES: usize = 3;

/// An event that is due.
pub(crate) struct Notice {
    pub reason: &'static str,
    /// What the event is about. While this lasts, an object has one event of this reason and subject.
    pub subject: String,
    pub on: On,
    /// The text; it gets the names of all pods of the claim.
    pub note: Note,
}

pub(crate) type Note = Box<dyn Fn(&str) -> String + Send + Sync>;

/// The objects that get an event.
pub(crate) enum On {
    PodsOf(ClaimId),
    Object(ObjectReference),
}

/// The objects that have an event.
#[derive(Debug, Default)]
pub(crate) struct EventLog {
    /// As (reason, subject, UID).
    created: BTreeSet<(&'static str, String, String)>,
    /// When all pods of a claim were last seen to have an event, by (reason, subject).
    complete: BTreeMap<(&'static str, String), Instant>,
    /// Requests of this round that failed.
    failures: usize,
}

// === impl EventLog ===

impl EventLog {
    /// Begins a round, in which requests may fail again.
    pub(crate) fn begin_round(&mut self) {
        self.failures = 0;
    }

    /// Forgets the subjects for which `lasts` returns false. If such a subject returns, the event is created again.
    pub(crate) fn keep(&mut self, reason: &str, lasts: impl Fn(&str) -> bool) {
        self.created
            .retain(|(known, subject, _)| *known != reason || lasts(subject));
        self.complete
            .retain(|(known, subject), _| *known != reason || lasts(subject));
    }

    /// Returns true if some object has the event.
    pub(crate) fn has(&self, reason: &str, subject: &str) -> bool {
        self.created
            .iter()
            .any(|(known, of, _)| *known == reason && of == subject)
    }

    /// Creates the due events of one reason, and forgets all other subjects of this reason.
    pub(crate) async fn report<A: Claims + Events>(&mut self, api: &A, reason: &str, notices: &[Notice]) {
        self.keep(reason, |subject| notices.iter().any(|notice| notice.subject == subject));
        for notice in notices {
            self.warn_of_lasting(api, notice).await;
        }
    }

    /// Creates the event of a lasting problem on each object that does not have it. If all pods of a claim have it
    /// already, the claim is not read in every round.
    pub(crate) async fn warn_of_lasting<A: Claims + Events>(&mut self, api: &A, notice: &Notice) {
        let key = (notice.reason, notice.subject.clone());
        let is_complete = self
            .complete
            .get(&key)
            .is_some_and(|since| since.elapsed() < READ_EVERY);
        let has_pods = matches!(notice.on, On::PodsOf(_));
        if !is_complete && self.warn(api, notice).await && has_pods {
            self.complete.insert(key, Instant::now());
        }
    }

    /// Creates the event on each object that does not have it. Returns true if all have it now.
    pub(crate) async fn warn<A: Claims + Events>(&mut self, api: &A, notice: &Notice) -> bool {
        if self.failures >= FAILURES {
            return false;
        }
        let reason = notice.reason;
        let (objects, names) = match &notice.on {
            On::Object(object) => (vec![object.clone()], String::new()),
            On::PodsOf(id) => match pods_of(api, id).await {
                Ok(pods) => {
                    let names: Vec<&str> = pods.iter().map(|pod| pod.name.as_str()).collect();
                    let references = pods.iter().map(|pod| pod_reference(&id.namespace, &pod.name, &pod.uid));
                    (references.collect(), names.join(", "))
                }
                Err(error) => {
                    self.failures += 1;
                    tracing::warn!(%error, "cannot create the {reason} event on the pods of {id}; retrying");
                    return false;
                }
            },
        };
        let mut all = true;
        for object in objects {
            let key = (reason, notice.subject.clone(), object.uid.clone().unwrap_or_default());
            if self.created.contains(&key) {
                continue;
            }
            if self.failures >= FAILURES {
                return false;
            }
            let name = format!(
                "{} {}",
                object.kind.as_deref().unwrap_or_default(),
                object.name.as_deref().unwrap_or_default()
            );
            match api.warn(object, reason, (notice.note)(&names)).await {
                Ok(()) => drop(self.created.insert(key)),
                Err(error) => {
                    tracing::warn!(%error, "cannot create the {reason} event on {name}; retrying");
                    self.failures += 1;
                    all = false;
                }
            }
        }
        all
    }
}

/// The pods of a claim; none if it is gone, because all of its pods are gone before it.
async fn pods_of<A: Claims>(api: &A, id: &ClaimId) -> Result<Vec<ResourceClaimConsumerReference>, Error> {
    let claim = api.get(&id.namespace, &id.name).await?;
    let claim = claim.filter(|claim| claim.metadata.uid.as_ref() == Some(&id.uid));
    let holders = claim.and_then(|claim| claim.status?.reserved_for).unwrap_or_default();
    Ok(holders.into_iter().filter(|holder| holder.resource == "pods").collect())
}

pub(crate) fn pod_reference(namespace: &str, name: &str, uid: &str) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".into()),
        kind: Some("Pod".into()),
        namespace: Some(namespace.into()),
        name: Some(name.into()),
        uid: Some(uid.into()),
        ..ObjectReference::default()
    }
}
