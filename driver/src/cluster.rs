//! All that is known of the cluster, changed synchronously, one [`Change`] at a time.
//!
//! ```text
//!  Change (a kind's Step) ─► Table: which objects there are ─► Object::take ─► the allocator's Index
//!                               │                                   └─────► what else is kept of the object
//!                               └─ at a list's end: what it did not bring is gone
//! ```

use std::borrow::Borrow;
use std::collections::{HashMap, HashSet};
use std::hash::Hash;

use vgpu_allocator::model::{DeviceClass, DeviceTaintRule, Node, ResourceClaim, ResourceSlice};
use vgpu_allocator::{Event, Features, Index};

use crate::model::{Class, Pod};
use crate::object::{Claim, Object, OurDevices};
use crate::specs::Specs;

/// One step of a watch, of any kind.
#[derive(Debug, Clone)]
pub enum Change {
    Pod(Step<Pod>),
    Node(Step<Node>),
    Class(Step<DeviceClass>),
    Slice(Step<ResourceSlice>),
    Claim(Step<ResourceClaim>),
    Rule(Step<DeviceTaintRule>),
}

/// A watch lists (`Begin`, then `Listed`, then `End`), then follows.
#[derive(Debug, Clone, PartialEq)]
pub enum Step<T> {
    Begin,
    Listed(T),
    End,
    Changed(T),
    Gone(T),
    /// The API server has nothing of the kind.
    None,
}

impl<T> Step<T> {
    /// The same step with another object; `None` if there is none to put in.
    pub fn with<U>(self, other: impl FnOnce(T) -> Option<U>) -> Option<Step<U>> {
        Some(match self {
            Self::Begin => Step::Begin,
            Self::Listed(object) => Step::Listed(other(object)?),
            Self::End => Step::End,
            Self::Changed(object) => Step::Changed(other(object)?),
            Self::Gone(object) => Step::Gone(other(object)?),
            Self::None => Step::None,
        })
    }

    pub fn as_ref(&self) -> Step<&T> {
        match self {
            Self::Begin => Step::Begin,
            Self::Listed(object) => Step::Listed(object),
            Self::End => Step::End,
            Self::Changed(object) => Step::Changed(object),
            Self::Gone(object) => Step::Gone(object),
            Self::None => Step::None,
        }
    }
}

/// The objects of one kind, and what is kept of each.
#[derive(Debug)]
pub struct Table<T: Object> {
    kept: HashMap<T::Id, T::Kept>,
    /// What a list that is under way has brought so far.
    listing: Option<HashSet<T::Id>>,
    listed_once: bool,
}

/// What objects are taken into.
#[derive(Debug)]
pub struct World {
    /// Empty in controller mode, where the planner has one.
    pub index: Index,
    is_controllers: bool,
    pub specs: Specs,
}

impl World {
    pub(crate) fn tell(&mut self, event: Event) {
        if !self.is_controllers {
            self.index.apply(event);
        }
    }
}

/// The state of the cluster as far as this controller needs it.
#[derive(Debug)]
pub struct Cluster {
    pub world: World,
    pub pods: Table<Pod>,
    nodes: Table<Node>,
    classes: Table<DeviceClass>,
    slices: Table<ResourceSlice>,
    pub(crate) claims: Table<ResourceClaim>,
    rules: Table<DeviceTaintRule>,
}

impl Default for Cluster {
    fn default() -> Self {
        Self {
            world: World {
                index: Index::new(Features::default()),
                is_controllers: false,
                specs: Specs::default(),
            },
            pods: Table::default(),
            nodes: Table::default(),
            classes: Table::default(),
            slices: Table::default(),
            claims: Table::default(),
            rules: Table::default(),
        }
    }
}

impl Cluster {
    /// For controller mode: what the allocator is to know is told to the planner, and not here again.
    pub fn of_controller() -> Self {
        let mut cluster = Self::default();
        cluster.world.is_controllers = true;
        cluster
    }

    /// Takes in a change.
    pub fn apply(&mut self, change: Change) {
        let world = &mut self.world;
        match change {
            Change::Pod(step) => self.pods.apply(step, world),
            Change::Node(step) => self.nodes.apply(step, world),
            Change::Class(step) => self.classes.apply(step, world),
            Change::Slice(step) => self.slices.apply(step, world),
            Change::Claim(step) => self.claims.apply(step, world),
            Change::Rule(step) => {
                let listing = matches!(step, Step::Begin | Step::Listed(_));
                self.rules.apply(step, world);
                // The index takes all of them at once: there are few.
                if !listing {
                    let mut rules: Vec<_> = self.rules.values().cloned().collect();
                    rules.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
                    world.tell(Event::Rules(rules));
                }
            }
        }
    }

