//! Runs the tests of `make gpu-check` (gpu-check/), in Python, against the release (dist/): on the software
//! GPU, and on stand-ins that limit nothing. Beside them, the selftest of `gpu-check/first-contact.sh`.

use std::path::Path;
use std::process::Command;
use vgpu_cache::apt::{With, own_packages};
use vgpu_skip::skip;

#[test]
fn the_check_passes_what_holds_and_finds_what_does_not() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../gpu-check");
    let output = Command::new("python3")
        .args([
            "-m",
            "unittest",
            "discover",
            "--verbose",
            "--start-directory",
            "tests",
            "--top-level-directory",
            ".",
        ])
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .current_dir(folder)
        .output()
        .expect("python3 starts");
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}");
    // A run that finds no test also succeeds, so check that some ran.
    let ran = told
        .lines()
        .find_map(|line| line.strip_prefix("Ran ")?.split(' ').next()?.parse().ok());
    assert!(ran.is_some_and(|ran: u32| ran >= 20), "{told}");
    assert!(!told.contains("skipped"), "{told}");
}

#[test]
fn first_contact_finds_planted_failures() {
    let gpu_check = Path::new(env!("CARGO_MANIFEST_DIR")).join("../gpu-check");
    let mut command = Command::new(gpu_check.join("first-contact.sh"));
    command.arg("selftest");
    // A pack that lies in the checkout may be of another build.
    if std::env::var_os("VGPU_DIST").is_none() {
        command.env("VGPU_DIST", gpu_check.join("../dist"));
    }
    match own_packages("main", &["strace", "elfutils"], With::AllThatTheyNeed) {
        Ok(root) => {
            command.env("FIRST_CONTACT_TOOLS", root);
        }
        Err(reason) => skip(
            "first_contact: what stacks show",
            reason.lines().last().unwrap_or_default(),
        ),
    }
    let output = command.output().expect("first-contact.sh starts");
    let said = String::from_utf8_lossy(&output.stdout);
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}{words}");
    // A selftest without checks also succeeds, so check that some ran.
    let last = said.lines().last().unwrap_or_default();
    let count = last.split(' ').next().and_then(|count| count.parse().ok());
    assert!(count.is_some_and(|count: u32| count >= 20), "{said}");
}
