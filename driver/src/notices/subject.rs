//! What there is to say to one owner, and when.

use std::time::Duration;

use vgpu_planner::About;

use crate::pending::{Message, MessageKind};

/// How long a pod must seem to have room before that is said: as long as scheduling may take.
pub const ROOM_HOLD: Duration = Duration::from_secs(10);
/// How long a text stands before another replaces it.
pub const CHANGE_HOLD: Duration = Duration::from_secs(15);
/// How long after a failure it is tried again.
pub(super) const RETRY_AFTER: Duration = Duration::from_secs(5);

/// Time since the controller's start.
pub type Now = Duration;

/// What a notice is about.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Topic {
    pub about: About,
    /// Of a decision its reason. It stands beside an explanation of the same pod, and beside other decisions about it.
    pub decided: Option<&'static str>,
}

#[derive(Debug)]
pub(super) struct Subject {
    pub(super) wanted: Message,
    pub(super) since: Now,
    pub(super) said: Option<Said>,
    pub(super) not_before: Now,
}

#[derive(Debug)]
pub(super) struct Said {
    pub(super) message: Message,
    pub(super) at: Now,
    pub(super) count: u32,
}

impl Subject {
    pub(super) fn new(wanted: Message, since: Now) -> Self {
        Self {
            wanted,
            since,
            said: None,
            not_before: Now::ZERO,
        }
    }

    /// Never, if it is a decision that was told.
    pub(super) fn due_at(&self, repeat_after: Duration) -> Option<Now> {
        let held = match self.wanted.kind {
            MessageKind::Room => self.since + ROOM_HOLD,
            MessageKind::Waiting | MessageKind::Refused | MessageKind::Decided(_) => self.since,
        };
        let spoken = match &self.said {
            None => held,
            Some(said) if said.message == self.wanted => match self.wanted.kind {
                MessageKind::Decided(_) => return None,
                MessageKind::Waiting | MessageKind::Refused | MessageKind::Room => said.at + repeat_after,
            },
            Some(said) => held.max(said.at + CHANGE_HOLD),
        };
        Some(spoken.max(self.not_before))
    }

    /// A decision that was told long enough ago for another to be told.
    pub(super) fn is_over(&self, now: Now) -> bool {
        let told = self.said.as_ref().filter(|said| said.message == self.wanted);
        matches!(self.wanted.kind, MessageKind::Decided(_)) && told.is_some_and(|said| said.at + CHANGE_HOLD <= now)
    }
}
