//! Sizes of the storms. `make test` has only minutes for all of them, so they are shortened there, and each prints
//! that.

use std::fmt::Display;

/// If 1, every storm runs in full.
const VARIABLE: &str = "VGPU_FULL_SIZE";

pub(crate) fn is_full() -> bool {
    std::env::var_os(VARIABLE).is_some_and(|value| value == "1")
}

/// The size of this run. Prints what was shortened.
pub(crate) fn of<T: Display>(what: &str, short: T, full: T) -> T {
    if is_full() {
        return full;
    }
    println!("shortened: {what} {short} instead of {full}; {VARIABLE}=1 runs it in full");
    short
}
