//! A client whose charge is compared with the GPU's own account after each call.

use super::Bench;
use super::caller::Caller;

/// A client under a share, and a client of the bare GPU that reads its account.
pub(crate) struct Watched {
    pub(crate) bench: Bench,
    pub(crate) client: Caller,
    truth: Caller,
}

impl Watched {
    pub(crate) fn new(profile: &str, memory: u64) -> Self {
        let bench = Bench::of_share(profile, memory);
        let (client, truth) = (bench.caller(true), bench.caller(false));
        let mut watched = Self { bench, client, truth };
        watched.client.init();
        watched.same();
        watched
    }

    /// Returns the bytes in use by the GPU's own account, which must equal the charge.
    pub(crate) fn same(&mut self) -> u64 {
        let used = self.truth.used(0);
        assert_eq!(self.charged(), used, "charged, and used by the GPU's account");
        used
    }

    /// Returns the bytes charged. With imports and shared granules they may be more than are in use.
    pub(crate) fn charged(&self) -> u64 {
        self.bench.usage("share").charged
    }

    /// Makes a call, which must return `code`, and compares. `used` bytes must be in use then.
    pub(crate) fn call(&mut self, line: &str, code: i32, used: u64) {
        assert_eq!(self.client.call(line), code, "{line}");
        assert_eq!(self.same(), used, "{line}");
    }

    /// Makes a call that must fail with any code, and compares.
    pub(crate) fn fails(&mut self, line: &str) {
        assert_ne!(self.client.call(line), 0, "{line}");
        self.same();
    }

    /// Ends the client. The share stays.
    pub(crate) fn kill(self) -> Bench {
        self.client.kill();
        self.bench
    }

    pub(crate) fn ok(&mut self, line: &str) {
        self.client.ok(line);
    }
}
