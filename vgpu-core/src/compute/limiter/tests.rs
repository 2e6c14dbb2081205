use std::collections::BTreeSet;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use vgpu_abi::arbitration::{CELLS, Cell, Entry, NodePage, SLOTS, SlotPage, WEIGHT_OF_ONE_CORE, entry_flags};

use super::call::{Answer, Call, Process, Recorded};
use super::times::{OVERRIDE, STUCK};
use super::{Limiter, Scope, Stream};
use crate::compute::turn::Pages;
use crate::compute::{MS, Ns, US};

const STREAM: Stream = Stream(1);
/// A stream of another thread or context.
const OTHER: Stream = Stream(2);
const OWNER: u64 = 7;

/// A process for which the test decides when events are passed.
#[derive(Debug, Default)]
struct Fake {
    can_record: bool,
    /// The other stream is another thread's own.
    is_of_other: bool,
    recorded: usize,
    /// The time at which each event is passed.
    passed: Vec<Option<Ns>>,
    dead: Vec<u64>,
    released: BTreeSet<usize>,
    /// The time, and until when the GPU has work. If set, events are passed without the test's help.
    gpu: Option<(Ns, Ns)>,
}

impl Fake {
    fn recording() -> Self {
        Self {
            can_record: true,
            ..Self::default()
        }
    }

    /// Lets the GPU pass all recorded events at this moment.
    fn pass_all(&mut self, at: Ns) {
        for passed in &mut self.passed {
            passed.get_or_insert(at);
        }
    }
}

impl Process for Fake {
    fn record(&mut self, stream: Stream) -> Recorded {
        if self.is_of_other && stream == OTHER {
            return Recorded::NotHere;
        }
        self.recorded += 1;
        if !self.can_record {
            return Recorded::Never;
        }
        self.passed.push(self.gpu.map(|(now, busy_until)| busy_until.max(now)));
        Recorded::Event(self.passed.len() - 1)
    }

    fn release(&mut self, event: usize) {
        assert!(self.released.insert(event), "{event} twice");
    }

    fn passed(&mut self, event: usize) -> Option<Ns> {
        assert!(!self.released.contains(&event), "{event} was released");
        self.passed[event].filter(|at| self.gpu.is_none_or(|(now, _)| *at <= now))
    }

    fn between(&mut self, front: usize, behind: usize) -> Option<Ns> {
        assert!(!self.released.contains(&front) && !self.released.contains(&behind));
        Some(self.passed[behind]?.saturating_sub(self.passed[front]?))
    }

    fn is_dead(&self, owner: u64, _cell: &Cell) -> bool {
        self.dead.contains(&owner)
    }
}

fn entry(cores: u32, flags: u32) -> Entry {
    Entry {
        weight: cores * WEIGHT_OF_ONE_CORE,
        flags,
        generation: 1,
    }
}

/// Some shares on a GPU. The limiter of the first one is tested.
struct Gpu {
    node: NodePage,
    pages: Vec<SlotPage>,
}

impl Gpu {
    fn new(shares: &[Entry]) -> Self {
        let mut entries = [Entry::default(); SLOTS];
        entries[..shares.len()].copy_from_slice(shares);
        let node = NodePage::default();
        node.write(&entries);
        let pages = shares.iter().map(|_| SlotPage::default()).collect();
        Self { node, pages }
    }

