//! Adds one library to one container's /etc/ld.so.preload.
//!
//! No fsync: the file belongs to a container that a crash of the machine ends as well.

use std::{
    fmt,
    fs::File,
    io::{self, Read, Write},
    os::{fd::OwnedFd, unix::fs::MetadataExt},
    path::{Path, PathBuf},
    time::{SystemTime, UNIX_EPOCH},
};

use rustix::{
    fs::{AtFlags, Gid, Mode, OFlags, Uid},
    io::Errno,
};

use crate::{
    list,
    rootfs::{self, Mounts, Place, Root},
};

const LIST: &str = "/etc/ld.so.preload";
/// The loader's path in programs, and the paths to which it links on Debian and Red Hat.
const LOADERS: [&str; 4] = [
    "/lib64/ld-linux-x86-64.so.2",
    "/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2",
    "/usr/lib64/ld-linux-x86-64.so.2",
    "/usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2",
];
/// A list has some paths; a loader 200 KiB.
const MAX_LIST: u64 = 1 << 20;
const MAX_LOADER: u64 = 8 << 20;
const ATTEMPTS: u32 = 16;

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The library is in the list.
    Listed,
    /// The container starts without the library.
    Left(Reason),
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    NoGlibc,
    ReadOnly,
    Mounted,
}

impl Reason {
    /// The report's file name, which kubelet-plugin/src/report.rs knows.
    pub(crate) fn file(&self) -> &'static str {
        match self {
            Self::NoGlibc => "no-glibc",
            Self::ReadOnly => "read-only",
            Self::Mounted => "mounted",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoGlibc => {
                "its image has no glibc (no ld-linux-x86-64.so.2 that reads /etc/ld.so.preload), so no CUDA program \
                 runs in it and no limit is needed; use an image with glibc 2.17 or newer for GPU work"
            }
            Self::ReadOnly => {
                "its root file system cannot be written to, so /etc/ld.so.preload is as the image has it; limits are enforced \
                 for programs that open libcuda.so.1 by that name, not for drivers bundled in the image"
            }
            Self::Mounted => {
                "a volume is mounted at /etc or /etc/ld.so.preload, which is left alone; limits are enforced for programs that \
                 open libcuda.so.1 by that name, not for drivers bundled in the image"
            }
        })
    }
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{path}: cannot open the root file system: {source}; the runtime named it, so check the runtime's log", path = .path.display())]
    Root { path: PathBuf, source: io::Error },
    #[error("{path} in the image {source}; correct the image")]
    Image { path: &'static str, source: rootfs::Error },
    #[error(
        "{path} is not a file in the container; the CDI spec must mount it, so restart vgpu-kubelet-plugin on this node"
    )]
    NoLibrary { path: String },
    #[error("{path} in the image is larger than {max} bytes; correct the image")]
    TooLarge { path: &'static str, max: u64 },
    #[error("{path}: cannot {action} it: {source}; free or repair the container's file system")]
    Write {
        path: &'static str,
        action: &'static str,
        source: io::Error,
    },
}

/// Adds `library` to the list of the container whose files are under `root`.
pub(crate) fn merge(root: &Path, library: &str) -> Result<Outcome, Error> {
    let root = Root::open(root).map_err(|source| Error::Root {
        path: root.to_owned(),
        source,
    })?;
    if !reads_the_list(&root)? {
        return Ok(Outcome::Left(Reason::NoGlibc));
    }
    // With an entry that is not a file, every program of the container would print an error.
    if !matches!(root.open_file(library), Ok(Some(_))) {
        return Err(Error::NoLibrary {
            path: library.to_owned(),
        });
    }
    match add(&root, library) {
        Err(Error::Write { source, .. }) if source.raw_os_error() == Some(Errno::ROFS.raw_os_error()) => {
            Ok(Outcome::Left(Reason::ReadOnly))
        }
        // The target of the rename is a mount.
        Err(Error::Write { source, .. }) if source.raw_os_error() == Some(Errno::BUSY.raw_os_error()) => {
            Ok(Outcome::Left(Reason::Mounted))
        }
        Err(Error::Image {
            source: rootfs::Error::Mounted,
            ..
        }) => Ok(Outcome::Left(Reason::Mounted)),
        done => done.map(|()| Outcome::Listed),
    }
}

