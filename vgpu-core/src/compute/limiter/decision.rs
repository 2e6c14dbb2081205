//! Decides if a launch goes now, and if not, until when its thread sleeps: by tokens, then the turn, then the window.

use std::sync::atomic::Ordering::{AcqRel, Relaxed, Release};

use vgpu_abi::arbitration::{SlotPage, entry_flags, turn_flags, want_flags};

use super::call::{Answer, Call, Reason, Wait};
use super::config::{GIVES_UP, LONGEST_SPIN};
use super::launches::{InFlight, Stream};
use super::times::{ABSENT, DISTRUST, FORGOTTEN, GRACE, LONGEST_SLEEP, OVERRIDE, STUCK, WISH};
use super::{Limiter, SHARED};
use crate::compute::turn::{CUT, DRAIN, FLOOR, QUANTUM, Slot, Tag, View, Wish, look};
use crate::compute::{MS, Ns, US, account, bucket};

/// A share whose launches were in flight for this long takes no turns until they end: the GPU slices it.
const LATE: Ns = 150 * MS;
/// How long others leave the GPU to the remaining work of a turn. After that the GPU slices it.
const OVERRUN: Ns = 4 * MS;
/// A thread that spins asks again after this.
const SPIN: Ns = 10 * US;
/// A turn taken after a long wait is not cut for this long.
const UNCUT: Ns = 4 * MS;
/// How long the first launches of a share that is alone wait while launches of its other processes are of unknown
/// length.
const UNKNOWN_ALONE: Ns = 50 * MS;
/// The shortest sleep while waiting for a part of the work in flight.
const SHORTEST_SLEEP: Ns = 40 * US;
/// How long a thread takes to wake up.
const WAKE_UP: Ns = 60 * US;

/// The state in which a launch asks.
struct Launch {
    waited: Ns,
    in_flight: InFlight,
    /// GPU time that the share may still use of its `cores`.
    tokens: i64,
    /// As many launches are in flight as the window allows.
    is_full: bool,
    /// The launch is queued behind a kernel that does not end, because that kernel may wait for it.
    is_stuck: bool,
}

impl Launch {
    /// Returns the GPU time that the share may use besides its work in flight.
    fn free(&self) -> i64 {
        self.tokens.saturating_sub_unsigned(self.in_flight.left)
    }
}

impl Limiter {
    /// Decides whether a launch that has waited since `asked` may go.
    pub(super) fn decide(&mut self, call: &mut Call<'_>, stream: Stream, asked: Ns) -> Answer {
        let (now, page) = (call.now, call.page);
        self.entry = call.pages.entry().unwrap_or(self.entry);
        let weight = self.entry.weight;
        let in_flight = self.share_in_flight(call);
        let burst = (QUANTUM * Ns::from(weight) / bucket::WHOLE).max(2 * MS);
        let tokens = bucket::refill(&page.bucket, weight, burst + in_flight.ran, now);
        if in_flight.left == 0 && page.turn.ends.load(Relaxed) == 0 && page.turn.until.load(Relaxed) > now {
            // The remaining work of its turn has ended.
            page.turn.until.store(now, Release);
            page.wake.fetch_add(1, AcqRel);
        }
        let own = Slot::read(call.pages.own, self.entry, page, now);
        let view = look(&call.pages, &own, &self.distrusted, now);
        self.see_others(call, &view);
        self.charge_gap(page, now, view.wanted && own.ends != 0);
        let launch = self.launch(call, stream, now.saturating_sub(asked), in_flight, tokens);
        let answer = self.answer(call, &launch, &own, &view);
        let is_over = self.is_capped(now) && launch.free() <= 0;
        if answer == Answer::Go && launch.is_stuck && (launch.is_full || is_over) {
            page.ends.stuck.fetch_add(1, Relaxed);
        }
        answer
    }

