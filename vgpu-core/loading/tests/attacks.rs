//! Attacks on the limit that need a container, but no cluster: rows of docs/threat-model.md. Attacks that it marks
//! "neither" get past the library. If a test sees one of them fail, that page is out of date.
//!
//! Each runs twice: on a driver without limits of its own, and behind the driver's limit of the container's cgroup, where
//! all of them end in out of memory.
//!
//! In pods: `e2e/tests/cluster/attacks.rs`.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use vgpu_abi::limits::{Limits, TOLERANCE};
use vgpu_abi::paths::{CONTAINER_PRELOAD, LIBCUDA, LIBNVIDIA_ML, LIMITS, PRELOAD_FILE, RUN_DIR_VARIABLE, SHIM_FILE};
use vgpu_cache::run;
use vgpu_loading::place::{Form, Place, possible};
use vgpu_loading::share::{NAME, Share};
use vgpu_loading::{GIB, cc, dist};
use vgpu_skip::skip;

const LIMIT: u64 = 2 * GIB;
const SUCCESS: &str = "0";
const OUT_OF_MEMORY: &str = "2";
/// The first GPU of a profile that names no addresses.
const REGION: &str = "nvidia/00000000:1b:00.0/vidmem";

/// Whether the driver limits the container's cgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wall {
    LibraryAlone,
    DriverAndLibrary,
}

impl Wall {
    const BOTH: [Self; 2] = [Self::LibraryAlone, Self::DriverAndLibrary];

    fn profile(self) -> &'static str {
        match self {
            Self::LibraryAlone => "",
            Self::DriverAndLibrary => "memory_limits = dmem\n",
        }
    }

    /// What an allocation of more than the share ends in, for a program that goes around the library.
    fn past_the_library(self) -> &'static str {
        match self {
            Self::LibraryAlone => SUCCESS,
            Self::DriverAndLibrary => OUT_OF_MEMORY,
        }
    }
}

/// A container with a share, and a folder with the programs.
struct Attacked {
    stage: tempfile::TempDir,
    place: Place,
    wall: Wall,
}

impl Attacked {
    /// None: skipped.
    fn new(test: &str, wall: Wall) -> Option<Self> {
        if let Err(reason) = possible() {
            skip(test, &reason);
            return None;
        }
        let stage = tempfile::tempdir().expect("a folder");
        let none: [&str; 0] = [];
        for program in ["client", "without_access"] {
            cc::build(&format!("{program}.c"), &stage.path().join(program), none);
        }
        cc::build("auditor.c", &stage.path().join("auditor.so"), ["-shared", "-fPIC"]);
        let link = stage.path().join("link");
        fs::create_dir(&link).expect("a folder");
        symlink(CONTAINER_PRELOAD, link.join(PRELOAD_FILE)).expect("a link");
        cc::build("imitation.c", &link.join(LIBCUDA), ["-shared", "-fPIC"]);
        let (probe, driver) = (stage.path().join("client"), Form::Container.driver());
        let share = Share::with_profile(LIMIT, &probe, &driver, wall.profile());
        let place = Place::container(share, Path::new("/"), &[stage.path()]).unwrap_or_else(|error| panic!("{error}"));
        let attacked = Self { stage, place, wall };
        put_cgroups(&attacked.path("cgroups"));
        Some(attacked)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.stage.path().join(name)
    }

    /// A program in the container.
    fn command(&self, program: &Path, environment: &[(&str, &str)]) -> Command {
        let cgroup = self.path("cgroups/container").display().to_string();
        let cgroup = [("SOFT_GPU_CGROUP", cgroup.as_str())];
        self.place.command(program, &[environment, &cgroup].concat())
    }

    /// Runs `program` with the client of the driver's own files as its arguments. Returns the driver's result of an
    /// allocation of more than either limit.
    fn over(&self, program: &Path, arguments: &[PathBuf]) -> String {
        let mut command = self.command(program, &[]);
        command.args(arguments).arg(self.path("client"));
        let output = run(command.args(client(&self.place.form.driver()))).unwrap_or_else(|error| panic!("{error}"));
        over(&output).to_owned()
    }

