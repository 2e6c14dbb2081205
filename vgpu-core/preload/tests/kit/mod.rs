//! The release artefact, stand-ins compiled from tests/c, and programs that run with both.
#![allow(dead_code, reason = "each test program uses a part")]

use std::{
    env,
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use tempfile::TempDir;

/// The folder of release artefacts.
pub(crate) fn artefact() -> PathBuf {
    let dist = env::var_os("VGPU_DIST").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dist"),
        PathBuf::from,
    );
    let library = dist.join("libvgpu-preload.so");
    vgpu_built_from::assert_fresh(&library);
    library.canonicalize().expect("an absolute path")
}

/// A folder with stand-ins:
/// `shim/libcuda.so.1` answers 1, `real/libcuda.so.1` and `real/libnvidia-ml.so.1` answer 2.
pub(crate) struct Stage {
    pub(crate) dir: TempDir,
}

impl Stage {
    pub(crate) fn new() -> Self {
        let stage = Self {
            dir: tempfile::tempdir().expect("a folder"),
        };
        for folder in ["shim", "real", "lib", "empty"] {
            fs::create_dir(stage.path(folder)).expect("a folder");
        }
        let shared = ["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"];
        stage.cc(
            "driver.c",
            "real/libcuda.so.1",
            shared.iter().chain(&["-DWHO=2", "-DNEWER"]),
        );
        stage.cc(
            "driver.c",
            "real/libcudart.so.12",
            ["-shared", "-fPIC", "-DWHO=2", "-DPART"],
        );
        // This file is recognisable as a driver only by its code.
        stage.cc("driver.c", "real/odd.so", ["-shared", "-fPIC", "-DWHO=2", "-DNEWER"]);
        // Like the real shim: no name of its own, and one file under several names.
        stage.cc(
            "driver.c",
            "shim/libcuda.so.1",
            ["-shared", "-fPIC", "-DWHO=1", "-DSHIM", "-Wl,-Bsymbolic"],
        );
        for (from, to) in [
            ("real/libcuda.so.1", "real/libcuda.so.535.104.05"),
            ("real/libcuda.so.1", "real/libnvidia-ml.so.1"),
            ("shim/libcuda.so.1", "shim/libcuda.so"),
            ("shim/libcuda.so.1", "shim/libnvidia-ml.so.1"),
        ] {
            fs::hard_link(stage.path(from), stage.path(to)).expect("a link");
        }
        let libdl = "-DLIBDL=\"libc.so.6\"";
        stage.cc("probe.c", "probe", ["-pthread", libdl, "-ldl"]);
        stage
    }

    pub(crate) fn path(&self, relative: &str) -> PathBuf {
        self.dir.path().join(relative)
    }

    pub(crate) fn text(&self, relative: &str) -> String {
        self.path(relative).to_str().expect("UTF-8").to_owned()
    }

    pub(crate) fn cc(&self, source: &str, output: &str, arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c").join(source);
        let status = Command::new("cc")
            .arg(source)
            .arg("-o")
            .arg(self.path(output))
            .args(arguments)
            .status();
        assert!(status.expect("cc runs").success(), "cc of {output}");
    }

    /// A program that runs with the preloaded library and finds the shim as `vgpu run` lets it.
    pub(crate) fn guarded(&self, program: &str) -> Command {
        let mut command = self.bare(program);
        command.env("LD_PRELOAD", artefact());
        command
    }

    /// Returns the same program without the preloaded library.
    pub(crate) fn bare(&self, program: &str) -> Command {
        let mut command = Command::new(self.path(program));
        command
            .env_clear()
            .env("LD_LIBRARY_PATH", self.path("shim"))
            .current_dir(self.dir.path());
        command
    }

    /// Returns the probe's answer, with the preloaded library.
    pub(crate) fn ask(&self, arguments: &[&str]) -> String {
        answer(self.guarded("probe").args(arguments))
    }
}

/// Returns the output of a program, which must succeed and print nothing on stderr.
pub(crate) fn answer(command: &mut Command) -> String {
    let output = command.output().expect("the program starts");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && stderr.is_empty(),
        "{command:?}: {}: {stderr}",
        output.status
    );
    String::from_utf8(output.stdout).expect("UTF-8").trim_end().to_owned()
}
