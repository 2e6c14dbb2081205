//! The release (dist/): the limit is enforced for a client that does not know it, as an ordinary user and as
//! root.

mod support;

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use support::{Running, Scene, as_root, as_user, is_root, may_do_as_root, printed, refused};

const GIB: u64 = 1 << 30;
const GRANULE: u64 = 2 << 20;

/// The output folder of `make dist`.
fn dist() -> PathBuf {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../dist");
    let dist = std::env::var_os("VGPU_DIST").map_or(workspace, PathBuf::from);
    for name in [
        "vgpu",
        "libvgpu.so",
        "libvgpu-preload.so",
        "soft-gpu/libcuda.so.1",
        "soft-gpu/libnvidia-ml.so.1",
    ] {
        assert!(
            dist.join(name).is_file(),
            "{}: missing; run `make dist`",
            dist.join(name).display()
        );
    }
    dist
}

/// Puts the release into the scene's dist/, and the client beside it.
fn prepare(scene: &Scene) {
    let client = vgpu_built_from::program("gpu-client");
    for (from, to) in [(dist(), "dist"), (client, "client")] {
        let status = Command::new("cp").arg("-rL").arg(from).arg(scene.path(to)).status();
        assert!(status.unwrap().success());
    }
}

/// `vgpu run --soft-gpu FLAGS -- WRAP... client ARGS`.
fn client(scene: &Scene, flags: &[&str], wrap: &[&str], args: &[&str]) -> Command {
    let client = scene.path("client").display().to_string();
    let all = ["run", "--soft-gpu"].iter().chain(flags).chain(&["--"]).chain(wrap);
    let all: Vec<_> = all.copied().chain([&*client]).chain(args.iter().copied()).collect();
    scene.vgpu_in("dist", all)
}

fn both(body: impl Fn(&Scene) + Copy + Send + 'static) {
    as_user(body);
    if is_root() && may_do_as_root() {
        as_root("limits_hold", body);
    }
}

#[test]
fn a_client_sees_one_gpu_with_its_share_in_cuda_and_nvml() {
    both(|scene| {
        prepare(scene);
        for gpu in ["0", "1"] {
            let text = printed(&mut client(scene, &["--memory", "20Gi", "--gpu", gpu], &[], &["sizes"]));
            let lines: Vec<_> = text.lines().collect();
            let total = (20 * GIB).to_string();
            assert_eq!(lines[..4], ["1 1", &total, &format!("{total} 1"), &total], "{text}");
            assert!(lines[4].starts_with("GPU-") && lines[4] == lines[5], "{text}");
        }
    });
}

/// Makes software GPUs of this profile. Returns what makes a client on them that takes one step under these flags.
fn on_gpus_of<'a>(scene: &'a Scene, profile: &str) -> impl Fn(&[&str], &str) -> Command + 'a {
    let file = scene.path("own.profile");
    std::fs::write(&file, profile).unwrap();
    // The scene's folder is root's, and so is this process.
    let state = scene.path("own");
    std::fs::create_dir(&state).unwrap();
    std::fs::set_permissions(&state, PermissionsExt::from_mode(0o1777)).unwrap();
    move |flags, step| {
        let mut client = client(scene, flags, &[], &[step]);
        client.envs([("SOFT_GPU_PROFILE", &file), ("SOFT_GPU_STATE", &state)]);
        client
    }
}

/// As on a machine whose GPU has the system's memory.
#[test]
fn a_gpu_without_a_figure_of_its_memory_is_shared_by_the_size_that_is_given() {
    both(|scene| {
        prepare(scene);
        let run = on_gpus_of(scene, "unified = 0\n");
        let line = refused(&mut run(&["--memory", "20Gi"], "sizes"), 2);
        for words in ["--gpu 0: ", "it has 1 (GPU-", "--gpu-memory 'Software GPU GB10=96Gi'"] {
            assert!(line.contains(words), "{line}");
        }
        let size = ["--gpu-memory", "Software GPU GB10=40Gi", "--memory"];
        let line = refused(&mut run(&[&size[..], &["41Gi"]].concat(), "sizes"), 2);
        assert!(line.contains("GPU 0 has only 40Gi"), "{line}");
        let fits = [&size[..], &["20Gi"]].concat();
        let total = (20 * GIB).to_string();
        let text = printed(&mut run(&fits, "sizes"));
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[..4], ["1 1", &total, &format!("{total} 1"), &total], "{text}");
        assert_eq!(printed(&mut run(&fits, "limit")), "2\n0\n0 2\n");
    });
}

