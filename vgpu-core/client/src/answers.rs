//! Steps that print what the driver and NVML answer.

use crate::client::Client;
use crate::library::{call, size};
use std::ffi::{CStr, CString, c_char, c_int, c_void};

pub(crate) fn step(client: &mut Client, name: &str, value: &str) -> Option<String> {
    let number = size(value);
    Some(match name {
        "devices" => devices(client),
        "info" => {
            let (result, free, total) = client.info();
            format!("{result} {free} {total}")
        }
        "infonull" => {
            let cuda = client.cuda();
            let null = std::ptr::null_mut();
            call!(cuda, "cuMemGetInfo_v2" (*mut usize, *mut usize) (null, null)).to_string()
        }
        "rates" => {
            let (device, nvml, mut rates) = (client.device(0), client.nvml(), [77_u32; 2]);
            let result = call!(nvml, "nvmlDeviceGetUtilizationRates" (usize, *mut u32) (device, rates.as_mut_ptr()));
            format!("{result} {} {}", rates[0], rates[1])
        }
        "look" => look(client, number as u32),
        "memory" => memory(client),
        "running" => running(client),
        "ordinal" => {
            // CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL by both calls.
            let (pointer, cuda) = (client.pointers[number as usize], client.cuda());
            let (mut one, mut all, mut attribute) = (-1, -1, 9);
            let mut values: *mut c_int = &mut all;
            let first = call!(cuda, "cuPointerGetAttribute" (*mut c_int, c_int, u64) (&mut one, 9, pointer));
            let second = call!(cuda, "cuPointerGetAttributes" (u32, *mut c_int, *mut *mut c_int, u64)
                (1, &mut attribute, &mut values, pointer));
            format!("{first} {one} {second} {all}")
        }
        "topology" => {
            let (nvml, mut count, mut devices) = (client.nvml(), 8_u32, [0_usize; 8]);
            let result = call!(nvml, "nvmlSystemGetTopologyGpuSet" (u32, *mut u32, *mut usize)
                (0, &mut count, devices.as_mut_ptr()));
            format!("{result} {count}")
        }
        "address" => address(client, value),
        _ => return None,
    })
}

fn devices(client: &mut Client) -> String {
    let cuda = client.cuda();
    let mut count = 0;
    let result = call!(cuda, "cuDeviceGetCount" (*mut c_int) (&mut count));
    let mut text = format!("{result} {count}");
    for ordinal in 0..=count {
        let (mut device, mut uuid, mut total) = (-1, [0_u8; 16], 0_usize);
        let got = call!(cuda, "cuDeviceGet" (*mut c_int, c_int) (&mut device, ordinal));
        call!(cuda, "cuDeviceGetUuid_v2" (*mut u8, c_int) (uuid.as_mut_ptr(), ordinal));
        call!(cuda, "cuDeviceTotalMem_v2" (*mut usize, c_int) (&mut total, ordinal));
        let uuid: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
        text += &format!(" {got} {uuid} {total}");
    }
    text
}

/// Prints NVML's result, the count, and for each device UUID, total, used and PIDs.
fn memory(client: &mut Client) -> String {
    let nvml = client.nvml();
    let result = call!(nvml, "nvmlInit_v2"()());
    if result != 0 {
        return result.to_string();
    }
    let mut count = 0;
    let result = call!(nvml, "nvmlDeviceGetCount_v2" (*mut u32) (&mut count));
    let mut text = format!("{result} {count}");
    for index in 0..count {
        let (mut device, mut memory) = (std::ptr::null_mut(), [0_u64; 3]);
        let mut uuid = [0 as c_char; 96];
        call!(nvml, "nvmlDeviceGetHandleByIndex_v2" (u32, *mut *mut c_void) (index, &mut device));
        call!(nvml, "nvmlDeviceGetMemoryInfo" (*mut c_void, *mut u64) (device, memory.as_mut_ptr()));
        call!(nvml, "nvmlDeviceGetUUID" (*mut c_void, *mut c_char, u32) (device, uuid.as_mut_ptr(), 96));
        // SAFETY: NVML has written a C string.
        let uuid = unsafe { CStr::from_ptr(uuid.as_ptr()) }.to_string_lossy().into_owned();
        text += &format!(" {uuid} {} {}", memory[0], memory[2]);
    }
    text
}

/// Prints for one device from NVML: bytes used and free, percent busy, and bytes of each PID.
fn look(client: &mut Client, gpu: u32) -> String {
    let (view, nvml, mut rates) = (client.view(gpu), client.nvml(), [0_u32; 2]);
    let result = call!(nvml, "nvmlDeviceGetUtilizationRates" (usize, *mut u32) (view.device, rates.as_mut_ptr()));
    assert_eq!(result, 0, "nvmlDeviceGetUtilizationRates");
    let users = view.users.join(",");
    format!("used={} free={} busy={} pids={users}", view.used, view.free, rates[0])
}

/// Prints NVML's compute processes of the first device, as public calls and as nvidia-smi see them: result, then PID
/// and bytes of each.
fn running(client: &mut Client) -> String {
    /// The size of an entry in nvidia-smi's internal list, in words.
    const ENTRY: usize = 4128 / 8;
    let (device, nvml) = (client.device(0), client.nvml());
    let (mut count, mut list) = (64_u32, vec![0_u64; 64 * 3]);
    let result = call!(nvml, "nvmlDeviceGetComputeRunningProcesses_v3" (usize, *mut u32, *mut u64)
        (device, &mut count, list.as_mut_ptr()));
    let mut text = result.to_string();
    for process in list.chunks(3).take(count as usize) {
        text += &format!(" {} {}", process[0] as u32, process[1]);
    }
    let (mut table, id): (*const usize, [u8; 16]) = (std::ptr::null(), [0; 16]);
    call!(nvml, "nvmlInternalGetExportTable" (*mut *const usize, *const u8) (&mut table, id.as_ptr()));
    // SAFETY: the table has this function at this place, for drivers 535 and 550.
    let list_of = unsafe {
        std::mem::transmute::<usize, unsafe extern "C" fn(usize, *mut u32, *mut u64) -> c_int>(*table.add(213))
    };
    let (mut count, mut list) = (64_u32, vec![0_u64; 64 * ENTRY]);
    // SAFETY: room for as many as `count` says.
    let result = unsafe { list_of(device, &mut count, list.as_mut_ptr()) };
    text += &format!(" smi {result}");
    for process in list.chunks(ENTRY).take(count as usize) {
        text += &format!(" {} {}", process[0] as u32, process[1]);
    }
    text
}

/// Prints for cuGetProcAddress_v2 of a name: the result, and true if the answer is the shim's own export.
fn address(client: &mut Client, name: &str) -> String {
    let cuda = client.cuda();
    let (symbol, export) = name.split_once('/').unwrap_or((name, name));
    let symbol = CString::new(symbol).expect("a name");
    let (mut function, mut status): (*mut c_void, c_int) = (std::ptr::null_mut(), -1);
    let flags = if export.ends_with("_ptsz") { 2_u64 } else { 0 };
    let result = call!(cuda, "cuGetProcAddress_v2" (*const c_char, *mut *mut c_void, c_int, u64, *mut c_int)
        (symbol.as_ptr(), &mut function, 12_040, flags, &mut status));
    let export = CString::new(export).expect("a name");
    // SAFETY: a C string.
    let own = unsafe { libc::dlsym(cuda, export.as_ptr()) };
    format!("{result} {}", !function.is_null() && own == function)
}
