//! Gives the program a build-id, by which the twin with its symbols is found (docs/debugging.md).

fn main() {
    println!("cargo::rustc-link-arg-bins=-Wl,--build-id=sha1");
    println!("cargo::rerun-if-changed=build.rs");
}
