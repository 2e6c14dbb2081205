//! The cache outside the clone, which all clones share: built tools and downloaded packages.
//!
//! ```text
//!  $XDG_CACHE_HOME, else ~/.cache ─► dra-driver-vgpu/
//!                                      <name>-<hash of everything that decides the content>/   one complete thing
//! ```
//!
//! How it fails: a folder gets its name by one rename, so an interrupted download leaves nothing that a later run would
//! trust. If two runs create the same thing at once, the first one's stays. What a killed run left is removed a day
//! later.
#![forbid(unsafe_code)]

pub mod apt;
pub mod go;
pub mod pip;

use std::collections::hash_map::DefaultHasher;
use std::fs;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Why something is not there.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// This machine cannot have it: no network, no Go, no pip, nothing for its Python. Reason enough to skip.
    #[error("{0}")]
    Unavailable(String),
    /// It does not build, or something else came than what is pinned.
    #[error("{0}")]
    Failed(String),
}

impl From<String> for Error {
    fn from(said: String) -> Self {
        Self::Failed(said)
    }
}

/// The folder of all that is kept.
///
/// # Errors
/// Nothing says where.
pub fn root() -> Result<PathBuf, String> {
    choose(std::env::var_os("XDG_CACHE_HOME"), std::env::var_os("HOME"))
}

/// A relative XDG_CACHE_HOME counts as none, as its specification has it.
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

/// Removes what runs that were killed on the way have left, a day ago or more.
fn sweep(cache: &Path) {
    let is_old = |entry: &fs::DirEntry| {
        let name = entry.file_name();
        let age = entry.metadata().and_then(|known| known.modified()).ok();
        let age = age.and_then(|changed| changed.elapsed().ok());
        name.as_encoded_bytes().starts_with(b".") && age.is_some_and(|age| age.as_secs() > 24 * 3600)
    };
    for entry in fs::read_dir(cache).into_iter().flatten().flatten().filter(is_old) {
        // Best effort: another run may be at it.
        let _ = fs::remove_dir_all(entry.path());
    }
}

/// The folder `name-<hash of key>`, made by `make` if it is not there. `key` is all that decides what is in it.
///
/// # Errors
/// What `make` says; what it left is removed.
pub fn folder<E: From<String>>(name: &str, key: &str, make: impl FnOnce(&Path) -> Result<(), E>) -> Result<PathBuf, E> {
    // Fixed keys: the same in every run of the same std, and another std only fetches again.
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
    // Owner only is what a temporary folder has; other users' programs run from here.
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

/// Runs a command to its end: what it printed.
///
/// # Errors
/// All that it said, if it failed.
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
