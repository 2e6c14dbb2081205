//! Decides for one process on one GPU: whether a launch goes now, and if not, until when it sleeps, and on whose page.
//!
//! The caller reports launches, events that were reached and waits that returned. It asks before each launch, reports
//! what was reached before it asks, and asks again after each sleep.

use std::sync::atomic::Ordering::{AcqRel, Relaxed, Release};

use vgpu_abi::arbitration::{Entry, SLOTS, SlotPage, entry_flags, turn_flags, want_flags};

use super::estimate::{Estimates, Shape, Trust};
use super::flight::{Flight, LEAST_LEFT, Mark, Stream};
use super::lost::Lost;
use super::turn::{CUT, DRAIN, FLOOR, Pages, QUANTUM, Slot, Tag, View, Wish, look};
use super::{MS, Ns, US, account, bucket};

/// More than this in flight, and the next launch waits.
pub const AHEAD: Ns = 2 * MS;
/// How much longer others leave the GPU to a share than its work is expected to take: more than a context switch, else
/// a turn is lost before it has begun on the GPU.
pub const GRACE: Ns = 500 * US;
/// How long a turn is kept at most when nothing is in flight.
pub const LINGER: Ns = 300 * US;
/// A program that launches again later than this does not keep its turn.
pub(super) const LONG_GAP: Ns = 700 * US;
/// A share that has waited this long goes, if it has not used its `cores`.
pub const OVERRIDE: Ns = 250 * MS;
/// How long a launch waits for one of unknown length to end.
const MEASURING: Ns = 100 * MS;
/// A launch of a capped share waits for this much of the GPU's whole time at least, divided by its part, for a kernel that
/// may wait for it.
pub(super) const STUCK: Ns = 1000 * MS;
/// For how long the page of a share is left out that kept another one from its `cores`.
pub(super) const DISTRUST: Ns = 750 * MS;
/// How long a wish holds that is not renewed.
pub(super) const WISH: Ns = 300 * MS;
/// No sleep is longer, so that wishes are renewed.
pub(super) const LONGEST_SLEEP: Ns = 100 * MS;
/// A share that does not take a free turn for this long is passed over.
pub(super) const ABSENT: Ns = 5 * MS;
/// A turn without work for this long is over.
pub(super) const FORGOTTEN: Ns = 2 * MS;

/// The answer to a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    Go,
    Wait(Wait),
}

/// Ask again at `until`, or when the word `wake` of slot `on` changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    pub until: Ns,
    pub on: Option<usize>,
    pub reason: Reason,
}

/// Why a launch waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The share has used its `cores`.
    Throttled,
    /// Another share has its turn.
    Turn,
    /// Enough is in flight.
    Queue,
    /// A launch of unknown length is in flight.
    Measuring,
    /// Too many processes of the share are at work.
    Cells,
}

/// What a share has on the GPU.
#[derive(Clone, Copy, Debug)]
struct InFlight {
    /// What the launches that are not known to have ended take.
    estimated: Ns,
    /// How much of it has run, if it has run since it was launched, or since what was charged last.
    ran: Ns,
    /// The rest.
    left: Ns,
}

/// The limiter of one process on one GPU.
#[derive(Debug)]
pub struct Limiter {
    cell: usize,
    /// What the node's page said last: it may be being written at the moment.
    entry: Entry,
    estimates: Estimates,
    flight: Flight,
    /// How long the program usually takes from the end of a wait to its next launch.
    gap: Ns,
    drained_at: Option<Ns>,
    waiting: Option<(Ns, Reason)>,
    /// When a launch of unknown length was last let go that is not in flight yet.
    unknown_goes: Option<Ns>,
    /// By slot, until when its page is ignored.
    distrusted: [Ns; SLOTS],
    distrusts_until: Ns,
    /// The slot that the wish waited for last: a page that changes all the time need not say so when the wish is overdue.
    waited_for: Option<usize>,
    lost: Lost,
}

impl Limiter {
    /// `cell` is this process's cell of the share's page. `entry` counts as long as the node's page says nothing.
    #[must_use]
    pub fn new(cell: usize, entry: Entry) -> Self {
        Self {
            cell,
            entry,
            estimates: Estimates::default(),
            flight: Flight::default(),
            gap: 0,
            drained_at: None,
            waiting: None,
            unknown_goes: None,
            distrusted: [0; SLOTS],
            distrusts_until: 0,
            waited_for: None,
            lost: Lost::default(),
        }
    }

    /// May this launch go, which has waited since `asked`? `sibling`: the share holds a turn on another GPU.
    pub fn ask(&mut self, pages: &Pages<'_>, now: Ns, shape: Shape, asked: Ns, sibling: bool) -> Decision {
        let decision = self.decide(pages, now, shape, asked, sibling);
        if decision == Decision::Go && self.estimates.get(shape).is_none() {
            self.unknown_goes = Some(now);
        }
        self.count_waits(pages, now, decision);
        decision
    }

