//! Charges an allocation before the driver is asked for it.
//!
//! A charge is the size rounded up to whole granules; smaller allocations share a granule with their neighbours
//! ([`allocations`](super::allocations)).

use super::driver::Driver;
use super::gpu::Gpu;
use super::granule::granules;
use super::newcomers::Newcomers;
use super::room::make_room;
use crate::account::Charge;
use crate::ledger::Refusal;
use crate::log;

/// Charges `bytes`, rounded up to whole granules, to `gpu`. If they do not fit, pools and graphs first return what they
/// keep unused, and [`newcomers`](super::newcomers) of the share are waited for. Returns None if they still do not fit.
#[inline(always)]
pub fn charge<D: Driver>(gpu: &Gpu<D>, bytes: u64) -> Option<Charge> {
    let bytes = granules(bytes)?;
    let charge = match gpu.account.reserve(bytes) {
        Ok(charge) => charge,
        Err(Refusal::Limit) => charge_or_report(gpu, bytes)?,
        Err(_) => return None,
    };
    Some(charge)
}

/// The same without a wait.
pub fn charge_now<D: Driver>(gpu: &Gpu<D>, bytes: u64) -> Option<Charge> {
    let bytes = granules(bytes)?;
    match gpu.account.reserve(bytes) {
        Err(Refusal::Limit) => charge_with_room(gpu, bytes, &mut Newcomers::ignored()),
        outcome => outcome.ok(),
    }
}

#[cold]
#[inline(never)]
fn charge_or_report<D: Driver>(gpu: &Gpu<D>, bytes: u64) -> Option<Charge> {
    let charge = charge_with_room(gpu, bytes, &mut Newcomers::awaited());
    if charge.is_none() {
        log::refused(&gpu.uuid, &gpu.account, bytes);
    }
    charge
}

#[cold]
#[inline(never)]
fn charge_with_room<D: Driver>(gpu: &Gpu<D>, bytes: u64, newcomers: &mut Newcomers) -> Option<Charge> {
    let mut has_more = make_room(gpu);
    loop {
        if has_more && let Ok(charge) = gpu.account.reserve(bytes) {
            return Some(charge);
        }
        has_more = newcomers.wait(gpu);
        if !has_more {
            return None;
        }
    }
}
