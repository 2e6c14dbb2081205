//! Steps of a program's own life: it opens the libraries, makes contexts, launches, waits and ends.

use crate::alloc;
use crate::client::Client;
use crate::library::{call, launch, open, size};
use std::ffi::{CStr, CString, c_char, c_int, c_void};

pub(crate) fn step(client: &mut Client, name: &str, value: &str) -> Option<String> {
    let number = size(value);
    Some(match name {
        "open" => {
            match value {
                "cuda" => drop(client.cuda()),
                "nvml" => drop(client.nvml()),
                path => client.cuda = open(path),
            }
            "0".into()
        }
        "init" => init(client, number as c_int).to_string(),
        "cuinit" => call!(client.cuda(), "cuInit"(u32)(0)).to_string(),
        "launch" => spin(client, number as u32).to_string(),
        "ctx" => {
            let made = alloc::context(client.cuda(), number as c_int);
            client.contexts.push(made.unwrap_or(0));
            made.err().unwrap_or(0).to_string()
        }
        "ctxdestroy" => {
            let context = client.contexts.remove(number as usize);
            call!(client.cuda(), "cuCtxDestroy_v2"(usize)(context)).to_string()
        }
        "primary" => call!(client.cuda(), "cuDevicePrimaryCtxRelease_v2"(c_int)(number as c_int)).to_string(),
        "shutdown" => {
            let (nvml, mut device) = (client.nvml(), 0);
            let result = call!(nvml, "nvmlShutdown"()());
            let after = call!(nvml, "nvmlDeviceGetHandleByIndex_v2" (u32, *mut usize) (0, &mut device));
            format!("{result} {after}")
        }
        "getenv" => {
            let name = CString::new(value).expect("a name");
            // SAFETY: a C string in; null, or one out that lasts.
            let text = unsafe { libc::getenv(name.as_ptr()).as_ref().map(|text| CStr::from_ptr(text)) };
            format!("{text:?}")
        }
        "wait" => {
            let mut line = String::new();
            std::io::stdin().read_line(&mut line).expect("a line");
            line.trim().into()
        }
        "kill" => {
            // SAFETY: this very process.
            unsafe { libc::raise(libc::SIGKILL) }.to_string()
        }
        _ => return None,
    })
}

/// Makes the device's primary context the current one.
fn init(client: &mut Client, device: c_int) -> c_int {
    let (cuda, mut context): (_, *mut c_void) = (client.cuda(), std::ptr::null_mut());
    let mut result = call!(cuda, "cuInit"(u32)(0));
    if result == 0 {
        result = call!(cuda, "cuDevicePrimaryCtxRetain" (*mut *mut c_void, c_int) (&mut context, device));
    }
    if result == 0 {
        result = call!(cuda, "cuCtxSetCurrent"(*mut c_void)(context));
    }
    result
}

/// Launches a kernel that takes this many milliseconds of the software GPU's time.
fn spin(client: &mut Client, milliseconds: u32) -> c_int {
    let (mut module, mut function, cuda) = (0_usize, 0_usize, client.cuda());
    let text = c".version 8.0\n.target sm_90\n.entry spin() { ret; }\n".as_ptr();
    call!(cuda, "cuModuleLoadData" (*mut usize, *const c_char) (&mut module, text));
    call!(cuda, "cuModuleGetFunction" (*mut usize, usize, *const c_char)
        (&mut function, module, c"spin".as_ptr()));
    launch(cuda, function, milliseconds * 200 * 132 * 2, 1024)
}