    fn answer(&mut self, call: &mut Call<'_>, launch: &Launch, own: &Slot, view: &View) -> Answer {
        let (now, page, left) = (call.now, call.page, launch.in_flight.left);
        let has_unknown = account::at_work(page, now).any(|work| work.cell != self.cell && work.is_unknown);
        let waits_for_unknown = !self.is_alone || launch.waited < UNKNOWN_ALONE;
        if self.pace.mean == 0 && has_unknown && !launch.is_stuck && waits_for_unknown {
            // The first launches of the share's processes go one by one.
            return Answer::sleep(now + 200 * US, None, Reason::Measuring);
        }
        if self.is_capped(now)
            && let Some(answer) = self.within_cap(call, launch, own.ends != 0)
        {
            return answer;
        }
        // If another share takes no turns, the GPU slices all of them, so a share below its `cores` needs no turn
        // either.
        if launch.tokens > 0 && call.pages.has_others_without_turns() {
            if launch.is_full && !launch.is_stuck {
                return self.wait_for_room(call, launch);
            }
            page.want.since.store(0, Release);
            self.begin_turn(page, now, left, 0);
            return Answer::Go;
        }
        let is_forgotten = page.turn.until.load(Relaxed).saturating_add(FORGOTTEN) < now;
        if own.ends != 0 && !view.taken_over && !is_forgotten {
            return self.within_turn(call, launch, view);
        }
        if own.ends != 0 {
            self.end_turn(page, now, left);
            if self.waits {
                self.wish(call, Tag(page.finish_tag.load(Relaxed)));
            }
        }
        self.without_turn(call, launch)
    }

    fn launch(&self, call: &Call<'_>, stream: Stream, waited: Ns, in_flight: InFlight, tokens: i64) -> Launch {
        let now = call.now;
        let patience = if self.is_capped(call.now) {
            bucket::time_for(STUCK, self.entry.weight)
        } else {
            STUCK
        };
        let stuck = call.page.ends.stuck.load(Relaxed).min(6);
        // `ran` may be shorter, because launches of the share's other processes are acknowledged meanwhile.
        let own = self.oldest().map_or(0, |first| now.saturating_sub(first));
        Launch {
            waited,
            in_flight,
            tokens: tokens.saturating_sub_unsigned(in_flight.ran),
            is_full: self.queued(now) >= self.room(now) || self.is_alone && self.is_deep(now, stream),
            is_stuck: waited >= patience && in_flight.ran.max(own) >= patience << stuck,
        }
    }

    /// Notes whether others want this GPU, and whether the share has a turn on another one.
    fn see_others(&mut self, call: &mut Call<'_>, view: &View) {
        let now = call.now;
        if view.wanted || call.pages.others(now).any(|other| other.free_at() > now) {
            self.seen_others = Some(now);
        }
        if call.sibling {
            self.sibling_at = now;
        }
        let was_alone = self.is_alone;
        let has_seen = self.seen_others.is_some_and(|seen| now <= seen + SHARED);
        self.is_alone = !self.is_capped(now) && !has_seen;
        if was_alone && !self.is_alone {
            self.mark_all(call);
        }
    }

    /// Decides by tokens, for a share that gets its `cores` and no more. Returns None if its tokens suffice.
    fn within_cap(&mut self, call: &mut Call<'_>, launch: &Launch, has_turn: bool) -> Option<Answer> {
        let (now, page, left) = (call.now, call.page, launch.in_flight.left);
        if !launch.is_stuck && self.is_late(now, left) {
            self.mark_all(call);
            // The launches may have ended long ago without our knowledge, if they have no event yet.
            let length = (launch.waited / 4).clamp(SHORTEST_SLEEP, 200 * US);
            return Some(Answer::sleep(now + length, None, Reason::Queue));
        }
        let free = launch.free();
        if free > 0 {
            return None;
        }
        if launch.is_stuck {
            return Some(Answer::Go);
        }
        if has_turn {
            self.end_turn(page, now, left);
        }
        page.want.since.store(0, Release);
        // The thread sleeps until there is room for a whole launch.
        let missing = free.unsigned_abs() + self.pace.mean.clamp(200 * US, MS);
        let mut sleeps = bucket::time_for(missing, self.entry.weight).min(LONGEST_SLEEP);
        if self.in_flight > 0 {
            self.mark_all(call);
            sleeps = sleeps.min(left.max(500 * US));
        }
        Some(Answer::sleep(now + sleeps, None, Reason::Throttled))
    }

    /// Waits until about half of the queue should have run, at the pace of the last launches. At first it waits less,
    /// because these launches may be shorter.
    fn wait_for_room(&mut self, call: &mut Call<'_>, launch: &Launch) -> Answer {
        if self.is_alone {
            return self.wait_alone(call);
        }
        self.mark_all(call);
        let now = call.now;
        let length = (launch.in_flight.left / 2).min(LONGEST_SLEEP);
        if length <= LONGEST_SPIN {
            return Answer::Wait(Wait {
                until: now + SPIN,
                on: None,
                spins: true,
                reason: Reason::Queue,
            });
        }
        let length = length.saturating_sub(WAKE_UP);
        let length = length.min((launch.waited / 4).max(SHORTEST_SLEEP)).max(20 * US);
        Answer::sleep(now + length, None, Reason::Queue)
    }

