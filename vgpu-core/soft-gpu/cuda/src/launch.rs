//! Launches: a kernel uses GPU time, by its name or its grid, in its stream.

use soft_gpu::timeline::kernel_ns;

use crate::code::{INVALID_HANDLE, INVALID_VALUE, Res};
use crate::driver::{self, Driver};
use crate::ffi::{In, Out};
use crate::module::{is_function, named_ns};
use crate::stream;

/// A launch's shape: grid, then block.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Shape {
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
}

impl Shape {
    /// GPU time that it takes, alone. A function that does not exist has no name that could say it.
    #[inline]
    pub(crate) fn cost(self, driver: &Driver, function: u64) -> Result<u64, crate::code::Code> {
        let count = |sides: [u32; 3]| sides.iter().map(|side| u64::from(*side)).fold(1, u64::saturating_mul);
        let (blocks, threads) = (count(self.grid), count(self.block));
        if blocks == 0 || !(1..=1024).contains(&threads) {
            return Err(INVALID_VALUE);
        }
        if let Some(named) = named_ns(function) {
            return Ok(named);
        }
        let profile = driver.state().profile();
        Ok(kernel_ns(blocks, threads, profile.sms, profile.kernel_time_ns))
    }
}

/// CUlaunchConfig, without its attributes.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Config {
    shape: Shape,
    shared: u32,
    stream: u64,
}

#[inline]
fn launch(function: u64, shape: Shape, stream: u64) -> Res {
    let driver = driver::get()?;
    if !is_function(function) {
        return Err(INVALID_HANDLE);
    }
    crate::module::load_lazily(driver, function)?;
    stream::queue(driver, stream, shape.cost(driver, function)?)
}

fn occupancy(block: i32) -> i32 {
    (2048 / block.clamp(1, 1024)).clamp(1, 32)
}

soft_gpu::api! {
    fn cuLaunchKernel(
        function: u64, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32, _shared: u32, stream: u64,
        _parameters: In<u64>, _extra: In<u64>,
    ) {
        launch(function, Shape { grid: [gx, gy, gz], block: [bx, by, bz] }, stream)
    }

    fn cuLaunchCooperativeKernel(
        function: u64, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32, _shared: u32, stream: u64,
        _parameters: In<u64>,
    ) {
        launch(function, Shape { grid: [gx, gy, gz], block: [bx, by, bz] }, stream)
    }

    fn cuLaunchKernelEx(config: In<Config>, function: u64, _parameters: In<u64>, _extra: In<u64>) {
        let Config { shape, stream, .. } = config.get()?;
        launch(function, shape, stream)
    }

    fn cuLaunchHostFunc(stream: u64, function: Option<extern "C" fn(u64)>, data: u64) {
        let driver = driver::get()?;
        stream::gpu_of(driver, stream)?;
        function.ok_or(INVALID_VALUE)?(data);
        Ok(())
    }

    fn cuStreamAddCallback(stream: u64, function: Option<extern "C" fn(u64, i32, u64)>, data: u64, _flags: u32) {
        let driver = driver::get()?;
        stream::gpu_of(driver, stream)?;
        function.ok_or(INVALID_VALUE)?(stream, 0, data);
        Ok(())
    }

    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(out: Out<i32>, function: u64, block: i32, _shared: u64) {
        if !is_function(function) {
            return Err(INVALID_HANDLE);
        }
        out.set(occupancy(block))
    }

    fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        out: Out<i32>, function: u64, block: i32, _shared: u64, _flags: u32,
    ) {
        if !is_function(function) {
            return Err(INVALID_HANDLE);
        }
        out.set(occupancy(block))
    }

    fn cuOccupancyMaxPotentialBlockSize(
        grid: Out<i32>, block: Out<i32>, function: u64, _sizer: In<u64>, _shared: u64, limit: i32,
    ) {
        if !is_function(function) {
            return Err(INVALID_HANDLE);
        }
        let size = if limit > 0 { limit.min(1024) } else { 1024 };
        grid.set(driver::get()?.state().profile().sms as i32 * occupancy(size))?;
        block.set(size)
    }
}
