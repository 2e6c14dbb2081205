//! The shared words of the GPUs' time.
//!
//! Two kinds of words, by who writes them:
//! - `Queue::pushed`, `Queue::narrow` and the description of an entry's work: only by the process that owns the queue,
//!   before the entry is pushed.
//! - All others: by transactions of the journal. Their values never recur: times, positions and counters only grow,
//!   also when a queue or a process slot gets another owner. So if a process is stopped in the middle of a transaction
//!   and continues much later, its exchanges fail.
//!
//! A queue has a clock, `executed`: how much GPU time its context has had. Work that has begun ends when the clock
//! shows its `ends`. Work is done in order, except that work of different lanes may run at once. The `stage` of an
//! entry shows that it has begun, or that it has ended before an earlier one.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::account::MAX_PROCS;
use crate::profile::MAX_DEVICES;

/// The largest number of contexts, in all processes together, that can have launched work and still exist.
pub const MAX_QUEUES: usize = 1 << 10;
/// How much work a context can have queued. A further launch waits.
pub const DEPTH: u64 = 1 << 10;
/// The number of usage samples of a process on a GPU. Together they cover more than the window.
pub const SAMPLES: usize = 32;

/// One piece of work in a queue.
#[derive(Default)]
#[repr(C)]
pub struct Entry {
    /// GPU time that it takes.
    pub work: AtomicU64,
    /// When it was queued. Once it is done: when it ended.
    pub when: AtomicU64,
    /// The ticket that has to be done before, packed by [`Ticket::pack`]; 0: none.
    pub after: AtomicU64,
    /// Packed by [`Shape::pack`].
    pub shape: AtomicU64,
    /// The time of its end by the queue's clock, once it has begun.
    pub ends: AtomicU64,
    /// See [`stage`].
    pub stage: AtomicU64,
}

/// The state of a piece of work, unless the queue's `done` already shows that it has ended. Numbers only grow, so a
/// reused entry needs no reset.
pub mod stage {
    pub const fn begun(number: u64) -> u64 {
        number.wrapping_mul(2).wrapping_add(1)
    }

    pub const fn ended(number: u64) -> u64 {
        number.wrapping_mul(2).wrapping_add(2)
    }
}

/// The width of work that fills the GPU, in percent.
pub const WHOLE: u32 = 100;

/// The part of the GPU that a piece of work fills, and its lane, which decides with what it may run at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Percent of the GPU.
    pub width: u32,
    pub lane: Lane,
}

/// A stream, as far as the order of work is concerned. There are 128 lanes, because hardware can run that many kernels
/// at once. Work of one lane runs in order. Odd lanes wait for the default stream's lane, which waits for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lane(u32);

/// A set of lanes, one a bit.
pub type Lanes = u128;

impl Lane {
    pub const DEFAULT: Self = Self(0);

    /// Returns the lane of the n-th blocking stream, or of the n-th other stream. Beyond the first 63, streams share
    /// lanes.
    pub fn of_stream(n: u32, is_blocking: bool) -> Self {
        match is_blocking {
            true => Self(n % 64 * 2 + 1),
            false => Self(n % 63 * 2 + 2),
        }
    }

    /// The set of this lane alone.
    pub fn bit(self) -> Lanes {
        1 << self.0
    }

    /// The lanes whose earlier work has to end before work of this lane begins.
    pub fn before(self) -> Lanes {
        const ODD: Lanes = Lanes::MAX / 3 * 2;
        match self.0 {
            0 => ODD | 1,
            odd if odd % 2 == 1 => self.bit() | 1,
            _ => self.bit(),
        }
    }
}

impl Shape {
    pub fn pack(self) -> u64 {
        u64::from(self.width) << 8 | u64::from(self.lane.0)
    }

    /// Accepts any word.
    pub fn unpack(word: u64) -> Self {
        Self {
            width: ((word >> 8) as u32).min(WHOLE),
            lane: Lane(word as u32 % Lanes::BITS),
        }
    }
}

/// The work of one context.
#[repr(C, align(128))]
pub struct Queue {
    /// How many entries there have ever been.
    pub pushed: AtomicU64,
    /// How many of them have ended.
    pub done: AtomicU64,
    /// How much GPU time the queue has ever had.
    pub executed: AtomicU64,
    /// When the context last came onto the GPU. Only with `late_events`.
    pub since: AtomicU64,
    /// The number after the last entry that does not fill the GPU. The owner writes it, before `pushed`.
    pub narrow: AtomicU64,
    pub entries: [Entry; DEPTH as usize],
}

