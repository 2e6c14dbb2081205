//! `vgpu explain` on the controller's rules: claims and devices as their allocator sees them.
//!
//! ```text
//!  objects ─► who allocates each device and each claim: rewritten taints and tolerations ─► vgpu_allocator::offline
//! ```
//!
//! Without a taint of `docs/controller.md` on any device, kube-scheduler is the allocator, and nothing is rewritten
//! that changes the answer.

use std::collections::HashMap;

use vgpu_allocator::offline::{self, Explanation, Objects, OfflineError, Options, Subject};
use vgpu_allocator::{Index, SelectorCache};

use serde::Deserialize as _;

use crate::device_ownership::{DeviceOwnership, Sighting};
use crate::device_taints::{Handover, rewrite_taints};
use crate::model::{Pod, Slice, Version};
use crate::obstacle::Obstacle;
use crate::planner::Settings;
use crate::time::Time;

/// Why the subject waits: as [`offline::explain`], with devices and claims as whoever allocates them sees them at that
/// time.
///
/// # Errors
/// As [`offline::explain`].
pub fn explain(
    mut objects: Objects,
    subject: &Subject,
    options: &Options,
    cache: &mut SelectorCache<'_>,
    now: Time,
) -> Result<Explanation, OfflineError> {
    let handover = Handover {
        after: Settings::default().settle,
        // The objects contain all claims of this moment.
        listed: Some(now),
        is_listed_now: true,
    };
    let mut index = Index::new(options.features);
    let mut ownership = DeviceOwnership::divided(handover.after);
    ownership.set_listed(now, &mut index, cache);
    for class in objects.classes() {
        ownership.set_class(class.clone(), &mut index, cache);
    }
    let seen = Sighting { at: now, read: None };
    for facts in objects.slices_mut() {
        let version = Version::default();
        let slice = Slice {
            version,
            facts: facts.clone(),
        };
        ownership.set_slice(slice, seen, &mut index, cache);
        rewrite_taints(facts, handover);
    }
    let mut refused = HashMap::new();
    for claim in objects.waiting_mut() {
        match ownership.as_its_allocator(claim) {
            Ok(asked) => *claim = asked,
            Err(why) => {
                refused.insert(claim.key(), why.verdict(claim.key()).to_string());
            }
        }
    }
    let mut answer = offline::explain(&objects, subject, options, cache)?;
    answer.refused = answer
        .waiting
        .iter()
        .filter_map(|claim| refused.remove(claim))
        .collect();
    add_obstacles(&mut answer, &objects);
    Ok(answer)
}

/// Adds what keeps the subject from its devices besides their number and size.
fn add_obstacles(answer: &mut Explanation, objects: &Objects) {
    let mut found = match answer.subject.split_once(' ') {
        Some(("pod", key)) => {
            let pod = objects.pod(key).and_then(|document| Pod::deserialize(document).ok());
            let pod = pod.unwrap_or_default();
            let without = pod.unusual().claimless.iter();
            answer.notes = without
                .map(|name| format!("container {name} names none of its claims, so it has no GPU"))
                .collect();
            Obstacle::of_pod(&pod, objects)
        }
        Some(("claim", key)) => {
            let mut found = Obstacle::of_claim(key, objects);
            let document = objects.claim_document(key);
            if document.is_some_and(|claim| claim["metadata"]["deletionTimestamp"].is_string()) {
                found.push(Obstacle::ClaimDeleted(key.to_owned()));
            }
            found
        }
        _ => Vec::new(),
    };
    found.extend(Obstacle::of_fits(&answer.fits, objects));
    // Two claims may be on one node.
    for obstacle in found {
        let text = obstacle.to_string();
        if !answer.obstacles.contains(&text) {
            answer.obstacles.push(text);
        }
    }
}
