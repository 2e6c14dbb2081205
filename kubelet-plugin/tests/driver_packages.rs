//! What the plugin finds in a driver root that is made of NVIDIA's own packages, from the distribution: the files that a
//! container gets.

mod packages;

use packages::{BOOKWORM, LIBRARIES, choose, copy, fetch};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;
use vgpu_api::config::{Capabilities, Capability};
use vgpu_cache::run;
use vgpu_kubelet_plugin::driver::{Driver, Place, Root};

/// A driver in a release's packages.
struct Family {
    codename: &'static str,
    packages: &'static str,
    /// The last part of the folders in which it has its files.
    folder: &'static str,
}

const FAMILIES: [Family; 3] = [
    Family {
        codename: "bookworm",
        packages: "libcuda1 libnvidia-ml1 libnvidia-ptxjitcompiler1 libnvidia-nvvm4 nvidia-smi",
        folder: "current",
    },
    Family {
        codename: "trixie",
        packages: "libnvidia-tesla-535-cuda1 libnvidia-tesla-535-ml1 libnvidia-tesla-535-ptxjitcompiler1 \
                   libnvidia-tesla-535-nvvm4 nvidia-tesla-535-smi",
        folder: "tesla-535",
    },
    Family {
        codename: "trixie",
        packages: "libcuda1 libnvidia-ml1 libnvidia-ptxjitcompiler1 libnvidia-nvvm4 libnvidia-gpucomp \
                   nvidia-smi",
        folder: "current",
    },
];

/// Names in the files for which a container needs no further library: for confidential computing, for debuggers, files
/// with debugging information, and the two libraries that containers have anyway.
const NO_COMPANIONS: [&str; 5] = [
    "libnvidia-pkcs11",
    "libcudadebugger.so",
    ".debug",
    "libcuda.so",
    "libnvidia-ml.so",
];

/// A driver root of these packages, and the driver's own folder of libraries in it. None: skipped.
fn root(test: &str, family: &Family) -> Option<(TempDir, PathBuf)> {
    let packages = fetch(test, family.codename, "non-free", family.packages)?;
    let root = tempfile::tempdir().expect("a folder");
    copy(&packages, root.path());
    make_nodes(root.path());
    let folder = root.path().join(LIBRARIES).join("nvidia").join(family.folder);
    Some((root, folder))
}

/// Files in the place of device nodes, which only root can make.
fn make_nodes(root: &Path) {
    fs::create_dir(root.join("dev")).expect("a folder");
    for node in ["nvidiactl", "nvidia-uvm", "nvidia0"] {
        fs::write(root.join("dev").join(node), "").expect("a file");
    }
}

fn read(root: &Path) -> Driver {
    let root = Root {
        here: root.to_path_buf(),
        host: "/run/nvidia/driver".into(),
        sys: root.join("sys"),
        proc: root.join("proc"),
        soft_gpu_state: None,
    };
    root.read().expect("a driver")
}

/// Returns the file under the test's root for its path on the node.
fn here(root: &Path, on_host: &Path) -> PathBuf {
    root.join(on_host.strip_prefix("/run/nvidia/driver").expect("a path on the node"))
}

/// The names of libraries that a container with these capabilities has, with their files here.
fn libraries(root: &Path, driver: &Driver, capabilities: Capabilities) -> Vec<(String, PathBuf)> {
    let given = driver
        .files
        .found
        .iter()
        .filter(|found| found.needs.meets(capabilities));
    let named = given.filter_map(|found| match &found.place {
        Place::Library { name, .. } => Some((name.clone(), here(root, &found.file))),
        _ => None,
    });
    named.collect()
}

fn nvidia_smi(driver: &Driver) -> Option<&Path> {
    let is_it = |place: &Place| matches!(place, Place::Program(path) if path.ends_with("nvidia-smi"));
    let mut all = driver.files.found.iter();
    all.find(|found| is_it(&found.place)).map(|found| found.file.as_path())
}

fn lines(command: &mut Command) -> Vec<String> {
    let text = run(command).unwrap_or_else(|error| panic!("{error}"));
    text.lines().map(str::to_owned).collect()
}

/// The libraries with which a file is linked.
fn needed(file: &Path) -> Vec<String> {
    dynamic(file, "(NEEDED)")
}

