//! `status` of a VgpuQuota: all that the next leader needs to go on.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{self as meta, ObjectMeta};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use vgpu_api::quota::{BudgetStatus, Dimension, VgpuQuotaStatus, millionths, read_millionths};
use vgpu_planner::Time;

use crate::amount::{Amount, Ceilings};
use crate::budget::{GpuTime, Sum};
use crate::default::Stamped;
use crate::spec::Spec;

/// A VgpuQuota as it was read.
#[derive(Debug, Clone, PartialEq)]
pub struct Quota {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    /// The resourceVersion, unchanged for the next write.
    pub version: String,
    pub generation: i64,
    pub created: Time,
    /// Its spec, or why that is refused.
    pub spec: Result<Spec, String>,
    /// Set if the quota was made from a VgpuQuotaDefault, and nobody has changed it since.
    pub stamped: Option<Stamped>,
    pub status: Status,
}

/// The status, which the leader writes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(into = "VgpuQuotaStatus")]
pub struct Status {
    pub generation: i64,
    /// The epoch of the leader's term in which it was written.
    pub epoch: Option<String>,
    pub problem: Option<String>,
    /// The effective ceilings, including those from ResourceQuotas.
    pub hard: Ceilings,
    pub limited_by: BTreeMap<String, String>,
    /// The sum of the reservations and of shares without one.
    pub used: Amount,
    /// The reserved amounts, by key.
    pub reservations: BTreeMap<String, Amount>,
    pub budget: Option<Sum>,
}

/// The value of `status.budget.state` that the policy of the chart asks for.
const SPENT: &str = "Spent";

impl From<Status> for VgpuQuotaStatus {
    fn from(status: Status) -> Self {
        let reservations = status.reservations.into_iter();
        Self {
            observed_generation: status.generation,
            epoch: status.epoch,
            problem: status.problem,
            hard: status.hard.written(),
            limited_by: status.limited_by,
            used: status.used.written(),
            reservations: reservations.map(|(key, amount)| (key, amount.text())).collect(),
            budget: status.budget.map(BudgetStatus::from),
        }
    }
}

impl From<Sum> for BudgetStatus {
    fn from(sum: Sum) -> Self {
        Self {
            state: if sum.is_spent { SPENT } else { "InBudget" }.to_owned(),
            gpu_hours: millionths(sum.gpu_hours),
            used_gpu_hours: sum.used.hours(),
            used_gpu_seconds: sum.used.seconds(),
            period_start: sum.period_start.text(),
            period_end: sum.period_end.text(),
            as_of: sum.as_of.text(),
        }
    }
}

/// Parts that this program did not write are ignored: they are calculated again from claims and pods.
impl From<VgpuQuotaStatus> for Status {
    fn from(written: VgpuQuotaStatus) -> Self {
        let reservations = written.reservations.into_iter();
        let budget = written.budget.and_then(|budget| {
            Some(Sum {
                is_spent: budget.state == SPENT,
                gpu_hours: read_millionths(&budget.gpu_hours)?,
                used: GpuTime::read(&budget.used_gpu_seconds)?,
                period_start: Time::parse(&budget.period_start)?,
                period_end: Time::parse(&budget.period_end)?,
                as_of: Time::parse(&budget.as_of)?,
            })
        });
        Self {
            generation: written.observed_generation,
            epoch: written.epoch,
            problem: written.problem,
            hard: Ceilings::read(&written.hard),
            limited_by: written.limited_by,
            used: Amount::read(&written.used).unwrap_or_default(),
            reservations: reservations
                .filter_map(|(key, text)| Some((key, Amount::parse(&text)?)))
                .collect(),
            budget,
        }
    }
}

impl Status {
    /// Returns true if it was written in the term with this epoch.
    pub(crate) fn is_of(&self, epoch: &str) -> bool {
        self.epoch.as_deref() == Some(epoch)
    }

    /// The used part of each ceiling above zero, with the ceiling's name.
    pub(crate) fn used_ratios(&self) -> impl Iterator<Item = (&'static str, f64)> {
        let dimension = |dimension: Dimension| {
            let ceiling = self.hard.of(dimension)?;
            Some((
                dimension.name(),
                u128::from(self.used.of(dimension)),
                u128::from(ceiling),
            ))
        };
        let hours = |sum: &Sum| ("gpuHours", sum.used.0, GpuTime::of_hours(sum.gpu_hours).0);
        let ceilings = Dimension::ALL.into_iter().filter_map(dimension);
        let ceilings = ceilings.chain(self.budget.as_ref().map(hours));
        #[expect(clippy::cast_precision_loss, reason = "for a graph")]
        ceilings
            .filter(|(_, _, ceiling)| *ceiling > 0)
            .map(|(name, used, ceiling)| (name, used as f64 / ceiling as f64))
    }

    fn read(value: Value) -> Self {
        serde_json::from_value::<VgpuQuotaStatus>(value).map_or_else(|_| Self::default(), Self::from)
    }
}

fn created(meta::Time(at): meta::Time) -> Time {
    Time::from_millis(at.as_millisecond())
}

impl<'de> Deserialize<'de> for Quota {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        /// Spec and status undecoded: a mistake in one of them must not make the quota unknown.
        #[derive(Deserialize)]
        struct Whole {
            metadata: ObjectMeta,
            #[serde(default)]
            spec: Value,
            #[serde(default)]
            status: Value,
        }
        let Whole { metadata, spec, status } = Whole::deserialize(deserializer)?;
        Ok(Self {
            stamped: Stamped::read(&metadata, &spec),
            namespace: metadata.namespace.unwrap_or_default(),
            name: metadata.name.unwrap_or_default(),
            uid: metadata.uid.unwrap_or_default(),
            version: metadata.resource_version.unwrap_or_default(),
            generation: metadata.generation.unwrap_or_default(),
            created: metadata.creation_timestamp.map(created).unwrap_or_default(),
            spec: Spec::parse(&spec).map_err(|error| error.to_string()),
            status: Status::read(status),
        })
    }
}

impl Quota {
    /// Returns true if it is a later version than another one of the same object. The API server's versions are
    /// increasing numbers; if a version is not a number, the last one seen is the later one.
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
        let at = |text: &str| Time::parse(text).unwrap();
        let status = Status {
            generation: 3,
            epoch: Some("term".into()),
            problem: None,
            hard: Ceilings {
                memory: Some(80 << 30),
                ..Ceilings::default()
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
            json!({"memory": "40Gi", "cores": 50, "gpus": "0.5", "shares": 2, "computeSlices": "0"})
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
    fn ceilings_of_zero_and_dimensions_without_one_have_no_ratio() {
        let status = Status {
            hard: Ceilings {
                memory: Some(80 << 30),
                shares: Some(0),
                ..Ceilings::default()
            },
            used: Amount::share(20 << 30, 25, 80 << 30),
            budget: Some(Sum {
                is_spent: false,
                gpu_hours: 2_000_000,
                used: GpuTime::of_hours(1_500_000),
                period_start: Time::default(),
                period_end: Time::default(),
                as_of: Time::default(),
            }),
            ..Status::default()
        };
        let ratios: Vec<_> = status.used_ratios().collect();
        assert_eq!(ratios, [("memory", 0.25), ("gpuHours", 0.75)]);
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
