//! The programs that threads run.

use crate::random::Random;
use crate::{MS, Ns, US};

/// One step of a program.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    Launch(Launch),
    Copy {
        stream: usize,
        length: Ns,
    },
    /// Waits for a stream, or with `None` for all.
    Wait(Option<usize>),
    Sleep(Ns),
    /// A request begins.
    Begin,
    /// A request has ended and is recorded.
    Done,
    /// The process exits (`normal`) or is killed. After a pause, a new one runs the same program.
    Exit {
        normal: bool,
        pause: Ns,
    },
    /// The thread does nothing from now on.
    Stop,
}

/// A kernel launch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Launch {
    pub stream: usize,
    pub length: Ns,
    /// The percentage of the multiprocessors that the kernel takes.
    pub width: u32,
    /// How often the kernel waits for the partner's kernel.
    pub handshakes: u32,
}

/// Returns a thread's next step; the argument is the present time.
pub(crate) type Program = Box<dyn FnMut(&mut Random, Ns) -> Step>;

fn kernel(stream: usize, length: Ns) -> Step {
    Step::Launch(Launch {
        stream,
        length,
        width: 100,
        handshakes: 0,
    })
}

/// Launches kernels of these lengths in turn over some streams, and never waits.
pub(crate) fn circle(lengths: &[Ns], jitter: u64, streams: usize, width: u32) -> Program {
    let lengths = lengths.to_vec();
    let mut count = 0;
    Box::new(move |random, _| {
        let length = lengths[count % lengths.len()];
        count += 1;
        Step::Launch(Launch {
            stream: count % streams,
            length: random.around(length, jitter),
            width,
            handshakes: 0,
        })
    })
}

/// Launches kernels of about this length in one stream, and never waits.
pub(crate) fn busy(length: Ns) -> Program {
    circle(&[length], 5, 1, 100)
}

/// As `busy` in several streams, and waits for all of them after each batch of launches.
pub(crate) fn batches(length: Ns, streams: usize, width: u32, batch: usize) -> Program {
    let mut count = 0;
    Box::new(move |random, _| {
        count += 1;
        if count % (batch + 1) == 0 {
            return Step::Wait(None);
        }
        Step::Launch(Launch {
            stream: count % streams,
            length: random.around(length, 5),
            width,
            handshakes: 0,
        })
    })
}

/// Launches some short kernels and waits after every fifth, then launches some long ones, and repeats.
pub(crate) fn waves(short: (Ns, usize), long: (Ns, usize)) -> Program {
    let mut count = 0;
    Box::new(move |_, _| {
        let is_short = count % (short.1 + long.1) < short.1;
        count += 1;
        if is_short && count % 5 == 0 {
            return Step::Wait(Some(0));
        }
        kernel(0, if is_short { short.0 } else { long.0 })
    })
}

/// Launches a kernel, waits for it and pauses, repeatedly.
pub(crate) fn waits(length: Ns, jitter: u64, pause: Ns) -> Program {
    let mut count = 0;
    Box::new(move |random, _| {
        count += 1;
        match count % 3 {
            1 => kernel(0, random.around(length, jitter)),
            2 => Step::Wait(Some(0)),
            _ => Step::Sleep(pause),
        }
    })
}

/// Repeats a request: launches `count` kernels, waits for them, pauses for `pause` on average.
pub(crate) fn bursts(count: usize, length: Ns, pause: Ns) -> Program {
    let mut at = 0;
    Box::new(move |random, _| {
        let step = match at {
            0 => Step::Begin,
            at if at <= count => kernel(0, random.around(length, 5)),
            at if at == count + 1 => Step::Wait(Some(0)),
            at if at == count + 2 => Step::Done,
            _ => Step::Sleep(random.exponential(pause)),
        };
        at = (at + 1) % (count + 4);
        step
    })
}

