//! The public names of both libraries, for counters and tests. Generated: see `names/generate.py`.

/// Every public name of libcuda.so.1, sorted.
pub const CUDA: &str = include_str!("../names/cuda.txt");
/// Those of `CUDA` that are objects, not functions.
pub const CUDA_DATA: &str = include_str!("../names/cuda-data.txt");
/// Every public name of libnvidia-ml.so.1, sorted.
pub const NVML: &str = include_str!("../names/nvml.txt");
