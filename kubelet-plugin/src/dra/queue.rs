//! The calls whose claims are read and that wait for the node's lock: one turn prepares them all.
//!
//! kubelet sends a call for each pod, up to a hundred at once. The fixed cost of a turn (the lock file, a look at the
//! state, the driver's files, the arbitration directories and the node pages) is paid once for all calls that wait.
//!
//! How it fails:
//! - kubelet cancels a call that waits: the turn leaves it out.
//! - The lock is not free in time: the call leaves the queue and is refused. A call that a turn has taken just then gets
//!   the turn's answer.
//! - The turn panics: every call that it took is refused.
//! - A claim is unprepared before the turn begins: it is refused, because nobody would unprepare it later.

use crate::dra::node::lock::Locked;
use crate::dra::node::{Error, Node, Parts, Prepared};
use crate::dra::share::ClaimId;
use k8s_openapi::api::resource::v1::ResourceClaim;
use std::collections::BTreeSet;
use std::mem;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use tokio::sync::oneshot;

/// A claim, as it was read from the API server.
pub(crate) type ReadClaim = (ClaimId, ResourceClaim);

/// The calls that wait.
#[derive(Clone, Default)]
pub(crate) struct Queue(Arc<Mutex<Calls>>);

#[derive(Default)]
struct Calls {
    next: u64,
    waiting: Vec<Call>,
}

struct Call {
    number: u64,
    batch: Vec<ReadClaim>,
    /// Says which of its claims were unprepared meanwhile.
    unprepared: Box<dyn FnOnce() -> BTreeSet<String> + Send>,
    answer: oneshot::Sender<Done>,
}

/// The answers of a turn for the claims of one call.
pub(crate) struct Done {
    /// In the order of the batch. None: the claim was unprepared before the turn.
    pub(crate) answers: Vec<Option<Result<Vec<Prepared>, Error>>>,
    /// When the turn began, and how long its parts took, for all calls together.
    pub(crate) began: Instant,
    pub(crate) parts: Parts,
}

/// An answer on its way to its call.
pub(crate) struct Answer {
    to: oneshot::Sender<Done>,
    done: Done,
}

/// A call's place in the queue.
pub(crate) struct Place {
    number: u64,
    pub(crate) answer: oneshot::Receiver<Done>,
}

// === impl Answer ===

impl Answer {
    /// Sends the answer. If kubelet has cancelled the call meanwhile, the answer is dropped, and kubelet repeats the call.
    pub(crate) fn send(self) {
        let _ = self.to.send(self.done);
    }
}

// === impl Queue ===

impl Queue {
    pub(crate) fn enter(
        &self,
        batch: Vec<ReadClaim>,
        unprepared: impl FnOnce() -> BTreeSet<String> + Send + 'static,
    ) -> Place {
        let (answer, place) = oneshot::channel();
        let mut calls = self.calls();
        let number = calls.next;
        calls.next += 1;
        calls.waiting.push(Call {
            number,
            batch,
            unprepared: Box::new(unprepared),
            answer,
        });
        Place { number, answer: place }
    }

    /// Takes a call out of the queue. Returns false if a turn has taken it.
    pub(crate) fn leave(&self, place: &Place) -> bool {
        let mut calls = self.calls();
        let before = calls.waiting.len();
        calls.waiting.retain(|call| call.number != place.number);
        calls.waiting.len() < before
    }

    /// Prepares the claims of all calls that wait. The caller sends the answers when the turn is over.
    pub(crate) fn prepare(&self, node: &mut Node, locked: &Locked) -> Vec<Answer> {
        let mut calls = mem::take(&mut self.calls().waiting);
        calls.retain(|call| !call.answer.is_closed());
        if calls.is_empty() {
            return Vec::new();
        }
        let began = Instant::now();
        let (mut all, mut taken) = (Vec::new(), Vec::new());
        for call in calls {
            let unprepared = (call.unprepared)();
            let is_wanted: Vec<bool> = call.batch.iter().map(|(id, _)| !unprepared.contains(&id.uid)).collect();
            let wanted = call.batch.into_iter().filter(|(id, _)| !unprepared.contains(&id.uid));
            all.extend(wanted);
            taken.push((call.answer, is_wanted));
        }
        let (prepared, parts) = node.prepare(locked, &all);
        let mut prepared = prepared.into_iter();
        let done = taken.into_iter().map(|(to, is_wanted)| {
            let answers = is_wanted.into_iter().map(|is_wanted| match is_wanted {
                true => prepared.next(),
                false => None,
            });
            let done = Done {
                answers: answers.collect(),
                began,
                parts,
            };
            Answer { to, done }
        });
        done.collect()
    }

    fn calls(&self) -> std::sync::MutexGuard<'_, Calls> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
