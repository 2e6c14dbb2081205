//! Reads the faults every few seconds, on a thread of its own: neither a driver that hangs nor a disk may stop others.
//!
//! Faults are published before they are written to disk. While a write hangs, later faults are not noticed. Lost GPUs still
//! are, because scans look for them.

use super::{Conditions, Files, Readings};
use crate::inventory::Faults;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, watch};

/// A fault has a taint within 5 s: this, and the write of a slice.
const READ_EVERY: Duration = Duration::from_secs(3);

/// What is read, and what is known.
#[derive(Debug)]
pub struct Watcher<R> {
    readings: R,
    conditions: Conditions,
    files: Files,
    /// The GPUs that could be read.
    readable: BTreeSet<String>,
}

/// What a look changed.
#[derive(Debug, PartialEq, Eq)]
struct Look {
    faults: Faults,
    /// A GPU that could be read cannot be read any more.
    has_lost_one: bool,
}

/// Watches for ever. `faults` has those of before the restart already. `rescan` has the GPUs listed before their time.
pub async fn run<R: Readings>(watcher: Watcher<R>, faults: watch::Sender<Faults>, rescan: Arc<Notify>) {
    let watcher = Arc::new(Mutex::new(watcher));
    let faults = Arc::new(faults);
    loop {
        let (own, faults, rescan) = (watcher.clone(), faults.clone(), rescan.clone());
        let look = tokio::task::spawn_blocking(move || {
            let mut watcher = own.lock().unwrap_or_else(PoisonError::into_inner);
            tell(watcher.look(Instant::now), &faults, &rescan);
            watcher.write();
        });
        if let Err(error) = look.await {
            tracing::error!("a look for faults of GPUs ended early: {error}");
        }
        tokio::time::sleep(READ_EVERY).await;
    }
}

fn tell(look: Look, faults: &watch::Sender<Faults>, rescan: &Notify) {
    if look.has_lost_one {
        rescan.notify_one();
    }
    faults.send_if_modified(|known| {
        let changed = *known != look.faults;
        log(known, &look.faults);
        *known = look.faults;
        changed
    });
}

// === impl Watcher ===

impl<R: Readings> Watcher<R> {
    /// Has the faults of before the restart.
    #[must_use]
    pub fn new(readings: R, mut conditions: Conditions, mut files: Files) -> Self {
        for written in files.changed() {
            conditions.add(&written.kept);
        }
        Self {
            readings,
            conditions,
            files,
            readable: BTreeSet::new(),
        }
    }

    #[must_use]
    pub fn faults(&self) -> Faults {
        self.conditions.faults()
    }

    /// `now` is asked once the driver has answered.
    fn look(&mut self, now: impl FnOnce() -> Instant) -> Look {
        let answer = self.readings.readings();
        let now = now();
        for written in self.files.changed() {
            self.conditions.end(&written.ended, now);
            self.conditions.add(&written.kept);
        }
        self.conditions.apply(answer.as_deref().map_err(String::as_str), now);
        let mut has_lost_one = false;
        match answer {
            Ok(readings) => {
                let readable = readings.into_iter().filter(|reading| reading.failure().is_none());
                let readable: BTreeSet<String> = readable.map(|reading| reading.uuid).collect();
                has_lost_one = !self.readable.is_subset(&readable);
                self.readable = readable;
            }
            Err(error) => tracing::debug!("faults of GPUs cannot be read: {error}"),
        }
        Look {
            faults: self.faults(),
            has_lost_one,
        }
    }

    /// Writes the faults of the last look to disk.
    fn write(&mut self) {
        self.files.write(&self.conditions.kept());
    }
}

