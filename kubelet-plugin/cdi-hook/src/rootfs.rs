//! Resolves paths inside a root file system that the tenant controls.
//!
//! Resolves one component at a time. Each folder is opened relative to the previous one, without following links.
//! Links are read and resolved as paths of the container, and `..` returns to the folder that was opened before, at
//! most to the root. So no link leads outside, not even /proc/self/root or a link that is replaced during the
//! resolution. One openat2 call for the whole path could not report the missing target of a link. openat2 is used for
//! each component, because only it detects that a component is on another mount.

use std::{
    ffi::{OsStr, OsString},
    fs::File,
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::ffi::OsStringExt,
    },
    path::Path,
};

use rustix::{
    fs::{CWD, FileType, Mode, OFlags, ResolveFlags},
    io::Errno,
};

/// The kernel's limit for links in a path.
const MAX_LINKS: usize = 40;

const FOLDER: OFlags = OFlags::PATH
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);
/// Flags that do not block on a FIFO.
const READ: OFlags = OFlags::RDONLY
    .union(OFlags::NONBLOCK)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// Whether a path may lead into a mount of the root file system.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mounts {
    Enter,
    Refuse,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("is on something that is mounted into the container")]
    Mounted,
    #[error("is behind more than {MAX_LINKS} links")]
    Links,
    #[error("is not a regular file")]
    NotAFile,
    #[error("is not a folder")]
    NotAFolder,
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl From<Errno> for Error {
    fn from(errno: Errno) -> Self {
        Self::Io(errno.into())
    }
}

pub(crate) struct Root {
    dir: OwnedFd,
}

/// The end of a path after all links: a folder, and a name in it that is not a link.
pub(crate) struct Place {
    pub(crate) dir: OwnedFd,
    pub(crate) name: OsString,
    pub(crate) exists: bool,
    mounts: Mounts,
}

impl Root {
    /// Opens the root file system by its path on the node, which the runtime chose.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let dir = rustix::fs::openat(
            CWD,
            path,
            OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        Ok(Self { dir })
    }

    /// The opened root.
    pub(crate) fn folder(&self) -> &OwnedFd {
        &self.dir
    }

    /// Opens a folder in the root. It may be a mount and must not be a link.
    pub(crate) fn enter(&self, name: &OsStr) -> Result<OwnedFd, Error> {
        enter_folder(&self.dir, name)
    }

    /// Resolves `path`. All its folders must exist.
    pub(crate) fn place(&self, path: &str, mounts: Mounts) -> Result<Place, Error> {
        let mut ahead = Vec::new();
        push(&mut ahead, path.as_bytes());
        let mut folders = vec![self.dir.try_clone()?];
        let mut links = 0;
        loop {
            let Some(step) = ahead.pop() else {
                return Err(Error::NotAFile);
            };
            if step == ".." {
                if folders.len() > 1 {
                    folders.pop();
                }
                continue;
            }
            let dir = folders.last().expect("the root is never popped");
            match rustix::fs::readlinkat(dir, &step, Vec::new()) {
                Ok(target) => {
                    links += 1;
                    if links > MAX_LINKS {
                        return Err(Error::Links);
                    }
                    if target.as_bytes().starts_with(b"/") {
                        folders.truncate(1);
                    }
                    push(&mut ahead, target.as_bytes());
                }
                // Not a link.
                Err(Errno::INVAL) if ahead.is_empty() => return Ok(Place::new(folders, step, true, mounts)),
                Err(Errno::INVAL) => {
                    let next = enter(dir, &step, FOLDER, mounts)?;
                    folders.push(next);
                }
                Err(Errno::NOENT) if ahead.is_empty() => return Ok(Place::new(folders, step, false, mounts)),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Opens a regular file for reading; `None` if it or its folder does not exist.
    pub(crate) fn open_file(&self, path: &str) -> Result<Option<File>, Error> {
        match self.place(path, Mounts::Enter).and_then(|place| place.open()) {
            Err(Error::Io(error)) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                Ok(None)
            }
            opened => opened,
        }
    }
}

impl Place {
    fn new(mut folders: Vec<OwnedFd>, name: OsString, exists: bool, mounts: Mounts) -> Self {
        let dir = folders.pop().expect("the root is never popped");
        Self {
            dir,
            name,
            exists,
            mounts,
        }
    }

    /// Opens the folder.
    pub(crate) fn folder(&self) -> Result<OwnedFd, Error> {
        match enter(&self.dir, &self.name, FOLDER, self.mounts) {
            Err(Error::Io(error)) if error.kind() == io::ErrorKind::NotADirectory => Err(Error::NotAFolder),
            opened => opened,
        }
    }

    /// Opens the regular file for reading; `None` if it does not exist.
    pub(crate) fn open(&self) -> Result<Option<File>, Error> {
        if !self.exists {
            return Ok(None);
        }
        // Check the type first, because opening a device or a socket has side effects.
        let kind = rustix::fs::statat(&self.dir, &self.name, rustix::fs::AtFlags::SYMLINK_NOFOLLOW)?;
        if FileType::from_raw_mode(kind.st_mode) != FileType::RegularFile {
            return Err(Error::NotAFile);
        }
        let file = enter(&self.dir, &self.name, READ, self.mounts)?;
        if FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode) != FileType::RegularFile {
            return Err(Error::NotAFile);
        }
        Ok(Some(file.into()))
    }
}

/// Pushes the components of `path` on the stack of components to resolve, the first one on top.
fn push(ahead: &mut Vec<OsString>, path: &[u8]) {
    let components = path
        .split(|byte| *byte == b'/')
        .filter(|part| !matches!(*part, b"" | b"."));
    ahead.extend(components.rev().map(|part| OsString::from_vec(part.to_vec())));
}

