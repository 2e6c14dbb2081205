//! The node pages: what each share on a GPU is entitled to, from the checkpoint.
//!
//! ```text
//!  Prepare, Unprepare, start, a share that is to be ignored ─► the GPU's page is stale ─► checkpoint ─► node page
//! ```
//!
//! Failure modes: after a crash between checkpoint and page, the next start writes all pages. A page that cannot be
//! written fails a Prepare, which kubelet repeats; it does not fail an Unprepare, because that would keep a pod that is
//! gone: the page stays stale, and the next call writes it.

use super::lock::Locked;
use super::{Error, Node};
use crate::checkpoint::{Checkpoint, Held};
use crate::share::{PlacedShare, Share, ShareKeys};
use std::collections::BTreeMap;
use vgpu_abi::checksum::crc32;
use vgpu_abi::entitlement::{Holder, entries};

// === impl Node ===

impl Node {
    /// The shares that others are to ignore.
    #[must_use]
    pub fn ignored(&self) -> &ShareKeys {
        &self.ignored
    }

    /// Sets which shares others are to ignore. It lasts until the plugin ends.
    ///
    /// # Errors
    /// A page cannot be written. The next call that has a turn writes it.
    pub fn set_ignored(&mut self, locked: &Locked, ignored: ShareKeys) -> Result<(), Error> {
        let changed: Vec<_> = self.ignored.symmetric_difference(&ignored).cloned().collect();
        self.ignored = ignored;
        for (uid, name) in &changed {
            let shares = self
                .checkpoint
                .claims
                .get(uid)
                .into_iter()
                .flat_map(|entry| &entry.shares);
            let named = shares.filter(|held| held.share.name == *name);
            self.stale_pages.extend(named.map(|held| held.share.gpu.clone()));
        }
        self.begin_turn(locked)?;
        self.write_node_pages()
    }

    /// Every share with a slot, with what it is entitled to.
    #[must_use]
    pub fn placed(&self) -> Vec<PlacedShare> {
        let all = self.checkpoint.claims.iter();
        let all = all.flat_map(|(uid, entry)| entry.shares.iter().map(move |held| (uid, held)));
        let mut pages = BTreeMap::new();
        let placed = all.filter_map(|(uid, held)| {
            let Share { gpu, name, cores, .. } = &held.share;
            let page = pages
                .entry(gpu.as_str())
                .or_insert_with(|| entries(&holders(&self.checkpoint, gpu, &self.ignored)));
            Some(PlacedShare {
                entry: *page.get(usize::from(held.slot?))?,
                key: (uid.clone(), name.clone()),
                gpu: gpu.clone(),
                cores: *cores,
            })
        });
        placed.collect()
    }

    /// Completes the arbitration directories and writes all pages, at the start.
    pub(super) fn renew_node_pages(&mut self) -> Result<(), Error> {
        for gpu in self.arbitration.gpus()? {
            if let Err(error) = self.arbitration.ensure(&gpu) {
                tracing::warn!(%error, "the shares of GPU {gpu} do not see what each is entitled to, until the next Prepare there");
            }
            self.stale_pages.insert(gpu);
        }
        self.write_node_pages_or_warn();
        Ok(())
    }

    /// Writes the pages that are stale, with the lock held.
    pub(super) fn write_node_pages(&mut self) -> Result<(), Error> {
        // What is in memory was not saved: the next call reads the checkpoint again.
        if !self.is_read {
            return Ok(());
        }
        let mut failed = Ok(());
        for gpu in std::mem::take(&mut self.stale_pages) {
            // After a reboot there is no directory until the next Prepare on this GPU.
            if !self.arbitration.gpu_path(&gpu).exists() {
                continue;
            }
            let holders = holders(&self.checkpoint, &gpu, &self.ignored);
            if let Err(error) = self.arbitration.write_node_page(&gpu, &entries(&holders)) {
                failed = Err(error.into());
                self.stale_pages.insert(gpu);
            }
        }
        failed
    }

    pub(super) fn write_node_pages_or_warn(&mut self) {
        if let Err(error) = self.write_node_pages() {
            tracing::warn!(%error, "the other shares of a GPU do not see yet what each is entitled to now; retrying with the next call");
        }
    }
}

/// The shares of a GPU that have a slot.
fn holders(checkpoint: &Checkpoint, gpu: &str, ignored: &ShareKeys) -> Vec<Holder> {
    let all = checkpoint.claims.iter();
    let all = all.flat_map(|(uid, entry)| entry.shares.iter().map(move |held| (uid, held)));
    let on_gpu = all.filter(|(_, held)| held.share.gpu == gpu);
    let holder = |(uid, held): (&String, &Held)| {
        let share = &held.share;
        Some(Holder {
            slot: held.slot?,
            cores: share.cores,
            compute_policy: share.compute_policy,
            priority: share.priority,
            generation: generation(uid, &share.name),
            ignored: ignored.contains(&(uid.clone(), share.name.clone())),
        })
    };
    on_gpu.filter_map(holder).collect()
}

/// Two shares that have a slot one after the other differ in it, and it stays as long as the share, also when the
/// checkpoint is rebuilt. That is why it is no time.
fn generation(uid: &str, share: &str) -> u64 {
    u64::from(crc32(uid.as_bytes())) << 32 | u64::from(crc32(share.as_bytes()))
}
