//! What `status.devices` of a claim says of each of its shares. Pure: records and findings in, the field out.
//!
//! Times are kept while a condition's status stays, also those that a former instance wrote.

use super::verdicts::finding::{Finding, Reason};
use crate::dra::checkpoint::Entry;
use crate::dra::share::{Role, Share, ShareKey};
use k8s_openapi::api::resource::v1::AllocatedDeviceStatus;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::apimachinery::pkg::runtime::RawExtension;
use k8s_openapi::jiff::Timestamp;
use serde_json::json;
use std::collections::BTreeMap;
use vgpu_api::{DRIVER_NAME, Pools};

/// The findings about a share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ShareFindings {
    pub memory: Finding,
    /// What the driver's own limit does not hold, for the message while `memory` holds.
    pub memory_note: Option<String>,
    pub compute: Finding,
    /// Programs got the memory that they asked for.
    pub granted: Finding,
    pub injected: Finding,
}

const MEMORY: &str = "MemoryEnforced";

/// Findings by share.
pub(super) type Findings = BTreeMap<ShareKey, ShareFindings>;

impl Default for ShareFindings {
    fn default() -> Self {
        let unseen = Finding::unknown(Reason::NotSeenYet);
        Self {
            memory: unseen,
            memory_note: None,
            compute: unseen,
            granted: unseen,
            injected: unseen,
        }
    }
}

/// Our entries of `status.devices`. `known` are those that the claim has.
#[must_use]
pub(super) fn devices(
    pools: &Pools,
    uid: &str,
    entry: &Entry,
    findings: &Findings,
    known: &[AllocatedDeviceStatus],
    now: Timestamp,
) -> Vec<AllocatedDeviceStatus> {
    // A share that was rebuilt from its limits file has no device until it is prepared again.
    let named = entry.all().filter(|share| !share.device.is_empty());
    let of = |share: &Share| {
        let key = (uid.to_owned(), share.name.clone());
        let pool = pools.of_device(&share.device);
        let found = findings.get(&key).cloned().unwrap_or_default();
        let is_it = |known: &&AllocatedDeviceStatus| {
            known.driver == DRIVER_NAME
                && known.pool == pool
                && known.device == share.device
                && known.share_id == share.share_id
        };
        let before = known.iter().find(is_it).and_then(|known| known.conditions.as_deref());
        let has_note = found.memory.status == Some(true) || found.memory.reason == Reason::DriverLimitMissing;
        let note = found.memory_note.clone().filter(|_| has_note);
        let condition = |(kind, finding)| {
            let note = note.as_deref().filter(|_| kind == MEMORY);
            condition(kind, finding, note, before.unwrap_or_default(), now)
        };
        AllocatedDeviceStatus {
            driver: DRIVER_NAME.into(),
            pool: pool.clone(),
            device: share.device.clone(),
            share_id: share.share_id.clone(),
            data: Some(RawExtension(data(share))),
            conditions: Some(kinds(share, &found).into_iter().map(condition).collect()),
            network_data: None,
        }
    };
    named.map(of).collect()
}

/// A monitor has no limit that could be enforced.
fn kinds(share: &Share, found: &ShareFindings) -> Vec<(&'static str, Finding)> {
    let mut kinds = vec![("Prepared", Finding::holds(Reason::Prepared))];
    if share.role == Role::Share {
        kinds.push((MEMORY, found.memory));
        kinds.push(("ComputeEnforced", found.compute));
        kinds.push(("MemoryGranted", found.granted));
        kinds.push(("Injected", found.injected));
    }
    kinds
}

fn data(share: &Share) -> serde_json::Value {
    match share.role {
        Role::Share => json!({"uuid": share.gpu, "memory": share.memory, "cores": share.cores}),
        Role::Monitor => json!({"uuid": share.gpu}),
    }
}

