//! Decides on the status to write and on the gates to open.

use std::collections::BTreeMap;

use vgpu_api::PodRef;
use vgpu_api::quota::{WhenSpent, millionths};
use vgpu_planner::{About, Object};

use crate::Now;
use crate::amount::{Amount, Ceilings};
use crate::budget::Sum;
use crate::ceilings::Effective;
use crate::decision::Decision;
use crate::notice::Notice;
use crate::plan::Write;
use crate::pod::is_gated;
use crate::spec::Spec;
use crate::status::Status;
use crate::view::View;

use super::Namespace;
use super::held::{Held, spent};
use super::queue::Queue;

impl Namespace {
    pub(crate) fn decide(&mut self, view: &View<'_>, must_yield: bool, now: Now) -> Decision {
        let mut decided = Decision::default();
        let Some(mut held) = self.quota.take() else {
            // Without a quota no gate stays: the quota was deleted, or somebody set the gate by hand.
            let gated = self.pods.values().filter(|pod| is_gated(pod) && !pod.is_deleted);
            decided.ungate = gated.map(|pod| (PodRef::from(&**pod), Vec::new())).collect();
            self.waiting = 0;
            return decided;
        };
        if !held.is_busy && held.must_read {
            let namespace = held.quota.namespace.clone();
            decided.write = Some(Write::Read { namespace });
        } else if !held.is_busy {
            self.decide_with(&mut held, view, must_yield, now, &mut decided);
        }
        self.quota = Some(held);
        decided
    }

    fn decide_with(&mut self, held: &mut Held, view: &View<'_>, must_yield: bool, now: Now, decided: &mut Decision) {
        let spec = held.quota.spec.clone();
        let hard = spec.as_ref().map(|spec| spec.hard).unwrap_or_default();
        let effective = Effective::new(hard, self.resource_quotas.values());
        let mut reservations = self.kept(held, view, now, decided);
        let counted = self.unreserved(&reservations, &effective, view, decided);
        let sum = held.account.as_mut().map(|account| {
            account.advance(view.wall);
            account.sum()
        });
        let queue = Queue {
            held,
            effective: &effective,
            counted: &counted,
            shut: shut(&spec, sum.as_ref(), must_yield),
            backfill: spec.as_ref().is_ok_and(|spec: &Spec| spec.backfill),
        };
        self.walk(&queue, &mut reservations, view, now, decided);
        let others = counted.iter().filter(|(key, _)| !reservations.contains_key(*key));
        let others: Amount = others.map(|(_, amount)| *amount).sum();
        let status = held.status_of(reservations, others, effective);
        if let Some(problem) = &status.problem {
            let notice = Notice::BadSpec(problem.clone());
            decided.notices.push((held.subject(), notice));
        }
        let is_due = held.is_sum_due(sum.as_ref(), now, decided);
        if is_due || decided.takes_over || status != held.quota.status {
            held.summed = Some(now);
            if let Some(sum) = sum.filter(|sum| sum.is_spent) {
                decided.notices.push((held.subject(), spent(&sum, &spec)));
            }
            decided.write = Some(Write::Status {
                namespace: held.quota.namespace.clone(),
                uid: held.quota.uid.clone(),
                version: held.quota.version.clone(),
                status: Box::new(Status {
                    epoch: Some(view.epoch.to_owned()),
                    budget: sum,
                    ..status
                }),
            });
        }
        // Ended claims are remembered only as long as their reservations exist.
        let known = &held.quota.status.reservations;
        self.ended.retain(|key| known.contains_key(key));
        self.idle.retain(|key, _| known.contains_key(key));
    }
}

/// Why no gate opens for new pods: the quota is refused, or its budget is spent.
fn shut(spec: &Result<Spec, String>, sum: Option<&Sum>, must_yield: bool) -> Option<Notice> {
    let spec = match spec {
        Ok(spec) => spec,
        Err(problem) => return Some(Notice::Refused(problem.clone())),
    };
    let sum = sum.filter(|sum| sum.is_spent)?;
    let (used, hours, reset) = (sum.used.hours(), millionths(sum.gpu_hours), sum.period_end.text());
    match spec.budget.map(|budget| budget.when_spent) {
        Some(WhenSpent::Hold) => Some(Notice::Spent { used, hours, reset }),
        _ => must_yield.then_some(Notice::Yields { used, hours, reset }),
    }
}

impl Held {
    pub(super) fn subject(&self) -> About {
        About {
            object: Object::Quota,
            namespace: self.quota.namespace.clone(),
            name: self.quota.name.clone(),
            uid: self.quota.uid.clone(),
        }
    }

    /// The status with these reservations, and with the use of others. Epoch and budget stay as written.
    fn status_of(&self, reservations: BTreeMap<String, Amount>, others: Amount, effective: Effective) -> Status {
        let quota = &self.quota;
        Status {
            generation: quota.generation,
            epoch: quota.status.epoch.clone(),
            problem: quota.spec.as_ref().err().cloned(),
            hard: match quota.spec.is_ok() {
                true => effective.ceilings,
                false => Ceilings::default(),
            },
            limited_by: effective
                .from
                .into_iter()
                .map(|(field, whose)| (field.to_owned(), whose))
                .collect(),
            used: reservations.values().copied().sum::<Amount>() + others,
            reservations,
            budget: quota.status.budget,
        }
    }
}
