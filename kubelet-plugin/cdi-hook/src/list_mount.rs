//! Puts the list of preloaded libraries into a container: a file of a read-only tmpfs, mounted at /etc/ld.so.preload.
//!
//! A container's root cannot remove, rename or write to a mount. But it can rename the folder that contains the mount
//! if the file system allows this, and a mount on a volume's file disappears when another container removes that file.
//! So /etc is first mounted on itself, and the list is mounted on a file in the container's own layer. A volume at
//! /etc is refused. A volume at the list itself is unmounted after its entries are read.
//!
//! A second run in the same container (one for each claim) recognises the first run's list by the source of its tmpfs.

use std::{
    ffi::OsStr,
    io::{self, Write},
    os::fd::{AsRawFd, OwnedFd},
    path::Path,
};

use rustix::{
    fs::{AtFlags, FileType, Mode, OFlags},
    io::Errno,
    mount::{
        FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags,
        fsconfig_create, fsconfig_set_string, fsmount, fsopen, mount_remount, move_mount, open_tree, unmount,
    },
};
use vgpu_hook::text::shown;

use crate::{
    list::LIST,
    mounts::Mounts as MountList,
    remedy::remedy,
    rootfs::{self, Mounts, Root},
};

const ETC: &str = "etc";
const NAME: &str = "ld.so.preload";
/// The tmpfs has one file. The image's list is at most 1 MiB, and our entry is added.
const OPTIONS: [(&str, &str); 3] = [("size", "2m"), ("nr_inodes", "2"), ("mode", "0755")];
/// The tmpfs's source, visible in mountinfo. A pod cannot choose the source of its volumes.
const SOURCE: &str = "vgpu-preload";
const FILE: &str = "list";
/// Limit of volumes mounted over the list, one on top of the other.
const MAX_VOLUMES: usize = 32;

const ENTRY: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// The reason why the list cannot be mounted.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{path} in the image {source}; correct the image")]
    Image { path: &'static str, source: rootfs::Error },
    #[error(
        "a volume is mounted at {destination}, {leads}where another container could take {LIST} away, without which the \
         limit is not enforced; remove this volume mount from the container, and mount single files below /etc instead",
        leads = if destination == "/etc" { "" } else { "to which /etc leads, " }
    )]
    VolumeAtEtc { destination: String },
    #[error("more than {MAX_VOLUMES} volumes are mounted at {LIST}; remove them from the pod")]
    TooManyVolumes,
    #[error("{LIST}: cannot {action} it: {source}; {}", remedy(source))]
    Mount { action: &'static str, source: io::Error },
}

/// Settings of the container's configuration.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted<'a> {
    /// The runtime makes the root file system read-only later, so /etc must become read-only too.
    pub(crate) read_only: bool,
    /// The SELinux label for mounts.
    pub(crate) label: Option<&'a str>,
}

/// Returns true if an earlier run, for another claim of the container, mounted its list.
pub(crate) fn is_put(root: &Root) -> Result<bool, Error> {
    let Ok(etc) = root.enter(OsStr::new(ETC)) else {
        return Ok(false);
    };
    let Ok(entry) = rustix::fs::openat(&etc, NAME, ENTRY, Mode::empty()) else {
        return Ok(false);
    };
    let mounts = MountList::read().map_err(io_failed("find the mounts of"))?;
    let mount = mounts.of(&entry).map_err(io_failed("find the mount of"))?;
    Ok(mount.is_tmpfs_of(SOURCE))
}

/// Mounts a list with this text.
pub(crate) fn put(root: &Root, text: &[u8], wanted: Wanted<'_>) -> Result<(), Error> {
    let etc = hold_etc(root, wanted.read_only)?;
    let target = target(&etc)?;
    cover(&target, text, wanted.label, SOURCE, &etc)
}

/// Mounts a read-only file with this text over `target`. `folder` is any folder of the container.
pub(crate) fn cover(
    target: &OwnedFd,
    text: &[u8],
    label: Option<&str>,
    source: &str,
    folder: &OwnedFd,
) -> Result<(), Error> {
    let file = file(text, label, source, folder)?;
    attach(&file, target).map_err(failed("mount"))?;
    let flags = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    remount(&file, flags).map_err(failed("make a read-only mount of"))
}

