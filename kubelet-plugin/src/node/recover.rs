//! Recovers the state of a former instance at the start of the plugin, and reads it again when another instance had a
//! turn.
//!
//! `records` says which claims are prepared. A claim of which no copy can be read is rebuilt from its limits files, which
//! have amounts and GPUs: no prepared share is forgotten and none is allocated twice. If these are damaged too it is left
//! alone, because a pod may use it; kubelet will unprepare it. A claim directory without a copy was never reported to
//! kubelet and is removed at a start, unless the folder on the disk is gone or cannot be read.

use super::lock::{LockFile, Locked};
use super::turn::{Parts, Turn};
use super::{Error, Living, Node, former, record_error, same_results, stopped};
use crate::arbitration::{Arbitration, SLOTS};
use crate::checkpoint::{Checkpoint, Entry, FormerFile, Held};
use crate::claim;
use crate::claimdir::ClaimDirs;
use crate::config::Config;
use crate::crash_points::CrashPoints;
use crate::driver::{Finder, Root};
use crate::edits;
use crate::library::Library;
use crate::records::{self, Records, Verdict};
use crate::share::{ClaimId, ShareKeys};
use k8s_openapi::api::resource::v1::ResourceClaim;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

// === impl Node ===

impl Node {
    /// Opens the node and recovers what a former instance left. `locked` is the lock of `lock`.
    ///
    /// # Errors
    /// A folder cannot be created, listed or cleaned.
    pub fn open(
        config: Config,
        lock: LockFile,
        locked: &Locked,
        living: Living,
        crash_points: Box<dyn CrashPoints>,
    ) -> Result<Self, Error> {
        let boot = records::boot(&config.boot_id).map_err(|source| Error::Boot {
            path: config.boot_id.clone(),
            source,
        })?;
        let dirs = ClaimDirs::new(config.claims_dir.clone(), config.ledger_tmpfs);
        let library = Library::open(&config.library_dir, &config.library_store);
        let mut node = Self {
            driver: Finder::new(Root {
                here: config.driver_root.clone(),
                host: config.driver_root_host.clone(),
                sys: "/sys".into(),
                soft_gpu_state: config.soft_gpu_state.clone(),
            }),
            records: Records::new(config.records.clone(), dirs.clone(), &config.run_dir, boot),
            former: FormerFile::new(config.checkpoint.clone()),
            former_seen: None,
            dirs,
            arbitration: Arbitration::new(config.gpus_dir.clone(), config.ledger_tmpfs),
            cdi: vgpu_cdi::store::Dir::new(&config.cdi_dir, edits::kind()),
            library,
            lock,
            checkpoint: Checkpoint::default(),
            dormant: BTreeMap::new(),
            is_read: false,
            inventory: Err("the plugin has just started".into()),
            contexts: BTreeMap::new(),
            stale_pages: BTreeSet::new(),
            ignored: ShareKeys::new(),
            unclaimed: None,
            suspects: BTreeSet::new(),
            prepared_at: BTreeMap::new(),
            damages: Vec::new(),
            lasting_damages: BTreeSet::new(),
            ended: 0,
            not_unprepared: BTreeMap::new(),
            renewed_for: None,
            not_renewed: BTreeMap::new(),
            last_parts: Parts::default(),
            living,
            crash_points,
            config,
        };
        node.take_over(locked)?;
        Ok(node)
    }

    /// Takes the descriptions of the files that were found damaged since the last call.
    pub fn take_damages(&mut self) -> Vec<String> {
        std::mem::take(&mut self.damages)
    }

    fn take_over(&mut self, _locked: &Locked) -> Result<(), Error> {
        self.dirs.ensure_root()?;
        self.arbitration.ensure_root()?;
        self.records.is_still_mine();
        let orphans = self.read_state()?;
        self.is_read = true;
        self.remove_orphans(orphans)?;
        let swept = self.cdi.sweep()?;
        if swept > 0 {
            tracing::info!(swept, "removed temporary CDI files of a former instance");
        }
        if let Err(error) = self.renew(&mut Turn::default()) {
            tracing::warn!("CDI files of prepared claims are not renewed yet: {error}");
        }
        self.renew_node_pages()?;
        Ok(())
    }