    fn call<T>(&self, now: Ns, process: &mut Fake, call: impl FnOnce(&mut Call<'_>) -> T) -> T {
        let slots: Vec<Option<&SlotPage>> = self.pages.iter().map(Some).collect();
        call(&mut Call {
            now,
            pages: Pages {
                node: &self.node,
                slots: &slots,
                own: 0,
            },
            page: &self.pages[0],
            process,
            sibling: false,
        })
    }

    fn charged(&self) -> Ns {
        self.pages[0].counters.charged.load(Relaxed)
    }
}

fn limiter(entry: Entry) -> Limiter {
    Limiter::new(OWNER, entry)
}

/// Asks from `now` on until a launch may go. Returns when it went, if that was before `until`.
fn goes_at(gpu: &Gpu, limiter: &mut Limiter, process: &mut Fake, mut now: Ns, until: Ns) -> Option<Ns> {
    let asked = now;
    while now < until {
        match gpu.call(now, process, |call| limiter.ask(call, STREAM, asked)) {
            Answer::Go => {
                gpu.call(now, process, |call| limiter.launched(call, STREAM));
                return Some(now);
            }
            Answer::Wait(wait) => now = wait.until.max(now + 1),
        }
    }
    None
}

/// Makes the program wait for all its work. The wait returns at once.
fn waits(gpu: &Gpu, limiter: &mut Limiter, process: &mut Fake, now: Ns) {
    let wait = gpu.call(now, process, |call| limiter.before_wait(call, Scope::All));
    gpu.call(now, process, |call| limiter.after_wait(call, wait));
}

/// The own page and those of others may hold anything: the limiter neither panics nor hangs.
#[test]
fn any_words_on_the_pages_are_survived() {
    let mut random = 1u64;
    for round in 0..if cfg!(miri) { 10 } else { 2000 } {
        let flags = if round % 2 == 0 { entry_flags::GUARANTEED } else { 0 };
        let gpu = Gpu::new(&[entry(30, flags), entry(70, 0)]);
        for page in &gpu.pages {
            let bucket = AtomicU64::new(0);
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
                &bucket,
                &page.covered,
                &page.cells[3].owner,
                &page.cells[3].busy_since,
                &page.cells[3].estimated,
                &page.cells[3].valid_until,
                &page.ends.seen_at,
                &page.ends.stuck,
                &page.ends.burials,
                &page.ends.buried_at,
            ];
            for word in words {
                random = random
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                let extremes = [0, 1, Ns::MAX, Ns::MAX / 2, 5_000 * MS, 5_001 * MS, random, random >> 30];
                word.store(extremes[(random >> 60) as usize % extremes.len()], Relaxed);
            }
            page.bucket.tokens.store(bucket.load(Relaxed).cast_signed(), Relaxed);
        }
        let (mut limiter, mut process) = (limiter(entry(30, flags)), Fake::recording());
        process.dead.push(gpu.pages[0].cells[3].owner.load(Relaxed));
        let mut now = 5_000 * MS;
        for _ in 0..20 {
            match gpu.call(now, &mut process, |call| limiter.ask(call, STREAM, now)) {
                Answer::Go => {
                    let budget = gpu.call(now, &mut process, |call| limiter.launched(call, STREAM));
                    limiter.passed(now, STREAM, budget);
                    now += MS;
                    process.pass_all(now);
                    let wait = gpu.call(now, &mut process, |call| limiter.before_wait(call, Scope::All));
                    gpu.call(now, &mut process, |call| limiter.after_wait(call, wait));
                }
                Answer::Wait(wait) => now = wait.until.min(now + 200 * MS).max(now + 1),
            }
        }
        gpu.call(now, &mut process, |call| limiter.exit(call));
    }
}

/// A neighbour that always claims to have a turn cannot keep a share from its `cores`.
#[test]
fn a_liar_takes_no_shares_cores() {
    let gpu = Gpu::new(&[entry(30, 0), entry(70, 0)]);
    let (mut limiter, mut process) = (limiter(entry(30, 0)), Fake::recording());
    let (mut now, mut ran) = (1000 * MS, 0);
    let end = now + 10_000 * MS;
    while now < end {
        let turn = &gpu.pages[1].turn;
        for word in [&turn.began, &turn.ends, &turn.until] {
            word.store(1 << 62, Relaxed);
        }
        match gpu.call(now, &mut process, |call| limiter.ask(call, STREAM, now)) {
            Answer::Go => {
                gpu.call(now, &mut process, |call| limiter.launched(call, STREAM));
                now += MS;
                ran += MS;
                process.pass_all(now);
            }
            Answer::Wait(wait) => now = wait.until.max(now + 1),
        }
    }
    assert!(ran > 2_000 * MS, "{} ms of 10 s", ran / MS);
}

/// Launches without an event, because none can be recorded, count as ended after some time, or when the program has
/// waited for them.
#[test]
fn launches_without_an_event_are_charged_by_the_clock() {
    let gpu = Gpu::new(&[entry(30, 0), entry(70, 0)]);
    let (mut limiter, mut process) = (limiter(entry(30, 0)), Fake::default());
    assert_eq!(
        goes_at(&gpu, &mut limiter, &mut process, 1000 * MS, 1001 * MS),
        Some(1000 * MS)
    );
    assert!(process.recorded > 0 && !limiter.is_idle());
    // The second launch fills the window, and waits for the first.
    goes_at(&gpu, &mut limiter, &mut process, 1000 * MS, 1001 * MS);
    let third = goes_at(&gpu, &mut limiter, &mut process, 1001 * MS, 2000 * MS).expect("the first two count as ended");
    assert!((1010 * MS..1100 * MS).contains(&third), "{third}");
    assert!(
        gpu.charged() >= 10 * MS && gpu.charged() <= 100 * MS,
        "{}",
        gpu.charged()
    );
    waits(&gpu, &mut limiter, &mut process, 1200 * MS);
    assert!(limiter.is_idle(), "the program has waited for it");
}

