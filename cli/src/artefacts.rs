//! Finds the release artefacts that a run needs: beside `vgpu`, or installed.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use vgpu_abi::paths::{LIBCUDA, LIBNVIDIA_ML, PRELOAD_FILE, SHIM_FILE};

/// Folders of an installation. The program's own folder and its `../lib/vgpu` are searched first.
const INSTALLED: [&str; 2] = ["/usr/local/lib/vgpu", "/usr/lib/vgpu"];

/// The files of one release, absolute and without symlinks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Artefacts {
    pub shim: PathBuf,
    pub preload: PathBuf,
    /// The software GPU's folder, if it is part of the release.
    pub soft_gpu: Option<PathBuf>,
}

#[derive(Debug, thiserror::Error)]
pub enum ArtefactError {
    #[error("{SHIM_FILE} and {PRELOAD_FILE} are in none of {}; build them with `make dist`, or install them", list(.0))]
    NotFound(Vec<PathBuf>),
    #[error("--soft-gpu: the software GPU (soft-gpu/{LIBCUDA}, soft-gpu/{LIBNVIDIA_ML}) is not beside {}", .0.display())]
    NoSoftGpu(PathBuf),
}

impl Artefacts {
    /// Finds them for the program at `exe`.
    ///
    /// # Errors
    /// The folders that were searched, if the files are in none of them.
    pub fn find(exe: &Path) -> Result<Self, ArtefactError> {
        let folders = folders(exe);
        let release = folders.iter().find_map(|folder| Self::in_folder(folder));
        release.ok_or(ArtefactError::NotFound(folders))
    }

    fn in_folder(folder: &Path) -> Option<Self> {
        let file = |name: &str| folder.join(name).canonicalize().ok().filter(|path| path.is_file());
        let soft_gpu = folder.join("soft-gpu");
        let whole = [LIBCUDA, LIBNVIDIA_ML].iter().all(|name| soft_gpu.join(name).is_file());
        Some(Self {
            shim: file(SHIM_FILE)?,
            preload: file(PRELOAD_FILE)?,
            soft_gpu: soft_gpu.canonicalize().ok().filter(|_| whole),
        })
    }

    /// The software GPU's libcuda and libnvidia-ml.
    ///
    /// # Errors
    /// The release has no software GPU.
    pub fn soft_gpu(&self) -> Result<(PathBuf, PathBuf), ArtefactError> {
        let folder = self.soft_gpu.as_ref();
        let folder = folder.ok_or_else(|| ArtefactError::NoSoftGpu(self.shim.clone()))?;
        Ok((folder.join(LIBCUDA), folder.join(LIBNVIDIA_ML)))
    }
}

fn folders(exe: &Path) -> Vec<PathBuf> {
    let own = exe.parent().unwrap_or(Path::new("/"));
    let mut folders = vec![own.to_path_buf()];
    folders.extend(own.parent().map(|prefix| prefix.join("lib/vgpu")));
    folders.extend(INSTALLED.map(PathBuf::from));
    folders.dedup();
    folders
}

fn list(folders: &[PathBuf]) -> String {
    let texts: Vec<_> = folders.iter().map(|folder| folder.display().to_string()).collect();
    texts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn release(folder: &Path) {
        fs::create_dir_all(folder.join("soft-gpu")).unwrap();
        for name in [
            SHIM_FILE,
            PRELOAD_FILE,
            "soft-gpu/libcuda.so.1",
            "soft-gpu/libnvidia-ml.so.1",
        ] {
            fs::write(folder.join(name), "").unwrap();
        }
    }

    #[test]
    fn beside_the_program_comes_before_its_lib_folder() {
        let tmp = tempfile::tempdir().unwrap();
        let root = tmp.path().canonicalize().unwrap();
        release(&root.join("lib/vgpu"));
        let exe = root.join("bin/vgpu");
        fs::create_dir_all(root.join("bin")).unwrap();
        assert_eq!(Artefacts::find(&exe).unwrap().shim, root.join("lib/vgpu/libvgpu.so"));
        release(&root.join("bin"));
        let found = Artefacts::find(&exe).unwrap();
        assert_eq!(found.shim, root.join("bin/libvgpu.so"));
        assert_eq!(found.soft_gpu().unwrap().0, root.join("bin/soft-gpu/libcuda.so.1"));
    }

    #[test]
    fn half_a_release_is_none() {
        let tmp = tempfile::tempdir().unwrap();
        let root = tmp.path().canonicalize().unwrap();
        release(&root);
        fs::remove_file(root.join("soft-gpu/libcuda.so.1")).unwrap();
        let found = Artefacts::find(&root.join("vgpu")).unwrap();
        assert!(found.soft_gpu().unwrap_err().to_string().starts_with("--soft-gpu: "));
        fs::remove_file(root.join(PRELOAD_FILE)).unwrap();
        let error = Artefacts::in_folder(&root);
        assert_eq!(error, None);
    }
}