fn log(before: &Faults, after: &Faults) {
    let all = |faults: &Faults| -> Vec<_> {
        let of = |(uuid, faults): (&String, &Vec<_>)| -> Vec<_> {
            faults
                .iter()
                .map(|fault| (uuid.clone(), crate::inventory::Fault::clone(fault)))
                .collect()
        };
        faults.iter().flat_map(of).collect()
    };
    let (before, after) = (all(before), all(after));
    for (uuid, fault) in after.iter().filter(|fault| !before.contains(fault)) {
        match fault.counts {
            true => tracing::error!("no new claim gets this GPU: {}", fault.text(uuid)),
            false => tracing::info!("{}", fault.text(uuid)),
        }
    }
    let is_open = |uuid: &String, reason| {
        after
            .iter()
            .any(|(other, fault)| other == uuid && fault.reason == reason)
    };
    for (uuid, fault) in before.iter().filter(|(uuid, fault)| !is_open(uuid, fault.reason)) {
        tracing::info!("GPU {uuid} is well again: no {} any more", fault.reason.name());
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Asked, Reading};
    use super::*;
    use std::path::Path;

    /// Answers with what was sent, and else hangs.
    struct Answers(Mutex<std::sync::mpsc::Receiver<Result<Vec<Reading>, String>>>);

    impl Readings for Answers {
        fn readings(&self) -> Result<Vec<Reading>, String> {
            let answers = self.0.lock().expect("lock");
            answers.recv().unwrap_or_else(|_| Err("the test is over".into()))
        }
    }

    fn reading(xids: &[u64], fails: bool) -> Vec<Reading> {
        let uncorrected = match fails {
            true => Asked::Failed("GPU is lost".into()),
            false => Asked::Is(0),
        };
        vec![Reading {
            uuid: "GPU-0".into(),
            xids: xids.to_vec(),
            events: Asked::Is(()),
            uncorrected,
            remap_pending: Asked::Is(false),
            remap_failed: Asked::Is(false),
            action: Asked::Is(0),
        }]
    }

    type Sender = std::sync::mpsc::Sender<Result<Vec<Reading>, String>>;

    fn watcher(folder: &Path) -> (Sender, Watcher<Answers>) {
        let (sender, answers) = std::sync::mpsc::channel();
        let files = Files::new("b".into(), folder.join("disk"), folder.join("run"));
        let conditions = Conditions::new([13].into());
        (sender, Watcher::new(Answers(Mutex::new(answers)), conditions, files))
    }

    fn look_and_write(watcher: &mut Watcher<Answers>, now: impl FnOnce() -> Instant) -> Look {
        let look = watcher.look(now);
        watcher.write();
        look
    }

    #[test]
    fn faults_are_kept_over_restarts_and_a_gpu_that_cannot_be_read_any_more_is_told() {
        let folder = tempfile::tempdir().expect("a folder");
        let (sender, mut first) = watcher(folder.path());
        let mut look = |answer| {
            sender.send(answer).expect("heard");
            look_and_write(&mut first, Instant::now)
        };
        assert_eq!(
            look(Ok(reading(&[], false))),
            Look {
                faults: Faults::new(),
                has_lost_one: false
            }
        );
        assert!(look(Ok(reading(&[79], true))).has_lost_one);
        assert!(!look(Ok(reading(&[], true))).has_lost_one, "once");
        let kept = look(Err("hangs".into())).faults;
        assert_eq!(kept["GPU-0"][0].value, "79");
        std::fs::remove_file(folder.path().join("disk")).expect("removed");
        let (sender, mut second) = watcher(folder.path());
        assert_eq!(second.faults(), kept, "before the driver is asked");
        // The other instance sees one more, and both have both.
        assert_eq!(look(Ok(reading(&[], false))).faults, kept);
        let recovery = vec![Reading {
            action: Asked::Is(2),
            ..reading(&[], false).remove(0)
        }];
        assert_eq!(look(Ok(recovery)).faults["GPU-0"].len(), 2);
        sender.send(Err("hangs".into())).expect("heard");
        assert_eq!(look_and_write(&mut second, Instant::now).faults["GPU-0"].len(), 2);
    }

    /// Looks of one instance, each of which finds nothing wrong or those XIDs.
    fn look_at(instance: &mut (Sender, Watcher<Answers>), xids: &[u64], now: Instant) -> Faults {
        instance.0.send(Ok(reading(xids, false))).expect("heard");
        look_and_write(&mut instance.1, || now).faults
    }

    #[test]
    fn two_instances_agree_that_a_fault_has_ended() {
        let folder = tempfile::tempdir().expect("a folder");
        let (mut one, mut other) = (watcher(folder.path()), watcher(folder.path()));
        let start = Instant::now();
        look_at(&mut one, &[79], start);
        // The other one has only read of it, looks a second later each time, and got no answer once: it would wait longer.
        let later = Duration::from_secs(1);
        for look in 1..=40 {
            let now = start + look * READ_EVERY;
            let of_one = look_at(&mut one, &[], now);
            let of_other = match look {
                4 => {
                    other.0.send(Err("hangs".into())).expect("heard");
                    look_and_write(&mut other.1, || now + later).faults
                }
                _ => look_at(&mut other, &[], now + later),
            };
            let expected = if look < 8 { (1, 1) } else { (0, 0) };
            assert_eq!((of_one.len(), of_other.len()), expected, "look {look}");
        }
        assert_eq!(
            watcher(folder.path()).1.faults(),
            Faults::new(),
            "and one that starts now"
        );
    }

    #[test]
    fn what_this_instance_saw_lately_is_not_ended_by_another_one() {
        let folder = tempfile::tempdir().expect("a folder");
        let (mut one, mut other) = (watcher(folder.path()), watcher(folder.path()));
        let start = Instant::now();
        look_at(&mut one, &[79], start);
        for look in 1..=8 {
            let now = start + look * READ_EVERY;
            let seen: &[u64] = if look == 7 { &[79] } else { &[] };
            look_at(&mut other, seen, now);
            // At last it finds that the fault is over: it has not heard of the second XID.
            look_at(&mut one, &[], now);
        }
        let now = start + 9 * READ_EVERY;
        assert_eq!(look_at(&mut other, &[], now)["GPU-0"][0].value, "79");
        assert_eq!(look_at(&mut one, &[], now)["GPU-0"][0].value, "79", "written back");
    }

    #[tokio::test(start_paused = true)]
    async fn faults_are_sent_when_they_change_and_a_scan_is_asked_for() {
        let folder = tempfile::tempdir().expect("a folder");
        let (sender, watcher) = watcher(folder.path());
        let (faults, mut known) = watch::channel(watcher.faults());
        let rescan = Arc::new(Notify::new());
        let running = tokio::spawn(run(watcher, faults, rescan.clone()));
        for answer in [
            Ok(reading(&[], false)),
            Ok(reading(&[], false)),
            Ok(reading(&[48], true)),
        ] {
            assert!(!known.has_changed().expect("a sender"));
            sender.send(answer).expect("heard");
        }
        known.changed().await.expect("a fault");
        assert_eq!(known.borrow()["GPU-0"][0].value, "48");
        rescan.notified().await;
        running.abort();
    }
}
