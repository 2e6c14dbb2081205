//! Tests the schedule without processes: contexts are queues in memory, and the clock is a number.

use std::sync::atomic::Ordering::SeqCst;

use super::super::busy_in_window;
use super::super::words::tests::Memory;
use super::super::words::{Lane, Owner, Shape, WHOLE, Words, owner};
use super::*;

const US: u64 = 1_000;
const MS: u64 = 1_000 * US;
const PACE: Pace = Pace {
    slice: 2 * MS,
    switch: 100 * US,
    late_events: false,
};

/// The shape of a kernel in this non-blocking stream; 0 is the default stream.
fn shape(width: u32, stream: u32) -> Shape {
    let lane = match stream {
        0 => Lane::DEFAULT,
        _ => Lane::of_stream(stream, false),
    };
    Shape { width, lane }
}

struct Stage {
    memory: Memory,
    pace: Pace,
    spent: Spent,
}

impl Stage {
    /// Contexts, each of a place and a GPU.
    fn new(owners: &[(usize, usize)]) -> Self {
        let gpus = owners.iter().map(|(_, gpu)| gpu + 1).max().unwrap_or(1);
        let memory = Memory::new(gpus, owners.len());
        for (word, (place, gpu)) in memory.owners.iter().zip(owners) {
            let owner = Owner {
                place: *place,
                gpu: *gpu,
            };
            word.store(owner::next(0, Some(owner)), SeqCst);
        }
        memory.clock[2].store(owners.len() as u64, SeqCst);
        Self {
            memory,
            pace: PACE,
            spent: Spent::default(),
        }
    }

    fn words(&self) -> Words<'_> {
        self.memory.words()
    }

    fn push_after(&self, queue: usize, now: u64, work: u64, after: Option<Ticket>) -> Ticket {
        self.push_shaped(queue, now, work, shape(WHOLE, 1), after)
    }

    fn push_shaped(&self, queue: usize, now: u64, work: u64, shape: Shape, after: Option<Ticket>) -> Ticket {
        let place = &self.memory.queues[queue];
        let number = place.pushed.load(SeqCst);
        assert!(number < place.done.load(SeqCst) + DEPTH, "the queue is full");
        let entry = place.entry(number);
        entry.work.store(work, SeqCst);
        entry.shape.store(shape.pack(), SeqCst);
        if shape.width < WHOLE {
            place.narrow.store(number + 1, SeqCst);
        }
        entry.when.store(now, SeqCst);
        entry.after.store(after.map_or(0, Ticket::pack), SeqCst);
        place.pushed.store(number + 1, SeqCst);
        Ticket { queue, number }
    }

    /// Queues work in a stream.
    fn push_in(&self, stream: u32, queue: usize, now: u64, work: u64, width: u32) -> Ticket {
        self.push_shaped(queue, now, work, shape(width, stream), None)
    }

    fn push(&self, queue: usize, now: u64, work: u64) -> Ticket {
        self.push_after(queue, now, work, None)
    }

    /// Advances in as many transactions as needed.
    fn advance(&mut self, now: u64) {
        let words = self.memory.words();
        while words.at.load(SeqCst) < now {
            let quiet = words.quiet();
            let mut schedule = Schedule::read(words, self.pace);
            schedule.advance(now);
            let changes = schedule.changes();
            assert!(changes.len() <= RECORDS && !changes.is_empty());
            assert!(words.commit(quiet, 0, &changes));
            self.spent.ran += schedule.spent.ran;
            self.spent.switching += schedule.spent.switching;
            self.spent.idle += schedule.spent.idle;
        }
    }

    fn executed(&self, queue: usize) -> u64 {
        self.memory.queues[queue].executed.load(SeqCst)
    }

    fn served(&self, place: usize, gpu: usize) -> u64 {
        usage::served(self.words(), place, gpu)
    }

    fn stamp(&self, ticket: Ticket) -> Option<u64> {
        let queue = &self.memory.queues[ticket.queue];
        ticket
            .is_done(self.words())
            .then(|| queue.entry(ticket.number).when.load(SeqCst))
    }
}

