//! The plugin's side: starts the child, asks it, and ends it.

use super::{ANSWERS_WITHIN, ARGUMENT, GpuDriver, MAX_LINE, MigAnswer, Question, STARTS_WITHIN, Sample, UNENDED};
use crate::publish::inventory::{Error, Gpus, List};
use serde::de::DeserializeOwned;
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use vgpu_mig::{Call, Code, MigDriver, Refused};
use vgpu_node::gpus::MemorySizes;

/// Asks NVML. Clones ask the same child, one question at a time.
#[derive(Clone, Debug)]
pub struct Nvml(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    program: PathBuf,
    driver_root: PathBuf,
    sizes: MemorySizes,
    times: AnswerTimes,
    /// Locked by the caller that asks.
    conversation: Mutex<Option<Conversation>>,
    process: Mutex<Process>,
    /// Children that were killed and have not ended.
    unended: Arc<AtomicUsize>,
}

/// How long the first answer of a child may take, and each later one.
#[derive(Clone, Copy, Debug)]
struct AnswerTimes {
    first: Duration,
    other: Duration,
}

#[derive(Debug)]
struct Conversation {
    socket: UnixStream,
    has_answered: bool,
}

#[derive(Debug, Default)]
struct Process {
    child: Option<Child>,
    /// Why no child may be started.
    paused: Option<String>,
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NvmlError {
    #[error("NVML is not asked: {0}")]
    Paused(String),
    #[error(
        "NVML has not answered for {0} s and its process was ended; check nvidia-smi and the kernel's log (dmesg) on the node"
    )]
    Late(u64),
    #[error("{UNENDED} processes with NVML hang in the kernel and cannot be ended; the node needs a reboot")]
    Stuck,
    /// It may still carry out a call for an instance.
    #[error("a former process with NVML has been killed and has not ended yet; kubelet retries")]
    Ending,
    #[error("the process with NVML ended or failed: {0}; another one is started")]
    Failed(String),
}

// === impl Nvml ===

impl Nvml {
    /// `program`: the path of this program. `sizes`: configured sizes of memory.
    #[must_use]
    pub fn new(program: &Path, driver_root: &Path, sizes: &MemorySizes) -> Self {
        let times = AnswerTimes {
            first: STARTS_WITHIN,
            other: ANSWERS_WITHIN,
        };
        Self::with_times(program, driver_root, sizes, times)
    }

    fn with_times(program: &Path, driver_root: &Path, sizes: &MemorySizes, times: AnswerTimes) -> Self {
        Self(Arc::new(Shared {
            program: program.to_path_buf(),
            driver_root: driver_root.to_path_buf(),
            sizes: sizes.clone(),
            times,
            conversation: Mutex::default(),
            process: Mutex::default(),
            unended: Arc::default(),
        }))
    }

    /// Ends the child, also while it answers, and starts none until [`resume`](Self::resume). Does not wait.
    pub fn pause(&self, reason: &str) {
        let mut process = self.process();
        process.paused = Some(reason.to_owned());
        if let Some(child) = process.child.take() {
            self.end(child);
        }
    }

    pub fn resume(&self) {
        self.process().paused = None;
    }

    /// The child's process ID, for tests and for logs.
    #[must_use]
    pub fn child(&self) -> Option<u32> {
        self.process().child.as_ref().map(Child::id)
    }

    /// Blocks until there is an answer or its time has run out.
    fn ask<A: DeserializeOwned>(&self, question: &Question) -> Result<A, NvmlError> {
        let mut conversation = self.0.conversation.lock().unwrap_or_else(PoisonError::into_inner);
        // A call for an instance that was carried out would be refused the second time, as if nothing had been done.
        let is_sample = matches!(question, Question::Sample { .. });
        let may_repeat = conversation.is_some() && is_sample;
        // A call from before a list must not change later what that list showed.
        let is_ending = self.0.unended.load(Ordering::Acquire) > 0 && self.process().paused.is_none();
        if is_ending && !is_sample {
            return Err(NvmlError::Ending);
        }
        match self.ask_once(&mut conversation, question) {
            // The child may have died long ago.
            Err(NvmlError::Failed(_)) if may_repeat => self.ask_once(&mut conversation, question),
            answer => answer,
        }
    }

    /// Asks once, and ends the child if it does not answer.
    fn ask_once<A: DeserializeOwned>(
        &self,
        conversation: &mut Option<Conversation>,
        question: &Question,
    ) -> Result<A, NvmlError> {
        let answer = self.ask_child(conversation, question);
        if answer.is_err() {
            *conversation = None;
            if let Some(child) = self.process().child.take() {
                self.end(child);
            }
        }
        answer
    }