    fn decide(&mut self, pages: &Pages<'_>, now: Ns, shape: Shape, asked: Ns, sibling: bool) -> Decision {
        let Some(page) = pages.page() else {
            return Decision::Go;
        };
        self.entry = pages.entry().unwrap_or(self.entry);
        let weight = self.entry.weight;
        let in_flight = self.in_flight(page, now);
        let InFlight { ran, left, .. } = in_flight;
        // While the share is at work, what is not charged yet comes on top of what it may save up: else tokens that
        // arrive during a long kernel would be lost.
        let tokens = bucket::refill(&page.bucket, weight, burst(weight) + ran, now).saturating_sub_unsigned(ran);
        let own = Slot::read(pages.own, self.entry, page, now);
        let view = look(pages, &own, &self.distrusted, now);
        self.count_gap(page, now, view.wanted && own.ends != 0);
        // A kernel may wait for one that is launched behind it: no launch waits for another one's end for long.
        let waited = now.saturating_sub(asked);
        let unknown_since = self.flight.unknown_since(&self.estimates).max(self.unknown_goes);
        if unknown_since.is_some_and(|since| now.saturating_sub(since) < MEASURING) {
            return sleep(now + 30 * US, None, Reason::Measuring);
        }
        if self.is_capped(now) {
            // Its estimate is of no use: what is behind it may be as wrong.
            if waited < MEASURING && self.flight.is_late(now) {
                return sleep(now + 200 * US, None, Reason::Queue);
            }
            let free = tokens.saturating_sub_unsigned(left);
            let is_stuck = ran >= STUCK && waited >= bucket::time_for(STUCK, weight);
            if free <= 0 && !is_stuck {
                if own.ends != 0 {
                    end_turn(page, now, left);
                }
                page.want.since.store(0, Release);
                // Until there is room for a launch, and not for a sliver of one.
                let grain = self.estimates.get(shape).unwrap_or(0).clamp(200 * US, MS);
                let missing = free.unsigned_abs().saturating_add(grain);
                let mut sleeps = bucket::time_for(missing, weight).min(LONGEST_SLEEP);
                if !self.flight.is_empty() {
                    // Others of the share take this process to be at work until it has seen that its work has ended.
                    sleeps = sleeps.min(left.max(500 * US));
                }
                return sleep(now + sleeps, None, Reason::Throttled);
            }
        }
        let mut held = own.ends != 0;
        if held && (view.taken_over || page.turn.until.load(Relaxed).saturating_add(FORGOTTEN) < now) {
            end_turn(page, now, left);
            held = false;
            if self.waiting.is_some() {
                // It had work all the time, and others thought that it had none. So it keeps its tag: the virtual time
                // of the turn that was taken from it would erase what it is owed.
                self.wish(page, Tag(page.finish_tag.load(Relaxed)), now, &in_flight, sibling);
            }
        }
        if held {
            let may_queue = waited >= OVERRIDE || !self.is_queue_full(&in_flight, now);
            if !may_queue {
                page.turn.until.fetch_max(now + GRACE, AcqRel);
                let sleeps = left.saturating_sub(AHEAD / 2).max(100 * US);
                return sleep(now + sleeps.min(LONGEST_SLEEP), None, Reason::Queue);
            }
            self.within_turn(page, &view, now, &in_flight, sibling)
        } else {
            self.before_turn(pages, page, now, &in_flight, tokens, sibling)
        }
    }

    /// Returns true if a further launch has to wait for what is in flight.
    fn is_queue_full(&self, in_flight: &InFlight, now: Ns) -> bool {
        // Work that should have ended shares the GPU with others, or takes longer than its estimate.
        let is_late = in_flight.estimated > 3 * AHEAD || self.flight.is_late(now);
        (in_flight.left > AHEAD || is_late) && self.flight.has_several()
    }

    fn within_turn(&mut self, page: &SlotPage, view: &View, now: Ns, in_flight: &InFlight, sibling: bool) -> Decision {
        let left = in_flight.left;
        let began = page.turn.began.load(Relaxed);
        let is_promoted = page.turn.flags.load(Relaxed) & turn_flags::PROMOTED != 0;
        let is_over = now + left >= page.turn.ends.load(Relaxed);
        if !is_over && (now.saturating_sub(began) < CUT || is_promoted || !view.cut_wanted) {
            return Decision::Go;
        }
        if !view.wanted {
            // Time that nobody else wanted is not owed.
            self.forgive(page, now);
            page.start_tag.store(page.finish_tag.load(Relaxed), Relaxed);
            begin_turn(page, now, left, 0);
            return Decision::Go;
        }
        end_turn(page, now, left);
        self.wish(page, view.virtual_time, now, in_flight, sibling);
        sleep(
            view.free_at.max(now + left.min(DRAIN)).max(now + 50 * US),
            view.held_by,
            Reason::Turn,
        )
        .bounded(now)
    }