/// The share is in the second instance; CUDA of this driver gives a process the first one unless another is named.
#[test]
fn a_gpu_in_mig_mode_is_shared_by_its_instances() {
    both(|scene| {
        prepare(scene);
        let run = on_gpus_of(scene, "gpus = 1\nmig = 0: 3g.40gb@0, 1g.10gb@4\n");
        let line = refused(&mut run(&["--memory", "2Gi"], "sizes"), 2);
        assert!(line.contains("--gpu 0: this GPU is in MIG mode"), "{line}");
        let instances: Vec<&str> = line.split("MIG-").skip(1).collect();
        assert!(
            instances[0].contains("(3g.40gb@0 of GPU 0)") && instances[1].contains("(1g.10gb@4 of GPU 0)"),
            "{line}"
        );
        let uuid = format!("MIG-{}", &instances[1][..36]);
        let line = refused(&mut run(&["--gpu", &uuid, "--memory", "10Gi"], "sizes"), 2);
        assert!(line.contains("instance 1g.10gb@4 of GPU 0 has only 9984Mi"), "{line}");
        for (flags, memory) in [
            (vec![], 9_984 << 20),
            (vec!["--memory", "2Gi", "--cores", "30"], 2 * GIB),
        ] {
            let flags = [&["--gpu", uuid.as_str()][..], &flags].concat();
            let text = printed(&mut run(&flags, "sizes"));
            let lines: Vec<_> = text.lines().collect();
            let total = memory.to_string();
            assert_eq!(lines[..4], ["1 1", &total, &format!("{total} 1"), &total], "{text}");
            assert_eq!(
                lines[4..6],
                [&uuid, &uuid.replacen("MIG", "GPU", 1)],
                "CUDA says no prefix: {text}"
            );
            assert_eq!(printed(&mut run(&flags, "limit")), "2\n0\n0 2\n");
        }
    });
}

#[test]
fn the_limit_is_reached_and_not_passed() {
    both(|scene| {
        prepare(scene);
        let text = printed(&mut client(scene, &["--memory", "20Gi"], &[], &["limit"]));
        assert_eq!(text, "2\n0\n0 2\n", "too much, all of it, one granule more");
    });
}

#[test]
fn commands_of_one_share_count_together_and_others_do_not() {
    both(|scene| {
        prepare(scene);
        let bytes = (15 * GIB).to_string();
        let shared = ["--share", "a", "--memory", "20Gi"];
        let first = Running::start(&mut client(scene, &shared, &[], &["hold", &bytes]));
        let beyond = support::output(&mut client(scene, &["--share", "a"], &[], &["hold", &bytes]));
        assert_eq!(support::stdout(&beyond), "cuMemAlloc: 2\n");
        let other = Running::start(&mut client(scene, &["--memory", "20Gi"], &[], &["hold", &bytes]));
        assert_eq!((first.end().0, other.end().0), (Some(0), Some(0)));
        // The memory of the first client is released.
        let again = Running::start(&mut client(scene, &shared, &[], &["hold", &bytes]));
        assert_eq!(again.end().0, Some(0));
        assert_eq!(scene.shares(), [""; 0]);
    });
}

#[test]
fn nothing_asked_is_the_whole_gpu() {
    both(|scene| {
        prepare(scene);
        let bytes = (60 * GIB / GRANULE * GRANULE).to_string();
        assert_eq!(
            Running::start(&mut client(scene, &[], &[], &["hold", &bytes])).end().0,
            Some(0)
        );
    });
}

