//! Runs the tests of `make gpu-check` (gpu-check/), in Python, against the release (dist/): on the software
//! GPU, and on stand-ins that limit nothing.

use std::path::Path;
use std::process::Command;

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
