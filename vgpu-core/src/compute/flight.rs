//! What one process has on a GPU: launches in chunks, each of which ends with an event.
//!
//! A chunk is closed after the first launches of a shape, after [`CHUNK`] of estimated work, or after
//! [`LAUNCHES`] launches.

use std::collections::VecDeque;

use super::estimate::{Estimates, Shape, Trust};
use super::{Ns, US};

const CHUNK: Ns = 200 * US;
const LAUNCHES: u32 = 64;
/// Launches of a shape that are measured one by one.
const FIRST: u32 = 3;
/// What is assumed to be left of work whose estimates are used up.
pub(super) const LEAST_LEFT: Ns = 20 * US;
/// Work that is late by less than this may only be slow.
const LATE: Ns = 10_000 * US;
/// An event that is reached so soon after it was recorded says that the GPU has been waiting for launches.
const CAUGHT_UP: Ns = 50 * US;
/// A launch costs the GPU this much at least.
pub const LEAST_LAUNCH: Ns = 3 * US;

/// An event that the caller records after the launch, and asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Mark(pub u64);

/// A stream of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stream(pub u64);

#[derive(Debug)]
struct Chunk {
    stream: Stream,
    /// None: still open.
    mark: Option<Mark>,
    begun: Ns,
    /// When its event was recorded.
    closed: Ns,
    launches: Vec<(Shape, u32)>,
    estimated: Ns,
}

/// A chunk that was measured.
#[derive(Debug)]
pub(super) struct Measured {
    launches: Vec<(Shape, u32)>,
    /// Since when the process has had work on the GPU: earlier than the chunk where another stream's work is older.
    pub busy_since: Ns,
    pub alone: bool,
    pub begun: Ns,
    /// When its last launch had been made: no gap lies behind it.
    pub closed: Ns,
}

#[derive(Debug, Default)]
pub(super) struct Flight {
    chunks: VecDeque<Chunk>,
    estimated: Ns,
    marks: u64,
    /// When the last chunk was seen to have ended.
    ended: Ns,
}

impl Flight {
    pub(super) fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// Returns true if more than one launch is in flight.
    pub(super) fn has_several(&self) -> bool {
        self.chunks
            .iter()
            .flat_map(|chunk| &chunk.launches)
            .map(|(_, count)| count)
            .sum::<u32>()
            > 1
    }

    /// Returns when the newest launch was made whose length nobody knows yet. None: all are known.
    pub(super) fn unknown_since(&self, estimates: &Estimates) -> Option<Ns> {
        let is_unknown = |chunk: &&Chunk| {
            let mut launches = chunk.launches.iter();
            launches.any(|(shape, _)| estimates.get(*shape).is_none())
        };
        self.chunks.iter().filter(is_unknown).map(|chunk| chunk.begun).max()
    }

    /// Returns true if a launch is in flight whose length nobody knows yet.
    pub(super) fn has_unknown(&self, estimates: &Estimates) -> bool {
        self.unknown_since(estimates).is_some()
    }

    /// Returns what the launches that are not known to have ended take by estimate.
    pub(super) fn estimated(&self) -> Ns {
        if self.chunks.is_empty() {
            0
        } else {
            self.estimated.max(LEAST_LEFT)
        }
    }

    /// Since when there has been work. None: there is none.
    pub(super) fn since(&self) -> Option<Ns> {
        self.chunks.iter().map(|chunk| chunk.begun).min()
    }

    /// Adds a launch, and returns the event to record behind it, if its chunk ends there.
    pub(super) fn launched(
        &mut self,
        now: Ns,
        stream: Stream,
        shape: Shape,
        estimates: &mut Estimates,
    ) -> Option<Mark> {
        let is_due = estimates.is_due(shape);
        let nth = estimates.count(shape, 1);
        if is_due {
            estimates.checking(shape);
        }
        let at = self.add(now, stream, shape, 1, estimates);
        (nth <= FIRST || is_due || self.chunks[at].is_full()).then(|| self.close(at, now))
    }

