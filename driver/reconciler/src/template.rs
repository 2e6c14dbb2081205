//! Templates: the object that is created, and what is known of an existing one.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use k8s_openapi::api::resource::v1::{ResourceClaimTemplate, ResourceClaimTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use sha2::{Digest as _, Sha256};

/// The label of all templates that the controller makes; templates without it are ignored. One of the chart's policies
/// refuses it from everybody else.
pub const LABEL: &str = "dra.vgpu/translated";
/// The annotation with the hash of the spec that was created. The API server may write defaults into a spec, so specs
/// themselves are not compared.
pub const SPEC_HASH: &str = "dra.vgpu/spec-hash";

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    pub namespace: String,
    pub name: String,
}

/// An existing template.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Template {
    pub uid: String,
    pub version: String,
    /// Empty without the annotation.
    pub hash: String,
    /// It is being deleted, and its name is not free yet.
    pub is_deleted: bool,
}

impl Template {
    /// Reads a template from its metadata alone. `None` without our label.
    #[must_use]
    pub fn of(meta: &ObjectMeta) -> Option<(Key, Self)> {
        meta.labels.as_ref()?.get(LABEL)?;
        let key = Key {
            namespace: meta.namespace.clone()?,
            name: meta.name.clone()?,
        };
        let annotations = meta.annotations.as_ref();
        let template = Self {
            uid: meta.uid.clone()?,
            version: meta.resource_version.clone().unwrap_or_default(),
            hash: annotations
                .and_then(|all| all.get(SPEC_HASH))
                .cloned()
                .unwrap_or_default(),
            is_deleted: meta.deletion_timestamp.is_some(),
        };
        Some((key, template))
    }
}

/// The hash of a spec as it is written: its fields have a fixed order.
pub(crate) fn hash(spec: &ResourceClaimTemplateSpec) -> String {
    let text = serde_json::to_string(spec).unwrap_or_default();
    let mut hash = String::new();
    for byte in &Sha256::digest(text)[..16] {
        // Writing to a String cannot fail.
        let _ = write!(hash, "{byte:02x}");
    }
    hash
}

/// The object to create.
pub(crate) fn object(key: &Key, spec: ResourceClaimTemplateSpec) -> ResourceClaimTemplate {
    let of = |key: &str, value: String| Some(BTreeMap::from([(key.to_owned(), value)]));
    ResourceClaimTemplate {
        metadata: ObjectMeta {
            namespace: Some(key.namespace.clone()),
            name: Some(key.name.clone()),
            labels: of(LABEL, "true".to_owned()),
            annotations: of(SPEC_HASH, hash(&spec)),
            ..ObjectMeta::default()
        },
        spec: Some(spec),
    }
}
