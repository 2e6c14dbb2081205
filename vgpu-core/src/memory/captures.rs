//! The end of a capture. Whether a stream is captured decides what a call takes: an allocation or a launch that becomes a
//! node of a graph takes no memory yet, so it is not charged where it does not fit. That answer must hold until the driver
//! has made the node, whatever other threads do with the stream.
//!
//! ```text
//!  allocation ─► locks its pool  ─► captured? ─► driver ─► unlocks
//!  launch     ─► locks its graph ─► captured? ─► driver ─► unlocks
//!  the end    ─► locks graphs, then pools, of every GPU ───────────► driver
//! ```
//!
//! A capture that begins meanwhile needs no such care: then too much was charged, until the pool is asked again.
//!
//! How it fails: the driver calls a thread back that ends a capture (a profiler's callback), and that thread allocates. It
//! holds the locks already, so it is charged as within a call about pools.

use super::gpu::Gpu;
use core::ffi::c_int;

/// Ends a capture by `call`, while no other thread is in a call that counts on a capture.
pub fn end<D>(gpus: &[Gpu<D>], call: impl FnOnce() -> c_int) -> c_int {
    // In the order in which a launch locks them.
    let _graphs: Vec<_> = gpus.iter().map(|gpu| gpu.graphs.lock()).collect();
    let _pools: Vec<_> = gpus.iter().map(|gpu| gpu.pools.hold()).collect();
    call()
}

#[cfg(test)]
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
    #[cfg_attr(miri, ignore = "maps a file")]
    fn a_capture_ends_after_the_calls_that_count_on_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let gpu: &'static _ = Box::leak(Box::new(gpu(&folder, MIB)));
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
