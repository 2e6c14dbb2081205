//! The flags of `vgpu allocate`, `vgpu explain` and `vgpu translate`, which read a cluster's objects and not this
//! machine.

use clap::{Args, ValueEnum};
use std::path::PathBuf;

pub(super) const ALLOCATE_LONG: &str = "\
Shows where the ResourceClaims in FILEs would be placed: allocates them to one node, as vgpu-controller would,
without a cluster. FILEs hold Node, DeviceClass, ResourceSlice, DeviceTaintRule and ResourceClaim objects, as YAML
documents or JSON, single or in Lists, such as `kubectl get -o yaml` prints. Claims with a status.allocation count
as in use. The others are allocated together, in the order given.";

pub(super) const ALLOCATE_AFTER: &str = "\
Policies:
  binpack     the device with least memory left, then least cores, then by name
  spread      the node with most memory left, and there the device with most
  numa, pcie  devices of one NUMA node or PCIe root together, as far as possible
  whole-gpus  GPUs in use before unused ones
  first-fit   the choice of Kubernetes' own allocator, on the first node by name

Output:
  A List of the claims that were allocated, with their status.allocation. If they do not fit: the unchanged
  claims, and reasons: [{claim, request, node, pool, device, reason, field, message}]. A reason is one of
  Selector, CELError, Capacity, Counter, Taint, Constraint, InUse, NodeMismatch, IncompletePool and UnknownClass.
  Standard error has the reasons as sentences.

Exit status:
  0 if everything was allocated, 1 if it does not fit, 2 for an error in the flags or in FILEs.";

pub(super) const EXPLAIN_LONG: &str = "\
Explains why a pod or a claim is Pending: what blocks it on each device of each node, who holds the rest, and the
largest fractions of one device that would fit. The answer comes from the allocator itself, in a dry run. It covers
devices only; kube-scheduler checks everything else that a pod needs of a node.

Without -f it reads the cluster of the current context by kubectl, and changes nothing there.";

pub(super) const EXPLAIN_AFTER: &str = "\
Exit status:
  0 if all its devices are allocated or would fit, 1 if they do not fit, 2 for an error in the flags or in FILEs,
  and when kubectl fails.";

pub(super) const TRANSLATE_LONG: &str = "\
Prints pods that were written for HAMi, Koordinator, Volcano, gpu-manager or KAI as pods with ResourceClaims, the
way the cluster translates them when they are created, and the ResourceClaimTemplates that they need. FILEs hold
Pods, Deployments, ReplicaSets, StatefulSets, DaemonSets, Jobs and CronJobs, as YAML documents or JSON, single or in
Lists. Objects without such a pod are printed as they are.";

pub(super) const TRANSLATE_AFTER: &str = "\
Output:
  The templates, and the objects in the order given. Standard error says what is lost or changed, line by line:
  for example queues, and ResourceQuotas that count 0 for translated pods. A refused object is left out.
  Percent and fractions of a GPU's memory become bytes by the GPUs in FILEs: add the output of
  `kubectl get resourceslices -o yaml`. Without them their templates are left out.

Exit status:
  0 if no pod is refused, 1 if one is, 2 for an error in the flags or in FILEs.";

/// The flags of `vgpu allocate` as typed.
#[derive(Args, Debug)]
pub struct AllocateFlags {
    /// Files with the objects; - is standard input
    #[arg(short, long = "filename", value_name = "FILE", required = true, num_args = 1..)]
    pub files: Vec<PathBuf>,
    /// Look at this node only [default: the best of all]
    #[arg(long, value_name = "NAME")]
    pub node: Option<String>,
    /// Policy that chooses among the devices that fit [default: binpack]
    #[arg(long, value_name = "NAME")]
    pub policy: Option<String>,
    /// Kubernetes' feature gates, A=true,B=false [default: those of Kubernetes 1.37]
    #[arg(long, value_name = "GATES")]
    pub feature_gates: Vec<String>,
    /// Output format
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
    /// Pod or claim to explain: pod/NAME, claim/NAME, or NAME of either
    #[arg(value_name = "POD|CLAIM")]
    pub subject: String,
    /// Namespace of the pod or claim
    #[arg(short, long, value_name = "NAME", default_value = "default")]
    pub namespace: String,
    /// Files with the objects, including the pods; - is standard input [default: read the cluster by kubectl]
    #[arg(short, long = "filename", value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Look at this node only [default: all]
    #[arg(long, value_name = "NAME")]
    pub node: Option<String>,
    /// Kubernetes' feature gates, A=true,B=false [default: those of Kubernetes 1.37]
    #[arg(long, value_name = "GATES")]
    pub feature_gates: Vec<String>,
    /// Output format
    #[arg(short, long, value_name = "text|json|yaml", default_value = "text")]
    pub output: AnswerFormat,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum AnswerFormat {
    Text,
    Json,
    Yaml,
}

/// The flags of `vgpu translate` as typed.
#[derive(Args, Debug)]
pub struct TranslateFlags {
    /// Files with the objects; - is standard input
    #[arg(short, long = "filename", value_name = "FILE", required = true, num_args = 1..)]
    pub files: Vec<PathBuf>,
    /// Dialects to read: hami, koordinator, volcano, volcano-vgpu, gpu-manager, kai [default: all]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub dialects: Vec<String>,
    /// Schedulers whose pods kube-scheduler gets instead
    #[arg(
        long,
        value_name = "NAMES",
        value_delimiter = ',',
        default_value = "hami-scheduler,koord-scheduler,volcano,kai-scheduler"
    )]
    pub schedulers: Vec<String>,
    /// DeviceClass that grants priority High, for HAMi's nvidia.com/priority: 0 [default: none]
    #[arg(long, value_name = "NAME")]
    pub high_priority_class: Option<String>,
    /// Take tencent.com/vcuda-core for a limit in every pod, as GPUSharing does
    #[arg(long)]
    pub limit_vcuda_cores: bool,
    /// Resource names that the cluster chose instead of a system's own, separated by commas:
    /// nvidia.com/vgpu=nvidia.com/gpu
    #[arg(long, value_name = "NAMES", default_value = "", hide_default_value = true)]
    pub resource_names: String,
    /// Output format
    #[arg(short, long, value_name = "json|yaml", default_value = "yaml")]
    pub output: ListFormat,
}
