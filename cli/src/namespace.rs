//! The mount namespace of a run by root, in which libvgpu.so replaces the driver for every program, whatever
//! its environment.
//!
//! ```text
//!  /run/vgpu                       a tmpfs, read-only in the end
//!    <share>/, <share>/ledger      the share, read-only; its ledger, writable
//!    .arbitration/<GPU>/           the pages of all shares of the GPU, read-only; that of its own slot, writable
//!    .lib/                         libvgpu.so, libvgpu-preload.so, and as symlinks to the former
//!                                  libcuda.so, libcuda.so.1, libnvidia-ml.so.1
//!   .names/                       only these symlinks
//!   .driver/                      the real libraries, which the next mounts hide at their own paths
//!    .soft-gpu/                    the software GPU's state, for programs with a cleared environment
//! the driver's libraries          each covered by libvgpu.so; if there are none, .names is mounted
//!                                 over the loader's library folder (overlay, read-only)
//! /etc/ld.so.preload              if it exists: libvgpu-preload.so, then its former content
//! ```
//!
//! On the host only the folder /run/vgpu is created, while a share exists ([`HostFolder`]). A folder in it
//! marks that the host is not a container of ours. Mounts of the host still become visible here (slave
//! propagation), and ours never on the host.
//!
//! Failure modes: a mount that fails ends COMMAND before it starts, with a line that names it. Only the
//! overlay may fail (no overlayfs, or mounts inside the folder, which it would hide): then programs find
//! libvgpu.so only by LD_LIBRARY_PATH, and those with a cleared environment find no driver.
#![allow(unsafe_code)] // unshare, and the fork that tries it.

use crate::arbitration;
use crate::driver::{Driver, Loader};
use crate::launch::Places;
use crate::run_dir::{Locked, RunDir};
use crate::share::Held;
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_bind, mount_change, mount_remount};
use std::ffi::CStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use vgpu_abi::arbitration::slot_file_name;
use vgpu_abi::paths::{
    ARBITRATION, CONTAINER_LIBRARY_DIRS, LEDGER, LIBCUDA, LIBNVIDIA_ML, NAMESPACE_DIR, NODE_MARK_DIR, PRELOAD_FILE,
    SHIM_FILE, SHIM_NAMES,
};

const LOADERS_FILE: &str = "/etc/ld.so.preload";
const MOUNTS: &str = "/proc/self/mountinfo";

/// The inputs of the mounts, collected before COMMAND's process exists.
#[derive(Debug)]
pub struct Namespace {
    share: PathBuf,
    name: String,
    pages: Option<Pages>,
    shim: PathBuf,
    preload: PathBuf,
    driver: Driver,
    soft_gpu: Option<PathBuf>,
    cover: Vec<PathBuf>,
    overlay: Option<PathBuf>,
    loaders_file: Option<String>,
}

/// The folders in which the share arbitrates its GPU's time.
#[derive(Debug)]
struct Pages {
    folder: PathBuf,
    gpu: String,
    own: String,
}

#[derive(Debug, thiserror::Error)]
#[error("cannot {what} {} in COMMAND's mount namespace: {source}", path.display())]
pub struct NamespaceError {
    what: &'static str,
    path: PathBuf,
    source: io::Error,
}

/// The driver's libraries at their paths in the namespace.
#[must_use]
pub fn driver() -> Driver {
    let folder = at(".driver");
    Driver {
        libcuda: folder.join(LIBCUDA),
        libnvidia_ml: folder.join(LIBNVIDIA_ML),
    }
}

/// Returns true if this process may create a mount namespace; tries it in a child.
#[must_use]
pub fn possible() -> bool {
    // SAFETY: this process has one thread, so its child may do anything; it does two system calls.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let code = i32::from(enter().is_err());
        // SAFETY: ends the child without running the parent's exit work.
        unsafe { libc::_exit(code) };
    }
    let mut status = -1;
    // SAFETY: `child` is a child of ours (or -1, which fails), and `status` is to be written.
    child > 0 && unsafe { libc::waitpid(child, &mut status, 0) } == child && status == 0
}

fn enter() -> Result<(), NamespaceError> {
    let root = Path::new("/");
    // SAFETY: a new mount namespace takes nothing from this process that Rust relies on.
    if unsafe { libc::unshare(libc::CLONE_NEWNS) } != 0 {
        return Err(error("unshare", root)(io::Error::last_os_error()));
    }
    let flags = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    mount_change("/", flags).map_err(errno("make a slave of", root))
}