#[test]
fn one_context_runs_its_work_in_order_without_a_switch() {
    let mut stage = Stage::new(&[(0, 0)]);
    let [first, second] = [10 * MS, 5 * MS].map(|work| stage.push(0, MS, work));
    stage.advance(3 * MS);
    assert_eq!((stage.executed(0), stage.stamp(first)), (2 * MS, None));
    stage.advance(100 * MS);
    assert_eq!(
        [first, second].map(|ticket| stage.stamp(ticket)),
        [Some(11 * MS), Some(16 * MS)]
    );
    let expected = Spent {
        ran: 15 * MS,
        switching: 0,
        idle: 85 * MS,
    };
    assert_eq!(stage.spent, expected);
}

#[test]
fn two_contexts_take_turns_in_slices_and_pay_for_each_change() {
    let mut stage = Stage::new(&[(0, 0), (1, 0)]);
    let (one, other) = (stage.push(0, 0, 3 * MS), stage.push(1, 0, 3 * MS));
    stage.advance(100 * MS);
    // 0: 0 to 2 ms; 1: 2.1 to 4.1; 0: 4.2 to 5.2; 1: 5.3 to 6.3.
    assert_eq!(stage.stamp(one), Some(5_200 * US));
    assert_eq!(stage.stamp(other), Some(6_300 * US));
    assert_eq!((stage.spent.ran, stage.spent.switching), (6 * MS, 300 * US));
}

/// The schedule does not depend on how often it is read or by whom.
#[test]
fn a_look_changes_nothing_of_the_schedule() {
    let ends = [1, 7, 130, 5_000].map(|step| {
        let mut stage = Stage::new(&[(0, 0), (1, 0), (2, 0)]);
        let tickets = [(0, 3_170), (1, 900), (2, 4_700), (1, 2_333)].map(|(queue, us)| stage.push(queue, 0, us * US));
        for now in (0..=20_000).step_by(step) {
            stage.advance(now * US);
        }
        stage.advance(20 * MS);
        tickets.map(|ticket| stage.stamp(ticket))
    });
    assert!(
        ends.iter()
            .all(|end| *end == ends[0] && end.iter().all(Option::is_some)),
        "{ends:?}"
    );
}

#[test]
fn a_context_without_work_gives_way_at_once() {
    let mut stage = Stage::new(&[(0, 0), (1, 0)]);
    stage.push(0, 0, 300 * US);
    let other = stage.push(1, 0, 5 * MS);
    stage.advance(100 * MS);
    assert_eq!(stage.stamp(other), Some(5_400 * US));
}

#[test]
fn the_first_context_after_idle_and_the_same_one_again_cost_no_switch() {
    let mut stage = Stage::new(&[(0, 0), (1, 0)]);
    for (queue, now) in [(0, 0), (0, 1), (1, 2), (0, 3)] {
        let ticket = stage.push(queue, now * MS, 100 * US);
        stage.advance((now + 1) * MS);
        assert_eq!(stage.stamp(ticket), Some(now * MS + 100 * US));
    }
    assert_eq!(stage.spent.switching, 0);
}

#[test]
fn a_context_that_comes_late_waits_for_the_rest_of_a_slice_at_most() {
    let mut stage = Stage::new(&[(0, 0), (1, 0)]);
    stage.push(0, 0, 1_000 * MS);
    let late = stage.push(1, 11_500 * US, 100 * US);
    stage.advance(100 * MS);
    assert_eq!(stage.stamp(late), Some(12_200 * US), "the slice ends at 12 ms");
}

#[test]
fn contexts_share_equally_and_processes_by_their_contexts() {
    let mut stage = Stage::new(&[(0, 0), (0, 0), (0, 0), (0, 0), (1, 0)]);
    for queue in 0..5 {
        stage.push(queue, 0, 10_000 * MS);
    }
    stage.advance(1_000 * MS);
    let (four, one) = (stage.served(0, 0), stage.served(1, 0));
    assert!(four.abs_diff(4 * one) <= 4 * PACE.slice, "{four} {one}");
    let busy = busy_in_window(stage.words(), PACE, &[(0, 0), (1, 0)], 1_000 * MS);
    assert!(busy[0].abs_diff(4 * busy[1]) <= 10 * PACE.slice, "{busy:?}");
}

