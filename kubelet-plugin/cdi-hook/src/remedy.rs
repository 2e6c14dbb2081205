//! Says what to do when the kernel refuses a mount: the end of a line in the pod's event.

use std::io;

use rustix::io::Errno;

/// Returns the remedy for an error of a call that mounts or reads mounts.
pub(crate) fn remedy(error: &io::Error) -> &'static str {
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::NOSPC) => {
            "the disk that has the container's root file system is full, or the container has more mounts than the node \
             allows: free space or inodes on the node, remove volumes from the pod, or raise the sysctl fs.mount-max"
        }
        Some(Errno::PERM | Errno::ACCESS) => {
            "the hook must be allowed to mount: run the container runtime as root, without a seccomp filter or a policy \
             of AppArmor or SELinux that denies that to its hooks"
        }
        Some(Errno::ROFS) => {
            "the root file system must be writable while the container is made: check the runtime's log"
        }
        Some(Errno::NOSYS) => "it needs Linux 5.2 or newer on the node",
        _ => "check the runtime's log and the node's kernel log",
    }
}
