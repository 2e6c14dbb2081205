//! Decides for one process on one GPU which launch goes, which waits, and what is charged. No estimate of a launch's length:
//! what is in flight is bounded by acknowledgements, as in congestion control; what is charged is the time in which there was
//! work.
//!
//! ```text
//!  launch ─► budget left? ─ yes ─► driver                                       the caller's counter
//!              └ no ─► acknowledgements ─► charge ─► alone? ─ yes ─► driver
//!                        └─► cells                     └ no ─► decision: tokens? turn? room in the window? ─► driver
//!  wait returns ─► acknowledges what is in its stream, without an event
//! ```
//!
//! The caller counts launches within the budget and reports them before its next call; asks before each other launch, and
//! again after each sleep; reports it when it was made; and reports waits before and after them.
//!
//! `pace` is the GPU time of a launch lately, by which the window is limited; `config` and `times` are the constants, of which
//! those in `config` were chosen by measurement.
//!
//! How it fails: no kernel can be stopped, so the window times the length of a launch is the most that a share takes at
//! once; it is charged afterwards. `cells` says what the death of a process costs, `acknowledgements` what happens where no
//! event can be recorded.

mod acknowledgements;
mod alone;
pub mod call;
pub mod cells;
mod charge;
pub mod config;
mod decision;
mod launches;
mod pace;
#[cfg(test)]
mod tests;
pub(super) mod times;
mod window;

use std::collections::VecDeque;
use std::sync::atomic::Ordering::{AcqRel, Relaxed, Release};

use vgpu_abi::arbitration::{Entry, SLOTS, SlotPage, entry_flags};

use super::lost::Lost;
use super::{MS, Ns, US, account};
use call::{Answer, Call, Reason};
use config::Config;
use launches::{Alone, Mark, Open, WAIT_RETURNS};
pub use launches::{Scope, Stream, Waiting};
use pace::Pace;
use times::{GRACE, LINGER, LONG_GAP, STUCK};

/// Launches that take as long go one by one.
const LONG: Ns = 8 * MS;
/// How long after others were seen the GPU counts as shared.
const SHARED: Ns = 1000 * MS;

/// The limiter of one process on one GPU.
#[derive(Debug)]
pub struct Limiter {
    config: Config,
    /// Its cell of the share's page, and its name there.
    cell: usize,
    owner: u64,
    /// What the node's page said last: it may be being written at the moment.
    entry: Entry,
    /// It is not held to its `cores` at the moment.
    is_free: bool,
    /// By stream, launches that have no event behind them.
    open: Vec<Open>,
    /// Events that were not reached yet.
    marks: VecDeque<Mark>,
    last_mark: Ns,
    in_flight: u32,
    /// All that were ever made.
    launches: u64,
    /// It begins with 2, and doubles with each acknowledgement.
    window: u32,
    pace: Pace,
    /// Processes of the share that were at work besides this one lately.
    siblings: u32,
    /// Since when there has been work.
    busy: Option<Ns>,
    /// The event in front of that work, which says more exactly when it began.
    begin: Option<usize>,
    charged_to: Ns,
    /// Launches since the last charge.
    uncharged: u32,
    /// The GPU waited for launches since the last charge, and at the last acknowledgement.
    has_gaps: bool,
    has_caught_up: bool,
    /// The stream of a launch that is to be measured by itself, and the event in front of it.
    single: Option<(Stream, usize)>,
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
    /// Nothing was launched since a wait found nothing in flight.
    is_drained: bool,
    /// Since when a launch waits, and why.
    waiting: Option<(Ns, Reason)>,
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

impl Limiter {
    /// `owner`: the name of this process in cells, not 0. `entry` counts as long as the node's page says nothing.
    #[must_use]
    pub fn new(config: Config, owner: u64, entry: Entry) -> Self {
        Self {
            config,
            cell: usize::MAX,
            owner,
            entry,
            is_free: false,
            open: Vec::new(),
            marks: VecDeque::new(),
            last_mark: 0,
            in_flight: 0,
            launches: 0,
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
            is_alone: false,
            alone: Alone::default(),
            seen_others: None,
            uncut_until: 0,
            sibling_at: 0,
            gap: 0,
            drained_at: None,
            is_drained: true,
            waiting: None,
            waits: false,
            distrusted: [0; SLOTS],
            distrusts_until: 0,
            waited_for: None,
            lost: Lost::default(),
            random: owner | 1,
        }
    }

    /// Launches went within the budget.
    pub fn passed(&mut self, now: Ns, stream: Stream, launches: u32) {
        if launches > 0 {
            self.count(now, stream, launches, false);
        }
    }

    /// May this launch go, which has waited since `asked`?
    pub fn ask(&mut self, call: &mut Call<'_>, stream: Stream, asked: Ns) -> Answer {
        self.looks(call.now);
        self.poll(call);
        self.bury_the_dead(call);
        // At last without one: what it has in flight is then charged when it has ended.
        let may_go = self.has_cell(call) || call.now.saturating_sub(asked) >= STUCK;
        let answer = if may_go {
            self.decide(call, stream, asked)
        } else {
            Answer::sleep(call.now + MS, None, Reason::Cells)
        };
        self.count_wait(call, answer);
        self.waits = answer != Answer::Go;
        if !self.waits {
            self.record_before(call, stream);
            // So that nobody takes the cell before the launch was made.
            self.publish_since(call, self.busy.unwrap_or(call.now));
        }
        answer
    }

