//! Makes the same calls as `c/client.c`, with the crate libloading: ORDER LIMIT CUDA NVML REAL COMPAT.
#![allow(unsafe_code)] // Functions of a library that was loaded at run time.

use libloading::Library;
use std::ffi::{c_int, c_void};
use std::io::Read;

const GRANULE: usize = 2 << 20;

/// Calls a function of a library.
macro_rules! call {
    ($library:expr, $name:literal ($($kind:ty),*) ($($value:expr),*)) => {
        // SAFETY: the driver's function of this name has this signature.
        unsafe { $library.get::<unsafe extern "C" fn($($kind),*) -> c_int>($name).expect("a function")($($value),*) }
    };
}

fn open(path: &str) -> Library {
    // SAFETY: the driver's own constructors.
    unsafe { Library::new(path) }.unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn cuda(path: &str, limit: usize) -> String {
    let cuda = open(path);
    let (mut context, mut free, mut total) = (std::ptr::null_mut(), 0, 0);
    let mut init = call!(cuda, b"cuInit"(u32)(0));
    if init == 0 {
        init = call!(cuda, b"cuDevicePrimaryCtxRetain" (*mut *mut c_void, c_int) (&mut context, 0));
    }
    if init == 0 {
        init = call!(cuda, b"cuCtxSetCurrent" (*mut c_void) (context));
    }
    if init == 0 {
        init = call!(cuda, b"cuMemGetInfo_v2" (*mut usize, *mut usize) (&mut free, &mut total));
    }
    let mut says = format!("{init} {total}");
    for bytes in [limit + GRANULE, limit / 2, limit / 2 + GRANULE] {
        let mut pointer = 0_u64;
        let answer = if init == 0 {
            call!(cuda, b"cuMemAlloc_v2" (*mut u64, usize) (&mut pointer, bytes))
        } else {
            -1
        };
        says += &format!(" {answer}");
    }
    std::mem::forget(cuda);
    says
}

fn nvml(path: &str) -> String {
    let nvml = open(path);
    let (mut device, mut memory) = (std::ptr::null_mut(), [0_u64; 3]);
    let mut init = call!(nvml, b"nvmlInit_v2"()());
    if init == 0 {
        init = call!(nvml, b"nvmlDeviceGetHandleByIndex_v2" (u32, *mut *mut c_void) (0, &mut device));
    }
    if init == 0 {
        init = call!(nvml, b"nvmlDeviceGetMemoryInfo" (*mut c_void, *mut u64) (device, memory.as_mut_ptr()));
    }
    std::mem::forget(nvml);
    format!("{init} {} {}", memory[0], memory[2])
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [order, limit, cuda_path, nvml_path, real, compat] = arguments.as_slice() else {
        panic!("ORDER LIMIT CUDA NVML REAL COMPAT");
    };
    let first = match order.as_str() {
        "path" => Some(open(real)),
        "compat" => Some(open(compat)),
        "nvml" => {
            nvml(nvml_path);
            None
        }
        _ => None,
    };
    let limit = limit.parse().expect("bytes");
    println!("cuda {} nvml {}", cuda(cuda_path, limit), nvml(nvml_path));
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    drop(first);
}
