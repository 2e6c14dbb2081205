//! Claims and devices as whoever allocates them sees them, for those who ask why something waits.
//!
//! ```text
//!  in the controller:  Planner ─► Eyes: the index that decisions are made by, and each claim as it asks there
//!  vgpu explain:       objects ─► the same rules: whose each device is, whose each claim ─► vgpu_allocator::offline
//! ```
//!
//! Where no device bears the taint of `docs/controller.md`, that is kube-scheduler, who sees what is written.

use std::collections::HashMap;

use vgpu_allocator::offline::{self, Explanation, Objects, OfflineError, Options, Subject};
use vgpu_allocator::{Index, SelectorCache};

use crate::devices::{Settling, take_over};
use crate::model::{Slice, Version};
use crate::planner::Settings;
use crate::supply::{Sighting, Supply};
use crate::time::Time;

/// Why the subject waits: as [`offline::explain`], by the eyes of whoever allocates its claims at that time.
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
    let settling = Settling {
        after: Settings::default().settle,
        // Whoever asks sees all claims that there are.
        listed: Some(now),
        is_listed_now: true,
    };
    let mut index = Index::new(options.features);
    let mut supply = Supply::divided(settling.after);
    supply.set_listed(now, &mut index, cache);
    for class in objects.classes() {
        supply.set_class(class.clone(), &mut index, cache);
    }
    let seen = Sighting { at: now, read: None };
    for facts in objects.slices_mut() {
        let version = Version::default();
        let slice = Slice {
            version,
            facts: facts.clone(),
        };
        supply.set_slice(slice, seen, &mut index, cache);
        take_over(facts, settling);
    }
    let mut refused = HashMap::new();
    for claim in objects.waiting_mut() {
        match supply.asked(claim) {
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