/// More work ends than fits into a transaction, because the processes were not running and nobody advanced the
/// schedule.
#[test]
fn a_look_foresees_the_ends_of_a_full_queue() {
    let stage = Stage::new(&[(0, 0), (1, 0)]);
    for queue in 0..2 {
        for _ in 0..DEPTH {
            stage.push(queue, 0, 100 * US);
        }
    }
    let busy = busy_in_window(stage.words(), PACE, &[(0, 0), (1, 0)], 400 * MS);
    // 200 ms of work are 95 slices and as many switches.
    assert!(busy.iter().all(|busy| (95 * MS..=103 * MS).contains(busy)), "{busy:?}");
}

/// A kernel of 1 ms between two empty entries, as events are. The first is reached when the context gets its turn.
#[test]
fn stamps_of_a_context_that_is_switched_out_include_the_slices_of_others() {
    let mut stage = Stage::new(&[(0, 0), (1, 0)]);
    stage.push(0, 0, 1_000 * MS);
    let start = stage.push(1, 500 * US, 0);
    stage.push(1, 500 * US, 3 * MS);
    let end = stage.push(1, 500 * US, 0);
    stage.advance(100 * MS);
    // On the GPU from 2.1 to 4.1 ms, and again from 6.3 on.
    assert_eq!(stage.stamp(start), Some(2_100 * US));
    assert_eq!(stage.stamp(end), Some(7_300 * US));
}

#[test]
fn work_waits_for_another_queues_also_on_another_gpu() {
    for gpu in [0, 1] {
        let mut stage = Stage::new(&[(0, 0), (0, gpu)]);
        let first = stage.push(0, 0, 5 * MS);
        let second = stage.push_after(1, 0, MS, Some(first));
        let third = stage.push_after(0, 0, MS, Some(second));
        stage.advance(100 * MS);
        let switch = if gpu == 0 { PACE.switch } else { 0 };
        assert_eq!(stage.stamp(second), Some(6 * MS + switch));
        assert_eq!(stage.stamp(third), Some(7 * MS + 2 * switch));
    }
}

#[test]
fn work_begins_when_what_it_waits_for_ends_in_the_middle_of_a_queue() {
    let mut stage = Stage::new(&[(0, 0), (0, 1)]);
    let tickets = [5 * MS; 3].map(|work| stage.push(0, 0, work));
    let waiting = stage.push_after(1, 0, MS, Some(tickets[1]));
    stage.advance(100 * MS);
    assert_eq!(stage.stamp(waiting), Some(11 * MS));
}

/// While a context has only work that has to wait, other contexts get the GPU.
#[test]
fn a_context_that_waits_for_another_gpu_gives_way() {
    let mut stage = Stage::new(&[(0, 0), (0, 1), (1, 1)]);
    let first = stage.push(0, 0, 50 * MS);
    let waiting = stage.push_after(1, 0, MS, Some(first));
    stage.push(2, 0, 40 * MS);
    stage.advance(40 * MS);
    assert_eq!(stage.executed(2), 40 * MS);
    stage.advance(100 * MS);
    assert_eq!(stage.stamp(waiting), Some(51 * MS));
}

#[test]
fn a_full_queue_of_short_kernels_takes_several_transactions() {
    let mut stage = Stage::new(&[(0, 0), (1, 0)]);
    let tickets: Vec<Ticket> = (0..DEPTH).map(|_| stage.push(0, 0, 5 * US)).collect();
    stage.advance(100 * MS);
    for (number, ticket) in tickets.into_iter().enumerate() {
        assert_eq!(stage.stamp(ticket), Some((number as u64 + 1) * 5 * US));
    }
    // The entries are reused, and the numbers continue.
    let again = stage.push(0, 100 * MS, 5 * US);
    stage.advance(200 * MS);
    assert_eq!((again.number, stage.stamp(again)), (DEPTH, Some(100 * MS + 5 * US)));
}

