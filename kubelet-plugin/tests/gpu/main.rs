//! The plugin on the software GPU, which `make dist` builds.

mod check;
mod faults;
mod mig;
mod processes;
#[path = "../soft_gpu/mod.rs"]
mod soft_gpu;
mod support;
