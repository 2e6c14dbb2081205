//! The input and output of the controller of VgpuUsages.

use std::collections::BTreeMap;
use std::time::Duration;

use vgpu_api::usage::{BudgetUse, VgpuUsageStatus};

use super::share::Node;

#[derive(Debug)]
pub(crate) enum Change {
    Node {
        name: String,
        node: Node,
    },
    NodeGone {
        name: String,
    },
    /// The end of a list, with the names of all nodes.
    Nodes {
        names: Vec<String>,
    },
    Others(Others),
}

/// What other parts of the leader know of namespaces.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Others {
    pub(crate) waiting: BTreeMap<String, u32>,
    pub(crate) budgets: BTreeMap<String, BudgetUse>,
}

#[derive(Debug, PartialEq)]
pub(crate) enum Write {
    /// Creates the object, or replaces its status.
    Set {
        namespace: String,
        status: Box<VgpuUsageStatus>,
    },
    Delete {
        namespace: String,
    },
    /// Lists all objects.
    List,
}

impl Write {
    /// `None` for the list.
    pub(crate) fn namespace(&self) -> Option<&str> {
        match self {
            Self::Set { namespace, .. } | Self::Delete { namespace } => Some(namespace),
            Self::List => None,
        }
    }
}

/// The outcome of a write. A list has the objects, each with the digest of its status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    Done,
    Listed(Vec<(String, u64)>),
    /// It is tried again after a pause.
    Failed,
}

#[derive(Debug, Default)]
pub(crate) struct Plan {
    pub(crate) writes: Vec<Write>,
    pub(crate) wake: Option<Duration>,
}
