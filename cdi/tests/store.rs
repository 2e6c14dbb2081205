//! The folder of spec files: complete files only, other files untouched, and the leftovers of crashes.

mod common;

use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::Path,
    thread,
};

use common::{claim, kind};
use tempfile::tempdir;
use vgpu_cdi::{
    Kind, Spec,
    store::{Dir, Error},
};

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(dir)
        .expect("a folder")
        .map(|e| e.expect("an entry").file_name().into_string().expect("UTF-8"))
        .collect();
    names.sort();
    names
}

/// The file of the spec `a`.
fn content(dir: &Dir) -> Vec<u8> {
    fs::read(dir.file("a").expect("a name")).expect("a file")
}

#[test]
fn writes_a_transient_name_into_a_folder_that_it_makes() {
    let temp = tempdir().expect("a folder");
    let path = temp.path().join("run/cdi");
    let dir = Dir::new(&path, kind());
    assert_eq!(dir.ids().expect("a missing folder is empty"), Vec::<String>::new());
    assert_eq!(dir.sweep().expect("a missing folder is clean"), 0);
    assert!(!dir.remove("7f0e").expect("a missing folder holds nothing"));

    dir.update(&claim(), "7f0e").expect("write");
    assert_eq!(names(&path), ["dra.vgpu-claim_7f0e.json"]);
    assert_eq!(
        fs::read(dir.file("7f0e").expect("a name")).expect("read"),
        claim().render().expect("render")
    );
    assert_eq!(dir.mounted("7f0e"), [Path::new("/var/lib/vgpu/0ab1/libvgpu.so")]);
    assert!(dir.mounted("other").is_empty());
    assert_eq!(
        fs::metadata(dir.file("7f0e").expect("a name"))
            .expect("stat")
            .permissions()
            .mode()
            & 0o7777,
        0o644
    );

    assert!(dir.remove("7f0e").expect("remove"));
    assert!(!dir.remove("7f0e").expect("remove again"));
    assert_eq!(names(&path), Vec::<String>::new());
}

#[test]
fn a_rewrite_replaces_the_file_and_not_what_a_link_points_to() {
    let temp = tempdir().expect("a folder");
    let dir = Dir::new(temp.path(), kind());
    let outside = temp.path().join("outside");
    fs::write(&outside, "untouched").expect("write");
    symlink(&outside, dir.file("a").expect("a name")).expect("link");
    assert!(dir.update(&claim(), "a").expect("write"));
    assert_eq!(fs::read_to_string(&outside).expect("read"), "untouched");
    assert!(!dir.update(&claim(), "a").expect("the same spec"));
    let mut changed = claim();
    changed.container_edits.env.push("B=2".into());
    assert!(dir.update(&changed, "a").expect("write"));
    assert_eq!(content(&dir), changed.render().expect("render"));
    assert_eq!(names(temp.path()), ["dra.vgpu-claim_a.json", "outside"]);
}

#[test]
fn an_invalid_spec_leaves_the_old_file() {
    let temp = tempdir().expect("a folder");
    let dir = Dir::new(temp.path(), kind());
    dir.update(&claim(), "a").expect("write");
    let error = dir.update(&Spec::new(kind()), "a").expect_err("no devices");
    assert_eq!(
        error.to_string(),
        "CDI spec a: devices: holds no device; add one, or remove the file"
    );
    assert_eq!(content(&dir), claim().render().expect("render"));
    let other = Spec {
        kind: Kind::parse("nvidia.com/gpu").expect("a kind"),
        ..claim()
    };
    assert!(matches!(dir.update(&other, "a"), Err(Error::Kind { .. })));
    assert_eq!(names(temp.path()), ["dra.vgpu-claim_a.json"]);
}

#[test]
fn ids_that_leave_the_folder_or_hide_are_refused() {
    let temp = tempdir().expect("a folder");
    let dir = Dir::new(temp.path(), kind());
    let long = "a".repeat(129);
    for id in ["", ".", "../a", "a/b", ".a", "a b", "ä", "a\n", &long] {
        assert!(matches!(dir.update(&claim(), id), Err(Error::Id(_))), "{id:?}");
        assert!(matches!(dir.remove(id), Err(Error::Id(_))), "{id:?}");
    }
    assert_eq!(names(temp.path()), Vec::<String>::new());
}

