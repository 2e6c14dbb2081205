//! Compiles the programs of `c/` for this machine's libc, or by zig for a libc as old as that of the artefacts.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use vgpu_cache::run;

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("c").join(name)
}

/// Compiles `c/SOURCE` to `output`.
///
/// # Panics
/// It does not compile.
pub fn build<S: AsRef<OsStr>>(from: &str, output: &Path, arguments: impl IntoIterator<Item = S>) {
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-Wall", "-pthread"])
        .arg(source(from))
        .arg("-o")
        .arg(output)
        .args(arguments)
        .arg("-ldl");
    run(&mut cc).unwrap_or_else(|error| panic!("{error}"));
}

/// The same for the musl of the packages in `root`, by whose loader the program is run.
///
/// # Panics
/// It does not compile.
pub fn build_musl(from: &str, output: &Path, root: &Path) {
    let library = |name: &str| {
        root.join(concat!("usr/lib/", vgpu_abi::arch!(uname), "-linux-musl"))
            .join(name)
    };
    let libc = root.join(concat!("lib/", vgpu_abi::arch!(uname), "-linux-musl/libc.so"));
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-Wall", "-nostdinc", "-nostdlib", "-fPIE", "-pie", "-isystem"])
        .arg(root.join(concat!("usr/include/", vgpu_abi::arch!(uname), "-linux-musl")))
        .arg(source(from))
        .args([library("Scrt1.o"), library("crti.o"), libc.clone(), library("crtn.o")])
        .arg(format!("-Wl,--dynamic-linker={}", libc.display()))
        .arg("-o")
        .arg(output);
    run(&mut cc).unwrap_or_else(|error| panic!("{error}"));
}

/// The same for glibc 2.17, with the zig that built the artefacts.
///
/// # Errors
/// There is no zig.
///
/// # Panics
/// It does not compile.
pub fn build_old<S: AsRef<OsStr>>(
    from: &str,
    output: &Path,
    arguments: impl IntoIterator<Item = S>,
) -> Result<(), String> {
    let zig = zig().ok_or("no zig in the cache: run `make dist`")?;
    let mut cc = Command::new(zig);
    cc.args([
        "cc",
        "-target",
        concat!(vgpu_abi::arch!(triplet), ".2.17"),
        "-O1",
        "-pthread",
    ]);
    cc.arg(source(from)).arg("-o").arg(output).args(arguments).arg("-ldl");
    run(&mut cc).unwrap_or_else(|error| panic!("{error}"));
    Ok(())
}

fn zig() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os("CARGO_ZIGBUILD_ZIG_PATH") {
        return Some(named.into());
    }
    let cache = vgpu_cache::root().ok()?;
    let folders = cache.read_dir().ok()?.flatten();
    folders
        .filter(|entry| entry.file_name().to_string_lossy().starts_with("zigbuild-"))
        .map(|entry| entry.path().join("ziglang/zig"))
        .find(|zig| zig.is_file())
}
