//! Invalid values for every flag, and machines that do not support `vgpu run`: one line, exit status 2, and
//! nothing is started.

mod support;

use support::{as_user, output, refused, stderr, stdout};

#[test]
fn nonsense_for_every_flag_is_one_line_that_names_it() {
    as_user(|scene| {
        for (flags, words) in [
            (&["--memory", "20"][..], &["--memory", "\"20\"", "64Mi"][..]),
            (&["--memory", "-1Gi"], &["--memory", "\"-1Gi\""]),
            (&["--memory", "20GB"], &["--memory", "\"20GB\"", "20Gi"]),
            (&["--memory", ""], &["--memory", "empty"]),
            (&["--memory", "100Gi"], &["--memory", "100Gi", "81918Mi"]),
            (&["--cores", "101"], &["--cores", "\"101\"", "100"]),
            (&["--cores", "250m"], &["--cores", "\"250m\""]),
            (
                &["--compute-policy", "most"],
                &["--compute-policy", "\"most\"", "balanced"],
            ),
            (
                &["--compute-policy", "guaranteed"],
                &["--compute-policy", "\"run\"", "--cores"],
            ),
            (&["--priority", "0"], &["--priority", "\"0\"", "high, low"]),
            (&["--share", "../x"], &["--share", "\"../x\""]),
            (&["--share", "A"], &["--share", "\"A\""]),
            (&["--gpu", "2"], &["--gpu", "2", "0 (GPU-"]),
            (&["--gpu", "nine"], &["--gpu", "\"nine\""]),
            (
                &["--gpu", "GPU-ffffffff-ffff-ffff-ffff-ffffffffffff"],
                &["--gpu", "GPU-ffffffff"],
            ),
            (&["--soft-gpu"], &["--soft-gpu", "twice"]),
            (&["--wrong"], &["--wrong"]),
        ] {
            let line = refused(&mut scene.sh(flags, "echo never"), 2);
            assert!(words.iter().all(|word| line.contains(word)), "{flags:?}: {line}");
            assert!(line.starts_with("vgpu"), "{line}");
        }
        assert!(refused(&mut scene.vgpu(["run", "--soft-gpu"]), 2).contains("COMMAND"));
        assert!(refused(&mut scene.vgpu(["run", "--soft-gpu", "true"]), 2).contains("\"true\""));
        assert!(refused(&mut scene.vgpu::<&str>([]), 2).contains("vgpu run"));
        assert_eq!(scene.shares(), [""; 0]);
    });
}

#[test]
fn a_machine_without_a_driver_is_told_of_soft_gpu() {
    if [
        concat!("/usr/lib/", vgpu_abi::arch!(triplet), "/libnvidia-ml.so.1"),
        "/usr/lib64/libnvidia-ml.so.1",
        "/usr/local/nvidia/lib64/libnvidia-ml.so.1",
    ]
    .iter()
    .any(|path| std::fs::exists(path).unwrap_or(true))
    {
        return vgpu_skip::skip(
            "a_machine_without_a_driver_is_told_of_soft_gpu",
            "this machine has an NVIDIA driver",
        );
    }
    as_user(|scene| {
        let line = refused(&mut scene.vgpu(["run", "--", "true"]), 2);
        for part in [
            "no NVIDIA driver",
            "--soft-gpu",
            "LD_LIBRARY_PATH",
            "/usr/local/nvidia/lib64",
        ] {
            assert!(line.contains(part), "{part}: {line}");
        }
    });
}

#[test]
fn a_bad_variable_of_the_software_gpu_is_named() {
    as_user(|scene| {
        let line = refused(scene.sh(&[], "echo never").env("SOFT_GPU_STATE", "/tmp/bad"), 2);
        assert!(line.contains("SOFT_GPU_STATE=/tmp/bad: not good"), "{line}");
        assert_eq!(scene.shares(), [""; 0]);
    });
}

#[test]
fn a_release_that_is_not_whole_is_named() {
    as_user(|scene| {
        std::fs::remove_file(scene.path("release/soft-gpu/libnvidia-ml.so.1")).unwrap();
        assert!(refused(&mut scene.sh(&[], "true"), 2).contains("--soft-gpu"));
        std::fs::remove_file(scene.path("release/libvgpu.so")).unwrap();
        let line = refused(&mut scene.sh(&[], "true"), 2);
        assert!(line.contains("libvgpu.so") && line.contains("/usr/lib/vgpu"), "{line}");
    });
}

#[test]
fn help_and_version_are_no_mistakes() {
    as_user(|scene| {
        for args in [&["--help"][..], &["run", "--help"], &["--version"]] {
            let output = output(&mut scene.vgpu(args));
            assert!(output.status.success() && !stdout(&output).is_empty(), "{args:?}");
        }
    });
}

#[test]
fn a_closed_stream_is_no_panic() {
    as_user(|scene| {
        let full = || std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let help = scene.vgpu(["run", "--help"]).stdout(full()).output().unwrap();
        assert_eq!((help.status.code(), stderr(&help).as_str()), (Some(0), ""));
        for mistake in [&["run", "--nonsense"][..], &["run", "--memory", "1", "--", "true"]] {
            let status = scene.vgpu(mistake).stderr(full()).status().unwrap();
            assert_eq!(status.code(), Some(2), "{mistake:?}");
        }
    });
}
