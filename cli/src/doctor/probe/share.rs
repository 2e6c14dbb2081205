//! `vgpu probe-share`, the program of the probe's pod: are the limits mounted, and does the loader load the library? It needs
//! neither CUDA nor the driver. Its answer is the container's termination message, which whoever reads the pod can read.

use std::fs::{File, read, read_dir, read_to_string};
use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::ExitCode;

use vgpu_abi::limits::Limits;
use vgpu_abi::paths;
use vgpu_quantity::readable_bytes;

use crate::exit;

const TERMINATION_LOG: &str = "/dev/termination-log";

pub(crate) fn main() -> ExitCode {
    let answer = look(Path::new("/"));
    let words = answer.as_ref().unwrap_or_else(|why| why);
    if let Ok(mut log) = File::options().append(true).open(TERMINATION_LOG) {
        let _ = log.write_all(words.as_bytes());
    }
    let _ = writeln!(std::io::stdout(), "{words}");
    match answer {
        Ok(_) => ExitCode::SUCCESS,
        Err(_) => ExitCode::from(exit::NO),
    }
}

/// Returns the share's limits in words, or what is missing below `root`.
fn look(root: &Path) -> Result<String, String> {
    let below = |path: &str| root.join(path.trim_start_matches('/'));
    let limits = limits(&below(paths::CONTAINER_DIR))?;
    let maps = read_to_string(below("/proc/self/maps")).unwrap_or_default();
    if !maps.contains(paths::PRELOAD_FILE) {
        return Err(format!(
            "library not loaded: the loader did not load {} into this program; is /etc/ld.so.preload mounted?",
            paths::CONTAINER_PRELOAD
        ));
    }
    let inode = |path: &Path| std::fs::metadata(path).map(|found| (found.dev(), found.ino())).ok();
    let shim = inode(&below(paths::CONTAINER_SHIM));
    let is_shim = |folder: &str| inode(&below(folder).join(paths::LIBCUDA)) == shim;
    if shim.is_none() || !paths::CONTAINER_LIBRARY_DIRS.iter().any(|folder| is_shim(folder)) {
        return Err(format!(
            "library not loaded: {} of {} is not libvgpu.so",
            paths::LIBCUDA,
            paths::CONTAINER_LIBRARY_DIRS.join(" and ")
        ));
    }
    Ok(format!(
        "memory {} and {} cores of GPU {}, with the library loaded",
        readable_bytes(limits.memory),
        limits.cores,
        limits.gpu
    ))
}

fn limits(folder: &Path) -> Result<Limits, String> {
    let not_mounted = |why: String| format!("limits file not mounted: {}: {why}", folder.display());
    let entries = read_dir(folder).map_err(|error| not_mounted(error.to_string()))?;
    let mut files = entries.flatten().map(|entry| entry.path().join(paths::LIMITS));
    let Some(file) = files.find(|file| file.is_file()) else {
        return Err(not_mounted("it has no share".to_owned()));
    };
    let bytes = read(&file).map_err(|error| not_mounted(error.to_string()))?;
    Limits::parse(&bytes).map_err(|error| format!("limits file cannot be read: {}: {error}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{create_dir_all, hard_link, write};

    #[test]
    fn what_is_missing_in_the_container_is_named() {
        let root = tempfile::tempdir().unwrap();
        let path = |below: &str| root.path().join(below);
        let missing = |words: &str| {
            let said = look(root.path()).expect_err(words);
            assert!(said.starts_with(words), "{said}");
        };
        missing("limits file not mounted");
        create_dir_all(path("dev/vgpu/.lib")).unwrap();
        missing("limits file not mounted");
        create_dir_all(path("dev/vgpu/share")).unwrap();
        write(path("dev/vgpu/share/limits"), "vgpu-limits 1\n").unwrap();
        missing("limits file cannot be read");
        let limits = Limits::of_memory("share", "GPU-1", 64 << 20, "/a", "/b");
        write(path("dev/vgpu/share/limits"), limits.render()).unwrap();
        missing("library not loaded: the loader");
        create_dir_all(path("proc/self")).unwrap();
        write(path("proc/self/maps"), "7f00 r-xp /dev/vgpu/.lib/libvgpu-preload.so\n").unwrap();
        missing("library not loaded: libcuda.so.1");
        write(path("dev/vgpu/.lib/libcuda.so.1"), "shim").unwrap();
        create_dir_all(path("usr/lib64")).unwrap();
        write(path("usr/lib64/libcuda.so.1"), "the image's own").unwrap();
        missing("library not loaded: libcuda.so.1");
        create_dir_all(path(concat!("usr/lib/", vgpu_abi::arch!(triplet)))).unwrap();
        hard_link(
            path("dev/vgpu/.lib/libcuda.so.1"),
            path(concat!("usr/lib/", vgpu_abi::arch!(triplet), "/libcuda.so.1")),
        )
        .unwrap();
        let said = look(root.path()).unwrap();
        assert_eq!(said, "memory 64Mi and 0 cores of GPU GPU-1, with the library loaded");
    }
}
