//! Generates stubs of the functions that are not modelled, jumps for the `_ptsz` and older names of modelled functions,
//! and the table of cuGetProcAddress. A name is modelled if a source file defines it.

use std::collections::BTreeSet;
use std::path::Path;
use std::{env, fs};

#[path = "../exports.rs"]
mod exports;

/// Functions that do the same as another one (second column) with the same arguments, or with the first of them.
const SAME: &[(&str, &str)] = &[
    ("cuCtxDestroy", "cuCtxDestroy_v2"),
    ("cuCtxPopCurrent", "cuCtxPopCurrent_v2"),
    ("cuCtxPushCurrent", "cuCtxPushCurrent_v2"),
    ("cuDevicePrimaryCtxRelease", "cuDevicePrimaryCtxRelease_v2"),
    ("cuDevicePrimaryCtxReset", "cuDevicePrimaryCtxReset_v2"),
    ("cuDevicePrimaryCtxSetFlags", "cuDevicePrimaryCtxSetFlags_v2"),
    ("cuStreamDestroy", "cuStreamDestroy_v2"),
    ("cuMipmappedArrayGetSparseProperties", "cuArrayGetSparseProperties"),
    ("cuEventRecordWithFlags", "cuEventRecord"),
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
    vgpu_built_from::link_for_all_pages();
    vgpu_built_from::write_note(&[
        "vgpu-core/soft-gpu/exports.rs",
        "vgpu-core/shim/names",
        "vgpu-core/soft-gpu/names",
        "vgpu-core/soft-gpu/profiles",
        "vgpu-core/soft-gpu/src",
        "vgpu-core/soft-gpu/cuda/build.rs",
        "vgpu-core/soft-gpu/cuda/src",
    ]);
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic");

    let (cuda, data) = (
        read("../../shim/names/cuda.txt"),
        read("../../shim/names/cuda-data.txt"),
    );
    // The look-ups declared by cuda.h, and those of OpenGL, EGL, VDPAU and the profiler, which cuda.h does not declare.
    let lookups = read("procaddress.txt") + &read("procaddress-graphics.txt");
    let data: BTreeSet<&str> = data.lines().collect();
    let modelled = exports::modelled(&Path::new(&here).join("src"), "cu");
    let mut jumped_to = BTreeSet::new();
    let mut out = String::new();
    for (index, name) in cuda.lines().enumerate().filter(|(_, name)| !modelled.contains(*name)) {
        out += &if data.contains(name) {
            // Zero means that no debugger is attached. One of them is a path, hence the size.
            format!("#[unsafe(no_mangle)] pub(crate) static {name}: Object = Object::new();\n")
        } else {
            stub(name, index, &modelled, &mut jumped_to)
        };
    }
    let table = table(&cuda, &data, &lookups, &mut jumped_to);
    let declared: String = jumped_to
        .iter()
        .map(|name| format!("pub(super) fn {name}();\n"))
        .collect();
    out += &format!("mod decl {{ unsafe extern \"C\" {{\n{declared}}} }}\n");
    out += &format!("pub(crate) static LOOKUPS: &[Lookup] = &[\n{table}];\n");
    let target = Path::new(&env::var("OUT_DIR").expect("cargo sets it")).join("stubs.rs");
    fs::write(&target, out).unwrap_or_else(|e| panic!("{}: {e}", target.display()));
}

/// Returns a name without the suffix of its per-thread-stream variant.
fn without_stream(name: &str) -> &str {
    let plain = name.strip_suffix("_ptsz").or_else(|| name.strip_suffix("_ptds"));
    plain.unwrap_or(name)
}

/// Returns a function that jumps to the modelled function that does the same, or that fails if there is none.
fn stub(name: &str, index: usize, modelled: &BTreeSet<String>, jumped_to: &mut BTreeSet<String>) -> String {
    let plain = without_stream(name);
    let same = SAME
        .iter()
        .find(|(name, _)| *name == plain)
        .map_or(plain, |(_, same)| same);
    if !modelled.contains(same) {
        return format!(
            "#[unsafe(no_mangle)] pub(crate) extern \"C\" fn {name}() -> i32 {{ crate::call::unsupported({index}) }}\n"
        );
    }
    jumped_to.insert(same.into());
    let jump = match env::var("CARGO_CFG_TARGET_ARCH").as_deref() {
        Ok("aarch64") => "b",
        _ => "jmp",
    };
    format!(
        "#[unsafe(no_mangle)] #[unsafe(naked)] pub(crate) extern \"C\" fn {name}() {{ \
         core::arch::naked_asm!(\"{jump} {{}}\", sym decl::{same}) }}\n"
    )
}

/// The table of cuGetProcAddress.
fn table(cuda: &str, data: &BTreeSet<&str>, lookups: &str, jumped_to: &mut BTreeSet<String>) -> String {
    let (mut table, mut bases) = (String::new(), BTreeSet::new());
    let mut line = |base: &str, version: &str, stream: bool, export: &str| {
        jumped_to.insert(export.into());
        table +=
            &format!("Lookup {{ base: {base:?}, version: {version}, stream: {stream}, address: decl::{export} }},\n");
    };
    for entry in lookups.lines() {
        let [base, version, kind, export] = entry.split(' ').collect::<Vec<_>>()[..] else {
            panic!("procaddress.txt: {entry}")
        };
        bases.insert(base);
        line(base, version, kind == "stream", export);
    }
    // The newest version of a function that neither list has is its plain name. The driver does not find the two in
    // NEVER.
    const NEVER: [&str; 2] = ["cuEGLApiInit", "cuMemGetAttribute"];
    for name in cuda
        .lines()
        .filter(|name| !data.contains(name) && !name.starts_with("cudbg") && !NEVER.contains(name))
    {
        let plain = without_stream(name.split("_v").next().unwrap_or(name));
        if plain == name && !bases.contains(name) {
            line(name, "2000", false, name);
        }
    }
    table
}
