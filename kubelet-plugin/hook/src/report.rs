//! Reports of a hook in the claim's directory, where the plugin reads them.

use std::{
    fmt::Display,
    fs::{self, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::Path,
    time::{SystemTime, UNIX_EPOCH},
};

use crate::text::one_line;

/// Characters of a line: a container's id of the longest kind, and a reason.
const MAX: usize = 2048;

/// With the hook's name, the file that says why a container did not start; kubelet-plugin/src/dra/claimdir.rs takes it.
const NOT_STARTED: &str = "not-started";

/// Which report stays if there is one already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// Until the plugin removes it.
    First,
    Newest,
}

/// Writes a line to a file. If it cannot be written (in a user namespace the folder may not be writable), or `file` is None,
/// the line goes to stderr, which is the runtime's log. `program`: the hook's name.
pub fn write(program: &str, file: Option<&Path>, line: &str, keep: Keep) {
    let line = one_line(line, MAX) + "\n";
    let written = file.map(|file| match keep {
        Keep::First => create(file, &line),
        Keep::Newest => replace(file, &line),
    });
    match written {
        Some(Ok(())) => (),
        Some(Err(error)) if keep == Keep::First && error.kind() == io::ErrorKind::AlreadyExists => (),
        _ => eprint!("{program}: {line}"),
    }
}

/// Writes why a container did not start to a file in the claim's directory, if there is one: the newest container's stays.
/// The error goes to stderr too, but only runc passes that on to the pod's event; crun names nothing but the hook.
pub fn not_started(program: &str, claim: Option<&Path>, error: &impl Display) {
    let line = one_line(&format!("{program}: {error}"), MAX) + "\n";
    if let Some(claim) = claim {
        // If this fails, as in a user namespace, the error on stderr is all there is.
        let _ = replace(&claim.join(format!("{NOT_STARTED}.{program}")), &line);
    }
}

fn create(file: &Path, line: &str) -> io::Result<()> {
    let opened = OpenOptions::new().write(true).create_new(true).mode(0o644).open(file);
    opened?.write_all(line.as_bytes())
}

/// Readers see one whole line or the other.
fn replace(file: &Path, line: &str) -> io::Result<()> {
    let mut aside = file.as_os_str().to_owned();
    // Another hook may write at the same time; in a container's PID namespace, with the same PID.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    aside.push(format!(".{}.{}.new", std::process::id(), now.as_nanos()));
    let aside = Path::new(&aside);
    create(aside, line)?;
    fs::rename(aside, file).inspect_err(|_| {
        let _ = fs::remove_file(aside);
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn why_a_container_did_not_start_is_one_line_for_the_plugin() {
        let folder = tempfile::tempdir().expect("a folder");
        not_started("hook", None, &"nowhere");
        not_started("hook", Some(&folder.path().join("gone")), &"nowhere");
        for error in ["container c1: one\nline", "container c2: two"] {
            not_started("hook", Some(folder.path()), &error);
        }
        let found = fs::read_to_string(folder.path().join("not-started.hook")).expect("a report");
        assert_eq!(found, "hook: container c2: two\n");
        assert_eq!(fs::read_dir(folder.path()).expect("listed").count(), 1);
    }

    #[test]
    fn the_first_or_the_newest_line_stays_and_nothing_else() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("report");
        let found = |keep: Keep, line: &str| {
            write("hook", Some(&file), line, keep);
            fs::read_to_string(&file).expect("a report")
        };
        assert_eq!(found(Keep::First, "one\nline"), "one line\n");
        assert_eq!(found(Keep::First, "two"), "one line\n");
        assert_eq!(found(Keep::Newest, "three"), "three\n");
        assert_eq!(found(Keep::Newest, &"x".repeat(5000)).len(), MAX + 1);
        assert_eq!(fs::read_dir(folder.path()).expect("listed").count(), 1);
    }
}
