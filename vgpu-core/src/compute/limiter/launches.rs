//! The launches in flight of a process.

use super::times::STUCK;
use crate::compute::{Ns, US};

/// How long after the end of the work a wait returns.
pub(super) const WAIT_RETURNS: Ns = 8 * US;

/// A stream of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stream(pub u64);

/// The work for which a program waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// For the work of one stream.
    Stream(Stream),
    /// For the work of some streams; it is unknown which.
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
    /// The number of the last of them, counted over all launches.
    pub last: u64,
    /// A single launch, made exactly at `since`.
    pub is_exact: bool,
}

/// A wait of the program, as it began. Its end says nothing about launches made later.
#[derive(Clone, Copy, Debug)]
pub struct Waiting {
    pub(super) scope: Scope,
    pub(super) since: Ns,
    /// Launches that were made before it.
    pub(super) launches: u64,
}

impl Scope {
    /// Returns true if the wait certainly covers this stream.
    pub(super) fn covers(self, stream: Stream) -> bool {
        match self {
            Self::Stream(of) => of == stream,
            Self::Some => false,
            Self::All => true,
        }
    }
}

impl Waiting {
    /// Returns true if the wait blocked, so that there was work until shortly before it returned.
    pub(super) fn has_blocked(&self, now: Ns) -> bool {
        now > self.since + 2 * WAIT_RETURNS
    }
}

/// Launches with an event behind them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark {
    /// None: the event could not be recorded, and the launches are assumed to have ended after some time.
    pub event: Option<usize>,
    pub stream: Stream,
    pub recorded: Ns,
    pub launches: u32,
    /// When the first of them was made.
    pub first: Ns,
    /// This is a single launch, and the event was recorded directly behind it.
    pub is_exact: bool,
    /// The event in front, if this mark measures a single launch.
    pub in_front: Option<usize>,
}

/// The work in flight of the share.
#[derive(Clone, Copy, Debug)]
pub(super) struct InFlight {
    /// How long it has run without being charged.
    pub ran: Ns,
    /// How much longer it should take, judging by recent launches.
    pub left: Ns,
}

/// Launches that were allowed but not yet reported as made or refused: their threads are still on the way to the
/// driver. They count as in flight, because otherwise many threads that ask at the same time would all go.
#[derive(Debug, Default)]
pub(super) struct Allowed {
    launches: u32,
    /// When the last one was allowed.
    last: Ns,
}

impl Allowed {
    pub(super) fn add(&mut self, now: Ns) {
        // Launches that are too old are dropped by `count`.
        self.launches = self.count(now) + 1;
        self.last = now;
    }

    pub(super) fn reported(&mut self) {
        self.launches = self.launches.saturating_sub(1);
    }

    /// Returns the number of these launches. A thread that jumped out of its launch never reports it, so they are
    /// dropped after a while.
    pub(super) fn count(&self, now: Ns) -> u32 {
        if now.saturating_sub(self.last) < STUCK {
            self.launches
        } else {
            0
        }
    }
}

/// State that a process keeps while its share is alone.
#[derive(Debug, Default)]
pub(super) struct Alone {
    /// When it last looked at the others' pages.
    pub looked: Ns,
    /// How many launches may still go before the next look.
    pub granted: u32,
    /// The value of `launches` when it last recorded an event.
    pub marked: u64,
}
