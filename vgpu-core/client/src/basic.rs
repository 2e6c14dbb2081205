//! Steps of one call or a few: allocations of every family, contexts, and what the driver and NVML answer.

use crate::client::Client;
use crate::library::{call, open, size};
use std::ffi::{CStr, CString, c_char, c_int, c_void};

const GRANULE: u64 = 2 << 20;

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
        "init" => {
            let cuda = client.cuda();
            let mut context: *mut c_void = std::ptr::null_mut();
            let result = call!(cuda, "cuInit"(u32)(0));
            if result != 0 {
                return Some(result.to_string());
            }
            let result =
                call!(cuda, "cuDevicePrimaryCtxRetain" (*mut *mut c_void, c_int) (&mut context, number as c_int));
            if result != 0 {
                return Some(result.to_string());
            }
            call!(cuda, "cuCtxSetCurrent" (*mut c_void) (context)).to_string()
        }
        "cuinit" => call!(client.cuda(), "cuInit"(u32)(0)).to_string(),
        "devices" => devices(client),
        "alloc" => client.allocate(number).to_string(),
        "allocfree" => {
            let (_, free, _) = client.info();
            client.allocate(free / GRANULE * GRANULE).to_string()
        }
        "free" => client.free(number as usize).to_string(),
        "freeunknown" => call!(client.cuda(), "cuMemFree_v2"(u64)(0x1234_0000)).to_string(),
        "info" => {
            let (result, free, total) = client.info();
            format!("{result} {free} {total}")
        }
        "infonull" => {
            let cuda = client.cuda();
            let null = std::ptr::null_mut();
            call!(cuda, "cuMemGetInfo_v2" (*mut usize, *mut usize) (null, null)).to_string()
        }
        "async" => {
            let mut pointer = 0;
            let cuda = client.cuda();
            let result = call!(cuda, "cuMemAllocAsync" (*mut u64, usize, usize) (&mut pointer, number as usize, 0));
            if result == 0 {
                client.pointers.push(pointer);
            }
            result.to_string()
        }
        "freeasync" => {
            let pointer = client.pointers.remove(number as usize);
            let cuda = client.cuda();
            let result = call!(cuda, "cuMemFreeAsync"(u64, usize)(pointer, 0));
            let synced = call!(cuda, "cuStreamSynchronize"(usize)(0));
            format!("{result} {synced}")
        }
        "managed" => {
            let (mut pointer, cuda) = (0, client.cuda());
            let result = call!(cuda, "cuMemAllocManaged" (*mut u64, usize, u32) (&mut pointer, number as usize, 1));
            if result == 0 {
                client.pointers.push(pointer);
            }
            result.to_string()
        }
        "pitch" => {
            // Rows of 1000 bytes; the pitch is told.
            let (mut pointer, mut pitch, cuda) = (0, 0_usize, client.cuda());
            let result = call!(cuda, "cuMemAllocPitch_v2" (*mut u64, *mut usize, usize, usize, u32)
                (&mut pointer, &mut pitch, 1000, number as usize / 1024, 4));
            if result == 0 {
                client.pointers.push(pointer);
            }
            format!("{result} {pitch}")
        }
        "launch" => {
            // So many milliseconds of the software GPU's time.
            let (mut module, mut function, cuda) = (0_usize, 0_usize, client.cuda());
            let text = c".version 8.0\n.target sm_90\n.entry spin() { ret; }\n".as_ptr();
            call!(cuda, "cuModuleLoadData" (*mut usize, *const c_char) (&mut module, text));
            call!(cuda, "cuModuleGetFunction" (*mut usize, usize, *const c_char)
                (&mut function, module, c"spin".as_ptr()));
            let grid = number as u32 * 200 * 132 * 2;
            call!(
                cuda,
                "cuLaunchKernel"(usize, u32, u32, u32, u32, u32, u32, u32, usize, usize, usize)(
                    function, grid, 1, 1, 1024, 1, 1, 0, 0, 0, 0
                )
            )
            .to_string()
        }
        "rates" => {
            let (nvml, mut device, mut rates) = (client.nvml(), std::ptr::null_mut(), [77_u32; 2]);
            call!(nvml, "nvmlInit_v2"()());
            call!(nvml, "nvmlDeviceGetHandleByIndex_v2" (u32, *mut *mut c_void) (0, &mut device));
            let result =
                call!(nvml, "nvmlDeviceGetUtilizationRates" (*mut c_void, *mut u32) (device, rates.as_mut_ptr()));
            format!("{result} {} {}", rates[0], rates[1])
        }
        "look" => look(client, number as u32),
        "create" => {
            // CUmemAllocationProp: pinned, no export, device 0.
            let properties: [u64; 4] = [1, 1, 0, 0];
            let mut handle = 0;
            let cuda = client.cuda();
            let result = call!(cuda, "cuMemCreate" (*mut u64, usize, *const u64, u64)
                (&mut handle, number as usize, properties.as_ptr(), 0));
            if result == 0 {
                client.handles.push(handle);
            }
            result.to_string()
        }
        "release" => {
            let handle = client.handles.remove(number as usize);
            call!(client.cuda(), "cuMemRelease"(u64)(handle)).to_string()
        }
        "array" => {
            // CUDA_ARRAY_DESCRIPTOR: rows of 32 KiB, four floats an element.
            let descriptor: [u64; 3] = [2048, number >> 15, 4 << 32 | 0x20];
            let mut array = 0;
            let cuda = client.cuda();
            let result = call!(cuda, "cuArrayCreate_v2" (*mut usize, *const u64) (&mut array, descriptor.as_ptr()));
            if result == 0 {
                client.arrays.push(array);
            }
            result.to_string()
        }
        "arrayfree" => {
            let array = client.arrays.remove(number as usize);
            call!(client.cuda(), "cuArrayDestroy"(usize)(array)).to_string()
        }
        "ctx" => {
            let mut context = 0;
            let cuda = client.cuda();
            let result = call!(cuda, "cuCtxCreate_v2" (*mut usize, u32, c_int) (&mut context, 0, number as c_int));
            client.contexts.push(context);
            result.to_string()
        }
        "ctxdestroy" => {
            let context = client.contexts.remove(number as usize);
            call!(client.cuda(), "cuCtxDestroy_v2"(usize)(context)).to_string()
        }
        "primary" => call!(client.cuda(), "cuDevicePrimaryCtxRelease_v2"(c_int)(number as c_int)).to_string(),
        "pool" => {
            // CUmemPoolProps: pinned, no export, device 0.
            let properties: [u32; 22] = std::array::from_fn(|word| u32::from(word == 0 || word == 2));
            let mut pool = 0;
            let cuda = client.cuda();
            let result = call!(cuda, "cuMemPoolCreate" (*mut usize, *const u32) (&mut pool, properties.as_ptr()));
            client.pools.push(pool);
            result.to_string()
        }
        "from" => {
            let (pool, mut pointer) = (client.pools[client.pools.len() - 1], 0);
            let cuda = client.cuda();
            let result = call!(cuda, "cuMemAllocFromPoolAsync" (*mut u64, usize, usize, usize)
                (&mut pointer, number as usize, pool, 0));
            if result == 0 {
                client.pointers.push(pointer);
            }
            result.to_string()
        }
        "choose" => {
            let pool = client.pools[number as usize];
            call!(client.cuda(), "cuDeviceSetMemPool"(c_int, usize)(0, pool)).to_string()
        }
        "pooldestroy" => {
            let pool = client.pools[number as usize];
            call!(client.cuda(), "cuMemPoolDestroy"(usize)(pool)).to_string()
        }
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
        "address" => address(client, value),
        "flap" => flap(client, number),
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

