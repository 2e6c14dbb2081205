//! Reads the records of the claims at the beginning of each turn, and removes at a start what a former instance left.
//!
//! A claim whose record is damaged, or missing while its CDI file exists, is rebuilt from its limits files, which have
//! amounts and GPUs: no prepared share is forgotten and none is allocated twice. If the limits files are damaged too, the
//! claim is left alone, because a pod may use it; kubelet will unprepare it. A claim directory without record and CDI file
//! was never reported to kubelet, or is unprepared, and is removed at a start.

use super::lock::{LockFile, Locked};
use super::prepare::Turn;
use super::{Damages, Error, Living, Node, Scanned, same_results};
use crate::arbitration::{Arbitration, SLOTS, Sharing};
use crate::config::Config;
use crate::dra::checkpoint::{Checkpoint, Entry, Held};
use crate::dra::claim;
use crate::dra::claimdir::ClaimDirs;
use crate::dra::edits;
use crate::dra::library::Library;
use crate::dra::records;
use crate::dra::share::ClaimId;
use crate::driver::{Finder, Root};
use k8s_openapi::api::resource::v1::ResourceClaim;
use std::collections::{BTreeMap, BTreeSet};

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
            not_unprepared: BTreeMap::new(),
            living,
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
        let orphans = self.read_records()?;
        self.remove_orphans(orphans)?;
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

    /// Reads the records of the claims. `locked` proves that no other instance has a turn now.
    pub(super) fn begin_turn(&mut self, _locked: &Locked) -> Result<(), Error> {
        self.read_records().map(drop)
    }

    /// Reads which claims are prepared. Returns the claims whose files may be removed if this instance has just started.
    fn read_records(&mut self) -> Result<Orphans, Error> {
        let mut damages = BTreeSet::new();
        let (mut lost, mut orphans) = (Vec::new(), Orphans::default());
        self.checkpoint = Checkpoint::default();
        for (uid, record) in records::read(&self.dirs)? {
            match record {
                Some(Ok(record)) => {
                    self.checkpoint.gpus.extend(record.gpus);
                    self.checkpoint.claims.insert(uid, record.claim);
                }
                Some(Err(damage)) => {
                    let path = self.dirs.entry_path(&uid);
                    damages.insert(format!("the record of a claim, {}, {damage}", path.display()));
                    lost.push(uid);
                }
                None if self.cdi.file(&uid).is_ok_and(|file| file.exists()) => lost.push(uid),
                None => orphans.uids.push(uid),
            }
        }
        let named = named_slots(&self.dirs, &lost);
        for uid in &lost {
            let outcome = self.rebuild(uid, &named);
            damages.insert(format!("the record of claim {uid} is lost; {outcome}"));
        }
        orphans.left_alone = lost;
        self.prepared_at
            .retain(|uid, _| self.checkpoint.claims.contains_key(uid));
        self.note_gpus();
        self.report(damages);
        Ok(orphans)
    }

    /// Rebuilds the record of a claim from its limits files. Returns the result in words.
    fn rebuild(&mut self, uid: &str, named: &[(String, u8)]) -> String {
        let library = || self.named_library(uid);
        let (entry, missing) = match rebuilt(&self.dirs, uid, &self.checkpoint.claims, named, library) {
            Ok(rebuilt) => rebuilt,
            Err(missing) => return format!("{missing} cannot be recovered: remove its pods"),
        };
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

    /// Logs the damage that was not there when the records were last read, and keeps it for an event.
    fn report(&mut self, damages: BTreeSet<String>) {
        for damage in damages.difference(&self.damages.lasting) {
            tracing::error!("{damage}");
            self.damages.new.push(damage.clone());
        }
        self.damages.lasting = damages;
    }

    fn remove_orphans(&mut self, mut orphans: Orphans) -> Result<(), Error> {
        // CDI files outlive a reboot if they are on a disk.
        orphans.uids.extend(self.cdi.ids()?);
        orphans.uids.sort();
        orphans.uids.dedup();
        let is_known = |uid: &String| self.entry(uid).is_some() || orphans.left_alone.contains(uid);
        orphans.uids.retain(|uid| !is_known(uid));
        for uid in &orphans.uids {
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
        entry.pods = claim::pods(claim);
        // Its CDI file was written without what the API server alone knows.
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

type Claims = BTreeMap<String, Entry>;

/// Claims that are not prepared, according to their files.
#[derive(Default)]
pub(super) struct Orphans {
    uids: Vec<String>,
    /// Their records were lost, so a pod may use them.
    left_alone: Vec<String>,
}

/// The GPUs and slots that limits files of these claims name.
fn named_slots(dirs: &ClaimDirs, uids: &[String]) -> Vec<(String, u8)> {
    let shares = uids.iter().flat_map(|uid| dirs.read_shares(uid).0);
    shares.filter_map(|held| Some((held.share.gpu, held.slot?))).collect()
}

/// Rebuilds an entry from limits files, beside the known ones, and names the shares that are missing in it. `library`
/// returns the release to which a claim is bound.
///
/// # Errors
/// Nothing of it can be recovered: what is missing.
fn rebuilt(
    dirs: &ClaimDirs,
    uid: &str,
    known: &Claims,
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
        pods: Vec::new(),
    };
    for Held { share, slot } in shares {
        // Only damaged files name one slot twice. The containers keep it mounted, so at worst two shares use it.
        let others = known.values().chain([&entry]).flat_map(|entry| &entry.shares);
        let on_gpu = others.filter(|held| held.share.gpu == share.gpu);
        let taken: Vec<u8> = on_gpu.filter_map(|held| held.slot).collect();
        let is_free = |slot: &u8| !taken.contains(slot);
        let is_named = |slot: &u8| named.contains(&(share.gpu.clone(), *slot));
        let any = || (0..SLOTS).rev().find(|slot| is_free(slot) && !is_named(slot));
        let slot = slot.filter(is_free).or_else(any);
        entry.shares.push(Held { share, slot });
    }
    Ok((entry, missing))
}
