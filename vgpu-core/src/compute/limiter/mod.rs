//! Decides for one process on one GPU which launch goes, which waits, and how much time is charged. The length of a launch is
//! never estimated: the number in flight is bounded by acknowledgements, as in congestion control, and the charge is the time
//! in which there was work.
//!
//! ```text
//!  launch ─► budget left? ─ yes ─► driver                                       the caller's counter
//!              └ no ─► acknowledgements ─► charge ─► alone? ─ yes ─► driver
//!                        └─► cells                     └ no ─► decision: tokens? turn? room in the window? ─► driver
//!  wait returns ─► acknowledges the launches in its stream, without an event
//! ```
//!
//! The caller counts launches within the budget and reports them before its next call; asks before each other launch, and
//! again after each sleep; reports it when it was made; and reports waits before and after them.
//!
//! `pace` is the recent GPU time of a launch, which limits the window. `config` and `times` are the constants; those in
//! `config` were chosen by measurement.
//!
//! How it fails: no kernel can be stopped, so a share takes at most the window times the length of a launch at once, which is
//! charged afterwards. `cells` describes the cost of a process that dies, `acknowledgements` launches without an event.

mod acknowledgements;
mod alone;
pub mod call;
pub mod cells;
mod charge;
mod config;
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
use config::{AGE, AGE_ALONE, EVERY};
use launches::{Allowed, Alone, Mark, Open, WAIT_RETURNS};
pub use launches::{Scope, Stream, Waiting};
use pace::Pace;
use times::{GRACE, LINGER, LONG_GAP, STUCK};

/// Launches of this length go one by one.
const LONG: Ns = 8 * MS;
/// How long the GPU is treated as shared after another share was seen.
const SHARED: Ns = 1000 * MS;

/// The limiter of one process on one GPU.
#[derive(Debug)]
pub struct Limiter {
    /// Its cell of the share's page.
    cell: usize,
    /// Its identity in cells.
    owner: u64,
    /// The last valid entry read from the node's page, which the node may be writing at the moment.
    entry: Entry,
    /// It is not limited to its `cores` at the moment.
    is_free: bool,
    /// Launches without an event behind them, by stream.
    open: Vec<Open>,
    /// Events that the GPU has not passed yet.
    marks: VecDeque<Mark>,
    last_mark: Ns,
    in_flight: u32,
    allowed: Allowed,
    /// All launches ever made.
    launches: u64,
    /// Begins with 2, and doubles with each acknowledgement.
    window: u32,
    pace: Pace,
    /// Number of other processes of the share that recently had work in flight.
    siblings: u32,
    /// Since when there has been work.
    busy: Option<Ns>,
    /// The event in front of that work. It gives a more exact time of the begin.
    begin: Option<usize>,
    charged_to: Ns,
    /// Launches since the last charge.
    uncharged: u32,
    /// The GPU waited for launches since the last charge.
    has_gaps: bool,
    /// The GPU waited for launches at the last acknowledgement.
    has_caught_up: bool,
    /// The stream of the next launch to be measured alone, and the event in front of it.
    single: Option<(Stream, usize)>,
    /// No other share wants the GPU or uses it.
    is_alone: bool,
    alone: Alone,
    /// When another share was last seen to want the GPU or to use it.
    seen_others: Option<Ns>,
    /// Until when others cannot cut its turn.
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
    /// The last answer was to wait.
    waits: bool,
    /// Until when the page of a slot is ignored, by slot.
    distrusted: [Ns; SLOTS],
    /// Until when this share keeps to its `cores` because it ignores a page.
    distrusts_until: Ns,
    /// The slot for which the wish last waited. Remembered, because a page that changes all the time may not show this
    /// when the wish is overdue.
    waited_for: Option<usize>,
    lost: Lost,
    random: u64,
}

