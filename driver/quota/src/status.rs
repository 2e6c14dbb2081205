//! `status` of a VgpuQuota: all that the next leader needs to go on.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::amount::{Amount, WrittenAmount};
use crate::budget::{GpuTime, Sum};
use crate::default::Stamped;
use crate::spec::Spec;
use crate::time::Wall;

/// A VgpuQuota as it was read.
#[derive(Debug, Clone, PartialEq)]
pub struct Quota {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    /// As the API server wants it back.
    pub version: String,
    pub generation: i64,
    pub created: Wall,
    /// Its spec, or why that is refused.
    pub spec: Result<Spec, String>,
    /// It was made from a VgpuQuotaDefault, and nobody has changed it since.
    pub stamped: Option<Stamped>,
    pub status: Status,
}

/// The status, which the leader writes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Status {
    pub generation: i64,
    /// The leader's term that wrote it.
    pub epoch: Option<String>,
    pub problem: Option<String>,
    /// The ceilings that hold, with those of ResourceQuotas.
    pub hard: WrittenAmount,
    pub limited_by: BTreeMap<String, String>,
    /// The sum that counts: the reservations, and shares without one.
    pub used: Amount,
    /// The reserved amounts, by key.
    pub reservations: BTreeMap<String, Amount>,
    pub budget: Option<Sum>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Written {
    #[serde(default)]
    observed_generation: i64,
    #[serde(default)]
    epoch: Option<String>,
    #[serde(default)]
    problem: Option<String>,
    #[serde(default)]
    hard: WrittenAmount,
    #[serde(default)]
    limited_by: BTreeMap<String, String>,
    #[serde(default)]
    used: WrittenAmount,
    #[serde(default)]
    reservations: BTreeMap<String, String>,
    #[serde(default)]
    budget: Option<WrittenBudget>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct WrittenBudget {
    /// `InBudget` or `Spent`: the policy of the chart reads it.
    state: String,
    gpu_hours: String,
    used_gpu_hours: String,
    /// The exact sum.
    used_gpu_seconds: String,
    period_start: String,
    period_end: String,
    /// Up to when shares were charged.
    as_of: String,
}

/// The value of `status.budget.state` that the policy of the chart asks for.
const SPENT: &str = "Spent";

impl Serialize for Status {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let budget = self.budget.as_ref().map(|sum| WrittenBudget {
            state: if sum.is_spent { SPENT } else { "InBudget" }.to_owned(),
            gpu_hours: crate::amount::millionths(sum.gpu_hours),
            used_gpu_hours: sum.used.hours(),
            used_gpu_seconds: sum.used.seconds(),
            period_start: sum.period_start.text(),
            period_end: sum.period_end.text(),
            as_of: sum.as_of.text(),
        });
        let written = Written {
            observed_generation: self.generation,
            epoch: self.epoch.clone(),
            problem: self.problem.clone(),
            hard: self.hard.clone(),
            limited_by: self.limited_by.clone(),
            used: self.used.into(),
            reservations: self
                .reservations
                .iter()
                .map(|(key, amount)| (key.clone(), amount.text()))
                .collect(),
            budget,
        };
        written.serialize(serializer)
    }
}

impl Status {
    /// Returns true if it was written in the term with this epoch.
    pub(crate) fn is_of(&self, epoch: &str) -> bool {
        self.epoch.as_deref() == Some(epoch)
    }

    /// Reads a status that this program wrote. One that somebody else wrote counts as empty: it is computed anew from claims
    /// and pods.
    fn read(value: Value) -> Self {
        let Ok(written) = serde_json::from_value::<Written>(value) else {
            return Self::default();
        };
        let budget = written.budget.and_then(|budget| {
            Some(Sum {
                is_spent: budget.state == SPENT,
                gpu_hours: crate::amount::read_millionths(&budget.gpu_hours)?,
                used: GpuTime::read(&budget.used_gpu_seconds)?,
                period_start: Wall::parse(&budget.period_start)?,
                period_end: Wall::parse(&budget.period_end)?,
                as_of: Wall::parse(&budget.as_of)?,
            })
        });
        let reservations = written.reservations.into_iter();
        Self {
            generation: written.observed_generation,
            epoch: written.epoch,
            problem: written.problem,
            hard: written.hard,
            limited_by: written.limited_by,
            used: written.used.read().unwrap_or_default(),
            reservations: reservations
                .filter_map(|(key, text)| Some((key, Amount::read(&text)?)))
                .collect(),
            budget,
        }
    }
}

