//! Existing programs of Kubernetes, which are used instead of building them: `KUBERNETES=DIR`.

use std::path::{Path, PathBuf};
use std::{env, fs};

use anyhow::{Context, Result, ensure};

use super::family::{FAMILIES, KUBERNETES};
use super::versions;
use crate::shell;

const VARIABLE: &str = "KUBERNETES";

/// A folder with all of Kubernetes' programs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Given {
    pub(super) folder: PathBuf,
    /// The version of all of them, without `v` and without a distribution's suffix.
    pub(super) version: String,
}

impl Given {
    /// The folder that the variable names, checked; None if it is not set.
    pub(super) fn chosen() -> Result<Option<Self>> {
        let Some(folder) = env::var_os(VARIABLE).filter(|folder| !folder.is_empty()) else {
            return Ok(None);
        };
        let wanted = versions::set(versions::KUBERNETES_VERSION);
        Self::of(Path::new(&folder), wanted.as_deref(), ask).map(Some)
    }

    /// `ask` runs a program with `--version` or its equivalent.
    fn of(folder: &Path, wanted: Option<&str>, ask: impl Fn(&Path) -> Result<String>) -> Result<Self> {
        let set = format!("{VARIABLE}={}", folder.display());
        let folder = fs::canonicalize(folder).with_context(|| format!("{set}: name a folder that exists"))?;
        let family = FAMILIES.iter().find(|family| family.name == KUBERNETES);
        let mut known: Option<(&str, String)> = None;
        for name in family.context("no family of Kubernetes")?.programs() {
            let program = folder.join(name);
            ensure!(
                program.is_file(),
                "{set}: it has no {name}; unset {VARIABLE} to build Kubernetes"
            );
            let said = ask(&program).with_context(|| format!("{set}: {name} does not say its version"))?;
            let version =
                version_in(&said).with_context(|| format!("{set}: {name} says no version: {}", said.trim()))?;
            match &known {
                Some((first, of)) => ensure!(
                    version == *of,
                    "{set}: {first} is {of} and {name} is {version}; they must be of one version"
                ),
                None => known = Some((name, version)),
            }
        }
        let (_, version) = known.context("Kubernetes has no programs")?;
        let version = versions::kubernetes(&set, &version)?;
        if let Some(wanted) = wanted {
            let wanted = wanted.trim().trim_start_matches('v');
            ensure!(
                wanted == version,
                "{set} is version {version}, and {}={wanted}; unset one of them",
                versions::KUBERNETES_VERSION
            );
        }
        Ok(Self { folder, version })
    }
}

fn ask(program: &Path) -> Result<String> {
    let arguments: &[&str] = match program.ends_with("kubectl") {
        true => &["version", "--client"],
        false => &["--version"],
    };
    shell::output(&mut shell::command(program, arguments))
}

/// The version in `Kubernetes v1.37.1` or `Client Version: v1.37.1`; `-gke.1` or `+k3s1` at its end is left out.
fn version_in(said: &str) -> Option<String> {
    let mut words = said.split_whitespace().filter_map(|word| word.strip_prefix('v'));
    let word = words.find(|word| word.starts_with(|letter: char| letter.is_ascii_digit()))?;
    word.split(['-', '+']).next().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder whose programs "say" what is written in them.
    fn folder(programs: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (name, said) in programs {
            fs::write(folder.path().join(name), said).unwrap();
        }
        folder
    }

    fn given(folder: &Path, wanted: Option<&str>) -> Result<Given> {
        Given::of(folder, wanted, |program| Ok(fs::read_to_string(program)?))
    }

    const ALL: [(&str, &str); 5] = [
        ("kube-apiserver", "Kubernetes v1.36.3\n"),
        ("kube-scheduler", "Kubernetes v1.36.3\n"),
        ("kube-controller-manager", "Kubernetes v1.36.3\n"),
        ("kubelet", "Kubernetes v1.36.3+k3s1\n"),
        ("kubectl", "Client Version: v1.36.3\nKustomize Version: v5.8.1\n"),
    ];

    #[test]
    fn programs_of_one_version_are_taken() {
        let folder = folder(&ALL);
        for wanted in [None, Some("v1.36.3")] {
            let taken = given(folder.path(), wanted).unwrap();
            assert_eq!(taken.version, "1.36.3");
            assert_eq!(taken.folder, folder.path().canonicalize().unwrap());
        }
    }

    #[test]
    fn a_folder_that_does_not_fit_is_refused_by_name_and_value() {
        let of = |change: (&'static str, &'static str)| {
            let mut all = ALL.to_vec();
            all.retain(|(name, _)| *name != change.0);
            all.extend((!change.1.is_empty()).then_some(change));
            folder(&all)
        };
        for (change, wanted, words) in [
            (("kubelet", ""), None, "it has no kubelet"),
            (
                ("kubectl", "Client Version: v1.37.0"),
                None,
                "kube-apiserver is 1.36.3 and kubectl is 1.37.0",
            ),
            (
                ("kubelet", "segmentation fault"),
                None,
                "kubelet says no version: segmentation fault",
            ),
            (
                ALL[3],
                Some("1.37.1"),
                "is version 1.36.3, and KUBERNETES_VERSION=1.37.1",
            ),
        ] {
            let folder = of(change);
            let error = format!("{:#}", given(folder.path(), wanted).unwrap_err());
            assert!(error.contains(words) && error.contains("KUBERNETES=/"), "{error}");
        }
        let old = folder(&ALL.map(|(name, _)| (name, "Kubernetes v1.33.0")));
        let error = given(old.path(), None).unwrap_err().to_string();
        assert!(error.contains("from 1.34 on"), "{error}");
        let error = format!("{:#}", given(&old.path().join("nowhere"), None).unwrap_err());
        assert!(error.contains("name a folder that exists"), "{error}");
    }
}
