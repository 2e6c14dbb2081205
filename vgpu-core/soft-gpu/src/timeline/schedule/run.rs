//! How a context processes its queue while it is on the GPU.
//!
//! The first pieces of the lanes begin in the order in which they were queued, as long as all that run fit on the GPU
//! together. The first piece that does not fit, or that waits for another context, keeps all later ones from beginning.
//! A piece that has begun keeps its part of the GPU until it ends, at full speed. So pieces that fill the GPU run one
//! after the other.

use std::sync::atomic::Ordering::Acquire;

use super::super::words::{DEPTH, Lanes, Queue, Shape, Ticket, WHOLE, stage};

/// A piece of work that has begun.
#[derive(Debug, Clone, Copy)]
pub(super) struct Piece {
    number: u64,
    /// When it ends, by the queue's clock.
    ends: u64,
    shape: Shape,
    /// It has begun since the words were read.
    is_new: bool,
}

#[derive(Clone)]
pub(super) struct Run<'a> {
    words: &'a Queue,
    queue: usize,
    pub(super) pushed: u64,
    pub(super) done: u64,
    pub(super) executed: u64,
    narrow: u64,
    /// By number.
    pub(super) running: Vec<Piece>,
    /// Numbers of pieces that ended before an earlier one.
    ended: Vec<u64>,
    /// Work that everything queued behind it has to wait for.
    blocked: Option<Ticket>,
    /// All entries before this one have been scanned: they have ended, or their lanes are in `lanes`.
    scanned: u64,
    lanes: Lanes,
    /// How many changes the stages, ends and stamps of its entries need.
    pub(super) records: usize,
    /// How often something has begun or ended since the words were read.
    pub(super) acts: usize,
}

/// The bounds of a run.
pub(super) struct Bounds<'a, D> {
    pub(super) from: u64,
    pub(super) limit: u64,
    /// The end of the slice: nothing begins from then on.
    pub(super) closes: u64,
    /// How many records it may need.
    pub(super) budget: usize,
    /// Returns true if work of another queue is done.
    pub(super) is_done: D,
    /// Numbers of entries for whose end others wait: the run stops there.
    pub(super) awaited: &'a [u64],
}

/// A scan of the work that has not ended, in order.
struct Scan {
    until: u64,
    number: u64,
    room: u32,
    /// The lanes of the work scanned so far.
    busy: Lanes,
    /// How many running pieces were scanned.
    running: usize,
    /// True if some entries were skipped.
    has_gap: bool,
}

/// Why no more work begins.
enum Held {
    /// The GPU is full: more work can begin only after an end.
    Full,
    /// The next piece is queued at this time.
    Until(u64),
    /// The run ends here.
    Stop,
}

impl<'a> Run<'a> {
    pub(super) fn read(words: &'a Queue, queue: usize) -> Self {
        let [executed, done, pushed] = [&words.executed, &words.done, &words.pushed].map(|word| word.load(Acquire));
        // Read after `pushed`, so it is correct for all entries that were pushed.
        let narrow = words.narrow.load(Acquire);
        let mut run = Self {
            words,
            queue,
            pushed: pushed.min(done.saturating_add(DEPTH)),
            done,
            executed,
            narrow,
            running: Vec::new(),
            ended: Vec::new(),
            blocked: None,
            scanned: 0,
            lanes: 0,
            records: 0,
            acts: 0,
        };
        // Nothing runs at the same time as work that fills the GPU, so other entries have not begun.
        for number in done..run.pushed.min(narrow.max(done.saturating_add(1))) {
            run.read_entry(number);
        }
        run
    }

    fn read_entry(&mut self, number: u64) {
        let entry = self.words.entry(number);
        let found = entry.stage.load(Acquire);
        if found == stage::ended(number) {
            self.ended.push(number);
        } else if found == stage::begun(number) {
            self.running.push(Piece {
                number,
                ends: entry.ends.load(Acquire),
                shape: Shape::unpack(entry.shape.load(Acquire)),
                is_new: false,
            });
        }
    }

    pub(super) fn is_done(&self, number: u64) -> bool {
        self.done > number || self.ended.binary_search(&number).is_ok()
    }

    /// The work that its first piece waits for, done or not.
    pub(super) fn front_after(&self) -> Option<Ticket> {
        self.front()?;
        Ticket::unpack(self.words.entry(self.done).after.load(Acquire))
    }

