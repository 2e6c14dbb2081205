//! Applies a change to the state, and does everything else that follows from it.

use super::Planner;
use super::cycle::Cycle;
use crate::change::{Change, Read};
use crate::claims::WriteState;
use crate::state::News;
use crate::term::{Stage, Term};
use crate::time::Time;

impl Planner {
    /// Applies one change, and returns the reads that it makes necessary.
    pub fn apply(&mut self, change: Change, now: Time) -> Vec<Read> {
        let now = self.note_time(now);
        if let Change::Lease(term) = change {
            self.set_term(term, now);
            return Vec::new();
        }
        let news = self.state.apply(change, now);
        self.apply_news(news, now)
    }

    fn apply_news(&mut self, news: News, now: Time) -> Vec<Read> {
        self.is_dirty |= news.is_news;
        for pod in &news.pods {
            self.penalties.forget(pod);
            self.budgets.forget(pod);
        }
        for claim in &news.claims {
            self.refusals.remove(claim);
        }
        if let Some(read) = news.listed {
            for key in self.state.claims.false_conflicts(read) {
                let message = "409 Conflict, though nobody has changed the claim".to_owned();
                self.state.claims.set_state(&key, WriteState::Doubtful, now);
                self.refusals.insert(key, message);
            }
        }
        if let Some(answered) = &news.answered {
            self.open_reads.answered(answered);
        }
        if let Some(read) = news.listed {
            self.fence_after_list(read, now);
        }
        news.reads
    }

    pub(super) fn set_term(&mut self, term: Option<Term>, now: Time) {
        let same = |old: &Term| term.as_ref().is_some_and(|new| new.epoch == old.epoch);
        // A plan that was made after the term's end contains no decisions, so after a late renewal the next plan must
        // decide.
        self.is_dirty |= self.term.as_ref().is_some_and(|old| old.until <= now);
        if !self.term.as_ref().is_some_and(same) {
            self.is_dirty = true;
            self.state.claims.end_pauses();
            // A list that was requested in another term does not count in this one.
            self.open_reads.clear();
            self.cycle = Cycle::default();
            self.stage = match term {
                Some(_) => Stage::FirstList { since: now },
                None => Stage::Standby,
            };
        }
        self.term = term;
    }
}
