//! Shares the node's state between tasks.
//!
//! ```text
//!  change it:  turn ─► order of this process ─► lock file (at most 10 s, no thread waits) ─► a thread of its own
//!  read it:    read ───────────────────────────────────────────────────────────────────────► a thread of its own
//! ```
//!
//! The plugin has one thread for everything that is asynchronous, and neither the lock nor a disk that hangs may stop it:
//! probes are answered meanwhile. A read waits for a turn that works, so a disk that hangs stops what needs the claims:
//! metrics are refused, and `status.devices` stay as they are. Scans of the GPUs go on, and with them health and slices:
//! their results wait here for the next turn ([`Pending`]), and the held GPUs are those after the last turn. A caller that
//! goes away, as when kubelet cancels a call, gives up its place in the order; work that has begun is always completed.
//!
//! A turn that panics leaves the claims in memory as it had changed them. The next turn reads the records.

use super::lock::{LOCKED_WITHIN, LockFile, Locked};
use super::{Error, Node};
use crate::dra::checkpoint::Entry;
use crate::dra::mount_users::MountUsers;
use crate::publish::inventory::{Gpu, Inventory};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};
use vgpu_context_size::ContextSize;

/// The node's state, shared between tasks.
#[derive(Clone)]
pub struct SharedNode {
    node: Arc<Mutex<Node>>,
    lock: LockFile,
    order: Arc<tokio::sync::Mutex<()>>,
    /// How many turns have ended.
    turns: Arc<AtomicU64>,
    /// Counts the turns after which a claim is not prepared any more.
    ended: watch::Sender<u64>,
    /// The GPUs on which claims hold shares, by UUID, after the last turn.
    held: watch::Sender<BTreeMap<String, Gpu>>,
    pending: Arc<Mutex<Pending>>,
}

/// What tasks leave for others, without waiting for a turn.
#[derive(Default)]
struct Pending {
    /// Results of scans that no turn has taken over yet.
    inventory: Option<Result<Inventory, String>>,
    contexts: Option<BTreeMap<String, ContextSize>>,
    /// UIDs of claims that a Prepare without room found to be gone, until `clean_up` takes them.
    suspects: BTreeSet<String>,
}

impl SharedNode {
    #[must_use]
    pub fn new(node: Node) -> Self {
        Self {
            lock: node.lock.clone(),
            held: watch::Sender::new(node.checkpoint.gpus.clone()),
            pending: Arc::default(),
            node: Arc::new(Mutex::new(node)),
            order: Arc::default(),
            turns: Arc::default(),
            ended: watch::Sender::default(),
        }
    }

