//! GPU time: launches ask the arbiter of their GPU, waits report to it (`vgpu_core::arbiter`). These hooks are bound only
//! in processes whose time is limited ([`crate::jump`]).

use crate::codes::SUCCESS;
use crate::driver::Real;
use crate::hooks::contexts::measure::{self, at_slow_moment};
use crate::process::{self, Ready};
use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, Ordering};
use vgpu_core::arbiter::{self, Arbiter, Scope};
use vgpu_core::compute::Ns;
use vgpu_core::memory::measure::Nvml;
use vgpu_core::os::{at_exit, thread};

mod gpus;
pub(crate) mod launches;
pub(crate) mod streams;
pub(crate) mod waits;

/// This process on one of its GPUs.
struct Here {
    ready: &'static Ready,
    gpu: usize,
}

impl arbiter::Process for Here {
    type Driver = Real;

    fn driver(&self) -> &Real {
        &Real
    }

    fn holds_elsewhere(&self, now: Ns) -> bool {
        // `holds_turn` includes turns of other processes of the share: the ranks of a job are often separate processes.
        let all = self.ready.times.iter().enumerate();
        let mut others = all
            .filter(|(gpu, _)| *gpu != self.gpu)
            .filter_map(|(_, time)| time.as_ref()?.arbiter());
        others.any(|other| other.holds_turn(now))
    }

    /// Returns true also if NVML does not answer: there may be neighbours.
    fn has_neighbours(&self) -> bool {
        let nvml = measure::process(self.ready).nvml;
        let Some(found) = nvml.device(self.gpu).and_then(|device| nvml.processes(device)) else {
            return true;
        };
        let own = self.ready.nvml_pid.load(Ordering::Relaxed);
        let mut others = found.iter().filter(|(pid, _)| *pid != own);
        // This process is in the list, but its PID there is not known yet.
        if own == 0 {
            others.next();
        }
        others.next().is_some()
    }

    /// Registers [`end`]. It will run before the driver's exit handler, which was registered when the driver was
    /// initialised.
    fn starts(&self) {
        // Not `Once`: a fork child would wait for a thread that it does not have.
        static IS_REGISTERED: AtomicBool = AtomicBool::new(false);
        if !IS_REGISTERED.swap(true, Ordering::Relaxed) {
            at_exit(end);
        }
    }

    fn asleep(&self, nap: impl FnOnce()) {
        let _outside = self.ready.calls.outside(thread());
        nap();
    }
}

/// Launches work in a stream by `call` as soon as the share of the stream's GPU may launch.
#[inline(always)]
pub(crate) fn launch(ready: &'static Ready, stream: usize, call: impl FnOnce() -> c_int) -> c_int {
    launch_on(ready, gpus::of_stream(ready, stream), stream, call)
}

/// Returns true, and counts the launch, if it may start at once. Calls no function of the driver: with several GPUs it
/// returns false, because only the driver knows which one is meant, and the hook asks it.
#[inline(always)]
pub(crate) fn may_go(stream: usize) -> bool {
    let Some(ready) = process::plain() else { return false };
    let time = ready.only_gpu().and_then(|gpu| ready.times.get(gpu)?.as_ref());
    let arbiter = time.and_then(|time| time.arbiter_in_use());
    arbiter.is_some_and(|arbiter| arbiter.is_granted(stream))
}

/// Launches by `call` on this GPU.
#[inline(always)]
fn launch_on(ready: &'static Ready, gpu: Option<usize>, stream: usize, call: impl FnOnce() -> c_int) -> c_int {
    let arbiter = gpu.and_then(|gpu| Some((gpu, ready.arbiter(gpu)?)));
    let asked = arbiter.filter(|(gpu, arbiter)| arbiter.begin(&Here { ready, gpu: *gpu }, stream));
    // `call` is called at one place only: if it were called at several, its arguments would be spilled to memory.
    let result = call();
    if let Some((gpu, arbiter)) = asked {
        arbiter.launched(&Here { ready, gpu }, stream, result);
    }
    result
}

/// Runs `call`, which blocks until work of the program has ended.
pub(crate) fn wait(ready: &'static Ready, scope: Scope, call: impl FnOnce() -> c_int) -> c_int {
    let mut call = Some(call);
    let result = within(&mut in_use(ready), ready, scope, &mut || {
        call.take().map_or(0, |call| call())
    });
    at_slow_moment(ready);
    result
}

/// Reports the wait to each arbiter, before it and after it.
fn within(
    arbiters: &mut dyn Iterator<Item = (usize, &'static Arbiter)>,
    ready: &'static Ready,
    scope: Scope,
    call: &mut dyn FnMut() -> c_int,
) -> c_int {
    let Some((gpu, arbiter)) = arbiters.next() else {
        return call();
    };
    let here = Here { ready, gpu };
    let wait = arbiter.before_wait(&here, scope);
    let result = within(arbiters, ready, scope, call);
    if let Some(wait) = wait {
        arbiter.after_wait(&here, wait);
    }
    result
}

/// Runs `call`, by which the program asks whether work has ended. If it has, each arbiter counts the launches and asks
/// again: another thread may have launched work meanwhile that the first answer does not cover.
pub(crate) fn ask(ready: &'static Ready, scope: Scope, call: impl Fn() -> c_int) -> c_int {
    let result = call();
    if result == SUCCESS {
        each(ready, |arbiter, here| {
            arbiter.question(here, scope, || call() == SUCCESS)
        });
    }
    result
}

/// Prepares for the end of a stream. The result must be dropped after it.
fn forget_stream(ready: &'static Ready, stream: usize) -> gpus::Ending {
    each(ready, |arbiter, here| arbiter.forget_stream(here, stream));
    gpus::Ending::new()
}

/// A context that is about to end.
#[must_use]
pub(crate) struct Ending {
    ready: &'static Ready,
    context: usize,
    has_ended: bool,
    _streams: gpus::Ending,
}

/// Prepares for the end of a context. When the result is dropped, the context has ended, or goes on.
pub(crate) fn forget(ready: &'static Ready, context: usize) -> Ending {
    each(ready, |arbiter, here| arbiter.forget(here, context));
    Ending {
        ready,
        context,
        has_ended: false,
        _streams: gpus::Ending::new(),
    }
}

impl Ending {
    pub(crate) fn ended(&mut self, has_ended: bool) {
        self.has_ended = has_ended;
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        each(self.ready, |arbiter, here| {
            arbiter.has_forgotten(here, self.context, self.has_ended);
        });
    }
}

/// Runs when the process exits normally: charges its work, so that its share need not wait until its work expires. A
/// fork child that has launched nothing has no state of its own.
extern "C" fn end() {
    let Some(ready) = process::known() else { return };
    each(ready, |arbiter, here| arbiter.end(here));
}

fn each(ready: &'static Ready, act: impl Fn(&Arbiter, &Here)) {
    for (gpu, arbiter) in in_use(ready) {
        act(arbiter, &Here { ready, gpu });
    }
}

/// Returns the arbiters in use, with their GPUs.
fn in_use(ready: &'static Ready) -> impl Iterator<Item = (usize, &'static Arbiter)> {
    let all = ready.times.iter().enumerate();
    all.filter_map(|(gpu, time)| Some((gpu, time.as_ref()?.arbiter_in_use()?)))
}
