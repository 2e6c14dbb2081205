//! Namespaces in which this user is root.

use std::process::Command;

/// `command` is `unshare`, which runs the words as root of namespaces that end with it.
///
/// Root only gets mounts and processes of its own. Anybody else also gets users: root there is that user outside, and
/// the others are of the range that /etc/subuid gives that user.
pub(super) fn in_namespaces(mut command: Command, words: &[&str]) -> Command {
    if !rustix::process::geteuid().is_root() {
        command.args(["--user", "--map-root-user", "--map-auto"]);
    }
    command
        .args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--"])
        .args(words);
    command
}
