//! Work of a known length on the software GPU, and how long it took by the GPU's own clock.

use crate::client::Client;
use crate::library::{self, call, size};
use std::ffi::{CString, c_char, c_void};

pub(crate) fn step(client: &mut Client, name: &str, value: &str) -> Option<String> {
    Some(match name {
        // US or USxN: N kernels of this many microseconds, without a wait.
        "spin" => launch(client, value).to_string(),
        // The same between two events.
        "begin" => begin(client, value).to_string(),
        // Waits for the second event. Prints the result, and the microseconds between the events.
        "end" => end(client),
        "timed" => match begin(client, value) {
            0 => end(client),
            code => code.to_string(),
        },
        // Launches, records, queries and waits in an endless loop.
        "rush" => loop {
            launch(client, "5x30");
            record(client, 0);
            let (cuda, event) = (client.cuda(), client.events[0]);
            for _ in 0..30 {
                call!(cuda, "cuEventQuery"(usize)(event));
            }
            call!(cuda, "cuCtxSynchronize"()());
        },
        // Sleeps until the GPUs' clock shows this many nanoseconds, and prints the clock's time then.
        "until" => sleep_until(client, size(value)).to_string(),
        // NVML's utilization of the first GPU: percent of each PID.
        "shares" => shares(client),
        _ => return None,
    })
}

fn launch(client: &mut Client, value: &str) -> i32 {
    let (us, count) = value.split_once('x').unwrap_or((value, "1"));
    let (function, cuda) = (kernel(client, us), client.cuda());
    let count: u32 = count.parse().expect("a number");
    (0..count).fold(0, |result, _| {
        let one = library::launch(cuda, function, 1, 1);
        if result == 0 { one } else { result }
    })
}

/// Returns the kernel of this many microseconds, in one module for all.
fn kernel(client: &mut Client, us: &str) -> usize {
    let name = CString::new(format!("time_{us}us")).expect("a number");
    let (mut function, cuda) = (0_usize, client.cuda());
    if client.modules.is_empty() {
        let (mut module, text) = (0_usize, c".version 8.0\n.target sm_90\n".as_ptr());
        call!(cuda, "cuModuleLoadData" (*mut usize, *const c_char) (&mut module, text));
        client.modules.push(module);
    }
    let module = client.modules[0];
    call!(cuda, "cuModuleGetFunction" (*mut usize, usize, *const c_char) (&mut function, module, name.as_ptr()));
    function
}

fn record(client: &mut Client, which: usize) -> i32 {
    let cuda = client.cuda();
    if client.events[which] == 0 {
        call!(cuda, "cuEventCreate" (*mut usize, u32) (&mut client.events[which], 0));
    }
    call!(cuda, "cuEventRecord"(usize, usize)(client.events[which], 0))
}

fn begin(client: &mut Client, value: &str) -> i32 {
    // A long kernel comes first, so that everything is queued before the GPU reaches it, however slow this program is.
    let ahead = launch(client, "50000");
    let results = [ahead, record(client, 0), launch(client, value), record(client, 1)];
    results.into_iter().find(|result| *result != 0).unwrap_or(0)
}

fn end(client: &mut Client) -> String {
    let (cuda, mut ms, [start, end]) = (client.cuda(), 0_f32, client.events);
    let waited = call!(cuda, "cuEventSynchronize"(usize)(end));
    let result = call!(cuda, "cuEventElapsedTime" (*mut f32, usize, usize) (&mut ms, start, end));
    format!("{} {:.0}", waited.max(result), ms * 1000.0)
}

fn sleep_until(client: &mut Client, ns: u64) -> u64 {
    // SAFETY: the software GPU's function has this signature.
    unsafe {
        let address = libc::dlsym(client.cuda(), c"softGpuSleepUntil".as_ptr());
        assert!(!address.is_null(), "not the software GPU");
        std::mem::transmute::<*mut c_void, unsafe extern "C" fn(u64) -> u64>(address)(ns)
    }
}

fn shares(client: &mut Client) -> String {
    /// nvmlProcessUtilizationSample_t in words of 32 bits: PID, padding, time, and four figures.
    const ENTRY: usize = 8;
    let (device, nvml) = (client.view(0).device, client.nvml());
    let (mut count, mut list) = (64_u32, vec![0_u32; 64 * ENTRY]);
    let result = call!(nvml, "nvmlDeviceGetProcessUtilization" (usize, *mut u32, *mut u32, u64)
        (device, list.as_mut_ptr(), &mut count, 0));
    let users = list.chunks(ENTRY).take(if result == 0 { count as usize } else { 0 });
    let users: Vec<String> = users.map(|user| format!("{}:{}", user[0], user[4])).collect();
    format!("{result} {}", users.join(","))
}