/// NVML: result, count, and of each device UUID, total, used and PIDs.
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

/// NVML, of one device: bytes used and free, percent busy, and bytes of each PID.
fn look(client: &mut Client, gpu: u32) -> String {
    let (view, nvml, mut rates) = (client.view(gpu), client.nvml(), [0_u32; 2]);
    let result = call!(nvml, "nvmlDeviceGetUtilizationRates" (usize, *mut u32) (view.device, rates.as_mut_ptr()));
    assert_eq!(result, 0, "nvmlDeviceGetUtilizationRates");
    let users = view.users.join(",");
    format!("used={} free={} busy={} pids={users}", view.used, view.free, rates[0])
}

/// NVML's compute processes of the first device as public calls and as nvidia-smi see them:
/// result, then PID and bytes of each.
fn running(client: &mut Client) -> String {
    /// An entry of nvidia-smi's, in words.
    const ENTRY: usize = 4128 / 8;
    let nvml = client.nvml();
    let mut device = std::ptr::null_mut();
    call!(nvml, "nvmlInit_v2"()());
    call!(nvml, "nvmlDeviceGetHandleByIndex_v2" (u32, *mut *mut c_void) (0, &mut device));
    let (mut count, mut list) = (64_u32, vec![0_u64; 64 * 3]);
    let result = call!(nvml, "nvmlDeviceGetComputeRunningProcesses_v3" (*mut c_void, *mut u32, *mut u64)
        (device, &mut count, list.as_mut_ptr()));
    let mut text = result.to_string();
    for process in list.chunks(3).take(count as usize) {
        text += &format!(" {} {}", process[0] as u32, process[1]);
    }
    let (mut table, id): (*const usize, [u8; 16]) = (std::ptr::null(), [0; 16]);
    call!(nvml, "nvmlInternalGetExportTable" (*mut *const usize, *const u8) (&mut table, id.as_ptr()));
    // SAFETY: the table has this function at this place, for drivers 535 and 550.
    let list_of = unsafe {
        std::mem::transmute::<usize, unsafe extern "C" fn(*mut c_void, *mut u32, *mut u64) -> c_int>(*table.add(213))
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

/// cuGetProcAddress_v2 of a name: result, and whether the answer is the shim's own export.
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

/// Allocates and frees one granule `number` times; ns a pair.
fn flap(client: &mut Client, number: u64) -> String {
    let cuda = client.cuda();
    // SAFETY: the functions' signatures.
    let (allocate, free) = unsafe {
        (
            std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut u64, usize) -> c_int>(libc::dlsym(
                cuda,
                c"cuMemAlloc_v2".as_ptr(),
            )),
            std::mem::transmute::<*mut c_void, unsafe extern "C" fn(u64) -> c_int>(libc::dlsym(
                cuda,
                c"cuMemFree_v2".as_ptr(),
            )),
        )
    };
    let mut best = u128::MAX;
    for _ in 0..7 {
        let start = std::time::Instant::now();
        for _ in 0..number {
            let mut pointer = 0;
            // SAFETY: a pointer to be written, and freed.
            unsafe {
                assert_eq!(allocate(&mut pointer, 1 << 20), 0);
                assert_eq!(free(pointer), 0);
            }
        }
        best = best.min(start.elapsed().as_nanos() * 10 / u128::from(number));
    }
    format!("{}.{}", best / 10, best % 10)
}
