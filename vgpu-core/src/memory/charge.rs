//! Charges an allocation before the driver is asked for it.
//!
//! A charge is the size rounded up to whole granules; smaller allocations share a granule with their neighbours
//! ([`allocations`](super::allocations)).

use super::driver::Driver;
use super::first_contexts::FirstContexts;
use super::gpu::Gpu;
use super::granule::granules;
use super::refusal;
use super::room::make_room;
use crate::account::Charge;
use crate::ledger::Refusal;

/// Charges `bytes`, rounded up to whole granules, to `gpu`. If they do not fit, trims pools and graphs, and waits for
/// processes that create their first context ([`first_contexts`](super::first_contexts)). Returns None if they still do
/// not fit.
#[inline(always)]
pub fn charge<D: Driver>(gpu: &Gpu<D>, bytes: u64) -> Option<Charge> {
    let Some(bytes) = granules(bytes) else {
        refusal::by_limit(gpu, bytes);
        return None;
    };
    match gpu.account.reserve(bytes) {
        Ok(charge) => Some(charge),
        Err(refusal) => charge_or_report(gpu, bytes, refusal),
    }
}

/// Does the same as [`charge`], without a wait.
pub fn charge_now<D: Driver>(gpu: &Gpu<D>, bytes: u64) -> Option<Charge> {
    let bytes = granules(bytes)?;
    match gpu.account.reserve(bytes) {
        Err(Refusal::Limit) => charge_with_room(gpu, bytes, &mut FirstContexts::ignored()),
        outcome => outcome.ok(),
    }
}

#[cold]
#[inline(never)]
fn charge_or_report<D: Driver>(gpu: &Gpu<D>, bytes: u64, refusal: Refusal) -> Option<Charge> {
    let charge = match refusal {
        Refusal::Limit => charge_with_room(gpu, bytes, &mut FirstContexts::awaited()),
        Refusal::Damaged => None,
    };
    if charge.is_none() {
        refusal::by_limit(gpu, bytes);
    }
    charge
}

#[cold]
#[inline(never)]
fn charge_with_room<D: Driver>(gpu: &Gpu<D>, bytes: u64, first_contexts: &mut FirstContexts) -> Option<Charge> {
    let mut has_more = make_room(gpu);
    loop {
        if has_more && let Ok(charge) = gpu.account.reserve(bytes) {
            return Some(charge);
        }
        has_more = first_contexts.wait(gpu);
        if !has_more {
            return None;
        }
    }
}
