//! Tests programs that are sensitive to what is loaded beside them: programs with gcc's sanitizers, and 32-bit
//! programs. Programs with sanitizers behave the same with and without the backstop and a GPU used through the library.
//! A 32-bit program runs. The list is in docs/loading.md.

use std::fs;
use std::path::Path;
use std::process::Command;
use vgpu_loading::place::{Form, Place, possible};
use vgpu_loading::share::Share;
use vgpu_loading::{GIB, cc};
use vgpu_skip::skip;

const DOCUMENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/loading.md");

/// Rows of the document's list, with the compiler arguments for such a program.
const SANITIZERS: [(&str, &[&str]); 5] = [
    ("AddressSanitizer", &["-fsanitize=address"]),
    (
        "AddressSanitizer, linked statically",
        &["-fsanitize=address", "-static-libasan"],
    ),
    ("LeakSanitizer", &["-fsanitize=leak"]),
    ("UndefinedBehaviorSanitizer", &["-fsanitize=undefined"]),
    ("ThreadSanitizer", &["-fsanitize=thread"]),
];

fn places(stage: &Path) -> Vec<Place> {
    let share = |form: Form| Share::new(GIB, &stage.join("client"), &form.driver());
    let mut places = vec![Place::user(share(Form::User))];
    match possible().and_then(|()| Place::container(share(Form::Container), Path::new("/"), &[stage])) {
        Ok(place) => places.push(place),
        Err(reason) => skip("others, in a container", &reason),
    }
    places
}

fn stage() -> tempfile::TempDir {
    let stage = tempfile::tempdir().expect("a folder");
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(stage.path(), open).expect("a mode");
    let none: [&str; 0] = [];
    cc::build("client.c", &stage.path().join("client"), none);
    stage
}

/// Checks that the program succeeds, and writes nothing to stderr.
fn quiet(mut command: Command) -> Result<(), String> {
    let output = command.output().map_err(|error| error.to_string())?;
    let (out, err) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    match output.status.success() && out == "fine\n" && err.is_empty() {
        true => Ok(()),
        false => Err(format!("{}: {out}{err}", output.status)),
    }
}

/// Compiles c/plain.c. Returns false if the compiler cannot do that.
fn builds(path: &Path, arguments: &[&str]) -> bool {
    let mut cc = Command::new("cc");
    cc.args([
        "-O1",
        "-pthread",
        concat!(env!("CARGO_MANIFEST_DIR"), "/c/plain.c"),
        "-o",
    ])
    .arg(path)
    .args(arguments)
    .arg("-ldl");
    cc.output().is_ok_and(|output| output.status.success())
}

#[test]
fn programs_of_sanitizers_notice_nothing() {
    let test = "programs_of_sanitizers_notice_nothing";
    let stage = stage();
    let places = places(stage.path());
    let document = fs::read_to_string(DOCUMENT).expect("docs/loading.md");
    let mut broken = Vec::new();
    for (name, arguments) in SANITIZERS {
        if !document.contains(&format!("| {name} |")) {
            broken.push(format!("docs/loading.md has no row for {name}"));
        }
        for (program, more) in [("plain", &[][..]), ("gpu", &["-DGPU"])] {
            let path = stage.path().join(program);
            if !builds(&path, &[arguments, more].concat()) {
                skip(&format!("{test}, {name}"), "cc has no runtime of this sanitizer");
                continue;
            }
            if let (Err(reason), "plain") = (quiet(Command::new(&path)), program) {
                skip(&format!("{test}, {name}"), &format!("does not run here: {reason}"));
                continue;
            }
            for place in &places {
                if let Err(reason) = quiet(place.command(&path, &[])) {
                    broken.push(format!("{name}, {program}, {:?}: {reason}", place.form));
                }
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n\n"));
}

/// ThreadSanitizer still reports races in the program itself, in spite of the suppressions.
#[test]
fn a_race_of_the_program_is_found() {
    let stage = stage();
    let path = stage.path().join("plain");
    let arguments = ["-fsanitize=thread", "-DGPU", "-DRACE"];
    if !builds(&path, &arguments) {
        return skip("a_race_of_the_program_is_found", "cc has no runtime of this sanitizer");
    }
    for place in places(stage.path()) {
        let output = place.command(&path, &[]).output().expect("a program");
        let err = String::from_utf8_lossy(&output.stderr);
        let found = err.contains("data race") && err.contains(" in race");
        assert!(
            found && output.status.code() == Some(66),
            "{:?}: {}: {err}",
            place.form,
            output.status
        );
        assert_eq!(err.matches("WARNING").count(), 1, "{:?}: {err}", place.form);
    }
}

/// The loader cannot load the backstop into such a program and says so. The program runs.
#[test]
fn a_32_bit_program_runs_with_one_line_on_stderr() {
    let test = "a_32_bit_program_runs_with_one_line_on_stderr";
    let stage = stage();
    let path = stage.path().join("plain");
    let mut cc = Command::new("cc");
    cc.args([
        "-m32",
        "-pthread",
        concat!(env!("CARGO_MANIFEST_DIR"), "/c/plain.c"),
        "-o",
    ]);
    let built = cc.arg(&path).args(["-ldl"]).output();
    if !built.is_ok_and(|output| output.status.success()) || quiet(Command::new(&path)).is_err() {
        return skip(
            test,
            "this machine cannot build or run 32-bit programs: it needs gcc-multilib",
        );
    }
    for place in places(stage.path()) {
        // The shell that starts the program is 64-bit, so it writes no such line.
        let output = place.command(&path, &[]).output().expect("a program");
        let err = String::from_utf8_lossy(&output.stderr);
        assert_eq!(
            String::from_utf8_lossy(&output.stdout),
            "fine\n",
            "{:?}: {err}",
            place.form
        );
        let lines: Vec<&str> = err.lines().collect();
        assert!(
            lines.len() == 1 && err.contains("wrong ELF class"),
            "{:?}: {err}",
            place.form
        );
    }
}