    /// Reads what is prepared from the claims' files. Returns the claims whose files may be removed if this instance has
    /// just started.
    pub(super) fn read_state(&mut self) -> Result<Orphans, Error> {
        let mut damages = BTreeSet::new();
        let former = self.read_former(&mut damages);
        let mut found = self.records.read()?;
        let ended = former.as_ref().map(|former| {
            let dirs = &self.dirs;
            former::complete(&mut found, former, |uid| dirs.claim_path(uid).exists())
        });
        for uid in ended.unwrap_or_default() {
            tracing::info!(uid, "an older release has unprepared this claim");
            self.records.end(&uid).map_err(record_error)?;
        }
        let has_lost_disk = found.is_first || found.damages.iter().any(|(uid, _, _)| uid.is_empty());
        let (mut claims, mut gpus, mut dormant) = (Claims::new(), BTreeMap::new(), BTreeMap::new());
        let (mut unknown, mut orphans) = (Vec::new(), Orphans::default());
        for (uid, verdict) in found.verdicts {
            match verdict {
                Verdict::Held(record) => {
                    gpus.extend(record.gpus);
                    claims.insert(uid, record.entry);
                }
                Verdict::Dormant(record) => drop(dormant.insert(uid, record.entry)),
                Verdict::Damaged(_) => unknown.push(uid),
                // Its other copy may be the one that is gone.
                Verdict::Orphan if has_lost_disk && former.is_none() => unknown.push(uid),
                Verdict::Orphan | Verdict::Leftover => orphans.uids.push(uid),
            }
        }
        for (uid, path, damage) in &found.damages {
            let other = match claims.contains_key(uid) {
                true => "; the other copy of it is used",
                false => "",
            };
            damages.insert(format!("the state of a claim, {}, {damage}{other}", path.display()));
        }
        let named = named_slots(&self.dirs, &unknown);
        for uid in &unknown {
            let rebuilt = rebuilt(&self.dirs, uid, &claims, &named, |uid| self.named_library(uid));
            let outcome = match rebuilt {
                Ok((entry, missing)) => {
                    claims.insert(uid.clone(), entry);
                    match missing.is_empty() {
                        true => "rebuilt from its limits files".to_owned(),
                        false => format!(
                            "rebuilt from its limits files, without {}: remove its pods",
                            missing.join(", ")
                        ),
                    }
                }
                Err(missing) => format!("{missing} cannot be recovered: remove its pods"),
            };
            damages.insert(format!("no copy of the state of claim {uid} can be read; {outcome}"));
        }
        orphans.left_alone.extend(unknown);
        self.checkpoint = Checkpoint {
            claims,
            gpus,
            boot: None,
        };
        self.dormant = dormant;
        self.note_gpus();
        let saved = self.save_all(former.as_ref());
        if let Err(error) = saved {
            if stopped(&error) {
                return Err(error);
            }
            damages.insert(format!(
                "a copy of the state of a claim is missing and cannot be written: {error}"
            ));
        } else if former.is_some() {
            self.remove_former();
        }
        self.tell(damages);
        Ok(orphans)
    }

    /// The checkpoint of an older release, if there is one that was not read before. A damaged one is moved aside.
    fn read_former(&mut self, damages: &mut BTreeSet<String>) -> Option<Checkpoint> {
        if self.former_seen.is_some() && self.former_seen == self.former.stamp() {
            return None;
        }
        match self.former.load() {
            Ok(former) => former,
            Err(damage) => {
                let path = self.former.path().display().to_string();
                // On a disk that cannot be written it stays.
                let aside = self.former.set_aside().ok();
                self.former_seen = self.former.stamp();
                let aside = aside.map_or_else(String::new, |aside| format!(", kept as {}", aside.display()));
                damages.insert(format!(
                    "checkpoint {path} {damage}{aside}; the claim directories are used"
                ));
                None
            }
        }
    }

