//! The state of the cluster in both modes. Every [`Change`] is applied here.
//!
//! ```text
//!  Change ─► State ─┬─ cluster: nodes, and pods by node
//!                   ├─ claims: versions, writes in flight, holds
//!                   ├─ ownership: who allocates each device ─► vgpu_allocator::Index ◄─ what the claims hold
//!                   └─ News: what the planner must do about it
//! ```
//!
//! In controller mode a [`Planner`](crate::Planner) owns the state and decides by it. In scheduler mode the state only
//! answers why pods are Pending, so it keeps no more than that needs (see [`Mode`]).

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use vgpu_allocator::model::{
    Allocation, ClaimSpec, Device, DeviceClass, Node as NodeFacts, NodeSelector, ResourceClaim,
};
use vgpu_allocator::{AllocateError, Answer, Features, Free, Index, SelectorCache, Shared};

use crate::allocation::{as_scheduler, asks, node_of};
use crate::change::{Change, Last, Read, Seen};
use crate::claims::Claims;
use crate::cluster::{Cluster, Seat};
use crate::device_overhead;
use crate::device_ownership::{DeviceOwnership, Published, Sighting, Unallocatable};
use crate::model::{Claim, Node, Pod, Slice, Version};
use crate::names::DRIVER;
use crate::time::Time;

/// The program that allocates: the state keeps only the fields that this mode needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// kube-scheduler allocates everything. Claims are not rewritten, and data that only decisions need is dropped.
    Scheduler,
    /// A device's taint says whether kube-scheduler or the controller allocates it. It counts once it is this old.
    Controller { settle: std::time::Duration },
}

/// The state of the cluster. See the head of this file.
#[derive(Debug)]
pub struct State {
    mode: Mode,
    pub(crate) index: Index,
    pub(crate) cache: SelectorCache<'static>,
    pub(crate) cluster: Cluster,
    pub(crate) claims: Claims,
    /// The pods that use a claim, by the claim's key. Nearly always one.
    users: HashMap<String, Vec<String>>,
    pub(crate) ownership: DeviceOwnership,
    specs: Shared<ClaimSpec>,
    selectors: Shared<NodeSelector>,
    listed: Listed,
}

/// The kinds that were listed at least once.
#[derive(Debug, Default, Clone, Copy)]
struct Listed {
    pods: bool,
    nodes: bool,
    slices: bool,
    classes: bool,
    rules: bool,
    claims: bool,
}

/// What follows from a change.
#[derive(Debug, Default)]
pub struct News {
    /// True if a decision may now have a different result.
    pub is_news: bool,
    /// Uids of pods that are gone.
    pub(crate) pods: Vec<String>,
    /// Keys of claims that changed or are gone.
    pub(crate) claims: Vec<String>,
    /// The requested read that this change answers.
    pub(crate) answered: Option<Read>,
    /// When the consistent list of all claims was begun that this change completes.
    pub(crate) listed: Option<Time>,
    /// Reads to request: the list of a watch does not say when it was made, so an object that it does not have may be
    /// newer than the list, or gone.
    pub reads: Vec<Read>,
}

impl State {
    #[must_use]
    pub fn new(mode: Mode, features: Features) -> Self {
        Self {
            mode,
            index: Index::new(features),
            cache: SelectorCache::default(),
            cluster: Cluster::default(),
            claims: Claims::default(),
            users: HashMap::new(),
            ownership: match mode {
                Mode::Scheduler => DeviceOwnership::default(),
                Mode::Controller { settle } => DeviceOwnership::divided(settle),
            },
            specs: Shared::default(),
            selectors: Shared::default(),
            listed: Listed::default(),
        }
    }

