//! A folder of spec files of one kind, such as /var/run/cdi, with one file per id:
//! `<vendor>-<class>_<id>.json`.
//!
//! Other files in the folder are never touched. Several writers may run at once: each has its own temp files,
//! and the last rename wins with a complete file.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
    time::{SystemTime, UNIX_EPOCH},
};

use serde_json::Value;

use crate::{name::Kind, spec::Spec, validate};

/// Limit for a spec that is read back; a real one has some kilobytes.
const MAX_FILE: u64 = 4 << 20;
/// Runtimes read `.json` and `.yaml` files only.
const TEMP_SUFFIX: &str = ".tmp";
/// How often a write is tried: a [`Dir::sweep`] of another process that starts meanwhile may remove its temp
/// file.
const ATTEMPTS: usize = 3;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("CDI id {0:?} is not 1 to 128 letters, digits, '-', '_' and '.', a letter or digit first")]
    Id(String),
    #[error("CDI spec of {found}, but {path} is for {wanted}; write it to a folder of its own kind", path = .path.display())]
    Kind { found: Kind, wanted: Kind, path: PathBuf },
    #[error("CDI spec {id}: {source}")]
    Invalid { id: String, source: validate::Error },
    #[error("cannot {action} {path}: {source}", path = .path.display())]
    Io {
        action: &'static str,
        path: PathBuf,
        source: io::Error,
    },
}

fn io_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::Io { action, path, source }
}

/// A folder with the spec files of one kind.
#[derive(Clone, Debug)]
pub struct Dir {
    path: PathBuf,
    kind: Kind,
}

impl Dir {
    /// The folder need not exist yet.
    pub fn new(path: impl Into<PathBuf>, kind: Kind) -> Self {
        Self {
            path: path.into(),
            kind,
        }
    }

    /// The path of the spec file of `id`.
    pub fn file(&self, id: &str) -> Result<PathBuf, Error> {
        Ok(self.path.join(self.file_name(id)?))
    }

    /// Writes or replaces the spec of `id` atomically, unless the file has this spec already. Returns true if it wrote.
    /// Nothing is synced: the page cache outlives this process, and after a power loss the containers of the spec are gone.
    pub fn update(&self, spec: &Spec, id: &str) -> Result<bool, Error> {
        if spec.kind != self.kind {
            return Err(Error::Kind {
                found: spec.kind.clone(),
                wanted: self.kind.clone(),
                path: self.path.clone(),
            });
        }
        let name = self.file_name(id)?;
        let json = spec.render().map_err(|source| Error::Invalid {
            id: id.to_owned(),
            source,
        })?;
        let target = self.path.join(&name);
        if read(&target).is_ok_and(|found| found == json) {
            return Ok(false);
        }
        fs::create_dir_all(&self.path).map_err(io_error("create", &self.path))?;
        for _ in 1..ATTEMPTS {
            match self.replace(&name, &target, &json) {
                Err(Error::Io {
                    action: "rename",
                    source,
                    ..
                }) if source.kind() == io::ErrorKind::NotFound => {}
                done => return done.map(|()| true),
            }
        }
        self.replace(&name, &target, &json).map(|()| true)
    }

    /// Removes the spec of `id`. Returns false if there was none. Nothing is synced: if a power loss brings the file
    /// back, its container is gone, and a full or broken disk must not prevent the removal.
    pub fn remove(&self, id: &str) -> Result<bool, Error> {
        remove_file(&self.file(id)?)
    }

    /// Returns the files of the node that the spec of `id` mounts into each of its containers; none if it cannot be read.
    pub fn mounted(&self, id: &str) -> Vec<PathBuf> {
        let spec = self.spec(id).unwrap_or_default();
        let mounts = spec["containerEdits"]["mounts"].as_array().into_iter().flatten();
        mounts
            .filter_map(|mount| mount["hostPath"].as_str().map(PathBuf::from))
            .collect()
    }