#[test]
fn a_closed_queue_is_gone_from_the_schedule() {
    for running in [0, 1] {
        let mut stage = Stage::new(&[(0, 0), (1, 0)]);
        let tickets = [stage.push(0, 0, 1_000 * MS), stage.push(1, 0, 10 * MS)];
        // 0 is on the GPU until 2 ms, 1 from 2.1 ms on.
        let moment = if running == 0 { MS } else { 3 * MS };
        stage.advance(moment);
        super::super::close(stage.words(), 0, 0);
        assert!(tickets[0].is_done(stage.words()), "nobody waits for it");
        stage.advance(100 * MS);
        let expected = if running == 0 { 11_100 } else { 12_100 };
        assert_eq!(stage.stamp(tickets[1]), Some(expected * US), "{running}");
    }
}

/// The time until which waiters sleep: never after the end, and never in the past while the work has not ended.
#[test]
fn nothing_ends_before_it_can() {
    for width in [WHOLE, 40] {
        nothing_ends_before_its_bound(width);
    }
}

fn nothing_ends_before_its_bound(width: u32) {
    let mut stage = Stage::new(&[(0, 0), (1, 0), (2, 0)]);
    let tickets = [(0, 3_170), (1, 900), (2, 4_700), (1, 2_333), (0, 0), (1, 5_000), (1, 0)];
    let push = |(number, (queue, us))| stage.push_in(number as u32 % 3, queue, 0, us * US, width);
    let tickets: Vec<Ticket> = tickets.into_iter().enumerate().map(push).collect();
    let mut bounds = Vec::new();
    for now in (50..30_000).step_by(50) {
        stage.advance(now * US);
        let schedule = Schedule::read(stage.words(), PACE);
        for ticket in &tickets {
            let bound = schedule.earliest(*ticket);
            assert!(
                bound > now * US || ticket.is_done(stage.words()),
                "{ticket:?} at {now} us"
            );
            bounds.push((*ticket, bound));
        }
    }
    stage.advance(30 * MS);
    for (ticket, bound) in bounds {
        // The bound of work that is done may be in the past.
        let end = stage.stamp(ticket).expect("done");
        assert!(
            bound <= end || bound <= 30 * MS && end <= bound,
            "{ticket:?}: {bound}, ended {end}"
        );
    }
}

#[test]
fn nonsense_ends() {
    let mut stage = Stage::new(&[(0, 0), (1, 0)]);
    stage.push(0, 0, MS);
    stage.memory.queues[1].pushed.store(u64::MAX, SeqCst);
    stage.memory.queues[1].executed.store(u64::MAX / 2, SeqCst);
    stage.memory.queues[1].entries[5].after.store(u64::MAX, SeqCst);
    stage.memory.gpus[0].turn.store(u64::MAX, SeqCst);
    stage.memory.gpus[0].slice_start.store(u64::MAX, SeqCst);
    stage.memory.gpus[0].switch_end.store(u64::MAX, SeqCst);
    let mut schedule = Schedule::read(stage.words(), PACE);
    schedule.advance(MS);
    schedule.changes();
    stage.spent = schedule.spent;
}

#[test]
fn kernels_of_several_streams_run_at_once_as_long_as_they_fit() {
    let mut stage = Stage::new(&[(0, 0)]);
    let kernels = [(1, 5, 50), (2, 3, 50), (3, 1, 50), (1, 1, 25), (2, 1, 25)];
    let tickets = kernels.map(|(stream, ms, width)| stage.push_in(stream, 0, 0, ms * MS, width));
    stage.advance(100 * MS);
    // The third waits until the second frees its part of the GPU; the fourth and fifth wait for earlier kernels of
    // their streams.
    assert_eq!(
        tickets.map(|ticket| stage.stamp(ticket)),
        [5, 3, 4, 6, 5].map(|ms| Some(ms * MS))
    );
    assert_eq!(stage.spent.ran, 6 * MS, "the GPU's time, however much of it is filled");
}

#[test]
fn a_kernel_that_does_not_fit_keeps_later_ones_from_beginning_and_ends_none() {
    let mut stage = Stage::new(&[(0, 0)]);
    let kernels = [(1, 4, 50), (1, 1, 100), (2, 6, 50), (2, 1, 50), (3, 1, 1)];
    let tickets = kernels.map(|(stream, ms, width)| stage.push_in(stream, 0, 0, ms * MS, width));
    stage.advance(100 * MS);
    assert_eq!(
        tickets.map(|ticket| stage.stamp(ticket)),
        [4, 7, 6, 8, 8].map(|ms| Some(ms * MS))
    );
}

