//! Namespaces in which this user is root.

use std::process::Command;

/// Adds `words` to `command`, which is `unshare`: they run as root of namespaces that end with them.
///
/// For root, only mounts and processes are separate. For other users, users are separate too: root there is that user
/// outside, and other users are mapped to the range that /etc/subuid gives the user.
pub(super) fn in_namespaces(mut command: Command, words: &[&str]) -> Command {
    if !rustix::process::geteuid().is_root() {
        command.args(["--user", "--map-root-user", "--map-auto"]);
    }
    command
        .args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--"])
        .args(words);
    command
}
