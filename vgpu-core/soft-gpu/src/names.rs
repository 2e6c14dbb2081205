//! The public names of both libraries, for counters and tests. Generated: see `vgpu-core/soft-gpu/names/generate.py`.

/// Every public name of libcuda.so.1, sorted.
pub const CUDA: &str = include_str!("../../shim/names/cuda.txt");
/// Every public name of libnvidia-ml.so.1, sorted.
pub const NVML: &str = include_str!("../../shim/names/nvml.txt");
