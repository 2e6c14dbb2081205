//! Many threads at once, which run until they are killed, asked to stop, or done.

use crate::alloc::{self, Made};
use crate::client::Client;
use crate::library::{call, size};
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Mutex, OnceLock};

const THREADS: u64 = 4;

/// Set by SIGUSR1: threads of `mixed` end and keep what they hold.
static STOP: AtomicBool = AtomicBool::new(false);
/// The memory that threads of `mixed` still held at their end.
static KEPT: Mutex<Vec<Live>> = Mutex::new(Vec::new());

/// One thing that holds device memory.
pub(crate) enum Live {
    Pointer(u64),
    Ordered(u64),
    Handle(u64),
    Mapping(u64, usize),
    Array(usize),
}

pub(crate) fn step(client: &mut Client, name: &str, value: &str) -> Option<String> {
    let number = size(value);
    Some(match name {
        // Allocates and frees at random without end, or for `number` rounds in each thread.
        "storm" => all_threads(client, move |cuda, seed| storm(cuda, seed, number)).to_string(),
        // `mixed`: the same with every kind of memory, which is kept at the end.
        "mixed" => all_threads(client, move |cuda, seed| mixed(cuda, seed, number, true)).to_string(),
        "plain" => all_threads(client, move |cuda, seed| mixed(cuda, seed, number, false)).to_string(),
        "freekept" => free_kept(client).to_string(),
        // `storm` in `number` background threads, without end, while other steps run.
        "background" => {
            let cuda = client.cuda() as usize;
            for seed in 0..if number == 0 { THREADS } else { number } {
                std::thread::spawn(move || storm(cuda, seed + 1, 0));
            }
            "0".into()
        }
        "captures" => allocated_beside_captures(client, number),
        "churn" => churn(client, number).to_string(),
        // Retains and releases the primary context and one handle this many times in each thread. All are released at
        // the end.
        "counted" => counted(client, number).to_string(),
        "cancel" => cancelled(client, number).to_string(),
        "listen" => {
            let handler = stop as extern "C" fn(c_int) as libc::sighandler_t;
            // SAFETY: the handler only stores to an atomic.
            unsafe { libc::signal(libc::SIGUSR1, handler) };
            "0".into()
        }
        _ => return None,
    })
}

extern "C" fn stop(_signal: c_int) {
    STOP.store(true, Ordering::Relaxed);
}

pub(crate) fn stopped() -> bool {
    STOP.load(Ordering::Relaxed)
}

/// Returns the sum of the results of `work` in each thread.
pub(crate) fn all_threads(client: &mut Client, work: impl Fn(usize, u64) -> u64 + Clone + Send + 'static) -> u64 {
    let cuda = client.cuda() as usize;
    let threads: Vec<_> = (0..THREADS)
        .map(|seed| {
            let work = work.clone();
            std::thread::spawn(move || work(cuda, seed + 1))
        })
        .collect();
    threads.into_iter().map(|thread| thread.join().expect("a thread")).sum()
}

/// A number of rounds; 0: without end. Ends at the latest when the test that started this program ends.
pub(crate) struct Rounds {
    left: Option<u64>,
    done: u64,
}

/// The PID of this program's parent. Must be called at the program's start, because the parent may end.
pub(crate) fn parent() -> u32 {
    static PARENT: OnceLock<u32> = OnceLock::new();
    *PARENT.get_or_init(std::os::unix::process::parent_id)
}

impl Rounds {
    pub(crate) fn new(rounds: u64) -> Self {
        Self {
            left: (rounds > 0).then_some(rounds),
            done: 0,
        }
    }

    pub(crate) fn next(&mut self) -> bool {
        self.done += 1;
        if self.done.is_multiple_of(1024) && std::os::unix::process::parent_id() != parent() {
            // SAFETY: nothing of a client whose test is gone needs an end in order.
            unsafe { libc::_exit(3) };
        }
        match &mut self.left {
            Some(left) => left.checked_sub(1).map(|less| *left = less).is_some(),
            None => true,
        }
    }
}

/// A small generator, seeded by the process and `seed`.
pub(crate) fn numbers(seed: u64) -> impl FnMut() -> u64 {
    numbers_from(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ u64::from(std::process::id()))
}

/// Returns the same generator from a state that is not 0.
pub(crate) fn numbers_from(mut state: u64) -> impl FnMut() -> u64 {
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    }
}

/// Makes the primary context the calling thread's.
pub(crate) fn enter(cuda: *mut c_void) {
    let mut context: *mut c_void = std::ptr::null_mut();
    call!(cuda, "cuDevicePrimaryCtxRetain" (*mut *mut c_void, c_int) (&mut context, 0));
    call!(cuda, "cuCtxSetCurrent" (*mut c_void) (context));
}

