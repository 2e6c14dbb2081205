//! Tests the library as in a container: in /etc/ld.so.preload, with the CDI spec's paths. A root file system is made of
//! the machine's own libc; entering it needs root or a user namespace.

mod kit;

use std::{fs, os::unix::fs::symlink, path::Path, process::Command};

use kit::{Stage, answer, artefact};
use vgpu_abi::arch;
use vgpu_skip::skip;

/// The shim beside the library.
const OWN_SHIM: &str = "/dev/vgpu/.lib/libcuda.so.1";

struct Container {
    stage: Stage,
    enter: &'static [&'static str],
}

impl Container {
    /// Returns None, and reports the skip, if a root file system cannot be entered.
    fn new(test: &str) -> Option<Self> {
        let stage = Stage::new();
        let ways: [&'static [&'static str]; 2] = [&["chroot"], &["unshare", "-r", "chroot"]];
        let works = |way: &&'static [&'static str]| {
            let tried = Command::new(way[0]).args(&way[1..]).args(["/", "/bin/true"]).output();
            tried.is_ok_and(|output| output.status.success())
        };
        let Some(enter) = ways.into_iter().find(works) else {
            skip(test, "needs root or user namespaces, to enter a root file system");
            return None;
        };
        let container = Self { stage, enter };
        for file in libraries(&container.stage.path("probe")) {
            container.put(Path::new(&file), &file);
            if file.contains("/ld-linux") {
                // In a new namespace, the loader is searched in the library folders.
                container.put(Path::new(&file), concat!("/usr/lib/", arch!(loader_file)));
            }
        }
        container.put(Path::new("/usr/bin/env"), "/env");
        container.put(&artefact(), "/dev/vgpu/.lib/libvgpu-preload.so");
        container.put(&container.stage.path("probe"), "/probe");
        let (shim, real) = (
            container.stage.path("shim/libcuda.so.1"),
            container.stage.path("real/libcuda.so.1"),
        );
        container.put(&shim, OWN_SHIM);
        container.put(&shim, concat!("/usr/lib/", arch!(triplet), "/libcuda.so.1"));
        container.put(&real, "/dev/vgpu/.driver/libcuda.so.1");
        container.put(&real, "/opt/compat/libcuda.so.1");
        container.put(&real, "/opt/compat/libcuda.so");
        let preload = container.at("/etc/ld.so.preload");
        fs::create_dir_all(container.at("/etc")).expect("a folder");
        fs::write(preload, "/dev/vgpu/.lib/libvgpu-preload.so\n").expect("write");
        Some(container)
    }

    fn at(&self, path: &str) -> std::path::PathBuf {
        self.stage.path("root").join(path.trim_start_matches('/'))
    }

    fn put(&self, from: &Path, to: &str) {
        let to = self.at(to);
        fs::create_dir_all(to.parent().expect("a folder")).expect("a folder");
        fs::copy(from, to).expect("a copy");
    }

    fn ask(&self, arguments: &[&str], environment: &[(&str, &str)]) -> String {
        let mut command = Command::new(self.enter[0]);
        // Set only for the program, not for the commands that enter the root.
        let variables = environment.iter().map(|(name, value)| format!("{name}={value}"));
        command
            .args(&self.enter[1..])
            .arg(self.at("/"))
            .arg("/env")
            .args(variables)
            .arg("/probe")
            .args(arguments);
        answer(&mut command)
    }
}

/// Returns the files with which a program is linked, including its loader.
fn libraries(program: &Path) -> Vec<String> {
    let listed = answer(Command::new("ldd").arg(program));
    listed
        .split_whitespace()
        .filter(|word| word.starts_with('/'))
        .map(str::to_owned)
        .collect()
}

#[test]
fn drivers_that_the_image_brought_lead_to_the_shim() {
    let Some(container) = Container::new("drivers_that_the_image_brought_lead_to_the_shim") else {
        return;
    };
    assert_eq!(container.ask(&["open", "/opt/compat/libcuda.so.1"], &[]), "1");
    assert_eq!(container.ask(&["mopen", "/opt/compat/libcuda.so.1"], &[]), "1");
    let compat = &[("LD_LIBRARY_PATH", "/opt/compat")];
    assert_eq!(
        container.ask(&["open", "libcuda.so.1"], compat),
        "1",
        "a search path of the image"
    );
    assert_eq!(
        container.ask(&["past", "/opt/compat/libcuda.so.1", "cuInit"], compat),
        "1 1"
    );
    // The environment cannot remove the library.
    assert_eq!(
        container.ask(&["open", "/opt/compat/libcuda.so.1"], &[("LD_PRELOAD", "")]),
        "1"
    );
}

#[test]
fn the_private_path_is_not_redirected() {
    let Some(container) = Container::new("the_private_path_is_not_redirected") else {
        return;
    };
    let real = "/dev/vgpu/.driver/libcuda.so.1";
    assert_eq!(container.ask(&["shim", "libcuda.so.1", real], &[]), "2", "by the shim");
    // A program that opens the driver by that path gets a handle, but not the driver's functions.
    assert_eq!(container.ask(&["open", real, "cuNewer"], &[]), "2");
    assert_eq!(container.ask(&["open", real, "cuInit"], &[]), "1");
}

