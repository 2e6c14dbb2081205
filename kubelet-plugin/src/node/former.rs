//! The checkpoint of releases that had one file for all claims: read at an upgrade, and while such a release runs beside
//! this one. Pure, apart from the claim directories that the caller looks up.

use crate::checkpoint::{Checkpoint, Entry};
use crate::inventory::Gpu;
use crate::records::{Found, Record, Verdict};
use std::collections::BTreeMap;

/// Completes what the files of the claims say by the checkpoint of an older release. Returns the claims that it
/// unprepared, whose files on the disk it left.
pub(super) fn complete(found: &mut Found, former: &Checkpoint, has_directory: impl Fn(&str) -> bool) -> Vec<String> {
    let mut ended = Vec::new();
    for (uid, verdict) in &mut found.verdicts {
        match verdict {
            Verdict::Held(record) => {
                if record.boot.is_none() && !former.claims.contains_key(uid) && found.is_first {
                    // It died in a Prepare, before kubelet had an answer.
                    *verdict = Verdict::Orphan;
                } else if record.boot.is_some() && !former.claims.contains_key(uid) && !has_directory(uid) {
                    ended.push(uid.clone());
                } else {
                    record.gpus.extend(gpus_of(&record.entry, former));
                }
            }
            // Of a monitor, the checkpoint alone may say what it is.
            Verdict::Damaged(_) | Verdict::Orphan if has_directory(uid) => {
                if let Some(entry) = former.claims.get(uid) {
                    *verdict = held(entry, former);
                }
            }
            _ => {}
        }
    }
    for (uid, entry) in &former.claims {
        let without_files = || match has_directory(uid) {
            true => held(entry, former),
            false => Verdict::Dormant(Record {
                entry: entry.clone(),
                gpus: BTreeMap::new(),
                boot: None,
            }),
        };
        found.verdicts.entry(uid.clone()).or_insert_with(without_files);
    }
    for uid in &ended {
        found.verdicts.remove(uid);
    }
    ended
}

fn held(entry: &Entry, former: &Checkpoint) -> Verdict {
    Verdict::Held(Record {
        entry: entry.clone(),
        gpus: gpus_of(entry, former),
        boot: None,
    })
}

fn gpus_of(entry: &Entry, former: &Checkpoint) -> BTreeMap<String, Gpu> {
    let held = entry.shares.iter().map(|held| &held.share.gpu);
    held.filter_map(|uuid| Some((uuid.clone(), former.gpus.get(uuid)?.clone())))
        .collect()
}
