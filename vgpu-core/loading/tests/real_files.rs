//! Tests with NVIDIA's real libraries, from the distribution's packages. They need no GPU: without a GPU cuInit returns
//! 100, but cuGetProcAddress works. The packages are downloaded by the test and never committed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use vgpu_abi::paths::{LIBCUDA, LIBNVIDIA_ML, SHIM_FILE};
use vgpu_cache::apt::{self, Release, With};
use vgpu_cache::run;
use vgpu_loading::place::Place;
use vgpu_loading::share::Share;
use vgpu_loading::{GIB, cc, dist};
use vgpu_skip::skip;

type Family = (&'static str, [&'static str; 2]);

/// Releases, each with a driver family's packages of libcuda and of NVML. The last row has the newest driver in Debian.
const FAMILIES: [Family; 5] = [
    ("bookworm", ["libcuda1", "libnvidia-ml1"]),
    ("bookworm", ["libnvidia-tesla-470-cuda1", "libnvidia-tesla-470-ml1"]),
    ("trixie", ["libnvidia-tesla-535-cuda1", "libnvidia-tesla-535-ml1"]),
    ("trixie", ["libcuda1", "libnvidia-ml1"]),
    ("experimental", ["libcuda1", "libnvidia-ml1"]),
];

/// Exported by mistake by driver 470: an internal function, not part of NVML's API.
const INTERNAL: [&str; 1] = ["nvmlRetry_NvRmControl"];

/// The files of a family: libcuda, NVML.
fn files(codename: &str, packages: [&str; 2]) -> Result<[PathBuf; 2], String> {
    let release = Release {
        codename,
        components: "non-free",
    };
    let root = apt::root(release, &packages, With::Nothing)?;
    let find = |name: &str| {
        let mut list = Vec::new();
        walk(&root, &mut list);
        let starts = format!("{name}.");
        let file = list.into_iter().find(|path| {
            let file = path.file_name().unwrap_or_default().to_string_lossy();
            file.starts_with(starts.trim_end_matches("1.")) && !path.is_symlink() && path.is_file()
        });
        file.ok_or(format!("{name} is missing in {packages:?}"))
    };
    Ok([find(LIBCUDA)?, find(LIBNVIDIA_ML)?])
}

fn walk(folder: &Path, list: &mut Vec<PathBuf>) {
    for entry in folder.read_dir().into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() && !path.is_symlink() {
            walk(&path, list);
        } else {
            list.push(path);
        }
    }
}

/// The public functions of libcuda or NVML that a file exports.
fn exports(file: &Path) -> Vec<String> {
    let symbols = run(Command::new("readelf").args(["--dyn-syms", "-W"]).arg(file));
    let symbols = symbols.unwrap_or_else(|error| panic!("{error}"));
    let rows = symbols.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let mut names: Vec<String> = rows
        .filter(|row| row.len() >= 8 && row[6] != "UND" && ["GLOBAL", "WEAK"].contains(&row[4]))
        .map(|row| row[7].split('@').next().unwrap_or_default().to_owned())
        .filter(|name| name.starts_with("cu") || name.starts_with("nvml"))
        .collect();
    names.sort();
    names
}

#[test]
fn every_export_of_every_version_is_in_the_library() {
    let ours = exports(&dist(SHIM_FILE));
    let mut missing = Vec::new();
    for (codename, packages) in FAMILIES {
        let files = match files(codename, packages) {
            Ok(files) => files,
            Err(reason) => {
                let name = format!(
                    "every_export_of_every_version_is_in_the_library, {codename}, {}",
                    packages[0]
                );
                skip(&name, reason.lines().last().unwrap_or_default());
                continue;
            }
        };
        for file in files {
            let theirs = exports(&file);
            assert!(theirs.len() > 200, "{}: {} exports", file.display(), theirs.len());
            println!("{}: {} exports", file.display(), theirs.len());
            let known = |name: &&String| ours.binary_search(name).is_ok() || INTERNAL.contains(&name.as_str());
            let lost = theirs.iter().filter(|name| !known(name));
            missing.extend(lost.map(|name| format!("{name} of {}", file.display())));
        }
    }
    assert!(missing.is_empty(), "libvgpu.so lacks {missing:#?}");
}

