//! Unpacks the distribution's packages into a folder without installing anything.
//!
//! apt gets its own configuration (sources, lists, cache) and an empty list of installed packages, so that it resolves
//! all dependencies of a package, and works for an ordinary user.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use vgpu_abi::arch;

use crate::shell;

/// A private apt under one folder.
#[derive(Debug)]
pub(super) struct Apt {
    folder: PathBuf,
    codename: String,
    /// Empty for this machine's architecture, else its name with a dash.
    suffix: String,
    updated: bool,
}

impl Apt {
    /// An apt for the packages of one architecture, in the cache.
    pub(super) fn new(cache: &Path, architecture: &str) -> Result<Self> {
        let suffix = match architecture {
            arch!(oci) => String::new(),
            other => format!("-{other}"),
        };
        let folder = &cache.join(format!("apt{suffix}"));
        for name in ["lists/partial", "archives/partial", "parts"] {
            let made = folder.join(name);
            fs::create_dir_all(&made).with_context(|| format!("cannot create {}", made.display()))?;
        }
        let release = fs::read_to_string("/etc/os-release").context("cannot read /etc/os-release")?;
        let of = |key: &str| {
            let line = release
                .lines()
                .find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
            line.map(|value| value.trim_matches('"').to_owned())
        };
        let codename =
            of("VERSION_CODENAME").context("/etc/os-release names no VERSION_CODENAME: run on Debian or Ubuntu")?;
        let components = if of("ID").as_deref() == Some("ubuntu") {
            "main restricted universe"
        } else {
            "main non-free"
        };
        let sources = sources(&machine_sources()?, &codename, components);
        ensure!(
            !sources.is_empty(),
            "/etc/apt has no source for {codename} with the component main: add one"
        );
        let write = |name: &str, text: &str| {
            fs::write(folder.join(name), text).with_context(|| format!("cannot write {}", folder.join(name).display()))
        };
        write("status", "")?;
        write("sources.list", &sources)?;
        let at = folder.display();
        write(
            "apt.conf",
            &format!(
                "Dir::Etc::SourceList \"{at}/sources.list\";\nDir::Etc::SourceParts \"-\";\nDir::State \"{at}\";\n\
                 Dir::State::Lists \"{at}/lists\";\nDir::State::status \"{at}/status\";\nDir::Cache \"{at}\";\n\
                 Dir::Cache::archives \"{at}/archives\";\nDir::Log \"{at}\";\nAPT::Install-Recommends \"0\";\n\
                 APT::Install-Suggests \"0\";\nAPT::Sandbox::User \"\";\nAcquire::Languages \"none\";\n\
                 APT::Architecture \"{architecture}\";\nAPT::Architectures {{ \"{architecture}\"; }};\n\
                 Binary::apt-get::APT::Keep-Downloaded-Packages \"1\";\nDebug::NoLocking \"1\";\n"
            ),
        )?;
        Ok(Self {
            folder: folder.to_path_buf(),
            codename,
            suffix,
            updated: false,
        })
    }

    /// The distribution's release; packages of another release do not fit.
    pub(super) fn codename(&self) -> &str {
        &self.codename
    }

    /// The end of the file names of packages for its architecture.
    pub(super) fn suffix(&self) -> &str {
        &self.suffix
    }

    fn command(&self, program: &str) -> Command {
        let mut command = shell::command(program, [] as [&str; 0]);
        command
            .env("APT_CONFIG", self.folder.join("apt.conf"))
            .env("LC_ALL", "C")
            .current_dir(self.folder.join("archives"));
        command
    }

    fn update(&mut self) -> Result<()> {
        if !self.updated {
            shell::run(self.command("apt-get").args(["-qq", "update"]))?;
            self.updated = true;
        }
        Ok(())
    }

