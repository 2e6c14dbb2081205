//! nvml-wrapper, found at run time. Prints what `clients/pynvml_view.py` prints.

use nvml_wrapper::Nvml;
use nvml_wrapper::enums::device::UsedGpuMemory;

fn main() {
    let nvml = Nvml::init().expect("NVML");
    let gpu = nvml.device_by_index(0).expect("a GPU");
    let memory = gpu.memory_info().expect("sizes");
    assert_eq!(memory.used + memory.free, memory.total, "{memory:?}");
    let processes: String = gpu
        .running_compute_processes()
        .expect("processes")
        .iter()
        .map(|process| match process.used_gpu_memory {
            UsedGpuMemory::Used(bytes) => format!(" {}:{bytes}", process.pid),
            UsedGpuMemory::Unavailable => format!(" {}:unknown", process.pid),
        })
        .collect();
    let count = nvml.device_count().expect("a count");
    println!("{count} {} {}{processes}", memory.total, memory.used);
}
