//! The annotation `dra.vgpu/translated`: what a pod asked for, and the requests that replace it.
//!
//! The controller makes the templates from it, an update uses it to find out what the original pod asked for, and it
//! shows readers why the pod's resources differ from the manifest. Anybody who may create a pod can write it, so
//! everything in it is checked: a template's name must be the hash of its request, and a request must be within the
//! usual bounds. Whoever forges one only gets a claim that they could have written themselves.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use serde::{Deserialize, Serialize};
use vgpu_api::config::Dialect;

use crate::pod::annotation_at;
use crate::problem::Problem;
use crate::request::Request;
use crate::translation::NamedRequest;

/// The annotation's key.
pub const TRANSLATED: &str = "dra.vgpu/translated";
/// How the names of the claims in a translated pod's `spec.resourceClaims` begin.
pub const CLAIM_PREFIX: &str = "vgpu-translated-";
/// All annotations of a pod have at most 256 KiB together.
pub(crate) const LONGEST: usize = 128 << 10;

/// The annotation's content.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Record {
    /// Each container that asked.
    pub containers: Vec<Asked>,
    /// The requests by the names of their templates.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub requests: BTreeMap<String, Request>,
    /// The scheduler that the pod named, if it was replaced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduler_name: Option<String>,
}

/// What one container asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Asked {
    /// The container's name.
    pub name: String,
    pub dialect: Dialect,
    /// The limits and requests that were removed, as they were written.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub limits: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub requests: BTreeMap<String, String>,
    /// KAI's annotations, which stay in the pod.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// The claim's name in the pod. None if the container asked for no GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim: Option<String>,
    /// The template's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
}

impl Record {
    /// The record of a pod. `None` if it was not translated.
    ///
    /// # Errors
    /// The annotation is not in the form that a translation writes.
    pub fn of(pod: &Pod) -> Result<Option<Self>, Problem> {
        let annotation = pod.metadata.annotations.as_ref().and_then(|all| all.get(TRANSLATED));
        annotation.map(|text| Self::parse(text)).transpose()
    }

    fn parse(text: &str) -> Result<Self, Problem> {
        let bad = |why: String| {
            let advice = format!("is not what a translation writes ({why}); remove the annotation");
            Problem::invalid(annotation_at(TRANSLATED), text, advice)
        };
        if text.len() > LONGEST {
            return Err(bad(format!("it has {} bytes", text.len())));
        }
        let record: Self = serde_json::from_str(text).map_err(|why| bad(why.to_string()))?;
        for (name, request) in &record.requests {
            if *name != request.name() {
                return Err(bad(format!("requests.{name} is not the request of that name")));
            }
            request.check().map_err(|why| bad(format!("requests.{name}.{why}")))?;
        }
        for asked in &record.containers {
            let is_ours = |claim: &String| claim.starts_with(CLAIM_PREFIX);
            if !asked.claim.as_ref().is_none_or(is_ours) {
                return Err(bad(format!("a claim's name does not begin with {CLAIM_PREFIX}")));
            }
            let is_known = |template: &String| record.requests.contains_key(template);
            if asked.claim.is_some() != asked.template.is_some() || !asked.template.as_ref().is_none_or(is_known) {
                return Err(bad("a container's template has no request".to_owned()));
            }
        }
        Ok(record)
    }

    /// The annotation's value.
    #[must_use]
    pub fn text(&self) -> String {
        // Cannot fail: it has only texts, lists and numbers.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// The request of a container. `None` if it got none.
    #[must_use]
    pub fn request(&self, container: &str) -> Option<&Request> {
        let asked = self.containers.iter().find(|asked| asked.name == container)?;
        self.requests.get(asked.template.as_ref()?)
    }

    /// The templates that the pod's claims need.
    #[must_use]
    pub fn templates(&self) -> Vec<NamedRequest> {
        let named = |(name, request): (&String, &Request)| NamedRequest {
            name: name.clone(),
            request: request.clone(),
        };
        self.requests.iter().map(named).collect()
    }

    /// Pairs of a claim's name in the pod and its template's name, in order, without repetition.
    pub(crate) fn claims(&self) -> Vec<(&str, &str)> {
        let mut claims: Vec<(&str, &str)> = self
            .containers
            .iter()
            .filter_map(|asked| Some((asked.claim.as_deref()?, asked.template.as_deref()?)))
            .collect();
        claims.sort_unstable();
        claims.dedup_by_key(|(claim, _)| *claim);
        claims
    }
}

/// The templates that a pod's claims need, from its annotation; empty for a pod that was not translated.
///
/// # Errors
/// The errors of [`Record::of`].
pub fn recorded(pod: &Pod) -> Result<Vec<NamedRequest>, Problem> {
    Ok(Record::of(pod)?.map(|record| record.templates()).unwrap_or_default())
}
