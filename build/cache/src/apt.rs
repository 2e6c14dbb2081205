//! Creates root file systems of distributions from their packages. Nothing is installed on this machine: apt gets its
//! own configuration and an empty list of installed packages, and the downloaded packages are unpacked into a folder.
//!
//! For Debian it uses this machine's mirror and keys, for Ubuntu those of Debian's packages debootstrap and
//! ubuntu-keyring. So on a machine that is not Debian the result is an `Err`.
//!
//! No script of a package runs, so nothing is configured: there is no loader cache and there are no alternatives.

use crate::{folder, run};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const DEBIAN_KEYS: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
/// The Debian release that has debootstrap and Ubuntu's keys.
const HELPERS: &str = "trixie";
/// Raised when the unpacking below changes: what is cached is made again.
const RECIPE: &str = "1";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Distribution {
    Debian,
    Ubuntu,
}

/// One release of a distribution.
#[derive(Clone, Copy, Debug)]
pub struct Release<'a> {
    pub distribution: Distribution,
    pub codename: &'a str,
    pub components: &'a str,
    /// /bin, /lib and so on are links into /usr. Before, they are folders.
    pub merged: bool,
}

/// What to fetch along with the named packages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum With {
    Nothing,
    AllThatTheyNeed,
}

/// The release that this machine runs.
fn own_codename() -> Result<String, String> {
    let text = fs::read_to_string("/etc/os-release").map_err(|error| format!("/etc/os-release: {error}"))?;
    let of = |key: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        line.map(|value| value.trim_matches('"').to_owned())
    };
    match (of("ID").as_deref(), of("VERSION_CODENAME")) {
        (Some("debian"), Some(codename)) => Ok(codename),
        _ => Err("this machine is not Debian: it has no sources and keys of its packages".into()),
    }
}

/// A root file system with these packages of a release.
///
/// # Errors
/// They cannot be had.
pub fn root(release: Release<'_>, packages: &[&str], with: With) -> Result<PathBuf, String> {
    let key = format!("{RECIPE} {release:?} {packages:?} {with:?}");
    folder(&format!("root-{}", release.codename), &key, |folder| {
        let root = folder.join("root");
        let failed = |error: std::io::Error| format!("{}: {error}", root.display());
        for name in ["usr", "etc", "tmp", "run", "var"] {
            fs::create_dir_all(root.join(name)).map_err(failed)?;
        }
        if release.merged {
            for name in ["bin", "sbin", "lib", "lib64"] {
                fs::create_dir_all(root.join("usr").join(name)).map_err(failed)?;
                symlink(Path::new("usr").join(name), root.join(name)).map_err(failed)?;
            }
        }
        let apt = folder.join("apt");
        fetch(release, packages, with, &apt)?;
        for package in packages_in(&apt.join("archives"))? {
            unpack(&package, &root)?;
        }
        // It would be the work of a package's script.
        if !root.join("bin/sh").exists() && root.join("bin/dash").exists() {
            symlink("dash", root.join("bin/sh")).map_err(failed)?;
        }
        fs::remove_dir_all(&apt).map_err(failed)
    })
    .map(|folder| folder.join("root"))
}

/// The same of the release that this machine runs.
///
/// # Errors
/// They cannot be had.
pub fn own_packages(components: &str, packages: &[&str], with: With) -> Result<PathBuf, String> {
    let codename = own_codename()?;
    let release = Release {
        distribution: Distribution::Debian,
        codename: &codename,
        components,
        merged: true,
    };
    root(release, packages, with)
}

/// NVIDIA's nvidia-smi, from the distribution's package.
///
/// # Errors
/// It cannot be had.
pub fn nvidia_smi() -> Result<PathBuf, String> {
    let root = own_packages("non-free", &["nvidia-smi"], With::Nothing)?;
    let program = root.join("usr/lib/nvidia/current/nvidia-smi");
    match program.is_file() {
        true => Ok(program),
        false => Err(format!("{} is missing in the package nvidia-smi", program.display())),
    }
}

