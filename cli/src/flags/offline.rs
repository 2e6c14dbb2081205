//! The flags of `vgpu allocate` and `vgpu explain`, which are about a cluster's objects and not about this machine.

use clap::{Args, ValueEnum};
use std::path::PathBuf;

pub(super) const ALLOCATE_LONG: &str = "\
Allocates the ResourceClaims in FILEs to one node, as vgpu-controller would, without a cluster. FILEs hold
Node, DeviceClass, ResourceSlice, DeviceTaintRule and ResourceClaim objects, as YAML documents or JSON, single
or in Lists; what `kubectl get -o yaml` prints will do. Claims with a status.allocation count as in use; the
others are allocated together, in the order given.";

pub(super) const ALLOCATE_AFTER: &str = "\
Policies:
  binpack     the device with least memory left, then least cores, then by name
  spread      the node with most memory left, and there the device with most
  numa, pcie  devices of one NUMA node or PCIe root together, as far as possible
  whole-gpus  GPUs in use before unused ones
  first-fit   what Kubernetes' own allocator takes, on the first node by name

Output:
  A List of the claims that were allocated, with their status.allocation. When they do not fit: the claims
  as they were, and reasons: [{claim, request, node, pool, device, reason, field, message}]; reason is one of
  Selector, CELError, Capacity, Counter, Taint, Constraint, InUse, NodeMismatch, IncompletePool and UnknownClass.
  The same in words on standard error.

Exit status:
  0 when everything was allocated, 1 when it does not fit, 2 for a mistake in the flags or in FILEs.";

pub(super) const EXPLAIN_LONG: &str = "\
Says why a pod or a claim waits: on every device of every node what stands in the way, who holds the rest, and the
largest fractions of one device that would fit. The answer is that of the allocator itself, which tries the claims
without giving anything. It looks at devices only: what else a node must have is kube-scheduler's to say.

Without -f it asks the cluster of the current context, by kubectl, and changes nothing there.";

pub(super) const EXPLAIN_AFTER: &str = "\
Exit status:
  0 when it has everything or its devices would fit, 1 when they do not, 2 for a mistake in the flags or in FILEs
  and when kubectl fails.";

/// The flags of `vgpu allocate` as typed.
#[derive(Args, Debug)]
pub struct AllocateFlags {
    /// Files with the objects; - is standard input
    #[arg(short, long = "filename", value_name = "FILE", required = true, num_args = 1..)]
    pub files: Vec<PathBuf>,
    /// Only this node [default: the best of all]
    #[arg(long, value_name = "NAME")]
    pub node: Option<String>,
    /// How to choose among what fits [default: binpack]
    #[arg(long, value_name = "NAME")]
    pub policy: Option<String>,
    /// Kubernetes' feature gates, A=true,B=false [default: those of Kubernetes 1.37]
    #[arg(long, value_name = "GATES")]
    pub feature_gates: Vec<String>,
    /// The form of the answer
    #[arg(short, long, value_name = "json|yaml", default_value = "yaml")]
    pub output: ListFormat,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ListFormat {
    Json,
    Yaml,
}

/// The flags of `vgpu explain` as typed.
#[derive(Args, Debug)]
pub struct ExplainFlags {
    /// What waits: pod/NAME, claim/NAME, or NAME of either
    #[arg(value_name = "POD|CLAIM")]
    pub subject: String,
    /// Its namespace
    #[arg(short, long, value_name = "NAME", default_value = "default")]
    pub namespace: String,
    /// Files with the objects, Pods among them; - is standard input [default: the cluster's, by kubectl]
    #[arg(short, long = "filename", value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Only this node [default: all]
    #[arg(long, value_name = "NAME")]
    pub node: Option<String>,
    /// Kubernetes' feature gates, A=true,B=false [default: those of Kubernetes 1.37]
    #[arg(long, value_name = "GATES")]
    pub feature_gates: Vec<String>,
    /// The form of the answer
    #[arg(short, long, value_name = "text|json|yaml", default_value = "text")]
    pub output: AnswerFormat,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum AnswerFormat {
    Text,
    Json,
    Yaml,
}
