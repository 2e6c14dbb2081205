//! The input of the state: one [`Change`] for everything that a watch, a list or the lease reports.

use std::collections::HashMap;

use vgpu_allocator::model::{DeviceClass, DeviceTaintRule};

use crate::model::{Claim, Node, Pod, Slice, Version};
use crate::term::Term;
use crate::time::Time;

/// One change. A known object is replaced.
///
/// A list sends each of its objects separately. Its end (`Pods`, `Claims` and so on) names all of them; all others are
/// gone.
///
/// `read` is the time at which a consistent read or list began: it shows everything that was written before. It is
/// `None` for changes from a watch, which may lag.
#[derive(Debug, Clone)]
pub enum Change {
    Pod(Pod),
    /// `namespace/name`.
    PodGone {
        key: String,
    },
    Pods {
        keys: Vec<String>,
    },
    Node(Node),
    NodeGone {
        name: String,
    },
    Nodes {
        names: Vec<String>,
    },
    Claim(Claim),
    /// With the version that the watch gave the deletion.
    ClaimGone {
        key: String,
        version: Version,
    },
    /// All claims, as of `version`: those that are new to the receiver, and the keys of the others.
    Claims {
        claims: Vec<Claim>,
        same: Vec<String>,
        version: Version,
        read: Option<Time>,
    },
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
        names: Vec<String>,
        version: Version,
    },
    Class(DeviceClass),
    ClassGone {
        name: String,
    },
    Classes {
        names: Vec<String>,
    },
    /// All DeviceTaintRules.
    Rules(Vec<DeviceTaintRule>),
    /// The term in which this replica holds the lease, or `None`. A renewal has the same epoch and a later end.
    Lease(Option<Term>),
}

/// How the deletion of a slice became known.
#[derive(Debug, Clone, Copy)]
pub enum Last {
    /// A watch or list as of that version no longer has it.
    Version(Version),
    /// A consistent read, begun at that time, did not find it.
    Read(Time),
}

/// The claims that a planner knew when it requested a list, by key. Those that are listed in the same version have not
/// changed, and are not copied.
#[derive(Debug, Clone, Default)]
pub struct Seen(pub(crate) HashMap<String, Version>);

impl Seen {
    #[must_use]
    pub fn has(&self, claim: &Claim) -> bool {
        self.0.get(&claim.key()) == Some(&claim.version)
    }
}

/// A consistent read that a planner requests. Its answer is a [`Change`].
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Read {
    /// A list of all claims: [`Change::Claims`].
    Claims,
    /// One slice: [`Change::Slice`] or [`Change::SliceGone`].
    Slice(String),
}