    fn before_turn(
        &mut self,
        pages: &Pages<'_>,
        page: &SlotPage,
        now: Ns,
        in_flight: &InFlight,
        tokens: i64,
        sibling: bool,
    ) -> Decision {
        let own = Slot::read(pages.own, self.entry, page, now);
        if own.wish.is_none() {
            let view = look(pages, &own, &self.distrusted, now);
            self.waited_for = None;
            self.wish(page, view.virtual_time, now, in_flight, sibling);
        } else {
            page.want.valid_until.store(now + WISH, Relaxed);
            if sibling {
                page.want.flags.fetch_or(want_flags::SIBLING, Relaxed);
            } else {
                page.want.flags.fetch_and(!want_flags::SIBLING, Relaxed);
            }
        }
        let own = Slot::read(pages.own, self.entry, page, now);
        let Some(wish) = own.wish else {
            return sleep(now + 50 * US, None, Reason::Turn); // another process of the share has changed it
        };
        let view = look(pages, &own, &self.distrusted, now);
        let waited = now.saturating_sub(wish.since);
        let is_overdue = waited > OVERRIDE && tokens > 0;
        if now < view.free_at {
            self.waited_for = view.held_by;
        }
        if !is_overdue && now < view.free_at {
            let overdue_at = if tokens > 0 { wish.since + OVERRIDE + 1 } else { Ns::MAX };
            return sleep(view.free_at.min(overdue_at), view.held_by, Reason::Turn).bounded(now);
        }
        // A share that is next and does not go is dead, stopped or lies.
        let is_passed_over = now >= view.free_at.max(own.until).max(wish.since) + ABSENT;
        if !is_overdue && !view.is_next && !is_passed_over {
            return sleep(now + 150 * US, None, Reason::Turn);
        }
        // No honest turn keeps another share from its `cores` for so long, at once or by many waits, unless it is of high
        // priority.
        self.lost.waited(waited, now, self.entry.weight);
        let is_robbed = self.lost.time() > OVERRIDE && tokens > 0;
        if let Some(slot) = self
            .waited_for
            .filter(|slot| (is_overdue || is_robbed) && !pages.is_of_high_priority(*slot))
        {
            self.distrusted[slot] = now + DISTRUST;
            self.distrusts_until = now + DISTRUST;
            self.lost.forget();
        }
        self.take_turn(page, &wish, now, in_flight);
        Decision::Go
    }

    /// Returns true if the share gets its `cores` and no more: by its policy, or because it leaves another one's page out,
    /// whose share may be honest.
    fn is_capped(&self, now: Ns) -> bool {
        self.entry.flags & entry_flags::GUARANTEED != 0 || now < self.distrusts_until
    }

    /// Forgives the time that the share has had beyond its `cores`.
    fn forgive(&self, page: &SlotPage, now: Ns) {
        if !self.is_capped(now) {
            page.bucket.tokens.fetch_max(0, Relaxed);
        }
    }

    /// From now on the share is held to its `cores`, which it was not before.
    pub fn begin_to_count(&mut self, pages: &Pages<'_>) {
        if let Some(page) = pages.page() {
            page.bucket.tokens.fetch_max(0, Relaxed);
        }
    }

    /// Wishes for a turn. The tag is fixed now: one that is computed anew while the share waits would starve newcomers.
    fn wish(&self, page: &SlotPage, virtual_time: Tag, now: Ns, in_flight: &InFlight, sibling: bool) {
        // What is in flight is not charged yet.
        let finish = Tag(page.finish_tag.load(Relaxed)).after(in_flight.estimated, self.entry.weight);
        let mut flags = 0;
        if finish.before(virtual_time) {
            flags |= want_flags::BEHIND;
        }
        if sibling {
            flags |= want_flags::SIBLING;
        }
        let away = now.saturating_sub(page.turn.began.load(Relaxed));
        page.want.tag.store(finish.lifted(virtual_time, away).0, Relaxed);
        page.want.flags.store(flags, Relaxed);
        page.want.valid_until.store(now + WISH, Relaxed);
        page.want.since.store(now, Release);
    }

    fn take_turn(&self, page: &SlotPage, wish: &Wish, now: Ns, in_flight: &InFlight) {
        let tag = wish.tag.ahead_of(in_flight.estimated, self.entry.weight);
        let lifted = |finish: u64| Some(Tag(finish).max(tag).0);
        let _ = page.finish_tag.fetch_update(Relaxed, Relaxed, lifted);
        page.start_tag.store(tag.0, Relaxed);
        let is_promoted = self.entry.flags & entry_flags::HIGH == 0
            && now.saturating_sub(wish.since.max(page.turn.began.load(Relaxed))) >= FLOOR;
        let flags = if is_promoted { turn_flags::PROMOTED } else { 0 };
        begin_turn(page, now, in_flight.left, flags);
        page.want.since.store(0, Release);
    }

