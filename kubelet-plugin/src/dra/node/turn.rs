//! Turns: one call of this process at a time changes the node's state, and no other instance does meanwhile.
//!
//! ```text
//!  Prepare, Unprepare ─► a queue each ─┐
//!  change it: turn ────────────────────┴─► order of this process ─► lock file (at most 10 s, no thread waits) ─┐
//!  read it:   read ────────────────────────────────────────────────────────────────────────────────────────────┴─► a thread
//! ```
//!
//! The plugin has one thread for everything that is asynchronous, and neither the lock nor a disk that hangs may stop it:
//! probes are answered meanwhile. A read waits for a turn that works, so a disk that hangs stops what needs the claims:
//! metrics are refused, and `status.devices` stay as they are. Scans of the GPUs go on, and with them health and slices:
//! their results wait here for the next turn ([`Pending`]), and the GPUs in use are those after the last turn. A caller that
//! goes away, as when kubelet cancels a call, gives up its place in the order; work that has begun is always completed.
//!
//! kubelet sends a Prepare and an Unprepare for each pod, up to a hundred at once. One turn serves all Prepares that wait, or
//! all Unprepares, which pays the fixed cost of a turn (the lock file, the records, the driver's files, the arbitration
//! directories, the node pages) once.
//!
//! Failure modes:
//! - An instance that hangs with the lock, for example on a broken disk: the others give up after [`LOCKED_WITHIN`], and
//!   kubelet repeats its call. A call that a turn has taken just then gets the turn's answer.
//! - kubelet cancels a call that waits: the turn leaves it out.
//! - A claim is unprepared before its Prepare's turn begins: it is refused, because nobody would unprepare it later.
//! - A turn panics: every call that it took is refused. The claims in memory stay as it had changed them, and the next turn
//!   reads the records.

use super::prepare::Parts;
use super::{Error, LOCKED_WITHIN, Node, Prepared};
use crate::dra::checkpoint::Entry;
use crate::dra::checkpoint::InUse;
use crate::dra::mount_users::MountUsers;
use crate::dra::share::ClaimId;
use crate::publish::inventory::Inventory;
use k8s_openapi::api::resource::v1::ResourceClaim;
use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, timeout_at};
use vgpu_context_size::ContextSize;
use vgpu_node::lock_file::{LockFile, Locked};

/// Another instance has the lock for some milliseconds.
const TRIED_EVERY: Duration = Duration::from_millis(2);

/// The node's state, shared between tasks.
#[derive(Clone)]
pub struct SharedNode {
    node: Arc<Mutex<Node>>,
    lock: LockFile,
    order: Arc<tokio::sync::Mutex<()>>,
    preparing: Queue<Prepares, Done>,
    unpreparing: Queue<Unprepares, Vec<Result<(), Error>>>,
    /// How many turns have ended.
    turns: Arc<AtomicU64>,
    /// Counts the turns after which a claim is not prepared any more.
    ended: watch::Sender<u64>,
    /// The GPUs that claims have, after the last turn.
    gpus_in_use: watch::Sender<Vec<InUse>>,
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

/// A claim, as it was read from the API server.
pub(crate) type ReadClaim = (ClaimId, ResourceClaim);

/// Calls of one kind that wait for a turn. Clones share them.
struct Queue<W, A>(Arc<Mutex<Waiting<W, A>>>);

struct Waiting<W, A> {
    next: u64,
    calls: Vec<Call<W, A>>,
}

struct Call<W, A> {
    number: u64,
    wants: W,
    answer: oneshot::Sender<A>,
}

/// A Prepare call.
struct Prepares {
    claims: Vec<ReadClaim>,
    /// Says which of its claims were unprepared meanwhile.
    unprepared: Box<dyn FnOnce() -> BTreeSet<String> + Send>,
}

/// An Unprepare call.
struct Unprepares {
    claims: Vec<ClaimId>,
    /// Called when the turn begins.
    begins: Box<dyn FnOnce() + Send>,
}

/// The answers of a turn for the claims of one call.
pub(crate) struct Done {
    /// In the order of the batch. None: the claim was unprepared before the turn.
    pub(crate) answers: Vec<Option<Result<Vec<Prepared>, Error>>>,
    /// When the turn began, and how long its parts took, for all calls together.
    pub(crate) began: std::time::Instant,
    pub(crate) parts: Parts,
}

// === impl SharedNode ===

impl SharedNode {
    #[must_use]
    pub fn new(node: Node) -> Self {
        Self {
            lock: node.lock.clone(),
            gpus_in_use: watch::Sender::new(node.checkpoint.in_use()),
            pending: Arc::default(),
            node: Arc::new(Mutex::new(node)),
            order: Arc::default(),
            preparing: Queue::default(),
            unpreparing: Queue::default(),
            turns: Arc::default(),
            ended: watch::Sender::default(),
        }
    }

