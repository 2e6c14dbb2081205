//! Clients that do one step at a time for a test.

use super::text::number;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};

/// A client that waits for the test in its step `serve` or `wait`. It is killed when this value is dropped.
pub(crate) struct Serving {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Serving {
    pub(crate) fn new(mut command: Command) -> Self {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a client");
        let lines = BufReader::new(child.stdout.take().expect("a pipe"));
        Self { child, lines }
    }

    /// A client whose stderr is kept for [`Self::said`].
    pub(crate) fn heard(mut command: Command) -> Self {
        command.stderr(Stdio::piped());
        Self::new(command)
    }

    /// Returns the next line that it prints, or an empty one if it has ended.
    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).expect("a line");
        line.trim().into()
    }

    /// Checks that its next lines report these steps with the result 0.
    #[track_caller]
    pub(crate) fn did(&mut self, steps: &[&str]) {
        for step in steps.iter().flat_map(|steps| steps.split(' ')) {
            assert_eq!(self.line(), format!("{} 0", name(step)), "{steps:?}");
        }
    }

    pub(crate) fn tell(&mut self, line: &str) {
        let stdin = self.child.stdin.as_mut().expect("a pipe");
        writeln!(stdin, "{line}").expect("it reads");
    }

    /// Lets it do a step. Returns its line without the step's name.
    pub(crate) fn ask(&mut self, step: &str) -> String {
        self.tell(step);
        let line = self.line();
        let answer = line.strip_prefix(name(step));
        answer.unwrap_or_else(|| panic!("{step}: {line:?}")).trim().into()
    }

    /// Lets the client continue after its step `wait`.
    pub(crate) fn go_on(&mut self) {
        self.tell("on");
    }

    /// Returns the bytes that it sees free.
    pub(crate) fn free(&mut self) -> u64 {
        number(&self.ask("info"), 1)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    #[allow(unsafe_code)]
    pub(crate) fn signal(&self, signal: libc::c_int) {
        let pid = self.pid().try_into().expect("a PID");
        // SAFETY: our own child, not waited for yet.
        assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
    }

    /// Sends SIGSTOP and waits until all threads are stopped.
    #[allow(unsafe_code)]
    pub(crate) fn stop(&self) {
        self.signal(libc::SIGSTOP);
        let (pid, mut status) = (self.pid().try_into().expect("a PID"), 0);
        // SAFETY: our own child; `status` is to be written.
        let stopped = unsafe { libc::waitpid(pid, &mut status, libc::WUNTRACED) };
        assert!(stopped == pid && libc::WIFSTOPPED(status), "{status:#x}");
    }

    /// Kills it and waits for its end.
    pub(crate) fn kill(self) {
        drop(self);
    }

    /// Closes its stdin and returns how it ends.
    pub(crate) fn end(mut self) -> ExitStatus {
        self.child.wait().expect("it ends")
    }

    /// Closes its stdin and returns what it has printed on stderr. It must have been `heard`, and must succeed.
    pub(crate) fn said(mut self) -> String {
        drop(self.child.stdin.take());
        let mut said = String::new();
        let mut stderr = self.child.stderr.take().expect("a pipe");
        stderr.read_to_string(&mut said).expect("text");
        let status = self.end();
        assert!(status.success(), "{status}: {said}");
        said
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The name of a step, without its value.
fn name(step: &str) -> &str {
    step.split(':').next().unwrap_or_default()
}
