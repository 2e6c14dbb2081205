//! `make guest`: this checkout on an ordinary Debian, in an emulated machine that is gone afterwards.
//!
//! ```text
//! rootfs.rs  a Debian with its kernel, as a disk image      (mmdebstrap in namespaces; cached by its content's key)
//! payload.rs checkout, programs, tools, images, as one tar   (the guest has no network and no Go)
//! machine.rs qemu: both disks, no network; what it writes to the disks goes with it
//! shell.rs   commands of the guest's ordinary user, over a serial line that is qemu's standard input and output
//! run.rs     facts ─► demo ─► tests ─► facts: transcript.rs prints and saves them
//! ```
//!
//! Failure modes:
//! - A signal: `ending.rs` kills the running child, the step that waited for it fails, and the folder of this run is
//!   removed on the way out.
//! - This program is killed: each child asked the kernel to be killed with it. The run's folder stays, and the next run
//!   removes it under the lock.
//! - Two runs at once: the second waits for the lock, and says so.
//! - The build of the disk image is cut short: it happened in the run's folder. A cached image appears by one rename.
//! - The guest does not boot, or stops: its output ends, or nothing comes until the limit; the error carries the end of
//!   its console.

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

/// The exit status where this machine cannot hold the guest.
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
