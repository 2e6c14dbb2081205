//! Memory that processes share: each allocates, exports, imports and frees at random. On a board, processes leave
//! handles for each other.

use crate::alloc;
use crate::client::{Client, Handle};
use crate::library::{call, size};
use crate::storm::{self, Rounds};
use std::ffi::c_void;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Number and size of the board's slots. A slot has a name and its creator's PID, 0 once freed.
const PLACES: u64 = 24;
const PLACE: u64 = 128;
/// The most allocations of a thread: few, so that most are shared.
const MOST: usize = 6;
/// CUDA_ERROR_INVALID_HANDLE: two processes wrote to one slot of the board at once.
const INVALID_HANDLE: i32 = 400;

/// Memory that this process made or imported.
#[derive(Clone, Copy)]
struct Had {
    pointer: u64,
    name: Handle,
    bytes: u64,
    /// Its slot on the board.
    at: u64,
}

/// The name of the last export of a step.
static NAME: Mutex<Handle> = Mutex::new(Handle([0; 8]));
/// The memory that threads still held when they ended: allocated (`MADE`) and imported (`OPENED`).
static MADE: Mutex<Vec<Had>> = Mutex::new(Vec::new());
static OPENED: Mutex<Vec<Had>> = Mutex::new(Vec::new());

pub(crate) fn step(client: &mut Client, name: &str, value: &str) -> Option<String> {
    let cuda = client.cuda();
    let all = |kept: &Mutex<Vec<Had>>| std::mem::take(&mut *kept.lock().expect("no panic"));
    Some(match name {
        // Runs until it is asked to stop; `value` is the board's path.
        "exchange" => {
            let path = value.to_owned();
            storm::all_threads(client, move |cuda, seed| exchange(cuda, seed, &path)).to_string()
        }
        // Exports an allocation of the client, and imports the last export in this process too.
        "export" => {
            let pointer = client.pointers[size(value) as usize];
            let mut name = NAME.lock().expect("no panic");
            call!(cuda, "cuIpcGetMemHandle" (*mut Handle, u64) (&mut *name, pointer)).to_string()
        }
        "import" => {
            let name = *NAME.lock().expect("no panic");
            let (result, had) = import(cuda, name, 0);
            OPENED.lock().expect("no panic").push(had);
            result.to_string()
        }
        // `name` prints the name of the last export, for another client; `named` sets the name there.
        "name" => words(NAME.lock().expect("no panic").0),
        "named" => {
            let words: Vec<u64> = value.split('.').map_while(|word| word.parse().ok()).collect();
            *NAME.lock().expect("no panic") = Handle(words.try_into().expect("eight words"));
            "0".into()
        }
        // Lets two threads import the memory of that name at once, this many times.
        "together" => together(client, size(value)).to_string(),
        // Prints the memory that this process has allocated and imported: name and bytes of each.
        "had" => [&MADE, &OPENED].map(told).concat(),
        // Closes all imports. `unmake` frees all allocations.
        "close" => all(&OPENED)
            .into_iter()
            .map(|had| close(cuda, had.pointer))
            .sum::<i32>()
            .to_string(),
        "unmake" => all(&MADE)
            .into_iter()
            .map(|had| free(cuda, had.pointer))
            .sum::<i32>()
            .to_string(),
        _ => return None,
    })
}

/// A barrier for two threads.
#[derive(Default)]
struct Gate(AtomicU64);

impl Gate {
    fn pass(&self) {
        let both = (self.0.fetch_add(1, Ordering::AcqRel) / 2 + 1) * 2;
        let mut rounds = Rounds::new(0);
        let mut looks = 0;
        while self.0.load(Ordering::Acquire) < both && rounds.next() {
            looks += 1;
            if looks > 2000 {
                std::thread::yield_now();
            }
        }
    }
}

/// Returns the number of rounds in which the memory was not charged exactly once while either thread had it.
fn together(client: &mut Client, rounds: u64) -> u64 {
    let (cuda, name, gate) = (client.cuda() as usize, *NAME.lock().expect("no panic"), Gate::default());
    let (_, idle, _) = client.info();
    std::thread::scope(|threads| {
        threads.spawn(|| {
            let cuda = cuda as *mut c_void;
            storm::enter(cuda);
            for _ in 0..rounds {
                gate.pass();
                let (_, had) = import(cuda, name, 0);
                gate.pass();
                gate.pass();
                close(cuda, had.pointer);
                gate.pass();
            }
        });
        let mut wrong = 0;
        for _ in 0..rounds {
            gate.pass();
            let (result, had) = import(cuda as *mut c_void, name, 0);
            gate.pass();
            let (_, both, _) = client.info();
            gate.pass();
            gate.pass();
            let (_, one, _) = client.info();
            let closed = close(cuda as *mut c_void, had.pointer);
            let (_, none, _) = client.info();
            let held = idle - had.bytes;
            let is_right = [result, closed] == [0; 2] && [both, one, none] == [held, held, idle];
            wrong += u64::from(!is_right);
        }
        wrong
    })
}