    /// Asserts that a program that goes around the library is held by the driver alone.
    #[track_caller]
    fn gets_past_the_library(&self, answer: &str) {
        assert_eq!(
            answer,
            self.wall.past_the_library(),
            "docs/threat-model.md: {:?}",
            self.wall
        );
    }
}

/// A cgroup as the kernel's controller dmem shows it, whose limit is the share and the tolerance.
fn put_cgroups(root: &Path) {
    let container = root.join("container");
    fs::create_dir_all(&container).expect("a folder");
    fs::write(root.join("cgroup.procs"), "").expect("a file");
    fs::write(root.join("cgroup.subtree_control"), "dmem").expect("a file");
    let limit = LIMIT + TOLERANCE;
    fs::write(container.join("dmem.max"), format!("{REGION} {limit}\n")).expect("a limit");
}

/// The client's arguments: it opens CUDA and NVML in this folder, and allocates a granule more than the driver's limit.
fn client(folder: &Path) -> Vec<String> {
    let limit = (LIMIT + TOLERANCE).to_string();
    let file = |name: &str| folder.join(name).display().to_string();
    let (cuda, nvml) = (file(LIBCUDA), file(LIBNVIDIA_ML));
    let words = ["dlopen", "cuda", &limit, &cuda, &nvml, &cuda, &cuda].map(str::to_owned);
    words.into()
}

/// The driver's result of an allocation of more than either limit, from the client's output.
fn over(output: &str) -> &str {
    output.split(' ').nth(3).unwrap_or_default()
}

/// The control of all other tests: without an attack the limit holds.
#[test]
fn the_drivers_own_file_holds_without_an_attack() {
    for wall in Wall::BOTH {
        let Some(attacked) = Attacked::new("the_drivers_own_file_holds_without_an_attack", wall) else {
            return;
        };
        assert_eq!(attacked.over(Path::new("/usr/bin/env"), &[]), OUT_OF_MEMORY, "{wall:?}");
    }
}

/// The loader knows the backstop by a link next to an imitation of the shim, because LD_PRELOAD is loaded before the
/// libraries of /etc/ld.so.preload.
#[test]
fn a_link_to_the_backstop_does_not_choose_the_shim() {
    let Some(attacked) = Attacked::new("a_link_to_the_backstop_does_not_choose_the_shim", Wall::LibraryAlone) else {
        return;
    };
    let link = attacked.path("link").join(PRELOAD_FILE);
    // Only set for the program: the shell that starts it does not use CUDA.
    let preload = format!("LD_PRELOAD={}", link.display());
    assert_eq!(
        attacked.over(Path::new("/usr/bin/env"), &[preload.into()]),
        OUT_OF_MEMORY
    );
}

#[test]
fn an_auditor_gets_past_the_library() {
    for wall in Wall::BOTH {
        let Some(attacked) = Attacked::new("an_auditor_gets_past_the_library", wall) else {
            return;
        };
        let driver = attacked.place.form.driver().join(LIBCUDA);
        let bytes = (LIMIT + GIB).to_string();
        // Set for the program alone, not for the shell that starts it.
        let mut command = attacked.command(Path::new("/usr/bin/env"), &[]);
        command
            .arg(format!("LD_AUDIT={}", attacked.path("auditor.so").display()))
            .arg(format!("DRIVER={}", driver.display()))
            .args([&format!("BYTES={bytes}"), "/bin/true"]);
        let output = run(&mut command).unwrap_or_else(|error| panic!("{error}"));
        let answer = output.trim().strip_prefix("answer ");
        attacked.gets_past_the_library(answer.unwrap_or(&output));
    }
}

#[test]
fn a_program_under_a_filter_in_which_access_fails_gets_past_the_library() {
    for wall in Wall::BOTH {
        let test = "a_program_under_a_filter_in_which_access_fails_gets_past_the_library";
        let Some(attacked) = Attacked::new(test, wall) else {
            return;
        };
        attacked.gets_past_the_library(&attacked.over(&attacked.path("without_access"), &[]));
    }
}

