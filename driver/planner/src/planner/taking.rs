//! Taking in changes.

use std::collections::HashSet;

use vgpu_allocator::Event;

use super::Planner;
use crate::change::{Ask, Change, Last};
use crate::claims::State;
use crate::model::{Claim, Node, Pod, Slice, Version};
use crate::supply::Sighting;
use crate::term::{Stage, Term};
use crate::time::Time;

impl Planner {
    /// Takes in one change.
    pub fn apply(&mut self, change: Change, now: Time) {
        let now = self.at(now);
        match change {
            Change::Pod(pod) => self.set_pod(pod),
            Change::PodGone { key } => self.remove_pod(&key),
            Change::Pods(pods) => {
                let listed: HashSet<String> = pods.iter().map(Pod::key).collect();
                let gone = self.cluster.pods().map(|(key, _)| key.clone());
                let gone: Vec<String> = gone.filter(|key| !listed.contains(key)).collect();
                gone.iter().for_each(|key| self.remove_pod(key));
                pods.into_iter().for_each(|pod| self.set_pod(pod));
                self.synced.pods = true;
            }
            Change::Node(node) => self.set_node(node),
            Change::NodeGone { name } => self.remove_node(&name),
            Change::Nodes(nodes) => {
                let listed: HashSet<String> = nodes.iter().map(|node| node.name().to_owned()).collect();
                let gone = self.cluster.nodes().map(|node| node.name().to_owned());
                let gone: Vec<String> = gone.filter(|name| !listed.contains(name)).collect();
                gone.iter().for_each(|name| self.remove_node(name));
                nodes.into_iter().for_each(|node| self.set_node(node));
                self.synced.nodes = true;
            }
            Change::Claim(claim) => self.set_claim(claim, now),
            Change::ClaimGone { key, version } => self.remove_claim(&key, version),
            Change::Claims {
                claims,
                same,
                version,
                asked,
            } => self.set_claims(claims, same, version, asked, now),
            Change::Slice { slice, read } => {
                if read.is_some() {
                    self.asked.remove(&Ask::Slice(slice.name().to_owned()));
                }
                self.set_slice(slice, read, now);
            }
            Change::SliceGone { name, last } => self.remove_slice(&name, last),
            Change::Slices { slices, version, read } => {
                let listed: HashSet<&str> = slices.iter().map(Slice::name).collect();
                let gone = self.supply.slices().filter(|name| !listed.contains(name.as_str()));
                let gone: Vec<String> = gone.cloned().collect();
                for name in gone {
                    self.remove_slice(&name, Last::Version(version));
                }
                for slice in slices {
                    self.set_slice(slice, read, now);
                }
                self.synced.slices = true;
                self.is_dirty = true;
            }
            Change::Class(class) => {
                self.supply.set_class(class, &mut self.index, &mut self.cache);
                self.is_dirty = true;
            }
            Change::ClassGone { name } => {
                self.supply.remove_class(&name, &mut self.index);
                self.is_dirty = true;
            }
            Change::Classes(classes) => {
                let listed: HashSet<&String> = classes.iter().map(|class| &class.metadata.name).collect();
                let gone = self.supply.classes().map(|class| &class.metadata.name);
                let gone: Vec<String> = gone.filter(|name| !listed.contains(name)).cloned().collect();
                for name in gone {
                    self.supply.remove_class(&name, &mut self.index);
                }
                for class in classes {
                    self.supply.set_class(class, &mut self.index, &mut self.cache);
                }
                self.synced.classes = true;
                self.is_dirty = true;
            }
            Change::Rules(rules) => {
                self.index.apply(Event::Rules(rules));
                self.synced.rules = true;
                self.is_dirty = true;
            }
            Change::Lease(term) => self.set_term(term, now),
        }
    }

    pub(super) fn set_term(&mut self, term: Option<Term>, now: Time) {
        let same = |old: &Term| term.as_ref().is_some_and(|new| new.epoch == old.epoch);
        // A plan that was made after its end has passed over what came before: a renewal that is late makes up for it.
        self.is_dirty |= self.term.as_ref().is_some_and(|old| old.until <= now);
        if !self.term.as_ref().is_some_and(same) {
            self.is_dirty = true;
            self.claims.end_pauses();
            // A list that was asked for in another term is no answer in this one.
            self.asked.clear();
            self.pass = super::round::Pass::default();
            self.stage = match term {
                Some(_) => Stage::First { since: now },
                None => Stage::Standby,
            };
        }
        self.term = term;
    }

