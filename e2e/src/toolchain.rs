//! Builds Kubernetes, etcd, containerd, runc, the CNI plugins and Helm from their own Go modules at pinned versions.
//!
//! ```text
//! tools/<family>/go.mod, go.sum ─┐
//! packages, tags, linker flags  ─┼─ sha256 ─► cache/tools/<family>-<key>/<programs>
//! Go's version, the platform    ─┘            (a folder under that name is complete: it is renamed there at the end)
//! ```

mod family;
mod go;
mod gomod;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::{env, fs};

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

pub use family::{FAMILIES, Family};

use crate::lock::Lock;
use crate::{layout, shell};

/// The built programs, one folder a family.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
pub struct Toolchain {
    /// The version of Kubernetes without `v`.
    pub kubernetes: String,
    folders: Vec<PathBuf>,
    /// The folder of the CNI plugins, which containerd is told.
    pub cni: PathBuf,
    /// runc, ours or the distribution's.
    pub runc: PathBuf,
}

impl Toolchain {
    /// Builds whatever the cache lacks. `say` hears of each build that takes time.
    pub fn build(say: &mut dyn FnMut(&str)) -> Result<Self> {
        let go = go::check()?;
        let kubernetes = kubernetes_version()?;
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
            let folder = build_family(family, &kubernetes, &go, say)?;
            match family.name {
                "cni" => cni.clone_from(&folder),
                "runc" => runc = folder.join("runc"),
                _ => {}
            }
            folders.push(folder);
        }
        Ok(Self {
            kubernetes,
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

/// `$KUBERNETES_VERSION`, else the line in `versions`.
pub fn kubernetes_version() -> Result<String> {
    let version = match env::var("KUBERNETES_VERSION") {
        Ok(version) if !version.is_empty() => version,
        _ => {
            let file = layout::workspace().join("e2e/versions");
            let text = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
            let line = text.lines().find_map(|line| line.strip_prefix("kubernetes="));
            line.with_context(|| format!("{} has no line kubernetes=VERSION", file.display()))?
                .to_owned()
        }
    };
    let version = version.trim().trim_start_matches('v').to_owned();
    let parts: Vec<_> = version.split('.').map(str::parse::<u32>).collect();
    match parts[..] {
        [Ok(1), Ok(minor), Ok(_)] if minor >= 34 => Ok(version),
        _ => bail!("KUBERNETES_VERSION={version}: name a version like 1.37.1, from 1.34 on"),
    }
}

fn build_family(family: &Family, kubernetes: &str, go: &str, say: &mut dyn FnMut(&str)) -> Result<PathBuf> {
    let tools = layout::cache()?.join("tools");
    fs::create_dir_all(&tools).with_context(|| format!("cannot create {}", tools.display()))?;
    let module = module_of(family, kubernetes, &tools, say)?;
    let flags = family.flags(kubernetes);
    let key = key_of(&module, &flags, family.packages, go)?;
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
    output.push("/"); // go build writes into a folder when the name ends so
    let mut build = go::command();
    build
        .current_dir(&module)
        .args(["build", "-mod=readonly"])
        .args(&flags)
        .arg("-o")
        .arg(output)
        .args(family.packages);
    shell::run_logged(&mut build, &tools.join(format!("{}-{key}.log", family.name)))?;
    if let Some((built, wanted)) = family.rename {
        fs::rename(work.join(built), work.join(wanted)).with_context(|| format!("{} was not built", family.name))?;
    }
    fs::rename(&work, &done).with_context(|| format!("cannot rename {} to {}", work.display(), done.display()))?;
    Ok(done)
}

/// The folder with go.mod and go.sum: the committed one, or a generated one for another Kubernetes.
fn module_of(family: &Family, kubernetes: &str, tools: &Path, say: &mut dyn FnMut(&str)) -> Result<PathBuf> {
    let committed = layout::workspace().join("e2e/tools").join(family.name);
    if family.name != "kubernetes" {
        return Ok(committed);
    }
    let text = fs::read_to_string(committed.join("go.mod"))
        .with_context(|| format!("cannot read {}/go.mod", committed.display()))?;
    if gomod::requires(&text, "k8s.io/kubernetes", kubernetes) {
        return Ok(committed);
    }
    let done = tools.join(format!("kubernetes-{kubernetes}-module"));
    let _lock = Lock::wait(&tools.join(format!(".kubernetes-{kubernetes}-module.lock")))?;
    if done.is_dir() {
        return Ok(done);
    }
    say(&format!("resolving the modules of Kubernetes {kubernetes}"));
    let work = tools.join(format!(".kubernetes-{kubernetes}-module"));
    if work.exists() {
        fs::remove_dir_all(&work).with_context(|| format!("cannot remove {}", work.display()))?;
    }
    fs::create_dir_all(&work).with_context(|| format!("cannot create {}", work.display()))?;
    let upstream = go::upstream_gomod(&work, "k8s.io/kubernetes", kubernetes)?;
    let ours = gomod::kubernetes(&upstream, kubernetes, family.packages)?;
    fs::write(work.join("go.mod"), ours).with_context(|| format!("cannot write {}/go.mod", work.display()))?;
    shell::run(go::command().current_dir(&work).args(["mod", "tidy"]))?;
    fs::rename(&work, &done).with_context(|| format!("cannot rename {} to {}", work.display(), done.display()))?;
    Ok(done)
}

/// Everything that decides the result. `go build` itself checks go.sum, so that the sources are in it as well.
fn key_of(module: &Path, flags: &[String], packages: &[&str], go: &str) -> Result<String> {
    let mut hash = Sha256::new();
    for name in ["go.mod", "go.sum"] {
        let file = module.join(name);
        hash.update(fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?);
        hash.update([0]);
    }
    for part in flags
        .iter()
        .map(String::as_str)
        .chain(packages.iter().copied())
        .chain([go])
    {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_changes_with_everything_that_decides_the_result() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("go.mod"), "module a").unwrap();
        fs::write(folder.path().join("go.sum"), "").unwrap();
        let key = |flags: &[&str], packages: &[&str], go: &str| {
            let flags: Vec<String> = flags.iter().map(ToString::to_string).collect();
            key_of(folder.path(), &flags, packages, go).unwrap()
        };
        let first = key(&["-trimpath"], &["a/b"], "go1.26.6");
        assert_eq!(first, key(&["-trimpath"], &["a/b"], "go1.26.6"));
        assert_ne!(first, key(&["-trimpath"], &["a/b"], "go1.26.7"));
        assert_ne!(first, key(&[], &["-trimpath", "a/c"], "go1.26.6"));
        assert_ne!(key(&["ab"], &[], ""), key(&["a"], &["b"], ""));
        fs::write(folder.path().join("go.sum"), "changed").unwrap();
        assert_ne!(first, key(&["-trimpath"], &["a/b"], "go1.26.6"));
    }
}
