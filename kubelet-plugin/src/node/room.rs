//! Checks if a share fits beside the prepared ones on its GPU. Pure.
//!
//! The scheduler has checked already; this counts what is prepared on the node. The two differ after a pod
//! was force-deleted, and if two programs write allocations, which the API server does not prevent.

use crate::arbitration::SLOTS;
use crate::checkpoint::{Checkpoint, Entry, Held};
use crate::inventory::Gpu;
use crate::share::{ClaimId, Share};
use vgpu_api::request::CORES_MAX;
use vgpu_quantity::format_bytes;

/// A GPU that has no room for a share.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "device {device} has no room for {wanted}: {held} of {total} {what} are prepared for {}; \
     kubelet retries, and succeeds once their pods are gone",
    named(.holders)
)]
pub struct Full {
    pub device: String,
    pub what: &'static str,
    pub wanted: String,
    pub held: String,
    pub total: String,
    /// The claims with shares of the GPU. None: only other requests of the same claim.
    pub holders: Vec<ClaimId>,
}

/// Returns a free slot of `gpu` if memory, cores and the number of shares allow `share`, beside those in the
/// checkpoint and those of its own claim, `own`.
///
/// # Errors
/// The capacity that is not sufficient, and the claims that use it.
pub fn slot(checkpoint: &Checkpoint, own: &[Held], gpu: &Gpu, share: &Share, max_shares: u32) -> Result<u8, Box<Full>> {
    let own = own.iter().filter(|held| held.share.gpu == gpu.uuid);
    let on_gpu = || checkpoint.on_gpu(&gpu.uuid).map(|(_, held)| held).chain(own.clone());
    let memory: u64 = on_gpu().map(|held| held.share.memory).sum();
    let cores: u32 = on_gpu().map(|held| held.share.cores).sum();
    let slots: Vec<u8> = on_gpu().filter_map(|held| held.slot).collect();
    let full = |what, wanted, held, total| {
        Err(Box::new(Full {
            device: share.device.clone(),
            what,
            wanted,
            held,
            total,
            holders: holders(checkpoint, &gpu.uuid),
        }))
    };
    if memory.saturating_add(share.memory) > gpu.memory {
        let (wanted, held) = (format_bytes(share.memory), format_bytes(memory));
        return full("memory", wanted, held, format_bytes(gpu.memory));
    }
    if cores.saturating_add(share.cores) > CORES_MAX {
        let (wanted, held) = (format!("{} cores", share.cores), cores.to_string());
        return full("cores", wanted, held, CORES_MAX.to_string());
    }
    let limit = max_shares.min(u32::from(SLOTS));
    let free = (0..SLOTS).find(|slot| !slots.contains(slot));
    match free.filter(|_| slots.len() < limit as usize) {
        Some(slot) => Ok(slot),
        None => full(
            "shares",
            "another share".into(),
            slots.len().to_string(),
            limit.to_string(),
        ),
    }
}

/// The claims with shares of a GPU.
fn holders(checkpoint: &Checkpoint, gpu: &str) -> Vec<ClaimId> {
    let holding = |entry: &Entry| entry.shares.iter().any(|held| held.share.gpu == gpu);
    let all = checkpoint.claims.iter().filter(|(_, entry)| holding(entry));
    all.map(|(uid, entry)| entry.id(uid)).collect()
}

/// Names claims, at most `NAMED` of them.
fn named(holders: &[ClaimId]) -> String {
    const NAMED: usize = 3;
    let all: Vec<String> = holders.iter().map(ToString::to_string).collect();
    match all.len() {
        0 => "other requests of the same claim".into(),
        more if more > NAMED => format!("{} and {} more", all[..NAMED].join(", "), more - NAMED),
        _ => all.join(", "),
    }
}
