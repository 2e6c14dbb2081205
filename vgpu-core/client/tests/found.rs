//! Tests of other crates use the program that cargo built. This test also makes `cargo test --workspace` build it:
//! cargo builds a program for the integration tests of its own crate.

use std::path::Path;
use std::process::Command;

#[test]
fn tests_find_the_program_and_it_does_its_steps() {
    let program = vgpu_built_from::program("gpu-client");
    assert_eq!(program, Path::new(env!("CARGO_BIN_EXE_gpu-client")));
    let output = Command::new(program)
        .args(["getenv:GREETING", "getenv:NONE"])
        .env("GREETING", "hello")
        .env_remove("NONE")
        .output()
        .expect("the client");
    assert!(output.status.success(), "{output:?}");
    let shown = String::from_utf8(output.stdout).expect("text");
    assert_eq!(shown, "getenv Some(\"hello\")\ngetenv None\n");
}