#[test]
fn the_default_stream_waits_for_blocking_streams_and_they_for_it() {
    let mut stage = Stage::new(&[(0, 0)]);
    let blocking = Lane::of_stream(0, true);
    let kernels = [(blocking, 4), (Lane::DEFAULT, 1), (shape(1, 2).lane, 3), (blocking, 1)];
    let tickets = kernels.map(|(lane, ms)| stage.push_shaped(0, 0, ms * MS, Shape { width: 25, lane }, None));
    stage.advance(100 * MS);
    assert_eq!(
        tickets.map(|ticket| stage.stamp(ticket)),
        [4, 5, 3, 6].map(|ms| Some(ms * MS))
    );
}

#[test]
fn a_stream_waits_for_another_one_of_its_context_and_a_third_runs_on() {
    let mut stage = Stage::new(&[(0, 0)]);
    let first = stage.push_in(1, 0, 0, 5 * MS, 25);
    let second = stage.push_shaped(0, 0, MS, shape(25, 2), Some(first));
    let third = stage.push_in(3, 0, 0, 2 * MS, 25);
    stage.advance(100 * MS);
    assert_eq!(
        [first, second, third].map(|ticket| stage.stamp(ticket)),
        [5, 6, 2].map(|ms| Some(ms * MS))
    );
}

/// A stream waits for another GPU, while others of its context run.
#[test]
fn a_stream_begins_when_another_gpu_ends_what_it_waits_for() {
    let mut stage = Stage::new(&[(0, 0), (0, 1)]);
    stage.push_in(1, 1, 0, 50 * MS, 25);
    let far = [3 * MS; 4].map(|work| stage.push(0, 0, work));
    let waiting = stage.push_shaped(1, 0, MS, shape(25, 2), Some(far[1]));
    let behind = stage.push_in(3, 1, 0, MS, 25);
    stage.advance(100 * MS);
    assert_eq!([waiting, behind].map(|ticket| stage.stamp(ticket)), [Some(7 * MS); 2]);
}

/// 2 ms of each context in turn, and switches between them.
#[test]
fn kernels_that_run_at_once_share_their_contexts_slices() {
    let mut stage = Stage::new(&[(0, 0), (1, 0)]);
    let narrow = [1, 2, 3].map(|stream| stage.push_in(stream, 0, 0, stream as u64 * MS + MS, 30));
    let other = stage.push(1, 0, 3 * MS);
    stage.advance(100 * MS);
    // On the GPU from 0 to 2 ms, from 4.2 to 6.2 ms; the other from 2.1 to 4.1 ms and from 6.3 to 7.3 ms.
    assert_eq!(
        narrow.map(|ticket| stage.stamp(ticket)),
        [2_000, 5_200, 6_200].map(|us| Some(us * US))
    );
    assert_eq!(stage.stamp(other), Some(7_300 * US));
    assert_eq!((stage.served(0, 0), stage.served(1, 0)), (4 * MS, 3 * MS));
}

#[test]
fn hundreds_of_kernels_at_once_on_all_gpus_fit_into_transactions() {
    let owners: Vec<(usize, usize)> = (0..16).map(|gpu| (0, gpu)).collect();
    let mut stage = Stage::new(&owners);
    let streams = || (0..16).flat_map(|queue| (1..=60).map(move |stream| (queue, stream)));
    let tickets: Vec<Ticket> = (0..5)
        .flat_map(|_| {
            streams()
                .map(|(queue, stream)| stage.push_in(stream, queue, 0, MS, 1))
                .collect::<Vec<_>>()
        })
        .collect();
    stage.advance(100 * MS);
    for (number, ticket) in tickets.into_iter().enumerate() {
        assert_eq!(stage.stamp(ticket), Some((number as u64 / 960 + 1) * MS), "{number}");
    }
}

