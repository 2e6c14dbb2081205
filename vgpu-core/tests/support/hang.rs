//! Turns a hang into a test failure.

use super::chance::setting;
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

thread_local! {
    /// This thread has a guard with a limit of its own.
    static HAS_OWN: Cell<bool> = const { Cell::new(false) };
}

/// Ends the test program if a test takes longer than a limit, so that a hang is a failure and not an endless run.
pub(crate) struct HangGuard {
    done: Arc<AtomicBool>,
    is_own: bool,
}

impl HangGuard {
    /// A guard with its own limit, to be created before the test's benches.
    pub(crate) fn new(what: &str, limit: Duration) -> Self {
        HAS_OWN.set(true);
        Self::begin(what.to_owned(), limit, true)
    }

    /// The guard of a bench. None: the test has its own.
    pub(crate) fn of_bench() -> Option<Self> {
        let test = std::thread::current().name().unwrap_or("a test").to_owned();
        let limit = Duration::from_secs(600 + setting("VGPU_SECONDS", 0));
        (!HAS_OWN.get()).then(|| Self::begin(test, limit, false))
    }

    fn begin(what: String, limit: Duration, is_own: bool) -> Self {
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
        Self { done, is_own }
    }
}

impl Drop for HangGuard {
    fn drop(&mut self) {
        self.done.store(true, Ordering::Relaxed);
        if self.is_own {
            HAS_OWN.set(false);
        }
    }
}
