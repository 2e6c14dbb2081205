//! Reads what a namespace's users may read of its shares.

use serde::de::DeserializeOwned;
use serde_json::Value;
use vgpu_api::DRIVER_NAME;
use vgpu_api::usage::{USAGE_NAME, VgpuUsage, VgpuUsageStatus};

use super::answer::{UsageError, say};
use crate::cluster::{self, Cluster, Kind, List, ReadError};

/// Why there may be no VgpuUsage where shares are held.
pub(super) const NO_WRITER: &str =
    "vgpu-controller does not write them (is the chart's usage.enabled true? does it run? `kubectl vgpu doctor`)";

/// Returns the objects of a list, as they are and decoded. One that cannot be decoded is named on stderr.
pub(super) fn decoded<T: DeserializeOwned>(command: &str, list: Value) -> (Vec<Value>, Vec<T>) {
    let mut objects = (Vec::new(), Vec::new());
    for mut item in items(list) {
        match serde_json::from_value(item.clone()) {
            Ok(object) => {
                if let Some(metadata) = item["metadata"].as_object_mut() {
                    metadata.remove("managedFields");
                }
                objects.0.push(item);
                objects.1.push(object);
            }
            Err(error) => say(
                command,
                &format!("{} cannot be read: {error}", item["metadata"]["name"]),
            ),
        }
    }
    objects
}

pub(super) fn items(mut list: Value) -> Vec<Value> {
    match list["items"].take() {
        Value::Array(items) => items,
        _ => Vec::new(),
    }
}

/// Adds to an error what to do about it.
pub(super) fn refused(error: ReadError, kind: Kind, hint: &'static str) -> UsageError {
    match error {
        ReadError::NotServed(_) => UsageError::NotServed { kind: kind.plural },
        error @ ReadError::Forbidden(_) => UsageError::Refused { error, hint },
        error => error.into(),
    }
}

/// What a namespace's users may read of its shares.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// `None`: the namespace holds nothing.
    pub(super) usage: Option<(Value, VgpuUsageStatus)>,
    pub(super) claims: Vec<Value>,
    pub(super) knows_claims: bool,
    pub(super) pods: Vec<Value>,
    pub(super) slices: Vec<Value>,
    /// Lists that could not be read; the answer lacks their details.
    pub(super) missing: Vec<String>,
}

impl Seen {
    pub(super) fn read(command: &str, cluster: &Cluster) -> Result<Self, UsageError> {
        let here = |kind| List::of(kind, Some(cluster.namespace()));
        let [usages, claims, pods, slices] = cluster.read([
            here(cluster::USAGES),
            here(cluster::CLAIMS),
            here(cluster::PODS),
            List::everywhere(cluster::SLICES),
        ]);
        let usages = usages.map_err(|error| refused(error, cluster::USAGES, "who may `view` the namespace has it"))?;
        let mut seen = Self::default();
        seen.knows_claims = claims.is_ok();
        seen.claims = seen.take(claims);
        seen.pods = seen.take(pods);
        seen.slices = seen.take(slices);
        let (raw, objects) = decoded::<VgpuUsage>(command, usages);
        let mut named = raw.into_iter().zip(objects);
        seen.usage = named
            .find(|(_, usage)| usage.metadata.name.as_deref() == Some(USAGE_NAME))
            .map(|(raw, usage)| (raw, usage.status.unwrap_or_default()));
        let held = seen.claims.iter().filter(|claim| is_of_ours(claim)).count();
        match (&seen.usage, held) {
            (None, 1..) => Err(UsageError::NotWritten {
                namespace: cluster.namespace().to_owned(),
                claims: held,
            }),
            _ => Ok(seen),
        }
    }

    /// Returns what is known of a namespace without a VgpuUsage: only its claims show that it holds nothing.
    pub(super) fn without_usage(&self, namespace: &str) -> String {
        match self.knows_claims {
            true => format!("namespace {namespace} holds no share of a GPU"),
            false => {
                format!("namespace {namespace} has no VgpuUsage: it holds no share of a GPU, or {NO_WRITER}")
            }
        }
    }

    fn take(&mut self, answer: Result<Value, ReadError>) -> Vec<Value> {
        match answer {
            Ok(list) => items(list),
            Err(error) => {
                self.missing.push(error.to_string());
                Vec::new()
            }
        }
    }
}

/// Returns true for a claim with a device of ours.
fn is_of_ours(claim: &Value) -> bool {
    results(claim).any(|result| result["driver"] == DRIVER_NAME && result["adminAccess"] != true)
}

pub(super) fn results(claim: &Value) -> impl Iterator<Item = &Value> {
    list(&claim["status"]["allocation"]["devices"]["results"])
}

pub(super) fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}