    /// Unpacks the packages and their dependencies into `root`.
    pub(super) fn unpack(&mut self, packages: &[&str], root: &Path) -> Result<()> {
        self.update()?;
        let install = ["-qq", "-y", "--download-only", "install"];
        shell::run(self.command("apt-get").args(install).args(packages))?;
        let simulated = shell::output(self.command("apt-get").args(["-qq", "-s", "install"]).args(packages))?;
        for (name, version) in simulated_installs(&simulated) {
            let file = self.archive(name, version)?;
            extract(&file, root)?;
        }
        Ok(())
    }

    /// Downloads one package without its dependencies and unpacks it.
    pub(super) fn unpack_alone(&mut self, package: &str, root: &Path) -> Result<()> {
        self.update()?;
        let folder = root.with_extension("download");
        fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
        shell::run(
            self.command("apt-get")
                .current_dir(&folder)
                .args(["-qq", "download", package]),
        )?;
        for entry in fs::read_dir(&folder)?.flatten() {
            extract(&entry.path(), root)?;
        }
        fs::remove_dir_all(&folder).with_context(|| format!("cannot remove {}", folder.display()))
    }

    fn archive(&self, name: &str, version: &str) -> Result<PathBuf> {
        let start = format!("{name}_{}_", version.replace(':', "%3a"));
        let folder = self.folder.join("archives");
        let entries = fs::read_dir(&folder)
            .with_context(|| format!("cannot read {}", folder.display()))?
            .flatten();
        let found = entries.map(|entry| entry.path()).find(|path| {
            path.file_name()
                .is_some_and(|file| file.to_string_lossy().starts_with(&start))
        });
        found.with_context(|| format!("apt-get did not download {name} {version}"))
    }
}

/// Unpacks one archive. Does not use `dpkg-deb -x`, which would replace the links of a merged /usr (bin, lib, ...) by
/// folders.
fn extract(file: &Path, root: &Path) -> Result<()> {
    let mut reader = shell::command("dpkg-deb", ["--fsys-tarfile"]);
    let mut reading = reader
        .arg(file)
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot run dpkg-deb")?;
    let archive = reading.stdout.take().context("dpkg-deb has no standard output")?;
    let mut writer = shell::command(
        "tar",
        ["-x", "--keep-directory-symlink", "--no-same-owner", "-f", "-", "-C"],
    );
    shell::run(writer.arg(root).stdin(archive))?;
    let status = reading.wait().context("cannot wait for dpkg-deb")?;
    ensure!(status.success(), "dpkg-deb --fsys-tarfile {}: {status}", file.display());
    Ok(())
}

/// Parses `Inst NAME (VERSION ...)` lines: the packages that would be installed.
fn simulated_installs(text: &str) -> Vec<(&str, &str)> {
    let lines = text.lines().filter_map(|line| line.strip_prefix("Inst "));
    lines
        .filter_map(|line| {
            let (name, rest) = line.split_once(' ')?;
            let version = rest.split_once('(')?.1.split([' ', ')']).next()?;
            Some((name.split(':').next().unwrap_or(name), version))
        })
        .collect()
}

/// Every source file of this machine's apt.
fn machine_sources() -> Result<Vec<String>> {
    let mut texts = Vec::new();
    let parts = fs::read_dir("/etc/apt/sources.list.d")
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path());
    for file in [PathBuf::from("/etc/apt/sources.list")].into_iter().chain(parts) {
        let known = file
            .extension()
            .is_some_and(|extension| extension == "list" || extension == "sources");
        if known && file.is_file() {
            texts.push(fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?);
        }
    }
    Ok(texts)
}

/// The sources of the distribution itself, with the components that we need, one per line.
fn sources(texts: &[String], codename: &str, components: &str) -> String {
    let mut lines: Vec<String> = Vec::new();
    for text in texts {
        for (options, uri, suite) in one_line(text).into_iter().chain(deb822(text)) {
            let ours = suite == codename || suite.strip_prefix(codename).is_some_and(|rest| rest.starts_with('-'));
            let line = format!("deb {options}{uri} {suite} {components}");
            if ours && !suite.ends_with("-backports") && !lines.contains(&line) {
                lines.push(line);
            }
        }
    }
    lines.iter().map(|line| format!("{line}\n")).collect()
}

