//! The test programs, and a driver in `compat/` as an image would contain it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use vgpu_cache::{folder, run};
use vgpu_loading::{cc, dist};

pub(crate) struct Stage(tempfile::TempDir);

const NOTHING: [&str; 0] = [];

impl Stage {
    pub(crate) fn new() -> Self {
        let stage = Self(tempfile::tempdir().expect("a folder"));
        fs::set_permissions(stage.folder(), fs::Permissions::from_mode(0o755)).expect("a mode");
        fs::create_dir(stage.path("compat")).expect("a folder");
        for (from, to) in [
            ("libcuda.so.1", "libcuda.so.1"),
            ("libcuda.so.1", "libcuda.so"),
            ("libcuda.so.1", "renamed-cuda.so"),
            ("libnvidia-ml.so.1", "libnvidia-ml.so.1"),
            ("libnvidia-ml.so.1", "renamed-nvml.so"),
        ] {
            fs::copy(dist("soft-gpu").join(from), stage.path("compat").join(to)).expect("a copy");
        }
        stage.compile();
        stage
    }

    fn compile(&self) {
        let compat = self.path("compat").display().to_string();
        let (rpath, folder) = (format!("-Wl,-rpath,{compat}"), format!("-L{compat}"));
        let old = ["-Wl,--disable-new-dtags", &rpath];
        let new = ["-Wl,--enable-new-dtags", &rpath];
        let linked = [
            "-DLINKED",
            "-Wl,--no-as-needed",
            &folder,
            "-l:libcuda.so.1",
            "-l:libnvidia-ml.so.1",
        ];
        let plugin = ["-DPLUGIN", "-shared", "-fPIC"];
        cc::build("host.c", &self.path("host"), NOTHING);
        cc::build("host.c", &self.path("host-newlm"), ["-DNEWLM"]);
        for (name, arguments) in [
            ("client", vec![]),
            ("rpath", old.to_vec()),
            ("runpath", new.to_vec()),
            ("linked", linked.to_vec()),
            ("linked-now", [&linked[..], &["-Wl,-z,now,-z,relro"]].concat()),
            ("linked-rpath", [&linked[..], &["-Wl,-z,lazy"], &old].concat()),
            ("linked-runpath", [&linked[..], &["-Wl,-z,now,-z,relro"], &new].concat()),
            ("plugin.so", [&linked[..], &plugin].concat()),
            ("plugin-alone.so", plugin.to_vec()),
            ("plugin-poses.so", [&plugin[..], &["-DPOSES"]].concat()),
            ("plugin-rpath.so", [&linked[..], &plugin, &old].concat()),
            // Linked with a driver, but also looks up its functions at run time.
            ("needs-rpath", [&linked[1..], &old].concat()),
            ("wrapper.so", [&linked[1..], &plugin, &old].concat()),
            ("static", vec!["-static-pie", "-w"]),
        ] {
            cc::build("client.c", &self.path(name), arguments);
        }
    }

    pub(crate) fn folder(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn text(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }
}

/// The Go client with purego, built in the cache.
pub(crate) fn purego() -> Result<PathBuf, String> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/purego");
    let files = ["go.mod", "go.sum", "main.go"];
    let read = |name: &&str| fs::read_to_string(source.join(name)).map_err(|error| format!("{name}: {error}"));
    let version = run(Command::new("go").arg("version"))?;
    let texts = files.iter().map(read).collect::<Result<Vec<_>, _>>()?;
    let folder = folder("client-purego", &format!("{version}{texts:?}"), |folder| {
        let mut go = Command::new("go");
        go.args(["build", "-trimpath", "-o"])
            .arg(folder.join("client"))
            .arg(".");
        run(go
            .current_dir(&source)
            .env("CGO_ENABLED", "0")
            .env("GOFLAGS", "-mod=readonly"))
        .map(|_| ())
    })?;
    Ok(folder.join("client"))
}