/// The version of the driver in the first row of [`FAMILIES`]. Look-ups are compared up to this version.
const VERSION: i64 = 12020;

/// The client, the names to look up, all exports, and a folder with the real libraries under their usual names. None:
/// skipped.
fn stage(test: &str, (codename, packages): Family) -> Option<(tempfile::TempDir, PathBuf)> {
    let files = match files(codename, packages) {
        Ok(files) => files,
        Err(reason) => {
            let name = format!("{test}, {codename}, {}", packages[0]);
            skip(&name, reason.lines().last().unwrap_or_default());
            return None;
        }
    };
    let stage = tempfile::tempdir().expect("a folder");
    let none: [&str; 0] = [];
    cc::build("lookups.c", &stage.path().join("lookups"), none);
    cc::build("client.c", &stage.path().join("client"), none);
    let mut names = BTreeSet::from([String::new(), "cuNoSuchFunction".into()]);
    names.extend(exports(&files[0]).into_iter().map(|name| {
        let plain = name.trim_end_matches("_ptsz").trim_end_matches("_ptds");
        plain.split("_v").next().unwrap_or(plain).to_owned()
    }));
    let names: Vec<String> = names.into_iter().filter(|name| !name.starts_with("cudbg")).collect();
    fs::write(stage.path().join("names"), names.join("\n") + "\n").expect("a file");
    let exported = files.iter().flat_map(|file| exports(file));
    // The debugger's symbols are mostly variables, and one function of NVML returns text.
    let left_out = |name: &str| name.starts_with("cudbg") || name == "nvmlErrorString" || INTERNAL.contains(&name);
    let exported = exported.filter(|name| !left_out(name));
    fs::write(
        stage.path().join("exports"),
        exported.map(|name| name + "\n").collect::<String>(),
    )
    .expect("a file");
    let real = stage.path().join("real");
    fs::create_dir(&real).expect("a folder");
    for (file, name) in files.iter().zip([LIBCUDA, LIBNVIDIA_ML]) {
        symlink(file, real.join(name)).expect("a link");
    }
    Some((stage, real))
}

