//! The term of a leader, and how a new leader fences off its predecessor before it allocates.
//!
//! ```text
//!  lease ─► list all claims ─► mark each that the predecessor may have decided on ─► list again ─► lead
//! ```
//!
//! The predecessor allocates only claims that it marked with its own epoch, and checks its lease after each decision.
//! So every write that it may still send is for a claim that existed before this leader's lease, is unallocated in the
//! first list, and has the predecessor's epoch. The mark gives each of these claims a new version, so that write fails.
//! If it was applied before the mark, the answer to the mark or the second list shows it. A claim that is being deleted
//! needs no mark: the deletion gave it a new version, and nobody decides to allocate it afterwards.
//!
//! Any newer version is as good as the mark, whoever made it, because the predecessor decided on the version of the
//! first list or an older one. So a claim that its user changes all the time, so that every mark fails, does not keep
//! the leader waiting.
//!
//! If the API server refuses a mark (because of a webhook), the leader waits for as long as a device has no allocator
//! while it changes from one to another, and then leads without that mark: one claim must not stop all allocation. By
//! then the predecessor's write has been applied, unless that process is stopped between its check and its write for
//! all that time.

use std::collections::BTreeMap;

use crate::model::Version;
use crate::time::Time;

/// The time in which a replica holds the lease without a break. No two terms ever have the same epoch, not even of one
/// process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Term {
    pub epoch: String,
    pub until: Time,
}

/// The progress of a new leader.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum Stage {
    #[default]
    Standby,
    /// Waits for a consistent list of all claims that is begun at `since` or later.
    FirstList {
        since: Time,
    },
    /// Waits until these claims, by key and uid, have a newer version than in the first list, since `since`.
    Marking {
        claims: BTreeMap<(String, String), Version>,
        since: Time,
    },
    /// Like `FirstList`, for the second list.
    SecondList {
        since: Time,
    },
    Leading,
}

impl Term {
    /// The value with which this term marks a claim of that version. It is new each time, so that writing it changes
    /// the claim.
    pub(crate) fn mark(&self, version: Version) -> String {
        format!("{}#{version}", self.epoch)
    }

    pub(crate) fn is_mark(&self, mark: &str) -> bool {
        mark.rsplit_once('#').is_some_and(|(epoch, _)| epoch == self.epoch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_of_their_term() {
        let term = |epoch: &str| Term {
            epoch: epoch.into(),
            until: Time::default(),
        };
        assert!(term("3").is_mark(&term("3").mark(Version(9))));
        assert!(!term("3").is_mark(&term("33").mark(Version(9))));
        assert!(!term("3").is_mark("3"));
        assert_ne!(term("3").mark(Version(1)), term("3").mark(Version(2)));
    }
}
