//! One notice to write: its text, when it was written last, and when it is due again.

use std::time::Duration;

use vgpu_planner::About;
use vgpu_planner::explain::{Message, MessageKind};

/// How long a pod must have had room, or a claim must be missing, before that is reported: as long as scheduling may take.
pub const ROOM_HOLD: Duration = Duration::from_secs(10);
/// The shortest time between two texts about one pod.
pub const CHANGE_HOLD: Duration = Duration::from_secs(15);
/// How long after a failed delivery the notice is due again.
pub(super) const RETRY_AFTER: Duration = Duration::from_secs(5);

/// Time since the controller's start.
pub type Now = Duration;

/// What a notice is about.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Topic {
    pub about: About,
    /// The reason of a decision; `None` for an explanation. A pod can have an explanation and several decisions.
    pub decided: Option<&'static str>,
}

#[derive(Debug)]
pub(super) struct Subject {
    pub(super) wanted: Message,
    /// See [`super::Reported`].
    pub(super) lasting: Option<String>,
    pub(super) since: Now,
    pub(super) said: Option<Said>,
    pub(super) not_before: Now,
}

#[derive(Debug)]
pub(super) struct Said {
    pub(super) message: Message,
    pub(super) lasting: Option<String>,
    pub(super) at: Now,
    pub(super) count: u32,
}

impl Subject {
    pub(super) fn new(wanted: Message, since: Now) -> Self {
        Self {
            wanted,
            lasting: None,
            since,
            said: None,
            not_before: Now::ZERO,
        }
    }

    /// When the text is due; `None` for a decision that was reported.
    pub(super) fn due_at(&self, repeat_after: Duration) -> Option<Now> {
        let held = match self.wanted.kind {
            MessageKind::Room | MessageKind::NoClaim => self.since + ROOM_HOLD,
            MessageKind::Waiting | MessageKind::Refused | MessageKind::Decided(_) => self.since,
        };
        let spoken = match &self.said {
            None => held,
            Some(said) if said.message == self.wanted => match self.wanted.kind {
                MessageKind::Decided(_) => return None,
                MessageKind::Waiting | MessageKind::Refused | MessageKind::Room | MessageKind::NoClaim => {
                    said.at + repeat_after
                }
            },
            Some(said) => held.max(said.at + CHANGE_HOLD),
        };
        Some(spoken.max(self.not_before))
    }

    /// Returns true if the text was reported as it is now.
    pub(super) fn is_said(&self) -> bool {
        self.said.as_ref().is_some_and(|said| said.message == self.wanted)
    }

    /// Returns true for a decision that was reported long enough ago for the same to be reported again.
    pub(super) fn is_over(&self, now: Now) -> bool {
        let is_old = self.said.as_ref().is_some_and(|said| said.at + CHANGE_HOLD <= now);
        matches!(self.wanted.kind, MessageKind::Decided(_)) && self.is_said() && is_old
    }
}
