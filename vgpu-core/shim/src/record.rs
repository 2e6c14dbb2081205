//! Records the calls of this process in the ring of the log, if there is a ring (`vgpu_core::log`).
//!
//! ```text
//!  cuMemAlloc_v2 ─► enter: Record, and the thread may pass ─► cuMemAlloc_v2 again ─► enter: Handle ─► hook
//!                                     entry of the call ended ◄───────────────────────────────────────┘
//! ```
//!
//! How it fails: a signal handler that makes a call between the two entries uses the pass of the thread. Then its call
//! is not recorded, and the outer call is recorded twice.

use crate::process::{self, Ready};
use crate::start;
use core::cell::Cell;
use core::ffi::c_int;
use vgpu_core::log::{self, Recorded};

/// A value that is no function's index.
const NONE: usize = usize::MAX;

thread_local! {
    /// The function whose next call of this thread is recorded already.
    static PASSES: Cell<usize> = const { Cell::new(NONE) };
}

/// How a hook continues if it is not in the plain state.
pub(crate) enum Entry {
    /// Continues with the handler.
    Handle(&'static Ready),
    Refused,
    /// Makes the same call again, and then ends the record.
    Record(Call),
}

/// A call that is recorded.
pub(crate) struct Call {
    recorded: Recorded,
    ready: &'static Ready,
}

/// Returns what the hook of `slot` does. The first call of a process creates its state here.
#[cold]
#[inline(never)]
pub(crate) fn enter(slot: usize) -> Entry {
    let Some(ready) = start::ready() else {
        return Entry::Refused;
    };
    if !process::is_recorded() {
        return Entry::Handle(ready);
    }
    // While the thread is ending, there is no thread-local value: its calls are not recorded.
    let has_passed = PASSES.try_with(|passes| passes.replace(NONE) == slot).unwrap_or(true);
    if has_passed {
        return Entry::Handle(ready);
    }
    let Some(recorded) = log::begin(slot as u32) else {
        return Entry::Handle(ready);
    };
    let _ = PASSES.try_with(|passes| passes.set(slot));
    Entry::Record(Call { recorded, ready })
}

impl Call {
    /// Records that the call has returned `result`.
    #[inline(never)]
    pub(crate) fn end(self, result: c_int) -> c_int {
        self.recorded.end(result, self.ready.charged());
        result
    }
}