fn told(kept: &Mutex<Vec<Had>>) -> String {
    let kept = kept.lock().expect("no panic");
    let one = |had: &Had| format!("{}:{} ", words(had.name.0), had.bytes);
    kept.iter().map(one).collect()
}

fn words(words: [u64; 8]) -> String {
    words.map(|word| word.to_string()).join(".")
}

fn close(cuda: *mut c_void, pointer: u64) -> i32 {
    call!(cuda, "cuIpcCloseMemHandle"(u64)(pointer))
}

fn free(cuda: *mut c_void, pointer: u64) -> i32 {
    call!(cuda, "cuMemFree_v2"(u64)(pointer))
}

/// Exchanges memory until it is asked to stop. Returns the number of imports.
fn exchange(cuda: usize, seed: u64, board: &str) -> u64 {
    let cuda = cuda as *mut c_void;
    let board = File::options().read(true).write(true).open(board).expect("a board");
    let mut next = storm::numbers(seed);
    storm::enter(cuda);
    let (mut made, mut opened, mut count) = (Vec::new(), Vec::new(), 0);
    let mut rounds = Rounds::new(0);
    while !storm::stopped() && rounds.next() {
        let at = next() % PLACES * PLACE;
        match next() % 4 {
            0 if made.len() < MOST => made.extend(make(cuda, (2 + next() % 24) << 20, &board, at)),
            1 if opened.len() < MOST => {
                let new = open(cuda, &board, at);
                count += u64::from(new.is_some());
                opened.extend(new);
            }
            2 if !opened.is_empty() => {
                let had: Had = opened.swap_remove(next() as usize % opened.len());
                assert_eq!(close(cuda, had.pointer), 0, "cuIpcCloseMemHandle");
            }
            3 if !made.is_empty() => {
                let had: Had = made.swap_remove(next() as usize % made.len());
                withdraw(&board, &had);
                assert_eq!(free(cuda, had.pointer), 0, "cuMemFree");
            }
            _ => {}
        }
    }
    MADE.lock().expect("no panic").append(&mut made);
    OPENED.lock().expect("no panic").append(&mut opened);
    count
}

fn make(cuda: *mut c_void, bytes: u64, board: &File, at: u64) -> Option<Had> {
    let mut name = Handle([0; 8]);
    let pointer = storm::granted("cuMemAlloc", alloc::plain(cuda, bytes as usize))?;
    let named = call!(cuda, "cuIpcGetMemHandle" (*mut Handle, u64) (&mut name, pointer));
    assert_eq!(named, 0, "cuIpcGetMemHandle");
    let words = name.0.iter().copied().chain([std::process::id().into()]);
    let words: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    board.write_all_at(&words, at).expect("a place");
    Some(Had {
        pointer,
        name,
        bytes,
        at,
    })
}

/// Reads a name, and the PID of its creator.
fn read(board: &File, at: u64) -> (Handle, u64) {
    let mut bytes = [0_u8; 72];
    board.read_exact_at(&mut bytes, at).expect("a place");
    let word = |index: usize| u64::from_le_bytes(std::array::from_fn(|byte| bytes[index * 8 + byte]));
    (Handle(std::array::from_fn(word)), word(8))
}

/// Removes an allocation from the board before it is freed, if it is still there.
fn withdraw(board: &File, had: &Had) {
    if read(board, had.at).0.0 == had.name.0 {
        board.write_all_at(&[0; 72], had.at).expect("a place");
    }
}

/// Imports a name from the board. Names of dead processes are skipped: a driver refuses them, the software GPU does not.
fn open(cuda: *mut c_void, board: &File, at: u64) -> Option<Had> {
    let (name, maker) = read(board, at);
    if !std::path::Path::new(&format!("/proc/{maker}/fd/0")).exists() {
        return None;
    }
    let (result, had) = import(cuda, name, at);
    match result {
        INVALID_HANDLE => None,
        0 => Some(had),
        error => storm::granted("cuIpcOpenMemHandle", Err(error)),
    }
}

/// Returns the driver's result, and the import, which is valid if the result is 0.
fn import(cuda: *mut c_void, name: Handle, at: u64) -> (i32, Had) {
    let (mut pointer, mut start, mut bytes) = (0_u64, 0_u64, 0_usize);
    let result = call!(cuda, "cuIpcOpenMemHandle_v2" (*mut u64, Handle, u32) (&mut pointer, name, 1));
    if result == 0 {
        let asked =
            call!(cuda, "cuMemGetAddressRange_v2" (*mut u64, *mut usize, u64) (&mut start, &mut bytes, pointer));
        assert_eq!(asked, 0, "cuMemGetAddressRange");
    }
    let bytes = bytes as u64;
    let had = Had {
        pointer,
        name,
        bytes,
        at,
    };
    (result, had)
}