    /// Whether every kind was listed completely at least once.
    pub fn is_complete(&self) -> bool {
        self.pods.listed_once
            && self.nodes.listed_once
            && self.classes.listed_once
            && self.slices.listed_once
            && self.claims.listed_once
            && self.rules.listed_once
    }

    /// By `namespace/name`.
    pub(crate) fn claim(&self, key: &str) -> Option<&Claim> {
        self.claims.get(key)
    }

    pub(crate) fn class(&self, name: &str) -> Option<&Class> {
        self.classes.kept.get(name)
    }

    pub(crate) fn classes(&self) -> impl Iterator<Item = &Class> {
        self.classes.values()
    }

    /// What our driver publishes, slice by slice.
    pub(crate) fn our_devices(&self) -> impl Iterator<Item = OurDevices> {
        self.slices.values().filter_map(|slice| *slice)
    }
}

impl<T: Object> Default for Table<T> {
    fn default() -> Self {
        Self {
            kept: HashMap::new(),
            listing: None,
            listed_once: false,
        }
    }
}

impl<T: Object> Table<T> {
    pub fn get<Q: Hash + Eq + ?Sized>(&self, id: &Q) -> Option<&T::Kept>
    where
        T::Id: Borrow<Q>,
    {
        self.kept.get(id)
    }

    pub fn values(&self) -> impl Iterator<Item = &T::Kept> {
        self.kept.values()
    }

    fn apply(&mut self, step: Step<T>, world: &mut World) {
        match step {
            Step::Begin => self.listing = Some(HashSet::new()),
            // What a list brings is newer than what is known, so it stands at once: a relist takes no second copy.
            Step::Listed(object) => {
                self.listing.get_or_insert_default().insert(object.id());
                self.take(object, world);
            }
            // What the list did not bring is gone.
            Step::End => {
                let listed = self.listing.take().unwrap_or_default();
                self.keep_only(&listed, world);
            }
            Step::Changed(object) => self.take(object, world),
            Step::Gone(object) => self.remove(&object.id(), world),
            Step::None => {
                self.listing = None;
                self.keep_only(&HashSet::new(), world);
            }
        }
    }

    fn take(&mut self, object: T, world: &mut World) {
        let id = object.id();
        let kept = object.take(world);
        self.kept.insert(id, kept);
    }

    fn keep_only(&mut self, listed: &HashSet<T::Id>, world: &mut World) {
        let gone: Vec<T::Id> = self.kept.keys().filter(|id| !listed.contains(id)).cloned().collect();
        gone.iter().for_each(|id| self.remove(id, world));
        self.listed_once = true;
    }

    fn remove(&mut self, id: &T::Id, world: &mut World) {
        if self.kept.remove(id).is_some() {
            T::gone(id, world);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str) -> Node {
        serde_json::from_value(serde_json::json!({"metadata": {"name": name}})).unwrap()
    }

    fn nodes(steps: Vec<Step<Node>>) -> Vec<String> {
        let mut cluster = Cluster::default();
        steps.into_iter().for_each(|step| cluster.apply(Change::Node(step)));
        assert_eq!(cluster.nodes.kept.len(), cluster.world.index.nodes().count());
        cluster
            .world
            .index
            .nodes()
            .map(|node| node.metadata.name.clone())
            .collect()
    }

    #[test]
    fn a_relist_adds_at_once_and_removes_at_its_end() {
        let mut steps = vec![
            Step::Begin,
            Step::Listed(node("a")),
            Step::End,
            Step::Changed(node("b")),
        ];
        steps.extend([Step::Begin, Step::Listed(node("c")), Step::Listed(node("b"))]);
        assert_eq!(nodes(steps.clone()), ["a", "b", "c"]);
        steps.push(Step::End);
        assert_eq!(nodes(steps.clone()), ["b", "c"]);
        steps.push(Step::Gone(node("b")));
        assert_eq!(nodes(steps), ["c"]);
    }

    #[test]
    fn a_list_that_broke_off_leaves_nothing_behind() {
        let broken = [Step::Begin, Step::Listed(node("ghost"))];
        let whole = [Step::Begin, Step::Listed(node("a")), Step::End];
        assert_eq!(nodes(broken.into_iter().chain(whole).collect()), ["a"]);
    }

    #[test]
    fn nothing_is_complete_before_every_kind_was_listed() {
        let mut cluster = Cluster::default();
        let ends = [
            Change::Pod(Step::End),
            Change::Node(Step::End),
            Change::Claim(Step::End),
            Change::Slice(Step::End),
            Change::Class(Step::End),
            Change::Rule(Step::None),
        ];
        for end in ends {
            assert!(!cluster.is_complete());
            cluster.apply(end);
        }
        assert!(cluster.is_complete());
    }
}
