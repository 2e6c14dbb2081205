//! A driver for tests, in which a test says when the GPU has passed an event.

use core::ffi::c_int;
use std::cell::RefCell;
use std::collections::BTreeMap;

use crate::compute::Ns;
use crate::memory::driver::{Answer, NOT_READY, SUCCESS, Streams};

pub(super) const CONTEXT: usize = 77;
pub(super) const INVALID_HANDLE: c_int = 400;

#[derive(Debug, Default)]
pub(super) struct State {
    /// Events by number, and when the GPU reached them.
    pub(super) events: BTreeMap<usize, Option<Ns>>,
    made: usize,
    /// Every call that takes an event or a stream fails.
    pub(super) is_gone: bool,
    /// The current context, if it is not [`CONTEXT`].
    pub(super) current: Option<usize>,
    /// Events that were recorded, with their streams.
    pub(super) recorded: Vec<(usize, usize)>,
}

#[derive(Debug, Default)]
pub(super) struct Fake(pub(super) RefCell<State>);

impl Fake {
    /// Makes the GPU reach the nth recorded event.
    pub(super) fn reach(&self, nth: usize, at: Ns) {
        let mut state = self.0.borrow_mut();
        let event = state.recorded[nth].0;
        state.events.insert(event, Some(at));
    }

    pub(super) fn recorded(&self) -> usize {
        self.0.borrow().recorded.len()
    }

    /// Returns how many events there are.
    pub(super) fn living(&self) -> usize {
        self.0.borrow().events.len()
    }
}

impl Streams for Fake {
    fn is_capturing(&self, _stream: usize) -> Answer<bool> {
        Ok(false)
    }

    fn synchronize(&self, _stream: usize) -> c_int {
        SUCCESS
    }

    fn current_context(&self) -> Answer<usize> {
        Ok(self.0.borrow().current.unwrap_or(CONTEXT))
    }

    fn push_context(&self, _context: usize) -> c_int {
        SUCCESS
    }

    fn pop_context(&self) {}

    fn stream_context(&self, _stream: usize) -> Answer<usize> {
        let is_gone = self.0.borrow().is_gone;
        if is_gone { Err(INVALID_HANDLE) } else { Ok(CONTEXT) }
    }

    fn exchange_capture_mode(&self, mode: c_int) -> c_int {
        mode
    }

    fn create_event(&self) -> Answer<usize> {
        self.create_timing_event()
    }

    fn create_timing_event(&self) -> Answer<usize> {
        let mut state = self.0.borrow_mut();
        if state.is_gone {
            return Err(INVALID_HANDLE);
        }
        state.made += 1;
        let event = state.made;
        state.events.insert(event, None);
        Ok(event)
    }

    fn elapsed(&self, from: usize, to: usize) -> Answer<u64> {
        let state = self.0.borrow();
        let at = |event| state.events.get(&event).copied().flatten().ok_or(INVALID_HANDLE);
        Ok(at(to)?.saturating_sub(at(from)?))
    }

    fn record_event(&self, event: usize, stream: usize) -> c_int {
        let mut state = self.0.borrow_mut();
        if state.is_gone {
            return INVALID_HANDLE;
        }
        state.events.insert(event, None);
        state.recorded.push((event, stream));
        SUCCESS
    }

    fn query_event(&self, event: usize) -> c_int {
        let state = self.0.borrow();
        match state.events.get(&event) {
            _ if state.is_gone => INVALID_HANDLE,
            Some(Some(_)) => SUCCESS,
            Some(None) => NOT_READY,
            None => INVALID_HANDLE,
        }
    }

    fn synchronize_event(&self, event: usize) -> c_int {
        self.query_event(event)
    }

    fn wait_for_event(&self, _stream: usize, _event: usize) -> c_int {
        SUCCESS
    }

    fn destroy_event(&self, event: usize) -> c_int {
        self.0.borrow_mut().events.remove(&event);
        SUCCESS
    }
}
