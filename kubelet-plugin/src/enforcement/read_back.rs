//! Asks which of the driver's limits hold, every 45 s and beside the turns.
//!
//! How it fails: a driver that hangs keeps the one thread that asked, and is not asked again before it has answered. From
//! a minute after the last question that was answered nothing is known. What is refused or fails is logged when it changes.

use super::processes::Processes;
use super::verdicts::second_wall::ReadBack;
use crate::dra::node::{Node, SharedNode};
use crate::driver_limit::check::{self, Answer};
use crate::publish::inventory::Gpu;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;

/// From one question to the next. The answer to the next one must come before the last one is too old.
const EVERY: Duration = Duration::from_secs(45);
const VALID: Duration = Duration::from_secs(60);
const ANSWERS_WITHIN: Duration = Duration::from_secs(15);
/// Questions after the node's last claim has ended. A question removes the records of pods that have ended, and kubelet
/// removes a pod's cgroup some time after its claims.
const AFTER_THE_LAST: u8 = 2;
const _: () = assert!(EVERY.as_secs() + ANSWERS_WITHIN.as_secs() <= VALID.as_secs());

/// Asks the driver, sets limits again that were changed, and returns what `vgpu-driver-limit check` printed. None: this
/// node's driver has no such limits. May block.
pub type Question = Arc<dyn Fn() -> Printed + Send + Sync>;

type Printed = Option<Result<Vec<u8>, String>>;

/// Asks by `vgpu-driver-limit check`. `records`: its folder of records.
#[must_use]
pub fn question(node: SharedNode, processes: Processes, records: PathBuf) -> Question {
    Arc::new(move || {
        let program = {
            let node = node.lock();
            has_driver_limit(&node).then(|| node.driver_limit_program(processes.blind()))?
        };
        let run = program.and_then(|program| {
            let printed = program.run(&program.driver().check(&records), ANSWERS_WITHIN);
            printed.map_err(|error| error.to_string())
        });
        Some(run.map(String::into_bytes))
    })
}

/// While the GPUs cannot be listed, the records of claims say it.
fn has_driver_limit(node: &Node) -> bool {
    match node.inventory() {
        Some(inventory) => inventory.by_index().iter().any(|(_, gpu)| gpu.has_driver_limit()),
        None => node.claims().gpus.values().any(Gpu::has_driver_limit),
    }
}

/// The newest answer, and the question that has none yet.
#[derive(Default)]
pub(super) struct Reader {
    question: Option<Question>,
    /// When it was asked.
    last: Option<Instant>,
    running: Option<JoinHandle<Printed>>,
    /// Questions that are still due on a node without claims.
    remaining: u8,
    known: ReadBack,
    /// The last line in the log.
    logged: Option<String>,
}

// === impl Reader ===

impl Reader {
    pub(super) fn new(question: Option<Question>) -> Self {
        Self {
            question,
            ..Self::default()
        }
    }

    /// Takes an answer that has come, asks if it is time, and returns what is known. Does not wait.
    pub(super) async fn turn(&mut self, now: Instant, has_claims: bool) -> ReadBack {
        if let (Some(running), Some(asked)) = (self.running.take_if(|running| running.is_finished()), self.last) {
            let answer = running.await.unwrap_or_else(|error| Some(Err(error.to_string())));
            self.take(asked, answer);
        }
        let is_due = self
            .last
            .is_none_or(|last| now.saturating_duration_since(last) >= EVERY);
        if has_claims {
            self.remaining = AFTER_THE_LAST;
        }
        if let Some(question) = &self.question
            && is_due
            && (has_claims || self.remaining > 0)
            && self.running.is_none()
        {
            if !has_claims {
                self.remaining -= 1;
            }
            let question = question.clone();
            self.last = Some(now);
            self.running = Some(tokio::task::spawn_blocking(move || question()));
        }
        if let ReadBack::Known { asked, .. } = &self.known
            && now.saturating_duration_since(*asked) > VALID
        {
            self.known = ReadBack::Unknown;
        }
        self.known.clone()
    }