/// The client's arguments: [`ALL`] or [`ZERO`], with the file of its names.
type Question = [&'static str; 2];
/// Look-ups, errors, and some calls before cuInit.
const ALL: Question = ["all", "names"];
/// Calls every function with zeros for all arguments.
const ZERO: Question = ["zero", "exports"];

/// The lines of the client.
fn answers(mut command: Command, stage: &Path, [what, names]: Question) -> Vec<String> {
    let names = File::open(stage.join(names)).expect("a file");
    let output = command.arg(what).stdin(Stdio::from(names)).output().expect("a program");
    assert!(
        output.status.success(),
        "{}: {}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    let text = String::from_utf8(output.stdout).expect("text");
    text.lines().map(str::to_owned).collect()
}

fn bare(stage: &Path, libraries: &Path, question: Question) -> Vec<String> {
    let mut command = Command::new(stage.join("lookups"));
    command
        .env("LD_LIBRARY_PATH", libraries)
        .env("SOFT_GPU_STATE", stage.join("state"));
    answers(command, stage, question)
}

fn differences(left: &[String], right: &[String]) -> String {
    assert_eq!(left.len(), right.len());
    let pairs = left.iter().zip(right).filter(|(left, right)| left != right);
    let text: Vec<String> = pairs.map(|(left, right)| format!("{left}   |   {right}")).collect();
    let first: Vec<&str> = text.iter().take(40).map(String::as_str).collect();
    match text.len() {
        0 => String::new(),
        count => format!("{count} of {}:\n{}", left.len(), first.join("\n")),
    }
}

/// The software GPU knows functions and errors that are newer than this driver; all other answers are the same.
#[test]
fn the_software_gpu_answers_look_ups_as_the_real_driver() {
    let Some((stage, real)) = stage("the_software_gpu_answers_look_ups_as_the_real_driver", FAMILIES[0]) else {
        return;
    };
    let known = |line: &String| {
        let version = line.split(' ').nth(1).and_then(|word| word.parse::<i64>().ok());
        let about_names = ["init", "error", "text", "before", "nvml "]
            .iter()
            .all(|other| !line.starts_with(other));
        about_names && version.is_some_and(|version| (0..=VERSION).contains(&version))
    };
    let (theirs, ours) = (
        bare(stage.path(), &real, ALL),
        bare(stage.path(), &dist("soft-gpu"), ALL),
    );
    let [names, own_names] = [&theirs, &ours].map(|lines| {
        let lines: Vec<String> = lines.iter().filter(|line| known(line)).cloned().collect();
        lines
    });
    assert!(names.len() > 30_000, "{}", names.len());
    assert_eq!(
        differences(&names, &own_names),
        "",
        "the real driver   |   the software GPU"
    );
    for line in theirs
        .iter()
        .filter(|line| line.starts_with("error") || line.starts_with("before"))
    {
        assert!(ours.contains(line), "{line}");
    }
    // The software GPU's texts differ, but it has a text wherever the driver has one.
    let texts = |lines: &[String]| {
        let texts = lines.iter().filter(|line| line.starts_with("text "));
        texts
            .filter_map(|line| Some(line.split(' ').nth(1)?.to_owned()))
            .collect::<BTreeSet<_>>()
    };
    let (theirs, ours) = (texts(&theirs), texts(&ours));
    assert!(theirs.len() > 50, "{theirs:?}");
    assert_eq!(theirs.difference(&ours).collect::<Vec<_>>(), Vec::<&String>::new());
}

/// Calls with zeros for all arguments, before cuInit and nvmlInit. A real driver checks some arguments before it checks
/// whether it is initialised, and others after. The order is not compared, but wherever the driver fails, the software
/// GPU fails too.
#[test]
fn calls_without_arguments_fail_as_in_the_real_driver() {
    let Some((stage, real)) = stage("calls_without_arguments_fail_as_in_the_real_driver", FAMILIES[0]) else {
        return;
    };
    let asked = |libraries: &Path| {
        let lines = bare(stage.path(), libraries, ZERO).into_iter();
        let before = lines.filter_map(|line| {
            let (name, answer) = line.strip_prefix("before ")?.split_once(' ')?;
            Some((name.to_owned(), answer.parse::<i32>().ok()?))
        });
        before.collect::<BTreeMap<_, _>>()
    };
    let (theirs, ours) = (asked(&real), asked(&dist("soft-gpu")));
    assert!(theirs.len() > 900, "{}", theirs.len());
    /// Error codes for invalid arguments, of both libraries.
    const ARGUMENT: [i32; 4] = [1, 2, 201, 400];
    const CUDA_NOT_INITIALIZED: i32 = 3;
    let mut wrong = Vec::new();
    for (name, answer) in &theirs {
        // The success of cuInit depends on the machine, and nvmlInit of the software GPU has a GPU.
        let is_start = name == "cuInit" || name.starts_with("nvmlInit");
        let Some(ours) = ours.get(name).filter(|_| !is_start) else {
            continue;
        };
        let same_kind = match *answer {
            // The real function writes nothing, or crashes.
            ..=0 => true,
            CUDA_NOT_INITIALIZED => *ours == CUDA_NOT_INITIALIZED || ARGUMENT.contains(ours),
            _ => *ours > 0,
        };
        if !same_kind {
            wrong.push(format!("{name}: the real driver {answer}, the software GPU {ours}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Functions that fail with a different error than the driver's when every argument is 0, because the hook and the
/// driver check arguments and initialisation in a different order.
const OTHER_ERROR: &str = "cuFuncLoad cuGraphInstantiateWithParams cuGraphInstantiateWithParams_ptsz cuIpcOpenMemHandle \
    cuIpcOpenMemHandle_v2 cuLibraryLoadData cuLibraryLoadFromFile cuMemAllocManaged \
    cuMemGetHandleForAddressRange nvmlDeviceGetAccountingStats nvmlDeviceGetHandleByPciBusId \
    nvmlDeviceGetHandleByPciBusId_v2 nvmlDeviceGetHandleBySerial nvmlDeviceGetHandleByUUID \
    nvmlDeviceGetProcessesUtilizationInfo nvmlDeviceGetRunningProcessDetailList";

/// The driver reads an argument of this function before it checks whether it is initialised, and crashes (555 here);
/// the library returns an error.
const FAULTS: &str = "cuCtxCreate_v4";

/// Replaces error codes in the lines of [`OTHER_ERROR`] and [`FAULTS`] by the word `fails`, so that any error matches
/// any other.
fn any_error(lines: Vec<String>) -> Vec<String> {
    let one = |line: String| match line.split(' ').collect::<Vec<_>>()[..] {
        [when, name, answer]
            if OTHER_ERROR.split(' ').any(|other| other == name) && answer.parse().is_ok_and(|code: i32| code > 0) =>
        {
            format!("{when} {name} fails")
        }
        [when, name, answer] if name == FAULTS && answer.parse().is_ok_and(|code: i32| code != 0) => {
            format!("{when} {name} fails")
        }
        _ => line,
    };
    lines.into_iter().map(one).collect()
}

/// On a machine with the driver's files and no GPU, a share's process gets the driver's answers. Each function that the
/// driver returns is passed through, or is our hook of the same variant.
#[test]
fn under_a_share_the_real_driver_answers_as_bare() {
    let stages = FAMILIES.map(|family| (family, stage("under_a_share_the_real_driver_answers_as_bare", family)));
    for (family, stage) in stages {
        let Some((stage, real)) = stage else { continue };
        let share = Share::new(GIB, &stage.path().join("client"), &real);
        let place = Place::user(share);
        // Driver 470 has only the first form of cuGetProcAddress; the client calls both.
        let has_both = exports(&real.join(LIBCUDA)).contains(&"cuGetProcAddress_v2".to_owned());
        for question in [Some(ZERO), has_both.then_some(ALL)].into_iter().flatten() {
            let shared = answers(
                place.command(&stage.path().join("lookups"), &[]),
                stage.path(),
                question,
            );
            let theirs = bare(stage.path(), &real, question);
            assert!(
                theirs
                    .iter()
                    .any(|line| ["init 100", "before cuInit 100"].contains(&line.as_str())),
                "this machine has a GPU: compare there by hand"
            );
            let (theirs, shared) = (any_error(theirs), any_error(shared));
            assert_eq!(
                differences(&theirs, &shared),
                "",
                "{family:?}: the real driver   |   under a share"
            );
        }
    }
}

/// A tool that the driver loads in cuInit (CUDA_INJECTION64_PATH: Nsight, compute-sanitizer) and that calls cuInit
/// itself. It once waited half a minute for a lock that its own thread held.
#[test]
fn a_tool_within_cuinit_is_answered_as_bare() {
    let family = FAMILIES[FAMILIES.len() - 1];
    let Some((stage, real)) = stage("a_tool_within_cuinit_is_answered_as_bare", family) else {
        return;
    };
    let tool = stage.path().join("tool.so");
    cc::build("../../tests/tool.c", &tool, ["-shared", "-fPIC"]);
    let share = Share::new(GIB, &stage.path().join("client"), &real);
    let lookups = stage.path().join("lookups");
    let mut bare = Command::new(&lookups);
    bare.env("LD_LIBRARY_PATH", &real);
    let [(theirs, alone), (shared, took)] = [bare, Place::user(share).command(&lookups, &[])].map(|mut command| {
        let names = File::open(stage.path().join("exports")).expect("a file");
        command.env("CUDA_INJECTION64_PATH", &tool).arg(ZERO[0]);
        let began = Instant::now();
        let output = command.stdin(Stdio::from(names)).output().expect("a program");
        let took = began.elapsed();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        let lines: Vec<String> = text
            .lines()
            .filter(|line| line.contains("within cuInit"))
            .map(str::to_owned)
            .collect();
        (lines, took)
    });
    assert!(!theirs.is_empty(), "the driver loads no tool");
    // The old error was a wait of 30 s. On a busy machine the run without the library alone takes up to 21 s.
    let most = 2 * alone + Duration::from_secs(20);
    assert!(took < most, "{took:?}, and bare {alone:?}");
    assert_eq!(theirs, shared);
}

/// The programs of the test below: a client that finds the driver by name or path, and those that are linked with it.
fn clients(stage: &Path, real: &Path) {
    let (rpath, folder) = (
        format!("-Wl,-rpath,{}", real.display()),
        format!("-L{}", real.display()),
    );
    let linked = [
        "-DLINKED",
        "-Wl,--no-as-needed",
        &folder,
        "-l:libcuda.so.1",
        "-l:libnvidia-ml.so.1",
    ];
    let (old, lazy) = (["-Wl,--disable-new-dtags", &rpath], ["-Wl,-z,lazy"]);
    let none: [&str; 0] = [];
    cc::build("whose.c", &stage.join("whose"), none);
    cc::build("whose.c", &stage.join("linked"), linked);
    cc::build(
        "whose.c",
        &stage.join("linked-rpath"),
        [&linked[..], &old, &lazy].concat(),
    );
    cc::build("whose.c", &stage.join("poses"), ["-DPOSES", "-rdynamic"]);
}

/// The ways of loading in docs/loading.md that behave differently with the driver's real file: by its own DT_SONAME,
/// its own dependencies, and what its constructors do. Without a GPU no limit can be tested, so the test checks whose
/// functions the program gets.
#[test]
fn every_way_to_the_real_file_leads_to_the_library() {
    for family in FAMILIES {
        if let Some((stage, real)) = stage("every_way_to_the_real_file_leads_to_the_library", family) {
            let wrong = ways(&stage, &real);
            assert!(wrong.is_empty(), "{family:?}: {}", wrong.join("\n"));
        }
    }
}

/// Returns the ways by which a program reaches a function without the library.
fn ways(stage: &tempfile::TempDir, real: &Path) -> Vec<String> {
    clients(stage.path(), real);
    for name in [LIBCUDA, LIBNVIDIA_ML] {
        // A copy: another file, with the same DT_SONAME.
        fs::copy(real.join(name), stage.path().join(format!("renamed-{name}.so"))).expect("a copy");
    }
    let place = Place::user(Share::new(GIB, &stage.path().join("client"), real));
    let text = |path: PathBuf| path.display().to_string();
    let (search, path) = (text(real.to_owned()), |name: &str| text(real.join(name)));
    let renamed = |name: &str| text(stage.path().join(format!("renamed-{name}.so")));
    let preload = format!("{}:{}", path(LIBCUDA), path(LIBNVIDIA_ML));
    let names = [LIBCUDA.to_owned(), LIBNVIDIA_ML.to_owned()];
    let paths = [path(LIBCUDA), path(LIBNVIDIA_ML)];
    let copies = [renamed(LIBCUDA), renamed(LIBNVIDIA_ML)];
    let none: &[(&str, &str)] = &[];
    let searched: &[(&str, &str)] = &[("LD_LIBRARY_PATH", &search)];
    let preloaded: &[(&str, &str)] = &[("LD_PRELOAD", &preload)];
    let mut wrong = Vec::new();
    for (program, how, files, environment) in [
        ("whose", "dlopen", &names, none),
        ("whose", "dlopen", &paths, none),
        ("whose", "dlopen", &copies, none),
        ("whose", "global", &names, none),
        ("whose", "global", &paths, none),
        ("whose", "global", &copies, none),
        ("whose", "dlmopen", &names, none),
        ("whose", "dlmopen", &paths, none),
        ("whose", "dlopen", &names, searched),
        ("whose", "dlopen", &names, preloaded),
        ("whose", "default", &names, preloaded),
        ("whose", "next", &names, preloaded),
        ("linked", "linked", &names, none),
        ("linked", "linked", &names, searched),
        ("linked", "linked", &names, preloaded),
        ("linked-rpath", "linked", &names, none),
        ("linked-rpath", "default", &names, none),
        ("linked-rpath", "next", &names, none),
        ("poses", "dlopen", &names, none),
        ("poses", "dlopen", &paths, none),
    ] {
        let arguments = [how, files[0].as_str(), files[1].as_str()];
        let output = place.run(&stage.path().join(program), environment, &arguments);
        let output = output.unwrap_or_else(|error| error);
        let lines: Vec<_> = output.lines().filter_map(|line| line.split_once(' ')).collect();
        let [(cuda, init), (nvml, _)] = lines[..] else {
            wrong.push(format!("{program} {how} {files:?} {environment:?}: {output:?}"));
            continue;
        };
        let ours = |file: &str| Path::new(file).starts_with(place.names());
        if !ours(cuda) || !ours(nvml) || init != "100" {
            wrong.push(format!("{program} {how} {files:?} {environment:?}: {output:?}"));
        }
    }
    wrong
}
