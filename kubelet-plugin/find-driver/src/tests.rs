//! Tests of the rule on temporary roots.

use super::*;
use std::fs;
use std::os::unix::fs::symlink;
use tempfile::TempDir;

fn file(root: &Path, path: &str, bytes: &[u8]) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, bytes).unwrap();
}

/// Creates a driver of this version in a folder of the root.
fn install(root: &Path, folder: &str, version: &str) {
    for stem in ["libcuda", "libnvidia-ml"] {
        let name = format!("{stem}.so.{version}");
        file(root, &format!("{folder}/{name}"), b"");
        symlink(name, root.join(folder).join(format!("{stem}.so.1"))).unwrap();
    }
}

fn write_cache(root: &Path, entries: &[(&str, &str)]) {
    let entries: Vec<_> = entries.iter().map(|(name, path)| (0x0303, *name, *path)).collect();
    file(root, CACHE, &loader_cache::tests::cache(&entries));
}

fn find(root: &Path, library_path: &[&str]) -> Result<Driver, Missing> {
    let folders: Vec<PathBuf> = library_path.iter().map(PathBuf::from).collect();
    driver(&mut Search::new(root), &folders)
}

fn empty() -> TempDir {
    tempfile::tempdir().unwrap()
}

/// The folder in which a driver was found, and the rule that found it.
fn place(found: &Driver) -> (String, How) {
    (found.libcuda.folder.display().to_string(), found.libcuda.how)
}

#[test]
fn library_path_goes_before_the_cache_and_the_cache_before_folders() {
    let root = empty();
    let root = root.path();
    install(root, "usr/local/nvidia/lib64", "1.1");
    assert_eq!(
        place(&find(root, &[]).unwrap()),
        ("usr/local/nvidia/lib64".into(), How::OtherFolder)
    );
    install(root, "usr/lib64", "2.2");
    assert_eq!(
        place(&find(root, &[]).unwrap()),
        ("usr/lib64".into(), How::LoaderFolder)
    );
    install(root, "opt/cached", "3.3");
    let cached = |stem| (stem, format!("/opt/cached/{stem}"));
    let cached = [LIBCUDA, LIBNVIDIA_ML].map(cached);
    let cached: Vec<_> = cached.iter().map(|(name, path)| (*name, path.as_str())).collect();
    write_cache(root, &cached);
    assert_eq!(place(&find(root, &[]).unwrap()), ("opt/cached".into(), How::Cache));
    install(root, "opt/named", "4.4");
    let found = find(root, &["/opt/nothing", "/opt/named"]).unwrap();
    assert_eq!(place(&found), ("opt/named".into(), How::LibraryPath));
    assert_eq!(found.libnvidia_ml.file, Path::new("opt/named/libnvidia-ml.so.4.4"));
    let text = found.describe(Path::new("/"));
    assert_eq!(text, "driver 4.4 in /opt/named, found by LD_LIBRARY_PATH");
}

#[test]
fn with_two_versions_nvml_is_that_of_libcuda_and_the_other_version_is_named() {
    let root = empty();
    let root = root.path();
    install(root, "usr/local/nvidia/lib64", "550.54");
    install(root, "usr/lib64", "535.1");
    // The loader would find this NVML first, but its version is that of the libcuda found last.
    file(root, "lib64/libnvidia-ml.so.1", b"");
    let found = find(root, &[]).unwrap();
    assert_eq!(found.libcuda.file, Path::new("usr/lib64/libcuda.so.535.1"));
    assert_eq!(found.libnvidia_ml.file, Path::new("usr/lib64/libnvidia-ml.so.535.1"));
    assert_eq!(found.others, [Path::new("usr/local/nvidia/lib64/libcuda.so.550.54")]);
    // A libcuda for newer programs (cuda-compat) comes without NVML, so NVML of the machine's driver is used.
    file(root, "compat/libcuda.so.560.2", b"");
    symlink("libcuda.so.560.2", root.join("compat/libcuda.so.1")).unwrap();
    let found = find(root, &["/compat"]).unwrap();
    assert_eq!(found.libcuda.file, Path::new("compat/libcuda.so.560.2"));
    assert_eq!(found.libnvidia_ml.file, Path::new("lib64/libnvidia-ml.so.1"));
}

#[test]
fn without_a_driver_the_error_names_every_place() {
    let root = empty();
    let root = root.path();
    file(root, "usr/lib64/libcuda.so.1", b"");
    let error = find(root, &["/opt/named"]).unwrap_err();
    assert_eq!(error.name, LIBNVIDIA_ML);
    let error = error.to_string();
    for place in [
        "/opt/named",
        "/etc/ld.so.cache",
        "/usr/lib64",
        "/usr/local/nvidia/lib64",
    ] {
        assert!(error.contains(place), "{place}: {error}");
    }
    let nvml = |root| libnvidia_ml(&mut Search::new(root), &[]);
    assert_eq!(nvml(root).unwrap_err().name, LIBNVIDIA_ML);
    fs::remove_file(root.join("usr/lib64/libcuda.so.1")).unwrap();
    file(root, "usr/lib64/libnvidia-ml.so.1", b"");
    assert_eq!(find(root, &[]).unwrap_err().name, LIBCUDA);
    assert_eq!(nvml(root).unwrap().file, Path::new("usr/lib64/libnvidia-ml.so.1"));
}