    /// Returns how long others leave the GPU to the remaining work of a turn: longer if all launches are long.
    pub(super) fn leftover(&self, left: Ns) -> Ns {
        let overrun = (2 * Ns::from(self.in_flight) * self.pace.least).clamp(OVERRUN, DRAIN);
        left.min(overrun)
    }

    // === in a turn

    fn within_turn(&mut self, call: &mut Call<'_>, launch: &Launch, view: &View) -> Answer {
        let (now, page, left) = (call.now, call.page, launch.in_flight.left);
        let began = page.turn.began.load(Relaxed);
        let gives_up = self.gives_up(call, began);
        let is_wanted = view.wanted && (gives_up || now >= page.turn.ends.load(Relaxed));
        if view.wanted && gives_up {
            // Its kernel may wait for a kernel on another GPU that has no turn there.
            page.turn.ends.store(now, Relaxed);
        }
        if launch.is_full && !is_wanted && !launch.is_stuck {
            let until = now + GRACE.max(self.leftover(left));
            page.turn.until.fetch_max(until, AcqRel);
            return self.wait_for_room(call, launch);
        }
        let is_promoted = page.turn.flags.load(Relaxed) & turn_flags::PROMOTED != 0;
        let is_over = now + left >= page.turn.ends.load(Relaxed);
        let may_be_cut = now.saturating_sub(began) >= CUT && now >= self.uncut_until && !is_promoted;
        if !(is_over || may_be_cut && view.cut_wanted) {
            return Answer::Go;
        }
        if !view.wanted {
            if !self.is_capped(now) {
                // Time that no other share wanted causes no debt.
                page.bucket.tokens.fetch_max(0, Relaxed);
            }
            page.start_tag.store(page.finish_tag.load(Relaxed), Relaxed);
            self.begin_turn(page, now, left, 0);
            return Answer::Go;
        }
        self.mark_all(call);
        self.end_turn(page, now, left);
        self.wish(call, view.virtual_time);
        let until = if left > 0 {
            now + (left / 4).max(SHORTEST_SLEEP)
        } else {
            view.free_at.max(now + 50 * US)
        };
        Answer::sleep(until.clamp(now + 1, now + LONGEST_SLEEP), view.held_by, Reason::Turn)
    }

    /// Returns true if a rank's turn has had no acknowledgement for long.
    fn gives_up(&self, call: &Call<'_>, began: Ns) -> bool {
        if !self.is_rank(call.now) || self.in_flight == 0 {
            return false;
        }
        let since = began.max(call.page.ends.seen_at.load(Relaxed));
        let should_take = Ns::from(self.in_flight) * self.pace.least;
        call.now.saturating_sub(since) > GIVES_UP.max(4 * should_take)
    }

    // === before a turn

    fn without_turn(&mut self, call: &mut Call<'_>, launch: &Launch) -> Answer {
        if launch.is_full && !launch.is_stuck && self.oldest().is_some_and(|first| first + LATE < call.now) {
            call.page.want.since.store(0, Release);
            return self.wait_for_room(call, launch);
        }
        let answer = self.before_turn(call, launch);
        if answer == Answer::Go && launch.is_full && !launch.is_stuck {
            return self.wait_for_room(call, launch);
        }
        answer
    }

    fn before_turn(&mut self, call: &mut Call<'_>, launch: &Launch) -> Answer {
        let (now, page, pages) = (call.now, call.page, call.pages);
        let mut own = Slot::read(pages.own, self.entry, page, now);
        if own.wish.is_none() {
            self.waited_for = None;
            self.wish(call, look(&pages, &own, &self.distrusted, now).virtual_time);
        } else {
            self.renew_wish(call);
        }
        own = Slot::read(pages.own, self.entry, page, now);
        let Some(wish) = own.wish else {
            return Answer::sleep(now + 50 * US, None, Reason::Turn); // another process of the share has changed it
        };
        let view = look(&pages, &own, &self.distrusted, now);
        let has_tokens = launch.tokens > 0;
        let waited = now.saturating_sub(wish.since);
        let is_overdue = has_tokens && waited > OVERRIDE;
        if now < view.free_at {
            self.waited_for = view.held_by;
        }
        if !is_overdue && now < view.free_at {
            return self.sleep_until_free(call, launch, &view, has_tokens.then_some(wish.since + OVERRIDE + 1));
        }
        // A share that is next but does not take its turn is dead, stopped or lying.
        let is_passed_over = now >= view.free_at.max(own.until).max(wish.since) + ABSENT;
        if !is_overdue && !view.is_next && !is_passed_over {
            return Answer::sleep(now + 150 * US, None, Reason::Turn);
        }
        // Only a bad share, or one of high priority, keeps another from its `cores` for this long, in one wait or several.
        self.lost.waited(waited, now, self.entry.weight);
        let is_robbed = is_overdue || has_tokens && self.lost.time() > OVERRIDE;
        let robber = self.waited_for.filter(|slot| !pages.is_of_high_priority(*slot));
        if let Some(slot) = robber.filter(|_| is_robbed) {
            self.distrusted[slot] = now + DISTRUST;
            self.distrusts_until = now + DISTRUST;
            self.lost.forget();
        }
        if is_overdue {
            self.uncut_until = now + UNCUT;
        }
        self.take_turn(page, &wish, now, launch.in_flight.left);
        Answer::Go
    }

