//! The leader's loop: gives each [`Decider`] the changes and the term of the lease, asks it for plans, and sends its requests.
//!
//! ```text
//!  watches ─► Changes ─┬─► Placer      (vgpu_planner: claims)                 ┌─► requests, each checked against the
//!  elect ──► Term ─────┼─► Quotas      (vgpu_quota: gates, budgets)  ─► plan ─┤   lease when its turn comes ─► report ─┐
//!                      ├─► Translator  (vgpu_reconciler: templates)           └─► notices, to the main loop            │
//!                      └─► Usages      (`usage`: a sum of each namespace)                                              │
//!                             ▲                                                                                        │
//!                             └────────────────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! Quotas begin each term with lists that were read after the lease was won, so all watches begin again then. At the end
//! of a term they continue. The planner fences off its predecessor by lists of its own (`vgpu_planner`'s `term`). Translated
//! pods need no lists: each write has the version that it was decided on. Usages list their objects before the first write of a term.
//!
//! Failure modes: see `docs/controller.md`. Everything that is lost when the process ends is recreated by the next
//! leader from the objects themselves.

pub(crate) mod clock;
mod decider;
pub(crate) mod elect;
mod failure;
mod lease;

use std::collections::BTreeMap;

use vgpu_allocator::Features;
use vgpu_planner::explain::waiting;
use vgpu_planner::{Mode, State, Time};

use self::clock::SetBack;
pub(crate) use self::decider::{Decider, Plan, Request, Runner, in_turn};
pub(crate) use self::failure::{Failure, MANAGER, by_us, timely};
pub(crate) use self::lease::HeldLease;
use crate::notices::Reported;
use crate::placing::Placer;
use crate::quota::Quotas;
use crate::translation::Translator;
use crate::usage::{self, Others, Usages};
use crate::watch::{Changes, Interest};

/// Owns the state: alone, or in controller mode with the planner, which decides by it.
pub(crate) enum Placing {
    Scheduler(Box<State>),
    Controller(Box<Runner<Placer>>),
}

/// The state of this replica, and its deciders.
pub(crate) struct Leader {
    placing: Placing,
    quotas: Option<Box<Runner<Quotas>>>,
    translation: Option<Box<Runner<Translator>>>,
    usage: Option<Box<Runner<Usages>>>,
    /// `None`: there is no other replica, and nothing to decide.
    lease: Option<HeldLease>,
    /// True if a term of quotas has begun since the watches began.
    needs_other_watches: bool,
}

impl Leader {
    pub(crate) fn new(
        lease: Option<HeldLease>,
        placer: Option<Placer>,
        quotas: Option<Quotas>,
        translator: Option<Translator>,
        usages: Option<Usages>,
    ) -> Self {
        Self {
            placing: match placer {
                Some(placer) => Placing::Controller(Box::new(Runner::new(placer))),
                None => Placing::Scheduler(Box::new(State::new(Mode::Scheduler, Features::default()))),
            },
            quotas: quotas.map(|quotas| Box::new(Runner::new(quotas))),
            translation: translator.map(|translator| Box::new(Runner::new(translator))),
            usage: usages.map(|usages| Box::new(Runner::new(usages))),
            lease,
            needs_other_watches: false,
        }
    }

    pub(crate) fn state(&mut self) -> &mut State {
        match &mut self.placing {
            Placing::Scheduler(state) => state,
            Placing::Controller(placer) => placer.decider.state(),
        }
    }

    /// Returns true if this replica is the leader, or the only one. It explains why pods wait.
    pub(crate) fn explains(&self) -> bool {
        match &self.placing {
            Placing::Scheduler(_) => self.lease.as_ref().is_none_or(HeldLease::is_held),
            Placing::Controller(placer) => placer.decider.is_leading(),
        }
    }

    /// The kinds to watch if the watches begin now. Kinds that only quotas need are not watched before this replica's first
    /// term.
    pub(crate) fn interest(&self) -> Interest {
        Interest {
            mode: match &self.placing {
                Placing::Scheduler(_) => Mode::Scheduler,
                Placing::Controller(placer) => placer.decider.mode(),
            },
            quotas: self.quotas.as_ref().is_some_and(|quotas| quotas.decider.is_leading()),
            translated: self.translation.is_some(),
            usage: self.usage.is_some(),
        }
    }

    /// Returns true, once, if the watches must begin again.
    pub(crate) fn takes_other_watches(&mut self) -> bool {
        std::mem::take(&mut self.needs_other_watches)
    }

