//! Hooked names of the driver API, apart from those that only take a device.

use crate::hooks::{contexts, devices, entry, graphs, memory, physical, sharing};
use core::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};

hooks! { cuda;
    limited cuInit: (flags: c_uint) => entry::init::init;
    virtualised cuGetProcAddress: (symbol: *const c_char, function: *mut *mut c_void, version: c_int, flags: c_ulonglong) => entry::proc_address::v1;
    virtualised cuGetProcAddress_v2: (symbol: *const c_char, function: *mut *mut c_void, version: c_int, flags: c_ulonglong, status: *mut c_int) => entry::proc_address::v2;

    limited cuMemGetInfo_v2: (free: *mut usize, total: *mut usize) => memory::info::memory;
    limited cuMemGetInfo: (free: *mut c_uint, total: *mut c_uint) => memory::info::memory_v1;
    limited cuDeviceTotalMem_v2: (bytes: *mut usize, device: c_int) => memory::info::total;
    limited cuDeviceTotalMem: (bytes: *mut c_uint, device: c_int) => memory::info::total_v1;

    charged cuMemAlloc_v2: (pointer: *mut u64, bytes: usize) => memory::alloc::alloc;
    charged cuMemAlloc: (pointer: *mut c_uint, bytes: c_uint) => memory::alloc::alloc_v1;
    charged cuMemAllocPitch_v2: (pointer: *mut u64, pitch: *mut usize, width: usize, height: usize, element: c_uint) => memory::alloc::pitch;
    charged cuMemAllocPitch: (pointer: *mut c_uint, pitch: *mut c_uint, width: c_uint, height: c_uint, element: c_uint) => memory::alloc::pitch_v1;
    charged cuMemAllocManaged: (pointer: *mut u64, bytes: usize, flags: c_uint) => memory::alloc::managed;
    released cuMemFree_v2: (pointer: u64) => memory::free::free;
    released cuMemFree: (pointer: c_uint) => memory::free::free_v1;

    charged cuMemAllocAsync: (pointer: *mut u64, bytes: usize, stream: usize) => memory::pools::alloc;
    charged cuMemAllocAsync_ptsz: (pointer: *mut u64, bytes: usize, stream: usize) => memory::pools::alloc_ptsz;
    charged cuMemAllocFromPoolAsync: (pointer: *mut u64, bytes: usize, pool: usize, stream: usize) => memory::pools::alloc_from;
    charged cuMemAllocFromPoolAsync_ptsz: (pointer: *mut u64, bytes: usize, pool: usize, stream: usize) => memory::pools::alloc_from_ptsz;
    released cuMemFreeAsync: (pointer: u64, stream: usize) => memory::pools::free;
    released cuMemFreeAsync_ptsz: (pointer: u64, stream: usize) => memory::pools::free_ptsz;
    limited cuMemPoolCreate: (pool: *mut usize, properties: *const memory::pools::Properties) => memory::pools::create;
    released cuMemPoolDestroy: (pool: usize) => memory::pools::destroy;
    released cuMemPoolTrimTo: (pool: usize, keep: usize) => memory::pools::trim;

    virtualised cuGraphAddMemAllocNode: (node: *mut usize, graph: usize, after: *const usize, count: usize, params: *mut graphs::calls::AllocNode) => graphs::calls::add_alloc;
    virtualised cuGraphAddNode: (node: *mut usize, graph: usize, after: *const usize, count: usize, params: *mut graphs::calls::NodeParams) => graphs::calls::add;
    virtualised cuGraphAddNode_v2, cuGraphAddNode_v3: (node: *mut usize, graph: usize, after: *const usize, edges: *const c_void, count: usize, params: *mut graphs::calls::NodeParams) => graphs::calls::add_v2;
    virtualised cuGraphMemAllocNodeGetParams: (node: usize, params: *mut graphs::calls::AllocNode) => graphs::calls::alloc_params;
    limited cuModuleGetFunction, cuLibraryGetKernel: (function: *mut usize, module: usize, name: *const c_char) => contexts::modules::named_function;
    limited cuKernelGetFunction: (function: *mut usize, kernel: usize) => contexts::modules::function_of_kernel;
    limited cuGraphInstantiate, cuGraphInstantiate_v2: (exec: *mut usize, graph: usize, bad: *mut usize, log: *mut c_char, room: usize) => graphs::calls::instantiate;
    limited cuGraphInstantiateWithFlags: (exec: *mut usize, graph: usize, flags: c_ulonglong) => graphs::calls::instantiate_with_flags;
    charged cuGraphInstantiateWithParams, cuGraphInstantiateWithParams_ptsz: (exec: *mut usize, graph: usize, params: *mut graphs::calls::InstantiateParams) => graphs::calls::instantiate_with_params;
    charged cuGraphUpload, cuGraphUpload_ptsz: (exec: usize, stream: usize) => graphs::calls::upload;
    charged cuGraphLaunch: (exec: usize, stream: usize) => graphs::calls::launch::<false>;
    charged cuGraphLaunch_ptsz: (exec: usize, stream: usize) => graphs::calls::launch::<true>;
    limited cuGraphExecUpdate: (exec: usize, graph: usize, bad: *mut usize, outcome: *mut c_int) => graphs::calls::update;
    limited cuGraphExecUpdate_v2: (exec: usize, graph: usize, outcome: *mut c_void) => graphs::calls::update_v2;
    limited cuStreamEndCapture, cuStreamEndCapture_ptsz: (stream: usize, graph: *mut usize) => graphs::calls::end_capture;
    limited cuStreamEndCaptureToCig, cuStreamEndCaptureToCig_ptsz: (stream: usize) => graphs::calls::end_capture_to_list;
    released cuGraphExecDestroy: (exec: usize) => graphs::calls::destroy;
    released cuDeviceGraphMemTrim: (device: c_int) => graphs::calls::trim;

    charged cuMemCreate: (handle: *mut u64, bytes: usize, properties: *const physical::properties::Properties, flags: c_ulonglong) => physical::vmm::create;
    released cuMemRelease: (handle: u64) => physical::vmm::release;
    limited cuMemRetainAllocationHandle: (handle: *mut u64, address: *mut c_void) => physical::vmm::retain;
    limited cuMemMap: (pointer: u64, bytes: usize, offset: usize, handle: u64, flags: c_ulonglong) => physical::vmm::map;
    charged cuMemImportFromShareableHandle: (handle: *mut u64, from: *mut c_void, kind: c_int) => physical::vmm::import;
    limited cuMemMapArrayAsync, cuMemMapArrayAsync_ptsz: (list: *mut memory::sparse::ArrayMap, count: c_uint, stream: usize) => memory::sparse::map_array;
    limited cuMulticastCreate: (handle: *mut u64, properties: *const c_void) => physical::multicast::create;
    limited cuMulticastBindMem: (object: u64, offset: usize, memory: u64, from: usize, bytes: usize, flags: c_ulonglong) => physical::multicast::bind_memory;
    limited cuMulticastBindMem_v2: (object: u64, device: c_int, offset: usize, memory: u64, from: usize, bytes: usize, flags: c_ulonglong) => physical::multicast::bind_memory_v2;
    limited cuMulticastBindAddr: (object: u64, offset: usize, address: u64, bytes: usize, flags: c_ulonglong) => physical::multicast::bind_address;
    limited cuMulticastBindAddr_v2: (object: u64, device: c_int, offset: usize, address: u64, bytes: usize, flags: c_ulonglong) => physical::multicast::bind_address_v2;
    released cuMulticastUnbind: (object: u64, device: c_int, offset: usize, bytes: usize) => physical::multicast::unbind;

    limited cuIpcGetMemHandle: (handle: *mut sharing::imports::Handle, pointer: u64) => sharing::exports::ipc_handle;
    charged cuIpcOpenMemHandle, cuIpcOpenMemHandle_v2: (pointer: *mut u64, handle: sharing::imports::Handle, flags: c_uint) => sharing::imports::open;
    released cuIpcCloseMemHandle: (pointer: u64) => sharing::imports::close;
    charged cuMemPoolImportPointer: (pointer: *mut u64, pool: usize, data: *mut c_void) => sharing::imports::pool_pointer;
    charged cuImportExternalMemory: (memory: *mut usize, descriptor: *const sharing::externals::Descriptor) => sharing::externals::import;
    limited cuExternalMemoryGetMappedBuffer: (pointer: *mut u64, memory: usize, descriptor: *const c_void) => sharing::externals::buffer;
    limited cuExternalMemoryGetMappedMipmappedArray: (array: *mut usize, memory: usize, descriptor: *const c_void) => sharing::externals::array;
    released cuDestroyExternalMemory: (memory: usize) => sharing::externals::destroy;
    released cuMemUnmap: (pointer: u64, bytes: usize) => physical::vmm::unmap;
    virtualised cuMemGetAllocationGranularity: (granularity: *mut usize, properties: *const physical::properties::Properties, option: c_int) => physical::vmm::granularity;
    virtualised cuMemSetAccess: (pointer: u64, bytes: usize, access: *const devices::locations::Access, count: usize) => devices::locations::set_access;
    virtualised cuMemGetAccess: (flags: *mut c_ulonglong, location: *const devices::locations::Location, pointer: u64) => devices::locations::get_access;
    virtualised cuMemPoolSetAccess: (pool: usize, access: *const devices::locations::Access, count: usize) => devices::locations::set_pool_access;
    virtualised cuMemPoolGetAccess: (flags: *mut c_int, pool: usize, location: *mut devices::locations::Location) => devices::locations::get_pool_access;

    charged cuMemExportToShareableHandle: (shared: *mut c_void, handle: u64, kind: c_int, flags: c_ulonglong) => sharing::exports::physical;
    charged cuMemGetHandleForAddressRange: (shared: *mut c_void, pointer: u64, bytes: usize, kind: c_int, flags: c_ulonglong) => sharing::exports::range;
    virtualised cuMemGetAllocationPropertiesFromHandle: (properties: *mut physical::properties::Properties, handle: u64) => physical::vmm::properties;

    virtualised cuLogicalEndpointCreate: (endpoint: c_uint, properties: *const physical::endpoints::Properties) => physical::endpoints::create;
    virtualised cuLogicalEndpointGetLimits: (alignment: *mut u64, largest: *mut u64, properties: *const physical::endpoints::Properties) => physical::endpoints::limits;
    charged cuLogicalEndpointBindMem: (endpoint: c_uint, device: c_int, offset: u64, memory: u64, from: u64, bytes: u64, flags: c_ulonglong) => physical::endpoints::bind_memory;
    charged cuLogicalEndpointBindAddr: (endpoint: c_uint, device: c_int, offset: u64, address: *mut c_void, bytes: u64, flags: c_ulonglong) => physical::endpoints::bind_address;
    released cuLogicalEndpointUnbind: (endpoint: c_uint, device: c_int, offset: u64, bytes: u64) => physical::endpoints::unbind;
    released cuLogicalEndpointDestroy: (endpoint: c_uint) => physical::endpoints::destroy;

    charged cuArrayCreate_v2: (array: *mut usize, descriptor: *const memory::shapes::Flat) => memory::arrays::create;
    charged cuArrayCreate: (array: *mut usize, descriptor: *const memory::shapes::FlatV1) => memory::arrays::create;
    charged cuArray3DCreate_v2: (array: *mut usize, descriptor: *const memory::shapes::Solid) => memory::arrays::create;
    charged cuArray3DCreate: (array: *mut usize, descriptor: *const memory::shapes::SolidV1) => memory::arrays::create;
    charged cuMipmappedArrayCreate: (array: *mut usize, descriptor: *const memory::shapes::Solid, levels: c_uint) => memory::arrays::create_mipmapped;
    released cuArrayDestroy, cuMipmappedArrayDestroy: (array: usize) => memory::arrays::destroy;

    charged cuDevicePrimaryCtxRetain: (context: *mut usize, device: c_int) => contexts::calls::retain;
    released cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2: (device: c_int) => contexts::calls::release;
    released cuDevicePrimaryCtxReset, cuDevicePrimaryCtxReset_v2: (device: c_int) => contexts::calls::reset;
    charged cuCtxCreate, cuCtxCreate_v2: (context: *mut usize, flags: c_uint, device: c_int) => contexts::calls::create;
    charged cuCtxCreate_v3: (context: *mut usize, parameters: *mut c_void, count: c_int, flags: c_uint, device: c_int) => contexts::calls::create_v3;
    charged cuCtxCreate_v4: (context: *mut usize, parameters: *mut c_void, flags: c_uint, device: c_int) => contexts::calls::create_v4;
    charged cuGLCtxCreate, cuGLCtxCreate_v2: (context: *mut usize, flags: c_uint, device: c_int) => contexts::calls::create;
    charged cuVDPAUCtxCreate, cuVDPAUCtxCreate_v2: (context: *mut usize, flags: c_uint, device: c_int, vdpau: c_uint, functions: *mut c_void) => contexts::calls::create_vdpau;
    limited cuCtxAttach: (context: *mut usize, flags: c_uint) => contexts::calls::attach;
    released cuCtxDetach: (context: usize) => contexts::calls::detach;
    released cuCtxDestroy, cuCtxDestroy_v2, cuGreenCtxDestroy: (context: usize) => contexts::calls::destroy;
    charged cuGreenCtxCreate: (context: *mut usize, resources: usize, device: c_int, flags: c_uint) => contexts::calls::create_green;
    charged cuCtxSetLimit: (limit: c_int, value: usize) => contexts::modules::set_limit;
    charged cuModuleLoad: (module: *mut usize, path: *const c_void) => contexts::modules::load;
    charged cuModuleLoadData, cuModuleLoadFatBinary: (module: *mut usize, image: *const c_void) => contexts::modules::load_data;
    charged cuModuleLoadDataEx: (module: *mut usize, image: *const c_void, count: c_uint, options: *mut c_int, values: *mut *mut c_void) => contexts::modules::load_ex;
    released cuModuleUnload: (module: usize) => contexts::modules::unload;
    released cuLibraryUnload: (library: usize) => contexts::modules::unload_library;
    charged cuLibraryLoadData: (library: *mut usize, code: *const c_void, jit: *mut c_int, jit_values: *mut *mut c_void, jit_count: c_uint, options: *mut c_int, values: *mut *mut c_void, count: c_uint) => contexts::modules::library_of_data;
    charged cuLibraryLoadFromFile: (library: *mut usize, code: *const c_void, jit: *mut c_int, jit_values: *mut *mut c_void, jit_count: c_uint, options: *mut c_int, values: *mut *mut c_void, count: c_uint) => contexts::modules::library_of_file;
    charged cuFuncLoad: (function: usize) => contexts::modules::load_function;

    virtualised cuDeviceGetCount: (count: *mut c_int) => devices::list::count;
    virtualised cuDeviceGet: (device: *mut c_int, ordinal: c_int) => devices::list::get;
    virtualised cuDeviceGetByPCIBusId: (device: *mut c_int, address: *const c_char) => devices::list::by_pci;
    virtualised cuCtxGetDevice: (device: *mut c_int) => devices::list::of_context;
    virtualised cuCtxGetDevice_v2: (device: *mut c_int, context: usize) => devices::list::of_that_context;
    virtualised cuStreamGetDevice, cuStreamGetDevice_ptsz: (stream: usize, device: *mut c_int) => devices::list::of_stream;
    virtualised cuMemPrefetchAsync_v2, cuMemPrefetchAsync_v2_ptsz: (pointer: u64, bytes: usize, location: devices::locations::Location, flags: c_uint, stream: usize) => devices::locations::prefetch;
    virtualised cuMemAdvise_v2: (pointer: u64, bytes: usize, advice: c_int, location: devices::locations::Location) => devices::locations::advise;
    virtualised cuMemPrefetchBatchAsync, cuMemPrefetchBatchAsync_ptsz, cuMemDiscardAndPrefetchBatchAsync, cuMemDiscardAndPrefetchBatchAsync_ptsz: (pointers: *mut u64, sizes: *mut usize, count: usize, locations: *mut devices::locations::Location, starts: *mut usize, places: usize, flags: c_ulonglong, stream: usize) => devices::locations::prefetch_batch;
    virtualised cuMemRangeGetAttribute: (data: *mut c_void, size: usize, attribute: c_int, pointer: u64, bytes: usize) => devices::locations::range_attribute;
    virtualised cuMemRangeGetAttributes: (data: *mut *mut c_void, sizes: *mut usize, attributes: *mut c_int, count: usize, pointer: u64, bytes: usize) => devices::locations::range_attributes;
    virtualised cuMemGetLocationInfo: (pointer: u64, bytes: usize, part: usize, sample: usize, locations: *mut devices::locations::Location) => devices::locations::location_info;
    virtualised cuMemGetMemPool, cuMemGetDefaultMemPool: (pool: *mut usize, location: *mut devices::locations::Location, kind: c_int) => devices::locations::pool_of;
    virtualised cuMemSetMemPool: (location: *mut devices::locations::Location, kind: c_int, pool: usize) => devices::locations::set_pool;
    virtualised cuMemPoolGetAttribute: (pool: usize, attribute: c_int, value: *mut c_void) => devices::locations::pool_attribute;
    virtualised cuGraphNodeGetParams: (node: usize, params: *mut graphs::calls::NodeParams) => graphs::calls::node_params;
    virtualised cuGLGetDevices, cuGLGetDevices_v2: (count: *mut c_uint, list: *mut c_int, room: c_uint, which: c_int) => sharing::interop::gl_devices;
    virtualised cuVDPAUGetDevice: (device: *mut c_int, vdpau: c_uint, functions: *mut c_void) => sharing::interop::vdpau_device;
    virtualised cuPointerGetAttributes: (count: c_uint, attributes: *mut c_int, values: *mut *mut c_void, pointer: u64) => devices::list::of_pointer_all;
    virtualised cuPointerGetAttribute: (value: *mut c_void, attribute: c_int, pointer: u64) => devices::list::of_pointer;
}

// These two answer without a share as well: it is they that name the refusal.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorString(error: c_int, text: *mut *const c_char) -> c_int {
    // SAFETY: passed on.
    unsafe { entry::errors::describe(error, text, crate::names::slot::cuGetErrorString) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorName(error: c_int, text: *mut *const c_char) -> c_int {
    // SAFETY: passed on.
    unsafe { entry::errors::describe(error, text, crate::names::slot::cuGetErrorName) }
}

/* Declared for build.rs:
    virtualised cuGetErrorString, cuGetErrorName
*/