impl Default for Queue {
    fn default() -> Self {
        Self {
            pushed: AtomicU64::new(0),
            done: AtomicU64::new(0),
            executed: AtomicU64::new(0),
            since: AtomicU64::new(0),
            narrow: AtomicU64::new(0),
            entries: std::array::from_fn(|_| Entry::default()),
        }
    }
}

impl Queue {
    pub fn entry(&self, number: u64) -> &Entry {
        &self.entries[(number % DEPTH) as usize]
    }
}

/// The present activity of a GPU.
#[derive(Default)]
#[repr(C)]
pub struct Turn {
    /// The context on the GPU, what the GPU does, and a counter of changes: see `schedule`.
    pub turn: AtomicU64,
    pub slice_start: AtomicU64,
    /// When the current switch ends.
    pub switch_end: AtomicU64,
}

#[derive(Default)]
#[repr(C)]
pub struct Sample {
    pub at: AtomicU64,
    pub served: AtomicU64,
}

/// The use of one GPU through one process slot.
#[derive(Default)]
#[repr(C, align(64))]
pub struct Usage {
    /// GPU time of all processes that ever had the place.
    pub served: AtomicU64,
    /// How many samples there have ever been.
    pub sampled: AtomicU64,
    /// When the process joined. It writes this itself.
    pub since: AtomicU64,
    pub samples: [Sample; SAMPLES],
}

/// The most changes of one transaction.
pub const RECORDS: usize = 512;

#[derive(Default)]
#[repr(C)]
pub struct Record {
    pub name: AtomicU64,
    pub old: AtomicU64,
    pub new: AtomicU64,
}

/// The change that one process is about to make: see `journal`.
#[repr(C, align(64))]
pub struct Journal {
    pub count: AtomicU64,
    pub records: [Record; RECORDS],
}

impl Default for Journal {
    fn default() -> Self {
        Self {
            count: AtomicU64::new(0),
            records: std::array::from_fn(|_| Record::default()),
        }
    }
}

/// All shared words of the GPUs' time, in the shared file.
#[repr(C, align(128))]
pub struct Timeline {
    /// See `journal`.
    pub root: AtomicU64,
    /// The moment up to which the schedule has come.
    pub at: AtomicU64,
    /// The largest number of queues that were ever in use. Readers read no further.
    pub high_water: AtomicU64,
    pub gpus: [Turn; MAX_DEVICES],
    /// Separate from the queues, so that searching for queues in use is cheap.
    pub owners: [AtomicU64; MAX_QUEUES],
    pub queues: [Queue; MAX_QUEUES],
    pub usage: [[Usage; MAX_DEVICES]; MAX_PROCS],
    /// One for each process, and one for the process that holds the folder's lock.
    pub journals: [Journal; MAX_PROCS + 1],
}

const _: () = {
    assert!(size_of::<Queue>() == 48 * DEPTH as usize + 128);
    assert!(size_of::<Usage>() == 576);
};

/// The same words by reference, so that tests need not create all of them.
#[derive(Clone, Copy)]
pub struct Words<'a> {
    pub root: &'a AtomicU64,
    pub at: &'a AtomicU64,
    pub high_water: &'a AtomicU64,
    pub gpus: &'a [Turn],
    pub owners: &'a [AtomicU64],
    pub queues: &'a [Queue],
    pub usage: &'a [[Usage; MAX_DEVICES]],
    pub journals: &'a [Journal],
}

impl Timeline {
    /// `gpus`: how many places are in use.
    pub fn words(&self, gpus: usize) -> Words<'_> {
        Words {
            root: &self.root,
            at: &self.at,
            high_water: &self.high_water,
            gpus: &self.gpus[..gpus.min(MAX_DEVICES)],
            owners: &self.owners,
            queues: &self.queues,
            usage: &self.usage,
            journals: &self.journals,
        }
    }
}

/// The name of a word that transactions change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Name {
    At,
    Turn { gpu: usize },
    SliceStart { gpu: usize },
    SwitchEnd { gpu: usize },
    Owner { queue: usize },
    Done { queue: usize },
    Executed { queue: usize },
    When { queue: usize, entry: u64 },
    Ends { queue: usize, entry: u64 },
    Stage { queue: usize, entry: u64 },
    Since { queue: usize },
    Served { place: usize, gpu: usize },
    Sampled { place: usize, gpu: usize },
    SampleAt { place: usize, gpu: usize, sample: u64 },
    SampleServed { place: usize, gpu: usize, sample: u64 },
}

