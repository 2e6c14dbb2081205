//! `vgpu-client`: a plain CUDA program, unaware of this project, that prints what it sees of its GPU in one line.
//!
//! `check` proves a limit from the inside: all free memory can be allocated, and one granule more cannot.
//! `hold [BYTES]` stays until SIGTERM, `alloc BYTES` allocates once. `work SECONDS` keeps the GPU busy, and prints its
//! part of the GPU's time by its own count of kernels.

mod driver;
mod kernel;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use driver::{Cuda, Error, OUT_OF_MEMORY, cuda_name, nvml};
use kernel::Kernel;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// Drivers round device memory up to a multiple of this.
const GRANULE: u64 = 2 << 20;

const USAGE: &str = "usage: vgpu-client check | hold [BYTES] | alloc BYTES | work SECONDS";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let said = match words[..] {
        ["check"] => check(),
        ["hold"] => hold(0),
        ["hold", bytes] => number(bytes).and_then(hold),
        ["alloc", bytes] => number(bytes).and_then(alloc),
        ["work", seconds] => number(seconds).and_then(work),
        _ => Err(USAGE.to_owned()),
    };
    match said {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("vgpu-client: {reason}");
            ExitCode::FAILURE
        }
    }
}

fn number(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("{text:?} is no number; {USAGE}"))
}

fn said(error: Error) -> String {
    error.to_string()
}

fn check() -> Result<(), String> {
    let cuda = Cuda::start().map_err(said)?;
    let (devices, name, device_total) = (
        cuda.devices().map_err(said)?,
        cuda.name().map_err(said)?,
        cuda.total().map_err(said)?,
    );
    let (free, total) = cuda.info().map_err(said)?;
    let (nvml_devices, uuid, nvml_total) = nvml().map_err(said)?;
    if i64::from(devices) != i64::from(nvml_devices) {
        return Err(format!("CUDA sees {devices} devices and NVML {nvml_devices}"));
    }
    if device_total != total || nvml_total != total {
        return Err(format!(
            "totals differ: cuMemGetInfo says {total}, cuDeviceTotalMem {device_total}, NVML {nvml_total}"
        ));
    }
    let allocated = free / GRANULE * GRANULE;
    let address = cuda
        .allocate(allocated)
        .map_err(|error| format!("{allocated} of {free} free bytes: {error}"))?;
    let over = match cuda.allocate(GRANULE) {
        Err(Error::Cuda(_, OUT_OF_MEMORY)) => OUT_OF_MEMORY,
        Err(error) => {
            return Err(format!(
                "{GRANULE} bytes more than the free memory: {error}, not out of memory"
            ));
        }
        Ok(_) => {
            return Err(format!(
                "the limit does not hold: {allocated} + {GRANULE} bytes could be allocated of {free}"
            ));
        }
    };
    cuda.free(address).map_err(said)?;
    let (after, _) = cuda.info().map_err(said)?;
    if after != free {
        return Err(format!(
            "{free} bytes were free before, and {after} after all was given back"
        ));
    }
    println!(
        "{{\"devices\":{devices},\"name\":{name:?},\"uuid\":{uuid:?},\"total\":{total},\"free\":{free},\
         \"allocated\":{allocated},\"one granule more\":{:?},\"nvml total\":{nvml_total}}}",
        cuda_name(over)
    );
    Ok(())
}

fn hold(bytes: u64) -> Result<(), String> {
    // Before the line that others wait for. A container's first process ignores signals without a handler.
    let mut signals = Signals::new([SIGTERM, SIGINT]).map_err(|error| format!("cannot handle signals: {error}"))?;
    let cuda = Cuda::start().map_err(said)?;
    if bytes > 0 {
        cuda.allocate(bytes)
            .map_err(|error| format!("{bytes} bytes: {error}"))?;
    }
    let (free, total) = cuda.info().map_err(said)?;
    println!(
        "{{\"holding\":{bytes},\"free\":{free},\"total\":{total},\"pid\":{}}}",
        std::process::id()
    );
    signals.forever().next();
    Ok(())
}

fn alloc(bytes: u64) -> Result<(), String> {
    let cuda = Cuda::start().map_err(said)?;
    cuda.allocate(bytes)
        .map_err(|error| format!("{bytes} bytes: {error}"))?;
    let (free, total) = cuda.info().map_err(said)?;
    println!("{{\"allocated\":{bytes},\"free\":{free},\"total\":{total}}}");
    Ok(())
}

fn work(seconds: u64) -> Result<(), String> {
    let cuda = Cuda::start().map_err(said)?;
    let kernel = Kernel::load(&cuda).map_err(said)?;
    let length = kernel.measured().map_err(said)?;
    let (start, mut kernels) = (Instant::now(), 0_u32);
    while start.elapsed() < Duration::from_secs(seconds) {
        kernel.launch().map_err(said)?;
        kernels += 1;
    }
    cuda.synchronize().map_err(said)?;
    let elapsed = start.elapsed().as_secs_f64();
    let percent = 100.0 * f64::from(kernels) * length.as_secs_f64() / elapsed;
    println!(
        "{{\"kernels\":{kernels},\"us each\":{},\"seconds\":{elapsed:.2},\"percent\":{percent:.1}}}",
        length.as_micros()
    );
    Ok(())
}