    fn sleep_until_free(
        &mut self,
        call: &mut Call<'_>,
        launch: &Launch,
        view: &View,
        overdue_at: Option<Ns>,
    ) -> Answer {
        let now = call.now;
        if self.in_flight > 0 {
            // This share still has work in flight from its own last turn. Others go when that has ended.
            self.mark_all(call);
            if call.page.turn.until.load(Relaxed) > now {
                let length = (launch.in_flight.left / 4).clamp(SHORTEST_SLEEP, DRAIN);
                return Answer::sleep(now + length, view.held_by, Reason::Turn);
            }
        }
        let until = overdue_at.map_or(view.free_at, |at| at.min(view.free_at));
        Answer::sleep(until.clamp(now + 1, now + LONGEST_SLEEP), view.held_by, Reason::Turn)
    }

    // === the share's page

    /// Makes a wish for a turn. Work in flight is charged when it has ended, so the tag does not contain it yet.
    fn wish(&self, call: &Call<'_>, virtual_time: Tag) {
        let (now, page) = (call.now, call.page);
        let finish = Tag(page.finish_tag.load(Relaxed));
        let mut flags = 0;
        if finish.before(virtual_time) {
            flags |= want_flags::BEHIND;
        }
        if call.sibling {
            flags |= want_flags::SIBLING;
        }
        let away = now.saturating_sub(page.turn.began.load(Relaxed));
        page.want.tag.store(finish.lifted(virtual_time, away).0, Relaxed);
        page.want.flags.store(flags, Relaxed);
        page.want.valid_until.store(now + WISH, Relaxed);
        page.want.since.store(now, Release);
    }

    fn renew_wish(&self, call: &Call<'_>) {
        let want = &call.page.want;
        want.valid_until.store(call.now + WISH, Relaxed);
        if call.sibling {
            want.flags.fetch_or(want_flags::SIBLING | want_flags::BEHIND, Relaxed);
        } else {
            want.flags.fetch_and(!want_flags::SIBLING, Relaxed);
        }
    }

    fn take_turn(&self, page: &SlotPage, wish: &Wish, now: Ns, left: Ns) {
        let lifted = |finish: u64| Some(Tag(finish).max(wish.tag).0);
        let _ = page.finish_tag.fetch_update(Relaxed, Relaxed, lifted);
        page.start_tag.store(wish.tag.0, Relaxed);
        let waited = now.saturating_sub(wish.since.max(page.turn.began.load(Relaxed)));
        let is_promoted = self.entry.flags & entry_flags::HIGH == 0 && waited >= FLOOR;
        self.begin_turn(page, now, left, if is_promoted { turn_flags::PROMOTED } else { 0 });
        page.want.since.store(0, Release);
    }

    fn begin_turn(&self, page: &SlotPage, now: Ns, left: Ns, flags: u64) {
        let left = self.leftover(left);
        let longer = if flags & turn_flags::PROMOTED == 0 { 0 } else { 3 * MS };
        page.turn.began.store(now, Release);
        page.turn.flags.store(flags, Relaxed);
        page.turn.until.store(now + left + GRACE, Release);
        page.turn.ends.store(now + left + QUANTUM + longer, Release);
    }

    fn end_turn(&self, page: &SlotPage, now: Ns, left: Ns) {
        page.turn.until.store(now + self.leftover(left), Release);
        page.turn.ends.store(0, Release);
        page.wake.fetch_add(1, AcqRel);
    }
}
