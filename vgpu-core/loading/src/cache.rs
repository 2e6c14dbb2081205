//! The cache outside the clone, which all clones share. A folder appears in it whole, by one rename, so
//! a cut download leaves nothing that a later run would trust, and two runs at once agree.

use std::collections::hash_map::DefaultHasher;
use std::fs;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};

/// The folder `name-<hash of key>`, made by `make` if it is not there. `key` is all that decides what is in it.
///
/// # Errors
/// What `make` says; what it left is removed.
pub fn folder(name: &str, key: &str, make: impl FnOnce(&Path) -> Result<(), String>) -> Result<PathBuf, String> {
    // Fixed keys: the same in every run of the same std, and another std only fetches again.
    let mut hash = DefaultHasher::new();
    key.hash(&mut hash);
    let cache = root()?;
    let done = cache.join(format!("{name}-{:016x}", hash.finish()));
    if done.is_dir() {
        return Ok(done);
    }
    let failed = |error: std::io::Error| format!("{}: {error}", cache.display());
    fs::create_dir_all(&cache).map_err(failed)?;
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
        Err(error) => return Err(format!("{}: {error}", done.display())),
    }
    Ok(done)
}

pub(crate) fn root() -> Result<PathBuf, String> {
    let of = |name: &str| {
        std::env::var_os(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    let base = of("XDG_CACHE_HOME").or_else(|| Some(of("HOME")?.join(".cache")));
    Ok(base
        .ok_or("neither XDG_CACHE_HOME nor HOME is set")?
        .join("dra-driver-vgpu"))
}
