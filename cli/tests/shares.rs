//! Shares are joined by name and removed with their last user, however that ends; hostile folders are
//! refused.

mod support;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::process::Stdio;
use support::{Running, as_root, as_user, eventually, output, printed, refused, signal_to, stderr, stdout};
use vgpu_abi::limits::Limits;

const WAIT: &str = "echo ready; read line";

#[test]
fn limits_are_what_was_asked_for() {
    as_user(|scene| {
        let flags = ["--memory", "20Gi", "--cores", "25", "--share", "a", "--gpu", "1"];
        let text = printed(&mut scene.sh(&flags, "cat $VGPU_RUN_DIR/a/limits"));
        let limits = Limits::parse(text.as_bytes()).unwrap();
        assert_eq!((limits.memory, limits.cores, &*limits.share), (20 << 30, 25, "a"));
        assert_eq!(limits.gpu, "GPU-00000000-0000-0000-0000-000000000002");
        assert_eq!(limits.libcuda, scene.path("release/soft-gpu/libcuda.so.1"));
        let by_uuid = ["--gpu", "GPU-00000000-0000-0000-0000-000000000001"];
        let text = printed(&mut scene.sh(&by_uuid, "cat $VGPU_RUN_DIR/*/limits"));
        let limits = Limits::parse(text.as_bytes()).unwrap();
        assert_eq!((limits.memory, limits.cores), ((80 << 30) - (2 << 20), 0));
        assert!(limits.gpu.ends_with('1'));
    });
}

#[test]
fn a_second_command_joins_with_the_shares_limits_and_no_others() {
    as_user(|scene| {
        let first = Running::start(&mut scene.sh(&["--share", "a", "--memory", "20Gi", "--cores", "25"], WAIT));
        let read = "stat -c %i $VGPU_RUN_DIR/a/ledger; cat $VGPU_RUN_DIR/a/limits";
        let joined = printed(&mut scene.sh(&["--share", "a"], read));
        assert_eq!(
            joined,
            printed(&mut scene.sh(&["--share", "a", "--memory", "20Gi", "--gpu", "0"], read))
        );
        assert!(joined.contains("memory 21474836480"), "{joined}");
        // The share remembers that it is on the software GPU, so --soft-gpu is not needed.
        assert_eq!(
            joined,
            printed(&mut scene.vgpu(["run", "--share", "a", "--", "sh", "-c", read]))
        );
        for (flags, words) in [
            (&["--memory", "10Gi"][..], ["--memory", "10Gi", "20Gi"]),
            (&["--cores", "30"], ["--cores", "30", "25"]),
            (
                &["--gpu", "1"],
                ["--gpu", "1", "GPU-00000000-0000-0000-0000-000000000001"],
            ),
        ] {
            let all: Vec<_> = ["--share", "a"].iter().chain(flags).copied().collect();
            let line = refused(&mut scene.sh(&all, "echo never"), 2);
            assert!(
                words.iter().all(|word| line.contains(word)) && line.contains("\"a\""),
                "{line}"
            );
        }
        let line = refused(
            scene
                .sh(&["--share", "a"], "echo never")
                .env("SOFT_GPU_STATE", "/elsewhere"),
            2,
        );
        assert!(
            line.contains("SOFT_GPU_STATE=/elsewhere") && line.contains("/state"),
            "{line}"
        );
        assert_eq!(first.end().0, Some(1));
        assert_eq!(scene.shares(), [""; 0]);
    });
}