    /// Returns all work for which its pieces wait, done or not.
    pub(super) fn awaits(&self) -> impl Iterator<Item = Ticket> + use<> {
        let front = self.running.is_empty().then(|| self.front_after()).flatten();
        front.into_iter().chain(self.blocked)
    }

    /// When the first piece was queued; None: there is none.
    pub(super) fn front(&self) -> Option<u64> {
        (self.done < self.pushed).then(|| self.words.entry(self.done).when.load(Acquire))
    }

    /// Runs on the GPU, and returns the moment that it has reached: the limit, the end of its work, or a moment at
    /// which the schedule must be recomputed. `ended` gets the entries that end: number, old and new stamp.
    pub(super) fn advance(
        &mut self,
        bounds: &Bounds<'_, impl Fn(Ticket) -> bool>,
        mut ended: impl FnMut(u64, u64, u64),
    ) -> u64 {
        let (mut until, budget) = (bounds.from, self.records.saturating_add(bounds.budget));
        // Ends are handled first: they decide what can begin, and the last run may have stopped between two ends at one
        // moment.
        while !self.end_due(until, bounds, budget, &mut ended) {
            let arrival = match self.begin(until, bounds, budget, &mut ended) {
                Held::Full => u64::MAX,
                Held::Until(when) => when,
                Held::Stop => break,
            };
            let Some(left) = self.first_end() else { break };
            let end = until.saturating_add(left);
            let to = end.min(arrival).min(bounds.limit).max(until);
            if to == until {
                break;
            }
            self.executed = self.executed.saturating_add(to - until);
            until = to;
        }
        until
    }

    /// Returns the time until the first running piece ends.
    pub(super) fn first_end(&self) -> Option<u64> {
        let ends = self.running.iter().map(|piece| piece.ends).min()?;
        Some(ends.saturating_sub(self.executed))
    }

    /// Begins all work that can begin.
    fn begin<D: Fn(Ticket) -> bool>(
        &mut self,
        until: u64,
        bounds: &Bounds<'_, D>,
        budget: usize,
        ended: &mut impl FnMut(u64, u64, u64),
    ) -> Held {
        if until >= bounds.closes {
            return Held::Full;
        }
        let taken: u32 = self.running.iter().map(|piece| piece.shape.width).sum();
        let mut scan = Scan {
            until,
            number: self.done,
            room: WHOLE.saturating_sub(taken),
            busy: 0,
            running: 0,
            has_gap: false,
        };
        let known = self.blocked.take();
        let held = self.scan(&mut scan, bounds, budget, ended);
        if scan.has_gap {
            self.lanes |= scan.busy;
            self.scanned = self.scanned.max(scan.number);
        } else if scan.number >= self.scanned {
            (self.lanes, self.scanned) = (scan.busy, scan.number);
        }
        match held {
            // Stop, so that the work in `blocked` is awaited: its own run must stop when it ends.
            Held::Full if self.blocked.is_some() && self.blocked != known => Held::Stop,
            held => held,
        }
    }

    fn scan<D: Fn(Ticket) -> bool>(
        &mut self,
        scan: &mut Scan,
        bounds: &Bounds<'_, D>,
        budget: usize,
        ended: &mut impl FnMut(u64, u64, u64),
    ) -> Held {
        while scan.number < self.pushed {
            let number = scan.number;
            if scan.room == 0 && number >= self.narrow {
                return Held::Full;
            }
            if number < self.scanned && scan.busy & self.lanes == self.lanes {
                // Every entry before `scanned` has to wait for other work of its lane.
                (scan.number, scan.has_gap) = (self.scanned, true);
                scan.running = self.running.partition_point(|piece| piece.number < self.scanned);
                continue;
            }
            let running = self.running.get(scan.running);
            if let Some(piece) = running.filter(|piece| piece.number == number) {
                scan.busy |= piece.shape.lane.bit();
                scan.running += 1;
            } else if !self.is_done(number) {
                if self.records >= budget {
                    return Held::Stop;
                }
                match self.consider(scan, &bounds.is_done) {
                    Ok(None) => {}
                    Ok(Some(piece)) if piece.ends > self.executed => {
                        self.running.insert(scan.running, piece);
                        self.records += 2;
                        self.acts += 1;
                        scan.running += 1;
                    }
                    Ok(Some(_)) => {
                        ended(number, self.words.entry(number).when.load(Acquire), scan.until);
                        self.end(number);
                        if bounds.awaited.contains(&number) {
                            return Held::Stop;
                        }
                    }
                    Err(held) => return held,
                }
            }
            scan.number += 1;
        }
        Held::Full
    }

