//! Runs the program as a runtime does: in a mount namespace, with a bundle, a state on standard input, and a root file
//! system and mounts that the test creates.

use std::{
    fs,
    io::Write,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use tempfile::TempDir;

const OURS: &str = "/dev/vgpu/.lib/libvgpu-preload.so";
/// Below a root.
const LOADER: &str = vgpu_abi::arch!(loader).split_at(1).1;
const HOOK: &str = env!("CARGO_BIN_EXE_vgpu-cdi-hook");
/// The mounts that the runtime creates by the CDI spec.
const MOUNTS: &str = "mkdir -p dev; mount -t tmpfs tmpfs dev; mkdir dev/vgpu; mount -t tmpfs -o mode=0755 vgpu dev/vgpu; \
                      mkdir dev/vgpu/.lib; echo a library >dev/vgpu/.lib/libvgpu-preload.so";

struct Bundle {
    dir: TempDir,
}

/// The hook's result, and the output of the commands after it.
#[derive(Debug)]
struct Ran {
    success: bool,
    said: String,
    after: String,
}

impl Bundle {
    /// A container of an image with glibc, and with a list.
    fn new(list: Option<&str>) -> Self {
        let bundle = Self::empty();
        bundle.put(LOADER, "\x7fELF ... /etc/ld.so.cache /etc/ld.so.preload ...");
        bundle.put("etc/passwd", "");
        if let Some(list) = list {
            bundle.put("etc/ld.so.preload", list);
        }
        bundle
    }

    /// A container with an empty root file system.
    fn empty() -> Self {
        let bundle = Self {
            dir: tempfile::tempdir().expect("a folder"),
        };
        fs::create_dir(bundle.at("")).expect("a folder");
        fs::create_dir(bundle.reports()).expect("a folder");
        bundle.config(r#"{"ociVersion": "1.1.0", "root": {"path": "rootfs"}}"#);
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

    /// The folder for reports; the claim's directory on a node.
    fn reports(&self) -> PathBuf {
        self.dir.path().join("reports")
    }

    /// The only report, in the file of its reason.
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

    /// Runs the hook alone, which must fail before it needs a mount. Returns its error line.
    fn refusal(&self) -> String {
        let (success, line) = status_and_stderr(&with_stdin(&mut self.command(), self.state().as_bytes()));
        assert!(!success && line.matches('\n').count() == 1, "{line:?}");
        assert_eq!(self.report("not-started.vgpu-cdi-hook"), line);
        line
    }

    /// Runs the shell commands `before`, the hook and the commands `after` in the root file system, in a new mount
    /// namespace. None if the machine does not allow that.
    fn run(&self, test: &str, before: &str, after: &str) -> Option<Ran> {
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
        let script = format!("set -e; cd \"$1\"; shift; {before}\n\"$@\"\nset +e; {after}");
        let hook = self.command();
        let mut command = Command::new(way[0]);
        command
            .args(&way[1..])
            .args(["sh", "-c", &script, "sh"])
            .arg(self.at(""))
            .arg(hook.get_program())
            .args(hook.get_args());
        let output = with_stdin(&mut command, self.state().as_bytes());
        Some(Ran {
            success: output.status.success(),
            said: String::from_utf8(output.stderr).expect("UTF-8"),
            after: String::from_utf8(output.stdout).expect("UTF-8"),
        })
    }
}

impl Ran {
    /// The output after the hook. The hook must succeed without output.
    #[track_caller]
    fn printed(self) -> String {
        assert!(self.success && self.said.is_empty(), "{self:?}");
        self.after
    }

    /// The error line of the hook, which must fail.
    #[track_caller]
    fn refusal(self) -> String {
        assert!(!self.success && self.after.is_empty(), "{self:?}");
        assert!(
            self.said.ends_with('\n') && self.said.matches('\n').count() == 1,
            "{self:?}"
        );
        assert!(self.said.starts_with("vgpu-cdi-hook: container c1: "), "{self:?}");
        self.said.trim_end().to_owned()
    }
}

fn with_stdin(command: &mut Command, stdin: &[u8]) -> Output {
    let piped = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = piped.spawn().expect("the program starts");
    // The hook may stop reading before the end.
    let _ = child.stdin.take().expect("piped").write_all(stdin);
    child.wait_with_output().expect("the program ends")
}

/// Returns success and stderr. The only other exit status is 1, and stdout is always empty.
fn status_and_stderr(output: &Output) -> (bool, String) {
    assert!(matches!(output.status.code(), Some(0 | 1)), "{output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
    (
        output.status.success(),
        String::from_utf8(output.stderr.clone()).expect("UTF-8"),
    )
}

const LIST: &str = "cat etc/ld.so.preload";

/// For every image, the list is a file of ours that the container's root cannot change, and the image's entries come
/// first.
#[test]
fn the_list_is_a_mount_that_root_cannot_change() {
    const NAME: &str = "the_list_is_a_mount_that_root_cannot_change";
    let attacks = "(: >etc/ld.so.preload) 2>/dev/null && echo emptied; rm -f etc/ld.so.preload 2>/dev/null && echo removed; \
                   mv etc/passwd etc/ld.so.preload 2>/dev/null && echo replaced; mv etc gone 2>/dev/null && echo renamed; \
                   chmod 666 etc/ld.so.preload 2>/dev/null && echo opened; stat -c %a etc/ld.so.preload; \
                   touch etc/other; cat etc/ld.so.preload";
    for (list, merged) in [
        (None, format!("{OURS}\n")),
        (Some("/a.so # faster"), format!("/a.so # faster\n{OURS}\n")),
        (Some(OURS), OURS.to_owned()),
    ] {
        let bundle = Bundle::new(list);
        let Some(ran) = bundle.run(NAME, MOUNTS, attacks) else {
            return;
        };
        assert_eq!(ran.printed(), format!("444\n{merged}"));
        assert!(bundle.at("etc/other").exists(), "the rest of /etc is the image's own");
        let own = fs::read_to_string(bundle.at("etc/ld.so.preload")).expect("a mount point");
        assert_eq!(own, list.unwrap_or_default(), "the image's file stays as it is");
        assert_eq!(fs::read_dir(bundle.reports()).expect("a folder").count(), 0);
    }
}

/// NVIDIA's libraries then do not create nodes of GPUs that the container does not have.
#[test]
fn the_drivers_parameters_forbid_to_make_device_nodes() {
    const NAME: &str = "the_drivers_parameters_forbid_to_make_device_nodes";
    let params = "DeviceFileMode: 438\nModifyDeviceFiles: 1\n";
    let forbidden = params.replace("Files: 1", "Files: 0");
    let bundle = Bundle::new(None);
    bundle.put("proc/driver/nvidia/params", params);
    fs::write(bundle.dir.path().join("state"), bundle.state()).expect("write");
    let after = format!(
        "{HOOK} preload <\"$PWD/../state\"; grep -c ' - tmpfs vgpu-params ' /proc/self/mountinfo; \
         rm -f proc/driver/nvidia/params 2>/dev/null && echo removed; \
         (echo 'ModifyDeviceFiles: 1' >proc/driver/nvidia/params) 2>/dev/null && echo written; \
         cat proc/driver/nvidia/params"
    );
    let Some(ran) = bundle.run(NAME, MOUNTS, &after) else {
        return;
    };
    assert_eq!(ran.printed(), format!("1\n{forbidden}"), "once, also for two claims");
    // A driver that already forbids it.
    let bundle = Bundle::new(None);
    bundle.put("proc/driver/nvidia/params", &forbidden);
    let mounts = "grep ' - tmpfs vgpu-params ' /proc/self/mountinfo | wc -l";
    let Some(ran) = bundle.run(NAME, MOUNTS, mounts) else {
        return;
    };
    assert_eq!(ran.printed(), "0\n");
}

#[test]
fn a_missing_etc_is_made() {
    let bundle = Bundle::new(None);
    fs::remove_dir_all(bundle.at("etc")).expect("remove");
    let Some(ran) = bundle.run("a_missing_etc_is_made", MOUNTS, LIST) else {
        return;
    };
    assert_eq!(ran.printed(), format!("{OURS}\n"));
}

#[test]
fn a_second_claim_finds_the_list_of_the_first() {
    let bundle = Bundle::new(Some("/a.so\n"));
    let again =
        format!("{MOUNTS}; {HOOK} preload <\"$PWD/../state\"; grep -c ' - tmpfs vgpu-preload ' /proc/self/mountinfo");
    fs::write(bundle.dir.path().join("state"), bundle.state()).expect("write");
    let count = "grep -c ' - tmpfs vgpu-preload ' /proc/self/mountinfo; cat etc/ld.so.preload";
    let Some(ran) = bundle.run("a_second_claim_finds_the_list_of_the_first", &again, count) else {
        return;
    };
    assert_eq!(ran.printed(), format!("1\n1\n/a.so\n{OURS}\n"));
}

/// A read-only memory volume with our entry differs from our mount only by its source.
#[test]
fn a_list_that_a_pod_made_is_not_taken_for_ours() {
    let bundle = Bundle::new(None);
    let volume = format!(
        "{MOUNTS}; mkdir v; mount -t tmpfs tmpfs v; echo {OURS} >v/list; touch etc/ld.so.preload; \
         mount --bind v/list etc/ld.so.preload; mount -o remount,bind,ro etc/ld.so.preload"
    );
    let after = "rm v/list; cat etc/ld.so.preload; grep ' - tmpfs vgpu-preload ' /proc/self/mountinfo | wc -l";
    let Some(ran) = bundle.run("a_list_that_a_pod_made_is_not_taken_for_ours", &volume, after) else {
        return;
    };
    assert_eq!(
        ran.printed(),
        format!("{OURS}\n1\n"),
        "the volume's owner cannot take it away"
    );
}

#[test]
fn a_root_file_system_that_becomes_read_only_has_a_read_only_etc() {
    const NAME: &str = "a_root_file_system_that_becomes_read_only_has_a_read_only_etc";
    let bundle = Bundle::new(Some("/a.so\n"));
    bundle.config(r#"{"root": {"path": "rootfs", "readonly": true}}"#);
    let after = "(touch etc/new) 2>/dev/null && echo writable; touch new; cat etc/ld.so.preload";
    let Some(ran) = bundle.run(NAME, MOUNTS, after) else {
        return;
    };
    assert_eq!(ran.printed(), format!("/a.so\n{OURS}\n"));
}

/// Links of the image are resolved as paths of the container.
#[test]
fn links_stay_in_the_container_and_are_replaced() {
    const NAME: &str = "links_stay_in_the_container_and_are_replaced";
    let node = tempfile::tempdir().expect("a folder");
    fs::write(node.path().join("ld.so.preload"), "/node.so\n").expect("write");
    let absolute = node.path().to_str().expect("UTF-8");
    let climbing = format!("../../../../../../../..{absolute}");
    for link in [absolute, climbing.as_str(), "/proc/self/cwd"] {
        let bundle = Bundle::new(None);
        symlink(format!("{link}/ld.so.preload"), bundle.at("etc/ld.so.preload")).expect("link");
        let Some(ran) = bundle.run(NAME, MOUNTS, LIST) else {
            return;
        };
        assert_eq!(ran.printed(), format!("{OURS}\n"), "{link}");
        // A link to a missing folder.
        let bundle = Bundle::new(None);
        fs::remove_dir_all(bundle.at("etc")).expect("remove");
        symlink(link, bundle.at("etc")).expect("link");
        let Some(ran) = bundle.run(NAME, MOUNTS, LIST) else {
            return;
        };
        let line = ran.refusal();
        assert!(line.contains("/etc in the image "), "{line}");
        assert_eq!(fs::read_dir(node.path()).expect("a folder").count(), 1);
    }
}

#[test]
fn links_of_honest_images_work() {
    let bundle = Bundle::new(None);
    fs::create_dir_all(bundle.at("usr")).expect("a folder");
    fs::rename(bundle.at("etc"), bundle.at("usr/etc")).expect("rename");
    symlink("usr/etc", bundle.at("etc")).expect("link");
    bundle.put("usr/etc/preload.d/list", "/a.so\n");
    symlink("/etc/preload.d/list", bundle.at("usr/etc/ld.so.preload")).expect("link");
    let after = "rm -f etc 2>/dev/null; ln -sfn usr etc 2>/dev/null; touch etc/new; cat etc/ld.so.preload";
    let Some(ran) = bundle.run("links_of_honest_images_work", MOUNTS, after) else {
        return;
    };
    assert_eq!(ran.printed(), format!("/a.so\n{OURS}\n"));
    assert!(
        bundle.at("usr/etc/new").exists(),
        "/etc shows the folder to which the link led"
    );
}

/// The link is replaced before the root file system becomes read-only, and the run for a second claim finds the list.
#[test]
fn an_image_whose_etc_is_a_link_can_be_read_only_and_have_two_claims() {
    const NAME: &str = "an_image_whose_etc_is_a_link_can_be_read_only_and_have_two_claims";
    for links in [&["usr/etc"][..], &["/usr/etc"], &["x", "./usr/../usr/etc"]] {
        let bundle = Bundle::new(Some("/a.so\n"));
        bundle.config(r#"{"root": {"path": "rootfs", "readonly": true}}"#);
        fs::create_dir_all(bundle.at("usr")).expect("a folder");
        fs::rename(bundle.at("etc"), bundle.at("usr/etc")).expect("rename");
        for (name, target) in ["etc", "x"].iter().zip(links) {
            symlink(target, bundle.at(name)).expect("link");
        }
        let hook = bundle.command();
        let again: Vec<_> = hook.get_args().map(|word| word.to_str().expect("UTF-8")).collect();
        let after = format!(
            "printf '%s' '{}' | {HOOK} {}; (touch etc/new) 2>/dev/null && echo writable; \
             test -L etc && echo link; cat etc/ld.so.preload etc/passwd",
            bundle.state(),
            again.join(" ")
        );
        let Some(ran) = bundle.run(NAME, MOUNTS, &after) else {
            return;
        };
        assert_eq!(ran.printed(), format!("/a.so\n{OURS}\n"), "{links:?}");
    }
}

#[test]
fn an_image_without_glibc_gets_the_list_and_is_reported() {
    // An empty image; a musl loader under glibc's name; a loop of links.
    let scratch = Bundle::empty();
    let musl = Bundle::empty();
    musl.put("lib/ld-musl-x86_64.so.1", "musl libc (x86_64) LD_PRELOAD");
    fs::create_dir_all(musl.at(LOADER).parent().expect("a folder")).expect("a folder");
    symlink("/lib/ld-musl-x86_64.so.1", musl.at(LOADER)).expect("link");
    let looped = Bundle::empty();
    symlink("/lib64", looped.at("lib64")).expect("link");
    for bundle in [scratch, musl, looped] {
        for _ in 0..2 {
            let Some(ran) = bundle.run("an_image_without_glibc_gets_the_list_and_is_reported", MOUNTS, LIST) else {
                return;
            };
            // glibc may come into the container later.
            assert_eq!(ran.printed(), format!("{OURS}\n"));
        }
        let report = bundle.report("no-glibc");
        assert!(report.starts_with("container c1: its image has no glibc"), "{report}");
        assert!(
            report.ends_with('\n') && report.matches('\n').count() == 1,
            "{report:?}"
        );
    }
}

#[test]
fn a_report_that_cannot_be_written_does_not_stop_the_container() {
    let bundle = Bundle::empty();
    fs::remove_dir(bundle.reports()).expect("remove");
    let Some(ran) = bundle.run(
        "a_report_that_cannot_be_written_does_not_stop_the_container",
        MOUNTS,
        "",
    ) else {
        return;
    };
    assert!(
        ran.success
            && ran
                .said
                .starts_with("vgpu-cdi-hook: container c1: its image has no glibc"),
        "{ran:?}"
    );
}

#[test]
fn a_container_whose_device_was_replaced_does_not_start() {
    let bundle = Bundle::new(None);
    let mut command = bundle.command();
    command.args(["--refused", "instance MIG-1 was destroyed; delete the pod"]);
    let (success, line) = status_and_stderr(&with_stdin(&mut command, bundle.state().as_bytes()));
    assert!(!success, "{line}");
    let report = bundle.report("not-started.vgpu-cdi-hook");
    for part in ["container c1", "instance MIG-1 was destroyed", "delete the pod"] {
        assert!(line.contains(part) && report.contains(part), "{line}{report}");
    }
}

#[test]
fn what_the_hook_cannot_do_names_container_file_and_remedy() {
    const NAME: &str = "what_the_hook_cannot_do_names_container_file_and_remedy";
    let refusal = |bundle: &Bundle, before: &str| bundle.run(NAME, before, LIST).map(Ran::refusal);
    let Some(line) = refusal(&Bundle::new(None), &format!("{MOUNTS}; rm dev/vgpu/.lib/*")) else {
        return;
    };
    assert_eq!(
        line,
        "vgpu-cdi-hook: container c1: /dev/vgpu/.lib/libvgpu-preload.so is not a file in the container; the CDI spec \
         must mount it, so restart vgpu-kubelet-plugin on this node"
    );

    let folder = Bundle::new(None);
    fs::create_dir(folder.at("etc/ld.so.preload")).expect("a folder");
    let expected =
        "vgpu-cdi-hook: container c1: /etc/ld.so.preload in the image is not a regular file; correct the image";
    assert_eq!(refusal(&folder, MOUNTS).as_deref(), Some(expected));

    let large = Bundle::new(Some(&"#".repeat((1 << 20) + 1)));
    let line = refusal(&large, MOUNTS).expect("ran");
    assert!(
        line.contains("/etc/ld.so.preload in the image is larger than 1048576 bytes"),
        "{line}"
    );

    let etc = Bundle::new(None);
    fs::remove_dir_all(etc.at("etc")).expect("remove");
    etc.put("etc", "no folder");
    let expected = "vgpu-cdi-hook: container c1: /etc in the image is not a folder; correct the image";
    assert_eq!(refusal(&etc, MOUNTS).as_deref(), Some(expected));

    let rootless = Bundle::new(None);
    rootless.config(r#"{"root": {"path": "/nonexistent/rootfs"}}"#);
    let line = refusal(&rootless, MOUNTS).expect("ran");
    assert!(
        line.contains("/nonexistent/rootfs: cannot open the root file system"),
        "{line}"
    );
}

/// Runs the hook without the right to mount, as under a runtime that is not root, or inside a container.
#[test]
fn a_hook_without_the_right_to_mount_says_how_it_gets_it() {
    const NAME: &str = "a_hook_without_the_right_to_mount_says_how_it_gets_it";
    let before = format!("{MOUNTS}; set -- setpriv --bounding-set=-sys_admin \"$@\"");
    let Some(ran) = Bundle::new(None).run(NAME, &before, LIST) else {
        return;
    };
    let line = ran.refusal();
    let expected = "vgpu-cdi-hook: container c1: /dev/vgpu: cannot make a read-only mount of it: Operation not permitted \
                    (os error 1); the hook must be allowed to mount: run the container runtime as root, ";
    assert!(line.starts_with(expected), "{line}");
}

/// Each claim's hook gets its own files; the configuration lists the files of all.
#[test]
fn files_of_the_specs_pass() {
    const NAME: &str = "files_of_the_specs_pass";
    let mounts = format!(
        "{MOUNTS}; mkdir dev/vgpu/.driver; echo driver >v; \
         for f in a b; do touch dev/vgpu/.driver/$f; mount --bind v dev/vgpu/.driver/$f; done"
    );
    let bundle = Bundle::new(None);
    let config = |hooks: &str| {
        bundle.config(&format!(
            r#"{{"root": {{"path": "rootfs"}}, "hooks": {{"createContainer": [{hooks}]}}}}"#
        ));
    };
    let hook =
        |path: &str, file: &str| format!(r#"{{"path": "{path}", "args": ["x", "preload", "--file", "{file}"]}}"#);
    let ours = |file: &str| hook("/var/lib/vgpu/abc/vgpu-cdi-hook", file);
    config(&format!("{}, {}", ours(".driver/a"), ours(".driver/b")));
    let Some(ran) = bundle.run(NAME, &mounts, LIST) else {
        return;
    };
    assert_eq!(ran.printed(), format!("{OURS}\n"));
    config(&format!("{}, {}", ours(".driver/a"), hook("/bin/other", ".driver/b")));
    let line = bundle.run(NAME, &mounts, LIST).expect("ran").refusal();
    assert!(line.contains("a volume is mounted at /dev/vgpu/.driver/b"), "{line}");
}

/// What a volume does to the mounts, and words of the refusal.
const VOLUMES: &str = "
umount dev/vgpu | /dev/vgpu is not the tmpfs of shares: it is no mount
umount dev/vgpu; rmdir dev/vgpu | /dev/vgpu is not the tmpfs of shares: it is missing
umount dev/vgpu; rmdir dev/vgpu; mkdir x; mount -t tmpfs vgpu x; ln -s ../x dev/vgpu | it is no folder, or behind a link
umount dev/vgpu; umount dev; mkdir dev/vgpu; mount -t tmpfs vgpu dev/vgpu | /dev is no mount
mount -t tmpfs tmpfs dev/vgpu | a volume is mounted at /dev/vgpu, over the limits
mkdir dev/vgpu/forged; mount -t tmpfs tmpfs dev/vgpu/forged | a volume is mounted at /dev/vgpu/forged, among the limits
mkdir dev/vgpu/.driver; echo evil >v; f=dev/vgpu/.driver/evil.so; touch $f; mount --bind v $f | a volume is mounted at /dev/vgpu/.driver/evil.so, among the limits
mount --bind dev dev; mount -t tmpfs tmpfs dev; mkdir dev/vgpu; mount -t tmpfs vgpu dev/vgpu | a volume is mounted at /dev,
mkdir v; mount --bind v etc | a volume is mounted at /etc, where another container
mkdir v; mount --bind v etc; touch etc/ld.so.preload | mount single files below /etc instead
mkdir v; mount -t tmpfs tmpfs v; rm -r etc; ln -s v etc | a volume is mounted at /v, to which /etc leads, where another container
mkdir 'v w'; mount -t tmpfs tmpfs 'v w'; rm -r etc; ln -s 'v w' etc | a volume is mounted at /v w, to which /etc leads
v=$(printf '%070d' 0); mkdir $v; mount -t tmpfs tmpfs $v; rm -r etc; ln -s $v etc | a volume is mounted at /000000000000000000000000000000000000000000000000000000000000000, to which /etc leads
";

/// A pod's volumes may hide the CDI spec's mounts, or add to them. Each such volume is named, and the container does
/// not start.
#[test]
fn volumes_over_what_the_node_mounted_are_named() {
    const NAME: &str = "volumes_over_what_the_node_mounted_are_named";
    for row in VOLUMES.lines().skip(1) {
        let (volume, words) = row.split_once(" | ").expect("two cells");
        let bundle = Bundle::new(None);
        let Some(ran) = bundle.run(NAME, &format!("{MOUNTS}; {volume}"), LIST) else {
            return;
        };
        let line = ran.refusal();
        assert!(line.contains(words), "{volume}: {line}");
    }
    let bundle = Bundle::new(None);
    bundle.config(
        r#"{"root": {"path": "rootfs"}, "mounts": [{"destination": "/x/../dev", "type": "bind", "source": "/v"}]}"#,
    );
    let line = bundle.run(NAME, MOUNTS, LIST).expect("ran").refusal();
    assert!(line.contains("a volume is mounted at /x/../dev, where"), "{line}");
    assert!(line.contains("remove this volume mount"), "{line}");
}

/// Entries of a volume at the list itself are kept, even if another container removes the volume's file.
#[test]
fn volumes_are_never_written_to() {
    const NAME: &str = "volumes_are_never_written_to";
    let node = tempfile::tempdir().expect("a folder");
    let file = node.path().join("ld.so.preload");
    fs::write(&file, "/node.so\n").expect("write");
    let from = node.path().display();
    let bundle = Bundle::new(Some("/a.so\n"));
    let before = format!("{MOUNTS}; mount --bind {from}/ld.so.preload etc/ld.so.preload");
    let Some(ran) = bundle.run(NAME, &before, &format!("rm {from}/ld.so.preload; {LIST}")) else {
        return;
    };
    assert_eq!(ran.printed(), format!("/node.so\n{OURS}\n"));
    assert!(!file.exists());
    // The list is a link of the image to a file in a volume.
    fs::write(&file, "/node.so\n").expect("write");
    let bundle = Bundle::new(None);
    let before = format!("{MOUNTS}; mkdir v; mount --bind {from} v; ln -s /v/ld.so.preload etc/ld.so.preload");
    let printed = bundle.run(NAME, &before, LIST).expect("ran").printed();
    assert_eq!(printed, format!("/node.so\n{OURS}\n"));
    assert_eq!(fs::read_to_string(&file).expect("read"), "/node.so\n");
}

/// Paths of other mounts, of the node or of other pods, may contain any bytes.
#[test]
fn a_mount_elsewhere_with_other_bytes_does_not_matter() {
    let bundle = Bundle::new(None);
    let before = format!("{MOUNTS}; f=$(printf 'v\\377'); mkdir \"$f\"; mount -t tmpfs tmpfs \"$f\"");
    let Some(ran) = bundle.run("a_mount_elsewhere_with_other_bytes_does_not_matter", &before, LIST) else {
        return;
    };
    assert_eq!(ran.printed(), format!("{OURS}\n"));
}

#[test]
fn volumes_over_the_list_are_counted() {
    const NAME: &str = "volumes_over_the_list_are_counted";
    let over = |count: u32| {
        format!("{MOUNTS}; echo /v.so >v; for i in $(seq {count}); do mount --bind v etc/ld.so.preload; done")
    };
    let Some(ran) = Bundle::new(Some("")).run(NAME, &over(32), LIST) else {
        return;
    };
    assert_eq!(ran.printed(), format!("/v.so\n{OURS}\n"));
    let line = Bundle::new(Some("")).run(NAME, &over(33), LIST).expect("ran").refusal();
    assert_eq!(
        line,
        "vgpu-cdi-hook: container c1: more than 32 volumes are mounted at /etc/ld.so.preload; remove them from the pod"
    );
}

/// The hook recognises the machine's own loader as one that reads the list.
#[test]
fn the_machines_own_glibc_is_seen() {
    let loader = Path::new("/").join(LOADER);
    let bundle = Bundle::new(None);
    fs::copy(loader, bundle.at(LOADER)).expect("a machine with glibc");
    let Some(ran) = bundle.run("the_machines_own_glibc_is_seen", MOUNTS, LIST) else {
        return;
    };
    assert_eq!(ran.printed(), format!("{OURS}\n"));
}

/// The folder of shares is read-only before any program of the container runs, independently of the runtime.
#[test]
fn the_folder_of_shares_is_made_read_only() {
    let bundle = Bundle::new(None);
    let after =
        "(touch dev/vgpu/new) 2>/dev/null && echo writable; mv dev/vgpu dev/x 2>/dev/null && echo renamed; true";
    let Some(ran) = bundle.run("the_folder_of_shares_is_made_read_only", MOUNTS, after) else {
        return;
    };
    assert_eq!(ran.printed(), "");
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
        let (success, line) = status_and_stderr(&with_stdin(&mut bundle.command(), stdin));
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
    let hook = |arguments: &[&str]| status_and_stderr(&with_stdin(Command::new(HOOK).args(arguments), b""));
    let (success, line) = hook(&["prelaod"]);
    assert_eq!(
        (success, line.as_str()),
        (
            false,
            "vgpu-cdi-hook: \"prelaod\" is not a command; the only one is `preload` (see --help)\n"
        )
    );
    let help = Command::new(HOOK).arg("--help").output().expect("the program starts");
    let text = String::from_utf8_lossy(&help.stdout);
    assert!(help.status.success() && text.contains("--report FOLDER"));
    // The help names `--version`, and the option works.
    let version = Command::new(HOOK)
        .arg("--version")
        .output()
        .expect("the program starts");
    assert!(version.status.success() && text.contains("--version"));
}
