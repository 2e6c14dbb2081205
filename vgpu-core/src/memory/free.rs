//! Releases the charge of an allocation after the driver has freed it.

use super::allocations::{Allocations, Taken};
use super::deferred;
use super::driver::{Driver, INVALID_VALUE, SUCCESS};
use super::gpu::{Gpu, Gpus, release};
use core::ffi::c_int;

/// Frees `pointer` by `free`, the driver's function, and then releases its charge. If the driver refuses, the charge
/// stays.
#[inline(always)]
pub fn free_charged<D: Driver>(
    gpus: &Gpus<D>,
    live: &Allocations,
    pointer: u64,
    free: impl FnOnce() -> c_int,
) -> c_int {
    // Remove it from the table first: once it is freed, the driver may give the pointer to another thread.
    match live.take(pointer) {
        // The common case has its own arm, so that the charge stays in registers.
        Taken::Whole(one) => {
            let result = free();
            if result == SUCCESS {
                release(gpus, one);
            } else {
                live.finish_free(gpus, pointer, Taken::Whole(one), false);
            }
            result
        }
        // The program has already freed it in stream order, but the driver does not know that.
        Taken::Nothing if deferred::used() && is_deferred(gpus, pointer) => INVALID_VALUE,
        taken => {
            let result = free();
            live.finish_free(gpus, pointer, taken, result == SUCCESS);
            result
        }
    }
}

/// Returns true if the program has freed `pointer` and the driver has not.
#[cold]
fn is_deferred<D: Driver>(gpus: &[Gpu<D>], pointer: u64) -> bool {
    let has = |gpu: &Gpu<D>| {
        let deferred = gpu.deferred.lock();
        deferred.iter().any(|one| one.pointer == pointer && one.live.is_some())
    };
    gpus.iter().any(has)
}
