//! The images and their contents.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{env, fs};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use vgpu_abi::arch;

use super::apt::Apt;
use super::oci::{CREATED, Contents, Labels, Layer, Platform, archive};
use crate::{layout, shell};

/// Packages that our glibc programs need.
const LIBC: [&str; 2] = ["libc6", "libgcc-s1"];
/// Packages of the client image of tests: also Python with ctypes for NVML's own binding, and a shell.
const PYTHON: [&str; 5] = ["libc6", "libgcc-s1", "python3", "dash", "coreutils"];
/// The image of the chart's `softGpu.gpus`.
pub const SOFT_GPU: &str = "soft-gpu";
const PLUGIN: &str = "kubelet-plugin";
const CONTROLLER: &str = "controller";
/// The image of a first pod.
const CLIENT: &str = "client";
/// The image without glibc.
const STATIC: [&str; 1] = ["busybox-static"];

/// The archives in the order of their import.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Built {
    pub archives: Vec<PathBuf>,
    /// True if the client image has nvidia-smi, which not every mirror offers.
    pub nvidia_smi: bool,
}

/// What a release says of itself in its images.
#[derive(Debug, clap::Args)]
pub struct Release {
    /// The release's version, such as 0.1.0: the images' tag.
    #[arg(long)]
    pub version: String,
    /// The commit's hash.
    #[arg(long)]
    pub revision: String,
    /// The commit's time, as RFC 3339.
    #[arg(long)]
    pub created: String,
    /// The URL of the sources.
    #[arg(long)]
    pub source: String,
}

impl Release {
    fn labels(&self, name: &str, description: &str) -> Labels {
        let label = |key: &str, value: &str| (format!("org.opencontainers.image.{key}"), value.to_owned());
        Labels::from([
            (CREATED.to_owned(), self.created.clone()),
            label("title", &format!("dra-driver-vgpu/{name}")),
            label("description", description),
            label("version", &self.version),
            label("revision", &self.revision),
            label("source", &self.source),
            label("licenses", "Apache-2.0"),
        ])
    }
}

/// An image of a release: an OCI layout in a tar, and the digest that names it in a registry.
#[derive(Debug)]
pub struct Released {
    pub file: PathBuf,
    pub digest: String,
}

/// The client program, built together with this one.
pub fn client_program() -> Result<PathBuf> {
    let own = env::current_exe().context("this program has no path")?;
    let folders = own
        .parent()
        .into_iter()
        .flat_map(|folder| [Some(folder), folder.parent()])
        .flatten();
    let found = folders
        .map(|folder| folder.join("vgpu-client"))
        .find(|path| path.is_file());
    found.with_context(|| {
        format!(
            "vgpu-client is not beside {}: run `cargo build -p vgpu-client`",
            own.display()
        )
    })
}

pub(super) fn pause(folder: &Path) -> Result<PathBuf> {
    let source = layout::workspace().join("e2e/images/pause.c");
    let program = folder.join("pause");
    let compiler = env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    shell::run(
        shell::command(compiler, ["-static", "-Os", "-s", "-o"])
            .arg(&program)
            .arg(source),
    )?;
    let layer = Contents::default()
        .file(program, "pause", 0o755)
        .write(&folder.join("pause-layer.tar"))?;
    let to = folder.join("pause.tar");
    archive(
        &repository("pause", "dev"),
        &[Platform::own(vec![layer])],
        &["/pause"],
        &Labels::new(),
        &to,
    )?;
    Ok(to)
}

pub(super) fn all(cache: &Path, output: &Path, dist: &Path, say: &mut dyn FnMut(&str)) -> Result<Built> {
    let mut apt = Apt::new(cache, arch!(oci))?;
    let libc = base(cache, &mut apt, "libc", &LIBC, say)?;
    let python = base(cache, &mut apt, "python", &PYTHON, say)?;
    let busybox = base(cache, &mut apt, "static", &STATIC, say)?;

    let pynvml = pynvml(cache)?;
    let mut for_tests = Contents::default().file(pynvml, "usr/lib/python3/dist-packages/pynvml.py", 0o644);
    let nvidia_smi = match nvidia_smi(cache, &mut apt) {
        Ok(program) => {
            for_tests = for_tests.file(program, "usr/bin/nvidia-smi", 0o755);
            true
        }
        Err(error) => {
            say(&format!("the client image has no nvidia-smi: {error:#}"));
            false
        }
    };
    let shell_links = Contents::default()
        .link("busybox", "usr/bin/sh")
        .link("busybox", "usr/bin/sleep");

    let layer = |name: &str, top: Contents| top.write(&output.join(format!("{name}-layer.tar")));
    let for_tests = layer("client-for-tests", for_tests)?;
    let no_glibc = vec![busybox, layer("no-glibc", shell_links)?];
    let ours = products(&libc, &python, dist, output)?.map(|mut product| {
        if product.name == CLIENT {
            product.layers.push(for_tests.clone());
        }
        (product.name, product.layers, product.entrypoint)
    });
    let mut archives = Vec::new();
    for (name, layers, entrypoint) in ours.into_iter().chain([("no-glibc", no_glibc, "/usr/bin/sh")]) {
        let to = output.join(format!("{name}.tar"));
        let platform = Platform::own(layers);
        archive(
            &repository(name, "dev"),
            &[platform],
            &[entrypoint],
            &Labels::new(),
            &to,
        )?;
        archives.push(to);
    }
    Ok(Built { archives, nvidia_smi })
}

