//! What NVIDIA's driver does not have: a sleep by the GPUs' clock, for programs of tests.

use crate::driver;

/// Sleeps until the GPUs' clock shows `until` ns, and returns what it shows then; 0 without a driver. With virtual time
/// the clock goes on only while all threads that use the GPUs wait, and this is a wait. A moment that has passed, such
/// as 0, only asks for the time.
#[unsafe(no_mangle)]
#[allow(unsafe_code, reason = "exported under its C name")]
pub(crate) extern "C" fn softGpuSleepUntil(until: u64) -> u64 {
    let Ok(driver) = driver::get() else { return 0 };
    driver.member().sleep_until(until);
    driver.state().now()
}