// === impl Namespace ===

impl Namespace {
    /// Prepares the namespace of a share on this machine. `soft_gpu` is the state folder of a software GPU.
    #[must_use]
    pub fn of(held: &Held, shim: &Path, preload: &Path, driver: Driver, soft_gpu: Option<PathBuf>) -> Self {
        let loader = Loader::of_machine(None, shim);
        let overlay = if loader.knows_both() { None } else { overlay_folder() };
        let cover = loader.to_cover();
        Self {
            share: held.folder.share(&held.limits.share),
            name: held.limits.share.clone(),
            pages: held.limits.slot.map(|slot| Pages {
                folder: arbitration::folder(held.run_dir(), &held.limits.gpu),
                gpu: held.limits.gpu.clone(),
                own: slot_file_name(slot),
            }),
            shim: shim.to_path_buf(),
            preload: preload.to_path_buf(),
            driver,
            soft_gpu: soft_gpu.filter(|folder| folder.is_dir()),
            cover: cover
                .into_iter()
                .filter(|file| overlay.as_ref().is_none_or(|dir| !file.starts_with(dir)))
                .collect(),
            overlay,
            loaders_file: fs::read_to_string(LOADERS_FILE).ok(),
        }
    }

    /// The paths at which COMMAND finds the share and the libraries.
    #[must_use]
    pub fn places(&self) -> Places {
        Places {
            shares: None,
            preload: self.loaders_file.is_none().then(|| at(".lib").join(PRELOAD_FILE)),
            libraries: at(".lib"),
        }
    }

    /// Enters the namespace: this process runs in it from then on.
    ///
    /// # Errors
    /// The mount that failed.
    pub fn apply(&self) -> Result<(), NamespaceError> {
        enter()?;
        let run = Path::new(NAMESPACE_DIR);
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        mount("vgpu-run", run, "tmpfs", flags, c"mode=0755,size=1m").map_err(errno("mount a tmpfs at", run))?;
        self.bind_share()?;
        self.bind_pages()?;
        self.bind_libraries()?;
        if let Some(state) = &self.soft_gpu {
            let target = at(".soft-gpu");
            fs::create_dir(&target).map_err(error("create", &target))?;
            bind(state, &target)?;
        }
        if let Some(folder) = &self.overlay {
            self.lay_over(folder);
        }
        for file in &self.cover {
            bind(&self.shim, file)?;
        }
        if let Some(text) = &self.loaders_file {
            let merged = at(".ld.so.preload");
            let ours = at(".lib").join(PRELOAD_FILE);
            fs::write(&merged, format!("{}\n{text}", ours.display())).map_err(error("write", &merged))?;
            bind(&merged, Path::new(LOADERS_FILE))?;
        }
        read_only(run, flags)
    }

    fn bind_share(&self) -> Result<(), NamespaceError> {
        let target = at(&self.name);
        fs::create_dir(&target).map_err(error("create", &target))?;
        bind(&self.share, &target)?;
        read_only(&target, MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC)?;
        bind(&self.share.join(LEDGER), &target.join(LEDGER))
    }

    fn bind_pages(&self) -> Result<(), NamespaceError> {
        let Some(pages) = &self.pages else { return Ok(()) };
        let all = at(ARBITRATION);
        let target = all.join(&pages.gpu);
        for folder in [&all, &target] {
            fs::create_dir(folder).map_err(error("create", folder))?;
        }
        bind(&pages.folder, &target)?;
        read_only(&target, MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC)?;
        bind(&pages.folder.join(&pages.own), &target.join(&pages.own))
    }

    fn bind_libraries(&self) -> Result<(), NamespaceError> {
        for folder in [".lib", ".names", ".driver"] {
            fs::create_dir(at(folder)).map_err(error("create", &at(folder)))?;
        }
        let as_seen = driver();
        let files = [
            (&self.shim, at(".lib").join(SHIM_FILE)),
            (&self.preload, at(".lib").join(PRELOAD_FILE)),
            (&self.driver.libcuda, as_seen.libcuda),
            (&self.driver.libnvidia_ml, as_seen.libnvidia_ml),
        ];
        for (file, target) in &files {
            File::create(target).map_err(error("create", target))?;
            bind(file, target)?;
        }
        for name in [".lib", ".names"]
            .iter()
            .flat_map(|folder| SHIM_NAMES.map(|name| at(folder).join(name)))
        {
            symlink(at(".lib").join(SHIM_FILE), &name).map_err(error("create", &name))?;
        }
        Ok(())
    }

