//! Checks in the release artefact's headers that it is safe for every program that loads it.

mod kit;

use std::{fs, process::Command};

use kit::{answer, artefact};

fn readelf(arguments: &[&str]) -> String {
    answer(
        Command::new("readelf")
            .args(arguments)
            .arg(artefact())
            .env("LC_ALL", "C"),
    )
}

#[test]
fn needs_no_library_and_has_no_name_and_one_constructor() {
    let dynamic = readelf(&["-dW"]);
    for tag in [
        "(NEEDED)",
        "(SONAME)",
        "(RPATH)",
        "(RUNPATH)",
        "(TEXTREL)",
        "(INIT)",
        "(FINI)",
        "(FINI_ARRAY)",
        "(VERNEED)",
    ] {
        assert!(!dynamic.contains(tag), "{tag} in {dynamic}");
    }
    let constructors = dynamic.lines().find(|line| line.contains("(INIT_ARRAYSZ)"));
    assert!(
        constructors.is_some_and(|line| line.ends_with(" 8 (bytes)")),
        "{dynamic}"
    );
    assert!(
        dynamic.contains("(GNU_HASH)") && dynamic.contains("BIND_NOW"),
        "{dynamic}"
    );
}

#[test]
fn exports_seven_names_and_imports_two_weakly() {
    let symbols = readelf(&["--dyn-syms", "-W"]);
    let rows = symbols.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let (mut exports, mut imports) = (Vec::new(), Vec::new());
    for row in rows.filter(|row| row.len() == 8 && row[0] != "Num:" && row[0] != "0:") {
        if row[6] == "UND" {
            imports.push((row[4], row[7]))
        } else {
            exports.push((row[3], row[4], row[7]))
        }
    }
    exports.sort();
    let function = |name| ("FUNC", "GLOBAL", name);
    let of_sanitizers = [
        "__asan_default_options",
        "__tsan_default_options",
        "__tsan_default_suppressions",
    ];
    let of_libc = ["dlmopen", "dlopen", "dlsym", "dlvsym"];
    let names: Vec<&str> = [&of_sanitizers[..], &of_libc].concat();
    assert_eq!(exports, names.into_iter().map(function).collect::<Vec<_>>());
    imports.sort();
    assert_eq!(imports, [("WEAK", "_dl_debug_addr"), ("WEAK", "_r_debug")]);
}

#[test]
fn is_small_and_has_few_relocations() {
    let size = fs::metadata(artefact()).expect("metadata").len();
    // An instruction of arm64 has four bytes, also where x86-64 has one.
    let most = if cfg!(target_arch = "x86_64") { 24 } else { 28 };
    assert!(size <= most << 10, "{size} bytes");
    let relocations = readelf(&["-rW"])
        .lines()
        .filter(|line| line.contains("R_X86_64_") || line.contains("R_AARCH64_"))
        .count();
    assert!((1..=80).contains(&relocations), "{relocations} relocations");
    assert!(!readelf(&["-lW"]).contains("TLS"), "no thread-local storage");
}