/// A plugin opened by a path that goes through the driver's folder and out of it is not one of the driver's files. It
/// gets no functions of the driver with which it is linked.
#[test]
fn a_path_through_the_private_folder_lends_no_right() {
    let Some(container) = Container::new("a_path_through_the_private_folder_lends_no_right") else {
        return;
    };
    let stage = &container.stage;
    let folder = format!("-L{}", stage.text("real"));
    let linked = [
        "-shared",
        "-fPIC",
        "-Wl,--no-as-needed",
        "-Wl,--disable-new-dtags",
        "-Wl,-rpath,/opt/compat",
        &folder,
        "-l:libcuda.so.1",
        "-ldl",
    ];
    stage.cc("plugin.c", "lib/plugin.so", linked);
    container.put(&stage.path("lib/plugin.so"), "/opt/plugin.so");
    for path in ["/opt/plugin.so", "/dev/vgpu/.driver/../../../opt/plugin.so"] {
        for how in ["default", "next"] {
            assert_eq!(container.ask(&["plugin", path, how], &[]), "1 1", "{path}: {how}");
        }
    }
}

/// The loader knows the library by the name that the program gave it, because LD_PRELOAD is loaded before the libraries
/// of /etc/ld.so.preload.
#[test]
fn a_link_to_the_library_does_not_lead_to_a_shim_beside_the_link() {
    let Some(container) = Container::new("a_link_to_the_library_does_not_lead_to_a_shim_beside_the_link") else {
        return;
    };
    let poses = ["-shared", "-fPIC", "-DWHO=3", "-DSHIM"];
    container.stage.cc("driver.c", "lib/libcuda.so.1", poses);
    container.put(&container.stage.path("lib/libcuda.so.1"), "/opt/link/libcuda.so.1");
    let link = "/opt/link/libvgpu-preload.so";
    symlink("/dev/vgpu/.lib/libvgpu-preload.so", container.at(link)).expect("a link");
    let by_link = &[("LD_PRELOAD", link)];
    assert_eq!(container.ask(&["open", "/opt/compat/libcuda.so.1"], by_link), "1");
    // The shim is not loaded yet, and the driver must not be found instead.
    assert_eq!(
        container.ask(&["noload", "/opt/compat/libcuda.so.1"], by_link),
        "null null"
    );
    fs::write(container.at(OWN_SHIM), "no library").expect("write");
    assert_eq!(
        container.ask(&["noload", "/opt/compat/libcuda.so.1"], by_link),
        "null null"
    );
}

/// If there is no shim beside the library, it is found in the spec's other paths. In the other layout it is only in
/// /usr/lib64.
#[test]
fn the_loaders_folders_hold_the_shim_too() {
    let Some(container) = Container::new("the_loaders_folders_hold_the_shim_too") else {
        return;
    };
    fs::remove_file(container.at(OWN_SHIM)).expect("remove");
    assert_eq!(container.ask(&["open", "/opt/compat/libcuda.so.1"], &[]), "1");
    fs::create_dir_all(container.at("/usr/lib64")).expect("a folder");
    let from = container.at(concat!("/usr/lib/", arch!(triplet), "/libcuda.so.1"));
    fs::rename(from, container.at("/usr/lib64/libcuda.so.1")).expect("rename");
    assert_eq!(container.ask(&["open", "/opt/compat/libcuda.so.1"], &[]), "1");
}

/// A process can prevent the file from being opened by lowering its limits of descriptors and of memory.
#[test]
fn without_the_shim_there_is_no_driver() {
    let Some(container) = Container::new("without_the_shim_there_is_no_driver") else {
        return;
    };
    let stage = &container.stage;
    container.put(&stage.path("real/odd.so"), "/opt/odd.so");
    let folder = format!("-L{}", stage.text("real"));
    let linked = [
        "-Wl,--disable-new-dtags",
        "-Wl,-rpath,/opt/compat",
        &folder,
        "-l:libcuda.so.1",
    ];
    stage.cc("linked.c", "linked", linked);
    container.put(&stage.path("linked"), "/probe-linked");
    fs::write(container.at(OWN_SHIM), "no library").expect("write");
    assert_eq!(
        container.ask(&["error", "/opt/compat/libcuda.so.1"], &[]),
        "null /dev/vgpu/.lib/libcuda.so.1: file too short"
    );
    assert_eq!(container.ask(&["open", "/opt/odd.so"], &[]), "-1", "by its code");
    let preloaded = &[("LD_PRELOAD", "/opt/compat/libcuda.so.1")];
    for scope in ["default", "next", "program"] {
        assert_eq!(container.ask(&["scope", scope], preloaded), "-1 -1", "{scope}");
    }
    fs::copy(container.at("/probe-linked"), container.at("/probe")).expect("a copy");
    assert_eq!(container.ask(&[], &[]), "999 999 999", "bound at the start");
}
