//! What a process knows of its launches that are in flight.

use crate::Ns;

/// A stream of the process.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Stream {
    /// Launches behind its last event.
    pub open: u32,
    /// When the first of them was made.
    pub since: Ns,
}

/// An event that was recorded, and the base from which its distance is told.
#[derive(Clone, Copy, Debug)]
pub(super) struct Recorded {
    pub event: usize,
    pub base: usize,
}

/// An event behind launches.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark {
    pub event: Recorded,
    pub stream: usize,
    pub recorded: Ns,
    pub launches: u32,
    /// When the first of them was made.
    pub first: Ns,
    /// The event in front, if this one measures a single launch.
    pub in_front: Option<usize>,
}

/// What the share has in flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct InFlight {
    /// For how long it has run without being charged.
    pub ran: Ns,
    /// How much longer it takes, if it is as what was acknowledged last.
    pub left: Ns,
}

/// What a process remembers while its share is alone.
#[derive(Debug, Default)]
pub(super) struct Alone {
    /// When it last looked at the others' pages, and how many launches may still go before the next look.
    pub looked: Ns,
    pub granted: u32,
    /// Launches since the last event.
    pub unmarked: u32,
}
