//! Waits for processes of the share that are creating their first context. For a moment, each of them is charged more
//! than it will keep: far more while the size of a context is unknown
//! ([`UNKNOWN_CONTEXT`](super::expected::UNKNOWN_CONTEXT)), otherwise a few granules ([`beacon`](super::beacon)). A
//! call that does not fit beside them waits before it is refused. Otherwise, if twelve processes started at once, some
//! would run out of memory in a share with room for all.
//!
//! How it fails: such a process is stopped, or holds memory and never creates a context. Then a call that does not fit
//! is refused after [`UNKNOWN_SIZE_WAIT`] or [`KNOWN_SIZE_WAIT`] instead of at once.

use super::gpu::Gpu;
use crate::log;
use crate::os::sleep;
use crate::os::spin::Patience;
use std::time::Duration;
use vgpu_abi::log::Wait;

/// The longest wait of a call while the size of a context is unknown.
const UNKNOWN_SIZE_WAIT: Duration = Duration::from_secs(6);
/// The longest wait once the size is known: a process finds its entry in NVML's list in this time.
const KNOWN_SIZE_WAIT: Duration = Duration::from_millis(100);
/// Each try takes locks of the ledger that the waited-for processes need.
const BETWEEN_TRIES: Duration = Duration::from_millis(4);

/// The wait of one call.
#[derive(Debug)]
pub struct FirstContexts {
    patience: Patience,
    short: Patience,
}

impl FirstContexts {
    #[must_use]
    pub fn awaited() -> Self {
        Self {
            patience: Patience::new(UNKNOWN_SIZE_WAIT),
            short: Patience::new(KNOWN_SIZE_WAIT),
        }
    }

    /// Returns a wait that ends at once, for a call that does not wait.
    #[must_use]
    pub fn ignored() -> Self {
        Self {
            patience: Patience::new(Duration::ZERO),
            short: Patience::new(Duration::ZERO),
        }
    }

    /// Waits a moment. Returns false if no process may give room back, or if the call has waited long enough.
    pub fn wait<D>(&mut self, gpu: &Gpu<D>) -> bool {
        if !gpu.account.is_another_starting() {
            return false;
        }
        let patience = match gpu.context_reserve {
            None => &mut self.patience,
            Some(_) => &mut self.short,
        };
        log::waits(Wait::FirstContext, || {
            let waits = patience.nap();
            if waits {
                sleep(BETWEEN_TRIES);
            }
            waits
        })
    }
}

#[cfg(all(test, not(miri)))] // The tests map files.
mod tests {
    use super::super::charge::charge;
    use super::super::driver::OUT_OF_MEMORY;
    use super::super::fake::{DEFAULT_POOL, MIB, Scene};
    use super::super::pools::Wanted;
    use super::super::room;
    use std::thread;
    use std::time::Duration;

    /// Runs `call` in a share that a starting process fills. With `gives_back`, that process gives most of the memory
    /// back after a moment, and `call` must have waited for this.
    fn beside_a_first_context<T: Send>(
        context_reserve: Option<u64>,
        gives_back: bool,
        call: impl FnOnce(&Scene) -> T + Send,
    ) -> T {
        let mut scene = Scene::new(32 * MIB);
        scene.gpu_mut().context_reserve = context_reserve;
        let starting = scene.neighbour();
        let ahead = starting.reserve(32 * MIB).expect("room");
        thread::scope(|scope| {
            let answer = scope.spawn(|| call(&scene));
            if gives_back {
                thread::sleep(Duration::from_millis(200));
                assert!(!answer.is_finished(), "it waits");
                starting.release(ahead, 30 * MIB);
            }
            answer.join().expect("no panic")
        })
    }

    #[test]
    fn an_allocation_waits_for_first_contexts_to_be_measured() {
        let allocate = |scene: &Scene| charge(scene.gpu(), 4 * MIB).is_some();
        assert!(beside_a_first_context(None, true, allocate));
        // The size of a context is known: the wait is short.
        assert!(!beside_a_first_context(Some(4 * MIB), false, allocate));
    }

    #[test]
    fn a_pool_waits_for_first_contexts_to_be_measured() {
        let allocate = |scene: &Scene| {
            let wanted = Wanted {
                pool: DEFAULT_POOL,
                bytes: 4 * MIB,
                stream: 0,
            };
            room::grow(scene.gpu(), wanted, || Ok(0x1000))
        };
        assert_eq!(beside_a_first_context(None, true, allocate), Ok(()));
        assert_eq!(
            beside_a_first_context(Some(4 * MIB), false, allocate),
            Err(OUT_OF_MEMORY)
        );
    }
}