    /// Adds launches that went on credit.
    pub(super) fn passed(&mut self, now: Ns, stream: Stream, shape: Shape, count: u32, estimates: &mut Estimates) {
        estimates.count(shape, count);
        self.add(now, stream, shape, count, estimates);
    }

    fn add(&mut self, now: Ns, stream: Stream, shape: Shape, count: u32, estimates: &Estimates) -> usize {
        let at = self.open(stream).unwrap_or_else(|| {
            self.chunks.push_back(Chunk {
                stream,
                mark: None,
                begun: now,
                closed: 0,
                launches: Vec::new(),
                estimated: 0,
            });
            self.chunks.len() - 1
        });
        let estimated = estimates.get(shape).unwrap_or(0).saturating_mul(Ns::from(count));
        let chunk = &mut self.chunks[at];
        match chunk.launches.iter_mut().find(|(known, _)| *known == shape) {
            Some((_, known)) => *known = known.saturating_add(count),
            None => chunk.launches.push((shape, count)),
        }
        chunk.estimated = chunk.estimated.saturating_add(estimated);
        self.estimated = self.estimated.saturating_add(estimated);
        at
    }

    /// Returns the open chunk of a stream.
    fn open(&self, stream: Stream) -> Option<usize> {
        self.chunks
            .iter()
            .rposition(|chunk| chunk.stream == stream && chunk.mark.is_none())
    }

    /// Returns true if a launch in this stream would belong to a chunk that has begun.
    pub(super) fn is_open(&self, stream: Stream) -> bool {
        self.open(stream).is_some()
    }

    /// Returns how much more work the open chunk of a stream takes, 0 if there is none.
    pub(super) fn room(&self, stream: Stream) -> Ns {
        self.open(stream)
            .map_or(0, |at| CHUNK.saturating_sub(self.chunks[at].worth()))
    }

    /// Ends the open chunk of a stream if it is full: returns the event to record.
    pub(super) fn end_full(&mut self, now: Ns, stream: Stream) -> Option<Mark> {
        let open = self.open(stream).filter(|at| self.chunks[*at].is_full())?;
        Some(self.close(open, now))
    }

    /// Ends the open chunk of a stream, for a wait: returns the event to record, if there is one.
    pub(super) fn end_chunk(&mut self, now: Ns, stream: Stream) -> Option<Mark> {
        let open = self.open(stream)?;
        Some(self.close(open, now))
    }

    /// Ends the open chunks of all streams that `may_end` chooses.
    pub(super) fn end_chunks(&mut self, now: Ns, may_end: impl Fn(Stream) -> bool) -> Vec<(Stream, Mark)> {
        self.end_those(now, |chunk| may_end(chunk.stream))
    }

    /// Ends the open chunks, in streams that `may_end` chooses, whose work must have ended long ago.
    pub(super) fn end_old(&mut self, now: Ns, may_end: impl Fn(Stream) -> bool) -> Vec<(Stream, Mark)> {
        self.end_those(now, |chunk| may_end(chunk.stream) && chunk.is_late(now, 0))
    }

    /// Returns true if the oldest chunk takes much longer than expected.
    pub(super) fn is_late(&self, now: Ns) -> bool {
        self.chunks.front().is_some_and(|chunk| chunk.is_late(now, self.ended))
    }

    fn end_those(&mut self, now: Ns, may_end: impl Fn(&Chunk) -> bool) -> Vec<(Stream, Mark)> {
        let open = |chunk: &Chunk| chunk.mark.is_none() && may_end(chunk);
        let at: Vec<usize> = (0..self.chunks.len()).filter(|at| open(&self.chunks[*at])).collect();
        at.into_iter()
            .map(|at| (self.chunks[at].stream, self.close(at, now)))
            .collect()
    }

    fn close(&mut self, at: usize, now: Ns) -> Mark {
        self.marks += 1;
        let mark = Mark(self.marks);
        self.chunks[at].mark = Some(mark);
        self.chunks[at].closed = now;
        mark
    }