/// Work of a queue's last owner stops, and no longer counts as running.
#[test]
fn a_closed_queue_leaves_its_next_owner_nothing_that_runs() {
    let mut stage = Stage::new(&[(0, 0)]);
    for stream in [1, 2] {
        stage.push_in(stream, 0, 0, 1_000 * MS, 50);
    }
    stage.advance(MS);
    let words = stage.memory.words();
    super::super::close(words, 0, 0);
    words.owners[0].store(
        owner::next(words.owners[0].load(SeqCst), Some(Owner { place: 0, gpu: 0 })),
        SeqCst,
    );
    let tickets = [1, 2].map(|stream| stage.push_in(stream, 0, MS, 5 * MS, 50));
    stage.advance(100 * MS);
    assert_eq!(tickets.map(|ticket| stage.stamp(ticket)), [Some(6 * MS); 2]);
}

/// In a queue whose kernels never fill the GPU, entries are reused as in any other queue.
#[test]
fn stamps_of_narrow_kernels_stay_right_when_places_are_used_again() {
    let mut stage = Stage::new(&[(0, 0)]);
    let mut now = 0;
    for round in 0..3 * DEPTH / 8 {
        let tickets = [(1, 3), (2, 0), (2, 1), (3, 2), (1, 0), (3, 0), (2, 4), (1, 1)];
        let tickets = tickets.map(|(stream, ms)| stage.push_in(stream, 0, now, ms * MS, 20));
        stage.advance(now + 10 * MS);
        let expected = [3, 0, 1, 2, 3, 2, 5, 4].map(|ms| Some(now + ms * MS));
        assert_eq!(tickets.map(|ticket| stage.stamp(ticket)), expected, "round {round}");
        now += 10 * MS;
    }
}

/// Another context has the GPU from 2.1 to 4.1 ms, and so on.
#[test]
fn a_context_whose_slice_is_over_tells_of_an_end_when_it_is_next_on_the_gpu() {
    for late_events in [false, true] {
        let mut stage = Stage::new(&[(0, 0), (1, 0)]);
        stage.pace.late_events = late_events;
        let [first, second] = [MS, 2 * MS].map(|work| stage.push(0, 0, work));
        stage.push(1, 0, 10 * MS);
        let mut told = Vec::new();
        for now in (500..8_000).step_by(500) {
            stage.advance(now * US);
            let schedule = Schedule::read(stage.words(), stage.pace);
            let knows = |ticket| {
                let stamp = stage.stamp(ticket)?;
                (!schedule.hides(0, stamp)).then_some(now)
            };
            told.push([first, second].map(|ticket| knows(ticket).is_some()));
            if !told[told.len() - 1][0] && now > 1_000 {
                let tells = schedule.tells();
                assert!((now * US + 1..=4_200 * US).contains(&tells), "{tells} at {now} us");
            }
        }
        let first_told: Vec<bool> = told.iter().map(|[first, _]| *first).collect();
        let hidden = |at: usize| late_events && (2_000..4_200).contains(&(500 + at * 500));
        let expected: Vec<bool> = (0..15).map(|at| at >= 1 && !hidden(at)).collect();
        assert_eq!(first_told, expected, "{late_events}");
        // At this time the context has no more work, and gives up the GPU by itself.
        assert_eq!(stage.stamp(second), Some(5_200 * US));
        assert!(told[10..].iter().all(|[_, second]| *second), "{late_events}: {told:?}");
    }
}