/// Mounts /etc on itself. Returns the mount.
fn hold_etc(root: &Root, read_only: bool) -> Result<OwnedFd, Error> {
    let source = match root.place("/etc", Mounts::Refuse) {
        Ok(place) if !place.exists => {
            let made = rustix::fs::mkdirat(&place.dir, &place.name, Mode::from_raw_mode(0o755));
            made.map_err(failed("make the folder of"))?;
            place.folder()
        }
        Ok(place) => place.folder(),
        Err(error) => Err(error),
    };
    let source = match source {
        Err(rootfs::Error::Mounted) => return Err(volume_at_etc(root)),
        source => source.map_err(|source| Error::Image { path: "/etc", source })?,
    };
    let writable = rustix::fs::fstatvfs(&source).map_err(failed("find the mount of"))?;
    let tree = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH
        | OpenTreeFlags::AT_RECURSIVE;
    let tree = open_tree(&source, "", tree).map_err(failed("copy the mount of"))?;
    let at = replaced_link(root)?;
    attach(&tree, &at).map_err(failed("mount /etc for"))?;
    // Files are created before the mount becomes read-only, so this is the last step.
    if read_only {
        prepare_target(&tree)?;
        // A remount must keep the flags of the root file system.
        let kept = [
            (rustix::fs::StatVfsMountFlags::NOSUID, MountFlags::NOSUID),
            (rustix::fs::StatVfsMountFlags::NODEV, MountFlags::NODEV),
            (rustix::fs::StatVfsMountFlags::NOEXEC, MountFlags::NOEXEC),
        ];
        let kept = kept.into_iter().filter(|(found, _)| writable.f_flag.contains(*found));
        let flags = kept.fold(MountFlags::RDONLY, |flags, (_, flag)| flags | flag);
        remount(&tree, flags).map_err(failed("make a read-only mount of the folder of"))?;
    }
    Ok(tree)
}

/// Builds the error that names the volume to which /etc leads.
fn volume_at_etc(root: &Root) -> Error {
    let place = || {
        let folder = root.place("/etc", Mounts::Enter)?.folder()?;
        let mounts = MountList::read()?;
        // The root may be a folder inside a mount.
        let outside = std::fs::read_link(format!("/proc/self/fd/{}", root.folder().as_raw_fd()))?;
        let place = mounts.of(&folder)?.place();
        let inside = Path::new(&place).strip_prefix(outside).map_err(io::Error::other)?;
        Ok::<_, rootfs::Error>(shown(&Path::new("/").join(inside).display().to_string()))
    };
    Error::VolumeAtEtc {
        destination: place().unwrap_or_else(|_| "/etc".to_owned()),
    }
}

/// Returns the root's entry `etc`. A link is replaced by a folder, because the container's root could replace the
/// link.
fn replaced_link(root: &Root) -> Result<OwnedFd, Error> {
    let open = || rustix::fs::openat(root.folder(), ETC, ENTRY, Mode::empty()).map_err(failed("open the folder of"));
    let found = open()?;
    if kind(&found)? != FileType::Symlink {
        return Ok(found);
    }
    rustix::fs::unlinkat(root.folder(), ETC, AtFlags::empty()).map_err(failed("replace the link of"))?;
    rustix::fs::mkdirat(root.folder(), ETC, Mode::from_raw_mode(0o755)).map_err(failed("make the folder of"))?;
    open()
}

/// Returns the file on which the list is mounted.
fn target(etc: &OwnedFd) -> Result<OwnedFd, Error> {
    prepare_target(etc)?;
    rustix::fs::openat(etc, NAME, ENTRY, Mode::empty()).map_err(failed("open"))
}

