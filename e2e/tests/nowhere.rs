//! Places where no cluster can be created: unprivileged containers, built from namespaces and dropped capabilities.
//! Each run prints at once one line that names what is missing, and the demo shows a share, which needs no cluster.
//!
//! Also input that is refused before anything is built: invalid factors and versions.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

/// Root of a new user namespace, as in a container.
const CONTAINER: [&str; 7] = [
    "unshare",
    "--user",
    "--map-root-user",
    "--mount",
    "--pid",
    "--fork",
    "--",
];
const WITHOUT_RIGHTS: [&str; 4] = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--"];
const LINE: &str = "no cluster can be made on this machine: ";

/// The programs in a folder that every user can read, and a folder for programs that precede the others in PATH.
struct Place {
    folder: TempDir,
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let open = |path: &Path| fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
        open(folder.path());
        let program = Path::new(env!("CARGO_BIN_EXE_vgpu-e2e"));
        // Cargo builds no program of another package for a test.
        for program in [program.to_owned(), program.with_file_name("vgpu-client")] {
            let copy = folder.path().join(program.file_name().unwrap());
            fs::copy(&program, &copy)
                .unwrap_or_else(|e| panic!("{}: {e}: run `cargo build -p vgpu-client`", program.display()));
            open(&copy);
        }
        fs::create_dir(folder.path().join("bin")).unwrap();
        open(&folder.path().join("bin"));
        Self { folder }
    }

    fn program(&self) -> String {
        self.folder.path().join("vgpu-e2e").display().to_string()
    }

    /// Adds a program that precedes the machine's own.
    fn script(&self, name: &str, text: &str) {
        let file = self.bin().join(name);
        fs::write(&file, format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(&file, PermissionsExt::from_mode(0o755)).unwrap();
    }

    fn bin(&self) -> PathBuf {
        self.folder.path().join("bin")
    }

    /// Runs `vgpu-e2e` with these arguments, through the command prefix `before`, without a terminal.
    fn run(&self, before: &[&str], arguments: &[&str]) -> Output {
        let program = self.program();
        let words: Vec<&str> = ["setsid", "--wait"]
            .iter()
            .chain(before)
            .copied()
            .chain([program.as_str()])
            .chain(arguments.iter().copied())
            .collect();
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).stdin(Stdio::null()).env("HOME", "/tmp");
        command.output().unwrap()
    }
}

/// A command prefix that runs its command as an ordinary user, with these folders in PATH.
fn ordinary(path: &str) -> Vec<String> {
    let mut words = vec!["env".to_owned(), format!("PATH={path}")];
    if rustix::process::geteuid().is_root() {
        let become_nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--"];
        words.splice(0..0, become_nobody.map(str::to_owned));
    }
    words
}

fn words(of: &[String]) -> Vec<&str> {
    of.iter().map(String::as_str).collect()
}