fn condition(kind: &str, finding: Finding, note: Option<&str>, before: &[Condition], now: Timestamp) -> Condition {
    let same = before
        .iter()
        .find(|known| known.type_ == kind && known.status == finding.text());
    // The API server stores whole seconds.
    let now = Timestamp::from_second(now.as_second()).unwrap_or(now);
    Condition {
        type_: kind.into(),
        status: finding.text().into(),
        reason: finding.reason.to_string(),
        message: match note {
            Some(note) => format!("{}; {note}", finding.reason.message()),
            None => finding.reason.message().into(),
        },
        last_transition_time: same.map_or(Time(now), |known| known.last_transition_time.clone()),
        observed_generation: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dra::checkpoint::PreparedShare;
    use crate::dra::share::tests::{GPU, share};

    fn entry(shares: Vec<Share>) -> Entry {
        Entry {
            namespace: "d".into(),
            name: "c".into(),
            library: String::new(),
            shares: shares
                .into_iter()
                .map(|share| PreparedShare { share, slot: Some(0) })
                .collect(),
            named_by: None,
            pods: Vec::new(),
            may_require_limit: false,
        }
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::new(second, 500_000_000).expect("a time")
    }

    fn statuses(of: &AllocatedDeviceStatus) -> Vec<(String, String, String, i64)> {
        let all = of.conditions.iter().flatten();
        all.map(|c| {
            let since = c.last_transition_time.0.as_second();
            (c.type_.clone(), c.status.clone(), c.reason.clone(), since)
        })
        .collect()
    }

    #[test]
    fn each_share_says_what_is_known_of_it() {
        let monitor = Share {
            role: Role::Monitor,
            device: "gpu-3f8a1c20-monitor".into(),
            share_id: None,
            ..share("m")
        };
        let nameless = Share {
            device: String::new(),
            ..share("n")
        };
        let entry = entry(vec![share("s"), monitor, nameless]);
        let found = ShareFindings {
            memory: Finding::fails(Reason::OverLimit),
            compute: Finding::holds(Reason::WithinLimit),
            ..ShareFindings::default()
        };
        let findings = Findings::from([(("u".to_owned(), "s".to_owned()), found)]);
        let devices = devices(&Pools::of("n1"), "u", &entry, &findings, &[], at(7));
        assert_eq!(devices.len(), 2);
        let expected = [
            ("Prepared", "True", "Prepared"),
            ("MemoryEnforced", "False", "OverLimit"),
            ("ComputeEnforced", "True", "WithinLimit"),
            ("MemoryGranted", "Unknown", "NotSeenYet"),
            ("Injected", "Unknown", "NotSeenYet"),
        ]
        .map(|(kind, status, reason)| (kind.to_owned(), status.to_owned(), reason.to_owned(), 7));
        assert_eq!(statuses(&devices[0]), expected);
        assert_eq!(statuses(&devices[1]).len(), 1);
        let data = |at: usize| devices[at].data.clone().map(|data| data.0);
        assert_eq!(data(0), Some(json!({"uuid": GPU, "memory": 20_u64 << 30, "cores": 25})));
        assert_eq!(data(1), Some(json!({"uuid": GPU})));
        assert_eq!(devices[0].share_id.as_deref(), Some("s"));
    }

    #[test]
    fn times_change_with_the_status_alone() {
        let entry = entry(vec![share("s")]);
        let key = ("u".to_owned(), "s".to_owned());
        let with = |memory| {
            let found = ShareFindings {
                memory,
                ..ShareFindings::default()
            };
            Findings::from([(key.clone(), found)])
        };
        let make = |memory, known: &[AllocatedDeviceStatus], now| {
            devices(&Pools::of("n1"), "u", &entry, &with(memory), known, at(now))
        };
        let first = make(Finding::unknown(Reason::NotSeenYet), &[], 1);
        // As it comes back from the API server.
        let text = serde_json::to_string(&first).expect("JSON");
        let known: Vec<AllocatedDeviceStatus> = serde_json::from_str(&text).expect("read");
        assert_eq!(
            make(Finding::unknown(Reason::NotSeenYet), &known, 2),
            known,
            "nothing to write"
        );
        let reason = make(Finding::unknown(Reason::DriverSilent), &known, 2);
        assert_ne!(reason, known);
        assert!(statuses(&reason[0]).iter().all(|(.., since)| *since == 1));
        let within = make(Finding::holds(Reason::Library), &reason, 3);
        let since: Vec<i64> = statuses(&within[0]).into_iter().map(|(.., since)| since).collect();
        assert_eq!(since, [1, 3, 1, 1, 1]);
        let both = make(Finding::holds(Reason::DriverAndLibrary), &within, 4);
        let since: Vec<i64> = statuses(&both[0]).into_iter().map(|(.., since)| since).collect();
        assert_eq!(since, [1, 3, 1, 1, 1], "it holds as before");
    }

    #[test]
    fn what_the_second_wall_does_not_hold_is_said_while_the_limit_holds() {
        let entry = entry(vec![share("s")]);
        let message = |memory: Finding| {
            let found = ShareFindings {
                memory,
                memory_note: Some("a container started without the driver's limit: MIG".into()),
                ..ShareFindings::default()
            };
            let findings = Findings::from([(("u".to_owned(), "s".to_owned()), found)]);
            let made = devices(&Pools::of("n1"), "u", &entry, &findings, &[], at(1));
            let conditions = made[0].conditions.clone().unwrap_or_default();
            assert!(conditions.iter().filter(|one| one.message.contains("MIG")).count() < 2);
            conditions[1].message.clone()
        };
        let (library, over) = (Reason::Library, Reason::OverLimit);
        assert_eq!(
            message(Finding::holds(library)),
            format!(
                "{}; a container started without the driver's limit: MIG",
                library.message()
            )
        );
        assert_eq!(message(Finding::fails(over)), over.message());
    }

    #[test]
    fn another_drivers_entries_are_not_ours() {
        let foreign = AllocatedDeviceStatus {
            driver: "nic.example".into(),
            pool: "n1/vgpu".into(),
            device: "gpu-3f8a1c20".into(),
            share_id: Some("s".into()),
            conditions: Some(vec![condition(
                "Prepared",
                Finding::holds(Reason::Prepared),
                None,
                &[],
                at(1),
            )]),
            ..AllocatedDeviceStatus::default()
        };
        let made = devices(
            &Pools::of("n1"),
            "u",
            &entry(vec![share("s")]),
            &Findings::new(),
            &[foreign],
            at(9),
        );
        assert_eq!(statuses(&made[0])[0].3, 9);
    }
}
