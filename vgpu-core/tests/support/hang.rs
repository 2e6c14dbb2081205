//! Turns a hang into a test failure.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Ends the test program when a test takes longer: a hang is a failure, not an endless run.
pub(crate) struct HangGuard(Arc<AtomicBool>);

impl HangGuard {
    pub(crate) fn new(what: &'static str, limit: Duration) -> Self {
        let done = Arc::new(AtomicBool::new(false));
        let end = Instant::now() + limit;
        let seen = Arc::clone(&done);
        std::thread::spawn(move || {
            while Instant::now() < end {
                std::thread::sleep(Duration::from_millis(100));
                if seen.load(Ordering::Relaxed) {
                    return;
                }
            }
            eprintln!("{what}: still not done after {limit:?}: something hangs");
            std::process::abort();
        });
        Self(done)
    }
}

impl Drop for HangGuard {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The guard of a test that takes seconds.
pub(crate) fn guard(what: &'static str) -> HangGuard {
    HangGuard::new(what, Duration::from_secs(300))
}
