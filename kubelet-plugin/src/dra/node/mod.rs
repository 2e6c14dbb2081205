//! The prepared claims of the node, and what each of them has there. One thread changes them at a time, under the node's lock
//! (`turn`); each turn begins by reading the claims' records, because another instance of the plugin may have changed them.
//!
//! ```text
//!  turn       who may change the node next; calls that wait
//!  prepare    Prepare and Unprepare ─► GPU and slot of each share ─► files of the claim
//!  instances  instances of GPUs in MIG mode that claims make
//!  room       what a refusal for lack of room says
//!  recover    the start, and claims whose record is damaged or lost
//!  renew      CDI files after a change of the driver, and the library
//!  pages      what each share on a GPU is entitled to
//!  ledgers    what the shares use
//!  failures   what pods are told: a failed Unprepare, a container that a hook did not let start
//! ```
//!
//! Synchronous but for `turn`: a caller that goes away cannot stop it half-way. Failure modes:
//! - A crash while preparing or unpreparing: the next start, or kubelet's repeated call, completes it (`prepare`).
//! - `/run` is full: Prepare of a new claim is refused. Unprepare needs no room.
//! - A reboot: no record is left, and no container. kubelet prepares again the claims of pods that start again.
//! - Two instances during a rolling update: each turn holds the lock file, and reads the records.

mod failures;
mod instances;
mod ledgers;
mod maker;
mod pages;
mod prepare;
mod recover;
mod renew;
pub mod room;
#[cfg(test)]
pub(crate) mod tests;
mod turn;

use crate::arbitration::{self, Arbitration};
use crate::config::Config;
use crate::dra::checkpoint::{Checkpoint, Entry};
use crate::dra::claim;
use crate::dra::claimdir::{self, ClaimDirs};
use crate::dra::library::Library;
use crate::dra::metadata;
use crate::dra::mount_users::ShareMount;
use crate::dra::share::{ClaimId, ShareKeys};
use crate::driver::{self, Driver, Finder};
use crate::driver_limit::command::{self, Program};
use crate::publish::inventory::Inventory;
use crate::publish::slice::Sharing;
use failures::Failures;
pub use failures::NotStarted;
pub use ledgers::LedgerReading;
use maker::Maker;
pub use maker::{NoSurvey, Survey, Surveys};
pub use prepare::{NoRoom, Parts};
use room::Full;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
pub(crate) use turn::ReadClaim;
pub use turn::{SharedNode, lock_until};
use vgpu_api::Pools;
use vgpu_context_size::ContextSize;
use vgpu_node::files::Failed;
pub use vgpu_node::lock_file::LockFile;

/// How long to wait for the lock. kubelet aborts a call after 45 s, of which the API server may take 20.
pub const LOCKED_WITHIN: Duration = Duration::from_secs(10);
// Otherwise a turn that waits for the driver makes the next one fail.
const _: () = assert!(maker::TURN_TAKES.as_secs() < LOCKED_WITHIN.as_secs());

/// A prepared device, as it is reported to kubelet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prepared {
    pub request: String,
    pub pool: String,
    pub device: String,
    pub cdi_device: String,
    pub share_id: Option<String>,
}

/// Why a claim cannot be prepared or unprepared.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("uid {0:?} is not a claim's UID")]
    Uid(String),
    #[error("the node's GPUs are not known yet: {0}; kubelet retries")]
    NoInventory(String),
    #[error(transparent)]
    Claim(#[from] claim::Error),
    #[error(transparent)]
    Full(#[from] Box<Full>),
    #[error(
        "the claim was allocated again, and a process of a former pod still has its share {share}; end that process if it \
         does not end by itself; kubelet retries"
    )]
    Used { share: String },
    #[error(
        "the claim was allocated again, and whether a process of a former pod still has its share is not known: {0}; use \
         another claim"
    )]
    UseUnknown(String),
    #[error(
        "its limits files on this node have other shares than its allocation; delete its pods, then it is prepared anew"
    )]
    OtherShares,
    #[error("GPU {0} is not in the driver's list any more; check nvidia-smi on the node")]
    GpuGone(String),
    #[error("device {device} takes no new claims: {why}")]
    Unavailable { device: String, why: String },
    #[error(
        "memoryEnforcement Require: the driver of this node does not limit the memory of containers on device {device}: \
         {why}; select devices whose attribute driverLimit is not none, or use Prefer"
    )]
    NoDriverLimit { device: String, why: String },
    #[error(transparent)]
    Instance(#[from] vgpu_mig::Error),
    #[error(
        "device {0}: its instance was made, and the driver does not say its UUID; look at nvidia-smi -L on the node"
    )]
    NoInstanceUuid(String),
    #[error(transparent)]
    Driver(#[from] driver::Error),
    #[error(transparent)]
    ClaimDir(#[from] claimdir::Error),
    #[error(transparent)]
    Metadata(#[from] metadata::Error),
    #[error(transparent)]
    Arbitration(#[from] arbitration::Error),
    #[error(transparent)]
    Cdi(#[from] vgpu_cdi::store::Error),
    #[error("{0}; kubelet retries")]
    Lock(Failed),
    #[error(
        "lock {} was not free for {} s: another instance of the plugin on this node has it, or an earlier call of this one \
         hangs; if that lasts, check the node's disks and delete the plugin's older pod; kubelet retries",
        .0.display(),
        LOCKED_WITHIN.as_secs()
    )]
    LockTaken(PathBuf),
    #[error(
        "the library is not installed on this node, and no claim can be prepared before it is: {0}; kubelet retries"
    )]
    Library(String),
    #[error("the call ended early, which is a mistake in the plugin: {0}; kubelet retries")]
    Ended(String),
    /// An error of the whole call, shared by all of its claims.
    #[error(transparent)]
    Shared(Arc<Error>),
}

