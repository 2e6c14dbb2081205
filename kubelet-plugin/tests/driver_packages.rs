//! What the plugin finds in a driver root that is made of NVIDIA's own packages, from the distribution: the files that a
//! container gets. The packages are downloaded by the test and never committed. No script of theirs runs, so the links
//! that update-alternatives would make are made here.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;
use vgpu_cache::apt::{self, Distribution, Release, With};
use vgpu_cache::run;
use vgpu_kubelet_plugin::driver::{Driver, Root};
use vgpu_skip::skip;

/// A driver in a release's packages.
struct Family {
    codename: &'static str,
    packages: &'static [&'static str],
    /// The last part of the folders in which it has its files.
    folder: &'static str,
}

const FAMILIES: [Family; 3] = [
    Family {
        codename: "bookworm",
        packages: &[
            "libcuda1",
            "libnvidia-ml1",
            "libnvidia-ptxjitcompiler1",
            "libnvidia-nvvm4",
            "nvidia-smi",
        ],
        folder: "current",
    },
    Family {
        codename: "trixie",
        packages: &[
            "libnvidia-tesla-535-cuda1",
            "libnvidia-tesla-535-ml1",
            "libnvidia-tesla-535-ptxjitcompiler1",
            "libnvidia-tesla-535-nvvm4",
            "nvidia-tesla-535-smi",
        ],
        folder: "tesla-535",
    },
    Family {
        codename: "trixie",
        packages: &[
            "libcuda1",
            "libnvidia-ml1",
            "libnvidia-ptxjitcompiler1",
            "libnvidia-nvvm4",
            "libnvidia-gpucomp",
            "nvidia-smi",
        ],
        folder: "current",
    },
];

const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";

/// What the files name and is no companion: for confidential computing, for debuggers, files with debugging information,
/// and the two libraries that containers have anyway.
const NO_COMPANIONS: [&str; 5] = [
    "libnvidia-pkcs11",
    "libcudadebugger.so",
    ".debug",
    "libcuda.so",
    "libnvidia-ml.so",
];

/// A driver root of these packages, and the driver's own folder of libraries in it. None: skipped.
fn root(test: &str, family: &Family) -> Option<(TempDir, PathBuf)> {
    let release = Release {
        distribution: Distribution::Debian,
        codename: family.codename,
        components: "non-free",
        merged: true,
    };
    let packages = match apt::root(release, family.packages, With::Nothing) {
        Ok(root) => root,
        Err(reason) => {
            let name = format!("{test}, {}, {}", family.codename, family.packages[0]);
            skip(&name, reason.lines().last().unwrap_or_default());
            return None;
        }
    };
    let root = tempfile::tempdir().expect("a folder");
    let copied = run(Command::new("cp").arg("-a").arg(packages.join("usr")).arg(root.path()));
    copied.unwrap_or_else(|error| panic!("{error}"));
    fs::create_dir(root.path().join("dev")).expect("a folder");
    for node in ["nvidiactl", "nvidia-uvm", "nvidia0"] {
        fs::write(root.path().join("dev").join(node), "").expect("a file");
    }
    let folder = root.path().join(LIBRARIES).join("nvidia").join(family.folder);
    Some((root, folder))
}

/// Makes the links of update-alternatives: absolute, by way of /etc/alternatives.
fn choose(root: &Path, family: &Family) {
    fs::create_dir_all(root.join("etc/alternatives")).expect("a folder");
    let smi = Path::new("usr/lib/nvidia").join(family.folder).join("nvidia-smi");
    let libraries = Path::new(LIBRARIES).join("nvidia").join(family.folder);
    let names = fs::read_dir(root.join(&libraries)).expect("a folder").flatten();
    let names = names.filter_map(|entry| entry.file_name().into_string().ok());
    // Those that end with a number alone, as libcuda.so.1.
    let names = names.filter(|name| {
        name.rsplit_once(".so.")
            .is_some_and(|(_, end)| end.parse::<u32>().is_ok())
    });
    let links = names.map(|name| (Path::new(LIBRARIES).join(&name), libraries.join(&name)));
    fs::create_dir_all(root.join("usr/bin")).expect("a folder");
    for (link, file) in links.chain([(PathBuf::from("usr/bin/nvidia-smi"), smi)]) {
        let name = link.file_name().expect("a name").to_string_lossy().into_owned();
        let chosen = Path::new("/etc/alternatives").join(format!("nvidia--{name}"));
        symlink(
            Path::new("/").join(file),
            root.join("etc/alternatives").join(format!("nvidia--{name}")),
        )
        .expect("a link");
        symlink(chosen, root.join(link)).expect("a link");
    }
}

