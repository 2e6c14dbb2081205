//! The facts of a translated pod that decisions need: what its spec and its annotation agree on.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use vgpu_api::PodRef;
use vgpu_dialects::{Record, Request, TRANSLATED};

use crate::bound::LEGACY_VIEW;

/// A pod with the annotation of a translation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TranslatedPod {
    pub at: PodRef,
    /// The requests of the templates that `spec.resourceClaims` names, by name. If a request is only in the annotation,
    /// no template is made for it: nothing would use it.
    pub needs: BTreeMap<String, Request>,
    /// Why the annotation is not in the form that a translation writes.
    pub problem: Option<String>,
    /// It has finished or is being deleted: nothing more is done for it.
    pub is_over: bool,
    pub is_bound: bool,
    /// True if it already has the annotations of its dialect.
    pub has_legacy_view: bool,
}

impl TranslatedPod {
    /// `None` for a pod that was not translated.
    #[must_use]
    pub fn of(pod: &Pod) -> Option<Self> {
        let meta = &pod.metadata;
        let annotation = |key: &str| meta.annotations.as_ref().and_then(|all| all.get(key));
        annotation(TRANSLATED)?;
        let (record, problem) = match Record::of(pod) {
            Ok(record) => (record.unwrap_or_default(), None),
            Err(problem) => (Record::default(), Some(problem.to_string())),
        };
        let spec = pod.spec.as_ref();
        let claims = spec.iter().flat_map(|spec| spec.resource_claims.iter().flatten());
        let needs = claims
            .filter_map(|claim| {
                record
                    .requests
                    .get_key_value(claim.resource_claim_template_name.as_ref()?)
            })
            .map(|(name, request)| (name.clone(), request.clone()))
            .collect();
        let uid = meta.uid.clone().unwrap_or_default();
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        Some(Self {
            needs,
            problem,
            is_over: meta.deletion_timestamp.is_some() || matches!(phase, Some("Succeeded" | "Failed")),
            is_bound: spec.is_some_and(|spec| spec.node_name.as_ref().is_some_and(|node| !node.is_empty())),
            has_legacy_view: annotation(LEGACY_VIEW) == Some(&uid),
            at: PodRef {
                namespace: meta.namespace.clone().unwrap_or_default(),
                name: meta.name.clone().unwrap_or_default(),
                uid,
            },
        })
    }

    /// `namespace/name`.
    #[must_use]
    pub fn key(&self) -> String {
        format!("{}/{}", self.at.namespace, self.at.name)
    }
}
