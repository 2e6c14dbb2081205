//! Shares the node's state between tasks.
//!
//! ```text
//!  change it:  turn ─► order of this process ─► lock file (at most 10 s, no thread waits) ─► a thread of its own
//!  read it:    read ───────────────────────────────────────────────────────────────────────► a thread of its own
//! ```
//!
//! The plugin has one thread for everything that is asynchronous, and neither the lock nor a disk that hangs may stop it:
//! health and probes answer meanwhile. A caller that goes away, as when kubelet cancels a call, gives up its place in the
//! order; work that has begun is always completed.

use super::lock::{LOCKED_WITHIN, LockFile, Locked};
use super::{Error, Node};
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::time::{Instant, timeout_at};

/// The node's state, shared between tasks.
#[derive(Clone)]
pub struct SharedNode {
    node: Arc<Mutex<Node>>,
    lock: LockFile,
    order: Arc<tokio::sync::Mutex<()>>,
}

impl SharedNode {
    #[must_use]
    pub fn new(node: Node) -> Self {
        Self {
            lock: node.lock.clone(),
            node: Arc::new(Mutex::new(node)),
            order: Arc::default(),
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
        let deadline = Instant::now() + LOCKED_WITHIN;
        let order = timeout_at(deadline, self.order.clone().lock_owned()).await;
        let order = order.map_err(|_| self.lock.taken())?;
        let locked = self.lock.lock(deadline).await?;
        let node = self.clone();
        let work = tokio::task::spawn_blocking(move || {
            let done = work(&mut node.lock(), &locked);
            drop(locked);
            drop(order);
            done
        });
        work.await.map_err(|error| Error::Ended(error.to_string()))
    }

    /// Reads the node, or changes what is in memory alone.
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

    /// Locks the state of this process. Blocks while a turn works, so only for threads that may wait for a disk.
    pub fn lock(&self) -> MutexGuard<'_, Node> {
        match self.node.lock() {
            Ok(node) => node,
            Err(poisoned) => {
                // A turn panicked: only the files on disk are reliable.
                self.node.clear_poison();
                let mut node = poisoned.into_inner();
                node.forget();
                node
            }
        }
    }
}
