//! Finds the shares of this process and their GPUs.
//!
//! If `/dev/vgpu` exists, this is a container. If `/run/vgpu` exists and is not the node's own, this is the mount
//! namespace of root's `vgpu run`. There the process is refused if anything is missing, damaged or not mounted by the
//! node: root of a container could rename these folders, or chroot into a folder of its own, and forge the limits.
//! Otherwise the directory in VGPU_RUN_DIR is used (ignored if the program is setuid); nothing in it can be verified.
//! Last come HAMi's variables ([`crate::hami`]), because the tenant may set them. Without any of these the process is
//! refused, rather than unlimited. Only the path decides what is verified, so a tenant cannot change that by a limits
//! file or a variable.

use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fmt, fs, io};

use crate::os::file::{MORE_FILES, no_descriptor, status};
use crate::os::mount;
use vgpu_abi::limits::{self, Limits, ParseError};
use vgpu_abi::paths::{
    CONTAINER_DIR, LIMITS, NAMESPACE_DIR, NODE_CLAIMS_DIR, NODE_GPUS_DIR, NODE_MARK_DIR, RUN_DIR_VARIABLE,
};

/// A share's limits and directory. `ledger::Share` is a share whose ledger is open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    pub limits: Limits,
    pub directory: PathBuf,
    /// The file system of the directory, if it is a verified mount. The ledger must be on it.
    pub device: Option<u64>,
}

/// A directory of shares and its creator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    pub directory: PathBuf,
    maker: Maker,
}

/// The creator of a directory of shares, which decides what can be verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Maker {
    /// The node, in a container: the directory and each share are read-only tmpfs mounts.
    Node,
    /// Root's `vgpu run`, in a mount namespace: the directory is a read-only tmpfs, each share a read-only mount.
    Namespace,
    /// Anybody who can set VGPU_RUN_DIR: nothing is verified.
    Variable,
}

/// The shares of one GPU, in the order in which allocations are split over them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuGrants {
    pub gpu: String,
    pub shares: Vec<Grant>,
}

/// Why the shares of this process cannot be used.
#[derive(Debug)]
pub enum GrantError {
    /// There is no directory of shares.
    Nowhere,
    Directory(PathBuf, io::Error),
    NoShare(PathBuf),
    /// The folder was not mounted by the node: the reason.
    Forged(PathBuf, &'static str),
    Unreadable(PathBuf, io::Error),
    Invalid(PathBuf, ParseError),
    /// The limits file in a share's directory names another share.
    Misplaced(PathBuf, String),
    /// Two shares name different driver libraries.
    Libraries(PathBuf),
}

/// Finds the directory of shares of this process.
///
/// # Errors
/// [`GrantError::Nowhere`].
pub fn directory(run_dir: Option<OsString>) -> Result<Origin, GrantError> {
    let origin = |directory: &Path, maker| Origin {
        directory: directory.to_owned(),
        maker,
    };
    let (container, namespace) = (Path::new(CONTAINER_DIR), Path::new(NAMESPACE_DIR));
    if is_there(container) {
        return Ok(origin(container, Maker::Node));
    }
    if is_container(namespace) {
        return Ok(origin(namespace, Maker::Namespace));
    }
    run_dir
        .filter(|directory| !directory.is_empty())
        .map(|directory| origin(Path::new(&directory), Maker::Variable))
        .ok_or(GrantError::Nowhere)
}

/// Returns true if this may be a directory of shares: not a device of that name. If it cannot be read, it is refused
/// later.
fn is_there(directory: &Path) -> bool {
    match fs::symlink_metadata(directory) {
        Ok(found) => found.is_dir() || found.is_symlink(),
        Err(error) => !matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory),
    }
}

/// How often a folder that looks neither like a container's nor like a node's is read, and how long to pause in
/// between.
const LOOKS: u32 = 20;
const BETWEEN: Duration = Duration::from_millis(1);

/// Root's `vgpu run` creates the node's folder and its mark in two steps and removes them in two: in between, the
/// folder is empty or gone. A folder that stays empty or cannot be read is treated as a container's, and refused later.
fn is_container(directory: &Path) -> bool {
    for look in 0..LOOKS {
        if look > 0 {
            std::thread::sleep(BETWEEN);
        }
        // This runs at each start of a program in a container. One read of the folder is nearly always enough.
        let entries = match fs::read_dir(directory) {
            Ok(entries) => entries.flatten(),
            Err(error) => return !matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory),
        };
        let (of_node, others): (Vec<_>, Vec<_>) = entries.partition(|entry| is_of_node(&entry.file_name()));
        // A node's own /run/vgpu holds claims and arbitration, or the mark of root's `vgpu run`, and no share.
        if of_node.iter().any(|entry| entry.path().is_dir()) {
            return others.iter().any(|entry| entry.path().join(LIMITS).exists());
        }
        if !others.is_empty() {
            return true;
        }
    }
    true
}

