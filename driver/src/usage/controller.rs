//! Which VgpuUsages to write and to delete, and when. Pure: it gets changes and the time, and returns intended writes.
//!
//! ```text
//!  VgpuNodes ──────────────► shares by node ─┐
//!  State: pods that wait ────────────────────┼─► sum of a namespace ─► other than what was written? ─► Write
//!  quotas: budgets ──────────────────────────┘        ▲                                                 │
//!  list of VgpuUsages, at the begin of a term ────────┴───────────────── Outcome ◄──────────────────────┘
//! ```
//!
//! Failure modes:
//! - **A leader ends between two writes:** each write is independent. The next leader lists all VgpuUsages before its
//!   first write, so objects that are up to date are not written again, and those that no namespace needs any more are
//!   deleted.
//! - **Two leaders:** both write what nodes report, so the object is right after either write.
//! - **A write is refused, or its namespace does not exist:** tried again after a pause, which doubles up to ten
//!   minutes.
//! - **A node that reports nonsense:** sums saturate, only [`MOST_SHARES`](super::share::MOST_SHARES) of its shares
//!   count, and at most [`WRITES_A_SECOND`] writes begin in a second, first those of namespaces that already have an
//!   object.
//! - **A VgpuUsage is deleted by hand:** it is written again when a figure changes.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

use vgpu_api::usage::BudgetUse;
use vgpu_planner::Time;

use super::plan::{Change, Others, Outcome, Plan, Write};
use super::share::Node;
use super::sum::{Held, Sum, digest};

/// Time since the start of the process.
type Now = Duration;

/// The minimum time between two sums of a namespace.
const SUM_EVERY: Duration = Duration::from_secs(1);
/// The minimum time between two writes of a namespace if held amounts or the number of waiting pods changed.
const HELD_EVERY: Duration = Duration::from_secs(5);
/// The minimum time between two writes if only the use changed.
const USED_EVERY: Duration = Duration::from_secs(60);
/// The pause after a failed write. It doubles with each further failure, up to the longest.
const PAUSE: Duration = Duration::from_secs(5);
const PAUSE_MAX: Duration = Duration::from_secs(600);
/// The most writes in flight: each has a status in memory.
const WRITES: usize = 4;
const WRITES_A_SECOND: usize = 20;
/// How often to check for nodes that have not written for a long time.
const HEARTBEAT: Duration = Duration::from_secs(10);

/// The VgpuUsage of a namespace in the API server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Object {
    #[default]
    None,
    /// A write failed, but may have been applied.
    NotKnown,
    /// There is one; the number is the digest of its status.
    With(u64),
}

#[derive(Debug, Default)]
struct Namespace {
    /// The nodes that hold shares of the namespace.
    nodes: BTreeSet<Arc<str>>,
    waiting: u32,
    budget: Option<BudgetUse>,
    object: Object,
    /// The held amounts in that object; `None` if not compared in this term.
    held: Option<Held>,
    summed: Option<Now>,
    written: Option<Now>,
    is_busy: bool,
    failures: u32,
    paused_until: Now,
}

/// A node, and whether its plugin has written lately.
#[derive(Debug)]
struct Known {
    node: Node,
    is_fresh: bool,
}

/// See the head of this file.
#[derive(Debug, Default)]
pub(crate) struct UsageController {
    nodes: BTreeMap<Arc<str>, Known>,
    are_nodes_listed: bool,
    namespaces: BTreeMap<String, Namespace>,
    others: Others,
    /// True once the other parts' figures were received in this term.
    are_others_known: bool,
    /// Namespaces to check, and when.
    due: BTreeMap<String, Now>,
    /// True once the objects were listed in this term.
    are_objects_listed: bool,
    is_listing: bool,
    list_failures: u32,
    list_at: Now,
    /// When a second began, and the writes in it.
    second: (Now, usize),
}

impl UsageController {
    /// A term begins: what was written before is not known.
    pub(crate) fn begin(&mut self) {
        self.are_others_known = false;
        self.are_objects_listed = false;
        self.is_listing = false;
        self.list_failures = 0;
        self.list_at = Now::ZERO;
        for namespace in self.namespaces.values_mut() {
            *namespace = Namespace {
                nodes: std::mem::take(&mut namespace.nodes),
                waiting: namespace.waiting,
                budget: namespace.budget.take(),
                ..Namespace::default()
            };
        }
    }

