//! Verifies the container's folder of shares, /dev/vgpu: it must be the tmpfs of the CDI spec on the runtime's own
//! /dev, and contain only the plugin's mounts.
//!
//! Mounts may differ from the spec: a volume whose path leads through a link of another volume is mounted over ours,
//! and a volume below /dev/vgpu would be an additional share, with limits that its owner wrote. A container with such
//! a volume does not start. After the hook, no process in the container can mount there, unless it may mount on the
//! whole node.

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    io,
    os::fd::{AsRawFd, OwnedFd},
};

use rustix::{
    io::Errno,
    mount::{MountFlags, mount_remount},
};
use vgpu_abi::paths::{CONTAINER_DIR, LEDGER, TMPFS_SOURCE};
use vgpu_hook::mount::Mount;

use crate::{
    mounts::Mounts,
    remedy::remedy,
    rootfs::{self, Root},
};

const ARBITRATION: &str = ".arbitration/";
/// Folders of the node's library and driver files. Each file is a mount.
const FILES: [&str; 2] = [".lib/", ".driver/"];

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(
        "{CONTAINER_DIR} is not the tmpfs of shares: {0}; delete the pod so that its claim is prepared again, and if \
         that does not help, restart vgpu-kubelet-plugin on this node"
    )]
    NotOurs(&'static str),
    #[error(
        "a volume is mounted at {0}, where {CONTAINER_DIR} with the limits could be taken away; remove this volume mount \
         from the container, and mount single files or folders below /dev instead"
    )]
    VolumeAtDev(String),
    #[error(
        "a volume is mounted at {CONTAINER_DIR}, over the limits; remove it from the pod, with every link that leads \
         there"
    )]
    Covered,
    #[error("a volume is mounted at {CONTAINER_DIR}/{0}, among the limits; remove it from the pod")]
    Foreign(String),
    #[error(
        "its claims give it {count} devices, and one is an instance of a GPU: NVIDIA's driver {driver} gives a program one \
         instance and nothing else; use a container for each of these claims, or driver 570 or newer"
    )]
    NotAlone { count: usize, driver: String },
    #[error("{CONTAINER_DIR}: cannot {action} it: {source}; {}", remedy(source))]
    Io { action: &'static str, source: io::Error },
}

/// Verifies the folder and makes it read-only; the runtime does this only later and by path. `volume_at_dev`: the path
/// of a volume of the container's configuration at /dev. `files`: paths below the folder that the CDI specs mount in
/// [`FILES`]. `alone`: the driver's version, if it gives a program of this container one device alone.
pub(crate) fn verify(
    root: &Root,
    volume_at_dev: Option<&str>,
    files: &[String],
    alone: Option<&str>,
) -> Result<(), Error> {
    if let Some(destination) = volume_at_dev {
        return Err(Error::VolumeAtDev(destination.to_owned()));
    }
    let failed = |action| move |source| Error::Io { action, source };
    let dev = entered(root.enter(OsStr::new("dev")))?;
    let folder = entered(rootfs::enter_folder(&dev, OsStr::new("vgpu")))?;
    let mounts = Mounts::read().map_err(failed("find the mount of"))?;
    let of = |file: &OwnedFd| mounts.of(file).map_err(failed("find the mount of"));
    verify_mounts(&mounts, of(root.folder())?, of(&dev)?, of(&folder)?, files)?;
    if let Some(driver) = alone {
        verify_alone(&mounts, of(&folder)?, driver)?;
    }
    let flags = MountFlags::BIND | MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    // By descriptor, because the path could lead elsewhere by now.
    let path = format!("/proc/self/fd/{}", folder.as_raw_fd());
    mount_remount(path, flags, c"").map_err(|error| failed("make a read-only mount of")(error.into()))
}

fn entered(folder: Result<OwnedFd, rootfs::Error>) -> Result<OwnedFd, Error> {
    folder.map_err(|error| match error {
        rootfs::Error::Io(error) => match error.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::NOENT) => Error::NotOurs("it is missing"),
            Some(Errno::LOOP | Errno::NOTDIR) => Error::NotOurs("it is no folder, or behind a link"),
            _ => Error::Io {
                action: "open",
                source: error,
            },
        },
        other => Error::Io {
            action: "open",
            source: io::Error::other(other),
        },
    })
}

