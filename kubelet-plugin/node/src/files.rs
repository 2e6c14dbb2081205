//! Replaces files atomically, reads them with a size limit, refuses names in them that lead out of a folder, and names the file
//! and the step that failed.

use rustix::fs::{FallocateFlags, Mode, OFlags};
use rustix::io::Errno;
use serde::de::Error as _;
use serde::{Deserialize as _, Deserializer};
use std::fs::{File, FileType, Permissions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

/// The end of the name of a temporary file.
const TEMPORARY: &str = ".new";

/// A step with a file or folder failed.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {}: {source}", path.display())]
pub struct Failed {
    action: &'static str,
    path: PathBuf,
    source: io::Error,
}

/// Says which step with which file failed.
pub fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Failed {
    let path = path.to_path_buf();
    move |source| Failed { action, path, source }
}

/// Replaces `path` by `bytes` atomically. Nothing is synced: the file outlives this process. After a power loss no
/// container runs, and kubelet prepares the claims of pods that it restarts. A file may then be empty or missing, so
/// each is either checked by its content or written again after a boot. The temporary file is `path` with `.new`
/// appended, so that a later call replaces one that a crash left.
///
/// # Errors
/// The first step that failed.
pub fn replace(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    replace_after(path, bytes, mode, |_| Ok(()))
}

/// Same as [`replace`], for a file that matters after a power loss: `path` is then either the old file or the new one.
///
/// # Errors
/// The first step that failed.
pub fn replace_synced(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    replace_after(path, bytes, mode, File::sync_all)
}

/// Replaces a file by zeros and these parts, as (offset, bytes), which are written in this order. Not synced. All
/// blocks are allocated, so that a process that maps it gets no SIGBUS on a full disk.
///
/// # Errors
/// The first step that failed.
pub fn replace_zeros(path: &Path, length: usize, parts: &[(usize, Vec<u8>)], mode: u32) -> io::Result<()> {
    replace_after(path, &[], mode, |file| {
        let allocate = || rustix::fs::fallocate(file, FallocateFlags::empty(), 0, length as u64);
        match rustix::io::retry_on_intr(allocate) {
            // For example NFS before version 4.2.
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => file.write_all_at(&vec![0; length], 0)?,
            allocated => allocated?,
        }
        let mut parts = parts.iter();
        parts.try_for_each(|(at, bytes)| file.write_all_at(bytes, *at as u64))
    })
}

fn replace_after(path: &Path, bytes: &[u8], mode: u32, last: impl Fn(&File) -> io::Result<()>) -> io::Result<()> {
    let mut name = path.as_os_str().to_owned();
    name.push(TEMPORARY);
    let temporary = Path::new(&name);
    let create = || File::options().write(true).create_new(true).open(temporary);
    let fill = || {
        let mut file = match create() {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                std::fs::remove_file(temporary)?;
                create()?
            }
            created => created?,
        };
        file.write_all(bytes)?;
        // Set here, because the mode of the open is subject to the umask.
        file.set_permissions(Permissions::from_mode(mode))?;
        last(&file)?;
        std::fs::rename(temporary, path)
    };
    fill().inspect_err(|_| {
        // On a full disk, the temporary file would take space that others need.
        let _ = std::fs::remove_file(temporary);
    })
}

/// Creates a folder that only root can enter, and sets its mode if it exists. Containers get the files in it
/// by bind mounts, which do not need access to it.
///
/// # Errors
/// The folder cannot be created, or its mode cannot be set.
pub fn private_folder(path: &Path) -> io::Result<()> {
    let private = Permissions::from_mode(0o700);
    let is_private =
        |found: &std::fs::Metadata| found.is_dir() && found.permissions().mode() & 0o7777 == private.mode();
    // The folder nearly always exists.
    if std::fs::metadata(path).is_ok_and(|found| is_private(&found)) {
        return Ok(());
    }
    std::fs::create_dir_all(path)?;
    if !is_private(&std::fs::metadata(path)?) {
        std::fs::set_permissions(path, private)?;
    }
    Ok(())
}

/// Names of the folders in `path`, sorted; none if `path` does not exist.
///
/// # Errors
/// The folder cannot be listed.
pub fn folders(path: &Path) -> io::Result<Vec<String>> {
    names_of(path, |kind| kind.is_dir())
}

/// Names of the regular files in `path`, sorted; none if `path` does not exist.
///
/// # Errors
/// The folder cannot be listed.
pub fn regular_files(path: &Path) -> io::Result<Vec<String>> {
    names_of(path, |kind| kind.is_file())
}

fn names_of(path: &Path, is_wanted: impl Fn(&FileType) -> bool) -> io::Result<Vec<String>> {
    let entries = match std::fs::read_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry?;
        if is_wanted(&entry.file_type()?) {
            names.extend(entry.file_name().into_string());
        }
    }
    names.sort();
    Ok(names)
}

/// Reads at most `limit + 1` bytes of a file that a tenant can write. Does not follow a link and does not
/// block. A result longer than `limit` means that the file is too large.
///
/// # Errors
/// The file cannot be opened or read, or is not a regular file.
pub fn read_bounded(path: &Path, limit: usize) -> io::Result<Vec<u8>> {
    let (file, length) = open_regular(path)?;
    // A buffer that grows step by step would copy a ledger several times.
    let room = usize::try_from(length).unwrap_or(limit).min(limit) + 1;
    let mut bytes = Vec::with_capacity(room);
    file.take(limit as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Opens a file that a tenant can write, and returns its length. Does not follow a link and does not block.
///
/// # Errors
/// The file cannot be opened, or is not a regular file.
pub fn open_regular(path: &Path) -> io::Result<(File, u64)> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    let found = file.metadata()?;
    if !found.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    Ok((file, found.len()))
}

/// Refuses a name in a file of the plugin's, or in an answer of the driver, that could lead out of its folder.
pub fn safe_name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let name = String::deserialize(deserializer)?;
    let is_safe = name.len() <= 128
        && !name.starts_with('.')
        && name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'));
    match is_safe {
        true => Ok(name),
        false => Err(D::Error::custom(format!(
            "{:?} is no name of a folder",
            shortened(&name)
        ))),
    }
}

/// Same as [`safe_name`], for a name that must not be empty: the UUID of a GPU.
pub fn safe_uuid<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let uuid = safe_name(deserializer)?;
    match uuid.is_empty() {
        true => Err(D::Error::custom("the UUID of a GPU is empty")),
        false => Ok(uuid),
    }
}

fn shortened(text: &str) -> String {
    text.chars().take(64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replacement_has_its_mode_and_leaves_nothing() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("f");
        std::fs::write(dir.path().join("f.new"), "left by a crash").expect("written");
        for text in ["one", "two"] {
            replace(&path, text.as_bytes(), 0o444).expect("replaced");
            assert_eq!(std::fs::read_to_string(&path).expect("read"), text);
        }
        let mode = std::fs::metadata(&path).expect("there").permissions().mode();
        assert_eq!(mode & 0o7777, 0o444);
        assert_eq!(std::fs::read_dir(dir.path()).expect("listed").count(), 1);
    }

    #[test]
    fn reads_are_bounded_and_follow_nothing() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("f");
        std::fs::write(&path, [0; 100]).expect("written");
        assert_eq!(read_bounded(&path, 10).expect("read").len(), 11);
        assert_eq!(read_bounded(&path, 100).expect("read").len(), 100);
        let link = dir.path().join("l");
        std::os::unix::fs::symlink(&path, &link).expect("a link");
        assert!(read_bounded(&link, 10).is_err());
        assert!(read_bounded(dir.path(), 10).is_err());
    }
}
