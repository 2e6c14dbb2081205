//! Runs a program in the namespaces of the node. The plugin's container has other mounts and other cgroups than hooks see,
//! and another loader than the driver's libraries were made for: so the program is started there, not only its files opened.

use std::{
    convert::Infallible,
    ffi::OsString,
    fs::{File, Metadata},
    io,
    os::{
        fd::AsFd,
        unix::{fs::MetadataExt, process::CommandExt},
    },
    path::{Path, PathBuf},
    process::Command,
};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{path}: cannot be entered: {source}; the program must be privileged, and see the node's processes (plugin.hostPID)", path = .path.display())]
    Enter { path: PathBuf, source: io::Error },
    #[error(
        "process {0} is in this program's own namespace of mounts, not in the node's; let the plugin see the node's processes (plugin.hostPID)"
    )]
    Own(u32),
    #[error("{path}: cannot be run in the namespaces of process {pid}: {source}; name a program by its path there", path = .path.display())]
    Run { path: PathBuf, pid: u32, source: io::Error },
}

impl Error {
    /// Returns true if the program was not started there, so that it may well run there.
    pub(crate) fn is_no_answer(&self) -> bool {
        match self {
            Self::Enter { .. } | Self::Own(_) => true,
            Self::Run { .. } => false,
        }
    }
}

/// Replaces this program by another one, in the namespaces of cgroups and of mounts of a process. This program must have
/// one thread.
pub(crate) fn run(pid: u32, program: &Path, arguments: &[OsString]) -> Result<Infallible, Error> {
    let open = |name: &str| {
        let path = PathBuf::from(format!("/proc/{pid}/ns/{name}"));
        let opened = File::open(&path).map_err(|source| Error::Enter {
            path: path.clone(),
            source,
        });
        opened.map(|file| (path, file))
    };
    // Both are opened first: in the other mount namespace, /proc may show other processes.
    let namespaces = [
        (open("cgroup")?, LinkNameSpaceType::ControlGroup),
        (open("mnt")?, LinkNameSpaceType::Mount),
    ];
    // Without hostPID, PID 1 is a process of this container: the program would answer for what is mounted here.
    if is_own(&namespaces[1].0.1) {
        return Err(Error::Own(pid));
    }
    for ((path, file), kind) in namespaces {
        move_into_link_name_space(file.as_fd(), Some(kind)).map_err(|errno| Error::Enter {
            path,
            source: errno.into(),
        })?;
    }
    Err(Error::Run {
        path: program.to_path_buf(),
        pid,
        source: Command::new(program).args(arguments).exec(),
    })
}

/// Whether this is this process's namespace of mounts. A container's is always its own; its namespace of cgroups may be the
/// node's.
fn is_own(mounts: &File) -> bool {
    let identity = |found: Metadata| (found.dev(), found.ino());
    let own = std::fs::metadata("/proc/self/ns/mnt").map(identity);
    own.is_ok_and(|own| mounts.metadata().map(identity).is_ok_and(|other| other == own))
}
