//! A folder of spec files of one kind, such as /var/run/cdi. One file an id, `<vendor>-<class>_<id>.json`.
//!
//! Files of others in the folder are never touched. Writers may run side by side: each has temp files of
//! its own, and the last rename wins with a whole file.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
    time::{SystemTime, UNIX_EPOCH},
};

use crate::{document::ReadError, name::Kind, spec::Spec, validate};

/// Of a spec that is read back; a real one takes some kilobytes.
const MAX_FILE: u64 = 4 << 20;
/// Runtimes look at `.json` and `.yaml`.
const TEMP_SUFFIX: &str = ".tmp";
/// A temp file can only be taken away by a [`Dir::sweep`] of another process that starts meanwhile.
const ATTEMPTS: usize = 3;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("CDI id {0:?} is not 1 to 128 letters, digits, '-', '_' and '.', a letter or digit first")]
    Id(String),
    #[error("CDI spec of {found}, but {path} is for {wanted}; write it to a folder of its own kind", path = .path.display())]
    Kind { found: Kind, wanted: Kind, path: PathBuf },
    #[error("CDI spec {id}: {source}")]
    Invalid { id: String, source: validate::Error },
    #[error("{path}: {source}", path = .path.display())]
    Unreadable { path: PathBuf, source: ReadError },
    #[error("{path} is larger than {MAX_FILE} bytes, so it is none of ours; remove it", path = .path.display())]
    TooLarge { path: PathBuf },
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

/// A folder, seen through the names of one kind.
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

    /// The spec file of `id`.
    pub fn file(&self, id: &str) -> Result<PathBuf, Error> {
        Ok(self.path.join(self.file_name(id)?))
    }

    /// Writes the spec of `id`, or replaces it, in one step that survives a crash of the machine.
    pub fn write(&self, spec: &Spec, id: &str) -> Result<(), Error> {
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
        fs::create_dir_all(&self.path).map_err(io_error("create", &self.path))?;
        let target = self.path.join(&name);
        for _ in 1..ATTEMPTS {
            match self.replace(&name, &target, &json) {
                Err(Error::Io {
                    action: "rename",
                    source,
                    ..
                }) if source.kind() == io::ErrorKind::NotFound => {}
                done => return done,
            }
        }
        self.replace(&name, &target, &json)
    }

    /// Removes the spec of `id`; `false` where there is none.
    pub fn remove(&self, id: &str) -> Result<bool, Error> {
        let target = self.file(id)?;
        let existed = remove_file(&target)?;
        // Also where it is gone already: the call that removed it may have died before this.
        match self.sync() {
            Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(existed),
            Err(error) => Err(error),
            Ok(()) => Ok(existed),
        }
    }

    /// The spec of `id`, where there is one.
    pub fn read(&self, id: &str) -> Result<Option<Spec>, Error> {
        let path = self.file(id)?;
        let file = match File::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened.map_err(io_error("open", &path))?,
        };
        let mut json = Vec::new();
        file.take(MAX_FILE + 1)
            .read_to_end(&mut json)
            .map_err(io_error("read", &path))?;
        if json.len() as u64 > MAX_FILE {
            return Err(Error::TooLarge { path });
        }
        Spec::parse(&json)
            .map(Some)
            .map_err(|source| Error::Unreadable { path, source })
    }

    /// The ids of all spec files of this kind, sorted; whether they can be read is not looked at.
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

    /// Removes temp files that a crash left behind, and says how many. For the start of the one program
    /// that owns this kind; a writer that runs meanwhile notices and writes again.
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

    /// Names in the folder; those that are not UTF-8 are none of ours. A missing folder has none.
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
        // Two containers of the owner, old and new, may both be process 1: the time tells them apart.
        let time = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| since.as_nanos());
        let temp = self
            .path
            .join(format!(".{name}.{}-{time}-{number}{TEMP_SUFFIX}", std::process::id()));
        // `create_new`: never a file that another writer holds, and never through a link.
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temp);
        let file = file.map_err(io_error("create", &temp))?;
        let written = fill(file, &temp, content).and_then(|()| {
            fs::rename(&temp, target).map_err(io_error("rename", &temp))?;
            self.sync()
        });
        if written.is_err() {
            // The error that is reported is the first one.
            let _ = fs::remove_file(&temp);
        }
        written
    }

    fn sync(&self) -> Result<(), Error> {
        File::open(&self.path)
            .and_then(|dir| dir.sync_all())
            .map_err(io_error("sync", &self.path))
    }
}

fn is_id(id: &str) -> bool {
    (1..=128).contains(&id.len())
        && id.starts_with(|c: char| c.is_ascii_alphanumeric())
        && id.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
}

fn fill(mut file: File, path: &Path, content: &[u8]) -> Result<(), Error> {
    file.write_all(content).map_err(io_error("write", path))?;
    // Whatever the umask is: runtimes without root read it too.
    file.set_permissions(fs::Permissions::from_mode(0o644))
        .map_err(io_error("set the mode of", path))?;
    file.sync_all().map_err(io_error("sync", path))
}

fn remove_file(path: &Path) -> Result<bool, Error> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        removed => removed.map(|()| true).map_err(io_error("remove", path)),
    }
}