/// `root`, `dev` and `folder`: the mounts that contain the root file system, its /dev and its /dev/vgpu.
fn verify_mounts(mounts: &Mounts, root: &Mount, dev: &Mount, folder: &Mount, files: &[String]) -> Result<(), Error> {
    if dev.parent != root.id {
        return Err(match dev.id == root.id {
            true => Error::NotOurs("/dev is no mount"),
            false => Error::VolumeAtDev("/dev".to_owned()),
        });
    }
    if folder.id == dev.id {
        return Err(Error::NotOurs("it is no mount"));
    }
    if folder.parent != dev.id || !folder.is_tmpfs_of(TMPFS_SOURCE) {
        return Err(Error::Covered);
    }
    for child in mounts.children(folder.id) {
        let name = child.below(folder);
        let ours = child.is_tmpfs_of(TMPFS_SOURCE);
        let inside: &[&str] = if is_share(name) && ours {
            &[LEDGER]
        } else if name.strip_prefix(ARBITRATION).is_some_and(is_one) && ours {
            &[]
        } else if files.iter().any(|file| file == name) {
            // The runtime drops a volume at a path that the spec mounts, so this is the spec's mount. Mounts below a
            // file would cover it.
            no_children(mounts, child, folder)?;
            continue;
        } else {
            return Err(Error::Foreign(name.to_owned()));
        };
        for grandchild in mounts.children(child.id) {
            let file = grandchild.below(child);
            let known = inside.is_empty() && is_one(file) || inside.contains(&file);
            if !known || !grandchild.is_tmpfs_of(TMPFS_SOURCE) {
                return Err(Error::Foreign(grandchild.below(folder).to_owned()));
            }
            no_children(mounts, grandchild, folder)?;
        }
    }
    Ok(())
}

/// Refuses a container with several devices: each has a folder for arbitration.
fn verify_alone(mounts: &Mounts, folder: &Mount, driver: &str) -> Result<(), Error> {
    let names = mounts.children(folder.id).map(|child| child.below(folder));
    let devices: BTreeSet<&str> = names.filter_map(|name| name.strip_prefix(ARBITRATION)).collect();
    match devices.len() {
        0 | 1 => Ok(()),
        count => Err(Error::NotAlone {
            count,
            driver: driver.to_owned(),
        }),
    }
}

fn no_children(mounts: &Mounts, mount: &Mount, folder: &Mount) -> Result<(), Error> {
    match mounts.children(mount.id).next() {
        None => Ok(()),
        Some(over) => Err(Error::Foreign(over.below(folder).to_owned())),
    }
}

fn is_share(name: &str) -> bool {
    vgpu_abi::limits::is_share_name(name)
}

fn is_one(name: &str) -> bool {
    !matches!(name, "" | "." | "..") && !name.contains('/')
}