    /// Reports a launch. Returns the event to record behind it, if one is to be measured there.
    pub fn launched(&mut self, pages: &Pages<'_>, now: Ns, stream: Stream, shape: Shape) -> Option<Mark> {
        self.unknown_goes = None;
        let mark = self.flight.launched(now, stream, shape, &mut self.estimates);
        if let Some(page) = pages.page() {
            self.publish(page, now);
            page.turn
                .until
                .store(now + self.in_flight(page, now).left + GRACE, Release);
        }
        mark
    }

    /// Reports launches that went on credit ([`Limiter::credit`]).
    pub fn passed(&mut self, now: Ns, stream: Stream, shape: Shape, count: u32) {
        self.flight.passed(now, stream, shape, count, &mut self.estimates);
    }

    /// Returns how much work may be launched in this stream without asking, all of it in the chunk that is open there.
    /// Asked for after a launch; others are told that it may come.
    pub fn credit(&mut self, pages: &Pages<'_>, now: Ns, stream: Stream) -> Ns {
        let Some(page) = pages.page() else { return 0 };
        let InFlight { ran, left, .. } = self.in_flight(page, now);
        let mut credit = self.flight.room(stream).min(AHEAD.saturating_sub(left));
        if self.is_capped(now) {
            let used = ran.saturating_add(left);
            let free = page.bucket.tokens.load(Relaxed).saturating_sub_unsigned(used);
            credit = credit.min(u64::try_from(free).unwrap_or(0));
        }
        if credit > 0 {
            page.turn.until.fetch_max(now + left + credit + GRACE, AcqRel);
        }
        credit
    }

    /// Returns the share's weight.
    #[must_use]
    pub fn weight(&self) -> u32 {
        self.entry.weight
    }

    /// This process has another cell now.
    pub fn move_to(&mut self, cell: usize) {
        self.cell = cell;
    }

    /// Returns what a launch of this shape takes, if that is known.
    #[must_use]
    pub fn estimate(&self, shape: Shape) -> Option<Ns> {
        self.estimates.get(shape)
    }

    /// Returns true if a launch in this stream would belong to a chunk that has begun, so that no event is needed in
    /// front of it.
    #[must_use]
    pub fn is_open(&self, stream: Stream) -> bool {
        self.flight.is_open(stream)
    }