/// Entries of a file's dynamic section.
fn dynamic(file: &Path, tag: &str) -> Vec<String> {
    let lines = lines(Command::new("readelf").args(["-d", "-W"]).arg(file));
    let of = |line: &String| {
        let text = line.split_once(tag)?.1;
        Some(text.split_once('[')?.1.split_once(']')?.0.to_owned())
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
            choose(root, family.folder);
        }
        let driver = read(root);
        let (cuda, nvml) = (
            here(root, &driver.files.libcuda),
            here(root, &driver.files.libnvidia_ml),
        );
        for (file, name) in [(&cuda, "libcuda.so."), (&nvml, "libnvidia-ml.so.")] {
            assert_eq!(file.parent(), Some(folder.as_path()));
            let file = file.file_name().expect("a name").to_string_lossy().into_owned();
            let version = file.strip_prefix(name).unwrap_or_default();
            assert!(version.matches('.').count() >= 1, "{file}: the file itself, no link");
        }
        let given = libraries(root, &driver, Capabilities::default());
        let companions: Vec<&str> = given.iter().map(|(name, _)| name.as_str()).collect();
        for name in ["libnvidia-ptxjitcompiler.so.1", "libnvidia-nvvm.so.4"] {
            assert!(companions.contains(&name), "{name}: {companions:?}");
        }
        let files: BTreeSet<&PathBuf> = given.iter().map(|(_, file)| file).chain([&cuda, &nvml]).collect();
        for file in files {
            assert!(file.is_file() && !file.is_symlink(), "{}", file.display());
            // Each library that it is linked with is libc's, or is given.
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
        // Without the links, nvidia-smi is only at the package's own path, which is no path of a container.
        let smi = nvidia_smi(&driver).map(|file| here(root, file));
        assert_eq!(smi.is_some_and(|file| file.is_file()), family.folder != "current");
        let nodes: Vec<&str> = driver.common_nodes.iter().map(|(node, _)| node.as_str()).collect();
        assert_eq!(nodes[..2], ["/dev/nvidiactl", "/dev/nvidia-uvm"]);
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
    choose(root.path(), family.folder);
    let after = read(root.path());
    assert_eq!(nvidia_smi(&before), None);
    assert_eq!(
        nvidia_smi(&after),
        Some(Path::new("/run/nvidia/driver/usr/lib/nvidia/current/nvidia-smi"))
    );
    let is_smi = |place: &Place| matches!(place, Place::Program(path) if path.ends_with("nvidia-smi"));
    let mut files = vgpu_kubelet_plugin::driver::Files::clone(&after.files);
    files.found.retain(|found| !is_smi(&found.place));
    assert_eq!(*before.files, files);
}

/// With each capability, a container also gets the libraries with which its libraries are linked, and each has its
/// SONAME as a name.
#[test]
fn each_set_of_capabilities_is_complete_in_itself() {
    let test = "each_set_of_capabilities_is_complete_in_itself";
    let Some(packages) = fetch(test, "bookworm", "main non-free", BOOKWORM) else {
        return;
    };
    let dir = tempfile::tempdir().expect("a folder");
    let root = dir.path();
    copy(&packages, root);
    make_nodes(root);
    let driver = read(root);
    let all: BTreeSet<String> = libraries(root, &driver, Capabilities::ALL)
        .into_iter()
        .map(|(name, _)| name)
        .collect();
    assert!(all.len() > 50, "{all:?}");
    for capability in Capability::ALL {
        let given = libraries(root, &driver, Capabilities::of(&[capability]));
        let names: BTreeSet<&str> = given.iter().map(|(name, _)| name.as_str()).collect();
        let files: BTreeSet<&PathBuf> = given.iter().map(|(_, file)| file).collect();
        for file in files {
            for name in needed(file).iter().filter(|name| all.contains(*name)) {
                assert!(
                    names.contains(name.as_str()),
                    "{capability}: {} needs {name}",
                    file.display()
                );
            }
            for name in dynamic(file, "(SONAME)") {
                assert!(
                    names.contains(name.as_str()),
                    "{capability}: {} is {name}",
                    file.display()
                );
            }
        }
    }
    // Nothing of the driver's version is left out.
    let version = driver.files.libcuda.to_string_lossy().into_owned();
    let version = version.rsplit_once("libcuda.so").expect("a version").1.to_owned();
    for folder in [LIBRARIES.to_owned(), format!("{LIBRARIES}/nvidia/current")] {
        for entry in fs::read_dir(root.join(folder)).expect("a folder").flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.ends_with(&format!(".so{version}")) {
                assert!(all.contains(&name) || driver.files.shimmed.contains(&name), "{name}");
            }
        }
    }
}
