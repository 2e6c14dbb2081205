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

use crate::device_ownership::{DeviceOwnership, Sighting};
use crate::device_taints::{Handover, rewrite_taints};
use crate::model::{Slice, Version};
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
    Ok(answer)
}
