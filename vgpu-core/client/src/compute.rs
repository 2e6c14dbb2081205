//! Steps that use GPU time. Kernels are named by their length, which the software GPU keeps to.
//!
//! ```text
//!  work:US,MS,EVERY    launches kernels of US us for MS ms, and waits after EVERY of them (0: at the end alone)
//!  graph:US,MS,EVERY   the same with a graph of one such kernel, which is captured first
//!  streams:US,MS,EVERY the same in four streams in turn; waits for the first stream by asking an event
//!  capture:US,MS,EVERY as work, while another thread captures and instantiates graphs all the time
//!  sparse:US,MS,EVERY  one each EVERY us, without a wait
//!  lanes:STREAMS,US,WIDTH,MS   kernels that fill WIDTH percent of the GPU, in many streams in turn; waits for all of them now and then
//!  shapes:SHAPES,US,MS         kernels with that many different grids in turn; waits after each 64th
//!  longer:US,MS                teaches that time_by_argument is short, then launches it with US us for MS ms without a wait
//!  threads:THREADS,US,MS       one kernel in each of many threads, and looks after MS ms how many were launched
//!  idle:MS             sleeps
//! ```
//!
//! All but idle print the first code that is not 0 (else 0), the number of launches, and their duration in ms. longer
//! also prints the number of launches in its first 50 ms.

use crate::client::Client;
use crate::library::call;
use crate::storm::enter;
use std::ffi::{CString, c_char, c_int, c_void};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Kernels to launch: their length, for how long, and how many before a wait.
struct Work {
    length: u64,
    time: Duration,
    every: u64,
}

pub(crate) fn step(client: &mut Client, name: &str, value: &str) -> Option<String> {
    match name {
        "work" => Some(kernels(client, &Work::parse(value))),
        "graph" => Some(graphs(client, &Work::parse(value))),
        "sparse" => Some(sparse(client, &Work::parse(value))),
        "streams" => Some(streams(client, &Work::parse(value))),
        "capture" => Some(beside_captures(client, &Work::parse(value))),
        "lanes" => Some(lanes(client, numbers(value))),
        "shapes" => Some(shapes(client, numbers(value))),
        "longer" => Some(longer(client, numbers(value))),
        "threads" => Some(threads(client, numbers(value))),
        "idle" => {
            std::thread::sleep(Duration::from_millis(value.parse().expect("milliseconds")));
            Some("0".into())
        }
        _ => None,
    }
}

impl Work {
    fn parse(value: &str) -> Self {
        let [length, time, every] = numbers(value);
        Self {
            length,
            time: Duration::from_millis(time),
            every,
        }
    }
}

fn numbers<const N: usize>(value: &str) -> [u64; N] {
    let numbers: Vec<u64> = value
        .split(',')
        .map(|number| number.parse().expect("a number"))
        .collect();
    numbers
        .try_into()
        .unwrap_or_else(|_| panic!("{value}: {N} numbers are needed"))
}

/// Calls `launch` and `wait` as `work` says.
fn repeat(work: &Work, mut launch: impl FnMut() -> c_int, mut wait: impl FnMut() -> c_int) -> String {
    let (start, mut count, mut result) = (Instant::now(), 0_u64, 0);
    let mut note = |code: c_int| result = if result == 0 { code } else { result };
    while start.elapsed() < work.time {
        note(launch());
        count += 1;
        if work.every != 0 && count.is_multiple_of(work.every) {
            note(wait());
        }
    }
    note(wait());
    format!("{result} {count} {}", start.elapsed().as_millis())
}

/// Returns the handle of a kernel that takes this many us.
fn kernel(cuda: *mut c_void, length: u64) -> usize {
    function(cuda, &format!("time_{length}us"))
}

/// Returns the handle of the kernel of this name.
fn function(cuda: *mut c_void, name: &str) -> usize {
    let (mut module, mut function) = (0_usize, 0_usize);
    let name = CString::new(name).expect("a name");
    let text = format!(
        ".version 8.0\n.target sm_90\n.entry {}() {{ ret; }}\n",
        name.to_string_lossy()
    );
    let text = CString::new(text).expect("a text");
    let loaded = call!(cuda, "cuModuleLoadData" (*mut usize, *const c_char) (&mut module, text.as_ptr()));
    assert_eq!(loaded, 0, "cuModuleLoadData");
    let found = call!(cuda, "cuModuleGetFunction" (*mut usize, usize, *const c_char)
        (&mut function, module, name.as_ptr()));
    assert_eq!(found, 0, "cuModuleGetFunction");
    function
}

type Launch = unsafe extern "C" fn(usize, u32, u32, u32, u32, u32, u32, u32, usize, usize, usize) -> c_int;

/// Returns the launch function, looked up once: a look-up for each launch would be most of the launch's cost.
fn launcher(cuda: *mut c_void) -> Launch {
    // SAFETY: a name of the driver's, which has this signature.
    unsafe {
        let found = libc::dlsym(cuda, c"cuLaunchKernel".as_ptr());
        assert!(!found.is_null(), "cuLaunchKernel is not exported");
        std::mem::transmute::<*mut c_void, Launch>(found)
    }
}

