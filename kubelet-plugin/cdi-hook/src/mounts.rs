//! The mounts of this mount namespace, from /proc/self/mountinfo: only this shows the source of a tmpfs, which a pod
//! cannot choose for its volumes.

use std::{
    fs, io,
    os::fd::{AsRawFd, OwnedFd},
};

use vgpu_hook::mount::{self, Mount};

#[derive(Clone, Debug)]
pub(crate) struct Mounts(Vec<Mount>);

impl Mounts {
    /// Reads bytes: other mounts of the node may have any bytes in their paths. Ours are ASCII.
    pub(crate) fn read() -> io::Result<Self> {
        let bytes = fs::read("/proc/self/mountinfo")?;
        Ok(Self::parse(&String::from_utf8_lossy(&bytes)))
    }

    pub(crate) fn parse(text: &str) -> Self {
        Self(mount::parse(text))
    }

    /// Returns the mount that contains an opened file.
    pub(crate) fn of(&self, file: &OwnedFd) -> io::Result<&Mount> {
        let id = mount_id(file)?;
        let found = self.0.iter().find(|mount| mount.id == id);
        found.ok_or_else(|| io::Error::other(format!("mount {id} is not in /proc/self/mountinfo")))
    }

    pub(crate) fn children(&self, parent: u64) -> impl Iterator<Item = &Mount> {
        // The topmost mount may be its own parent.
        self.0
            .iter()
            .filter(move |mount| mount.parent == parent && mount.id != parent)
    }
}

/// The mount's ID, which statx returns only from Linux 5.8 on.
fn mount_id(file: &OwnedFd) -> io::Result<u64> {
    let text = fs::read_to_string(format!("/proc/self/fdinfo/{}", file.as_raw_fd()))?;
    let id = text
        .lines()
        .find_map(|line| line.strip_prefix("mnt_id:")?.trim().parse().ok());
    id.ok_or_else(|| io::Error::other("no mnt_id in /proc/self/fdinfo"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_a_container() {
        let mounts = Mounts::parse(
            "1 1 0:2 / / rw - rootfs rootfs rw\n\
             30 1 0:50 / /r rw,relatime - overlay overlay rw,lowerdir=/a\n\
             31 30 0:51 / /r/dev rw,nosuid shared:1 master:2 - tmpfs tmpfs rw\n\
             32 31 0:52 / /r/dev/vgpu ro - tmpfs vgpu rw,size=64k\n\
             33 32 0:53 / /r/dev/vgpu/a\\040b ro - tmpfs vgpu rw\n\
             not a line\n",
        );
        let below: Vec<_> = mounts.children(32).map(|mount| mount.point.as_str()).collect();
        assert_eq!(below, ["/r/dev/vgpu/a\\040b"]);
        let of = |id: u64| mounts.0.iter().find(|mount| mount.id == id).expect("a mount");
        assert!(of(32).is_tmpfs_of("vgpu") && !of(31).is_tmpfs_of("vgpu") && !of(30).is_tmpfs_of("overlay"));
        assert_eq!(of(32).below(of(31)), "vgpu");
        assert_eq!(mounts.children(1).count(), 1, "the root is not its own child");
    }

    #[test]
    fn the_mount_of_an_opened_file() {
        let proc = OwnedFd::from(fs::File::open("/proc").expect("opened"));
        let mounts = Mounts::read().expect("read");
        assert_eq!(mounts.of(&proc).expect("found").kind, "proc");
    }
}