/// The images of a release, in `output`, each for all architectures of `dists`: the folder of artefacts of each.
pub(super) fn release(
    cache: &Path,
    output: &Path,
    dists: &[(&'static str, PathBuf)],
    release: &Release,
    say: &mut dyn FnMut(&str),
) -> Result<Vec<Released>> {
    let mut platforms: BTreeMap<&str, Vec<Platform>> = BTreeMap::new();
    let mut products_of_one = None;
    for (architecture, dist) in dists {
        let libc = base(cache, &mut Apt::new(cache, architecture)?, "libc", &LIBC, say)?;
        let parts = output.join("parts").join(architecture);
        fs::create_dir_all(&parts).with_context(|| format!("cannot create {}", parts.display()))?;
        let products = products(&libc, &libc, dist, &parts)?;
        for product in &products {
            platforms.entry(product.name).or_default().push(Platform {
                architecture,
                layers: product.layers.clone(),
            });
        }
        products_of_one = Some(products);
    }
    let mut released = Vec::new();
    for product in products_of_one.into_iter().flatten() {
        let file = output.join(format!("{}.tar", product.name));
        let name = repository(product.name, &release.version);
        let labels = release.labels(product.name, product.description);
        let digest = archive(&name, &platforms[product.name], &[product.entrypoint], &labels, &file)?;
        released.push(Released { file, digest });
    }
    remove(&output.join("parts"))?;
    Ok(released)
}

fn repository(name: &str, tag: &str) -> String {
    format!("docker.io/dra-driver-vgpu/{name}:{tag}")
}

/// Returns true for the archive of an image that the chart's own pods have, and false for those of other pods.
#[must_use]
pub fn is_of_the_driver(archive: &Path) -> bool {
    archive
        .file_stem()
        .is_some_and(|name| [PLUGIN, CONTROLLER, SOFT_GPU].iter().any(|ours| name == *ours))
}

/// An image that users get.
struct Product {
    name: &'static str,
    description: &'static str,
    layers: Vec<Layer>,
    entrypoint: &'static str,
}

/// Writes the layers of our images into `parts`. `below_client`: the packages of the client's image.
fn products(libc: &Layer, below_client: &Layer, dist: &Path, parts: &Path) -> Result<[Product; 4]> {
    let licensed = || Contents::default().file(layout::workspace().join("LICENSE"), "licenses/LICENSE", 0o644);
    let plugin = licensed()
        .file(dist.join("vgpu-kubelet-plugin"), "usr/bin/vgpu-kubelet-plugin", 0o755)
        .file(dist.join("libvgpu.so"), "opt/vgpu/libvgpu.so", 0o755)
        .file(dist.join("libvgpu-preload.so"), "opt/vgpu/libvgpu-preload.so", 0o755)
        .file(dist.join("vgpu-cdi-hook"), "opt/vgpu/vgpu-cdi-hook", 0o755)
        .file(dist.join("vgpu-driver-limit"), "opt/vgpu/vgpu-driver-limit", 0o755);
    let controller = licensed()
        .file(dist.join("vgpu-controller"), "usr/bin/vgpu-controller", 0o755)
        // For `helm test` and the pod of `vgpu doctor --probe`.
        .file(dist.join("vgpu"), "usr/bin/vgpu", 0o755);
    let client = licensed()
        .file(dist.join("vgpu-client"), "usr/bin/vgpu-client", 0o755)
        .folder("tmp", 0o1777);
    let layer = |name: &str, top: Contents| top.write(&parts.join(format!("{name}-layer.tar")));
    let plugin = vec![libc.clone(), layer(PLUGIN, plugin)?];
    // The plugin's program copies these files to the node, so this image is the plugin's image with one more layer: a
    // registry or node stores the common layers once.
    let soft_gpu = [plugin.clone(), vec![layer(SOFT_GPU, soft_gpu(dist))?]].concat();
    let controller = vec![libc.clone(), layer(CONTROLLER, controller)?];
    let client = vec![below_client.clone(), layer(CLIENT, client)?];
    Ok([
        Product {
            name: PLUGIN,
            description: "The node agent of dra-driver-vgpu: publishes GPUs, prepares claims, brings the library with the limits",
            layers: plugin,
            entrypoint: "/usr/bin/vgpu-kubelet-plugin",
        },
        Product {
            name: CONTROLLER,
            description: "The controller of dra-driver-vgpu: explains Pending pods, allocates, keeps quotas, translates",
            layers: controller,
            entrypoint: "/usr/bin/vgpu-controller",
        },
        Product {
            name: SOFT_GPU,
            description: "Software GPUs of dra-driver-vgpu, to try it on a cluster without a GPU: nothing computes",
            layers: soft_gpu,
            entrypoint: "/usr/bin/vgpu-kubelet-plugin",
        },
        Product {
            name: CLIENT,
            description: "A CUDA program of dra-driver-vgpu for a first pod: holds memory, and checks the limit of its share",
            layers: client,
            entrypoint: "/usr/bin/vgpu-client",
        },
    ])
}

/// The software GPU's libraries.
fn soft_gpu(dist: &Path) -> Contents {
    let names = ["libcuda.so.1", "libnvidia-ml.so.1"];
    names.iter().fold(Contents::default(), |all, name| {
        let from = dist.join("soft-gpu").join(name);
        all.file(from, &format!("opt/soft-gpu/{name}"), 0o755)
    })
}

/// The layer of these packages in the versions that the distribution had when it was first built here. Removing the cache's
/// folder `images` brings newer ones.
fn base(folder: &Path, apt: &mut Apt, name: &str, packages: &[&str], say: &mut dyn FnMut(&str)) -> Result<Layer> {
    let name = format!("{name}{}", apt.suffix());
    let file = folder.join(format!(
        "base-{name}-{}-{}-licensed.tar",
        apt.codename(),
        packages.join("-")
    ));
    if let Some(layer) = Layer::cached(&file)? {
        return Ok(layer);
    }
    say(&format!("unpacking {} with all that they need", packages.join(", ")));
    let root = folder.join(format!("base-{name}"));
    remove(&root)?;
    for merged in ["bin", "sbin", "lib", "lib64"] {
        let real = root.join("usr").join(merged);
        fs::create_dir_all(&real).with_context(|| format!("cannot create {}", real.display()))?;
        std::os::unix::fs::symlink(Path::new("usr").join(merged), root.join(merged))
            .with_context(|| format!("cannot create {}", root.join(merged).display()))?;
    }
    for name in ["etc", "tmp", "run", "var"] {
        fs::create_dir_all(root.join(name)).with_context(|| format!("cannot create {name}"))?;
    }
    apt.unpack(packages, &root)?;
    leave_licences(&root.join("usr/share/doc"))?;
    for unused in ["usr/share/man", "usr/share/locale", "usr/share/perl5", "usr/share/i18n"] {
        remove(&root.join(unused))?;
    }
    if packages.contains(&"dash") {
        let shell = root.join("usr/bin/sh");
        if !shell.is_symlink() {
            std::os::unix::fs::symlink("dash", &shell).context("cannot link sh")?;
        }
    }
    let layer = Contents::default().tree(&root)?.write(&file)?;
    layer.remember()?;
    remove(&root)?;
    Ok(layer)
}

/// Removes everything but the packages' licences.
fn leave_licences(documents: &Path) -> Result<()> {
    let entries = |folder: &Path| fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()));
    for package in entries(documents)?.flatten().filter(|entry| !entry.path().is_symlink()) {
        for document in entries(&package.path())?.flatten() {
            let path = document.path();
            if path.is_dir() && !path.is_symlink() {
                remove(&path)?;
            } else if document.file_name() != "copyright" {
                fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
            }
        }
    }
    Ok(())
}