    pub(crate) fn apply(&mut self, change: Change, now: Now, wall: Time) {
        match change {
            Change::Node { name, node } => self.set_node(name.into(), Some(node), now, wall),
            Change::NodeGone { name } => self.set_node(name.into(), None, now, wall),
            Change::Nodes { names } => {
                let listed: HashSet<String> = names.into_iter().collect();
                let gone = self.nodes.keys().filter(|name| !listed.contains(&***name));
                for name in gone.cloned().collect::<Vec<_>>() {
                    self.set_node(name, None, now, wall);
                }
                self.are_nodes_listed = true;
            }
            Change::Others(others) => self.set_others(others, now),
        }
    }

    /// `None` if the node no longer exists.
    fn set_node(&mut self, name: Arc<str>, node: Option<Node>, now: Now, wall: Time) {
        let known = node.map(|node| Known {
            is_fresh: node.is_fresh(wall),
            node,
        });
        let old = match known {
            Some(known) => self.nodes.insert(name.clone(), known),
            None => self.nodes.remove(&name),
        };
        let new = self.nodes.get(&name);
        // Only the time of the report changed.
        if let (Some(old), Some(new)) = (&old, new)
            && old.node.shares == new.node.shares
            && old.is_fresh == new.is_fresh
        {
            return;
        }
        for namespace in old.iter().flat_map(|old| old.node.namespaces()) {
            if let Some(known) = self.namespaces.get_mut(&**namespace) {
                known.nodes.remove(&name);
            }
            look(&mut self.due, namespace, now);
        }
        for namespace in new.into_iter().flat_map(|new| new.node.namespaces()) {
            let known = self.namespaces.entry(namespace.to_string()).or_default();
            known.nodes.insert(name.clone());
            look(&mut self.due, namespace, now);
        }
    }

    fn set_others(&mut self, others: Others, now: Now) {
        self.are_others_known = true;
        if self.others == others {
            return;
        }
        let old = std::mem::take(&mut self.others);
        let of_all = [&old, &others];
        let names = of_all.map(|others| others.waiting.keys().chain(others.budgets.keys()));
        let names: BTreeSet<&String> = names.into_iter().flatten().collect();
        for name in names {
            let waiting = others.waiting.get(name).copied().unwrap_or(0);
            let budget = others.budgets.get(name);
            let known = self.namespaces.entry(name.clone()).or_default();
            if known.waiting != waiting || known.budget.as_ref() != budget {
                known.waiting = waiting;
                known.budget = budget.cloned();
                look(&mut self.due, name, now);
            }
        }
        self.others = others;
    }

    /// Returns what to do now. Its writes count as in flight until [`Self::report`].
    pub(crate) fn plan(&mut self, now: Now, wall: Time) -> Plan {
        let mut plan = Plan {
            wake: Some(HEARTBEAT),
            ..Plan::default()
        };
        if !self.are_nodes_listed || !self.are_others_known {
            return plan;
        }
        if !self.are_objects_listed {
            if !self.is_listing && self.list_at <= now {
                self.is_listing = true;
                plan.writes.push(Write::List);
            }
            return plan;
        }
        self.notice_silence(now, wall);
        if now >= self.second.0 + Duration::from_secs(1) {
            self.second = (now, 0);
        }
        let mut under_way = self.namespaces.values().filter(|namespace| namespace.is_busy).count();
        for name in self.due_now(now) {
            if under_way >= WRITES || self.second.1 >= WRITES_A_SECOND {
                break;
            }
            self.due.remove(&name);
            if let Some(write) = self.decide(&name, now, wall) {
                under_way += 1;
                self.second.1 += 1;
                plan.writes.push(write);
            }
        }
        let next = self.due.values().min().map(|at| at.saturating_sub(now));
        let next = next.map(|wait| match under_way >= WRITES || self.second.1 >= WRITES_A_SECOND {
            true => wait.max(SUM_EVERY),
            false => wait,
        });
        plan.wake = next.into_iter().chain(plan.wake).min();
        plan
    }

    /// The namespaces that are due; those that already have an object come first.
    fn due_now(&self, now: Now) -> Vec<String> {
        let due = self.due.iter().filter(|(_, at)| **at <= now);
        let has_object = |known: &Namespace| matches!(known.object, Object::With(_));
        let is_new = |name: &String| !self.namespaces.get(name).is_some_and(has_object);
        let mut due: Vec<(bool, Now, &String)> = due.map(|(name, at)| (is_new(name), *at, name)).collect();
        due.sort_unstable();
        due.into_iter().map(|(_, _, name)| name.clone()).collect()
    }

