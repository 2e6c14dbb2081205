//! The driver by NVML.
