//! The flags of `vgpu allocate`, `vgpu explain` and `vgpu translate`, which read a cluster's objects and not this
//! machine.

use clap::{Args, ValueEnum};
use std::path::PathBuf;

use super::ClusterFlags;

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
  0 if everything was allocated, 1 if it does not fit, 2 for an error in the flags or in FILEs: the answer is then
  about the documents that can be read.";

pub(super) const EXPLAIN_LONG: &str = "\
Explains why a pod or a claim is Pending: what blocks it on each device of each node, who holds the rest, and the
largest fractions of one device that would fit. Of a pod that runs it says where its GPU is, its limits, what it uses,
and what is wrong. Without NAME it is about all pods that wait: those that wait for the same have one text. Of a workload
it says which of its pods wait for what, and why pods are missing; of a template whether its claims would fit. The answer
comes from the allocator itself, in a dry run. It covers devices only; kube-scheduler checks everything else that a pod
needs of a node.

Without -f it reads the cluster of the current context, and changes nothing there. Rights in the pod's namespace are
enough to see what vgpu-controller and the nodes say of it; for each device they need the right to list nodes,
DeviceClasses, ResourceSlices, and the ResourceClaims of all namespaces.";

pub(super) const EXPLAIN_AFTER: &str = "\
Exit status:
  0 if nothing waits: all its devices are allocated or would fit, 1 if something waits or never fits, or the rights do
  not suffice to know, 2 when the cluster or the object cannot be read, and for an error in the flags or in FILEs: the
  answer is then about the documents that can be read.";

pub(super) const FIT_LONG: &str = "\
Says how many pods of each Pod, Deployment, ReplicaSet, StatefulSet, Job or CronJob in FILEs would have their devices
now, on which nodes, and what the next one lacks. Each is asked about by itself. ResourceClaimTemplates are those of
FILEs, else the cluster's. It looks at devices only, and changes nothing. If FILEs have Nodes, they are the cluster.";

pub(super) const FIT_AFTER: &str = "\
Exit status:
  0 if all pods fit, 1 if not, 2 for an error in the flags or in FILEs, and when the cluster cannot be read: it needs
  the rights that `vgpu explain` names.";

pub(super) const TOP_LONG: &str = "\
Shows what the namespace holds and uses of the GPUs: a line for each share, with the most memory first. -A has a line for
each namespace, --nodes one for each GPU. It reads the VgpuUsage that vgpu-controller writes, and the VgpuNodes of the nodes'
plugins, at most once a minute each; `watch vgpu top` repeats it.";

pub(super) const TOP_AFTER: &str = "\
Columns:
  HELD is what the claim got, USED and PEAK what its processes use and have used at most, CORES the percent of the GPU's
  time that it has reserved, GPU TIME what it used in the last minute, REFUSALS how often it was refused memory. A
  figure that is not known is -. On a narrow terminal columns are left out.

Exit status:
  0, also if nothing is held; 2 for an error in the flags, and when the figures cannot be read.";

pub(super) const ADVISE_LONG: &str = "\
Says for each request of the namespace's claims, or of one workload, which amounts would have been enough: the most memory
that was used and 10 percent, and the GPU time of its busiest minute. Never less than what was used. It looks back only, at
shares that are held now. There is no advice before 10 minutes, nor for a share that was refused memory.";

pub(super) const ADVISE_AFTER: &str = "\
Exit status:
  0, also without an advice; 2 for an error in the flags, and when the figures cannot be read.";

pub(super) const SLICES_LONG: &str = "\
Prints the ResourceSlices that a new node will publish, as templates for an autoscaler that makes nodes for pods with
claims: docs/autoscaling.md says which take them, and how. --like copies those of a node, of the cluster or of FILEs,
without what one machine has alone: names and UUIDs of its GPUs, and taints. --gpu writes them from a table of products,
for a cluster without such a node.";

pub(super) const SLICES_AFTER: &str = "\
Examples:
  vgpu slices --like gpu-node-1
  vgpu slices --gpu H100-80GB:8 --driver 580.95.5 --cuda 13.0.0

Products:
  T4, A10, A10G, A30, A100-40GB, A100-80GB, A100-80GB-PCIe, L4, L40S, H100-80GB, H100-80GB-PCIe, H100-NVL, H200, B200

Exit status:
  0; 2 for an error in the flags or in FILEs, for a node without slices, and when the cluster cannot be read.";

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
  0 if no pod is refused, 1 if one is refused or has a value that cannot be read, 2 for an error in the flags and for
  documents that are no objects. The others are printed.";

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