fn is_of_node(name: &OsStr) -> bool {
    let folders = [NODE_CLAIMS_DIR, NODE_GPUS_DIR, NODE_MARK_DIR];
    folders
        .into_iter()
        .any(|folder| Path::new(folder).file_name() == Some(name))
}

/// Returns every share of this process, by GPU.
///
/// # Errors If one share cannot be read or was not mounted by the node, all are refused, because any of them may set
/// the limit that matters.
pub fn read(origin: &Origin) -> Result<Vec<GpuGrants>, GrantError> {
    let directory = &origin.directory;
    let failed = |error| GrantError::Directory(directory.clone(), error);
    // The directory is opened before it is verified, and every share is opened relative to it. So no limits come from
    // elsewhere if the path leads to another directory by the time it is listed.
    let opened = match origin.maker {
        Maker::Variable => None,
        Maker::Node | Maker::Namespace => {
            let opened = mount::open_folder(directory).map_err(failed)?;
            verify(&opened, directory, true)?;
            Some(opened)
        }
    };
    let mut grants = Vec::new();
    for entry in fs::read_dir(directory).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
        if hidden || !entry.path().is_dir() {
            continue;
        }
        let path = entry.path();
        let (share, device) = match &opened {
            None => (open_folder_of_variable(&path)?, None),
            Some(opened) => {
                let unreadable = |error| GrantError::Unreadable(path.clone(), error);
                let share = mount::open_in(opened, Path::new(&entry.file_name()), libc::O_DIRECTORY);
                let share = share.map_err(unreadable)?;
                let device = verify(&share, &path, origin.maker == Maker::Node)?;
                (share, Some(device))
            }
        };
        grants.push(read_share(&share, path, device)?);
    }
    if grants.is_empty() {
        return Err(GrantError::NoShare(directory.clone()));
    }
    group(grants)
}

/// Verifies that the node mounted an opened folder, and returns its file system.
fn verify(folder: &OwnedFd, path: &Path, tmpfs: bool) -> Result<u64, GrantError> {
    let facts = mount::facts(folder).map_err(|error| GrantError::Directory(path.to_owned(), error))?;
    match facts.objection(tmpfs) {
        None => Ok(facts.device),
        Some(objection) => Err(GrantError::Forged(path.to_owned(), objection)),
    }
}

/// Opens a folder and follows links, because a user may give a link in VGPU_RUN_DIR.
fn open_folder_of_variable(path: &Path) -> Result<OwnedFd, GrantError> {
    let opened = fs::File::open(path).map_err(|error| GrantError::Unreadable(path.join(LIMITS), error))?;
    Ok(opened.into())
}

fn read_share(folder: &OwnedFd, directory: PathBuf, device: Option<u64>) -> Result<Grant, GrantError> {
    let path = directory.join(LIMITS);
    // Files of usual size fit in this buffer and are read at once.
    let mut bytes = Vec::with_capacity(1024);
    open(folder, device)
        .and_then(|file| file.take(limits::MAX_SIZE as u64 + 1).read_to_end(&mut bytes))
        .map_err(|error| GrantError::Unreadable(path.clone(), error))?;
    let limits = Limits::parse(&bytes).map_err(|error| GrantError::Invalid(path.clone(), error))?;
    if directory.file_name().is_none_or(|name| name != limits.share.as_str()) {
        return Err(GrantError::Misplaced(path, limits.share));
    }
    Ok(Grant {
        limits,
        directory,
        device,
    })
}

/// Opens the limits file of a share. It must be a regular file, on the share's file system if that is verified.
fn open(folder: &OwnedFd, device: Option<u64>) -> io::Result<fs::File> {
    let file = mount::open_in(folder, Path::new(LIMITS), 0)?;
    let status = status(file.as_raw_fd())?;
    let wrong = if status.st_mode & libc::S_IFMT != libc::S_IFREG {
        "not a regular file"
    } else if device.is_some_and(|device| device != status.st_dev) {
        "not on the file system of its share"
    } else {
        return Ok(file.into());
    };
    Err(io::Error::new(io::ErrorKind::InvalidInput, wrong))
}

