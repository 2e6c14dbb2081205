//! libvgpu-preload.so: the backstop. Programs that ask for NVIDIA's driver by a path get the shim.
//!
//! ```text
//!  program: dlopen("/opt/app/compat/libcuda.so.1") ──► detour.s (naked: keeps the caller's address)
//!                                                        │ plan: name ─► loader ─► shim
//!                                                        ▼
//!           the real dlopen("<the shim's own path>")  ◄── jump, as if the program had called it
//! ```
//!
//! The shim lies where the loader looks for `libcuda.so.1`, and catches everything that asks for that
//! name. What is left is a driver that is asked for by path, or by a name for which RPATH or a cache
//! leads to a driver that the image brought along. This library sees those calls, because it stands in
//! /etc/ld.so.preload (containers) or LD_PRELOAD (`vgpu run` of an ordinary user).
//!
//! Every program in the container loads it, so what it costs and what it can break come first:
//! - no DT_NEEDED, no thread-local, no allocation, no lock, no environment, no errno; one weak import
//!   from the loader, `_r_debug`, from which all else is found when it is needed; one constructor, which
//!   compares the names of the start-up objects and does nothing where none is a driver's;
//! - detours end in a jump to the real function with the caller's return address still on the stack.
//!   The loader reads namespace, RPATH and RTLD_NEXT off that address, so they mean what they meant;
//! - whatever cannot be resolved goes to the real function as it came.
//!
//! What holds, and what does not:
//!
//! | asked | answer |
//! |---|---|
//! | `dlopen`, `dlmopen` of a driver library, by any path or name | the shim |
//! | the same by the shim, by a driver library, or for a path under /usr/lib/vgpu/driver | as asked |
//! | `dlsym`, `dlvsym` of a driver function in a driver library that was reached all the same | the shim's |
//! | libc's own four functions, by `dlsym` or `dlvsym` in its handle | ours |
//! | calls that the loader bound to a driver, by DT_NEEDED with an RPATH or LD_LIBRARY_PATH | the shim's |
//! | `RTLD_DEFAULT`, `RTLD_NEXT`, functions that the shim does not know | as asked |
//! | libc's own `dlopen`, found by reading ELF files; static programs; another namespace's libc | not seen |
//!
//! The last row is why this is no security boundary: the node compares its own figures with the ledger.
//!
//! Where the shim is: see `shim`. How the real functions are found from glibc 2.17 on: see `loader`.
#![no_std]
// Loops here stay loops: the compiler may not turn them into calls of a libc that we do not link.
#![no_builtins]

mod bound;
mod detour;
mod elf;
mod embedded;
mod loader;
mod name;
mod shim;

/// Nothing here panics; if that were ever wrong, stopping is better than going on.
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {
        core::hint::spin_loop();
    }
}