impl<'de> Deserialize<'de> for Quota {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Whole {
            metadata: Meta,
            #[serde(default)]
            spec: Value,
            #[serde(default)]
            status: Value,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Meta {
            #[serde(default)]
            name: String,
            #[serde(default)]
            namespace: String,
            #[serde(default)]
            uid: String,
            #[serde(default)]
            resource_version: String,
            #[serde(default)]
            generation: i64,
            #[serde(default)]
            creation_timestamp: String,
            #[serde(default)]
            labels: BTreeMap<String, String>,
            #[serde(default)]
            annotations: BTreeMap<String, String>,
        }
        let Whole { metadata, spec, status } = Whole::deserialize(deserializer)?;
        Ok(Self {
            namespace: metadata.namespace,
            name: metadata.name,
            uid: metadata.uid,
            version: metadata.resource_version,
            generation: metadata.generation,
            created: Wall::parse(&metadata.creation_timestamp).unwrap_or_default(),
            stamped: Stamped::read(&metadata.labels, &metadata.annotations, &spec),
            spec: Spec::parse(&spec).map_err(|error| error.to_string()),
            status: Status::read(status),
        })
    }
}

impl Quota {
    /// Returns true if it is a later version than another of the same object. The API server's versions are numbers that
    /// grow; with one that is none, the last that was seen counts.
    pub(crate) fn is_newer_than(&self, other: &Self) -> bool {
        if self.uid != other.uid {
            return self.created >= other.created;
        }
        match (self.version.parse::<u64>(), other.version.parse::<u64>()) {
            (Ok(ours), Ok(theirs)) => ours > theirs,
            _ => self.version != other.version,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_is_written_is_read_back() {
        let amount = Amount::share(20 << 30, 25, 80 << 30);
        let at = |text: &str| Wall::parse(text).unwrap();
        let status = Status {
            generation: 3,
            epoch: Some("term".into()),
            problem: None,
            hard: WrittenAmount {
                memory: Some("80Gi".into()),
                ..WrittenAmount::default()
            },
            limited_by: [(
                "memory".to_owned(),
                "ResourceQuota q limits.nvidia.com/gpumem".to_owned(),
            )]
            .into(),
            used: amount + amount,
            reservations: [("u1".to_owned(), amount), ("pod-u2".to_owned(), amount)].into(),
            budget: Some(Sum {
                is_spent: true,
                gpu_hours: 1_500_000,
                used: GpuTime(5_400_000_000_000 + 1),
                period_start: at("2026-11-24T00:00:00Z"),
                period_end: at("2026-11-25T00:00:00Z"),
                as_of: at("2026-11-24T03:00:00.123Z"),
            }),
        };
        let written = serde_json::to_value(&status).unwrap();
        assert_eq!(written["budget"]["state"], "Spent");
        assert_eq!(written["budget"]["usedGpuHours"], "1.5");
        assert_eq!(written["budget"]["usedGpuSeconds"], "5400.000000001");
        assert_eq!(
            written["used"],
            json!({"memory": "40Gi", "cores": 50, "gpus": "0.5", "shares": 2})
        );
        assert_eq!(Status::read(written), status);
    }

    #[test]
    fn what_others_wrote_is_left_out() {
        let read = Status::read(
            json!({"reservations": {"u": "memory=lots", "v": "memory=1Gi,cores=0,gpus=0.1,shares=1"}, "budget": {"state": "InBudget", "gpuHours": "1", "usedGpuHours": "0",
            "usedGpuSeconds": "-5", "periodStart": "", "periodEnd": "", "asOf": ""}}),
        );
        assert_eq!(read.reservations.keys().collect::<Vec<_>>(), ["v"]);
        assert_eq!(read.budget, None);
        assert_eq!(Status::read(json!("nonsense")), Status::default());
    }

    #[test]
    fn versions_of_one_object_are_numbers() {
        let quota = |uid: &str, version: &str| -> Quota {
            serde_json::from_value(json!({"metadata": {"uid": uid, "resourceVersion": version}})).unwrap()
        };
        assert!(quota("u", "10").is_newer_than(&quota("u", "9")));
        assert!(!quota("u", "9").is_newer_than(&quota("u", "10")));
        assert!(quota("v", "9").is_newer_than(&quota("u", "10")), "made anew");
    }
}
