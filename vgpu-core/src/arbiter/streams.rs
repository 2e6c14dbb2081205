//! The streams in which this process has launched, and whether an event can be recorded there.

use crate::compute::limiter::Stream;
use crate::memory::driver::Streams as Driver;
use crate::os::thread;

use super::captures;

/// The handle of a thread's own default stream. Smaller handles mean the legacy default stream.
pub(super) const PER_THREAD: usize = 2;
/// Streams that are remembered.
const STREAMS: usize = 64;

/// A stream, and how to record events in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub stream: Stream,
    pub handle: usize,
    pub context: usize,
}

impl Target {
    /// Returns true if this thread can address the stream. It cannot address another thread's own default stream.
    pub(super) fn is_here(&self) -> bool {
        self.handle != PER_THREAD || stream_of(PER_THREAD) == self.stream
    }

    /// Returns true if the handle means a different stream in each context.
    pub(super) fn is_of_current_context(&self) -> bool {
        is_of_a_context(self.handle)
    }

    /// Returns true if an event in the stream would become a node of a graph. For the default stream, the driver
    /// returns an error if an event there would invalidate the capture of another stream.
    pub(super) fn is_captured(&self, driver: &impl Driver) -> bool {
        captures::may_be_under_way() && driver.is_capturing(self.handle) != Ok(false)
    }
}

/// Returns true if a handle means a stream of the current context.
#[must_use]
#[inline(always)]
pub fn is_of_a_context(handle: usize) -> bool {
    handle <= PER_THREAD
}

/// Returns the stream of a handle. The default stream has two handles, and each thread has a default stream of its own.
#[inline(always)]
pub(super) fn stream_of(handle: usize) -> Stream {
    match handle {
        0 | 1 => Stream(1),
        PER_THREAD => Stream(thread() as u64 + PER_THREAD as u64),
        _ => Stream(handle as u64),
    }
}

/// The streams of one process on one GPU.
#[derive(Debug, Default)]
pub(super) struct Known {
    targets: Vec<Target>,
    /// Contexts in which work was launched.
    contexts: Vec<usize>,
}

impl Known {
    pub(super) fn find(&self, stream: Stream) -> Option<&Target> {
        self.targets.iter().find(|target| target.stream == stream)
    }

    /// Returns true if the handle of a default stream identifies the stream.
    pub(super) fn has_one_context(&self) -> bool {
        self.contexts.len() <= 1
    }

    /// Returns true if all work was launched in this context.
    pub(super) fn has_only(&self, context: usize) -> bool {
        self.contexts.iter().all(|known| *known == context)
    }

    /// Returns the stream of a handle, with its context. `is_in_use` returns true for a stream with work that has not
    /// been measured yet; such a stream is not removed to make room.
    pub(super) fn of_handle(
        &mut self,
        driver: &impl Driver,
        handle: usize,
        is_in_use: impl Fn(Stream) -> bool,
    ) -> Target {
        let mut stream = stream_of(handle);
        let found = self.find(stream).copied();
        if let Some(target) = found.filter(|_| !is_of_a_context(handle)) {
            return target;
        }
        let context = if is_of_a_context(handle) {
            driver.current_context()
        } else {
            driver.stream_context(handle)
        };
        let context = context.unwrap_or(0);
        if let Some(target) = found.filter(|target| target.context == context) {
            return target;
        }
        if context == 0 {
            // No stream: the driver refuses the launch.
            return Target {
                stream,
                handle,
                context,
            };
        }
        if !self.contexts.contains(&context) {
            self.contexts.push(context);
        }
        if let Some(first) = found.filter(|first| first.context != context) {
            // The default stream of a second context, so its number must differ from the first one's.
            stream = Stream(first.stream.0 ^ (context as u64).rotate_left(32));
        }
        let target = Target {
            stream,
            handle,
            context,
        };
        if !self.targets.contains(&target) {
            if self.targets.len() >= STREAMS {
                self.targets.retain(|known| is_in_use(known.stream));
            }
            self.targets.push(target);
        }
        target
    }

    /// Forgets a stream, which ends.
    pub(super) fn forget(&mut self, stream: Stream) {
        self.targets.retain(|target| target.stream != stream);
    }

    /// Forgets a context, which has ended. Returns the streams that were in it.
    pub(super) fn forget_context(&mut self, context: usize) -> Vec<Stream> {
        self.contexts.retain(|known| *known != context);
        let gone = self.targets.extract_if(.., |target| target.context == context);
        gone.map(|target| target.stream).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arbiter::fake::{CONTEXT, Fake};

    #[test]
    fn the_default_stream_of_a_second_context_is_another_stream() {
        let (driver, mut known) = (Fake::default(), Known::default());
        let first = known.of_handle(&driver, 0, |_| false);
        driver.0.borrow_mut().current = Some(CONTEXT + 1);
        let second = known.of_handle(&driver, 0, |_| false);
        assert_eq!((first.context, second.context), (CONTEXT, CONTEXT + 1));
        assert!(first.stream != second.stream && !known.has_one_context());
        assert_eq!(known.find(second.stream), Some(&second));
        driver.0.borrow_mut().current = None;
        assert_eq!(known.of_handle(&driver, 0, |_| false), first);
    }

    #[test]
    fn a_handle_that_is_no_stream_is_not_remembered() {
        let (driver, mut known) = (Fake::default(), Known::default());
        known.of_handle(&driver, 0, |_| false);
        driver.0.borrow_mut().is_gone = true;
        let target = known.of_handle(&driver, 0x1230, |_| false);
        assert!(known.find(target.stream).is_none() && known.has_one_context());
    }
}