/// Any number of processes share the cells: a process with nothing in flight gives up its cell.
#[test]
fn cells_are_leases() {
    let gpu = Gpu::new(&[entry(30, 0)]);
    let mut limiters: Vec<Limiter> = (1..=CELLS as u64 + 8)
        .map(|owner| Limiter::new(owner, entry(30, 0)))
        .collect();
    let (mut process, mut now) = (Fake::recording(), 1000 * MS);
    for limiter in &mut limiters {
        assert!(
            goes_at(&gpu, limiter, &mut process, now, now + MS).is_some(),
            "at {now}"
        );
        now += MS;
        process.pass_all(now);
        waits(&gpu, limiter, &mut process, now);
        assert!(limiter.is_idle());
    }
    assert_eq!(gpu.charged(), 40 * MS, "each of 40 ran for a ms");
    // All cells are busy: a further process waits, until the owner of one of them is dead.
    for (cell, limiter) in gpu.pages[0].cells.iter().zip(&mut limiters) {
        let started = gpu.call(now, &mut process, |call| limiter.ask(call, STREAM, now));
        assert_eq!(started, Answer::Go);
        gpu.call(now, &mut process, |call| limiter.launched(call, STREAM));
        assert_ne!(cell.owner.load(Relaxed), 0);
    }
    let last = limiters.last_mut().expect("there are many");
    assert_eq!(goes_at(&gpu, last, &mut process, now, now + 20 * MS), None);
    process.dead.push(gpu.pages[0].cells[5].owner.load(Relaxed));
    assert!(goes_at(&gpu, last, &mut process, now + 20 * MS, now + 60 * MS).is_some());
}

/// The first killed process is charged up to one second of elapsed time, the next one up to two.
#[test]
fn a_death_is_charged_within_a_bound_that_doubles() {
    let page = SlotPage::default();
    let cell = &page.cells[0];
    for (death, bound) in [(1, 1000 * MS), (2, 2000 * MS), (3, 4000 * MS)] {
        let (since, before) = (death * 100_000 * MS, page.counters.charged.load(Relaxed));
        cell.busy_since.store(since, Relaxed);
        super::cells::bury(&page, cell, 30_000, since + 50_000 * MS);
        assert_eq!(page.counters.charged.load(Relaxed) - before, bound, "death {death}");
    }
    let (since, before) = (900_000 * MS, page.counters.charged.load(Relaxed));
    cell.busy_since.store(since, Relaxed);
    super::cells::bury(&page, cell, 30_000, since + 5 * MS);
    assert_eq!(page.counters.charged.load(Relaxed) - before, 5 * MS, "found soon");
}

/// A kernel may wait for another one that is launched after it. The later launch is allowed in the end, under each
/// policy.
#[test]
fn a_kernel_that_does_not_end_stops_no_launch_for_ever() {
    for (flags, least) in [(0, 0), (entry_flags::GUARANTEED, 9_000 * MS)] {
        let gpu = Gpu::new(&[entry(10, flags)]);
        let (mut limiter, mut process) = (limiter(entry(10, flags)), Fake::recording());
        let mut now = 1000 * MS;
        for launch in 0..4 {
            let at = goes_at(&gpu, &mut limiter, &mut process, now, now + 600_000 * MS);
            now = at.unwrap_or_else(|| panic!("launch {launch}, flags {flags}"));
        }
        assert!(now >= 1000 * MS + least, "{now}");
    }
}

