//! Small crates with and without circles.

use std::collections::BTreeSet;
use std::fs;
use vgpu_circles::allowed::{Entry, compare, written};
use vgpu_circles::circle::{Circle, find};
use vgpu_circles::source;

/// Reads a crate of these files; the first is its root.
fn circles(files: &[(&str, &str)]) -> Vec<Circle> {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let file = folder.path().join(name);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }
    let modules = source::read(&folder.path().join(files[0].0)).unwrap();
    find("toy", &modules)
}

/// The sorted modules of each circle.
fn found(files: &[(&str, &str)]) -> Vec<String> {
    circles(files)
        .iter()
        .map(|circle| circle.modules.iter().cloned().collect::<Vec<_>>().join(" "))
        .collect()
}

/// Two sibling modules in one file.
fn pair(a: &str, b: &str) -> Vec<String> {
    found(&[(
        "lib.rs",
        &format!("mod a {{ pub struct A; pub fn a() {{}} {a} }} mod b {{ pub struct B; pub fn b() {{}} {b} }}"),
    )])
}

#[test]
fn every_way_to_name_a_module_closes_a_circle() {
    for (a, b) in [
        ("use crate::b::B;", "use crate::a::A;"),
        ("use super::b::B;", "use super::a::A;"),
        ("use crate::b::{self, B};", "use crate::{a::{A, a as other}};"),
        ("use self::super::b::B as Other;", "use crate::a::A as _;"),
        ("fn f() { crate::b::b() }", "fn f() { super::a::a() }"),
        ("fn f() { use crate::b::b; b() }", "fn f(_: &crate::a::A) {}"),
        ("use crate::b; fn f() { b::b() }", "use super::a; fn f() { a::a() }"),
        ("use crate::b::*; fn f() { b() }", "use crate::a::*; fn f(_: A) {}"),
        ("fn f() { println!(\"{:?}\", crate::b::b()) }", "use crate::a::A;"),
        ("m! { use crate::b::{B}; }", "use crate::a::A;"),
        ("macro_rules! m { () => { $crate::b::b() } }", "use crate::a::A;"),
        ("impl crate::b::B {}", "use crate::a::A;"),
        ("pub trait T {} use crate::b::B;", "use crate::a::*;"),
        ("pub use crate::b::B;", "pub use crate::a::A;"),
    ] {
        assert_eq!(pair(a, b), ["a b"], "{a} | {b}");
    }
}

#[test]
fn one_direction_is_no_circle() {
    for (a, b) in [
        ("use crate::b::B;", ""),
        ("use crate::b::B;", "use std::a::A;"),
        // Importing a module is no dependency by itself.
        ("use crate::b::B;", "use crate::a;"),
        ("use crate::b::B;", "pub(in crate::a) struct C;"),
        ("use crate::b::B;", "#[cfg(test)] mod tests { use crate::a::A; }"),
        ("use crate::b::B;", "#[cfg(all(test, unix))] use crate::a::A;"),
        ("use crate::b::B;", "#[test] fn t() { crate::a::a() }"),
        ("use crate::b::B;", "impl B { #[cfg(test)] fn t() { crate::a::a() } }"),
        ("use crate::b::*; fn f() { b() }", "fn a() {} fn f() { a() }"),
    ] {
        assert!(pair(a, b).is_empty(), "{a} | {b}");
    }
    assert_eq!(pair("use crate::b::B;", "#[cfg(not(test))] use crate::a::A;"), ["a b"]);
    assert_eq!(
        pair("use crate::b::B;", "#[cfg(any(test, unix))] use crate::a::A;"),
        ["a b"]
    );
}

#[test]
fn a_reexport_leads_to_who_defines_the_name() {
    // `c` looks like a path back but is none: the name that `a` uses from it is defined in `d`.
    let files = |a: &str| {
        let text = format!(
            "mod a {{ pub struct A; use crate::c::{a}; }} mod c {{ pub use crate::d::D; pub struct C; use crate::a::A; }} mod d {{ pub struct D; }}"
        );
        found(&[("lib.rs", &text)])
    };
    assert!(files("D").is_empty());
    assert_eq!(files("C"), ["a c"]);
    // Through a glob, and through a glob of a glob.
    let text = "mod a { pub struct A; use crate::c::*; fn f(_: D) {} } mod c { pub use crate::d::*; } mod d { pub use crate::e::D; pub struct X; } mod e { pub struct D; use crate::a::A; }";
    assert_eq!(found(&[("lib.rs", text)]), ["a e"]);
}

#[test]
fn a_parent_and_its_child_are_modules_like_others() {
    let with = |parent: &str, child: &str| {
        let root = format!("pub struct P; mod child; {parent}");
        found(&[("lib.rs", &root), ("child.rs", &format!("pub fn c() {{}} {child}"))])
    };
    assert_eq!(with("fn f() { child::c() }", "use super::P;"), ["child crate"]);
    assert_eq!(
        with("pub use child::c; fn f() { c() }", "use crate::P;"),
        ["child crate"]
    );
    assert!(with("", "use super::P;").is_empty());
    // Re-exporting a child's names is no dependency.
    assert!(with("pub use child::c;", "use super::P;").is_empty());
    assert!(with("fn f(p: P) { p.g() }", "impl super::P { fn g(&self) {} }").is_empty());
    // A sibling's names reached through the parent belong to the sibling.
    assert!(with("mod other { pub struct O; } use other::O;", "use super::O;").is_empty());
}

