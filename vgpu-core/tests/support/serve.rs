//! Clients that make one step at a time, as the test tells them.

use super::text::number;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};

/// A client that goes on as it is told, by its step `serve` or `wait`; killed when dropped.
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

    /// One whose stderr is kept for `said`.
    pub(crate) fn heard(mut command: Command) -> Self {
        command.stderr(Stdio::piped());
        Self::new(command)
    }

    /// The next line that it prints; empty: it ended.
    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).expect("a line");
        line.trim().into()
    }

    /// Its next lines say that it did these steps, each with the answer 0.
    #[track_caller]
    pub(crate) fn did(&mut self, steps: &[&str]) {
        for step in steps {
            assert_eq!(self.line(), format!("{} 0", name(step)), "{steps:?}");
        }
    }

    pub(crate) fn tell(&mut self, line: &str) {
        let stdin = self.child.stdin.as_mut().expect("a pipe");
        writeln!(stdin, "{line}").expect("it reads");
    }

    /// Has it do a step: its line without the step's name.
    pub(crate) fn ask(&mut self, step: &str) -> String {
        self.tell(step);
        let line = self.line();
        let answer = line.strip_prefix(name(step));
        answer.unwrap_or_else(|| panic!("{step}: {line:?}")).trim().into()
    }

    /// Lets it go on from its step `wait`.
    pub(crate) fn go_on(&mut self) {
        self.tell("on");
    }

    /// Bytes that it sees free.
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

    /// SIGSTOP, and the wait until its last thread stands still.
    #[allow(unsafe_code)]
    pub(crate) fn stop(&self) {
        self.signal(libc::SIGSTOP);
        let (pid, mut status) = (self.pid().try_into().expect("a PID"), 0);
        // SAFETY: our own child; `status` is to be written.
        let stopped = unsafe { libc::waitpid(pid, &mut status, libc::WUNTRACED) };
        assert!(stopped == pid && libc::WIFSTOPPED(status), "{status:#x}");
    }

    /// SIGKILL, and the wait for its end.
    pub(crate) fn kill(self) {
        drop(self);
    }

    /// Closes its stdin: how it ends.
    pub(crate) fn end(mut self) -> ExitStatus {
        self.child.wait().expect("it ends")
    }

    /// Closes its stdin: what one that is `heard` said on stderr until its end, which is a good one.
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

/// A step without its value.
fn name(step: &str) -> &str {
    step.split(':').next().unwrap_or_default()
}
