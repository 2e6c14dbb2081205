//! Clients that are each PID 1 of their own PID namespace.

use super::Bench;
use std::process::Command;

/// A client under the shares of `bench` in its own namespace. It is killed together with its parent, unshare.
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

/// Returns false if this machine does not allow such clients. Then `test` is recorded as skipped, and the caller
/// returns.
pub(crate) fn is_possible(bench: &Bench, test: &str) -> bool {
    match alone(bench, &["getenv:HOME"]).output() {
        Ok(output) if output.status.success() => true,
        other => {
            vgpu_skip::skip(test, &format!("unshare: {other:?}"));
            false
        }
    }
}
