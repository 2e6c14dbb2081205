//! Generates the stubs of names that are not modelled. A name is modelled if a source file defines it.

use std::fmt::Write as _;
use std::path::Path;
use std::{env, fs};

#[path = "../exports.rs"]
mod exports;

fn main() {
    let here = env::var("CARGO_MANIFEST_DIR").expect("cargo sets it");
    let list = Path::new(&here).join("../../shim/names/nvml.txt");
    println!("cargo:rerun-if-changed={}", list.display());
    println!("cargo:rerun-if-changed=../exports.rs");
    println!("cargo:rerun-if-changed=src");
    vgpu_built_from::link_for_all_pages();
    vgpu_built_from::write_note(&[
        "vgpu-core/soft-gpu/exports.rs",
        "vgpu-core/shim/names",
        "vgpu-core/soft-gpu/profiles",
        "vgpu-core/soft-gpu/src",
        "vgpu-core/soft-gpu/nvml/build.rs",
        "vgpu-core/soft-gpu/nvml/src",
    ]);
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libnvidia-ml.so.1");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic");

    let names = fs::read_to_string(&list).unwrap_or_else(|e| panic!("{}: {e}", list.display()));
    let modelled = exports::modelled(&Path::new(&here).join("src"), "nvml");
    let mut out = String::new();
    for (index, name) in names.lines().enumerate().filter(|(_, name)| !modelled.contains(*name)) {
        writeln!(
            out,
            "#[unsafe(no_mangle)] pub(crate) extern \"C\" fn {name}() -> i32 {{ crate::call::unsupported({index}) }}"
        )
        .expect("a string");
    }
    let target = Path::new(&env::var("OUT_DIR").expect("cargo sets it")).join("stubs.rs");
    fs::write(&target, out).unwrap_or_else(|e| panic!("{}: {e}", target.display()));
}
