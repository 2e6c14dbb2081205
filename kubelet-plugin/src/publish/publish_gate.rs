//! Decides when this instance publishes: while it has the publisher's lock, which only one instance on the node has, and
//! while kubelet reaches it. kubelet deletes the slices of a plugin that it lost, and a pod that is scheduled to a GPU of a
//! plugin that kubelet cannot call waits in vain.
//!
//! The instance with the lock does all work of the node except kubelet's calls (`work`). The other one is ready, and takes
//! over when the first one ends.
//!
//! How it fails: an instance that is killed unlocks the file. If the lock file cannot be locked at all, every instance
//! works. Where the file is removed while an instance has it, another one may lock a new file; the first notices within 10
//! s and leaves the work to that one.

use crate::publish::slice::Slice;
use std::time::Duration;
use tokio::sync::watch;
use tokio::sync::watch::error::RecvError;
use vgpu_node::lock_file::{LockFile, Locked};

const TRIED_EVERY: Duration = Duration::from_secs(1);
/// How often the holder of the lock checks that the file is still at its path.
const LOOKED_EVERY: Duration = Duration::from_secs(10);

/// The devices to publish.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Wanted {
    /// The GPUs were not scanned yet, or kubelet does not reach this instance. Existing slices stay as they are.
    #[default]
    Unknown,
    /// The node has no driver. Existing slices stay, with a taint, because a driver that is being replaced comes back.
    NoDriver,
    /// The driver has not answered yet. Existing slices stay, with a taint.
    Silent,
    Slices(Vec<Slice>),
}

/// This instance's hold on the lock.
#[derive(Debug)]
pub struct Holding {
    file: LockFile,
    right: Option<Right>,
}

/// The right to work, with the lock if there is one.
#[derive(Debug)]
struct Right {
    lock: Option<Locked>,
}

/// The devices to publish, while kubelet reaches this instance.
#[derive(Clone, Debug)]
pub struct Gate {
    pub wanted: watch::Receiver<Wanted>,
    pub reached: watch::Receiver<bool>,
}

// === impl Holding ===

impl Holding {
    /// Takes the lock if it is free.
    #[must_use]
    pub fn begin(file: LockFile) -> Self {
        let right = Right::take(&file);
        Self { file, right }
    }

    /// Returns true if this instance has the lock.
    #[must_use]
    pub fn works(&self) -> bool {
        self.right.is_some()
    }

    /// Keeps the lock, or takes it as soon as it is free. `works` says if this instance has the lock.
    pub async fn keep(mut self, works: watch::Sender<bool>) {
        loop {
            if self.right.as_ref().is_some_and(|right| !right.is_current(&self.file)) {
                self.right = None;
            }
            if self.right.is_none() {
                self.right = Right::take(&self.file);
            }
            let has_lock = self.works();
            works.send_if_modified(|worked| std::mem::replace(worked, has_lock) != has_lock);
            tokio::time::sleep(if has_lock { LOOKED_EVERY } else { TRIED_EVERY }).await;
        }
    }
}

// === impl Right ===

impl Right {
    /// None: another instance has the lock.
    fn take(file: &LockFile) -> Option<Self> {
        match file.try_lock() {
            Ok(locked) => locked.map(|locked| Self { lock: Some(locked) }),
            Err(error) => {
                tracing::warn!("working beside other instances, if there are any: {error}");
                Some(Self { lock: None })
            }
        }
    }

    /// Returns false if another instance may have it too by now.
    fn is_current(&self, file: &LockFile) -> bool {
        self.lock.as_ref().is_none_or(|locked| file.is_current(locked))
    }
}

// === impl Gate ===

impl Gate {
    /// Returns once [`now`](Self::now) may have another answer.
    ///
    /// # Errors
    /// It will not change any more.
    pub async fn changed(&mut self) -> Result<(), RecvError> {
        tokio::select! {
            changed = self.wanted.changed() => changed,
            changed = self.reached.changed() => changed,
        }
    }

    /// The devices to publish now.
    #[must_use]
    pub fn now(&mut self) -> Wanted {
        let wanted = self.wanted.borrow_and_update().clone();
        match *self.reached.borrow_and_update() {
            true => wanted,
            false => Wanted::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lock(folder: &tempfile::TempDir) -> LockFile {
        LockFile::open(&folder.path().join("publisher")).expect("a lock file")
    }

    /// An instance that works when it can.
    fn instance(folder: &tempfile::TempDir) -> (watch::Receiver<bool>, tokio::task::JoinHandle<()>) {
        let holding = Holding::begin(lock(folder));
        let (works, worked) = watch::channel(holding.works());
        (worked, tokio::spawn(holding.keep(works)))
    }

    async fn becomes(works: &mut watch::Receiver<bool>, expected: bool) {
        let seen = works.wait_for(|works| *works == expected);
        let seen = tokio::time::timeout(Duration::from_secs(60), seen).await;
        assert!(seen.is_ok_and(|seen| seen.is_ok()), "never: {expected}");
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_published_before_kubelet_has_confirmed_and_after_it_was_lost() {
        let (want, wanted) = watch::channel(Wanted::Slices(Vec::new()));
        let (reach, reached) = watch::channel(false);
        let mut gate = Gate { wanted, reached };
        assert_eq!(gate.now(), Wanted::Unknown);
        for known in [Wanted::Slices(Vec::new()), Wanted::NoDriver] {
            want.send_replace(known.clone());
            gate.changed().await.expect("a sender");
            assert_eq!(gate.now(), Wanted::Unknown);
            for (is_reached, expected) in [(true, known), (false, Wanted::Unknown)] {
                reach.send_replace(is_reached);
                gate.changed().await.expect("a sender");
                assert_eq!(gate.now(), expected);
            }
        }
        drop(want);
        assert!(gate.changed().await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn one_of_two_instances_works_until_it_ends() {
        let folder = tempfile::tempdir().expect("a folder");
        let (old, running) = instance(&folder);
        let (mut new, _running) = instance(&folder);
        tokio::time::sleep(10 * TRIED_EVERY).await;
        assert_eq!((*old.borrow(), *new.borrow()), (true, false));
        running.abort();
        becomes(&mut new, true).await;
    }

    #[tokio::test(start_paused = true)]
    async fn one_works_also_after_the_lock_file_was_removed() {
        let folder = tempfile::tempdir().expect("a folder");
        let (mut old, _running) = instance(&folder);
        std::fs::remove_file(folder.path().join("publisher")).expect("removed");
        tokio::time::sleep(2 * LOOKED_EVERY).await;
        assert!(*old.borrow(), "it has the lock of a new file");
        let (new, _running) = instance(&folder);
        tokio::time::sleep(2 * LOOKED_EVERY).await;
        assert_eq!((*old.borrow(), *new.borrow()), (true, false));

        // Another instance is faster.
        std::fs::remove_file(folder.path().join("publisher")).expect("removed");
        let other = lock(&folder).try_lock().expect("a lock").expect("free");
        becomes(&mut old, false).await;
        drop(other);
        tokio::time::sleep(2 * LOOKED_EVERY).await;
        let work = [*old.borrow(), *new.borrow()];
        assert!(work[0] != work[1], "{work:?}");
    }
}
