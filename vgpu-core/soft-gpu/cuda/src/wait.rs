//! An addition to NVIDIA's driver: a sleep by the GPUs' clock, for test programs.

use crate::driver;

/// Sleeps until the GPUs' clock shows `until` ns, and returns the time that it then shows; 0 without a driver. Virtual
/// time only advances while all threads that use the GPUs wait, and this counts as a wait. If `until` has passed, such
/// as 0, the current time is returned at once.
#[unsafe(no_mangle)]
#[allow(unsafe_code, reason = "exported under its C name")]
pub(crate) extern "C" fn softGpuSleepUntil(until: u64) -> u64 {
    let Ok(driver) = driver::get() else { return 0 };
    driver.member().sleep_until(until);
    driver.state().now()
}
