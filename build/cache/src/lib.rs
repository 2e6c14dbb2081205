//! The cache outside the clone, which all clones share: built tools and downloaded packages.
//!
//! ```text
//!  $XDG_CACHE_HOME, else ~/.cache ─► dra-driver-vgpu/
//!                                      <name>-<hash of everything that decides the content>/   one complete thing
//! ```
//!
//! How it fails: a folder gets its name by one rename, so an interrupted download leaves nothing that a later run
//! would trust. If two runs create the same thing at the same time, the first one's result stays. Leftovers of a
//! killed run are removed a day later.
#![forbid(unsafe_code)]

pub mod apt;
pub mod go;
pub mod pip;

use std::collections::hash_map::DefaultHasher;
use std::fs;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The reason why something is not available.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Not available on this machine: no network, no Go, no pip, or no build for its Python. Tests are then skipped.
    #[error("{0}")]
    Unavailable(String),
    /// The build fails, or the download differs from the pinned version.
    #[error("{0}")]
    Failed(String),
}

impl From<String> for Error {
    fn from(said: String) -> Self {
        Self::Failed(said)
    }
}

/// The folder of the cache.
///
/// # Errors
/// Neither variable names one.
pub fn root() -> Result<PathBuf, String> {
    choose(std::env::var_os("XDG_CACHE_HOME"), std::env::var_os("HOME"))
}

/// A relative XDG_CACHE_HOME is ignored, as its specification demands.
fn choose(cache: Option<std::ffi::OsString>, home: Option<std::ffi::OsString>) -> Result<PathBuf, String> {
    let absolute = |folder: &PathBuf| folder.is_absolute();
    let base = cache
        .map(PathBuf::from)
        .filter(absolute)
        .or_else(|| Some(home.map(PathBuf::from).filter(absolute)?.join(".cache")));
    let base =
        base.ok_or("neither XDG_CACHE_HOME nor HOME names a folder: set one, fetched and built things are kept there")?;
    Ok(base.join("dra-driver-vgpu"))
}

/// Removes leftovers of killed runs that are at least a day old.
fn sweep(cache: &Path) {
    let is_old = |entry: &fs::DirEntry| {
        let name = entry.file_name();
        let age = entry.metadata().and_then(|known| known.modified()).ok();
        let age = age.and_then(|changed| changed.elapsed().ok());
        name.as_encoded_bytes().starts_with(b".") && age.is_some_and(|age| age.as_secs() > 24 * 3600)
    };
    for entry in fs::read_dir(cache).into_iter().flatten().flatten().filter(is_old) {
        // Best effort: another run may be removing it too.
        let _ = fs::remove_dir_all(entry.path());
    }
}

/// The folder `name-<hash of key>`. `make` creates it if it does not exist. `key` is everything that decides its
/// content.
///
/// # Errors
/// The error of `make`; a partial result is removed.
pub fn folder<E: From<String>>(name: &str, key: &str, make: impl FnOnce(&Path) -> Result<(), E>) -> Result<PathBuf, E> {
    // Fixed keys: the hash is the same in every run. Another version of std may hash differently, which only downloads
    // again.
    let mut hash = DefaultHasher::new();
    key.hash(&mut hash);
    let cache = root()?;
    let done = cache.join(format!("{name}-{:016x}", hash.finish()));
    if done.is_dir() {
        return Ok(done);
    }
    let failed = |error: std::io::Error| E::from(format!("{}: {error}", cache.display()));
    fs::create_dir_all(&cache).map_err(failed)?;
    sweep(&cache);
    let aside = tempfile::Builder::new()
        .prefix(&format!(".{name}-"))
        .tempdir_in(&cache)
        .map_err(failed)?;
    make(aside.path())?;
    // Temporary folders are readable only by their owner, but other users run programs from here.
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(aside.path(), open).map_err(failed)?;
    match fs::rename(aside.path(), &done) {
        Ok(()) => drop(aside.keep()),
        // Another run was faster.
        Err(_) if done.is_dir() => (),
        Err(error) => return Err(format!("{}: {error}", done.display()).into()),
    }
    Ok(done)
}

/// Runs a command to its end and returns its output.
///
/// # Errors
/// The whole output of a command that failed.
pub fn run(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() {
        return Ok(text(&output.stdout));
    }
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    Err(format!("{command:?}: {}\n{out}{err}", output.status))
}

#[cfg(test)]
mod tests {
    use super::choose;
    use std::path::Path;

    #[test]
    fn a_relative_cache_is_none() {
        let chosen = |cache: Option<&str>, home: Option<&str>| choose(cache.map(Into::into), home.map(Into::into));
        assert_eq!(
            chosen(Some("/c"), Some("/h")).as_deref(),
            Ok(Path::new("/c/dra-driver-vgpu"))
        );
        for cache in [None, Some(""), Some("c")] {
            let found = chosen(cache, Some("/h"));
            assert_eq!(
                found.as_deref(),
                Ok(Path::new("/h/.cache/dra-driver-vgpu")),
                "{cache:?}"
            );
        }
        assert!(chosen(None, None).is_err_and(|error| error.contains("HOME")));
        assert!(chosen(Some("c"), Some("")).is_err());
    }
}
