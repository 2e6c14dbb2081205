//! NVIDIA's headers: fetched once into the cache outside the clone, and read through the preprocessor.

#![allow(unreachable_pub, reason = "a module of a test")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use vgpu_coverage::headers::{self, Header};

/// What cannot be read here, and why.
#[derive(Debug)]
pub struct Unavailable(pub String);

/// The headers of one release: what each way of including them declares.
pub struct Release {
    pub pins: String,
    pub cuda: Vec<Header>,
    pub nvml: Vec<Header>,
}

/// Every release that `headers/` pins, read once.
///
/// # Panics
/// A package came that is not the pinned one, or it does not hold what it should.
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
    // Of other packages, and of no interest: what CUDA's headers take from them are types alone.
    let stubs = Aside(std::env::temp_dir().join(format!("vgpu-coverage-{}-{}", std::process::id(), stem(pins))));
    for stub in ["GL/gl.h", "EGL/egl.h", "EGL/eglext.h", "vdpau/vdpau.h"] {
        let path = stubs.0.join(stub);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a temporary folder");
        fs::write(path, "").expect("a temporary file");
    }
    includes.push(stubs.0.clone());
    // VDPAU's own header, of another package, says what its devices are.
    let cuda = "typedef unsigned int VdpDevice;\n\
                #include <cuda.h>\n#include <cudaGL.h>\n#include <cudaEGL.h>\n#include <cudaVDPAU.h>\n#include <cudaProfiler.h>\n";
    let read = |text: &str, define: &str| preprocessed(text, define, &includes).map(|text| headers::parse(&text));
    // Without renaming, with the newest names, and with those of a default stream a thread.
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

/// The folder with the packages of a file of pins, whole or not at all, whoever else makes it too.
fn fetched(pins: &Path) -> Result<PathBuf, Unavailable> {
    let text = fs::read_to_string(pins).expect("pins");
    let packages = text.lines().filter(|line| !line.starts_with('#'));
    let names: Vec<String> = packages
        .filter_map(|line| Some(line.split_whitespace().next()?.replace("==", "-")))
        .collect();
    let cache = cache();
    let done = cache.join(names.join("-"));
    if done.exists() {
        return Ok(done);
    }
    let aside = Aside(cache.join(format!("{}.{}.new", names.join("-"), std::process::id())));
    let _ = fs::remove_dir_all(&aside.0);
    fs::create_dir_all(&aside.0).expect("the cache");
    install(pins, &aside.0)?;
    let _ = fs::rename(&aside.0, &done); // Another run may have been faster.
    Ok(done)
}

/// A folder that is gone with this value, however the test ends.
struct Aside(PathBuf);

impl Drop for Aside {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn cache() -> PathBuf {
    let base = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let base = base
        .or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")))
        .expect("HOME is set");
    base.join("dra-driver-vgpu")
}

fn install(pins: &Path, folder: &Path) -> Result<(), Unavailable> {
    let mut pip = Command::new("python3");
    // The headers of every platform are the same, and the pins are of this one.
    let options = "-m pip install --quiet --disable-pip-version-check --no-deps --require-hashes --only-binary :all: \
                   --platform manylinux2014_x86_64 --retries 1 --timeout 20 --target";
    pip.args(options.split_whitespace()).arg(folder).arg("-r").arg(pins);
    let output = pip.output().map_err(|error| Unavailable(format!("python3: {error}")))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    match no_network(&said) {
        true => Err(Unavailable(format!(
            "the headers of CUDA {} cannot be fetched: no network",
            stem(pins)
        ))),
        false => panic!("{pip:?}: {}\n{said}", output.status),
    }
}

/// Whether pip got no answer, rather than the wrong one.
pub fn no_network(said: &str) -> bool {
    const SIGNS: [&str; 5] = [
        "ConnectionError",
        "ConnectTimeoutError",
        "ReadTimeoutError",
        "Max retries exceeded",
        "No module named pip",
    ];
    SIGNS.iter().any(|sign| said.contains(sign))
}
