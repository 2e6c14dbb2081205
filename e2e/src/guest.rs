//! `make guest`: tests this checkout on an ordinary Debian, in a temporary emulated machine.
//!
//! ```text
//! rootfs.rs  a Debian with its kernel, as a disk image      (mmdebstrap in namespaces; cached by its content's key)
//! payload.rs checkout, programs, tools, images, as one tar   (the guest has no network and no Go)
//! machine.rs qemu: both disks, no network; writes to the disks are lost when it ends
//! shell.rs   commands of the guest's ordinary user, over a serial line that is qemu's standard input and output
//! run.rs     facts ─► demo ─► tests ─► facts: transcript.rs prints and saves them
//! ```
//!
//! Failure modes:
//! - A signal: `ending.rs` kills the running child, the step that waited for it fails, and the folder of this run is
//!   removed during unwinding.
//! - This program is killed: the kernel kills each child with it. The run's folder stays, and the next run removes it
//!   under the lock.
//! - Two runs at once: the second prints that it waits for the lock.
//! - The build of the disk image is interrupted: it happened in the run's folder. A cached image appears by one
//!   rename.
//! - The guest does not boot, or stops: its output ends, or there is none until the time limit; the error contains the
//!   end of its console.

mod accelerator;
mod ending;
mod machine;
mod namespaces;
mod options;
mod payload;
mod rootfs;
mod run;
mod scratch;
mod shell;
mod size;
mod transcript;

use anyhow::Result;

use crate::layout;
pub use options::Arguments;
use options::Options;
pub use payload::{Unpacked, for_another_machine};

/// The exit status if this machine is too small for the guest.
const NO_ROOM: u8 = 3;

/// Runs the check in a guest and returns the exit status.
pub fn run(arguments: Arguments) -> Result<u8> {
    let options = Options::check(arguments)?;
    let cache = layout::cache()?.join("guest");
    if let Err(lack) = size::room(options.memory, &cache) {
        eprintln!("vgpu-e2e: {lack}");
        return Ok(NO_ROOM);
    }
    ending::handle()?;
    let outcome = run::all(&options, &cache);
    match ending::asked() {
        Some(signal) => Ok(128 + signal),
        None => outcome.map(u8::from),
    }
}