    /// Returns true if nothing is known to be in flight.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.flight.is_empty()
    }

    /// Returns the event to record before the next launch in this stream, if its chunk is full.
    pub fn end_full(&mut self, now: Ns, stream: Stream) -> Option<Mark> {
        self.flight.end_full(now, stream)
    }

    /// Reports that the event of a chunk cannot be had: the estimates are charged, or the time since it began.
    pub fn failed(&mut self, pages: &Pages<'_>, now: Ns, mark: Mark) {
        let Some(lost) = self.flight.finished(mark, now, now) else {
            return;
        };
        if let Some(page) = pages.page() {
            if lost.is_known(&self.estimates) {
                account::charge_time(page, self.entry.weight, lost.expected(&self.estimates));
            } else {
                // Nobody knows how long it takes: it may have been on the GPU all the time.
                account::charge_work(page, self.entry.weight, lost.begun, now, None);
            }
            self.publish(page, now);
        }
    }

    /// Returns the event to record before a wait for this stream, so that all in front of it is measured.
    pub fn waits_for(&mut self, now: Ns, stream: Stream) -> Option<Mark> {
        self.flight.end_chunk(now, stream)
    }

    /// Returns true if the next launch of this shape is to be measured by itself: what is in front of it ends a chunk.
    #[must_use]
    pub fn is_due(&self, shape: Shape) -> bool {
        self.estimates.is_due(shape)
    }

    /// Ends the chunks whose work must have ended long ago, in streams that `may_end` chooses. They are reported as
    /// failed: nobody can record an event there.
    pub fn ends_old(&mut self, now: Ns, may_end: impl Fn(Stream) -> bool) -> Vec<Mark> {
        let ended = self.flight.end_old(now, may_end).into_iter();
        ended.map(|(_, mark)| mark).collect()
    }

    /// Returns the events to record when a launch has to wait, in the streams that `may_end` chooses: what is in flight
    /// is measured up to there.
    pub fn holds(&mut self, now: Ns, may_end: impl Fn(Stream) -> bool) -> Vec<(Stream, Mark)> {
        self.flight.end_chunks(now, may_end)
    }

    /// Reports an event that was reached, with when the GPU began its chunk and when it ended.
    pub fn finished(&mut self, pages: &Pages<'_>, now: Ns, mark: Mark, from: Ns, to: Ns) {
        let Some(measured) = self.flight.finished(mark, from, to) else {
            return;
        };
        let Some(page) = pages.page() else {
            return;
        };
        let is_own = pages.others(now).all(|other| {
            other.began == 0 || other.began >= to || other.until.saturating_sub(GRACE) <= measured.busy_since
        });
        let took = to.saturating_sub(from);
        let has_gaps = measured.may_have_gaps(&self.estimates, took, to);
        if has_gaps {
            measured.suspect(&mut self.estimates);
        }
        // Shares that take no turns may have been on the GPU at any time.
        let is_bounded = !is_own || has_gaps || pages.has_others_without_turns();
        let is_beside = !measured.alone || has_gaps || self.has_siblings_at_work(page, now);
        let trust = if is_beside || is_bounded && is_own {
            Trust::Beside
        } else if is_own {
            Trust::Alone
        } else {
            Trust::Overlapped
        };
        let expected = measured.teach(&mut self.estimates, took, trust);
        // Of a chunk with gaps, what came after its last launch is work for certain.
        let surely = if is_own && !pages.has_others_without_turns() {
            to.saturating_sub(measured.closed.max(from))
        } else {
            0
        };
        // Between shares that take turns, a chunk that takes a little longer than expected may have waited for the host.
        let counts = self.is_capped(now) || surely > 4 * expected;
        let at_most = is_bounded.then(|| (expected / 10 * 11).max(if counts { surely } else { 0 }));
        account::charge_work(page, self.entry.weight, measured.busy_since, to, at_most);
        self.publish(page, now);
    }

    /// Reports that a wait has returned. If nothing is in flight any more, the turn is kept for as long as the program
    /// usually takes to launch again. Returns true if others are to be woken: the share's `wake` word has changed.
    pub fn waited(&mut self, pages: &Pages<'_>, now: Ns) -> bool {
        let Some(page) = pages.page().filter(|_| self.flight.is_empty()) else {
            return false;
        };
        self.publish(page, now);
        self.drained_at = Some(now);
        let left = self.in_flight(page, now).left;
        if left > 0 {
            page.turn.until.store(now + left + GRACE, Release);
            return false;
        }
        let keep = if self.gap < LONG_GAP {
            (2 * self.gap + 30 * US).min(LINGER)
        } else {
            0
        };
        page.turn.until.store(now + keep, Release);
        page.turn.idle_since.store(now, Relaxed);
        if keep == 0 {
            page.turn.ends.store(0, Release);
        }
        page.wake.fetch_add(1, AcqRel);
        true
    }

    /// Time between a wait and the next launch. In a turn that others wanted, it is charged.
    fn count_gap(&mut self, page: &SlotPage, now: Ns, is_kept_from_others: bool) {
        if let Some(drained_at) = self.drained_at.take() {
            let gap = now.saturating_sub(drained_at).min(5 * MS);
            self.gap = if gap > self.gap {
                self.gap + (gap - self.gap) / 5
            } else {
                self.gap - (self.gap - gap) / 5
            };
        }
        let idle_since = page.turn.idle_since.swap(0, Relaxed);
        if idle_since != 0 && is_kept_from_others {
            let until = page.turn.until.load(Relaxed).min(now);
            account::charge_time(page, self.entry.weight, until.saturating_sub(idle_since).min(LINGER));
        }
    }

    fn publish(&self, page: &SlotPage, now: Ns) {
        if let Some(cell) = page.cells.get(self.cell) {
            let since = self.flight.since().unwrap_or(0);
            let is_unknown = self.flight.has_unknown(&self.estimates);
            account::publish(cell, now, since, self.flight.estimated(), is_unknown);
        }
    }

    /// Returns what this process and the others of its share have in flight.
    fn in_flight(&self, page: &SlotPage, now: Ns) -> InFlight {
        let others = || account::at_work(page, now).filter(|work| work.cell != self.cell);
        let estimated = others()
            .map(|work| work.estimated)
            .fold(self.flight.estimated(), Ns::saturating_add);
        let since = others().map(|work| work.since).chain(self.flight.since()).min();
        let ran = since.map_or(0, |since| now.saturating_sub(since.max(page.covered.load(Relaxed))));
        let left = estimated.saturating_sub(ran);
        InFlight {
            estimated,
            ran: if self.flight.has_unknown(&self.estimates) || others().any(|work| work.is_unknown) {
                ran // all of it may be work
            } else {
                ran.min(estimated)
            },
            left: if estimated == 0 { 0 } else { left.max(LEAST_LEFT) },
        }
    }

    /// Returns true if another process of the share has work on the GPU.
    fn has_siblings_at_work(&self, page: &SlotPage, now: Ns) -> bool {
        account::at_work(page, now).any(|work| work.cell != self.cell)
    }

    /// Counts the time since the last answer by the reason of that one. Threads that wait at once count once.
    fn count_waits(&mut self, pages: &Pages<'_>, now: Ns, decision: Decision) {
        let before = match decision {
            Decision::Wait(wait) => self.waiting.replace((now, wait.reason)),
            Decision::Go => self.waiting.take(),
        };
        let (Some((since, reason)), Some(page)) = (before, pages.page()) else {
            return;
        };
        let sum = match reason {
            Reason::Throttled => &page.counters.throttled,
            Reason::Turn => &page.counters.waited,
            Reason::Queue | Reason::Measuring | Reason::Cells => return,
        };
        sum.fetch_add(now.saturating_sub(since), Relaxed);
    }
}