/// NVML's binding for Python, verified by its hash.
fn pynvml(folder: &Path) -> Result<PathBuf> {
    let done = folder.join("pynvml.py");
    if done.is_file() {
        return Ok(done);
    }
    let work = folder.join("pynvml");
    remove(&work)?;
    let wanted = layout::workspace().join("e2e/images/requirements.txt");
    let pip = [
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--require-hashes",
        "--dest",
    ];
    shell::run(
        shell::command("python3", pip)
            .arg(&work)
            .arg("--requirement")
            .arg(wanted),
    )?;
    let wheel = fs::read_dir(&work)?
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.extension().is_some_and(|e| e == "whl"));
    let wheel = wheel.context("pip downloaded no wheel of nvidia-ml-py")?;
    shell::run(shell::command("python3", ["-m", "zipfile", "-e"]).arg(wheel).arg(&work))?;
    fs::rename(work.join("pynvml.py"), &done).context("the wheel of nvidia-ml-py has no pynvml.py")?;
    remove(&work)?;
    Ok(done)
}

/// NVIDIA's own program from the distribution's non-free part, without its libraries, which must not be in the image.
fn nvidia_smi(folder: &Path, apt: &mut Apt) -> Result<PathBuf> {
    let done = folder.join("nvidia-smi");
    if done.is_file() {
        return Ok(done);
    }
    let root = folder.join("nvidia");
    remove(&root)?;
    fs::create_dir_all(&root).with_context(|| format!("cannot create {}", root.display()))?;
    let packages = ["nvidia-smi", "nvidia-utils-550", "nvidia-utils-535"];
    ensure!(
        packages.iter().any(|package| apt.unpack_alone(package, &root).is_ok()),
        "none of the packages {} can be had",
        packages.join(", ")
    );
    let found = find(&root, "nvidia-smi").context("the package has no program nvidia-smi")?;
    fs::rename(found, &done).context("cannot keep nvidia-smi")?;
    remove(&root)?;
    Ok(done)
}