    /// Applies one change.
    pub fn apply(&mut self, change: Change, now: Time) -> News {
        let mut news = News::default();
        match change {
            Change::Pod(pod) => self.set_pod(pod, &mut news),
            Change::PodGone { key } => self.remove_pod(&key, &mut news),
            Change::Pods { keys } => self.retain_pods(keys, &mut news),
            Change::Node(node) => self.set_node(node, &mut news),
            Change::NodeGone { name } => self.remove_node(&name, &mut news),
            Change::Nodes { names } => self.retain_nodes(names, &mut news),
            Change::Claim(claim) => self.set_claim(claim, now, &mut news),
            Change::ClaimGone { key, version } => self.remove_claim(&key, version, &mut news),
            Change::Claims {
                claims,
                same,
                version,
                read,
            } => self.set_claims(claims, same, self.as_of(version), read, now, &mut news),
            Change::Slice { slice, read } => {
                news.answered = read.map(|_| Read::Slice(slice.name().to_owned()));
                self.set_slice(slice, read, now, &mut news);
            }
            Change::SliceGone { name, last } => self.remove_slice(name, last, &mut news),
            Change::Slices { names, version } => self.retain_slices(names, self.as_of(version), &mut news),
            Change::Class(class) => {
                self.ownership.set_class(class, &mut self.index, &mut self.cache);
                news.is_news = true;
            }
            Change::ClassGone { name } => {
                self.ownership.remove_class(&name, &mut self.index);
                news.is_news = true;
            }
            Change::Classes { names } => {
                let listed: HashSet<String> = names.into_iter().collect();
                let gone = self.index.classes().map(|class| &class.metadata.name);
                let gone: Vec<String> = gone.filter(|name| !listed.contains(*name)).cloned().collect();
                for name in gone {
                    self.ownership.remove_class(&name, &mut self.index);
                }
                self.listed.classes = true;
                news.is_news = true;
            }
            Change::Rules(rules) => {
                self.index.set_rules(rules);
                self.listed.rules = true;
                news.is_news = true;
            }
            // The planner applies it.
            Change::Lease(_) => {}
        }
        news
    }

    /// In scheduler mode the watch is the only source, so its list is newer than everything known.
    fn as_of(&self, version: Version) -> Version {
        match self.mode {
            Mode::Scheduler => Version(u64::MAX),
            Mode::Controller { .. } => version,
        }
    }

    /// Returns true if kube-scheduler allocates everything.
    pub(crate) fn is_of_scheduler(&self) -> bool {
        self.mode == Mode::Scheduler
    }