/// Returns true if a CDI spec may mount one of our files at this path below the folder.
pub(crate) fn is_file(path: &str) -> bool {
    FILES.iter().any(|folder| path.strip_prefix(folder).is_some_and(is_one))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "\
        30 1 0:50 / /r rw - overlay overlay rw\n\
        31 30 0:51 / /r/dev rw - tmpfs tmpfs rw\n\
        32 31 0:52 / /r/dev/vgpu rw - tmpfs vgpu rw\n\
        33 32 0:53 / /r/dev/vgpu/s1 ro - tmpfs vgpu rw\n\
        34 33 0:53 /ledger /r/dev/vgpu/s1/ledger rw - tmpfs vgpu rw\n\
        35 32 0:54 / /r/dev/vgpu/.arbitration/GPU-1 ro - tmpfs vgpu rw\n\
        36 35 0:54 /03 /r/dev/vgpu/.arbitration/GPU-1/03 rw - tmpfs vgpu rw\n\
        37 32 8:1 /lib/x /r/dev/vgpu/.lib/libcuda.so.1 ro - ext4 /dev/sda1 rw\n\
        38 32 8:1 /lib/y /r/dev/vgpu/.driver/libcuda.so.1 ro - ext4 /dev/sda1 rw\n\
        39 31 0:55 / /r/dev/shm rw - tmpfs shm rw\n";

    /// Files that the CDI spec mounts.
    fn files() -> Vec<String> {
        [".lib/libcuda.so.1", ".driver/libcuda.so.1"].map(str::to_owned).into()
    }

    /// Verifies the mounts of `text`: 30 is the root, 31 is /dev, and `folder` is /dev/vgpu.
    fn verified(text: &str, folder: u64) -> Result<(), String> {
        let mounts = Mounts::parse(text);
        let of = |id: u64| {
            let mut all = mounts.children(1).chain(mounts.children(30)).chain(mounts.children(31));
            let covering = mounts.children(32);
            let found = all
                .find(|mount| mount.id == id)
                .or_else(|| covering.into_iter().find(|mount| mount.id == id));
            found.expect("a mount")
        };
        verify_mounts(&mounts, of(30), of(31), of(folder), &files()).map_err(|error| error.to_string())
    }

    #[test]
    fn the_mounts_of_the_spec_pass() {
        assert_eq!(verified(GOOD, 32), Ok(()));
        let two = format!("{GOOD}40 32 0:60 / /r/dev/vgpu/s2 ro - tmpfs vgpu rw\n");
        assert_eq!(verified(&two, 32), Ok(()));
    }

    /// Two shares of one device are one for CUDA.
    #[test]
    fn an_instance_beside_another_device_is_refused_where_the_driver_gives_one() {
        let verified = |text: &str| {
            let mounts = Mounts::parse(text);
            let folder = mounts.children(31).find(|mount| mount.id == 32).expect("the folder");
            verify_alone(&mounts, folder, "560.35.03").map_err(|error| error.to_string())
        };
        let second_share = "40 32 0:60 / /r/dev/vgpu/s2 ro - tmpfs vgpu rw\n";
        assert_eq!(verified(&format!("{GOOD}{second_share}")), Ok(()));
        let second = "41 32 0:61 / /r/dev/vgpu/.arbitration/MIG-2 ro - tmpfs vgpu rw\n";
        let said = verified(&format!("{GOOD}{second_share}{second}")).expect_err("two devices");
        for part in ["2 devices", "560.35.03", "a container for each"] {
            assert!(said.contains(part), "{said}");
        }
    }

    #[test]
    fn what_a_volume_puts_there_is_named() {
        for (line, folder, named) in [
            // A volume over ours, through a link.
            (
                "40 32 0:60 / /r/dev/vgpu ro - tmpfs tmpfs rw",
                40,
                "at /dev/vgpu, over the limits",
            ),
            // Our mount over a volume.
            (
                "40 32 0:60 / /r/dev/vgpu ro - tmpfs vgpu rw",
                40,
                "at /dev/vgpu, over the limits",
            ),
            // An additional share, directly and inside a folder of ours.
            (
                "40 32 0:60 / /r/dev/vgpu/forged ro - tmpfs tmpfs rw",
                32,
                "at /dev/vgpu/forged, among",
            ),
            (
                "40 32 8:1 / /r/dev/vgpu/forged ro - ext4 /dev/sda1 rw",
                32,
                "at /dev/vgpu/forged, among",
            ),
            (
                "40 32 0:60 / /r/dev/vgpu/.lib ro - tmpfs tmpfs rw",
                32,
                "at /dev/vgpu/.lib, among",
            ),
            (
                "40 32 0:60 / /r/dev/vgpu/.lib/a/b ro - tmpfs tmpfs rw",
                32,
                "at /dev/vgpu/.lib/a/b, among",
            ),
            // An additional file in a folder of ours.
            (
                "40 32 8:1 /evil /r/dev/vgpu/.driver/evil.so ro - ext4 /dev/sda1 rw",
                32,
                "at /dev/vgpu/.driver/evil.so, among",
            ),
            (
                "40 32 0:60 / /r/dev/vgpu/.lib/libcuda.so ro - tmpfs vgpu rw",
                32,
                "at /dev/vgpu/.lib/libcuda.so, among",
            ),
            // Volumes over a file of ours and over a file of a share.
            (
                "40 37 0:60 / /r/dev/vgpu/.lib/libcuda.so.1 ro - tmpfs tmpfs rw",
                32,
                ".lib/libcuda.so.1, among",
            ),
            (
                "40 33 0:60 / /r/dev/vgpu/s1/limits ro - tmpfs tmpfs rw",
                32,
                "at /dev/vgpu/s1/limits, among",
            ),
            (
                "40 34 0:60 / /r/dev/vgpu/s1/ledger ro - tmpfs tmpfs rw",
                32,
                "at /dev/vgpu/s1/ledger, among",
            ),
            (
                "40 33 0:60 / /r/dev/vgpu/s1 ro - tmpfs tmpfs rw",
                32,
                "among the limits",
            ),
        ] {
            let said = verified(&format!("{GOOD}{line}\n"), folder).expect_err(line);
            assert!(said.contains(named), "{line}: {said}");
        }
    }

    #[test]
    fn a_folder_that_is_no_mount_of_the_spec_is_refused() {
        let without = GOOD.replace("32 31 ", "32 1 ");
        assert!(verified(&without, 31).expect_err("refused").contains("it is no mount"));
        let volume = GOOD.replace("31 30 ", "31 29 ");
        let mounts = Mounts::parse(&volume);
        let of = |parent: u64| mounts.children(parent).next().expect("a mount");
        let said = verify_mounts(&mounts, of(1), of(29), of(31), &[])
            .expect_err("refused")
            .to_string();
        assert!(said.contains("a volume is mounted at /dev,"), "{said}");
    }
}
