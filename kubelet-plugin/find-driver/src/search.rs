//! Looks for files inside a driver root, and records the folders on which the results depend.
//!
//! Symbolic links are resolved inside the root. Otherwise an absolute link of a mounted root would lead into this
//! process's own file system, and the runtime would resolve a link in a bind mount's source on the node.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::OsString;
use std::fs;
use std::io::{ErrorKind, Read as _};
use std::path::{Component, Path, PathBuf};

/// The kernel's limit for links in a path.
const MAX_LINKS: usize = 40;

/// A search in a root. Paths passed in and returned are relative to the root.
#[derive(Debug)]
pub struct Search<'a> {
    root: &'a Path,
    folders: BTreeSet<PathBuf>,
    /// The type of each path seen so far. Most paths share their first components, so each is looked up only once.
    seen: BTreeMap<PathBuf, Seen>,
}

#[derive(Clone, Debug)]
enum Seen {
    Missing,
    /// A file or a folder.
    Plain,
    Link(PathBuf),
}

// === impl Search ===

impl<'a> Search<'a> {
    #[must_use]
    pub fn new(root: &'a Path) -> Self {
        Self {
            root,
            folders: BTreeSet::new(),
            seen: BTreeMap::new(),
        }
    }

    /// Reads up to `most` bytes of the regular file at `path`.
    pub fn read(&mut self, path: impl AsRef<Path>, most: u64) -> Option<Vec<u8>> {
        let file = self.file(path)?;
        let file = fs::File::open(self.root.join(file)).ok()?;
        let mut bytes = Vec::new();
        file.take(most).read_to_end(&mut bytes).ok()?;
        Some(bytes)
    }

    /// The regular file at `path`, with links resolved.
    pub fn file(&mut self, path: impl AsRef<Path>) -> Option<PathBuf> {
        let found = self.resolve(path.as_ref())?;
        let is_file = fs::symlink_metadata(self.root.join(&found)).is_ok_and(|kind| kind.is_file());
        is_file.then_some(found)
    }

    /// The folder at `path` with links resolved, and its sorted file names.
    pub fn list(&mut self, path: impl AsRef<Path>) -> Option<(PathBuf, Vec<String>)> {
        let folder = self.resolve(path.as_ref())?;
        let entries = fs::read_dir(self.root.join(&folder)).into_iter().flatten().flatten();
        let mut names: Vec<String> = entries
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect();
        names.sort();
        self.folders.insert(folder.clone());
        Some((folder, names))
    }

    /// All folders that were read. While none of them changes, the same search has the same result.
    #[must_use]
    pub fn folders(self) -> BTreeSet<PathBuf> {
        self.folders
    }

    /// Resolves all links in `path`. None if a component is missing.
    fn resolve(&mut self, path: &Path) -> Option<PathBuf> {
        let mut resolved = PathBuf::new();
        let mut left: VecDeque<OsString> = names(path);
        let mut links = 0;
        while let Some(name) = left.pop_front() {
            if name == ".." {
                resolved.pop();
                continue;
            }
            let next = resolved.join(&name);
            match self.look(&resolved, &next) {
                Seen::Link(target) => {
                    links += 1;
                    if links > MAX_LINKS {
                        return None;
                    }
                    if target.is_absolute() {
                        resolved = PathBuf::new();
                    }
                    let mut ahead = names(&target);
                    ahead.append(&mut left);
                    left = ahead;
                }
                Seen::Plain => resolved = next,
                Seen::Missing => return None,
            }
        }
        Some(resolved)
    }

    /// Returns the type of `path`, which is in `folder`.
    fn look(&mut self, folder: &Path, path: &Path) -> Seen {
        if let Some(seen) = self.seen.get(path) {
            return seen.clone();
        }
        let seen = match fs::read_link(self.root.join(path)) {
            Ok(target) => Seen::Link(target),
            Err(error) if error.kind() == ErrorKind::InvalidInput => Seen::Plain,
            Err(_) => Seen::Missing,
        };
        self.folders.insert(folder.to_owned());
        self.seen.insert(path.to_owned(), seen.clone());
        seen
    }
}

/// The components of a path, without `/` and `.`.
fn names(path: &Path) -> VecDeque<OsString> {
    path.components()
        .filter(|part| matches!(part, Component::Normal(_) | Component::ParentDir))
        .map(|part| part.as_os_str().to_owned())
        .collect()
}
