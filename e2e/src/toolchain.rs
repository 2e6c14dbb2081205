//! Builds Kubernetes, etcd, containerd, runc, the CNI plugins, Helm and the tools of a release from their own Go modules at
//! pinned versions.
//!
//! ```text
//! tools/<family>/go.*, *.go    ─┐
//! packages, tags, linker flags ─┼─ sha256 ─► cache/tools/<family>-<key>/<programs>
//! Go's version, the platform   ─┘            (a folder with that name is complete: it is renamed at the end)
//! KUBERNETES=DIR                ── Kubernetes' programs, instead of building them
//! ```

mod family;
mod given;
mod go;
mod gomod;
mod versions;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::{env, fs};

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};

use family::BESIDE;
pub use family::{FAMILIES, Family, RELEASE};
use given::Given;
pub use versions::{Versions, is_containerd_1};

use crate::lock::Lock;
use crate::{layout, shell};

/// The built programs, with a folder for each family.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
pub struct Toolchain {
    /// The version of Kubernetes without `v`.
    pub kubernetes: String,
    /// The version of containerd without `v`.
    pub containerd: String,
    folders: Vec<PathBuf>,
    /// The folder of the CNI plugins, for containerd's configuration.
    pub cni: PathBuf,
    /// runc, ours or the distribution's.
    pub runc: PathBuf,
}

impl Toolchain {
    /// Builds the tools that are not cached. `say` is called before each long build.
    pub fn build(say: &mut dyn FnMut(&str)) -> Result<Self> {
        let given = Given::chosen()?;
        let versions = Versions::beside(given.as_ref().map(|given| given.version.clone()))?;
        let go = go::check()?;
        let mut folders = Vec::new();
        let (mut cni, mut runc) = (PathBuf::new(), PathBuf::new());
        for family in &FAMILIES {
            if family.name == "runc" && !family::seccomp_available() {
                runc = family::distribution_runc()?;
                say(&format!(
                    "runc: {} (libseccomp's headers or pkg-config are missing)",
                    runc.display()
                ));
                continue;
            }
            let folder = match given.as_ref().filter(|_| family.name == family::KUBERNETES) {
                Some(given) => {
                    say(&format!(
                        "Kubernetes {}: from {}",
                        given.version,
                        given.folder.display()
                    ));
                    given.folder.clone()
                }
                None => build_family(family, &versions, &go, say)?,
            };
            match family.name {
                "cni" => cni.clone_from(&folder),
                "runc" => runc = folder.join("runc"),
                _ => {}
            }
            folders.push(folder);
        }
        Ok(Self {
            kubernetes: versions.kubernetes,
            containerd: versions.containerd,
            folders,
            cni,
            runc,
        })
    }

    /// The path of one program.
    pub fn program(&self, name: &str) -> Result<PathBuf> {
        let found = self
            .folders
            .iter()
            .map(|folder| folder.join(name))
            .find(|path| path.is_file());
        found.with_context(|| format!("{name} is not among the built tools"))
    }

    /// All folders and programs that a cluster uses.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        let runc = Some(&self.runc).filter(|runc| !self.folders.iter().any(|folder| runc.starts_with(folder)));
        self.folders.iter().chain(runc).map(PathBuf::as_path)
    }

    /// A search path with the built programs first.
    #[must_use]
    pub fn search_path(&self) -> OsString {
        let system = env::var_os("PATH").unwrap_or_default();
        let sbin = ["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from);
        let all = self
            .folders
            .iter()
            .cloned()
            .chain(env::split_paths(&system))
            .chain(sbin);
        env::join_paths(all).unwrap_or(system)
    }
}

impl Versions {
    /// The versions of this run. With `KUBERNETES=DIR`, Kubernetes' version is that of the programs in DIR.
    pub fn chosen() -> Result<Self> {
        Self::beside(Given::chosen()?.map(|given| given.version))
    }
}

/// Builds what `make release` and `make release-test` run, and returns the folders.
pub fn release_tools(say: &mut dyn FnMut(&str)) -> Result<Vec<PathBuf>> {
    let versions = Versions::chosen()?;
    let go = go::check()?;
    let helm = FAMILIES.iter().filter(|family| family.name == "helm");
    helm.chain(&RELEASE)
        .map(|family| build_family(family, &versions, &go, say))
        .collect()
}

/// A program that people run beside this driver.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
pub struct Beside {
    pub program: PathBuf,
    /// The folder of its module, which has its chart or its kinds.
    pub module: PathBuf,
}

impl Beside {
    /// Builds it if it is not cached. `name`: kueue, karpenter or kwok.
    pub fn build(name: &str, say: &mut dyn FnMut(&str)) -> Result<Self> {
        let known = BESIDE.iter().find(|(family, _)| family.name == name);
        let (family, module) = known.with_context(|| format!("no program {name} is built for tests beside others"))?;
        let folder = build_family(family, &Versions::chosen()?, &go::check()?, say)?;
        Ok(Self {
            program: folder.join(name),
            module: go::files_of(&committed(name), module)?,
        })
    }
}