/// What a share may save up: its part of a quantum, and 2 ms at least.
fn burst(weight: u32) -> Ns {
    (QUANTUM * Ns::from(weight) / bucket::WHOLE).max(2 * MS)
}

fn sleep(until: Ns, on: Option<usize>, reason: Reason) -> Decision {
    Decision::Wait(Wait { until, on, reason })
}

impl Decision {
    /// A sleep that is long enough not to spin and short enough to renew the wish.
    fn bounded(self, now: Ns) -> Self {
        match self {
            Self::Go => Self::Go,
            Self::Wait(wait) => Self::Wait(Wait {
                until: wait.until.clamp(now + 1, now + LONGEST_SLEEP),
                ..wait
            }),
        }
    }
}

fn begin_turn(page: &SlotPage, now: Ns, left: Ns, flags: u64) {
    page.turn.began.store(now, Release);
    page.turn.flags.store(flags, Relaxed);
    page.turn.until.store(now + left + GRACE, Release);
    page.turn.ends.store(now + left + QUANTUM, Release);
}

/// Others wait for what is left, and no longer than [`DRAIN`].
fn end_turn(page: &SlotPage, now: Ns, left: Ns) {
    page.turn.until.store(now + left.min(DRAIN), Release);
    page.turn.ends.store(0, Release);
    page.wake.fetch_add(1, AcqRel);
}

#[cfg(test)]
mod tests {
    use super::*;
    use vgpu_abi::arbitration::{NodePage, SLOTS, WEIGHT_OF_ONE_CORE};

    const SHAPE: Shape = Shape(1);

    fn entry(cores: u32, flags: u32) -> Entry {
        Entry {
            weight: cores * WEIGHT_OF_ONE_CORE,
            flags,
            generation: 1,
        }
    }

    fn node(shares: &[Entry]) -> NodePage {
        let mut entries = [Entry::default(); SLOTS];
        entries[..shares.len()].copy_from_slice(shares);
        let node = NodePage::default();
        node.write(&entries);
        node
    }

    /// Returns when a launch of the share in slot 0 goes that asks from `now` on, at most a second later.
    fn goes_at(limiter: &mut Limiter, pages: &Pages<'_>, mut now: Ns) -> Option<Ns> {
        let end = now + 1000 * MS;
        while now < end {
            match limiter.ask(pages, now, SHAPE, now, false) {
                Decision::Go => return Some(now),
                Decision::Wait(wait) => {
                    assert!(wait.until > now, "it would spin: {wait:?}");
                    now = wait.until;
                }
            }
        }
        None
    }

    /// The other share's page says whatever keeps others away longest.
    #[test]
    fn a_liar_delays_nobody_beyond_the_override() {
        let node = node(&[entry(30, 0), entry(70, 0)]);
        let (own, liar) = (SlotPage::default(), SlotPage::default());
        let far = Ns::MAX / 2;
        for word in [
            &liar.turn.began,
            &liar.turn.ends,
            &liar.turn.until,
            &liar.want.valid_until,
        ] {
            word.store(far, Relaxed);
        }
        for word in [&liar.want.since, &liar.want.flags, &liar.turn.flags] {
            word.store(1, Relaxed);
        }
        for tag in [0, far, Ns::MAX] {
            for word in [&liar.start_tag, &liar.finish_tag, &liar.want.tag] {
                word.store(tag, Relaxed);
            }
            let mut limiter = Limiter::new(0, entry(30, 0));
            let slots = [Some(&own), Some(&liar)];
            let pages = Pages {
                node: &node,
                slots: &slots,
                own: 0,
            };
            let begin = 5_000 * MS;
            own.turn.ends.store(0, Relaxed);
            own.bucket.tokens.store(0, Relaxed);
            own.bucket.at.store(begin - 10 * MS, Relaxed);
            let at = goes_at(&mut limiter, &pages, begin).expect("it never goes");
            assert!(at - begin <= OVERRIDE + MS, "tag {tag}: {} ms", (at - begin) / MS);
        }
    }

