//! Prevents NVIDIA's libraries from creating device nodes in a container.
//!
//! As root, they create a missing GPU's node in /dev unless /proc/driver/nvidia/params forbids it. In a container this
//! would give access to a neighbour's GPU. So a file that forbids it is mounted over that path, as NVIDIA's own
//! runtime does. Nothing is mounted on nodes without a driver, or if the driver already forbids it. A second run for
//! another claim finds the file of the first.

use std::io::{self, Read};

use rustix::fs::{Mode, OFlags};

use crate::{
    list_mount,
    remedy::remedy,
    rootfs::{self, Mounts, Root},
};

const PARAMS: &str = "/proc/driver/nvidia/params";
const ALLOWED: &str = "ModifyDeviceFiles: 1";
const FORBIDDEN: &str = "ModifyDeviceFiles: 0";
/// The mount's source in mountinfo.
const SOURCE: &str = "vgpu-params";
/// Size limit; the file has a line for each of some forty settings.
const MAX_PARAMS: u64 = 64 << 10;

/// The reason why the file cannot be mounted.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{PARAMS} {0}; check the mount at /proc")]
    Place(rootfs::Error),
    #[error("{PARAMS}: cannot {action} it: {source}; {}", remedy(source))]
    Mount { action: &'static str, source: io::Error },
    #[error(transparent)]
    Cover(list_mount::Error),
}

/// Mounts the file if the driver lets root create device nodes.
pub(crate) fn forbid_device_nodes(root: &Root, label: Option<&str>) -> Result<(), Error> {
    let Some(file) = root.open_file(PARAMS).map_err(Error::Place)? else {
        return Ok(());
    };
    let mut text = String::new();
    let read = file.take(MAX_PARAMS).read_to_string(&mut text);
    read.map_err(|source| Error::Mount { action: "read", source })?;
    let Some(text) = forbidding(&text) else {
        return Ok(());
    };
    let place = root.place(PARAMS, Mounts::Enter).map_err(Error::Place)?;
    let entry = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let target = rustix::fs::openat(&place.dir, &place.name, entry, Mode::empty());
    let target = target.map_err(|errno| Error::Mount {
        action: "open",
        source: errno.into(),
    })?;
    list_mount::cover(&target, text.as_bytes(), label, SOURCE, &place.dir).map_err(|error| match error {
        list_mount::Error::Mount { action, source } => Error::Mount { action, source },
        error => Error::Cover(error),
    })
}

/// Returns the text with the setting changed, or None if it already forbids creating device nodes.
fn forbidding(text: &str) -> Option<String> {
    text.lines().any(|line| line == ALLOWED).then(|| {
        let line = |line| if line == ALLOWED { FORBIDDEN } else { line };
        text.lines().flat_map(|one| [line(one), "\n"]).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_setting_that_allows_it_is_changed() {
        let text = "ResmanDebugLevel: 4294967295\nModifyDeviceFiles: 1\nDeviceFileMode: 438\n";
        let changed = forbidding(text).expect("changed");
        assert_eq!(changed, text.replace("Files: 1", "Files: 0"));
        for same in [
            "",
            "ModifyDeviceFiles: 0\n",
            "ModifyDeviceFiles: 11\n",
            " ModifyDeviceFiles: 1\n",
        ] {
            assert_eq!(forbidding(same), None, "{same:?}");
        }
    }
}
