//! Claims, and the writes to them that are in flight.
//!
//! The devices of a sent allocation count as in use until a newer version of the claim is seen, whatever the result of
//! the write: a write without an answer may still be applied. A newer version shows whether it was, and after it an
//! older write can no longer be applied.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use vgpu_allocator::model::Allocation;

use crate::allocation::hold_of;
use crate::model::{Claim, Consumer, Version};
use crate::time::Time;
use crate::write::{Intent, Write, WriteId};

/// How long the outcome of a write may be missing before the write counts as lost.
const LOST: Duration = Duration::from_secs(60);
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub(crate) struct Claims {
    /// Boxed, because a map allocates room for about twice its entries.
    known: BTreeMap<String, Box<Known>>,
    /// The claim of each write whose outcome was not reported yet.
    written: HashMap<WriteId, String>,
    /// The newest version that a list or watch has shown: an older claim that is not known was deleted.
    seen: Version,
}

#[derive(Debug)]
pub(crate) struct Known {
    pub(crate) claim: Claim,
    /// The last write, until its outcome is settled. Boxed, because few claims have one.
    pub(crate) in_flight: Option<Box<InFlight>>,
    /// Since when this process knows of the hold, or of the allocation that no pod uses.
    pub(crate) since: Time,
    failures: u32,
    /// When a mark was last refused or had no answer.
    unmarked: Option<Time>,
    /// No write is sent before this time, because writes have failed.
    pub(crate) paused_until: Option<Time>,
    /// True if the end of the claim's hold was reported. It is reported only once, even if the write that ends the hold
    /// is repeated.
    pub(crate) is_reported: bool,
}

/// A write that was sent, or is about to be.
#[derive(Debug, Clone)]
pub(crate) struct InFlight {
    id: WriteId,
    /// The version of the claim that the write requires: it is applied to this version or not at all.
    version: Version,
    /// The allocation that the claim may have by this write, or by an earlier one that is in doubt.
    given: Option<(Arc<Allocation>, Consumer)>,
    is_mark: bool,
    /// True if an earlier write was in doubt: this one is a mark that settles it.
    was_doubtful: bool,
    pub(crate) state: WriteState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WriteState {
    Sent {
        at: Time,
    },
    /// 409: the claim has a newer version, which a watch or list will show.
    Conflict {
        at: Time,
    },
    /// It may or may not have been applied. A mark finds out: it gives the claim a newer version.
    Doubtful,
}

impl Claims {
    pub(crate) fn get(&self, key: &str) -> Option<&Known> {
        self.known.get(key).map(Box::as_ref)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&String, &Known)> {
        self.known.iter().map(|(key, known)| (key, known.as_ref()))
    }

    /// Applies a claim from a list or watch. Returns true if it is new.
    pub(crate) fn observe(&mut self, claim: Claim, now: Time) -> bool {
        self.seen = self.seen.max(claim.version);
        self.accept(claim, now)
    }

    /// Applies the claim in the answer to a write. Returns true if the claim is new.
    pub(crate) fn answer(&mut self, claim: Claim, now: Time) -> bool {
        let is_gone = claim.version <= self.seen && !self.known.contains_key(&claim.key());
        !is_gone && self.accept(claim, now)
    }

    fn accept(&mut self, claim: Claim, now: Time) -> bool {
        let key = claim.key();
        let Some(known) = self.known.get_mut(&key) else {
            self.known.insert(key, Box::new(Known::new(claim, now)));
            return true;
        };
        if claim.version <= known.claim.version {
            return false;
        }
        if claim.uid() != known.claim.uid() {
            **known = Known::new(claim, now);
            return true;
        }
        // A write to an older version was applied in this version, or never will be.
        let flown = known.in_flight.take_if(|flight| flight.version < claim.version);
        let same = claim.reserved_for == known.claim.reserved_for && claim.allocation() == known.claim.allocation();
        if !same {
            known.since = now;
            known.is_reported = false;
        }
        // A mark that settles a refused write is no success: the same write may be refused again.
        let is_marked = claim.epoch != known.claim.epoch && flown.is_some_and(|flight| !flight.was_doubtful);
        if !same || is_marked {
            known.failures = 0;
            known.unmarked = None;
        }
        known.claim = claim;
        true
    }

