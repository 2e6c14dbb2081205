//! Hooked names of the driver API, apart from those that only take a device.

use crate::hooks::contexts::code;
use crate::hooks::memory::alloc::Kind;
use crate::hooks::physical::multicast::{self, range};
use crate::hooks::{contexts, devices, entry, graphs, memory, physical, sharing};
use core::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};
use vgpu_core::arbiter::per_thread;

hooks! { cuda;
    limited cuInit: (flags: c_uint) => entry::init::init();
    virtualised cuGetProcAddress: (symbol: *const c_char, function: *mut *mut c_void, version: c_int, flags: c_ulonglong) => entry::proc_address::look_up(symbol, function);
    virtualised cuGetProcAddress_v2: (symbol: *const c_char, function: *mut *mut c_void, version: c_int, flags: c_ulonglong, status: *mut c_int) => entry::proc_address::look_up(symbol, function);

    limited cuMemGetInfo_v2: (free: *mut usize, total: *mut usize) => memory::info::memory(free, total);
    limited cuMemGetInfo: (free: *mut c_uint, total: *mut c_uint) => memory::info::memory(free, total);
    limited cuDeviceTotalMem_v2: (bytes: *mut usize, device: c_int) => memory::info::total(bytes, device);
    limited cuDeviceTotalMem: (bytes: *mut c_uint, device: c_int) => memory::info::total(bytes, device);

    charged cuMemAlloc_v2: (pointer: *mut u64, bytes: usize) => memory::alloc::alloc(pointer, bytes, Kind::Packed);
    charged cuMemAlloc: (pointer: *mut c_uint, bytes: c_uint) => memory::alloc::alloc(pointer, bytes as usize, Kind::Packed);
    charged cuMemAllocPitch_v2: (pointer: *mut u64, pitch: *mut u64, width: usize, height: usize, element: c_uint) => memory::alloc::pitch(pointer, pitch, width as u64, height as u64);
    charged cuMemAllocPitch: (pointer: *mut c_uint, pitch: *mut c_uint, width: c_uint, height: c_uint, element: c_uint) => memory::alloc::pitch(pointer, pitch, width as u64, height as u64);
    charged cuMemAllocManaged: (pointer: *mut u64, bytes: usize, flags: c_uint) => memory::alloc::alloc(pointer, bytes, Kind::Managed);
    released cuMemFree_v2: (pointer: u64) => memory::free::free(pointer);
    released cuMemFree: (pointer: c_uint) => memory::free::free_v1(pointer);

    charged cuMemAllocAsync: (pointer: *mut u64, bytes: usize, stream: usize) => memory::pools::alloc(pointer, bytes, stream);
    charged cuMemAllocAsync_ptsz: (pointer: *mut u64, bytes: usize, stream: usize) => memory::pools::alloc(pointer, bytes, per_thread(stream));
    charged cuMemAllocFromPoolAsync: (pointer: *mut u64, bytes: usize, pool: usize, stream: usize) => memory::pools::alloc_from(pointer, bytes, pool, stream);
    charged cuMemAllocFromPoolAsync_ptsz: (pointer: *mut u64, bytes: usize, pool: usize, stream: usize) => memory::pools::alloc_from(pointer, bytes, pool, per_thread(stream));
    released cuMemFreeAsync: (pointer: u64, stream: usize) => memory::pools::free(pointer, stream);
    released cuMemFreeAsync_ptsz: (pointer: u64, stream: usize) => memory::pools::free(pointer, per_thread(stream));
    limited cuMemPoolCreate: (pool: *mut usize, properties: *const memory::pools::Properties) => |properties| memory::pools::create(pool, properties);
    released cuMemPoolDestroy: (pool: usize) => memory::pools::destroy(pool);
    released cuMemPoolTrimTo: (pool: usize, keep: usize) => memory::pools::trim();

    virtualised cuGraphAddMemAllocNode: (node: *mut usize, graph: usize, after: *const usize, count: usize, params: *mut graphs::calls::AllocNode) => |params| graphs::calls::add_alloc(params);
    virtualised cuGraphAddNode: (node: *mut usize, graph: usize, after: *const usize, count: usize, params: *mut graphs::calls::NodeParams) => |params| graphs::calls::add(params);
    virtualised cuGraphAddNode_v2, cuGraphAddNode_v3: (node: *mut usize, graph: usize, after: *const usize, edges: *const c_void, count: usize, params: *mut graphs::calls::NodeParams) => |params| graphs::calls::add(params);
    virtualised cuGraphMemAllocNodeGetParams: (node: usize, params: *mut graphs::calls::AllocNode) => graphs::calls::alloc_params(params);
    limited cuModuleGetFunction, cuLibraryGetKernel: (function: *mut usize, module: usize, name: *const c_char) => contexts::modules::find_function();
    limited cuKernelGetFunction: (function: *mut usize, kernel: usize) => contexts::modules::find_function();
    limited cuGraphInstantiate, cuGraphInstantiate_v2: (exec: *mut usize, graph: usize, bad: *mut usize, log: *mut c_char, room: usize) => graphs::calls::instantiate(exec, graph, None);
    limited cuGraphInstantiateWithFlags: (exec: *mut usize, graph: usize, flags: c_ulonglong) => graphs::calls::instantiate(exec, graph, None);
    charged cuGraphInstantiateWithParams, cuGraphInstantiateWithParams_ptsz: (exec: *mut usize, graph: usize, params: *mut graphs::calls::InstantiateParams) => graphs::calls::instantiate_with_params(exec, graph, params);
    charged cuGraphUpload, cuGraphUpload_ptsz: (exec: usize, stream: usize) => graphs::calls::upload(exec, stream);
    charged cuGraphLaunch: (exec: usize, stream: usize) => graphs::calls::launch(exec, stream, stream);
    charged cuGraphLaunch_ptsz: (exec: usize, stream: usize) => graphs::calls::launch(exec, stream, per_thread(stream));
    limited cuGraphExecUpdate: (exec: usize, graph: usize, bad: *mut usize, outcome: *mut c_int) => graphs::calls::update(exec, graph);
    limited cuGraphExecUpdate_v2: (exec: usize, graph: usize, outcome: *mut c_void) => graphs::calls::update(exec, graph);
    limited cuStreamEndCapture, cuStreamEndCapture_ptsz: (stream: usize, graph: *mut usize) => graphs::calls::end_capture(stream);
    limited cuStreamEndCaptureToCig, cuStreamEndCaptureToCig_ptsz: (stream: usize) => graphs::calls::end_capture(stream);
    released cuGraphExecDestroy: (exec: usize) => graphs::calls::destroy(exec);
    released cuDeviceGraphMemTrim: (device: c_int) => |device| graphs::calls::trim(device);

    charged cuMemCreate: (handle: *mut u64, bytes: usize, properties: *const physical::properties::Properties, flags: c_ulonglong) => |properties| physical::vmm::create(handle, bytes, properties, flags);
    released cuMemRelease: (handle: u64) => physical::vmm::release(handle);
    limited cuMemRetainAllocationHandle: (handle: *mut u64, address: *mut c_void) => physical::vmm::retain(handle, address);
    limited cuMemMap: (pointer: u64, bytes: usize, offset: usize, handle: u64, flags: c_ulonglong) => physical::vmm::map(pointer, bytes, offset, handle);
    charged cuMemImportFromShareableHandle: (handle: *mut u64, from: *mut c_void, kind: c_int) => physical::vmm::import(handle, from, kind);
    limited cuMemMapArrayAsync, cuMemMapArrayAsync_ptsz: (list: *mut memory::sparse::ArrayMap, count: c_uint, stream: usize) => |list| memory::sparse::map_array(list, count);
    limited cuMulticastCreate: (handle: *mut u64, properties: *const c_void) => physical::multicast::create(handle);
    limited cuMulticastBindMem: (object: u64, offset: usize, memory: u64, from: usize, bytes: usize, flags: c_ulonglong) => physical::multicast::bind_memory(object, offset, memory, from, bytes);
    limited cuMulticastBindMem_v2: (object: u64, device: c_int, offset: usize, memory: u64, from: usize, bytes: usize, flags: c_ulonglong) => |device| physical::bindings::bind_memory(multicast::of(object), device, range(offset, bytes), memory, from as u64);
    limited cuMulticastBindAddr: (object: u64, offset: usize, address: u64, bytes: usize, flags: c_ulonglong) => physical::multicast::bind_address(object, offset, address, bytes);
    limited cuMulticastBindAddr_v2: (object: u64, device: c_int, offset: usize, address: u64, bytes: usize, flags: c_ulonglong) => |device| physical::bindings::bind_address(multicast::of(object), device, range(offset, bytes), address);
    released cuMulticastUnbind: (object: u64, device: c_int, offset: usize, bytes: usize) => |device| physical::bindings::unbind(multicast::of(object), device, range(offset, bytes));

    limited cuIpcGetMemHandle: (handle: *mut sharing::imports::Handle, pointer: u64) => sharing::exports::ipc_handle(handle, pointer);
    charged cuIpcOpenMemHandle, cuIpcOpenMemHandle_v2: (pointer: *mut u64, handle: sharing::imports::Handle, flags: c_uint) => sharing::imports::open(pointer, handle);
    released cuIpcCloseMemHandle: (pointer: u64) => sharing::imports::close(pointer);
    charged cuMemPoolImportPointer: (pointer: *mut u64, pool: usize, data: *mut c_void) => sharing::imports::pool_pointer(pointer);
    charged cuImportExternalMemory: (memory: *mut usize, descriptor: *const sharing::externals::Descriptor) => sharing::externals::import(memory, descriptor);
    limited cuExternalMemoryGetMappedBuffer: (pointer: *mut u64, memory: usize, descriptor: *const c_void) => sharing::externals::buffer(pointer, memory);
    limited cuExternalMemoryGetMappedMipmappedArray: (array: *mut usize, memory: usize, descriptor: *const c_void) => sharing::externals::array(array, memory);
    released cuDestroyExternalMemory: (memory: usize) => sharing::externals::destroy(memory);
    released cuMemUnmap: (pointer: u64, bytes: usize) => physical::vmm::unmap(pointer, bytes);
    virtualised cuMemGetAllocationGranularity: (granularity: *mut usize, properties: *const physical::properties::Properties, option: c_int) => |properties| devices::locations::with_real(properties);
    virtualised cuMemSetAccess: (pointer: u64, bytes: usize, access: *const devices::locations::Access, count: usize) => |access| devices::locations::with_all_real(access, count);
    virtualised cuMemGetAccess: (flags: *mut c_ulonglong, location: *const devices::locations::Location, pointer: u64) => |location| devices::locations::with_real(location);
    virtualised cuMemPoolSetAccess: (pool: usize, access: *const devices::locations::Access, count: usize) => |access| devices::locations::with_all_real(access, count);
    virtualised cuMemPoolGetAccess: (flags: *mut c_int, pool: usize, location: *const devices::locations::Location) => |location| devices::locations::with_real(location);

    charged cuMemExportToShareableHandle: (shared: *mut c_void, handle: u64, kind: c_int, flags: c_ulonglong) => sharing::exports::physical(shared, handle, kind);
    charged cuMemGetHandleForAddressRange: (shared: *mut c_void, pointer: u64, bytes: usize, kind: c_int, flags: c_ulonglong) => sharing::exports::range(pointer, bytes);
    virtualised cuMemGetAllocationPropertiesFromHandle: (properties: *mut physical::properties::Properties, handle: u64) => physical::vmm::properties(properties, handle);

    virtualised cuLogicalEndpointCreate: (endpoint: c_uint, properties: *const physical::endpoints::Properties) => |properties| physical::endpoints::with_real(properties);
    virtualised cuLogicalEndpointGetLimits: (alignment: *mut u64, largest: *mut u64, properties: *const physical::endpoints::Properties) => |properties| physical::endpoints::with_real(properties);
    charged cuLogicalEndpointBindMem: (endpoint: c_uint, device: c_int, offset: u64, memory: u64, from: u64, bytes: u64, flags: c_ulonglong) => |device| physical::bindings::bind_memory(physical::endpoints::of(endpoint), device, (offset, bytes), memory, from);
    charged cuLogicalEndpointBindAddr: (endpoint: c_uint, device: c_int, offset: u64, address: *mut c_void, bytes: u64, flags: c_ulonglong) => |device| physical::bindings::bind_address(physical::endpoints::of(endpoint), device, (offset, bytes), address as u64);
    released cuLogicalEndpointUnbind: (endpoint: c_uint, device: c_int, offset: u64, bytes: u64) => |device| physical::bindings::unbind(physical::endpoints::of(endpoint), device, (offset, bytes));
    released cuLogicalEndpointDestroy: (endpoint: c_uint) => physical::endpoints::destroy(endpoint);

    charged cuArrayCreate_v2: (array: *mut usize, descriptor: *const memory::shapes::Flat) => memory::arrays::create(array, descriptor, 1);
    charged cuArrayCreate: (array: *mut usize, descriptor: *const memory::shapes::FlatV1) => memory::arrays::create(array, descriptor, 1);
    charged cuArray3DCreate_v2: (array: *mut usize, descriptor: *const memory::shapes::Solid) => memory::arrays::create(array, descriptor, 1);
    charged cuArray3DCreate: (array: *mut usize, descriptor: *const memory::shapes::SolidV1) => memory::arrays::create(array, descriptor, 1);
    charged cuMipmappedArrayCreate: (array: *mut usize, descriptor: *const memory::shapes::Solid, levels: c_uint) => memory::arrays::create(array, descriptor, levels);
    released cuArrayDestroy, cuMipmappedArrayDestroy: (array: usize) => memory::arrays::destroy(array);

    charged cuDevicePrimaryCtxRetain: (context: *mut usize, device: c_int) => |device| contexts::calls::retain(context, device);
    released cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2: (device: c_int) => |device| contexts::calls::release_primary(device, false);
    released cuDevicePrimaryCtxReset, cuDevicePrimaryCtxReset_v2: (device: c_int) => |device| contexts::calls::release_primary(device, true);
    charged cuCtxCreate, cuCtxCreate_v2: (context: *mut usize, flags: c_uint, device: c_int) => |device| contexts::calls::create(context, device, false);
    charged cuCtxCreate_v3: (context: *mut usize, parameters: *mut c_void, count: c_int, flags: c_uint, device: c_int) => |device| contexts::calls::create(context, device, false);
    charged cuCtxCreate_v4: (context: *mut usize, parameters: *mut c_void, flags: c_uint, device: c_int) => |device| contexts::calls::create(context, device, false);
    charged cuGLCtxCreate, cuGLCtxCreate_v2: (context: *mut usize, flags: c_uint, device: c_int) => |device| contexts::calls::create(context, device, false);
    charged cuVDPAUCtxCreate, cuVDPAUCtxCreate_v2: (context: *mut usize, flags: c_uint, device: c_int, vdpau: c_uint, functions: *mut c_void) => |device| contexts::calls::create(context, device, false);
    limited cuCtxAttach: (context: *mut usize, flags: c_uint) => contexts::calls::attach(context);
    released cuCtxDetach: (context: usize) => contexts::calls::detach(context);
    released cuCtxDestroy, cuCtxDestroy_v2, cuGreenCtxDestroy: (context: usize) => contexts::calls::destroy(context);
    charged cuGreenCtxCreate: (context: *mut usize, resources: usize, device: c_int, flags: c_uint) => |device| contexts::calls::create(context, device, true);
    charged cuCtxSetLimit: (limit: c_int, value: usize) => |value| contexts::modules::set_limit(limit, value);
    charged cuModuleLoad: (module: *mut usize, path: *const c_void) => contexts::modules::load_module(module, code::in_file, path);
    charged cuModuleLoadData, cuModuleLoadFatBinary: (module: *mut usize, image: *const c_void) => contexts::modules::load_module(module, code::in_memory, image);
    charged cuModuleLoadDataEx: (module: *mut usize, image: *const c_void, count: c_uint, options: *mut c_int, values: *mut *mut c_void) => contexts::modules::load_module(module, code::in_memory, image);
    released cuModuleUnload: (module: usize) => contexts::modules::unload_module(module);
    released cuLibraryUnload: (library: usize) => contexts::modules::unload_library(library);
    charged cuLibraryLoadData: (library: *mut usize, code: *const c_void, jit: *mut c_int, jit_values: *mut *mut c_void, jit_count: c_uint, options: *mut c_int, values: *mut *mut c_void, count: c_uint) => contexts::modules::load_library(library, code::in_memory, code);
    charged cuLibraryLoadFromFile: (library: *mut usize, code: *const c_void, jit: *mut c_int, jit_values: *mut *mut c_void, jit_count: c_uint, options: *mut c_int, values: *mut *mut c_void, count: c_uint) => contexts::modules::load_library(library, code::in_file, code);
    charged cuFuncLoad: (function: usize) => contexts::modules::load_function(function);

    virtualised cuDeviceGetCount: (count: *mut c_int) => devices::list::count(count);
    virtualised cuDeviceGet: (device: *mut c_int, ordinal: c_int) => devices::list::get(device, ordinal);
    virtualised cuDeviceGetByPCIBusId: (device: *mut c_int, address: *const c_char) => devices::list::with_ordinal(device);
    virtualised cuCtxGetDevice: (device: *mut c_int) => devices::list::with_ordinal(device);
    virtualised cuCtxGetDevice_v2: (device: *mut c_int, context: usize) => devices::list::with_ordinal(device);
    virtualised cuStreamGetDevice, cuStreamGetDevice_ptsz: (stream: usize, device: *mut c_int) => devices::list::with_ordinal(device);
    virtualised cuMemPrefetchAsync_v2, cuMemPrefetchAsync_v2_ptsz: (pointer: u64, bytes: usize, location: devices::locations::Location, flags: c_uint, stream: usize) => |location| devices::locations::at_real(location);
    virtualised cuMemAdvise_v2: (pointer: u64, bytes: usize, advice: c_int, location: devices::locations::Location) => |location| devices::locations::at_real(location);
    virtualised cuMemPrefetchBatchAsync, cuMemPrefetchBatchAsync_ptsz, cuMemDiscardAndPrefetchBatchAsync, cuMemDiscardAndPrefetchBatchAsync_ptsz: (pointers: *mut u64, sizes: *mut usize, count: usize, locations: *const devices::locations::Location, starts: *mut usize, places: usize, flags: c_ulonglong, stream: usize) => |locations| devices::locations::with_all_real(locations, places);
    virtualised cuMemRangeGetAttribute: (data: *mut c_void, size: usize, attribute: c_int, pointer: u64, bytes: usize) => devices::locations::range_attribute(data, size, attribute, (pointer, bytes));
    virtualised cuMemRangeGetAttributes: (data: *mut *mut c_void, sizes: *mut usize, attributes: *mut c_int, count: usize, pointer: u64, bytes: usize) => devices::locations::range_attributes(data, sizes, attributes, count, (pointer, bytes));
    virtualised cuMemGetLocationInfo: (pointer: u64, bytes: usize, part: usize, sample: usize, locations: *mut devices::locations::Location) => devices::locations::location_info(locations, bytes, part);
    virtualised cuMemGetMemPool, cuMemGetDefaultMemPool: (pool: *mut usize, location: *const devices::locations::Location, kind: c_int) => |location| devices::locations::pool_of(pool, location);
    virtualised cuMemSetMemPool: (location: *const devices::locations::Location, kind: c_int, pool: usize) => |location| devices::locations::with_real(location);
    virtualised cuMemPoolGetAttribute: (pool: usize, attribute: c_int, value: *mut c_void) => |attribute, value| devices::locations::pool_attribute(attribute, value);
    virtualised cuGraphNodeGetParams: (node: usize, params: *mut graphs::calls::NodeParams) => graphs::calls::node_params(params);
    virtualised cuGLGetDevices, cuGLGetDevices_v2: (count: *mut c_uint, list: *mut c_int, room: c_uint, which: c_int) => |count, list, room| sharing::interop::gl_devices(count, list, room);
    virtualised cuVDPAUGetDevice: (device: *mut c_int, vdpau: c_uint, functions: *mut c_void) => devices::list::with_ordinal(device);
    virtualised cuPointerGetAttributes: (count: c_uint, attributes: *mut c_int, values: *mut *mut c_void, pointer: u64) => devices::list::of_pointer_all(count, attributes, values);
    virtualised cuPointerGetAttribute: (value: *mut c_void, attribute: c_int, pointer: u64) => devices::list::of_pointer(value, attribute);
}

// These two also work without a share, because they give the text of the refusal.
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
