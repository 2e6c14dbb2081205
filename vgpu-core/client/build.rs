//! Records which sources the client was built from, so that tests refuse one that is older than they are.

fn main() {
    vgpu_built_from::write_note(&["vgpu-core/client/build.rs", "vgpu-core/client/src"]);
}
