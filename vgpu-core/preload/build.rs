//! Linker arguments: a library that every program loads contains only its own code.

fn main() {
    for argument in [
        // No start files and no default libraries, so no DT_NEEDED, which would cost 90 us at each exec.
        "-nostdlib",
        "-nostartfiles",
        // Calls inside the library never use a table that other objects can change.
        "-Wl,-Bsymbolic",
        "-Wl,-z,now",
        "-Wl,--hash-style=gnu",
        "-Wl,--build-id=sha1",
    ] {
        println!("cargo::rustc-cdylib-link-arg={argument}");
    }
    println!("cargo::rerun-if-changed=build.rs");
    vgpu_built_from::link_for_all_pages();
    vgpu_built_from::write_note(&[
        "vgpu-core/abi/src/arch.rs",
        "vgpu-core/preload/build.rs",
        "vgpu-core/preload/src",
    ]);
}
