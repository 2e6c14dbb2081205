//! Whether shares fit on some node, by memory and time alone. Selectors, other resources of the node and the number of
//! shares of a GPU are left out, so the answer may be yes where kube-scheduler finds no place.

use std::collections::BTreeMap;

use crate::amount::{Amount, CORES};
use crate::gpus::Gpus;

/// What is free, by pool and device.
#[derive(Debug, Clone, Default)]
pub(crate) struct Room {
    pools: BTreeMap<String, BTreeMap<String, Free>>,
}

#[derive(Debug, Clone, Copy)]
struct Free {
    memory: u64,
    cores: u64,
}

impl Room {
    /// All GPUs, free.
    pub(crate) fn new(gpus: &Gpus) -> Self {
        let mut room = Self::default();
        for (pool, device, memory) in gpus.all() {
            let free = Free { memory, cores: CORES };
            room.pools
                .entry(pool.to_owned())
                .or_default()
                .insert(device.to_owned(), free);
        }
        room
    }

    pub(crate) fn take(&mut self, pool: &str, device: &str, share: Amount) {
        let device = self.pools.get_mut(pool).and_then(|pool| pool.get_mut(device));
        if let Some(free) = device {
            free.memory = free.memory.saturating_sub(share.memory);
            free.cores = free.cores.saturating_sub(share.cores);
        }
    }

    /// Returns true if all of these shares fit on the devices of one pool, the largest first.
    pub(crate) fn fits(&self, shares: &[Amount]) -> bool {
        let mut shares = shares.to_vec();
        shares.sort_by_key(|share| std::cmp::Reverse((share.memory, share.cores)));
        self.pools.values().any(|pool| {
            let mut free: Vec<Free> = pool.values().copied().collect();
            shares.iter().all(|share| {
                let fits = |free: &&mut Free| free.memory >= share.memory && free.cores >= share.cores;
                let tightest = free.iter_mut().filter(fits).min_by_key(|free| free.memory);
                tightest.is_some_and(|free| {
                    free.memory -= share.memory;
                    free.cores -= share.cores;
                    true
                })
            })
        })
    }
}
