//! VgpuQuota and VgpuQuotaDefault, as the API server stores them.
//!
//! The chart's CustomResourceDefinitions are generated from these types ([`crd`]). Every doc comment of a field is its
//! description there, which `kubectl explain` shows.
//!
//! Unknown fields are kept by the API server and refused here and by the chart's policy, each by its name. Without that
//! the API server would drop a misspelt ceiling without a word.
#![allow(
    clippy::duplicated_attributes,
    reason = "columns of the derived kinds have their type and priority in common"
)]

pub mod crd;
mod dimension;
mod number;

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use kube_derive::CustomResource;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use vgpu_quantity::shortened;

use crate::decode::decode;

pub use dimension::{Dimension, GPU, Unit, millionths, read_millionths};
pub use number::Number;

/// How much of the GPUs the namespace may hold at a time, and how many GPU hours it may use
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "dra.vgpu",
    version = "v1alpha1",
    kind = "VgpuQuota",
    namespaced,
    status = "VgpuQuotaStatus",
    doc = "How much of the GPUs a namespace may hold at a time, and how many GPU hours it may use. The one of a namespace is named vgpu.",
    printcolumn(name = "GPU Hours", type_ = "string", json_path = ".status.budget.usedGpuHours"),
    printcolumn(name = "GPU Hours Limit", type_ = "string", json_path = ".status.budget.gpuHours"),
    printcolumn(name = "Budget", type_ = "string", json_path = ".status.budget.state"),
    printcolumn(
        name = "Default",
        type_ = "string",
        priority = 1,
        json_path = r".metadata.labels.dra\.vgpu/default"
    ),
    printcolumn(name = "Problem", type_ = "string", priority = 1, json_path = ".status.problem"),
    crates(kube_core = "::kube_core")
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct VgpuQuotaSpec {
    /// Ceilings of all shares of the namespace together. What is not named has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "ceilings")]
    pub hard: Option<BTreeMap<Dimension, Number>>,
    /// GPU hours that the namespace may use in each period. Without it there is no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "BudgetSpec")]
    pub budget: Option<BudgetSpec>,
    /// Younger pods that fit may go before an older one that does not
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "bool")]
    pub backfill: Option<bool>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct BudgetSpec {
    /// GPU hours of each period
    #[schemars(schema_with = "number")]
    pub gpu_hours: Number,
    /// Length of a period in minutes, hours or days, as 7d; the first begins with the quota
    pub every: String,
    /// Yield: new pods come after those in budget. Hold: they wait for the reset
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub when_spent: Option<WhenSpent>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum WhenSpent {
    /// New pods come after those that are in budget, and go when one of these needs their place.
    #[default]
    Yield,
    /// No new pod starts until the reset.
    Hold,
}

/// Written by vgpu-controller alone.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct VgpuQuotaStatus {
    /// The generation of spec that the rest of status goes by
    pub observed_generation: i64,
    /// The leader that wrote status last; another leader writes its own first
    pub epoch: Option<String>,
    /// Why spec is not applied, and how to mend it
    pub problem: Option<String>,
    /// The ceilings that apply: the smaller of spec and of a ResourceQuota. What is not named has none.
    #[schemars(schema_with = "amounts")]
    pub hard: BTreeMap<String, Number>,
    /// The ResourceQuota from which a ceiling of hard is, by the ceiling's name
    #[schemars(extend("additionalProperties" = {"type": "string", "description": "Name of a ResourceQuota"}))]
    pub limited_by: BTreeMap<String, String>,
    /// The sum of the namespace's allocated claims and of the reservations of admitted pods
    #[schemars(schema_with = "amounts")]
    pub used: BTreeMap<String, Number>,
    /// By claim: what it is let in with
    // Atomic: else managedFields would name each field of thousands of reservations.
    #[schemars(extend(
        "x-kubernetes-map-type" = "atomic",
        "additionalProperties" = {"type": "string", "description": "The claim's amounts"}
    ))]
    pub reservations: BTreeMap<String, String>,
    /// The budget of GPU hours in this period
    pub budget: Option<BudgetStatus>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BudgetStatus {
    /// InBudget or Spent
    pub state: String,
    /// GPU hours of a period
    pub gpu_hours: String,
    /// GPU hours used in this period
    pub used_gpu_hours: String,
    /// The same in GPU seconds, exactly
    pub used_gpu_seconds: String,
    /// When this period began
    pub period_start: String,
    /// When it ends, and the budget is full again
    pub period_end: String,
    /// Until when use is counted here
    pub as_of: String,
}

