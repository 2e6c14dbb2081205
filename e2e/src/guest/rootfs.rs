//! The guest's disk image and kernel: a Debian made of packages from this machine's own mirror.
//!
//! Built in namespaces in which this user is root (rootfs.sh): nothing runs as root on this machine, no loop device is
//! used, and when the first process dies, the kernel ends all others and drops all mounts.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

use super::ending;
use super::namespaces::in_namespaces;
use super::scratch::Scratch;

/// The build script.
const RECIPE: &str = include_str!("rootfs.sh");
/// Packages of a small Debian server, and those that the cluster needs.
const PACKAGES: [&str; 19] = [
    "apparmor",
    "ca-certificates",
    "dbus",
    "e2fsprogs",
    "initramfs-tools",
    "iproute2",
    "iptables",
    "kmod",
    "libpam-systemd",
    "libseccomp2",
    "linux-image-cloud-amd64",
    "login",
    "mount",
    "procps",
    "sudo",
    "systemd",
    "systemd-sysv",
    "udev",
    "util-linux",
];
/// The guest's ordinary user; rootfs.sh creates it with this UID.
pub(super) const USER: &str = "user";
pub(super) const USER_ID: u64 = 1000;

/// A Debian release that the check supports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Debian {
    Bookworm,
    Trixie,
}

impl Debian {
    pub(super) fn parse(text: &str) -> Result<Self> {
        match text.trim() {
            "12" => Ok(Self::Bookworm),
            "13" => Ok(Self::Trixie),
            _ => bail!("DEBIAN (or --debian) is {text:?}, which this check does not know: give 12 or 13"),
        }
    }

    pub(super) fn number(self) -> u8 {
        match self {
            Self::Bookworm => 12,
            Self::Trixie => 13,
        }
    }

    fn codename(self) -> &'static str {
        match self {
            Self::Bookworm => "bookworm",
            Self::Trixie => "trixie",
        }
    }
}

/// The files that qemu boots.
#[derive(Debug)]
pub(super) struct Image {
    pub(super) kernel: PathBuf,
    pub(super) initramfs: PathBuf,
    pub(super) disk: PathBuf,
}

impl Image {
    fn in_folder(folder: &Path) -> Self {
        Self {
            kernel: folder.join("vmlinuz"),
            initramfs: folder.join("initrd.img"),
            disk: folder.join("disk.img"),
        }
    }
}

/// The image from the cache, or a new one. The held scratch folder ensures that nobody else builds one.
pub(super) fn image(
    debian: Debian,
    disk: u64,
    cache: &Path,
    scratch: &Scratch,
    say: &mut dyn FnMut(&str),
) -> Result<Image> {
    let done = cache.join(format!("{}-{}", debian.codename(), key(debian, disk)));
    if done.is_dir() {
        return Ok(Image::in_folder(&done));
    }
    say(&format!(
        "making a Debian {} of {} packages and what they need: 2 minutes",
        debian.number(),
        PACKAGES.len()
    ));
    let work = scratch.path("rootfs");
    fs::create_dir(&work).with_context(|| format!("cannot create {}", work.display()))?;
    let mut command = in_namespaces(ending::tied("unshare"), &["sh", "-c", RECIPE, "rootfs.sh"]);
    command
        .current_dir(&work)
        .env("TMPDIR", &work)
        .args([debian.codename(), &PACKAGES.join(","), &disk.to_string()])
        .args([USER, &USER_ID.to_string()])
        // Without a mirror, mmdebstrap uses Debian's own.
        .args(vgpu_cache::apt::debian_mirror().ok());
    ending::run(command, "making the guest's file system")?;
    fs::rename(&work, &done).with_context(|| format!("cannot rename {} to {}", work.display(), done.display()))?;
    Ok(Image::in_folder(&done))
}

/// Everything that decides the result, except the current versions of the packages.
fn key(debian: Debian, disk: u64) -> String {
    let mut hash = Sha256::new();
    for part in [debian.codename(), &PACKAGES.join(","), &disk.to_string(), USER, RECIPE] {
        hash.update(part);
        hash.update([0]);
    }
    let hash = hash.finalize();
    hash.iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_that_is_not_known_is_refused_by_variable_value_and_remedy() {
        assert_eq!(Debian::parse("13").unwrap(), Debian::Trixie);
        for bad in ["", "11", "trixie", "12.5"] {
            assert_eq!(
                Debian::parse(bad).unwrap_err().to_string(),
                format!("DEBIAN (or --debian) is {bad:?}, which this check does not know: give 12 or 13")
            );
        }
    }

    #[test]
    fn another_release_or_size_is_another_image() {
        let first = key(Debian::Bookworm, 1);
        assert_eq!(first, key(Debian::Bookworm, 1));
        assert_ne!(first, key(Debian::Trixie, 1));
        assert_ne!(first, key(Debian::Bookworm, 2));
    }
}
