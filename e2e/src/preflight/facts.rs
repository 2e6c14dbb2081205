//! The facts of a machine on which `preflight` decides.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

pub(super) const GI: u64 = 1 << 30;

/// Facts about everything that a cluster needs from the machine.
#[derive(Debug)]
pub(super) struct Facts {
    pub(super) root: Root,
    pub(super) memory: Memory,
    pub(super) disks: Vec<Disk>,
}

/// Whether this user can become root.
#[derive(Debug)]
pub(super) enum Root {
    NoSudo { user: u32 },
    Refused { user: u32, said: String },
    Tried(Tried),
}

/// The results of root's tries, up to the first failure of each kind.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Tried {
    pub(super) namespaces: Option<Failure>,
    pub(super) cgroups: Option<Failure>,
    pub(super) kernel_log: Option<Failure>,
    pub(super) state: Option<Failure>,
}

/// A step that failed, with the system's error.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Failure {
    pub(super) step: Step,
    pub(super) said: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Step {
    /// Creates mount, network and PID namespaces, and a tmpfs in them.
    Mount,
    Overlay,
    Bridge,
    Veth,
    /// The sysctl that lets packets pass between network devices.
    Forward,
    NoCgroups,
    ReadOnlyCgroups,
    MakeCgroup,
    BusyCgroup,
    KernelLog,
    /// A folder for the files of clusters.
    State,
}

/// The smaller of the machine's memory and its cgroups' limits.
#[derive(Debug)]
pub(super) struct Memory {
    pub(super) bytes: u64,
    /// The file that sets the limit, if a cgroup does.
    pub(super) limit: Option<PathBuf>,
}

/// A file system, and the bytes that a cluster needs there.
#[derive(Debug)]
pub(super) struct Disk {
    pub(super) folders: Vec<PathBuf>,
    pub(super) free: u64,
    pub(super) needed: u64,
}
