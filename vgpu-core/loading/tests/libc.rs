//! Tests the libc of each release of Debian, in root file systems with a container's mounts: the same
//! artefacts enforce the limit, and a program that never uses CUDA notices nothing.

use std::fmt::Debug;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use vgpu_abi::paths::{LIBCUDA, LIBNVIDIA_ML};
use vgpu_cache::apt::{self, Release, With};
use vgpu_loading::place::{Form, Place, Running, possible};
use vgpu_loading::share::Share;
use vgpu_loading::{GIB, cc, dist};
use vgpu_skip::skip;

const LIMIT: u64 = 2 * GIB;
/// The libc, its programs, and a shell.
const PACKAGES: [&str; 3] = ["libc6", "libc-bin", "dash"];

/// Debian's releases on the mirrors, oldest first, with their glibc. The newest one's version is not known beforehand.
const RELEASES: [(&str, &str); 4] = [
    ("bullseye", "2.31"),
    ("bookworm", "2.36"),
    ("trixie", "2.41"),
    ("sid", "2."),
];

const PROGRAMS: [&str; 5] = [
    "vgpu-cdi-hook",
    "vgpu-driver-limit",
    "vgpu",
    "vgpu-kubelet-plugin",
    "vgpu-controller",
];

/// A folder that every container sees: a client for glibc 2.17, our programs, and a driver of the image's own.
fn stage() -> Result<tempfile::TempDir, String> {
    let failed = |error: std::io::Error| error.to_string();
    let stage = tempfile::tempdir().map_err(failed)?;
    fs::set_permissions(stage.path(), fs::Permissions::from_mode(0o755)).map_err(failed)?;
    let files = PROGRAMS.map(|name| (name.to_owned(), name));
    let drivers = [LIBCUDA, LIBNVIDIA_ML].map(|name| (format!("soft-gpu/{name}"), name));
    for (from, to) in files.into_iter().chain(drivers) {
        fs::copy(dist(&from), stage.path().join(to)).map_err(failed)?;
    }
    let none: [&str; 0] = [];
    cc::build_old("client.c", &stage.path().join("client"), none)?;
    let (cuda, nvml) = (stage.path().join(LIBCUDA), stage.path().join(LIBNVIDIA_ML));
    let rpath = format!("-Wl,-rpath,{}", stage.path().display());
    let linked = ["-DLINKED".as_ref(), cuda.as_os_str(), nvml.as_os_str(), rpath.as_ref()];
    cc::build_old("client.c", &stage.path().join("linked"), linked)?;
    Ok(stage)
}

fn equal<T: PartialEq + Debug>(what: &str, is: T, wanted: T) -> Result<(), String> {
    if is == wanted {
        return Ok(());
    }
    Err(format!("{what}: {is:?}, not {wanted:?}"))
}

fn limits_hold(place: &Place, stage: &Path) -> Result<(), String> {
    let by_name = Path::new("");
    for (program, how, folder) in [
        ("client", "dlopen", by_name),
        ("client", "dlmopen", by_name),
        ("client", "proc", by_name),
        ("client", "dlopen", stage),
        ("linked", "with a RUNPATH", stage),
    ] {
        let mut command = place.command(&stage.join(program), &[]);
        command.args([how, "nvml", &LIMIT.to_string()]);
        command
            .args([folder.join(LIBCUDA), folder.join(LIBNVIDIA_ML)])
            .args(["/none", "/none"]);
        let mut client = Running::start(command);
        let (line, charged) = (client.line(), place.share.charged());
        let what = format!("{program} {how} from {folder:?}");
        equal(&what, client.end(), Ok(String::new()))?;
        equal(
            &what,
            line,
            format!("cuda 0 {LIMIT} 2 0 2 nvml 0 {LIMIT} {}", LIMIT / 2),
        )?;
        equal(&what, charged, LIMIT / 2)?;
    }
    Ok(())
}

/// Runs a shell. Returns stdout and stderr.
fn says(place: &Place, script: &str) -> (String, String) {
    let output = place
        .command(Path::new("/bin/sh"), &[])
        .args(["-c", script])
        .output()
        .expect("a shell");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end().to_owned();
    (text(&output.stdout), text(&output.stderr))
}

fn others_notice_nothing(place: &Place) -> Result<(), String> {
    let script = "cat() { while read line; do echo \"$line\"; done; }; cat </etc/ld.so.preload; \
                  grep() { while read line; do case $line in *libvgpu-preload.so) echo loaded; break;; esac; done; }; \
                  grep </proc/self/maps; sh -c 'echo $((6*7))'; getconf PAGESIZE";
    let expected = "/dev/vgpu/.lib/libvgpu-preload.so\nloaded\n42\n4096";
    equal("a shell", says(place, script), (expected.into(), String::new()))
}

fn our_programs_run(place: &Place, stage: &Path) -> Result<(), String> {
    for name in PROGRAMS {
        let said = place.run(&stage.join(name), &[], &["--version"])?;
        equal(name, said.starts_with(name), true)?;
    }
    Ok(())
}

fn check(codename: &str, glibc: &str, stage: &Path, place: &Place) -> Result<(), String> {
    let (version, said) = says(place, "getconf GNU_LIBC_VERSION");
    equal(
        &format!("glibc of {codename}: {version}"),
        version.starts_with(&format!("glibc {glibc}")),
        true,
    )?;
    equal("warnings", said.as_str(), "")?;
    limits_hold(place, stage)?;
    others_notice_nothing(place)?;
    our_programs_run(place, stage)
}

#[test]
fn the_libc_of_every_release() {
    let test = "the_libc_of_every_release";
    let stage = match possible().and_then(|()| stage()) {
        Ok(stage) => stage,
        Err(reason) => return skip(test, &reason),
    };
    let mut broken = Vec::new();
    for (codename, glibc) in RELEASES {
        let components = "main";
        let root = match apt::root(Release { codename, components }, &PACKAGES, With::Nothing) {
            Ok(root) => root,
            Err(reason) => {
                skip(
                    &format!("{test}, {codename}"),
                    reason.lines().last().unwrap_or_default(),
                );
                continue;
            }
        };
        let share = Share::new(LIMIT, &stage.path().join("client"), &Form::Container.driver());
        let checked = Place::container(share, &root, &[stage.path()])
            .and_then(|place| check(codename, glibc, stage.path(), &place));
        broken.extend(checked.map_err(|error| format!("{codename}: {error}")).err());
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

/// A program that musl's loader runs opens libraries as without the backstop, and gets musl's own errors.
#[test]
fn a_program_of_musl_opens_libraries() {
    let root = match apt::own_packages("main", &["musl", "musl-dev"], With::Nothing) {
        Ok(root) => root,
        Err(reason) => return skip("a_program_of_musl_opens_libraries", &reason),
    };
    let stage = tempfile::tempdir().expect("a folder");
    let at = |name: &str| stage.path().join(name);
    cc::build(
        "opens.c",
        &at("library.so"),
        ["-DLIBRARY", "-nostdlib", "-shared", "-fPIC"],
    );
    cc::build_musl("opens.c", &at("opens"), &root);
    cc::build("client.c", &at("client"), [""; 0]);
    let place = Place::user(Share::new(GIB, &at("client"), &Form::User.driver()));
    let says = |library: &str| {
        let command = &mut place.command(&at("opens"), &[]);
        let output = command.arg(at(library)).output().expect("a program");
        assert_eq!(String::from_utf8_lossy(&output.stderr), "");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    assert_eq!(says("library.so"), "7\n");
    let error = says("missing.so");
    assert!(error.starts_with("dlopen: Error loading shared library "), "{error}");
}