/// Opens a folder in `dir`. It may be a mount and must not be a link.
pub(crate) fn enter_folder(dir: &OwnedFd, name: &OsStr) -> Result<OwnedFd, Error> {
    enter(dir, name, FOLDER, Mounts::Enter)
}

/// Opens one component.
fn enter(dir: &OwnedFd, name: &OsStr, flags: OFlags, mounts: Mounts) -> Result<OwnedFd, Error> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_SYMLINKS;
    let resolve = if mounts == Mounts::Refuse {
        resolve | ResolveFlags::NO_XDEV
    } else {
        resolve
    };
    match rustix::fs::openat2(dir, name, flags, Mode::empty(), resolve) {
        Err(Errno::XDEV) => Err(Error::Mounted),
        // Linux before 5.6, or a seccomp filter without openat2.
        Err(Errno::NOSYS | Errno::PERM) => enter_without_openat2(dir, name, flags, mounts),
        opened => Ok(opened?),
    }
}

/// Does the same as [`enter`], but detects only mounts of another file system.
fn enter_without_openat2(dir: &OwnedFd, name: &OsStr, flags: OFlags, mounts: Mounts) -> Result<OwnedFd, Error> {
    let opened = rustix::fs::openat(dir, name, flags, Mode::empty())?;
    if mounts == Mounts::Refuse && device(&opened)? != device(dir)? {
        return Err(Error::Mounted);
    }
    Ok(opened)
}

fn device(fd: impl AsFd) -> Result<u64, Error> {
    Ok(rustix::fs::fstat(fd)?.st_dev)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        fs,
        os::unix::fs::{MetadataExt, symlink},
    };

    fn tree() -> (tempfile::TempDir, Root) {
        let temp = tempfile::tempdir().expect("a folder");
        fs::create_dir_all(temp.path().join("root/usr/etc")).expect("folders");
        fs::write(temp.path().join("outside"), "outside").expect("write");
        fs::write(temp.path().join("root/usr/etc/file"), "inside").expect("write");
        let root = Root::open(&temp.path().join("root")).expect("a root");
        (temp, root)
    }

    fn content(root: &Root, path: &str) -> Option<String> {
        root.open_file(path)
            .expect(path)
            .map(|file| io::read_to_string(file).expect("text"))
    }

    #[test]
    fn links_stay_inside() {
        let (temp, root) = tree();
        let at = |path: &str| temp.path().join("root").join(path);
        let outside = temp.path().join("outside");
        for (link, target) in [
            ("etc", "usr/etc"),
            ("absolute", "/usr/etc/file"),
            ("dots", "../../../usr/etc/file"),
            ("chain", "etc/../etc/./file"),
            ("out", "../outside"),
            ("out-absolute", outside.to_str().expect("UTF-8")),
            ("magic", "/proc/self/root/usr/etc/file"),
        ] {
            symlink(target, at(link)).expect("link");
        }
        for inside in [
            "/etc/file",
            "etc/file",
            "/absolute",
            "/dots",
            "/chain",
            "/../../etc//file",
        ] {
            assert_eq!(content(&root, inside).as_deref(), Some("inside"), "{inside}");
        }
        for nothing in [
            "/out",
            "/out-absolute",
            "/magic",
            "/../outside",
            "/etc/none",
            "/none/file",
            "/absolute/x",
        ] {
            assert_eq!(content(&root, nothing), None, "{nothing}");
        }
    }

    #[test]
    fn a_dangling_link_has_a_place() {
        let (temp, root) = tree();
        symlink("/usr/etc/../etc/new", temp.path().join("root/link")).expect("link");
        let place = root.place("/link", Mounts::Refuse).expect("a place");
        assert_eq!((place.name.to_str(), place.exists), (Some("new"), false));
        let etc = fs::metadata(temp.path().join("root/usr/etc")).expect("stat");
        assert_eq!(rustix::fs::fstat(&place.dir).expect("stat").st_ino, etc.ino());
    }

    #[test]
    fn loops_and_what_is_no_file() {
        let (temp, root) = tree();
        symlink("b", temp.path().join("root/a")).expect("link");
        symlink("a", temp.path().join("root/b")).expect("link");
        assert!(matches!(root.open_file("/a"), Err(Error::Links)));
        for not_a_file in ["/", "/usr", "/usr/..", "/usr/etc/"] {
            assert!(
                matches!(root.open_file(not_a_file), Err(Error::NotAFile)),
                "{not_a_file}"
            );
        }
        rustix::fs::mknodat(&root.dir, "fifo", FileType::Fifo, Mode::RUSR, 0).expect("a FIFO");
        assert!(
            matches!(root.open_file("/fifo"), Err(Error::NotAFile)),
            "and does not wait for a writer"
        );
    }

    #[test]
    fn the_way_without_openat2_refuses_links_and_other_file_systems() {
        let (temp, root) = tree();
        symlink("usr", temp.path().join("root/link")).expect("link");
        assert!(enter_without_openat2(&root.dir, OsStr::new("usr"), FOLDER, Mounts::Refuse).is_ok());
        assert!(enter_without_openat2(&root.dir, OsStr::new("link"), FOLDER, Mounts::Enter).is_err());
        let host = Root::open(Path::new("/")).expect("the machine's root");
        assert!(enter_without_openat2(&host.dir, OsStr::new("proc"), FOLDER, Mounts::Enter).is_ok());
        let refused = enter_without_openat2(&host.dir, OsStr::new("proc"), FOLDER, Mounts::Refuse);
        assert!(matches!(refused, Err(Error::Mounted)));
        assert!(matches!(
            enter(&host.dir, OsStr::new("proc"), FOLDER, Mounts::Refuse),
            Err(Error::Mounted)
        ));
    }
}