fn build_family(family: &Family, versions: &Versions, go: &str, say: &mut dyn FnMut(&str)) -> Result<PathBuf> {
    let tools = layout::cache()?.join("tools");
    fs::create_dir_all(&tools).with_context(|| format!("cannot create {}", tools.display()))?;
    let packages = family.packages(versions);
    let module = module_of(family, versions, &packages, &tools, say)?;
    let flags = family.flags(&versions.kubernetes);
    let key = key_of(&module, &flags, &packages, go)?;
    let done = tools.join(format!("{}-{key}", family.name));
    if done.is_dir() {
        return Ok(done);
    }
    let _lock = Lock::wait(&tools.join(format!(".{}-{key}.lock", family.name)))?;
    if done.is_dir() {
        return Ok(done);
    }
    say(&format!("building {}: {}", family.name, family.estimate));
    let work = tools.join(format!(".{}-{key}", family.name));
    if work.exists() {
        fs::remove_dir_all(&work).with_context(|| format!("cannot remove {}", work.display()))?;
    }
    fs::create_dir_all(&work).with_context(|| format!("cannot create {}", work.display()))?;
    let mut output = OsString::from(&work);
    output.push("/"); // makes `go build` write into a folder
    let mut build = go::command();
    build
        .current_dir(&module)
        .args(["build", "-mod=readonly"])
        .args(&flags)
        .arg("-o")
        .arg(output)
        .args(&packages);
    shell::run_logged(&mut build, &tools.join(format!("{}-{key}.log", family.name)))?;
    if let Some((built, wanted)) = family.rename {
        fs::rename(work.join(built), work.join(wanted)).with_context(|| format!("{} was not built", family.name))?;
    }
    fs::rename(&work, &done).with_context(|| format!("cannot rename {} to {}", work.display(), done.display()))?;
    Ok(done)
}

fn committed(name: &str) -> PathBuf {
    layout::workspace().join("e2e/tools").join(name)
}

/// The folder with go.mod and go.sum: the committed one, or a generated one for another version.
fn module_of(
    family: &Family,
    versions: &Versions,
    packages: &[String],
    tools: &Path,
    say: &mut dyn FnMut(&str),
) -> Result<PathBuf> {
    let name = family.name;
    let committed = committed(name);
    let Some((module, version)) = family.chosen(versions) else {
        return Ok(committed);
    };
    let text = fs::read_to_string(committed.join("go.mod"))
        .with_context(|| format!("cannot read {}/go.mod", committed.display()))?;
    if gomod::requires(&text, module, version) {
        return Ok(committed);
    }
    let done = tools.join(format!("{name}-{version}-module"));
    let _lock = Lock::wait(&tools.join(format!(".{name}-{version}-module.lock")))?;
    if done.is_dir() {
        return Ok(done);
    }
    say(&format!("resolving the modules of {name} {version}"));
    let work = tools.join(format!(".{name}-{version}-module"));
    if work.exists() {
        fs::remove_dir_all(&work).with_context(|| format!("cannot remove {}", work.display()))?;
    }
    fs::create_dir_all(&work).with_context(|| format!("cannot create {}", work.display()))?;
    let upstream = go::upstream_gomod(&work, module, version)?;
    let ours = gomod::of_version(&upstream, name, module, version, packages)?;
    fs::write(work.join("go.mod"), ours).with_context(|| format!("cannot write {}/go.mod", work.display()))?;
    shell::run(go::command().current_dir(&work).args(["mod", "tidy"]))?;
    fs::rename(&work, &done).with_context(|| format!("cannot rename {} to {}", work.display(), done.display()))?;
    Ok(done)
}

/// Everything that decides the result. `go build` itself checks go.sum, so that covers the sources too.
fn key_of(module: &Path, flags: &[String], packages: &[String], go: &str) -> Result<String> {
    let mut hash = Sha256::new();
    for file in files_of_key(module)? {
        hash.update(fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?);
        hash.update([0]);
    }
    for part in flags.iter().chain(packages).map(String::as_str).chain([go]) {
        hash.update(part);
        hash.update([0]);
    }
    Ok(hash
        .finalize()
        .iter()
        .take(8)
        .map(|byte| format!("{byte:02x}"))
        .collect())
}

/// go.mod, go.sum, and the sources of a program of ours.
fn files_of_key(module: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(module).with_context(|| format!("cannot read {}", module.display()))?;
    let mut sources: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    sources.retain(|file| file.extension().is_some_and(|extension| extension == "go"));
    sources.sort();
    let locks = ["go.mod", "go.sum"].map(|name| module.join(name));
    Ok(locks.into_iter().chain(sources).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_changes_with_everything_that_decides_the_result() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("go.mod"), "module a").unwrap();
        fs::write(folder.path().join("go.sum"), "").unwrap();
        let key = |flags: &[&str], packages: &[&str], go: &str| {
            let owned = |words: &[&str]| -> Vec<String> { words.iter().map(ToString::to_string).collect() };
            key_of(folder.path(), &owned(flags), &owned(packages), go).unwrap()
        };
        let first = key(&["-trimpath"], &["a/b"], "go1.26.6");
        assert_eq!(first, key(&["-trimpath"], &["a/b"], "go1.26.6"));
        assert_ne!(first, key(&["-trimpath"], &["a/b"], "go1.26.7"));
        assert_ne!(first, key(&[], &["-trimpath", "a/c"], "go1.26.6"));
        assert_ne!(key(&["ab"], &[], ""), key(&["a"], &["b"], ""));
        fs::write(folder.path().join("go.sum"), "changed").unwrap();
        let second = key(&["-trimpath"], &["a/b"], "go1.26.6");
        assert_ne!(first, second);
        fs::write(folder.path().join("main.go"), "package main").unwrap();
        assert_ne!(second, key(&["-trimpath"], &["a/b"], "go1.26.6"));
    }
}
