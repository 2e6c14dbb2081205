//! One library into one container's /etc/ld.so.preload.
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
/// The loader's name in programs, and where that leads in the layouts of Debian and Red Hat.
const LOADERS: [&str; 4] = [
    "/lib64/ld-linux-x86-64.so.2",
    "/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2",
    "/usr/lib64/ld-linux-x86-64.so.2",
    "/usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2",
];
/// A list is some paths; a loader takes 200 KiB.
const MAX_LIST: u64 = 1 << 20;
const MAX_LOADER: u64 = 8 << 20;
const ATTEMPTS: u32 = 16;

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The library is in the list.
    Listed,
    /// The container starts without it.
    Left(Reason),
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    NoGlibc,
    ReadOnly,
    Mounted,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoGlibc => {
                "its image has no glibc (no ld-linux-x86-64.so.2 that reads /etc/ld.so.preload), so no CUDA program \
                 runs in it and no limit is needed; use an image with glibc 2.17 or newer for GPU work"
            }
            Self::ReadOnly => {
                "its root file system cannot be written to, so /etc/ld.so.preload is as the image has it; limits hold \
                 for programs that open libcuda.so.1 by that name, not for drivers bundled in the image"
            }
            Self::Mounted => {
                "a volume is mounted at /etc or /etc/ld.so.preload, which is left alone; limits hold for programs that \
                 open libcuda.so.1 by that name, not for drivers bundled in the image"
            }
        })
    }
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{path}: cannot open the root file system: {source}; the runtime named it, so look at the runtime's log", path = .path.display())]
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

/// Puts `library` into the list of the container whose files lie under `root`.
pub(crate) fn merge(root: &Path, library: &str) -> Result<Outcome, Error> {
    let root = Root::open(root).map_err(|source| Error::Root {
        path: root.to_owned(),
        source,
    })?;
    if !reads_the_list(&root)? {
        return Ok(Outcome::Left(Reason::NoGlibc));
    }
    // An entry that is no file makes every program of the container say so on stderr.
    if !matches!(root.open_file(library), Ok(Some(_))) {
        return Err(Error::NoLibrary {
            path: library.to_owned(),
        });
    }
    match add(&root, library) {
        Err(Error::Write { source, .. }) if source.raw_os_error() == Some(Errno::ROFS.raw_os_error()) => {
            Ok(Outcome::Left(Reason::ReadOnly))
        }
        // The rename of a file onto one that is a mount.
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

/// Whether the image has a loader that knows the list. musl's does not, under whatever name.
fn reads_the_list(root: &Root) -> Result<bool, Error> {
    for path in LOADERS {
        // A loader that is no file, or behind a loop of links, starts no program.
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
            // Another run was faster.
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

/// Puts a file with `text` in the place, with the mode and owner of the one that was there.
fn replace(place: &Place, text: &[u8], old: Option<&std::fs::Metadata>) -> Result<(), Error> {
    let (temp, file) = temp_file(place)?;
    let written = fill(file, text, old)
        .and_then(|()| rustix::fs::renameat(&place.dir, &temp, &place.dir, &place.name).map_err(failed("replace")));
    if written.is_err() {
        // The error that is reported is the first one.
        let _ = rustix::fs::unlinkat(&place.dir, &temp, AtFlags::empty());
    }
    written
}

fn temp_file(place: &Place) -> Result<(String, OwnedFd), Error> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut attempt = 0;
    loop {
        // In the container's PID namespace this is process 1 or 2 each time; the time makes the name.
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
        // In a user namespace the old owner may have no number; then the file is root's, who made it.
        let _ = rustix::fs::fchown(&file, Some(Uid::from_raw(old.uid())), Some(Gid::from_raw(old.gid())));
    }
    // After fchown, which takes bits away; whatever the umask is.
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
