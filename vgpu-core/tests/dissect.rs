//! libvgpu-dissect.so: each part of the library that VGPU_DISSECT names leaves its calls to the driver. The released
//! library has no such switch.

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;
use support::{Bench, GIB, dist, lines};
use vgpu_abi::log::{Counter, Counts, REPORT_VARIABLE, Wait, report_image};
use vgpu_abi::paths::{SHIM_FILE, SHIM_NAMES};

const VARIABLE: &str = "VGPU_DISSECT";

/// A bench with a share of 1 GiB and 20 % of the time, and a folder with the library under the driver's names.
struct Scene {
    bench: Bench,
    folder: tempfile::TempDir,
}

/// The library. None: it was not built from these sources (only `build/dist.sh --dissect` builds it).
fn library() -> Option<PathBuf> {
    let own = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../target");
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(own, PathBuf::from);
    let library = target.join("dissect-dist/libvgpu-dissect.so").canonicalize().ok()?;
    // An old file is not an error: this build may not have built it.
    std::panic::catch_unwind(|| vgpu_built_from::assert_fresh(&library)).ok()?;
    Some(library)
}

impl Scene {
    /// Returns None if the library is missing. The test is then recorded as skipped.
    fn new(test: &str) -> Option<Self> {
        let Some(library) = library() else {
            vgpu_skip::skip(
                test,
                "needs libvgpu-dissect.so of these sources: run `build/dist.sh --dissect`",
            );
            return None;
        };
        let bench = Bench::with_profile("context_cost = 100MiB\n");
        bench.limit_time(20);
        let folder = tempfile::tempdir().expect("a folder");
        for name in SHIM_NAMES {
            std::os::unix::fs::symlink(&library, folder.path().join(name)).expect("a link");
        }
        std::fs::write(folder.path().join("report"), report_image()).expect("a report");
        Some(Self { bench, folder })
    }

    fn client(&self, off: &str, steps: &[&str]) -> Command {
        let mut command = self.bench.client(steps);
        command.env("LD_LIBRARY_PATH", self.folder.path()).env(VARIABLE, off);
        command.env(REPORT_VARIABLE, self.folder.path().join("report"));
        command
    }

    /// The output of a client: its lines, and what it wrote to stderr.
    fn run(&self, off: &str, steps: &[&str]) -> (Vec<String>, String) {
        let output = self.client(off, steps).output().expect("a client");
        assert!(output.status.success(), "{off}: {output:?}");
        (lines(&output), String::from_utf8(output.stderr).expect("text"))
    }

    fn counts(&self) -> Counts {
        Counts::parse(&std::fs::read(self.folder.path().join("report")).expect("a report")).expect("a report")
    }
}

#[test]
fn without_the_variable_it_is_the_library() {
    let Some(scene) = Scene::new("without_the_variable_it_is_the_library") else {
        return;
    };
    let (did, said) = scene.run("", &["init", "alloc:2GiB", "work:500,300,0"]);
    assert_eq!((did[1].as_str(), said.as_str()), ("alloc 2", ""));
    assert!(scene.counts().waits(Wait::Budget).0 > 0);
    assert_eq!(scene.counts().get(Counter::Unmeasured), 0);
}

#[test]
fn a_part_that_is_off_leaves_its_calls_to_the_driver() {
    let Some(scene) = Scene::new("a_part_that_is_off_leaves_its_calls_to_the_driver") else {
        return;
    };
    let (did, said) = scene.run("memory", &["init", "alloc:2GiB", "free:0", "create:2GiB"]);
    assert_eq!(
        did,
        ["init 0", "alloc 0", "free 0", "create 2"],
        "the other parts are on"
    );
    assert_eq!(said, "vgpu: VGPU_DISSECT: memory off; limits do not hold\n");
    let (did, _) = scene.run("memory,physical", &["init", "alloc:2GiB", "create:2GiB"]);
    assert_eq!(did, ["init 0", "alloc 0", "create 0"]);
    scene.run("limiter", &["init", "work:500,300,0"]);
    assert_eq!(scene.counts().waits(Wait::Budget), (0, 0));
    scene.run("launches", &["init", "work:500,300,0"]);
    assert_eq!(scene.counts().waits(Wait::Budget), (0, 0));
    assert_eq!(scene.counts().get(Counter::Unmeasured), 0);
    scene.run("measure", &["init"]);
    assert!(scene.counts().get(Counter::Unmeasured) > 0);
    for part in ["contexts", "graphs", "sharing", "streams", "waits", "nvml"] {
        let (did, _) = scene.run(part, &["init", "alloc:2GiB", "work:500,50,1"]);
        assert_eq!(did[1], "alloc 2", "{part}: memory is limited");
    }
}

#[test]
fn devices_that_are_off_are_all_of_the_node() {
    let Some(scene) = Scene::new("devices_that_are_off_are_all_of_the_node") else {
        return;
    };
    let count = |off| {
        scene.run(off, &["cuinit", "devices"]).0[1]
            .split(' ')
            .nth(2)
            .map(str::to_owned)
    };
    let bare = lines(&scene.bench.bare(&["cuinit", "devices"]).output().expect("a client"));
    assert_eq!(count("").as_deref(), Some("1"));
    assert_eq!(count("devices").as_deref(), bare[1].split(' ').nth(2));
}

#[test]
fn a_word_that_is_no_part_is_named_and_ignored() {
    let Some(scene) = Scene::new("a_word_that_is_no_part_is_named_and_ignored") else {
        return;
    };
    let (did, said) = scene.run("memroy", &["init", "alloc:2GiB"]);
    assert_eq!(did[1], "alloc 2");
    assert!(
        said.starts_with("vgpu: VGPU_DISSECT: \"memroy\" is none of contexts, "),
        "{said}"
    );
    assert_eq!(said.lines().count(), 1, "{said}");
}

#[test]
fn the_released_library_has_no_switch() {
    let bytes = std::fs::read(dist().join(SHIM_FILE)).expect("the library");
    assert!(
        !bytes
            .windows(VARIABLE.len())
            .any(|window| window == VARIABLE.as_bytes())
    );
    let bench = Bench::with_share(GIB);
    let mut client = bench.client(&["init", "alloc:2GiB"]);
    let output = client.env(VARIABLE, "memory,entry").output().expect("a client");
    assert_eq!(lines(&output), ["init 0", "alloc 2"]);
    assert!(output.stderr.is_empty(), "{output:?}");
}
