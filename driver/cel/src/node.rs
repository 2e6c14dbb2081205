//! The executable form of a checked expression: names resolved to slots, overloads chosen, constants folded, patterns
//! compiled.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::cost::Price;
use crate::evaluate::{Evaluation, can_index};
use crate::libraries::pattern::Pattern;
use crate::value::{Key, Out, Text, Value};

pub(crate) enum Node {
    Const(Value<'static>),
    Path(Box<Path>),
    And(Box<(Node, Node)>),
    Or(Box<(Node, Node)>),
    Equal {
        sides: Box<(Node, Node)>,
        negated: bool,
    },
    /// `x in [constants]`.
    InSet(Box<(Node, Set)>),
    Call(Box<Call>),
    /// `quantity("20Gi")`: computed at compile time, charged each time it runs.
    Prepaid(Box<(Value<'static>, u64)>),
    /// `optional.orValue(value)`: the second runs only if the first is empty.
    OrValue(Box<(Node, Node)>),
    OrOptional(Box<(Node, Node)>),
    List(Box<[Item]>),
    Map(Box<[Entry]>),
    Fold(Box<Fold>),
    Bind(Box<Bind>),
    OptMap(Box<OptMap>),
    SortBy(Box<SortBy>),
}

/// A variable or a value, and the selections from it. They are one node because their cost is charged together.
pub(crate) struct Path {
    pub(crate) root: Root,
    pub(crate) steps: Vec<Step>,
    /// `has(path)`.
    pub(crate) test: bool,
}

pub(crate) enum Root {
    Device,
    Slot(usize),
    Node(Node),
    /// condition, then, else
    Choice(Box<[Node; 3]>),
}

pub(crate) struct Step {
    pub(crate) key: StepKey,
    pub(crate) optional: bool,
}

pub(crate) enum StepKey {
    Text(Text<'static>),
    Const(Value<'static>),
    Node(Node),
}

pub(crate) struct Item {
    pub(crate) node: Node,
    pub(crate) optional: bool,
}

pub(crate) struct Entry {
    pub(crate) key: Node,
    pub(crate) value: Node,
    pub(crate) optional: bool,
}

pub(crate) type Function = for<'v> fn(&mut Evaluation<'v>, &Call, &[Value<'v>]) -> Out<'v>;

pub(crate) struct Call {
    pub(crate) function: Function,
    pub(crate) name: &'static str,
    /// The overload if the types leave only one; else empty.
    pub(crate) overload: &'static str,
    pub(crate) price: Price,
    /// The arguments, the receiver first.
    pub(crate) args: Vec<Node>,
    /// True if the call ends at the first failing argument. Otherwise, as with operators, all arguments are evaluated
    /// first.
    pub(crate) sequential: bool,
    /// The constant pattern among the arguments.
    pub(crate) pattern: Option<Pattern>,
}

pub(crate) struct Fold {
    pub(crate) range: Node,
    pub(crate) kind: FoldKind,
    /// Slot of the element or key; with a second variable, of the index or key.
    pub(crate) first: usize,
    pub(crate) second: Option<usize>,
    pub(crate) filter: Option<Node>,
    pub(crate) body: Node,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FoldKind {
    All,
    Exists,
    ExistsOne,
    /// `map`, `filter` and `transformList`.
    List,
    TransformMap,
    TransformMapEntry,
}

/// `cel.bind`: the value is computed at its first use.
pub(crate) struct Bind {
    pub(crate) slot: usize,
    pub(crate) init: Node,
    pub(crate) body: Node,
}

/// `optMap`; with `flat`, `optFlatMap`.
pub(crate) struct OptMap {
    pub(crate) target: Node,
    /// The first slot of the target's own variables.
    pub(crate) first_slot: usize,
    pub(crate) slot: usize,
    pub(crate) body: Node,
    pub(crate) flat: bool,
}

pub(crate) struct SortBy {
    pub(crate) target: Node,
    pub(crate) slot: usize,
    pub(crate) key: Node,
    /// True if the checker knows the type of the keys, which decides the cost.
    pub(crate) typed: bool,
}

/// Constants among which a value is looked up.
#[derive(Default)]
pub(crate) struct Set {
    /// Sorted texts.
    texts: Vec<Arc<str>>,
    others: BTreeSet<Key>,
}

impl Set {
    /// Builds the set, if all values can be looked up.
    pub(crate) fn of(values: &[Value<'static>]) -> Option<Self> {
        let mut set = Self::default();
        for value in values {
            if !can_index(value) {
                return None;
            }
            match value.key()? {
                Key::Str(text) => set.texts.push(text),
                key => {
                    set.others.insert(key);
                }
            }
        }
        set.texts.sort_unstable();
        Some(set)
    }

    pub(crate) fn contains(&self, value: &Value<'_>) -> bool {
        match value {
            Value::Str(text) => self
                .texts
                .binary_search_by(|probe| probe.as_ref().cmp(text.as_str()))
                .is_ok(),
            Value::Double(d) if d.is_nan() => false,
            other => other.key().is_some_and(|key| self.others.contains(&key)),
        }
    }
}

impl Node {
    pub(crate) fn constant(&self) -> Option<&Value<'static>> {
        match self {
            Self::Const(value) => Some(value),
            _ => None,
        }
    }
}