    /// Removes a claim that was deleted in `version`. Returns true if it was known and not newer.
    pub(crate) fn remove(&mut self, key: &str, version: Version) -> bool {
        self.seen = self.seen.max(version);
        let is_older = self.known.get(key).is_some_and(|known| known.claim.version <= version);
        is_older && self.known.remove(key).is_some()
    }

    /// The known claims that a list of that version would have if they still existed.
    pub(crate) fn missing<'a>(
        &'a self,
        listed: &'a std::collections::HashSet<String>,
        version: Version,
    ) -> impl Iterator<Item = String> + 'a {
        let older = self
            .known
            .iter()
            .filter(move |(key, known)| known.claim.version <= version && !listed.contains(*key));
        older.map(|(key, _)| key.clone())
    }

    /// Counts a write as in flight. An allocation of an earlier write that is in doubt still counts.
    pub(crate) fn set_in_flight(&mut self, key: &str, write: &Write) {
        if let Some(known) = self.known.get_mut(key) {
            self.written.insert(write.id, key.to_owned());
            let before = known.in_flight.take();
            let was_doubtful = before.is_some();
            let given = match &write.intent {
                Intent::Allocate { allocation, hold, .. } => Some((allocation.clone(), hold.clone())),
                _ => before.and_then(|flight| flight.given),
            };
            known.in_flight = Some(Box::new(InFlight {
                id: write.id,
                version: write.version,
                given,
                is_mark: matches!(write.intent, Intent::Mark { .. }),
                was_doubtful,
                state: WriteState::Sent { at: write.decided },
            }));
        }
    }

    /// Cancels a write that was not handed out yet.
    pub(crate) fn cancel(&mut self, key: &str) {
        let flight = self.known.get_mut(key).and_then(|known| known.in_flight.take());
        if let Some(flight) = flight {
            self.written.remove(&flight.id);
        }
    }

    /// Returns the claim that waits for the outcome of this write, if it still does.
    pub(crate) fn take_write(&mut self, id: WriteId) -> Option<String> {
        let key = self.written.remove(&id)?;
        let flight = self.known.get(&key)?.in_flight.as_ref()?;
        (flight.id == id).then_some(key)
    }

    pub(crate) fn set_state(&mut self, key: &str, state: WriteState, now: Time) {
        let Some(known) = self.known.get_mut(key) else {
            return;
        };
        if let Some(flight) = &mut known.in_flight {
            flight.state = state;
        }
        if state == WriteState::Doubtful {
            known.pause(now);
            if known.in_flight.as_ref().is_some_and(|flight| flight.is_mark) {
                known.unmarked = Some(now);
            }
            // A write without an allocation needs no mark: the next write lands on the same version, or not at all.
            known.in_flight.take_if(|flight| flight.given.is_none());
        }
    }

    /// Claims whose write failed with 409, although a list that was begun later shows no newer version: something else
    /// refuses the write.
    pub(crate) fn false_conflicts(&self, read: Time) -> Vec<String> {
        let unchanged = self.known.iter().filter(|(_, known)| {
            known.in_flight.as_ref().is_some_and(|flight| {
                matches!(flight.state, WriteState::Conflict { at } if at <= read)
                    && flight.version == known.claim.version
            })
        });
        unchanged.map(|(key, _)| key.clone()).collect()
    }

    /// The write was handed out but not sent. An earlier write in doubt stays in doubt.
    pub(crate) fn drop_write(&mut self, key: &str) {
        if let Some(known) = self.known.get_mut(key) {
            known.in_flight = known.in_flight.take().filter(|flight| flight.was_doubtful);
            if let Some(flight) = &mut known.in_flight {
                flight.state = WriteState::Doubtful;
            }
        }
    }

    /// The clock was set back: limits all recorded times to the present.
    pub(crate) fn set_back(&mut self, now: Time) {
        for known in self.known.values_mut() {
            known.since = known.since.min(now);
            known.paused_until = None;
            known.unmarked = known.unmarked.map(|at| at.min(now));
            if let Some(flight) = &mut known.in_flight
                && let WriteState::Sent { at } | WriteState::Conflict { at } = &mut flight.state
            {
                *at = now.min(*at);
            }
        }
    }

    /// Forgets failed writes when a term begins, as a new process would.
    pub(crate) fn end_pauses(&mut self) {
        for known in self.known.values_mut() {
            known.failures = 0;
            known.paused_until = None;
        }
    }

    pub(crate) fn set_reported(&mut self, key: &str) {
        if let Some(known) = self.known.get_mut(key) {
            known.is_reported = true;
        }
    }

    /// Writes whose outcome is missing for too long are in doubt. Returns when the next one will be.
    pub(crate) fn expire_writes(&mut self, now: Time) -> Option<Time> {
        let mut next = None;
        for known in self.known.values_mut() {
            let Some(flight) = &mut known.in_flight else {
                continue;
            };
            match flight.state {
                WriteState::Sent { at } if now.since(at) >= LOST => flight.state = WriteState::Doubtful,
                WriteState::Sent { at } => {
                    next = Some(next.map_or(at.after(LOST), |next: Time| next.min(at.after(LOST))))
                }
                WriteState::Conflict { .. } | WriteState::Doubtful => {}
            }
        }
        next
    }
}

