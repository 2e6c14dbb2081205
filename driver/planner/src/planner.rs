//! The planner of one replica: applies changes and outcomes of writes to the state, and makes the next [`Plan`].
//!
//! `apply` has the input, `pass` the decisions of a leader, `fencing` the steps before a leader may decide, `gangs` the
//! placement of a gang, `giving_way` the clearing of holds for other pods, `cycle` the progress of a cycle of passes.

mod apply;
mod cycle;
mod fencing;
mod gangs;
mod giving_way;
mod pass;

use std::collections::HashMap;
use std::time::Duration;

use vgpu_allocator::Features;
use vgpu_api::config::AllocationPolicy;

use crate::change::Read;
use crate::claims::WriteState;
use crate::node_penalty::NodePenalties;
use crate::open_reads::{OpenReads, RETRY_AFTER};
use crate::queue::Queue;
use crate::search_budget::SearchBudgets;
use crate::state::{Mode, State};
use crate::suspects::Suspects;
use crate::term::{Stage, Term};
use crate::time::{Latest, Time};
use crate::verdict::{About, Verdict};
use crate::write::{Intent, Outcome, Write, WriteId};
use cycle::Cycle;

/// Users set the first two. The others are time limits that prevent two allocators from using the same device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// The policy if neither a claim nor its class names one: `--policy`.
    pub policy: AllocationPolicy,
    /// How long a hold waits for its pod: `--hold-timeout`.
    pub hold: Duration,
    /// How long a device has no allocator when it changes from one to the other.
    pub settle: Duration,
    /// The age up to which a decision is sent. An allocation is as old as the oldest read of its slices.
    pub oldest_decision: Duration,
    /// The maximum age of a slice's read when a decision on its devices is made.
    pub oldest_slice: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            policy: AllocationPolicy::default(),
            hold: Duration::from_secs(30),
            settle: Duration::from_secs(vgpu_api::allocator_taint::MIN_AGE_SECONDS),
            oldest_decision: Duration::from_secs(10),
            oldest_slice: Duration::from_secs(5),
        }
    }
}

/// What a planner wants done now.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Plan {
    /// In any order; at most one for each claim.
    pub writes: Vec<Write>,
    pub reads: Vec<Read>,
    /// A pass repeats its verdicts as long as the state is the same.
    pub verdicts: Vec<(About, Verdict)>,
    /// When to ask for the next plan if nothing changes before.
    pub wake: Option<Time>,
}

/// Owns the state of one replica and decides by it while the replica leads.
pub struct Planner {
    settings: Settings,
    share_id: Box<dyn FnMut() -> String + Send>,
    state: State,
    penalties: NodePenalties,
    suspects: Suspects,
    budgets: SearchBudgets,
    queue: Queue,
    cycle: Cycle,
    term: Option<Term>,
    stage: Stage,
    open_reads: OpenReads,
    last_write: u64,
    /// The API server's message to a refused write, by claim.
    refusals: HashMap<String, String>,
    /// True if something has changed since the last plan.
    is_dirty: bool,
    wake: Option<Time>,
    latest: Latest,
}

impl std::fmt::Debug for Planner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Planner")
            .field("stage", &self.stage)
            .field("term", &self.term)
            .finish_non_exhaustive()
    }
}

impl Planner {
    /// `share_id` returns a new UUID for each share.
    #[must_use]
    pub fn new(settings: Settings, features: Features, share_id: Box<dyn FnMut() -> String + Send>) -> Self {
        Self {
            settings,
            share_id,
            state: State::new(
                Mode::Controller {
                    settle: settings.settle,
                },
                features,
            ),
            penalties: NodePenalties::default(),
            suspects: Suspects::default(),
            budgets: SearchBudgets::default(),
            queue: Queue::default(),
            cycle: Cycle::default(),
            term: None,
            stage: Stage::Standby,
            open_reads: OpenReads::default(),
            last_write: 0,
            refusals: HashMap::new(),
            is_dirty: true,
            wake: None,
            latest: Latest::default(),
        }
    }

    /// Returns true if it leads and has fenced off its predecessor.
    #[must_use]
    pub fn is_leading(&self) -> bool {
        self.stage == Stage::Leading
    }

