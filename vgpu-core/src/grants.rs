//! Finds the shares of this process, and their GPUs.
//!
//! If `/dev/vgpu` exists, this is a container. If `/run/vgpu` exists and is not a node's own, this is the mount namespace
//! of root's `vgpu run`. There anything that is missing, damaged or not a mount of the node's making refuses the process:
//! root of a container could rename these folders, or change its root to a folder of its own, and forge the limits.
//! Otherwise the directory that `vgpu run` names in VGPU_RUN_DIR counts (ignored if the program is setuid), of which
//! nothing can be verified, and after it HAMi's variables ([`crate::hami`]), which come last because the tenant may set
//! them. Without any of these there is no limit to enforce, and the process is refused rather than unlimited. The path
//! decides what is verified, so what a tenant writes into a limits file or a variable cannot.

use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fmt, fs, io};

use crate::os::file::{MORE_FILES, no_descriptor};
use crate::os::mount;
use vgpu_abi::limits::{self, Limits, ParseError};
use vgpu_abi::paths::{
    CONTAINER_DIR, LIMITS, NAMESPACE_DIR, NODE_CLAIMS_DIR, NODE_GPUS_DIR, NODE_MARK_DIR, RUN_DIR_VARIABLE,
};

/// A share as the library finds it: its limits and its directory. `ledger::Share` is one whose ledger is open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    pub limits: Limits,
    pub directory: PathBuf,
    /// The file system of the directory if it is a verified mount: the ledger must be on it.
    pub device: Option<u64>,
}

/// A directory of shares, and who made it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    pub directory: PathBuf,
    maker: Maker,
}

/// Who made a directory of shares, and so what can be verified of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Maker {
    /// The node, in a container: it and each share is a read-only tmpfs.
    Node,
    /// `vgpu run` of root, in a mount namespace: it is a read-only tmpfs, and each share a read-only mount.
    Namespace,
    /// Whoever set VGPU_RUN_DIR: nothing.
    Variable,
}

/// The shares of one GPU, in the order in which allocations are split over them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuGrants {
    pub gpu: String,
    pub shares: Vec<Grant>,
}

/// Why there is no grant.
#[derive(Debug)]
pub enum GrantError {
    /// Neither a container's nor a `vgpu run`'s directory.
    Nowhere,
    Directory(PathBuf, io::Error),
    NoShare(PathBuf),
    /// The folder is not a mount of the node's making, and what shows it.
    Forged(PathBuf, &'static str),
    Unreadable(PathBuf, io::Error),
    Invalid(PathBuf, ParseError),
    /// A share's directory and its limits file differ in name.
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

/// A device of that name is not ours. What cannot be read is refused later.
fn is_there(directory: &Path) -> bool {
    match fs::symlink_metadata(directory) {
        Ok(found) => found.is_dir() || found.is_symlink(),
        Err(error) => !matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory),
    }
}

/// How often, and how long each time, a folder that is neither a container's nor a node's is looked at again.
const LOOKS: u32 = 20;
const BETWEEN: Duration = Duration::from_millis(1);

/// Root's `vgpu run` makes the node's folder and its mark in two steps, and removes them in two: in between the
/// folder is empty or gone. One that stays empty is a container whose shares are gone, and one that cannot be read
/// is one whose shares cannot be read: both are refused later.
fn is_container(directory: &Path) -> bool {
    for look in 0..LOOKS {
        if look > 0 {
            std::thread::sleep(BETWEEN);
        }
        // Every start of a container's program asks: one reading of the folder answers nearly always.
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

/// Every share of this process, by GPU.
///
/// # Errors
/// One share that cannot be read, or is not of the node's making, refuses all: it may be the one that matters.
pub fn read(origin: &Origin) -> Result<Vec<GpuGrants>, GrantError> {
    let directory = &origin.directory;
    let failed = |error| GrantError::Directory(directory.clone(), error);
    // Opened before it is verified, and every share is opened in it: whatever the path leads to by the time it is listed,
    // no limits come from elsewhere.
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

/// Verifies that an opened folder is a mount of the node's making, and returns its file system.
fn verify(folder: &OwnedFd, path: &Path, tmpfs: bool) -> Result<u64, GrantError> {
    let facts = mount::facts(folder).map_err(|error| GrantError::Directory(path.to_owned(), error))?;
    match facts.objection(tmpfs) {
        None => Ok(facts.device),
        Some(objection) => Err(GrantError::Forged(path.to_owned(), objection)),
    }
}

/// A user may name a link with VGPU_RUN_DIR.
fn open_folder_of_variable(path: &Path) -> Result<OwnedFd, GrantError> {
    let opened = fs::File::open(path).map_err(|error| GrantError::Unreadable(path.join(LIMITS), error))?;
    Ok(opened.into())
}

fn read_share(folder: &OwnedFd, directory: PathBuf, device: Option<u64>) -> Result<Grant, GrantError> {
    let path = directory.join(LIMITS);
    // Usual ones fit, and are read at once.
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

/// Opens the limits file of a share: a regular file, on the file system of a verified share.
fn open(folder: &OwnedFd, device: Option<u64>) -> io::Result<fs::File> {
    let file = mount::open_in(folder, Path::new(LIMITS), 0)?;
    let status = mount::status(&file)?;
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
            Self::NoShare(path) => write!(
                f,
                "directory of shares {} holds no share; delete the pod so that it is prepared again",
                path.display()
            ),
            Self::Forged(path, objection) => write!(
                f,
                "{} {objection}: limits are accepted only from mounts that the node made; delete the pod so that it is \
                 prepared again, and leave the mounts and the root of its programs as they are",
                path.display()
            ),
            // Not the pod's fault, nor that of the limits.
            Self::Unreadable(path, error) if no_descriptor(error) => {
                write!(f, "limits file {}: {error}; {MORE_FILES}", path.display())
            }
            Self::Unreadable(path, error) => write!(
                f,
                "limits file {}: {error}; delete the pod so that it is prepared again",
                path.display()
            ),
            Self::Invalid(path, error) => write!(
                f,
                "limits file {}: {error}; delete the pod so that it is prepared again",
                path.display()
            ),
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

#[cfg(test)]
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
    #[cfg_attr(miri, ignore = "files")]
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
    #[cfg_attr(miri, ignore = "files")]
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

    /// What root of a container makes by a rename and some writes, a node or `vgpu run` never makes.
    #[test]
    #[cfg_attr(miri, ignore = "files")]
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
        // A mount that is not the node's: the machine's own /proc.
        let origin = Origin {
            maker: Maker::Node,
            ..of_variable(Path::new("/proc"))
        };
        let line = read(&origin).expect_err("refused").to_string();
        assert!(line.starts_with("/proc is no tmpfs: "), "{line}");
    }

    /// As root's `vgpu run` makes and removes it, again and again, while others look.
    #[test]
    #[cfg_attr(miri, ignore = "files")]
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
    #[cfg_attr(miri, ignore = "files")]
    fn nothing_at_all_says_what_to_do() {
        // The machine that runs the tests is no container of ours.
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
