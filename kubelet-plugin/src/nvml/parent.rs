//! The plugin's side: starts the child, asks it, and ends it.

use super::call_lock::{CallLock, NotLocked};
use super::{ANSWERS_WITHIN, ARGUMENT, GpuDriver, MAX_LINE, MigAnswer, Question, STARTS_WITHIN, Sample, UNENDED};
use crate::publish::inventory::{Error, Gpus, List};
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};
use vgpu_mig::{Call, Code, MigDriver, Refused};
use vgpu_node::gpus::MemorySizes;

/// How often a call for an instance looks whether another question has ended.
const TRIED_EVERY: Duration = Duration::from_millis(2);

/// Asks NVML. Clones ask the same child, one question at a time.
#[derive(Clone, Debug)]
pub struct Nvml(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    program: PathBuf,
    driver_root: PathBuf,
    sizes: MemorySizes,
    /// The lock file of calls for instances. None: there are none.
    calls: Option<PathBuf>,
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
    /// The beginning of an answer.
    unread: Vec<u8>,
    /// The child has it too.
    calls: CallLock,
}

#[derive(Debug, Default)]
struct Process {
    child: Option<Child>,
    /// The child has answered, so the driver is loaded.
    has_answered: bool,
    /// A call for an instance was given up. Its answer may come until then.
    owes_until: Option<Instant>,
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
    #[error("the process with NVML is not started yet, or its driver still loads; it is tried again")]
    Loading,
    #[error("this turn's time for instances is over: the driver is slow, or has made many; it is tried again")]
    NoTime,
    #[error(
        "NVML has not answered a call for an instance in time; the call goes on, and no other call is made before it has ended"
    )]
    GivenUp,
    /// The process may belong to this plugin, to another one on the node, or to one that has ended.
    #[error(
        "a process with NVML has not ended a call for an instance and may still carry it out, so no other call is made before it has \
         ended; if that lasts, it hangs in the kernel (dmesg) and the node needs a reboot"
    )]
    Elsewhere,
    #[error("{0}, so no instance is made or destroyed")]
    NoLock(String),
    #[error("the process with NVML ended or failed: {0}; another one is started")]
    Failed(String),
}

impl From<NotLocked> for NvmlError {
    fn from(why: NotLocked) -> Self {
        match why {
            NotLocked::Busy => Self::Elsewhere,
            NotLocked::Failed(why) => Self::NoLock(why),
        }
    }
}

// === impl Nvml ===

impl Nvml {
    /// Without calls for instances. `program`: the path of this program. `sizes`: configured sizes of memory.
    #[must_use]
    pub fn new(program: &Path, driver_root: &Path, sizes: &MemorySizes) -> Self {
        Self::with_times(program, driver_root, sizes, None, AnswerTimes::USUAL)
    }

    /// With calls for instances. `calls`: a lock file that all instances of the plugin on this node have.
    #[must_use]
    pub fn with_instances(program: &Path, driver_root: &Path, sizes: &MemorySizes, calls: &Path) -> Self {
        Self::with_times(program, driver_root, sizes, Some(calls), AnswerTimes::USUAL)
    }

