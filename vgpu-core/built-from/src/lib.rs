//! Records which sources a library or a program was built from, so that a test can refuse one that is older than its
//! sources.
//!
//! ```text
//!  build script ─► hash of the sources ─► ELF note in the file (`readelf -p .note.vgpu`)
//!                                                      │
//!  test ─► hash of the sources as they are now ─► the same? else "run `make dist`", or for a program `cargo build`
//! ```
//!
//! The hash is over names and contents. Times of files only help to name the culprit: in a fresh clone all files
//! have the time of the clone.
//!
//! How it fails: if a source changes during the build, the file counts as old, never as new. A test program that runs
//! without the sources (in a guest) accepts any file.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;
use std::{env, fs, io};

/// The beginning of a library's note.
const MARK: &str = "built from the sources ";

/// The root of the workspace. Paths of sources are relative to it.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Called by a build script. Writes `built_from.rs` into OUT_DIR; the crate includes that file, which puts the note into its
/// artefact. `sources`: the crate's files and folders, relative to the root of the workspace.
///
/// # Panics
/// A source cannot be read.
pub fn write_note(sources: &[&str]) {
    let root = root();
    for source in sources {
        println!("cargo:rerun-if-changed={}", root.join(source).display());
    }
    let sources: Vec<String> = sources.iter().map(|source| (*source).into()).collect();
    let hash = hash(&root, &sources).unwrap_or_else(|error| panic!("{error}"));
    let text = text(hash, &sources);
    let code = format!(
        "/// A well-formed note: the linker keeps those, though nothing refers to them.\n\
         #[repr(C)]\n\
         #[allow(dead_code)]\n\
         struct Note {{ name_size: u32, text_size: u32, kind: u32, name: [u8; 8], text: [u8; {length}] }}\n\
         #[used]\n\
         #[allow(unsafe_code)]\n\
         #[unsafe(link_section = \".note.vgpu\")]\n\
         static NOTE: Note = Note {{ name_size: 5, text_size: {length}, kind: 1, name: *b\"vgpu\\0\\0\\0\\0\",\n\
         text: *b\"{text}\" }};\n",
        length = text.len(),
        text = text.replace('\0', "\\0"),
    );
    let target = Path::new(&env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join("built_from.rs");
    fs::write(&target, code).unwrap_or_else(|error| panic!("{}: {error}", target.display()));
}

/// Links the library for all sizes of pages that its architecture may have, from its build script: on arm64 the kernel's
/// builder chooses 4 to 64 KiB. The linker's default ends RELRO at a page of 4 KiB, and the loader protects whole pages.
///
/// # Panics
/// Not in a build script.
pub fn link_for_all_pages() {
    if env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets it") == "aarch64" {
        for size in ["common-page-size", "max-page-size"] {
            println!("cargo:rustc-cdylib-link-arg=-Wl,-z,{size}=65536");
        }
    }
}

/// Ends the test if `library` is older than its sources. A process checks each library once.
///
/// # Panics
/// The library is older, does not say what it was built from, or is missing.
pub fn assert_fresh(library: &Path) {
    assert_built(library, "make dist");
}

/// Returns the path of a program of this workspace, built with the profile of the running test. Cargo builds programs
/// only for tests of their own package, so tests of other packages have to check that it exists and is fresh.
///
/// # Panics
/// It is missing, or older than its sources.
pub fn program(package: &str) -> PathBuf {
    let test = env::current_exe().expect("the path of the running test");
    // A test is target/<profile>/deps/<test>.
    let folder = test.parent().and_then(Path::parent).expect("target/<profile>");
    let profile = match folder.file_name().and_then(|name| name.to_str()) {
        None | Some("debug") => String::new(),
        Some(name) => format!(" --profile {name}"),
    };
    let program = folder.join(package);
    assert_built(&program, &format!("cargo build{profile} -p {package}"));
    program
}

fn assert_built(file: &Path, remedy: &str) {
    static KNOWN: Mutex<BTreeMap<PathBuf, Result<(), String>>> = Mutex::new(BTreeMap::new());
    let verdict = {
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        let look = || match root() {
            root if root.join("Cargo.toml").is_file() => check(&root, file),
            _ => Ok(()),
        };
        known.entry(file.into()).or_insert_with(look).clone()
    };
    if let Err(reason) = verdict {
        panic!("{reason}: run `{remedy}`");
    }
}

/// The text of the note, padded to whole words of four bytes.
fn text(hash: u64, sources: &[String]) -> String {
    let mut text = format!("{MARK}{hash:016x} {}\0", sources.join(" "));
    while !text.len().is_multiple_of(4) {
        text.push('\0');
    }
    text
}

fn check(root: &Path, library: &Path) -> Result<(), String> {
    let shown = library.display();
    let bytes = fs::read(library).map_err(|error| format!("{shown}: {error}"))?;
    let (built, sources) = read(&bytes).ok_or_else(|| format!("{shown} does not say what it was built from"))?;
    match hash(root, &sources) {
        Ok(now) if now == built => Ok(()),
        Ok(_) => {
            let newer = newer_than(root, &sources, library);
            let newer = newer.map(|file| format!(", {} for one", file.display()));
            Err(format!(
                "{shown} is older than its sources{}",
                newer.unwrap_or_default()
            ))
        }
        Err(error) => Err(format!("{shown} is older than its sources: {error}")),
    }
}

