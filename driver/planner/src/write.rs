//! The writes of a plan: to which version of which claim, with what intent, and with what outcome.

use std::sync::Arc;
use std::time::Duration;

use vgpu_allocator::model::Allocation;
use vgpu_api::config::AllocationPolicy;

use crate::model::{Claim, Consumer, Version};
use crate::term::Term;
use crate::time::Time;

/// One write to one claim, sent with `version` as a precondition, so that it lands on exactly the version that it was
/// decided on, or not at all.
#[derive(Debug, Clone, PartialEq)]
pub struct Write {
    pub id: WriteId,
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub version: Version,
    pub decided: Time,
    /// The term in which it was decided.
    pub epoch: String,
    pub intent: Intent,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct WriteId(pub u64);

#[derive(Debug, Clone, PartialEq)]
pub enum Intent {
    /// Writes the annotation `dra.vgpu/epoch` with this value, and the delete-protection finalizer. After it, writes of
    /// another leader to an older version fail.
    Mark { epoch: String },
    /// Writes allocation and hold to the status, together.
    Allocate {
        allocation: Arc<Allocation>,
        hold: Consumer,
        /// The policy by which the devices were chosen.
        policy: AllocationPolicy,
    },
    /// Removes the hold from the status; the allocation stays for the bound pod.
    Release { hold: Consumer },
    /// Removes allocation and hold from the status, together.
    Clear { hold: Option<Consumer> },
}

/// The outcome of a write. Every write of a plan is reported once, by [`crate::Planner::report`].
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// The claim as the API server answered.
    Done(Box<Claim>),
    /// 409 or 404: the claim has a newer version, or is gone.
    Conflict,
    /// The API server refused it, with this message.
    Refused(String),
    /// No answer: it may have been applied, or may still be.
    Unknown,
    /// It was not sent.
    Dropped,
}

/// Why a write must not be sent any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Stale {
    #[error("the lease is not held any more")]
    NotLeading,
    #[error("the decision is older than its time limit")]
    Old,
}

impl Write {
    /// The last check before a write is sent: this replica still leads in the term of the decision, and the decision is
    /// not too old.
    ///
    /// # Errors
    /// Why the write must be dropped.
    pub fn check(&self, term: Option<&Term>, now: Time, oldest: Duration) -> Result<(), Stale> {
        if !term.is_some_and(|term| term.epoch == self.epoch && now < term.until) {
            return Err(Stale::NotLeading);
        }
        match now.since(self.decided) > oldest || now < self.decided {
            true => Err(Stale::Old),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_is_sent_in_its_own_term_and_soon_or_never() {
        let write = Write {
            id: WriteId(1),
            namespace: "ns".into(),
            name: "c".into(),
            uid: "u".into(),
            version: Version(1),
            decided: Time::from_millis(1_000),
            epoch: "7".into(),
            intent: Intent::Clear { hold: None },
        };
        let check = |epoch: &str, until, now| {
            let term = Term {
                epoch: epoch.into(),
                until: Time::from_millis(until),
            };
            write.check(Some(&term), Time::from_millis(now), Duration::from_secs(10))
        };
        assert_eq!(check("7", 20_000, 11_000), Ok(()));
        assert_eq!(check("7", 20_000, 11_001), Err(Stale::Old));
        assert_eq!(check("7", 20_000, 999), Err(Stale::Old), "the clock was set back");
        assert_eq!(check("7", 5_000, 5_000), Err(Stale::NotLeading));
        assert_eq!(check("8", 20_000, 2_000), Err(Stale::NotLeading));
        assert_eq!(
            write.check(None, Time::from_millis(1_000), Duration::MAX),
            Err(Stale::NotLeading)
        );
    }
}
