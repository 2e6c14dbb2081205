//! Programs that do not ask for a driver notice nothing.

mod kit;

use std::process::Command;

use kit::{Stage, answer, artefact};

#[test]
fn programs_start() {
    let stage = Stage::new();
    assert_eq!(answer(Command::new("/bin/true").env("LD_PRELOAD", artefact())), "");
    assert_eq!(
        answer(Command::new("/bin/echo").arg("text").env("LD_PRELOAD", artefact())),
        "text"
    );
    assert_eq!(stage.ask(&[]), "started");
}

#[test]
fn a_static_program_is_not_touched() {
    let stage = Stage::new();
    stage.cc("plain.c", "static", ["-static"]);
    assert_eq!(answer(&mut stage.guarded("static")), "null");
}

/// Before glibc 2.34 such a program finds only our dlopen.
#[test]
fn a_program_that_knows_dlopen_by_a_weak_reference_alone() {
    let stage = Stage::new();
    stage.cc("plain.c", "plain", ["-Wl,--as-needed"]);
    assert_eq!(answer(&mut stage.guarded("plain")), "null");
}

/// Each library of a chain asks for the definition after itself, by dlsym and by dlvsym.
#[test]
fn rtld_next_is_what_follows_the_caller() {
    let stage = Stage::new();
    let lib = stage.text("lib");
    std::fs::write(stage.path("versions"), "V1 { chain; };").expect("write");
    let versions = format!("-Wl,--version-script,{}", stage.text("versions"));
    for link in ["1", "2", "3"] {
        let number = format!("-DLINK={link}");
        stage.cc(
            "next.c",
            &format!("lib/liblink{link}.so"),
            ["-shared", "-fPIC", &number, &versions, "-ldl"],
        );
    }
    let (folder, rpath) = (format!("-L{lib}"), format!("-Wl,-rpath,{lib}"));
    stage.cc(
        "chain.c",
        "chain",
        ["-Wl,--no-as-needed", &folder, &rpath, "-llink1", "-llink2", "-llink3"],
    );
    assert_eq!(answer(&mut stage.bare("chain")), "321");
    assert_eq!(answer(&mut stage.guarded("chain")), "321");
}

/// The loader searches for a name in the RUNPATH of the caller of dlopen.
#[test]
fn a_callers_runpath_is_still_its_own() {
    let stage = Stage::new();
    std::fs::rename(stage.path("real/libcudart.so.12"), stage.path("real/libonlyhere.so")).expect("rename");
    let rpath = format!("-Wl,--enable-new-dtags,-rpath,{}", stage.text("real"));
    stage.cc("plugin.c", "lib/plugin.so", ["-shared", "-fPIC", &rpath, "-ldl"]);
    let plugin = stage.text("lib/plugin.so");
    assert_eq!(stage.ask(&["plugin", &plugin, "libonlyhere.so"]), "opened 2");
    assert_eq!(
        stage.ask(&["open", "libonlyhere.so"]),
        "-1",
        "the program has no RUNPATH"
    );
}

#[test]
fn look_ups_answer_what_they_answer_without_us() {
    let stage = Stage::new();
    for question in [
        &["default", "malloc"][..],
        &["default", "cuInit"],
        &["default", "dlerror"],
        &["version", "memcpy", "GLIBC_2.14"],
        &["version", "memcpy", "GLIBC_2.2.5"],
        &["version", "memcpy", "GLIBC_9.9"],
        &["missing", "libc.so.6", "cuInit"],
        &["error", "/bin/true"],
    ] {
        assert_eq!(
            stage.ask(question),
            answer(stage.bare("probe").args(question)),
            "{question:?}"
        );
    }
}

#[test]
fn a_variable_named_like_a_driver_function_is_the_programs_own() {
    let stage = Stage::new();
    stage.cc(
        "probe.c",
        "probe",
        ["-pthread", "-rdynamic", "-DVARIABLE", "-DLIBDL=\"\"", "-ldl"],
    );
    assert_eq!(stage.ask(&["variable", &stage.text("real/libcuda.so.1")]), "42 own 1");
}

#[test]
fn errno_stays() {
    let stage = Stage::new();
    assert_eq!(stage.ask(&["errno", &stage.text("real/libcuda.so.1")]), "77 77 found");
    assert_eq!(stage.ask(&["errno", "libcuda.so.1"]), "77 77 found");
}
