//! A VgpuNode in the form that sums need. There may be 56,000 shares, so each stores numbers instead of texts.

use std::sync::Arc;
use std::time::Duration;

use vgpu_api::usage::{ClaimUse, NodeShare, ShareUse, VgpuNodeStatus};
use vgpu_planner::Time;
use vgpu_quantity::{format_bytes, read_bytes};

use crate::flags::is_name;

/// If a node's plugin has not written for longer, the use of its shares is not known.
const FRESH: Duration = Duration::from_secs(300);
/// The most shares that are read of one node: a correct node has fewer.
pub(super) const MOST_SHARES: usize = 2048;

/// A share. Figures that cannot be read are `None`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Share {
    pub(crate) namespace: Arc<str>,
    claim: Box<str>,
    device: Arc<str>,
    pub(crate) is_without_claim: bool,
    pub(crate) memory: Option<u64>,
    pub(crate) memory_used: Option<u64>,
    memory_peak: Option<u64>,
    memory_mean: Option<u64>,
    pub(crate) cores: u32,
    pub(crate) gpu_time: Option<u32>,
    gpu_time_peak: Option<u32>,
    gpu_time_mean: Option<u32>,
    processes: Option<u32>,
    pub(crate) refusals: Option<u64>,
    since: Option<Time>,
}

/// The shares of a node, by namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Node {
    pub(crate) as_of: Option<Time>,
    pub(crate) shares: Box<[Share]>,
}

impl Node {
    /// Reads the shares of a VgpuNode. A share whose namespace is not a valid name is left out: nobody could read about
    /// it, and the name becomes part of a path.
    pub(crate) fn read(status: &VgpuNodeStatus) -> Self {
        let (mut namespaces, mut devices) = (Names::default(), Names::default());
        let named = status.shares.iter().filter(|share| is_namespace(&share.namespace));
        let shares = named.take(MOST_SHARES);
        let mut shares: Vec<Share> = shares
            .map(|share| Share::read(share, namespaces.of(&share.namespace), devices.of(&share.device)))
            .collect();
        shares.sort_by(|a, b| (&a.namespace, &a.claim, &a.device).cmp(&(&b.namespace, &b.claim, &b.device)));
        Self {
            as_of: Time::parse(&status.as_of),
            shares: shares.into_boxed_slice(),
        }
    }

    /// Returns false if its plugin has not written for five minutes.
    pub(crate) fn is_fresh(&self, now: Time) -> bool {
        self.as_of.is_some_and(|as_of| now.since(as_of) <= FRESH)
    }

    pub(crate) fn shares_of(&self, namespace: &str) -> &[Share] {
        let begin = self.shares.partition_point(|share| *share.namespace < *namespace);
        let rest = &self.shares[begin..];
        &rest[..rest.partition_point(|share| *share.namespace == *namespace)]
    }

    pub(crate) fn namespaces(&self) -> impl Iterator<Item = &Arc<str>> {
        self.shares
            .chunk_by(|a, b| a.namespace == b.namespace)
            .filter_map(|of_one| Some(&of_one.first()?.namespace))
    }
}

impl Share {
    fn read(share: &NodeShare, namespace: Arc<str>, device: Arc<str>) -> Self {
        let usage = &share.usage;
        Self {
            namespace,
            claim: name(&share.claim).into(),
            device,
            is_without_claim: share.without_claim,
            memory: read_bytes(&usage.memory),
            memory_used: read_bytes(&usage.memory_used),
            memory_peak: read_bytes(&usage.memory_peak),
            memory_mean: read_bytes(&usage.memory_mean),
            cores: usage.cores,
            gpu_time: usage.gpu_time_percent,
            gpu_time_peak: usage.gpu_time_peak_percent,
            gpu_time_mean: usage.gpu_time_mean_percent,
            processes: usage.processes,
            refusals: usage.refusals,
            since: Time::parse(&usage.since),
        }
    }

    pub(crate) fn is_use_known(&self, is_fresh: bool) -> bool {
        is_fresh && self.memory.is_some() && self.memory_used.is_some()
    }

    /// The largest first; equal ones by name.
    pub(crate) fn rank(&self) -> impl Ord + use<'_> {
        (std::cmp::Reverse(self.memory), &self.claim, &self.device)
    }

    /// The share as a VgpuUsage lists it.
    pub(crate) fn listed(&self, node: &str, is_fresh: bool) -> ClaimUse {
        let text = |bytes: Option<u64>| bytes.map(format_bytes).unwrap_or_default();
        ClaimUse {
            claim: self.claim.to_string(),
            node: node.to_owned(),
            device: self.device.to_string(),
            without_claim: self.is_without_claim,
            use_not_known: !self.is_use_known(is_fresh),
            usage: ShareUse {
                memory: text(self.memory),
                memory_used: text(self.memory_used.filter(|_| is_fresh)),
                memory_peak: text(self.memory_peak),
                memory_mean: text(self.memory_mean),
                cores: self.cores,
                gpu_time_percent: self.gpu_time.filter(|_| is_fresh),
                gpu_time_peak_percent: self.gpu_time_peak,
                gpu_time_mean_percent: self.gpu_time_mean,
                processes: self.processes.filter(|_| is_fresh),
                refusals: self.refusals,
                since: self.since.map(|since| since.to_string()).unwrap_or_default(),
            },
        }
    }
}

/// The name, or an empty text if it is not a valid name.
fn name(text: &str) -> &str {
    if is_name(text, 253) { text } else { "" }
}

fn is_namespace(text: &str) -> bool {
    is_name(text, 63) && !text.contains('.')
}

/// Names of one node, each kept once.
#[derive(Default)]
struct Names(std::collections::BTreeSet<Arc<str>>);

impl Names {
    fn of(&mut self, name: &str) -> Arc<str> {
        let name = self::name(name);
        if let Some(known) = self.0.get(name) {
            return known.clone();
        }
        let name: Arc<str> = name.into();
        self.0.insert(name.clone());
        name
    }
}