    fn ask_child<A: DeserializeOwned>(
        &self,
        conversation: &mut Option<Conversation>,
        question: &Question,
    ) -> Result<A, NvmlError> {
        // A pause has ended the child of this conversation.
        if self.process().child.is_none() {
            *conversation = None;
        }
        let talk = match conversation {
            Some(talk) => talk,
            None => conversation.insert(self.start()?),
        };
        let failed = |error: io::Error| match self.process().paused.clone() {
            Some(reason) => NvmlError::Paused(reason),
            None => NvmlError::Failed(error.to_string()),
        };
        let within = match talk.has_answered {
            true => self.0.times.other,
            false => self.0.times.first,
        };
        let mut line = serde_json::to_vec(question).map_err(|error| NvmlError::Failed(error.to_string()))?;
        line.push(b'\n');
        talk.socket.write_all(&line).map_err(failed)?;
        match read_line(&mut talk.socket, Instant::now() + within) {
            Ok(line) => {
                talk.has_answered = true;
                serde_json::from_slice(&line).map_err(|error| NvmlError::Failed(error.to_string()))
            }
            Err(error) if error.kind() == io::ErrorKind::TimedOut => Err(NvmlError::Late(within.as_secs())),
            Err(error) => Err(failed(error)),
        }
    }

    fn start(&self) -> Result<Conversation, NvmlError> {
        if self.0.unended.load(Ordering::Acquire) >= UNENDED {
            return Err(NvmlError::Stuck);
        }
        let failed = |error: io::Error| NvmlError::Failed(error.to_string());
        let mut process = self.process();
        if let Some(reason) = &process.paused {
            return Err(NvmlError::Paused(reason.clone()));
        }
        let (ours, theirs) = UnixStream::pair().map_err(failed)?;
        let mut command = Command::new(&self.0.program);
        let sizes = serde_json::to_string(&self.0.sizes).map_err(|error| NvmlError::Failed(error.to_string()))?;
        command.arg(ARGUMENT).arg(&self.0.driver_root).arg(sizes);
        command.stdin(Stdio::from(OwnedFd::from(theirs))).stdout(Stdio::null());
        process.child = Some(command.spawn().map_err(failed)?);
        Ok(Conversation {
            socket: ours,
            has_answered: false,
        })
    }

    /// Kills a child, and has another thread wait for its end.
    fn end(&self, mut child: Child) {
        let unended = self.0.unended.clone();
        unended.fetch_add(1, Ordering::AcqRel);
        // Fails only if it has ended already.
        let _ = child.kill();
        let waits = std::thread::Builder::new().stack_size(64 << 10);
        let waiting = waits.spawn(move || {
            let _ = child.wait();
            unended.fetch_sub(1, Ordering::AcqRel);
        });
        if let Err(error) = waiting {
            tracing::warn!("nobody waits for the end of a process with NVML: {error}");
        }
    }

    fn process(&self) -> MutexGuard<'_, Process> {
        self.0.process.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl GpuDriver for Nvml {
    fn sample(&self, with_list: bool) -> Sample {
        let failed = |error| match error {
            NvmlError::Paused(why) => Error::Paused(why),
            error => Error::Silent(error.to_string()),
        };
        self.ask(&Question::Sample { with_list })
            .unwrap_or_else(|error| Sample::failed(&failed(error), with_list))
    }
}

impl MigDriver for Nvml {
    fn call(&self, gpu: &str, call: &Call) -> MigAnswer {
        let (gpu, call) = (gpu.to_owned(), call.clone());
        let name = format!("{call:?}");
        let answer = self.ask::<MigAnswer>(&Question::Mig { gpu, call });
        answer.unwrap_or_else(|error| Err(Refused::new(&name, Code::NoAnswer, &error.to_string())))
    }
}

impl Gpus for Nvml {
    fn list(&self) -> Result<List, Error> {
        let unasked = || Err(Error::Silent("it answered another question".into()));
        self.sample(true).list.unwrap_or_else(unasked)
    }
}

/// Reads up to the end of a line.
fn read_line(socket: &mut UnixStream, deadline: Instant) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    let mut chunk = [0; 4096];
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        socket.set_read_timeout(Some(left))?;
        let count = match socket.read(&mut chunk) {
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => continue,
            read => read?,
        };
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        line.extend_from_slice(&chunk[..count]);
        if line.len() > MAX_LINE {
            return Err(io::Error::other(format!("an answer of more than {MAX_LINE} bytes")));
        }
        if line.ends_with(b"\n") {
            return Ok(line);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::os::unix::fs::PermissionsExt as _;

    const TIMES: AnswerTimes = AnswerTimes {
        first: Duration::from_secs(30),
        other: Duration::from_millis(300),
    };

    /// A child that is a shell script. `$1` to `$3` are its arguments; questions come from its standard input, which is
    /// where the answers go.
    fn script(text: &str) -> (tempfile::TempDir, Nvml) {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("child");
        std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).expect("written");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("set");
        let nvml = Nvml::with_times(&path, dir.path(), &MemorySizes::default(), TIMES);
        (dir, nvml)
    }

    const EMPTY: &str = r#"{"list":{"Ok":{"gpus":[],"left_out":[]}},"gpus":{"Ok":[]}}"#;

    fn answer(text: &str) -> String {
        format!("read q; echo '{text}' >&0")
    }

