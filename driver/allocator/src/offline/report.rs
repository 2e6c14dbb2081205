//! The result of `vgpu allocate`: a List, and sentences.

use serde_json::{Value, json};

use super::Objects;
use crate::model::Allocation;
use crate::reason::Reason;

/// The result.
#[derive(Debug)]
pub struct Report {
    items: Vec<Value>,
    /// Empty when everything was allocated.
    reasons: Vec<Reason<String>>,
    fits: bool,
}

impl Report {
    pub(super) fn allocated(objects: &Objects, allocations: &[Allocation]) -> Self {
        let claims = objects.waiting().zip(allocations);
        let items = claims.map(|(given, allocation)| {
            let mut document = given.document.clone();
            if !document["status"].is_object() {
                document["status"] = json!({});
            }
            // An allocation is made of texts and numbers only.
            document["status"]["allocation"] = serde_json::to_value(allocation).unwrap_or_default();
            document
        });
        Self {
            items: items.collect(),
            reasons: Vec::new(),
            fits: true,
        }
    }

    pub(super) fn refused(objects: &Objects, reasons: Vec<Reason<String>>) -> Self {
        Self {
            items: objects.waiting().map(|given| given.document.clone()).collect(),
            reasons,
            fits: false,
        }
    }

    /// Returns true if everything was allocated.
    #[must_use]
    pub fn fits(&self) -> bool {
        self.fits
    }

    #[must_use]
    pub fn reasons(&self) -> &[Reason<String>] {
        &self.reasons
    }

    /// A List of the claims that were waiting; with `reasons` when they do not fit.
    #[must_use]
    pub fn document(&self) -> Value {
        let mut list = json!({"apiVersion": "v1", "kind": "List", "items": self.items});
        if !self.fits {
            list["reasons"] = json!(self.reasons);
        }
        list
    }
}