/// Several threads ask before any of them has made its launch.
#[test]
fn launches_that_are_about_to_be_made_count_as_in_flight() {
    for (flags, room) in [(0, 2), (entry_flags::GUARANTEED, 1)] {
        let gpu = Gpu::new(&[entry(90, flags)]);
        let (mut limiter, mut process) = (limiter(entry(90, flags)), Fake::recording());
        let now = 1000 * MS;
        let mut allowed = |now| {
            let asks = || gpu.call(now, &mut process, |call| limiter.ask(call, STREAM, now)) == Answer::Go;
            std::iter::repeat_with(asks).take(32).filter(|goes| *goes).count()
        };
        // A new page has no tokens at first.
        assert_eq!(allowed(now) + allowed(now + MS), room);
        assert_eq!(allowed(now + 2 * MS), 0);
        // The launches were never reported, because the threads jumped out of them.
        assert_eq!(allowed(now + STUCK + 3 * MS), room);
        let then = now + STUCK + 4 * MS;
        gpu.call(then, &mut process, |call| limiter.failed(call));
        let goes = gpu.call(then, &mut process, |call| limiter.ask(call, STREAM, then));
        assert_eq!(goes, Answer::Go, "the driver refused one of them");
    }
}

/// A share that has not had its `cores` goes after [`OVERRIDE`].
#[test]
fn who_has_waited_for_the_override_goes() {
    let gpu = Gpu::new(&[entry(30, 0), entry(70, 0)]);
    let (mut limiter, mut process) = (limiter(entry(30, 0)), Fake::recording());
    let begin = 5_000 * MS;
    gpu.pages[0].bucket.at.store(begin - 10 * MS, Relaxed);
    gpu.pages[1].turn.began.store(begin - MS, Relaxed);
    gpu.pages[1].turn.ends.store(begin + 60_000 * MS, Relaxed);
    gpu.pages[1].turn.until.store(begin + 60_000 * MS, Relaxed);
    let went = goes_at(&gpu, &mut limiter, &mut process, begin, begin + 1000 * MS).expect("it goes");
    assert!(
        went >= begin + OVERRIDE && went <= begin + OVERRIDE + 2 * MS,
        "{}",
        (went - begin) / US
    );
}

/// A program that pauses on the CPU before it waits: the wait returns at once and does not say when the work has ended.
#[test]
fn pauses_before_a_wait_are_not_charged() {
    for is_alone in [false, true] {
        let gpu = Gpu::new(&[entry(30, 0), entry(70, 0)]);
        let (mut limiter, mut process) = (limiter(entry(30, 0)), Fake::recording());
        let mut now = 1000 * MS;
        for _ in 0..1000 {
            if !is_alone {
                gpu.pages[1].turn.until.store(now + US, Relaxed);
            }
            now = goes_at(&gpu, &mut limiter, &mut process, now, now + 100 * MS).expect("it goes");
            process.pass_all(now + 100 * US);
            now += 10 * MS;
            waits(&gpu, &mut limiter, &mut process, now);
            assert!(limiter.is_idle());
        }
        let charged = gpu.charged();
        assert!(
            (90 * MS..400 * MS).contains(&charged),
            "{} ms of 100, {is_alone}",
            charged / MS
        );
        let kept = process.passed.len() - process.released.len();
        assert!(
            kept < 4,
            "{kept} events of {} were not given back",
            process.passed.len()
        );
    }
}

/// A launch in another thread's own default stream. No other thread can record events there, so they are first left to
/// that thread.
#[test]
fn what_another_thread_has_in_its_own_stream_is_left_to_it() {
    let gpu = Gpu::new(&[entry(30, entry_flags::GUARANTEED)]);
    let (mut limiter, mut process) = (limiter(entry(30, entry_flags::GUARANTEED)), Fake::recording());
    let now = 1000 * MS;
    limiter.passed(now, OTHER, 1);
    process.is_of_other = true;
    let wait = gpu.call(now, &mut process, |call| limiter.before_wait(call, Scope::Some));
    process.is_of_other = false;
    gpu.call(now, &mut process, |call| limiter.before_wait(call, Scope::Some));
    process.pass_all(now + MS);
    gpu.call(now + MS, &mut process, |call| limiter.after_wait(call, wait));
    assert!(limiter.is_idle(), "its own event has been reached");
    assert_eq!(gpu.charged(), MS);
}

