//! Hooked names of the driver API, apart from those that only take a device.

use crate::hooks::{
    alloc, array_calls, context_calls, device_list, endpoints, errors, exports, externals, free_calls, graph_calls,
    imports, info, init, interop, locations, modules, multicast, places, pool_calls, proc_address, properties, shapes,
    sparse, vmm,
};
use core::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};

hooks! { cuda;
    limited cuInit: (flags: c_uint) => init::init;
    virtualised cuGetProcAddress: (symbol: *const c_char, function: *mut *mut c_void, version: c_int, flags: c_ulonglong) => proc_address::v1;
    virtualised cuGetProcAddress_v2: (symbol: *const c_char, function: *mut *mut c_void, version: c_int, flags: c_ulonglong, status: *mut c_int) => proc_address::v2;

    limited cuMemGetInfo_v2: (free: *mut usize, total: *mut usize) => info::memory;
    limited cuMemGetInfo: (free: *mut c_uint, total: *mut c_uint) => info::memory_v1;
    limited cuDeviceTotalMem_v2: (bytes: *mut usize, device: c_int) => info::total;
    limited cuDeviceTotalMem: (bytes: *mut c_uint, device: c_int) => info::total_v1;

    charged cuMemAlloc_v2: (pointer: *mut u64, bytes: usize) => alloc::alloc;
    charged cuMemAlloc: (pointer: *mut c_uint, bytes: c_uint) => alloc::alloc_v1;
    charged cuMemAllocPitch_v2: (pointer: *mut u64, pitch: *mut usize, width: usize, height: usize, element: c_uint) => alloc::pitch;
    charged cuMemAllocPitch: (pointer: *mut c_uint, pitch: *mut c_uint, width: c_uint, height: c_uint, element: c_uint) => alloc::pitch_v1;
    charged cuMemAllocManaged: (pointer: *mut u64, bytes: usize, flags: c_uint) => alloc::managed;
    released cuMemFree_v2: (pointer: u64) => free_calls::free;
    released cuMemFree: (pointer: c_uint) => free_calls::free_v1;

    charged cuMemAllocAsync: (pointer: *mut u64, bytes: usize, stream: usize) => pool_calls::alloc;
    charged cuMemAllocAsync_ptsz: (pointer: *mut u64, bytes: usize, stream: usize) => pool_calls::alloc_ptsz;
    charged cuMemAllocFromPoolAsync: (pointer: *mut u64, bytes: usize, pool: usize, stream: usize) => pool_calls::alloc_from;
    charged cuMemAllocFromPoolAsync_ptsz: (pointer: *mut u64, bytes: usize, pool: usize, stream: usize) => pool_calls::alloc_from_ptsz;
    released cuMemFreeAsync: (pointer: u64, stream: usize) => pool_calls::free;
    released cuMemFreeAsync_ptsz: (pointer: u64, stream: usize) => pool_calls::free_ptsz;
    limited cuMemPoolCreate: (pool: *mut usize, properties: *const pool_calls::Properties) => pool_calls::create;
    released cuMemPoolDestroy: (pool: usize) => pool_calls::destroy;
    released cuMemPoolTrimTo: (pool: usize, keep: usize) => pool_calls::trim;

    virtualised cuGraphAddMemAllocNode: (node: *mut usize, graph: usize, after: *const usize, count: usize, params: *mut graph_calls::AllocNode) => graph_calls::add_alloc;
    virtualised cuGraphAddNode: (node: *mut usize, graph: usize, after: *const usize, count: usize, params: *mut graph_calls::NodeParams) => graph_calls::add;
    virtualised cuGraphAddNode_v2, cuGraphAddNode_v3: (node: *mut usize, graph: usize, after: *const usize, edges: *const c_void, count: usize, params: *mut graph_calls::NodeParams) => graph_calls::add_v2;
    virtualised cuGraphMemAllocNodeGetParams: (node: usize, params: *mut graph_calls::AllocNode) => graph_calls::alloc_params;
    limited cuGraphInstantiate, cuGraphInstantiate_v2: (exec: *mut usize, graph: usize, bad: *mut usize, log: *mut c_char, room: usize) => graph_calls::instantiate;
    limited cuGraphInstantiateWithFlags: (exec: *mut usize, graph: usize, flags: c_ulonglong) => graph_calls::instantiate_with_flags;
    charged cuGraphInstantiateWithParams, cuGraphInstantiateWithParams_ptsz: (exec: *mut usize, graph: usize, params: *mut graph_calls::InstantiateParams) => graph_calls::instantiate_with_params;
    charged cuGraphUpload, cuGraphUpload_ptsz, cuGraphLaunch, cuGraphLaunch_ptsz: (exec: usize, stream: usize) => graph_calls::launch;
    limited cuGraphExecUpdate: (exec: usize, graph: usize, bad: *mut usize, outcome: *mut c_int) => graph_calls::update;
    limited cuGraphExecUpdate_v2: (exec: usize, graph: usize, outcome: *mut c_void) => graph_calls::update_v2;
    released cuGraphExecDestroy: (exec: usize) => graph_calls::destroy;
    released cuDeviceGraphMemTrim: (device: c_int) => graph_calls::trim;

    charged cuMemCreate: (handle: *mut u64, bytes: usize, properties: *const properties::Properties, flags: c_ulonglong) => vmm::create;
    released cuMemRelease: (handle: u64) => vmm::release;
    limited cuMemRetainAllocationHandle: (handle: *mut u64, address: *mut c_void) => vmm::retain;
    limited cuMemMap: (pointer: u64, bytes: usize, offset: usize, handle: u64, flags: c_ulonglong) => vmm::map;
    charged cuMemImportFromShareableHandle: (handle: *mut u64, from: *mut c_void, kind: c_int) => vmm::import;
    limited cuMemMapArrayAsync, cuMemMapArrayAsync_ptsz: (list: *mut sparse::ArrayMap, count: c_uint, stream: usize) => sparse::map_array;
    limited cuMulticastCreate: (handle: *mut u64, properties: *const c_void) => multicast::create;
    limited cuMulticastBindMem: (object: u64, offset: usize, memory: u64, from: usize, bytes: usize, flags: c_ulonglong) => multicast::bind_memory;
    limited cuMulticastBindMem_v2: (object: u64, device: c_int, offset: usize, memory: u64, from: usize, bytes: usize, flags: c_ulonglong) => multicast::bind_memory_v2;
    limited cuMulticastBindAddr: (object: u64, offset: usize, address: u64, bytes: usize, flags: c_ulonglong) => multicast::bind_address;
    limited cuMulticastBindAddr_v2: (object: u64, device: c_int, offset: usize, address: u64, bytes: usize, flags: c_ulonglong) => multicast::bind_address_v2;
    released cuMulticastUnbind: (object: u64, device: c_int, offset: usize, bytes: usize) => multicast::unbind;

    limited cuIpcGetMemHandle: (handle: *mut imports::Handle, pointer: u64) => exports::ipc_handle;
    charged cuIpcOpenMemHandle, cuIpcOpenMemHandle_v2: (pointer: *mut u64, handle: imports::Handle, flags: c_uint) => imports::open;
    released cuIpcCloseMemHandle: (pointer: u64) => imports::close;
    charged cuMemPoolImportPointer: (pointer: *mut u64, pool: usize, data: *mut c_void) => imports::pool_pointer;
    charged cuImportExternalMemory: (memory: *mut usize, descriptor: *const externals::Descriptor) => externals::import;
    limited cuExternalMemoryGetMappedBuffer: (pointer: *mut u64, memory: usize, descriptor: *const c_void) => externals::buffer;
    limited cuExternalMemoryGetMappedMipmappedArray: (array: *mut usize, memory: usize, descriptor: *const c_void) => externals::array;
    released cuDestroyExternalMemory: (memory: usize) => externals::destroy;
    released cuMemUnmap: (pointer: u64, bytes: usize) => vmm::unmap;
    virtualised cuMemGetAllocationGranularity: (granularity: *mut usize, properties: *const properties::Properties, option: c_int) => vmm::granularity;
    virtualised cuMemSetAccess: (pointer: u64, bytes: usize, access: *const locations::Access, count: usize) => locations::set_access;
    virtualised cuMemGetAccess: (flags: *mut c_ulonglong, location: *const locations::Location, pointer: u64) => locations::get_access;
    virtualised cuMemPoolSetAccess: (pool: usize, access: *const locations::Access, count: usize) => locations::set_pool_access;
    virtualised cuMemPoolGetAccess: (flags: *mut c_int, pool: usize, location: *mut locations::Location) => locations::get_pool_access;

    charged cuMemExportToShareableHandle: (shared: *mut c_void, handle: u64, kind: c_int, flags: c_ulonglong) => exports::physical;
    charged cuMemGetHandleForAddressRange: (shared: *mut c_void, pointer: u64, bytes: usize, kind: c_int, flags: c_ulonglong) => exports::range;
    virtualised cuMemGetAllocationPropertiesFromHandle: (properties: *mut properties::Properties, handle: u64) => vmm::properties;

    virtualised cuLogicalEndpointCreate: (endpoint: c_uint, properties: *const endpoints::Properties) => endpoints::create;
    virtualised cuLogicalEndpointGetLimits: (alignment: *mut u64, largest: *mut u64, properties: *const endpoints::Properties) => endpoints::limits;
    charged cuLogicalEndpointBindMem: (endpoint: c_uint, device: c_int, offset: u64, memory: u64, from: u64, bytes: u64, flags: c_ulonglong) => endpoints::bind_memory;
    charged cuLogicalEndpointBindAddr: (endpoint: c_uint, device: c_int, offset: u64, address: *mut c_void, bytes: u64, flags: c_ulonglong) => endpoints::bind_address;
    released cuLogicalEndpointUnbind: (endpoint: c_uint, device: c_int, offset: u64, bytes: u64) => endpoints::unbind;
    released cuLogicalEndpointDestroy: (endpoint: c_uint) => endpoints::destroy;

    charged cuArrayCreate_v2: (array: *mut usize, descriptor: *const shapes::Flat) => array_calls::create;
    charged cuArrayCreate: (array: *mut usize, descriptor: *const shapes::FlatV1) => array_calls::create;
    charged cuArray3DCreate_v2: (array: *mut usize, descriptor: *const shapes::Solid) => array_calls::create;
    charged cuArray3DCreate: (array: *mut usize, descriptor: *const shapes::SolidV1) => array_calls::create;
    charged cuMipmappedArrayCreate: (array: *mut usize, descriptor: *const shapes::Solid, levels: c_uint) => array_calls::create_mipmapped;
    released cuArrayDestroy, cuMipmappedArrayDestroy: (array: usize) => array_calls::destroy;

    charged cuDevicePrimaryCtxRetain: (context: *mut usize, device: c_int) => context_calls::retain;
    released cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2: (device: c_int) => context_calls::release;
    released cuDevicePrimaryCtxReset, cuDevicePrimaryCtxReset_v2: (device: c_int) => context_calls::reset;
    charged cuCtxCreate, cuCtxCreate_v2: (context: *mut usize, flags: c_uint, device: c_int) => context_calls::create;
    charged cuCtxCreate_v3: (context: *mut usize, parameters: *mut c_void, count: c_int, flags: c_uint, device: c_int) => context_calls::create_v3;
    charged cuCtxCreate_v4: (context: *mut usize, parameters: *mut c_void, flags: c_uint, device: c_int) => context_calls::create_v4;
    charged cuGLCtxCreate, cuGLCtxCreate_v2: (context: *mut usize, flags: c_uint, device: c_int) => context_calls::create;
    charged cuVDPAUCtxCreate, cuVDPAUCtxCreate_v2: (context: *mut usize, flags: c_uint, device: c_int, vdpau: c_uint, functions: *mut c_void) => context_calls::create_vdpau;
    limited cuCtxAttach: (context: *mut usize, flags: c_uint) => context_calls::attach;
    released cuCtxDetach: (context: usize) => context_calls::detach;
    released cuCtxDestroy, cuCtxDestroy_v2, cuGreenCtxDestroy: (context: usize) => context_calls::destroy;
    charged cuGreenCtxCreate: (context: *mut usize, resources: usize, device: c_int, flags: c_uint) => context_calls::create_green;
    charged cuCtxSetLimit: (limit: c_int, value: usize) => modules::set_limit;
    charged cuModuleLoad, cuModuleLoadData, cuModuleLoadFatBinary: (module: *mut usize, image: *const c_void) => modules::load;
    charged cuModuleLoadDataEx: (module: *mut usize, image: *const c_void, count: c_uint, options: *mut c_int, values: *mut *mut c_void) => modules::load_ex;
    released cuModuleUnload, cuLibraryUnload: (module: usize) => modules::unload;
    charged cuLibraryLoadData, cuLibraryLoadFromFile: (library: *mut usize, code: *const c_void, jit: *mut c_int, jit_values: *mut *mut c_void, jit_count: c_uint, options: *mut c_int, values: *mut *mut c_void, count: c_uint) => modules::load_library;
    charged cuFuncLoad: (function: usize) => modules::load_function;

    virtualised cuDeviceGetCount: (count: *mut c_int) => device_list::count;
    virtualised cuDeviceGet: (device: *mut c_int, ordinal: c_int) => device_list::get;
    virtualised cuDeviceGetByPCIBusId: (device: *mut c_int, address: *const c_char) => device_list::by_pci;
    virtualised cuCtxGetDevice: (device: *mut c_int) => device_list::of_context;
    virtualised cuCtxGetDevice_v2: (device: *mut c_int, context: usize) => device_list::of_that_context;
    virtualised cuStreamGetDevice, cuStreamGetDevice_ptsz: (stream: usize, device: *mut c_int) => device_list::of_stream;
    virtualised cuMemPrefetchAsync_v2, cuMemPrefetchAsync_v2_ptsz: (pointer: u64, bytes: usize, location: locations::Location, flags: c_uint, stream: usize) => locations::prefetch;
    virtualised cuMemAdvise_v2: (pointer: u64, bytes: usize, advice: c_int, location: locations::Location) => locations::advise;
    virtualised cuMemPrefetchBatchAsync, cuMemPrefetchBatchAsync_ptsz, cuMemDiscardAndPrefetchBatchAsync, cuMemDiscardAndPrefetchBatchAsync_ptsz: (pointers: *mut u64, sizes: *mut usize, count: usize, locations: *mut locations::Location, starts: *mut usize, places: usize, flags: c_ulonglong, stream: usize) => places::prefetch_batch;
    virtualised cuMemRangeGetAttribute: (data: *mut c_void, size: usize, attribute: c_int, pointer: u64, bytes: usize) => places::range_attribute;
    virtualised cuMemRangeGetAttributes: (data: *mut *mut c_void, sizes: *mut usize, attributes: *mut c_int, count: usize, pointer: u64, bytes: usize) => places::range_attributes;
    virtualised cuMemGetLocationInfo: (pointer: u64, bytes: usize, part: usize, sample: usize, locations: *mut locations::Location) => places::location_info;
    virtualised cuMemGetMemPool, cuMemGetDefaultMemPool: (pool: *mut usize, location: *mut locations::Location, kind: c_int) => places::pool_of;
    virtualised cuMemSetMemPool: (location: *mut locations::Location, kind: c_int, pool: usize) => places::set_pool;
    virtualised cuMemPoolGetAttribute: (pool: usize, attribute: c_int, value: *mut c_void) => places::pool_attribute;
    virtualised cuGraphNodeGetParams: (node: usize, params: *mut graph_calls::NodeParams) => graph_calls::node_params;
    virtualised cuGLGetDevices, cuGLGetDevices_v2: (count: *mut c_uint, list: *mut c_int, room: c_uint, which: c_int) => interop::gl_devices;
    virtualised cuVDPAUGetDevice: (device: *mut c_int, vdpau: c_uint, functions: *mut c_void) => interop::vdpau_device;
    virtualised cuPointerGetAttributes: (count: c_uint, attributes: *mut c_int, values: *mut *mut c_void, pointer: u64) => device_list::of_pointer_all;
    virtualised cuPointerGetAttribute: (value: *mut c_void, attribute: c_int, pointer: u64) => device_list::of_pointer;
}

// These two answer without a share as well: it is they that name the refusal.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorString(error: c_int, text: *mut *const c_char) -> c_int {
    // SAFETY: passed on.
    unsafe { errors::describe(error, text, crate::names::slot::cuGetErrorString) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorName(error: c_int, text: *mut *const c_char) -> c_int {
    // SAFETY: passed on.
    unsafe { errors::describe(error, text, crate::names::slot::cuGetErrorName) }
}

/* Declared for build.rs:
    virtualised cuGetErrorString, cuGetErrorName
*/