impl Limiter {
    /// `owner`: the identity of this process in cells, not 0. `entry` is used until the node's page has one.
    #[must_use]
    pub fn new(owner: u64, entry: Entry) -> Self {
        Self {
            cell: usize::MAX,
            owner,
            entry,
            is_free: false,
            open: Vec::new(),
            marks: VecDeque::new(),
            last_mark: 0,
            in_flight: 0,
            allowed: Allowed::default(),
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

    /// Notes launches that went within the budget.
    pub fn passed(&mut self, now: Ns, stream: Stream, launches: u32) {
        if launches > 0 {
            self.count(now, stream, launches, false);
        }
    }

    /// Decides whether a launch that has waited since `asked` may go.
    pub fn ask(&mut self, call: &mut Call<'_>, stream: Stream, asked: Ns) -> Answer {
        self.looks(call.now);
        self.poll(call);
        self.bury_the_dead(call);
        // After a long wait it goes without a cell: its work is then charged once it has ended.
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
            // Published now, so that no other process takes the cell before the launch is made.
            self.publish_since(call, self.busy.unwrap_or(call.now));
            self.allowed.add(call.now);
        }
        answer
    }

    /// Records events in front of a launch that is to be measured.
    fn record_before(&mut self, call: &mut Call<'_>, stream: Stream) {
        if self.busy.is_none() {
            let before = self.begin.take();
            if self.is_capped(call.now) {
                self.begin = call.process.record(stream).event();
            } else if self.pace.mean == 0 {
                // The GPU passes this event at once. The event behind the launch, which may be queried much later, is
                // dated by it.
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
        // An event that ends open launches costs more than one in front of a launch, so it is recorded less often.
        let is_its_turn = !self.is_open(stream) || self.pace.sample == 0 || self.chance(8) == 0;
        if may_have_gaps && is_its_turn {
            self.measure_next(call, stream);
        }
    }

    /// Returns true for one in several launches of a program whose waits do not show when its work ended.
    fn is_to_be_sampled(&mut self, now: Ns) -> bool {
        let is_time = if self.is_alone {
            now.saturating_sub(self.last_mark) >= AGE_ALONE
        } else {
            self.pace.sample == 0 || self.chance(4) == 0
        };
        is_time && self.has_caught_up
    }

    /// Notes that the driver refused the launch.
    pub fn failed(&mut self, call: &mut Call<'_>) {
        self.allowed.reported();
        let single = self.single.take().map(|(_, event)| event);
        self.release(call, single);
        if self.busy.is_none() {
            let begin = self.begin.take();
            self.release(call, begin);
        }
        self.publish(call);
    }

    /// Notes that the launch was made. Returns how many launches of any stream may now go without a question.
    pub fn launched(&mut self, call: &mut Call<'_>, stream: Stream) -> u32 {
        let now = call.now;
        self.allowed.reported();
        self.count(now, stream, 1, true);
        if self.is_alone {
            return self.launched_alone(call, stream);
        }
        let every = EVERY.min(self.room(now) / 2);
        let is_full = self.free_room(now) == 0;
        // Launches that use the budget do not ask, including launches in other streams. So other streams get an event
        // too, after a longer time.
        let patience = AGE * (1 + self.open.len() as Ns / 4);
        let is_due = |open: &Open| {
            let waits_for = if open.stream == stream { AGE } else { patience };
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
        // This launch's stream comes first, because an event may have been recorded in front of it.
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

    /// Notes that the program is about to wait for a stream, or for all. Returns what [`Limiter::after_wait`] takes.
    pub fn before_wait(&mut self, call: &mut Call<'_>, scope: Scope) -> Waiting {
        // Without events, the time at which the wait returns is taken as the end of the work.
        let needs_events = self.is_capped(call.now) || scope == Scope::Some;
        if self.in_flight > 0 && !self.is_alone && needs_events {
            match scope {
                Scope::Stream(stream) => self.mark(call, stream),
                Scope::Some | Scope::All => self.mark_all(call),
            }
        }
        self.waiting_for(call, scope)
    }

    /// Called when the program has asked the driver and no work is left in the scope of `question`. Events are recorded
    /// only after such an answer, because programs ask in loops.
    pub fn found_done(&mut self, call: &mut Call<'_>, question: Waiting) {
        if question.scope == Scope::Some && self.marks.is_empty() && !self.is_alone {
            // The next query will find these events reached.
            self.mark_all(call);
        }
        self.after_wait(call, question);
    }

    /// Returns the launches up to now whose end a wait or a query of this scope will report.
    #[must_use]
    pub fn waiting_for(&self, call: &Call<'_>, scope: Scope) -> Waiting {
        Waiting {
            scope,
            since: call.now,
            launches: self.launches,
        }
    }

    /// Notes that the wait has returned. Returns false if there was nothing to do.
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
            // If the wait did not block, its return does not show when the work ended.
            self.has_caught_up = !wait.has_blocked(call.now);
            self.has_gaps |= self.has_caught_up;
        }
        self.ended(call, ended, call.now.saturating_sub(WAIT_RETURNS));
        if self.in_flight == 0 {
            self.drained(call);
        }
        true
    }

    /// Charges the work that is known to have ended.
    pub fn see_ended(&mut self, call: &mut Call<'_>) {
        self.poll(call);
    }

    /// Forgets streams that were destroyed after the driver had waited for their work.
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

    /// Called when a stream is about to end while its work continues.
    pub fn forget_stream(&mut self, call: &mut Call<'_>, stream: Stream) {
        self.mark(call, stream);
    }

    /// Sets `is_free`: no other process uses the GPU. Used for a share that is limited only while others use the GPU.
    pub fn set_free(&mut self, page: &SlotPage, is_free: bool) {
        if std::mem::replace(&mut self.is_free, is_free) && !is_free {
            page.bucket.tokens.fetch_max(0, Relaxed);
        }
    }

    /// Returns true if a stream has work that is not known to have ended.
    #[must_use]
    pub fn has_work(&self, stream: Stream) -> bool {
        self.is_open(stream) || self.marks.iter().any(|mark| mark.stream == stream)
    }

    /// Adds the time since the last answer to the counter of its reason. If several threads wait at once, the time is
    /// counted once.
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

    /// Charges the work in flight until now, because the process exits.
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

    /// Returns true if the share gets its `cores` and no more: by its policy, or because it ignores the page of another share,
    /// which may be honest.
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
            // Random, so that any launch of a periodic program may be sampled.
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

    /// Keeps the turn for as long as the program usually takes to launch again, although nothing is in flight.
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
