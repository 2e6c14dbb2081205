//! The law by measured time, which is proposed: no estimate of a launch's length. What is in flight is bounded by
//! acknowledgements, as in congestion control; what is charged is the time in which there was work.
//!
//! ```text
//!  launch ─► budget left? ─ yes ─► driver                                                       a counter
//!              └ no ─► acknowledgements (window) ─► charge ─► alone? ─ yes ─► driver
//!                        └─► cells                              └ no ─► tokens? turn? room? (decision) ─► driver
//!  wait returns ─► acknowledges what is in its stream, without an event
//! ```
//!
//! `pace` is the GPU time of a launch lately, by which the window is limited; `config` the constants that were chosen by
//! measurement. Turns, tokens and the share's account are those of today (`vgpu_core::compute`).
//!
//! How it fails: no kernel can be stopped, so the window times the length of a launch is the most that a share takes at
//! once; it is charged afterwards. `cells` says what the death of a process costs.

mod alone;
pub mod cells;
mod charge;
pub mod config;
mod decision;
mod launches;
mod pace;
mod window;

use std::collections::VecDeque;
use std::sync::atomic::Ordering::{AcqRel, Relaxed, Release};

use vgpu_abi::arbitration::{Entry, SLOTS, entry_flags};
use vgpu_core::compute::account;
use vgpu_core::compute::limiter::{GRACE, LINGER};
use vgpu_core::compute::lost::Lost;

use super::events::Base;
use super::io::{Answer, Io, Law};
use crate::{MS, Ns, US};
pub use config::{Config, variants};
use launches::{Alone, Mark, Recorded, Stream};
use pace::Pace;

/// CPU: a launch within the budget, one that asks, and a wait that finds nothing to do. Not measured yet.
const WITHIN_BUDGET: Ns = 12;
const ASKS: Ns = 250;
const QUIET_WAIT: Ns = 25;
/// Launches that take as long go one by one.
const LONG: Ns = 8 * MS;
/// How long after others were seen the GPU counts as shared.
const SHARED: Ns = 1000 * MS;
/// A program that launches again later than this after a wait does not keep its turn.
const LONG_GAP: Ns = 700 * US;

/// The law in one process.
#[derive(Debug)]
pub(crate) struct Measured {
    config: Config,
    /// Its cell of the share's page, and its name there.
    cell: usize,
    owner: u64,
    /// What the node's page said last.
    entry: Entry,
    streams: Vec<Stream>,
    /// Events that were not reached yet.
    marks: VecDeque<Mark>,
    bases: Vec<Base>,
    last_mark: Ns,
    in_flight: u32,
    /// It begins with 2, and doubles with each acknowledgement.
    window: u32,
    pace: Pace,
    /// Processes of the share that were at work besides this one lately.
    siblings: u32,
    /// Since when there has been work.
    busy: Option<Ns>,
    /// The event in front of that work, which says more exactly when it began.
    begin: Option<Recorded>,
    charged_to: Ns,
    /// Launches since the last charge.
    uncharged: u32,
    /// The GPU waited for launches since the last charge, and at the last acknowledgement.
    has_gaps: bool,
    has_caught_up: bool,
    /// The event in front of a launch that is to be measured by itself.
    single: Option<usize>,
    /// Launches that may go without a question.
    budget: u32,
    /// The launch under way is one of them.
    is_within_budget: bool,
    /// No other share wants the GPU or uses it.
    is_alone: bool,
    alone: Alone,
    /// When another share was last seen to want the GPU or to use it.
    seen_others: Option<Ns>,
    /// Until when its turn is not cut.
    uncut_until: Ns,
    /// When the share last had a turn on another GPU.
    sibling_at: Ns,
    /// How long the program usually takes from the end of a wait to its next launch.
    gap: Ns,
    drained_at: Option<Ns>,
    /// The launch before this one, or this one when it last asked, had to wait.
    waits: bool,
    /// By slot, until when its page is ignored; and until when the share keeps to its `cores` because of that.
    distrusted: [Ns; SLOTS],
    distrusts_until: Ns,
    /// The slot that the wish waited for last: a page that changes all the time need not say so when the wish is overdue.
    waited_for: Option<usize>,
    lost: Lost,
    random: u64,
}