/// A rank of a job on two GPUs. It waits after every `steps` kernels.
pub(crate) fn rank(length: Ns, handshakes: u32, steps: usize) -> Program {
    let mut count = 0;
    Box::new(move |_, _| {
        count += 1;
        if count % (steps + 1) == 0 {
            return Step::Wait(Some(0));
        }
        Step::Launch(Launch {
            stream: 0,
            length,
            width: 100,
            handshakes,
        })
    })
}

/// A decoder: 300 kernels of 5 to 60 us a token, 5 us of CPU time between launches, then a wait and 200 us of CPU
/// time.
pub(crate) fn decoder() -> Program {
    let lengths: Vec<Ns> = (0..300).map(|n| (5 + n * 7919 % 56) * US).collect();
    let mut at = 0;
    Box::new(move |random, _| {
        let step = match at {
            at if at < 600 && at % 2 == 0 => kernel(0, random.around(lengths[at / 2], 5)),
            at if at < 600 => Step::Sleep(3 * US + random.below(4 * US)),
            600 => Step::Wait(Some(0)),
            601 => Step::Done,
            _ => Step::Sleep(200 * US),
        };
        at = (at + 1) % 603;
        step
    })
}

/// Training: each step has 120 kernels of 50 us to 2 ms, a copy in a second stream after every 10, and a pause of the
/// CPU (`data`). It waits after every 4 steps.
pub(crate) fn training(data: Ns) -> Program {
    let (mut at, mut steps) = (0, 0);
    Box::new(move |random, _| {
        let step = match at {
            at if at < 132 && at % 11 == 10 => Step::Copy { stream: 1, length: MS },
            at if at < 132 => {
                let length = 50 * US * (1 + (at * 37) % 40);
                kernel(0, random.around(length, 5))
            }
            132 => Step::Sleep(data.max(1)),
            133 => {
                steps += 1;
                Step::Done
            }
            _ if steps % 4 == 0 => Step::Wait(None),
            _ => Step::Sleep(1),
        };
        at = (at + 1) % 135;
        step
    })
}

/// Short kernels until 2.5 s, with or without a wait after each, then `count` kernels of `length`.
pub(crate) fn turncoat(short: Ns, count: u64, length: Ns, waits: bool) -> Program {
    let (mut steps, mut turned) = (0, 0);
    Box::new(move |_, now| {
        if now < 2500 * MS {
            steps += 1;
            return if waits && steps % 2 == 0 {
                Step::Wait(Some(0))
            } else {
                kernel(0, short)
            };
        }
        turned += 1;
        if turned > count { Step::Stop } else { kernel(0, length) }
    })
}

/// Short and long kernels in random order: on average one in `rare` is long.
pub(crate) fn mixture(short: Ns, long: Ns, rare: u64) -> Program {
    Box::new(move |random, _| {
        let length = if random.below(rare) == 0 { long } else { short };
        kernel(0, length)
    })
}

/// A thread that repeats one kernel in its own stream and waits for it each time.
pub(crate) fn lane(stream: usize, length: Ns) -> Program {
    let mut count = 0;
    Box::new(move |_, _| {
        count += 1;
        if count % 2 == 1 {
            kernel(stream, length)
        } else {
            Step::Wait(Some(stream))
        }
    })
}

/// The life of a process with one kernel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ShortLife {
    pub kernel: Ns,
    /// Time between the launch and the process's end. None: it waits for the kernel.
    pub lives: Option<Ns>,
    /// The process exits normally instead of being killed.
    pub normal: bool,
    /// Time until the next process starts.
    pub pause: Ns,
}

/// Processes with one kernel each, one after the other.
pub(crate) fn short_processes(life: ShortLife) -> Program {
    let ShortLife {
        kernel: length,
        lives,
        normal,
        pause,
    } = life;
    let mut count = 0;
    Box::new(move |_, _| {
        count += 1;
        match count % 5 {
            1 => Step::Begin,
            2 => kernel(0, length),
            3 => lives.map_or(Step::Wait(None), Step::Sleep),
            4 => Step::Done,
            _ => Step::Exit { normal, pause },
        }
    })
}
