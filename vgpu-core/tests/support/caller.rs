//! A client that makes single calls for a test.

use super::serve::Serving;
use super::text::number;
use std::process::Command;

pub(crate) struct Caller(Serving);

impl Caller {
    /// A caller with the environment of `client`.
    pub(crate) fn like(client: &Command) -> Self {
        let mut command = Command::new(client.get_program());
        command.arg("calls");
        for (name, value) in client.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        Self(Serving::new(command))
    }

    /// The answer to a call, as the client prints it.
    pub(crate) fn say(&mut self, line: &str) -> String {
        self.0.tell(line);
        let answer = self.0.line();
        assert!(!answer.is_empty(), "{line}: the client is gone");
        answer
    }

    /// The result of a call.
    pub(crate) fn call(&mut self, line: &str) -> i32 {
        self.say(line).parse().unwrap_or_else(|_| panic!("{line}: no code"))
    }

    /// A call that must succeed.
    #[track_caller]
    pub(crate) fn ok(&mut self, line: &str) {
        self.gives(line, 0);
    }

    /// A call with this result.
    #[track_caller]
    pub(crate) fn gives(&mut self, line: &str, code: i32) {
        assert_eq!(self.call(line), code, "{line}");
    }

    pub(crate) fn get(&mut self, slot: u32) -> u64 {
        self.say(&format!("get {slot}")).parse().expect("a number")
    }

    /// Makes device 0's primary context current.
    pub(crate) fn init(&mut self) {
        self.ok("cuInit 0");
        self.ok("cuDevicePrimaryCtxRetain >9001 0");
        self.ok("cuCtxSetCurrent @9001");
    }

    /// The bytes in use on a GPU according to NVML.
    pub(crate) fn used(&mut self, gpu: usize) -> u64 {
        number(&self.say(&format!("look {gpu}")), 0)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0.pid()
    }

    pub(crate) fn kill(self) {
        self.0.kill();
    }
}
