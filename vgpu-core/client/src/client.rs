//! A client's libraries and allocations, and the calls that several kinds of steps need.

use crate::alloc::{self, Made};
use crate::library::{call, open};
use std::ffi::{c_int, c_void};

/// CUipcMemHandle, which is passed by value.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Handle(pub(crate) [u64; 8]);

/// NVML's view of a GPU: its handle, bytes, and PID:bytes of each process with a context.
pub(crate) struct View {
    pub(crate) device: usize,
    pub(crate) used: u64,
    pub(crate) free: u64,
    pub(crate) users: Vec<String>,
}

pub(crate) struct Client {
    pub(crate) cuda: *mut c_void,
    nvml: *mut c_void,
    pub(crate) pointers: Vec<u64>,
    pub(crate) handles: Vec<u64>,
    pub(crate) arrays: Vec<usize>,
    pub(crate) contexts: Vec<usize>,
    pub(crate) pools: Vec<usize>,
    pub(crate) modules: Vec<usize>,
    /// The events before and after the work that `begin` queued.
    pub(crate) events: [usize; 2],
}

/// Keeps a new allocation in `list`, and returns the call's result.
pub(crate) fn keep<T>(list: &mut Vec<T>, made: Made<T>) -> c_int {
    match made {
        Ok(one) => {
            list.push(one);
            0
        }
        Err(error) => error,
    }
}

impl Client {
    pub(crate) fn new() -> Self {
        Self {
            cuda: std::ptr::null_mut(),
            nvml: std::ptr::null_mut(),
            pointers: Vec::new(),
            handles: Vec::new(),
            arrays: Vec::new(),
            contexts: Vec::new(),
            pools: Vec::new(),
            modules: Vec::new(),
            events: [0; 2],
        }
    }

    pub(crate) fn cuda(&mut self) -> *mut c_void {
        if self.cuda.is_null() {
            self.cuda = open("libcuda.so.1");
        }
        self.cuda
    }

    pub(crate) fn nvml(&mut self) -> *mut c_void {
        if self.nvml.is_null() {
            self.nvml = open("libnvidia-ml.so.1");
        }
        self.nvml
    }

    pub(crate) fn allocate(&mut self, bytes: u64) -> c_int {
        let made = alloc::plain(self.cuda(), bytes as usize);
        keep(&mut self.pointers, made)
    }

    pub(crate) fn free(&mut self, index: usize) -> c_int {
        let pointer = self.pointers.remove(index);
        let cuda = self.cuda();
        call!(cuda, "cuMemFree_v2"(u64)(pointer))
    }

    pub(crate) fn info(&mut self) -> (c_int, u64, u64) {
        let (mut free, mut total) = (0_usize, 0_usize);
        let cuda = self.cuda();
        let result = call!(cuda, "cuMemGetInfo_v2" (*mut usize, *mut usize) (&mut free, &mut total));
        (result, free as u64, total as u64)
    }

    /// Initialises NVML and returns the handle of a GPU.
    pub(crate) fn device(&mut self, gpu: u32) -> usize {
        let (nvml, mut device) = (self.nvml(), 0);
        assert_eq!(call!(nvml, "nvmlInit_v2"()()), 0, "nvmlInit_v2");
        let result = call!(nvml, "nvmlDeviceGetHandleByIndex_v2" (u32, *mut usize) (gpu, &mut device));
        assert_eq!(result, 0, "nvmlDeviceGetHandleByIndex_v2");
        device
    }

    pub(crate) fn view(&mut self, gpu: u32) -> View {
        /// nvmlProcessInfo_t in words: PID, bytes, instances.
        const ENTRY: usize = 3;
        let (device, nvml, mut memory) = (self.device(gpu), self.nvml(), [0_u64; 5]);
        // nvmlMemory_v2_t: version and size; then total, reserved, free and used.
        memory[0] = 2 << 24 | 40;
        let result = call!(nvml, "nvmlDeviceGetMemoryInfo_v2" (usize, *mut u64) (device, memory.as_mut_ptr()));
        assert_eq!(result, 0, "nvmlDeviceGetMemoryInfo_v2");
        let (mut count, mut list) = (256_u32, vec![0_u64; 256 * ENTRY]);
        let result = call!(nvml, "nvmlDeviceGetComputeRunningProcesses_v3" (usize, *mut u32, *mut u64)
            (device, &mut count, list.as_mut_ptr()));
        assert_eq!(result, 0, "nvmlDeviceGetComputeRunningProcesses_v3");
        let users = list.chunks(ENTRY).take(count as usize);
        View {
            device,
            used: memory[4],
            free: memory[3],
            users: users.map(|user| format!("{}:{}", user[0] as u32, user[1])).collect(),
        }
    }
}
