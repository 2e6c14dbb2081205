//! Charges an allocation before the driver is asked for it.
//!
//! A charge is the size rounded up to whole granules; smaller allocations share a granule with their neighbours
//! ([`allocations`](super::allocations)).

use super::driver::Driver;
use super::gpu::Gpu;
use super::granule::granules;
use super::room::make_room;
use crate::account::Charge;
use crate::ledger::Refusal;

/// Charges `bytes`, rounded up to whole granules, to `gpu`. If they do not fit, pools and graphs first return what they
/// keep unused. Returns None if they still do not fit.
#[inline(always)]
pub fn charge<D: Driver>(gpu: &Gpu<D>, bytes: u64) -> Option<Charge> {
    let bytes = granules(bytes)?;
    let charge = match gpu.account.reserve(bytes) {
        Ok(charge) => charge,
        Err(Refusal::Limit) => charge_with_room(gpu, bytes)?,
        Err(_) => return None,
    };
    Some(charge)
}

#[cold]
#[inline(never)]
fn charge_with_room<D: Driver>(gpu: &Gpu<D>, bytes: u64) -> Option<Charge> {
    if !make_room(gpu) {
        return None;
    }
    gpu.account.reserve(bytes).ok()
}
