//! Attacks on the limit that need a container, but no cluster: rows of docs/threat-model.md. Attacks that it marks
//! "neither" get past the library. If a test sees one of them fail, that page is out of date.
//!
//! In pods: `e2e/tests/cluster/attacks.rs`.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use vgpu_abi::limits::Limits;
use vgpu_abi::paths::{CONTAINER_PRELOAD, LIBCUDA, LIBNVIDIA_ML, LIMITS, PRELOAD_FILE, RUN_DIR_VARIABLE, SHIM_FILE};
use vgpu_cache::run;
use vgpu_loading::place::{Form, Place, possible};
use vgpu_loading::share::{NAME, Share};
use vgpu_loading::{GIB, cc, dist};
use vgpu_skip::skip;

const LIMIT: u64 = 2 * GIB;
const SUCCESS: &str = "0";
const OUT_OF_MEMORY: &str = "2";

/// A container with a share, and a folder with the programs. None: skipped.
fn container(test: &str) -> Option<(tempfile::TempDir, Place)> {
    if let Err(reason) = possible() {
        skip(test, &reason);
        return None;
    }
    let stage = tempfile::tempdir().expect("a folder");
    let none: [&str; 0] = [];
    for program in ["client", "without_access"] {
        cc::build(&format!("{program}.c"), &stage.path().join(program), none);
    }
    cc::build("auditor.c", &stage.path().join("auditor.so"), ["-shared", "-fPIC"]);
    let link = stage.path().join("link");
    fs::create_dir(&link).expect("a folder");
    symlink(CONTAINER_PRELOAD, link.join(PRELOAD_FILE)).expect("a link");
    cc::build("imitation.c", &link.join(LIBCUDA), ["-shared", "-fPIC"]);
    let share = Share::new(LIMIT, &stage.path().join("client"), &Form::Container.driver());
    let place = Place::container(share, Path::new("/"), &[stage.path()]).unwrap_or_else(|error| panic!("{error}"));
    Some((stage, place))
}

/// The client's arguments: it opens CUDA and NVML in this folder.
fn client(folder: &Path) -> Vec<String> {
    let file = |name: &str| folder.join(name).display().to_string();
    let (cuda, nvml) = (file(LIBCUDA), file(LIBNVIDIA_ML));
    let words = ["dlopen", "cuda", &LIMIT.to_string(), &cuda, &nvml, &cuda, &cuda].map(str::to_owned);
    words.into()
}

/// The driver's result of an allocation of more than the share, from the client's output.
fn over(output: &str) -> &str {
    output.split(' ').nth(3).unwrap_or_default()
}

/// The control of all other tests: without an attack the limit holds.
#[test]
fn the_drivers_own_file_holds_without_an_attack() {
    let Some((stage, place)) = container("the_drivers_own_file_holds_without_an_attack") else {
        return;
    };
    let mut command = place.command(&stage.path().join("client"), &[]);
    let output = run(command.args(client(&place.form.driver()))).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(over(&output), OUT_OF_MEMORY, "{output}");
}

/// The loader knows the backstop by a link next to an imitation of the shim, because LD_PRELOAD is loaded before the
/// libraries of /etc/ld.so.preload.
#[test]
fn a_link_to_the_backstop_does_not_choose_the_shim() {
    let Some((stage, place)) = container("a_link_to_the_backstop_does_not_choose_the_shim") else {
        return;
    };
    let link = stage.path().join("link").join(PRELOAD_FILE);
    // Only set for the program: the shell that starts it does not use CUDA.
    let mut command = place.command(Path::new("/usr/bin/env"), &[]);
    command.arg(format!("LD_PRELOAD={}", link.display()));
    command
        .arg(stage.path().join("client"))
        .args(client(&place.form.driver()));
    let output = run(&mut command).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(over(&output), OUT_OF_MEMORY, "{output}");
}

#[test]
fn an_auditor_gets_past_the_library() {
    let Some((stage, place)) = container("an_auditor_gets_past_the_library") else {
        return;
    };
    let (driver, auditor) = (place.form.driver().join(LIBCUDA), stage.path().join("auditor.so"));
    let bytes = (LIMIT + GIB).to_string();
    // Set for the program alone, not for the shell that starts it.
    let mut command = place.command(Path::new("/usr/bin/env"), &[]);
    command
        .arg(format!("LD_AUDIT={}", auditor.display()))
        .arg(format!("DRIVER={}", driver.display()))
        .args([&format!("BYTES={bytes}"), "/bin/true"]);
    let output = run(&mut command).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(output.trim(), "answer 0", "docs/threat-model.md: neither");
}

#[test]
fn a_program_under_a_filter_in_which_access_fails_gets_past_the_library() {
    let Some((stage, place)) = container("a_program_under_a_filter_in_which_access_fails_gets_past_the_library") else {
        return;
    };
    let mut command = place.command(&stage.path().join("without_access"), &[]);
    command
        .arg(stage.path().join("client"))
        .args(client(&place.form.driver()));
    let output = run(&mut command).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(over(&output), SUCCESS, "docs/threat-model.md: neither: {output}");
}

/// A chroot with our library, a copy of the driver, and limits that the tenant wrote.
#[test]
fn another_root_with_forged_limits_gets_past_the_library() {
    let Some((stage, place)) = container("another_root_with_forged_limits_gets_past_the_library") else {
        return;
    };
    let root = stage.path().join("root");
    let put = |from: &Path, to: &str| {
        let to = root.join(to.trim_start_matches('/'));
        fs::create_dir_all(to.parent().expect("a folder")).expect("a folder");
        fs::copy(from, to).expect("a copy");
    };
    let shim = dist(SHIM_FILE);
    for program in [&stage.path().join("client"), &shim] {
        let listed = run(Command::new("ldd").arg(program)).unwrap_or_else(|error| panic!("{error}"));
        let files = listed.split_whitespace().filter(|word| word.starts_with('/'));
        files.for_each(|file| put(Path::new(file), file));
    }
    put(&stage.path().join("client"), "client");
    for name in [LIBCUDA, LIBNVIDIA_ML] {
        put(&shim, &format!("lib/{name}"));
        put(&dist("soft-gpu").join(name), &format!("driver/{name}"));
    }
    let driver = Path::new("/driver");
    let limits = Limits::of_memory(
        NAME,
        &place.share.gpu,
        LIMIT * 8,
        driver.join(LIBCUDA),
        driver.join(LIBNVIDIA_ML),
    );
    let share = root.join("shares").join(NAME);
    fs::create_dir_all(&share).expect("a folder");
    fs::write(share.join(LIMITS), limits.render()).expect("limits");
    fs::write(share.join(vgpu_abi::paths::LEDGER), vgpu_abi::ledger::image(&limits)).expect("a ledger");
    let copied = run(Command::new("cp")
        .arg("-r")
        .arg(place.share.state())
        .arg(root.join("state")));
    copied.unwrap_or_else(|error| panic!("{error}"));
    let run_in_root = |folder: &str| {
        let mut command = place.command(
            Path::new("/usr/sbin/chroot"),
            &[(RUN_DIR_VARIABLE, "/shares"), ("SOFT_GPU_STATE", "/state")],
        );
        command.arg(&root).arg("/client").args(client(Path::new(folder)));
        run(&mut command).unwrap_or_else(|error| panic!("{error}"))
    };
    // /lib: with our library, which believes the limits. /driver: without it.
    for folder in ["/lib", "/driver"] {
        let output = run_in_root(folder);
        assert_eq!(
            over(&output),
            SUCCESS,
            "docs/threat-model.md: neither: {folder}: {output}"
        );
    }
}
