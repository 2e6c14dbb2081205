//! Generates from `names/` and the hook tables: a slot for each public name, a jump for each name that is not hooked or
//! hooked only where GPU time is limited, and the list of hooked names. Also sets the link flags of libvgpu.so.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::{env, fs, path::Path};

/// One reader of the tables: the crate that documents them has it.
#[path = "coverage/src/hooks.rs"]
#[allow(dead_code, unreachable_pub)]
mod hooks;
use hooks::{COMPUTE, TABLES};

fn lines(path: &str) -> Vec<String> {
    println!("cargo:rerun-if-changed={path}");
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{path}: {error}"));
    text.lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .map(String::from)
        .collect()
}

/// The names that a table declares.
fn hooked(path: &str) -> Vec<String> {
    let table = lines(path).join("\n");
    hooks::hooks(&table).into_iter().map(|hook| hook.name).collect()
}

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=coverage/src/hooks.rs");
    vgpu_built_from::write_note(&[
        "vgpu-core/abi/src",
        "vgpu-core/src",
        "vgpu-core/shim/build.rs",
        "vgpu-core/shim/coverage/src/hooks.rs",
        "vgpu-core/shim/names",
        "vgpu-core/shim/src",
    ]);
    // No DT_SONAME: the file answers to three names. $ORIGIN: it finds itself under them, by DT_RPATH, which
    // comes before an LD_LIBRARY_PATH that leads to a driver of the image's.
    for argument in [
        "-Bsymbolic",
        "-z,nodelete",
        "-rpath,$ORIGIN",
        "--disable-new-dtags",
        "--build-id=sha1",
    ] {
        println!("cargo:rustc-cdylib-link-arg=-Wl,{argument}");
    }
    let data: BTreeSet<String> = lines("names/cuda-data.txt").into_iter().collect();
    let cuda: Vec<String> = lines("names/cuda.txt")
        .into_iter()
        .filter(|name| !data.contains(name))
        .collect();
    let nvml = lines("names/nvml.txt");
    let all: Vec<&String> = cuda.iter().chain(&nvml).collect();
    let hooks: Vec<String> = TABLES.iter().flat_map(|table| hooked(table)).collect();
    for (index, hook) in hooks.iter().enumerate() {
        assert!(
            all.contains(&hook),
            "hooked name {hook} is not public: add it to names/"
        );
        assert!(!hooks[..index].contains(hook), "{hook} is hooked twice");
    }

    let mut out = String::new();
    let mut put = |line: String| writeln!(out, "{line}").expect("a String takes what is written");
    put(format!("pub(crate) const CUDA: usize = {};", cuda.len()));
    put(format!("pub(crate) const COUNT: usize = {};", all.len()));
    // One text and where each name begins: a thousand pointers would be a thousand relocations, at every start.
    let (mut text, mut starts, mut start) = (String::new(), Vec::new(), 0);
    for name in &all {
        starts.push(u16::try_from(start).expect("all names together are shorter than 64 KiB"));
        start += name.len() + 1;
        text += &format!("{name}\\0");
    }
    put(format!("static STARTS: [u16; COUNT] = {starts:?};"));
    put(format!("pub(crate) static TEXT: &[u8] = b\"{text}\";"));
    put("pub(crate) fn name(index: usize) -> &'static core::ffi::CStr {".into());
    put("let text = STARTS.get(index).and_then(|start| TEXT.get(usize::from(*start)..));".into());
    put("text.and_then(|text| core::ffi::CStr::from_bytes_until_nul(text).ok()).unwrap_or_default()".into());
    put("}".into());
    put("#[allow(dead_code)] pub(crate) mod slot {".into()); // Every name has one; not all are called.
    for (index, name) in all.iter().enumerate() {
        put(format!("pub(crate) const {name}: usize = {index};"));
    }
    put("}".into());
    // Our own functions by their link names: -Bsymbolic binds them to this file, whatever else has that name.
    put("pub(crate) mod exports { #![allow(dead_code)] unsafe extern \"C\" {".into());
    for name in &hooks {
        put(format!("pub(crate) fn {name}();"));
    }
    put("} }".into());
    put("pub(crate) fn hooked() -> impl Iterator<Item = (usize, *const ())> { [".into());
    for name in &hooks {
        put(format!("(slot::{name}, exports::{name} as *const ()),"));
    }
    put("].into_iter() }".into());
    write("names.rs", &out);

    let mut out = String::new();
    let mut put = |line: String| writeln!(out, "{line}").expect("a String takes what is written");
    let of_compute = hooked(COMPUTE);
    for (index, name) in all.iter().enumerate() {
        if !hooks.contains(name) || of_compute.contains(name) {
            put(format!("crate::jump::jump!({name}, {index});"));
        }
    }
    for name in &data {
        put(format!("crate::jump::object!({name});"));
    }
    write("passed.rs", &out);
}

/// Writes a generated file.
fn write(name: &str, text: &str) {
    let path = Path::new(&env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join(name);
    fs::write(&path, text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}
