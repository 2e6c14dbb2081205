//! Keys of several schedulers, for decisions that kube-scheduler does not make, with what to use instead.

pub(crate) const QUEUE: &str = "the pod is in no queue; use Kueue for quotas of a queue";
pub(crate) const GANG: &str = "the pods of a group are not started together; use a gang of Kueue";
pub(crate) const NODE_POOL: &str = "it chooses no nodes; use spec.nodeSelector or affinity";
pub(crate) const NUMA: &str =
    "the scheduler does not look at NUMA nodes; use kubelet's topology manager, and allocationPolicy numa for GPUs";
pub(crate) const NETWORK: &str =
    "pods are not placed by the topology of the network; use pod affinity, or Kueue's topology-aware scheduling";
