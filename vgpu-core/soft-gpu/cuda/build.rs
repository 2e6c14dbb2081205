//! Generates the stubs of functions that are not modelled, the `_ptsz` and older names of those that are, and the table
//! of cuGetProcAddress. A name is modelled if a source file defines it.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;
use std::{env, fs};

#[path = "../exports.rs"]
mod exports;

/// Older names whose arguments are those of the newer one.
const SAME: &[(&str, &str)] = &[
    ("cuCtxDestroy", "cuCtxDestroy_v2"),
    ("cuCtxPopCurrent", "cuCtxPopCurrent_v2"),
    ("cuCtxPushCurrent", "cuCtxPushCurrent_v2"),
    ("cuDevicePrimaryCtxRelease", "cuDevicePrimaryCtxRelease_v2"),
    ("cuDevicePrimaryCtxReset", "cuDevicePrimaryCtxReset_v2"),
    ("cuDevicePrimaryCtxSetFlags", "cuDevicePrimaryCtxSetFlags_v2"),
    ("cuStreamDestroy", "cuStreamDestroy_v2"),
    ("cuEventDestroy", "cuEventDestroy_v2"),
    ("cuEventElapsedTime", "cuEventElapsedTime_v2"),
    ("cuStreamBeginCapture", "cuStreamBeginCapture_v2"),
    ("cuMemHostRegister", "cuMemHostRegister_v2"),
    ("cuIpcOpenMemHandle", "cuIpcOpenMemHandle_v2"),
    ("cuGLCtxCreate", "cuGLCtxCreate_v2"),
    ("cuGLGetDevices", "cuGLGetDevices_v2"),
    ("cuVDPAUCtxCreate", "cuVDPAUCtxCreate_v2"),
    ("cuGraphAddKernelNode", "cuGraphAddKernelNode_v2"),
    ("cuGraphKernelNodeSetParams", "cuGraphKernelNodeSetParams_v2"),
    ("cuGraphExecKernelNodeSetParams", "cuGraphExecKernelNodeSetParams_v2"),
];

fn main() {
    let here = env::var("CARGO_MANIFEST_DIR").expect("cargo sets it");
    let names = Path::new(&here).join("../names");
    let read = |file: &str| {
        let path = names.join(file);
        println!("cargo:rerun-if-changed={}", path.display());
        fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
    };
    println!("cargo:rerun-if-changed=src");
    println!("cargo:rerun-if-changed=../exports.rs");
    vgpu_built_from::write_note(&[
        "vgpu-core/soft-gpu/exports.rs",
        "vgpu-core/soft-gpu/names",
        "vgpu-core/soft-gpu/profiles",
        "vgpu-core/soft-gpu/src",
        "vgpu-core/soft-gpu/cuda/build.rs",
        "vgpu-core/soft-gpu/cuda/src",
    ]);
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic");

    let (cuda, data) = (read("cuda.txt"), read("cuda-data.txt"));
    // Of cuda.h, and of what it does not declare: OpenGL, EGL, VDPAU, the profiler.
    let lookups = read("procaddress.txt") + &read("procaddress-graphics.txt");
    let data: BTreeSet<&str> = data.lines().collect();
    let modelled = exports::modelled(&Path::new(&here).join("src"), "cu");
    let mut out = String::new();
    let mut jumped_to: BTreeSet<String> = BTreeSet::new();
    for (index, name) in cuda.lines().enumerate() {
        if modelled.contains(name) {
            continue;
        }
        if data.contains(name) {
            // Zero means that no debugger is attached; one is a path, hence the room.
            writeln!(
                out,
                "#[unsafe(no_mangle)] pub(crate) static {name}: Object = Object::new();"
            )
            .expect("a string");
            continue;
        }
        let plain = name
            .strip_suffix("_ptsz")
            .or_else(|| name.strip_suffix("_ptds"))
            .unwrap_or(name);
        let newer = SAME.iter().find(|(old, _)| *old == plain).map_or(plain, |(_, new)| new);
        if modelled.contains(newer) {
            jumped_to.insert(newer.into());
            writeln!(
                out,
                "#[unsafe(no_mangle)] #[unsafe(naked)] pub(crate) extern \"C\" fn {name}() {{ \
                 core::arch::naked_asm!(\"jmp {{}}\", sym decl::{newer}) }}"
            )
        } else {
            writeln!(
                out,
                "#[unsafe(no_mangle)] pub(crate) extern \"C\" fn {name}() -> i32 {{ crate::call::unsupported({index}) }}"
            )
        }
        .expect("a string");
    }
    let mut table = String::new();
    let mut bases = BTreeSet::new();
    let mut line = |base: &str, version: &str, stream: bool, export: &str| {
        jumped_to.insert(export.into());
        writeln!(
            table,
            "Lookup {{ base: {base:?}, version: {version}, stream: {stream}, address: decl::{export} }},"
        )
        .expect("a string");
    };
    for entry in lookups.lines() {
        let [base, version, kind, export] = entry.split(' ').collect::<Vec<_>>()[..] else {
            panic!("procaddress.txt: {entry}")
        };
        bases.insert(base.to_owned());
        line(base, version, kind == "stream", export);
    }
    // What neither list has: its plain name is its newest. The driver does not find these.
    const NEVER: [&str; 2] = ["cuEGLApiInit", "cuMemGetAttribute"];
    for name in cuda
        .lines()
        .filter(|name| !data.contains(name) && !name.starts_with("cudbg") && !NEVER.contains(name))
    {
        let plain = name
            .split("_v")
            .next()
            .unwrap_or(name)
            .trim_end_matches("_ptsz")
            .trim_end_matches("_ptds");
        if plain == name && !bases.contains(name) {
            line(name, "2000", false, name);
        }
    }
    out += "mod decl { unsafe extern \"C\" {\n";
    for name in &jumped_to {
        writeln!(out, "pub(super) fn {name}();").expect("a string");
    }
    out += "} }\npub(crate) static LOOKUPS: &[Lookup] = &[\n";
    out += &table;
    out += "];\n";
    let target = Path::new(&env::var("OUT_DIR").expect("cargo sets it")).join("stubs.rs");
    fs::write(&target, out).unwrap_or_else(|e| panic!("{}: {e}", target.display()));
}
