//! libcuda.so.1 of the software GPU.
//!
//! ```text
//!  C client ──► api! functions (device, context, memory, pool, vmm, transfer, host, array, stream, module, launch,
//!      │            │            graph): safe bodies over ffi's pointers        lookup: cuGetProcAddress
//!      │            ▼
//!      │        driver: cuInit, membership ──► soft_gpu::state::Member: charges, time
//!      └──► stubs (generated): names that are not modelled answer NOT_SUPPORTED and are counted
//! ```
//!
//! A name is exported by hand or by build.rs, from names/cuda.txt; `_ptsz` and older names of the same shape jump to
//! the function that is modelled. How it fails: without a usable state cuInit answers SYSTEM_NOT_READY and says why in
//! one line; after fork a child gets NOT_INITIALIZED, as from the real driver. No code runs on a GPU: memory that
//! kernels would write stays as it was.

#![allow(non_snake_case, reason = "the names are C's")]

mod array;
mod call;
mod code;
mod context;
mod device;
mod driver;
mod external;
mod ffi;
mod graph;
mod graph_memory;
mod green;
mod host;
mod launch;
mod lookup;
mod memory;
mod module;
mod multicast;
mod pool;
mod sharing;
mod stream;
mod stubs;
mod transfer;
mod visible;
mod vmm;
