//! From taking the lease to allocating: a new leader fences off its predecessor first.
//!
//! ```text
//!  lease ─► list all claims ─► mark each that the predecessor may have decided on ─► list again ─► lead
//! ```
//!
//! The predecessor allocates only what it marked with its own epoch, and checks its lease after it decided. So whatever
//! it may still send is about a claim that existed before this leader's lease, is unallocated in the first list, and
//! bears its epoch. The mark gives each of these a new version, with which that write fails; what landed before the
//! mark is in the mark's own answer, or in the second list. A claim that is being deleted needs none: it was given its
//! newest version by that, and nobody decides to allocate it then.
//!
//! Any other newer version is as good as the mark's, whoever made it: all that the predecessor may still send was decided
//! before the first list, on that list's version of the claim or an older one. So a claim that its user changes all the
//! time, and on which no mark ever lands, keeps nobody from leading.
//!
//! Where the API server takes no mark (a webhook refuses it) the leader waits as long as a device does that changes
//! hands, and then leads without: one claim must not end all allocation. What the predecessor decided on it lands by
//! then, unless that is stopped between its check and its write for all that time.

use std::collections::BTreeMap;

use crate::model::Version;
use crate::time::Time;

/// A hold of the lease. No two holds ever have the same epoch, not even of one process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Term {
    pub epoch: String,
    pub until: Time,
}

/// How far a leader is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum Stage {
    #[default]
    Standby,
    /// Waits for a list that was asked for since then.
    FirstList {
        since: Time,
    },
    /// Claims, by key and uid, that are to be marked, each with the version known after the first list, and since when.
    Marking {
        claims: BTreeMap<(String, String), Version>,
        since: Time,
    },
    SecondList {
        since: Time,
    },
    Leading,
}

impl Term {
    /// The mark of this term on a claim of that version. Each is new, so that writing it changes the claim.
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