    /// Records events in front of a launch that says more than others.
    fn record_before(&mut self, call: &mut Call<'_>, stream: Stream) {
        if self.busy.is_none() {
            let before = self.begin.take();
            if self.is_capped(call.now) {
                self.begin = call.process.record(stream).event();
            } else if self.pace.mean == 0 {
                // The GPU passes it at once, so it dates the one behind the launch, which may be asked for much later.
                let first = call.process.record(stream).event();
                self.release(call, first);
            }
            self.release(call, before);
            if self.is_to_be_sampled(call.now) {
                self.measure_next(call, stream);
            }
            return;
        }
        if self.is_alone {
            self.sample_alone(call, stream);
            return;
        }
        let may_have_gaps = self.has_caught_up || call.pages.has_others_without_turns();
        // An event that ends what is open costs more than one in front, so there are fewer of them.
        let is_its_turn = !self.is_open(stream) || self.pace.sample == 0 || self.chance(8) == 0;
        if self.config.has_samples && may_have_gaps && is_its_turn {
            self.measure_next(call, stream);
        }
    }

    /// Returns true for one in a few launches of a program whose waits do not say when its work has ended.
    fn is_to_be_sampled(&mut self, now: Ns) -> bool {
        let is_time = if self.is_alone {
            now.saturating_sub(self.last_mark) >= self.config.age_alone
        } else {
            self.pace.sample == 0 || self.chance(4) == 0
        };
        is_time && self.config.has_samples && self.has_caught_up
    }

    /// The driver refused the launch.
    pub fn failed(&mut self, call: &mut Call<'_>) {
        let single = self.single.take().map(|(_, event)| event);
        self.release(call, single);
        if self.busy.is_none() {
            let begin = self.begin.take();
            self.release(call, begin);
        }
        self.publish(call);
    }

    /// The launch was made. Returns how many launches of any stream may now go without a question.
    pub fn launched(&mut self, call: &mut Call<'_>, stream: Stream) -> u32 {
        let now = call.now;
        self.count(now, stream, 1, true);
        if self.is_alone {
            return self.launched_alone(call, stream);
        }
        let age = self.config.age;
        let every = self.config.every.min(self.room(now) / 2);
        let is_full = self.free_room(now) == 0;
        // Launches within the budget went to streams too in which none has asked since.
        let patience = age * (1 + self.open.len() as Ns / 4);
        let is_due = |open: &Open| {
            let waits_for = if open.stream == stream { age } else { patience };
            let is_old = now.saturating_sub(open.since) >= waits_for;
            is_full || is_old || open.stream == stream && open.launches >= every
        };
        let mut due: Vec<Stream> = self
            .open
            .iter()
            .filter(|open| is_due(open))
            .map(|open| open.stream)
            .collect();
        if (self.pace.mean == 0 || self.is_single(stream)) && !due.contains(&stream) {
            due.push(stream);
        }
        // The stream of this launch first: an event may be in front of it.
        due.sort_by_key(|due| *due != stream);
        for stream in due {
            self.mark(call, stream);
        }
        self.publish(call);
        let budget = self.budget(call, every);
        let left = self.share_in_flight(call).left + Ns::from(budget) * self.pace.mean;
        let lasts = GRACE + self.leftover(left);
        call.page.turn.until.fetch_max(now + lasts, Release);
        budget
    }

    /// The program is about to wait for a stream, or for all. Returns what [`Limiter::after_wait`] takes.
    pub fn before_wait(&mut self, call: &mut Call<'_>, scope: Scope) -> Waiting {
        // Else the wait itself says when the work has ended.
        let needs_events = self.is_capped(call.now) || scope == Scope::Some;
        if self.in_flight > 0 && !self.is_alone && needs_events {
            match scope {
                Scope::Stream(stream) => self.mark(call, stream),
                Scope::Some | Scope::All => self.mark_all(call),
            }
        }
        self.waiting_for(call, scope)
    }

    /// The program has asked the driver, and there is no work left of what it asked for.
    pub fn found_done(&mut self, call: &mut Call<'_>, scope: Scope) {
        if scope == Scope::Some && self.marks.is_empty() && !self.is_alone {
            // The next question finds them reached.
            self.mark_all(call);
        }
        let wait = self.waiting_for(call, scope);
        self.after_wait(call, wait);
    }

    fn waiting_for(&self, call: &Call<'_>, scope: Scope) -> Waiting {
        Waiting {
            scope,
            since: call.now,
            launches: self.launches,
        }
    }

