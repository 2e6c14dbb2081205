//! Installs releases of the library on the node:
//! `<store>/<sha256>/{libvgpu.so,libvgpu-preload.so,vgpu-cdi-hook,release}`.
//!
//! Running containers have these files mapped, so a release is never overwritten: it is written under a
//! temporary name and renamed to its digest, and an existing one is verified. The store must not be mounted
//! noexec: ld.so then ignores the preload library, and the limit would not be enforced. A crash while
//! installing leaves a temporary folder, which the next start removes.

use crate::files;
use crate::release::{self, Release};
use rustix::fs::StatVfsMountFlags;
use sha2::{Digest as _, Sha256};
use std::fmt::Write as _;
use std::fs::{File, Permissions};
use std::io::{self, Read, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use vgpu_abi::paths::{HOOK_FILE, PRELOAD_FILE, SHIM_FILE};

const FILES: [&str; 3] = [SHIM_FILE, PRELOAD_FILE, HOOK_FILE];
const TEMPORARY: &str = ".new-";

/// The store of releases, and the digest of the release that new claims get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Library {
    store: PathBuf,
    digest: String,
}

/// Why the library cannot be installed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        action: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    #[error("--library-dir {} has no {file}; it must hold {}", folder.display(), FILES.join(", "))]
    Missing { folder: PathBuf, file: &'static str },
    #[error(
        "{} is mounted noexec, where ld.so ignores the library and limits would not be enforced; \
         mount it with exec, or name another folder with --library-store",
        .0.display()
    )]
    NoExec(PathBuf),
    #[error("{} was changed after it was installed; remove it and start the plugin again", .0.display())]
    Changed(PathBuf),
}

// === impl Library ===

impl Library {
    /// Installs the release in `source`, unless it is installed already.
    ///
    /// # Errors
    /// The library must not be used from `store`, or cannot be written there.
    pub fn install(source: &Path, store: &Path) -> Result<Self, Error> {
        let digest = digest(source)?;
        std::fs::create_dir_all(store).map_err(failed("create", store))?;
        check_exec(store)?;
        remove_temporaries(store)?;
        let target = store.join(&digest);
        if !target.exists() {
            let temporary = store.join(format!("{TEMPORARY}{digest}"));
            std::fs::create_dir(&temporary).map_err(failed("create", &temporary))?;
            for file in FILES {
                copy(&source.join(file), &temporary.join(file))?;
            }
            std::fs::write(temporary.join(release::FILE), Release::default().text())
                .map_err(failed("write", &temporary))?;
            File::open(&temporary)
                .and_then(|folder| folder.sync_all())
                .map_err(failed("sync", &temporary))?;
            std::fs::rename(&temporary, &target).map_err(failed("rename", &temporary))?;
            File::open(store)
                .and_then(|folder| folder.sync_all())
                .map_err(failed("sync", store))?;
        }
        if self::digest(&target).ok().as_ref() != Some(&digest) {
            return Err(Error::Changed(target));
        }
        // The same files, installed by a plugin that did not write it.
        let file = target.join(release::FILE);
        if Release::in_folder(&target) != Release::default() {
            files::replace(&file, Release::default().text().as_bytes(), 0o644).map_err(failed("write", &file))?;
        }
        Ok(Self {
            store: store.to_path_buf(),
            digest,
        })
    }

    /// The release that new claims get.
    #[must_use]
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// The folder of a release.
    #[must_use]
    pub fn folder(&self, digest: &str) -> PathBuf {
        self.store.join(digest)
    }

    /// Returns the release to which a claim is bound if it still exists, else the current one.
    #[must_use]
    pub fn bound<'a>(&'a self, digest: &'a str) -> &'a str {
        if self.folder(digest).join(SHIM_FILE).exists() {
            digest
        } else {
            &self.digest
        }
    }

    /// Returns the release to which a file in the store belongs.
    #[must_use]
    pub fn release_of(&self, file: &Path) -> Option<String> {
        let below = file.strip_prefix(&self.store).ok()?;
        Some(below.components().next()?.as_os_str().to_str()?.to_owned())
    }

    /// Removes releases that neither new claims nor those in `used` need. Leaves other folders alone.
    ///
    /// # Errors
    /// The store cannot be listed, or a release cannot be removed.
    pub fn keep(&self, used: &[&str]) -> Result<Vec<String>, Error> {
        let mut removed = Vec::new();
        for name in names(&self.store)? {
            let is_digest = name.len() == 64 && name.bytes().all(|b| b.is_ascii_hexdigit());
            if is_digest && name != self.digest && !used.contains(&name.as_str()) {
                let path = self.store.join(&name);
                std::fs::remove_dir_all(&path).map_err(failed("remove", &path))?;
                removed.push(name);
            }
        }
        Ok(removed)
    }
}

