//! The end of a stream capture. An allocation or launch in a captured stream becomes a node of a graph and takes no
//! memory yet, so it may pass without a charge. The stream must stay captured until the driver has made the node,
//! whatever other threads do.
//!
//! ```text
//!  allocation ─► locks its pool  ─► captured? ─► driver ─► unlocks
//!  launch     ─► locks its graph ─► captured? ─► driver ─► unlocks
//!  the end    ─► locks graphs, then pools, of every GPU ───────────► driver
//! ```
//!
//! A capture that begins meanwhile is harmless: too much is charged until the pool is asked again.
//!
//! How it fails: while a thread ends a capture, the driver may call back into the program (a profiler's callback),
//! which may allocate. The thread already holds the locks, so the allocation is charged like one inside a call about
//! pools.

use super::gpu::Gpu;
use core::ffi::c_int;

/// Ends a capture by `call`, while no other thread is in a call that depends on a capture.
pub fn end<D>(gpus: &[Gpu<D>], call: impl FnOnce() -> c_int) -> c_int {
    // The same order as in a launch.
    let _graphs: Vec<_> = gpus.iter().map(|gpu| gpu.graphs.lock()).collect();
    let _pools: Vec<_> = gpus.iter().map(|gpu| gpu.pools.hold()).collect();
    call()
}

#[cfg(all(test, not(miri)))] // The tests map files.
mod tests {
    use super::super::driver::SUCCESS;
    use super::super::fake::{DEFAULT_POOL, MIB, gpu};
    use super::super::pools::{Attempt, Growth, Wanted};
    use super::*;
    use std::sync::mpsc::channel;
    use std::thread::{sleep, spawn};
    use std::time::Duration;

    const STREAM: usize = 5;

    #[test]
    fn a_capture_ends_after_the_calls_that_count_on_it() {
        let gpu: &'static _ = Box::leak(Box::new(gpu(MIB)));
        gpu.driver.state().capturing.push(STREAM);
        let (ended, end_of) = channel();
        let wanted = Wanted {
            pool: DEFAULT_POOL,
            bytes: 64 * MIB,
            stream: STREAM,
        };
        let mut ending = None;
        let allocate = || {
            ending = Some(spawn(move || {
                end(core::slice::from_ref(gpu), || {
                    gpu.driver.state().capturing.clear();
                    SUCCESS
                });
                ended.send(()).expect("the test waits");
            }));
            sleep(Duration::from_millis(50));
            assert!(end_of.try_recv().is_err(), "the driver has not answered yet");
            Ok(0x1000)
        };
        let grown = gpu
            .pools
            .grow(&gpu.driver, &gpu.account, wanted, Attempt::First, allocate);
        assert!(matches!(grown, Growth::Done(Ok(()))), "a node of a graph");
        ending.expect("begun").join().expect("ends");
        end_of.try_recv().expect("ended");
    }
}
