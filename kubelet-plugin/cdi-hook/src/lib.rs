//! vgpu-cdi-hook is a createContainer hook. It adds libvgpu-preload.so to a container's /etc/ld.so.preload,
//! which the container's environment cannot switch off.
//!
//! ```text
//!  runtime ──stdin──► state (id, bundle) ──► bundle/config.json ──► root.path
//!                                                                      │ rootfs: paths inside it
//!  arguments ──► --library ──────────────────────────────────────────► merge ──► <root>/etc/ld.so.preload
//!               --report   ◄── a file, if that is not possible and the container starts anyway
//! ```
//!
//! When it runs: the runtime has made the container's namespaces and mounts (so CDI's mounts exist) but has
//! not called pivot_root. So this program, the bundle and the report have their paths on the node, and the
//! container's files are under `root.path`. It runs as root in the container's mount namespace, once for each
//! CDI device or claim that names it, before any program of the container. If it fails, the container fails.
//!
//! The tenant controls the image. So paths are resolved without leaving the root file system ([`rootfs`]),
//! reads have a size limit, and a folder that is mounted into the container is never written to: it may be
//! the node's own /etc.
//!
//! Failure modes:
//! - killed before the rename: the old file is complete; a temp file is left in the container's own layer;
//! - run again, or twice at once: the entry is there once;
//! - an image without glibc, a read-only root file system, a file or folder that is a mount: the container
//!   starts without the backstop, and the report has the reason;
//! - anything else: exit status 1 and one line that names the container, the file and the remedy.
#![forbid(unsafe_code)]

mod arguments;
mod list;
mod merge;
mod report;
mod rootfs;
mod state;

use std::{ffi::OsString, io::Read};

use arguments::{Command, Preload};
use merge::Outcome;
use state::Container;

/// Why the container must not start, as the pod's event shows it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Arguments(#[from] arguments::Error),
    #[error(transparent)]
    State(#[from] state::Error),
    #[error("container {id}: {source}")]
    Merge { id: String, source: merge::Error },
}

/// Runs the hook and returns its standard output.
///
/// # Errors
/// The container must not start.
pub fn run(arguments: impl Iterator<Item = OsString>, stdin: impl Read) -> Result<String, Error> {
    match Command::parse(arguments)? {
        Command::Help => Ok(arguments::HELP.to_owned()),
        Command::Version => Ok(format!("vgpu-cdi-hook {}\n", env!("CARGO_PKG_VERSION"))),
        Command::Preload(preload) => preload_library(&preload, stdin).map(|()| String::new()),
    }
}

fn preload_library(preload: &Preload, stdin: impl Read) -> Result<(), Error> {
    let container = Container::read(stdin)?;
    match merge::merge(&container.root, &preload.library) {
        Ok(Outcome::Listed) => Ok(()),
        Ok(Outcome::Left(reason)) => {
            report::write(preload.report.as_deref(), &container.id, &reason);
            Ok(())
        }
        Err(source) => Err(Error::Merge {
            id: container.id,
            source,
        }),
    }
}