/// `deb [options] uri suite main ...`
fn one_line(text: &str) -> Vec<(String, String, String)> {
    let mut found = Vec::new();
    for line in text.lines() {
        let Some(rest) = line.trim().strip_prefix("deb ") else {
            continue;
        };
        let (options, rest) = match rest.trim().strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((options, rest)) => (without_architecture(options), rest),
            None => (String::new(), rest),
        };
        let words: Vec<&str> = rest.split_whitespace().collect();
        if let [uri, suite, components @ ..] = &words[..]
            && components.contains(&"main")
        {
            found.push((options, (*uri).to_owned(), (*suite).to_owned()));
        }
    }
    found
}

/// The options of a source without those that limit it to one architecture.
fn without_architecture(options: &str) -> String {
    let words = options.split_whitespace().filter(|option| !option.starts_with("arch"));
    let words: Vec<&str> = words.collect();
    if words.is_empty() {
        return String::new();
    }
    format!("[{}] ", words.join(" "))
}

/// Stanzas with `Types:`, `URIs:`, `Suites:`, `Components:` and `Signed-By:` (a path; embedded keys are not read).
fn deb822(text: &str) -> Vec<(String, String, String)> {
    let mut found = Vec::new();
    let plain: String = text
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| format!("{line}\n"))
        .collect();
    for stanza in plain.split("\n\n") {
        let of = |key: &str| {
            let value = stanza
                .lines()
                .find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
            value.unwrap_or_default().split_whitespace().collect::<Vec<_>>()
        };
        if !of("Types").contains(&"deb") || !of("Components").contains(&"main") || of("Enabled") == ["no"] {
            continue;
        }
        let options = match of("Signed-By")[..] {
            [key] if key.starts_with('/') => format!("[signed-by={key}] "),
            _ => String::new(),
        };
        for uri in of("URIs") {
            for suite in of("Suites") {
                found.push((options.clone(), uri.to_owned(), suite.to_owned()));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_distributions_own_sources_are_taken_in_both_formats() {
        let stanza = "Types: deb\n# a comment\nURIs: http://mirror/debian\nSuites: bookworm bookworm-updates\n\
            Components: main\nSigned-By: /usr/share/keyrings/debian.gpg\n\nTypes: deb\nURIs: https://vendor\n\
            Suites: nodistro\nComponents: main\n";
        let line = "deb [arch=amd64 trusted=yes] http://mirror/security bookworm-security main\ndeb [arch=amd64] http://mirror/more bookworm main\ndeb http://other bookworm contrib\n\
            deb http://mirror/debian bookworm-backports main\n#deb http://off bookworm main\n";
        assert_eq!(
            sources(&[stanza.to_owned(), line.to_owned()], "bookworm", "main non-free"),
            "deb [signed-by=/usr/share/keyrings/debian.gpg] http://mirror/debian bookworm main non-free\n\
             deb [signed-by=/usr/share/keyrings/debian.gpg] http://mirror/debian bookworm-updates main non-free\n\
             deb [trusted=yes] http://mirror/security bookworm-security main non-free\n\
             deb http://mirror/more bookworm main non-free\n"
        );
    }

    #[test]
    fn names_and_versions_come_from_the_simulation() {
        let said = "NOTE: x\nInst gcc-12-base (12.2.0-14+deb12u1 Debian:12.11/stable [amd64])\n\
            Inst libc6:amd64 (2.36-9+deb12u10 Debian [amd64]) []\nConf libc6 (2.36)\n";
        assert_eq!(
            simulated_installs(said),
            [("gcc-12-base", "12.2.0-14+deb12u1"), ("libc6", "2.36-9+deb12u10")]
        );
    }
}
