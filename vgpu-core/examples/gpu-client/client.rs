//! What a client has opened and allocated, and the calls that several kinds of steps need.

use crate::library::{call, open};
use std::ffi::{c_int, c_void};

/// CUipcMemHandle, which is passed by value.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Handle(pub(crate) [u64; 8]);

pub(crate) struct Client {
    pub(crate) cuda: *mut c_void,
    nvml: *mut c_void,
    pub(crate) pointers: Vec<u64>,
    pub(crate) handles: Vec<u64>,
    pub(crate) arrays: Vec<usize>,
    pub(crate) contexts: Vec<usize>,
    pub(crate) pools: Vec<usize>,
    pub(crate) modules: Vec<usize>,
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
        let mut pointer = 0;
        let cuda = self.cuda();
        let result = call!(cuda, "cuMemAlloc_v2" (*mut u64, usize) (&mut pointer, bytes as usize));
        if result == 0 {
            self.pointers.push(pointer);
        }
        result
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
}