    fn set_pod(&mut self, pod: Pod) {
        let key = pod.key();
        let old = self.cluster.pod(&key);
        let old_keys: Vec<String> = old.into_iter().flat_map(Pod::claim_keys).collect();
        let replaced = old.filter(|old| old.uid != pod.uid).map(|old| old.uid.clone());
        let keys: Vec<String> = pod.claim_keys().collect();
        if !self.cluster.set_pod(pod) {
            return;
        }
        self.is_dirty = true;
        if let Some(uid) = replaced {
            self.avoided.forget(&uid);
            self.efforts.forget(&uid);
        }
        for claim in old_keys.iter().filter(|claim| !keys.contains(claim)) {
            self.unuse(claim, &key);
        }
        for claim in keys {
            self.users.entry(claim).or_default().insert(key.clone());
        }
        self.reseat(&key);
    }

    fn remove_pod(&mut self, key: &str) {
        let Some(pod) = self.cluster.pod(key) else {
            return;
        };
        self.is_dirty = true;
        self.avoided.forget(&pod.uid);
        self.efforts.forget(&pod.uid);
        let claims: Vec<String> = pod.claim_keys().collect();
        for claim in claims {
            self.unuse(&claim, key);
        }
        self.cluster.remove_pod(key);
    }

    fn unuse(&mut self, claim: &str, pod: &str) {
        if let Some(users) = self.users.get_mut(claim) {
            users.remove(pod);
            if users.is_empty() {
                self.users.remove(claim);
            }
        }
    }

    fn set_node(&mut self, node: Node) {
        let facts = node.facts.clone();
        if self.cluster.set_node(node) {
            self.index.apply(Event::Node(facts));
            self.is_dirty = true;
        }
    }

    fn remove_node(&mut self, name: &str) {
        self.cluster.remove_node(name);
        self.index.apply(Event::NodeGone { name: name.to_owned() });
        self.is_dirty = true;
    }

    fn set_slice(&mut self, slice: Slice, read: Option<Time>, now: Time) {
        let seen = Sighting { at: now, read };
        self.supply.set_slice(slice, seen, &mut self.index, &mut self.cache);
        self.is_dirty = true;
    }

    fn remove_slice(&mut self, name: &str, last: Last) {
        self.asked.remove(&Ask::Slice(name.to_owned()));
        self.supply.remove_slice(name, last, &mut self.index);
        self.is_dirty = true;
    }

    fn set_claim(&mut self, claim: Claim, now: Time) {
        let key = claim.key();
        if self.claims.observe(claim, now) {
            self.is_dirty = true;
            self.refusals.remove(&key);
            self.recount(&key);
        }
    }

    fn remove_claim(&mut self, key: &str, version: Version) {
        if self.claims.remove(key, version) {
            self.is_dirty = true;
            self.refusals.remove(key);
            self.recount(key);
        }
    }

    fn set_claims(&mut self, claims: Vec<Claim>, same: Vec<String>, version: Version, asked: Option<Time>, now: Time) {
        let listed: HashSet<String> = claims.iter().map(Claim::key).chain(same).collect();
        let gone: Vec<String> = self.claims.missing(&listed, version).collect();
        for key in gone {
            self.remove_claim(&key, version);
        }
        for claim in claims {
            self.set_claim(claim, now);
        }
        let Some(asked) = asked else {
            return;
        };
        for key in self.claims.not_moved(asked) {
            let message = "409 Conflict, though nobody has changed the claim".to_owned();
            self.claims.set_state(&key, State::Doubtful, now);
            self.refusals.insert(key, message);
        }
        self.asked.remove(&Ask::Claims);
        self.is_dirty = true;
        self.supply.set_listed(asked, &mut self.index, &mut self.cache);
        self.fence(asked, now);
    }
}
