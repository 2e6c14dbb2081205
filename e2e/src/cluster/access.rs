//! Runs commands inside the members of a running cluster, for the keeper and for users of the cluster.

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use super::config::{Config, Member, State};
use super::protocol::{Wish, send};
use crate::shell;
use crate::wait::wait;

/// Time for a component to end after its signal, or to start.
const RESTART: Duration = Duration::from_secs(60);

/// A running cluster as its user sees it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Access<'a> {
    pub(super) state: &'a State,
    pub(super) config: &'a Config,
    /// The keeper's socket, for the program that started the cluster.
    pub(super) keeper: Option<&'a UnixStream>,
}

impl Access<'_> {
    pub(super) fn wish(self, wish: &Wish) -> Result<()> {
        let keeper = self.keeper;
        send(
            keeper.context("only the program that started the cluster changes its parts")?,
            wish,
        )
    }

    /// Kills a component (SIGKILL), which is then not started again.
    pub(super) fn stop(self, member: Member, component: &str) -> Result<()> {
        self.wish(&Wish::Stop(member, component.to_owned()))?;
        wait(RESTART, &format!("{component} of {} to end", member.name()), || {
            Ok(pid_of(self.state, member, component).is_err().then_some(()))
        })
    }

    /// Starts a component that was stopped.
    pub(super) fn resume(self, member: Member, component: &str) -> Result<()> {
        self.wish(&Wish::Resume(member, component.to_owned()))?;
        wait(RESTART, &format!("{component} of {} to start", member.name()), || {
            pid_of(self.state, member, component).map(|_| Some(()))
        })
    }

    /// Stops a component (SIGTERM, or SIGKILL) and waits until it was started again.
    pub(super) fn restart(self, member: Member, component: &str, kill: bool) -> Result<()> {
        let before = pid_of(self.state, member, component)?;
        let name = component.to_owned();
        self.wish(&if kill {
            Wish::Kill(member, name)
        } else {
            Wish::Restart(member, name)
        })?;
        wait(RESTART, &format!("{component} to end"), || {
            Ok((pid_of(self.state, member, component)? != before).then_some(()))
        })
    }
}

/// The PID of a member's init on the host.
pub(super) fn init_of(state: &State, member: Member) -> Result<String> {
    let file = state.member(member).init();
    let pid = fs::read_to_string(&file).with_context(|| format!("{} does not run", member.name()))?;
    Ok(pid.trim().to_owned())
}

/// A command inside a member's namespaces, as root.
pub(super) fn inside(state: &State, config: &Config, member: Member, command: &[&str]) -> Command {
    let pid = init_of(state, member).unwrap_or_default(); // without one, nsenter reports the missing target
    let mut nsenter = shell::command("nsenter", ["--target", &pid, "--mount", "--net", "--pid", "--"]);
    nsenter
        .args(command)
        .env("PATH", config.toolchain.search_path())
        .env("KUBECONFIG", state.component_kubeconfig("admin"));
    nsenter
}

/// Imports an OCI archive into a node's containerd.
pub(super) fn import(state: &State, config: &Config, member: Member, archive: &Path) -> Result<()> {
    let path = archive.display().to_string();
    let ctr = ["ctr", "-n", "k8s.io", "images", "import", &path];
    shell::run(&mut inside(state, config, member, &ctr))
        .with_context(|| format!("cannot import {path} on {}", member.name()))
}

/// A path of a running member, as a path on the host.
pub(super) fn path_inside(state: &State, member: Member, path: &str) -> Result<PathBuf> {
    Ok(PathBuf::from(format!("/proc/{}/root{path}", init_of(state, member)?)))
}

/// The PID of a component, in its member's namespace.
pub(super) fn pid_of(state: &State, member: Member, component: &str) -> Result<i32> {
    let file = state.member(member).pid(component);
    let text = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
    text.trim()
        .parse()
        .with_context(|| format!("{} holds no number", file.display()))
}
