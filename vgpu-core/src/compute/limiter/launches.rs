//! What a process knows of its launches that are in flight.

use crate::compute::{Ns, US};

/// A wait returns so long after the work has ended.
pub(super) const WAIT_RETURNS: Ns = 8 * US;

/// A stream of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stream(pub u64);

/// The work for which a program waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// For the work of one stream.
    Stream(Stream),
    /// For the work of some streams; nobody knows which.
    Some,
    /// For all work.
    All,
}

/// Launches of a stream that have no event behind them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Open {
    pub stream: Stream,
    pub launches: u32,
    /// When the first of them was made.
    pub since: Ns,
    /// The number of the last of them among all launches.
    pub last: u64,
    /// There is one, and it was made at `since`.
    pub is_exact: bool,
}

/// A wait of the program, before it: of what was launched later it says nothing.
#[derive(Clone, Copy, Debug)]
pub struct Waiting {
    pub(super) scope: Scope,
    pub(super) since: Ns,
    /// Launches that were made before it.
    pub(super) launches: u64,
}

impl Scope {
    /// Returns true if the wait is known to be for this stream.
    pub(super) fn covers(self, stream: Stream) -> bool {
        match self {
            Self::Stream(of) => of == stream,
            Self::Some => false,
            Self::All => true,
        }
    }
}

impl Waiting {
    /// Returns true if it has blocked: there was work until shortly before it returned.
    pub(super) fn has_blocked(&self, now: Ns) -> bool {
        now > self.since + 2 * WAIT_RETURNS
    }
}

/// An event behind launches.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark {
    /// None: it could not be recorded, and its launches end by the clock.
    pub event: Option<usize>,
    pub stream: Stream,
    pub recorded: Ns,
    pub launches: u32,
    /// When the first of them was made.
    pub first: Ns,
    /// There is one, and the event was recorded right behind it.
    pub is_exact: bool,
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
    /// All launches that were made when it last recorded an event.
    pub marked: u64,
}
