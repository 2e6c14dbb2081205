//! A CUDA and NVML client for the tests: opens both libraries as any program does, reads a command a line from
//! standard input, answers each with one line.

#![allow(unsafe_code)] // dlopen, and calls through what it finds.

use std::ffi::{CString, c_void};
use std::io::{BufRead, Write};

struct Library(*mut c_void);

impl Library {
    fn open(name: &str) -> Self {
        let name = CString::new(name).unwrap();
        // SAFETY: a NUL-terminated name.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) };
        assert!(!handle.is_null(), "{name:?} cannot be opened");
        Self(handle)
    }

    /// Calls a function with up to seven word arguments, as C would.
    fn call(&self, name: &str, arguments: &[u64]) -> i32 {
        let symbol = CString::new(name).unwrap();
        // SAFETY: a live handle and a NUL-terminated name.
        let address = unsafe { libc::dlsym(self.0, symbol.as_ptr()) };
        assert!(!address.is_null(), "{name} is not exported");
        let mut words = [0; 11];
        words[..arguments.len()].copy_from_slice(arguments);
        type Function = extern "C" fn(u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64) -> i32;
        // SAFETY: the x86-64 C ABI passes words alike whatever their types; surplus ones are ignored.
        let function: Function = unsafe { std::mem::transmute(address) };
        let [a, b, c, d, e, f, g, h, i, j, k] = words;
        function(a, b, c, d, e, f, g, h, i, j, k)
    }
}

fn at<T>(place: &mut T) -> u64 {
    std::ptr::from_mut(place) as u64
}

fn context(cuda: &Library, gpu: u64) -> i32 {
    let mut context = 0u64;
    let code = cuda.call("cuDevicePrimaryCtxRetain", &[at(&mut context), gpu]);
    if code == 0 {
        cuda.call("cuCtxSetCurrent", &[context])
    } else {
        code
    }
}

/// `used=BYTES free=BYTES busy=PERCENT pids=PID:BYTES,...` of a GPU, by NVML.
fn look(gpu: u64) -> String {
    let nvml = Library::open("libnvidia-ml.so.1");
    assert_eq!(nvml.call("nvmlInit_v2", &[]), 0);
    let mut device = 0u64;
    assert_eq!(nvml.call("nvmlDeviceGetHandleByIndex_v2", &[gpu, at(&mut device)]), 0);
    let mut memory = [0x0200_0028u64, 0, 0, 0, 0];
    assert_eq!(nvml.call("nvmlDeviceGetMemoryInfo_v2", &[device, at(&mut memory)]), 0);
    let mut busy = [0u32; 2];
    assert_eq!(nvml.call("nvmlDeviceGetUtilizationRates", &[device, at(&mut busy)]), 0);
    let (mut count, mut list) = (256u32, vec![[0u64; 3]; 256]);
    let name = "nvmlDeviceGetComputeRunningProcesses_v3";
    assert_eq!(nvml.call(name, &[device, at(&mut count), list.as_mut_ptr() as u64]), 0);
    let users = list
        .iter()
        .take(count as usize)
        .map(|entry| format!("{}:{}", entry[0] as u32, entry[1]));
    format!(
        "used={} free={} busy={} pids={}",
        memory[4],
        memory[3],
        busy[0],
        users.collect::<Vec<_>>().join(",")
    )
}

fn main() {
    let cuda = Library::open("libcuda.so.1");
    let mut held: Vec<u64> = Vec::new();
    for line in std::io::stdin().lock().lines() {
        let line = line.expect("standard input");
        let mut words = line.split_whitespace();
        let command = words.next().unwrap_or_default();
        let argument = words.next().unwrap_or("0");
        let number: u64 = argument.parse().unwrap_or(0);
        let answer = match command {
            "init" => cuda.call("cuInit", &[0]).to_string(),
            "context" => context(&cuda, number).to_string(),
            "alloc" => {
                let mut address = 0u64;
                let code = cuda.call("cuMemAlloc_v2", &[at(&mut address), number]);
                held.extend((code == 0).then_some(address));
                code.to_string()
            }
            "free" => cuda.call("cuMemFree_v2", &[held.pop().unwrap_or(0)]).to_string(),
            "info" => {
                let (mut free, mut total) = (0u64, 0u64);
                let code = cuda.call("cuMemGetInfo_v2", &[at(&mut free), at(&mut total)]);
                format!("{code} {free} {total}")
            }
            "look" => look(number),
            // Queues `number` milliseconds of GPU time: a kernel of as many waves as that takes.
            "launch" => {
                let (mut module, mut function) = (0u64, 0u64);
                let ptx = c".version 8.0\n.target sm_90\n.entry spin() { ret; }\n";
                assert_eq!(
                    cuda.call("cuModuleLoadData", &[at(&mut module), ptx.as_ptr() as u64]),
                    0
                );
                assert_eq!(
                    cuda.call(
                        "cuModuleGetFunction",
                        &[at(&mut function), module, c"spin".as_ptr() as u64]
                    ),
                    0
                );
                let waves = number * 200; // of 5 us each
                let grid = waves * 132 * 2;
                cuda.call("cuLaunchKernel", &[function, grid, 1, 1, 1024, 1, 1, 0, 0, 0, 0])
                    .to_string()
            }
            "call" => cuda.call(argument, &[]).to_string(),
            "sync" => cuda.call("cuCtxSynchronize", &[]).to_string(),
            // A child's answer to cuInit.
            // SAFETY: the child calls one function that takes no locks there, and _exit.
            "forked" => unsafe {
                let child = libc::fork();
                if child == 0 {
                    libc::_exit(cuda.call("cuInit", &[0]));
                }
                let mut status = 0;
                libc::waitpid(child, &mut status, 0);
                libc::WEXITSTATUS(status).to_string()
            },
            // A child that outlives this process; its PID.
            // SAFETY: the child only sleeps.
            "orphan" => unsafe {
                let child = libc::fork();
                if child == 0 {
                    for descriptor in 0..3 {
                        libc::close(descriptor);
                    }
                    libc::sleep(60);
                    libc::_exit(0);
                }
                child.to_string()
            },
            "closefrom" => {
                (3..1024).for_each(|descriptor| {
                    // SAFETY: no descriptor above 2 is used from here on.
                    unsafe { libc::close(descriptor) };
                });
                "0".into()
            }
            // Allocates and frees until killed.
            "storm" => {
                println!("0");
                std::io::stdout().flush().expect("standard output");
                let mut seed = u64::from(std::process::id()) | 1;
                loop {
                    seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let size = ((seed >> 33) % 64 + 1) << 20;
                    let mut address = 0u64;
                    if held.len() < 40 && cuda.call("cuMemAlloc_v2", &[at(&mut address), size]) == 0 {
                        held.push(address);
                    } else if let Some(address) = held.pop() {
                        assert_eq!(cuda.call("cuMemFree_v2", &[address]), 0);
                    }
                }
            }
            _ => panic!("unknown command {command}"),
        };
        println!("{answer}");
        std::io::stdout().flush().expect("standard output");
    }
}