/// Returns the allocation; None: out of memory, as expected in a share. Panics at every other error.
pub(crate) fn granted<T>(what: &str, made: Made<T>) -> Option<T> {
    match made {
        Ok(made) => Some(made),
        Err(2) => None,
        Err(other) => panic!("{what} answered {other}"),
    }
}

fn storm(cuda: usize, seed: u64, rounds: u64) -> u64 {
    let cuda = cuda as *mut c_void;
    let mut next = numbers(seed);
    enter(cuda);
    let (mut live, mut failed) = (Vec::new(), 0);
    let mut rounds = Rounds::new(rounds);
    while rounds.next() {
        if next().is_multiple_of(2) || live.is_empty() {
            match granted("cuMemAlloc", alloc::plain(cuda, (1 + next() as usize % 64) << 20)) {
                Some(pointer) => live.push(pointer),
                None => failed += 1,
            }
        } else {
            let pointer = live.swap_remove(next() as usize % live.len());
            assert_eq!(call!(cuda, "cuMemFree_v2"(u64)(pointer)), 0);
        }
    }
    for pointer in live {
        assert_eq!(call!(cuda, "cuMemFree_v2"(u64)(pointer)), 0);
    }
    failed
}

/// Every thread allocates 16 GiB `rounds` times in one stream, which another thread captures again and again. Returns
/// how many allocations became graph nodes, and the pool's highest reservation.
fn allocated_beside_captures(client: &mut Client, rounds: u64) -> String {
    const RELAXED: c_int = 2;
    const RESERVED_HIGH: c_int = 6;
    let cuda = client.cuda();
    let (mut stream, mut pool, mut most) = (0_usize, 0_usize, 0_u64);
    assert_eq!(call!(cuda, "cuStreamCreate" (*mut usize, u32) (&mut stream, 1)), 0);
    assert_eq!(
        call!(cuda, "cuDeviceGetDefaultMemPool" (*mut usize, c_int) (&mut pool, 0)),
        0
    );
    let allocate = move |cuda: usize, _seed| {
        let cuda = cuda as *mut c_void;
        enter(cuda);
        let allocate = |_: &u64| granted("cuMemAllocAsync", alloc::ordered(cuda, 16 << 30, stream)).is_some();
        (0..rounds).filter(allocate).count() as u64
    };
    let shared = cuda as usize;
    let is_over = AtomicBool::new(false);
    let nodes = std::thread::scope(|threads| {
        threads.spawn(|| {
            let cuda = shared as *mut c_void;
            enter(cuda);
            while !is_over.load(Ordering::Relaxed) {
                let mut graph = 0_usize;
                let begun = call!(cuda, "cuStreamBeginCapture_v2"(usize, c_int)(stream, RELAXED));
                std::thread::yield_now();
                let ended = call!(cuda, "cuStreamEndCapture" (usize, *mut usize) (stream, &mut graph));
                let destroyed = call!(cuda, "cuGraphDestroy"(usize)(graph));
                assert_eq!([begun, ended, destroyed], [0; 3], "capture");
            }
        });
        let nodes = all_threads(client, allocate);
        is_over.store(true, Ordering::Relaxed);
        nodes
    });
    let asked = call!(cuda, "cuMemPoolGetAttribute" (usize, c_int, *mut u64) (pool, RESERVED_HIGH, &mut most));
    assert_eq!(asked, 0, "cuMemPoolGetAttribute");
    format!("{nodes} {most}")
}

fn mixed(cuda: usize, seed: u64, rounds: u64, contexts: bool) -> u64 {
    let library = cuda as *mut c_void;
    let mut next = numbers(seed);
    enter(library);
    let (mut live, mut failed) = (Vec::new(), 0);
    let mut rounds = Rounds::new(rounds);
    while !STOP.load(Ordering::Relaxed) && rounds.next() {
        if contexts && next().is_multiple_of(128) {
            with_own_context(library);
        } else if next().is_multiple_of(2) || live.is_empty() {
            match Live::new(library, next(), (1 + next() % 48) << 20) {
                Some(new) => live.push(new),
                None => failed += 1,
            }
        } else {
            live.swap_remove(next() as usize % live.len()).free(library);
        }
    }
    KEPT.lock().expect("no panic").append(&mut live);
    failed
}

fn free_kept(client: &mut Client) -> usize {
    let cuda = client.cuda();
    let kept = std::mem::take(&mut *KEPT.lock().expect("no panic"));
    let count = kept.len();
    kept.into_iter().for_each(|live| live.free(cuda));
    call!(cuda, "cuStreamSynchronize"(usize)(0));
    count
}

/// Makes a context of the thread's own with memory, and destroys both.
fn with_own_context(cuda: *mut c_void) {
    if let Some(context) = granted("cuCtxCreate", alloc::context(cuda, 0)) {
        granted("cuMemAlloc", alloc::plain(cuda, 4 << 20));
        assert_eq!(call!(cuda, "cuCtxDestroy_v2"(usize)(context)), 0);
    }
    enter(cuda);
}