/// Returns true if the image has a loader that reads the list. musl's does not, under any name.
fn reads_the_list(root: &Root) -> Result<bool, Error> {
    for path in LOADERS {
        // A loader that is not a file, or is behind a loop of links, starts no program.
        let Ok(Some(file)) = root.open_file(path) else { continue };
        let mut content = Vec::new();
        file.take(MAX_LOADER)
            .read_to_end(&mut content)
            .map_err(|source| Error::Image {
                path,
                source: source.into(),
            })?;
        if content.windows(LIST.len()).any(|window| window == LIST.as_bytes()) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn add(root: &Root, library: &str) -> Result<(), Error> {
    let image = |source| Error::Image { path: LIST, source };
    let etc = root.place("/etc", Mounts::Refuse).map_err(image)?;
    if !etc.exists {
        match rustix::fs::mkdirat(&etc.dir, &etc.name, Mode::from_raw_mode(0o755)) {
            // Another run created it first.
            Ok(()) | Err(Errno::EXIST) => (),
            Err(error) => return Err(failed("make the folder of")(error)),
        }
    }
    let place = root.place(LIST, Mounts::Refuse).map_err(image)?;
    let old = place.open().map_err(image)?;
    let metadata = old
        .as_ref()
        .map(File::metadata)
        .transpose()
        .map_err(io_failed("read"))?;
    let text = old.map(read).transpose()?.unwrap_or_default();
    match list::with(&text, library) {
        None => Ok(()),
        Some(text) => replace(&place, &text, metadata.as_ref()),
    }
}

fn read(file: File) -> Result<Vec<u8>, Error> {
    let mut text = Vec::new();
    file.take(MAX_LIST + 1)
        .read_to_end(&mut text)
        .map_err(io_failed("read"))?;
    if text.len() as u64 > MAX_LIST {
        return Err(Error::TooLarge {
            path: LIST,
            max: MAX_LIST,
        });
    }
    Ok(text)
}

/// Replaces the file by one with `text`, keeping the old one's mode and owner.
fn replace(place: &Place, text: &[u8], old: Option<&std::fs::Metadata>) -> Result<(), Error> {
    let (temp, file) = temp_file(place)?;
    let written = fill(file, text, old)
        .and_then(|()| rustix::fs::renameat(&place.dir, &temp, &place.dir, &place.name).map_err(failed("replace")));
    if written.is_err() {
        // Report the first error only.
        let _ = rustix::fs::unlinkat(&place.dir, &temp, AtFlags::empty());
    }
    written
}

fn temp_file(place: &Place) -> Result<(String, OwnedFd), Error> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut attempt = 0;
    loop {
        // In the container's PID namespace the PID is 1 or 2 each time, so the time makes the name unique.
        let time = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| since.as_nanos());
        let name = format!(".ld.so.preload.vgpu-{}-{time}-{attempt}", std::process::id());
        match rustix::fs::openat(&place.dir, &name, flags, Mode::from_raw_mode(0o600)) {
            Ok(file) => return Ok((name, file)),
            Err(Errno::EXIST) if attempt < ATTEMPTS => attempt += 1,
            Err(error) => return Err(failed("write")(error)),
        }
    }
}

fn fill(file: OwnedFd, text: &[u8], old: Option<&std::fs::Metadata>) -> Result<(), Error> {
    let mut file = File::from(file);
    file.write_all(text).map_err(io_failed("write"))?;
    if let Some(old) = old {
        // In a user namespace the old owner may have no ID; then the file belongs to root.
        let _ = rustix::fs::fchown(&file, Some(Uid::from_raw(old.uid())), Some(Gid::from_raw(old.gid())));
    }
    // After fchown, which clears bits; set explicitly, whatever the umask.
    let mode = old.map_or(0o644, |old| old.mode() & 0o7777);
    rustix::fs::fchmod(&file, Mode::from_raw_mode(mode)).map_err(failed("set the mode of"))
}

fn failed(action: &'static str) -> impl FnOnce(Errno) -> Error {
    move |error| Error::Write {
        path: LIST,
        action,
        source: error.into(),
    }
}

fn io_failed(action: &'static str) -> impl FnOnce(io::Error) -> Error {
    move |source| Error::Write {
        path: LIST,
        action,
        source,
    }
}
