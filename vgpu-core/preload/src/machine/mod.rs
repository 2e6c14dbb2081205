//! Everything of this library that differs between processor architectures: its assembly, and the numbers of system
//! calls. `crate::arch!` has the names.
//!
//! ```text
//!  entry_points!  dlopen, dlmopen, dlsym, dlvsym: plan, put one argument in place of another, jump to the real function
//!  CodeEnd        instructions of a program by which a called function can return to us, and the call through them
//!  call           a system call without a libc
//!  imports        the two words of the loader, and the address of this library's own dynamic section
//! ```
#![allow(unsafe_code)] // Assembly.

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
pub(crate) use aarch64::*;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::*;
