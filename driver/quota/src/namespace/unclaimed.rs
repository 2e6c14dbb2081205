//! Shares that nodes still hold for claims that are gone. Each counts beside the claims, and costs hours.

use std::collections::BTreeMap;

use vgpu_api::Pools;
use vgpu_api::request::MEMORY_MIN;
use vgpu_planner::Time;

use crate::amount::{Amount, CORES};
use crate::budget::Account;
use crate::change::Unclaimed;
use crate::gpus::Gpus;
use crate::view::View;

/// The prefix of the key of such a share: no UID begins with it.
const KEY: &str = "share-";

/// The shares, by their key in the account.
#[derive(Debug, Default)]
pub(super) struct StillHeld(BTreeMap<String, OnNode>);

/// A share on its node.
#[derive(Debug)]
struct OnNode {
    node: String,
    share: Unclaimed,
}

/// The most devices of a node that count.
const MOST_DEVICES: usize = 64;

/// Returns the part of a node's shares that fits on its GPUs: whatever the node reports, it cannot hold more. An
/// unpublished device is assumed to be as large as the largest published one.
pub(crate) fn that_fit(node: &str, shares: Vec<Unclaimed>, gpus: &Gpus) -> Vec<Unclaimed> {
    let pools = Pools::of(node);
    let mut left: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    let fitting = |mut share: Unclaimed| {
        let Some(all) = gpus
            .memory(&pools.of_device(&share.device), &share.device)
            .or(gpus.largest())
        else {
            return Some(share);
        };
        if left.len() >= MOST_DEVICES && !left.contains_key(&share.device) {
            return None;
        }
        let (memory, cores) = left.entry(share.device.clone()).or_insert((all, CORES));
        let taken = share.memory.unwrap_or(all).max(MEMORY_MIN).min(*memory);
        share.memory = Some(taken);
        share.cores = share.cores.min(*cores);
        (*memory, *cores) = (*memory - taken, *cores - share.cores);
        (taken >= MEMORY_MIN).then_some(share)
    };
    shares.into_iter().filter_map(fitting).collect()
}

impl OnNode {
    fn amount(&self, view: &View<'_>) -> Amount {
        let Unclaimed {
            device, memory, cores, ..
        } = &self.share;
        let pools = Pools::of(&self.node);
        view.gpus.share(&pools.of_device(device), device, *memory, *cores)
    }
}

impl StillHeld {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn amounts(&self, view: &View<'_>) -> impl Iterator<Item = (&String, Amount)> {
        self.0.iter().map(move |(key, share)| (key, share.amount(view)))
    }

    /// Sets what the shares cost from now on; `found` as in [`Account::set`].
    pub(super) fn charge(&self, account: &mut Account, view: &View<'_>, found: Option<Option<Time>>) {
        for (key, amount) in self.amounts(view) {
            account.set(key, amount.gpus, found);
        }
    }

    /// Replaces the shares that a node holds. A new share costs from now on.
    pub(super) fn replace(
        &mut self,
        node: &str,
        shares: Vec<Unclaimed>,
        account: Option<&mut Account>,
        view: &View<'_>,
    ) {
        let new: BTreeMap<String, OnNode> = shares
            .into_iter()
            .map(|share| {
                let key = format!("{KEY}{node}/{}/{}/{}", share.uid, share.device, share.share);
                let node = node.to_owned();
                (key, OnNode { node, share })
            })
            .collect();
        let is_gone = |known: &OnNode| known.node == node;
        let gone: Vec<String> = self
            .0
            .iter()
            .filter(|(_, known)| is_gone(known))
            .map(|(key, _)| key.clone())
            .collect();
        self.0.retain(|_, known| !is_gone(known));
        self.0.extend(new);
        if let Some(account) = account {
            account.advance(view.wall);
            let gone = gone.iter().filter(|key| !self.0.contains_key(*key));
            gone.for_each(|key| account.end(key));
            self.charge(account, view, None);
        }
    }
}