/// Unmounts volumes from the list, and makes it a regular file.
fn prepare_target(etc: &OwnedFd) -> Result<(), Error> {
    let path = format!("/proc/self/fd/{}/{NAME}", etc.as_raw_fd());
    let mut volumes = 0;
    loop {
        match unmount(&path, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
            Ok(()) if volumes == MAX_VOLUMES => return Err(Error::TooManyVolumes),
            Ok(()) => volumes += 1,
            // Not a mount, or missing.
            Err(Errno::INVAL | Errno::NOENT) => break,
            Err(error) => return Err(failed("take the volume off")(error)),
        }
    }
    match rustix::fs::openat(etc, NAME, ENTRY, Mode::empty()) {
        Ok(found) => match kind(&found)? {
            FileType::RegularFile => return Ok(()),
            FileType::Symlink => {
                rustix::fs::unlinkat(etc, NAME, AtFlags::empty()).map_err(failed("replace the link of"))?;
            }
            _ => {
                return Err(Error::Image {
                    path: LIST,
                    source: rootfs::Error::NotAFile,
                });
            }
        },
        Err(Errno::NOENT) => {}
        Err(error) => return Err(failed("open")(error)),
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let made = rustix::fs::openat(etc, NAME, flags, Mode::from_raw_mode(0o644));
    made.map(drop).map_err(failed("make"))
}

/// Creates a detached mount of a file with this text. The file's tmpfs covers `folder` for a moment, because before
/// Linux 6.15 only an attached mount can be copied.
fn file(text: &[u8], label: Option<&str>, source: &str, folder: &OwnedFd) -> Result<OwnedFd, Error> {
    let system = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC).map_err(failed("make a tmpfs for"))?;
    let further = [("source", source)]
        .into_iter()
        .chain(label.map(|label| ("context", label)));
    for (key, value) in OPTIONS.into_iter().chain(further) {
        fsconfig_set_string(&system, key, value).map_err(failed("make a tmpfs for"))?;
    }
    fsconfig_create(&system).map_err(failed("make a tmpfs for"))?;
    let flags =
        MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let tmpfs = fsmount(&system, FsMountFlags::FSMOUNT_CLOEXEC, flags).map_err(failed("make a tmpfs for"))?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let file = rustix::fs::openat(&tmpfs, FILE, flags, Mode::from_raw_mode(0o444)).map_err(failed("write"))?;
    // Set explicitly, because of the umask.
    rustix::fs::fchmod(&file, Mode::from_raw_mode(0o444)).map_err(failed("write"))?;
    std::fs::File::from(file).write_all(text).map_err(io_failed("write"))?;
    attach(&tmpfs, folder).map_err(failed("mount the tmpfs of"))?;
    let tree = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let copy = open_tree(&tmpfs, FILE, tree).map_err(failed("make a mount for"));
    let path = format!("/proc/self/fd/{}", tmpfs.as_raw_fd());
    unmount(path, UnmountFlags::DETACH).map_err(failed("unmount the tmpfs of"))?;
    copy
}

/// Attaches a detached mount at an opened file or folder.
fn attach(mount: &OwnedFd, at: &OwnedFd) -> rustix::io::Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(mount, "", at, "", flags)
}

fn remount(mount: &OwnedFd, flags: MountFlags) -> rustix::io::Result<()> {
    let path = format!("/proc/self/fd/{}", mount.as_raw_fd());
    mount_remount(path, MountFlags::BIND | flags, c"")
}

fn kind(entry: &OwnedFd) -> Result<FileType, Error> {
    let found = rustix::fs::fstat(entry).map_err(failed("open"))?;
    Ok(FileType::from_raw_mode(found.st_mode))
}

fn failed(action: &'static str) -> impl FnOnce(Errno) -> Error {
    move |error| io_failed(action)(error.into())
}

fn io_failed(action: &'static str) -> impl FnOnce(io::Error) -> Error {
    move |source| Error::Mount { action, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// These errors cannot be provoked on every machine.
    #[test]
    fn what_the_kernel_refuses_has_its_own_remedy() {
        for (errno, words) in [
            (Errno::NOSPC, "fs.mount-max"),
            (Errno::PERM, "allowed to mount"),
            (Errno::ROFS, "writable while the container is made"),
            (Errno::NOSYS, "Linux 5.2"),
            (Errno::IO, "kernel log"),
        ] {
            let line = failed("mount")(errno).to_string();
            assert!(line.starts_with("/etc/ld.so.preload: cannot mount it: "), "{line}");
            assert!(line.contains(words) && !line.contains('\n'), "{line}");
        }
    }
}
