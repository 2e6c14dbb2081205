//! Threads that allocate and free without a pause, beside the client's other steps. `pause` stops all of them between two
//! calls, `stall` stops one of them anywhere.

use crate::client::Client;
use crate::library::{call, launch, size};
use crate::storm::{Live, enter, numbers, parent};
use std::ffi::{CString, c_char, c_int, c_void};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

static THREADS: Mutex<Vec<libc::pthread_t>> = Mutex::new(Vec::new());
/// `PAUSE` is set while threads must pause. `PAUSED` is the number of paused threads.
static PAUSE: AtomicBool = AtomicBool::new(false);
static PAUSED: AtomicU64 = AtomicU64::new(0);
/// `STALL` is set while a thread must stall in its signal handler. `STALLED` and `WENT_ON` count the stalls that began
/// and ended.
static STALL: AtomicBool = AtomicBool::new(false);
static STALLED: AtomicU64 = AtomicU64::new(0);
static WENT_ON: AtomicU64 = AtomicU64::new(0);

/// The longest stall, in sleeps of 0.1 ms. Each sleep takes slightly longer.
const LONGEST_STALL: u32 = 2500;
/// The most allocations that a thread has at once.
const MOST: usize = 8;

pub(crate) fn step(client: &mut Client, name: &str, value: &str) -> Option<String> {
    let number = size(value);
    let cuda = client.cuda();
    Some(match name {
        // Starts this many threads. Every second one allocates memory of every kind.
        "crowd" => {
            let library = cuda as usize;
            for seed in 0..number {
                std::thread::spawn(move || member(library, seed));
            }
            until(|| THREADS.lock().expect("no panic").len() as u64 == number);
            "0".into()
        }
        "pause" => {
            PAUSE.store(true, Ordering::SeqCst);
            until(|| PAUSED.load(Ordering::SeqCst) == THREADS.lock().expect("no panic").len() as u64);
            "0".into()
        }
        "resume" => {
            PAUSE.store(false, Ordering::SeqCst);
            until(|| PAUSED.load(Ordering::SeqCst) == 0);
            "0".into()
        }
        "stall" => stall(number as usize).to_string(),
        "unstall" => {
            STALL.store(false, Ordering::SeqCst);
            until(|| STALLED.load(Ordering::SeqCst) == WENT_ON.load(Ordering::SeqCst));
            "0".into()
        }
        "load" => {
            let mut module = 0;
            let text = c".version 8.0\n.target sm_90\n".as_ptr();
            let result = call!(cuda, "cuModuleLoadData" (*mut usize, *const c_char) (&mut module, text));
            client.modules.push(module);
            result.to_string()
        }
        // Launches a function of the module that was loaded last.
        "first" => {
            let (module, mut function) = (client.modules[client.modules.len() - 1], 0);
            let name = CString::new(value).expect("a name");
            let found = call!(cuda, "cuModuleGetFunction" (*mut usize, usize, *const c_char)
                (&mut function, module, name.as_ptr()));
            (found + launch(cuda, function, 1, 1)).to_string()
        }
        "sync" => call!(cuda, "cuCtxSynchronize"()()).to_string(),
        "unload" => {
            let index = match value {
                "last" => client.modules.len() - 1,
                _ => number as usize,
            };
            let module = client.modules.remove(index);
            call!(cuda, "cuModuleUnload"(usize)(module)).to_string()
        }
        // CU_LIMIT_MALLOC_HEAP_SIZE.
        "heap" => call!(cuda, "cuCtxSetLimit"(c_int, usize)(2, number as usize)).to_string(),
        _ => return None,
    })
}

fn until(done: impl Fn() -> bool) {
    while !done() {
        std::thread::sleep(Duration::from_micros(100));
    }
}

fn member(cuda: usize, seed: u64) {
    let cuda = cuda as *mut c_void;
    let mut next = numbers(seed + 1);
    enter(cuda);
    // SAFETY: takes nothing.
    THREADS.lock().expect("no panic").push(unsafe { libc::pthread_self() });
    let mut live = Vec::new();
    loop {
        if PAUSE.load(Ordering::SeqCst) {
            PAUSED.fetch_add(1, Ordering::SeqCst);
            until(|| !PAUSE.load(Ordering::SeqCst) || is_left());
            PAUSED.fetch_sub(1, Ordering::SeqCst);
        }
        if is_left() {
            // SAFETY: nothing of a client whose test is gone needs an end in order.
            unsafe { libc::_exit(3) };
        }
        for _ in 0..64 {
            if live.len() < MOST && (next().is_multiple_of(2) || live.is_empty()) {
                let (kind, bytes) = match seed % 2 {
                    0 => (0, 1 + next() % (8 << 20)),
                    _ => (next(), (1 + next() % 8) << 20),
                };
                live.extend(Live::new(cuda, kind, bytes));
            } else if !live.is_empty() {
                live.swap_remove(next() as usize % live.len()).free(cuda);
            }
        }
    }
}

fn is_left() -> bool {
    std::os::unix::process::parent_id() != parent()
}

/// Stops the thread by a signal wherever it is, until `unstall` or [`LONGEST_STALL`]: it may hold a lock that others need.
fn stall(index: usize) -> c_int {
    extern "C" fn here(_signal: c_int) {
        STALLED.fetch_add(1, Ordering::SeqCst);
        for _ in 0..LONGEST_STALL {
            if !STALL.load(Ordering::SeqCst) {
                break;
            }
            let short = libc::timespec {
                tv_sec: 0,
                tv_nsec: 100_000,
            };
            // SAFETY: a timespec in; safe in a handler.
            unsafe { libc::nanosleep(&short, std::ptr::null_mut()) };
        }
        WENT_ON.fetch_add(1, Ordering::SeqCst);
    }
    let handler = here as extern "C" fn(c_int) as libc::sighandler_t;
    STALL.store(true, Ordering::SeqCst);
    let before = STALLED.load(Ordering::SeqCst);
    let threads = THREADS.lock().expect("no panic");
    // SAFETY: the handler touches atomics alone; the thread lives as long as this process.
    let result = unsafe {
        libc::signal(libc::SIGUSR2, handler);
        libc::pthread_kill(threads[index % threads.len()], libc::SIGUSR2)
    };
    drop(threads);
    until(|| STALLED.load(Ordering::SeqCst) > before);
    result
}