#[test]
fn a_refused_launch_leaves_nothing() {
    let gpu = Gpu::new(&[entry(30, entry_flags::GUARANTEED)]);
    let (mut limiter, mut process) = (limiter(entry(30, entry_flags::GUARANTEED)), Fake::recording());
    let mut refused = 0;
    for at in 1000..1010 {
        if gpu.call(at * MS, &mut process, |call| limiter.ask(call, STREAM, at * MS)) == Answer::Go {
            gpu.call(at * MS, &mut process, |call| limiter.failed(call));
            refused += 1;
        }
    }
    assert!(refused > 5, "{refused}");
    assert_eq!(process.released.len(), process.passed.len());
    assert!(limiter.is_idle() && gpu.charged() == 0);
    assert_eq!(gpu.pages[0].cells[0].busy_since.load(Relaxed), 0);
}

/// When a context ends, its launches in flight are charged until then.
#[test]
fn streams_that_end_are_charged_until_then() {
    let gpu = Gpu::new(&[entry(30, 0), entry(70, 0)]);
    let (mut limiter, mut process) = (limiter(entry(30, 0)), Fake::recording());
    let begin = goes_at(&gpu, &mut limiter, &mut process, 1000 * MS, 1001 * MS).expect("it goes");
    limiter.passed(begin, OTHER, 1);
    let end = begin + 20 * MS;
    gpu.call(end, &mut process, |call| {
        limiter.forget(call, |stream| stream == STREAM)
    });
    assert!(!limiter.is_idle(), "the other stream lives");
    assert_eq!(gpu.charged(), 20 * MS);
    gpu.call(end + MS, &mut process, |call| limiter.forget(call, |_| true));
    assert!(limiter.is_idle());
    assert_eq!(gpu.charged(), 21 * MS);
}

/// A program that launches seldom and never waits: what the GPU idles between its launches is not charged.
#[test]
fn gaps_between_launches_are_not_charged() {
    for (flags, gap) in [0, entry_flags::GUARANTEED]
        .into_iter()
        .flat_map(|flags| [(flags, 400 * US), (flags, 2 * MS)])
    {
        let gpu = Gpu::new(&[entry(30, flags), entry(70, 0)]);
        let (mut limiter, mut process) = (limiter(entry(30, flags)), Fake::recording());
        let (mut now, mut budget, mut passed) = (1000 * MS, 0, 0);
        let begin = now;
        for _ in 0..2500 {
            gpu.pages[1].turn.until.store(now + US, Relaxed);
            process.gpu = Some((now, now));
            if budget > 0 {
                budget -= 1;
                passed += 1;
            } else {
                limiter.passed(now, STREAM, std::mem::take(&mut passed));
                while let Answer::Wait(wait) = gpu.call(now, &mut process, |call| limiter.ask(call, STREAM, now)) {
                    now = wait.until.max(now + 1);
                    assert!(now < begin + 2600 * gap, "{wait:?}");
                    process.gpu = Some((now, now));
                }
                process.gpu = Some((now, now + 20 * US));
                budget = gpu.call(now, &mut process, |call| limiter.launched(call, STREAM));
            }
            now += gap;
        }
        println!(
            "{flags} {gap} slowed {} us charged {} {:?}",
            (now - begin - 2500 * gap) / US,
            gpu.charged() / MS,
            limiter.pace
        );
        assert!(now < begin + 2510 * gap + 100 * MS, "{} ms", (now - begin) / MS);
        let charged = gpu.charged();
        assert!(
            (25 * MS..150 * MS).contains(&charged),
            "{} ms of 50, {flags}",
            charged / MS
        );
    }
}

/// A program launches kernels one after the other and queries the end of each: first kernels that take `before`, then
/// kernels that take `then`. Returns the charge for the second group and its time.
fn asks_for_the_end(entry: Entry, scope: Scope, before: Ns, then: Ns) -> (Ns, Ns) {
    let gpu = Gpu::new(&[entry]);
    let (mut limiter, mut process) = (limiter(entry), Fake::recording());
    let (mut now, mut charged, mut used) = (1000 * MS, 0, 0);
    for launch in 0..400 {
        let takes = if launch < 100 { before } else { then };
        if launch == 100 {
            charged = gpu.charged();
        }
        let asked = now;
        process.gpu = Some((now, now));
        while let Answer::Wait(wait) = gpu.call(now, &mut process, |call| limiter.ask(call, STREAM, asked)) {
            now = wait.until.max(now + 1);
            process.gpu = Some((now, now));
        }
        used += if launch < 100 { 0 } else { takes };
        process.gpu = Some((now + US, now + US + takes));
        gpu.call(now + US, &mut process, |call| limiter.launched(call, STREAM));
        // The program sees the end 50 us later.
        now += takes + 50 * US;
        process.gpu = Some((now, now - 49 * US));
        gpu.call(now, &mut process, |call| {
            let question = limiter.waiting_for(call, scope);
            limiter.found_done(call, question);
        });
    }
    waits(&gpu, &mut limiter, &mut process, now);
    (gpu.charged() - charged, used)
}