#[test]
fn a_command_that_closes_its_descriptors_still_holds_its_share() {
    both(|scene| {
        prepare(scene);
        let bytes = GIB.to_string();
        // Not every sh supports descriptors of two digits.
        let close = ["bash", "-c", "exec 100>&- \"$@\"", "bash"];
        let mut first = Running::start(&mut client(
            scene,
            &["--share", "a", "--memory", "20Gi"],
            &close,
            &["hold", &bytes],
        ));
        // Without its parent, only the ledger shows that the process exists.
        let input = first.0.stdin.take(); // which wait() would close
        first.signal(libc::SIGKILL);
        first.0.wait().unwrap();
        let line = refused(
            &mut client(scene, &["--share", "a", "--memory", "10Gi"], &[], &["sizes"]),
            2,
        );
        assert!(line.contains("20Gi"), "{line}");
        drop(input);
        support::eventually("the share goes with it", || {
            support::output(&mut client(
                scene,
                &["--share", "a", "--memory", "10Gi"],
                &[],
                &["sizes"],
            ))
            .status
            .success()
        });
    });
}

#[test]
fn roots_run_holds_with_a_cleared_environment() {
    as_root("roots_run_holds_with_a_cleared_environment", |scene| {
        prepare(scene);
        let text = printed(&mut client(scene, &["--memory", "20Gi"], &["env", "-i"], &["sizes"]));
        assert!(text.starts_with(&format!("1 1\n{}\n", 20 * GIB)), "{text}");
    });
}

#[test]
fn a_users_run_holds_beside_roots_and_after_its_kill() {
    as_root("a_users_run_holds_beside_roots_and_after_its_kill", |scene| {
        prepare(scene);
        let user = |what: &str| {
            let mut command = client(scene, &["--memory", "20Gi"], &[], &["limit"]);
            command
                .env("XDG_RUNTIME_DIR", "/nowhere")
                .env_remove("SOFT_GPU_STATE")
                .uid(65534)
                .gid(65534);
            assert_eq!(printed(&mut command), "2\n0\n0 2\n", "{what}");
        };
        let mut root = Running::start(&mut client(scene, &[], &[], &["hold", "1"]));
        user("beside root's");
        root.signal(libc::SIGKILL);
        root.0.wait().unwrap();
        user("after it was killed");
        printed(&mut client(scene, &[], &[], &["sizes"]));
        support::eventually("nothing is left", || {
            printed(&mut client(scene, &[], &[], &["sizes"]));
            !std::fs::exists("/run/vgpu").unwrap()
        });
    });
}

#[test]
fn roots_run_without_mounts_holds_a_command_that_leaves_root() {
    as_root("roots_run_without_mounts_holds_a_command_that_leaves_root", |scene| {
        prepare(scene);
        std::fs::set_permissions(scene.path("state"), PermissionsExt::from_mode(0o1777)).unwrap();
        let leave = ["setpriv", "--reuid", "65534", "--clear-groups"];
        let vgpu = client(scene, &["--memory", "20Gi"], &leave, &["limit"]);
        let mut without_mounts = scene.around(&vgpu, "setpriv");
        without_mounts
            .args(["--bounding-set", "-sys_admin", "--inh-caps", "-sys_admin"])
            .arg(vgpu.get_program())
            .args(vgpu.get_args());
        let output = support::output(&mut without_mounts);
        assert_eq!(
            (support::stdout(&output).as_str(), support::stderr(&output).as_str()),
            ("2\n0\n0 2\n", "")
        );
    });
}