    /// Returns true if every kind was listed at least once.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.can_decide() && self.listed.claims
    }

    /// Like [`Self::is_complete`], but without claims, which a new leader lists itself.
    pub(crate) fn can_decide(&self) -> bool {
        let listed = self.listed;
        listed.pods && listed.nodes && listed.slices && listed.classes && listed.rules
    }

    /// By `namespace/name`.
    #[must_use]
    pub fn pod(&self, key: &str) -> Option<&Pod> {
        self.cluster.pod(key)
    }

    pub fn pods(&self) -> impl Iterator<Item = &Pod> {
        self.cluster.pods().map(|(_, pod)| pod)
    }

    /// By `namespace/name`.
    #[must_use]
    pub fn claim(&self, key: &str) -> Option<&Claim> {
        self.claims.get(key).map(|known| &known.claim)
    }

    #[must_use]
    pub fn class(&self, name: &str) -> Option<&DeviceClass> {
        self.index.class(name)
    }

    /// Returns true if the class of this name is for our devices. A missing class is recognised by its name.
    #[must_use]
    pub fn is_class_ours(&self, name: &str) -> bool {
        self.class(name)
            .map_or_else(|| vgpu_api::class::is_ours(name), DeviceClass::is_ours)
    }

    pub fn classes(&self) -> impl Iterator<Item = &DeviceClass> {
        self.index.classes()
    }

    pub fn nodes(&self) -> impl Iterator<Item = &NodeFacts> {
        self.index.nodes()
    }

    /// A summary of each slice of our driver.
    pub fn published(&self) -> impl Iterator<Item = Published> {
        self.ownership.published()
    }

    /// The free capacity of our driver's devices in total, whoever allocates them.
    #[must_use]
    pub fn free(&self) -> Free {
        self.index.free(DRIVER)
    }

    /// Returns true if the claim has an allocation, or a write in flight may give it one.
    #[must_use]
    pub fn is_allocated(&self, claim: &str) -> bool {
        self.claims.get(claim).is_some_and(|known| known.allocation().is_some())
    }

    /// A number that increases with every change that may change an answer.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.index.version()
    }

    /// The known claims with their versions, for the next list.
    #[must_use]
    pub fn seen(&self) -> Seen {
        let versions = self
            .claims
            .iter()
            .map(|(key, known)| (key.clone(), known.claim.version));
        Seen(versions.collect())
    }

    /// Returns the claim with the toleration of its allocator: see [`crate::device_taints`].
    ///
    /// # Errors
    /// Why nobody may allocate the claim.
    pub fn as_its_allocator(&self, claim: &ResourceClaim) -> Result<ResourceClaim, Unallocatable> {
        self.ownership.as_its_allocator(claim)
    }

    /// Like [`Self::as_its_allocator`], for a claim that only kube-scheduler can allocate, whatever it asks for.
    #[must_use]
    pub fn as_scheduler(&self, claim: &ResourceClaim) -> ResourceClaim {
        match self.mode {
            Mode::Scheduler => claim.clone(),
            Mode::Controller { .. } => as_scheduler(claim),
        }
    }

    /// Returns how the claims fit on a node, or why they do not; `None` for an unknown node.
    ///
    /// # Errors
    /// The errors of [`Index::answer`].
    pub fn answer(
        &mut self,
        claims: &[&ResourceClaim],
        node: &str,
        steps: u64,
    ) -> Result<Option<Answer>, AllocateError> {
        self.index.answer(claims, node, steps, &mut self.cache)
    }

    /// Returns true if the claim asks for a device of ours.
    pub(crate) fn asks_for_ours(&self, claim: &Claim) -> bool {
        let mut asks = asks(&claim.facts);
        asks.any(|ask| self.is_class_ours(&ask.class))
    }

    /// Returns true if the claim names a class that does not exist.
    pub(crate) fn asks_for_no_class(&self, claim: &Claim) -> bool {
        let mut asks = asks(&claim.facts);
        asks.any(|ask| self.class(&ask.class).is_none())
    }

    pub(crate) fn has_no_slices(&self) -> bool {
        self.ownership.slices().next().is_none()
    }

    /// A device of our driver as the allocator sees it, and the node of its slice.
    pub(crate) fn device(&self, pool: &str, device: &str) -> Option<(Device, Option<String>)> {
        self.ownership.device(pool, device, &self.index)
    }

    /// The pods that use a claim.
    pub(crate) fn users(&self, claim: &str) -> impl Iterator<Item = &Pod> {
        let users = self.users.get(claim).into_iter().flatten();
        users.filter_map(|pod| self.cluster.pod(pod))
    }

    /// Applies the claim with which the API server answered a write.
    pub(crate) fn set_answered(&mut self, mut claim: Claim, now: Time) {
        self.share(&mut claim);
        let key = claim.key();
        if self.claims.answer(claim, now) {
            self.recount(&key);
        }
    }

    /// Brings the index up to date with what a claim holds, and assumes its pods on the node of its allocation.
    pub(crate) fn recount(&mut self, key: &str) {
        match self.claims.get(key) {
            Some(known) => self.index.set_claim(key, known.allocation()),
            None => self.index.remove_claim(key),
        }
        for pod in self.users.get(key).cloned().unwrap_or_default() {
            self.assume_node(&pod);
        }
    }

    /// Assumes a pod on the node for which one of its claims is held or reserved.
    fn assume_node(&mut self, pod: &str) {
        let seat = self.cluster.pod(pod).and_then(|pod| self.seat(pod));
        self.cluster.assume(pod, seat);
    }

    fn seat(&self, pod: &Pod) -> Option<Seat> {
        let node = pod.claim_keys().find_map(|key| {
            let known = self.claims.get(&key)?;
            let is_held = known.hold().is_some_and(|hold| hold.name == pod.name);
            let is_reserved = known.claim.reserved_for.iter().any(|entry| entry.uid == pod.uid);
            (is_held || is_reserved).then_some(())?;
            let allocation: &Allocation = known.allocation()?;
            node_of(allocation).map(str::to_owned)
        })?;
        let allocation = |key: String| Some((key.clone(), &**self.claims.get(&key)?.allocation()?));
        let allocations: BTreeMap<String, &Allocation> = pod.claim_keys().filter_map(allocation).collect();
        let overhead = pod.added_by(&device_overhead::of(pod, &allocations, &self.index));
        Some(Seat { node, overhead })
    }

    fn set_pod(&mut self, pod: Pod, news: &mut News) {
        let key = pod.key();
        if self.mode == Mode::Scheduler && pod.node.is_some() {
            // A bound pod waits for nothing. The watch reports it in clusters where quotas or translated pods need all
            // pods.
            return self.remove_pod(&key, news);
        }
        let old = self.cluster.pod(&key);
        let old_keys: Vec<String> = old.into_iter().flat_map(Pod::claim_keys).collect();
        let replaced = old.filter(|old| old.uid != pod.uid).map(|old| old.uid.clone());
        let keys: Vec<String> = pod.claim_keys().collect();
        if !self.cluster.set_pod(pod) {
            return;
        }
        news.is_news = true;
        news.pods.extend(replaced);
        for claim in old_keys.iter().filter(|claim| !keys.contains(claim)) {
            self.unuse(claim, &key);
        }
        for claim in keys {
            let users = self.users.entry(claim).or_default();
            if !users.contains(&key) {
                users.reserve_exact(1);
                users.push(key.clone());
            }
        }
        self.assume_node(&key);
    }

    fn remove_pod(&mut self, key: &str, news: &mut News) {
        let Some(pod) = self.cluster.pod(key) else {
            return;
        };
        news.is_news = true;
        news.pods.push(pod.uid.clone());
        let claims: Vec<String> = pod.claim_keys().collect();
        for claim in claims {
            self.unuse(&claim, key);
        }
        self.cluster.remove_pod(key);
    }

    fn retain_pods(&mut self, keys: Vec<String>, news: &mut News) {
        let listed: HashSet<String> = keys.into_iter().collect();
        let gone = self.cluster.pods().map(|(key, _)| key.clone());
        let gone: Vec<String> = gone.filter(|key| !listed.contains(key)).collect();
        gone.iter().for_each(|key| self.remove_pod(key, news));
        self.listed.pods = true;
    }

    fn unuse(&mut self, claim: &str, pod: &str) {
        if let Some(users) = self.users.get_mut(claim) {
            users.retain(|user| user != pod);
            if users.is_empty() {
                self.users.remove(claim);
            }
        }
    }

    fn set_node(&mut self, mut node: Node, news: &mut News) {
        if self.mode == Mode::Scheduler {
            let facts = node.facts;
            node = Node {
                facts,
                ..Node::default()
            };
        }
        let facts = node.facts.clone();
        if self.cluster.set_node(node) {
            self.index.set_node(facts);
            news.is_news = true;
        }
    }

    fn remove_node(&mut self, name: &str, news: &mut News) {
        self.cluster.remove_node(name);
        self.index.remove_node(name);
        news.is_news = true;
    }

    fn retain_nodes(&mut self, names: Vec<String>, news: &mut News) {
        let listed: HashSet<String> = names.into_iter().collect();
        let gone = self.cluster.nodes().map(|node| node.name().to_owned());
        let gone: Vec<String> = gone.filter(|name| !listed.contains(name)).collect();
        gone.iter().for_each(|name| self.remove_node(name, news));
        self.listed.nodes = true;
    }

    fn set_slice(&mut self, slice: Slice, read: Option<Time>, now: Time, news: &mut News) {
        let seen = Sighting { at: now, read };
        self.ownership.set_slice(slice, seen, &mut self.index, &mut self.cache);
        news.is_news = true;
    }

    fn remove_slice(&mut self, name: String, last: Last, news: &mut News) {
        self.ownership.remove_slice(&name, last, &mut self.index);
        news.answered = Some(Read::Slice(name));
        news.is_news = true;
    }

    fn retain_slices(&mut self, names: Vec<String>, version: Version, news: &mut News) {
        let listed: HashSet<String> = names.into_iter().collect();
        let gone = self.ownership.slices().filter(|name| !listed.contains(*name));
        let gone: Vec<String> = gone.cloned().collect();
        for name in gone {
            self.ownership
                .remove_slice(&name, Last::Version(version), &mut self.index);
            news.reads.push(Read::Slice(name));
        }
        self.listed.slices = true;
        news.is_news = true;
    }

    fn set_claim(&mut self, mut claim: Claim, now: Time, news: &mut News) {
        self.share(&mut claim);
        if self.mode == Mode::Scheduler {
            claim.reserved_for = Vec::new();
            claim.epoch = None;
            claim.owner = None;
        }
        let key = claim.key();
        if self.claims.observe(claim, now) {
            news.is_news = true;
            self.recount(&key);
            news.claims.push(key);
        }
    }

    fn remove_claim(&mut self, key: &str, version: Version, news: &mut News) {
        if self.claims.remove(key, version) {
            news.is_news = true;
            self.recount(key);
            news.claims.push(key.to_owned());
        }
    }

    fn set_claims(
        &mut self,
        claims: Vec<Claim>,
        same: Vec<String>,
        version: Version,
        read: Option<Time>,
        now: Time,
        news: &mut News,
    ) {
        let listed: HashSet<String> = claims.iter().map(Claim::key).chain(same).collect();
        let gone: Vec<String> = self.claims.missing(&listed, version).collect();
        for key in gone {
            self.remove_claim(&key, version, news);
        }
        for claim in claims {
            self.set_claim(claim, now, news);
        }
        self.listed.claims = true;
        let Some(read) = read else {
            return news.reads.push(Read::Claims);
        };
        news.answered = Some(Read::Claims);
        news.listed = Some(read);
        news.is_news = true;
        self.ownership.set_listed(read, &mut self.index, &mut self.cache);
    }

    /// Replaces parts of a claim by equal parts of other claims, which saves memory. If quotas share the allocation,
    /// this one becomes a copy.
    fn share(&mut self, claim: &mut Claim) {
        self.specs.share(&mut claim.facts.spec);
        let allocation = claim.facts.status.allocation.as_mut().map(Arc::make_mut);
        if let Some(selector) = allocation.and_then(|allocation| allocation.node_selector.as_mut()) {
            self.selectors.share(selector);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scheduler() -> State {
        State::new(Mode::Scheduler, Features::default())
    }

    fn controller() -> State {
        let settle = std::time::Duration::from_secs(30);
        State::new(Mode::Controller { settle }, Features::default())
    }

    fn node(name: &str) -> Change {
        Change::Node(serde_json::from_str(&format!(r#"{{"metadata":{{"name":"{name}"}}}}"#)).unwrap())
    }

    fn end_of_nodes(names: &[&str]) -> Change {
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        Change::Nodes { names }
    }

    fn slice(name: &str, version: u64) -> Change {
        let text = format!(
            r#"{{"metadata":{{"name":"{name}","resourceVersion":"{version}"}},"spec":{{"driver":"dra.vgpu"}}}}"#
        );
        let slice = serde_json::from_str(&text).unwrap();
        Change::Slice { slice, read: None }
    }

    fn end_of_slices(names: &[&str], version: u64) -> Change {
        Change::Slices {
            names: names.iter().map(|name| (*name).to_owned()).collect(),
            version: Version(version),
        }
    }

    fn apply(state: &mut State, changes: impl IntoIterator<Item = Change>) -> News {
        let changes = changes.into_iter();
        changes.fold(News::default(), |_, change| state.apply(change, Time::default()))
    }

    fn names(state: &State) -> Vec<&str> {
        state.nodes().map(|node| node.metadata.name.as_str()).collect()
    }

    #[test]
    fn a_relist_adds_at_once_and_removes_at_its_end() {
        let mut state = scheduler();
        apply(&mut state, [node("a"), end_of_nodes(&["a"]), node("b")]);
        apply(&mut state, [node("c"), node("b")]);
        assert_eq!(names(&state), ["a", "b", "c"]);
        apply(&mut state, [end_of_nodes(&["c", "b"])]);
        assert_eq!(names(&state), ["b", "c"]);
        apply(&mut state, [Change::NodeGone { name: "b".into() }]);
        assert_eq!(names(&state), ["c"]);
        // When a list breaks off, the watch reports nothing about it: the next list decides.
        apply(&mut state, [node("ghost"), node("a"), end_of_nodes(&["a"])]);
        assert_eq!(names(&state), ["a"]);
    }

    #[test]
    fn nothing_is_complete_before_every_kind_was_listed() {
        let (mut state, none) = (scheduler(), Vec::new);
        let ends = [
            Change::Pods { keys: none() },
            end_of_nodes(&[]),
            Change::Claims {
                claims: Vec::new(),
                same: none(),
                version: Version(0),
                read: None,
            },
            end_of_slices(&[], 0),
            Change::Classes { names: none() },
            Change::Rules(Vec::new()),
        ];
        for end in ends {
            assert!(!state.is_complete());
            apply(&mut state, [end]);
        }
        assert!(state.is_complete());
    }

    #[test]
    fn a_slice_that_a_list_does_not_bring_is_read_where_anything_is() {
        let mut state = controller();
        apply(
            &mut state,
            [slice("a", 5), slice("b", 5), end_of_slices(&["a", "b"], 5)],
        );
        apply(&mut state, [slice("c", 7)]);
        let last = Last::Version(Version(6));
        apply(&mut state, [Change::SliceGone { name: "b".into(), last }]);
        let news = apply(&mut state, [slice("a", 5), end_of_slices(&["a"], 5)]);
        assert_eq!(news.reads, [Read::Slice("c".into())]);
        assert_eq!(state.published().count(), 2, "it may be newer than the list");
        // Scheduler mode makes no other reads: an object that the newest list lacks is gone.
        let mut state = scheduler();
        apply(&mut state, [slice("a", 5), slice("c", 7), end_of_slices(&["a"], 5)]);
        assert_eq!(state.published().count(), 1);
    }

    #[test]
    fn scheduler_mode_keeps_pods_while_they_wait() {
        let pod = |spec: &str| {
            let text = format!(r#"{{"metadata":{{"name":"p","namespace":"ns","uid":"u"}},"spec":{spec}}}"#);
            Change::Pod(serde_json::from_str(&text).unwrap())
        };
        for (mut state, is_kept) in [(scheduler(), false), (controller(), true)] {
            apply(&mut state, [pod("{}")]);
            assert!(state.pod("ns/p").is_some());
            apply(&mut state, [pod(r#"{"nodeName":"n"}"#)]);
            assert_eq!(state.pod("ns/p").is_some(), is_kept);
        }
    }

    #[test]
    fn scheduler_mode_keeps_of_a_claim_what_explanations_need() {
        let claim: Claim = serde_json::from_str(
            r#"{"metadata":{"name":"c","namespace":"ns","uid":"u","resourceVersion":"1","annotations":{"dra.vgpu/epoch":"e#1"}},
                "spec":{"devices":{"requests":[{"name":"r","exactly":{"deviceClassName":"vgpu"}}]}},
                "status":{"reservedFor":[{"resource":"pods","name":"p","uid":"1"}]}}"#,
        )
        .unwrap();
        for (mut state, is_kept) in [(scheduler(), false), (controller(), true)] {
            apply(&mut state, [Change::Claim(claim.clone())]);
            let known = state.claim("ns/c").unwrap();
            assert_eq!(
                (known.reserved_for.len(), known.epoch.is_some()),
                (usize::from(is_kept), is_kept)
            );
            assert_eq!(known.facts.spec.devices.requests.len(), 1);
        }
    }
}