    /// The other share's page says that the GPU is taken, but never when somebody is about to be blamed for it.
    #[test]
    fn a_liar_that_changes_its_page_all_the_time_is_left_out_too() {
        let node = node(&[entry(30, 0), entry(70, 0)]);
        let (own, liar) = (SlotPage::default(), SlotPage::default());
        let slots = [Some(&own), Some(&liar)];
        let pages = Pages {
            node: &node,
            slots: &slots,
            own: 0,
        };
        let mut limiter = Limiter::new(0, entry(30, 0));
        let begin = 5_000 * MS;
        own.bucket.at.store(begin - 10 * MS, Relaxed);
        let mut goes_at = |begin: Ns, lies_until: Ns| {
            let mut now = begin;
            loop {
                let until = if now < lies_until { Ns::MAX / 2 } else { 0 };
                liar.turn.until.store(until, Relaxed);
                match limiter.ask(&pages, now, SHAPE, now, false) {
                    Decision::Go => return now,
                    Decision::Wait(wait) => now = wait.until,
                }
            }
        };
        let first = goes_at(begin, begin + OVERRIDE);
        assert!(first - begin >= OVERRIDE && first - begin <= OVERRIDE + MS);
        own.turn.ends.store(0, Relaxed);
        own.turn.until.store(0, Relaxed);
        // The first launch has an unknown length, so the next one waits up to 100 ms for its end.
        let again = first + MEASURING + 50 * MS;
        assert_eq!(goes_at(again, Ns::MAX), again, "it is believed again");
    }

    /// A share of high priority cuts a turn after 2 ms, but not one that low priority got because it had waited for a second.
    #[test]
    fn the_turn_of_a_share_that_waited_for_a_second_is_not_cut() {
        let node = node(&[entry(30, 0), entry(70, entry_flags::HIGH)]);
        let (own, high) = (SlotPage::default(), SlotPage::default());
        let now = 5_000 * MS;
        high.want.since.store(now - MS, Relaxed);
        high.want.valid_until.store(now + WISH, Relaxed);
        own.bucket.at.store(now, Relaxed);
        let slots = [Some(&own), Some(&high)];
        let pages = Pages {
            node: &node,
            slots: &slots,
            own: 0,
        };
        for (flags, goes) in [(turn_flags::PROMOTED, true), (0, false)] {
            own.turn.began.store(now - 5 * MS, Relaxed);
            for word in [&own.turn.ends, &own.turn.until] {
                word.store(now + 5 * MS, Relaxed);
            }
            own.turn.flags.store(flags, Relaxed);
            let decision = Limiter::new(0, entry(30, 0)).ask(&pages, now, SHAPE, now, false);
            assert_eq!(decision == Decision::Go, goes, "{flags}: {decision:?}");
        }
    }

    #[test]
    fn a_slot_that_the_node_flags_is_not_looked_at() {
        let node = node(&[entry(30, 0), entry(70, entry_flags::IGNORED)]);
        let (own, other) = (SlotPage::default(), SlotPage::default());
        other.turn.until.store(Ns::MAX / 2, Relaxed);
        let slots = [Some(&own), Some(&other)];
        let pages = Pages {
            node: &node,
            slots: &slots,
            own: 0,
        };
        let mut limiter = Limiter::new(0, entry(30, 0));
        assert_eq!(goes_at(&mut limiter, &pages, 5_000 * MS), Some(5_000 * MS));
    }

    /// A neighbour that says for ever that it has a turn takes no share's `cores`, also not after hours alone.
    #[test]
    #[cfg_attr(miri, ignore = "a minute, launch by launch")]
    fn a_liar_takes_no_shares_cores() {
        let node = node(&[entry(30, 0), entry(70, 0)]);
        let (own, liar) = (SlotPage::default(), SlotPage::default());
        let slots = [Some(&own), Some(&liar)];
        let pages = Pages {
            node: &node,
            slots: &slots,
            own: 0,
        };
        let mut limiter = Limiter::new(0, entry(30, 0));
        let mut now = 1000 * MS;
        let mut work_until = |until: Ns, lies: bool| {
            let mut ran = 0;
            while now < until {
                if lies {
                    for word in [&liar.turn.began, &liar.turn.ends, &liar.turn.until] {
                        word.store(1 << 62, Relaxed);
                    }
                }
                match limiter.ask(&pages, now, SHAPE, now, false) {
                    Decision::Go => {
                        let mark = limiter.launched(&pages, now, Stream(1), SHAPE);
                        now += MS;
                        ran += MS;
                        let marks = limiter.holds(now, |_| true).into_iter().map(|(_, mark)| mark);
                        for mark in marks.chain(mark) {
                            limiter.finished(&pages, now, mark, now - MS, now);
                        }
                    }
                    Decision::Wait(wait) => now = wait.until.max(now + 1),
                }
            }
            ran
        };
        let alone = work_until(60_000 * MS, false);
        assert!(alone > 55_000 * MS, "{alone}");
        let beside = work_until(70_000 * MS, true);
        assert!(beside > 2_000 * MS, "{} ms of 10 s", beside / MS);
    }

