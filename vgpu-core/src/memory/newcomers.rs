//! Processes of the share that are creating their first context. Where nobody has measured what a context takes, each of
//! them has far more charged than it will have in a moment ([`UNKNOWN_CONTEXT`](super::expected::UNKNOWN_CONTEXT)). A call
//! that does not fit beside them waits for their measurements before it is refused: else of twelve processes that start
//! at once, some would be out of memory in a share with room for all.
//!
//! How it fails: a newcomer is stopped, or holds memory and never creates a context. Then a call that does not fit is
//! refused after [`PATIENCE`] instead of at once.

use super::gpu::Gpu;
use crate::log;
use crate::os::sleep;
use crate::os::spin::Patience;
use std::time::Duration;
use vgpu_abi::log::Wait;

/// How long one call waits at most.
const PATIENCE: Duration = Duration::from_secs(6);
/// Each try takes locks of the ledger, which those who are being measured need.
const BETWEEN_TRIES: Duration = Duration::from_millis(4);

/// The wait of one call.
#[derive(Debug)]
pub struct Newcomers(Patience);

impl Newcomers {
    #[must_use]
    pub fn awaited() -> Self {
        Self(Patience::new(PATIENCE))
    }

    /// For a call that does not wait.
    #[must_use]
    pub fn ignored() -> Self {
        Self(Patience::new(Duration::ZERO))
    }

    /// Waits a moment. Returns false if nobody may give room back, or the patience is at its end.
    pub fn wait<D>(&mut self, gpu: &Gpu<D>) -> bool {
        if gpu.context_reserve.is_some() || !gpu.account.is_another_starting() {
            return false;
        }
        log::waits(Wait::Newcomer, || {
            let waits = self.0.nap();
            if waits {
                sleep(BETWEEN_TRIES);
            }
            waits
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::charge::charge;
    use super::super::driver::OUT_OF_MEMORY;
    use super::super::fake::{DEFAULT_POOL, MIB, Scene};
    use super::super::pools::Wanted;
    use super::super::room;
    use std::thread;
    use std::time::Duration;

    /// Runs `call` in a share that a newcomer fills, and gives most of it back after a moment. Returns true if `call`
    /// waited for that, and its answer.
    fn beside_a_newcomer<T: Send>(context_reserve: Option<u64>, call: impl FnOnce(&Scene) -> T + Send) -> (bool, T) {
        let mut scene = Scene::new(32 * MIB);
        scene.gpu_mut().context_reserve = context_reserve;
        let newcomer = scene.neighbour();
        let ahead = newcomer.reserve(32 * MIB).expect("room");
        thread::scope(|scope| {
            let answer = scope.spawn(|| call(&scene));
            thread::sleep(Duration::from_millis(200));
            let waits = !answer.is_finished();
            newcomer.release(ahead, 30 * MIB);
            (waits, answer.join().expect("no panic"))
        })
    }

    #[test]
    #[cfg_attr(miri, ignore = "maps a file")]
    fn an_allocation_waits_for_newcomers_to_be_measured() {
        let allocate = |scene: &Scene| charge(scene.gpu(), 4 * MIB).is_some();
        assert_eq!(beside_a_newcomer(None, allocate), (true, true));
        let known = Some(4 * MIB);
        assert_eq!(
            beside_a_newcomer(known, allocate),
            (false, false),
            "they have no more than they will take"
        );
    }

    #[test]
    #[cfg_attr(miri, ignore = "maps a file")]
    fn a_pool_waits_for_newcomers_to_be_measured() {
        let allocate = |scene: &Scene| {
            let wanted = Wanted {
                pool: DEFAULT_POOL,
                bytes: 4 * MIB,
                stream: 0,
            };
            room::grow(scene.gpu(), wanted, || Ok(0x1000))
        };
        assert_eq!(beside_a_newcomer(None, allocate), (true, Ok(())));
        assert_eq!(beside_a_newcomer(Some(4 * MIB), allocate), (false, Err(OUT_OF_MEMORY)));
    }
}
