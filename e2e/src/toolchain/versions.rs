//! The versions of programs that can be chosen for a run: from a variable, else from the file `versions`.

use std::{env, fs};

use anyhow::{Context, Result, bail};

use crate::layout;

/// Versions without a leading `v`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Versions {
    pub kubernetes: String,
    pub containerd: String,
}

/// The variable that chooses Kubernetes' version.
pub(super) const KUBERNETES_VERSION: &str = "KUBERNETES_VERSION";

impl Versions {
    /// The versions of this run, checked to have a form that can be built. `given` is the version of Kubernetes'
    /// programs if they exist already.
    pub(super) fn beside(given: Option<String>) -> Result<Self> {
        let file = layout::workspace().join("e2e/versions");
        let defaults = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        let kubernetes = match given {
            Some(version) => version,
            None => choose(KUBERNETES_VERSION, "kubernetes", &defaults, check_kubernetes)?,
        };
        Ok(Self {
            kubernetes,
            containerd: choose("CONTAINERD_VERSION", "containerd", &defaults, check_containerd)?,
        })
    }
}

/// Returns true for containerd 1.x, whose module and configuration file have another form.
#[must_use]
pub fn is_containerd_1(version: &str) -> bool {
    version.starts_with("1.")
}

fn choose(variable: &str, key: &str, defaults: &str, check: fn(&[u32]) -> Result<(), &'static str>) -> Result<String> {
    parse(
        variable,
        &set(variable).map_or_else(|| default(key, defaults), Ok)?,
        check,
    )
}

/// The value of a variable that is set and not empty.
pub(super) fn set(variable: &str) -> Option<String> {
    env::var(variable).ok().filter(|version| !version.trim().is_empty())
}

/// Checks a version of Kubernetes. `from` is the setting that it comes from, for the error.
pub(super) fn kubernetes(from: &str, version: &str) -> Result<String> {
    parse(from, version, check_kubernetes)
}

fn default(key: &str, defaults: &str) -> Result<String> {
    let line = defaults
        .lines()
        .find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    let version = line.with_context(|| format!("e2e/versions has no line {key}=VERSION"))?;
    Ok(version.to_owned())
}

fn parse(variable: &str, text: &str, check: fn(&[u32]) -> Result<(), &'static str>) -> Result<String> {
    let version = text.trim().trim_start_matches('v');
    // Parts must have no sign or leading zeros, because the version becomes part of file names.
    let part = |part: &str| part.parse::<u32>().ok().filter(|number| number.to_string() == part);
    let parts: Option<Vec<u32>> = version.split('.').map(part).collect();
    match check(&parts.unwrap_or_default()) {
        Ok(()) => Ok(version.to_owned()),
        Err(form) => bail!("{variable}={text}: name {form}"),
    }
}

fn check_kubernetes(parts: &[u32]) -> Result<(), &'static str> {
    match parts {
        [1, minor, _] if *minor >= 34 => Ok(()),
        _ => Err("a version like 1.37.1, from 1.34 on"),
    }
}

fn check_containerd(parts: &[u32]) -> Result<(), &'static str> {
    match parts {
        [2, _, _] | [1, 7, _] => Ok(()),
        _ => Err("a version like 2.4.2 or 1.7.35: containerd 2 or 1.7"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_that_can_be_built_are_taken() {
        let kubernetes = |text| parse("KUBERNETES_VERSION", text, check_kubernetes).unwrap();
        assert_eq!(kubernetes("v1.36.3\n"), "1.36.3");
        let containerd = |text| parse("CONTAINERD_VERSION", text, check_containerd).unwrap();
        assert_eq!(containerd("1.7.35"), "1.7.35");
        assert_eq!(containerd("v2.4.2"), "2.4.2");
        assert!(is_containerd_1("1.7.35") && !is_containerd_1("2.1.7"));
    }

    #[test]
    fn others_are_refused_by_variable_and_value() {
        for bad in [
            "1.33.9",
            "2.0.0",
            "1.37",
            "1.37.1-rc.0",
            "latest",
            "1.37.+1",
            "1.037.1",
            "../1.37.1",
        ] {
            let error = parse("KUBERNETES_VERSION", bad, check_kubernetes)
                .unwrap_err()
                .to_string();
            assert!(
                error.starts_with(&format!("KUBERNETES_VERSION={bad}: name a version")),
                "{error}"
            );
        }
        for bad in [
            "1.6.20", "1.8.0", "3.0.0", "0.2.3", "2", "2.4", "1.7", "1.7.x", "1.7.-1", "two",
        ] {
            let error = parse("CONTAINERD_VERSION", bad, check_containerd)
                .unwrap_err()
                .to_string();
            assert!(
                error.starts_with(&format!("CONTAINERD_VERSION={bad}: name a version")),
                "{error}"
            );
            assert!(!error.contains('\n'), "{error}");
        }
    }

    #[test]
    fn the_file_of_defaults_names_both() {
        let text = fs::read_to_string(layout::workspace().join("e2e/versions")).unwrap();
        for (key, check) in [
            ("kubernetes", check_kubernetes as fn(&[u32]) -> _),
            ("containerd", check_containerd),
        ] {
            parse(key, &default(key, &text).unwrap(), check).unwrap();
        }
        assert!(default("containerd", "kubernetes=1.37.1\n").is_err());
    }
}