    /// The pods and claims that wait for a decision, as of the last plan; empty if the planner does not lead.
    #[must_use]
    pub fn queue(&self) -> Queue {
        self.queue
    }

    /// The state that its decisions are based on.
    #[must_use]
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Mutable for explanations, which cache views of nodes in it.
    pub fn state_mut(&mut self) -> &mut State {
        &mut self.state
    }

    /// Applies the outcome of a write.
    pub fn report(&mut self, id: WriteId, outcome: Outcome, now: Time) {
        let now = self.note_time(now);
        let flying = self.state.claims.take_write(id);
        self.is_dirty = true;
        match (outcome, flying) {
            (Outcome::Done(claim), _) => {
                let key = claim.key();
                self.refusals.remove(&key);
                self.state.set_answered(*claim, now);
            }
            (_, None) => {} // a newer version has settled it
            (Outcome::Conflict, Some(key)) => self.state.claims.set_state(&key, WriteState::Conflict { at: now }, now),
            (Outcome::Unknown, Some(key)) => self.state.claims.set_state(&key, WriteState::Doubtful, now),
            (Outcome::Refused(message), Some(key)) => {
                self.state.claims.set_state(&key, WriteState::Doubtful, now);
                self.refusals.insert(key, message);
            }
            (Outcome::Dropped, Some(key)) => {
                self.state.claims.drop_write(&key);
                self.state.recount(&key);
            }
        }
    }

    /// Makes the next plan. It is empty if nothing has changed and the last plan's `wake` has not come.
    pub fn plan(&mut self, now: Time) -> Plan {
        let now = self.note_time(now);
        if !self.is_dirty && self.wake.is_none_or(|wake| now < wake) {
            return Plan {
                wake: self.wake,
                ..Plan::default()
            };
        }
        self.queue = Queue::default();
        let changed = std::mem::take(&mut self.is_dirty);
        let mut plan = Plan::default();
        if let Some(lost) = self.state.claims.expire_writes(now) {
            soonest(&mut plan.wake, lost, now);
        }
        if let Some(term) = self.term.clone() {
            if now < term.until {
                self.run_pass(&term, changed, now, &mut plan);
            }
            soonest(&mut plan.wake, term.until, now);
        }
        self.wake = plan.wake;
        plan
    }

    /// Records the time. If the clock was set back, drops everything that was recorded with its times, including the
    /// lease, which would seem to last longer than it does. After the next renewal the term begins again, with a list.
    fn note_time(&mut self, now: Time) -> Time {
        let (now, is_set_back) = self.latest.take(now);
        if is_set_back {
            self.set_term(None, now);
            self.open_reads.clear();
            self.penalties = NodePenalties::default();
            self.suspects = Suspects::default();
            self.budgets = SearchBudgets::default();
            self.state.claims.set_back(now);
            self.state.ownership.set_back(now);
            self.wake = None;
            self.is_dirty = true;
        }
        now
    }

    /// Adds a write to the plan and counts it as in flight. `as_of` is the age of the decision.
    fn write(&mut self, term: &Term, key: &str, intent: Intent, as_of: Time, plan: &mut Plan) {
        let Some(known) = self.state.claims.get(key) else {
            return;
        };
        self.last_write += 1;
        let write = Write {
            id: WriteId(self.last_write),
            namespace: known.claim.facts.metadata.namespace.clone(),
            name: known.claim.facts.metadata.name.clone(),
            uid: known.claim.uid().to_owned(),
            version: known.claim.version,
            decided: as_of,
            epoch: term.epoch.clone(),
            intent,
        };
        self.state.claims.set_in_flight(key, &write);
        plan.writes.push(write);
    }

    /// Adds a read to the plan, unless it was requested a moment ago.
    fn request_read(&mut self, read: Read, now: Time, plan: &mut Plan) {
        match self.open_reads.open(&read, now) {
            Err(again) => soonest(&mut plan.wake, again, now),
            Ok(()) => {
                soonest(&mut plan.wake, now.after(RETRY_AFTER), now);
                plan.reads.push(read);
            }
        }
    }
}

/// Sets `wake` to `at` if that is earlier and still ahead.
fn soonest(wake: &mut Option<Time>, at: Time, now: Time) {
    if at > now && wake.is_none_or(|wake| at < wake) {
        *wake = Some(at);
    }
}
