//! Rebuilds lost records, and removes at a start what a former instance left.
//!
//! A claim whose record is damaged, or missing while its CDI file exists, is rebuilt from its limits files, which have
//! amounts and GPUs: no prepared share is forgotten and none is allocated twice. Whether the claim requires the driver's limit
//! is read off its CDI file. If that cannot be read either, the claim is treated as one that does, until the API server has
//! named it, or the driver has refused to limit cgroups on all of its GPUs: nobody could have prepared such a claim there. If the
//! limits files are damaged too, the claim is left alone, because a pod may use it; kubelet will unprepare it. A claim directory without record and CDI file
//! was never reported to kubelet, or is unprepared, and is removed at a start.

use super::failures::Failures;
use super::prepare::{Turn, WithoutRecord, same_results};
use super::{Damages, Error, Living, Node, Scanned};
use crate::arbitration::{Arbitration, SLOTS, Sharing};
use crate::config::Config;
use crate::dra::checkpoint::{Checkpoint, Entry, PreparedShare};
use crate::dra::claim;
use crate::dra::claimdir::ClaimDirs;
use crate::dra::edits;
use crate::dra::library::Library;
use crate::dra::limit_hook;
use crate::dra::share::{ClaimId, Share};
use crate::driver::{Finder, Root};
use k8s_openapi::api::resource::v1::ResourceClaim;
use std::collections::{BTreeMap, BTreeSet};
use vgpu_api::config::MemoryEnforcement;
use vgpu_node::driver_limit::DriverLimit;
use vgpu_node::lock_file::{LockFile, Locked};
use vgpu_node::sealed::Damage;

// === impl Node ===

impl Node {
    /// Opens the node and recovers what a former instance left. `locked` is the lock of `lock`.
    ///
    /// # Errors
    /// A folder cannot be created, listed or cleaned.
    pub fn open(config: Config, lock: LockFile, locked: &Locked, living: Living) -> Result<Self, Error> {
        let sharing = Sharing::Containers {
            tmpfs: config.ledger_tmpfs,
        };
        let mut node = Self {
            driver: Finder::new(Root {
                here: config.driver_root.clone(),
                host: config.driver_root_host.clone(),
                sys: config.sys.clone(),
                proc: "/proc".into(),
                soft_gpu_state: config.soft_gpu_state.clone(),
            }),
            dirs: ClaimDirs::new(config.claims_dir.clone(), config.ledger_tmpfs),
            arbitration: Arbitration::new(config.gpus_dir.clone(), sharing),
            cdi: vgpu_cdi::store::Dir::new(&config.cdi_dir, edits::kind()),
            library: Library::open(&config.library_dir, &config.library_store),
            lock,
            checkpoint: Checkpoint::default(),
            scanned: Scanned {
                inventory: Err("the plugin has just started".into()),
                contexts: BTreeMap::new(),
            },
            renewal: None,
            unclaimed: None,
            prepared_at: BTreeMap::new(),
            damages: Damages::default(),
            failures: Failures::default(),
            living,
            maker: None,
            config,
        };
        node.take_over(locked)?;
        Ok(node)
    }

    /// Takes the descriptions of the records that were found damaged since the last call.
    pub fn take_damages(&mut self) -> Vec<String> {
        std::mem::take(&mut self.damages.new)
    }

    fn take_over(&mut self, _locked: &Locked) -> Result<(), Error> {
        self.dirs.ensure_root()?;
        self.arbitration.ensure_root()?;
        let without_record = self.read_records()?;
        self.remove_orphans(without_record)?;
        let swept = self.cdi.sweep()?;
        if swept > 0 {
            tracing::info!(swept, "removed temporary CDI files of a former instance");
        }
        for (uid, error) in self.renew() {
            tracing::warn!(uid, "a container of this claim may not start again: {error}");
        }
        self.complete_arbitration()?;
        self.write_node_pages_or_warn();
        Ok(())
    }

