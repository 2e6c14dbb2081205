//! A program that knows of no limit: prints what it sees of its GPU, and how much it can allocate.
//!
//! ```text
//!  sizes        number of GPUs, UUID and sizes as CUDA and NVML see them
//!  limit        allocates all: a granule more than what is free fails, what is free succeeds, another granule fails
//!  hold BYTES   allocates BYTES, prints ready, waits for the end of its input
//! ```
//!
//! The first call that fails ends the program: its name and code go to stdout, and the exit status is 1.

use crate::alloc;
use crate::client::Client;
use crate::library::{call, size};
use std::ffi::{CStr, c_char, c_int};

const GRANULE: u64 = 2 << 20;

/// Returns false if the words are none of these commands.
pub(crate) fn command(words: &[String]) -> bool {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["sizes"] => sizes(&mut start()),
        ["limit"] => limit(&mut start()),
        ["hold", bytes] => hold(&mut start(), size(bytes)),
        _ => return false,
    }
    true
}

/// Makes a call, and ends the program if it fails.
macro_rules! checked {
    ($library:expr, $name:literal $kinds:tt $values:tt) => {
        check($name, call!($library, $name $kinds $values))
    };
}

fn check(what: &str, code: c_int) {
    if code != 0 {
        println!("{what}: {code}");
        std::process::exit(1);
    }
}

/// Returns a client with its own context on the first GPU.
fn start() -> Client {
    let mut client = Client::new();
    let cuda = client.cuda();
    checked!(cuda, "cuInit"(u32)(0));
    check("cuCtxCreate", alloc::context(cuda, 0).err().unwrap_or(0));
    client
}

/// Returns free and total.
fn info(client: &mut Client) -> (u64, u64) {
    let (code, free, total) = client.info();
    check("cuMemGetInfo", code);
    (free, total)
}

fn sizes(client: &mut Client) {
    let (cuda, nvml) = (client.cuda(), client.nvml());
    let (mut count, mut nvml_count, mut device_total) = (0, 0, 0_usize);
    checked!(nvml, "nvmlInit_v2"()());
    checked!(cuda, "cuDeviceGetCount" (*mut c_int) (&mut count));
    checked!(nvml, "nvmlDeviceGetCount_v2" (*mut u32) (&mut nvml_count));
    checked!(cuda, "cuDeviceTotalMem_v2" (*mut usize, c_int) (&mut device_total, 0));
    let (free, total) = info(client);
    println!(
        "{count} {nvml_count}\n{device_total}\n{total} {}",
        u8::from(free <= total)
    );

    // nvmlMemory_v2_t: version and size, then total.
    let (mut device, mut memory) = (0_usize, [2 << 24 | 40, 0, 0, 0, 0_u64]);
    let (mut uuid, mut id) = ([0 as c_char; 96], [0_u8; 16]);
    checked!(nvml, "nvmlDeviceGetHandleByIndex_v2" (u32, *mut usize) (0, &mut device));
    checked!(nvml, "nvmlDeviceGetMemoryInfo_v2" (usize, *mut u64) (device, memory.as_mut_ptr()));
    checked!(nvml, "nvmlDeviceGetUUID" (usize, *mut c_char, u32) (device, uuid.as_mut_ptr(), 96));
    checked!(cuda, "cuDeviceGetUuid_v2" (*mut u8, c_int) (id.as_mut_ptr(), 0));
    // SAFETY: NVML has written a C string.
    let uuid = unsafe { CStr::from_ptr(uuid.as_ptr()) }.to_string_lossy();
    let parts = [0..4, 4..6, 6..8, 8..10, 10..16].map(|range| {
        let part = &id[range];
        part.iter().map(|byte| format!("{byte:02x}")).collect::<String>()
    });
    println!("{}\n{uuid}\nGPU-{}", memory[1], parts.join("-"));
}

fn limit(client: &mut Client) {
    let (free, _) = info(client);
    let all = free / GRANULE * GRANULE;
    println!("{}\n{}", client.allocate(all + GRANULE), client.allocate(all));
    let (left, _) = info(client);
    let left = if left < GRANULE { 0 } else { left };
    println!("{left} {}", client.allocate(GRANULE));
}

fn hold(client: &mut Client, bytes: u64) {
    check("cuMemAlloc", client.allocate(bytes));
    println!("ready");
    // Returns at the end of the input and ignores what it reads.
    let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
}
