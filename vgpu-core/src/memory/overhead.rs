//! The overhead of this process on one GPU: the charge for the memory of contexts, code and limits of contexts.
//! [`measure`](super::measure) sets it.
//!
//! ```text
//!  expected = measured (by the last measurement) + unmeasured (reserved since, thing by thing)
//! ```
//!
//! Unmeasured bytes are listed by the thing they were reserved for, so that its end releases them. A measurement
//! includes all of them, so the list is empty afterwards.

use super::known_code::KnownCode;
use super::tracked_charge::TrackedCharge;
use crate::account::Account;
use crate::calls::UnderWay;
use core::ffi::c_int;
use std::collections::BTreeMap;

#[derive(Debug, Default)]
pub struct Overhead {
    pub charge: TrackedCharge,
    /// The result of the last measurement, even if not all of it could be charged.
    pub measured: u64,
    /// Reserved since the last measurement, and not measured.
    unmeasured: BTreeMap<Thing, Reserved>,
    /// The next measurement may find less: memory may have been freed unmeasured, or a call did not end.
    pub may_fall: bool,
    /// Calls of other threads that did not end while a measurement waited for them.
    pub in_vain: UnderWay,
    /// The size of the largest context of this process, if one was measured.
    pub context_took: Option<u64>,
    /// The size of code when it was loaded, by its fingerprint ([`Code`](super::expected::Code)).
    pub code_took: BTreeMap<u64, u64>,
}

/// What memory is reserved for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Thing {
    Context(usize),
    /// A limit of a context, by the driver's number.
    Limit(usize, c_int),
    /// A module, a library or a function, by its handle, and the context with which it ends. 0: none, or not known.
    Code(usize, usize),
    /// Anything else, whose end is not reported.
    Other,
}

/// The memory that is reserved for a thing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reserved {
    pub bytes: u64,
    /// The value of a limit before it was first raised.
    pub base: u64,
    /// Code whose file states its whole size.
    pub is_known: bool,
}

impl Overhead {
    /// Releases the whole charge after the last context was destroyed. The measured sizes of contexts and code stay
    /// known.
    pub fn clear(&mut self, account: &Account) {
        self.measured = 0;
        self.unmeasured.clear();
        self.may_fall = false;
        self.in_vain = UnderWay::default();
        self.charge.set(account, 0);
    }

    /// Returns the bytes that this process is believed to hold.
    #[must_use]
    pub fn expected(&self) -> u64 {
        let reserved = self.unmeasured.values().filter(|reserved| !reserved.is_known);
        let reserved = reserved.map(|reserved| reserved.bytes);
        reserved.fold(
            self.measured.saturating_add(self.known_code().charge()),
            u64::saturating_add,
        )
    }

    /// Returns the unmeasured code whose files state its whole size.
    #[must_use]
    pub fn known_code(&self) -> KnownCode {
        let known = self.unmeasured.values().filter(|reserved| reserved.is_known);
        known.fold(KnownCode::default(), |known, code| known.with(code.bytes))
    }

    /// Records a measurement.
    pub fn set_measured(&mut self, bytes: u64) {
        self.measured = bytes;
        self.unmeasured.clear();
    }

    /// Records that `thing` was created and not measured, with what is reserved for it.
    pub fn keep(&mut self, thing: Thing, reserved: Reserved) {
        let bytes = reserved.bytes;
        if bytes > 0 || reserved.is_known {
            let known = self
                .unmeasured
                .entry(thing)
                .or_insert(Reserved { bytes: 0, ..reserved });
            known.bytes = match thing {
                Thing::Limit(..) => known.bytes.saturating_add(bytes),
                // The entry exists already: a function was loaded twice, or a primary context was not destroyed.
                Thing::Context(_) | Thing::Code(..) => known.bytes.max(bytes),
                Thing::Other => known.bytes.saturating_add(bytes),
            };
        }
        self.may_fall = true;
    }

    /// Removes the bytes reserved for `thing`, which is gone; for a context, also those for its limits and modules.
    pub fn forget(&mut self, thing: Thing) {
        self.unmeasured.retain(|known, _| match (thing, *known) {
            (Thing::Context(context), Thing::Limit(of, _) | Thing::Code(_, of)) => of != context,
            (Thing::Code(handle, _), Thing::Code(known, _)) => handle != known,
            (thing, known) => thing != known,
        });
        self.may_fall = true;
    }

    /// Returns the value of a limit before it was raised, and the bytes reserved for that. If it was not raised,
    /// returns `now`, its present value, and 0.
    #[must_use]
    pub fn base(&self, thing: Thing, now: u64) -> (u64, u64) {
        let known = self.unmeasured.get(&thing);
        known.map_or((now, 0), |reserved| (reserved.base.min(now), reserved.bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::super::granule::GRANULE;
    use super::super::known_code::UNKNOWN_CODE;
    use super::*;

    #[test]
    fn what_was_reserved_goes_with_its_thing_and_with_a_measurement() {
        let reserved = |bytes, base| Reserved {
            bytes,
            base,
            is_known: false,
        };
        let mut overhead = Overhead::default();
        overhead.keep(Thing::Context(1), reserved(10, 0));
        overhead.keep(Thing::Context(2), reserved(10, 0));
        overhead.keep(Thing::Limit(2, 2), reserved(5, 8));
        overhead.keep(Thing::Limit(2, 2), reserved(3, 13));
        overhead.keep(Thing::Code(7, 1), reserved(1, 0));
        overhead.keep(Thing::Code(7, 1), reserved(1, 0));
        overhead.keep(Thing::Code(8, 2), reserved(1, 0));
        assert_eq!(overhead.expected(), 30, "the same function again is no more");
        assert_eq!(overhead.base(Thing::Limit(2, 2), 16), (8, 8), "where it began");
        assert_eq!(overhead.base(Thing::Limit(1, 2), 16), (16, 0));
        overhead.forget(Thing::Code(7, 0));
        assert_eq!(overhead.expected(), 29);
        overhead.forget(Thing::Context(2));
        assert_eq!(overhead.expected(), 10, "its limits and its module went with it");
        overhead.set_measured(4);
        assert_eq!(overhead.expected(), 4);
        overhead.forget(Thing::Context(1));
        assert_eq!(overhead.expected(), 4, "what is measured falls by a measurement alone");
    }
    #[test]
    fn code_that_tells_all_is_charged_together() {
        let known = |bytes| Reserved {
            bytes,
            base: 0,
            is_known: true,
        };
        let mut overhead = Overhead::default();
        for handle in 1..=100 {
            overhead.keep(Thing::Code(handle, 1), known(10_000));
        }
        assert_eq!(
            overhead.expected(),
            UNKNOWN_CODE + GRANULE,
            "1 MB, and what is beside it"
        );
        for handle in 1..=100 {
            overhead.forget(Thing::Code(handle, 0));
        }
        assert_eq!(overhead.expected(), 0);
    }
}
