use super::*;
use crate::run_dir::RunDir;
use std::process::{Command, Stdio};

struct Scene {
    _tmp: tempfile::TempDir,
    run_dir: RunDir,
}

fn scene() -> Scene {
    let (_tmp, run_dir) = crate::run_dir::tests::temporary();
    Scene { _tmp, run_dir }
}

fn limits(share: &str) -> Limits {
    Limits::of_memory(
        share,
        "GPU-aa",
        1 << 30,
        "/real/libcuda.so.1",
        "/real/libnvidia-ml.so.1",
    )
}

fn links() -> Links {
    Links {
        shim: "/dist/libvgpu.so".into(),
        preload: "/dist/libvgpu-preload.so".into(),
        driver: Driver {
            libcuda: "/real/libcuda.so.1".into(),
            libnvidia_ml: "/real/libnvidia-ml.so.1".into(),
        },
        soft_gpu: Some(SoftGpu {
            state: Some("/state".into()),
            profile: None,
        }),
    }
}

impl Scene {
    fn create(&self, name: &str) -> Held {
        let locked = self.run_dir.lock().unwrap();
        create(&self.run_dir, &locked, name, limits(name), &links()).unwrap()
    }

    fn find(&self, name: &str) -> Result<Option<(ShareFolder, Existing)>, ShareError> {
        let locked = self.run_dir.lock().unwrap();
        sweep(&self.run_dir, &locked);
        find(&self.run_dir, &locked, name)
    }

    fn join(&self, name: &str) -> Held {
        let (folder, existing) = self.find(name).unwrap().unwrap();
        let locked = self.run_dir.lock().unwrap();
        join(&self.run_dir, &locked, folder, existing.limits).unwrap()
    }
}

#[test]
fn a_share_goes_with_its_last_holder() {
    let scene = scene();
    let first = scene.create("a");
    let second = scene.join("a");
    first.release(|| panic!("one is left"));
    assert!(scene.find("a").unwrap().is_some(), "the second holds it");
    let mut last = false;
    second.release(|| last = true);
    assert!(last);
    assert!(scene.find("a").unwrap().is_none());
}

#[test]
fn what_was_made_is_found_again() {
    let scene = scene();
    let held = scene.create("a");
    let (folder, existing) = scene.find("a").unwrap().unwrap();
    assert_eq!(
        existing,
        Existing {
            limits: limits("a"),
            soft_gpu: true
        }
    );
    assert_eq!(folder.driver(), Some(links().driver));
    assert_eq!(folder.soft_gpu(), links().soft_gpu);
    assert_eq!(
        fs::read(folder.share("a").join(LEDGER)).unwrap(),
        ledger::image(&limits("a"))
    );
    for name in SHIM_NAMES {
        assert_eq!(
            fs::read_link(folder.lib().join(name)).unwrap(),
            Path::new("/dist/libvgpu.so")
        );
    }
    let mode = |name| fs::metadata(folder.share("a").join(name)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(LIMITS), mode(LEDGER)), (0o444, 0o666));
    held.release(|| ());
}

#[test]
fn a_killed_holder_leaves_nothing_to_the_next_run() {
    let scene = scene();
    // As after SIGKILL: the descriptor is closed, the folder is there.
    drop(scene.create("a"));
    assert!(scene.run_dir.path().join("a").exists());
    assert!(scene.find("b").unwrap().is_none());
    assert!(!scene.run_dir.path().join("a").exists());
}

#[test]
fn a_half_made_share_is_removed() {
    let scene = scene();
    fs::create_dir_all(scene.run_dir.path().join("a/shares/a")).unwrap();
    fs::create_dir_all(scene.run_dir.path().join(".run-1-1")).unwrap();
    assert!(scene.find("a").unwrap().is_none());
    assert!(!scene.run_dir.path().join(".run-1-1").exists());
    scene.create("a").release(|| ());
}

#[test]
fn a_process_that_inherited_the_lock_holds_the_share() {
    let scene = scene();
    let held = scene.create("a");
    let copy = held.lock.try_clone().unwrap();
    let mut child = Command::new("sleep")
        .arg("60")
        .stdin(Stdio::from(copy))
        .spawn()
        .unwrap();
    held.release(|| panic!("the child holds it"));
    assert!(scene.find("a").unwrap().is_some());
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(scene.find("a").unwrap().is_none());
}

#[test]
fn a_lane_in_the_ledger_holds_the_share() {
    let scene = scene();
    let held = scene.create("a");
    let ledger = OpenOptions::new()
        .write(true)
        .open(held.folder.share("a").join(LEDGER))
        .unwrap();
    let lane = locks::exclusive((ledger::FIRST_LANE_AT + 7 * ledger::LINE) as u64, 1);
    nix::fcntl::fcntl(&ledger, nix::fcntl::FcntlArg::F_OFD_SETLK(&lane)).unwrap();
    held.release(|| panic!("the lane's owner holds it"));
    assert!(scene.find("a").unwrap().is_some());
    drop(ledger);
    assert!(scene.find("a").unwrap().is_none());
}

#[test]
fn damaged_limits_of_a_held_share_are_named() {
    let scene = scene();
    let held = scene.create("a");
    let file = held.folder.share("a").join(LIMITS);
    fs::remove_file(&file).unwrap();
    fs::write(&file, limits("a").render().replace("cores 0", "cores 9")).unwrap();
    let line = scene.find("a").unwrap_err().to_string();
    assert!(
        line.contains("share \"a\"") && line.contains("checksum") && line.contains(&*file.to_string_lossy()),
        "{line}"
    );
    fs::remove_file(&file).unwrap();
    assert!(
        scene.find("a").is_err(),
        "a missing file is no share that can be joined"
    );
    held.release(|| ());
}