fn group(mut grants: Vec<Grant>) -> Result<Vec<GpuGrants>, GrantError> {
    grants.sort_by(|a, b| (a.limits.order, &a.limits.share).cmp(&(b.limits.order, &b.limits.share)));
    let mut gpus: Vec<GpuGrants> = Vec::new();
    for grant in grants {
        if let Some(first) = gpus.first().and_then(|gpu| gpu.shares.first())
            && (&first.limits.libcuda, &first.limits.libnvidia_ml)
                != (&grant.limits.libcuda, &grant.limits.libnvidia_ml)
        {
            return Err(GrantError::Libraries(grant.directory.join(LIMITS)));
        }
        match gpus
            .iter_mut()
            .find(|known| known.gpu.eq_ignore_ascii_case(&grant.limits.gpu))
        {
            Some(known) => known.shares.push(grant),
            None => gpus.push(GpuGrants {
                gpu: grant.limits.gpu.clone(),
                shares: vec![grant],
            }),
        }
    }
    Ok(gpus)
}

// === impl GrantError ===

/// The remedy if the node's files of a pod are missing or damaged.
const AGAIN: &str = "delete the pod so that it is prepared again";

impl fmt::Display for GrantError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nowhere => write!(
                f,
                "this process has no share of a GPU: {CONTAINER_DIR} is absent and {RUN_DIR_VARIABLE} is not set; request a GPU through a resource claim, or start the program with `vgpu run`"
            ),
            Self::Directory(path, error) if no_descriptor(error) => {
                write!(f, "directory of shares {}: {error}; {MORE_FILES}", path.display())
            }
            Self::Directory(path, error) => write!(f, "directory of shares {}: {error}", path.display()),
            Self::NoShare(path) => write!(f, "directory of shares {} holds no share; {AGAIN}", path.display()),
            Self::Forged(path, objection) => write!(
                f,
                "{} {objection}: limits are accepted only from mounts that the node made; {AGAIN}, and leave the mounts \
                 and the root of its programs as they are",
                path.display()
            ),
            // No descriptor was free: neither the pod nor its limits are at fault.
            Self::Unreadable(path, error) if no_descriptor(error) => {
                write!(f, "limits file {}: {error}; {MORE_FILES}", path.display())
            }
            Self::Unreadable(path, error) => write!(f, "limits file {}: {error}; {AGAIN}", path.display()),
            Self::Invalid(path, error) => write!(f, "limits file {}: {error}; {AGAIN}", path.display()),
            Self::Misplaced(path, share) => write!(f, "limits file {} is that of share {share}", path.display()),
            Self::Libraries(path) => write!(
                f,
                "limits file {} names other driver libraries than the first share's",
                path.display()
            ),
        }
    }
}

impl std::error::Error for GrantError {}

#[cfg(all(test, not(miri)))] // The tests use files.
mod tests {
    use super::*;

    fn limits(share: &str, gpu: &str, order: u32) -> Limits {
        Limits {
            order,
            ..Limits::of_memory(share, gpu, 1 << 30, "/driver/libcuda.so.1", "/driver/libnvidia-ml.so.1")
        }
    }

    #[test]
    fn a_limit_of_open_files_is_not_blamed_on_the_pod() {
        let error = |errno| GrantError::Unreadable("/run/vgpu/a/limits".into(), io::Error::from_raw_os_error(errno));
        let line = error(libc::EMFILE).to_string();
        assert!(line.contains("/run/vgpu/a/limits: Too many open files"), "{line}");
        assert!(line.contains("ulimit -n") && !line.contains("delete the pod"), "{line}");
        assert!(error(libc::EIO).to_string().contains("delete the pod"));
    }

    fn of_variable(directory: &Path) -> Origin {
        Origin {
            directory: directory.to_owned(),
            maker: Maker::Variable,
        }
    }

    fn put(directory: &Path, name: &str, text: &str) {
        fs::create_dir_all(directory.join(name)).expect("a directory");
        fs::write(directory.join(name).join(LIMITS), text).expect("a file");
    }

