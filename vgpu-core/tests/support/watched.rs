//! A client whose charges are compared, after each of its calls, with the GPU's own account.

use super::Bench;
use super::caller::Caller;

/// One client under a share, and a look from outside.
pub(crate) struct Watched {
    pub(crate) bench: Bench,
    pub(crate) client: Caller,
    truth: Caller,
}

impl Watched {
    pub(crate) fn new(profile: &str, memory: u64) -> Self {
        let bench = Bench::with_profile(profile);
        bench.share("share", 0, 0, memory);
        let (client, truth) = (bench.caller(true), bench.caller(false));
        let mut watched = Self { bench, client, truth };
        watched.client.init();
        watched.same();
        watched
    }

    /// Bytes in use by the GPU's own account, which the charge must equal.
    pub(crate) fn same(&mut self) -> u64 {
        let used = self.truth.used(0);
        assert_eq!(self.charged(), used, "charged, and used by the GPU's account");
        used
    }

    /// Bytes charged, which with imports and shared granules may be more than are in use.
    pub(crate) fn charged(&self) -> u64 {
        self.bench.usage("share").charged
    }

    /// Calls, compares, and expects `code` and `used` bytes.
    pub(crate) fn call(&mut self, line: &str, code: i32, used: u64) {
        assert_eq!(self.client.call(line), code, "{line}");
        assert_eq!(self.same(), used, "{line}");
    }

    /// A call that must fail, with whatever code, and leave the charge right.
    pub(crate) fn fails(&mut self, line: &str) {
        assert_ne!(self.client.call(line), 0, "{line}");
        self.same();
    }

    /// Ends the client; the share is still there.
    pub(crate) fn kill(self) -> Bench {
        self.client.kill();
        self.bench
    }

    pub(crate) fn ok(&mut self, line: &str) {
        self.client.ok(line);
    }
}