    fn with_times(
        program: &Path,
        driver_root: &Path,
        sizes: &MemorySizes,
        calls: Option<&Path>,
        times: AnswerTimes,
    ) -> Self {
        Self(Arc::new(Shared {
            program: program.to_path_buf(),
            driver_root: driver_root.to_path_buf(),
            sizes: sizes.clone(),
            calls: calls.map(Path::to_path_buf),
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
        if let Some(child) = process.take() {
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

    /// Blocks until there is a sample or its time has run out.
    fn ask_for_sample(&self, with_list: bool) -> Result<Sample, NvmlError> {
        let question = Question::Sample { with_list };
        let mut conversation = self.0.conversation.lock().unwrap_or_else(PoisonError::into_inner);
        let may_repeat = conversation.is_some();
        let mut ask = || {
            let sample = self.sample_of_child(&mut conversation, &question);
            self.end_unless_answered(&mut conversation, sample)
        };
        match ask() {
            // The child may have died long ago.
            Err(NvmlError::Failed(_)) if may_repeat => ask(),
            answer => answer,
        }
    }

    fn sample_of_child(
        &self,
        conversation: &mut Option<Conversation>,
        question: &Question,
    ) -> Result<Sample, NvmlError> {
        // A pause has ended the child of this conversation.
        if self.process().child.is_none() {
            *conversation = None;
        }
        let talk = match conversation {
            Some(talk) => talk,
            None => conversation.insert(self.start()?),
        };
        self.settle(talk)?;
        let within = match self.process().has_answered {
            true => self.0.times.other,
            false => self.0.times.first,
        };
        talk.send(question).map_err(|error| self.failed(error))?;
        let line = talk.answer(Instant::now() + within);
        let line = line.map_err(|error| self.late_or_failed(error, within))?;
        self.process().has_answered = true;
        serde_json::from_slice(&line).map_err(|error| NvmlError::Failed(error.to_string()))
    }

    /// Waits for the answer of a call that was given up.
    fn settle(&self, talk: &mut Conversation) -> Result<(), NvmlError> {
        let Some(until) = self.process().owes_until else {
            return Ok(());
        };
        let answer = talk.answer(until);
        answer.map_err(|error| self.late_or_failed(error, self.0.times.other))?;
        talk.calls.unlock();
        self.process().owes_until = None;
        Ok(())
    }

    /// Makes a call for an instance. Blocks until it is answered, or until `deadline` at most: then the call goes on, and the next
    /// sample waits for its end. Loads no driver, because that may take a minute: samples do.
    fn ask_for_instance(&self, question: &Question, deadline: Instant) -> Result<MigAnswer, NvmlError> {
        self.check_ready()?;
        let mut conversation = self.conversation_by(deadline)?;
        // The caller that asked meanwhile may have ended the child.
        self.check_ready()?;
        let talk = conversation.as_mut().ok_or(NvmlError::Loading)?;
        if Instant::now() >= deadline {
            return Err(NvmlError::NoTime);
        }
        talk.calls.try_lock()?;
        let answer = self.answer_of_child(talk, question, deadline);
        if matches!(answer, Err(NvmlError::GivenUp)) {
            return answer;
        }
        if answer.is_ok() {
            talk.calls.unlock();
        }
        self.end_unless_answered(&mut conversation, answer)
    }

    fn answer_of_child(
        &self,
        talk: &mut Conversation,
        question: &Question,
        deadline: Instant,
    ) -> Result<MigAnswer, NvmlError> {
        let until = Instant::now() + self.0.times.other;
        talk.send(question).map_err(|error| self.failed(error))?;
        match talk.answer(deadline.min(until)) {
            Ok(line) => serde_json::from_slice(&line).map_err(|error| NvmlError::Failed(error.to_string())),
            Err(error) if error.kind() == io::ErrorKind::TimedOut && deadline < until => {
                self.process().owes_until = Some(until);
                Err(NvmlError::GivenUp)
            }
            Err(error) => Err(self.late_or_failed(error, self.0.times.other)),
        }
    }

    /// Refuses a call for an instance for which it is known that it would wait.
    fn check_ready(&self) -> Result<(), NvmlError> {
        let process = self.process();
        match (&process.paused, &process.child) {
            (Some(reason), _) => Err(NvmlError::Paused(reason.clone())),
            (None, Some(_)) if process.owes_until.is_some() => Err(NvmlError::GivenUp),
            (None, Some(_)) if process.has_answered => Ok(()),
            (None, _) => Err(NvmlError::Loading),
        }
    }

    /// Waits until no other question is asked.
    fn conversation_by(&self, deadline: Instant) -> Result<MutexGuard<'_, Option<Conversation>>, NvmlError> {
        loop {
            match self.0.conversation.try_lock() {
                Ok(conversation) => return Ok(conversation),
                Err(TryLockError::Poisoned(poisoned)) => return Ok(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) if Instant::now() >= deadline => return Err(NvmlError::NoTime),
                Err(TryLockError::WouldBlock) => std::thread::sleep(TRIED_EVERY),
            }
        }
    }

    /// Ends a child that has not answered.
    fn end_unless_answered<A>(
        &self,
        conversation: &mut Option<Conversation>,
        answer: Result<A, NvmlError>,
    ) -> Result<A, NvmlError> {
        if answer.is_err() {
            *conversation = None;
            if let Some(child) = self.process().take() {
                self.end(child);
            }
        }
        answer
    }

    fn failed(&self, error: io::Error) -> NvmlError {
        match self.process().paused.clone() {
            Some(reason) => NvmlError::Paused(reason),
            None => NvmlError::Failed(error.to_string()),
        }
    }

    fn late_or_failed(&self, error: io::Error, within: Duration) -> NvmlError {
        match error.kind() {
            io::ErrorKind::TimedOut => NvmlError::Late(within.as_secs()),
            _ => self.failed(error),
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
        let (calls, stdout) = CallLock::open(self.0.calls.as_deref());
        command.stdin(Stdio::from(OwnedFd::from(theirs))).stdout(stdout);
        *process = Process {
            child: Some(command.spawn().map_err(failed)?),
            ..Process::default()
        };
        Ok(Conversation {
            socket: ours,
            unread: Vec::new(),
            calls,
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
        self.ask_for_sample(with_list)
            .unwrap_or_else(|error| Sample::failed(&failed(error), with_list))
    }
}

impl MigDriver for Nvml {
    fn call(&self, gpu: &str, call: &Call) -> MigAnswer {
        // For another question and for this one.
        self.call_by(gpu, call, Instant::now() + 2 * self.0.times.other)
    }

    fn call_by(&self, gpu: &str, call: &Call, deadline: Instant) -> MigAnswer {
        let (gpu, call) = (gpu.to_owned(), call.clone());
        let name = format!("{call:?}");
        let answer = self.ask_for_instance(&Question::Mig { gpu, call }, deadline);
        answer.unwrap_or_else(|error| Err(Refused::new(&name, Code::NoAnswer, &error.to_string())))
    }
}

impl Gpus for Nvml {
    fn list(&self) -> Result<List, Error> {
        let unasked = || Err(Error::Silent("it answered another question".into()));
        self.sample(true).list.unwrap_or_else(unasked)
    }
}

// === impl AnswerTimes ===

impl AnswerTimes {
    const USUAL: Self = Self {
        first: STARTS_WITHIN,
        other: ANSWERS_WITHIN,
    };
}

// === impl Process ===

impl Process {
    /// Takes the child, to end it.
    fn take(&mut self) -> Option<Child> {
        (self.has_answered, self.owes_until) = (false, None);
        self.child.take()
    }
}

// === impl Conversation ===

impl Conversation {
    fn send(&mut self, question: &Question) -> io::Result<()> {
        let mut line = serde_json::to_vec(question)?;
        line.push(b'\n');
        self.socket.write_all(&line)
    }

    /// Reads the next answer.
    fn answer(&mut self, deadline: Instant) -> io::Result<Vec<u8>> {
        read_line(&mut self.socket, &mut self.unread, deadline)
    }
}

/// Reads up to the end of a line. What has come before `deadline` stays in `line` for the next call.
fn read_line(socket: &mut UnixStream, line: &mut Vec<u8>, deadline: Instant) -> io::Result<Vec<u8>> {
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
            return Ok(std::mem::take(line));
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

    /// Nothing is late.
    const PATIENT: AnswerTimes = AnswerTimes {
        other: Duration::from_secs(300),
        ..TIMES
    };

    /// A child that is a shell script. `$1` to `$3` are its arguments; questions come from its standard input, which is
    /// where the answers go.
    fn script(text: &str) -> (tempfile::TempDir, Nvml) {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("child");
        std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).expect("written");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("set");
        let nvml = in_folder(dir.path(), TIMES);
        (dir, nvml)
    }

    /// The child of this folder, as another plugin asks it too.
    fn in_folder(folder: &Path, times: AnswerTimes) -> Nvml {
        let (program, calls) = (folder.join("child"), folder.join("plugin/calls"));
        Nvml::with_times(&program, folder, &MemorySizes::default(), Some(&calls), times)
    }

    const EMPTY: &str = r#"{"list":{"Ok":{"gpus":[],"left_out":[]}},"gpus":{"Ok":[]}}"#;

    fn answer(text: &str) -> String {
        format!("read q; echo '{text}' >&0")
    }

    const HALF: Call = Call::Create {
        profile: 9,
        placement: vgpu_node::gpus::Placement { start: 4, size: 4 },
    };

    /// The answer to [`HALF`].
    fn created() -> String {
        answer(&serde_json::to_string(&MigAnswer::Ok(vgpu_mig::Answer::Created(2))).expect("JSON"))
    }

    /// Why there was no answer.
    fn silence(answer: MigAnswer) -> String {
        let refused = answer.expect_err("no answer");
        assert_eq!(refused.code, Code::NoAnswer);
        refused.reason
    }

    fn later() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    fn until(what: &str, mut condition: impl FnMut() -> bool) {
        let start = Instant::now();
        while !condition() {
            assert!(start.elapsed() < Duration::from_secs(60), "{what}");
            std::thread::sleep(Duration::from_millis(1));
        }
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
        let (dir, nvml) = script(&format!(
            r#"{}; read q; echo "$q" >> "$2/calls"; exit 1"#,
            answer(EMPTY)
        ));
        assert_eq!(nvml.list(), Ok(List::default()));
        let said = silence(nvml.call("GPU-a", &HALF));
        assert!(said.contains("ended or failed"), "{said}");
        let calls = || std::fs::read_to_string(dir.path().join("calls")).unwrap_or_default();
        assert_eq!(calls().lines().count(), 1, "{}", calls());
        nvml.pause("for an upgrade");
        let said = silence(nvml.call("GPU-a", &HALF));
        assert!(said.contains("for an upgrade"), "{said}");
        assert_eq!(calls().lines().count(), 1, "{}", calls());
        let (_dir, nvml) = script(&format!("{}; {}", answer(EMPTY), created()));
        assert_eq!(nvml.list(), Ok(List::default()));
        assert_eq!(
            nvml.create("GPU-a", 9, vgpu_node::gpus::Placement { start: 4, size: 4 }),
            Ok(2)
        );
        // A plugin that has no lock file makes none.
        let (dir, _) = script(&answer(EMPTY));
        let nvml = Nvml::with_times(
            &dir.path().join("child"),
            dir.path(),
            &MemorySizes::default(),
            None,
            TIMES,
        );
        assert_eq!(nvml.list(), Ok(List::default()));
        let said = silence(nvml.call("GPU-a", &HALF));
        assert!(said.contains("no lock file"), "{said}");
    }

    /// That may take a minute, and the claims of the node wait for a call.
    #[test]
    fn no_call_for_an_instance_waits_for_a_driver_that_loads() {
        let (_dir, nvml) = script("read q; exec sleep 1000");
        let said = silence(nvml.call_by("GPU-a", &HALF, later()));
        assert!(said.contains("still loads") && nvml.child().is_none(), "{said}");
        let loading = std::thread::spawn({
            let nvml = nvml.clone();
            move || nvml.list()
        });
        until("a child", || nvml.child().is_some());
        let said = silence(nvml.call_by("GPU-a", &HALF, later()));
        assert!(said.contains("still loads"), "{said}");
        nvml.pause("the end of the test");
        assert!(loading.join().expect("no panic").is_err());
    }

    #[test]
    fn a_call_that_is_not_answered_in_its_time_goes_on_and_others_do_not_wait_for_it() {
        let waits = r#"read q; echo >> "$2/begun"; while [ ! -e "$2/go" ]; do sleep 0.01; done"#;
        let answers = created().replacen("read q; ", "", 1);
        let text = format!("{0}; {waits}; {answers}; {0}; {1}", answer(EMPTY), created());
        let (dir, _) = script(&text);
        let nvml = in_folder(dir.path(), PATIENT);
        assert_eq!(nvml.list(), Ok(List::default()));
        let child = nvml.child();
        // On a busy machine the time may be over before the call is sent.
        let give_up = || silence(nvml.call_by("GPU-a", &HALF, Instant::now() + Duration::from_millis(50)));
        until("a call that is given up", || give_up().contains("the call goes on"));
        let said = silence(nvml.call_by("GPU-a", &Call::Instances, later()));
        assert!(said.contains("the call goes on"), "at once: {said}");
        std::fs::write(dir.path().join("go"), "").expect("written");
        assert_eq!(nvml.list(), Ok(List::default()), "not the answer to the call");
        assert_eq!(
            (nvml.child(), nvml.call_by("GPU-a", &HALF, later())),
            (child, Ok(vgpu_mig::Answer::Created(2)))
        );
        let begun = std::fs::read_to_string(dir.path().join("begun")).expect("begun");
        assert_eq!(begun.lines().count(), 1);
        // In the past: it is not sent.
        let said = silence(nvml.call_by("GPU-a", &HALF, Instant::now()));
        assert!(said.contains("time for instances is over"), "{said}");
    }

    /// Its helper keeps what the child had open, as a child does that hangs in the kernel.
    #[test]
    fn while_a_child_may_carry_out_a_call_no_plugin_on_the_node_makes_one() {
        let hangs = r#"sleep 60 <&- 2>&- & echo $! > "$2/hung.new"; mv "$2/hung.new" "$2/hung"; exec sleep 60"#;
        let text = format!(
            r#"{}; if [ ! -e "$2/hung" ]; then read q; {hangs}; fi; {}; {}"#,
            answer(EMPTY),
            created(),
            created()
        );
        let (dir, _) = script(&text);
        let [nvml, next] = [(); 2].map(|()| in_folder(dir.path(), PATIENT));
        assert_eq!(nvml.list(), Ok(List::default()));
        let asking = std::thread::spawn({
            let nvml = nvml.clone();
            move || nvml.call("GPU-a", &HALF)
        });
        let path = dir.path().join("hung");
        until("a child that hangs", || path.exists());
        nvml.pause("for an upgrade");
        let said = silence(asking.join().expect("no panic"));
        assert!(said.contains("for an upgrade"), "{said}");
        nvml.resume();
        let hung: i32 = std::fs::read_to_string(path)
            .expect("written")
            .trim()
            .parse()
            .expect("a PID");
        // The plugin has another child, and then another plugin follows: nobody may believe a list that may change.
        for plugin in [&nvml, &next] {
            assert_eq!(plugin.list(), Ok(List::default()), "samples go on");
            let said = silence(plugin.call("GPU-a", &HALF));
            assert!(
                said.contains("may still carry it out") && said.contains("reboot"),
                "{said}"
            );
        }
        drop(nvml);
        let hung = rustix::process::Pid::from_raw(hung).expect("a PID");
        rustix::process::kill_process(hung, rustix::process::Signal::KILL).expect("killed");
        until("the end of the child that hung", || next.call("GPU-a", &HALF).is_ok());
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
            if let Ok(line) = read_line(&mut ours, &mut Vec::new(), Instant::now() + Duration::from_secs(10)) {
                prop_assert!(line.ends_with(b"\n"));
                let _ = serde_json::from_slice::<Sample>(&line);
            }
        }
    }
}