#[test]
fn shares_of_a_gpu_have_a_slot_each_and_say_what_they_are_entitled_to() {
    as_user(|scene| {
        let flags = ["--share", "a", "--memory", "20Gi", "--cores", "30"];
        let first = Running::start(&mut scene.sh(&flags, WAIT));
        assert_eq!(scene.weights(), [(0, 30_000)]);
        let script = "cat $VGPU_RUN_DIR/b/limits; cd $VGPU_RUN_DIR/.arbitration/GPU-*1; ls | wc -l; \
                      for page in 01 node; do wc -c <$page; done; printf x >>01 && echo writable";
        let flags = ["--share", "b", "--memory", "20Gi", "--priority", "high"];
        let seen = printed(&mut scene.sh(&flags, script));
        assert!(
            seen.contains("\nslot 1\n") && seen.contains("\npriority High\n"),
            "{seen}"
        );
        assert!(seen.ends_with("65\n4096\n4096\nwritable\n"), "{seen}");
        assert_eq!(scene.weights(), [(0, 30_000)], "its slot is free again");
        // After SIGKILL the next run removes the share.
        let killed = Running::start(&mut scene.sh(&["--share", "c", "--cores", "50"], WAIT));
        assert_eq!(scene.weights(), [(0, 30_000), (1, 50_000)]);
        killed.signal(libc::SIGKILL);
        killed.end();
        eventually("what the killed one had is free", || {
            printed(&mut scene.sh(&[], "true"));
            scene.weights() == [(0, 30_000)]
        });
        let slot = printed(&mut scene.sh(&["--cores", "70"], "grep slot $VGPU_RUN_DIR/run/limits"));
        assert_eq!(slot, "slot 1\n");
        first.end();
        assert!(!scene.run_dir().join(".arbitration").exists());
    });
}

#[test]
fn cores_beyond_what_the_gpu_has_are_refused_and_other_gpus_are_not_asked() {
    as_user(|scene| {
        let first = Running::start(&mut scene.sh(&["--share", "a", "--cores", "60"], WAIT));
        let line = refused(&mut scene.sh(&["--share", "b", "--cores", "50"], "echo never"), 2);
        for words in ["--cores 50", "GPU 0", "\"a\" has 60", "at most 40", "\"b\""] {
            assert!(line.contains(words), "{words}: {line}");
        }
        assert_eq!(scene.shares(), ["a"]);
        assert_eq!(scene.weights(), [(0, 60_000)]);
        printed(&mut scene.sh(&["--cores", "50", "--gpu", "1"], "true"));
        printed(&mut scene.sh(&["--cores", "40", "--compute-policy", "guaranteed"], "true"));
        let line = refused(&mut scene.sh(&["--share", "a", "--priority", "high"], "echo never"), 2);
        assert!(line.contains("--priority high: share \"a\" has low"), "{line}");
        first.end();
    });
}

#[test]
fn commands_without_a_name_have_shares_of_their_own() {
    as_user(|scene| {
        let first = Running::start(&mut scene.sh(&[], WAIT));
        let second = Running::start(&mut scene.sh(&["--memory", "1Gi"], WAIT));
        assert_eq!(scene.shares().len(), 2);
        assert_eq!((first.end().0, second.end().0), (Some(1), Some(1)));
        assert_eq!(scene.shares(), [""; 0]);
    });
}

#[test]
fn many_at_once_make_one_share() {
    as_user(|scene| {
        let script = "stat -c %i $VGPU_RUN_DIR/a/ledger; read line";
        let spawn = || {
            let mut command = scene.sh(&["--share", "a", "--memory", "1Gi"], script);
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
        };
        // In each round all of them start before any ends, so they use one share.
        for _ in 0..3 {
            let mut children: Vec<_> = (0..12).map(|_| spawn()).collect();
            let inodes: Vec<_> = children
                .iter_mut()
                .map(|child| {
                    let mut line = String::new();
                    let stdout = child.stdout.as_mut().unwrap();
                    std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut line).unwrap();
                    line
                })
                .collect();
            assert!(inodes[0].trim().parse::<u64>().is_ok(), "{inodes:?}");
            assert!(inodes.iter().all(|inode| *inode == inodes[0]), "{inodes:?}");
            for mut child in children {
                drop(child.stdin.take());
                child.wait().unwrap();
            }
            assert_eq!(scene.shares(), [""; 0]);
        }
    });
}

#[test]
fn a_storm_of_short_runs_leaves_nothing() {
    as_user(|scene| {
        std::thread::scope(|threads| {
            for _ in 0..4 {
                // Each thread's children stay in the scene's mount namespace, which threads inherit.
                threads.spawn(|| {
                    for _ in 0..15 {
                        let output = output(
                            &mut scene.sh(&["--share", "a", "--memory", "1Gi"], "test -s $VGPU_RUN_DIR/a/ledger"),
                        );
                        assert!(output.status.success(), "{}", stderr(&output));
                    }
                });
            }
        });
        assert_eq!(scene.shares(), [""; 0]);
    });
}