fn fetch(release: Release<'_>, packages: &[&str], with: With, apt: &Path) -> Result<(), String> {
    let (mirror, keys) = match release.distribution {
        Distribution::Debian => (debian_mirror()?, PathBuf::from(DEBIAN_KEYS)),
        Distribution::Ubuntu => ubuntu()?,
    };
    let failed = |error: std::io::Error| format!("{}: {error}", apt.display());
    for name in ["lists/partial", "archives/partial"] {
        fs::create_dir_all(apt.join(name)).map_err(failed)?;
    }
    let at = apt.display();
    let (codename, components) = (release.codename, release.components);
    let source = format!(
        "deb [arch=amd64 signed-by={}] {mirror} {codename} {components}\n",
        keys.display()
    );
    let configuration = format!(
        "Dir::Etc::SourceList \"{at}/sources.list\";\nDir::Etc::SourceParts \"-\";\nDir::State \"{at}\";\n\
         Dir::State::Lists \"{at}/lists\";\nDir::State::status \"{at}/status\";\nDir::Cache \"{at}\";\n\
         Dir::Cache::archives \"{at}/archives\";\nDir::Log \"{at}\";\nAPT::Install-Recommends \"0\";\n\
         APT::Architecture \"amd64\";\nAPT::Sandbox::User \"\";\nAcquire::Languages \"none\";\nDebug::NoLocking \"1\";\n\
         Acquire::IndexTargets::deb::DEP-11::DefaultEnabled \"false\";\n\
         Binary::apt-get::APT::Keep-Downloaded-Packages \"1\";\n"
    );
    for (name, text) in [
        ("sources.list", source.as_str()),
        ("status", ""),
        ("apt.conf", &configuration),
    ] {
        fs::write(apt.join(name), text).map_err(failed)?;
    }
    let get = |arguments: &[&str]| {
        let mut command = Command::new("apt-get");
        command
            .env("APT_CONFIG", apt.join("apt.conf"))
            .env("LC_ALL", "C")
            .current_dir(apt.join("archives"))
            .arg("-qq")
            .args(arguments);
        run(&mut command)
    };
    get(&["update"])?;
    match with {
        With::Nothing => get(&[&["download"], packages].concat())?,
        With::AllThatTheyNeed => get(&[&["-y", "--download-only", "install"], packages].concat())?,
    };
    Ok(())
}

/// Where this machine fetches Debian.
///
/// # Errors
/// It is not Debian, or its apt has no source.
pub fn debian_mirror() -> Result<String, String> {
    let own = own_codename()?;
    let mut command = Command::new("apt-get");
    command.args([
        "indextargets",
        "--no-release-info",
        "--format",
        "$(RELEASE) $(COMPONENT) $(REPO_URI)",
        "Created-By: Packages",
    ]);
    let listed = run(&mut command)?;
    let found = listed
        .lines()
        .find_map(|line| line.strip_prefix(&format!("{own} main ")));
    found
        .map(str::to_owned)
        .ok_or(format!("apt has no source for {own} with the component main"))
}

/// Where Debian's debootstrap fetches Ubuntu, and Ubuntu's keys.
fn ubuntu() -> Result<(String, PathBuf), String> {
    let release = Release {
        distribution: Distribution::Debian,
        codename: HELPERS,
        components: "main",
        merged: true,
    };
    let root = root(release, &["debootstrap", "ubuntu-keyring"], With::Nothing)?;
    let script = root.join("usr/share/debootstrap/scripts/gutsy");
    let text = fs::read_to_string(&script).map_err(|error| format!("{}: {error}", script.display()))?;
    let mirror = text
        .lines()
        .find_map(|line| line.trim().strip_prefix("default_mirror "));
    let mirror = mirror.ok_or(format!("{} names no mirror", script.display()))?;
    Ok((
        mirror.trim().to_owned(),
        root.join("usr/share/keyrings/ubuntu-archive-keyring.gpg"),
    ))
}

fn packages_in(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let entries = fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let paths = entries.flatten().map(|entry| entry.path());
    Ok(paths
        .filter(|path| path.extension().is_some_and(|end| end == "deb"))
        .collect())
}

/// Not `dpkg-deb -x`, which would replace the links of a merged /usr by folders.
fn unpack(package: &Path, root: &Path) -> Result<(), String> {
    let mut reader = Command::new("dpkg-deb");
    let mut reader = reader
        .arg("--fsys-tarfile")
        .arg(package)
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| format!("dpkg-deb: {error}"))?;
    let archive = reader.stdout.take().ok_or("dpkg-deb has no standard output")?;
    let mut tar = Command::new("tar");
    tar.args([
        "-x",
        "--keep-directory-symlink",
        "--no-same-owner",
        "--exclude=./usr/share/doc",
        "--exclude=./usr/share/man",
    ]);
    tar.args(["--exclude=./usr/share/locale", "-f", "-", "-C"])
        .arg(root)
        .stdin(archive);
    let unpacked = run(&mut tar);
    // It holds the pipe's other end: dpkg-deb would wait for ever for who reads it.
    drop(tar);
    match reader.wait() {
        Ok(status) if status.success() => unpacked.map(|_| ()),
        status => Err(format!("dpkg-deb --fsys-tarfile {}: {status:?}", package.display())),
    }
}
