//! How every metric is named and registered.

use prometheus_client::registry::{Metric, Registry};

pub(super) type Labels = [(&'static str, &'static str); 1];

/// Each metric's name without the program's, and what it is: the words of docs/metrics.md.
const HELP: &str = "
pending_pods Unschedulable pods that wait for a claim on our classes
pending_questions Different things that these pods wait for, each of which is explained once
explain_seconds Time spent on explanations
events Events by outcome: said, refused, failed, too many (of decisions: never tried)
watch_errors Errors of watches, which are retried, by resource
usage_writes Writes of VgpuUsages by intent and outcome: set, delete, list; done, again, dropped
queue_pods Pods that wait for claims which this controller allocates
queue_claims Claims that these pods wait for
queue_oldest_seconds Age of the oldest of these pods, 0 without one
free_memory_bytes Memory that is not allocated, by the GPUs that it is on: unused, used
fragmentation_ratio Part of the free memory that is on GPUs in use: 0 all of it on whole free GPUs, 1 no GPU is free
stranded_memory_bytes Free memory on GPUs without cores, or without shares, to go with it
stranded_cores Free cores, in hundredths of a GPU, on GPUs without memory, or without shares, to go with them
leading 1 if this replica leads: it has the lease, or there is no election, and where it allocates it has fenced off its predecessor
plan_seconds Time that one pass of the planner took
write_seconds Time from a decision to what came of its write, by intent: mark, allocate, release, clear
writes Writes to claims by intent and outcome: done, conflict, refused, unknown, dropped
holds_timed_out Holds whose pod was not bound in time
verdicts Decisions that became events, by the event's reason
allocations Claims that were allocated, by the policy that chose the devices
quotas VgpuQuotas by state: in budget (also those without one), spent, refused. Zero where this replica does not lead
quota_reservations Claims that are reserved in all quotas
quota_waiting_pods Pods behind the scheduling gate that do not fit into their quota yet
quota_writes Writes for quotas by intent and outcome: status, read, gate, label, default, evict; done, again, refused, dropped
quota_used_ratio Part of a VgpuQuota's ceiling that is used, by namespace and resource: memory, cores, gpus, shares, computeSlices, gpuHours. Only the leader has it
webhook_reviews Reviews of pods by outcome: translated, unchanged, refused, reported, bad (no review of a pod)
webhook_review_seconds Time that an answer took, without the network
webhook_certificate_expiry_seconds When the certificate that the webhook shows runs out, in seconds since 1970; 0 without one, absent without the webhook";

/// Registers a metric and returns it.
pub(super) fn register<M: Metric + Clone>(registry: &mut Registry, name: &str, metric: M) -> M {
    let mut helps = HELP.lines().filter_map(|line| line.split_once(' '));
    let (_, help) = helps.find(|(of, _)| *of == name).unwrap_or_default();
    registry.register(format!("vgpu_controller_{name}"), help, metric.clone());
    metric
}

pub(super) fn count(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