    /// Rebuilds the records of these claims, and reports the damage.
    pub(super) fn rebuild_lost(&mut self, lost: &BTreeMap<String, Option<Damage>>) {
        let mut damages = BTreeSet::new();
        let named = named_slots(&self.dirs, lost.keys());
        for (uid, damage) in lost {
            if let Some(damage) = damage {
                let path = self.dirs.record_path(uid);
                damages.insert(format!("the record of a claim, {}, {damage}", path.display()));
            }
            let outcome = self.rebuild(uid, &named);
            damages.insert(format!("the record of claim {uid} is lost; {outcome}"));
        }
        self.report(damages);
    }

    /// Rebuilds the record of a claim from its limits files. Returns the result in words.
    fn rebuild(&mut self, uid: &str, named: &[(String, u8)]) -> String {
        let library = || self.named_library(uid);
        let (mut entry, missing) = match rebuilt(&self.dirs, uid, &self.checkpoint.claims, named, library) {
            Ok(rebuilt) => rebuilt,
            Err(missing) => return format!("{missing} cannot be recovered: remove its pods"),
        };
        // A limits file does not say it.
        let hooks = self.cdi.hook_arguments(uid);
        entry.may_require_limit = hooks.is_none();
        if hooks.is_none_or(|hooks| limit_hook::is_required(&hooks)) {
            for prepared in &mut entry.shares {
                prepared.share.memory_enforcement = MemoryEnforcement::Require;
            }
        }
        self.settle_by_gpus(&mut entry);
        let saved = self.save(uid, None, &entry);
        self.checkpoint.claims.insert(uid.to_owned(), entry);
        match (saved, missing.as_slice()) {
            // The next turn rebuilds it again.
            (Err(error), _) => format!("rebuilt from its limits files, and not written: {error}"),
            (Ok(()), []) => "rebuilt from its limits files".to_owned(),
            (Ok(()), missing) => format!(
                "rebuilt from its limits files, without {}: remove its pods",
                missing.join(", ")
            ),
        }
    }

    /// If nothing on the node says whether a claim requires the driver's limit, and the driver has refused to limit cgroups on all
    /// of its GPUs, notes that the claim does not require it. Returns true if that changed the entry.
    pub(super) fn settle_by_gpus(&self, entry: &mut Entry) -> bool {
        // Of this instance's scans: a record of another claim may have an older answer.
        let gpu = |share: &Share| self.inventory()?.gpu(&share.gpu);
        let has_none =
            |share: &Share| matches!(gpu(share), Some(gpu) if matches!(gpu.driver_limit, Some(DriverLimit::None(_))));
        if !(entry.may_require_limit && entry.all().all(has_none)) {
            return false;
        }
        entry.may_require_limit = false;
        for prepared in &mut entry.shares {
            prepared.share.memory_enforcement = MemoryEnforcement::Prefer;
        }
        true
    }

    /// Logs the damage that was not there when the records were last read, and keeps it for an event.
    fn report(&mut self, damages: BTreeSet<String>) {
        for damage in damages.difference(&self.damages.lasting) {
            tracing::error!("{damage}");
            self.damages.new.push(damage.clone());
        }
        self.damages.lasting = damages;
    }

    fn remove_orphans(&mut self, WithoutRecord { lost, orphans }: WithoutRecord) -> Result<(), Error> {
        // CDI files outlive a reboot if they are on a disk.
        let mut uids: BTreeSet<String> = orphans.into_iter().chain(self.cdi.ids()?).collect();
        uids.retain(|uid| self.entry(uid).is_none() && !lost.contains_key(uid));
        for uid in &uids {
            tracing::info!(uid, "removing what a crash left of a claim that was not prepared");
            self.remove_files(uid)?;
        }
        Ok(())
    }