impl Name {
    /// Packs the name into one word: kind, first number, second, third.
    pub fn pack(self) -> u64 {
        let word = |kind: u64, a: usize, b: usize, c: u64| kind << 48 | (a as u64) << 32 | (b as u64) << 16 | c;
        match self {
            Self::At => word(0, 0, 0, 0),
            Self::Turn { gpu } => word(1, gpu, 0, 0),
            Self::SliceStart { gpu } => word(2, gpu, 0, 0),
            Self::SwitchEnd { gpu } => word(3, gpu, 0, 0),
            Self::Owner { queue } => word(4, queue, 0, 0),
            Self::Done { queue } => word(5, queue, 0, 0),
            Self::Executed { queue } => word(6, queue, 0, 0),
            Self::When { queue, entry } => word(7, queue, 0, entry % DEPTH),
            Self::Served { place, gpu } => word(8, place, gpu, 0),
            Self::Sampled { place, gpu } => word(9, place, gpu, 0),
            Self::SampleAt { place, gpu, sample } => word(10, place, gpu, sample % SAMPLES as u64),
            Self::SampleServed { place, gpu, sample } => word(11, place, gpu, sample % SAMPLES as u64),
            Self::Ends { queue, entry } => word(12, queue, 0, entry % DEPTH),
            Self::Stage { queue, entry } => word(13, queue, 0, entry % DEPTH),
            Self::Since { queue } => word(14, queue, 0, 0),
        }
    }
}

impl<'a> Words<'a> {
    /// Returns the word with a packed name. None: the name was read while it was written, or is damaged.
    pub fn named(&self, packed: u64) -> Option<&'a AtomicU64> {
        let part = |shift: u32| (packed >> shift) as usize & 0xffff;
        let (a, b, c) = (part(32), part(16), part(0));
        let usage = || self.usage.get(a)?.get(b);
        Some(match packed >> 48 {
            0 => self.at,
            1 => &self.gpus.get(a)?.turn,
            2 => &self.gpus.get(a)?.slice_start,
            3 => &self.gpus.get(a)?.switch_end,
            4 => self.owners.get(a)?,
            5 => &self.queues.get(a)?.done,
            6 => &self.queues.get(a)?.executed,
            7 => &self.queues.get(a)?.entries.get(c)?.when,
            8 => &usage()?.served,
            9 => &usage()?.sampled,
            10 => &usage()?.samples.get(c)?.at,
            11 => &usage()?.samples.get(c)?.served,
            12 => &self.queues.get(a)?.entries.get(c)?.ends,
            13 => &self.queues.get(a)?.entries.get(c)?.stage,
            14 => &self.queues.get(a)?.since,
            _ => return None,
        })
    }
}

/// The owner of a queue: the place of a process, and a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    pub place: usize,
    pub gpu: usize,
}

/// The owner's word: a counter of owners, then GPU, then place + 1, or 0 if the queue is free.
pub mod owner {
    use super::Owner;

    pub fn of(word: u64) -> Option<Owner> {
        let place = (word & 0xffff) as usize;
        place.checked_sub(1).map(|place| Owner {
            place,
            gpu: (word >> 16) as usize & 0xffff,
        })
    }

    /// The word that follows `word`.
    pub fn next(word: u64, owner: Option<Owner>) -> u64 {
        let low = owner.map_or(0, |owner| (owner.gpu as u64) << 16 | (owner.place as u64 + 1));
        ((word >> 32) + 1) << 32 | low
    }
}

/// Identifies one piece of work of one queue. It is never reused: numbers continue when the queue gets another owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ticket {
    pub queue: usize,
    pub number: u64,
}

impl Ticket {
    /// Packs the ticket into a word, which is never 0.
    pub fn pack(self) -> u64 {
        (self.queue as u64 + 1) << 48 | self.number
    }

    pub fn unpack(word: u64) -> Option<Self> {
        let queue = (word >> 48) as usize;
        queue.checked_sub(1).map(|queue| Self {
            queue: queue % MAX_QUEUES,
            number: word & ((1 << 48) - 1),
        })
    }

    /// Returns when the work ended. Valid only if it is done and its entry was not reused.
    pub fn stamp(self, words: Words<'_>) -> u64 {
        let queue = words.queues.get(self.queue);
        queue.map_or(0, |queue| queue.entry(self.number).when.load(Ordering::Acquire))
    }

