//! The one task that asks the driver: every 2 s it sends a [`Sample`] of all GPUs, which everything else reads.
//!
//! How it fails:
//! - A driver that hangs keeps the one thread that asked it, and is not asked again before it has answered. Meanwhile samples
//!   say that nothing is known, and from [`ANSWERS_WITHIN`] on also that the GPUs cannot be listed.
//! - An answer that took longer than that is dropped, and the driver is asked again: it is as old as its question.
//! - A reader that is slow loses the oldest samples, and the XIDs in them.

use super::{GpuDriver, Sample};
use crate::publish::inventory::Error;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, broadcast};
use tokio::time::{Instant, sleep_until, timeout};

/// From one sample to the next.
pub const EVERY: Duration = Duration::from_secs(2);
/// Listing the GPUs asks for much that hardly ever changes.
const LIST_EVERY: Duration = Duration::from_secs(10);
const ANSWERS_WITHIN: Duration = Duration::from_secs(15);
const _: () = assert!(
    LIST_EVERY.as_secs() + ANSWERS_WITHIN.as_secs() < 30,
    "a driver that hangs is unhealthy within 30 s, and kubelet finds no report stale"
);
/// Samples that wait for a slow reader.
const QUEUE: usize = 16;

pub struct Sender(broadcast::Sender<Arc<Sample>>);

pub struct Receiver(broadcast::Receiver<Arc<Sample>>);

#[must_use]
pub fn channel() -> (Sender, Receiver) {
    let (sender, receiver) = broadcast::channel(QUEUE);
    (Sender(sender), Receiver(receiver))
}

// === impl Sender ===

impl Sender {
    #[must_use]
    pub fn subscribe(&self) -> Receiver {
        Receiver(self.0.subscribe())
    }

    pub(crate) fn send(&self, sample: Sample) {
        // Nobody may be there to read it.
        let _ = self.0.send(Arc::new(sample));
    }
}

// === impl Receiver ===

impl Receiver {
    /// Returns None once no more samples will be sent.
    pub async fn next(&mut self) -> Option<Arc<Sample>> {
        loop {
            match self.0.recv().await {
                Ok(sample) => return Some(sample),
                Err(broadcast::error::RecvError::Lagged(lost)) => {
                    tracing::warn!(lost, "samples of GPUs were not read in time")
                }
                Err(broadcast::error::RecvError::Closed) => return None,
            }
        }
    }

    /// The same, without the samples that newer ones have replaced by now.
    pub async fn newest(&mut self) -> Option<Arc<Sample>> {
        let mut newest = self.next().await?;
        while !self.0.is_empty() {
            let Some(newer) = self.next().await else { break };
            newest = newer;
        }
        Some(newest)
    }
}