/// Flags that `vgpu explain` and `vgpu fit` have in common: the cluster to look at, and how to answer.
#[derive(Args, Debug)]
pub struct LookFlags {
    /// Namespace, of objects that name none [default: the context's; default if the files are the cluster]
    #[arg(short, long, value_name = "NAME")]
    pub namespace: Option<String>,
    #[command(flatten)]
    pub cluster: ClusterFlags,
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

/// The flags of `vgpu explain` as typed.
#[derive(Args, Debug)]
pub struct ExplainFlags {
    /// Object to explain: KIND/NAME or KIND NAME, of a pod, claim, template, deployment, statefulset, replicaset, daemonset,
    /// job or cronjob; or NAME of a pod or claim [default: all pods that wait]
    #[arg(value_name = "KIND/NAME", num_args = 0..=2)]
    pub subject: Vec<String>,
    /// All pods that wait, of all namespaces
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    pub all_namespaces: bool,
    /// All lines and names [default: at most 20 lines]
    #[arg(long)]
    pub all: bool,
    /// Files with the objects, including the pods; - is standard input [default: read the cluster]
    #[arg(short, long = "filename", value_name = "FILE")]
    pub files: Vec<PathBuf>,
    #[command(flatten)]
    pub look: LookFlags,
}

/// The flags of `vgpu fit` as typed.
#[derive(Args, Debug)]
pub struct FitFlags {
    /// Files with the workloads and their templates; - is standard input
    #[arg(short, long = "filename", value_name = "FILE", required = true, num_args = 1..)]
    pub files: Vec<PathBuf>,
    #[command(flatten)]
    pub look: LookFlags,
}

/// The flags of `vgpu slices` as typed.
#[derive(Args, Debug)]
pub struct SlicesFlags {
    /// Node whose slices are copied
    #[arg(long, value_name = "NODE", required_unless_present = "gpus", conflicts_with = "gpus")]
    pub like: Option<String>,
    /// GPUs of the node, such as H100-80GB:8; may be given several times
    #[arg(long = "gpu", value_name = "PRODUCT:COUNT")]
    pub gpus: Vec<GpuTemplate>,
    /// With --like: files with the slices; - is standard input [default: read the cluster]
    #[arg(short, long = "filename", value_name = "FILE", requires = "like")]
    pub files: Vec<PathBuf>,
    #[command(flatten)]
    pub cluster: ClusterFlags,
    /// Name of the node in the templates
    #[arg(long, value_name = "NAME", default_value = "template")]
    pub name: String,
    /// With --gpu: the chart's plugin.shares
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=64), conflicts_with = "like")]
    pub shares: u32,
    /// With --gpu: version of NVIDIA's driver, as the attribute driverVersion has it, such as 580.95.5
    #[arg(long, value_name = "VERSION", conflicts_with = "like")]
    pub driver: Option<String>,
    /// With --gpu: newest CUDA version of the driver, as the attribute cudaDriverVersion has it, such as 13.0.0
    #[arg(long, value_name = "VERSION", conflicts_with = "like")]
    pub cuda: Option<String>,
    /// Output format
    #[arg(short, long, value_name = "json|yaml", default_value = "yaml")]
    pub output: ListFormat,
}

/// A product and how many of it a node has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuTemplate {
    pub product: String,
    pub count: u32,
}

impl std::str::FromStr for GpuTemplate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not PRODUCT:COUNT with a count from 1 to 64, such as H100-80GB:8");
        let (product, count) = text.split_once(':').ok_or_else(wrong)?;
        let count = count
            .parse()
            .ok()
            .filter(|count| (1..=64).contains(count))
            .ok_or_else(wrong)?;
        let product = product.to_owned();
        Ok(Self { product, count })
    }
}

/// The flags of `vgpu top` as typed.
#[derive(Args, Debug)]
pub struct TopFlags {
    /// Namespace [default: the context's]
    #[arg(short, long, value_name = "NAME", conflicts_with_all = ["all_namespaces", "nodes"])]
    pub namespace: Option<String>,
    /// A line for each namespace
    #[arg(short = 'A', long, conflicts_with = "nodes")]
    pub all_namespaces: bool,
    /// A line for each GPU of each node
    #[arg(long)]
    pub nodes: bool,
    #[command(flatten)]
    pub cluster: ClusterFlags,
    /// Output format; json and yaml have the objects
    #[arg(short, long, value_name = "text|json|yaml", default_value = "text")]
    pub output: AnswerFormat,
}

/// The flags of `vgpu advise` as typed.
#[derive(Args, Debug)]
pub struct AdviseFlags {
    /// Claim, pod, template, or what the pods belong to: NAME or KIND/NAME, such as deployment/train [default: all]
    #[arg(value_name = "NAME")]
    pub subject: Option<String>,
    /// Namespace [default: the context's]
    #[arg(short, long, value_name = "NAME")]
    pub namespace: Option<String>,
    #[command(flatten)]
    pub cluster: ClusterFlags,
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
