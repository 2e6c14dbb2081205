//! Memory that processes have together: each makes, exports, imports and gives back at random, over a board
//! on which they leave each other handles.

use crate::Client;
use crate::storm::{self, Rounds};
use std::ffi::c_void;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Mutex;

/// CUipcMemHandle, which is passed by value.
#[repr(C)]
#[derive(Clone, Copy)]
struct Handle([u64; 8]);

/// Places on the board.
const PLACES: u64 = 24;
/// What a thread has at most: few, so that all of it is often shared.
const MOST: usize = 6;
/// CUDA_ERROR_INVALID_HANDLE: two processes wrote to one place of the board at once.
const INVALID_HANDLE: i32 = 400;

/// The name of what was exported last by a step.
static NAME: Mutex<Handle> = Mutex::new(Handle([0; 8]));
/// What the threads had at their end: made, and imported.
static MADE: Mutex<Vec<u64>> = Mutex::new(Vec::new());
static OPENED: Mutex<Vec<u64>> = Mutex::new(Vec::new());

pub(crate) fn step(client: &mut Client, name: &str, value: &str) -> Option<String> {
    let cuda = client.cuda();
    let all = |kept: &Mutex<Vec<u64>>| std::mem::take(&mut *kept.lock().expect("no panic"));
    Some(match name {
        // For ever, or until it is asked to stop; `value` is the board's path.
        "exchange" => {
            let path = value.to_owned();
            storm::all_threads(client, move |cuda, seed| exchange(cuda, seed, &path)).to_string()
        }
        // Exports an allocation of the client's, and imports what was exported last, here too.
        "export" => {
            let pointer = client.pointers[crate::size(value) as usize];
            let mut name = NAME.lock().expect("no panic");
            call!(cuda, "cuIpcGetMemHandle" (*mut Handle, u64) (&mut *name, pointer)).to_string()
        }
        "import" => {
            let (name, mut pointer) = (*NAME.lock().expect("no panic"), 0_u64);
            let result = call!(cuda, "cuIpcOpenMemHandle_v2" (*mut u64, Handle, u32) (&mut pointer, name, 1));
            OPENED.lock().expect("no panic").push(pointer);
            result.to_string()
        }
        // Closes all that was imported, frees all that was made.
        "close" => all(&OPENED)
            .into_iter()
            .map(|pointer| close(cuda, pointer))
            .sum::<i32>()
            .to_string(),
        "unmake" => all(&MADE)
            .into_iter()
            .map(|pointer| free(cuda, pointer))
            .sum::<i32>()
            .to_string(),
        _ => return None,
    })
}

fn close(cuda: *mut c_void, pointer: u64) -> i32 {
    call!(cuda, "cuIpcCloseMemHandle"(u64)(pointer))
}

fn free(cuda: *mut c_void, pointer: u64) -> i32 {
    call!(cuda, "cuMemFree_v2"(u64)(pointer))
}

/// How often it imported something.
fn exchange(cuda: usize, seed: u64, board: &str) -> u64 {
    let cuda = cuda as *mut c_void;
    let board = File::options().read(true).write(true).open(board).expect("a board");
    let mut next = storm::numbers(seed);
    storm::enter(cuda);
    let (mut made, mut opened, mut count) = (Vec::new(), Vec::new(), 0);
    let mut rounds = Rounds::new(0);
    while !storm::stopped() && rounds.next() {
        let at = next() % PLACES * 64;
        match next() % 4 {
            0 if made.len() < MOST => made.extend(make(cuda, (2 + next() % 24) << 20, &board, at)),
            1 if opened.len() < MOST => {
                let new = open(cuda, &board, at);
                count += u64::from(new.is_some());
                opened.extend(new);
            }
            2 if !opened.is_empty() => {
                let pointer = opened.swap_remove(next() as usize % opened.len());
                assert_eq!(close(cuda, pointer), 0, "cuIpcCloseMemHandle");
            }
            3 if !made.is_empty() => {
                let pointer = made.swap_remove(next() as usize % made.len());
                assert_eq!(free(cuda, pointer), 0, "cuMemFree");
            }
            _ => {}
        }
    }
    MADE.lock().expect("no panic").append(&mut made);
    OPENED.lock().expect("no panic").append(&mut opened);
    count
}

fn make(cuda: *mut c_void, bytes: u64, board: &File, at: u64) -> Option<u64> {
    let (mut pointer, mut handle) = (0_u64, Handle([0; 8]));
    let result = call!(cuda, "cuMemAlloc_v2" (*mut u64, usize) (&mut pointer, bytes as usize));
    if !storm::granted("cuMemAlloc", result) {
        return None;
    }
    let named = call!(cuda, "cuIpcGetMemHandle" (*mut Handle, u64) (&mut handle, pointer));
    assert_eq!(named, 0, "cuIpcGetMemHandle");
    let bytes: Vec<u8> = handle.0.iter().flat_map(|word| word.to_le_bytes()).collect();
    board.write_all_at(&bytes, at).expect("a place");
    Some(pointer)
}

fn open(cuda: *mut c_void, board: &File, at: u64) -> Option<u64> {
    let mut bytes = [0_u8; 64];
    board.read_exact_at(&mut bytes, at).expect("a place");
    let word = |index: usize| u64::from_le_bytes(std::array::from_fn(|byte| bytes[index * 8 + byte]));
    let (handle, mut pointer) = (Handle(std::array::from_fn(word)), 0_u64);
    let result = call!(cuda, "cuIpcOpenMemHandle_v2" (*mut u64, Handle, u32) (&mut pointer, handle, 1));
    (result != INVALID_HANDLE && storm::granted("cuIpcOpenMemHandle", result)).then_some(pointer)
}