    #[test]
    fn a_child_that_ended_is_replaced_and_so_is_one_that_hangs_or_talks_nonsense() {
        let good = Ok(List::default());
        // The child ends after each answer.
        let (_dir, nvml) = script(&answer(EMPTY));
        assert_eq!((nvml.list(), nvml.list()), (good.clone(), good.clone()));
        // The child hangs at the second question. Another one gets the third, and ends with its questions: a process that
        // outlives the test would keep the pipe of its standard error open, and with it the stage of this test.
        let (_dir, nvml) = script(&format!("{}; read q && exec sleep 1000", answer(EMPTY)));
        assert_eq!(nvml.list(), good);
        let first = nvml.child().expect("a child");
        let error = nvml.list().expect_err("it hangs").to_string();
        assert!(error.contains("has not answered for 0 s"), "{error}");
        assert_eq!(nvml.list(), good);
        assert_ne!(nvml.child().expect("a child"), first);
        for nonsense in ["", "{", r#"{"list":null,"gpus":{"Ok":[]}}"#] {
            let (_dir, nvml) = script(&answer(nonsense));
            assert!(matches!(nvml.list(), Err(Error::Silent(_))), "{nonsense}");
        }
        let (_dir, nvml) = script("exit 1");
        let error = nvml.list().expect_err("it ends at once").to_string();
        assert!(error.contains("ended or failed"), "{error}");
        let nvml = Nvml::new(Path::new("/none"), Path::new("/"), &MemorySizes::default());
        assert!(nvml.list().is_err() && nvml.sample(false).gpus.is_err());
    }

    #[test]
    fn a_pause_ends_a_child_in_the_middle_of_a_question() {
        let (_dir, nvml) = script("exec sleep 1000");
        let asking = std::thread::spawn({
            let nvml = nvml.clone();
            move || nvml.list()
        });
        let pid = loop {
            if let Some(pid) = nvml.child() {
                break pid;
            }
            std::thread::yield_now();
        };
        nvml.pause("for an upgrade");
        let error = asking.join().expect("no panic").expect_err("ended").to_string();
        assert!(error.contains("for an upgrade"), "{error}");
        while Path::new(&format!("/proc/{pid}")).exists() {
            std::thread::yield_now();
        }
        assert!(nvml.list().is_err() && nvml.child().is_none(), "none is started");
        nvml.resume();
        let asked = std::thread::spawn({
            let nvml = nvml.clone();
            move || nvml.list()
        });
        while nvml.child().is_none() {
            std::thread::yield_now();
        }
        nvml.pause("the end of the test");
        assert!(asked.join().expect("no panic").is_err());
    }

    #[test]
    fn a_call_for_an_instance_is_sent_once_and_never_while_paused() {
        // Each child carries out one call and dies before it answers.
        let (dir, nvml) = script(r#"read q; case $q in *Mig*) echo "$q" >> "$2/calls"; exit 1;; esac"#);
        let call = Call::Create {
            profile: 9,
            placement: vgpu_node::gpus::Placement { start: 4, size: 4 },
        };
        let refused = nvml.call("GPU-a", &call).expect_err("the child died");
        assert_eq!(refused.code, Code::NoAnswer);
        let calls = || std::fs::read_to_string(dir.path().join("calls")).unwrap_or_default();
        assert_eq!(calls().lines().count(), 1, "{}", calls());
        nvml.pause("for an upgrade");
        let refused = nvml.call("GPU-a", &call).expect_err("paused");
        assert!(
            refused.code == Code::NoAnswer && refused.reason.contains("for an upgrade"),
            "{refused}"
        );
        assert_eq!(calls().lines().count(), 1, "{}", calls());
        nvml.resume();
        nvml.0.unended.store(1, Ordering::Release);
        let refused = nvml
            .call("GPU-a", &call)
            .expect_err("a child may still carry out a call");
        assert!(
            refused.code == Code::NoAnswer && refused.reason.contains("has not ended"),
            "{refused}"
        );
        assert_eq!(calls().lines().count(), 1, "{}", calls());
        let created = serde_json::to_string(&MigAnswer::Ok(vgpu_mig::Answer::Created(2))).expect("JSON");
        let (_dir, nvml) = script(&answer(&created));
        assert_eq!(
            nvml.create("GPU-a", 9, vgpu_node::gpus::Placement { start: 4, size: 4 }),
            Ok(2)
        );
    }

    #[test]
    fn children_that_cannot_be_killed_are_few() {
        let (_dir, nvml) = script(&answer(EMPTY));
        nvml.0.unended.store(UNENDED, Ordering::Release);
        let error = nvml.list().expect_err("none more").to_string();
        assert!(error.contains("needs a reboot"), "{error}");
        nvml.0.unended.store(UNENDED - 1, Ordering::Release);
        assert_eq!(nvml.list(), Ok(List::default()));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_bytes_of_a_child_are_an_answer_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let (mut ours, mut theirs) = UnixStream::pair().expect("a pair");
            theirs.write_all(&bytes).expect("written");
            drop(theirs);
            if let Ok(line) = read_line(&mut ours, Instant::now() + Duration::from_secs(10)) {
                prop_assert!(line.ends_with(b"\n"));
                let _ = serde_json::from_slice::<Sample>(&line);
            }
        }
    }
}