fn kernels(client: &mut Client, work: &Work) -> String {
    let cuda = client.cuda();
    let (function, launch) = (kernel(cuda, work.length), launcher(cuda));
    repeat(
        work,
        // SAFETY: a kernel without parameters, on the default stream.
        || unsafe { launch(function, 1, 1, 1, 32, 1, 1, 0, 0, 0, 0) },
        || call!(cuda, "cuCtxSynchronize"()()),
    )
}

fn sparse(client: &mut Client, work: &Work) -> String {
    let cuda = client.cuda();
    let (function, launch) = (kernel(cuda, work.length), launcher(cuda));
    repeat(
        &Work { every: 0, ..*work },
        || {
            std::thread::sleep(Duration::from_micros(work.every));
            // SAFETY: a kernel without parameters, on the default stream.
            unsafe { launch(function, 1, 1, 1, 32, 1, 1, 0, 0, 0, 0) }
        },
        || call!(cuda, "cuCtxSynchronize"()()),
    )
}

fn graphs(client: &mut Client, work: &Work) -> String {
    const RELAXED: c_int = 2;
    let cuda = client.cuda();
    let (function, launch) = (kernel(cuda, work.length), launcher(cuda));
    let (mut stream, mut graph, mut exec) = (0_usize, 0_usize, 0_usize);
    let codes = [
        call!(cuda, "cuStreamCreate" (*mut usize, u32) (&mut stream, 1)),
        call!(cuda, "cuStreamBeginCapture_v2"(usize, c_int)(stream, RELAXED)),
        // SAFETY: a kernel without parameters, on a stream of ours.
        unsafe { launch(function, 1, 1, 1, 32, 1, 1, 0, stream, 0, 0) },
        call!(cuda, "cuStreamEndCapture" (usize, *mut usize) (stream, &mut graph)),
        call!(cuda, "cuGraphInstantiateWithFlags" (*mut usize, usize, u64) (&mut exec, graph, 0)),
    ];
    assert_eq!(codes, [0; 5], "capture");
    repeat(
        work,
        || call!(cuda, "cuGraphLaunch"(usize, usize)(exec, stream)),
        || call!(cuda, "cuStreamSynchronize"(usize)(stream)),
    )
}

/// Launches in four streams. The third is the thread's own default stream, the fourth the legacy default stream.
fn streams(client: &mut Client, work: &Work) -> String {
    const NOT_READY: c_int = 600;
    let cuda = client.cuda();
    let (function, launch) = (kernel(cuda, work.length), launcher(cuda));
    let (mut all, mut event, mut next) = ([0_usize, 0, 2, 0], 0_usize, 0);
    for stream in &mut all[..2] {
        assert_eq!(call!(cuda, "cuStreamCreate" (*mut usize, u32) (stream, 1)), 0);
    }
    assert_eq!(call!(cuda, "cuEventCreate" (*mut usize, u32) (&mut event, 2)), 0);
    let said = repeat(
        work,
        || {
            next = (next + 1) % all.len();
            // SAFETY: a kernel without parameters, on a stream of ours.
            unsafe { launch(function, 1, 1, 1, 32, 1, 1, 0, all[next], 0, 0) }
        },
        || {
            let recorded = call!(cuda, "cuEventRecord"(usize, usize)(event, all[0]));
            loop {
                match call!(cuda, "cuEventQuery"(usize)(event)) {
                    NOT_READY => std::thread::yield_now(),
                    code => return if recorded == 0 { code } else { recorded },
                }
            }
        },
    );
    assert_eq!(call!(cuda, "cuCtxSynchronize"()()), 0);
    said
}

fn beside_captures(client: &mut Client, work: &Work) -> String {
    let cuda = client.cuda() as usize;
    let mut context = 0_usize;
    assert_eq!(
        call!(client.cuda(), "cuCtxGetCurrent" (*mut usize) (&mut context)),
        0,
        "cuCtxGetCurrent"
    );
    let is_over = std::sync::atomic::AtomicBool::new(false);
    let mut captures = 0_u64;
    let said = std::thread::scope(|threads| {
        let capturing = threads.spawn(|| {
            let cuda = cuda as *mut c_void;
            let mut count = 0_u64;
            assert_eq!(call!(cuda, "cuCtxSetCurrent"(usize)(context)), 0);
            let (function, launch) = (kernel(cuda, work.length), launcher(cuda));
            while !is_over.load(Relaxed) {
                count += capture(cuda, function, launch);
            }
            count
        });
        let said = kernels(client, work);
        is_over.store(true, Relaxed);
        captures = capturing.join().expect("no capture failed");
        said
    });
    assert!(captures > 0, "nothing was captured");
    said
}