/// The hash and the sources that a library names.
fn read(library: &[u8]) -> Option<(u64, Vec<String>)> {
    let mark = MARK.as_bytes();
    let at = library.windows(mark.len()).position(|window| window == mark)?;
    let rest = library.get(at + mark.len()..)?;
    let text = std::str::from_utf8(rest.split(|byte| *byte == 0).next()?).ok()?;
    let mut words = text.split(' ');
    let hash = u64::from_str_radix(words.next()?, 16).ok()?;
    Some((hash, words.map(String::from).collect()))
}

/// FNV-1a over the names and contents of the sources. Nobody has a reason to forge it.
fn hash(root: &Path, sources: &[String]) -> Result<u64, String> {
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    let mut add = |bytes: &[u8]| {
        for byte in bytes.iter().chain(&(bytes.len() as u64).to_le_bytes()) {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    };
    for file in files(root, sources)? {
        add(file.as_os_str().as_encoded_bytes());
        add(&fs::read(root.join(&file)).map_err(|error| format!("{}: {error}", file.display()))?);
    }
    Ok(hash)
}

/// All files of the sources, relative to the root, sorted.
fn files(root: &Path, sources: &[String]) -> Result<Vec<PathBuf>, String> {
    let mut found = Vec::new();
    let mut left: Vec<PathBuf> = sources.iter().map(PathBuf::from).collect();
    while let Some(path) = left.pop() {
        let failed = |error: io::Error| format!("{}: {error}", path.display());
        if !root.join(&path).is_dir() {
            found.push(path);
            continue;
        }
        for entry in fs::read_dir(root.join(&path)).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            // A temporary file of an editor may be gone by now.
            let text = name.to_string_lossy();
            if !text.starts_with('.') && !text.ends_with('~') {
                left.push(path.join(name));
            }
        }
    }
    found.sort();
    Ok(found)
}

/// The source that was written last, if it is newer than the library.
fn newer_than(root: &Path, sources: &[String], library: &Path) -> Option<PathBuf> {
    let time = |path: &Path| -> Option<SystemTime> { fs::metadata(path).ok()?.modified().ok() };
    let files = files(root, sources).ok()?;
    let last = files.into_iter().max_by_key(|file| time(&root.join(file)))?;
    (time(&root.join(&last))? > time(library)?).then_some(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A workspace with two sources, and a library that was built from them.
    fn scene() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().expect("a folder");
        fs::create_dir_all(folder.path().join("core/src/deep")).expect("a folder");
        fs::write(folder.path().join("core/src/deep/lib.rs"), "fn one() {}").expect("a source");
        fs::write(folder.path().join("core/names.txt"), "cuInit").expect("a source");
        let sources = ["core/src".into(), "core/names.txt".into()];
        let note = text(hash(folder.path(), &sources).expect("sources"), &sources);
        assert_eq!(note.len() % 4, 0);
        let library = folder.path().join("libvgpu.so");
        fs::write(&library, format!("\x7fELF code \0{note}more")).expect("a library");
        (folder, library)
    }

    #[test]
    fn a_library_is_fresh_until_a_source_differs_and_again_when_it_is_as_before() {
        let (folder, library) = scene();
        let source = folder.path().join("core/src/deep/lib.rs");
        let check = || check(folder.path(), &library);
        check().expect("as it was built");
        fs::write(folder.path().join("core/src/.lib.rs.swp"), "an editor's").expect("a file");
        fs::write(&source, "fn one() {}").expect("a source");
        check().expect("newer by its time, but the same");
        fs::write(&source, "fn two() {}").expect("a source");
        let reason = check().expect_err("it is old");
        assert!(
            reason.ends_with("libvgpu.so is older than its sources, core/src/deep/lib.rs for one"),
            "{reason}"
        );
        fs::write(&source, "fn one() {}").expect("a source");
        check().expect("as it was built");
    }

    #[test]
    fn a_source_more_or_less_or_of_another_name_is_a_difference() {
        let (folder, library) = scene();
        let (one, two) = (
            folder.path().join("core/src/deep/lib.rs"),
            folder.path().join("core/src/two.rs"),
        );
        fs::write(&two, "").expect("a source");
        check(folder.path(), &library).expect_err("one more");
        fs::remove_file(&two).expect("it is there");
        check(folder.path(), &library).expect("as it was built");
        fs::rename(&one, &two).expect("a rename");
        check(folder.path(), &library).expect_err("another name");
        fs::remove_file(folder.path().join("core/names.txt")).expect("it is there");
        let reason = check(folder.path(), &library).expect_err("it is gone");
        assert!(reason.contains("core/names.txt"), "{reason}");
    }

    #[test]
    fn a_library_without_a_note_is_refused() {
        let (folder, library) = scene();
        fs::write(&library, "\x7fELF").expect("a library");
        let reason = check(folder.path(), &library).expect_err("no note");
        assert!(reason.ends_with("does not say what it was built from"), "{reason}");
    }
}
