//! Explanations as they go on: the cluster as it is known, the answers, and when to work on them again.

use std::time::{Duration, Instant};

use vgpu_planner::Planner;

use crate::answers::Answers;
use crate::cluster::{Change, Cluster};
use crate::http::Health;
use crate::notices::Notices;
use crate::pending::verdicts;

/// Changes come in bursts: what follows within this time is looked at together.
const SETTLE: Duration = Duration::from_millis(250);
/// Answers are worked on for so long at a time; what has come in since is taken in before it goes on.
const TURN: Duration = Duration::from_millis(50);
/// They take at most one part in so many of the time.
const SHARE_OF_TIME: u32 = 10;

pub(crate) struct Explainer {
    started: Instant,
    pub(crate) cluster: Cluster,
    answers: Answers,
    /// When to work on answers again; None where nothing has changed since they were all given.
    pub(crate) look_at: Option<Instant>,
    /// What the planner had seen when they were worked on last.
    version: u64,
    /// When they were worked on last, and how long.
    looked: (Instant, Duration),
    /// Whether this replica says what they are.
    speaks: bool,
}

impl Explainer {
    pub(crate) fn new(cluster: Cluster, started: Instant) -> Self {
        Self {
            started,
            cluster,
            answers: Answers::default(),
            look_at: None,
            version: 0,
            looked: (started, Duration::ZERO),
            speaks: false,
        }
    }

    pub(crate) fn take_in(&mut self, change: Change) {
        self.cluster.apply(change);
        self.soon();
    }

    fn soon(&mut self) {
        let rest = self.looked.0 + self.looked.1 * SHARE_OF_TIME;
        self.look_at.get_or_insert((Instant::now() + SETTLE).max(rest));
    }

    /// Works on answers if it is time, and says what they are now; nothing, if that is another replica's to say.
    /// `planner` is who decides in controller mode.
    pub(crate) fn turn(&mut self, planner: Option<&mut Planner>, notices: &mut Notices, health: &Health) {
        let speaks = planner.as_ref().is_none_or(|planner| planner.is_leading());
        // It sees more than the watches bring: what is written, and when a device has changed hands.
        let version = planner.as_ref().map_or(0, |planner| planner.version());
        if version != self.version {
            self.version = version;
            self.soon();
        }
        if speaks != self.speaks {
            self.speaks = speaks;
            self.look_at = Some(Instant::now());
        }
        if self.look_at.is_none_or(|at| Instant::now() < at) {
            return;
        }
        let begun = Instant::now();
        let mut done = true;
        if self.cluster.is_complete() && speaks {
            self.answers.ask(&self.cluster, planner.as_deref());
            let go_on = &mut || begun.elapsed() < TURN;
            done = self.answers.work(&mut self.cluster, planner, go_on);
            notices.observe(verdicts(&self.cluster, &self.answers), self.started.elapsed());
            health
                .metrics
                .looked(begun.elapsed(), notices.len(), self.answers.len());
        } else {
            notices.observe(Vec::new(), self.started.elapsed());
        }
        self.looked = (begun, begun.elapsed());
        self.look_at = (!done).then(|| begun + self.looked.1 * SHARE_OF_TIME);
    }
}