    /// Writes the files of every claim, and those of dormant ones that an older release had.
    fn save_all(&mut self, former: Option<&Checkpoint>) -> Result<(), Error> {
        let mut failed = Ok(());
        for (uid, entry) in self.checkpoint.claims.clone() {
            match self.save(&uid, &entry) {
                Err(error) if stopped(&error) => return Err(error),
                Err(error) => failed = Err(error),
                Ok(()) => {}
            }
        }
        let former = former.map(|former| &former.claims);
        for (uid, entry) in &self.dormant {
            if former.is_some_and(|former| former.contains_key(uid)) {
                let saved = self.records.save_dormant(uid, entry);
                failed = failed.and(saved.map_err(record_error));
            }
        }
        std::fs::create_dir_all(&self.config.records)
            .map_err(|error| record_error((self.config.records.clone(), error)))?;
        failed
    }

    fn remove_former(&mut self) {
        if let Err(error) = self.former.remove() {
            tracing::warn!(
                "the checkpoint of an older release, {}, stays: {error}",
                self.former.path().display()
            );
            self.former_seen = self.former.stamp();
        }
    }

    /// Logs and keeps for an event what is damaged now and was not when the files were last read.
    fn tell(&mut self, damages: BTreeSet<String>) {
        for damage in damages.difference(&self.lasting_damages) {
            tracing::error!("{damage}");
            self.damages.push(damage.clone());
        }
        self.lasting_damages = damages;
    }

    fn remove_orphans(&mut self, mut orphans: Orphans) -> Result<(), Error> {
        let found = &mut orphans.uids;
        // CDI files outlive a reboot if they are on a disk, and claims in a kubelet folder that was wiped.
        found.extend(self.cdi.ids()?);
        for uid in self.dormant.keys() {
            if self.dirs.claim_path(uid).exists() {
                self.dirs.remove(uid, self.crash_points.as_mut())?;
            }
            self.cdi.remove(uid)?;
        }
        found.sort();
        found.dedup();
        let is_known = |uid: &String| self.entry(uid).is_some() || orphans.left_alone.contains(uid);
        found.retain(|uid| !is_known(uid));
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
        let mut turn = self.begin_turn(locked)?;
        let nameless = self
            .checkpoint
            .claims
            .get(&id.uid)
            .filter(|entry| entry.name.is_empty());
        let Some(known) = nameless.cloned() else {
            return Ok(false);
        };
        let inventory = self.inventory.as_ref().map_err(|why| Error::NoInventory(why.clone()))?;
        let shares = claim::shares(claim, &self.config.pool(), inventory)?;
        if !same_results(&known.shares, &shares) {
            return Err(Error::OtherShares);
        }
        let mut entry = known.clone();
        entry.name_as(id, &shares);
        entry.pods = claim::pods(claim);
        // Its CDI file was written without what the API server alone knows.
        self.materialize(&id.uid, &mut entry, false, &mut turn)?;
        self.keep(&id.uid, &known, entry)?;
        self.note_gpus();
        self.write_node_pages_or_warn();
        Ok(true)
    }

    /// Returns the release that a claim's CDI spec names, which must stay as long as its pod; else the
    /// current one.
    fn named_library(&self, uid: &str) -> String {
        let spec = self.cdi.read(uid).ok().flatten();
        let mounts = spec.map(|spec| spec.container_edits.mounts).unwrap_or_default();
        let named = mounts
            .iter()
            .find_map(|mount| self.library.release_of(Path::new(&mount.host_path)));
        named.unwrap_or_else(|| self.library.digest().unwrap_or_default().to_owned())
    }
}

type Claims = BTreeMap<String, Entry>;

/// Claims that are not prepared as far as their files say.
#[derive(Default)]
pub(super) struct Orphans {
    uids: Vec<String>,
    /// A pod may use them: no copy of their state can be read.
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
    library: impl Fn(&str) -> String,
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
        library: library(uid),
        shares: Vec::new(),
        pods: Vec::new(),
    };
    for Held { share, slot } in shares {
        // Limits files of version 1 do not say which slots their shares had. Their containers keep them mounted, and at
        // worst two shares use one slot.
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
