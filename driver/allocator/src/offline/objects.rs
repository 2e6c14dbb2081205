//! Sorts objects by kind, and decodes those that allocation reads.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

use serde::de::DeserializeOwned;
use serde_json::Value;
use vgpu_api::decode::{DecodeError, decode};

use super::error::OfflineError;
use crate::model::{DeviceClass, DeviceTaintRule, Node, ResourceClaim, ResourceSlice};

/// All given objects, in their order.
#[derive(Debug, Default)]
pub struct Objects {
    pub(super) nodes: Vec<Node>,
    node_documents: Vec<Value>,
    pub(super) classes: Vec<DeviceClass>,
    pub(super) slices: Vec<ResourceSlice>,
    pub(super) rules: Vec<DeviceTaintRule>,
    pub(super) claims: Vec<Given>,
    /// The pods as they are: only the pod to explain is decoded.
    pods: Vec<Value>,
    /// Positions of pods and claims, by `namespace/name`.
    pod_places: HashMap<String, usize>,
    claim_places: HashMap<String, usize>,
    /// The ResourceClaimTemplates, by `namespace/name`.
    templates: HashSet<String>,
    ignored: Vec<String>,
    /// The file of each object, by kind and name.
    known: HashMap<(String, String), String>,
}

/// A claim, and its document, to which the allocation is added.
#[derive(Debug)]
pub(super) struct Given {
    pub(super) claim: ResourceClaim,
    pub(super) document: Value,
}

/// Why an object cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InputError {
    #[error("apiVersion {found:?} is not read; convert it to {wanted}")]
    Version { found: String, wanted: &'static str },
    #[error("is given twice, in {first} too; leave one of them out")]
    Twice { first: String },
    #[error(transparent)]
    Field(#[from] DecodeError),
}

const RESOURCE: &str = "resource.k8s.io/v1";

impl Objects {
    /// Adds an object. `origin` is its file, for messages.
    ///
    /// # Errors
    /// It cannot be read, or is given twice.
    pub fn add(&mut self, document: Value, origin: &str) -> Result<(), InputError> {
        let kind = document["kind"].as_str().unwrap_or_default().to_owned();
        let name = name_of(&document);
        if matches!(
            kind.as_str(),
            "Node" | "DeviceClass" | "ResourceSlice" | "DeviceTaintRule" | "ResourceClaim" | "Pod"
        ) {
            self.note(&kind, &name, origin)?;
        }
        match kind.as_str() {
            "Node" => {
                self.nodes.push(read("v1", &document)?);
                self.node_documents.push(document);
            }
            "DeviceClass" => self.classes.push(read(RESOURCE, &document)?),
            "ResourceSlice" => self.slices.push(read(RESOURCE, &document)?),
            "DeviceTaintRule" => self.rules.push(read(RESOURCE, &document)?),
            "ResourceClaim" => {
                let claim = read(RESOURCE, &document)?;
                self.claim_places.insert(name, self.claims.len());
                self.claims.push(Given { claim, document });
            }
            kind => {
                self.ignored.push(format!("{kind} {name}"));
                match kind {
                    "Pod" => {
                        self.pod_places.insert(name, self.pods.len());
                        self.pods.push(document);
                    }
                    "ResourceClaimTemplate" => drop(self.templates.insert(name)),
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// Objects of other kinds, which have no effect on an allocation.
    #[must_use]
    pub fn ignored(&self) -> &[String] {
        &self.ignored
    }

    #[must_use]
    pub fn classes(&self) -> &[DeviceClass] {
        &self.classes
    }

    #[must_use]
    pub fn slices(&self) -> &[ResourceSlice] {
        &self.slices
    }

    #[must_use]
    pub fn rules(&self) -> &[DeviceTaintRule] {
        &self.rules
    }

    /// The nodes, and each as it was given.
    pub fn nodes(&self) -> impl Iterator<Item = (&Node, &Value)> {
        self.nodes.iter().zip(&self.node_documents)
    }

    /// The claims, and each as it was given.
    pub fn claims(&self) -> impl Iterator<Item = (&ResourceClaim, &Value)> {
        self.claims.iter().map(|given| (&given.claim, &given.document))
    }

    /// All nodes, or only the named one.
    ///
    /// # Errors
    /// There is no such node.
    pub fn nodes_of(&self, name: Option<&str>) -> Result<Vec<&Node>, OfflineError> {
        if self.nodes.is_empty() {
            return Err(OfflineError::NoNode);
        }
        let Some(name) = name else {
            return Ok(self.nodes.iter().collect());
        };
        match self.nodes.iter().find(|node| node.metadata.name == name) {
            Some(node) => Ok(vec![node]),
            None => Err(OfflineError::UnknownNode {
                name: name.to_owned(),
                known: self.nodes.iter().map(|node| node.metadata.name.clone()).collect(),
            }),
        }
    }

    /// Returns true if there is any claim to allocate.
    #[must_use]
    pub fn has_waiting(&self) -> bool {
        self.waiting().next().is_some()
    }

    pub(super) fn waiting(&self) -> impl Iterator<Item = &Given> {
        self.claims
            .iter()
            .filter(|given| given.claim.status.allocation.is_none())
    }

    /// The pods as they were given.
    pub fn pods(&self) -> impl Iterator<Item = &Value> {
        self.pods.iter()
    }

    /// Returns true if there is a ResourceClaimTemplate `namespace/name`.
    #[must_use]
    pub fn has_template(&self, key: &str) -> bool {
        self.templates.contains(key)
    }

    /// Returns a pod by `namespace/name`.
    #[must_use]
    pub fn pod(&self, key: &str) -> Option<&Value> {
        self.pods.get(*self.pod_places.get(key)?)
    }

    /// A claim as it was given, by `namespace/name`.
    #[must_use]
    pub fn claim(&self, key: &str) -> Option<&Value> {
        Some(&self.claims.get(*self.claim_places.get(key)?)?.document)
    }

    /// Reads a pod by `namespace/name`; `None` if there is none.
    ///
    /// # Errors
    /// The field that cannot be read.
    pub fn read_pod<T: DeserializeOwned>(&self, key: &str) -> Result<Option<T>, OfflineError> {
        let read = self.pod(key).map(decode).transpose();
        read.map_err(|error| OfflineError::Pod(key.to_owned(), error))
    }

    /// Refuses a second object of the same kind and name.
    fn note(&mut self, kind: &str, name: &str, origin: &str) -> Result<(), InputError> {
        if name.is_empty() {
            return Ok(());
        }
        match self.known.entry((kind.to_owned(), name.to_owned())) {
            Entry::Vacant(new) => new.insert(origin.to_owned()),
            Entry::Occupied(known) => {
                let first = known.get().clone();
                return Err(InputError::Twice { first });
            }
        };
        Ok(())
    }
}

fn read<T: DeserializeOwned>(wanted: &'static str, document: &Value) -> Result<T, InputError> {
    let found = document["apiVersion"].as_str().unwrap_or_default();
    if found != wanted {
        let found = found.to_owned();
        return Err(InputError::Version { found, wanted });
    }
    Ok(decode(document)?)
}

/// `namespace/name`, or the name alone if there is no namespace.
fn name_of(document: &Value) -> String {
    let of = |field| document["metadata"][field].as_str().unwrap_or_default();
    match (of("namespace"), of("name")) {
        ("", name) => name.to_owned(),
        (namespace, name) => format!("{namespace}/{name}"),
    }
}
