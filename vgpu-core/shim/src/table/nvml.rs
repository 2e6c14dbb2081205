//! Hooked names of NVML.

use crate::hooks::nvml;
use core::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};

hooks! { nvml;
    limited nvmlInit, nvmlInit_v2: () => nvml::devices::init();
    virtualised nvmlShutdown: () => nvml::devices::shutdown();
    limited nvmlInitWithFlags: (flags: c_uint) => nvml::devices::init();

    virtualised nvmlDeviceGetCount, nvmlDeviceGetCount_v2: (count: *mut c_uint) => nvml::devices::count(count);
    virtualised nvmlDeviceGetHandleByIndex, nvmlDeviceGetHandleByIndex_v2: (index: c_uint, device: *mut usize) => nvml::devices::by_index(index, device);
    virtualised nvmlDeviceGetHandleByUUID, nvmlDeviceGetHandleBySerial: (text: *const c_char, device: *mut usize) => |device| nvml::devices::by_text(device);
    virtualised nvmlDeviceGetHandleByPciBusId, nvmlDeviceGetHandleByPciBusId_v2: (text: *const c_char, device: *mut usize) => |device| nvml::devices::by_text(device);
    virtualised nvmlSystemGetTopologyGpuSet: (cpu: c_uint, count: *mut c_uint, devices: *mut usize) => nvml::devices::only_own(count, devices);
    virtualised nvmlDeviceGetTopologyNearestGpus: (device: usize, level: c_int, count: *mut c_uint, devices: *mut usize) => nvml::devices::only_own(count, devices);
    virtualised nvmlDeviceGetHandleByUUIDV: (uuid: *const c_void, device: *mut usize) => |device| nvml::devices::by_text(device);
    virtualised nvmlUnitGetDevices: (unit: usize, count: *mut c_uint, devices: *mut usize) => |count, devices| nvml::devices::of_unit(count, devices);
    virtualised nvmlDeviceGetMigDeviceHandleByIndex: (gpu: usize, index: c_uint, device: *mut usize) => |device| nvml::devices::instance_by_index(gpu, device);
    virtualised nvmlGpmMigSampleGet: (gpu: usize, id: c_uint, sample: usize) => nvml::devices::counters(gpu, id);
    virtualised nvmlDeviceGetIndex: (device: usize, index: *mut c_uint) => nvml::devices::index(device, index);

    limited nvmlDeviceGetMemoryInfo: (device: usize, info: *mut nvml::info::Memory) => nvml::info::memory(device, info);
    limited nvmlDeviceGetMemoryInfo_v2: (device: usize, info: *mut nvml::info::MemoryV2) => nvml::info::memory_v2(device, info);
    limited nvmlDeviceGetConfComputeMemSizeInfo: (device: usize, sizes: *mut nvml::whole::Sizes) => nvml::whole::sizes(device, sizes);
    limited nvmlDeviceGetConfComputeProtectedMemoryUsage: (device: usize, memory: *mut nvml::info::Memory) => nvml::whole::protected(device, memory);
    virtualised nvmlDeviceGetAccountingStats: (device: usize, pid: c_uint, stats: *mut c_void) => |pid| nvml::whole::accounting(device, pid);
    virtualised nvmlDeviceGetAccountingStats_v2: (device: usize, stats: *mut c_uint) => nvml::whole::accounting_v2(device, stats);
    virtualised nvmlDeviceGetComputeRunningProcesses: (device: usize, count: *mut c_uint, list: *mut nvml::info::ProcessV1) => nvml::info::processes(device, count, list);
    virtualised nvmlDeviceGetComputeRunningProcesses_v2, nvmlDeviceGetComputeRunningProcesses_v3: (device: usize, count: *mut c_uint, list: *mut nvml::list::Process) => nvml::info::processes(device, count, list);
    virtualised nvmlDeviceGetGraphicsRunningProcesses, nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlDeviceGetGraphicsRunningProcesses_v3: (device: usize, count: *mut c_uint, list: *mut u8) => nvml::info::no_processes(device, count);
    virtualised nvmlDeviceGetMPSComputeRunningProcesses, nvmlDeviceGetMPSComputeRunningProcesses_v2, nvmlDeviceGetMPSComputeRunningProcesses_v3: (device: usize, count: *mut c_uint, list: *mut u8) => nvml::info::no_processes(device, count);
    virtualised nvmlDeviceGetUtilizationRates: (device: usize, rates: *mut nvml::usage::Rates) => nvml::usage::rates(device, rates);
    virtualised nvmlDeviceGetProcessUtilization: (device: usize, samples: *mut nvml::usage::Sample, count: *mut c_uint, since: c_ulonglong) => nvml::usage::of_processes(device, samples, count);
    virtualised nvmlDeviceGetAccountingPids: (device: usize, count: *mut c_uint, pids: *mut c_uint) => nvml::info::accounting_pids(device, count, pids);
    virtualised nvmlDeviceGetProcessesUtilizationInfo, nvmlDeviceGetRunningProcessDetailList: (device: usize, list: *mut c_void) => nvml::info::unsupported();
    virtualised nvmlInternalGetExportTable: (table: *mut *const c_void, id: *const c_void) => nvml::export_table::get(table);
}

// Also works without a share, because it gives the text of the refusal.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlErrorString(error: c_int) -> *const c_char {
    nvml::info::error_text(error)
}

/* Declared for build.rs:
    virtualised nvmlErrorString
*/
