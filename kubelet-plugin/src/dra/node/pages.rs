//! The node pages: what each share on a GPU is entitled to, computed from the claims.
//!
//! At the end of each turn, and at a start, every page that differs from the claims is written. Only the pages say which
//! shares break their limit: the instance that observes the shares changes that, and other turns keep it.
//!
//! Failure modes: after a crash between record and page, the next turn or start writes the page. A page that cannot be
//! written fails a Prepare, which kubelet repeats; it does not fail an Unprepare, because that would keep a pod that is
//! gone: the next turn writes it. A page that a crash left half-written does not say which shares break their limit, until
//! they are observed again.

use super::{Error, Node};
use crate::arbitration::SLOTS;
use crate::dra::share::{PlacedShare, Share, ShareKey, ShareKeys};
use std::collections::BTreeSet;
use vgpu_abi::arbitration::{Entry, entry_flags};
use vgpu_abi::checksum::crc32;
use vgpu_abi::entitlement::{Holder, entries};
use vgpu_abi::paths::NODE_PAGE;
use vgpu_node::lock_file::Locked;

// === impl Node ===

impl Node {
    /// The shares that others are to ignore, because they were seen to break their limit.
    #[must_use]
    pub fn ignored(&self) -> ShareKeys {
        let ignored = self.placed().into_iter();
        let ignored = ignored.filter(|placed| placed.entry.flags & entry_flags::IGNORED != 0);
        ignored.map(|placed| placed.key).collect()
    }

    /// Sets which shares others are to ignore.
    ///
    /// # Errors
    /// The records cannot be read, or a page cannot be written.
    pub fn set_ignored(&mut self, locked: &Locked, ignored: &ShareKeys) -> Result<(), Error> {
        self.begin_turn(locked)?;
        self.write_node_pages(Some(ignored))
    }

    /// Every share with a slot, with its entitlement.
    #[must_use]
    pub fn placed(&self) -> Vec<PlacedShare> {
        let mut placed = Vec::new();
        for gpu in self.gpus_with_slots() {
            let page = self.page(&gpu, None);
            let all = self.with_slot(&gpu).into_iter();
            placed.extend(all.filter_map(|(key, slot, share)| {
                Some(PlacedShare {
                    entry: *page.get(usize::from(slot))?,
                    key,
                    gpu: gpu.clone(),
                    cores: share.cores,
                })
            }));
        }
        placed.sort_by(|one, other| one.key.cmp(&other.key));
        placed
    }

    /// Creates what is missing in the existing arbitration directories.
    pub(super) fn complete_arbitration(&self) -> Result<(), Error> {
        for gpu in self.arbitration.gpus()? {
            if let Err(error) = self.arbitration.ensure(&gpu) {
                tracing::warn!(%error, "the shares of GPU {gpu} do not see what each is entitled to, until the next Prepare there");
            }
        }
        Ok(())
    }

    /// Writes the pages that differ from the claims. `ignored`: the shares that others are to ignore; None: the same as
    /// before.
    pub(super) fn write_node_pages(&self, ignored: Option<&ShareKeys>) -> Result<(), Error> {
        let mut failed = Ok(());
        // After a reboot a GPU has no directory until the next Prepare on it.
        for gpu in self.arbitration.gpus()? {
            // An incomplete directory of an unused GPU must not fail claims of other GPUs.
            if self.with_slot(&gpu).is_empty() && !self.arbitration.gpu_path(&gpu).join(NODE_PAGE).exists() {
                continue;
            }
            let page = self.page(&gpu, ignored);
            if self.arbitration.node_page(&gpu) == Some(page) {
                continue;
            }
            if let Err(error) = self.arbitration.write_node_page(&gpu, &page) {
                failed = Err(error.into());
            }
        }
        failed
    }

    pub(super) fn write_node_pages_or_warn(&self) {
        if let Err(error) = self.write_node_pages(None) {
            tracing::warn!(%error, "the other shares of a GPU do not see yet what each is entitled to now; retrying with the next call");
        }
    }

    /// The page that a GPU should have.
    fn page(&self, gpu: &str, ignored: Option<&ShareKeys>) -> [Entry; SLOTS as usize] {
        let before = self.arbitration.node_page(gpu);
        let was_ignored = |slot: u8, generation: u64| {
            let entry = before.as_ref().and_then(|page| page.get(usize::from(slot)));
            entry.is_some_and(|entry| entry.generation == generation && entry.flags & entry_flags::IGNORED != 0)
        };
        let holder = |(key, slot, share): (ShareKey, u8, &Share)| {
            let generation = generation(&key.0, &key.1);
            Holder {
                slot,
                cores: share.cores,
                compute_policy: share.compute_policy,
                priority: share.priority,
                generation,
                ignored: match ignored {
                    Some(ignored) => ignored.contains(&key),
                    None => was_ignored(slot, generation),
                },
            }
        };
        let holders: Vec<Holder> = self.with_slot(gpu).into_iter().map(holder).collect();
        entries(&holders)
    }

    fn gpus_with_slots(&self) -> BTreeSet<String> {
        let shares = self.checkpoint.claims.values().flat_map(|entry| &entry.shares);
        let placed = shares.filter(|prepared| prepared.slot.is_some());
        placed.map(|prepared| prepared.share.gpu.clone()).collect()
    }

    /// The shares of a GPU that have a slot.
    fn with_slot(&self, gpu: &str) -> Vec<(ShareKey, u8, &Share)> {
        let claims = self.checkpoint.claims.iter();
        let all = claims.flat_map(|(uid, entry)| entry.shares.iter().map(move |prepared| (uid, prepared)));
        let on_gpu = all.filter(|(_, prepared)| prepared.share.gpu == gpu);
        let placed = on_gpu.filter_map(|(uid, prepared)| {
            let share = &prepared.share;
            Some(((uid.clone(), share.name.clone()), prepared.slot?, share))
        });
        placed.collect()
    }
}

/// Returns the generation of a share: different for two shares that have the same slot one after the other. Computed from
/// the names, because a time would change when the record is rebuilt.
fn generation(uid: &str, share: &str) -> u64 {
    u64::from(crc32(uid.as_bytes())) << 32 | u64::from(crc32(share.as_bytes()))
}
