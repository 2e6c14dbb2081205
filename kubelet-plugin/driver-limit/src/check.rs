//! Compares the driver's limits with the records, for `check`, and sets them again where they differ.
//!
//! ```text
//!  record ──► leaves, pod ──► limits that follow ─┬─► get ──► the same: held
//!    ▲                                            └─► set, get ──► set-again, or failed
//!    └── lifted ◄── strangers: a process of the GPU in the pod, outside of the record's leaves
//! ```
//!
//! How it fails: a record that cannot be read has no line, and standard error names it. Of one that somebody keeps locked, each
//! share has failed. Once the driver hangs, every later
//! limit has failed.

use std::{
    collections::BTreeMap,
    path::Path,
    time::{Duration, Instant},
};

use vgpu_hook::text::one_line;
use vgpu_node::driver_limit::{PodLimit, Reading, State};

use crate::{
    apply::{self, Driver, Found},
    claim::Share,
    code::Code,
    hierarchy::Hierarchy,
    records::{self, Limit, Record, Records},
    strangers::Strangers,
};

/// Characters of a reason.
const MAX_REASON: usize = 600;

/// The longest wait for one record's lock.
const BUSY: Duration = Duration::from_millis(500);

/// The result of checking one limit.
struct Looked {
    state: State,
    hard: u64,
    used: u64,
    reason: String,
}

pub(crate) struct Check<'a, D> {
    pub(crate) hierarchy: &'a Hierarchy,
    pub(crate) driver: &'a D,
    strangers: Strangers<'a, D>,
}

impl<'a, D: Driver> Check<'a, D> {
    pub(crate) fn new(hierarchy: &'a Hierarchy, driver: &'a D) -> Self {
        Self {
            hierarchy,
            driver,
            strangers: Strangers::new(hierarchy, driver),
        }
    }

    /// Checks every record of the folder. `until`: until when to wait for locks.
    pub(crate) fn run(&mut self, folder: &Path, until: Instant) -> Vec<Reading> {
        let mut readings = Vec::new();
        for path in records::all(folder) {
            // One that somebody keeps must not use up the time of all.
            let lock = Records::lock(path.clone(), until.min(Instant::now() + BUSY));
            let record = match Record::read(&path) {
                Ok(record) => record,
                Err(error) => {
                    // It may have ended a moment ago.
                    if path.exists() {
                        complain(&error);
                    }
                    continue;
                }
            };
            readings.extend(match &lock {
                Ok(_) => self.record(record),
                Err(error) => unchecked(&record, error),
            });
        }
        readings
    }

    fn record(&mut self, mut record: Record) -> Vec<Reading> {
        // With those that have ended, whose processes the driver may still list.
        let known = record.leaves();
        let mut is_changed = record.forget_ended(|cgroup| self.hierarchy.exists(cgroup));
        let gpus = record.gpus();
        is_changed |= self.strangers.lift(&mut record, &gpus, &known);
        // Before the driver's limit: a hook that comes next must not set it again.
        if is_changed && let Err(error) = record.write() {
            complain(&error);
        }
        let pods: BTreeMap<String, Looked> = record
            .gpus()
            .into_iter()
            .filter_map(|gpu| Some((gpu.clone(), self.look(&record.of_pod(&gpu)?))))
            .collect();
        let mut lines = Vec::new();
        for (leaf, shares) in record.containers() {
            for limit in record.of_container(leaf) {
                let mut looked = self.look(&limit);
                if let Some(why) = record.why_unlimited(leaf) {
                    looked.state = State::Failed;
                    why.clone_into(&mut looked.reason);
                }
                // Its container has ended meanwhile.
                if !self.hierarchy.exists(leaf) {
                    continue;
                }
                let shares = shares.iter().filter(|share| share.gpu == limit.gpu);
                lines.extend(shares.map(|share| line(&record, leaf, share, &looked, pods.get(&limit.gpu))));
            }
        }
        lines
    }