/// SHA-256 over the three files, each with its name and length.
fn digest(folder: &Path) -> Result<String, Error> {
    let mut hash = Sha256::new();
    for name in FILES {
        let path = folder.join(name);
        let mut file = match File::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(Error::Missing {
                    folder: folder.to_path_buf(),
                    file: name,
                });
            }
            opened => opened.map_err(failed("open", &path))?,
        };
        let length = file.metadata().map_err(failed("read", &path))?.len();
        hash.update(format!("{name} {length}\n"));
        let mut chunk = vec![0; 64 << 10];
        loop {
            let count = file.read(&mut chunk).map_err(failed("read", &path))?;
            if count == 0 {
                break;
            }
            hash.update(&chunk[..count]);
        }
    }
    Ok(hash.finalize().iter().fold(String::new(), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    }))
}

fn check_exec(store: &Path) -> Result<(), Error> {
    let found = rustix::fs::statvfs(store).map_err(|errno| failed("read", store)(errno.into()))?;
    if found.f_flag.contains(StatVfsMountFlags::NOEXEC) {
        return Err(Error::NoExec(store.to_path_buf()));
    }
    Ok(())
}

fn copy(from: &Path, to: &Path) -> Result<(), Error> {
    let copied = || {
        let mut target = File::create_new(to)?;
        io::copy(&mut File::open(from)?, &mut target)?;
        target.set_permissions(Permissions::from_mode(0o755))?;
        target.flush()?;
        target.sync_all()
    };
    copied().map_err(failed("copy", from))
}

fn remove_temporaries(store: &Path) -> Result<(), Error> {
    for name in names(store)?.iter().filter(|name| name.starts_with(TEMPORARY)) {
        let path = store.join(name);
        std::fs::remove_dir_all(&path).map_err(failed("remove", &path))?;
    }
    Ok(())
}

fn names(folder: &Path) -> Result<Vec<String>, Error> {
    let entries = std::fs::read_dir(folder).map_err(failed("list", folder))?;
    let names = entries.map(|entry| Ok(entry?.file_name().into_string().unwrap_or_default()));
    names.collect::<io::Result<_>>().map_err(failed("list", folder))
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_path_buf();
    move |source| Error::Io { action, path, source }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A release whose files hold `text`.
    pub(crate) fn release(folder: &Path, text: &str) {
        std::fs::create_dir_all(folder).expect("a folder");
        for file in FILES {
            std::fs::write(folder.join(file), text).expect("written");
        }
    }

    #[test]
    fn a_release_is_installed_once_and_never_changed() {
        let dir = tempfile::tempdir().expect("a folder");
        let (source, store) = (dir.path().join("image"), dir.path().join("store"));
        release(&source, "one");
        std::fs::create_dir_all(store.join(format!("{TEMPORARY}left-by-a-crash"))).expect("a folder");
        let first = Library::install(&source, &store).expect("installed");
        let shim = first.folder(first.digest()).join(SHIM_FILE);
        let mode = std::fs::metadata(&shim).expect("there").permissions().mode();
        assert_eq!(mode & 0o7777, 0o755);
        assert_eq!(Library::install(&source, &store).expect("installed"), first);
        release(&source, "two");
        let second = Library::install(&source, &store).expect("installed");
        assert_ne!(second, first);
        assert_eq!(std::fs::read_to_string(&shim).expect("kept"), "one");
        assert_eq!(second.keep(&[first.digest()]).expect("kept"), [""; 0]);
        assert_eq!(second.bound(first.digest()), first.digest());
        assert_eq!(second.keep(&[]).expect("removed"), [first.digest()]);
        assert_eq!(second.bound(first.digest()), second.digest());
        assert_eq!(names(&store).expect("listed"), [second.digest()]);
    }

    #[test]
    fn a_changed_or_incomplete_release_is_named() {
        let dir = tempfile::tempdir().expect("a folder");
        let (source, store) = (dir.path().join("image"), dir.path().join("store"));
        release(&source, "one");
        let library = Library::install(&source, &store).expect("installed");
        std::fs::write(library.folder(library.digest()).join(HOOK_FILE), "changed").expect("written");
        assert!(matches!(Library::install(&source, &store), Err(Error::Changed(_))));
        std::fs::remove_file(source.join(PRELOAD_FILE)).expect("removed");
        let error = Library::install(&source, &store).expect_err("incomplete").to_string();
        assert!(
            error.contains("--library-dir") && error.contains(PRELOAD_FILE),
            "{error}"
        );
    }

    #[test]
    fn a_noexec_store_is_refused() {
        if !crate::tmpfs::tests::can_mount("a_noexec_store_is_refused") {
            return;
        }
        let dir = tempfile::tempdir().expect("a folder");
        let (source, store) = (dir.path().join("image"), dir.path().join("store"));
        release(&source, "one");
        std::fs::create_dir(&store).expect("a folder");
        let size = crate::tmpfs::Size {
            bytes: 1 << 20,
            files: 16,
        };
        crate::tmpfs::ensure(&store, size).expect("mounted noexec");
        let error = Library::install(&source, &store).expect_err("noexec").to_string();
        crate::tmpfs::remove(&store).expect("unmounted");
        assert!(error.contains("noexec") && error.contains("--library-store"), "{error}");
    }
}
