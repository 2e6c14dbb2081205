//! Tests calls of the driver when a thread or the program ends. A real driver then returns CUDA_ERROR_DEINITIALIZED, or
//! works. The software GPU and the library do the same: they never end the program.

use std::path::Path;
use std::process::Command;
use vgpu_loading::place::{Form, Place};
use vgpu_loading::share::Share;
use vgpu_loading::{GIB, cc, dist};

const SUCCESS: &str = "0";
const DEINITIALIZED: &str = "4";

fn compile(folder: &Path) {
    let none: [&str; 0] = [];
    cc::build("endings.c", &folder.join("endings"), none);
    cc::build("client.c", &folder.join("client"), none);
}

/// Checks that each place has written its line, and that the last line is `end`.
fn check(output: &str) {
    let lines: Vec<&str> = output.lines().collect();
    assert_eq!(lines.last(), Some(&"end"), "{output}");
    for place in ["thread", "key", "atexit", "destructor"] {
        assert!(lines.iter().any(|line| line.starts_with(place)), "{place}: {output}");
    }
    for line in &lines[..lines.len() - 1] {
        let result = line.rsplit(' ').next().unwrap_or_default();
        let allowed: &[&str] = match line.starts_with("main") {
            true => &[SUCCESS],
            false => &[SUCCESS, DEINITIALIZED],
        };
        assert!(allowed.contains(&result), "{line}: {output}");
    }
}

#[test]
fn calls_of_a_program_that_ends_on_the_bare_software_gpu() {
    let folder = tempfile::tempdir().expect("a folder");
    compile(folder.path());
    let mut bare = Command::new(folder.path().join("endings"));
    bare.env("LD_LIBRARY_PATH", dist("soft-gpu"))
        .env("SOFT_GPU_STATE", folder.path().join("state"));
    check(&vgpu_cache::run(&mut bare).unwrap_or_else(|error| panic!("{error}")));
}

#[test]
fn calls_of_a_program_that_ends_under_a_share() {
    let folder = tempfile::tempdir().expect("a folder");
    compile(folder.path());
    let share = Share::new(GIB, &folder.path().join("client"), &Form::User.driver());
    let place = Place::user(share);
    let output = place.run(&folder.path().join("endings"), &[], &[]);
    check(&output.unwrap_or_else(|error| panic!("{error}")));
}
