//! Which cgroups of version 2 a process is in, from its own upwards.
//!
//! A cgroup is a folder with a file `cgroup.procs`, or a folder in one. So
//! a tree of plain folders works like a mounted hierarchy, for tests on machines where version 2 has no controllers.
//! A process in a cgroup namespace sees no further up than the namespace's root. Folders keep their inode number there,
//! so it is what identifies a cgroup.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

const MOUNT: &str = "/sys/fs/cgroup";
const OWN: &str = "/proc/self/cgroup";

/// One cgroup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Cgroup {
    pub(crate) folder: PathBuf,
    /// The folder's inode number.
    pub(crate) id: u64,
}

/// Returns the cgroup of a folder and its ancestors, nearest first.
///
/// # Errors
/// The folder is no cgroup.
pub(crate) fn at(folder: &Path) -> io::Result<Vec<Cgroup>> {
    if !folder.is_absolute() || folder.components().any(|part| part == Component::ParentDir) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut found = vec![one(folder)?];
    found.extend(folder.ancestors().skip(1).map_while(|folder| one(folder).ok()));
    Ok(found)
}

fn one(folder: &Path) -> io::Result<Cgroup> {
    let has_file = |folder: &Path| folder.join("cgroup.procs").exists();
    let found = std::fs::metadata(folder)?;
    if !found.is_dir() || !has_file(folder) && !folder.parent().is_some_and(has_file) {
        return Err(io::ErrorKind::NotFound.into());
    }
    Ok(Cgroup {
        folder: folder.to_path_buf(),
        id: found.ino(),
    })
}

/// Returns the cgroups of this process, its own first; none if this machine has no hierarchy of version 2 at its
/// usual place. `instead`: the folder that is its own in a tree of plain folders.
pub(crate) fn own(instead: Option<&Path>) -> Vec<Cgroup> {
    let folder = match instead {
        Some(folder) => Some(folder.to_path_buf()),
        None => std::fs::read_to_string(OWN).ok().as_deref().and_then(path),
    };
    folder.and_then(|folder| at(&folder).ok()).unwrap_or_default()
}

/// The folder that the line of version 2 in /proc/<pid>/cgroup names.
fn path(lines: &str) -> Option<PathBuf> {
    let path = lines.lines().find_map(|line| line.strip_prefix("0::/"))?;
    Some(Path::new(MOUNT).join(path))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Makes folders that look like cgroups, with a controller enabled for the children of each.
    pub(crate) fn tree(root: &Path, paths: &[&str]) {
        for folder in paths.iter().flat_map(|path| Path::new(path).ancestors()) {
            let folder = root.join(folder);
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join("cgroup.procs"), "").unwrap();
            std::fs::write(folder.join("cgroup.subtree_control"), "cpu dmem\n").unwrap();
        }
    }

    #[test]
    fn the_line_of_version_2_names_the_folder() {
        let lines = "9:name=systemd:/x\n4:memory:/y\n0::/kubepods/pod1/a:b\n";
        assert_eq!(path(lines), Some("/sys/fs/cgroup/kubepods/pod1/a:b".into()));
        assert_eq!(path("0::/\n"), Some("/sys/fs/cgroup/".into()));
        assert_eq!(path("4:memory:/y\n"), None);
    }

    #[test]
    #[cfg_attr(miri, ignore = "files")]
    fn a_cgroup_and_its_ancestors_up_to_the_trees_root() {
        let root = tempfile::tempdir().unwrap();
        tree(root.path(), &["pod/one"]);
        let found = at(&root.path().join("pod/one")).unwrap();
        let folders: Vec<&Path> = found.iter().map(|one| one.folder.as_path()).collect();
        let expected = ["pod/one", "pod", ""].map(|path| root.path().join(path));
        assert_eq!(folders.len(), 3);
        assert!(
            folders
                .iter()
                .zip(&expected)
                .all(|(found, expected)| found.components().eq(expected.components()))
        );
        assert_eq!(own(Some(&root.path().join("pod"))).len(), 2);
        for bad in [
            root.path().join("other"),
            root.path().join("cgroup.procs"),
            root.path().join("pod/../pod"),
            "pod".into(),
        ] {
            assert!(at(&bad).is_err(), "{}", bad.display());
        }
    }
}
