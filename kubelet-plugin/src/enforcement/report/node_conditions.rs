//! The conditions of a node's plugin in its VgpuNode. Pure.
//!
//! | condition | True | False | Unknown |
//! |---|---|---|---|
//! | Ready | every part of the plugin works, has nothing to do or is paused | one does not: those of /readyz | |
//! | DriverFound | the driver lists GPUs; the message names those that cannot be published, NVLinks that contradict each other, and settings of the node that do not hold | there is no driver, or it fails | it was not asked yet, or is not to be asked now |
//! | HostMemoryReserved | kube-scheduler and kubelet reserve the library's memory on the node (`publish::host_memory`) | they do not; the message says why | no slice was published yet |
//! | LimitsEnforced | the memory of every share is within its limit, and no share is over its GPU time | a share is over a limit | of a share it is not known |

use super::super::observations::State;
use super::super::verdicts::finding::Reason;
use super::node_status::time;
use crate::dra::share::ShareKey;
use crate::dra::{claim_access, keep, registration};
use crate::publish;
use crate::publish::inventory::Remarks;
use crate::publish::{gpus, host_memory};
use crate::ready::{State as Part, WAITING};
use crate::text::printable;
use std::collections::BTreeMap;
use std::time::SystemTime;
use vgpu_api::usage::NodeCondition;

/// Limit of a message. Messages contain texts of unknown length, such as errors of the API server.
const LONGEST_MESSAGE: usize = 1000;
/// Parts of the plugin, each after the parts that it needs, with the reason of the condition if the part fails.
const PARTS: [(&str, &str); 5] = [
    (keep::LIBRARY, "LibraryFails"),
    (gpus::PART, "GpusFail"),
    (claim_access::PART, "ClaimsFail"),
    (publish::PART, "SlicesFail"),
    (registration::PART, "RegistrationFails"),
];

/// A condition without its time.
struct Said {
    kind: &'static str,
    status: &'static str,
    reason: &'static str,
    message: String,
}

/// Returns the conditions; `before` has those that are written already, whose times are kept while their status stays.
/// `shares`: each with the name of its claim. `remarks`: what else there is to say of the driver's list.
pub(super) fn conditions(
    parts: &BTreeMap<&'static str, Part>,
    shares: &BTreeMap<ShareKey, String>,
    remarks: &Remarks,
    state: &State,
    before: &[NodeCondition],
    now: SystemTime,
) -> Vec<NodeCondition> {
    let said = [
        ready(parts),
        driver_found(parts, remarks),
        host_memory_reserved(parts),
        limits_enforced(shares, state),
    ];
    let condition = |said: Said| {
        let same = before
            .iter()
            .find(|known| known.kind == said.kind && known.status == said.status);
        NodeCondition {
            kind: said.kind.to_owned(),
            status: said.status.to_owned(),
            reason: said.reason.to_owned(),
            message: printable(&said.message, LONGEST_MESSAGE),
            last_transition_time: same.map_or_else(|| time(now), |known| known.last_transition_time.clone()),
        }
    };
    said.into_iter().map(condition).collect()
}

fn ready(parts: &BTreeMap<&'static str, Part>) -> Said {
    let failing: Vec<(&str, &str, &str)> = PARTS
        .iter()
        .filter_map(|(part, reason)| match parts.get(part)? {
            Part::Fails(why) => Some((*part, *reason, why.as_str())),
            Part::Works | Part::Idle(_) | Part::Paused(_) => None,
        })
        .collect();
    let (status, reason) = failing
        .first()
        .map_or(("True", "EveryPartWorks"), |(_, reason, _)| ("False", reason));
    let texts: Vec<String> = failing.iter().map(|(part, _, why)| format!("{part}: {why}")).collect();
    Said {
        kind: "Ready",
        status,
        reason,
        message: texts.join("; "),
    }
}

fn driver_found(parts: &BTreeMap<&'static str, Part>, remarks: &Remarks) -> Said {
    let (status, reason, message) = match parts.get(gpus::PART) {
        Some(Part::Works) => {
            let Remarks {
                left_out,
                contradictions,
                settings,
            } = remarks;
            let reasons = [
                (left_out, "GpusLeftOut"),
                (settings, "SettingNotApplied"),
                (contradictions, "LinksContradict"),
            ];
            let reason = reasons.iter().find(|(texts, _)| !texts.is_empty());
            let reason = reason.map_or("DriverAnswers", |(_, reason)| *reason);
            let all = reasons.iter().flat_map(|(texts, _)| texts.iter().map(String::as_str));
            ("True", reason, all.collect::<Vec<_>>().join("; "))
        }
        Some(Part::Idle(why)) => ("False", "NoDriver", why.clone()),
        Some(Part::Paused(why)) => ("Unknown", "Paused", why.clone()),
        Some(Part::Fails(why)) if why.starts_with(gpus::NO_DRIVER) => ("False", "NoDriver", why.clone()),
        Some(Part::Fails(why)) if why != WAITING => ("False", "DriverFails", why.clone()),
        Some(Part::Fails(_)) | None => ("Unknown", "NotAskedYet", String::new()),
    };
    Said {
        kind: "DriverFound",
        status,
        reason,
        message,
    }
}

