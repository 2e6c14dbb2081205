//! Adds one library to one container's /etc/ld.so.preload.

use std::{fmt, io::Read};

use vgpu_abi::arch;

use crate::{
    list::{self, LIST},
    list_mount::{self, Wanted},
    rootfs::{self, Root},
};

/// The loader's path in programs, and the paths it links to on Debian and Red Hat.
const LOADERS: [&str; 4] = [
    arch!(loader),
    concat!("/lib/", arch!(triplet), "/", arch!(loader_file)),
    concat!("/usr", arch!(loader)),
    concat!("/usr/lib/", arch!(triplet), "/", arch!(loader_file)),
];
/// Size limit of the image's list, which normally has a few paths; a loader has 200 KiB.
const MAX_LIST: u64 = 1 << 20;
const MAX_LOADER: u64 = 8 << 20;

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The library is in the list.
    Listed,
    /// The library is in the list, but the image has no loader that reads it.
    Unread(Reason),
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    NoGlibc,
}

impl Reason {
    /// The report's file name; kubelet-plugin/src/dra/claimdir.rs uses the same.
    pub(crate) fn file(&self) -> &'static str {
        match self {
            Self::NoGlibc => "no-glibc",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoGlibc => write!(
                f,
                "its image has no glibc (no {} that reads /etc/ld.so.preload), so its programs do not load \
                 libvgpu-preload.so, and no CUDA program runs in it as it is; use an image with glibc 2.17 or newer for \
                 GPU work",
                arch!(loader_file)
            ),
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{path} in the image {source}; correct the image")]
    Image { path: &'static str, source: rootfs::Error },
    #[error(
        "{path} is not a file in the container; the CDI spec must mount it, so restart vgpu-kubelet-plugin on this node"
    )]
    NoLibrary { path: String },
    #[error("{path} in the image is larger than {max} bytes; correct the image")]
    TooLarge { path: &'static str, max: u64 },
    #[error(transparent)]
    Mount(#[from] list_mount::Error),
}

/// Adds `library` to the list of a container, even if no loader of the image reads the list: glibc may come into the
/// container later, by a volume or a package.
pub(crate) fn merge(root: &Root, library: &str, wanted: Wanted<'_>) -> Result<Outcome, Error> {
    let outcome = match reads_the_list(root)? {
        true => Outcome::Listed,
        false => Outcome::Unread(Reason::NoGlibc),
    };
    // If the entry were not a file, every program of the container would print an error.
    if !matches!(root.open_file(library), Ok(Some(_))) {
        return Err(Error::NoLibrary {
            path: library.to_owned(),
        });
    }
    if list_mount::is_put(root)? {
        return Ok(outcome);
    }
    let text = read(root)?;
    // The list is mounted even if the image's list already has the entry.
    let text = list::with(&text, library).unwrap_or(text);
    list_mount::put(root, &text, wanted)?;
    Ok(outcome)
}

/// Reads the list of the image or of a volume; empty if there is none.
fn read(root: &Root) -> Result<Vec<u8>, Error> {
    let image = |source| Error::Image { path: LIST, source };
    let Some(file) = root.open_file(LIST).map_err(image)? else {
        return Ok(Vec::new());
    };
    let mut text = Vec::new();
    file.take(MAX_LIST + 1)
        .read_to_end(&mut text)
        .map_err(|error| image(error.into()))?;
    if text.len() as u64 > MAX_LIST {
        return Err(Error::TooLarge {
            path: LIST,
            max: MAX_LIST,
        });
    }
    Ok(text)
}

/// Returns true if the image has a loader that reads the list. musl's does not, under any name.
fn reads_the_list(root: &Root) -> Result<bool, Error> {
    for path in LOADERS {
        // A loader that is not a file, or is behind a loop of links, cannot start a program.
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