    /// Returns true if it has ended, as far as the schedule has come. All work of a closed queue has ended.
    pub fn is_done(self, words: Words<'_>) -> bool {
        words.queues.get(self.queue).is_none_or(|queue| {
            let is_ahead = || queue.entry(self.number).stage.load(Ordering::Acquire) >= stage::ended(self.number);
            queue.done.load(Ordering::Acquire) > self.number || is_ahead()
        })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Small words for tests.
    pub(crate) struct Memory {
        pub(crate) gpus: Vec<Turn>,
        pub(crate) owners: Vec<AtomicU64>,
        pub(crate) queues: Vec<Queue>,
        pub(crate) usage: Vec<[Usage; MAX_DEVICES]>,
        pub(crate) journals: Vec<Journal>,
        pub(crate) clock: [AtomicU64; 3],
    }

    impl Memory {
        pub(crate) fn new(gpus: usize, queues: usize) -> Self {
            Self {
                gpus: (0..gpus).map(|_| Turn::default()).collect(),
                owners: (0..queues).map(|_| AtomicU64::new(0)).collect(),
                queues: (0..queues).map(|_| Queue::default()).collect(),
                usage: (0..queues.max(3))
                    .map(|_| std::array::from_fn(|_| Usage::default()))
                    .collect(),
                journals: (0..=queues).map(|_| Journal::default()).collect(),
                clock: Default::default(),
            }
        }

        pub(crate) fn words(&self) -> Words<'_> {
            Words {
                root: &self.clock[0],
                at: &self.clock[1],
                high_water: &self.clock[2],
                gpus: &self.gpus,
                owners: &self.owners,
                queues: &self.queues,
                usage: &self.usage,
                journals: &self.journals,
            }
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "safe code and many words")]
    fn each_name_leads_to_a_word_of_its_own() {
        let memory = Memory::new(2, 3);
        let words = memory.words();
        let mut names = vec![Name::At];
        for gpu in 0..2 {
            names.extend([Name::Turn { gpu }, Name::SliceStart { gpu }, Name::SwitchEnd { gpu }]);
            for place in 0..3 {
                names.extend([Name::Served { place, gpu }, Name::Sampled { place, gpu }]);
                for sample in [0, 31] {
                    names.extend([
                        Name::SampleAt { place, gpu, sample },
                        Name::SampleServed { place, gpu, sample },
                    ]);
                }
            }
        }
        for queue in 0..3 {
            names.extend([Name::Owner { queue }, Name::Done { queue }, Name::Executed { queue }]);
            names.push(Name::Since { queue });
            for entry in [0, 1023] {
                names.extend([
                    Name::When { queue, entry },
                    Name::Ends { queue, entry },
                    Name::Stage { queue, entry },
                ]);
            }
        }
        let mut found: Vec<_> = names
            .iter()
            .map(|name| std::ptr::from_ref(words.named(name.pack()).expect("a word")))
            .collect();
        found.sort();
        found.dedup();
        assert_eq!(found.len(), names.len());
        for damaged in [
            15 << 48,
            Name::Done { queue: 3 }.pack(),
            Name::Turn { gpu: 2 }.pack(),
            u64::MAX,
        ] {
            assert!(words.named(damaged).is_none(), "{damaged:x}");
        }
    }

    #[test]
    fn shapes_survive_packing() {
        for lane in [0, 1, 127].map(Lane) {
            for width in [0, 1, 100] {
                let shape = Shape { width, lane };
                assert_eq!(Shape::unpack(shape.pack()), shape);
            }
        }
        assert_eq!(Shape::unpack(u64::MAX).width, WHOLE);
    }

    #[test]
    fn streams_have_lanes_and_the_default_stream_waits_for_blocking_ones_alone() {
        let streams =
            [true, false].map(|is_blocking| [0, 1, 62, 63, 64, 1000].map(|n| Lane::of_stream(n, is_blocking)));
        for (lanes, is_blocking) in streams.iter().zip([true, false]) {
            for lane in lanes {
                assert_ne!(*lane, Lane::DEFAULT);
                assert_eq!(Lane::DEFAULT.before() & lane.bit() != 0, is_blocking, "{lane:?}");
                assert_eq!(lane.before() & Lane::DEFAULT.bit() != 0, is_blocking, "{lane:?}");
                assert_ne!(lane.before() & lane.bit(), 0);
            }
            let distinct = lanes[..3].iter().fold(0, |set, lane| set | lane.bit());
            assert_eq!(distinct.count_ones(), 3);
        }
    }

    #[test]
    fn owners_and_tickets_survive_packing() {
        let owner = Owner { place: 0, gpu: 15 };
        let taken = owner::next(0, Some(owner));
        assert_eq!(owner::of(taken), Some(owner));
        let free = owner::next(taken, None);
        assert_eq!(owner::of(free), None);
        assert_ne!(owner::next(free, Some(owner)), taken, "another time, another word");
        let ticket = Ticket { queue: 0, number: 0 };
        assert_ne!(ticket.pack(), 0);
        assert_eq!(Ticket::unpack(ticket.pack()), Some(ticket));
        assert_eq!(Ticket::unpack(0), None);
    }
}