impl Measured {
    pub(super) fn new(config: Config, cell: usize, owner: u64, entry: Entry) -> Self {
        Self {
            config,
            cell,
            owner,
            entry,
            streams: Vec::new(),
            marks: VecDeque::new(),
            bases: Vec::new(),
            last_mark: 0,
            in_flight: 0,
            window: 2,
            pace: Pace::default(),
            siblings: 0,
            busy: None,
            begin: None,
            charged_to: 0,
            uncharged: 0,
            has_gaps: false,
            has_caught_up: false,
            single: None,
            budget: 0,
            is_within_budget: false,
            is_alone: false,
            alone: Alone::default(),
            seen_others: None,
            uncut_until: 0,
            sibling_at: 0,
            gap: 0,
            drained_at: None,
            waits: false,
            distrusted: [0; SLOTS],
            distrusts_until: 0,
            waited_for: None,
            lost: Lost::default(),
            random: owner | 1,
        }
    }

    /// Returns true if the share gets its `cores` and no more: by its policy, or because it leaves another one's page
    /// out, whose share may be honest.
    fn is_capped(&self, now: Ns) -> bool {
        self.entry.flags & entry_flags::GUARANTEED != 0 || now < self.distrusts_until
    }

    /// Returns how many launches may now go without a question.
    fn next_budget(&mut self, io: &Io<'_>, every: u32) -> u32 {
        let room = self.free_room(io.now);
        let mut budget = room.min(every);
        if self.is_capped(io.now) && self.pace.mean > 0 {
            let in_flight = self.share_in_flight(io);
            let tokens = io.page.bucket.tokens.load(Relaxed);
            let free = tokens.saturating_sub_unsigned(in_flight.ran + in_flight.left);
            budget = budget.min((u64::try_from(free).unwrap_or(0) / self.pace.mean) as u32);
        }
        if budget > 2 {
            // So that samples fall on any launch of a program that repeats itself.
            budget = budget / 2 + self.chance(budget);
        }
        budget.min(room)
    }

    /// Returns a number from 0 to `limit` - 1 that looks random.
    fn chance(&mut self, limit: u32) -> u32 {
        self.random = self
            .random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) as u32 % limit.max(1)
    }

    /// What was launched in the streams of a wait has ended. Returns how many launches had no event behind them.
    fn close_streams(&mut self, scope: Option<usize>) -> u32 {
        let in_scope = |(index, _): &(usize, &mut Stream)| scope.is_none_or(|scope| scope == *index);
        let streams = self.streams.iter_mut().enumerate().filter(in_scope);
        streams.map(|(_, stream)| std::mem::take(stream).open).sum()
    }

    /// Nothing of this process is in flight any more: the turn is kept for as long as the program usually takes to
    /// launch again.
    fn drained(&mut self, io: &mut Io<'_>) {
        let (now, turn) = (io.now, &io.page.turn);
        self.drained_at = Some(now);
        let left = self.share_in_flight(io).left;
        if left > 0 {
            turn.until.store(now + self.leftover(left) + GRACE, Release);
            return;
        }
        let keep = if self.gap < LONG_GAP {
            (2 * self.gap + 30 * US).min(LINGER)
        } else {
            0
        };
        turn.until.store(now + keep, Release);
        turn.idle_since.store(now, Relaxed);
        if keep == 0 {
            turn.ends.store(0, Release);
        }
        io.page.wake.fetch_add(1, AcqRel);
        io.cost += io.hardware.rouse;
    }
}