impl Live {
    /// Allocates some kind of memory; None: there is no memory left.
    pub(crate) fn new(cuda: *mut c_void, kind: u64, bytes: u64) -> Option<Self> {
        let bytes = bytes as usize;
        let whole = bytes.next_multiple_of(2 << 20);
        match kind % 7 {
            0 => granted("cuMemAlloc", alloc::plain(cuda, bytes)).map(Self::Pointer),
            1 => granted("cuMemAllocManaged", alloc::managed(cuda, bytes)).map(Self::Pointer),
            2 => granted("cuMemAllocPitch", alloc::pitched(cuda, bytes)).map(|(pointer, _)| Self::Pointer(pointer)),
            3 => granted("cuMemAllocAsync", alloc::ordered(cuda, bytes, 0)).map(Self::Ordered),
            4 => granted("cuArrayCreate", alloc::array(cuda, bytes)).map(Self::Array),
            5 => granted("cuMemCreate", alloc::mapped(cuda, whole)).map(|address| Self::Mapping(address, whole)),
            _ => granted("cuMemCreate", alloc::physical(cuda, whole)).map(Self::Handle),
        }
    }

    pub(crate) fn free(self, cuda: *mut c_void) {
        let result = match self {
            Self::Pointer(pointer) => call!(cuda, "cuMemFree_v2"(u64)(pointer)),
            Self::Ordered(pointer) => call!(cuda, "cuMemFreeAsync"(u64, usize)(pointer, 0)),
            Self::Handle(handle) => call!(cuda, "cuMemRelease"(u64)(handle)),
            Self::Array(array) => call!(cuda, "cuArrayDestroy"(usize)(array)),
            Self::Mapping(address, bytes) => return alloc::unmap(cuda, address, bytes),
        };
        assert_eq!(result, 0, "a free");
    }
}

fn counted(client: &mut Client, rounds: u64) -> u64 {
    let bytes = 32_usize << 20;
    let cuda = client.cuda();
    let address = alloc::mapped(cuda, bytes).expect("memory");
    let failed = all_threads(client, move |cuda, _| {
        let (cuda, mut context, mut handle) = (cuda as *mut c_void, 0_usize, 0_u64);
        let round = |_: &u64| {
            let retained = call!(cuda, "cuDevicePrimaryCtxRetain" (*mut usize, c_int) (&mut context, 0));
            let named = call!(cuda, "cuMemRetainAllocationHandle" (*mut u64, u64) (&mut handle, address));
            let released = call!(cuda, "cuMemRelease"(u64)(handle));
            let let_go = call!(cuda, "cuDevicePrimaryCtxRelease_v2"(c_int)(0));
            [retained, named, released, let_go] != [0; 4]
        };
        (0..rounds).filter(round).count() as u64
    });
    alloc::unmap(cuda, address, bytes);
    assert_eq!(call!(cuda, "cuDevicePrimaryCtxRelease_v2"(c_int)(0)), 0);
    failed
}

/// Starts `number` threads, 32 at once, that each allocate, free and end. Returns how many were refused.
fn churn(client: &mut Client, number: u64) -> u64 {
    let cuda = client.cuda() as usize;
    let mut refused = 0;
    for _ in 0..number.div_ceil(32) {
        let threads: Vec<_> = (0..32)
            .map(|seed| std::thread::spawn(move || storm(cuda, seed + 1, 8)))
            .collect();
        refused += threads.into_iter().map(|t| t.join().expect("a thread")).sum::<u64>();
    }
    refused
}

/// Calls cuMemAlloc of `bytes`, or creates a context if `bytes` is 0, in a thread with a pending cancellation. Returns
/// the result.
fn cancelled(client: &mut Client, bytes: u64) -> i32 {
    struct Call(*mut c_void, usize);
    static ANSWER: AtomicI32 = AtomicI32::new(-1);
    extern "C" fn body(call: *mut c_void) -> *mut c_void {
        // SAFETY: the Call of `cancelled`, which joins this thread.
        let call = unsafe { &*call.cast::<Call>() };
        enter(call.0);
        // SAFETY: this very thread; nothing of it needs to be dropped.
        unsafe { libc::pthread_cancel(libc::pthread_self()) };
        let made = match call.1 {
            0 => alloc::context(call.0, 0).err(),
            bytes => alloc::plain(call.0, bytes).err(),
        };
        ANSWER.store(made.unwrap_or(0), Ordering::Release);
        std::ptr::null_mut()
    }
    let mut call = Call(client.cuda(), bytes as usize);
    let mut thread = 0;
    // SAFETY: `call` lives until the thread is joined; Rust's own threads cannot be cancelled.
    unsafe {
        libc::pthread_create(
            &mut thread,
            std::ptr::null(),
            body,
            std::ptr::from_mut(&mut call).cast(),
        );
        libc::pthread_join(thread, std::ptr::null_mut());
    }
    ANSWER.load(Ordering::Acquire)
}