#[test]
fn files_are_found_as_the_compiler_finds_them() {
    let files = [
        (
            "src/main.rs",
            "mod a; mod b; #[path = \"elsewhere.rs\"] mod c; fn main() {}",
        ),
        ("src/a.rs", "pub mod deep; pub struct A;"),
        ("src/a/deep.rs", "mod deeper; use crate::b::B; pub struct D;"),
        ("src/a/deep/deeper.rs", "use crate::c::C;"),
        ("src/b/mod.rs", "mod inner; pub struct B; use crate::c::C;"),
        ("src/b/inner.rs", "use crate::a::A;"),
        ("src/elsewhere.rs", "pub struct C; use crate::a::deep::D;"),
    ];
    assert_eq!(found(&files), ["a::deep b c"]);
}

#[test]
fn an_exported_macro_lies_where_it_is_written() {
    let text = "pub fn f() { a::a() } mod a { pub fn a() { crate::m!() } #[macro_export] macro_rules! m { () => {} } }";
    assert!(found(&[("lib.rs", text)]).is_empty());
}

#[test]
fn a_missing_file_and_a_file_that_is_not_rust_are_named() {
    for (text, expected) in [("mod gone;", "no file for `mod gone;`"), ("fn (", "lib.rs")] {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("lib.rs"), text).unwrap();
        let error = source::read(&folder.path().join("lib.rs")).unwrap_err();
        assert!(format!("{error:#}").contains(expected), "{error:#}");
    }
}

#[test]
fn the_report_has_the_shortest_way_with_its_lines() {
    let found = circles(&[
        ("lib.rs", "mod a;\nmod b;\nmod c;\n"),
        ("a.rs", "\nuse crate::b::B;\npub struct A;"),
        ("b.rs", "pub struct B;\nuse crate::c::C;"),
        ("c.rs", "pub struct C;\n\n\nuse crate::a::A;\nuse crate::b::B;"),
    ]);
    let verdict = compare(&found, &[]);
    let [mistake] = verdict.mistakes.as_slice() else {
        panic!("{:?}", verdict.mistakes)
    };
    assert!(
        mistake.starts_with("import circle in crate toy: a, b, c\n"),
        "{mistake}"
    );
    let steps: Vec<&str> = mistake.lines().filter(|line| line.contains(".rs:")).collect();
    assert_eq!(steps.len(), 3, "{mistake}");
    assert!(
        steps[0].starts_with("  a needs b: ") && steps[0].ends_with("a.rs:2: crate::b::B"),
        "{mistake}"
    );
    assert!(steps[2].ends_with("c.rs:4: crate::a::A"), "{mistake}");
}

/// A circle of a and b, and a module beside it.
const TWO: &str = "mod a { pub struct A; use crate::b::B; } mod b { pub struct B; use crate::a::A; } mod c {}";

fn entry(modules: &[&str]) -> Entry {
    let modules: BTreeSet<String> = modules.iter().map(ToString::to_string).collect();
    Entry {
        of_crate: "toy".into(),
        reason: "a test double".into(),
        modules,
    }
}

#[test]
fn a_listed_circle_may_stay_and_shrink_but_not_grow() {
    let two = circles(&[("lib.rs", TWO)]);
    let against = |entries: &[Entry]| compare(&two, entries);
    assert!(against(&[entry(&["a", "b"])]).mistakes.is_empty());
    let shrunk = against(&[entry(&["a", "b", "c"])]);
    assert!(shrunk.mistakes.is_empty());
    assert!(
        shrunk.notes[0].ends_with("take them off the list: c"),
        "{:?}",
        shrunk.notes
    );

    let three = circles(&[(
        "lib.rs",
        "mod a { pub struct A; use crate::b::B; } mod b { pub struct B; use crate::a::A; use crate::c::C; } mod c { pub struct C; use crate::a::A; }",
    )]);
    let grown = compare(&three, &[entry(&["a", "b"])]);
    assert_eq!((grown.mistakes.len(), grown.new_circles), (1, 1));
    assert!(
        grown.mistakes[0].contains("new in a circle that is allowed: c\n  c needs a: "),
        "{}",
        grown.mistakes[0]
    );
}

#[test]
fn an_entry_without_a_circle_or_a_reason_fails() {
    let stale = compare(&[], &[entry(&["a", "b"])]);
    assert!(
        stale.mistakes[0].contains("no such circle is left: remove the entry"),
        "{:?}",
        stale.mistakes
    );
    let two = circles(&[("lib.rs", TWO)]);
    let other_crate = Entry {
        of_crate: "other".into(),
        ..entry(&["a", "b"])
    };
    assert_eq!(compare(&two, &[other_crate]).mistakes.len(), 2);
    let silent = Entry {
        reason: " ".into(),
        ..entry(&["a", "b"])
    };
    assert!(compare(&two, &[silent]).mistakes[0].contains("say why the circle has to stay"));
}

#[test]
fn a_printed_list_is_a_list() {
    let two = circles(&[("lib.rs", TWO)]);
    let text = written(&two).replace("reason: ", "reason: a test double");
    let entries: Vec<Entry> = serde_saphyr::from_str(&text).unwrap();
    assert!(compare(&two, &entries).mistakes.is_empty());
}
