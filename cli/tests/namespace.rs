//! Runs by root: what COMMAND sees in its mount namespace, and that nothing of it is visible on the host.

mod support;

use std::fs;
use std::path::Path;
use support::{Running, as_root, printed};

const LIBRARY: &str = concat!("/usr/lib/", vgpu_abi::arch!(triplet), "/libcuda.so.1");

#[test]
fn a_command_without_environment_meets_the_limits_all_the_same() {
    as_root("a_command_without_environment_meets_the_limits_all_the_same", |scene| {
        let script = "env -i /bin/sh -c 'cat /run/vgpu/a/limits; ls -a /run/vgpu'";
        let seen = printed(&mut scene.sh(&["--share", "a", "--memory", "20Gi"], script));
        assert!(
            seen.contains("memory 21474836480") && seen.contains("libcuda /run/vgpu/.driver/libcuda.so.1"),
            "{seen}"
        );
    });
}

#[test]
fn limits_are_read_only_and_the_ledger_is_writable() {
    as_root("limits_are_read_only_and_the_ledger_is_writable", |scene| {
        let script = "cd /run/vgpu/a; for what in limits ledger new; do \
                      if (: >>$what) 2>/dev/null; then echo $what writable; else echo $what fixed; fi; done; \
                      touch /run/vgpu/new 2>/dev/null || echo folder fixed";
        let seen = printed(&mut scene.sh(&["--share", "a"], script));
        assert_eq!(seen, "limits fixed\nledger writable\nnew fixed\nfolder fixed\n");
    });
}

#[test]
fn the_own_page_is_writable_and_those_of_others_are_not() {
    as_root("the_own_page_is_writable_and_those_of_others_are_not", |scene| {
        let first = Running::start(&mut scene.sh(&["--share", "a", "--cores", "30"], "echo ready; read line"));
        let script = "cd /run/vgpu/.arbitration/GPU-*1; ls | wc -l; for page in 00 01 02 node new; do \
                      if (: >>$page) 2>/dev/null; then echo $page writable; else echo $page fixed; fi; done";
        let flags = ["--share", "b", "--memory", "1Gi"];
        let seen = printed(&mut scene.sh(&flags, script));
        assert_eq!(seen, "65\n00 fixed\n01 writable\n02 fixed\nnode fixed\nnew fixed\n");
        let as_nobody = "cd /run/vgpu/.arbitration/GPU-*1; \
                         setpriv --reuid 65534 --clear-groups sh -c ': >>01 && : <node && echo open'";
        assert_eq!(printed(&mut scene.sh(&flags, as_nobody)), "open\n");
        assert_eq!(scene.weights(), [(0, 30_000)]);
        first.end();
        assert!(
            !scene.run_dir().join(".arbitration").exists(),
            "pages are left when no run is"
        );
    });
}

#[test]
fn the_loaders_folders_have_libvgpu_under_the_drivers_names() {
    as_root("the_loaders_folders_have_libvgpu_under_the_drivers_names", |scene| {
        let shim = scene.path("release/libvgpu.so");
        let before = fs::exists(LIBRARY).unwrap();
        let script = "for name in libcuda.so.1 libnvidia-ml.so.1; do \
                      cmp $LIBRARIES/$name $SHIM && stat -L -c %d:%i $LIBRARIES/$name; done; \
                      cmp /run/vgpu/.driver/libcuda.so.1 $REAL; stat -L -c %d:%i /run/vgpu/.lib/libcuda.so.1";
        let mut command = scene.sh(&[], script);
        command
            .env("LIBRARIES", Path::new(LIBRARY).parent().unwrap())
            .env("SHIM", &shim)
            .env("REAL", scene.path("release/soft-gpu/libcuda.so.1"));
        let seen = printed(&mut command);
        let inodes: Vec<_> = seen.lines().collect();
        assert_eq!(inodes.len(), 3, "{seen}");
        assert!(inodes.iter().all(|inode| *inode == inodes[0]), "one inode: {seen}");
        assert_eq!(fs::exists(LIBRARY).unwrap(), before, "the host's folder is untouched");
    });
}

#[test]
fn the_loaders_own_file_is_merged_where_it_exists() {
    as_root("the_loaders_own_file_is_merged_where_it_exists", |scene| {
        let script = "echo preload=$LD_PRELOAD; cat /etc/ld.so.preload 2>/dev/null; true";
        let seen = printed(&mut scene.sh(&[], script));
        let expected = "/run/vgpu/.lib/libvgpu-preload.so";
        match fs::read_to_string("/etc/ld.so.preload") {
            Ok(own) => assert_eq!(seen, format!("preload=\n{expected}\n{own}")),
            Err(_) => assert_eq!(seen, format!("preload={expected}\n")),
        }
    });
}