#[test]
fn visible_devices_are_counted_from_the_shares_gpu() {
    both(|scene| {
        prepare(scene);
        let flags = ["--memory", "20Gi", "--gpu", "1"];
        for value in ["0", "1"] {
            let mut command = client(scene, &flags, &[], &["limit"]);
            assert_eq!(
                printed(command.env("CUDA_VISIBLE_DEVICES", value)),
                "2\n0\n0 2\n",
                "the caller's {value}"
            );
        }
        let own = ["env", "CUDA_VISIBLE_DEVICES=0"];
        assert_eq!(printed(&mut client(scene, &flags, &own, &["limit"])), "2\n0\n0 2\n");
        let none = ["env", "CUDA_VISIBLE_DEVICES=-1"];
        let output = support::output(&mut client(scene, &flags, &none, &["limit"]));
        assert_eq!(
            (support::stdout(&output).as_str(), support::stderr(&output).as_str()),
            ("cuInit: 100\n", "")
        );
    });
}

#[test]
fn a_bad_variable_of_the_software_gpu_is_named_in_one_line() {
    as_user(|scene| {
        prepare(scene);
        let profile = scene.path("profile");
        std::fs::write(&profile, "nonsense\n").unwrap();
        let fifo = scene.path("fifo");
        assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
        for (variable, value) in [
            ("SOFT_GPU_STATE", PathBuf::from("/dev/null")),
            ("SOFT_GPU_STATE", PathBuf::from("/proc/nowhere")),
            ("SOFT_GPU_PROFILE", PathBuf::from("/nowhere")),
            ("SOFT_GPU_PROFILE", profile),
            ("SOFT_GPU_PROFILE", fifo),
            ("SOFT_GPU_PROFILE", PathBuf::from("/dev/zero")),
        ] {
            let line = refused(client(scene, &[], &[], &["sizes"]).env(variable, &value), 2);
            assert!(
                line.starts_with(&format!("vgpu run: {variable}={}: ", value.display())),
                "{line}"
            );
        }
    });
}

/// The other GPUs can be used, and a GPU that is lost or in MIG mode is named.
#[test]
fn a_lost_gpu_takes_no_other_with_it() {
    as_user(|scene| {
        prepare(scene);
        std::fs::write(scene.path("profile"), "gpus = 3\n").unwrap();
        let on = |gpu: &str| {
            let mut command = client(scene, &["--gpu", gpu, "--memory", "1Gi"], &[], &["init", "info"]);
            command.env("SOFT_GPU_PROFILE", scene.path("profile"));
            command
        };
        printed(&mut on("0"));
        std::fs::write(scene.path("state/control"), "mig 1\n").unwrap();
        let line = refused(&mut on("1"), 2);
        assert!(
            line.contains("it has 0 (GPU-") && line.contains("is in MIG mode"),
            "{line}"
        );
        std::fs::write(scene.path("state/control"), "lost 1\n").unwrap();
        for gpu in ["0", "2"] {
            let shown = printed(&mut on(gpu));
            assert!(shown.contains(&format!("info 0 {GIB} {GIB}")), "GPU {gpu}: {shown}");
        }
        let line = refused(&mut on("1"), 2);
        for part in ["--gpu 1", "it has 0 (GPU-", ", 2 (GPU-", "GPU 1: ", "cannot be read"] {
            assert!(line.contains(part), "{part}: {line}");
        }
    });
}

/// Concurrent runs each measure the memory of a context although NVML lists host PIDs and the contexts of the other
/// runs come and go.
#[test]
fn many_runs_at_once_measure_their_contexts() {
    as_user(|scene| {
        prepare(scene);
        let profile = "gpus = 1\nmemory = 80GiB\ncontext_cost = 300MiB\nnvml_pids = host\n";
        std::fs::write(scene.path("profile"), profile).unwrap();
        let start = || {
            let mut command = scene.vgpu_in("dist", ["run", "--soft-gpu", "--memory", "1Gi", "--", "true"]);
            command.env("SOFT_GPU_PROFILE", scene.path("profile"));
            command.stderr(Stdio::piped()).spawn().expect("vgpu")
        };
        let runs: Vec<_> = (0..40).map(|_| start()).collect();
        for run in runs {
            let output = run.wait_with_output().expect("its end");
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success() && said.is_empty(), "{}: {said}", output.status);
        }
    });
}