    /// Returns the arguments of each hook that the spec of `id` has for each of its containers. None if it cannot be read.
    pub fn hook_arguments(&self, id: &str) -> Option<Vec<Vec<String>>> {
        let spec = self.spec(id)?;
        let hooks = spec["containerEdits"]["hooks"].as_array().into_iter().flatten();
        let arguments = |hook: &Value| {
            let all = hook["args"].as_array().into_iter().flatten();
            all.filter_map(|one| one.as_str().map(str::to_owned)).collect()
        };
        Some(hooks.map(arguments).collect())
    }

    fn spec(&self, id: &str) -> Option<Value> {
        let json = read(&self.file(id).ok()?).ok()?;
        serde_json::from_slice(&json).ok()
    }

    /// The ids of all spec files of this kind, sorted. The files are not read.
    pub fn ids(&self) -> Result<Vec<String>, Error> {
        let prefix = self.prefix();
        let mut ids: Vec<String> = self
            .names()?
            .iter()
            .filter_map(|name| name.strip_prefix(&prefix)?.strip_suffix(".json"))
            .filter(|id| is_id(id))
            .map(str::to_owned)
            .collect();
        ids.sort_unstable();
        Ok(ids)
    }

    /// Removes temp files that a crash left, and returns their number. To be called at the start of the one
    /// program that owns this kind; a writer that loses its temp file by this writes again.
    pub fn sweep(&self) -> Result<usize, Error> {
        let prefix = format!(".{}", self.prefix());
        let mut removed = 0;
        for name in self.names()? {
            if name.starts_with(&prefix) && name.ends_with(TEMP_SUFFIX) {
                removed += usize::from(remove_file(&self.path.join(name))?);
            }
        }
        Ok(removed)
    }

    fn prefix(&self) -> String {
        format!("{}-{}_", self.kind.vendor(), self.kind.class())
    }

    fn file_name(&self, id: &str) -> Result<String, Error> {
        if is_id(id) {
            Ok(format!("{}{id}.json", self.prefix()))
        } else {
            Err(Error::Id(id.to_owned()))
        }
    }

    /// Names of the files in the folder, without those that are not UTF-8 (ours always are). None if the
    /// folder does not exist.
    fn names(&self) -> Result<Vec<String>, Error> {
        let entries = match fs::read_dir(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(io_error("list", &self.path))?,
        };
        entries
            .filter_map(|entry| entry.map(|entry| entry.file_name().into_string().ok()).transpose())
            .collect::<Result<_, _>>()
            .map_err(io_error("list", &self.path))
    }

    fn replace(&self, name: &str, target: &Path, content: &[u8]) -> Result<(), Error> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        // The owner's old and new container may both run as process 1, so the time makes the name unique.
        let time = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| since.as_nanos());
        let temp = self
            .path
            .join(format!(".{name}.{}-{time}-{number}{TEMP_SUFFIX}", std::process::id()));
        // `create_new`: never opens another writer's file, and never follows a link.
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temp);
        let file = file.map_err(io_error("create", &temp))?;
        let written =
            fill(file, &temp, content).and_then(|()| fs::rename(&temp, target).map_err(io_error("rename", &temp)));
        if written.is_err() {
            // Report the first error only.
            let _ = fs::remove_file(&temp);
        }
        written
    }
}

fn is_id(id: &str) -> bool {
    (1..=128).contains(&id.len())
        && id.starts_with(|c: char| c.is_ascii_alphanumeric())
        && id.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
}

fn fill(mut file: File, path: &Path, content: &[u8]) -> Result<(), Error> {
    file.write_all(content).map_err(io_error("write", path))?;
    // Set explicitly, whatever the umask: runtimes without root read it too.
    file.set_permissions(fs::Permissions::from_mode(0o644))
        .map_err(io_error("set the mode of", path))
}

/// Reads at most [`MAX_FILE`] bytes of a file; a larger file is not ours.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    File::open(path)?.take(MAX_FILE).read_to_end(&mut content)?;
    Ok(content)
}

fn remove_file(path: &Path) -> Result<bool, Error> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        // A read-only disk also refuses to remove a file that does not exist.
        Err(_) if matches!(path.symlink_metadata(), Err(error) if error.kind() == io::ErrorKind::NotFound) => Ok(false),
        removed => removed.map(|()| true).map_err(io_error("remove", path)),
    }
}