    #[test]
    fn shares_are_grouped_by_gpu_in_claim_order() {
        let directory = tempfile::tempdir().expect("a directory");
        for (share, gpu, order) in [("b", "GPU-1", 0), ("a", "GPU-2", 1), ("c", "GPU-1", 2)] {
            put(directory.path(), share, &limits(share, gpu, order).render());
        }
        fs::create_dir(directory.path().join(".arbitration")).expect("a directory");
        let gpus = read(&of_variable(directory.path())).expect("grants");
        let names: Vec<(&str, Vec<&str>)> = gpus
            .iter()
            .map(|gpu| {
                (
                    gpu.gpu.as_str(),
                    gpu.shares.iter().map(|s| s.limits.share.as_str()).collect(),
                )
            })
            .collect();
        assert_eq!(names, [("GPU-1", vec!["b", "c"]), ("GPU-2", vec!["a"])]);
    }

    #[test]
    fn one_bad_share_refuses_all_and_is_named() {
        let directory = tempfile::tempdir().expect("a directory");
        let message = || read(&of_variable(directory.path())).expect_err("refused").to_string();
        assert!(message().contains("holds no share"), "{}", message());
        put(directory.path(), "a", &limits("a", "GPU-1", 0).render());
        fs::create_dir(directory.path().join("b")).expect("a directory");
        assert!(message().contains("b/limits: No such file"), "{}", message());
        put(
            directory.path(),
            "b",
            &limits("b", "GPU-1", 0).render().replace("cores 0", "cores 1"),
        );
        assert!(message().contains("b/limits: checksum"), "{}", message());
        put(directory.path(), "b", &limits("c", "GPU-1", 0).render());
        assert!(message().contains("is that of share c"), "{}", message());
        let mut other = limits("b", "GPU-1", 0);
        other.libcuda = "/other/libcuda.so.1".into();
        put(directory.path(), "b", &other.render());
        assert!(message().contains("other driver libraries"), "{}", message());
        put(directory.path(), "b", &"x".repeat(1 << 20));
        assert!(message().contains("b/limits"), "{}", message());
    }

    /// Root of a container can create such folders by a rename and some writes; a node or `vgpu run` never does.
    #[test]
    fn a_folder_in_the_place_of_a_mount_is_refused() {
        let directory = tempfile::tempdir().expect("a directory");
        put(directory.path(), "a", &limits("a", "GPU-1", 0).render());
        assert_eq!(read(&of_variable(directory.path())).expect("grants").len(), 1);
        for maker in [Maker::Node, Maker::Namespace] {
            let origin = Origin {
                maker,
                ..of_variable(directory.path())
            };
            let line = read(&origin).expect_err("refused").to_string();
            assert!(
                line.contains(" is no mount: limits are accepted only from mounts"),
                "{line}"
            );
        }
        // This mount was not made by the node: it is the machine's own /proc.
        let origin = Origin {
            maker: Maker::Node,
            ..of_variable(Path::new("/proc"))
        };
        let line = read(&origin).expect_err("refused").to_string();
        assert!(line.starts_with("/proc is no tmpfs: "), "{line}");
    }

    /// Root's `vgpu run` creates and removes the folder again and again while others read it.
    #[test]
    fn a_nodes_folder_that_comes_and_goes_is_never_a_container() {
        let parent = tempfile::tempdir().expect("a directory");
        let directory = parent.path().join("vgpu");
        let mark = directory.join(Path::new(NODE_MARK_DIR).file_name().expect("a name"));
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    fs::create_dir(&directory).expect("a directory");
                    fs::create_dir(&mark).expect("a directory");
                    fs::remove_dir(&mark).expect("removed");
                    fs::remove_dir(&directory).expect("removed");
                }
            });
            let container = (0..3000).filter(|_| is_container(&directory)).count();
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
            assert_eq!(container, 0);
        });
        fs::create_dir(&directory).expect("a directory");
        assert!(is_container(&directory), "one that stays empty");
        put(&directory, "a", "");
        assert!(is_container(&directory));
        fs::create_dir(&mark).expect("a directory");
        assert!(is_container(&directory), "a share counts more than a mark");
    }

    #[test]
    fn nothing_at_all_says_what_to_do() {
        // Fails if the tests run in one of our containers.
        let refused = directory(None).map_err(|error| error.to_string());
        let refused = refused.expect_err("run the tests outside a vgpu container");
        assert!(refused.contains("vgpu run"));
        assert_eq!(
            directory(Some("/x".into())).expect("a directory"),
            of_variable(Path::new("/x"))
        );
        assert!(directory(Some("".into())).is_err());
    }
}