fn read(root: &Path) -> Driver {
    let root = Root {
        here: root.to_path_buf(),
        host: "/run/nvidia/driver".into(),
        soft_gpu_state: None,
    };
    root.read().expect("a driver")
}

/// The file under the root that the container runtime is told.
fn here(root: &Path, on_host: &Path) -> PathBuf {
    root.join(on_host.strip_prefix("/run/nvidia/driver").expect("a path on the node"))
}

fn lines(command: &mut Command) -> Vec<String> {
    let text = run(command).unwrap_or_else(|error| panic!("{error}"));
    text.lines().map(str::to_owned).collect()
}

/// The libraries with which a file is linked.
fn needed(file: &Path) -> Vec<String> {
    let lines = lines(Command::new("readelf").args(["-d", "-W"]).arg(file));
    let of = |line: &String| {
        Some(
            line.split_once("(NEEDED)")?
                .1
                .split_once('[')?
                .1
                .split_once(']')?
                .0
                .to_owned(),
        )
    };
    lines.iter().filter_map(of).collect()
}

/// The names of NVIDIA's libraries in a file: those that it may open.
fn named(file: &Path) -> Vec<String> {
    let pattern = r"lib(nvidia-|cuda)[A-Za-z0-9_-]*\.so[A-Za-z0-9._]*";
    lines(
        Command::new("grep")
            .env("LC_ALL", "C")
            .args(["-aoE", pattern])
            .arg(file),
    )
}

/// With the links and without them, as in a driver container and on a node.
#[test]
fn a_container_gets_all_that_the_driver_needs() {
    for family in &FAMILIES {
        let Some((root, folder)) = root("a_container_gets_all_that_the_driver_needs", family) else {
            continue;
        };
        let root = root.path();
        if family.folder != "current" {
            choose(root, family);
        }
        let driver = read(root);
        let (cuda, nvml) = (here(root, &driver.libcuda), here(root, &driver.libnvidia_ml));
        for (file, name) in [(&cuda, "libcuda.so."), (&nvml, "libnvidia-ml.so.")] {
            assert_eq!(file.parent(), Some(folder.as_path()));
            let file = file.file_name().expect("a name").to_string_lossy().into_owned();
            let version = file.strip_prefix(name).unwrap_or_default();
            assert!(version.matches('.').count() >= 1, "{file}: the file itself, no link");
        }
        let companions: Vec<&str> = driver.companions.iter().map(|(name, _)| name.as_str()).collect();
        for name in ["libnvidia-ptxjitcompiler.so.1", "libnvidia-nvvm.so.4"] {
            assert!(companions.contains(&name), "{name}: {companions:?}");
        }
        let files: Vec<PathBuf> = driver.companions.iter().map(|(_, file)| here(root, file)).collect();
        for file in files.iter().chain([&cuda, &nvml]) {
            assert!(file.is_file() && !file.is_symlink(), "{}", file.display());
            // What it is linked with is libc's, or is there.
            for library in needed(file) {
                let of_libc = [
                    "libc.",
                    "libm.",
                    "libdl.",
                    "libpthread.",
                    "librt.",
                    "ld-linux",
                    "libgcc_s.",
                ];
                let known = of_libc.iter().any(|start| library.starts_with(start));
                assert!(
                    known || companions.contains(&library.as_str()),
                    "{}: {library}",
                    file.display()
                );
            }
            for name in named(file)
                .iter()
                .filter(|name| !NO_COMPANIONS.iter().any(|not| name.contains(not)))
            {
                assert!(companions.contains(&name.as_str()), "{} names {name}", file.display());
            }
        }
        // Which program it is depends on the links; without them, the package's own path is none of a container's.
        let smi = driver.nvidia_smi.map(|file| here(root, &file));
        assert_eq!(smi.is_some_and(|file| file.is_file()), family.folder != "current");
        assert_eq!(driver.common_nodes[..2], ["/dev/nvidiactl", "/dev/nvidia-uvm"]);
    }
}

/// The links of the distribution lead to the same files as the driver's own folder, which the plugin also knows.
#[test]
fn the_links_of_alternatives_change_nothing_but_nvidia_smi() {
    let family = &FAMILIES[0];
    let Some((root, _)) = root("the_links_of_alternatives_change_nothing_but_nvidia_smi", family) else {
        return;
    };
    let before = read(root.path());
    choose(root.path(), family);
    let after = read(root.path());
    assert_eq!(before.nvidia_smi, None);
    assert_eq!(
        after.nvidia_smi.as_deref(),
        Some(Path::new("/run/nvidia/driver/usr/lib/nvidia/current/nvidia-smi"))
    );
    let before = Driver {
        nvidia_smi: after.nvidia_smi.clone(),
        ..before
    };
    assert_eq!(before, after);
}
