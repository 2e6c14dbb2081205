//! Gives the program a build ID, by which its copy with debug symbols is found (docs/debugging.md).

fn main() {
    println!("cargo::rustc-link-arg-bins=-Wl,--build-id=sha1");
    println!("cargo::rerun-if-changed=build.rs");
}