    /// Gives a claim that was rebuilt from limits files what only the API server knows: its name, its pods, and the requests
    /// and devices of its shares. Returns false if it is not prepared, or has its name.
    ///
    /// # Errors
    /// The claim has other shares now, which kubelet's next Prepare will see; or its files cannot be written.
    pub fn name_claim(&mut self, locked: &Locked, id: &ClaimId, claim: &ResourceClaim) -> Result<bool, Error> {
        self.begin_turn(locked)?;
        let nameless = self
            .checkpoint
            .claims
            .get(&id.uid)
            .filter(|entry| entry.name.is_empty());
        let Some(known) = nameless.cloned() else {
            return Ok(false);
        };
        let inventory = self.scanned.inventory.as_ref();
        let inventory = inventory.map_err(|why| Error::NoInventory(why.clone()))?;
        let shares = claim::shares(claim, &self.config.pools(), inventory)?;
        if !same_results(&known.shares, &shares) {
            return Err(Error::OtherShares);
        }
        let mut entry = known.clone();
        entry.name_as(id, &shares);
        entry.named_by = Some(claim::named_by(claim));
        entry.pods = claim::pods(claim);
        // Its CDI file was written without the facts that only the API server knows.
        self.materialize(&id.uid, Some(&known), &mut entry, &mut Turn::start())?;
        self.checkpoint.claims.insert(id.uid.clone(), entry);
        self.note_gpus();
        self.write_node_pages_or_warn();
        Ok(true)
    }

    /// Returns the release that a claim's CDI spec names, which must stay as long as its pod; else the
    /// current one.
    fn named_library(&self, uid: &str) -> String {
        let mounted = self.cdi.mounted(uid);
        let named = mounted.iter().find_map(|file| self.library.release_of(file));
        named.unwrap_or_else(|| self.library.digest().unwrap_or_default().to_owned())
    }
}

/// The GPUs and slots that limits files of these claims name.
fn named_slots<'a>(dirs: &ClaimDirs, uids: impl Iterator<Item = &'a String>) -> Vec<(String, u8)> {
    let shares = uids.flat_map(|uid| dirs.read_shares(uid).0);
    shares
        .filter_map(|prepared| Some((prepared.share.gpu, prepared.slot?)))
        .collect()
}

/// Rebuilds an entry from limits files, beside the known ones, and names the shares that are missing in it. `library`
/// returns the release to which a claim is bound.
///
/// # Errors
/// Nothing of it can be recovered: what is missing.
fn rebuilt(
    dirs: &ClaimDirs,
    uid: &str,
    known: &BTreeMap<String, Entry>,
    named: &[(String, u8)],
    library: impl Fn() -> String,
) -> Result<(Entry, Vec<String>), String> {
    let (shares, missing) = dirs.read_shares(uid);
    if shares.is_empty() {
        return Err(if missing.is_empty() {
            uid.to_owned()
        } else {
            missing.join(", ")
        });
    }
    let mut entry = Entry {
        namespace: String::new(),
        name: String::new(),
        library: library(),
        shares: Vec::new(),
        named_by: None,
        pods: Vec::new(),
        may_require_limit: false,
    };
    for PreparedShare { share, slot } in shares {
        // Only damaged files name one slot twice. The containers keep it mounted, so at worst two shares use it.
        let others = known.values().chain([&entry]).flat_map(|entry| &entry.shares);
        let on_gpu = others.filter(|other| other.share.gpu == share.gpu);
        let taken: Vec<u8> = on_gpu.filter_map(|other| other.slot).collect();
        let is_free = |slot: &u8| !taken.contains(slot);
        let is_named = |slot: &u8| named.contains(&(share.gpu.clone(), *slot));
        let any = || (0..SLOTS).rev().find(|slot| is_free(slot) && !is_named(slot));
        let slot = slot.filter(is_free).or_else(any);
        entry.shares.push(PreparedShare { share, slot });
    }
    Ok((entry, missing))
}