impl Error {
    /// Returns the metric's label for this error.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Uid(_) | Self::Claim(_) | Self::Metadata(_) | Self::OtherShares => "claim",
            Self::Full(_) | Self::Used { .. } | Self::UseUnknown(_) => "full",
            Self::NoInventory(_)
            | Self::GpuGone(_)
            | Self::Unavailable { .. }
            | Self::NoDriverLimit { .. }
            | Self::Instance(_)
            | Self::NoInstanceUuid(_)
            | Self::Driver(_) => "ailing",
            Self::Lock(_) | Self::LockTaken(_) => "lock",
            Self::Library(_) => "library",
            Self::ClaimDir(_) | Self::Arbitration(_) | Self::Cdi(_) => "files",
            Self::Shared(error) => error.kind(),
            Self::Ended(_) => "other",
        }
    }
}

/// The prepared claims of this node.
pub struct Node {
    config: Config,
    driver: Finder,
    dirs: ClaimDirs,
    arbitration: Arbitration,
    cdi: vgpu_cdi::store::Dir,
    library: Library,
    /// Locked during each turn, so that the other instance of a rolling update waits.
    lock: LockFile,
    /// The prepared claims: read from their records at the beginning of each turn, and changed by that turn.
    checkpoint: Checkpoint,
    scanned: Scanned,
    /// None before the first renewal of the claims' files.
    renewal: Option<Renewal>,
    /// Shares that containers have and whose claim is gone; None while that is not known.
    unclaimed: Option<ShareKeys>,
    /// When this instance prepared each claim for the first time.
    prepared_at: BTreeMap<String, Instant>,
    damages: Damages,
    failures: Failures,
    living: Living,
    /// None: claims make no instances.
    maker: Option<Maker>,
}

/// The results of the last scan of the GPUs.
struct Scanned {
    inventory: Result<Inventory, String>,
    /// The size of a context on each GPU, by UUID, as far as it was measured.
    contexts: BTreeMap<String, ContextSize>,
}

/// The last renewal of CDI files by this instance.
struct Renewal {
    /// The driver's files that are in the claims' CDI files since then.
    driver: Driver,
    /// Claims that could not be renewed.
    failed: BTreeSet<String>,
    /// By the UUID of the GPU: whether the driver limited cgroups at that renewal.
    driver_limits: BTreeMap<String, bool>,
    /// By the claim's UID: why its containers may not start.
    refused: BTreeMap<String, String>,
}

/// Descriptions of damaged records.
#[derive(Default)]
struct Damages {
    /// These have no event on the Node yet.
    new: Vec<String>,
    /// Damage that was already reported and still exists.
    lasting: BTreeSet<String>,
}

/// Says which of these shares have a container, or why that is not known.
pub type Living = Box<dyn Fn(&[ShareMount]) -> Result<ShareKeys, String> + Send>;

// === impl Node ===

impl Node {
    pub fn set_inventory(&mut self, inventory: Result<Inventory, String>) {
        self.scanned.inventory = inventory;
        self.note_made();
    }

    pub fn set_contexts(&mut self, contexts: BTreeMap<String, ContextSize>) {
        self.scanned.contexts = contexts;
    }

    #[must_use]
    pub fn claims(&self) -> &Checkpoint {
        &self.checkpoint
    }

    /// The GPUs that are published, if the driver has answered.
    #[must_use]
    pub fn inventory(&self) -> Option<&Inventory> {
        self.scanned.inventory.as_ref().ok()
    }

    /// UUIDs of the GPUs that are published.
    #[must_use]
    pub fn gpus(&self) -> Vec<String> {
        let all = self.scanned.inventory.iter().flat_map(Inventory::by_index);
        all.map(|(_, gpu)| gpu.uuid.clone()).collect()
    }