    /// Changes the node while no other call and no other instance does.
    ///
    /// # Errors
    /// The lock was not free in time, or the work panicked.
    pub async fn turn<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Node, &Locked) -> T + Send + 'static,
    ) -> Result<T, Error> {
        self.turn_then(work, |done| done).await
    }

    /// Does the same, and runs `then` once the lock is free again, even if the caller has gone away by then.
    ///
    /// # Errors
    /// The lock was not free in time, or the work panicked.
    pub async fn turn_then<T, U: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Node, &Locked) -> T + Send + 'static,
        then: impl FnOnce(T) -> U + Send + 'static,
    ) -> Result<U, Error> {
        let deadline = Instant::now() + LOCKED_WITHIN;
        let order = timeout_at(deadline, self.order.clone().lock_owned()).await;
        let order = order.map_err(|_| self.lock.taken())?;
        let locked = self.lock.lock(deadline).await?;
        let node = self.clone();
        let work = tokio::task::spawn_blocking(move || {
            let done = {
                let mut changed = node.lock();
                let before: Vec<String> = changed.checkpoint.claims.keys().cloned().collect();
                let done = work(&mut changed, &locked);
                if before.iter().any(|uid| !changed.checkpoint.claims.contains_key(uid)) {
                    node.wake_waiting();
                }
                node.held.send_if_modified(|known| {
                    let is_new = *known != changed.checkpoint.gpus;
                    if is_new {
                        known.clone_from(&changed.checkpoint.gpus);
                    }
                    is_new
                });
                node.turns.fetch_add(1, Ordering::Release);
                done
            };
            drop(locked);
            drop(order);
            then(done)
        });
        work.await.map_err(|error| Error::Ended(error.to_string()))
    }

    /// Reads the node, or changes only what is in memory.
    ///
    /// # Errors
    /// The work panicked.
    pub async fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Node) -> T + Send + 'static,
    ) -> Result<T, Error> {
        let node = self.clone();
        let work = tokio::task::spawn_blocking(move || work(&mut node.lock()));
        work.await.map_err(|error| Error::Ended(error.to_string()))
    }

    /// Unprepares a claim for which kubelet sends nothing any more, if it is still prepared as `seen` and no container has a
    /// share of it. Returns None otherwise.
    ///
    /// # Errors
    /// The lock was not free in time, or the work panicked.
    pub async fn release_unused<M: MountUsers>(
        &self,
        users: M,
        uid: &str,
        seen: Entry,
    ) -> Result<Option<Result<(), Error>>, Error> {
        let uid = uid.to_owned();
        let release = self.turn(move |node, locked| {
            // Another instance may have prepared it meanwhile.
            let is_same = node.begin_turn(locked).is_ok() && node.entry(&uid) == Some(&seen);
            let is_free = || {
                let living = users.living(&node.share_mounts(&uid));
                living.is_ok_and(|living| living.is_empty())
            };
            (is_same && is_free()).then(|| node.unprepare(locked, &[&uid]).remove(0))
        });
        release.await
    }

    /// Returns how many turns have ended. While the number stays the same, so do the claims in this instance's memory.
    #[must_use]
    pub fn turns(&self) -> u64 {
        self.turns.load(Ordering::Acquire)
    }

    /// Wakes the calls that wait for room: a claim was unprepared, perhaps one that waits.
    pub fn wake_waiting(&self) {
        self.ended.send_modify(|times| *times += 1);
    }

    /// Changes after each turn that found or made a claim unprepared, and after each Unprepare.
    #[must_use]
    pub fn ended(&self) -> watch::Receiver<u64> {
        self.ended.subscribe()
    }

    /// The GPUs on which claims held shares after the last turn, as they were published, by index. Waits for no turn.
    #[must_use]
    pub fn held_gpus(&self) -> Vec<Gpu> {
        let mut gpus: Vec<Gpu> = self.held.borrow().values().cloned().collect();
        gpus.sort_by_key(|gpu| gpu.index);
        gpus
    }

    /// Sets the GPUs for the turns that begin from now on. Waits for none.
    pub fn set_inventory(&self, inventory: Result<Inventory, String>) {
        self.pending().inventory = Some(inventory);
    }

    /// Sets the size of a context on each GPU, for the turns that begin from now on. Waits for none.
    pub fn set_contexts(&self, contexts: BTreeMap<String, ContextSize>) {
        self.pending().contexts = Some(contexts);
    }

    /// Makes `clean_up` read these claims next, which a Prepare without room found to be gone.
    pub fn suspect(&self, uids: impl IntoIterator<Item = String>) {
        self.pending().suspects.extend(uids);
    }

    #[must_use]
    pub fn take_suspects(&self) -> BTreeSet<String> {
        std::mem::take(&mut self.pending().suspects)
    }

    fn pending(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the state of this process. Blocks while a turn works, so only for threads that may wait for a disk.
    pub fn lock(&self) -> MutexGuard<'_, Node> {
        let mut node = self.node.lock().unwrap_or_else(PoisonError::into_inner);
        let (inventory, contexts) = {
            let mut pending = self.pending();
            (pending.inventory.take(), pending.contexts.take())
        };
        if let Some(inventory) = inventory {
            node.set_inventory(inventory);
        }
        if let Some(contexts) = contexts {
            node.set_contexts(contexts);
        }
        node
    }
}
