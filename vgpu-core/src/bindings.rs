//! Memory that is bound to an object of the driver (a multicast object or a logical endpoint), by its offset in the
//! object. A binding keeps the memory and its charge until it is unbound or the object is destroyed.
//!
//! ```text
//!  bind:    driver ─ done ──► added
//!  unbind:  taken out ──► driver ─ refused ──► added again
//! ```
//!
//! Why this is correct: an entry is added after the driver has bound the memory, and removed before the driver unbinds
//! it. So memory that another thread binds at that offset meanwhile is never mistaken for the unbound memory. The
//! caller keeps the memory until the driver's call returns.
//!
//! How it fails: a call that the driver refuses changes nothing. If a thread unbinds an offset after another thread has
//! bound memory there and before that thread has added its entry, the entry is missed: the memory stays charged until
//! that offset is unbound again or the object is destroyed. Too much is charged then, never too little.

use core::ffi::c_int;

const SUCCESS: c_int = 0;

/// A range of an object on one GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    pub gpu: usize,
    pub offset: u64,
    pub bytes: u64,
}

/// The memory that is bound to one object, by range.
#[derive(Debug)]
#[must_use = "memory is let go when this is dropped"]
pub struct Bindings<M>(Vec<(Part, M)>);

/// An object of the driver to which memory can be bound.
pub trait Object<M> {
    /// Adds bindings.
    fn add(&self, more: Bindings<M>);
    /// Removes and returns the bindings that lie within `part`.
    fn take(&self, part: Part) -> Bindings<M>;
}

impl Part {
    fn contains(&self, other: &Self) -> bool {
        let end = |part: &Self| part.offset.saturating_add(part.bytes);
        self.gpu == other.gpu && self.offset <= other.offset && end(other) <= end(self)
    }
}

impl<M> Default for Bindings<M> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<M> FromIterator<(Part, M)> for Bindings<M> {
    fn from_iter<I: IntoIterator<Item = (Part, M)>>(parts: I) -> Self {
        Self(parts.into_iter().collect())
    }
}

impl<M> Bindings<M> {
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn add(&mut self, more: Self) {
        self.0.extend(more.0);
    }

    /// Removes and returns the bindings that lie within `part`. Bindings that only overlap it stay.
    pub fn take(&mut self, part: Part) -> Self {
        let all = std::mem::take(&mut self.0).into_iter();
        let (gone, left) = all.partition(|(known, _)| part.contains(known));
        self.0 = left;
        Self(gone)
    }
}

/// Binds by `call`. If the driver succeeds, `what` is kept.
pub fn bind<M>(object: &impl Object<M>, what: Bindings<M>, call: impl FnOnce() -> c_int) -> c_int {
    let result = call();
    if result == SUCCESS && !what.is_empty() {
        object.add(what);
    }
    result
}

/// Unbinds `part` by `call`. If the driver succeeds, the memory that was bound there is dropped.
pub fn unbind<M>(object: &impl Object<M>, part: Part, call: impl FnOnce() -> c_int) -> c_int {
    let gone = object.take(part);
    let result = call();
    if result != SUCCESS && !gone.is_empty() {
        object.add(gone);
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::rc::Rc;

    const REFUSED: c_int = 1;

    type Memory = Rc<()>;

    impl Object<Memory> for RefCell<Bindings<Memory>> {
        fn add(&self, more: Bindings<Memory>) {
            self.borrow_mut().add(more);
        }
        fn take(&self, part: Part) -> Bindings<Memory> {
            self.borrow_mut().take(part)
        }
    }

    fn part(gpu: usize, offset: u64, bytes: u64) -> Part {
        Part { gpu, offset, bytes }
    }

    fn one(part: Part, memory: &Memory) -> Bindings<Memory> {
        Bindings::from_iter([(part, memory.clone())])
    }

    /// Returns true if an object still keeps `memory`.
    fn is_kept(memory: &Memory) -> bool {
        Rc::strong_count(memory) > 1
    }

    #[test]
    fn memory_is_kept_from_its_binding_to_its_unbinding() {
        let (object, memory) = (RefCell::default(), Memory::default());
        assert_eq!(bind(&object, one(part(0, 0, 32), &memory), || SUCCESS), SUCCESS);
        assert!(is_kept(&memory));
        let call = || {
            assert!(is_kept(&memory), "until the driver has answered");
            SUCCESS
        };
        assert_eq!(unbind(&object, part(0, 0, 32), call), SUCCESS);
        assert!(!is_kept(&memory));
    }

    #[test]
    fn what_the_driver_refuses_changes_nothing() {
        let (object, memory) = (RefCell::default(), Memory::default());
        let call = || {
            assert!(is_kept(&memory), "until the driver has answered");
            REFUSED
        };
        assert_eq!(bind(&object, one(part(0, 0, 32), &memory), call), REFUSED);
        assert!(!is_kept(&memory));
        let _ = bind(&object, one(part(0, 0, 32), &memory), || SUCCESS);
        assert_eq!(unbind(&object, part(0, 0, 64), call), REFUSED);
        assert!(is_kept(&memory));
        assert_eq!(unbind(&object, part(0, 0, 32), || SUCCESS), SUCCESS, "at its own place");
        assert!(!is_kept(&memory));
    }

    #[test]
    fn what_is_bound_while_another_thread_unbinds_that_place_stays() {
        let (object, old, new) = (RefCell::default(), Memory::default(), Memory::default());
        let place = part(0, 0, 32);
        let _ = bind(&object, one(place, &old), || SUCCESS);
        // A second thread binds after the driver has unbound and before the first thread's call returns.
        unbind(&object, place, || bind(&object, one(place, &new), || SUCCESS));
        assert!(!is_kept(&old) && is_kept(&new));
    }

    #[test]
    fn what_is_unbound_before_its_entry_is_made_stays_charged_until_that_place_is_unbound_again() {
        let (object, memory) = (RefCell::default(), Memory::default());
        let place = part(0, 0, 32);
        // A second thread unbinds after the driver has bound and before the first thread's call returns.
        bind(&object, one(place, &memory), || unbind(&object, place, || SUCCESS));
        assert!(is_kept(&memory), "too much, never too little");
        unbind(&object, place, || SUCCESS);
        assert!(!is_kept(&memory));
    }

    #[test]
    fn parts_go_whole_and_on_their_own_gpu() {
        let memory = Memory::default();
        for (gone, outer) in [
            (true, part(1, 16, 16)),
            (true, part(1, 0, u64::MAX)),
            (true, part(1, 16, u64::MAX)),
            (false, part(1, 16, 15)),
            (false, part(1, 17, 64)),
            (false, part(1, 0, 31)),
            (false, part(0, 0, u64::MAX)),
            (false, part(1, 32, 16)),
        ] {
            let mut known = one(part(1, 16, 16), &memory);
            assert_eq!(!known.take(outer).is_empty(), gone, "{outer:?}");
            assert_eq!(known.is_empty(), gone, "{outer:?}");
        }
        let mut known = one(part(0, u64::MAX - 1, 16), &memory);
        assert!(known.take(part(0, 0, 16)).is_empty(), "an end beyond the last byte");
        assert!(!known.take(part(0, 1, u64::MAX)).is_empty());
    }
}
