//! Keeps the explanations of all waiting pods up to date: decides when to work on answers and for how long.

use std::time::{Duration, Instant};

use vgpu_planner::State;
use vgpu_planner::explain::{Answers, messages};

use crate::http::Health;
use crate::leader::clock::Clock;
use crate::notices::Notices;

/// Changes come in bursts, so all changes within this time are handled by one explanation.
const SETTLE: Duration = Duration::from_millis(250);
/// How long one turn of explaining may take before changes are applied again.
const TURN: Duration = Duration::from_millis(50);
/// Explaining may use at most 1/SHARE_OF_TIME of the loop's time.
const SHARE_OF_TIME: u32 = 10;

pub(crate) struct Explanations {
    answers: Answers,
    /// When to work on answers again; `None` if nothing has changed since all were complete.
    pub(crate) work_at: Option<Instant>,
    /// The state's version at the last work on answers.
    version: u64,
    /// When the last work on answers began, and how long it took.
    worked: (Instant, Duration),
    /// True if this replica creates the events: of several, the leader.
    explains: bool,
}

impl Explanations {
    pub(crate) fn new() -> Self {
        Self {
            answers: Answers::default(),
            work_at: None,
            version: 0,
            worked: (Instant::now(), Duration::ZERO),
            explains: false,
        }
    }

    /// Schedules work on the answers, because something has changed.
    pub(crate) fn soon(&mut self) {
        let rest = self.worked.0 + self.worked.1 * SHARE_OF_TIME;
        self.work_at.get_or_insert((Instant::now() + SETTLE).max(rest));
    }

    /// Works on answers if it is time, and passes the current texts to `notices`. `explains`: true if this replica
    /// creates the events.
    pub(crate) fn turn(
        &mut self,
        state: &mut State,
        explains: bool,
        notices: &mut Notices,
        clock: &Clock,
        health: &Health,
    ) {
        // The state is not only changed by watches, but also by writes, and by time when a device changes its
        // allocator.
        let version = state.version();
        if version != self.version {
            self.version = version;
            self.soon();
        }
        if explains != self.explains {
            self.explains = explains;
            self.work_at = Some(Instant::now());
        }
        if self.work_at.is_none_or(|at| Instant::now() < at) {
            return;
        }
        let begun = Instant::now();
        let mut done = true;
        if state.is_complete() && explains {
            self.answers.update_queue(state);
            let may_continue = &mut || begun.elapsed() < TURN;
            done = self.answers.work(state, may_continue);
            notices.observe(messages(state, &self.answers), clock.elapsed());
            health
                .metrics
                .looked(begun.elapsed(), notices.len(), self.answers.len());
        } else {
            notices.observe(Vec::new(), clock.elapsed());
        }
        self.worked = (begun, begun.elapsed());
        self.work_at = (!done).then(|| begun + self.worked.1 * SHARE_OF_TIME);
    }
}