fn host_memory_reserved(parts: &BTreeMap<&'static str, Part>) -> Said {
    let (status, reason, message) = match parts.get(host_memory::PART) {
        Some(Part::Works) => ("True", "Reserved", String::new()),
        Some(Part::Idle(why) | Part::Paused(why) | Part::Fails(why)) => ("False", "NotReserved", why.clone()),
        None => ("Unknown", "NotPublishedYet", String::new()),
    };
    Said {
        kind: "HostMemoryReserved",
        status,
        reason,
        message,
    }
}

fn limits_enforced(shares: &BTreeMap<ShareKey, String>, state: &State) -> Said {
    let mut broken = Vec::new();
    let mut unknown = 0;
    for (key, claim) in shares {
        let found = state.findings.get(key).cloned().unwrap_or_default();
        // A share may have no limit of time.
        let is_over_time = found.compute.status == Some(false) && found.compute.reason != Reason::Unlimited;
        match found.memory.status {
            Some(false) => broken.push(claim.as_str()),
            _ if is_over_time => broken.push(claim.as_str()),
            Some(true) => {}
            None => unknown += 1,
        }
    }
    let all = shares.len();
    let (status, reason, message) = match (broken.as_slice(), unknown) {
        ([], 0) => ("True", "WithinLimits", String::new()),
        ([], _) => (
            "Unknown",
            "NotAllKnown",
            format!("of {unknown} of {all} shares it is not known; the conditions of their claims say why"),
        ),
        ([first, ..], _) => (
            "False",
            "LimitBroken",
            format!(
                "{} of {all} shares use more than their limit, the first is that of claim {first}; the conditions of their \
                 claims say which limit",
                broken.len()
            ),
        ),
    };
    Said {
        kind: "LimitsEnforced",
        status,
        reason,
        message,
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::conditions::ShareFindings;
    use super::super::super::verdicts::finding::Finding;
    use super::*;
    use std::time::{Duration, UNIX_EPOCH};

    fn parts(gpus: Part, slices: Part) -> BTreeMap<&'static str, Part> {
        let mut parts: BTreeMap<_, _> = PARTS.iter().map(|(part, _)| (*part, Part::Works)).collect();
        parts.extend([(gpus::PART, gpus), (publish::PART, slices)]);
        parts
    }

    /// Type, status and reason of each condition, and all messages.
    fn said(parts: &BTreeMap<&'static str, Part>, state: &State, shares: &[&str]) -> (String, String) {
        let shares = shares.iter().map(|uid| (key(uid), format!("team/{uid}"))).collect();
        let found = conditions(parts, &shares, &Remarks::default(), state, &[], UNIX_EPOCH);
        let lines: Vec<String> = found
            .iter()
            .map(|of| format!("{} {} {}", of.kind, of.status, of.reason))
            .collect();
        let messages: Vec<&str> = found.iter().map(|of| of.message.as_str()).collect();
        (lines.join(", "), messages.join("|"))
    }

    fn key(uid: &str) -> ShareKey {
        (uid.to_owned(), "s".to_owned())
    }

    #[test]
    fn each_part_that_fails_is_named_and_the_first_is_the_reason() {
        let fails = |why: &str| Part::Fails(why.to_owned());
        let state = State::default();
        let well = said(&parts(Part::Works, Part::Works), &state, &[]);
        assert_eq!(
            well,
            (
                "Ready True EveryPartWorks, DriverFound True DriverAnswers, HostMemoryReserved Unknown NotPublishedYet, \
                 LimitsEnforced True WithinLimits"
                    .into(),
                "|||".into()
            )
        );
        let (found, texts) = said(&parts(fails("NVML hangs"), fails("403\u{1b}[31m")), &state, &[]);
        assert!(
            found.starts_with("Ready False GpusFail, DriverFound False DriverFails, "),
            "{found}"
        );
        assert_eq!(texts, "gpus: NVML hangs; slices: 403 [31m|NVML hangs||");
        let (found, texts) = said(&parts(Part::Idle("no libcuda".into()), Part::Works), &state, &[]);
        assert!(
            found.starts_with("Ready True EveryPartWorks, DriverFound False NoDriver, "),
            "{found}"
        );
        assert_eq!(texts, "|no libcuda||");
        let (found, _) = said(&parts(fails(WAITING), Part::Works), &state, &[]);
        assert!(found.contains("DriverFound Unknown NotAskedYet"), "{found}");
        let (found, _) = said(&parts(Part::Paused("a label".into()), Part::Works), &state, &[]);
        assert!(
            found.starts_with("Ready True EveryPartWorks, DriverFound Unknown Paused, "),
            "{found}"
        );
        let gpus_alone = format!("{}: 0000:3b:00.0", gpus::NO_DRIVER);
        let (found, texts) = said(&parts(fails(&gpus_alone), Part::Works), &state, &[]);
        assert!(
            found.starts_with("Ready False GpusFail, DriverFound False NoDriver, "),
            "{found}"
        );
        assert_eq!(texts, format!("gpus: {gpus_alone}|{gpus_alone}||"));
        let long = said(&parts(Part::Works, fails(&"ä".repeat(5000))), &state, &[]).1;
        assert!(long.chars().count() < 1100);
    }

    #[test]
    fn gpus_that_are_left_out_are_named_beside_others() {
        let mut remarks = Remarks {
            left_out: vec!["GPU a: no figure".into(), "GPU b: lost".into()],
            contradictions: vec!["c and d".into()],
            settings: vec!["a label".into()],
        };
        let of = |gpus, remarks: &Remarks| {
            let all = parts(gpus, Part::Works);
            let found = conditions(&all, &BTreeMap::new(), remarks, &State::default(), &[], UNIX_EPOCH);
            (
                found[1].status.clone(),
                found[1].reason.clone(),
                found[1].message.clone(),
            )
        };
        let told = ["True", "GpusLeftOut", "GPU a: no figure; GPU b: lost; a label; c and d"].map(str::to_owned);
        assert_eq!(of(Part::Works, &remarks), told.into());
        assert_eq!(of(Part::Fails("NVML hangs".into()), &remarks).1, "DriverFails");
        remarks.left_out.clear();
        assert_eq!(of(Part::Works, &remarks).1, "SettingNotApplied");
        remarks.settings.clear();
        assert_eq!(of(Part::Works, &remarks).1, "LinksContradict");
    }

    #[test]
    fn a_limit_that_is_broken_goes_before_one_that_is_not_known() {
        let mut state = State::default();
        let well = parts(Part::Works, Part::Works);
        let mut find = |uid, memory, compute| {
            let found = ShareFindings {
                memory,
                compute,
                ..ShareFindings::default()
            };
            state.findings.insert(key(uid), found);
            let (found, texts) = said(&well, &state, &["u1", "u2", "u3"]);
            let last = found.rsplit(", ").next().unwrap_or_default().to_owned();
            (last, texts)
        };
        let (holds, unlimited) = (Finding::holds(Reason::WithinLimit), Finding::fails(Reason::Unlimited));
        find("u1", holds, unlimited);
        let (found, texts) = find("u2", holds, holds);
        assert_eq!(found, "LimitsEnforced Unknown NotAllKnown");
        assert!(texts.contains("of 1 of 3 shares"), "{texts}");
        let not_measured = Finding::unknown(Reason::NotMeasured);
        assert_eq!(find("u3", holds, not_measured).0, "LimitsEnforced True WithinLimits");
        find("u1", Finding::unknown(Reason::DriverSilent), unlimited);
        let (found, texts) = find("u2", holds, Finding::fails(Reason::OverLimit));
        assert_eq!(found, "LimitsEnforced False LimitBroken");
        assert!(
            texts.contains("1 of 3 shares") && texts.contains("claim team/u2"),
            "{texts}"
        );
        let (_, texts) = find("u3", Finding::fails(Reason::NotCharged), holds);
        assert!(texts.contains("2 of 3 shares"), "{texts}");
    }

    #[test]
    fn times_are_kept_while_the_status_stays() {
        let (state, later) = (State::default(), UNIX_EPOCH + Duration::from_secs(100));
        let none = BTreeMap::new();
        let first = conditions(
            &parts(Part::Works, Part::Works),
            &none,
            &Remarks::default(),
            &state,
            &[],
            UNIX_EPOCH,
        );
        let fails = parts(Part::Works, Part::Fails("403".into()));
        let second = conditions(&fails, &none, &Remarks::default(), &state, &first, later);
        let times: Vec<&str> = second.iter().map(|of| of.last_transition_time.as_str()).collect();
        assert_eq!(
            times,
            [
                "1970-01-01T00:01:40Z",
                "1970-01-01T00:00:00Z",
                "1970-01-01T00:00:00Z",
                "1970-01-01T00:00:00Z"
            ]
        );
    }

    #[test]
    fn memory_that_is_not_reserved_says_why_and_the_plugin_is_ready_all_the_same() {
        let mut parts = parts(Part::Works, Part::Works);
        for (part, expected) in [
            (Part::Works, "True Reserved"),
            (Part::Idle("the API server dropped it".into()), "False NotReserved"),
        ] {
            parts.insert(host_memory::PART, part);
            let (found, _) = said(&parts, &State::default(), &[]);
            assert!(found.starts_with("Ready True"), "{found}");
            assert!(found.contains(&format!("HostMemoryReserved {expected}")), "{found}");
        }
        let (_, texts) = said(&parts, &State::default(), &[]);
        assert_eq!(texts, "||the API server dropped it|");
    }
}