    /// Returns the entry if it can begin, None if only later ones may, and an error if no later one can begin either.
    fn consider(&mut self, scan: &mut Scan, is_done: &impl Fn(Ticket) -> bool) -> Result<Option<Piece>, Held> {
        let entry = self.words.entry(scan.number);
        let when = entry.when.load(Acquire);
        if when > scan.until {
            return Err(Held::Until(when));
        }
        let shape = Shape::unpack(entry.shape.load(Acquire));
        let after = Ticket::unpack(entry.after.load(Acquire));
        let own = after.filter(|after| after.queue == self.queue);
        if shape.lane.before() & scan.busy != 0 || own.is_some_and(|after| !self.is_done(after.number)) {
            scan.busy |= shape.lane.bit();
            return Ok(None);
        }
        if let Some(after) = after.filter(|after| after.queue != self.queue && !is_done(*after)) {
            self.blocked = Some(after);
            return Err(Held::Full);
        }
        if shape.width > scan.room {
            return Err(Held::Full);
        }
        let work = entry.work.load(Acquire);
        if work > 0 {
            scan.room -= shape.width;
            scan.busy |= shape.lane.bit();
        }
        Ok(Some(Piece {
            number: scan.number,
            ends: self.executed.saturating_add(work),
            shape,
            is_new: true,
        }))
    }

    /// Ends the pieces whose time is over. Returns true if the run stops here.
    fn end_due<D>(
        &mut self,
        until: u64,
        bounds: &Bounds<'_, D>,
        budget: usize,
        ended: &mut impl FnMut(u64, u64, u64),
    ) -> bool {
        while let Some(at) = self.running.iter().position(|piece| piece.ends <= self.executed) {
            if self.records >= budget {
                return true;
            }
            let Piece { number, is_new, .. } = self.running.remove(at);
            self.records -= if is_new { 2 } else { 0 };
            ended(number, self.words.entry(number).when.load(Acquire), until);
            self.end(number);
            if bounds.awaited.contains(&number) {
                return true;
            }
        }
        false
    }

    fn end(&mut self, number: u64) {
        self.records += 1;
        self.acts += 1;
        if number > self.done {
            let at = self.ended.partition_point(|other| *other < number);
            self.ended.insert(at, number);
            self.records += 1;
            return;
        }
        self.done += 1;
        let passed = self
            .ended
            .iter()
            .zip(self.done..)
            .take_while(|(one, next)| *one == next);
        let passed = passed.count();
        self.ended.drain(..passed);
        self.done += passed as u64;
    }

    /// Returns the entries whose stage has to be written: number, end time of running ones, stage.
    pub(super) fn stages(&self) -> impl Iterator<Item = (u64, Option<u64>, u64)> + '_ {
        let running = self.running.iter().filter(|piece| piece.is_new);
        let running = running.map(|piece| (piece.number, Some(piece.ends), stage::begun(piece.number)));
        let ended = self.ended.iter().map(|number| (*number, None, stage::ended(*number)));
        running.chain(ended)
    }

    /// Returns the GPU time that has to pass at least before an entry can end.
    pub(super) fn least(&self, number: u64) -> u64 {
        let lane = |number| Shape::unpack(self.words.entry(number).shape.load(Acquire)).lane;
        let (own, is_serial) = (lane(number), self.narrow <= self.done);
        let before = (self.done..=number).filter(|other| is_serial || lane(*other) == own);
        let sum = before.map(|number| self.left(number)).fold(0, u64::saturating_add);
        // A piece that takes no time may have to wait for another lane's work.
        sum.max(self.first_end().unwrap_or(0))
    }

    fn left(&self, number: u64) -> u64 {
        match self.running.iter().find(|piece| piece.number == number) {
            Some(piece) => piece.ends.saturating_sub(self.executed),
            None if self.is_done(number) => 0,
            None => self.words.entry(number).work.load(Acquire),
        }
    }
}
