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
/// A launch costs the GPU this much at least.
const LEAST_LAUNCH: Ns = 3 * US;

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
}

#[derive(Debug, Default)]
pub(super) struct Flight {
    chunks: VecDeque<Chunk>,
    estimated: Ns,
    marks: u64,
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

    /// Returns true if a launch is in flight whose length nobody knows yet.
    pub(super) fn has_unknown(&self, estimates: &Estimates) -> bool {
        let mut shapes = self.chunks.iter().flat_map(|chunk| &chunk.launches);
        shapes.any(|(shape, _)| estimates.get(*shape).is_none())
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
        let estimate = estimates.get(shape).unwrap_or(0);
        let nth = estimates.count(shape);
        let open = self
            .chunks
            .iter()
            .rposition(|chunk| chunk.stream == stream && chunk.mark.is_none());
        let at = open.unwrap_or_else(|| {
            self.chunks.push_back(Chunk {
                stream,
                mark: None,
                begun: now,
                launches: Vec::new(),
                estimated: 0,
            });
            self.chunks.len() - 1
        });
        let chunk = &mut self.chunks[at];
        match chunk.launches.iter_mut().find(|(known, _)| *known == shape) {
            Some((_, count)) => *count += 1,
            None => chunk.launches.push((shape, 1)),
        }
        chunk.estimated += estimate;
        self.estimated += estimate;
        let launches: u32 = chunk.launches.iter().map(|(_, n)| n).sum();
        let worth = chunk.estimated.max(Ns::from(launches) * LEAST_LAUNCH);
        (nth <= FIRST || worth >= CHUNK || launches >= LAUNCHES).then(|| self.close(at))
    }

    /// Ends the open chunk of a stream, for a wait: returns the event to record, if there is one.
    pub(super) fn end_chunk(&mut self, stream: Stream) -> Option<Mark> {
        let open = self
            .chunks
            .iter()
            .rposition(|chunk| chunk.stream == stream && chunk.mark.is_none())?;
        Some(self.close(open))
    }

    /// Ends all open chunks.
    pub(super) fn end_chunks(&mut self) -> Vec<(Stream, Mark)> {
        let open = |chunk: &Chunk| chunk.mark.is_none();
        let at: Vec<usize> = (0..self.chunks.len()).filter(|at| open(&self.chunks[*at])).collect();
        at.into_iter()
            .map(|at| (self.chunks[at].stream, self.close(at)))
            .collect()
    }

    fn close(&mut self, at: usize) -> Mark {
        self.marks += 1;
        let mark = Mark(self.marks);
        self.chunks[at].mark = Some(mark);
        mark
    }

    /// Takes a chunk out whose event was reached. None: it is not known.
    pub(super) fn finished(&mut self, mark: Mark, from: Ns, to: Ns) -> Option<Measured> {
        let at = self.chunks.iter().position(|chunk| chunk.mark == Some(mark))?;
        let chunk = self.chunks.remove(at)?;
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
        })
    }
}

impl Measured {
    /// Corrects the estimates by what the chunk took, and returns what it would take by them now.
    pub(super) fn teach(&self, estimates: &mut Estimates, took: Ns, trust: Trust) -> Ns {
        match self.launches[..] {
            [(shape, count)] => estimates.learn_one(shape, count, took, trust),
            _ => estimates.learn_mixed(&self.launches, took, trust),
        }
        let of = |(shape, count): &(Shape, u32)| estimates.get(*shape).unwrap_or(0) * Ns::from(*count);
        self.launches.iter().map(of).sum()
    }
}