#[test]
fn kernels_of_a_program_that_asks_for_their_end_are_charged_what_they_take() {
    for flags in [entry_flags::GUARANTEED, 0] {
        for scope in [Scope::Stream(STREAM), Scope::Some] {
            for (before, then) in [(10 * US, 5 * MS), (5 * MS, 200 * US)] {
                let (charged, used) = asks_for_the_end(entry(10, flags), scope, before, then);
                // Up to 30 launches are charged wrongly until the samples show the new length.
                let is_right = 9 * used / 10 <= charged && charged <= used + 20 * MS;
                assert!(is_right, "{flags} {scope:?} {then}: {charged} of {used}");
            }
        }
    }
}

/// A neighbour died or paused in its turn: later time is not divided with it.
#[test]
fn a_turn_that_nobody_ended_takes_no_part_of_what_comes_later() {
    let gpu = Gpu::new(&[entry(30, entry_flags::GUARANTEED), entry(70, 0)]);
    let turn = &gpu.pages[1].turn;
    for (word, at) in [(&turn.began, 1000), (&turn.until, 1005), (&turn.ends, 1010)] {
        word.store(at * MS, Relaxed);
    }
    let (mut limiter, mut process) = (limiter(entry(30, entry_flags::GUARANTEED)), Fake::recording());
    // The bucket of a new page is empty.
    let mut begin = 2000 * MS;
    while let Answer::Wait(wait) = gpu.call(begin, &mut process, |call| limiter.ask(call, STREAM, begin)) {
        begin = wait.until.max(begin + 1);
    }
    process.pass_all(begin);
    gpu.call(begin, &mut process, |call| limiter.launched(call, STREAM));
    process.pass_all(begin + 20 * MS);
    waits(&gpu, &mut limiter, &mut process, begin + 20 * MS);
    let charged = gpu.charged();
    assert!((19 * MS..=21 * MS).contains(&charged), "{charged}");
}

/// A neighbour falsely claims to have been on the GPU all the time: a share that is limited to its `cores` is charged
/// for the whole time.
#[test]
fn a_lie_about_a_turn_makes_no_capped_share_cheaper() {
    for (flags, least) in [(entry_flags::GUARANTEED, 20 * MS), (0, 10 * MS)] {
        let gpu = Gpu::new(&[entry(30, flags), entry(70, 0)]);
        let (mut limiter, mut process) = (limiter(entry(30, flags)), Fake::recording());
        let begin = goes_at(&gpu, &mut limiter, &mut process, 1000 * MS, 1001 * MS).expect("it goes");
        let turn = &gpu.pages[1].turn;
        turn.began.store(begin, Relaxed);
        turn.ends.store(begin + 60_000 * MS, Relaxed);
        turn.until.store(begin + 60_000 * MS, Relaxed);
        // The event in front of the launch.
        process.passed[0] = Some(begin);
        process.pass_all(begin + 20 * MS);
        waits(&gpu, &mut limiter, &mut process, begin + 20 * MS);
        assert_eq!(gpu.charged(), least, "flags {flags}");
    }
}

/// Another thread launches between a program's question and the answer: this launch is charged by its own event.
#[test]
fn a_question_says_nothing_of_a_launch_that_came_after_it() {
    for flags in [entry_flags::GUARANTEED, 0] {
        let gpu = Gpu::new(&[entry(30, flags)]);
        let (mut limiter, mut process) = (limiter(entry(30, flags)), Fake::recording());
        let begin = goes_at(&gpu, &mut limiter, &mut process, 1000 * MS, 1001 * MS).expect("it goes");
        waits(&gpu, &mut limiter, &mut process, begin + MS);
        let question = gpu.call(begin + MS, &mut process, |call| {
            limiter.waiting_for(call, Scope::Stream(STREAM))
        });
        limiter.passed(begin + 2 * MS, STREAM, 1);
        gpu.call(begin + 3 * MS, &mut process, |call| limiter.found_done(call, question));
        assert!(limiter.has_work(STREAM), "flags {flags}");
    }
}
