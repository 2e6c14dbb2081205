//! Linker arguments: nothing but our own code goes into a library that every program loads.

fn main() {
    for argument in [
        // No start files and no default libraries, so no DT_NEEDED: 90 us of each exec went there.
        "-nostdlib",
        "-nostartfiles",
        // Our own calls never go through a table that others can fill.
        "-Wl,-Bsymbolic",
        "-Wl,-z,now",
        "-Wl,--hash-style=gnu",
        "-Wl,--build-id=none",
    ] {
        println!("cargo::rustc-cdylib-link-arg={argument}");
    }
    println!("cargo::rerun-if-changed=build.rs");
    vgpu_built_from::write_note(&["vgpu-core/preload/build.rs", "vgpu-core/preload/src"]);
}
