//! All that is known of the cluster, changed synchronously, one [`Change`] at a time.

use std::collections::HashMap;
use std::hash::Hash;

use crate::model::{Claim, Class, Key, Pod, Slice};

/// One step of a watch, of any of the four kinds.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    Pod(Step<Key, Pod>),
    Claim(Step<Key, Claim>),
    Slice(Step<String, Slice>),
    Class(Step<String, Class>),
}

/// A watch lists (`Begin`, then `Listed`, then `End`), then follows.
#[derive(Debug, Clone, PartialEq)]
pub enum Step<K, V> {
    Begin,
    Listed(K, V),
    End,
    Changed(K, V),
    Gone(K),
}

/// The objects of one kind.
#[derive(Debug)]
pub struct Table<K, V> {
    objects: HashMap<K, V>,
    /// What a list that is under way has brought so far.
    listing: Option<HashMap<K, V>>,
    listed_once: bool,
}

/// The state of the cluster as far as this controller needs it.
#[derive(Debug, Default)]
pub struct Cluster {
    pub pods: Table<Key, Pod>,
    pub claims: Table<Key, Claim>,
    pub slices: Table<String, Slice>,
    pub classes: Table<String, Class>,
}

impl Cluster {
    /// Takes in a change.
    pub fn apply(&mut self, change: Change) {
        match change {
            Change::Pod(step) => self.pods.apply(step),
            Change::Claim(step) => self.claims.apply(step),
            Change::Slice(step) => self.slices.apply(step),
            Change::Class(step) => self.classes.apply(step),
        }
    }

    /// Whether every kind was listed completely at least once.
    pub fn is_complete(&self) -> bool {
        self.pods.listed_once && self.claims.listed_once && self.slices.listed_once && self.classes.listed_once
    }
}

impl<K, V> Default for Table<K, V> {
    fn default() -> Self {
        Self {
            objects: HashMap::new(),
            listing: None,
            listed_once: false,
        }
    }
}

impl<K: Eq + Hash, V> Table<K, V> {
    pub fn get<Q: Eq + Hash + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: std::borrow::Borrow<Q>,
    {
        self.objects.get(key)
    }

    pub fn values(&self) -> impl Iterator<Item = &V> {
        self.objects.values()
    }

    pub fn len(&self) -> usize {
        self.objects.len()
    }

    pub fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }

    fn apply(&mut self, step: Step<K, V>) {
        match step {
            Step::Begin => self.listing = Some(HashMap::new()),
            Step::Listed(key, value) => {
                self.listing.get_or_insert_default().insert(key, value);
            }
            // What the list did not bring is gone; what it did bring stands from now on.
            Step::End => {
                self.objects = self.listing.take().unwrap_or_default();
                self.listed_once = true;
            }
            Step::Changed(key, value) => {
                self.objects.insert(key, value);
            }
            Step::Gone(key) => {
                self.objects.remove(&key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(steps: Vec<Step<&'static str, u8>>) -> Table<&'static str, u8> {
        let mut table = Table::default();
        steps.into_iter().for_each(|step| table.apply(step));
        table
    }

    #[test]
    fn a_relist_replaces_everything_at_its_end_and_not_before() {
        let before = vec![Step::Begin, Step::Listed("a", 1), Step::End, Step::Changed("b", 2)];
        let mut under_way = before.clone();
        under_way.extend([Step::Begin, Step::Listed("b", 3)]);
        let table_under_way = table(under_way.clone());
        assert_eq!(
            (table_under_way.get("a"), table_under_way.get("b")),
            (Some(&1), Some(&2))
        );

        under_way.push(Step::End);
        let after = table(under_way);
        assert_eq!((after.get("a"), after.get("b"), after.len()), (None, Some(&3), 1));
    }

    #[test]
    fn a_list_that_broke_off_leaves_nothing_behind() {
        let steps = vec![
            Step::Begin,
            Step::Listed("ghost", 1),
            Step::Begin,
            Step::Listed("a", 1),
            Step::End,
        ];
        assert_eq!(table(steps).get("ghost"), None);
    }

    #[test]
    fn nothing_is_complete_before_every_kind_was_listed() {
        let mut cluster = Cluster::default();
        let ends = [
            Change::Pod(Step::End),
            Change::Claim(Step::End),
            Change::Slice(Step::End),
            Change::Class(Step::End),
        ];
        for end in ends {
            assert!(!cluster.is_complete());
            cluster.apply(end);
        }
        assert!(cluster.is_complete());
    }
}
