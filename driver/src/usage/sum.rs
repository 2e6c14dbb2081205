//! What a namespace holds and uses: the sum of its shares, and the status made from it.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use vgpu_api::usage::{BudgetUse, HeldAndUsed, MOST_CLAIMS, VgpuUsageStatus};
use vgpu_quantity::format_bytes;

use super::share::Share;

/// Figures that only change when shares come and go, wait or are refused memory. Their changes are written soon.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Held {
    shares: u32,
    without_claim: u32,
    use_not_known: u32,
    memory: u64,
    cores: u32,
    refusals: u64,
    pub(crate) waiting: u32,
    /// The budget, and its state.
    budget: Option<(String, String)>,
}

/// The sum over the shares of a namespace. It saturates: a node may report anything.
#[derive(Debug, Default)]
pub(crate) struct Sum {
    pub(crate) held: Held,
    /// `None` while it is known of no share.
    memory_used: Option<u64>,
    gpu_time: Option<u32>,
}

impl Sum {
    pub(crate) fn new(waiting: u32, budget: Option<&BudgetUse>) -> Self {
        let budget = budget.map(|budget| (budget.gpu_hours.clone(), budget.state.clone()));
        Self {
            held: Held {
                waiting,
                budget,
                ..Held::default()
            },
            ..Self::default()
        }
    }

    pub(crate) fn add(&mut self, share: &Share, is_fresh: bool) {
        let held = &mut self.held;
        held.shares = held.shares.saturating_add(1);
        held.without_claim += u32::from(share.is_without_claim);
        held.use_not_known += u32::from(!share.is_use_known(is_fresh));
        held.memory = held.memory.saturating_add(share.memory.unwrap_or(0));
        held.cores = held.cores.saturating_add(share.cores);
        held.refusals = held.refusals.saturating_add(share.refusals.unwrap_or(0));
        if share.is_use_known(is_fresh) {
            let used = [self.memory_used, share.memory_used].into_iter().flatten();
            self.memory_used = used.reduce(u64::saturating_add);
            let used = [self.gpu_time, share.gpu_time].into_iter().flatten();
            self.gpu_time = used.reduce(u32::saturating_add);
        }
    }

    /// Returns true if there is nothing to say of the namespace.
    pub(crate) fn is_empty(&self) -> bool {
        let held = &self.held;
        held.shares == 0 && held.waiting == 0 && held.budget.is_none()
    }

    /// The status without its time. `shares`: all of them, each with its node and whether that has written lately.
    pub(crate) fn status<'a>(
        &self,
        shares: impl Iterator<Item = (&'a Share, &'a str, bool)>,
        budget: Option<BudgetUse>,
    ) -> VgpuUsageStatus {
        let mut listed: Vec<_> = shares.collect();
        let order = |a: &(&Share, &str, bool), b: &(&Share, &str, bool)| (a.0.rank(), a.1).cmp(&(b.0.rank(), b.1));
        if listed.len() > MOST_CLAIMS {
            listed.select_nth_unstable_by(MOST_CLAIMS, order);
            listed.truncate(MOST_CLAIMS);
        }
        listed.sort_by(order);
        let listed = listed.into_iter();
        let claims: Vec<_> = listed
            .map(|(share, node, is_fresh)| share.listed(node, is_fresh))
            .collect();
        let held = &self.held;
        VgpuUsageStatus {
            as_of: String::new(),
            shares: held.shares,
            without_claim: held.without_claim,
            use_not_known: held.use_not_known,
            memory: HeldAndUsed {
                held: format_bytes(held.memory),
                used: self.memory_used.map(format_bytes).unwrap_or_default(),
            },
            cores_held: held.cores,
            gpu_time_percent: self.gpu_time,
            refusals: held.refusals,
            waiting: held.waiting,
            budget,
            not_listed: held
                .shares
                .saturating_sub(u32::try_from(claims.len()).unwrap_or(u32::MAX)),
            claims,
        }
    }
}

/// A hash of the figures of a status without its time: within this process, equal figures have equal hashes.
pub(crate) fn digest(status: &VgpuUsageStatus) -> u64 {
    let timeless = VgpuUsageStatus {
        as_of: String::new(),
        ..status.clone()
    };
    let mut hasher = DefaultHasher::new();
    format!("{timeless:?}").hash(&mut hasher);
    hasher.finish()
}