#[test]
fn a_stub_is_skipped_wherever_it_is_named() {
    let root = empty();
    let root = root.path();
    let stubs = "usr/local/cuda/lib64/stubs";
    for name in ["libcuda.so", LIBCUDA, LIBNVIDIA_ML] {
        file(root, &format!("{stubs}/{name}"), b"");
    }
    fs::create_dir_all(root.join("usr/lib64")).unwrap();
    symlink(format!("/{stubs}/libcuda.so"), root.join("usr/lib64/libcuda.so.1")).unwrap();
    let cached = format!("/{stubs}/libcuda.so.1");
    write_cache(root, &[(LIBCUDA, &cached)]);
    let named = format!("/{stubs}");
    assert_eq!(find(root, &[&named]).unwrap_err().name, LIBCUDA);
    install(root, "usr/local/nvidia/lib64", "1.1");
    assert_eq!(
        find(root, &[&named]).unwrap().libcuda.folder,
        Path::new("usr/local/nvidia/lib64")
    );
}

#[test]
fn links_and_cached_paths_do_not_leave_the_root() {
    let dir = empty();
    let root = dir.path().join("root");
    install(dir.path(), "outside", "1.1");
    let outside = dir.path().join("outside").join(LIBCUDA).display().to_string();
    fs::create_dir_all(root.join("usr/lib64")).unwrap();
    symlink(&outside, root.join("usr/lib64/libcuda.so.1")).unwrap();
    symlink(
        "../../../outside/libnvidia-ml.so.1",
        root.join("usr/lib64/libnvidia-ml.so.1"),
    )
    .unwrap();
    write_cache(&root, &[(LIBCUDA, "/../outside/libcuda.so.1"), (LIBCUDA, &outside)]);
    assert!(find(&root, &[]).is_err());
    // The same paths exist in the root.
    install(&root, "outside", "2.2");
    let found = find(&root, &["/outside"]).unwrap();
    assert_eq!(found.libcuda.file, Path::new("outside/libcuda.so.2.2"));
}

#[test]
fn a_cache_that_is_no_file_or_garbage_counts_as_empty() {
    let root = empty();
    let root = root.path();
    install(root, "usr/local/nvidia/lib64", "1.1");
    fs::create_dir_all(root.join(CACHE)).unwrap();
    assert!(find(root, &[]).is_ok());
    fs::remove_dir(root.join(CACHE)).unwrap();
    symlink("/etc/ld.so.cache", root.join(CACHE)).unwrap();
    assert!(find(root, &[]).is_ok(), "a circle");
    fs::remove_file(root.join(CACHE)).unwrap();
    file(root, CACHE, b"glibc-ld.so.cache1.1\xff\xff\xff\xff");
    assert!(find(root, &[]).is_ok());
}

#[test]
fn a_new_cache_changes_a_folder_of_the_search() {
    let root = empty();
    fs::create_dir(root.path().join("etc")).unwrap();
    let mut search = Search::new(root.path());
    let _ = driver(&mut search, &[]);
    assert!(search.folders().contains(Path::new("etc")));
}

#[test]
fn the_plugin_gets_a_root_under_which_it_finds_the_same_file() {
    let machine = empty();
    let machine = machine.path();
    let root_of = |named: &str| root_for(machine, &find(machine, &[named]).unwrap().libcuda);
    install(machine, "usr/local/nvidia/lib64", "1.1");
    assert_eq!(root_of("/usr/local/nvidia/lib64"), machine);
    install(machine, "opt/driver/usr/lib64", "2.2");
    assert_eq!(root_of("/opt/driver/usr/lib64"), machine.join("opt/driver"));
    install(machine, "opt/flat", "3.3");
    assert_eq!(root_of("/opt/flat"), machine.join("opt/flat"));
    // The folders above contain another driver, which would be found first, so the result must be the folder itself.
    install(machine, "opt/driver/usr/lib/nvidia", "4.4");
    assert_eq!(
        root_of("/opt/driver/usr/lib/nvidia"),
        machine.join("opt/driver/usr/lib/nvidia")
    );
}

#[test]
fn relative_folders_of_library_path_do_not_count() {
    let value = OsStr::new("/a::b:../c:/d/:");
    assert_eq!(library_path(Some(value)), [Path::new("/a"), Path::new("/d/")]);
    assert_eq!(library_path(None), Vec::<PathBuf>::new());
}