    /// Schedules a check of namespaces whose nodes stopped or resumed writing.
    fn notice_silence(&mut self, now: Now, wall: Time) {
        for known in self.nodes.values_mut() {
            let is_fresh = known.node.is_fresh(wall);
            if std::mem::replace(&mut known.is_fresh, is_fresh) != is_fresh {
                for namespace in known.node.namespaces() {
                    look(&mut self.due, namespace, now);
                }
            }
        }
    }

    /// Returns the write that a namespace needs now, or schedules another check if it needs one later.
    fn decide(&mut self, name: &str, now: Now, wall: Time) -> Option<Write> {
        let known = self.namespaces.get_mut(name)?;
        if known.is_busy {
            // It is checked again when the write has ended.
            return None;
        }
        let rested = known.summed.map_or(now, |at| at + SUM_EVERY).max(known.paused_until);
        if rested > now {
            look(&mut self.due, name, rested);
            return None;
        }
        known.summed = Some(now);
        let nodes = known.nodes.iter();
        let nodes = nodes.filter_map(|node| self.nodes.get_key_value(node));
        let shares = nodes.flat_map(|(node, on)| {
            on.node
                .shares_of(name)
                .iter()
                .map(|share| (share, &**node, on.is_fresh))
        });
        let mut sum = Sum::new(known.waiting, known.budget.as_ref());
        for (share, _, is_fresh) in shares.clone() {
            sum.add(share, is_fresh);
        }
        if sum.is_empty() && known.object == Object::None {
            self.namespaces.remove(name);
            return None;
        }
        let has_held_moved = known.held.as_ref() != Some(&sum.held);
        let every = if has_held_moved { HELD_EVERY } else { USED_EVERY };
        let earliest = known.written.map_or(now, |at| at + every);
        if earliest > now {
            look(&mut self.due, name, earliest);
            return None;
        }
        let write = if sum.is_empty() {
            known.object = Object::None;
            known.held = None;
            Write::Delete {
                namespace: name.to_owned(),
            }
        } else {
            let mut status = sum.status(shares, known.budget.clone());
            known.held = Some(sum.held);
            let new = Object::With(digest(&status));
            if std::mem::replace(&mut known.object, new) == new {
                return None;
            }
            status.as_of = wall.to_string();
            Write::Set {
                namespace: name.to_owned(),
                status: Box::new(status),
            }
        };
        known.written = Some(now);
        known.is_busy = true;
        Some(write)
    }

    /// Reports the outcome of a namespace's write, or of the list if there is no namespace.
    pub(crate) fn report(&mut self, namespace: Option<&str>, outcome: Outcome, now: Now) {
        let Some(name) = namespace else {
            return self.report_list(outcome, now);
        };
        let Some(known) = self.namespaces.get_mut(name) else {
            return;
        };
        known.is_busy = false;
        if outcome == Outcome::Failed {
            known.held = None;
            known.object = Object::NotKnown;
            known.paused_until = now + pause(&mut known.failures);
        } else {
            known.failures = 0;
        }
        look(&mut self.due, name, now);
    }

    fn report_list(&mut self, outcome: Outcome, now: Now) {
        self.is_listing = false;
        let Outcome::Listed(objects) = outcome else {
            self.list_at = now + pause(&mut self.list_failures);
            return;
        };
        self.are_objects_listed = true;
        for (name, digest) in objects {
            self.namespaces.entry(name).or_default().object = Object::With(digest);
        }
        for name in self.namespaces.keys() {
            look(&mut self.due, name, now);
        }
    }
}

/// Schedules a check of a namespace for this time or earlier.
fn look(due: &mut BTreeMap<String, Now>, name: &str, at: Now) {
    match due.get_mut(name) {
        Some(known) => *known = (*known).min(at),
        None => drop(due.insert(name.to_owned(), at)),
    }
}

fn pause(failures: &mut u32) -> Duration {
    let pause = PAUSE.saturating_mul(1 << (*failures).min(10)).min(PAUSE_MAX);
    *failures = failures.saturating_add(1);
    pause
}

#[cfg(test)]
#[path = "controller_test.rs"]
mod tests;
