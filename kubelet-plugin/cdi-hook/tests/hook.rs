//! The program as a runtime runs it, with a bundle, a state on standard input, and a root file system made by
//! the test.

use std::{
    fs,
    io::Write,
    os::unix::fs::{MetadataExt, PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    thread,
};

use tempfile::TempDir;

const OURS: &str = "/usr/lib/vgpu/libvgpu-preload.so";
const HOOK: &str = env!("CARGO_BIN_EXE_vgpu-cdi-hook");

struct Bundle {
    dir: TempDir,
}

impl Bundle {
    /// A container of an image with glibc, with the library mounted, and with a list.
    fn new(list: Option<&str>) -> Self {
        let bundle = Self::empty();
        bundle.put(
            "lib64/ld-linux-x86-64.so.2",
            "\x7fELF ... /etc/ld.so.cache /etc/ld.so.preload ...",
        );
        bundle.put(&OURS[1..], "a library");
        bundle.put("etc/passwd", "");
        if let Some(list) = list {
            bundle.put("etc/ld.so.preload", list);
        }
        bundle
    }

    /// A container with nothing in it.
    fn empty() -> Self {
        let bundle = Self {
            dir: tempfile::tempdir().expect("a folder"),
        };
        fs::create_dir(bundle.at("")).expect("a folder");
        fs::create_dir(bundle.reports()).expect("a folder");
        bundle.config(r#"{"ociVersion": "1.1.0", "root": {"path": "rootfs", "readonly": true}}"#);
        bundle
    }

    fn config(&self, text: &str) {
        fs::write(self.dir.path().join("config.json"), text).expect("write");
    }

    /// A path in the root file system.
    fn at(&self, path: &str) -> PathBuf {
        self.dir.path().join("rootfs").join(path)
    }

    fn put(&self, path: &str, text: &str) {
        fs::create_dir_all(self.at(path).parent().expect("a folder")).expect("folders");
        fs::write(self.at(path), text).expect("write");
    }

    fn list(&self) -> String {
        fs::read_to_string(self.at("etc/ld.so.preload")).expect("a list")
    }

    /// The folder for reports; the claim's directory on a node.
    fn reports(&self) -> PathBuf {
        self.dir.path().join("reports")
    }

    /// The one report, which is in the file of its reason.
    fn report(&self, reason: &str) -> String {
        let entries = fs::read_dir(self.reports()).expect("a folder");
        let names: Vec<_> = entries.map(|entry| entry.expect("an entry").file_name()).collect();
        assert_eq!(names, [reason]);
        fs::read_to_string(self.reports().join(reason)).expect("a report")
    }

    fn state(&self) -> String {
        let bundle = self.dir.path().display();
        format!(r#"{{"ociVersion": "1.1.0", "id": "c1", "status": "creating", "pid": 7, "bundle": "{bundle}"}}"#)
    }

    fn command(&self) -> Command {
        let mut command = Command::new(HOOK);
        command
            .args(["preload", "--library", OURS, "--report"])
            .arg(self.reports());
        command
    }

    /// Runs the hook, which must succeed without output.
    fn run(&self) {
        assert_eq!(
            told(&with_stdin(&mut self.command(), self.state().as_bytes())),
            (true, String::new())
        );
    }

    /// Runs the hook, which must fail, and returns its one line.
    fn refusal(&self) -> String {
        let (success, line) = told(&with_stdin(&mut self.command(), self.state().as_bytes()));
        assert!(
            !success && line.ends_with('\n') && line.matches('\n').count() == 1,
            "{line:?}"
        );
        line.trim_end().to_owned()
    }

    /// Names in a folder of the root file system.
    fn names(&self, folder: &str) -> Vec<String> {
        let entries = fs::read_dir(self.at(folder)).expect("a folder");
        let mut names: Vec<_> = entries
            .map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8"))
            .collect();
        names.sort();
        names
    }
}

fn with_stdin(command: &mut Command, stdin: &[u8]) -> Output {
    let piped = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = piped.spawn().expect("the program starts");
    // The hook may stop reading early.
    let _ = child.stdin.take().expect("piped").write_all(stdin);
    child.wait_with_output().expect("the program ends")
}

/// Returns success and stderr. The only other exit status is 1, and stdout is always empty.
fn told(output: &Output) -> (bool, String) {
    assert!(matches!(output.status.code(), Some(0 | 1)), "{output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
    (
        output.status.success(),
        String::from_utf8(output.stderr.clone()).expect("UTF-8"),
    )
}

#[test]
fn a_missing_list_is_made() {
    let bundle = Bundle::new(None);
    bundle.run();
    assert_eq!(bundle.list(), format!("{OURS}\n"));
    let mode = fs::metadata(bundle.at("etc/ld.so.preload"))
        .expect("stat")
        .permissions()
        .mode();
    assert_eq!(mode & 0o7777, 0o644);
    assert_eq!(fs::read_dir(bundle.reports()).expect("a folder").count(), 0);
    assert_eq!(bundle.names("etc"), ["ld.so.preload", "passwd"], "no temp file is left");
}

#[test]
fn a_missing_etc_is_made() {
    let bundle = Bundle::new(None);
    fs::remove_dir_all(bundle.at("etc")).expect("remove");
    bundle.run();
    assert_eq!(bundle.list(), format!("{OURS}\n"));
}

#[test]
fn the_images_entries_mode_and_owner_stay() {
    let bundle = Bundle::new(Some("/opt/libjemalloc.so # faster"));
    let path = bundle.at("etc/ld.so.preload");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).expect("chmod");
    // Only root can change a file's owner.
    let _ = std::os::unix::fs::chown(&path, Some(1234), Some(4321));
    let before = fs::metadata(&path).expect("stat");
    bundle.run();
    assert_eq!(bundle.list(), format!("/opt/libjemalloc.so # faster\n{OURS}\n"));
    let after = fs::metadata(&path).expect("stat");
    let of = |metadata: &fs::Metadata| (metadata.mode(), metadata.uid(), metadata.gid());
    assert_eq!(of(&after), of(&before));
}

#[test]
fn it_runs_once_for_each_device_and_again_at_each_start() {
    let bundle = Bundle::new(Some("/a.so\n"));
    for _ in 0..3 {
        bundle.run();
    }
    assert_eq!(bundle.list(), format!("/a.so\n{OURS}\n"));
}

#[test]
fn runs_at_once_agree() {
    let bundle = Bundle::new(Some("/a.so\n"));
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| (0..10).for_each(|_| bundle.run()));
        }
    });
    assert_eq!(bundle.list(), format!("/a.so\n{OURS}\n"));
    assert_eq!(bundle.names("etc"), ["ld.so.preload", "passwd"]);
}