impl Law for Measured {
    fn ask(&mut self, io: &mut Io<'_>, stream: usize, _shape: u64, asked: Ns) -> Answer {
        io.cost += WITHIN_BUDGET;
        self.is_within_budget = self.budget > 0;
        if self.is_within_budget {
            self.budget -= 1;
            self.count_launch(io.now, stream);
            self.busy.get_or_insert(io.now);
            return Answer::Go;
        }
        if self.goes_alone(io.now) {
            io.cost += QUIET_WAIT;
            return Answer::Go;
        }
        self.looks(io.now);
        io.cost += ASKS;
        self.poll(io);
        if io.pages.slots.len() > 1 {
            io.cost += io.hardware.look;
        }
        if !self.has_cell(io) {
            return Answer::sleep(io.now + MS, None);
        }
        self.bury_the_dead(io);
        let answer = self.decide(io, asked);
        self.waits = answer != Answer::Go;
        if self.waits {
            return answer;
        }
        let may_have_gaps = self.has_caught_up || io.pages.has_others_without_turns();
        if self.busy.is_none() {
            self.busy = Some(io.now);
            if self.is_capped(io.now) {
                self.begin = Some(self.record(io, stream));
            }
        } else if self.is_alone {
            self.sample_alone(io, stream);
        } else if self.config.has_samples && may_have_gaps && self.stream(stream).open == 0 {
            self.record_in_front(io, stream);
        }
        answer
    }

    fn launched(&mut self, io: &mut Io<'_>, stream: usize, _shape: u64) {
        if self.is_within_budget {
            return;
        }
        let now = io.now;
        self.count_launch(now, stream);
        if self.is_alone {
            self.launched_alone(io, stream);
            return;
        }
        let open = *self.stream(stream);
        let age = self.config.age;
        let every = self.config.every.min(self.room(now) / 2);
        let is_full = self.free_room(now) == 0;
        let is_old = now.saturating_sub(open.since) >= age;
        if self.pace.mean == 0 || self.single.is_some() || open.open >= every || is_old || is_full {
            self.mark(io, stream);
        }
        // Launches within the budget went to streams too in which none has asked since.
        let others = self.streams.iter().filter(|stream| stream.open > 0).count() as Ns;
        for index in 0..self.streams.len() {
            let other = self.streams[index];
            let is_old = now.saturating_sub(other.since) > age * (1 + others / 4);
            if index != stream && other.open > 0 && (is_full || is_old) {
                self.mark(io, index);
            }
        }
        self.publish(io);
        self.budget = self.next_budget(io, every);
        let left = self.share_in_flight(io).left + Ns::from(self.budget) * self.pace.mean;
        let lasts = GRACE + self.leftover(left);
        io.page.turn.until.fetch_max(now + lasts, Release);
    }

    fn before_wait(&mut self, io: &mut Io<'_>, scope: Option<usize>) {
        io.cost += QUIET_WAIT;
        if self.is_alone || self.in_flight == 0 || !self.is_capped(io.now) {
            return; // the wait itself says when it has ended
        }
        io.cost += ASKS / 2;
        match scope {
            Some(stream) => self.mark(io, stream),
            None => self.mark_all(io),
        }
    }

    fn after_wait(&mut self, io: &mut Io<'_>, scope: Option<usize>) {
        io.cost += QUIET_WAIT;
        if self.in_flight == 0 && self.drained_at.is_some() {
            return;
        }
        if self.is_alone {
            self.after_wait_alone(io, scope);
            return;
        }
        io.cost += ASKS / 2;
        self.poll(io);
        let ended = self.close_streams(scope);
        self.ended(io, ended, io.now.saturating_sub(io.hardware.wait));
        self.budget = 0;
        if self.in_flight == 0 {
            self.drained(io);
        }
    }

    fn exit(&mut self, io: &mut Io<'_>) {
        self.poll(io);
        self.ended(io, self.in_flight, io.now);
        self.in_flight = 0;
        self.busy = None;
        self.publish(io);
        if self.owns_cell(io.page) {
            io.page.cells[self.cell].owner.store(0, Relaxed);
        }
        if account::at_work(io.page, io.now).next().is_none() {
            io.page.turn.until.store(io.now, Release);
            io.page.turn.ends.store(0, Release);
            io.page.wake.fetch_add(1, AcqRel);
        }
    }
}