    /// Applies changes. Returns true if the state that explanations are based on has changed.
    pub(crate) fn apply(&mut self, changes: Changes) -> bool {
        let Changes {
            state,
            quotas,
            translated,
            usage,
        } = changes;
        if let (Some(change), Some(quotas)) = (quotas, &mut self.quotas) {
            quotas.apply(change);
        }
        if let (Some(change), Some(translation)) = (translated, &mut self.translation) {
            translation.apply(change);
        }
        if let (Some(change), Some(usages)) = (usage, &mut self.usage) {
            usages.apply(change);
        }
        let Some(change) = state else { return false };
        match &mut self.placing {
            Placing::Scheduler(state) => {
                let was_complete = state.is_complete();
                // Only decisions need the time and the reads.
                let news = state.apply(change, Time::default());
                news.is_news || state.is_complete() != was_complete
            }
            Placing::Controller(placer) => {
                placer.apply(change);
                true
            }
        }
    }

    /// Waits for the next thing to do, does it, and returns what to report. Cancel-safe: nothing is lost if the future is
    /// dropped.
    ///
    /// # Errors
    /// The machine's clock was set back, so this process must end.
    pub(crate) async fn turn(&mut self) -> Result<Vec<Reported>, SetBack> {
        let term = async {
            match &mut self.lease {
                Some(lease) => lease.changed().await,
                None => std::future::pending().await,
            }
        };
        let placer = match &mut self.placing {
            Placing::Scheduler(_) => None,
            Placing::Controller(placer) => Some(placer),
        };
        tokio::select! {
            () = term => {}
            reports = turn_of(placer) => return reports,
            reports = turn_of(self.quotas.as_mut()) => return reports,
            reports = turn_of(self.translation.as_mut()) => return reports,
            reports = turn_of(self.usage.as_mut()) => return reports,
        }
        self.lead();
        Ok(Vec::new())
    }

    /// A term has begun, was renewed, or is over.
    fn lead(&mut self) {
        let term = self.lease.as_ref().and_then(HeldLease::term);
        if let Placing::Controller(placer) = &mut self.placing {
            placer.lead(term.as_ref());
        }
        if let Some(quotas) = &mut self.quotas {
            let epoch = quotas.decider.epoch().map(str::to_owned);
            quotas.lead(term.as_ref());
            self.needs_other_watches |= has_begun(epoch.as_deref(), quotas.decider.epoch());
        }
        if let Some(translation) = &mut self.translation {
            translation.lead(term.as_ref());
        }
        if let Some(usages) = &mut self.usage {
            usages.lead(term.as_ref());
        }
    }

    /// Regularly passes the waiting pods and the remaining budgets to usages.
    pub(crate) fn tell_usages(&mut self) {
        if !self.usage.as_ref().is_some_and(|usages| usages.decider.wants_others()) || !self.state().is_complete() {
            return;
        }
        let budgets = match &self.quotas {
            None => BTreeMap::new(),
            Some(quotas) => match quotas.decider.budgets() {
                Some(budgets) => budgets,
                // Checked before the search for waiting pods, which reads all pods.
                None => return,
            },
        };
        let waiting = waiting(self.state());
        if let Some(usages) = &mut self.usage {
            usages.apply(usage::Change::Others(Others { waiting, budgets }));
        }
    }

    /// Updates the metrics with sums that are ready.
    pub(crate) fn observe(&self) {
        if let Placing::Controller(placer) = &self.placing {
            placer.decider.observe();
        }
    }
}

/// Returns true if a new term has begun. The end of a term does not begin one.
fn has_begun(before: Option<&str>, now: Option<&str>) -> bool {
    now.is_some() && now != before
}

async fn turn_of<D: Decider>(runner: Option<&mut Box<Runner<D>>>) -> Result<Vec<Reported>, SetBack> {
    match runner {
        Some(runner) => runner.turn().await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use vgpu_planner::Change;
    use vgpu_planner::model::Pod;

    use super::*;

    #[test]
    fn watches_begin_again_with_a_term_and_not_at_its_end() {
        for (before, now, begins) in [
            (None, Some("a"), true),
            (Some("a"), Some("b"), true),
            (Some("a"), Some("a"), false),
            (Some("a"), None, false),
            (None, None, false),
        ] {
            assert_eq!(has_begun(before, now), begins, "{before:?} {now:?}");
        }
    }

    #[test]
    fn in_scheduler_mode_a_bound_pod_is_no_news() {
        let mut leader = Leader::new(None, None, None, None, None);
        let mut apply = |name: &str, spec: serde_json::Value| {
            let pod = serde_json::json!({"metadata": {"name": name, "namespace": "ns", "uid": name}, "spec": spec});
            let pod: Pod = serde_json::from_value(pod).unwrap();
            leader.apply(Changes::of_state(Some(Change::Pod(pod)), false))
        };
        assert!(apply("waits", serde_json::json!({})));
        assert!(!apply("runs", serde_json::json!({"nodeName": "n"})));
        assert!(apply("waits", serde_json::json!({"nodeName": "n"})));
    }
}
