//! Which pods of a claim have an event already.

use crate::api::{Claims, Events};
use crate::share::ClaimId;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::resource::v1::ResourceClaimConsumerReference;
use std::collections::BTreeSet;

/// The pods of a claim; none if it is gone, because all of its pods are gone before it.
pub(crate) async fn pods_of<A: Claims>(
    api: &A,
    id: &ClaimId,
) -> Result<Vec<ResourceClaimConsumerReference>, crate::api::Error> {
    let claim = api.get(&id.namespace, &id.name).await?;
    let claim = claim.filter(|claim| claim.metadata.uid.as_ref() == Some(&id.uid));
    let holders = claim.and_then(|claim| claim.status?.reserved_for).unwrap_or_default();
    Ok(holders.into_iter().filter(|holder| holder.resource == "pods").collect())
}

/// The pods that have an event, as (UID of the claim, UID of the pod), while its reason lasts. After a restart of the
/// plugin they get it once more.
#[derive(Debug, Default)]
pub struct Told(BTreeSet<(String, String)>);

impl Told {
    /// Forgets the claims for which there is no reason any more: when it returns, so does the event.
    pub(crate) fn keep(&mut self, claims: &[&str]) {
        self.0.retain(|(claim, _)| claims.contains(&claim.as_str()));
    }

    /// Creates the event on each pod of the claim that does not have it. `note` gets the names of all its pods. Returns true
    /// if all have it now.
    pub(crate) async fn warn<A: Claims + Events>(
        &mut self,
        api: &A,
        id: &ClaimId,
        reason: &'static str,
        note: impl Fn(&str) -> String,
    ) -> bool {
        let pods = match pods_of(api, id).await {
            Ok(pods) => pods,
            Err(error) => {
                tracing::warn!(%error, "cannot create the {reason} event on the pods of {id}; retrying");
                return false;
            }
        };
        let names: Vec<&str> = pods.iter().map(|pod| pod.name.as_str()).collect();
        let names = names.join(", ");
        let mut all = true;
        for pod in &pods {
            let key = (id.uid.clone(), pod.uid.clone());
            if self.0.contains(&key) {
                continue;
            }
            match api.warn(pod_reference(id, pod), reason, note(&names)).await {
                Ok(()) => drop(self.0.insert(key)),
                Err(error) => {
                    tracing::warn!(%error, "cannot create the {reason} event on pod {} of {id}; retrying", pod.name);
                    all = false;
                }
            }
        }
        all
    }
}

pub(crate) fn pod_reference(id: &ClaimId, pod: &ResourceClaimConsumerReference) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".into()),
        kind: Some("Pod".into()),
        namespace: Some(id.namespace.clone()),
        name: Some(pod.name.clone()),
        uid: Some(pod.uid.clone()),
        ..ObjectReference::default()
    }
}
