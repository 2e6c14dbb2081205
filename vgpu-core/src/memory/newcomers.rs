//! Processes of the share that are creating their first context. Each of them has more charged for a moment than it will
//! keep: where nobody has measured what a context takes, far more ([`UNKNOWN_CONTEXT`](super::expected::UNKNOWN_CONTEXT)), and
//! else a few granules ([`beacon`](super::beacon)). A call that does not fit beside them waits before it is refused: else of
//! twelve processes that start at once, some would be out of memory in a share with room for all.
//!
//! How it fails: a newcomer is stopped, or holds memory and never creates a context. Then a call that does not fit is
//! refused after [`PATIENCE`], or after [`SHORT`], instead of at once.

use super::gpu::Gpu;
use crate::log;
use crate::os::sleep;
use crate::os::spin::Patience;
use std::time::Duration;
use vgpu_abi::log::Wait;

/// How long one call waits at most where nobody knows what a context takes.
const PATIENCE: Duration = Duration::from_secs(6);
/// The same where that is known: the time in which a process finds its entry in NVML's list.
const SHORT: Duration = Duration::from_millis(100);
/// Each try takes locks of the ledger, which those who are being measured need.
const BETWEEN_TRIES: Duration = Duration::from_millis(4);

/// The wait of one call.
#[derive(Debug)]
pub struct Newcomers {
    patience: Patience,
    short: Patience,
}

impl Newcomers {
    #[must_use]
    pub fn awaited() -> Self {
        Self {
            patience: Patience::new(PATIENCE),
            short: Patience::new(SHORT),
        }
    }

    /// For a call that does not wait.
    #[must_use]
    pub fn ignored() -> Self {
        Self {
            patience: Patience::new(Duration::ZERO),
            short: Patience::new(Duration::ZERO),
        }
    }

    /// Waits a moment. Returns false if nobody may give room back, or the patience is at its end.
    pub fn wait<D>(&mut self, gpu: &Gpu<D>) -> bool {
        if !gpu.account.is_another_starting() {
            return false;
        }
        let patience = match gpu.context_reserve {
            None => &mut self.patience,
            Some(_) => &mut self.short,
        };
        log::waits(Wait::Newcomer, || {
            let waits = patience.nap();
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

    /// Runs `call` in a share that a newcomer fills. If `gives_back`, it gives most of it back after a moment; then `call` must
    /// have waited for it.
    fn beside_a_newcomer<T: Send>(
        context_reserve: Option<u64>,
        gives_back: bool,
        call: impl FnOnce(&Scene) -> T + Send,
    ) -> T {
        let mut scene = Scene::new(32 * MIB);
        scene.gpu_mut().context_reserve = context_reserve;
        let newcomer = scene.neighbour();
        let ahead = newcomer.reserve(32 * MIB).expect("room");
        thread::scope(|scope| {
            let answer = scope.spawn(|| call(&scene));
            if gives_back {
                thread::sleep(Duration::from_millis(200));
                assert!(!answer.is_finished(), "it waits");
                newcomer.release(ahead, 30 * MIB);
            }
            answer.join().expect("no panic")
        })
    }

    #[test]
    #[cfg_attr(miri, ignore = "maps a file")]
    fn an_allocation_waits_for_newcomers_to_be_measured() {
        let allocate = |scene: &Scene| charge(scene.gpu(), 4 * MIB).is_some();
        assert!(beside_a_newcomer(None, true, allocate));
        // They keep almost all: the wait is short.
        assert!(!beside_a_newcomer(Some(4 * MIB), false, allocate));
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
        assert_eq!(beside_a_newcomer(None, true, allocate), Ok(()));
        assert_eq!(beside_a_newcomer(Some(4 * MIB), false, allocate), Err(OUT_OF_MEMORY));
    }
}