    /// Names of this node's pools of devices.
    #[must_use]
    pub fn pools(&self) -> Pools {
        self.config.pools()
    }

    /// The name of the Node.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.config.node_name
    }

    /// How claims share this node's devices.
    #[must_use]
    pub fn sharing(&self) -> Sharing {
        self.config.sharing()
    }

    #[must_use]
    pub fn dirs(&self) -> &ClaimDirs {
        &self.dirs
    }

    #[must_use]
    pub fn arbitration(&self) -> &Arbitration {
        &self.arbitration
    }

    /// The file systems of a claim's shares.
    #[must_use]
    pub fn share_mounts(&self, uid: &str) -> Vec<ShareMount> {
        let Some(entry) = self.checkpoint.claims.get(uid) else {
            return Vec::new();
        };
        let mut names: Vec<String> = entry.limited().map(|share| share.name.clone()).collect();
        if entry.name.is_empty() {
            // The entry was rebuilt from limits files, and lacks shares whose limits file is missing.
            names.extend(self.dirs.read_shares(uid).1);
        }
        let mount = |name: String| ShareMount {
            device: self.dirs.share_device(uid, &name),
            key: (uid.to_owned(), name),
        };
        names.into_iter().map(mount).collect()
    }

    /// The file systems of all shares.
    #[must_use]
    pub fn all_mounts(&self) -> Vec<ShareMount> {
        let uids = self.checkpoint.claims.keys();
        uids.flat_map(|uid| self.share_mounts(uid)).collect()
    }

    /// Returns when this instance prepared a claim; None if a former one did.
    #[must_use]
    pub fn prepared_at(&self, uid: &str) -> Option<Instant> {
        self.prepared_at.get(uid).copied()
    }

    /// The entry of a claim that is prepared.
    #[must_use]
    pub fn entry(&self, uid: &str) -> Option<&Entry> {
        self.checkpoint.claims.get(uid)
    }

    /// Shares that containers have and whose claim is gone; None while that is not known.
    #[must_use]
    pub fn unclaimed(&self) -> Option<&ShareKeys> {
        self.unclaimed.as_ref()
    }

    pub fn set_unclaimed(&mut self, unclaimed: Option<ShareKeys>) {
        self.unclaimed = unclaimed;
    }

    /// Digest of the library to which new claims are bound; None if it is not installed.
    #[must_use]
    pub fn library(&self) -> Option<&str> {
        self.library.digest()
    }

    /// vgpu-driver-limit of the release that new claims get, for the driver as it is now.
    ///
    /// # Errors
    /// The library is not installed, or there is no driver.
    pub(crate) fn driver_limit_program(&self, blind: Option<&str>) -> Result<Program, String> {
        let digest = self.library.digest();
        let digest = digest.ok_or("the library is not installed on this node, and vgpu-driver-limit comes with it")?;
        let driver = self.driver.read().map_err(|error| error.to_string())?;
        let program = Program::of_release(&self.library.folder(digest), command::Driver::of(&driver));
        Ok(program.unless_blind(blind))
    }

    /// Claims whose last Unprepare failed, and why.
    #[must_use]
    pub fn not_unprepared(&self) -> Vec<(ClaimId, String)> {
        self.failures.not_unprepared()
    }

    /// Remembers how an Unprepare ended, for the event on the claim's pods.
    pub fn note_unprepare(&mut self, id: &ClaimId, answer: &Result<(), Error>) {
        self.failures.note_unprepare(id, answer);
    }

    /// Takes what hooks said of containers since the last time.
    pub fn take_not_started(&mut self) -> Vec<NotStarted> {
        let uids: Vec<String> = self.checkpoint.claims.keys().cloned().collect();
        for uid in uids {
            self.keep_not_started(&uid);
        }
        self.failures.take_not_started()
    }

    /// Keeps what hooks said of a claim's containers, whose files may be removed then.
    fn keep_not_started(&mut self, uid: &str) {
        // A claim that was rebuilt from limits files has no name and no pods until the API server has named it.
        let Some(entry) = self.checkpoint.claims.get(uid).filter(|entry| !entry.pods.is_empty()) else {
            return;
        };
        let said = self.dirs.take_not_started(uid).into_iter();
        self.failures.keep(said.map(|why| NotStarted {
            claim: entry.id(uid),
            pods: entry.pods.clone(),
            why,
        }));
    }
}

/// Fails every claim of a call with the same error.
pub(crate) fn all_fail<T>(count: usize, error: Error) -> Vec<Result<T, Error>> {
    let error = Arc::new(error);
    (0..count).map(|_| Err(Error::Shared(error.clone()))).collect()
}
