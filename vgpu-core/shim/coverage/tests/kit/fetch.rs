//! Downloads NVIDIA's headers once into the cache outside the repository, and runs the preprocessor on them.

#![allow(unreachable_pub, reason = "a module of a test")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use vgpu_cache::{Error, pip};
use vgpu_coverage::headers::{self, Header};

/// The headers cannot be read here, for this reason.
#[derive(Debug)]
pub struct Unavailable(pub String);

/// The headers of one release, with the declarations for each way of including them.
pub struct Release {
    pub pins: String,
    pub cuda: Vec<Header>,
    pub nvml: Vec<Header>,
}

/// Every release that `headers/` pins, read once.
///
/// # Panics The downloaded package is not the pinned one, or lacks a header.
pub fn releases() -> &'static Result<Vec<Release>, Unavailable> {
    static RELEASES: OnceLock<Result<Vec<Release>, Unavailable>> = OnceLock::new();
    RELEASES.get_or_init(read)
}

fn read() -> Result<Vec<Release>, Unavailable> {
    let mut pins: Vec<PathBuf> = fs::read_dir(crate::kit::here().join("headers"))
        .expect("headers/")
        .map(|entry| entry.expect("headers/").path())
        .collect();
    pins.sort();
    assert!(!pins.is_empty(), "headers/ pins no release");
    pins.iter().map(|path| release(path)).collect()
}

fn release(pins: &Path) -> Result<Release, Unavailable> {
    let folder = fetched(pins)?;
    let mut includes = Vec::new();
    find_includes(&folder, &mut includes);
    // These headers are in other packages. Empty ones suffice: CUDA's headers use only their types.
    let stubs = Aside(std::env::temp_dir().join(format!("vgpu-coverage-{}-{}", std::process::id(), stem(pins))));
    for stub in ["GL/gl.h", "EGL/egl.h", "EGL/eglext.h", "vdpau/vdpau.h"] {
        let path = stubs.0.join(stub);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a temporary folder");
        fs::write(path, "").expect("a temporary file");
    }
    includes.push(stubs.0.clone());
    // VDPAU's own header, which defines this type, is in another package.
    let cuda = "typedef unsigned int VdpDevice;\n\
                #include <cuda.h>\n#include <cudaGL.h>\n#include <cudaEGL.h>\n#include <cudaVDPAU.h>\n#include <cudaProfiler.h>\n";
    let read = |text: &str, define: &str| preprocessed(text, define, &includes).map(|text| headers::parse(&text));
    // Three ways: without renaming, renamed to the newest versions, and renamed to the variants for a default stream
    // per thread.
    Ok(Release {
        pins: stem(pins),
        cuda: vec![
            read(cuda, "__CUDA_API_VERSION_INTERNAL")?,
            read(cuda, "VGPU_NOTHING")?,
            read(cuda, "CUDA_API_PER_THREAD_DEFAULT_STREAM")?,
        ],
        nvml: vec![
            read("#include <nvml.h>\n", "NVML_NO_UNVERSIONED_FUNC_DEFS")?,
            read("#include <nvml.h>\n", "VGPU_NOTHING")?,
        ],
    })
}

fn stem(path: &Path) -> String {
    path.file_stem().expect("a file").to_string_lossy().into_owned()
}

/// The folders that hold a header we read.
fn find_includes(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("the cache").flatten() {
        let path = entry.path();
        if path.is_dir() {
            find_includes(&path, found);
        }
    }
    if ["cuda.h", "cudaProfiler.h", "nvml.h"]
        .iter()
        .any(|name| folder.join(name).exists())
    {
        found.push(folder.to_owned());
    }
}

fn preprocessed(text: &str, define: &str, includes: &[PathBuf]) -> Result<String, Unavailable> {
    let source = includes.last().expect("the stubs").join("all.c");
    fs::write(&source, text).expect("a temporary file");
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let mut command = Command::new(&compiler);
    command.args(["-E", "-P", "-x", "c", "-D", define]).arg(&source);
    includes.iter().for_each(|folder| {
        command.arg("-I").arg(folder);
    });
    let output = command
        .output()
        .map_err(|error| Unavailable(format!("{}: {error}", compiler.display())))?;
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {said}");
    Ok(String::from_utf8(output.stdout).expect("headers are text"))
}

/// The folder with the packages of a file of pins.
fn fetched(pins: &Path) -> Result<PathBuf, Unavailable> {
    let key = fs::read_to_string(pins).expect("pins");
    let path = pins.to_str().expect("a path in UTF-8");
    // The headers are the same for every platform; the pins are for this one.
    let options = "--no-deps --require-hashes --only-binary :all: --platform manylinux2014_x86_64 -r";
    let arguments: Vec<&str> = options.split(' ').chain([path]).collect();
    match pip::packages(&format!("headers-{}", stem(pins)), &key, &arguments) {
        Ok(folder) => Ok(folder),
        Err(Error::Unavailable(why)) => Err(Unavailable(why)),
        Err(Error::Failed(why)) => panic!("{why}"),
    }
}

/// A folder that is removed when this value is dropped, however the test ends.
struct Aside(PathBuf);

impl Drop for Aside {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