    /// The wait has returned. Returns false if there was nothing to do.
    pub fn after_wait(&mut self, call: &mut Call<'_>, wait: Waiting) -> bool {
        if self.is_drained {
            return false;
        }
        if self.is_alone {
            self.after_wait_alone(call, &wait);
            return false;
        }
        self.poll(call);
        let ended = self.close(&wait);
        if ended > 0 {
            // One that has not blocked does not say when the work has ended.
            self.has_caught_up = !wait.has_blocked(call.now);
            self.has_gaps |= self.has_caught_up;
        }
        self.ended(call, ended, call.now.saturating_sub(WAIT_RETURNS));
        if self.in_flight == 0 {
            self.drained(call);
        }
        true
    }

    /// Charges what is known to have ended.
    pub fn see_ended(&mut self, call: &mut Call<'_>) {
        self.poll(call);
    }

    /// Streams have ended, and the driver has waited for what was in them.
    pub fn forget(&mut self, call: &mut Call<'_>, has_ended: impl Fn(Stream) -> bool) {
        self.poll(call);
        let open = self.open.extract_if(.., |open| has_ended(open.stream));
        let open: u32 = open.map(|open| open.launches).sum();
        let (gone, kept): (VecDeque<Mark>, _) = self.marks.drain(..).partition(|mark| has_ended(mark.stream));
        self.marks = kept;
        let marked: u32 = gone.iter().map(|mark| mark.launches).sum();
        self.ended(call, open + marked, call.now);
        for mark in gone {
            self.release_both(call, &mark);
        }
    }

    /// A stream ends, and what is in it goes on.
    pub fn forget_stream(&mut self, call: &mut Call<'_>, stream: Stream) {
        self.mark(call, stream);
    }

    /// Nobody else uses the GPU, and the share is limited only beside others: its `cores` do not count until then.
    pub fn set_free(&mut self, page: &SlotPage, is_free: bool) {
        if std::mem::replace(&mut self.is_free, is_free) && !is_free {
            page.bucket.tokens.fetch_max(0, Relaxed);
        }
    }

    /// Returns true if there is work in a stream that is not known to have ended.
    #[must_use]
    pub fn has_work(&self, stream: Stream) -> bool {
        self.is_open(stream) || self.marks.iter().any(|mark| mark.stream == stream)
    }

    /// Counts the time since the last answer by the reason of that one. Threads that wait at once count once.
    fn count_wait(&mut self, call: &Call<'_>, answer: Answer) {
        let before = match answer {
            Answer::Wait(wait) => self.waiting.replace((call.now, wait.reason)),
            Answer::Go => self.waiting.take(),
        };
        let Some((since, reason)) = before else { return };
        let sum = match reason {
            Reason::Throttled => &call.page.counters.throttled,
            Reason::Turn => &call.page.counters.waited,
            Reason::Queue | Reason::Measuring | Reason::Cells => return,
        };
        sum.fetch_add(call.now.saturating_sub(since), Relaxed);
    }

    /// The process ends by itself: what it had in flight is charged until now.
    pub fn exit(&mut self, call: &mut Call<'_>) {
        self.poll(call);
        self.ended(call, self.in_flight, call.now);
        self.in_flight = 0;
        self.busy = None;
        self.publish(call);
        if self.owns_cell(call.page) {
            call.page.cells[self.cell].owner.store(0, Release);
        }
        if account::at_work(call.page, call.now).next().is_none() {
            call.page.turn.until.store(call.now, Release);
            call.page.turn.ends.store(0, Release);
            call.page.wake.fetch_add(1, AcqRel);
        }
    }

    /// Returns true if nothing is in flight.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.in_flight == 0
    }

    /// Returns true if an event was recorded in front of the next launch of a stream.
    fn is_single(&self, stream: Stream) -> bool {
        self.single.is_some_and(|(of, _)| of == stream)
    }

    /// Returns true if the share gets its `cores` and no more: by its policy, or because it leaves another one's page
    /// out, whose share may be honest.
    fn is_capped(&self, now: Ns) -> bool {
        !self.is_free && self.entry.flags & entry_flags::GUARANTEED != 0 || now < self.distrusts_until
    }

    fn budget(&mut self, call: &Call<'_>, every: u32) -> u32 {
        let mut room = self.free_room(call.now);
        if self.is_capped(call.now) && self.pace.mean > 0 {
            let in_flight = self.share_in_flight(call);
            let tokens = call.page.bucket.tokens.load(Relaxed);
            let free = tokens.saturating_sub_unsigned(in_flight.ran.saturating_add(in_flight.left));
            let fit = u64::try_from(free).unwrap_or(0) / self.pace.mean;
            room = room.min(u32::try_from(fit).unwrap_or(u32::MAX));
        }
        let mut budget = room.min(every);
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

    /// Nothing of this process is in flight any more: the turn is kept for as long as the program usually takes to
    /// launch again.
    fn drained(&mut self, call: &mut Call<'_>) {
        let (now, turn) = (call.now, &call.page.turn);
        self.drained_at = Some(now);
        self.is_drained = true;
        let left = self.share_in_flight(call).left;
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
        call.page.wake.fetch_add(1, AcqRel);
    }
}
