//! The machine: versions, process names.

use crate::codes::{NOT_FOUND, NOT_SUPPORTED, Out, text};
use crate::library::{handle, state};

fn cuda_version() -> Result<i32, soft_gpu::c::Code> {
    let (major, minor) = state()?.profile().cuda_version;
    Ok((major * 1000 + minor * 10) as i32)
}

soft_gpu::api! {
    fn nvmlSystemGetDriverVersion(out: Out<u8>, room: u32) {
        text(out, room, &state()?.profile().driver_version)
    }

    fn nvmlSystemGetNVMLVersion(out: Out<u8>, room: u32) {
        let profile = state()?.profile();
        text(out, room, &format!("{}.{}", profile.cuda_version.0, profile.driver_version))
    }

    fn nvmlSystemGetCudaDriverVersion(out: Out<i32>) {
        out.set(cuda_version()?)
    }

    fn nvmlSystemGetCudaDriverVersion_v2(out: Out<i32>) {
        out.set(cuda_version()?)
    }

    fn nvmlSystemGetDriverBranch(_info: Out<u64>, _room: u32) {
        state()?;
        Err(NOT_SUPPORTED)
    }

    fn nvmlSystemGetProcessName(pid: u32, out: Out<u8>, room: u32) {
        state()?;
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).map_err(|_| NOT_FOUND)?;
        let first = line.split(|byte| *byte == 0).next().unwrap_or_default();
        // Truncated instead of refused, as by NVML.
        out.text(&String::from_utf8_lossy(first), i32::try_from(room).unwrap_or(i32::MAX))
    }

    fn nvmlSystemGetHicVersion(count: Out<u32>, _entries: Out<u64>) {
        state()?;
        count.set(0)
    }

    fn nvmlSystemGetTopologyGpuSet(_cpu: u32, count: Out<u32>, devices: Out<u64>) {
        let gpus = state()?.gpus();
        if devices.given() {
            let all: Vec<u64> = gpus.iter().copied().take(count.get()? as usize).map(handle).collect();
            devices.fill(&all)?;
        }
        count.set(gpus.len() as u32)
    }

    fn nvmlUnitGetCount(count: Out<u32>) {
        state()?;
        count.set(0)
    }

    fn nvmlGetExcludedDeviceCount(count: Out<u32>) {
        state()?;
        count.set(0)
    }

    fn nvmlGetBlacklistDeviceCount(count: Out<u32>) {
        state()?;
        count.set(0)
    }
}