#[test]
fn the_host_sees_nothing_and_keeps_nothing() {
    as_root("the_host_sees_nothing_and_keeps_nothing", |scene| {
        let mounts = || fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
        let before = mounts();
        let running = Running::start(&mut scene.sh(&["--share", "a"], "echo ready; read line"));
        assert_eq!(mounts(), before);
        let inside: Vec<_> = fs::read_dir("/run/vgpu")
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        assert_eq!(inside, [".node"], "a folder to mount on that says whose it is");
        let second = Running::start(&mut scene.sh(&["--share", "b"], "echo ready; read line"));
        running.end();
        assert!(fs::exists("/run/vgpu").unwrap(), "the second needs it");
        second.end();
        assert!(!fs::exists("/run/vgpu").unwrap());
        assert_eq!(mounts(), before);
        assert_eq!(scene.shares(), [""; 0]);
    });
}

#[test]
fn what_outlives_command_keeps_its_namespace() {
    as_root("what_outlives_command_keeps_its_namespace", |scene| {
        let (go, seen) = (scene.path("state/go"), scene.path("state/seen"));
        // All descriptors closed, and no GPU in use. Not every sh supports descriptors of two digits.
        let script = format!(
            "bash -c 'exec 100>&- >/dev/null 2>&1 </dev/null; until [ -e {0} ]; do sleep 0.02; done; \
             ls -a /run/vgpu /run/vgpu/a >{1}.new; mv {1}.new {1}' & sleep 0.3",
            go.display(),
            seen.display()
        );
        printed(&mut scene.sh(&["--share", "a"], &script));
        assert_eq!(scene.shares(), ["a"]);
        printed(&mut scene.sh(&[], "true"));
        fs::write(&go, "").unwrap();
        support::eventually("it has looked", || seen.exists());
        let listed = fs::read_to_string(&seen).unwrap();
        assert!(listed.contains(".lib") && listed.contains("limits"), "{listed}");
        support::eventually("the share goes with it", || {
            printed(&mut scene.sh(&[], "true"));
            scene.shares().is_empty()
        });
        assert!(!fs::exists("/run/vgpu").unwrap());
    });
}

#[test]
fn a_folder_that_somebody_else_made_stays() {
    as_root("a_folder_that_somebody_else_made_stays", |scene| {
        fs::create_dir_all("/run/vgpu/claims/x/y").unwrap();
        assert_eq!(
            printed(&mut scene.sh(&["--share", "a"], "ls /run/vgpu")),
            "a\n",
            "claims are none of COMMAND's"
        );
        fs::remove_dir_all("/run/vgpu/claims").unwrap();
        printed(&mut scene.sh(&[], "true"));
        assert!(fs::exists("/run/vgpu").unwrap());
    });
}

#[test]
fn two_commands_of_one_share_see_one_ledger() {
    as_root("two_commands_of_one_share_see_one_ledger", |scene| {
        let running = Running::start(&mut scene.sh(
            &["--share", "a"],
            "printf mark >/run/vgpu/a/ledger; echo ready; read line",
        ));
        assert_eq!(
            printed(&mut scene.sh(&["--share", "a"], "head -c 4 /run/vgpu/a/ledger")),
            "mark"
        );
        running.end();
    });
}

#[test]
fn a_container_with_limits_of_its_own_is_left_alone() {
    as_root("a_container_with_limits_of_its_own_is_left_alone", |scene| {
        fs::create_dir_all("/run/vgpu/gpu-1").unwrap();
        fs::write("/run/vgpu/gpu-1/limits", "").unwrap();
        let line = support::refused(&mut scene.sh(&[], "true"), 2);
        assert!(line.contains("/run/vgpu/gpu-1/limits"), "{line}");
    });
}

#[test]
fn a_command_that_leaves_root_still_reaches_its_ledger() {
    as_root("a_command_that_leaves_root_still_reaches_its_ledger", |scene| {
        let script = "setpriv --reuid 65534 --clear-groups sh -c ': >>/run/vgpu/a/ledger && echo open'";
        assert_eq!(printed(&mut scene.sh(&["--share", "a"], script)), "open\n");
    });
}