/// A command prefix for root of a user namespace in which this shell script has run.
fn after(script: &str) -> Vec<&str> {
    [&CONTAINER[..], &["sh", "-ec", script, "sh"]].concat()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Checks for exit status 3, and one line with these words.
fn is_told(output: &Output, wanted: &[&str]) {
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{said}\n{}", text(&output.stdout));
    let lines: Vec<&str> = said.lines().filter(|line| line.contains(LINE)).collect();
    let found = lines.iter().any(|line| wanted.iter().all(|word| line.contains(word)));
    assert!(found, "no line with {wanted:?} in:\n{said}");
}

/// Returns whether this user can create a user namespace here; if not, reports the test as skipped.
fn has_user_namespaces(test: &str) -> bool {
    let made = Command::new(CONTAINER[0]).args(&CONTAINER[1..]).arg("true").output();
    let made = made.is_ok_and(|output| output.status.success());
    if !made {
        vgpu_skip::skip(test, "no user namespace can be made on this machine by this user");
    }
    made
}

/// Returns whether this user is an ordinary one or can become one; if not, reports the test as skipped. Root of a
/// container may not be allowed to.
fn has_ordinary_user(test: &str) -> bool {
    let words = ordinary("/nowhere");
    let tried = Command::new(&words[0]).args(&words[1..]).arg("/bin/true").output();
    let can = tried.is_ok_and(|output| output.status.success());
    if !can {
        vgpu_skip::skip(test, "root cannot become another user here");
    }
    can
}

#[test]
fn a_user_without_sudo() {
    if !has_ordinary_user("a_user_without_sudo") {
        return;
    }
    let place = Place::new();
    let output = place.run(&words(&ordinary("/nowhere")), &["preflight"]);
    is_told(&output, &["is not root, and sudo is missing", "install sudo"]);
}

#[test]
fn sudo_that_asks_for_a_password_without_a_terminal() {
    if !has_ordinary_user("sudo_that_asks_for_a_password_without_a_terminal") {
        return;
    }
    let place = Place::new();
    place.script("sudo", "echo 'sudo: a password is required' >&2; exit 1");
    let path = format!("{}:/usr/bin:/bin", place.bin().display());
    let output = place.run(&words(&ordinary(&path)), &["preflight"]);
    is_told(
        &output,
        &[
            "(sudo: a password is required)",
            "without a password where there is no terminal",
        ],
    );
}

#[test]
fn sudo_to_a_root_without_rights() {
    if !has_user_namespaces("sudo_to_a_root_without_rights") || !has_ordinary_user("sudo_to_a_root_without_rights") {
        return;
    }
    let place = Place::new();
    let become_root = [&CONTAINER[..], &WITHOUT_RIGHTS[..]].concat().join(" ");
    place.script("sudo", &format!("[ \"$1\" = -n ] && shift\nexec {become_root} \"$@\""));
    let path = format!("{}:/usr/bin:/bin", place.bin().display());
    let output = place.run(&words(&ordinary(&path)), &["preflight"]);
    is_told(
        &output,
        &["root has no right to make namespaces and mounts", "--privileged"],
    );
}

#[test]
fn root_without_capabilities_shows_a_local_share_and_says_why_no_more() {
    if !has_user_namespaces("root_without_capabilities_shows_a_local_share_and_says_why_no_more") {
        return;
    }
    let place = Place::new();
    let before = [&CONTAINER[..], &WITHOUT_RIGHTS[..]].concat();
    let wanted = [
        "root has no right to make namespaces and mounts, CAP_SYS_ADMIN",
        "--privileged",
    ];
    for arguments in ["preflight", "up"] {
        let output = place.run(&before, &[arguments]);
        is_told(&output, &wanted);
    }
    // Its own folder, as a container has: files in /tmp may belong to the machine's root, who has the same UID.
    let start = format!(
        "mount -t tmpfs -o mode=711 x /run; export XDG_RUNTIME_DIR=/run; exec {} \"$@\"",
        WITHOUT_RIGHTS.join(" ")
    );
    let output = place.run(&after(&start), &["demo"]);
    is_told(&output, &wanted);
    let said = text(&output.stdout);
    assert!(
        said.contains("the program sees 20 GiB, can allocate all that is free"),
        "{said}"
    );
    assert!(!said.contains("[2/"), "{said}");
}

#[test]
fn cgroups_that_cannot_be_written() {
    if !has_user_namespaces("cgroups_that_cannot_be_written") {
        return;
    }
    let place = Place::new();
    let read_only = "grep -E ' - cgroup2? ' /proc/self/mountinfo | cut -d' ' -f5 | while read -r at; do \
                     mount -o remount,bind,ro \"$at\"; done; exec \"$@\"";
    is_told(
        &place.run(&after(read_only), &["preflight"]),
        &["cgroups are mounted read-only", "--privileged"],
    );
    let none = "mount -t tmpfs x /sys/fs/cgroup; exec \"$@\"";
    is_told(
        &place.run(&after(none), &["preflight"]),
        &["no cgroup hierarchy is mounted under /sys/fs/cgroup"],
    );
}

#[test]
fn a_folder_for_clusters_that_cannot_be_written() {
    if !has_user_namespaces("a_folder_for_clusters_that_cannot_be_written") {
        return;
    }
    let place = Place::new();
    let read_only = "mount -t tmpfs -o ro x /var/lib; exec \"$@\"";
    is_told(
        &place.run(&after(read_only), &["preflight"]),
        &["root cannot write them (/var/lib: Read-only file system"],
    );
}

#[test]
fn a_disk_that_is_too_small() {
    if !has_user_namespaces("a_disk_that_is_too_small") {
        return;
    }
    let place = Place::new();
    let small = "mount -t tmpfs -o size=64m x /mnt; XDG_CACHE_HOME=/mnt exec \"$@\"";
    let wanted = ["0 GiB are free on the disk of /mnt/dra-driver-vgpu, and 6 GiB are needed"];
    is_told(&place.run(&after(small), &["preflight"]), &wanted);
}

#[test]
fn factors_and_versions_that_are_none_are_refused_at_once() {
    let place = Place::new();
    for (variable, value) in [
        ("VGPU_TIME_FACTOR", "0"),
        ("VGPU_TIME_FACTOR", "nan"),
        ("VGPU_TIME_FACTOR", "fast"),
        ("CONTAINERD_VERSION", "1.6.20"),
        ("KUBERNETES_VERSION", "latest"),
        ("KUBERNETES", "/nowhere"),
    ] {
        let setting = format!("{variable}={value}");
        let output = place.run(&["env", &setting], &["demo"]);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(
            said.lines().count() == 1 && said.contains(&format!("{setting}: ")),
            "{said}"
        );
    }
}