#[test]
fn lists_and_sweeps_its_own_alone() {
    let temp = tempdir().expect("a folder");
    let dir = Dir::new(temp.path(), kind());
    for id in ["b", "a"] {
        dir.update(&claim(), id).expect("write");
    }
    let crashed = ".dra.vgpu-claim_c.json.7-1-0.tmp";
    let foreign = [
        "nvidia.com-gpu.json",
        ".nvidia.com-gpu_x.json.1.tmp",
        "dra.vgpu-claim_x.yaml",
        "dra.vgpu-claim_.json",
        "x.tmp",
    ];
    for name in foreign.iter().chain([&crashed]) {
        fs::write(temp.path().join(name), "{").expect("write");
    }
    assert_eq!(dir.ids().expect("list"), ["a", "b"]);
    assert_eq!(dir.sweep().expect("sweep"), 1);
    assert_eq!(dir.sweep().expect("sweep again"), 0);
    let mut expected: Vec<String> = foreign.iter().map(|name| name.to_string()).collect();
    expected.extend(["a", "b"].map(|id| format!("dra.vgpu-claim_{id}.json")));
    expected.sort();
    assert_eq!(names(temp.path()), expected);
}

#[test]
fn a_damaged_file_is_found_and_replaced() {
    let temp = tempdir().expect("a folder");
    let dir = Dir::new(temp.path(), kind());
    for damage in [b"{\"cdiVersion\":".to_vec(), vec![b' '; (4 << 20) + 1]] {
        fs::write(dir.file("a").expect("a name"), damage).expect("write");
        assert_eq!(dir.ids().expect("list"), ["a"]);
        assert!(dir.mounted("a").is_empty());
        assert_eq!(dir.hook_arguments("a"), None);
        assert!(dir.update(&claim(), "a").expect("write"));
        let hooks = dir.hook_arguments("a").expect("read back");
        assert_eq!(
            hooks,
            [["vgpu-cdi-hook", "preload"], ["vgpu-driver-limit", "set"]].map(|arguments| arguments.map(String::from))
        );
    }
    assert!(dir.remove("a").expect("remove"));
}

#[test]
fn errors_of_the_system_name_the_file() {
    let temp = tempdir().expect("a folder");
    let dir = Dir::new(temp.path(), kind());
    fs::create_dir_all(dir.file("a").expect("a name").join("x")).expect("a folder in the way");
    let error = dir
        .update(&claim(), "a")
        .expect_err("a folder is in the way")
        .to_string();
    assert!(
        error.starts_with("cannot rename ") && error.contains("dra.vgpu-claim_a.json"),
        "{error}"
    );
    assert_eq!(names(temp.path()), ["dra.vgpu-claim_a.json"], "no temp file is left");
    let file = temp.path().join("file");
    fs::write(&file, "").expect("write");
    assert!(matches!(
        Dir::new(&file, kind()).update(&claim(), "a"),
        Err(Error::Io { action: "create", .. })
    ));
}

/// Readers, such as a runtime, only see complete files while other processes write, remove or sweep.
#[test]
fn readers_never_see_half_a_file() {
    let temp = tempdir().expect("a folder");
    let dir = Dir::new(temp.path(), kind());
    let mut large = claim();
    large
        .container_edits
        .env
        .extend((0..2000).map(|index| format!("V{index}=value")));
    dir.update(&claim(), "a").expect("write");
    thread::scope(|scope| {
        for spec in [claim(), large.clone()] {
            let dir = &dir;
            scope.spawn(move || (0..50).for_each(|_| assert!(dir.update(&spec, "a").is_ok())));
        }
        scope.spawn(|| {
            for _ in 0..200 {
                let found = content(&dir);
                assert!(
                    [&claim(), &large]
                        .map(|spec| spec.render().expect("render"))
                        .contains(&found)
                );
            }
        });
    });
    assert_eq!(names(temp.path()), ["dra.vgpu-claim_a.json"]);
}
