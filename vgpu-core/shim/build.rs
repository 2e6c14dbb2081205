//! Generates from `names/` and the hook tables: a slot for each public name, a jump for each name that is not hooked or
//! hooked only where GPU time is limited, and the list of hooked names. Also sets the link flags of libvgpu.so.

use std::collections::BTreeSet;
use std::{env, fs, path::Path};

/// The reader of the tables, shared with the crate that documents them.
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
    vgpu_built_from::link_for_all_pages();
    vgpu_built_from::write_note(&[
        "vgpu-core/abi/src",
        "vgpu-core/src",
        "vgpu-core/shim/build.rs",
        "vgpu-core/shim/coverage/src/hooks.rs",
        "vgpu-core/shim/names",
        "vgpu-core/shim/src",
    ]);
    // No DT_SONAME: the file has three names. $ORIGIN: the file finds itself under them, by DT_RPATH, which comes
    // before an LD_LIBRARY_PATH that leads to a driver in the image.
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
    let all: Vec<String> = cuda.iter().cloned().chain(lines("names/nvml.txt")).collect();
    let hooks: Vec<String> = TABLES.iter().flat_map(|table| hooked(table)).collect();
    for (index, hook) in hooks.iter().enumerate() {
        assert!(all.contains(hook), "hooked name {hook} is not public: add it to names/");
        assert!(!hooks[..index].contains(hook), "{hook} is hooked twice");
    }
    let mut out = String::new();
    out += &format!("pub(crate) const CUDA: usize = {};\n", cuda.len());
    out += &names(&all);
    out += &exports(&hooks);
    write("names.rs", &out);
    write("passed.rs", &passed(&all, &hooks, &data));
}

/// Generates the text of all names, and a slot for each.
fn names(all: &[String]) -> String {
    // One text with offsets instead of pointers: a thousand pointers would be a thousand relocations at every start.
    let (mut text, mut starts, mut start, mut slots) = (String::new(), Vec::new(), 0, String::new());
    for (index, name) in all.iter().enumerate() {
        starts.push(u16::try_from(start).expect("all names together are shorter than 64 KiB"));
        start += name.len() + 1;
        text += &format!("{name}\\0");
        slots += &format!("pub(crate) const {name}: usize = {index};\n");
    }
    // Every name has a slot; not all slots are used.
    format!(
        "pub(crate) const COUNT: usize = {};
        static STARTS: [u16; COUNT] = {starts:?};
        pub(crate) static TEXT: &[u8] = b\"{text}\";
        pub(crate) fn name(index: usize) -> &'static core::ffi::CStr {{
            let text = STARTS.get(index).and_then(|start| TEXT.get(usize::from(*start)..));
            text.and_then(|text| core::ffi::CStr::from_bytes_until_nul(text).ok()).unwrap_or_default()
        }}
        #[allow(dead_code)] pub(crate) mod slot {{ {slots} }}\n",
        all.len()
    )
}

/// Declares our own functions by their link names: -Bsymbolic binds these to this file, whatever else has the same name.
fn exports(hooks: &[String]) -> String {
    let (mut declared, mut listed) = (String::new(), String::new());
    for name in hooks {
        declared += &format!("pub(crate) fn {name}();\n");
        listed += &format!("(slot::{name}, exports::{name} as *const ()),\n");
    }
    format!(
        "pub(crate) mod exports {{ #![allow(dead_code)] unsafe extern \"C\" {{ {declared} }} }}
        pub(crate) fn hooked() -> impl Iterator<Item = (usize, *const ())> {{ [ {listed} ].into_iter() }}\n"
    )
}

/// Generates a jump for each name that is not hooked, or hooked only where GPU time is limited.
fn passed(all: &[String], hooks: &[String], data: &BTreeSet<String>) -> String {
    let of_compute = hooked(COMPUTE);
    let mut out = String::new();
    for (index, name) in all.iter().enumerate() {
        if !hooks.contains(name) || of_compute.contains(name) {
            out += &format!("crate::jump::jump!({name}, {index});\n");
        }
    }
    for name in data {
        out += &format!("crate::jump::object!({name});\n");
    }
    out
}

/// Writes a generated file.
fn write(name: &str, text: &str) {
    let path = Path::new(&env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join(name);
    fs::write(&path, text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}
