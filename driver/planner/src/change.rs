//! What a planner is told.

use std::collections::HashMap;

use vgpu_allocator::model::{DeviceClass, DeviceTaintRule};

use crate::model::{Claim, Node, Pod, Slice, Version};
use crate::term::Term;
use crate::time::Time;

/// One change. An object that is known already is replaced.
///
/// A list names all objects of its kind: those that it brings, and by their keys in `same` those that came before it did
/// (the watch hands each object of a list on at once) or are known in that version already. Any other is gone.
#[derive(Debug, Clone)]
pub enum Change {
    Pod(Pod),
    /// `namespace/name`.
    PodGone {
        key: String,
    },
    Pods {
        pods: Vec<Pod>,
        same: Vec<String>,
    },
    Node(Node),
    NodeGone {
        name: String,
    },
    Nodes {
        nodes: Vec<Node>,
        same: Vec<String>,
    },
    Claim(Claim),
    /// With the version that the watch gave the deletion.
    ClaimGone {
        key: String,
        version: Version,
    },
    /// All claims, as of `version`. `asked` is when a consistent list of them was begun: what was written before is in
    /// it. A list from a cache has none.
    Claims {
        claims: Vec<Claim>,
        same: Vec<String>,
        version: Version,
        read: Option<Time>,
    },
    /// `read`: when a consistent read of it was begun; none for what a watch brings.
    Slice {
        slice: Slice,
        read: Option<Time>,
    },
    SliceGone {
        name: String,
        last: Last,
    },
    /// All slices, as of `version`.
    Slices {
        slices: Vec<Slice>,
        same: Vec<String>,
        version: Version,
        read: Option<Time>,
    },
    Class(DeviceClass),
    ClassGone {
        name: String,
    },
    Classes {
        classes: Vec<DeviceClass>,
        same: Vec<String>,
    },
    /// All of them.
    Rules(Vec<DeviceTaintRule>),
    /// The lease, as it is held now; `None` when it is not. A renewal has the same epoch and another end.
    Lease(Option<Term>),
}

/// What says that a slice is gone.
#[derive(Debug, Clone, Copy)]
pub enum Last {
    /// A watch or list, as of that version.
    Version(Version),
    /// A consistent read that was begun then, and did not find it.
    Read(Time),
}

/// The claims that a planner knew when a list was asked for, by key: what is listed in the same version is the same.
#[derive(Debug, Clone, Default)]
pub struct Seen(pub(crate) HashMap<String, Version>);

impl Seen {
    #[must_use]
    pub fn has(&self, claim: &Claim) -> bool {
        self.0.get(&claim.key()) == Some(&claim.version)
    }
}

/// What a planner asks for besides writes; answered by a [`Change`].
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Read {
    /// A consistent list of all claims: [`Change::Claims`].
    Claims,
    /// A consistent read of one slice: [`Change::Slice`] or [`Change::SliceGone`].
    Slice(String),
}