    fn look(&self, limit: &Limit) -> Looked {
        let folder = self.hierarchy.folder(&limit.cgroup);
        let failed = |hard, reason: String| Looked {
            state: State::Failed,
            hard,
            used: 0,
            reason,
        };
        let hard = match apply::bytes(self.driver, limit) {
            Ok(hard) => hard,
            Err(error) => return failed(limit.bytes.unwrap_or(apply::NO_LIMIT), error.to_string()),
        };
        let before = self.driver.get(&limit.gpu, &folder);
        if let Ok(found) = before
            && found.is(hard)
        {
            return Looked {
                state: State::Held,
                hard,
                used: found.used,
                reason: String::new(),
            };
        }
        // Whoever disables a controller wipes the limits below.
        if let Err(error) = self.hierarchy.enable_controllers(&limit.cgroup) {
            return failed(hard, error.to_string());
        }
        match apply::hold(self.driver, limit, &folder) {
            Ok(found) => Looked {
                state: State::SetAgain,
                hard,
                used: found.used,
                reason: format!("GPU {}: cgroup {}: {}", limit.gpu, limit.cgroup, said(before)),
            },
            Err(error) => failed(hard, error.to_string()),
        }
    }
}

/// The lines of a record that somebody else keeps.
fn unchecked(record: &Record, error: &records::Error) -> Vec<Reading> {
    let failed = |limit: &Limit| Looked {
        state: State::Failed,
        hard: limit.bytes.unwrap_or(apply::NO_LIMIT),
        used: 0,
        reason: error.to_string(),
    };
    let mut lines = Vec::new();
    for (leaf, shares) in record.containers() {
        for limit in record.of_container(leaf) {
            let (own, pod) = (
                failed(&limit),
                record.of_pod(&limit.gpu).map(|limit| Looked {
                    reason: String::new(),
                    ..failed(&limit)
                }),
            );
            let shares = shares.iter().filter(|share| share.gpu == limit.gpu);
            lines.extend(shares.map(|share| line(record, leaf, share, &own, pod.as_ref())));
        }
    }
    lines
}

/// The plugin logs standard error.
fn complain(error: &records::Error) {
    eprintln!("vgpu-driver-limit: {}", one_line(&error.to_string(), MAX_REASON));
}

fn said(before: Result<Found, Code>) -> String {
    let shown = |bytes: u64| match bytes {
        apply::NO_LIMIT => "none".to_owned(),
        bytes => format!("{bytes} bytes"),
    };
    match before {
        Ok(found) => format!(
            "its hard limit was {}, and its soft limit {}",
            shown(found.hard),
            shown(found.soft)
        ),
        Err(code) => format!("its limit could not be read: {code}"),
    }
}

fn line(record: &Record, leaf: &str, share: &Share, own: &Looked, pod: Option<&Looked>) -> Reading {
    let lifted = record.lifted(&share.gpu);
    let pod_state = match pod {
        None => PodLimit::None,
        Some(pod) if pod.state == State::Failed => PodLimit::Failed,
        Some(_) if lifted.is_some() => PodLimit::Lifted,
        Some(_) => PodLimit::Held,
    };
    // A pod that was set again makes its containers' lines say so, unless this program lifted it. One that failed has its own
    // word.
    let pod_was_set = lifted.is_none() && pod.is_some_and(|pod| pod.state == State::SetAgain);
    let state = match own.state {
        State::Held if pod_was_set => State::SetAgain,
        state => state,
    };
    let of_pod = pod.map(|pod| match (pod_state, lifted) {
        (PodLimit::Lifted, Some(why)) => why,
        _ => &pod.reason,
    });
    let reasons = [Some(own.reason.as_str()), of_pod].into_iter().flatten();
    let reasons: Vec<&str> = reasons.filter(|reason| !reason.is_empty()).collect();
    Reading {
        claim: share.claim.clone(),
        share: share.name.clone(),
        gpu: share.gpu.clone(),
        cgroup: leaf.to_owned(),
        hard: own.hard,
        used: own.used,
        state,
        reason: one_line(&reasons.join("; "), MAX_REASON),
        pod: pod_state,
    }
}