    /// The own page may have been damaged by the tenant: the limiter neither panics nor hangs.
    #[test]
    fn any_words_on_the_own_page_are_survived() {
        let node = node(&[entry(30, entry_flags::GUARANTEED), entry(70, 0)]);
        let mut random = 1u64;
        for _ in 0..if cfg!(miri) { 10 } else { 2000 } {
            let (own, other) = (SlotPage::default(), SlotPage::default());
            for page in [&own, &other] {
                let words = [
                    &page.turn.began,
                    &page.turn.ends,
                    &page.turn.until,
                    &page.turn.idle_since,
                    &page.turn.flags,
                    &page.want.since,
                    &page.want.valid_until,
                    &page.want.tag,
                    &page.want.flags,
                    &page.start_tag,
                    &page.finish_tag,
                    &page.bucket.at,
                    &page.covered,
                    &page.cells[3].owner,
                    &page.cells[3].busy_since,
                    &page.cells[3].estimated,
                    &page.cells[3].valid_until,
                ];
                for word in words {
                    random = random
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1_442_695_040_888_963_407);
                    let extremes = [0, 1, Ns::MAX, Ns::MAX / 2, 5_000 * MS, 5_001 * MS, random, random >> 30];
                    word.store(extremes[(random >> 60) as usize % extremes.len()], Relaxed);
                }
            }
            let slots = [Some(&own), Some(&other)];
            let pages = Pages {
                node: &node,
                slots: &slots,
                own: 0,
            };
            let mut limiter = Limiter::new(0, entry(30, entry_flags::GUARANTEED));
            let mut now = 5_000 * MS;
            for _ in 0..20 {
                match limiter.ask(&pages, now, SHAPE, now, true) {
                    Decision::Go => {
                        let mark = limiter.launched(&pages, now, Stream(1), SHAPE);
                        now += MS;
                        if let Some(mark) = mark {
                            limiter.finished(&pages, now, mark, now - MS, now);
                        }
                        limiter.waited(&pages, now);
                    }
                    Decision::Wait(wait) => now = wait.until.min(now + 200 * MS).max(now + 1),
                }
            }
        }
    }

    /// Of a chunk that took much longer than its estimate, what came after its last launch is no gap.
    #[test]
    fn launches_of_one_shape_and_other_lengths_are_charged() {
        let (node, page) = (node(&[entry(10, entry_flags::GUARANTEED)]), SlotPage::default());
        let slots = [Some(&page)];
        let pages = Pages {
            node: &node,
            slots: &slots,
            own: 0,
        };
        let mut limiter = Limiter::new(0, entry(10, entry_flags::GUARANTEED));
        let (stream, mut now) = (Stream(1), MS);
        for _ in 0..3 {
            let mark = limiter
                .launched(&pages, now, stream, SHAPE)
                .expect("measured by itself");
            limiter.finished(&pages, now + US, mark, now, now + US);
            now += MS;
        }
        for _ in 0..5 {
            assert_eq!(limiter.launched(&pages, now, stream, SHAPE), None);
        }
        let mark = limiter.waits_for(now, stream).expect("an event");
        let before = page.counters.charged.load(Relaxed);
        limiter.finished(&pages, now + 1500 * US, mark, now, now + 1500 * US);
        assert_eq!(page.counters.charged.load(Relaxed) - before, 1500 * US);
    }

    #[test]
    fn a_first_launch_of_another_process_holds_a_capped_share() {
        let (node, page) = (node(&[entry(10, entry_flags::GUARANTEED)]), SlotPage::default());
        let slots = [Some(&page)];
        let pages = Pages {
            node: &node,
            slots: &slots,
            own: 0,
        };
        let mut processes = [0, 1].map(|cell| {
            page.cells[cell].owner.store(cell as u64 + 1, Relaxed);
            Limiter::new(cell, entry(10, entry_flags::GUARANTEED))
        });
        let [one, other] = &mut processes;
        let now = goes_at(one, &pages, MS).expect("it is the first");
        let mark = one.launched(&pages, now, Stream(1), SHAPE).expect("measured by itself");
        assert_eq!(goes_at(other, &pages, 10 * MS), None, "it may take all that time");
        one.finished(&pages, 20 * MS, mark, now, now + MS);
        assert!(goes_at(other, &pages, 1020 * MS).is_some());
    }

    /// A kernel may wait for one that is launched behind it: in the end that one goes.
    #[test]
    fn a_kernel_that_does_not_end_stops_no_launch_for_ever() {
        for flags in [0, entry_flags::GUARANTEED] {
            let (node, page) = (node(&[entry(10, flags)]), SlotPage::default());
            let slots = [Some(&page)];
            let pages = Pages {
                node: &node,
                slots: &slots,
                own: 0,
            };
            let mut limiter = Limiter::new(0, entry(10, flags));
            limiter.launched(&pages, MS, Stream(1), SHAPE);
            let (asked, mut now) = (2 * MS, 2 * MS);
            while let Decision::Wait(wait) = limiter.ask(&pages, now, Shape(2), asked, false) {
                now = wait.until;
                assert!(now < 15_000 * MS, "{flags}");
            }
            let least = if flags == 0 { 0 } else { 9000 * MS };
            assert!(now >= least, "{flags}: {now}");
        }
    }
}
