//! The lock of a call for an instance, from before it is sent until its answer. The child that carries it out has the lock too:
//! its standard output is the open lock file. So while any child of any plugin on this node may still carry out a call, nobody
//! else begins one, and no list of instances shows less than there will be.
//!
//! Failure modes:
//! - The plugin is killed in the middle of a call: its child keeps the lock until it has ended, also if it hangs in the kernel.
//! - The child is killed and hangs in the kernel: the same.
//! - The lock file cannot be opened or locked: no call is made, and the reason is the refusal.
//! - Somebody removes the file during a call: who opens it later does not see that call.

use rustix::fs::FlockOperation;
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::path::Path;
use std::process::Stdio;

/// Why no call may be made.
#[derive(Debug)]
pub(super) enum NotLocked {
    /// A child may still carry out a call.
    Busy,
    Failed(String),
}

/// The lock file as one child has it, or why there is none. Dropping it does not unlock it while that child lives.
#[derive(Debug)]
pub(super) struct CallLock(Result<File, String>);

// === impl CallLock ===

impl CallLock {
    /// Opens the file for a new child. Returns the child's standard output too, to which nothing can be written, because the file
    /// is open for reading.
    pub(super) fn open(path: Option<&Path>) -> (Self, Stdio) {
        let Some(path) = path else {
            return (
                Self(Err("there is no lock file for calls of NVML".into())),
                Stdio::null(),
            );
        };
        match open(path).and_then(|file| Ok((file.try_clone()?, file))) {
            Ok((copy, file)) => (Self(Ok(file)), Stdio::from(copy)),
            Err(error) => {
                let why = format!("cannot open the lock file {}: {error}", path.display());
                (Self(Err(why)), Stdio::null())
            }
        }
    }

    /// # Errors
    /// A child may still carry out a call, or the file cannot be locked.
    pub(super) fn try_lock(&self) -> Result<(), NotLocked> {
        let file = self.0.as_ref().map_err(|why| NotLocked::Failed(why.clone()))?;
        match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(()),
            Err(Errno::WOULDBLOCK | Errno::INTR) => Err(NotLocked::Busy),
            Err(errno) => Err(NotLocked::Failed(format!(
                "cannot lock the lock file of calls: {errno}"
            ))),
        }
    }

    pub(super) fn unlock(&self) {
        if let Ok(file) = &self.0 {
            // Fails only if it cannot be locked at all.
            let _ = rustix::fs::flock(file, FlockOperation::Unlock);
        }
    }
}

/// Opens the file for reading, and creates it with its folder if it does not exist.
fn open(path: &Path) -> io::Result<File> {
    match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            std::fs::create_dir_all(path.parent().unwrap_or(path))?;
            drop(File::options().create(true).truncate(false).write(true).open(path)?);
            File::open(path)
        }
        opened => opened,
    }
}