#[test]
fn a_share_outlives_a_killed_vgpu_and_goes_with_its_command() {
    as_user(|scene| {
        let script = "echo ready; echo $$ > \"$XDG_RUNTIME_DIR/pid\"; exec sleep 60";
        let mut running = Running::start(&mut scene.sh(&["--share", "a", "--memory", "2Gi"], script));
        let pid_file = scene.path("runtime/pid");
        eventually("COMMAND wrote its PID", || {
            fs::read_to_string(&pid_file).is_ok_and(|text| text.ends_with('\n'))
        });
        let command: u32 = fs::read_to_string(&pid_file).unwrap().trim().parse().unwrap();
        running.signal(libc::SIGKILL);
        running.0.wait().unwrap();
        let joined = printed(&mut scene.sh(&["--share", "a"], "cat $VGPU_RUN_DIR/a/limits"));
        assert!(joined.contains("memory 2147483648"), "{joined}");
        assert_eq!(scene.shares(), ["a"], "COMMAND still holds it");
        signal_to(command, libc::SIGKILL);
        eventually("COMMAND is gone", || {
            !fs::exists(format!("/proc/{command}/exe")).unwrap() || zombie(command)
        });
        let other = printed(&mut scene.sh(&["--share", "b"], "ls -d $VGPU_RUN_DIR/../../a 2>/dev/null; echo end"));
        assert_eq!(other, "end\n", "the next run removes it");
        assert_eq!(scene.shares(), [""; 0]);
    });
}

fn zombie(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).map_or(true, |stat| stat.contains(") Z "))
}

#[test]
fn a_background_process_of_command_holds_the_share() {
    as_user(|scene| {
        let script = "sleep 60 >/dev/null 2>&1 & echo $!";
        let pid: u32 = printed(&mut scene.sh(&["--share", "a", "--memory", "2Gi"], script))
            .trim()
            .parse()
            .unwrap();
        assert_eq!(scene.shares(), ["a"]);
        let line = refused(&mut scene.sh(&["--share", "a", "--memory", "3Gi"], "true"), 2);
        assert!(line.contains("2Gi") && line.contains("3Gi"), "{line}");
        signal_to(pid, libc::SIGKILL);
        eventually("it is gone", || zombie(pid));
        assert_eq!(
            stdout(&output(&mut scene.sh(&["--share", "a", "--memory", "3Gi"], "echo new"))),
            "new\n"
        );
    });
}

#[test]
fn hostile_folders_are_refused_and_named() {
    as_root("hostile_folders_are_refused_and_named", |scene| {
        const NOBODY: u32 = 65534;
        let folder = format!("/tmp/vgpu-run-{NOBODY}");
        let run = || {
            let mut command = scene.sh(&[], "echo never");
            std::os::unix::process::CommandExt::uid(&mut command, NOBODY);
            command.env_remove("XDG_RUNTIME_DIR");
            command
        };
        let refused = |what: &str| {
            let line = refused(&mut run(), 2);
            assert!(line.contains(&folder), "{what}: {line}");
        };
        fs::create_dir(&folder).unwrap();
        refused("another user's folder");
        chown(&folder, Some(NOBODY), None).unwrap();
        refused("a folder open to others");
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).unwrap();
        fs::rename(&folder, "/tmp/good").unwrap();
        symlink("/tmp/good", &folder).unwrap();
        refused("a symlink to a good folder");
        fs::remove_file(&folder).unwrap();
        fs::write(&folder, "").unwrap();
        refused("a file");
        fs::remove_file(&folder).unwrap();
        chown(scene.path("state"), Some(NOBODY), None).unwrap();
        assert_eq!(printed(&mut run()), "never\n", "a missing one is made");
        let meta = fs::metadata(&folder).unwrap();
        assert_eq!((meta.uid(), meta.mode() & 0o777), (NOBODY, 0o700));
    });
}