/// Samples until the plugin ends. `rescan` asks for a list of the GPUs before its time.
pub async fn run(driver: impl GpuDriver, rescan: Arc<Notify>, samples: Sender) {
    let driver = Arc::new(driver);
    let mut list_due = Instant::now();
    loop {
        let asked = Instant::now();
        let with_list = asked >= list_due;
        let mut answer = {
            let driver = driver.clone();
            tokio::task::spawn_blocking(move || driver.sample(with_list))
        };
        let answered = loop {
            match timeout(EVERY, &mut answer).await {
                Ok(answered) => break answered,
                Err(_) => {
                    let is_silent = asked.elapsed() >= ANSWERS_WITHIN && Instant::now() >= list_due;
                    if is_silent {
                        list_due = Instant::now() + LIST_EVERY;
                    }
                    samples.send(Sample::failed(&Error::Late(asked.elapsed().as_secs()), is_silent));
                }
            }
        };
        match answered {
            Ok(sample) if asked.elapsed() < ANSWERS_WITHIN => {
                if with_list {
                    list_due = asked + LIST_EVERY;
                }
                samples.send(sample);
            }
            Ok(_) => {
                list_due = Instant::now();
                continue;
            }
            Err(error) => {
                let ended = Error::Silent(format!("the question to the driver ended early: {error}"));
                samples.send(Sample::failed(&ended, with_list));
            }
        }
        tokio::select! {
            () = sleep_until(asked + EVERY) => {}
            () = rescan.notified() => list_due = Instant::now(),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::nvml::{GpuSample, Memory, Reading};
    use crate::publish::inventory::List;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::mpsc;

    /// An idle GPU without faults.
    pub(crate) fn gpu(uuid: &str) -> GpuSample {
        GpuSample {
            faults: Reading::unsupported(uuid),
            memory: Ok(Memory::new()),
            used: None,
            busy: None,
        }
    }

    pub(crate) fn of_faults(readings: Result<Vec<Reading>, String>) -> Sample {
        let gpu = |faults: Reading| GpuSample { faults, ..gpu("") };
        Sample {
            list: None,
            gpus: readings.map(|readings| readings.into_iter().map(gpu).collect()),
        }
    }

    #[tokio::test]
    async fn a_slow_reader_can_take_the_newest_sample() {
        let (sender, mut samples) = channel();
        for text in ["old", "new"] {
            sender.send(of_faults(Err(text.into())));
        }
        let newest = samples.newest().await.expect("a sample");
        assert_eq!(newest.gpus.as_ref().err().map(String::as_str), Some("new"));
        drop(sender);
        assert!(samples.newest().await.is_none());
    }

    /// Answers as often as something was sent, and else hangs. Counts the questions.
    struct Hangs {
        answers: Mutex<mpsc::Receiver<()>>,
        asked: Arc<AtomicU32>,
    }

    impl GpuDriver for Hangs {
        fn sample(&self, with_list: bool) -> Sample {
            self.asked.fetch_add(1, Ordering::SeqCst);
            let answer = self.answers.lock().expect("lock").recv();
            Sample {
                list: with_list.then(|| {
                    answer
                        .map_err(|_| Error::Silent("no answer".into()))
                        .map(|()| List::default())
                }),
                gpus: Ok(Vec::new()),
            }
        }
    }

    /// Waits for a sample in real time, and lets the paused time pass, which Tokio does not skip while a thread hangs.
    async fn until(samples: &mut Receiver, mut is_it: impl FnMut(&Sample) -> bool) {
        let start = std::time::Instant::now();
        loop {
            while let Ok(sample) = samples.0.try_recv() {
                if is_it(&sample) {
                    return;
                }
            }
            assert!(start.elapsed() < Duration::from_secs(60), "nothing happens");
            std::thread::sleep(Duration::from_millis(1));
            tokio::time::advance(Duration::from_millis(500)).await;
        }
    }

    fn is_late(sample: &Sample) -> bool {
        matches!(sample.list, Some(Err(Error::Late(seconds))) if seconds >= 15)
    }

    #[tokio::test(start_paused = true)]
    async fn a_driver_that_hangs_is_late_until_it_has_answered_another_question() {
        let (answer, answers) = mpsc::channel();
        let asked = Arc::new(AtomicU32::new(0));
        let driver = Hangs {
            answers: Mutex::new(answers),
            asked: asked.clone(),
        };
        let (sender, mut samples) = channel();
        let rescan = Arc::new(Notify::new());
        let running = tokio::spawn(run(driver, rescan, sender));
        answer.send(()).expect("heard");
        until(&mut samples, |sample| matches!(sample.list, Some(Ok(_)))).await;
        // It hangs. Nothing is known at once, and the GPUs cannot be listed after a while, which goes on being said:
        // kubelet forgets a report after 30 s.
        until(&mut samples, |sample| sample.gpus.is_err() && sample.list.is_none()).await;
        until(&mut samples, is_late).await;
        until(&mut samples, is_late).await;
        assert_eq!(asked.load(Ordering::SeqCst), 2, "one question at a time");
        // What the hanging call says in the end is old, so the driver is asked again.
        for _ in 0..2 {
            answer.send(()).expect("heard");
        }
        let mut answers = 0;
        until(&mut samples, |sample| {
            answers += u32::from(sample.gpus.is_ok());
            matches!(sample.list, Some(Ok(_)))
        })
        .await;
        assert_eq!((answers, asked.load(Ordering::SeqCst) >= 3), (1, true));
        running.abort();
    }

    /// Answers at once.
    struct Answers;

    impl GpuDriver for Answers {
        fn sample(&self, with_list: bool) -> Sample {
            Sample {
                list: with_list.then(|| Ok(List::default())),
                gpus: Ok(Vec::new()),
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn gpus_are_listed_in_every_fifth_sample_and_when_somebody_asks() {
        let (sender, mut samples) = channel();
        let rescan = Arc::new(Notify::new());
        let running = tokio::spawn(run(Answers, rescan.clone(), sender));
        let mut has_list = async |count: usize| {
            let mut found = Vec::new();
            for _ in 0..count {
                found.push(samples.next().await.expect("a sample").list.is_some());
            }
            found
        };
        assert_eq!(has_list(6).await, [true, false, false, false, false, true]);
        rescan.notify_one();
        assert_eq!(has_list(2).await, [true, false]);
        running.abort();
    }
}
