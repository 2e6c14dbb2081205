//! The writes of a plan: to which version of which claim, with what intent, and with what outcome.

use std::sync::Arc;
use std::time::Duration;

use vgpu_allocator::model::Allocation;
use vgpu_api::config::AllocationPolicy;

use crate::model::{Claim, Consumer, Version};
use crate::term::Term;
use crate::time::Time;

/// One write to one claim. Whoever performs it sends `version` as precondition, so that it lands on exactly what it was
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
    /// To the object: the annotation `dra.vgpu/epoch` with this value, and the delete-protection finalizer. What
    /// another leader decided on an older version can land no more.
    Mark { epoch: String },
    /// To the status: allocation and hold, at once.
    Allocate {
        allocation: Arc<Allocation>,
        hold: Consumer,
        /// By which the devices were chosen.
        policy: AllocationPolicy,
    },
    /// To the status: the hold goes, the allocation stays. A pod is bound with it.
    Release { hold: Consumer },
    /// To the status: allocation and hold go, at once.
    Clear { hold: Option<Consumer> },
}

/// What came of a write. Every write that a plan contains is reported once.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// The claim as the API server answered.
    Done(Box<Claim>),
    /// 409, or 404: the claim is another by now.
    Conflict,
    /// The API server says no, in words.
    Refused(String),
    /// No answer: it may have landed, or land yet.
    Unknown,
    /// Never sent.
    Dropped,
}

/// Why a write is not to be sent any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Stale {
    #[error("the lease is not held any more")]
    NotLeading,
    #[error("the decision is older than its time limit")]
    Old,
}

impl Write {
    /// The last look before a write is sent: whether whoever decided it still leads, and did so lately.
    ///
    /// # Errors
    /// It is to be dropped, and why.
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