/// A copy of the loader that reads another list than /etc/ld.so.preload.
#[test]
fn another_loader_gets_past_the_library() {
    for wall in Wall::BOTH {
        let Some(attacked) = Attacked::new("another_loader_gets_past_the_library", wall) else {
            return;
        };
        let listed = run(Command::new("ldd").arg(attacked.path("client"))).unwrap_or_else(|error| panic!("{error}"));
        let is_loader = |word: &&str| word.starts_with('/') && word.contains("/ld-");
        let loader = listed.split_whitespace().find(is_loader).expect("a loader");
        let mut bytes = fs::read(loader).expect("the loader");
        let list = b"/etc/ld.so.preload";
        let at = bytes
            .windows(list.len())
            .position(|window| window == list)
            .expect("the list's path");
        bytes[at..][..list.len()].copy_from_slice(b"/etc/ld.so.nothing");
        let own = attacked.path("loader");
        fs::write(&own, bytes).expect("written");
        fs::set_permissions(&own, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("a mode");
        attacked.gets_past_the_library(&attacked.over(&own, &[]));
    }
}

/// A mount namespace of its own, in which a program mounts an empty file over the list.
#[test]
fn a_program_that_may_mount_gets_past_the_library() {
    for wall in Wall::BOTH {
        let Some(attacked) = Attacked::new("a_program_that_may_mount_gets_past_the_library", wall) else {
            return;
        };
        let script = "mount --bind /dev/null /etc/ld.so.preload && exec \"$@\"";
        let words = ["--mount", "sh", "-euc", script, "sh"].map(PathBuf::from);
        attacked.gets_past_the_library(&attacked.over(Path::new("/usr/bin/unshare"), &words));
    }
}

/// A chroot with our library, a copy of the driver, and limits that the tenant wrote.
#[test]
fn another_root_with_forged_limits_gets_past_the_library() {
    for wall in Wall::BOTH {
        let Some(attacked) = Attacked::new("another_root_with_forged_limits_gets_past_the_library", wall) else {
            return;
        };
        let root = put_root(&attacked);
        // /lib: with our library, which believes the limits. /driver: without it.
        for folder in ["/lib", "/driver"] {
            let environment = [(RUN_DIR_VARIABLE, "/shares"), ("SOFT_GPU_STATE", "/state")];
            let mut command = attacked.command(Path::new("/usr/sbin/chroot"), &environment);
            command.arg(&root).arg("/client").args(client(Path::new(folder)));
            let output = run(&mut command).unwrap_or_else(|error| panic!("{folder}: {error}"));
            attacked.gets_past_the_library(over(&output));
        }
    }
}

/// Makes the other root, and returns its folder.
fn put_root(Attacked { stage, place, .. }: &Attacked) -> PathBuf {
    let root = stage.path().join("root");
    let put = |from: &Path, to: &str| {
        let to = root.join(to.trim_start_matches('/'));
        fs::create_dir_all(to.parent().expect("a folder")).expect("a folder");
        fs::copy(from, to).expect("a copy");
    };
    let shim = dist(SHIM_FILE);
    for program in [&stage.path().join("client"), &shim] {
        let listed = run(Command::new("ldd").arg(program)).unwrap_or_else(|error| panic!("{error}"));
        let files = listed.split_whitespace().filter(|word| word.starts_with('/'));
        files.for_each(|file| put(Path::new(file), file));
    }
    put(&stage.path().join("client"), "client");
    for name in [LIBCUDA, LIBNVIDIA_ML] {
        put(&shim, &format!("lib/{name}"));
        put(&dist("soft-gpu").join(name), &format!("driver/{name}"));
    }
    let driver = Path::new("/driver");
    let limits = Limits::of_memory(
        NAME,
        &place.share.gpu,
        LIMIT * 8,
        driver.join(LIBCUDA),
        driver.join(LIBNVIDIA_ML),
    );
    let share = root.join("shares").join(NAME);
    fs::create_dir_all(&share).expect("a folder");
    fs::write(share.join(LIMITS), limits.render()).expect("limits");
    fs::write(share.join(vgpu_abi::paths::LEDGER), vgpu_abi::ledger::image(&limits)).expect("a ledger");
    let copied = run(Command::new("cp")
        .arg("-r")
        .arg(place.share.state())
        .arg(root.join("state")));
    copied.unwrap_or_else(|error| panic!("{error}"));
    // A real cgroup is the kernel's, whatever the root is.
    put_cgroups(&root.join(stage.path().join("cgroups").strip_prefix("/").expect("absolute")));
    root
}