#[test]
fn an_absolute_root_path_counts_as_it_is() {
    let bundle = Bundle::new(None);
    bundle.config(&format!(r#"{{"root": {{"path": "{}"}}}}"#, bundle.at("").display()));
    bundle.run();
    assert_eq!(bundle.list(), format!("{OURS}\n"));
}

/// Links of the image are paths of the container, wherever they seem to lead.
#[test]
fn links_stay_in_the_container() {
    let node = tempfile::tempdir().expect("a folder");
    let nodes_list = node.path().join("ld.so.preload");
    fs::write(&nodes_list, "the node's\n").expect("write");
    let absolute = node.path().to_str().expect("UTF-8");
    let climbing = format!("../../../../../../../..{absolute}");
    for (etc, list) in [
        (Some(absolute), None),
        (Some(climbing.as_str()), None),
        (Some("/proc/self/root/etc"), None),
        (None, Some(format!("{absolute}/ld.so.preload"))),
        (None, Some(format!("{climbing}/ld.so.preload"))),
        (None, Some("/proc/self/cwd/ld.so.preload".to_owned())),
    ] {
        let bundle = Bundle::new(None);
        if let Some(etc) = etc {
            fs::remove_dir_all(bundle.at("etc")).expect("remove");
            symlink(etc, bundle.at("etc")).expect("link");
        }
        if let Some(list) = &list {
            symlink(list, bundle.at("etc/ld.so.preload")).expect("link");
        }
        // A link to a folder that the image does not have.
        let line = bundle.refusal();
        assert!(
            line.starts_with("vgpu-cdi-hook: container c1: /etc/ld.so.preload"),
            "{line}"
        );
        // If the image has that folder, the file is written there.
        fs::create_dir_all(bundle.at(&absolute[1..])).expect("folders");
        if !format!("{etc:?}{list:?}").contains("proc") {
            bundle.run();
            let inside = bundle.at(&absolute[1..]).join("ld.so.preload");
            assert_eq!(fs::read_to_string(inside).expect("a list"), format!("{OURS}\n"));
        }
        assert_eq!(fs::read_to_string(&nodes_list).expect("read"), "the node's\n");
        assert_eq!(fs::read_dir(node.path()).expect("a folder").count(), 1);
    }
}

#[test]
fn links_of_honest_images_work() {
    let bundle = Bundle::new(None);
    fs::rename(bundle.at("etc"), bundle.at("usr/etc")).expect("rename");
    symlink("usr/etc", bundle.at("etc")).expect("link");
    bundle.put("usr/etc/preload.d/list", "/a.so\n");
    symlink("/etc/preload.d/list", bundle.at("usr/etc/ld.so.preload")).expect("link");
    bundle.run();
    let list = fs::read_to_string(bundle.at("usr/etc/preload.d/list")).expect("a list");
    assert_eq!(list, format!("/a.so\n{OURS}\n"));
    let link = fs::symlink_metadata(bundle.at("usr/etc/ld.so.preload")).expect("stat");
    assert!(link.is_symlink(), "the link itself stays");
}

#[test]
fn an_image_without_glibc_is_left_alone_and_reported() {
    // Nothing at all; a loader of musl under glibc's name; a loop of links.
    let scratch = Bundle::empty();
    let musl = Bundle::empty();
    musl.put("lib/ld-musl-x86_64.so.1", "musl libc (x86_64) LD_PRELOAD");
    fs::create_dir(musl.at("lib64")).expect("a folder");
    symlink("/lib/ld-musl-x86_64.so.1", musl.at("lib64/ld-linux-x86-64.so.2")).expect("link");
    let looped = Bundle::empty();
    symlink("/lib64", looped.at("lib64")).expect("link");
    for bundle in [scratch, musl, looped] {
        bundle.run();
        bundle.run();
        let report = bundle.report("no-glibc");
        assert!(
            report.starts_with("container c1 starts without libvgpu-preload.so: its image has no glibc"),
            "{report}"
        );
        assert!(
            report.ends_with('\n') && report.matches('\n').count() == 1,
            "{report:?}"
        );
        assert!(!bundle.at("etc/ld.so.preload").exists());
    }
}

#[test]
fn a_report_that_cannot_be_written_does_not_stop_the_container() {
    let bundle = Bundle::empty();
    for report in [&[][..], &["--report", "/nonexistent/report"]] {
        let mut hook = Command::new(HOOK);
        let (success, line) = told(&with_stdin(hook.arg("preload").args(report), bundle.state().as_bytes()));
        assert!(
            success && line.starts_with("vgpu-cdi-hook: container c1 starts without"),
            "{line}"
        );
    }
}

#[test]
fn what_the_hook_cannot_do_names_container_file_and_remedy() {
    let missing = Bundle::new(None);
    fs::remove_file(missing.at(&OURS[1..])).expect("remove");
    assert_eq!(
        missing.refusal(),
        "vgpu-cdi-hook: container c1: /usr/lib/vgpu/libvgpu-preload.so is not a file in the container; the CDI spec \
         must mount it, so restart vgpu-kubelet-plugin on this node"
    );
    assert!(!missing.at("etc/ld.so.preload").exists());

    let folder = Bundle::new(None);
    fs::create_dir(folder.at("etc/ld.so.preload")).expect("a folder");
    let line = folder.refusal();
    let expected =
        "vgpu-cdi-hook: container c1: /etc/ld.so.preload in the image is not a regular file; correct the image";
    assert_eq!(line, expected);

    let large = Bundle::new(Some(&"#".repeat((1 << 20) + 1)));
    let line = large.refusal();
    assert!(
        line.contains("container c1: /etc/ld.so.preload in the image is larger than 1048576 bytes"),
        "{line}"
    );

    let rootless = Bundle::new(None);
    rootless.config(r#"{"root": {"path": "/nonexistent/rootfs"}}"#);
    let line = rootless.refusal();
    assert!(
        line.contains("container c1: /nonexistent/rootfs: cannot open the root file system"),
        "{line}"
    );
}

#[test]
fn a_hostile_state_or_config_is_one_line() {
    let bundle = Bundle::new(None);
    let bomb = "[".repeat(1 << 19);
    let huge = format!("{{\"id\": \"{}\"}}", "x".repeat(1 << 20));
    let endless = vec![b' '; 64 << 20];
    for (stdin, expected) in [
        (&b""[..], "not JSON"),
        (b"{}", "has no text in id"),
        (br#"{"id": 7, "bundle": "/x"}"#, "has no text in id"),
        (br#"{"id": "c1"}"#, "has no text in bundle"),
        (
            br#"{"id": "c1", "bundle": "x"}"#,
            "bundle is \"x\", not an absolute path",
        ),
        (
            b"{\"id\": \"a\\nb\", \"bundle\": \"/x\"}",
            "id is \"a\\nb\", not 1 to 1024 characters",
        ),
        (
            br#"{"id": "c1", "bundle": "/nonexistent"}"#,
            "container c1: /nonexistent/config.json: cannot be read",
        ),
        (bomb.as_bytes(), "not JSON: recursion limit"),
        (huge.as_bytes(), "larger than 1048576 bytes"),
        (&endless, "larger than 1048576 bytes"),
        (b"\xff\xfe\0", "not JSON"),
    ] {
        let (success, line) = told(&with_stdin(&mut bundle.command(), stdin));
        assert!(
            !success && line.contains(expected) && line.matches('\n').count() == 1,
            "{expected}: {line}"
        );
    }
    for config in [
        "",
        "[]",
        "{}",
        r#"{"root": {}}"#,
        r#"{"root": {"path": ""}}"#,
        r#"{"root": {"path": 1}}"#,
    ] {
        bundle.config(config);
        let line = bundle.refusal();
        assert!(
            line.contains("container c1: ") && line.contains("config.json"),
            "{config}: {line}"
        );
    }
    assert!(!bundle.at("etc/ld.so.preload").exists());
}

#[test]
fn a_wrong_command_line_is_one_line_with_a_hint() {
    let hook = |arguments: &[&str]| told(&with_stdin(Command::new(HOOK).args(arguments), b""));
    let (success, line) = hook(&["prelaod"]);
    assert_eq!(
        (success, line.as_str()),
        (
            false,
            "vgpu-cdi-hook: \"prelaod\" is not a command; the only one is `preload` (see --help)\n"
        )
    );
    let help = Command::new(HOOK).arg("--help").output().expect("the program starts");
    assert!(help.status.success() && String::from_utf8_lossy(&help.stdout).contains("--report FOLDER"));
}

/// Runs `prepare` and then the hook in their own mount namespace. None if that is not allowed.
fn in_namespace(test: &str, bundle: &Bundle, prepare: &str) -> Option<(bool, String)> {
    let ways: [&[&str]; 2] = [&["unshare", "-m"], &["unshare", "-rm"]];
    let works = |way: &&&[&str]| {
        let tried = Command::new(way[0])
            .args(&way[1..])
            .args(["mount", "-t", "tmpfs", "none", "/mnt"])
            .output();
        tried.is_ok_and(|output| output.status.success())
    };
    let Some(way) = ways.iter().find(works) else {
        vgpu_skip::skip(test, "needs root or user namespaces, to mount");
        return None;
    };
    let script = format!("set -e; cd \"$1\"; shift; {prepare}; exec \"$@\"");
    let hook = bundle.command();
    let mut command = Command::new(way[0]);
    command
        .args(&way[1..])
        .args(["sh", "-c", &script, "sh"])
        .arg(bundle.at(""))
        .arg(hook.get_program());
    Some(told(&with_stdin(
        command.args(hook.get_args()),
        bundle.state().as_bytes(),
    )))
}

fn reported(bundle: &Bundle, file: &str, reason: &str) {
    let report = bundle.report(file);
    assert!(report.contains(reason), "{report}");
    assert_eq!(
        fs::read_to_string(bundle.at("etc/ld.so.preload")).ok().as_deref(),
        Some("/a.so\n")
    );
}

#[test]
fn a_read_only_root_file_system_is_reported() {
    let bundle = Bundle::new(Some("/a.so\n"));
    let prepare = "mount --bind . . && mount -o remount,bind,ro . && cd \"$PWD\"";
    let Some(told) = in_namespace("a_read_only_root_file_system_is_reported", &bundle, prepare) else {
        return;
    };
    assert_eq!(told, (true, String::new()));
    reported(&bundle, "read-only", "its root file system cannot be written to");
}

/// A pod may mount the node's own /etc, or a file over the list; both are outside the image.
#[test]
fn volumes_are_never_written_to() {
    let node = tempfile::tempdir().expect("a folder");
    fs::write(node.path().join("ld.so.preload"), "/node.so\n").expect("write");
    let from = node.path().display();
    for prepare in [
        format!("mount --bind {from} etc"),
        format!("mount --bind {from}/ld.so.preload etc/ld.so.preload"),
        format!(
            "mount --bind {from} usr/lib && rm etc/ld.so.preload && ln -s /usr/lib/ld.so.preload etc/ld.so.preload"
        ),
    ] {
        let bundle = Bundle::new(Some("/a.so\n"));
        // The hook checks the library first, so the mount must not hide it.
        let prepare = format!("mkdir -p {from}/vgpu && cp usr/lib/vgpu/* {from}/vgpu/; {prepare}");
        let Some(told) = in_namespace("volumes_are_never_written_to", &bundle, &prepare) else {
            return;
        };
        assert_eq!(told, (true, String::new()), "{prepare}");
        let report = bundle.report("mounted");
        assert!(report.contains("a volume is mounted at /etc"), "{report}");
        assert_eq!(
            fs::read_to_string(node.path().join("ld.so.preload")).expect("read"),
            "/node.so\n"
        );
    }
}

/// The hook recognises the machine's own loader as one that reads the list.
#[test]
fn the_machines_own_glibc_is_seen() {
    let loader = Path::new("/lib64/ld-linux-x86-64.so.2");
    let bundle = Bundle::new(None);
    fs::copy(loader, bundle.at("lib64/ld-linux-x86-64.so.2")).expect("a machine with glibc");
    bundle.run();
    assert_eq!(bundle.list(), format!("{OURS}\n"));
}
