//! Runs a program in the namespaces of the node. The plugin's container has other mounts and other cgroups than hooks see,
//! and another loader than the driver's libraries were made for: so the program is started there, not only its files opened.

use std::{
    convert::Infallible,
    ffi::OsString,
    fs::File,
    io,
    os::{fd::AsFd, unix::process::CommandExt},
    path::{Path, PathBuf},
    process::Command,
};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{path}: cannot be entered: {source}; the program must be privileged, and see the node's processes (plugin.hostPID)", path = .path.display())]
    Enter { path: PathBuf, source: io::Error },
    #[error("{path}: cannot be run in the namespaces of process {pid}: {source}; name a program by its path there", path = .path.display())]
    Run { path: PathBuf, pid: u32, source: io::Error },
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
