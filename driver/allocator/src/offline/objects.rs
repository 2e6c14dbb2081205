//! Sorts documents into objects by kind, and checks them.

use std::collections::HashMap;

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::model::{DeviceClass, DeviceTaintRule, Node, ResourceClaim, ResourceSlice};

/// Everything that was given, in the order given.
#[derive(Debug, Default)]
pub struct Objects {
    pub(super) nodes: Vec<Node>,
    node_documents: Vec<Value>,
    pub(super) classes: Vec<DeviceClass>,
    pub(super) slices: Vec<ResourceSlice>,
    pub(super) rules: Vec<DeviceTaintRule>,
    pub(super) claims: Vec<Given>,
    /// As they are: only the one that is asked about is read.
    pods: Vec<Value>,
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

/// A document that is no object, or not one that can be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InputError {
    #[error("{origin}: a document is {found}, not an object with apiVersion and kind")]
    NoObject { origin: String, found: &'static str },
    #[error("{origin}: {kind} {name}: apiVersion {found:?} is not read; convert it to {wanted}")]
    Version {
        origin: String,
        kind: String,
        name: String,
        found: String,
        wanted: &'static str,
    },
    #[error("{kind} {name} is given twice, in {first} and in {origin}; leave one of them out")]
    Twice {
        origin: String,
        first: String,
        kind: String,
        name: String,
    },
    #[error("{origin}: a List has no items; write items: [...]")]
    NoItems { origin: String },
    #[error("{origin}: lists lie in lists more than {MOST_LISTS} deep")]
    TooDeep { origin: String },
    #[error("{origin}: {kind} {name}: {message}")]
    Field {
        origin: String,
        kind: String,
        name: String,
        message: String,
    },
}

const MOST_LISTS: usize = 8;
const RESOURCE: &str = "resource.k8s.io/v1";

impl Objects {
    /// Adds one document: an object, or a List of them. `origin` is its file, for messages.
    ///
    /// # Errors
    /// The document, object or field that cannot be read.
    pub fn add(&mut self, document: Value, origin: &str) -> Result<(), InputError> {
        self.add_nested(document, origin, 0)
    }

    /// Objects of other kinds, which change nothing in an allocation.
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

    /// The nodes as they were given.
    #[must_use]
    pub fn node_documents(&self) -> &[Value] {
        &self.node_documents
    }

    /// For callers that rewrite taints.
    pub fn slices_mut(&mut self) -> &mut [ResourceSlice] {
        &mut self.slices
    }

    /// Claims without an allocation, for callers that add tolerations.
    pub fn waiting_mut(&mut self) -> impl Iterator<Item = &mut ResourceClaim> {
        let claims = self.claims.iter_mut().map(|given| &mut given.claim);
        claims.filter(|claim| claim.status.allocation.is_none())
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

    /// By `namespace/name`.
    #[must_use]
    pub fn claim_document(&self, key: &str) -> Option<&Value> {
        let given = self.claims.iter().find(|given| given.claim.key() == key);
        given.map(|given| &given.document)
    }

    /// By `namespace/name`.
    #[must_use]
    pub fn claim(&self, key: &str) -> Option<&ResourceClaim> {
        let mut claims = self.claims.iter().map(|given| &given.claim);
        claims.find(|claim| claim.key() == key)
    }

    /// By `namespace/name`.
    #[must_use]
    pub fn pod(&self, key: &str) -> Option<&Value> {
        self.pods.iter().find(|pod| name_of(pod) == key)
    }

    fn add_nested(&mut self, document: Value, origin: &str, depth: usize) -> Result<(), InputError> {
        let found = match &document {
            Value::Null => return Ok(()), // an empty document between two `---`
            Value::Object(_) => "an object without a kind",
            Value::Array(_) => "a list",
            _ => "a single value",
        };
        let Some(kind) = document.get("kind").and_then(Value::as_str).map(str::to_owned) else {
            return Err(InputError::NoObject {
                origin: origin.to_owned(),
                found,
            });
        };
        if matches!(
            kind.as_str(),
            "Node" | "DeviceClass" | "ResourceSlice" | "DeviceTaintRule" | "ResourceClaim" | "Pod"
        ) {
            self.note(&kind, name_of(&document), origin)?;
        }
        match kind.as_str() {
            "Node" => {
                self.nodes.push(read(&kind, "v1", document.clone(), origin)?);
                self.node_documents.push(document);
            }
            "DeviceClass" => self.classes.push(read(&kind, RESOURCE, document, origin)?),
            "ResourceSlice" => self.slices.push(read(&kind, RESOURCE, document, origin)?),
            "DeviceTaintRule" => self.rules.push(read(&kind, RESOURCE, document, origin)?),
            "ResourceClaim" => self.claims.push(Given {
                claim: read(&kind, RESOURCE, document.clone(), origin)?,
                document,
            }),
            kind if kind.ends_with("List") => return self.add_list(document, origin, depth),
            "Pod" => {
                self.ignored.push(format!("Pod {}", name_of(&document)));
                self.pods.push(document);
            }
            kind => self.ignored.push(format!("{kind} {}", name_of(&document))),
        }
        Ok(())
    }

    /// Refuses a second object of the same kind and name.
    fn note(&mut self, kind: &str, name: String, origin: &str) -> Result<(), InputError> {
        if name.is_empty() {
            return Ok(());
        }
        match self.known.insert((kind.to_owned(), name.clone()), origin.to_owned()) {
            None => Ok(()),
            Some(first) => Err(InputError::Twice {
                origin: origin.to_owned(),
                first,
                kind: kind.to_owned(),
                name,
            }),
        }
    }

    fn add_list(&mut self, mut document: Value, origin: &str, depth: usize) -> Result<(), InputError> {
        if depth >= MOST_LISTS {
            return Err(InputError::TooDeep {
                origin: origin.to_owned(),
            });
        }
        let version = document.get("apiVersion").cloned();
        let kind = document.get("kind").and_then(Value::as_str).unwrap_or_default();
        let of = kind.trim_end_matches("List").to_owned();
        let Some(Value::Array(items)) = document.get_mut("items").map(Value::take) else {
            return Err(InputError::NoItems {
                origin: origin.to_owned(),
            });
        };
        for mut item in items {
            // The items of a ResourceClaimList do not say what they are.
            if let (Value::Object(item), false) = (&mut item, of.is_empty()) {
                item.entry("kind").or_insert_with(|| of.clone().into());
                item.entry("apiVersion")
                    .or_insert_with(|| version.clone().unwrap_or_default());
            }
            self.add_nested(item, origin, depth + 1)?;
        }
        Ok(())
    }
}

fn read<T: DeserializeOwned>(kind: &str, wanted: &'static str, document: Value, origin: &str) -> Result<T, InputError> {
    let (kind, name) = (kind.to_owned(), name_of(&document));
    let found = document.get("apiVersion").and_then(Value::as_str).unwrap_or_default();
    if found != wanted {
        return Err(InputError::Version {
            origin: origin.to_owned(),
            kind,
            name,
            found: found.to_owned(),
            wanted,
        });
    }
    serde_path_to_error::deserialize(document).map_err(|error| InputError::Field {
        origin: origin.to_owned(),
        kind,
        name,
        message: error.to_string(),
    })
}

/// `namespace/name`, as far as there is one.
fn name_of(document: &Value) -> String {
    let of = |field| document["metadata"][field].as_str().unwrap_or_default();
    match (of("namespace"), of("name")) {
        ("", name) => name.to_owned(),
        (namespace, name) => format!("{namespace}/{name}"),
    }
}
