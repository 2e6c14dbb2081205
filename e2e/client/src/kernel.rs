//! A kernel of a known length, which counts to a number. The software GPU takes the length from the kernel's name.
#![allow(unsafe_code)] // Launches.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::thread;
use std::time::Duration;

use crate::driver::{Cuda, Error, call};

const SYMBOL: &CStr = c"time_500us";
/// Rounds of the loop. Each reads a clock, so all take about 500 us on GPUs of 1 to 2 GHz.
const ROUNDS: u64 = 20_000;
/// After this time a share of 5 cores has earned the time of two launches.
const REST: Duration = Duration::from_millis(20);
const CODE: &CStr = c".version 6.0
.target sm_50
.address_size 64
.visible .entry time_500us(.param .u64 rounds)
{
    .reg .u64 %left, %clock;
    .reg .pred %more;
    ld.param.u64 %left, [rounds];
LOOP:
    mov.u64 %clock, %clock64;
    sub.u64 %left, %left, 1;
    setp.ne.u64 %more, %left, 0;
    @%more bra LOOP;
    ret;
}
";

/// A function of a module that stays loaded.
pub(crate) struct Kernel<'a> {
    cuda: &'a Cuda,
    function: *mut c_void,
    launch: Launch,
}

type Launch = unsafe extern "C" fn(
    *mut c_void,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    *mut c_void,
    *mut *mut c_void,
    *mut *mut c_void,
) -> c_int;

impl<'a> Kernel<'a> {
    pub(crate) fn load(cuda: &'a Cuda) -> Result<Self, Error> {
        let (mut module, mut function) = (std::ptr::null_mut(), std::ptr::null_mut());
        call!(
            cuda.library,
            Error::Cuda,
            "cuModuleLoadData",
            (*mut *mut c_void, *const c_char),
            (&mut module, CODE.as_ptr())
        )?;
        call!(
            cuda.library,
            Error::Cuda,
            "cuModuleGetFunction",
            (*mut *mut c_void, *mut c_void, *const c_char),
            (&mut function, module, SYMBOL.as_ptr())
        )?;
        // SAFETY: the function's type by CUDA's documentation.
        let launch = unsafe { cuda.library.function::<Launch>(c"cuLaunchKernel")? };
        Ok(Self { cuda, function, launch })
    }

    pub(crate) fn launch(&self) -> Result<(), Error> {
        let mut rounds = ROUNDS;
        let argument: *mut u64 = &mut rounds;
        let mut arguments = [argument.cast::<c_void>()];
        let (stream, extra) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: one argument of 8 bytes, as the kernel declares; the driver copies it before it returns.
        let code = unsafe {
            (self.launch)(
                self.function,
                1,
                1,
                1,
                32,
                1,
                1,
                0,
                stream,
                arguments.as_mut_ptr(),
                extra,
            )
        };
        if code == 0 {
            Ok(())
        } else {
            Err(Error::Cuda("cuLaunchKernel", code))
        }
    }

    /// Returns the kernel's duration: the least of several measurements, because other programs may use the GPU. The
    /// first launch is not measured; it waits for the share's turn. The share rests before each measurement, so that
    /// it may use the GPU for both launches and no wait is measured.
    pub(crate) fn measured(&self) -> Result<Duration, Error> {
        let library = &self.cuda.library;
        let mut events: [*mut c_void; 2] = [std::ptr::null_mut(); 2];
        for event in &mut events {
            call!(
                library,
                Error::Cuda,
                "cuEventCreate",
                (*mut *mut c_void, c_uint),
                (event, 0)
            )?;
        }
        let record = |event: *mut c_void| {
            let stream: *mut c_void = std::ptr::null_mut();
            call!(
                library,
                Error::Cuda,
                "cuEventRecord",
                (*mut c_void, *mut c_void),
                (event, stream)
            )
        };
        let mut least = f32::MAX;
        for _ in 0..20 {
            thread::sleep(REST);
            self.launch()?;
            record(events[0])?;
            self.launch()?;
            record(events[1])?;
            self.cuda.synchronize()?;
            let mut milliseconds = 0.0_f32;
            call!(
                library,
                Error::Cuda,
                "cuEventElapsedTime",
                (*mut f32, *mut c_void, *mut c_void),
                (&mut milliseconds, events[0], events[1])
            )?;
            least = least.min(milliseconds);
        }
        Ok(Duration::from_secs_f32(least / 1000.0))
    }
}
