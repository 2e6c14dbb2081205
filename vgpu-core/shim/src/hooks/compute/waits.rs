//! Waits and questions: when the program knows that its work is done, its share may give its turn up.

use super::{found_done, of_name, wait};
use crate::codes::SUCCESS;
use crate::process::Ready;
use core::ffi::c_int;
use vgpu_core::arbiter::Scope;

pub(crate) unsafe fn stream<const PER_THREAD: bool>(
    ready: &'static Ready,
    real: unsafe extern "C" fn(usize) -> c_int,
    stream: usize,
) -> c_int {
    // SAFETY: passed on.
    wait(ready, Scope::Stream(of_name::<PER_THREAD>(stream)), || unsafe {
        real(stream)
    })
}

/// A question whether a stream has work: if not, that is the end of a wait.
fn of_stream(ready: &'static Ready, stream: usize, call: impl FnOnce() -> c_int) -> c_int {
    let result = call();
    if result == SUCCESS {
        found_done(ready, Scope::Stream(stream));
    }
    result
}

pub(crate) unsafe fn query_stream<const PER_THREAD: bool>(
    ready: &'static Ready,
    real: unsafe extern "C" fn(usize) -> c_int,
    stream: usize,
) -> c_int {
    // SAFETY: passed on.
    of_stream(ready, of_name::<PER_THREAD>(stream), || unsafe { real(stream) })
}

/// A wait for all of a context's work.
pub(crate) unsafe fn context(ready: &'static Ready, real: unsafe extern "C" fn() -> c_int) -> c_int {
    // SAFETY: takes nothing.
    wait(ready, Scope::Context(None), || unsafe { real() })
}

pub(crate) unsafe fn that_context(
    ready: &'static Ready,
    real: unsafe extern "C" fn(usize) -> c_int,
    context: usize,
) -> c_int {
    // SAFETY: passed on.
    wait(ready, Scope::Context(Some(context)), || unsafe { real(context) })
}

/// A wait for an event, which may have been recorded in any stream.
pub(crate) unsafe fn event(ready: &'static Ready, real: unsafe extern "C" fn(usize) -> c_int, event: usize) -> c_int {
    // SAFETY: passed on.
    wait(ready, Scope::Some, || unsafe { real(event) })
}

pub(crate) unsafe fn query_event(
    ready: &'static Ready,
    real: unsafe extern "C" fn(usize) -> c_int,
    event: usize,
) -> c_int {
    // SAFETY: passed on.
    let result = unsafe { real(event) };
    if result == SUCCESS {
        found_done(ready, Scope::Some);
    }
    result
}

/// A copy that returns when it is done, which it is not before the work in front of it.
pub(crate) fn copy(ready: &'static Ready, _: usize, call: impl FnOnce() -> c_int) -> c_int {
    wait(ready, Scope::Some, call)
}
