//! vgpu-cdi-hook is a createContainer hook. It verifies the container's folder of shares, and adds libvgpu-preload.so
//! to its /etc/ld.so.preload, as a mount that neither the container's environment nor its root can remove.
//!
//! ```text
//!  runtime ──stdin──► state (id, bundle) ──► bundle/config.json ──► root.path, mounts
//!                                                                      │ rootfs: paths inside it
//!                                                                      ├──► shares ──► <root>/dev/vgpu, by mounts
//!  arguments ──► --library ──────────────────────────────────────────► merge ──► list_mount ──► <root>/etc/ld.so.preload
//!                                                                      params ──► list_mount ──► <root>/proc/driver/nvidia/params
//!               --file     mounts of the CDI spec in <root>/dev/vgpu/.lib and .driver
//!               --report   ◄── a file, if no loader of the image reads the list, or the container does not start
//! ```
//!
//! The runtime calls it after creating the container's namespaces and mounts (so CDI's mounts exist) and before
//! pivot_root. So this program, the bundle and the report have their paths on the node, and the container's files are
//! under `root.path`. It runs as root in the container's mount namespace, once for each CDI device or claim that names
//! it, before any program of the container. If it fails, the container fails.
//!
//! The tenant controls the image and the pod's volumes. So paths are resolved without leaving the root file system
//! ([`rootfs`]), reads have a size limit, and nothing is written to a folder that is mounted into the container: it
//! may be the node's own /etc.
//!
//! Failure modes:
//! - killed: the container does not start, and its mounts end with its namespace; an empty file may remain in its
//!   layer;
//! - run again, once for each claim: the list of the first run is found and kept;
//! - an image without glibc: no program of it reads the list, and the report says so;
//! - a CDI spec without /dev/vgpu, which something else wrote: the error line says so;
//! - an instance of a GPU beside another device, whose driver gives a program one of them, or an instance that was replaced by
//!   another one: the plugin's arguments say so, and the container does not start;
//! - volumes at /dev or /etc, over the folder of shares or in it, and anything else: exit status 1 and one line that
//!   names the container, the file and the remedy, also in the report. runc copies it into the pod's event.
#![forbid(unsafe_code)]

mod arguments;
mod list;
mod list_mount;
mod merge;
mod mounts;
mod params;
mod remedy;
mod report;
mod rootfs;
mod shares;
mod state;

use std::{
    ffi::OsString,
    io::{self, Read},
    path::PathBuf,
};

use arguments::{Command, Preload};
use list_mount::Wanted;
use merge::Outcome;
use rootfs::Root;
use state::Container;

/// The reason why the container must not start, as the pod's event shows it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Arguments(#[from] arguments::Error),
    #[error(transparent)]
    State(#[from] state::Error),
    #[error("container {id}: {path}: cannot open the root file system: {source}; the runtime named it, so check the runtime's log", path = .path.display())]
    Root {
        id: String,
        path: PathBuf,
        source: io::Error,
    },
    #[error("container {id}: a device of its claim is not what the claim was given: {why}")]
    Refused { id: String, why: String },
    #[error("container {id}: {source}")]
    Shares { id: String, source: shares::Error },
    #[error("container {id}: {source}")]
    Merge { id: String, source: merge::Error },
    #[error("container {id}: {source}")]
    Params { id: String, source: params::Error },
}

/// Runs the hook and returns its standard output.
///
/// # Errors
/// The container must not start.
pub fn run(arguments: impl Iterator<Item = OsString>, stdin: impl Read) -> Result<String, Error> {
    match Command::parse(arguments)? {
        Command::Help => Ok(arguments::HELP.to_owned()),
        Command::Version => Ok(format!("vgpu-cdi-hook {}\n", env!("CARGO_PKG_VERSION"))),
        Command::Preload(preload) => {
            let done = preload_library(&preload, stdin);
            done.inspect_err(|error| report::not_started(preload.report.as_deref(), error))?;
            Ok(String::new())
        }
    }
}

fn preload_library(preload: &Preload, stdin: impl Read) -> Result<(), Error> {
    let container = Container::read(stdin)?;
    let id = container.id;
    if let Some(why) = preload.refused.clone() {
        return Err(Error::Refused { id, why });
    }
    let root = Root::open(&container.root).map_err(|source| Error::Root {
        id: id.clone(),
        path: container.root.clone(),
        source,
    })?;
    let files = [preload.files.as_slice(), &container.files].concat();
    let alone = preload.alone.as_deref();
    shares::verify(&root, container.volume_at_dev.as_deref(), &files, alone)
        .map_err(|source| Error::Shares { id: id.clone(), source })?;
    let wanted = Wanted {
        read_only: container.read_only,
        label: container.mount_label.as_deref(),
    };
    params::forbid_device_nodes(&root, wanted.label).map_err(|source| Error::Params { id: id.clone(), source })?;
    match merge::merge(&root, &preload.library, wanted) {
        Ok(Outcome::Listed) => Ok(()),
        Ok(Outcome::Unread(reason)) => {
            report::write(preload.report.as_deref(), &id, &reason);
            Ok(())
        }
        Err(source) => Err(Error::Merge { id, source }),
    }
}
