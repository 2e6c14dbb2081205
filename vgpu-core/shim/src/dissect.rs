//! Switches parts of the library off, to find the part that breaks a program: only in libvgpu-dissect.so, which no image
//! contains (feature `dissect`, `build/dist.sh --dissect`, docs/debugging.md). With a part off, limits do not hold.
//!
//! A part of hooks is the module that handles them ([`crate::table`]): their calls go to the driver unchanged.
//!
//! How it fails: a word that names no part is reported on stderr and ignored. Parts use one another: with `devices`
//! off, a process sees all GPUs of the node, while the other parts use numbers of its own GPUs, so with several GPUs
//! the numbers differ.

use crate::real;
use core::sync::atomic::{AtomicU32, Ordering};
use vgpu_core::os::stderr;

const VARIABLE: &str = "VGPU_DISSECT";

/// Every part. The first ones are modules of hooks; `limiter` delays launches, `measure` asks NVML.
const PARTS: [&str; 13] = [
    "contexts", "devices", "entry", "graphs", "launches", "memory", "nvml", "physical", "sharing", "streams", "waits",
    "limiter", "measure",
];

/// A bit for each part that is off, and [`READ`] once the variable was read.
static OFF: AtomicU32 = AtomicU32::new(0);
const READ: u32 = 1 << 31;

/// Returns true if a part is off: the module of a handler (`memory::alloc::alloc`), or a part by its name.
pub(crate) fn is_off(handler: &str) -> bool {
    let off = match OFF.load(Ordering::Relaxed) {
        0 => read(),
        off => off,
    };
    let part = handler.split(':').next().unwrap_or_default().trim();
    PARTS
        .iter()
        .position(|known| *known == part)
        .is_some_and(|bit| off & 1 << bit != 0)
}

#[cold]
fn read() -> u32 {
    let value = real::variable(VARIABLE).map(|value| value.to_string_lossy().into_owned());
    let value = value.unwrap_or_default();
    let mut off = READ;
    for word in value.split(',').map(str::trim).filter(|word| !word.is_empty()) {
        match PARTS.iter().position(|known| *known == word) {
            Some(bit) => off |= 1 << bit,
            None => stderr::say(&format!(
                "{VARIABLE}: {word:?} is none of {}; it is ignored",
                PARTS.join(", ")
            )),
        }
    }
    if OFF.swap(off, Ordering::Relaxed) == 0 && off != READ {
        stderr::say(&format!("{VARIABLE}: {value} off; limits do not hold"));
    }
    off
}