impl Known {
    fn new(claim: Claim, now: Time) -> Self {
        Self {
            claim,
            in_flight: None,
            since: now,
            failures: 0,
            unmarked: None,
            paused_until: None,
            is_reported: false,
        }
    }

    fn pause(&mut self, now: Time) {
        let pause = FIRST_PAUSE.saturating_mul(1 << self.failures.min(10));
        self.failures = self.failures.saturating_add(1);
        self.paused_until = Some(now.after(pause.min(LONGEST_PAUSE)));
    }

    /// Returns true if a mark was sent since then, and was refused or had no answer.
    pub(crate) fn mark_failed_since(&self, since: Time) -> bool {
        self.unmarked.is_some_and(|at| at >= since)
    }

    pub(crate) fn is_paused(&self, now: Time) -> bool {
        self.paused_until.is_some_and(|until| now < until)
    }

    /// The claim's allocation, or the one that it may have by a write in flight.
    pub(crate) fn allocation(&self) -> Option<&Arc<Allocation>> {
        let given = self.in_flight.as_ref().and_then(|flight| flight.given.as_ref());
        self.claim
            .facts
            .status
            .allocation
            .as_ref()
            .or(given.map(|(allocation, _)| allocation))
    }

    /// The claim's hold, or the one that it may have by a write in flight.
    pub(crate) fn hold(&self) -> Option<&Consumer> {
        let given = self.in_flight.as_ref().and_then(|flight| flight.given.as_ref());
        hold_of(&self.claim).or(given.map(|(_, hold)| hold))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(id: u64) -> Write {
        Write {
            id: WriteId(id),
            namespace: "ns".into(),
            name: "c".into(),
            uid: "u".into(),
            version: Version(1),
            decided: Time::default(),
            epoch: "e".into(),
            intent: Intent::Mark { epoch: "e#1".into() },
        }
    }

    #[test]
    fn a_write_is_known_by_its_id_until_it_is_reported_on() {
        let mut claims = Claims::default();
        let mut claim = Claim::default();
        claim.facts.metadata.namespace = "ns".into();
        claim.facts.metadata.name = "c".into();
        claim.version = Version(1);
        claims.observe(claim, Time::default());
        claims.set_in_flight("ns/c", &write(1));
        assert_eq!(claims.take_write(WriteId(1)).as_deref(), Some("ns/c"));
        claims.set_in_flight("ns/c", &write(2));
        claims.set_in_flight("ns/c", &write(3));
        assert_eq!(claims.take_write(WriteId(2)), None, "another is under way");
        claims.cancel("ns/c");
        assert_eq!(claims.take_write(WriteId(3)), None, "it was not sent");
        assert!(claims.written.is_empty(), "nothing is left over");
    }
}
