//! Clients that each are PID 1 of a PID namespace of their own.

use super::Bench;
use std::process::Command;

/// A client under the shares of `bench` that will be alone; killed with the unshare that it is a child of.
pub(crate) fn alone(bench: &Bench, steps: &[&str]) -> Command {
    let inner = bench.client(steps);
    let mut command = Command::new("unshare");
    command
        .args(["--pid", "--fork", "--kill-child", "--mount-proc"])
        .arg(inner.get_program())
        .args(inner.get_args());
    for (name, value) in inner.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command
}

/// Whether this machine has such clients; false: the caller ends, and `test` is told as skipped.
pub(crate) fn is_possible(bench: &Bench, test: &str) -> bool {
    match alone(bench, &["getenv:HOME"]).output() {
        Ok(output) if output.status.success() => true,
        other => {
            vgpu_skip::skip(test, &format!("unshare: {other:?}"));
            false
        }
    }
}