    fn take(&mut self, asked: Instant, answer: Printed) {
        let (known, problem) = match answer {
            None => (ReadBack::NoSuchLimit, None),
            // What was known stays until it is too old.
            Some(Err(why)) => (self.known.or_unknown(), Some(why)),
            Some(Ok(printed)) => {
                let Answer { readings, refused } = check::parse(&printed);
                let readings = readings.into();
                (ReadBack::Known { readings, asked }, refused)
            }
        };
        self.known = known;
        if problem != self.logged {
            match &problem {
                Some(why) => tracing::warn!("which limits of the driver hold is not known of each container: {why}"),
                None => tracing::info!("which limits of the driver hold is known again"),
            }
            self.logged = problem;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;
    use std::sync::mpsc;

    const LINE: &str =
        r#"{"claim":"u1","share":"s1","gpu":"GPU-1","cgroup":"/c","hard":9,"used":1,"state":"held","pod":"none"}"#;

    /// A driver that answers when the test says so.
    struct Asked {
        reader: Reader,
        answers: mpsc::Sender<Printed>,
        questions: Arc<Mutex<u32>>,
        start: Instant,
    }

    impl Asked {
        fn new() -> Self {
            let (answers, answer) = mpsc::channel();
            let (answer, questions) = (Mutex::new(answer), Arc::new(Mutex::new(0)));
            let count = questions.clone();
            let question: Question = Arc::new(move || {
                *count.lock().expect("lock") += 1;
                answer.lock().expect("lock").recv().unwrap_or(None)
            });
            Self {
                reader: Reader::new(Some(question)),
                answers,
                questions,
                start: Instant::now(),
            }
        }

        async fn at(&mut self, seconds: u64) -> &'static str {
            self.turn(seconds, true).await
        }

        async fn turn(&mut self, seconds: u64, has_claims: bool) -> &'static str {
            let now = self.start + Duration::from_secs(seconds);
            let known = self.reader.turn(now, has_claims).await;
            match known {
                ReadBack::NoSuchLimit => "no such limit",
                ReadBack::Unknown => "unknown",
                ReadBack::Known { readings, .. } if readings.is_empty() => "nothing",
                ReadBack::Known { .. } => "known",
            }
        }

        /// Has the running question answered.
        async fn answer(&self, answer: Printed) {
            self.answers.send(answer).expect("asked");
            while !self.reader.running.as_ref().is_some_and(JoinHandle::is_finished) {
                tokio::task::yield_now().await;
            }
        }

        fn questions(&self) -> u32 {
            *self.questions.lock().expect("lock")
        }
    }

    #[tokio::test]
    async fn an_answer_is_known_for_a_minute_and_a_driver_that_hangs_is_asked_once() {
        let mut asked = Asked::new();
        assert_eq!(asked.at(0).await, "no such limit", "not known to have any");
        asked.answer(Some(Ok(LINE.into()))).await;
        assert_eq!(asked.at(2).await, "known");
        assert_eq!(asked.at(44).await, "known");
        assert_eq!(asked.questions(), 1);
        // From here on it hangs.
        assert_eq!(asked.at(45).await, "known");
        assert_eq!(asked.at(60).await, "known");
        assert_eq!(asked.at(61).await, "unknown");
        assert_eq!(asked.at(600).await, "unknown");
        // The answer is as old as its question.
        asked.answer(Some(Ok(LINE.into()))).await;
        assert_eq!(asked.at(602).await, "unknown");
        asked.answer(Some(Ok(Vec::new()))).await;
        assert_eq!(asked.at(604).await, "nothing");
        assert_eq!(asked.questions(), 3);
    }

    #[tokio::test]
    async fn what_was_known_outlives_one_failure_and_not_a_driver_that_was_replaced() {
        let mut asked = Asked::new();
        asked.at(0).await;
        asked.answer(Some(Err("no NVML".into()))).await;
        assert_eq!(asked.at(2).await, "unknown", "the node has such limits");
        asked.at(45).await;
        asked.answer(Some(Ok(LINE.into()))).await;
        assert_eq!(asked.at(47).await, "known");
        asked.at(90).await;
        asked.answer(Some(Err("no NVML".into()))).await;
        assert_eq!(asked.at(92).await, "known");
        assert_eq!(asked.reader.logged.as_deref(), Some("no NVML"));
        assert_eq!(asked.at(106).await, "unknown");
        asked.at(135).await;
        asked.answer(None).await;
        assert_eq!(asked.at(137).await, "no such limit");
        assert_eq!(asked.reader.logged, None);
    }

    #[tokio::test]
    async fn after_the_last_claim_it_asks_twice_more_so_that_records_are_removed() {
        let mut asked = Asked::new();
        asked.at(0).await;
        asked.answer(Some(Ok(LINE.into()))).await;
        for (seconds, questions) in [(45, 2), (90, 3)] {
            asked.turn(seconds, false).await;
            asked.answer(Some(Ok(Vec::new()))).await;
            assert_eq!(asked.questions(), questions);
        }
        asked.turn(135, false).await;
        assert!(asked.reader.running.is_none());
        asked.at(136).await;
        asked.answer(Some(Ok(LINE.into()))).await;
        assert_eq!(asked.questions(), 4);
    }

    #[tokio::test]
    async fn a_node_without_claims_or_without_such_limits_asks_nothing() {
        let mut asked = Asked::new();
        asked.reader.turn(asked.start, false).await;
        assert!(asked.reader.running.is_none());
        let mut without = Reader::new(None);
        assert_eq!(without.turn(asked.start, true).await, ReadBack::NoSuchLimit);
        assert!(without.running.is_none());
    }
}
