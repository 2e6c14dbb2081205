//! Decides on the status to write and on the gates to open.

use crate::amount::{Amount, WrittenAmount, millionths};
use crate::ceilings::Effective;
use crate::decision::Decision;
use crate::notice::{Kind, Notice, Subject};
use crate::plan::{PodRef, Write};
use crate::spec::{Spec, WhenSpent};
use crate::status::Status;
use crate::time::Now;
use crate::view::View;

use super::Namespace;
use super::held::{Held, spent};
use super::queue::Queue;

impl Namespace {
    pub(crate) fn decide(&mut self, view: &View<'_>, must_yield: bool, now: Now) -> Decision {
        let mut decided = Decision::default();
        let Some(mut held) = self.quota.take() else {
            // No quota, no gate: it was deleted, or somebody set the gate by hand.
            let gated = self.pods.values().filter(|pod| pod.is_gated && !pod.is_deleted);
            decided.ungate = gated.map(|pod| (PodRef::of(pod), Vec::new())).collect();
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
        let quota_subject = Subject {
            kind: Kind::Quota,
            namespace: held.quota.namespace.clone(),
            name: held.quota.name.clone(),
            uid: held.quota.uid.clone(),
        };
        let spec = held.quota.spec.clone();
        let hard = spec.as_ref().map(|spec| spec.hard).unwrap_or_default();
        let effective = Effective::new(hard, self.resource_quotas.values());
        let mut reservations = self.kept(held, view, now, decided);
        let counted = self.unreserved(&reservations, &effective, view, decided);

        let sum = held.account.as_mut().map(|account| {
            account.advance(view.wall);
            account.sum()
        });
        let shut = match (&spec, &sum) {
            (Err(problem), _) => Some(Notice::Refused(problem.clone())),
            (Ok(spec), Some(sum)) if sum.is_spent => match spec.budget.map(|budget| budget.when_spent) {
                Some(WhenSpent::Hold) => Some(Notice::Spent {
                    used: sum.used.hours(),
                    hours: millionths(sum.gpu_hours),
                    reset: sum.period_end.text(),
                }),
                _ if must_yield => Some(Notice::Yields {
                    used: sum.used.hours(),
                    hours: millionths(sum.gpu_hours),
                    reset: sum.period_end.text(),
                }),
                _ => None,
            },
            _ => None,
        };
        let queue = Queue {
            held,
            effective: &effective,
            counted: &counted,
            shut,
            backfill: spec.as_ref().is_ok_and(|spec: &Spec| spec.backfill),
        };
        self.walk(&queue, &mut reservations, view, now, decided);
        let others = counted.iter().filter(|(key, _)| !reservations.contains_key(*key));
        let others: Amount = others.map(|(_, amount)| *amount).sum();

        let mut status = Status {
            generation: held.quota.generation,
            epoch: held.quota.status.epoch.clone(),
            problem: spec.as_ref().err().cloned(),
            hard: effective.ceilings.into(),
            limited_by: effective
                .from
                .iter()
                .map(|(field, whose)| ((*field).to_owned(), whose.clone()))
                .collect(),
            used: reservations.values().copied().sum::<Amount>() + others,
            reservations,
            budget: held.quota.status.budget,
        };
        if let Some(problem) = &status.problem {
            decided
                .notices
                .push((quota_subject.clone(), Notice::BadSpec(problem.clone())));
            status.hard = WrittenAmount::default();
        }
        let is_due = held.is_sum_due(sum.as_ref(), now, decided);
        if is_due || decided.takes_over || status != held.quota.status {
            status.epoch = Some(view.epoch.to_owned());
            status.budget = sum;
            held.summed = Some(now);
            if let Some(sum) = sum.filter(|sum| sum.is_spent) {
                let notice = spent(&sum, &spec);
                decided.notices.push((quota_subject, notice));
            }
            decided.write = Some(Write::Status {
                namespace: held.quota.namespace.clone(),
                uid: held.quota.uid.clone(),
                version: held.quota.version.clone(),
                status: Box::new(status),
            });
        }
        // Claims that are gone are remembered only as long as their reservations.
        let known = &held.quota.status.reservations;
        self.ended.retain(|key| known.contains_key(key));
        self.idle.retain(|key, _| known.contains_key(key));
    }
}
