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
    /// Waits for a stream, or for all.
    Wait(Option<usize>),
    Sleep(Ns),
    /// A request begins.
    Begin,
    /// A request has ended, and counts.
    Done,
    /// The process ends, by itself (`normal`) or killed, and after a pause a new one does the same.
    Exit {
        normal: bool,
        pause: Ns,
    },
    /// The thread does nothing any more.
    Stop,
}

/// A launch of a kernel. Kernels of one `shape` look alike to a law.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Launch {
    pub stream: usize,
    pub shape: u64,
    pub length: Ns,
    /// The percentage of the multiprocessors that it takes.
    pub width: u32,
    /// How often it waits for the partner's kernel.
    pub handshakes: u32,
}

/// Returns a thread's next step at a time.
pub(crate) type Program = Box<dyn FnMut(&mut Random, Ns) -> Step>;

fn kernel(stream: usize, shape: u64, length: Ns) -> Step {
    Step::Launch(Launch {
        stream,
        shape,
        length,
        width: 100,
        handshakes: 0,
    })
}

/// Launches kernels of these lengths in a circle over some streams, and never waits.
pub(crate) fn circle(lengths: &[Ns], jitter: u64, streams: usize, width: u32) -> Program {
    let lengths = lengths.to_vec();
    let mut count = 0;
    Box::new(move |random, _| {
        let length = lengths[count % lengths.len()];
        count += 1;
        Step::Launch(Launch {
            stream: count % streams,
            shape: length,
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

/// As `busy` in several streams, and waits for all after so many launches.
pub(crate) fn batches(length: Ns, streams: usize, width: u32, batch: usize) -> Program {
    let mut count = 0;
    Box::new(move |random, _| {
        count += 1;
        if count % (batch + 1) == 0 {
            return Step::Wait(None);
        }
        Step::Launch(Launch {
            stream: count % streams,
            shape: 1,
            length: random.around(length, 5),
            width,
            handshakes: 0,
        })
    })
}

/// Launches some short kernels, of which it waits for each fifth, and then some long ones, again and again.
pub(crate) fn waves(short: (Ns, usize), long: (Ns, usize)) -> Program {
    let mut count = 0;
    Box::new(move |_, _| {
        let is_short = count % (short.1 + long.1) < short.1;
        count += 1;
        if is_short && count % 5 == 0 {
            return Step::Wait(Some(0));
        }
        kernel(0, 1, if is_short { short.0 } else { long.0 })
    })
}

/// Launches one, waits for it, pauses.
pub(crate) fn waits(length: Ns, jitter: u64, pause: Ns) -> Program {
    let mut count = 0;
    Box::new(move |random, _| {
        count += 1;
        match count % 3 {
            1 => kernel(0, length, random.around(length, jitter)),
            2 => Step::Wait(Some(0)),
            _ => Step::Sleep(pause),
        }
    })
}

/// A request, again and again: launches `count`, waits for them, pauses for `pause` on average.
pub(crate) fn bursts(count: usize, length: Ns, pause: Ns) -> Program {
    let mut at = 0;
    Box::new(move |random, _| {
        let step = match at {
            0 => Step::Begin,
            at if at <= count => kernel(0, length, random.around(length, 5)),
            at if at == count + 1 => Step::Wait(Some(0)),
            at if at == count + 2 => Step::Done,
            _ => Step::Sleep(random.exponential(pause)),
        };
        at = (at + 1) % (count + 4);
        step
    })
}

/// A rank of a job over two GPUs. It waits after each `steps` kernels.
pub(crate) fn rank(length: Ns, handshakes: u32, steps: usize) -> Program {
    let mut count = 0;
    Box::new(move |_, _| {
        count += 1;
        if count % (steps + 1) == 0 {
            return Step::Wait(Some(0));
        }
        Step::Launch(Launch {
            stream: 0,
            shape: length,
            length,
            width: 100,
            handshakes,
        })
    })
}

/// A decoder: 300 kernels of 5 to 60 us a token, 5 us of CPU between launches, then a wait and 200 us of CPU. `fresh`: each
/// token has other grids.
pub(crate) fn decoder(fresh: bool) -> Program {
    let lengths: Vec<Ns> = (0..300).map(|n| (5 + n * 7919 % 56) * US).collect();
    let (mut at, mut token) = (0, 0);
    Box::new(move |random, _| {
        let step = match at {
            at if at < 600 && at % 2 == 0 => {
                let shape = (at / 2 % 12) as u64 + if fresh { token * 300 + at as u64 } else { 0 };
                kernel(0, shape + 1, random.around(lengths[at / 2], 5))
            }
            at if at < 600 => Step::Sleep(3 * US + random.below(4 * US)),
            600 => Step::Wait(Some(0)),
            601 => {
                token += 1;
                Step::Done
            }
            _ => Step::Sleep(200 * US),
        };
        at = (at + 1) % 603;
        step
    })
}

/// Training: in each step 120 kernels of 50 us to 2 ms, a copy in a second stream after each 10, and a pause of the CPU
/// (`data`); a wait after each 4 steps.
pub(crate) fn training(data: Ns) -> Program {
    let (mut at, mut steps) = (0, 0);
    Box::new(move |random, _| {
        let step = match at {
            at if at < 132 && at % 11 == 10 => Step::Copy { stream: 1, length: MS },
            at if at < 132 => {
                let length = 50 * US * (1 + (at * 37) % 40);
                kernel(0, at + 1, random.around(length, 5))
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

/// Kernels of `count` shapes in a circle, and a wait after each 64.
pub(crate) fn grids(count: u64, length: Ns) -> Program {
    let mut launched = 0;
    Box::new(move |random, _| {
        launched += 1;
        if launched % 65 == 0 {
            Step::Wait(Some(0))
        } else {
            kernel(0, launched % count + 1, random.around(length, 5))
        }
    })
}

/// Short kernels until 2.5 s, each waited for or not, then `count` of `length` that look the same.
pub(crate) fn turncoat(short: Ns, count: u64, length: Ns, waits: bool) -> Program {
    let (mut steps, mut turned) = (0, 0);
    Box::new(move |_, now| {
        if now < 2500 * MS {
            steps += 1;
            return if waits && steps % 2 == 0 {
                Step::Wait(Some(0))
            } else {
                kernel(0, 1, short)
            };
        }
        turned += 1;
        if turned > count {
            Step::Stop
        } else {
            kernel(0, 1, length)
        }
    })
}

/// Short and long kernels of one shape, chosen by chance: one in `rare` is long.
pub(crate) fn mixture(short: Ns, long: Ns, rare: u64) -> Program {
    Box::new(move |random, _| {
        let length = if random.below(rare) == 0 { long } else { short };
        kernel(0, 1, length)
    })
}

/// A thread with one kernel in a stream of its own, waited for, again and again.
pub(crate) fn lane(stream: usize, length: Ns) -> Program {
    let mut count = 0;
    Box::new(move |_, _| {
        count += 1;
        if count % 2 == 1 {
            kernel(stream, 1, length)
        } else {
            Step::Wait(Some(stream))
        }
    })
}

/// How a process with one kernel lives and ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ShortLife {
    pub kernel: Ns,
    /// Until it ends after the launch. None: it waits for the kernel.
    pub lives: Option<Ns>,
    /// It ends by itself, and is not killed.
    pub normal: bool,
    /// Until the next one starts.
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
            2 => kernel(0, 1, length),
            3 => lives.map_or(Step::Wait(None), Step::Sleep),
            4 => Step::Done,
            _ => Step::Exit { normal, pause },
        }
    })
}