/// Random kernels of several widths and streams; some wait for others. The result does not depend on how often the
/// schedule is read or by whom, and each stream's kernels end in order.
#[test]
fn a_look_changes_nothing_of_what_runs_at_once() {
    for seed in 1..=100 {
        let ends = [1, 7, 130, 900].map(|step| {
            let mut next = numbers(0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(seed));
            let mut stage = Stage::new(&[(0, 0), (1, 0), (1, 1)]);
            let (mut tickets, mut now): (Vec<(u32, Ticket)>, u64) = (Vec::new(), 0);
            for number in 1..=60 {
                for _ in 0..next() % 40 {
                    now += 10;
                    if now.is_multiple_of(step * 10) {
                        stage.advance(now * US);
                    }
                }
                let (queue, stream) = (next() as usize % 3, next() as u32 % 4);
                let work = [0, 10 * US, 700 * US, 3 * MS][next() as usize % 4];
                let width = [WHOLE, 60, 50, 25, 1][next() as usize % 5];
                // Work without a duration fills no part of the GPU, as in `Work::width`.
                let width = if work == 0 { 0 } else { width };
                let after = (!tickets.is_empty() && next().is_multiple_of(4))
                    .then(|| tickets[next() as usize % tickets.len()].1);
                // At a moment that no read and no end shares: otherwise their order would be random.
                let ticket = stage.push_shaped(queue, now * US + number, work, shape(width, stream), after);
                tickets.push((stream, ticket));
            }
            stage.advance(1_000 * MS);
            let stamps: Vec<Option<u64>> = tickets.iter().map(|(_, ticket)| stage.stamp(*ticket)).collect();
            for (queue, stream) in (0..3).flat_map(|queue| (0..4).map(move |stream| (queue, stream))) {
                let its = tickets.iter().zip(&stamps);
                let its = its.filter(|((one, ticket), _)| (*one, ticket.queue) == (stream, queue));
                assert!(its.is_sorted_by_key(|(_, stamp)| *stamp), "seed {seed}: {stamps:?}");
            }
            stamps
        });
        let all_end = ends.iter().flatten().all(Option::is_some);
        assert!(
            all_end && ends.iter().all(|end| *end == ends[0]),
            "seed {seed}: {ends:?}"
        );
    }
}

/// Random numbers (xorshift), so that each seed is a case that can be run again.
fn numbers(mut state: u64) -> impl FnMut() -> u64 {
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    }
}

/// Random contexts, work, reads and closes: no time is lost or added, each piece of work ends once and in order, and
/// processes are charged exactly with the time that their contexts ran.
#[test]
fn time_is_conserved() {
    for seed in 1..=300 {
        // In half of the cases kernels may run at once.
        let narrowest = if seed % 2 == 0 { 20 } else { WHOLE };
        let mut next = numbers(0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(seed));
        let gpus = 1 + next() as usize % 2;
        let owners: Vec<(usize, usize)> = (0..1 + next() % 5)
            .map(|_| (next() as usize % 3, next() as usize % gpus))
            .collect();
        let mut stage = Stage::new(&owners);
        let gpus = stage.memory.gpus.len() as u64;
        let mut open: Vec<usize> = (0..owners.len()).collect();
        let (mut now, mut tickets): (u64, Vec<Ticket>) = (0, Vec::new());
        for _ in 0..200 {
            match next() % 16 {
                0..6 => now += next() % (5 * MS),
                6 if open.len() > 1 => {
                    let queue = open.swap_remove(next() as usize % open.len());
                    super::super::close(stage.words(), 0, queue);
                }
                _ => {
                    let queue = open[next() as usize % open.len()];
                    let work = [0, 5 * US, 700 * US, 9 * MS][next() as usize % 4];
                    let after = tickets
                        .last()
                        .copied()
                        .filter(|ticket| ticket.queue != queue && next().is_multiple_of(4));
                    let width = narrowest.max(next() as u32 % (WHOLE + 1));
                    let shape = shape(width, next() as u32 % 4);
                    tickets.push(stage.push_shaped(queue, now, work, shape, after));
                }
            }
            if next().is_multiple_of(2) {
                stage.advance(now);
            }
        }
        stage.advance(now);
        let Spent { ran, switching, idle } = stage.spent;
        assert_eq!(ran + switching + idle, now * gpus, "seed {seed}");
        let users = (0..3).flat_map(|place| (0..gpus as usize).map(move |gpu| (place, gpu)));
        let served: u64 = users.map(|(place, gpu)| stage.served(place, gpu)).sum();
        assert_eq!(served, ran, "seed {seed}");
        stage.advance(now + 10_000 * MS);
        assert!(
            tickets.iter().all(|ticket| ticket.is_done(stage.words())),
            "seed {seed}: all ends"
        );
        for queue in open {
            let stamps: Vec<u64> = tickets
                .iter()
                .filter(|ticket| ticket.queue == queue)
                .filter_map(|ticket| stage.stamp(*ticket))
                .collect();
            assert!(stamps.is_sorted() || narrowest < WHOLE, "seed {seed}: {stamps:?}");
        }
    }
}