/// Which namespaces get a VgpuQuota, and which
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "dra.vgpu",
    version = "v1alpha1",
    kind = "VgpuQuotaDefault",
    doc = "The VgpuQuota of namespaces that match and have none. Of several that match, the first by name applies.",
    printcolumn(name = "GPU Hours", type_ = "string", json_path = ".spec.quota.budget.gpuHours"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    crates(kube_core = "::kube_core")
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct VgpuQuotaDefaultSpec {
    /// By labels of namespaces; {} for all
    pub namespace_selector: NamespaceSelector,
    pub quota: VgpuQuotaSpec,
}

/// A LabelSelector without unknown fields: one that is misspelt would match all namespaces.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct NamespaceSelector {
    /// Labels that a namespace must have
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        with = "BTreeMap<String, String>",
        extend("additionalProperties" = {"type": "string", "description": "The label's value"})
    )]
    pub match_labels: Option<BTreeMap<String, String>>,
    /// Conditions on labels; all must hold
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "requirements")]
    pub match_expressions: Option<Vec<LabelSelectorRequirement>>,
}

impl From<NamespaceSelector> for LabelSelector {
    fn from(selector: NamespaceSelector) -> Self {
        Self {
            match_labels: selector.match_labels,
            match_expressions: selector.match_expressions,
        }
    }
}

/// The longest error about a spec, in characters: it is written to an event and to `status.problem`.
const ERROR_MAX: usize = 400;

/// Reads the `spec` of one of these kinds.
///
/// # Errors
/// The path of the first field that is missing, unknown or of another type, and what is wrong with it.
pub fn read_spec<T: DeserializeOwned>(spec: &Value) -> Result<T, String> {
    decode(spec).map_err(|mut error| {
        // Field and message quote the spec, which may have anything in it.
        error.field = shortened(&error.field).into_owned();
        let text = error.below("spec").to_string();
        let one_line = text
            .chars()
            .map(|letter| if letter.is_control() { ' ' } else { letter });
        one_line.take(ERROR_MAX).collect()
    })
}

fn number(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"x-kubernetes-int-or-string": true})
}

/// The ceilings of a spec.
fn ceilings(_: &mut SchemaGenerator) -> Schema {
    let properties = Dimension::ALL.map(|dimension| {
        let description = dimension.description();
        let schema = json_schema!({"description": description, "x-kubernetes-int-or-string": true});
        (dimension.name(), schema)
    });
    let properties = BTreeMap::from(properties);
    json_schema!({"type": "object", "properties": properties, "x-kubernetes-preserve-unknown-fields": true})
}

/// The schema of the amounts in `status`.
fn amounts(_: &mut SchemaGenerator) -> Schema {
    let properties = Dimension::ALL.map(|dimension| {
        let mut schema = dimension.unit().schema();
        schema.insert("description".to_owned(), dimension.description().into());
        (dimension.name(), schema)
    });
    let properties = BTreeMap::from(properties);
    json_schema!({"type": "object", "properties": properties})
}

fn requirements(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "array", "items": {
        "type": "object",
        "description": "A condition on a label",
        "properties": {
            "key": {"type": "string", "description": "The label"},
            "operator": {"type": "string", "description": "In, NotIn, Exists or DoesNotExist"},
            "values": {
                "type": "array",
                "description": "The label's values for In and NotIn",
                "items": {"type": "string", "description": "A value"},
            },
        },
    }})
}