/// Captures a hundred launches, which run nowhere, and returns 1.
fn capture(cuda: *mut c_void, function: usize, launch: Launch) -> u64 {
    const GLOBAL: c_int = 0;
    let (mut stream, mut graph, mut exec) = (0_usize, 0_usize, 0_usize);
    let created = call!(cuda, "cuStreamCreate" (*mut usize, u32) (&mut stream, 1));
    let begun = call!(cuda, "cuStreamBeginCapture_v2"(usize, c_int)(stream, GLOBAL));
    // SAFETY: a kernel without parameters, on a stream of ours.
    let launched = (0..100).map(|_| unsafe { launch(function, 1, 1, 1, 32, 1, 1, 0, stream, 0, 0) });
    let launched = launched.max().unwrap_or(0);
    let ended = call!(cuda, "cuStreamEndCapture" (usize, *mut usize) (stream, &mut graph));
    let made = call!(cuda, "cuGraphInstantiateWithFlags" (*mut usize, usize, u64) (&mut exec, graph, 0));
    let destroyed = [
        call!(cuda, "cuGraphExecDestroy"(usize)(exec)),
        call!(cuda, "cuGraphDestroy"(usize)(graph)),
        call!(cuda, "cuStreamDestroy_v2"(usize)(stream)),
    ];
    assert_eq!([created, begun, launched, ended, made], [0; 5], "capture");
    assert_eq!(destroyed, [0; 3], "capture");
    1
}

fn lanes(client: &mut Client, [count, length, width, time]: [u64; 4]) -> String {
    let cuda = client.cuda();
    let function = function(cuda, &format!("time_{length}us_width_{width}"));
    let (launch, mut streams, mut next) = (launcher(cuda), vec![0_usize; count as usize], 0);
    for stream in &mut streams {
        assert_eq!(call!(cuda, "cuStreamCreate" (*mut usize, u32) (stream, 1)), 0);
    }
    let work = Work {
        length,
        time: Duration::from_millis(time),
        every: 4 * count,
    };
    repeat(
        &work,
        || {
            next = (next + 1) % streams.len();
            // SAFETY: a kernel without parameters, on a stream of ours.
            unsafe { launch(function, 1, 1, 1, 32, 1, 1, 0, streams[next], 0, 0) }
        },
        || call!(cuda, "cuCtxSynchronize"()()),
    )
}

fn shapes(client: &mut Client, [shapes, length, time]: [u64; 3]) -> String {
    let cuda = client.cuda();
    let (function, launch, mut next) = (kernel(cuda, length), launcher(cuda), 0);
    let work = Work {
        length,
        time: Duration::from_millis(time),
        every: 64,
    };
    repeat(
        &work,
        || {
            next = (next + 1) % shapes as u32;
            // SAFETY: a kernel without parameters, on the default stream.
            unsafe { launch(function, 1 + next, 1, 1, 32, 1, 1, 0, 0, 0, 0) }
        },
        || call!(cuda, "cuCtxSynchronize"()()),
    )
}

fn longer(client: &mut Client, [length, time]: [u64; 2]) -> String {
    const TAUGHT: u64 = 300;
    const SHORT: u64 = 5;
    let cuda = client.cuda();
    let (function, launch) = (function(cuda, "time_by_argument"), launcher(cuda));
    let launch = |us: u64| {
        let ns = us * 1000;
        let parameters = [&raw const ns];
        // SAFETY: a kernel with one parameter, on the default stream.
        unsafe { launch(function, 1, 1, 1, 32, 1, 1, 0, 0, parameters.as_ptr() as usize, 0) }
    };
    for _ in 0..TAUGHT {
        assert_eq!(launch(SHORT), 0);
        assert_eq!(call!(cuda, "cuCtxSynchronize"()()), 0);
    }
    let work = Work {
        length,
        time: Duration::from_millis(time),
        every: 0,
    };
    let (start, mut at_once) = (Instant::now(), 0);
    // Does not wait for work that is still queued at the end, so the time does not include it.
    let said = repeat(
        &work,
        || {
            let result = launch(length);
            at_once += u64::from(start.elapsed() < Duration::from_millis(50));
            result
        },
        || 0,
    );
    format!("{said} {at_once}")
}

/// Leaves its threads running: most of them wait.
fn threads(client: &mut Client, [threads, length, time]: [u64; 3]) -> String {
    static LAUNCHED: AtomicU64 = AtomicU64::new(0);
    let cuda = client.cuda() as usize;
    for _ in 0..threads {
        std::thread::spawn(move || {
            let (cuda, mut stream) = (cuda as *mut c_void, 0_usize);
            enter(cuda);
            assert_eq!(call!(cuda, "cuStreamCreate" (*mut usize, u32) (&mut stream, 1)), 0);
            // SAFETY: a kernel without parameters, on a stream of ours.
            let launched = unsafe { launcher(cuda)(kernel(cuda, length), 1, 1, 1, 32, 1, 1, 0, stream, 0, 0) };
            LAUNCHED.fetch_add(u64::from(launched == 0), Relaxed);
        });
    }
    let begun = Instant::now();
    std::thread::sleep(Duration::from_millis(time));
    let launched = LAUNCHED.load(Relaxed);
    format!("0 {launched} {}", begun.elapsed().as_millis())
}
