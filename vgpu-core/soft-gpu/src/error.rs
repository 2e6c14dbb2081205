//! Reasons why the software GPU cannot start. Each message is one line that names the variable and its value.

use std::fmt;
use std::io;
use std::path::PathBuf;

use crate::profile::ProfileError;

#[derive(Debug)]
pub enum Error {
    Folder {
        origin: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    /// The state file is damaged, or of another version.
    Damaged {
        origin: &'static str,
        path: PathBuf,
    },
    ProfileFile {
        path: PathBuf,
        source: io::Error,
    },
    Profile {
        path: PathBuf,
        source: ProfileError,
    },
    /// The folder's GPUs are in use with another profile.
    InUse {
        profile: PathBuf,
        state: PathBuf,
    },
    /// All process slots are in use.
    Crowded {
        path: PathBuf,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Folder { origin, path, source } => write!(f, "{origin}={}: {source}", path.display()),
            Self::Damaged { origin, path } => write!(
                f,
                "{origin}={}: its file gpus is damaged or of another version; empty the folder",
                path.display()
            ),
            Self::ProfileFile { path, source } => write!(f, "SOFT_GPU_PROFILE={}: {source}", path.display()),
            Self::Profile { path, source } => write!(f, "SOFT_GPU_PROFILE={}: {source}", path.display()),
            Self::InUse { profile, state } => write!(
                f,
                "SOFT_GPU_PROFILE={}: {} is in use with another profile; end its users or name another SOFT_GPU_STATE",
                profile.display(),
                state.display()
            ),
            Self::Crowded { path } => write!(
                f,
                "SOFT_GPU_STATE={}: {} processes use it already, which is the most",
                path.display(),
                crate::account::MAX_PROCS
            ),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Folder { source, .. } | Self::ProfileFile { source, .. } => Some(source),
            Self::Profile { source, .. } => Some(source),
            _ => None,
        }
    }
}
