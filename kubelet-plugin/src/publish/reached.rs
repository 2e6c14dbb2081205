//! Publishes only while kubelet reaches this instance, and no other instance publishes.
//!
//! A pod that is scheduled to a GPU of a plugin that kubelet cannot call waits on this node for nothing, and kubelet deletes
//! the slices of a plugin that it lost. Two instances of different releases would undo each other's slices for ever, so
//! the one that has the lock file publishes; the other is ready, and takes over when it ends or is not reached any more.
//!
//! How it fails: an instance that is killed unlocks the file. One of a release before the lock publishes without it, until
//! it ends. A lock file that cannot be locked at all keeps nobody from publishing. Where the file is removed while an
//! instance holds it, another one may lock a new file and publish too; the first notices within 10 s and leaves it to that
//! one.

use super::Wanted;
use crate::node::lock::{LockFile, Locked};
use std::time::Duration;
use tokio::sync::watch;

const TRIED_EVERY: Duration = Duration::from_secs(1);
/// How often the holder of the lock looks if the file is still at its path.
const LOOKED_EVERY: Duration = Duration::from_secs(10);

/// Forwards what is wanted while `reached` is true and the lock is this instance's.
pub async fn only_while_reached(
    mut wanted: watch::Receiver<Wanted>,
    mut reached: watch::Receiver<bool>,
    lock: LockFile,
    forwarded: watch::Sender<Wanted>,
) {
    let mut held = None;
    loop {
        let is_reached = *reached.borrow_and_update();
        if !is_reached || held.as_ref().is_some_and(|right: &Right| !right.is_current(&lock)) {
            held = None;
        }
        if is_reached && held.is_none() {
            held = take(&lock);
        }
        let waits = is_reached && held.is_none();
        let now = match (is_reached, waits) {
            (false, _) => Wanted::Unknown,
            (true, true) => Wanted::ByAnother,
            (true, false) => wanted.borrow_and_update().clone(),
        };
        forwarded.send_if_modified(|last| {
            let changed = *last != now;
            *last = now;
            changed
        });
        let next = if waits { TRIED_EVERY } else { LOOKED_EVERY };
        let changed = tokio::select! {
            changed = wanted.changed() => changed,
            changed = reached.changed() => changed,
            () = tokio::time::sleep(next), if is_reached => Ok(()),
        };
        if changed.is_err() {
            return;
        }
    }
}

/// Returns true if another instance has the lock, so that kubelet reaches it. This one must not have it.
#[must_use]
pub fn another_publishes(lock: &LockFile) -> bool {
    matches!(lock.try_lock(), Ok(None))
}

/// This instance's right to publish, with the lock if there is one.
struct Right {
    lock: Option<Locked>,
}

// === impl Right ===

impl Right {
    /// Returns false if another instance may have it too by now.
    fn is_current(&self, file: &LockFile) -> bool {
        self.lock.as_ref().is_none_or(|locked| file.is_current(locked))
    }
}

/// None: another instance has the lock.
fn take(lock: &LockFile) -> Option<Right> {
    match lock.try_lock() {
        Ok(locked) => locked.map(|locked| Right { lock: Some(locked) }),
        Err(error) => {
            tracing::warn!("publishing beside other instances, if there are any: {error}");
            Some(Right { lock: None })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Gate {
        want: watch::Sender<Wanted>,
        reach: watch::Sender<bool>,
        forwarded: watch::Receiver<Wanted>,
        task: tokio::task::JoinHandle<()>,
    }

    impl Gate {
        fn new(folder: &tempfile::TempDir) -> Self {
            let lock = LockFile::open(&folder.path().join("publisher")).expect("a lock file");
            let (want, wanted) = watch::channel(Wanted::Slices(Vec::new()));
            let (reach, reached) = watch::channel(false);
            let (sender, forwarded) = watch::channel(Wanted::Unknown);
            let task = tokio::spawn(only_while_reached(wanted, reached, lock, sender));
            Self {
                want,
                reach,
                forwarded,
                task,
            }
        }

        async fn forwards(&mut self, expected: Wanted) {
            let seen = self.forwarded.wait_for(|now| *now == expected);
            let seen = tokio::time::timeout(Duration::from_secs(60), seen).await;
            assert!(seen.is_ok_and(|seen| seen.is_ok()), "not forwarded: {expected:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_wanted_before_kubelet_has_confirmed_and_after_it_was_lost() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut gate = Gate::new(&folder);
        tokio::time::sleep(10 * TRIED_EVERY).await;
        assert!(!gate.forwarded.has_changed().expect("a sender"));
        for known in [Wanted::Slices(Vec::new()), Wanted::NoDriver] {
            gate.want.send_replace(known.clone());
            gate.reach.send_replace(true);
            gate.forwards(known).await;
            gate.reach.send_replace(false);
            gate.forwards(Wanted::Unknown).await;
        }
        drop(gate.want);
        gate.task.await.expect("it ends with its sender");
    }

    #[tokio::test(start_paused = true)]
    async fn one_of_two_instances_publishes_until_it_ends_or_is_lost() {
        let folder = tempfile::tempdir().expect("a folder");
        let (mut old, mut new) = (Gate::new(&folder), Gate::new(&folder));
        let slices = || Wanted::Slices(Vec::new());
        old.reach.send_replace(true);
        old.forwards(slices()).await;
        new.reach.send_replace(true);
        new.forwards(Wanted::ByAnother).await;
        tokio::time::sleep(10 * TRIED_EVERY).await;
        assert_eq!(
            (&*old.forwarded.borrow(), &*new.forwarded.borrow()),
            (&slices(), &Wanted::ByAnother)
        );
        old.reach.send_replace(false);
        new.forwards(slices()).await;
        old.reach.send_replace(true);
        old.forwards(Wanted::ByAnother).await;
        new.task.abort();
        old.forwards(slices()).await;
    }

    #[tokio::test(start_paused = true)]
    async fn one_publishes_also_after_the_lock_file_was_removed() {
        let folder = tempfile::tempdir().expect("a folder");
        let (mut old, mut new) = (Gate::new(&folder), Gate::new(&folder));
        let slices = || Wanted::Slices(Vec::new());
        old.reach.send_replace(true);
        old.forwards(slices()).await;
        std::fs::remove_file(folder.path().join("publisher")).expect("removed");
        tokio::time::sleep(2 * LOOKED_EVERY).await;
        assert_eq!(*old.forwarded.borrow(), slices(), "it has the lock of a new file");
        new.reach.send_replace(true);
        new.forwards(Wanted::ByAnother).await;

        // The other one is faster.
        std::fs::remove_file(folder.path().join("publisher")).expect("removed");
        let other = LockFile::open(&folder.path().join("publisher")).expect("a lock file");
        let other = other.try_lock().expect("a lock").expect("free");
        old.forwards(Wanted::ByAnother).await;
        drop(other);
        let one = async {
            tokio::select! {
                () = old.forwards(slices()) => {}
                () = new.forwards(slices()) => {}
            }
        };
        one.await;
        tokio::time::sleep(2 * LOOKED_EVERY).await;
        let publish = [&old, &new].map(|gate| *gate.forwarded.borrow() == slices());
        assert!(publish[0] != publish[1], "{publish:?}");
    }
}