/// Finds a program by name: an ELF file.
fn find(folder: &Path, name: &str) -> Option<PathBuf> {
    for entry in fs::read_dir(folder).ok()?.flatten() {
        let (path, kind) = (entry.path(), entry.file_type().ok()?);
        if kind.is_dir() {
            if let Some(found) = find(&path, name) {
                return Some(found);
            }
        } else if kind.is_file() && entry.file_name() == name && fs::read(&path).ok()?.starts_with(b"\x7fELF") {
            return Some(path);
        }
    }
    None
}

fn remove(path: &Path) -> Result<()> {
    if path.exists() {
        fs::remove_dir_all(path).with_context(|| format!("cannot remove {}", path.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_packages_documents_its_licence_is_left() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir_all(at("libc6/examples")).unwrap();
        for name in ["libc6/copyright", "libc6/changelog.gz", "libc6/examples/one"] {
            fs::write(at(name), "x").unwrap();
        }
        std::os::unix::fs::symlink("libc6", at("libgcc-s1")).unwrap();
        leave_licences(folder.path()).unwrap();
        let left: Vec<_> = fs::read_dir(at("libc6"))
            .unwrap()
            .flatten()
            .map(|e| e.file_name())
            .collect();
        assert_eq!(left, ["copyright"]);
        assert!(at("libgcc-s1/copyright").is_file());
    }

    #[test]
    fn a_release_has_its_licence_and_says_what_it_is() {
        let release = Release {
            version: "0.1.0".to_owned(),
            revision: "c0ffee".to_owned(),
            created: "2026-11-28T00:00:00Z".to_owned(),
            source: "https://example.invalid/x".to_owned(),
        };
        let labels = release.labels("controller", "words");
        let keys = [
            "created",
            "description",
            "licenses",
            "revision",
            "source",
            "title",
            "version",
        ];
        assert!(
            labels
                .keys()
                .eq(keys.map(|key| format!("org.opencontainers.image.{key}")).iter())
        );

        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir(at("soft-gpu")).unwrap();
        for name in [
            "vgpu",
            "vgpu-controller",
            "vgpu-kubelet-plugin",
            "libvgpu.so",
            "libvgpu-preload.so",
            "vgpu-cdi-hook",
            "vgpu-driver-limit",
            "vgpu-client",
            "soft-gpu/libcuda.so.1",
            "soft-gpu/libnvidia-ml.so.1",
        ] {
            fs::write(at(name), "x").unwrap();
        }
        let libc = Contents::default().write(&at("libc")).unwrap();
        for product in products(&libc, &libc, folder.path(), folder.path()).unwrap() {
            let mut names = product.layers.iter().flat_map(|layer| {
                let mut archive = tar::Archive::new(fs::File::open(&layer.file).unwrap());
                let entries = archive.entries().unwrap();
                entries
                    .map(|entry| entry.unwrap().path().unwrap().into_owned())
                    .collect::<Vec<_>>()
            });
            assert!(
                names.any(|path| path == Path::new("licenses/LICENSE")),
                "{}",
                product.name
            );
            // No pod of the chart has the client.
            assert_eq!(
                is_of_the_driver(&at(product.name).with_extension("tar")),
                product.name != CLIENT,
                "{}",
                product.name
            );
        }
    }
}