    /// Takes a chunk out whose event was reached. None: it is not known.
    pub(super) fn finished(&mut self, mark: Mark, from: Ns, to: Ns) -> Option<Measured> {
        let at = self.chunks.iter().position(|chunk| chunk.mark == Some(mark))?;
        let chunk = self.chunks.remove(at)?;
        self.ended = self.ended.max(to);
        self.estimated = self.chunks.iter().map(|chunk| chunk.estimated).sum();
        let of_others = self
            .chunks
            .iter()
            .filter(|other| other.stream != chunk.stream && other.begun < to);
        let oldest = of_others.map(|other| other.begun).min();
        Some(Measured {
            launches: chunk.launches,
            busy_since: oldest.map_or(from, |oldest| oldest.min(from)),
            alone: oldest.is_none(),
            begun: chunk.begun,
            closed: chunk.closed,
        })
    }
}

impl Chunk {
    /// Returns what the chunk's work is worth for its length: many launches of next to nothing are worth something.
    fn worth(&self) -> Ns {
        let launches: u32 = self.launches.iter().map(|(_, count)| count).sum();
        self.estimated.max(Ns::from(launches) * LEAST_LAUNCH)
    }

    /// Returns true if its work takes much longer than expected, counted from `ready` if the GPU had other work of this
    /// process until then.
    fn is_late(&self, now: Ns, ready: Ns) -> bool {
        self.begun.max(ready) + 4 * self.estimated + LATE < now
    }

    fn is_full(&self) -> bool {
        let launches: u32 = self.launches.iter().map(|(_, count)| count).sum();
        launches >= LAUNCHES || self.worth() >= CHUNK
    }
}

impl Measured {
    /// Returns what the chunk was expected to take.
    pub(super) fn expected(&self, estimates: &Estimates) -> Ns {
        let of = |(shape, count): &(Shape, u32)| estimates.get(*shape).unwrap_or(0).saturating_mul(Ns::from(*count));
        self.launches.iter().map(of).sum()
    }

    /// Returns true if the GPU may have waited for launches between the chunk's first event and its last, so that it took
    /// longer than its work: it was reached at `to`.
    pub(super) fn may_have_gaps(&self, estimates: &Estimates, took: Ns, to: Ns) -> bool {
        let expected = self.expected(estimates);
        let is_single = matches!(self.launches[..], [(_, 1)]);
        let knows_all = self.is_known(estimates);
        let has_caught_up = to < self.closed + CAUGHT_UP && took > expected;
        !is_single && knows_all && (has_caught_up || took > expected + expected / 2 + 2 * CAUGHT_UP)
    }

    /// Returns true if every shape in it was measured before.
    pub(super) fn is_known(&self, estimates: &Estimates) -> bool {
        self.launches.iter().all(|(shape, _)| estimates.get(*shape).is_some())
    }

    /// The estimates of these shapes are to be checked.
    pub(super) fn suspect(&self, estimates: &mut Estimates) {
        for (shape, _) in &self.launches {
            estimates.suspect(*shape);
        }
    }

    /// Corrects the estimates by what the chunk took, and returns what it would take by them now.
    pub(super) fn teach(&self, estimates: &mut Estimates, took: Ns, trust: Trust) -> Ns {
        match self.launches[..] {
            [(shape, 1)] => estimates.learn_single(shape, took, trust),
            [(shape, count)] => estimates.learn_one(shape, count, took, trust),
            _ => estimates.learn_mixed(&self.launches, took, trust),
        }
        self.expected(estimates)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// While its event is not reached, the launches behind it are not measured one by one too.
    #[test]
    fn one_launch_in_many_is_measured_by_itself() {
        let (mut flight, mut estimates) = (Flight::default(), Estimates::default());
        let (stream, shape) = (Stream(1), Shape(7));
        let mut launch = |estimates: &mut Estimates| flight.launched(0, stream, shape, estimates).is_some();
        for nth in 1..=FIRST {
            assert!(launch(&mut estimates), "launch {nth}");
        }
        estimates.learn_single(shape, 100, Trust::Alone);
        let marks = (0..640).filter(|_| launch(&mut estimates)).count();
        // One each 64 launches, and with it a chunk is full.
        assert!((10..=20).contains(&marks), "{marks}");
        estimates.suspect(shape);
        assert!((0..8).any(|_| launch(&mut estimates)), "checked soon");
    }
}
