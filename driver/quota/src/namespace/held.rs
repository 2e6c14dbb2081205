//! A quota as it was last read, and the running account of its budget.

use std::collections::HashMap;
use std::time::Duration;

use vgpu_api::quota::{WhenSpent, millionths};
use vgpu_planner::Time;
use vgpu_planner::model::Claim;

use crate::Now;
use crate::budget::{Account, Steady, Sum};
use crate::claim::{allocated_at, amount, is_allocated, measured};
use crate::decision::Decision;
use crate::notice::Notice;
use crate::plan::SUM_EVERY;
use crate::spec::Spec;
use crate::status::{Quota, Status};
use crate::view::View;

use super::unclaimed::StillHeld;

/// How long a reservation without claim and pod is kept, because kube-scheduler may still write an earlier decision. A
/// new leader also keeps reservations of existing claims for this time: until then the former leader may still open
/// gates, and the new one may not see those pods yet.
pub const HOLD: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(super) struct Held {
    pub(super) quota: Quota,
    pub(super) account: Option<Account>,
    /// A write or a read is under way.
    pub(super) is_busy: bool,
    /// The version at the API server is not known: read it before the next write.
    pub(super) must_read: bool,
    /// Before this time, no reservation of an existing claim is released, and the status is not taken over to release one.
    pub(super) releases_from: Now,
    /// When the sum of the budget was last written.
    pub(super) summed: Option<Now>,
}

impl Held {
    /// Opens the account of its budget, with the existing shares.
    pub(super) fn open(
        &mut self,
        claims: &HashMap<String, Box<Claim>>,
        still_held: &StillHeld,
        view: &View<'_>,
        clock: &Steady,
    ) {
        let budget = self.quota.spec.as_ref().ok().and_then(|spec| spec.budget);
        let Some(budget) = budget else {
            self.account = None;
            return;
        };
        let last = self.quota.status.budget.map(|sum| Sum {
            as_of: clock.shifted(sum.as_of),
            ..sum
        });
        let mut account = Account::resume(budget, self.quota.created, last.as_ref(), view.wall);
        for claim in claims.values() {
            charge(&mut account, claim, view, Some(allocated_at(claim)));
        }
        still_held.charge(&mut account, view, Some(None));
        self.account = Some(account);
    }

    /// Compares the leader's term in the new status: another leader may not have noticed yet that the term changed.
    pub(super) fn note_leader(&mut self, new: &Status, now: Now) {
        let old = &self.quota.status;
        // Without reservations there was no gate to open.
        if old.epoch != new.epoch && !old.reservations.is_empty() {
            self.releases_from = now + HOLD;
        }
    }

    pub(super) fn is_spent(&self) -> bool {
        self.account.as_ref().is_some_and(|account| account.sum().is_spent)
    }

    /// Returns true if its budget is spent, and its new pods come after those in budget.
    pub(super) fn is_over_budget(&self) -> bool {
        let yields = |account: &&Account| account.budget().when_spent == WhenSpent::Yield;
        self.account.as_ref().filter(yields).is_some() && self.is_spent()
    }

    /// Returns true if the budget's sum is to be written, though nothing else changed.
    pub(super) fn is_sum_due(&self, sum: Option<&Sum>, now: Now, decided: &mut Decision) -> bool {
        let written = self.quota.status.budget;
        let (Some(sum), Some(written)) = (sum, written) else {
            return sum.is_some() != written.is_some();
        };
        let is_other = written.is_spent != sum.is_spent
            || written.gpu_hours != sum.gpu_hours
            || written.period_start != sum.period_start
            || written.period_end != sum.period_end;
        if is_other {
            return true;
        }
        let account = self.account.as_ref();
        let left = sum.period_end.since(sum.as_of);
        decided.wake(now + left.max(Duration::from_millis(1)));
        if account.is_none_or(Account::is_idle) && written.used == sum.used {
            return false;
        }
        let due = self.summed.map_or(now, |at| at + SUM_EVERY);
        if now < due {
            decided.wake(due);
        }
        now >= due
    }
}

/// Starts, changes or ends what a claim costs. `found`: it was allocated before it was seen.
pub(super) fn charge(account: &mut Account, claim: &Claim, view: &View<'_>, found: Option<Option<Time>>) {
    if !is_allocated(claim) {
        account.end(claim.uid());
        return;
    }
    // A GPU that is temporarily gone costs the same as before.
    if measured(claim, view.gpus).is_none() && account.knows(claim.uid()) {
        return;
    }
    match amount(claim, view.index, view.gpus).map_or(0, |amount| amount.gpus) {
        0 => account.end(claim.uid()),
        rate => account.set(claim.uid(), rate, found),
    }
}

pub(super) fn spent(sum: &Sum, spec: &Result<Spec, String>) -> Notice {
    let when = spec
        .as_ref()
        .ok()
        .and_then(|spec| spec.budget)
        .map(|budget| budget.when_spent);
    Notice::BudgetSpent {
        hours: millionths(sum.gpu_hours),
        what: match when {
            Some(WhenSpent::Hold) => "new pods wait",
            _ => "new pods get PriorityClass vgpu-over-budget and come after those in budget",
        },
        reset: sum.period_end.text(),
    }
}
