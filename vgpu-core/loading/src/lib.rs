//! Tests how programs load the library. This crate has the tools for three test matrices, which are its tests.
//!
//! ```text
//!  tests/loaders      every way of loading x every order  ─┐
//!  tests/libc.rs      every libc of the last decade       ─┼─► a place with a share ─► program ─► its output
//!  tests/clients.rs   real clients from their packages    ─┘        │                               │
//!                                                              the ledger, read from outside ◄── compared
//! ```
//!
//! - [`share`]: creates a share of a software GPU in a folder, and reads its ledger.
//! - [`place`]: runs a program under the share. Either as in a container (a mount namespace with the CDI spec's mounts
//!   and /etc/ld.so.preload, over this machine's root file system or another), or as `vgpu run` of an ordinary user
//!   does (LD_LIBRARY_PATH and LD_PRELOAD).
//! - [`cc`]: compiles `c/`. The crate `vgpu_cache` downloads packages and root file systems.
//!
//! How it fails: if a machine lacks something (no root, no overlayfs, no network), the result is an `Err` that names
//! it, which a test passes to `vgpu_skip`. A namespace and its mounts end with the process that holds them, which is
//! killed when the place is dropped. Nothing is ever mounted on the machine itself.
#![forbid(unsafe_code)]

pub mod cc;
pub mod place;
pub mod share;

use std::path::{Path, PathBuf};
use std::process::Command;
use vgpu_abi::paths::{PRELOAD_FILE, SHIM_FILE};
use vgpu_cache::run;

pub const GIB: u64 = 1 << 30;
/// The granularity of the software GPU's driver.
pub const GRANULE: u64 = 2 << 20;

/// Returns the path of a release artefact.
///
/// # Panics
/// It is missing, or a library is older than its sources.
#[must_use]
pub fn dist(file: &str) -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dist");
    let dist = std::env::var_os("VGPU_DIST").map_or(own, PathBuf::from);
    for library in [
        SHIM_FILE,
        PRELOAD_FILE,
        "soft-gpu/libcuda.so.1",
        "soft-gpu/libnvidia-ml.so.1",
    ] {
        vgpu_built_from::assert_fresh(&dist.join(library));
    }
    let path = dist.join(file);
    path.canonicalize()
        .unwrap_or_else(|error| panic!("{}: {error}: run `make dist`", path.display()))
}

/// Returns the path of a program of this crate's examples.
///
/// # Panics
/// It was not built.
#[must_use]
pub fn example(name: &str) -> PathBuf {
    let tests = std::env::current_exe().expect("a path");
    let folder = tests.parent().and_then(Path::parent).expect("target/<profile>");
    let path = folder.join("examples").join(name);
    assert!(
        path.exists(),
        "{} is missing: run `cargo test -p vgpu-loading` without --test",
        path.display()
    );
    path
}

/// Returns the path of this machine's Python.
///
/// # Panics
/// There is none.
#[must_use]
pub fn python() -> PathBuf {
    let said = run(Command::new("python3").args(["-c", "import sys; print(sys.executable)"]));
    said.unwrap_or_else(|error| panic!("{error}")).trim().into()
}
