//! Creates root file systems of Debian's releases from their packages. Nothing is installed on this machine: apt gets its
//! own configuration and an empty list of installed packages, and the downloaded packages are unpacked into a folder.
//!
//! Packages come from this machine's own mirror, with its keys. So on a machine that is not Debian the result is an `Err`,
//! as it is for a release that the mirror no longer has.
//!
//! No package script runs, so nothing is configured: there is no loader cache and there are no alternatives.

use crate::{folder, run};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const DEBIAN_KEYS: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
/// Raised when the unpacking below changes, so that cached folders are made again.
const RECIPE: &str = "2";

/// One release of Debian.
#[derive(Clone, Copy, Debug)]
pub struct Release<'a> {
    pub codename: &'a str,
    pub components: &'a str,
}

/// Selects whether the dependencies of the named packages are fetched too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum With {
    Nothing,
    AllThatTheyNeed,
}

/// The release of this machine.
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
/// The packages cannot be fetched.
pub fn root(release: Release<'_>, packages: &[&str], with: With) -> Result<PathBuf, String> {
    let key = format!("{RECIPE} {release:?} {packages:?} {with:?}");
    folder(&format!("root-{}", release.codename), &key, |folder| {
        let root = folder.join("root");
        let failed = |error: std::io::Error| format!("{}: {error}", root.display());
        for name in ["usr", "etc", "tmp", "run", "var"] {
            fs::create_dir_all(root.join(name)).map_err(failed)?;
        }
        for name in ["bin", "sbin", "lib", "lib64"] {
            fs::create_dir_all(root.join("usr").join(name)).map_err(failed)?;
            symlink(Path::new("usr").join(name), root.join(name)).map_err(failed)?;
        }
        let apt = folder.join("apt");
        fetch(release, packages, with, &apt)?;
        for package in packages_in(&apt.join("archives"))? {
            unpack(&package, &root)?;
        }
        // A package's script would create this link.
        if !root.join("bin/sh").exists() && root.join("bin/dash").exists() {
            symlink("dash", root.join("bin/sh")).map_err(failed)?;
        }
        fs::remove_dir_all(&apt).map_err(failed)
    })
    .map(|folder| folder.join("root"))
}

/// Like [`root`], for this machine's release.
///
/// # Errors
/// The packages cannot be fetched.
pub fn own_packages(components: &str, packages: &[&str], with: With) -> Result<PathBuf, String> {
    let codename = own_codename()?;
    let codename = &codename;
    root(Release { codename, components }, packages, with)
}

/// NVIDIA's nvidia-smi, from the distribution's package.
///
/// # Errors
/// It cannot be fetched.
pub fn nvidia_smi() -> Result<PathBuf, String> {
    let root = own_packages("non-free", &["nvidia-smi"], With::Nothing)?;
    let program = root.join("usr/lib/nvidia/current/nvidia-smi");
    match program.is_file() {
        true => Ok(program),
        false => Err(format!("{} is missing in the package nvidia-smi", program.display())),
    }
}

fn fetch(release: Release<'_>, packages: &[&str], with: With, apt: &Path) -> Result<(), String> {
    let mirror = debian_mirror()?;
    let failed = |error: std::io::Error| format!("{}: {error}", apt.display());
    for name in ["lists/partial", "archives/partial"] {
        fs::create_dir_all(apt.join(name)).map_err(failed)?;
    }
    let at = apt.display();
    let Release { codename, components } = release;
    let source = format!("deb [arch=amd64 signed-by={DEBIAN_KEYS}] {mirror} {codename} {components}\n");
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

/// This machine's mirror of Debian.
///
/// # Errors
/// The machine is not Debian, or its apt has no source.
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

fn packages_in(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let entries = fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let paths = entries.flatten().map(|entry| entry.path());
    Ok(paths
        .filter(|path| path.extension().is_some_and(|end| end == "deb"))
        .collect())
}

/// Does not use `dpkg-deb -x`, which would replace the links of a merged /usr by folders.
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
    // Close our end of the pipe: otherwise dpkg-deb would wait forever after its reader has failed.
    drop(tar);
    match reader.wait() {
        Ok(status) if status.success() => unpacked.map(|_| ()),
        status => Err(format!("dpkg-deb --fsys-tarfile {}: {status:?}", package.display())),
    }
}