    /// Mounts the overlay; a failure is ignored (see the module's failure modes).
    fn lay_over(&self, folder: &Path) {
        let options = format!("lowerdir={}:{}\0", at(".names").display(), folder.display());
        if let Ok(options) = CStr::from_bytes_with_nul(options.as_bytes()) {
            let _ = mount(
                "vgpu-run",
                folder,
                "overlay",
                MountFlags::NODEV | MountFlags::RDONLY,
                options,
            );
        }
    }
}

/// The loader's library folder; None if there are mounts inside it, which an overlay would hide.
fn overlay_folder() -> Option<PathBuf> {
    let mut folders = CONTAINER_LIBRARY_DIRS
        .iter()
        .filter_map(|folder| Path::new(folder).canonicalize().ok());
    let folder = folders.find(|folder| folder.is_dir())?;
    let mounts = fs::read_to_string(MOUNTS).ok()?;
    (!has_mounts_inside(&mounts, &folder)).then_some(folder)
}

fn has_mounts_inside(mountinfo: &str, folder: &Path) -> bool {
    let points = mountinfo.lines().filter_map(|line| line.split(' ').nth(4));
    points
        .map(Path::new)
        .any(|point| point != folder && point.starts_with(folder))
}

fn at(name: &str) -> PathBuf {
    Path::new(NAMESPACE_DIR).join(name)
}

fn bind(source: &Path, target: &Path) -> Result<(), NamespaceError> {
    mount_bind(source, target).map_err(errno("bind a file over", target))
}

fn read_only(target: &Path, flags: MountFlags) -> Result<(), NamespaceError> {
    let flags = flags | MountFlags::BIND | MountFlags::RDONLY;
    mount_remount(target, flags, c"").map_err(errno("make read-only", target))
}

fn error<'a>(what: &'static str, path: &'a Path) -> impl Fn(io::Error) -> NamespaceError + 'a {
    move |source| NamespaceError {
        what,
        path: path.to_path_buf(),
        source,
    }
}

fn errno<'a>(what: &'static str, path: &'a Path) -> impl Fn(rustix::io::Errno) -> NamespaceError + 'a {
    move |source| error(what, path)(source.into())
}

// === The one folder on the host ===

/// /run/vgpu, on which each namespace mounts its own tmpfs. If it is missing it is created, and removed with the last
/// share. A folder that another program created (the kubelet plugin) stays.
#[derive(Debug)]
pub struct HostFolder {
    mark: PathBuf,
}

impl HostFolder {
    #[must_use]
    pub fn new(run_dir: &RunDir) -> Self {
        Self {
            mark: run_dir.path().join(".made-run-vgpu"),
        }
    }

    /// Creates the folder if it is missing. The caller holds the lock of `run_dir`.
    ///
    /// # Errors
    /// It cannot be created.
    pub fn ensure(&self, _locked: &Locked) -> Result<(), NamespaceError> {
        let path = Path::new(NAMESPACE_DIR);
        if !path.is_dir() {
            File::create(&self.mark).map_err(error("mark", &self.mark))?;
            fs::create_dir(path).map_err(error("create", path))?;
        }
        let node = Path::new(NODE_MARK_DIR);
        if self.mark.exists() && !node.is_dir() {
            // An empty /run/vgpu looks like a container whose shares are gone, and every other user's CUDA
            // program would be refused.
            fs::create_dir(node).map_err(error("create", node))?;
        }
        Ok(())
    }

    /// Removes the folder if we created it and nothing else is in it. There is no share left, so no namespace
    /// needs it.
    pub fn remove(&self) {
        if self.mark.exists() {
            let _ = fs::remove_dir(NODE_MARK_DIR);
            if fs::remove_dir(NAMESPACE_DIR).is_ok() {
                let _ = fs::remove_file(&self.mark);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_inside_a_folder_are_seen() {
        let mounts = "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
                      30 22 0:5 / /usr/lib/folder rw - overlay o rw\n\
                      31 22 8:1 /x /usr/lib64/libcuda.so.535 ro - ext4 /dev/sda1 rw\n";
        assert!(!has_mounts_inside(mounts, Path::new("/usr/lib/folder")));
        assert!(has_mounts_inside(mounts, Path::new("/usr/lib64")));
        assert!(!has_mounts_inside(mounts, Path::new("/usr/lib6")));
    }
}
