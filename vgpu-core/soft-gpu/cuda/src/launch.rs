//! Launches: a kernel uses GPU time in its stream. Its name, its arguments or its grid determine how much.

use soft_gpu::timeline::{Cost, kernel_ns};

use crate::code::{Code, INVALID_HANDLE, INVALID_VALUE, Res};
use crate::context;
use crate::driver::{self, Driver};
use crate::ffi::{In, Out};
use crate::module::{is_function, named};
use crate::stream;

/// A launch's shape: grid, then block.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Shape {
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
}

/// Where the arguments of a launch are: each at an address of its own, or all in one buffer.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Arguments {
    pub(crate) each: In<In<u64>>,
    pub(crate) buffer: In<u64>,
}

/// CU_LAUNCH_PARAM_BUFFER_POINTER.
const BUFFER: u64 = 1;

impl Arguments {
    /// Argument `index`, which lies `offset` bytes from the begin of a buffer.
    fn at<T: Copy>(self, index: usize, offset: usize) -> Result<T, Code> {
        if self.each.given() {
            return self.each.at(index)?.inside(0).get();
        }
        // A list of names and values, which ends with name 0.
        for pair in 0..3 {
            match self.buffer.at(2 * pair)? {
                BUFFER => return self.buffer.inside::<In<u64>>(16 * pair + 8).get()?.inside(offset).get(),
                0 => break,
                _ => {}
            }
        }
        Err(INVALID_VALUE)
    }

    /// Returns the cost. What is not given is read from the arguments: GPU time in ns (64 bits), and the part of the
    /// GPU in percent (32 bits).
    #[cold]
    fn cost(self, ns: Option<u64>, width: Option<u32>) -> Result<Cost, Code> {
        let ns = ns.map_or_else(|| self.at(0, 0), Ok)?;
        let width = width.map_or_else(|| self.at(1, 8), Ok)?;
        Cost::checked(ns, width).ok_or(INVALID_VALUE)
    }
}

impl Shape {
    /// Returns the GPU time of a launch, and the part of the GPU that it takes.
    #[inline]
    pub(crate) fn cost(self, driver: &Driver, function: u64, arguments: Arguments) -> Result<Cost, Code> {
        let count = |sides: [u32; 3]| sides.iter().map(|side| u64::from(*side)).fold(1, u64::saturating_mul);
        let (blocks, threads) = (count(self.grid), count(self.block));
        if blocks == 0 || !(1..=1024).contains(&threads) {
            return Err(INVALID_VALUE);
        }
        if let Some(named) = named(function) {
            return match (named.ns, named.width) {
                (Some(ns), Some(width)) => Ok(Cost { ns, width }),
                (ns, width) => arguments.cost(ns, width),
            };
        }
        let ns = driver.state().profile().kernel_time_ns;
        Ok(Cost::whole(kernel_ns(blocks, threads, sms(driver), ns)))
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
fn launch(function: u64, shape: Shape, stream: u64, each: In<In<u64>>, buffer: In<u64>) -> Res {
    let driver = driver::get()?;
    if !is_function(function) {
        return Err(INVALID_HANDLE);
    }
    crate::module::load_lazily(driver, function)?;
    let cost = shape.cost(driver, function, Arguments { each, buffer })?;
    stream::queue(driver, stream, cost)
}

/// The multiprocessors of the current context's GPU or instance; without a context, those of a GPU.
fn sms(driver: &Driver) -> u32 {
    let state = driver.state();
    context::here().map_or(state.profile().sms, |(_, context)| state.sms_of(context.gpu))
}

fn occupancy(block: i32) -> i32 {
    (2048 / block.clamp(1, 1024)).clamp(1, 32)
}

soft_gpu::api! {
    fn cuLaunchKernel(
        function: u64, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32, _shared: u32, stream: u64,
        parameters: In<In<u64>>, extra: In<u64>,
    ) {
        launch(function, Shape { grid: [gx, gy, gz], block: [bx, by, bz] }, stream, parameters, extra)
    }

    fn cuLaunchCooperativeKernel(
        function: u64, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32, _shared: u32, stream: u64,
        parameters: In<In<u64>>,
    ) {
        launch(function, Shape { grid: [gx, gy, gz], block: [bx, by, bz] }, stream, parameters, In::none())
    }

    fn cuLaunchKernelEx(config: In<Config>, function: u64, parameters: In<In<u64>>, extra: In<u64>) {
        let Config { shape, stream, .. } = config.get()?;
        launch(function, shape, stream, parameters, extra)
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
        grid.set(sms(driver::get()?) as i32 * occupancy(size))?;
        block.set(size)
    }
}
