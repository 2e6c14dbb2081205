//! Publishes only while kubelet reaches this instance.
//!
//! A pod that is scheduled to a GPU of a plugin that kubelet cannot call waits on this node for nothing, and kubelet deletes
//! the slices of a plugin that it lost. Existing slices stay as they are: another instance may publish them, and kubelet
//! removes them if there is none.

use super::Wanted;
use tokio::sync::watch;

/// Forwards what is wanted while `reached` is true; else nothing is known to be wanted.
pub async fn only_while_reached(
    mut wanted: watch::Receiver<Wanted>,
    mut reached: watch::Receiver<bool>,
    forwarded: watch::Sender<Wanted>,
) {
    loop {
        let now = match *reached.borrow_and_update() {
            true => wanted.borrow_and_update().clone(),
            false => Wanted::Unknown,
        };
        forwarded.send_if_modified(|last| {
            let changed = *last != now;
            *last = now;
            changed
        });
        let changed = tokio::select! {
            changed = wanted.changed() => changed,
            changed = reached.changed() => changed,
        };
        if changed.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn nothing_is_wanted_before_kubelet_has_confirmed_and_after_it_was_lost() {
        let (want, wanted) = watch::channel(Wanted::Slices(Vec::new()));
        let (reach, reached) = watch::channel(false);
        let (sender, mut forwarded) = watch::channel(Wanted::Unknown);
        let task = tokio::spawn(only_while_reached(wanted, reached, sender));
        tokio::task::yield_now().await;
        assert!(!forwarded.has_changed().expect("a sender"));
        for known in [Wanted::Slices(Vec::new()), Wanted::NoDriver] {
            want.send_replace(known.clone());
            reach.send_replace(true);
            assert_eq!(*forwarded.wait_for(|now| *now == known).await.expect("a sender"), known);
            reach.send_replace(false);
            forwarded
                .wait_for(|now| *now == Wanted::Unknown)
                .await
                .expect("a sender");
        }
        drop(want);
        task.await.expect("it ends with its sender");
    }
}
