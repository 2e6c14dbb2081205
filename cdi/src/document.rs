//! Reads and writes a spec as a JSON document. An invalid spec is neither returned nor rendered.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{
    name::Kind,
    spec::{ContainerEdits, Device, Spec},
    strict::{Object, distinct_keys, object, objects},
    validate,
    version::Version,
};

#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error("not a CDI spec: {0}")]
    Syntax(#[from] serde_json::Error),
    #[error("kind: {0:?} is not <vendor>/<class>; use letters, digits, '-', '_' and '.', a letter first")]
    Kind(String),
    #[error(transparent)]
    Invalid(#[from] validate::Error),
    #[error("cdiVersion: {declared} is too low for the fields of this spec; raise it to {required}")]
    VersionTooLow { declared: Version, required: Version },
    #[error("cdiVersion: {0} has no intelRdt.enableCMT and enableMBM; lower it or use enableMonitoring")]
    VersionTooHigh(Version),
}

/// The fields of a file that is read.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Incoming {
    cdi_version: Version,
    kind: String,
    #[serde(default, deserialize_with = "distinct_keys")]
    annotations: BTreeMap<String, String>,
    #[serde(deserialize_with = "objects")]
    devices: Vec<Device>,
    #[serde(default, deserialize_with = "object")]
    container_edits: ContainerEdits,
}

/// The fields of a file that is written.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Outgoing<'a> {
    cdi_version: Version,
    kind: String,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    annotations: &'a BTreeMap<String, String>,
    devices: &'a [Device],
    #[serde(skip_serializing_if = "ContainerEdits::is_empty")]
    container_edits: &'a ContainerEdits,
}

impl Spec {
    /// Parses and validates a JSON document, also against the version that it declares.
    pub fn parse(json: &[u8]) -> Result<Self, ReadError> {
        let Object(incoming) = serde_json::from_slice(json)?;
        let Incoming {
            cdi_version: declared,
            kind,
            annotations,
            devices,
            container_edits,
        } = incoming;
        let kind = Kind::parse(&kind).ok_or(ReadError::Kind(kind))?;
        let spec = Self {
            kind,
            annotations,
            devices,
            container_edits,
        };
        spec.validate()?;
        let required = Version::required(&spec);
        if declared < required {
            return Err(ReadError::VersionTooLow { declared, required });
        }
        let legacy = |edits: &ContainerEdits| {
            edits
                .intel_rdt
                .as_ref()
                .is_some_and(|rdt| rdt.uses_fields_gone_in_1_1())
        };
        if declared >= Version::V1_1_0 && spec.all_edits().any(legacy) {
            return Err(ReadError::VersionTooHigh(declared));
        }
        Ok(spec)
    }

    /// Renders the file's content, with the lowest version that the spec needs. An invalid spec is an error.
    pub fn render(&self) -> Result<Vec<u8>, validate::Error> {
        self.validate()?;
        let outgoing = Outgoing {
            cdi_version: Version::required(self),
            kind: self.kind.to_string(),
            annotations: &self.annotations,
            devices: &self.devices,
            container_edits: &self.container_edits,
        };
        let mut json = serde_json::to_vec_pretty(&outgoing).expect("strings, numbers and string keys always serialise");
        json.push(b'\n');
        Ok(json)
    }

    /// Checks everything that a runtime would refuse, or would silently treat in another way.
    pub fn validate(&self) -> Result<(), validate::Error> {
        validate::spec(self)
    }
}
