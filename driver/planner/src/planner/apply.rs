//! Changes, as far as the planner has more to do about them than its state.

use super::Planner;
use super::cycle::Cycle;
use crate::change::{Ask, Change};
use crate::claims::FlightState;
use crate::state::News;
use crate::term::{Stage, Term};
use crate::time::Time;

impl Planner {
    /// Applies one change, and returns what must be read because of it.
    pub fn apply(&mut self, change: Change, now: Time) -> Vec<Ask> {
        let now = self.at(now);
        if let Change::Lease(term) = change {
            self.set_term(term, now);
            return Vec::new();
        }
        let news = self.state.apply(change, now);
        self.follow(news, now)
    }

    fn follow(&mut self, news: News, now: Time) -> Vec<Ask> {
        self.is_dirty |= news.is_news;
        for pod in &news.pods {
            self.penalties.forget(pod);
            self.budgets.forget(pod);
        }
        for claim in &news.claims {
            self.refusals.remove(claim);
        }
        if let Some(asked) = news.listed {
            for key in self.state.claims.not_moved(asked) {
                let message = "409 Conflict, though nobody has changed the claim".to_owned();
                self.state.claims.set_state(&key, FlightState::Doubtful, now);
                self.refusals.insert(key, message);
            }
        }
        if let Some(answered) = &news.answered {
            self.asks.answered(answered);
        }
        if let Some(asked) = news.listed {
            self.fence(asked, now);
        }
        news.reads
    }

    pub(super) fn set_term(&mut self, term: Option<Term>, now: Time) {
        let same = |old: &Term| term.as_ref().is_some_and(|new| new.epoch == old.epoch);
        // A plan that was made after its end has passed over what came before: a renewal that is late makes up for it.
        self.is_dirty |= self.term.as_ref().is_some_and(|old| old.until <= now);
        if !self.term.as_ref().is_some_and(same) {
            self.is_dirty = true;
            self.state.claims.end_pauses();
            // A list that was asked for in another term is no answer in this one.
            self.asks.clear();
            self.cycle = Cycle::default();
            self.stage = match term {
                Some(_) => Stage::First { since: now },
                None => Stage::Standby,
            };
        }
        self.term = term;
    }
}