    /// Prepares claims in a turn, together with those of other calls that wait. `unprepared` says, when the turn begins, which
    /// of them were unprepared meanwhile.
    ///
    /// # Errors
    /// The lock was not free in time, or the turn panicked.
    pub(crate) async fn prepare(
        &self,
        claims: Vec<ReadClaim>,
        unprepared: impl FnOnce() -> BTreeSet<String> + Send + 'static,
    ) -> Result<Done, Error> {
        let unprepared = Box::new(unprepared);
        let wants = Prepares { claims, unprepared };
        self.with_all_that_wait(&self.preparing, wants, prepare_calls).await
    }

    /// Unprepares claims in a turn, together with those of other calls that wait. `begins` is called when the turn begins.
    ///
    /// # Errors
    /// The lock was not free in time, or the turn panicked.
    pub(crate) async fn unprepare(
        &self,
        claims: Vec<ClaimId>,
        begins: impl FnOnce() + Send + 'static,
    ) -> Result<Vec<Result<(), Error>>, Error> {
        let begins = Box::new(begins);
        let wants = Unprepares { claims, begins };
        self.with_all_that_wait(&self.unpreparing, wants, unprepare_calls).await
    }

    /// Waits for a turn that `serve`s all calls of this kind that wait when it begins.
    async fn with_all_that_wait<W: Send + 'static, A: Send + 'static>(
        &self,
        queue: &Queue<W, A>,
        wants: W,
        serve: fn(Vec<W>, &mut Node, &Locked) -> Vec<A>,
    ) -> Result<A, Error> {
        let (number, mut answer) = queue.enter(wants);
        let calls = queue.clone();
        let turn = self.turn_then(
            move |node, locked| {
                let (wanted, to): (Vec<_>, Vec<_>) = calls.take().into_iter().unzip();
                let answers = match wanted.is_empty() {
                    true => Vec::new(),
                    false => serve(wanted, node, locked),
                };
                to.into_iter().zip(answers)
            },
            |answers| {
                for (to, answer) in answers {
                    // If kubelet has cancelled the call meanwhile, it repeats it.
                    let _ = to.send(answer);
                }
            },
        );
        let panicked = |_| Error::Ended("its turn panicked".into());
        tokio::select! {
            biased;
            // Another call's turn has served this one.
            answered = &mut answer => answered.map_err(panicked),
            turned = turn => match turned {
                Err(error) if queue.leave(number) => Err(error),
                // This call is in this turn, or in one that began before.
                _ => (&mut answer).await.map_err(panicked),
            },
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
    async fn turn_then<T, U: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Node, &Locked) -> T + Send + 'static,
        then: impl FnOnce(T) -> U + Send + 'static,
    ) -> Result<U, Error> {
        let deadline = Instant::now() + LOCKED_WITHIN;
        let order = timeout_at(deadline, self.order.clone().lock_owned()).await;
        let order = order.map_err(|_| taken(&self.lock))?;
        let locked = lock_until(&self.lock, deadline).await?;
        let node = self.clone();
        let work = tokio::task::spawn_blocking(move || {
            let done = {
                let mut changed = node.lock();
                let before: Vec<String> = changed.checkpoint.claims.keys().cloned().collect();
                let done = work(&mut changed, &locked);
                if before.iter().any(|uid| !changed.checkpoint.claims.contains_key(uid)) {
                    node.wake_waiting();
                }
                let in_use = changed.checkpoint.in_use();
                node.gpus_in_use.send_if_modified(|known| {
                    let is_new = *known != in_use;
                    if is_new {
                        *known = in_use;
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
    /// share of it. Returns false otherwise.
    ///
    /// # Errors
    /// The lock was not free in time, or the claim cannot be unprepared.
    pub async fn release_unused<M: MountUsers>(&self, users: M, uid: &str, seen: Entry) -> Result<bool, Error> {
        let uid = uid.to_owned();
        let release = self.turn(move |node, locked| {
            // Another instance may have prepared it meanwhile.
            let is_same = node.begin_turn(locked).is_ok() && node.entry(&uid) == Some(&seen);
            let is_free = || {
                let living = users.living(&node.share_mounts(&uid));
                living.is_ok_and(|living| living.is_empty())
            };
            let is_unused = is_same && is_free();
            match is_unused {
                true => node.unprepare(locked, &[&uid]).remove(0).map(|()| true),
                false => Ok(false),
            }
        });
        release.await?
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

    /// The GPUs that claims had after the last turn, as they were published, by index. Waits for no turn.
    #[must_use]
    pub fn gpus_in_use(&self) -> Vec<InUse> {
        self.gpus_in_use.borrow().clone()
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
        mem::take(&mut self.pending().suspects)
    }

    fn pending(&self) -> MutexGuard<'_, Pending> {
        lock(&self.pending)
    }

    /// Locks the state of this process. Blocks while a turn works, so only for threads that may wait for a disk.
    pub fn lock(&self) -> MutexGuard<'_, Node> {
        let mut node = lock(&self.node);
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

// === impl Queue ===

impl<W, A> Queue<W, A> {
    /// Adds a call. Returns its number, and where its answer will be.
    fn enter(&self, wants: W) -> (u64, oneshot::Receiver<A>) {
        let (answer, answered) = oneshot::channel();
        let mut waiting = lock(&self.0);
        let number = waiting.next;
        waiting.next += 1;
        waiting.calls.push(Call { number, wants, answer });
        (number, answered)
    }

    /// Takes a call out of the queue. Returns false if a turn has taken it.
    fn leave(&self, number: u64) -> bool {
        let calls = &mut lock(&self.0).calls;
        let before = calls.len();
        calls.retain(|call| call.number != number);
        calls.len() < before
    }

    /// Takes all calls out of the queue. Returns those that nobody has cancelled.
    fn take(&self) -> Vec<(W, oneshot::Sender<A>)> {
        let calls = mem::take(&mut lock(&self.0).calls).into_iter();
        let live = calls.filter(|call| !call.answer.is_closed());
        live.map(|call| (call.wants, call.answer)).collect()
    }
}

impl<W, A> Clone for Queue<W, A> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<W, A> Default for Queue<W, A> {
    fn default() -> Self {
        let (next, calls) = (0, Vec::new());
        Self(Arc::new(Mutex::new(Waiting { next, calls })))
    }
}

/// Prepares the claims of these calls. Returns each call's answer.
fn prepare_calls(calls: Vec<Prepares>, node: &mut Node, locked: &Locked) -> Vec<Done> {
    let began = std::time::Instant::now();
    let (mut all, mut wanted) = (Vec::new(), Vec::new());
    for call in calls {
        let unprepared = (call.unprepared)();
        let is_wanted: Vec<bool> = call
            .claims
            .iter()
            .map(|(id, _)| !unprepared.contains(&id.uid))
            .collect();
        all.extend(call.claims.into_iter().filter(|(id, _)| !unprepared.contains(&id.uid)));
        wanted.push(is_wanted);
    }
    let (prepared, parts) = node.prepare(locked, &all);
    let mut prepared = prepared.into_iter();
    let done = wanted.into_iter().map(|is_wanted| {
        let answers = is_wanted.into_iter().map(|is_wanted| match is_wanted {
            true => prepared.next(),
            false => None,
        });
        let answers = answers.collect();
        Done { answers, began, parts }
    });
    done.collect()
}

/// Unprepares the claims of these calls. Returns each call's answers.
fn unprepare_calls(calls: Vec<Unprepares>, node: &mut Node, locked: &Locked) -> Vec<Vec<Result<(), Error>>> {
    let mut all = Vec::new();
    let mut counts = Vec::new();
    for call in calls {
        (call.begins)();
        counts.push(call.claims.len());
        all.extend(call.claims);
    }
    let uids: Vec<&str> = all.iter().map(|id| id.uid.as_str()).collect();
    let answers = node.unprepare(locked, &uids);
    for (id, answer) in all.iter().zip(&answers) {
        node.note_unprepare(id, answer);
    }
    let mut answers = answers.into_iter();
    counts
        .into_iter()
        .map(|count| answers.by_ref().take(count).collect())
        .collect()
}

/// Waits for a lock file until `deadline`.
///
/// # Errors
/// The lock was not free in time, or the file cannot be locked.
pub async fn lock_until(file: &LockFile, deadline: Instant) -> Result<Locked, Error> {
    loop {
        if let Some(locked) = file.try_lock().map_err(Error::Lock)? {
            return Ok(locked);
        }
        if Instant::now() >= deadline {
            return Err(taken(file));
        }
        tokio::time::sleep(TRIED_EVERY).await;
    }
}

fn taken(file: &LockFile) -> Error {
    Error::LockTaken(file.path().to_path_buf())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
